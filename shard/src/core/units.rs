//! Ownership on the loop: which requests are this shard's to answer (R13), and calls for a move.

use kindred_engine::{
    ops::{Op, RangeQuery},
    units::{NotOwned, UnitError, UnitMove},
};

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

    /// Several calls for moves as one: the table of units is logged once, behind all of them.
    pub fn unit_calls(&mut self, calls: impl FnOnce(&mut Self)) {
        self.engine.hold_units();
        calls(self);
        self.engine.log_units_held();
        self.scrubbing |= self.engine.wants_scrub();
    }

    /// Drops a unit when nobody reads it here any more (design of moves, completion).
    pub fn unit_drop(&mut self, by: &UnitMove, epoch: u64) -> Result<(), UnitError> {
        let cursors = self.cursors.values().filter(|cursor| cursor.owner.strong_count() > 0);
        let open = cursors.filter(|cursor| self.engine.unit_is_read(by, &cursor.open)).count();
        self.engine.unit_drop_when_unread(self.clock.mono(), by, epoch, open)
    }

    /// Whether what a request reads and deletes is this shard's by the map of this generation: spans, and the pseudo-keys
    /// that stand for a Kind. What does not depend on a generation the engine checks when it executes. Of a txn both
    /// branches count: which one is taken is known too late.
    pub(super) fn owns(&self, op: &Op, generation: Option<u64>) -> Result<(), NotOwned> {
        if generation.is_none() {
            return Ok(());
        }
        match op {
            Op::Put(_) => Ok(()),
            Op::Range(query) => self.engine.owns_to_write(&query.range, generation),
            Op::Delete(delete) => self.engine.owns_to_write(&delete.range, generation),
            Op::Txn(txn) => {
                let mut compares = txn.compares.iter();
                compares.try_for_each(|compare| self.engine.owns_to_write(&compare.range, generation))?;
                txn.success.iter().chain(&txn.failure).try_for_each(|op| self.owns(op, generation))
            }
        }
    }

    /// The same of a read; what was settled before a unit changed hands may be read at its revision.
    pub(super) fn owns_read(&self, query: &RangeQuery, generation: Option<u64>) -> Result<(), NotOwned> {
        match generation {
            None => Ok(()),
            Some(_) => self.engine.owns_at(&query.range, generation, query.revision),
        }
    }
}
