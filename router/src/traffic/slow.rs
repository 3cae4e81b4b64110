//! The last calls that took long, for pages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kindred_router_core::verb::{Asked, Verb};
use parking_lot::Mutex;
use tonic::Code;

/// A call that takes as long is noted.
pub const SLOW: Duration = Duration::from_millis(250);
/// The calls that are kept.
const KEPT: usize = 100;
/// The bytes of a key that are kept; etcd takes keys of any length.
const KEY_MAX: usize = 256;

/// A call that took long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlowCall {
    /// When it ended.
    pub at: SystemTime,
    pub client: Arc<str>,
    pub kind: Arc<str>,
    pub verb: Verb,
    /// The beginning of its key.
    pub key: String,
    pub code: Code,
    pub took: Duration,
    /// Bytes of its answer.
    pub sent: u64,
}

impl SlowCall {
    #[must_use]
    pub fn new(
        client: Arc<str>,
        kind: Arc<str>,
        asked: Asked<'_>,
        code: Code,
        took: Duration,
        sent: u64,
    ) -> Self {
        let key = &asked.key[..asked.key.len().min(KEY_MAX)];
        let key = String::from_utf8_lossy(key).into_owned();
        Self { at: SystemTime::now(), client, kind, verb: asked.verb, key, code, took, sent }
    }
}

/// The last calls that took long.
#[derive(Debug, Default)]
pub struct SlowCalls(Mutex<VecDeque<SlowCall>>);

impl SlowCalls {
    pub fn note(&self, call: SlowCall) {
        let mut calls = self.0.lock();
        if calls.len() == KEPT {
            calls.pop_front();
        }
        calls.push_back(call);
    }

    /// The last ones, the newest first.
    #[must_use]
    pub fn all(&self) -> Vec<SlowCall> {
        self.0.lock().iter().rev().cloned().collect()
    }
}
