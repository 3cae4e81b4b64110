//! The gRPC server of an etcd port: connections, the settings of their HTTP/2, and how they end.

use std::convert::Infallible;
use std::pin::pin;

use futures_util::future::Either;
use http::{Request, Response};
use hyper::body::Incoming as RequestBody;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::body::Body;
use tower::{Service, ServiceExt as _};

use crate::listener::{Connection, Incoming};
use crate::unary::{self, UnaryCalls, answer::AnswerBody};

/// Streams of one connection, where nothing else is asked for: no limit in practice, since a kube-apiserver holds hundreds of
/// watches and calls on one connection.
pub const STREAMS_MAX: u32 = 1 << 20;

/// Settings of an etcd port. Message limits belong to the services.
///
/// A client that cancels many streams must not lose its watches, so resets are not limited either. No date is sent, as by
/// etcd. A peer that is gone is noticed by TCP's keepalive: HTTP/2's own reads the clock several times for each call.
fn settings(streams_max: u32) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .max_concurrent_streams(streams_max)
        .initial_connection_window_size(16 << 20)
        .initial_stream_window_size(4 << 20)
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
    let connections = TaskTracker::new();
    {
        let mut incoming = pin!(incoming);
        while let Some(Some(accepted)) = stopping.run_until_cancelled(incoming.next()).await {
            match accepted {
                Ok(connection) => {
                    let (calls, services) = (calls.clone(), services.clone());
                    connections.spawn(serve_one(
                        connection,
                        builder.clone(),
                        calls,
                        services,
                        stopping.clone(),
                    ));
                }
                Err(error) => tracing::debug!(%error, "a connection was not accepted"),
            }
        }
        // The listening socket closes here: who comes now is refused at once rather than left waiting.
    }
    connections.close();
    connections.wait().await;
}

async fn serve_one<U, S>(
    connection: Connection,
    builder: http2::Builder<TokioExecutor>,
    calls: U,
    services: S,
    stopping: CancellationToken,
) where
    U: UnaryCalls,
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let info = connection.info();
    let service = service_fn(move |mut request: Request<RequestBody>| {
        match unary::method_of(&calls, &request) {
            Some(method) => {
                let headers = std::mem::take(request.headers_mut());
                // In a box: a task is moved several times before it runs, and with all that a call keeps it is large.
                Either::Left(Box::pin(unary::serve(calls.clone(), method, headers, request.into_body())))
            }
            None => {
                request.extensions_mut().insert(info.clone());
                Either::Right(Box::pin(by_services(services.clone(), request)))
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
            () = stopping.cancelled(), if !asked => {
                asked = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn by_services<S>(
    services: S,
    request: Request<RequestBody>,
) -> Result<Response<AnswerBody>, Infallible>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    let limit = unary::time_limit(request.headers());
    let answering = pin!(async {
        match services.oneshot(request.map(Body::new)).await {
            Ok(response) => Ok::<_, Status>(response.map(AnswerBody::tonic)),
            Err(never) => match never {},
        }
    });
    Ok(unary::within(limit, answering).await.unwrap_or_else(unary::refused))
}
