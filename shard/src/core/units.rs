//! Ownership on the loop: which requests are this shard's to answer (R13), and calls for a move.

use kindred_engine::{
    ops::{Op, RangeQuery, Txn},
    units::{NotOwned, UnitError},
};
use kindred_partition_config::key::KeyRange;

use super::Core;

impl Core {
    /// A call for a move; what it leaves to be removed is removed from now on.
    pub fn unit_call<T>(
        &mut self,
        call: impl FnOnce(&mut Self) -> Result<T, UnitError>,
    ) -> Result<T, UnitError> {
        let answer = call(self);
        self.scrubbing |= self.engine.wants_scrub();
        answer
    }

    /// Whether spans that a request names are wholly this shard's by the map of this generation. Single keys, and what does
    /// not depend on a generation, the engine checks when it executes.
    pub(super) fn owns(&self, op: &Op, generation: Option<u64>) -> Result<(), NotOwned> {
        if generation.is_none() {
            return Ok(());
        }
        match op {
            Op::Put(_) => Ok(()),
            Op::Range(query) => self.owns_read(query, generation),
            Op::Delete(delete) => self.owns_span(&delete.range, generation),
            Op::Txn(txn) => {
                let mut spans = Vec::new();
                collect(txn, &mut spans);
                if spans.is_empty() { Ok(()) } else { self.engine.owns(&spans, generation) }
            }
        }
    }

    /// The same of a read; of a frozen unit, what is not above the final revision may be read.
    pub(super) fn owns_read(&self, query: &RangeQuery, generation: Option<u64>) -> Result<(), NotOwned> {
        match &query.range {
            KeyRange::Span { .. } if generation.is_some() => {
                self.engine.owns_at(&query.range, generation, query.revision)
            }
            _ => Ok(()),
        }
    }

    fn owns_span(&self, range: &KeyRange, generation: Option<u64>) -> Result<(), NotOwned> {
        match range {
            KeyRange::Span { .. } if generation.is_some() => {
                self.engine.owns(std::slice::from_ref(range), generation)
            }
            _ => Ok(()),
        }
    }
}

/// The spans of a txn, of both branches: which one is taken is known too late. Kubernetes' have none.
fn collect(txn: &Txn, spans: &mut Vec<KeyRange>) {
    let mut push = |range: &KeyRange| {
        if matches!(range, KeyRange::Span { .. }) {
            spans.push(range.clone());
        }
    };
    txn.compares.iter().for_each(|compare| push(&compare.range));
    let ops = || txn.success.iter().chain(&txn.failure);
    for op in ops() {
        match op {
            Op::Range(query) if query.revision.is_none() => push(&query.range),
            Op::Delete(delete) => push(&delete.range),
            Op::Range(_) | Op::Put(_) | Op::Txn(_) => {}
        }
    }
    for op in ops() {
        if let Op::Txn(txn) = op {
            collect(txn, spans);
        }
    }
}
