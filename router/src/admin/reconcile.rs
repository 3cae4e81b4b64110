//! `POST /api/v1/reconcile`: compares what the shards own with the map in meta, and makes both agree. Without `apply`
//! it only reports what it would do.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::api;
use super::status::ApiError;
use crate::meta::live::Live;
use crate::moves::mover::Mover;
use crate::moves::reconcile::{self, Heard, NotMade};

/// The request's body; an empty one is the default.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Body {
    /// Makes the changes.
    #[serde(default)]
    apply: bool,
}

pub fn routes(mover: &Arc<Mover>) -> Router {
    let mover = mover.clone();
    Router::new().route(
        "/api/v1/reconcile",
        post(move |headers: HeaderMap, body: Bytes| async move {
            match run(&mover, &body).await {
                Ok(value) => api::shown(&headers, StatusCode::OK, &value),
                Err(error) => error.into_response(),
            }
        }),
    )
}

async fn run(mover: &Arc<Mover>, body: &[u8]) -> Result<Value, ApiError> {
    let body: Body = if body.is_empty() { Body::default() } else { api::body(body)? };
    let cluster = &mover.keeper.cluster;
    let Some(meta) = &cluster.meta else {
        return Err(ApiError::NotImplemented(crate::meta::MetaError::None.to_string()));
    };
    let live = Live { keeper: mover.keeper.clone(), meta: meta.clone() };
    let heard = reconcile::ask(mover, &cluster.state()).await;
    if !body.apply {
        let plan = reconcile::planned(&live, &heard);
        return Ok(shown(&heard, false, &plan.found, &plan.problems, plan.is_empty(), &[]));
    }
    let (plan, failed) = match reconcile::apply::<ApiError>(mover, &live, &heard).await {
        Ok(made) => made,
        Err(NotMade::Meta(error)) => return Err(error.into()),
        Err(NotMade::Silent(store, why)) => {
            return Err(ApiError::Conflict(format!(
                "store {store:?} cannot be asked what it owns ({why}): nothing is done without it; start it, or replace it if it \
                 is lost (kindred store replace {store})"
            )));
        }
    };
    let failed = failed.map(|(call, why)| {
        let store = cluster.state().store_name(call.store);
        format!("store {store:?} did not {} what move {} left: {why}", call.ask.word(), call.id)
    });
    Ok(shown(&heard, true, &plan.found, &plan.problems, plan.is_empty(), failed.as_slice()))
}

fn shown(
    heard: &Heard,
    applied: bool,
    found: &[String],
    problems: &[String],
    nothing: bool,
    failed: &[String],
) -> Value {
    let silent = heard.silent.iter().map(|(store, why)| format!("store {store:?} cannot be asked: {why}"));
    let problems: Vec<String> = silent.chain(problems.iter().cloned()).collect();
    json!({
        "kind": "Reconciliation", "apiVersion": "v1", "applied": applied, "inAccord": nothing && problems.is_empty(),
        "found": found, "problems": problems, "failed": failed,
    })
}
