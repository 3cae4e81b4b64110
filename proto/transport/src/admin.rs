//! The HTTP server of the admin port: probes, version, metrics, and the routes of others.
//!
//! `/health` and `/version` answer in etcd's own words, `/livez` and `/readyz` in Kubernetes' (`?verbose`,
//! `?exclude=<check>`), so that manifests written for etcd fit.

use std::fmt::Write as _;
use std::sync::Arc;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::IncomingStream;
use serde_json::json;

use crate::listener::{ConnectionInfo, Incoming, Listener};
use crate::serve::Drain;

/// The etcd version whose API kindred serves. kube-apiserver turns features off below it.
pub const ETCD_VERSION: &str = "3.7.0";

/// One line of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// A short name, such as `meta`.
    pub name: String,
    /// `Err` says why not, for the operator.
    pub result: Result<(), String>,
}

impl Check {
    /// A check that passed, or why it did not.
    pub fn new(name: impl Into<String>, result: Result<(), impl Into<String>>) -> Self {
        Self { name: name.into(), result: result.map_err(Into::into) }
    }
}

type Checks = Arc<dyn Fn() -> Vec<Check> + Send + Sync>;
type Text = Arc<dyn Fn() -> String + Send + Sync>;

/// What the routes of every process show. The closures must not block.
#[derive(Clone)]
pub struct Admin {
    live: Checks,
    ready: Checks,
    metrics: Text,
}

impl Default for Admin {
    fn default() -> Self {
        Self { live: Arc::new(Vec::new), ready: Arc::new(Vec::new), metrics: Arc::new(String::new) }
    }
}

impl Admin {
    /// Live, ready, and without metrics.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What `/livez` checks: a failure means that only a restart helps.
    #[must_use]
    pub fn live(mut self, checks: impl Fn() -> Vec<Check> + Send + Sync + 'static) -> Self {
        self.live = Arc::new(checks);
        self
    }

    /// What `/readyz` and `/health` check.
    #[must_use]
    pub fn ready(mut self, checks: impl Fn() -> Vec<Check> + Send + Sync + 'static) -> Self {
        self.ready = Arc::new(checks);
        self
    }

    /// What `/metrics` shows, in Prometheus' text format.
    #[must_use]
    pub fn metrics(mut self, render: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.metrics = Arc::new(render);
        self
    }

    /// The routes; merge further ones into them.
    pub fn routes(self) -> Router {
        Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/health", get(health))
            .route("/version", get(version))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

/// Serves the routes until the drain stops, then lets requests that run finish. Handlers can extract
/// `ConnectInfo<ConnectionInfo>`.
///
/// # Errors
/// None at present; axum's signature has one.
pub async fn serve(listener: Listener, routes: Router, drain: &Drain) -> std::io::Result<()> {
    let service = routes.into_make_service_with_connect_info::<ConnectionInfo>();
    let stopping = drain.stopping();
    axum::serve(listener.incoming(drain), service).with_graceful_shutdown(stopping.cancelled_owned()).await
}

impl Connected<IncomingStream<'_, Incoming>> for ConnectionInfo {
    fn connect_info(stream: IncomingStream<'_, Incoming>) -> Self {
        stream.remote_addr().clone()
    }
}

async fn livez(State(admin): State<Admin>, RawQuery(query): RawQuery) -> Response {
    probe("livez", (admin.live)(), query.as_deref().unwrap_or_default())
}

async fn readyz(State(admin): State<Admin>, RawQuery(query): RawQuery) -> Response {
    probe("readyz", (admin.ready)(), query.as_deref().unwrap_or_default())
}

fn probe(probe: &str, checks: Vec<Check>, query: &str) -> Response {
    let pairs = || query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let verbose = pairs().any(|(name, value)| name == "verbose" && value != "false" && value != "0");
    let excluded = |check: &Check| pairs().any(|(name, value)| name == "exclude" && value == check.name);
    let mut text = String::new();
    let mut failed = false;
    for check in &checks {
        let name = &check.name;
        // Writing into a String cannot fail.
        let _ = match &check.result {
            _ if excluded(check) => writeln!(text, "[+]{name} excluded: ok"),
            Ok(()) => writeln!(text, "[+]{name} ok"),
            Err(why) => {
                failed = true;
                writeln!(text, "[-]{name} failed: {why}")
            }
        };
    }
    if failed {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{text}{probe} check failed\n")).into_response()
    } else if verbose {
        format!("{text}{probe} check passed\n").into_response()
    } else {
        "ok".into_response()
    }
}

async fn health(State(admin): State<Admin>) -> Response {
    let failed = (admin.ready)().into_iter().find_map(|check| {
        let name = check.name;
        check.result.err().map(|why| format!("{name}: {why}"))
    });
    let status = if failed.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // etcd writes the boolean as a string, and clients compare it as one.
    let healthy = if failed.is_none() { "true" } else { "false" };
    let body = json!({ "health": healthy, "reason": failed.unwrap_or_default() });
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn version() -> Response {
    let body = json!({ "etcdserver": ETCD_VERSION, "etcdcluster": ETCD_VERSION, "storage": ETCD_VERSION });
    ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], (admin.metrics)()).into_response()
}
