//! `?watch=true`: one JSON event per line, from the present state on.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use kindred_partition_config::state::ClusterState;
use kindred_transport::Drain;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::objects::{Object, Resource};
use super::status::ApiError;
use crate::meta::Cluster;

/// The state of a watch between two events.
struct Position {
    states: watch::Receiver<Arc<ClusterState>>,
    seen: BTreeMap<String, Object>,
    resource: Resource,
    stopping: CancellationToken,
}

/// The stream of events. Without a version, or with 0, it begins with all objects as ADDED; with the present version,
/// with the next change. Any other version is expired, and the client must list again.
pub fn response(cluster: &Cluster, drain: &Drain, resource: Resource, version: Option<&str>) -> Response {
    let mut states = cluster.states();
    let state = states.borrow_and_update().clone();
    let seen = match version {
        None | Some("" | "0") => BTreeMap::new(),
        Some(version) if version == state.revision.to_string() => by_name(resource, &state),
        Some(version) => {
            return ApiError::Expired(format!(
                "too old or unknown resourceVersion {version}, the present one is {}; list again",
                state.revision
            ))
            .into_response();
        }
    };
    states.mark_changed();
    let position = Position { states, seen, resource, stopping: drain.stopping() };
    let lines = futures_util::stream::unfold(position, |mut position| async move {
        loop {
            tokio::select! {
                () = position.stopping.cancelled() => return None,
                changed = position.states.changed() => changed.ok()?,
            }
            let state = position.states.borrow_and_update().clone();
            let now = by_name(position.resource, &state);
            let text = events(&position.seen, &now, state.revision);
            position.seen = now;
            if !text.is_empty() {
                return Some((Ok::<_, Infallible>(Bytes::from(text)), position));
            }
        }
    });
    ([(header::CONTENT_TYPE, "application/json;stream=watch")], Body::from_stream(lines)).into_response()
}

fn by_name(resource: Resource, state: &ClusterState) -> BTreeMap<String, Object> {
    resource.all(state).into_iter().map(|object| (object.name.clone(), object)).collect()
}

/// The events between two states, one per line. A deleted object gets the revision of the state that lacks it.
fn events(before: &BTreeMap<String, Object>, after: &BTreeMap<String, Object>, revision: u64) -> String {
    let mut lines = String::new();
    let mut line = |kind: &str, object: &Value| {
        lines += &json!({ "type": kind, "object": object }).to_string();
        lines.push('\n');
    };
    for (name, object) in before {
        if !after.contains_key(name) {
            let mut gone = object.value.clone();
            gone["metadata"]["resourceVersion"] = json!(revision.to_string());
            line("DELETED", &gone);
        }
    }
    for (name, object) in after {
        match before.get(name) {
            None => line("ADDED", &object.value),
            Some(old) if old.version != object.version => line("MODIFIED", &object.value),
            Some(_) => {}
        }
    }
    lines
}
