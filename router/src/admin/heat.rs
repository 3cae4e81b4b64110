//! `/api/v1/heat`: the traffic of Kinds over the last hour in a compact form, for the map of the key space on the page.
//! An answer has a bounded number of steps; a reader asks again from the last one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::routing::get;
use axum::{Json, Router};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kinds::seconds;
use super::status::ApiError;
use crate::traffic::Traffic;
use crate::traffic::samples::{self, Step};

/// The steps of one answer: a quarter of an hour.
const STEPS_MAX: usize = 90;

#[derive(Debug, Default, Deserialize)]
struct Since {
    /// Only steps that ended after this time, in seconds since the Unix epoch.
    #[serde(default)]
    since: f64,
}

/// The traffic of Kinds over time.
#[derive(Debug, Serialize, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Heat {
    step_seconds: u64,
    /// The cells name Kinds by their places in this list.
    kinds: Vec<String>,
    steps: Vec<HeatStep>,
    /// Whether there are later steps.
    more: bool,
}

/// A step of time.
#[derive(Debug, Serialize, PartialEq, JsonSchema)]
struct HeatStep {
    /// Its end, in seconds since the Unix epoch.
    at: f64,
    /// A Kind, calls, those that failed, bytes, microseconds, and messages with events.
    cells: Vec<[u64; 6]>,
}

pub fn routes(traffic: &Arc<Traffic>) -> Router {
    let traffic = traffic.clone();
    let heat = move |query: Result<Query<Since>, QueryRejection>| {
        std::future::ready(query.map_err(ApiError::from).map(|Query(Since { since })| {
            let since = Duration::try_from_secs_f64(since).unwrap_or_default();
            let after = SystemTime::UNIX_EPOCH.checked_add(since);
            Json(shown(&after.map_or_else(Vec::new, |after| traffic.samples.since(after))))
        }))
    };
    Router::new().route("/api/v1/heat", get(heat))
}

fn shown(steps: &[Step]) -> Heat {
    let (mut kinds, mut places) = (Vec::new(), HashMap::new());
    let shown = steps.iter().take(STEPS_MAX).map(|step| {
        let cells = step.kinds.iter().map(|(name, of)| {
            let place = *places.entry(name.clone()).or_insert_with(|| {
                kinds.push(name.to_string());
                kinds.len() as u64 - 1
            });
            [place, of.calls, of.failed, of.bytes, of.micros, of.messages]
        });
        HeatStep { at: seconds(step.at), cells: cells.collect() }
    });
    let steps_shown = shown.collect();
    Heat { step_seconds: samples::STEP.as_secs(), kinds, steps: steps_shown, more: steps.len() > STEPS_MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::samples::Amount;

    #[test]
    fn an_answer_names_each_kind_once_and_is_bounded() {
        let amount = Amount { calls: 2, failed: 1, bytes: 30, micros: 400, messages: 5 };
        let step = |at: u64, kind: &str| Step {
            at: SystemTime::UNIX_EPOCH + Duration::from_secs(at),
            kinds: vec![(kind.into(), amount)],
        };
        let heat = shown(&[step(10, "pods"), step(20, "leases"), step(30, "pods")]);
        assert_eq!(heat.kinds, ["pods", "leases"]);
        assert_eq!(heat.steps[2], HeatStep { at: 30.0, cells: vec![[0, 2, 1, 30, 400, 5]] });
        assert!(!heat.more);
        let many: Vec<Step> = (0..100).map(|at| step(at, "pods")).collect();
        let heat = shown(&many);
        assert_eq!((heat.steps.len(), heat.more), (STEPS_MAX, true));
        assert_eq!(heat.steps.last().map(|step| step.at), Some(STEPS_MAX as f64 - 1.0));
    }
}
