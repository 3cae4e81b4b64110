//! Which changes at a stock etcd this router made itself, and which others made; see [`crate::outsiders::direct`].

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use kindred_proto::etcdserverpb as pb;
use kindred_router_core::plan::Call;
use prost::Message as _;
use tokio::time::Instant;

/// The number of own writes, and of changes, that are kept.
const KEPT: usize = 1 << 16;
/// How long a change may be older than the answer to the write that made it. Younger ones are not shown.
pub const SETTLED: Duration = Duration::from_secs(2);

/// The writes at one etcd, while it is being adopted.
#[derive(Debug, Default)]
pub struct Writes {
    noted: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The revisions of this router's own writes.
    own: BTreeSet<i64>,
    seen: VecDeque<Change>,
    /// Since when all changes were seen; `None` while they are not.
    since: Option<Instant>,
}

/// A key that was written or deleted.
#[derive(Debug, Clone)]
pub struct Change {
    pub revision: i64,
    pub key: Bytes,
    at: Instant,
}

impl Change {
    /// The time since this router heard of it.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.at.elapsed()
    }
}

/// The changes that this router did not make.
#[derive(Debug, Default)]
pub struct Others {
    /// For how long every change was seen.
    pub watched: Duration,
    /// The changes, oldest first, but for those that are younger than [`SETTLED`].
    pub changes: Vec<Change>,
}

impl Writes {
    /// From now on this router's own writes are noted.
    pub fn note(&self) {
        self.noted.store(true, Ordering::Release);
    }

    /// Notes an answer to a request of this router.
    pub fn answered(&self, method: Call, answer: &[u8], revision: i64) {
        // A read that sees a revision has not made it.
        if self.noted.load(Ordering::Acquire) && changed(method, answer) {
            let mut inner = self.lock();
            inner.own.insert(revision);
            if inner.own.len() > KEPT {
                inner.own.pop_first();
            }
        }
    }

    /// What others did; `None` while the etcd is not being adopted, or its changes are not seen.
    #[must_use]
    pub fn of_others(&self) -> Option<Others> {
        let inner = self.lock();
        let mut watched = inner.since?.elapsed();
        if inner.seen.len() == KEPT {
            // Older ones were forgotten.
            watched = inner.seen.front().map_or(watched, |oldest| watched.min(oldest.age()));
        }
        let settled = inner.seen.iter().filter(|change| change.age() >= SETTLED);
        let others = settled.filter(|change| !inner.own.contains(&change.revision)).cloned();
        Some(Others { watched, changes: others.collect() })
    }

    /// Notes a change that the etcd told.
    pub fn saw(&self, revision: i64, key: &[u8]) {
        let mut inner = self.lock();
        let change = Change { revision, key: Bytes::copy_from_slice(key), at: Instant::now() };
        inner.seen.push_back(change);
        if inner.seen.len() > KEPT {
            inner.seen.pop_front();
        }
    }

    /// From now on all changes are told.
    pub fn begin(&self) {
        *self.lock() = Inner { since: Some(Instant::now()), ..Inner::default() };
    }

    /// Changes are not told any more.
    pub fn end(&self) {
        self.noted.store(false, Ordering::Release);
        *self.lock() = Inner::default();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No holder panics.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an answer says that a key was put or deleted.
fn changed(method: Call, answer: &[u8]) -> bool {
    match method {
        Call::Put => true,
        Call::Range | Call::RangeStream => false,
        Call::DeleteRange => pb::DeleteRangeResponse::decode(answer).is_ok_and(|answer| answer.deleted > 0),
        Call::Txn => pb::TxnResponse::decode(answer).is_ok_and(|answer| has_change(&answer)),
    }
}

fn has_change(answer: &pb::TxnResponse) -> bool {
    use pb::response_op::Response;
    answer.responses.iter().any(|done| match &done.response {
        Some(Response::ResponsePut(_)) => true,
        Some(Response::ResponseDeleteRange(answer)) => answer.deleted > 0,
        Some(Response::ResponseTxn(inner)) => has_change(inner),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put_answer() -> pb::ResponseOp {
        pb::ResponseOp { response: Some(pb::response_op::Response::ResponsePut(pb::PutResponse::default())) }
    }

    /// The etcd tells deletions too: `adopt finish` did not see those of others.
    #[test]
    fn f87_a_deletion_is_a_change_of_this_router_if_it_deleted_something() {
        for (deleted, expected) in [(0, false), (1, true)] {
            let answer = pb::DeleteRangeResponse { deleted, ..Default::default() };
            assert_eq!(changed(Call::DeleteRange, &answer.encode_to_vec()), expected);
            let done = Some(pb::response_op::Response::ResponseDeleteRange(answer));
            let txn =
                pb::TxnResponse { responses: vec![pb::ResponseOp { response: done }], ..Default::default() };
            assert_eq!(changed(Call::Txn, &txn.encode_to_vec()), expected);
        }
        let nothing = pb::DeleteRangeResponse::default();
        assert!(!changed(Call::Range, &nothing.encode_to_vec()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_is_anothers_unless_this_router_was_told_that_it_made_it() {
        let writes = Writes::default();
        writes.answered(Call::Put, &[], 5);
        assert!(writes.of_others().is_none(), "the etcd is not being adopted");
        writes.note();
        writes.begin();
        for (revision, key) in [(6, "mine"), (7, "direct"), (8, "by txn"), (9, "in a txn of mine, deep")] {
            writes.saw(revision, key.as_bytes());
        }
        writes.answered(Call::Put, &[], 6);
        // Reads see the revision that another made.
        writes.answered(Call::Range, &[], 7);
        let only_read = pb::TxnResponse::default().encode_to_vec();
        writes.answered(Call::Txn, &only_read, 7);
        let by_txn = pb::TxnResponse { responses: vec![put_answer()], ..Default::default() };
        writes.answered(Call::Txn, &by_txn.encode_to_vec(), 8);
        let nested = pb::ResponseOp { response: Some(pb::response_op::Response::ResponseTxn(by_txn)) };
        let deep = pb::TxnResponse { responses: vec![nested], ..Default::default() };
        writes.answered(Call::Txn, &deep.encode_to_vec(), 9);
        assert!(writes.of_others().unwrap().changes.is_empty(), "an answer may still be on its way");
        tokio::time::advance(SETTLED).await;
        let others = writes.of_others().unwrap();
        assert_eq!((others.watched, others.changes.len()), (SETTLED, 1));
        assert_eq!((others.changes[0].revision, &others.changes[0].key[..]), (7, &b"direct"[..]));
        writes.end();
        assert!(writes.of_others().is_none());
    }
}
