//! The server of an etcd port: gRPC over HTTP/2, and plain requests over either HTTP. It serves connections and ends them.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming as RequestBody;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::MissedTickBehavior;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::body::Body;
use tower::{Service, ServiceExt as _};

use crate::grpc;
use crate::http2 as own;
use crate::listener::{Connection, ConnectionInfo, GivenUp, Incoming};
use crate::metrics::calls::{self, Counting};
use crate::unary::{self, UnaryCalls, answer::AnswerBody};
use crate::unread::Unread;

/// The default maximum number of streams on a connection. It is practically unlimited, because a kube-apiserver
/// holds hundreds of watches and calls on one connection.
pub const STREAMS_MAX: u32 = 1 << 20;

/// The maximum silence of a client of HTTP/1 between two requests, or within the head of one; etcd's
/// `ReadHeaderTimeout`.
const HTTP1_QUIET_MAX: Duration = Duration::from_secs(5 * 60);

/// The services of a process: they answer every call, if only with a refusal.
pub trait Services:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> Services for S where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// Who answers requests.
#[derive(Debug, Clone)]
pub struct Served<U, S> {
    /// The calls that are answered here.
    pub calls: U,
    /// The other calls of gRPC.
    pub services: S,
    /// All other requests: of HTTP/1, and those of HTTP/2 whose content is not gRPC's.
    pub web: axum::Router,
}

impl<U, S> Served<U, S> {
    /// Answers nothing but calls of gRPC.
    #[must_use]
    pub fn grpc(calls: U, services: S) -> Self {
        Self { calls, services, web: axum::Router::new() }
    }
}

/// Serves connections until `stopping` is cancelled. Then it accepts no more, sends clients GOAWAY, and returns
/// when the last connection has ended. Long answers of all calls with the same `unread` are bounded together.
pub async fn serve<U, S>(
    incoming: Incoming,
    served: Served<U, S>,
    streams_max: u32,
    unread: Unread,
    stopping: CancellationToken,
) where
    U: UnaryCalls,
    S: Services,
{
    let paths = own::Paths::of(&served.calls);
    let connections = TaskTracker::new();
    {
        let mut incoming = pin!(incoming);
        let mut sweep = Sweep::default();
        let mut turns = tokio::time::interval(SWEEP);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                biased;
                () = stopping.cancelled() => break,
                accepted = incoming.next() => accepted,
                _ = turns.tick() => {
                    sweep.turn();
                    continue;
                }
            };
            match accepted {
                Some(Ok(connection)) => {
                    let calls = served.calls.of_connection(&connection.info());
                    let served = Served { calls, ..served.clone() };
                    let watched = sweep.add(&connection, &stopping);
                    connections.spawn(serve_one(
                        connection,
                        served,
                        (streams_max, paths.clone()),
                        unread.clone(),
                        watched,
                    ));
                }
                Some(Err(error)) => tracing::debug!(%error, "a connection was not accepted"),
                None => break,
            }
        }
        // This closes the listening socket, so new connections are refused at once and do not wait.
    }
    connections.close();
    connections.wait().await;
}

/// The interval between checks for idle connections.
const SWEEP: Duration = Duration::from_secs(30);
/// After this many checks without streams or received bytes, a connection gets GOAWAY. Keepalive pings of the
/// client, as routers send them, count as received bytes.
const QUIET_MAX: u32 = 4;

/// The state of a connection while it is served.
#[derive(Debug)]
struct Watched {
    /// This is above zero while the client waits for an answer: 1 while it has streams of HTTP/2, or the number of its requests
    /// of HTTP/1.
    busy: AtomicUsize,
    heard: Arc<AtomicBool>,
    /// Sends the client GOAWAY.
    leave: CancellationToken,
    /// Closes the connection.
    closed: CancellationToken,
}

impl Watched {
    /// Whether the client waits for nothing, and has sent nothing since the last check.
    fn is_quiet(&self) -> bool {
        !self.heard.swap(false, Ordering::Relaxed) && self.busy.load(Ordering::Relaxed) == 0
    }
}

/// Closes idle connections. First the client gets GOAWAY, after which every gRPC client reconnects at its next call
/// without losing one, and a ping. If it does not answer until the next check, the connection is closed.
#[derive(Debug, Default)]
struct Sweep(Vec<(Weak<Watched>, u32)>);

impl Sweep {
    fn add(&mut self, connection: &Connection, stopping: &CancellationToken) -> Arc<Watched> {
        let watched = Arc::new(Watched {
            busy: AtomicUsize::new(0),
            heard: connection.heard(),
            leave: stopping.child_token(),
            closed: connection.closed(),
        });
        self.0.push((Arc::downgrade(&watched), 0));
        watched
    }

    fn turn(&mut self) {
        self.0.retain_mut(|(watched, quiet)| {
            let Some(watched) = watched.upgrade() else { return false };
            *quiet = if watched.is_quiet() { *quiet + 1 } else { 0 };
            if watched.leave.is_cancelled() && *quiet > 0 {
                watched.closed.cancel();
            } else if *quiet >= QUIET_MAX {
                GivenUp::Idle.counted();
                watched.leave.cancel();
            }
            true
        });
    }
}

async fn serve_one<U, S>(
    mut connection: Connection,
    served: Served<U, S>,
    (streams_max, paths): (u32, own::Paths),
    unread: Unread,
    watched: Arc<Watched>,
) where
    U: UnaryCalls,
    S: Services,
{
    match watched.leave.run_until_cancelled(connection.speaks_http2()).await {
        Some(Ok(true)) => {}
        Some(Ok(false)) => return serve_http1(connection, served.web, watched).await,
        Some(Err(error)) => {
            tracing::debug!(%error, "a connection ended before it began");
            return;
        }
        None => return,
    }
    let Served { calls, services, web } = served;
    let others = Bridge { services, web, info: connection.info(), unread: unread.clone() };
    let driver = own::Driver::new(connection, streams_max, paths, calls, others, unread);
    let serving = own::drive(driver, watched.leave.cancelled(), |open| {
        watched.busy.store(open.into(), Ordering::Relaxed)
    });
    if let Err(error) = serving.await {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

/// The services, for what is none of the unary calls.
struct Bridge<S> {
    services: S,
    web: axum::Router,
    info: ConnectionInfo,
    unread: Unread,
}

impl<S: Services> own::Others for Bridge<S> {
    fn answer(
        &self,
        mut request: Request<own::RequestBody>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, Infallible>> + Send>> {
        request.extensions_mut().insert(self.info.clone());
        let unread = self.unread.clone();
        if is_call(&request) {
            if let Some(refused) = not_by_content(&request) {
                return Box::pin(std::future::ready(Ok(AnswerBody::tonic(refused, &unread))));
            }
            Box::pin(by_services(self.services.clone(), request, unread))
        } else {
            Box::pin(by_services(Web(self.web.clone()), request, unread))
        }
    }
}

fn ended_with(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

/// Whether a request is a call of gRPC: by its content, as etcd tells (`grpcHandlerFunc` in `server/embed/serve.go`), or by
/// a path that names a service, so that a call with another content is refused as one.
fn is_call<B>(request: &Request<B>) -> bool {
    let content = grpc::header(request.headers(), "content-type").and_then(|content| content.to_str().ok());
    let service = request.uri().path().split('/').nth(1);
    content.is_some_and(|content| content.contains("application/grpc"))
        || service.is_some_and(|service| service.contains('.'))
}

/// The refusal of a call whose content is not gRPC's, as grpc-go has it. A web page can make a browser send a POST of any
/// other content (`text/plain`) with its user's certificate, without asking first; `application/grpc` it cannot.
fn not_by_content<B>(request: &Request<B>) -> Option<Response<Body>> {
    let content = request.headers().get(CONTENT_TYPE).map_or(&b""[..], |content| content.as_bytes());
    if matches!(content.strip_prefix(b"application/grpc"), Some(b"" | [b'+' | b';', ..])) {
        return None;
    }
    let content = content.escape_ascii();
    let refused = Status::invalid_argument(format!("invalid gRPC request content-type \"{content}\""));
    let mut answer = refused.into_http();
    *answer.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Some(answer)
}

/// A request of HTTP/1 that is not answered.
struct Busy(Arc<Watched>);

impl Busy {
    fn new(watched: Arc<Watched>) -> Self {
        watched.busy.fetch_add(1, Ordering::Relaxed);
        Self(watched)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn serve_http1(connection: Connection, web: axum::Router, watched: Arc<Watched>) {
    let info = connection.info();
    let service = service_fn(|mut request: Request<RequestBody>| {
        let (busy, web) = (Busy::new(watched.clone()), web.clone());
        request.extensions_mut().insert(info.clone());
        async move {
            let answer = web.oneshot(request.map(axum::body::Body::new)).await;
            // The connection is not idle before the answer is sent.
            answer.map(|answer| answer.map(|body| body.map_frame(move |frame| (frame, &busy).0)))
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HTTP1_QUIET_MAX);
    let mut served = pin!(builder.serve_connection(TokioIo::new(connection), service));
    let mut asked = false;
    loop {
        tokio::select! {
            biased;
            ended = served.as_mut() => return ended_with(ended),
            () = watched.leave.cancelled(), if !asked => {
                asked = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}

/// What is no call of gRPC, as a service like the others.
#[derive(Clone)]
struct Web(axum::Router);

impl Service<Request<Body>> for Web {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = self.0.clone().oneshot(request.map(axum::body::Body::new));
        Box::pin(async move { answer.await.map(|answer| answer.map(Body::new)) })
    }
}

async fn by_services<S, B>(
    services: S,
    request: Request<B>,
    unread: Unread,
) -> Result<Response<AnswerBody>, Infallible>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let limit = unary::time_limit(request.headers());
    let calls = calls::of(request.uri().path());
    let counting = calls.map(Counting::begin);
    let answering = pin!(async {
        let body = |body: B| match calls {
            Some(calls) => Body::new(body.map_frame(move |frame| {
                calls.received(frame.data_ref().map_or(0, Bytes::len));
                frame
            })),
            None => Body::new(body),
        };
        match services.oneshot(request.map(body)).await {
            Ok(response) => Ok::<_, Status>(AnswerBody::tonic(response, &unread)),
            Err(never) => match never {},
        }
    });
    let answered = unary::within(limit, answering).await.unwrap_or_else(unary::refused);
    let Some(mut counting) = counting else { return Ok(answered) };
    // What is refused has its status in the headers, and no body.
    match Status::from_header_map(answered.headers()) {
        Some(status) => {
            counting.end(status.code());
            Ok(answered)
        }
        None => Ok(answered.map(|body| body.counted(counting))),
    }
}
