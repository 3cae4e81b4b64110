//! The HTTP server of the admin port: probes, version, metrics, and the routes of other modules.
//!
//! `/health` and `/version` answer like etcd, `/livez` and `/readyz` like Kubernetes (`?verbose`,
//! `?exclude=<check>`), so that manifests written for etcd work.

use std::fmt::Write as _;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Path, RawQuery, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use serde_json::json;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::listener::{Connection, ConnectionInfo, Listener};
use crate::serve::Drain;

mod guard;
mod origin;

pub use guard::{AdminArgs, AdminGuard, GuardError, Role};
pub use origin::REQUEST_HEADER;

/// The maximum silence of a connection between requests, or within the headers of one.
const QUIET_MAX: Duration = Duration::from_secs(30);
/// The time in which a client must answer a keepalive ping.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The maximum number of concurrent requests on a connection.
const STREAMS_MAX: u32 = 256;

/// The etcd version whose API kindred serves. kube-apiserver turns features off below it.
pub const ETCD_VERSION: &str = "3.7.0";

/// The least size of a database that a status has, as etcd's file has pages before any key. etcdctl divides by it.
pub const DB_BYTES_MIN: i64 = 4096;

/// The result of one check of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// A short name, such as `meta`.
    pub name: String,
    /// `Err` tells the operator why the check failed.
    pub result: Result<(), String>,
    /// A problem to report although the check passes: the process serves, but an operator should look at it.
    pub warning: Option<String>,
}

impl Check {
    pub fn new(name: impl Into<String>, result: Result<(), impl Into<String>>) -> Self {
        Self { name: name.into(), result: result.map_err(Into::into), warning: None }
    }

    /// A check that passed with a warning.
    pub fn warning(name: impl Into<String>, what: impl Into<String>) -> Self {
        Self { name: name.into(), result: Ok(()), warning: Some(what.into()) }
    }
}

type Checks = Arc<dyn Fn() -> Vec<Check> + Send + Sync>;
type Text = Arc<dyn Fn() -> String + Send + Sync>;
type Alarms = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Vec<String>> + Send>> + Send + Sync>;

/// The content of the routes that every process has. The closures must not block.
#[derive(Clone)]
pub struct Admin {
    live: Checks,
    ready: Checks,
    alarms: Alarms,
    metrics: Text,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            live: Arc::new(Vec::new),
            ready: Arc::new(Vec::new),
            alarms: Arc::new(|| Box::pin(std::future::ready(Vec::new()))),
            metrics: Arc::new(String::new),
        }
    }
}

/// The checks of etcd's `/livez` and `/readyz` (`server/etcdserver/api/etcdhttp/health.go`).
const ETCD_CHECKS: [&str; 4] = ["data_corruption", "serializable_read", "linearizable_read", "non_learner"];

impl Admin {
    /// An admin that is live and ready and has no metrics.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the checks of `/livez`. A failure means that only a restart helps.
    #[must_use]
    pub fn live(mut self, checks: impl Fn() -> Vec<Check> + Send + Sync + 'static) -> Self {
        self.live = Arc::new(checks);
        self
    }

    /// Sets the checks of `/readyz` and `/health`.
    #[must_use]
    pub fn ready(mut self, checks: impl Fn() -> Vec<Check> + Send + Sync + 'static) -> Self {
        self.ready = Arc::new(checks);
        self
    }

    /// Sets where `/health` learns of the alarms that are raised, by etcd's names of their types.
    #[must_use]
    pub fn alarms<F>(mut self, alarms: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Vec<String>> + Send + 'static,
    {
        self.alarms = Arc::new(move || Box::pin(alarms()));
        self
    }

    /// Sets the content of `/metrics`, in Prometheus' text format.
    #[must_use]
    pub fn metrics(mut self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.metrics = Arc::new(render);
        self
    }

    /// The routes, into which callers may merge others.
    pub fn routes(self) -> Router {
        Router::new()
            .route("/livez", get(livez))
            .route("/livez/{check}", get(livez_of))
            .route("/readyz", get(readyz))
            .route("/readyz/{check}", get(readyz_of))
            .route("/health", get(health))
            .route("/version", get(version))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

/// The routes for a clients' port: what a page makes a browser send is refused.
pub fn for_clients(routes: Router) -> Router {
    routes.fallback(nowhere).layer(middleware::from_fn(from_client))
}

async fn from_client(mut request: Request, next: Next) -> Response {
    guard::name_host(&mut request);
    let checked = match ConnectionInfo::of(request.extensions()) {
        Some(from) => origin::check_client(from, request.method(), request.headers()),
        None => Ok(()),
    };
    match checked {
        Ok(()) => next.run(request).await,
        Err(why) => (StatusCode::FORBIDDEN, format!("{why}\n")).into_response(),
    }
}

/// The answer where there is nothing, in etcd's words.
async fn nowhere() -> Response {
    (StatusCode::NOT_FOUND, "404 page not found\n").into_response()
}

/// Serves the routes to clients that the guard admits. When the drain stops, finishes the running requests and
/// returns. Handlers can extract `ConnectInfo<ConnectionInfo>`.
pub async fn serve(listener: Listener, routes: Router, guard: &AdminGuard, drain: &Drain) {
    guard.follow();
    let routes = routes.layer(middleware::from_fn_with_state(guard.clone(), guard::guarded));
    let builder = settings();
    let (stopping, connections) = (drain.stopping(), TaskTracker::new());
    {
        let mut incoming = pin!(listener.incoming(drain));
        while let Some(Some(accepted)) = stopping.run_until_cancelled(incoming.next()).await {
            let Ok(connection) = accepted else { continue };
            connections.spawn(serve_one(connection, builder.clone(), routes.clone(), stopping.clone()));
        }
    }
    connections.close();
    connections.wait().await;
}

/// The connection settings: clients that send half a request, or fall silent, lose their connection.
fn settings() -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(QUIET_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(QUIET_MAX)
        .keep_alive_timeout(ANSWER_MAX)
        .max_concurrent_streams(STREAMS_MAX);
    builder
}

async fn serve_one(
    connection: Connection,
    builder: auto::Builder<TokioExecutor>,
    routes: Router,
    stopping: CancellationToken,
) {
    let info = connection.info();
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(ConnectInfo(info.clone()));
        routes.clone().oneshot(request.map(axum::body::Body::new))
    });
    let mut served = pin!(builder.serve_connection(TokioIo::new(connection), service));
    let mut asked = false;
    loop {
        tokio::select! {
            biased;
            ended = served.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(error = &*error, "an admin connection ended with an error");
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

async fn livez(State(admin): State<Admin>, RawQuery(query): RawQuery) -> Response {
    probe("livez", (admin.live)(), query.as_deref().unwrap_or_default())
}

async fn readyz(State(admin): State<Admin>, RawQuery(query): RawQuery) -> Response {
    probe("readyz", (admin.ready)(), query.as_deref().unwrap_or_default())
}

async fn livez_of(State(admin): State<Admin>, Path(check): Path<String>) -> Response {
    probe_of("livez", (admin.live)(), &check)
}

async fn readyz_of(State(admin): State<Admin>, Path(check): Path<String>) -> Response {
    probe_of("readyz", (admin.ready)(), &check)
}

/// One check by its name, or all of them by the name of one of etcd's, each of which they include.
fn probe_of(probe: &str, mut checks: Vec<Check>, name: &str) -> Response {
    if checks.iter().any(|check| check.name == name) {
        checks.retain(|check| check.name == name);
    } else if !ETCD_CHECKS.contains(&name) {
        return (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
    }
    self::probe(probe, checks, "")
}

fn probe(probe: &str, checks: Vec<Check>, query: &str) -> Response {
    let pairs = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let verbose = pairs().any(|(name, value)| name == "verbose" && value != "false" && value != "0");
    let excluded = |check: &Check| pairs().any(|(name, value)| name == "exclude" && value == check.name);
    let (mut text, mut warnings) = (String::new(), String::new());
    let mut failed = false;
    for check in &checks {
        let name = &check.name;
        // Writing into a String cannot fail.
        let _ = match (&check.result, &check.warning) {
            _ if excluded(check) => writeln!(text, "[+]{name} excluded: ok"),
            (Ok(()), None) => writeln!(text, "[+]{name} ok"),
            (Ok(()), Some(what)) => {
                let _ = writeln!(warnings, "[!]{name} {what}");
                writeln!(text, "[!]{name} {what}")
            }
            (Err(why), _) => {
                failed = true;
                writeln!(text, "[-]{name} failed: {why}")
            }
        };
    }
    if failed {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{text}{probe} check failed\n")).into_response()
    } else if verbose {
        let with = if warnings.is_empty() { "" } else { ", with warnings" };
        format!("{text}{probe} check passed{with}\n").into_response()
    } else {
        // The short answer includes the warnings as well.
        format!("{warnings}ok").into_response()
    }
}

/// As etcd's, an alarm fails it unless the query has `exclude=` with its type.
async fn health(State(admin): State<Admin>, RawQuery(query): RawQuery) -> Response {
    let checks = (admin.ready)();
    let mut failed = checks.iter().find_map(|check| {
        let why = check.result.as_ref().err()?;
        Some(format!("{}: {why}", check.name))
    });
    if failed.is_none() {
        let query = query.unwrap_or_default();
        let is_excluded = |alarm: &String| query.split('&').any(|pair| pair == format!("exclude={alarm}"));
        let raised = (admin.alarms)().await.into_iter().find(|alarm| !is_excluded(alarm));
        failed = raised.map(|alarm| format!("ALARM {alarm}"));
    }
    let warnings =
        checks.iter().filter_map(|check| Some(format!("{} {}", check.name, check.warning.as_ref()?)));
    let warnings: Vec<_> = warnings.collect();
    let status = if failed.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // etcd writes the boolean as a string, and clients compare it as one.
    let healthy = if failed.is_none() { "true" } else { "false" };
    let body = json!({ "health": healthy, "reason": failed.unwrap_or_else(|| warnings.join("; ")) });
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn version() -> Response {
    let body = json!({ "etcdserver": ETCD_VERSION, "etcdcluster": ETCD_VERSION, "storage": ETCD_VERSION });
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], (admin.metrics)()).into_response()
}
