//! A bound for the bytes of history: what is oldest is compacted before it takes the room of what is to be written.
//!
//! Only writes make history, so the bound is looked at where a write is checked against the quota, and needs no timer.

use std::{collections::BTreeMap, time::Duration};

use kindred_engine::engine::MonoMillis;
use kindred_partition_config::{history::HistoryBounds, ids::Revision, key::Key};
use kindred_proto::shard_v1 as pb;
use tonic::Status;

/// How long after one look at the bound the next one is.
const LOOKS_MILLIS: u64 = 1_000;
/// The age at which history may always be read: lists at younger revisions must be readable to their end (R5).
pub const HISTORY_AGE_MIN: Duration = Duration::from_secs(10);

/// How old the history of a store is assumed to be whose floor does not say it: as old as kube-apiserver leaves it.
pub const HISTORY_AGE_ASSUMED: Duration = Duration::from_secs(300);

/// By how much the age of history may exceed a Kind's bound, as a part of that, before it is compacted: each compaction is
/// a record in the logs.
pub const AGE_SLACK: u32 = 8;

/// The bounds, and when they were looked at.
#[derive(Debug)]
pub struct History {
    /// For all Kinds together; 0 = none.
    pub bytes: u64,
    /// For single Kinds, by prefix, as routers told them last.
    pub kinds: BTreeMap<Key, HistoryBounds>,
    /// Of the cluster's configuration from which those are.
    generation: u64,
    next: MonoMillis,
    /// From when on there is history, as far as the floor does not say: a store that was started again before its first
    /// checkpoint has a floor of zero.
    pub begins: Option<Revision>,
}

impl History {
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        Self { bytes, kinds: BTreeMap::new(), generation: 0, next: MonoMillis(0), begins: None }
    }

    /// Takes the bounds of Kinds, unless those of a later configuration are in force.
    pub fn tell(&mut self, generation: u64, kinds: BTreeMap<Key, HistoryBounds>) {
        if generation >= self.generation {
            (self.generation, self.kinds) = (generation, kinds);
        }
    }

    /// Whether it is time for another look.
    pub fn is_due(&mut self, now: MonoMillis) -> bool {
        let due = (self.bytes > 0 || !self.kinds.is_empty()) && now >= self.next;
        if due {
            self.next = MonoMillis(now.0 + LOOKS_MILLIS);
        }
        due
    }
}

/// The bounds of a request.
///
/// # Errors
/// When a Kind is named twice or by something that is not a prefix.
pub fn asked(request: &pb::SetModesRequest) -> Result<BTreeMap<Key, HistoryBounds>, Status> {
    let mut kinds = BTreeMap::new();
    for (at, of) in request.history.iter().enumerate() {
        let wrong = |what: &str| {
            let prefix = String::from_utf8_lossy(&of.prefix);
            Status::invalid_argument(format!("kindred: history[{at}] of {prefix:?} {what}"))
        };
        if !of.prefix.ends_with(b"/") {
            return Err(wrong("is not of a Kind's prefix, which ends with a slash"));
        }
        let some = |number: u64| Some(number).filter(|number| *number > 0);
        let bounds = HistoryBounds { bytes: some(of.max_bytes), seconds: some(of.max_seconds) };
        if kinds.insert(Key(of.prefix.clone()), bounds).is_some() {
            return Err(wrong("is the second one of its Kind"));
        }
    }
    Ok(kinds)
}

/// The age beyond which history is to go, if there are more bytes of it than may be. A quarter of the room becomes free
/// if writes came evenly over `span`; if they did not, later looks go on from there.
#[must_use]
pub fn age_to_keep(history: u64, bound: u64, span: Duration) -> Option<Duration> {
    if bound == 0 || history <= bound {
        return None;
    }
    let part = bound as f64 * 0.75 / history as f64;
    Some(span.mul_f64(part).max(HISTORY_AGE_MIN))
}
