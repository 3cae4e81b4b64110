//! What meta has of moves: the keys, and what they hold.

use std::collections::BTreeMap;

use kindred_partition_config::ids::MoveId;
use kindred_router_core::moves::record::MoveRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::MOVES;
use crate::meta::client::Entries;

/// Prefix of the claims, one key a move under its coordinator's lease; the value is the [`Progress`].
pub const COORDINATORS: &str = "/kindred/coordinators/";
/// Prefix of operators' requests, one key a move; the value is the request and, later, the answer.
pub const REQUESTS: &str = "/kindred/requests/";

/// The progress of a move, as its coordinator reports it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The name of the coordinating router.
    pub router: String,
    /// Keys copied since this coordinator began.
    pub keys_copied: u64,
    /// Bytes of keys and values copied since then, including those of tailed events.
    pub bytes_copied: u64,
    /// The largest lag of any follower in microseconds; absent while some unit is not followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_micros: Option<u64>,
    /// The pause of the last switch in microseconds: from the first freeze to the last unit opened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_micros: Option<u64>,
    /// Steps that failed when last tried, and are retried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failing: Vec<Failing>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failing {
    /// The name of the step.
    pub step: String,
    /// The number of failures since it last succeeded.
    pub times: u64,
    /// The last error.
    pub reason: String,
}

/// The key of a move's record in meta.
#[must_use]
pub fn record_key(id: MoveId) -> String {
    format!("{MOVES}{}", id.0)
}

/// The key of a move's claim.
pub(super) fn coordinator_key(id: MoveId) -> String {
    format!("{COORDINATORS}{}", id.0)
}

/// The key of an operator's request for a move.
#[must_use]
pub fn request_key(id: MoveId) -> String {
    format!("{REQUESTS}{}", id.0)
}

/// All moves in meta by number, each with its record and the record's mod revision.
#[must_use]
pub fn records(entries: &Entries) -> BTreeMap<MoveId, (MoveRecord, i64)> {
    let below = entries.keys.range(MOVES.to_owned()..).take_while(|(key, _)| key.starts_with(MOVES));
    below
        .filter_map(|(key, stored)| match MoveRecord::from_json(&stored.value) {
            Ok(record) => Some((record.id, (record, stored.mod_revision))),
            Err(error) => {
                tracing::error!(key, %error, "a move cannot be read, and is left alone");
                None
            }
        })
        .collect()
}

/// The record of one move.
#[must_use]
pub fn record(entries: &Entries, id: MoveId) -> Option<MoveRecord> {
    MoveRecord::from_json(&entries.keys.get(&record_key(id))?.value).ok()
}

/// The progress that a move's coordinator last reported.
#[must_use]
pub fn progress(entries: &Entries, id: MoveId) -> Option<Progress> {
    serde_json::from_slice(&entries.keys.get(&coordinator_key(id))?.value).ok()
}
