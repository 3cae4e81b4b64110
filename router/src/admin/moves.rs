//! `/api/v1/moves`: the moves with their progress, and requests to abort, reverse, complete or switch them.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use kindred_partition_config::ids::MoveId;
use kindred_partition_config::kind::ALL_ELSE;
use kindred_partition_config::state::ClusterState;
use kindred_router_core::moves::record::{Goal, MoveRecord, Phase};
use serde_json::{Value, json};

use super::status::ApiError;
use super::{api, sizes, verbs::known_moves};
use crate::meta::client::Entries;
use crate::meta::live::Live;
use crate::meta::take::StateKeeper;
use crate::meta::{Cluster, Meta, MetaError};
use crate::moves::desk::{self, Asked};
use crate::moves::{self, Progress};

/// How long a coordinator has to answer a request: longer than the claim of a dead coordinator lasts.
const ANSWER_WITHIN: Duration = Duration::from_secs(6);

pub fn routes(keeper: &Arc<StateKeeper>) -> Router {
    let (of_list, of_get, of_ask) = (keeper.cluster.clone(), keeper.cluster.clone(), keeper.clone());
    Router::new()
        .route(
            "/api/v1/moves",
            get(move |headers: HeaderMap| async move {
                match meta(&of_list) {
                    Ok(_) => api::shown(&headers, StatusCode::OK, &list(&of_list, &headers)),
                    Err(error) => error.into_response(),
                }
            }),
        )
        .route(
            "/api/v1/moves/{id}",
            get(move |id: Path<String>, headers: HeaderMap| async move {
                match one(&of_get, &id, &headers) {
                    Ok(value) => api::shown(&headers, StatusCode::OK, &value),
                    Err(error) => error.into_response(),
                }
            }),
        )
        .route(
            "/api/v1/moves/{id}/{verb}",
            post(move |path: Path<(String, String)>| async move {
                let Path((id, verb)) = path;
                asked(&of_ask, &id, &verb).await
            }),
        )
}

fn meta(cluster: &Cluster) -> Result<&Arc<Meta>, ApiError> {
    cluster.meta.as_ref().ok_or_else(|| ApiError::NotImplemented(MetaError::None.to_string()))
}

fn found(cluster: &Cluster, id: &str) -> Result<(MoveRecord, i64), ApiError> {
    let number = id.parse().map_err(|_| ApiError::BadRequest(format!("{id:?} is no number of a move")))?;
    let found = known_moves(cluster).remove(&MoveId(number));
    found.ok_or_else(|| ApiError::NotFound(format!("moves {id:?} not found")))
}

fn progress(meta: &Meta, id: MoveId) -> Option<Progress> {
    moves::progress(&meta.entries().borrow(), id)
}

/// All moves that are known; none without a meta store.
pub(super) fn all(cluster: &Cluster) -> Vec<Value> {
    let Some(meta) = &cluster.meta else { return Vec::new() };
    let state = cluster.state();
    let known = known_moves(cluster);
    let items =
        known.values().map(|(record, version)| object(&state, record, *version, progress(meta, record.id)));
    items.collect()
}

fn list(cluster: &Cluster, headers: &HeaderMap) -> Value {
    let items = all(cluster);
    if api::wants(headers, "as=Table") {
        return table(&items);
    }
    json!({ "apiVersion": "v1", "kind": "MoveList", "metadata": {}, "items": items })
}

fn one(cluster: &Cluster, id: &str, headers: &HeaderMap) -> Result<Value, ApiError> {
    let meta = meta(cluster)?;
    let (record, version) = found(cluster, id)?;
    let value = object(&cluster.state(), &record, version, progress(meta, record.id));
    Ok(if api::wants(headers, "as=Table") { table(&[value]) } else { value })
}

/// A move in the API's form.
fn object(state: &ClusterState, record: &MoveRecord, version: i64, progress: Option<Progress>) -> Value {
    let kind = record.legs.first().and_then(|leg| leg.transfers.first()?.kind.as_ref());
    let legs = record.legs.iter().map(|leg| {
        json!({
            "from": state.store_name(leg.from), "to": state.store_name(leg.to), "moved": leg.moved,
            "oneWay": leg.one_way,
            "units": leg.transfers.iter().map(|transfer| sizes::unit(&transfer.unit)).collect::<Vec<_>>(),
        })
    });
    json!({
        "apiVersion": "v1", "kind": "Move",
        "metadata": { "name": record.id.0.to_string(), "resourceVersion": version.to_string() },
        "resource": kind.map_or_else(|| ALL_ELSE.to_owned(), |kind| state.scheme().name_of(kind)),
        "phase": word(record.phase), "goal": goal(record.goal), "hold": record.hold, "over": record.phase.is_over(),
        "attempts": record.attempts, "reason": record.reason, "coordinator": record.coordinator,
        "legs": legs.collect::<Vec<_>>(), "progress": progress,
    })
}

fn word(phase: Phase) -> &'static str {
    match phase {
        Phase::Copying => "Copying",
        Phase::CatchingUp => "CatchingUp",
        Phase::Verifying => "Verifying",
        Phase::Ready => "Ready",
        Phase::Switching { .. } => "Switching",
        Phase::Switched => "Switched",
        Phase::Completing => "Completing",
        Phase::Done => "Done",
        Phase::Aborting => "Aborting",
        Phase::Aborted => "Aborted",
    }
}

fn goal(goal: Goal) -> &'static str {
    match goal {
        Goal::There => "there",
        Goal::Back => "back",
        Goal::Abort => "abort",
    }
}

/// The moves as a table for `kubectl`.
fn table(items: &[Value]) -> Value {
    let names =
        ["Move", "Kind", "From", "To", "Phase", "Goal", "Keys", "Bytes", "Lag ms", "Pause ms", "Reason"];
    let columns = names.map(
        |name| json!({ "name": name, "type": "string", "format": "", "description": "", "priority": 0 }),
    );
    let rows = items.iter().map(|item| {
        let stores = |end: &str| {
            let legs = item["legs"].as_array().into_iter().flatten();
            let mut names: Vec<_> = legs.filter_map(|leg| leg[end].as_str()).collect();
            names.dedup();
            names.join(",")
        };
        let progress = &item["progress"];
        let millis = |field: &str| {
            progress[field]
                .as_u64()
                .map_or_else(String::new, |micros| format!("{:.1}", micros as f64 / 1000.0))
        };
        let cells = json!([
            item["metadata"]["name"],
            item["resource"],
            stores("from"),
            stores("to"),
            item["phase"],
            item["goal"],
            progress["keysCopied"],
            progress["bytesCopied"],
            millis("lagMicros"),
            millis("pauseMicros"),
            why(item),
        ]);
        json!({ "cells": cells, "object": { "metadata": item["metadata"] } })
    });
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {},
        "columnDefinitions": columns, "rows": rows.collect::<Vec<_>>(),
    })
}

/// Why the move does not go on, or why it was taken back.
fn why(item: &Value) -> Value {
    let failing = &item["progress"]["failing"][0];
    match (failing["step"].as_str(), failing["reason"].as_str(), failing["times"].as_u64()) {
        (Some(step), Some(reason), Some(times)) if item["over"] != true => {
            json!(format!("{step} failed {times} times: {reason}"))
        }
        _ => item["reason"].clone(),
    }
}

async fn asked(keeper: &Arc<StateKeeper>, id: &str, verb: &str) -> Response {
    match ask(keeper, id, verb).await {
        Ok(()) => {
            let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" });
            (StatusCode::OK, axum::Json(status)).into_response()
        }
        Err(error) => error.into_response(),
    }
}

/// Writes a request for the coordinator to meta, and waits for the answer.
async fn ask(keeper: &Arc<StateKeeper>, id: &str, verb: &str) -> Result<(), ApiError> {
    let cluster = &keeper.cluster;
    if !["abort", "reverse", "complete", "switch"].contains(&verb) {
        return Err(ApiError::NotFound(format!(
            "a move cannot be asked to {verb:?}: abort, reverse, complete or switch"
        )));
    }
    let meta = meta(cluster)?;
    let (record, _) = found(cluster, id)?;
    if record.phase.is_over() {
        return Err(ApiError::Conflict(format!(
            "move {id} is over ({}): begin another one",
            word(record.phase)
        )));
    }
    let unavailable = |error: MetaError| ApiError::Unavailable(error.to_string());
    let mut entries = meta.entries();
    let live = Live { keeper: keeper.clone(), meta: meta.clone() };
    let Some(written) = desk::ask(&live, record.id, verb).await.map_err(unavailable)? else {
        return Err(ApiError::Conflict(format!("somebody else asks something of move {id}: try again")));
    };
    let key = moves::request_key(record.id);
    let record_of = |entries: &Entries| moves::record(entries, record.id);
    let answer = entries.wait_for(|entries| {
        let stored = entries.keys.get(&key);
        stored.is_some_and(|stored| stored.mod_revision > written)
            || record_of(entries).is_none_or(|now| now.heard >= written || now.phase.is_over())
    });
    let answered = match tokio::time::timeout(ANSWER_WITHIN, answer).await {
        Ok(Ok(entries)) => match record_of(&entries) {
            // The record counts, because another coordinator would continue from it.
            Some(now) if now.heard >= written => return Ok(()),
            Some(now) if now.phase.is_over() => {
                return Err(ApiError::Conflict(format!(
                    "move {id} is over ({}): begin another one",
                    word(now.phase)
                )));
            }
            _ => {
                entries.keys.get(&key).and_then(|stored| serde_json::from_slice::<Asked>(&stored.value).ok())
            }
        },
        _ => {
            return Err(ApiError::Unavailable(format!(
                "no coordinator has answered within {} s; the request stands: see the move's status",
                ANSWER_WITHIN.as_secs()
            )));
        }
    };
    match answered {
        Some(Asked { request, refused: Some(why) }) if request == verb => match why.as_str() {
            "" => Ok(()),
            why => Err(ApiError::Conflict(why.to_owned())),
        },
        _ => Err(ApiError::Conflict(format!("somebody else asks something of move {id}: try again"))),
    }
}
