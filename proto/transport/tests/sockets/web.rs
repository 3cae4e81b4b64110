//! Requests that are no calls of gRPC, on an etcd port: over HTTP/1, and over HTTP/2.

use std::time::Duration;

use axum::routing::{get, post};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kindred_transport::listener::ConnectionInfo;
use kindred_transport::unread::Unread;
use kindred_transport::{Drain, Endpoint, ListenAddr, ListenOptions, Listener, server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::service::Routes;

use crate::support::{Server, channel, who};

/// A server that has a page, and says of a request what it was.
async fn start() -> (Endpoint, Drain) {
    let listener = Listener::bind(&ListenAddr::any_local_port(), ListenOptions::default()).await.unwrap();
    let (endpoint, drain) = (listener.local_endpoint().clone(), Drain::new(Duration::from_millis(200)));
    let page = |axum::Extension(from): axum::Extension<ConnectionInfo>| async move {
        assert!(from.peer.is_this_machine());
        "here"
    };
    let web = axum::Router::new().route("/page", get(page)).route("/echo", post(async |body: String| body));
    let web = kindred_transport::admin::for_clients(web);
    let served = server::Served { calls: (), services: Routes::default(), web };
    drain.spawn(server::serve(
        listener.incoming(&drain),
        served,
        server::STREAMS_MAX,
        Unread::default(),
        drain.stopping(),
    ));
    (endpoint, drain)
}

async fn connect(to: &Endpoint) -> TcpStream {
    let stream = TcpStream::connect(to.authority()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

#[tokio::test]
async fn http_1_and_2_get_the_same_pages() {
    let (endpoint, drain) = start().await;
    let mut stream = connect(&endpoint).await;
    // Two requests that arrive together, on one connection.
    let asked = "GET /page HTTP/1.1\r\nHost: a\r\n\r\nPOST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody";
    stream.write_all(asked.as_bytes()).await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    assert!(answers.contains("here") && answers.ends_with("body"), "{answers}");

    let stream = TokioIo::new(connect(&endpoint).await);
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let ask = |path: &str| {
        let uri = format!("http://a{path}");
        http::Request::get(uri).body(Full::<bytes::Bytes>::default()).unwrap()
    };
    let answer = client.send_request(ask("/page")).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "here");
    assert_eq!(client.send_request(ask("/nowhere")).await.unwrap().status(), 404);
    // A call of gRPC goes to the services, wherever it goes.
    let mut call = ask("/page");
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let refused = client.send_request(call).await.unwrap();
    assert_eq!(refused.headers()["grpc-status"], "12");
    drain.kill();
}

/// A name with a dot may be anybody's for this machine, also where HTTP/2 says it.
#[tokio::test]
async fn f81_a_name_is_looked_at_over_http_2_too() {
    let (endpoint, drain) = start().await;
    let stream = TokioIo::new(connect(&endpoint).await);
    let (mut client, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    for (host, status) in [("evil.example:2379", 403), ("127.0.0.1:2379", 200), ("localhost", 200)] {
        let request =
            http::Request::post(format!("http://{host}/echo")).body(Full::<bytes::Bytes>::default());
        assert_eq!(client.send_request(request.unwrap()).await.unwrap().status().as_u16(), status, "{host}");
    }
    drain.kill();
}

#[tokio::test]
async fn the_beginning_may_come_byte_by_byte() {
    let (endpoint, drain) = start().await;
    let mut stream = connect(&endpoint).await;
    // It begins as HTTP/2's does.
    for byte in b"PRI /page HTTP/1.0\r\n\r\n" {
        stream.write_all(&[*byte]).await.unwrap();
        stream.flush().await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 405"), "{answer}");
    for sent in ["", "PRI * HTT", "\0\0\0"] {
        let mut stream = connect(&endpoint).await;
        stream.write_all(sent.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        // The server closes the connection, with or without words.
        let _ = stream.read_to_string(&mut answer).await;
    }
    drain.kill();
}

#[tokio::test]
async fn a_client_of_grpc_is_served_beside() {
    let server = Server::start(&ListenAddr::any_local_port(), ListenOptions::default()).await;
    assert!(who(&channel(&server.endpoint, None)).await.is_ok());
    let mut stream = connect(&server.endpoint).await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    server.stop().await;
}
