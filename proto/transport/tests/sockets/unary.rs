//! Calls that are answered without tonic are identical to tonic's.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use http::{HeaderMap, Request as HttpRequest};
use hyper::body::{Body, Frame};
use hyper_util::rt::{TokioExecutor, TokioIo};
use kindred_proto::raw::kv::k_v_client::KVClient;
use kindred_proto::raw::kv::k_v_server::{KV, KVServer};
use kindred_transport::listener::Incoming;
use kindred_transport::metrics::calls::{self, Calls};
use kindred_transport::unary::UnaryCalls;
use kindred_transport::unary::long::Message;
use kindred_transport::unread::Unread;
use kindred_transport::{Drain, Endpoint, ListenAddr, ListenOptions, Listener, server};
use kindred_wire::rope::Rope;
use tokio::net::TcpStream;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

use crate::support::{channel, eventually};

const LIMIT: usize = 100_000;

/// Answers what the message asks for, and counts the running calls and the streams that it began.
#[derive(Clone, Default)]
pub struct Echo {
    pub running: Arc<AtomicUsize>,
    pub streams: Arc<AtomicUsize>,
    gate: CancellationToken,
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Echo {
    async fn answer(&self, request: Request<Bytes>) -> Result<Bytes, Status> {
        self.running.fetch_add(1, Ordering::SeqCst);
        let _running = Running(self.running.clone());
        let said = request.metadata().get("said").map(|said| said.as_bytes().to_vec());
        match &request.get_ref()[..] {
            b"never" => std::future::pending().await,
            b"later" => {
                tokio::time::sleep(Duration::from_millis(200)).await;
                Ok(request.into_inner())
            }
            b"gated" => {
                self.gate.cancelled().await;
                Ok(request.into_inner())
            }
            b"what did I say" => Ok(said.unwrap_or_default().into()),
            b"no" => {
                let mut status = Status::with_details(
                    Code::FailedPrecondition,
                    "no, 100 % certainly nöt\n",
                    Bytes::from_static(b"details"),
                );
                status.metadata_mut().insert("kindred-not-owned", "7".parse().unwrap());
                Err(status)
            }
            b"long" => Ok(vec![b'x'; 3 << 20].into()),
            _ => Ok(request.into_inner()),
        }
    }
}

impl UnaryCalls for Echo {
    type Method = ();

    fn method(&self, path: &str) -> Option<()> {
        (path == "/etcdserverpb.KV/Put").then_some(())
    }

    fn paths(&self) -> &'static [&'static str] {
        &["/etcdserverpb.KV/Put"]
    }

    fn message_bytes_max(&self) -> usize {
        LIMIT
    }

    fn counted(&self, (): ()) -> &'static Calls {
        static COUNTED: LazyLock<&'static Calls> = LazyLock::new(|| calls::of_kv("Put"));
        &COUNTED
    }

    async fn call(&self, (): (), request: Request<Bytes>) -> Result<Message, Status> {
        self.answer(request).await.map(Message::from)
    }
}

#[tonic::async_trait]
impl KV for Echo {
    type RangeStreamStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

    async fn range(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.answer(request).await.map(Response::new)
    }

    /// It has a head, and never an end.
    async fn range_stream(&self, _: Request<Bytes>) -> Result<Response<Self::RangeStreamStream>, Status> {
        self.streams.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(Box::pin(tokio_stream::pending())))
    }

    async fn put(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.answer(request).await.map(Response::new)
    }

    async fn delete_range(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn txn(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        Err(Status::unimplemented("not here"))
    }

    async fn compact(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        Err(Status::unimplemented("not here"))
    }
}

pub async fn start<U: UnaryCalls>(calls: U, tonic: Echo) -> (Endpoint, Drain) {
    let listener = Listener::bind(&ListenAddr::any_local_port(), ListenOptions::default()).await.unwrap();
    let (endpoint, drain) = (listener.local_endpoint().clone(), Drain::new(Duration::from_secs(120)));
    let incoming: Incoming = listener.incoming(&drain);
    let services = KVServer::new(tonic).max_decoding_message_size(LIMIT);
    drain.spawn(server::serve(
        incoming,
        server::Served::grpc(calls, services),
        server::STREAMS_MAX,
        Unread::default(),
        drain.stopping(),
    ));
    (endpoint, drain)
}

/// A body of these frames.
struct Frames(std::vec::IntoIter<Bytes>);

impl Body for Frames {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Status>>> {
        std::task::Poll::Ready(self.0.next().map(|frame| Ok(Frame::data(frame))))
    }
}

/// An answer as the client sees it.
#[derive(Debug, PartialEq)]
struct Seen {
    status: u16,
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

async fn ask(
    endpoint: &Endpoint,
    (verb, path, headers): (&str, &str, &[(&'static str, &str)]),
    frames: Vec<Bytes>,
) -> Seen {
    let stream = TcpStream::connect(endpoint.authority()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut request =
        HttpRequest::builder().method(verb).uri(format!("http://{}{path}", endpoint.authority()));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.header("te", "trailers").body(Frames(frames.into_iter())).unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(120), sender.send_request(request));
    let (parts, mut body) = answer.await.expect("the call hangs").unwrap().into_parts();
    let (mut bytes, mut trailers) = (BytesMut::new(), None);
    while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame.unwrap().into_data() {
            Ok(data) => bytes.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    connection.abort();
    Seen { status: parts.status.as_u16(), headers: parts.headers, body: bytes.freeze(), trailers }
}

fn framed(message: &[u8]) -> Bytes {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(message);
    bytes.into()
}

/// A web page makes a browser that has its user's certificate send a POST of `text/plain` over HTTP/2, without asking the
/// server first. It was carried out as the call of gRPC that its path names.
#[tokio::test]
async fn f81_a_post_that_a_page_can_send_is_no_call() {
    let (endpoint, _drain) = start(Echo::default(), Echo::default()).await;
    // The first is answered without tonic.
    for path in ["/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range", "/nobody.Has/This"] {
        for content in ["", "text/plain", "text/plain;application/grpc", "application/grpcx"] {
            let headers = [("content-type", content)];
            let headers = if content.is_empty() { &[][..] } else { &headers };
            let seen = ask(&endpoint, ("POST", path, headers), vec![framed(b"hello")]).await;
            assert_eq!((seen.status, &seen.body[..]), (415, &b""[..]), "{path} {content:?}");
            assert_eq!(seen.headers["grpc-status"], "3", "{path} {content:?}");
        }
        for content in ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"] {
            let headers = [("content-type", content)];
            let seen = ask(&endpoint, ("POST", path, &headers), vec![framed(b"hello")]).await;
            assert_eq!(seen.status, 200, "{path} {content:?}");
        }
    }
}

#[tokio::test]
async fn every_call_is_answered_as_tonic_answers_it() {
    let (ours, _drain_ours) = start(Echo::default(), Echo::default()).await;
    let (tonics, _drain_tonics) = start((), Echo::default()).await;
    let large = framed(&vec![7; 70_000]);
    let put = "/etcdserverpb.KV/Put";
    let grpc = ("content-type", "application/grpc");
    type Case<'a> = (&'a str, &'a str, Vec<(&'static str, &'a str)>, Vec<Bytes>);
    let cases: Vec<Case<'_>> = vec![
        ("POST", put, vec![grpc], vec![framed(b"hello")]),
        ("POST", put, vec![grpc], vec![framed(b"")]),
        ("POST", put, vec![grpc], vec![framed(b"long")]),
        ("POST", put, vec![grpc], large.chunks(999).map(Bytes::copy_from_slice).collect()),
        ("POST", put, vec![grpc], vec![framed(b"no")]),
        ("POST", put, vec![grpc, ("said", "yes")], vec![framed(b"what did I say")]),
        ("POST", put, vec![grpc, ("grpc-timeout", "50m")], vec![framed(b"never")]),
        ("POST", put, vec![grpc, ("grpc-timeout", "nonsense")], vec![framed(b"hello")]),
        ("POST", put, vec![grpc, ("grpc-timeout", "9S")], vec![framed(b"later")]),
        ("POST", put, vec![grpc, ("grpc-encoding", "identity")], vec![framed(b"hello")]),
        ("POST", put, vec![grpc, ("grpc-encoding", "gzip")], vec![framed(b"hello")]),
        ("POST", put, vec![grpc, ("grpc-accept-encoding", "gzip,identity")], vec![framed(b"hello")]),
        ("POST", put, vec![("content-type", "text/html")], vec![framed(b"hello")]),
        ("POST", put, vec![], vec![framed(b"hello")]),
        ("POST", put, vec![grpc], vec![]),
        ("POST", put, vec![grpc], vec![Bytes::from_static(&[0, 0, 0])]),
        ("POST", put, vec![grpc], vec![Bytes::from_static(&[1, 0, 0, 0, 0])]),
        ("POST", put, vec![grpc], vec![Bytes::from_static(&[9, 0, 0, 0, 0])]),
        ("POST", put, vec![grpc], vec![framed(b"one"), framed(b"two")]),
        ("POST", put, vec![grpc], vec![framed(b"one"), Bytes::from_static(&[0, 0])]),
        ("GET", put, vec![grpc], vec![]),
        ("POST", "/etcdserverpb.KV/Put?x=1", vec![grpc], vec![framed(b"hello")]),
        ("POST", "/etcdserverpb.KV/Range", vec![grpc], vec![framed(b"hello")]),
        ("POST", "/etcdserverpb.KV/Other", vec![grpc], vec![framed(b"hello")]),
    ];
    for (verb, path, headers, frames) in cases {
        let case = format!("{verb} {path} {headers:?} {:?}", frames.first().map(|f| &f[..f.len().min(20)]));
        let expected = ask(&tonics, (verb, path, &headers), frames.clone()).await;
        assert_eq!(ask(&ours, (verb, path, &headers), frames).await, expected, "{case}");
        assert!(!expected.headers.contains_key("date"), "{case}");
    }
    let too_long = vec![framed(&vec![0; LIMIT + 1])];
    let seen = ask(&ours, ("POST", put, &[grpc]), too_long).await;
    assert_eq!(
        (seen.status, &seen.headers["grpc-status"], seen.trailers),
        (200, &"8".parse().unwrap(), None)
    );
    assert_eq!(
        seen.headers["grpc-message"],
        "grpc:%20received%20message%20larger%20than%20max%20(100001%20vs.%20100000)"
    );
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_call() {
    let echo = Echo::default();
    let (endpoint, drain) = start(echo.clone(), Echo::default()).await;
    let channel = channel(&endpoint, None);
    for _ in 0..3 {
        let mut client = KVClient::new(channel.clone());
        let call = tokio::spawn(async move { client.put(Request::new(Bytes::from_static(b"never"))).await });
        eventually("the call runs", || async { echo.running.load(Ordering::SeqCst) == 1 }).await;
        call.abort();
        eventually("the call ended", || async { echo.running.load(Ordering::SeqCst) == 0 }).await;
    }
    // The connection stays usable.
    let answer = KVClient::new(channel).put(Request::new(Bytes::from_static(b"hello"))).await.unwrap();
    assert_eq!(answer.into_inner(), Bytes::from_static(b"hello"));
    drain.kill();
}

#[tokio::test]
async fn a_stop_lets_calls_finish_and_takes_no_more() {
    let echo = Echo::default();
    let (endpoint, drain) = start(echo.clone(), Echo::default()).await;
    let channel = channel(&endpoint, None);
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let mut client = KVClient::new(channel.clone());
            tokio::spawn(async move { client.put(Request::new(Bytes::from_static(b"gated"))).await })
        })
        .collect();
    eventually("the calls run", || async { echo.running.load(Ordering::SeqCst) == 20 }).await;
    drain.begin();
    echo.gate.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(60), drain.finish());
    let (calls, ended) = tokio::join!(futures_util::future::join_all(calls), ended);
    for call in calls {
        assert_eq!(call.unwrap().unwrap().into_inner(), Bytes::from_static(b"gated"));
    }
    assert_eq!(ended.expect("the connection stays open"), kindred_transport::serve::Drained::Cleanly);
    let refused = KVClient::new(channel).put(Request::new(Bytes::from_static(b"hello"))).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_at_once_each_get_their_own_answer() {
    let (endpoint, drain) = start(Echo::default(), Echo::default()).await;
    let channels: Vec<_> = (0..3).map(|_| channel(&endpoint, None)).collect();
    let calls = futures_util::stream::iter(0..2000usize).map(|i| {
        let mut client = KVClient::new(channels[i % 3].clone()).max_decoding_message_size(usize::MAX);
        async move {
            let message = Bytes::from(vec![i as u8; (i * 37) % 30_000]);
            let answer = client.put(Request::new(message.clone())).await.unwrap().into_inner();
            assert_eq!(answer, message);
        }
    });
    calls.buffer_unordered(100).collect::<Vec<_>>().await;
    drain.kill();
}

/// A store's answer, frame by frame; an error resets the stream.
#[derive(Clone)]
struct Script {
    status: u16,
    headers: Vec<(&'static str, &'static str)>,
    data: Vec<Bytes>,
    end: Result<Vec<(&'static str, &'static str)>, ()>,
}

fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

struct Scripted(std::collections::VecDeque<Result<Frame<Bytes>, Status>>);

impl Body for Scripted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Status>>> {
        std::task::Poll::Ready(self.0.pop_front())
    }
}

/// A server that answers every request with the script after its message has arrived.
async fn scripted(script: Script) -> Endpoint {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::tcp(listener.local_addr().unwrap());
    let service = hyper::service::service_fn(move |request: HttpRequest<hyper::body::Incoming>| {
        let script = script.clone();
        async move {
            let mut body = request.into_body();
            while std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.is_some() {}
            let mut frames: std::collections::VecDeque<_> =
                script.data.into_iter().map(|data| Ok(Frame::data(data))).collect();
            frames.push_back(match script.end {
                Ok(trailers) => Ok(Frame::trailers(map(&trailers))),
                Err(()) => Err(Status::internal("broken")),
            });
            let mut answer = http::Response::new(Scripted(frames));
            *answer.status_mut() = script.status.try_into().unwrap();
            *answer.headers_mut() = map(&script.headers);
            Ok::<_, std::convert::Infallible>(answer)
        }
    });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service.clone());
            tokio::spawn(served);
        }
    });
    endpoint
}

#[tokio::test]
async fn an_answer_in_pieces_is_what_tonic_joins() {
    use kindred_transport::grpc;
    let ok = || Ok(vec![("grpc-status", "0")]);
    let grpc_type = vec![("content-type", "application/grpc")];
    let large = framed(&vec![7; 300_000]);
    let cut: Vec<Bytes> = large.chunks(4999).map(Bytes::copy_from_slice).collect();
    let cases = [
        (200, grpc_type.clone(), vec![framed(b"hello")], ok()),
        (200, grpc_type.clone(), vec![framed(b"")], ok()),
        (200, grpc_type.clone(), cut.clone(), ok()),
        (200, grpc_type.clone(), large.chunks(1).take(3).map(Bytes::copy_from_slice).collect(), ok()),
        (200, grpc_type.clone(), cut[..5].to_vec(), ok()),
        (
            200,
            grpc_type.clone(),
            cut[..5].to_vec(),
            Ok(vec![("grpc-status", "14"), ("grpc-message", "gone")]),
        ),
        (200, grpc_type.clone(), cut[..5].to_vec(), Err(())),
        (200, grpc_type.clone(), cut[..5].to_vec(), Ok(Vec::new())),
        (200, grpc_type.clone(), cut.clone(), Ok(Vec::new())),
        (200, grpc_type.clone(), cut.clone(), Ok(vec![("grpc-status", "9"), ("kindred-not-owned", "7")])),
        (200, grpc_type.clone(), Vec::new(), ok()),
        (200, grpc_type.clone(), Vec::new(), Err(())),
        (200, grpc_type.clone(), vec![Bytes::from_static(&[1, 0, 0, 0, 0])], ok()),
        (200, grpc_type.clone(), vec![Bytes::from_static(&[9, 0, 0, 0, 0])], ok()),
        (200, vec![("grpc-status", "5"), ("kindred-not-owned", "7")], Vec::new(), Ok(Vec::new())),
        (200, vec![("grpc-status", "0")], Vec::new(), Ok(Vec::new())),
        (503, Vec::new(), Vec::new(), Ok(Vec::new())),
        (404, Vec::new(), vec![Bytes::from_static(b"not here")], Ok(Vec::new())),
    ];
    for (number, (status, headers, data, end)) in cases.into_iter().enumerate() {
        let endpoint = scripted(Script { status, headers, data, end }).await;
        let channel = channel(&endpoint, None);
        let seen = |answer: Result<Bytes, Status>| {
            answer.map_err(|status| {
                let epoch = status.metadata().get("kindred-not-owned").cloned();
                (status.code(), epoch, grpc::lost(&status))
            })
        };
        let mut client = KVClient::new(channel.clone());
        let tonics = client.range(Bytes::from_static(b"x")).await.map(Response::into_inner);
        let request = Request::new(Bytes::from_static(b"x"));
        let ours = kindred_transport::unary::ask::ask(channel, "/etcdserverpb.KV/Range", request).await;
        assert_eq!(seen(ours.map(Rope::into_bytes)), seen(tonics), "case {number}");
    }
}

#[tokio::test]
async fn a_store_that_is_away_is_told_as_tonic_tells_it() {
    use kindred_transport::grpc;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::tcp(listener.local_addr().unwrap());
    drop(listener);
    let request = Request::new(Bytes::from_static(b"x"));
    let ours =
        kindred_transport::unary::ask::ask(channel(&endpoint, None), "/etcdserverpb.KV/Range", request).await;
    let tonics = KVClient::new(channel(&endpoint, None)).range(Bytes::from_static(b"x")).await;
    let (ours, tonics) = (ours.unwrap_err(), tonics.unwrap_err());
    assert_eq!((ours.code(), grpc::lost(&ours)), (tonics.code(), grpc::lost(&tonics)));
    assert_eq!(grpc::lost(&ours), Some(grpc::Lost::NeverSent));
}

#[tokio::test]
async fn a_call_whose_time_is_over_ends() {
    let (endpoint, drain) = start(Echo::default(), Echo::default()).await;
    let mut request = Request::new(Bytes::from_static(b"never"));
    request.set_timeout(Duration::from_millis(50));
    let answer =
        kindred_transport::unary::ask::ask(channel(&endpoint, None), "/etcdserverpb.KV/Put", request).await;
    let mut request = Request::new(Bytes::from_static(b"never"));
    request.set_timeout(Duration::from_millis(50));
    let tonics = KVClient::new(channel(&endpoint, None)).put(request).await;
    // The code depends on which side notices first.
    let over = |status: Status| matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled);
    assert!(over(answer.unwrap_err()) && over(tonics.unwrap_err()));
    drain.kill();
}
