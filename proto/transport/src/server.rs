//! The gRPC server of an etcd port: connections, the settings of their HTTP/2, and how they end.

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

/// Streams of one connection, where nothing else is asked for: no limit in practice, since a kube-apiserver holds hundreds of
/// watches and calls on one connection.
pub const STREAMS_MAX: u32 = 1 << 20;

/// Settings of an etcd port. Message limits belong to the services.
///
/// Small messages that wait to be read count against a budget of half the connection's window (h2's guard against a flood of
/// small frames, which closes the connection), so a stream's window is a small part of it: a client that creates 100,000
/// watches on one stream waits for room, as with etcd, and is not cut off.
///
/// A client that cancels many streams must not lose its watches, so resets are not limited either. No date is sent, as by
/// etcd. A peer that is gone is noticed by TCP's keepalive: HTTP/2's own reads the clock several times for each call. A
/// connection that carries nothing is asked to go by [`Sweep`].
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

/// Serves connections until `stopping` is cancelled: then nothing is accepted any more, clients are told to go elsewhere
/// (GOAWAY), and this returns when the last connection has ended. `calls` are answered here, all else by `services`.
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
        // The listening socket closes here: who comes now is refused at once rather than left waiting.
    }
    connections.close();
    connections.wait().await;
}

/// How often connections are looked at.
const SWEEP: Duration = Duration::from_secs(30);
/// A connection that carries no stream and says nothing for so many looks is told to go. Clients that ask in between whether
/// the server lives, as routers do, are heard.
const QUIET_MAX: u32 = 4;

/// A stream of a connection, while its answer is not sent.
pub(crate) type Open = Arc<()>;

/// What is known of a connection while it is served.
#[derive(Debug)]
struct Watched {
    /// One, and one for each open stream.
    streams: Open,
    heard: Arc<AtomicBool>,
    /// Tells the client to go elsewhere.
    leave: CancellationToken,
    /// Closes the connection.
    closed: CancellationToken,
}

impl Watched {
    /// Whether it carries nothing, and said nothing since the last look.
    fn is_quiet(&self) -> bool {
        // Held here and by the service of the connection.
        let idle = Arc::strong_count(&self.streams) <= 2;
        !self.heard.swap(false, Ordering::Relaxed) && idle
    }
}

/// Ends connections that carry nothing. Their client is told to go elsewhere (GOAWAY), which every gRPC client does at its next
/// call without losing one, and which asks whether it lives; one that does not answer that until the next look is closed.
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
                // In a box: a task is moved several times before it runs, and with all that a call keeps it is large.
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
