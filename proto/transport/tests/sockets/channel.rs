//! Channels: lost servers, dead peers, many small messages.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kindred_proto::raw::watch::watch_client::WatchClient;
use kindred_transport::grpc::{Lost, lost};
use kindred_transport::listener::ListenError;
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
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.stop().await;
    let broken = waiting.await.unwrap().unwrap_err();
    assert_eq!(lost(&broken), Some(Lost::MayHaveRun), "{broken:?}");

    eventually("the loss is known", || async { lost(&who(&channel).await.unwrap_err()).is_some() }).await;
    for _ in 0..3 {
        let start = Instant::now();
        let error = who(&channel).await.unwrap_err();
        assert_eq!((error.code(), lost(&error)), (Code::Unavailable, Some(Lost::NeverSent)), "{error:?}");
        assert!(start.elapsed() < Duration::from_secs(1));
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
        keepalive_timeout: Duration::from_millis(200),
        ..ConnectOptions::default()
    };
    let channel = Connector::new(options).channel(&Endpoint::tcp(address)).unwrap();
    who(&channel).await.unwrap();
    silence.cancel();
    let start = Instant::now();
    let error = who(&channel).await.unwrap_err();
    assert_eq!((error.code(), lost(&error)), (Code::Unavailable, Some(Lost::MayHaveRun)), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(2));
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
    // A process that was killed leaves its file.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = Server::start(&address, ListenOptions::default()).await;
    who(&channel(&server.endpoint, None)).await.unwrap();

    let tcp = Server::start(&"localhost:0".parse().unwrap(), ListenOptions::default()).await;
    let port = tcp.endpoint.authority().rsplit_once(':').unwrap().1.to_owned();
    who(&channel(&format!("localhost:{port}").parse().unwrap(), None)).await.unwrap();

    let error = Listener::bind(&"https://127.0.0.1:0".parse().unwrap(), ListenOptions::default()).await;
    assert!(matches!(error, Err(ListenError::NoCertificate { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_message_of_many_streams_gets_stuck() {
    let server = Server::start(&ListenAddr::any_local_port(), ListenOptions::default()).await;
    let channel = channel(&server.endpoint, None);
    let mut streams = tokio::task::JoinSet::new();
    for stream in 0..200u32 {
        let mut client = WatchClient::new(channel.clone());
        streams.spawn(async move {
            let (send, receive) = tokio::sync::mpsc::channel(1);
            let requests = tokio_stream::wrappers::ReceiverStream::new(receive);
            let mut answers = client.watch(requests).await.unwrap().into_inner();
            // Sizes on both sides of h2's threshold, and one question at a time: any lost wake-up stops it for good.
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
    let ended = tokio::time::timeout(Duration::from_secs(5), async {
        while let Some(Ok(_)) = answers.next().await {}
    });
    ended.await.expect("the stream stays open");
    who(&channel).await.unwrap_err();
}
