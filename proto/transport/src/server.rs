//! The gRPC server of an etcd port: it configures HTTP/2, serves connections and ends them.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::Either;
use http::{Request, Response};
use hyper::body::Incoming as RequestBody;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::time::MissedTickBehavior;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::body::Body;
use tower::{Service, ServiceExt as _};

use crate::listener::{Connection, GivenUp, Incoming};
use crate::unary::{self, UnaryCalls, answer::AnswerBody};
use crate::unread::Unread;

/// The default maximum number of streams on a connection. It is practically unlimited, because a kube-apiserver
/// holds hundreds of watches and calls on one connection.
pub const STREAMS_MAX: u32 = 1 << 20;

/// The HTTP/2 settings of an etcd port. Message limits belong to the services.
///
/// h2 closes a connection when unread small messages exceed half of its window, to guard against floods of small
/// frames. So a stream's window is a small part of the connection's: a client that creates 100,000 watches on one
/// stream waits for room, as with etcd, and is not disconnected.
///
/// The number of resets is not limited, because a client that cancels many streams must not lose its watches. Like
/// etcd, it sends no date. TCP's keepalive detects a vanished peer, because HTTP/2's own reads the clock several
/// times for each call. [`Sweep`] closes idle connections.
fn settings(streams_max: u32) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .max_concurrent_streams(streams_max)
        .initial_connection_window_size(32 << 20)
        .initial_stream_window_size(1 << 20)
        .max_frame_size(256 << 10)
        .max_local_error_reset_streams(None)
        .max_pending_accept_reset_streams(1024)
        .auto_date_header(false);
    builder
}

/// Serves connections until `stopping` is cancelled. Then it accepts no more, sends clients GOAWAY, and returns
/// when the last connection has ended. `calls` are answered here, all other requests by `services`.
pub async fn serve<U, S>(
    incoming: Incoming,
    calls: U,
    services: S,
    streams_max: u32,
    stopping: CancellationToken,
) where
    U: UnaryCalls,
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let builder = settings(streams_max);
    let unread = Unread::default();
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
                    let (calls, services) = (calls.of_connection(&connection.info()), services.clone());
                    let watched = sweep.add(&connection, &stopping);
                    connections.spawn(serve_one(
                        connection,
                        builder.clone(),
                        calls,
                        services,
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

/// A token for an open stream, held until its answer is sent.
pub(crate) type Open = Arc<()>;

/// The state of a connection while it is served.
#[derive(Debug)]
struct Watched {
    /// The token, cloned once for each open stream.
    streams: Open,
    heard: Arc<AtomicBool>,
    /// Sends the client GOAWAY.
    leave: CancellationToken,
    /// Closes the connection.
    closed: CancellationToken,
}

impl Watched {
    /// Whether the connection has no streams and has received nothing since the last check.
    fn is_quiet(&self) -> bool {
        // One reference is held here and one by the connection's service.
        let idle = Arc::strong_count(&self.streams) <= 2;
        !self.heard.swap(false, Ordering::Relaxed) && idle
    }
}

/// Closes idle connections. First the client gets GOAWAY, after which every gRPC client reconnects at its next call
/// without losing one, and a ping. If it does not answer until the next check, the connection is closed.
#[derive(Debug, Default)]
struct Sweep(Vec<(Weak<Watched>, u32)>);

impl Sweep {
    fn add(&mut self, connection: &Connection, stopping: &CancellationToken) -> Arc<Watched> {
        let watched = Arc::new(Watched {
            streams: Open::default(),
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
    connection: Connection,
    builder: http2::Builder<TokioExecutor>,
    calls: U,
    services: S,
    unread: Unread,
    watched: Arc<Watched>,
) where
    U: UnaryCalls,
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let info = connection.info();
    let streams = watched.streams.clone();
    let service = service_fn(move |mut request: Request<RequestBody>| {
        let open = streams.clone();
        match unary::method_of(&calls, &request) {
            Some(method) => {
                let headers = std::mem::take(request.headers_mut());
                // Boxed, because a task is moved several times before it runs, and the state of a call is large.
                let unread = unread.clone();
                Either::Left(Box::pin(unary::serve(
                    calls.clone(),
                    unread,
                    method,
                    headers,
                    request.into_body(),
                    open,
                )))
            }
            None => {
                request.extensions_mut().insert(info.clone());
                Either::Right(Box::pin(by_services(services.clone(), request, unread.clone(), open)))
            }
        }
    });
    let mut served = pin!(builder.serve_connection(TokioIo::new(connection), service));
    let mut asked = false;
    loop {
        tokio::select! {
            biased;
            ended = served.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended with an error");
                }
                return;
            }
            () = watched.leave.cancelled(), if !asked => {
                asked = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn by_services<S>(
    services: S,
    request: Request<RequestBody>,
    unread: Unread,
    open: Open,
) -> Result<Response<AnswerBody>, Infallible>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    let limit = unary::time_limit(request.headers());
    let answering = pin!(async {
        match services.oneshot(request.map(Body::new)).await {
            Ok(response) => Ok::<_, Status>(AnswerBody::tonic(response, &unread).map(|body| body.open(open))),
            Err(never) => match never {},
        }
    });
    Ok(unary::within(limit, answering).await.unwrap_or_else(unary::refused))
}
