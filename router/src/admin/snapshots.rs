//! `/api/v1/snapshots`: snapshots of the whole key space at one revision, kept while a backup reads them; and `/api/v1/cluster`:
//! the identity of this cluster.
//!
//! `POST /api/v1/snapshots` takes a snapshot, `POST /api/v1/snapshots/NAME` with its revision renews it, and `DELETE
//! /api/v1/snapshots/NAME` ends it. Names and revisions are strings, because JSON numbers lose precision.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::Key;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tonic::{Code, Status};

use super::api;
use super::status::ApiError;
use crate::moves::mover::Mover;
use crate::snapshots::{RETAINED, Snapshot, SnapshotName, SnapshotRange, Snapshots};

/// The body of a renewal.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Renewal {
    revision: String,
}

/// Where snapshots are; clients of earlier versions ask at the second path.
const PATHS: [&str; 2] = ["/api/v1/snapshots", "/api/v1/cuts"];

pub fn routes(snapshots: &Arc<Snapshots>, mover: &Arc<Mover>) -> Router {
    let (of, at_routes) = (mover.clone(), snapshots.clone());
    let cluster = get(move || std::future::ready(axum::Json(who(&at_routes, &of))));
    let all = Router::new().route("/api/v1/cluster", cluster);
    PATHS.into_iter().fold(all, |routes, path| routes.merge(at(path, snapshots, mover)))
}

fn at(path: &str, snapshots: &Arc<Snapshots>, mover: &Arc<Mover>) -> Router {
    let (take, renew, end, of) = (snapshots.clone(), snapshots.clone(), snapshots.clone(), mover.clone());
    Router::new().route(path, post(move || async move { taken(&take, &of).await })).route(
        &format!("{path}/{{name}}"),
        post(
            move |name: Path<String>, body: Bytes| async move { answer(renewed(&renew, &name, &body).await) },
        )
        .delete(move |name: Path<String>| async move {
            answer(match parsed(&name) {
                Ok(name) => {
                    end.end(name).await;
                    Ok(json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" }))
                }
                Err(error) => Err(error),
            })
        }),
    )
}

fn answer(result: Result<Value, ApiError>) -> Response {
    match result {
        Ok(value) => (StatusCode::OK, axum::Json(value)).into_response(),
        Err(error) => error.into_response(),
    }
}

fn parsed(name: &str) -> Result<SnapshotName, ApiError> {
    let number = name.parse().ok().filter(|number| *number != 0);
    number
        .map(SnapshotName)
        .ok_or_else(|| ApiError::NotFound(format!("{name:?} is not the name of a snapshot")))
}

async fn taken(snapshots: &Snapshots, of: &Mover) -> Response {
    match snapshots.take().await {
        Ok(snapshot) => (StatusCode::CREATED, axum::Json(shown(of, &snapshot))).into_response(),
        Err(status) => refused(&status).into_response(),
    }
}

async fn renewed(snapshots: &Snapshots, name: &str, body: &[u8]) -> Result<Value, ApiError> {
    let name = parsed(name)?;
    let Renewal { revision } = api::body(body)?;
    let bad = || {
        ApiError::BadRequest(format!("revision: {revision:?} is none; write the one of the snapshot as text"))
    };
    let revision = revision.parse().ok().and_then(Revision::from_wire).ok_or_else(bad)?;
    let problems = snapshots.renew(name, revision).await;
    Ok(
        json!({ "kind": "Snapshot", "apiVersion": "v1", "name": name.0.to_string(), "ttlSeconds": RETAINED.as_secs(),
        "problems": problems }),
    )
}

fn refused(status: &Status) -> ApiError {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded => ApiError::Unavailable(status.message().to_owned()),
        Code::Unimplemented => ApiError::NotImplemented(status.message().to_owned()),
        _ => ApiError::Conflict(status.message().to_owned()),
    }
}

fn who(snapshots: &Snapshots, of: &Mover) -> Value {
    json!({
        "clusterId": format!("{:#x}", of.identity.cluster_id),
        "etcdPrefix": of.keeper.cluster.state().etcd_prefix,
        "clientUrls": of.identity.client_urls,
        "ranges": snapshots.runs().iter().map(range).collect::<Vec<_>>(),
    })
}

fn hex(key: &Key) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn range(range: &SnapshotRange) -> Value {
    json!({
        "start": hex(&range.start), "end": range.end.as_ref().map(hex),
        "revision": range.revision.to_string(), "etcd": range.etcd,
    })
}

fn shown(of: &Mover, snapshot: &Snapshot) -> Value {
    let state = of.keeper.cluster.state();
    json!({
        "kind": "Snapshot", "apiVersion": "v1",
        "name": snapshot.name.0.to_string(), "revision": snapshot.revision.to_string(), "ttlSeconds": RETAINED.as_secs(),
        "clusterId": format!("{:#x}", of.identity.cluster_id),
        "etcdPrefix": state.etcd_prefix,
        "clientUrls": of.identity.client_urls,
        "ranges": snapshot.ranges.iter().map(range).collect::<Vec<_>>(),
        "stores": super::list_stores(&of.stores, &of.routing)["stores"].take(),
        "state": &*state,
    })
}
