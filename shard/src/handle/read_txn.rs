//! A transaction of reads that may visit many keys. Its compares and reads are executed one by one at one revision, each in
//! slices between which the loop does everything else (R26).

use std::sync::Arc;

use kindred_engine::ops::{Compare, Op, OpAnswer, RangeAnswer, RangeQuery, Txn, TxnAnswer};
use kindred_partition_config::{ids::Revision, key::KeyRange};
use kindred_wire::error::EtcdError;
use tokio::sync::oneshot;

use super::{Handle, LongRead, Pin};
use crate::{
    apply_loop::Request,
    convert,
    core::{self, BegunReads, OpenedRead},
    etcd_status::KvError,
    read_hints::ReadHints,
};

/// Whether a transaction only reads, and may visit more keys than are read in one turn of the loop.
pub(crate) fn is_long(txn: &Txn) -> bool {
    let compared = txn.compares.iter().map(|compare| match compare.range {
        KeyRange::Single(_) => 1,
        KeyRange::Span { .. } => usize::MAX,
    });
    let ops = || txn.success.iter().chain(&txn.failure);
    let read = ops().map(|op| match op {
        Op::Range(query) => core::keys_of(query),
        _ => 0,
    });
    // etcd takes a negative revision for the present one, or for a compacted one: execution in one turn knows which.
    let is_negative =
        |op: &Op| matches!(op, Op::Range(query) if query.revision.is_some_and(|at| at < Revision::ZERO));
    convert::is_read_only(txn)
        && !ops().any(is_negative)
        && compared.chain(read).fold(0, usize::saturating_add) > core::WHOLE_KEYS
}

impl Handle {
    /// Executes a transaction of reads, see [`is_long`], as long as it is wanted.
    pub(crate) async fn read_txn(
        &self,
        txn: Arc<Txn>,
        hints: ReadHints,
        is_wanted: impl Fn() -> bool + Send,
    ) -> Result<OpAnswer, KvError> {
        let alive = Arc::new(());
        let (answer, answered) = oneshot::channel();
        let begin = Request::BeginReads { txn: txn.clone(), hints, owner: Arc::downgrade(&alive), answer };
        let BegunReads { at, reads } = self.send(begin, answered).await??;
        let reads = reads.into_iter().map(|read| {
            let OpenedRead { count, cursor } = read?;
            let pin = Some(Pin { handle: self.clone(), cursor, _alive: alive.clone() });
            Ok(LongRead { header: at, count, first: Vec::new(), pin })
        });
        let mut reads = Reads { left: reads, is_wanted };
        let mut succeeded = true;
        for compare in &txn.compares {
            let read = reads.next()?;
            succeeded = succeeded && holds(compare, read).await?;
        }
        // Those of the other branch end with their owner.
        let ops = if succeeded { &txn.success } else { &txn.failure };
        let passed = if succeeded { 0 } else { txn.success.len() };
        let taken: Result<Vec<_>, _> = reads.left.by_ref().skip(passed).take(ops.len()).collect();
        let mut responses = Vec::with_capacity(ops.len());
        // As in etcd, a refusal of one comes before anything is read.
        for (op, read) in ops.iter().zip(taken?) {
            reads.go_on()?;
            if let Op::Range(query) = op {
                responses.push(OpAnswer::Range(answer_of(query, read).await?));
            }
        }
        Ok(OpAnswer::Txn(TxnAnswer { header: at, succeeded, responses }))
    }
}

/// The reads that are to be made yet.
struct Reads<L, W> {
    left: L,
    is_wanted: W,
}

impl<L: Iterator<Item = Result<LongRead, KvError>>, W: Fn() -> bool> Reads<L, W> {
    /// The next one, which is there for each range of the transaction.
    fn next(&mut self) -> Result<LongRead, KvError> {
        self.go_on()?;
        self.left.next().unwrap_or(Err(KvError::Stopped))
    }

    /// Ends what no client waits for any more.
    fn go_on(&self) -> Result<(), KvError> {
        if (self.is_wanted)() { Ok(()) } else { Err(KvError::Invalid(EtcdError::Timeout)) }
    }
}

/// The answer to a read that is open.
async fn answer_of(query: &RangeQuery, read: LongRead) -> Result<RangeAnswer, KvError> {
    if query.count_only {
        let (header, count, contents) = (read.header, read.count, query.contents);
        return Ok(RangeAnswer { header, kvs: Vec::new(), more: false, count, contents });
    }
    read.collect(query).await
}

/// See [`Compare`].
async fn holds(compare: &Compare, mut read: LongRead) -> Result<bool, KvError> {
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

#[cfg(test)]
mod tests;
