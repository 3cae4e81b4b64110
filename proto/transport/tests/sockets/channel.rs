//! Channels: lost servers, dead peers and many small messages.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use kindred_proto::raw::watch::watch_client::WatchClient;
use kindred_transport::auto_tls;
use kindred_transport::grpc::{Lost, lost};
use kindred_transport::listener::ListenError;
use kindred_transport::tls::{ClientTls, ServerTls};
use kindred_transport::{ConnectOptions, Connector, Endpoint, ListenAddr, ListenOptions, Listener};
use tokio_stream::StreamExt;
use tonic::Code;

use crate::support::{Server, ask, channel, eventually, proxy, who};

#[tokio::test]
async fn fails_fast_while_the_peer_is_down_and_comes_back_with_it() {
    let server = Server::start(&ListenAddr::any_local_port(), ListenOptions::default()).await;
    let endpoint = server.endpoint.clone();
    let channel = channel(&endpoint, None);
    assert_eq!(who(&channel).await.unwrap(), "plain");

    let waiting = tokio::spawn({
        let channel = channel.clone();
        async move { ask(&channel, true).await }
    });
    eventually("the call is under way", || async { server.waiting.load(Ordering::SeqCst) == 1 }).await;
    server.stop().await;
    let broken = waiting.await.unwrap().unwrap_err();
    assert_eq!(lost(&broken), Some(Lost::MayHaveRun), "{broken:?}");

    eventually("the loss is known", || async { lost(&who(&channel).await.unwrap_err()).is_some() }).await;
    for _ in 0..3 {
        let error = who(&channel).await.unwrap_err();
        assert_eq!((error.code(), lost(&error)), (Code::Unavailable, Some(Lost::NeverSent)), "{error:?}");
    }

    let again: ListenAddr = endpoint.to_string().parse().unwrap();
    let _server = Server::start(&again, ListenOptions::default()).await;
    assert_eq!(who(&channel).await.unwrap(), "plain");
}

#[tokio::test]
async fn a_peer_that_went_silent_is_noticed() {
    let server = Server::start(&ListenAddr::any_local_port(), ListenOptions::default()).await;
    let (address, silence) = proxy(server.endpoint.authority().parse().unwrap()).await;
    let options = ConnectOptions {
        keepalive_interval: Duration::from_millis(200),
        keepalive_timeout: Duration::from_secs(2),
        ..ConnectOptions::default()
    };
    let channel = Connector::new(options).channel(&Endpoint::tcp(address)).unwrap();
    who(&channel).await.unwrap();
    silence.cancel();
    let error = who(&channel).await.unwrap_err();
    assert_eq!((error.code(), lost(&error)), (Code::Unavailable, Some(Lost::MayHaveRun)), "{error:?}");
    who(&channel).await.unwrap();
}

#[tokio::test]
async fn the_next_endpoint_is_tried() {
    let gone = Listener::bind(&ListenAddr::any_local_port(), ListenOptions::default()).await.unwrap();
    let refusing = gone.local_endpoint().clone();
    drop(gone);
    let server = Server::start(&ListenAddr::any_local_port(), ListenOptions::default()).await;
    let channel = Connector::default().channel_any(&[refusing, server.endpoint.clone()]).unwrap();
    who(&channel).await.unwrap();
}

#[tokio::test]
async fn names_and_unix_sockets() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kindred.sock");
    let address = ListenAddr::unix(&path);
    let server = Server::start(&address, ListenOptions::default()).await;
    assert_eq!(server.endpoint, Endpoint::unix(&path));
    who(&channel(&server.endpoint, None)).await.unwrap();
    let taken = Listener::bind(&address, ListenOptions::default()).await.unwrap_err();
    assert!(taken.to_string().contains("another process"), "{taken}");
    server.stop().await;
    assert!(!path.exists());
    // A killed process leaves its socket file.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = Server::start(&address, ListenOptions::default()).await;
    who(&channel(&server.endpoint, None)).await.unwrap();
    // The Unix socket does not ask for certificates, unlike TCP.
    let mode = std::fs::symlink_metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");

    let tcp = Server::start(&"localhost:0".parse().unwrap(), ListenOptions::default()).await;
    let port = tcp.endpoint.authority().rsplit_once(':').unwrap().1.to_owned();
    who(&channel(&format!("localhost:{port}").parse().unwrap(), None)).await.unwrap();

    let error = Listener::bind(&"https://127.0.0.1:0".parse().unwrap(), ListenOptions::default()).await;
    assert!(matches!(error, Err(ListenError::NoCertificate { .. })));
}

#[tokio::test]
async fn a_file_that_is_no_socket_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let refused = async |path: &std::path::Path| {
        Listener::bind(&ListenAddr::unix(path), ListenOptions::default()).await.unwrap_err().to_string()
    };
    std::fs::write(&path, "precious").unwrap();
    let error = refused(&path).await;
    assert!(error.contains(&format!("unix://{}", path.display())) && error.contains("no socket"), "{error}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    // A link to a socket stays as well, whether that socket is dead or not.
    let (dead, link) = (directory.path().join("dead"), directory.path().join("link"));
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    std::os::unix::fs::symlink(&dead, &link).unwrap();
    assert!(refused(&link).await.contains("no socket"));
    assert!(dead.exists() && link.is_symlink());
    let error = refused(&directory.path().join("none/socket")).await;
    assert!(error.contains("directory does not exist"), "{error}");
}

#[tokio::test]
async fn a_unix_socket_goes_before_tcp_while_somebody_listens_there() {
    let directory = tempfile::tempdir().unwrap();
    let tls = auto_tls::create(&directory.path().join("tls"), &[]).unwrap();
    let by_tcp = ServerTls::load(tls.server_settings()).unwrap();
    let path = directory.path().join("kindred.sock");
    let tcp = Server::start_tls(by_tcp.clone()).await;
    let connector = Connector::with_tls(Some(ClientTls::load(tls.client_settings()).unwrap()));
    // The Unix socket never uses TLS, even if the other endpoint does.
    let endpoints = [tcp.endpoint.clone(), Endpoint::unix(&path)];
    let channel = connector.channel_any(&endpoints).unwrap();
    assert_eq!(who(&channel).await.unwrap(), auto_tls::CLIENT_NAME, "no such file on this machine");
    let unix = Server::start(&ListenAddr::unix(&path), ListenOptions::default()).await;
    assert_eq!(who(&channel).await.unwrap(), auto_tls::CLIENT_NAME, "a connection that works is kept");
    assert_eq!(who(&connector.channel_any(&endpoints).unwrap()).await.unwrap(), "plain");
    tcp.stop().await;
    eventually("the socket is used", || async { who(&channel).await.is_ok_and(|name| name == "plain") })
        .await;
    let again: ListenAddr = endpoints[0].to_string().parse().unwrap();
    let _tcp = Server::start(&again, ListenOptions::with_tls(Some(by_tcp))).await;
    assert_eq!(who(&channel).await.unwrap(), "plain");
    unix.stop().await;
    let by_tcp = || async { who(&channel).await.is_ok_and(|name| name == auto_tls::CLIENT_NAME) };
    eventually("TCP is used", by_tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_of_many_streams_gets_stuck() {
    let server = Server::start(&ListenAddr::any_local_port(), ListenOptions::default()).await;
    many_streams(&server).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_of_many_streams_gets_stuck_in_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let address = ListenAddr::unix(directory.path().join("kindred.sock"));
    many_streams(&Server::start(&address, ListenOptions::default()).await).await;
}

async fn many_streams(server: &Server) {
    let channel = channel(&server.endpoint, None);
    let mut streams = tokio::task::JoinSet::new();
    for stream in 0..200u32 {
        let mut client = WatchClient::new(channel.clone());
        streams.spawn(async move {
            let (send, receive) = tokio::sync::mpsc::channel(1);
            let requests = tokio_stream::wrappers::ReceiverStream::new(receive);
            let mut answers = client.watch(requests).await.unwrap().into_inner();
            // Sizes on both sides of h2's threshold, one request at a time: a lost wake-up would block the test for
            // good.
            for round in 0..30u32 {
                let message = Bytes::from(vec![round as u8; (stream * 37 + round * 211) as usize % 5000]);
                send.send(message.clone()).await.unwrap();
                for _ in 0..5 {
                    assert_eq!(answers.next().await.unwrap().unwrap(), message);
                }
            }
        });
    }
    let all = async {
        while let Some(joined) = streams.join_next().await {
            joined.unwrap()
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("a stream hangs");
}

#[tokio::test]
async fn a_stop_closes_streams_after_the_grace_period() {
    let server = Server::start(&ListenAddr::any_local_port(), ListenOptions::default()).await;
    let channel = channel(&server.endpoint, None);
    let (send, receive) = tokio::sync::mpsc::channel(1);
    let requests = tokio_stream::wrappers::ReceiverStream::new(receive);
    let mut answers = WatchClient::new(channel.clone()).watch(requests).await.unwrap().into_inner();
    send.send(Bytes::from_static(b"x")).await.unwrap();
    answers.next().await.unwrap().unwrap();
    server.drain.begin();
    assert_eq!(server.drain.finish().await, kindred_transport::serve::Drained::Forced(1));
    let ended = tokio::time::timeout(Duration::from_secs(60), async {
        while let Some(Ok(_)) = answers.next().await {}
    });
    ended.await.expect("the stream stays open");
    who(&channel).await.unwrap_err();
}
