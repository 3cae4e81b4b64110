//! A transaction of reads that may visit many keys. Its compares and reads are executed one by one at one revision, each in
//! slices between which the loop does everything else (R26).

use std::sync::Arc;

use kindred_engine::{
    engine::PinId,
    ops::{Compare, Contents, Op, OpAnswer, RangeQuery, RevisionFilter, Txn, TxnAnswer},
};
use kindred_partition_config::{ids::Revision, key::KeyRange};
use kindred_transport::random;

use super::{Handle, Start, unanswered};
use crate::{
    apply_loop::{Raise, Request, call},
    convert, core,
    etcd_status::KvError,
    read_hints::ReadHints,
};

/// Whether a transaction only reads, and may visit more keys than are read in one turn of the loop.
pub(crate) fn is_long(txn: &Txn) -> bool {
    let compared = txn.compares.iter().map(|compare| match compare.range {
        KeyRange::Single(_) => 1,
        KeyRange::Span { .. } => usize::MAX,
    });
    let read = txn.success.iter().chain(&txn.failure).map(|op| match op {
        Op::Range(query) => core::keys_of(query),
        _ => 0,
    });
    convert::is_read_only(txn) && compared.chain(read).fold(0, usize::saturating_add) > core::WHOLE_KEYS
}

/// The revision at which the reads are made stays readable as long as this lives.
struct Held<'h> {
    handle: &'h Handle,
    pin: PinId,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let release = unanswered(call::ReleasePins { pins: vec![self.pin] });
        // If the queue is full, it ends by its age.
        let _ = self.handle.requests.try_send(Request::Call(release));
    }
}

impl Handle {
    /// Executes a transaction of reads, see [`is_long`].
    pub(crate) async fn read_txn(&self, txn: Arc<Txn>, hints: ReadHints) -> Result<OpAnswer, KvError> {
        let pin = PinId(random::bits());
        let held = Held { handle: self, pin };
        let begin = call::BeginReads { txn: txn.clone(), hints, pin };
        let at = match hints.min_revision {
            None => self.call(begin).await??,
            Some(to) => {
                let raise = Raise { ranges: core::ranges_of(&txn), to, generation: hints.generation };
                self.call_raised(raise, begin).await??
            }
        };
        let reads = Reads { handle: self, at, hints: ReadHints { min_revision: None, pin: None, ..hints } };
        let answer = reads.answer(&txn).await?;
        drop(held);
        Ok(OpAnswer::Txn(answer))
    }
}

/// Reads at one revision.
struct Reads<'h> {
    handle: &'h Handle,
    at: Revision,
    hints: ReadHints,
}

impl Reads<'_> {
    async fn answer(&self, txn: &Txn) -> Result<TxnAnswer, KvError> {
        let mut succeeded = true;
        for compare in &txn.compares {
            succeeded = self.holds(compare).await?;
            if !succeeded {
                break;
            }
        }
        let ops = if succeeded { &txn.success } else { &txn.failure };
        let mut responses = Vec::with_capacity(ops.len());
        for op in ops {
            let Op::Range(query) = op else { continue };
            let query = RangeQuery { revision: query.revision.or(Some(self.at)), ..query.clone() };
            let mut answer = self.handle.range(query, self.hints).await?;
            answer.header = self.at;
            responses.push(OpAnswer::Range(answer));
        }
        Ok(TxnAnswer { header: self.at, succeeded, responses })
    }

    /// See [`Compare`].
    async fn holds(&self, compare: &Compare) -> Result<bool, KvError> {
        let query = RangeQuery {
            range: compare.range.clone(),
            revision: Some(self.at),
            limit: 0,
            sort: None,
            contents: Contents::Whole,
            count_only: false,
            filter: RevisionFilter::default(),
        };
        let mut read = match self.handle.start(query, self.hints).await? {
            Start::Whole(answer) => return Ok(compare.holds_for_all(&answer.kvs)),
            Start::Long(read) => read,
        };
        let mut found = read.next().await?;
        if found.is_empty() {
            return Ok(compare.holds_for_all(&[]));
        }
        while !found.is_empty() {
            if !compare.holds_for_all(&found) {
                return Ok(false);
            }
            found = read.next().await?;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
