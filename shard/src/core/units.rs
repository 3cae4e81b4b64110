//! Ownership on the loop: which requests this shard may answer (R13), and the calls for moves.

use kindred_engine::{
    ops::{Op, RangeQuery},
    units::{NotOwned, UnitError, UnitMove},
};
use kindred_partition_config::ids::Epoch;

use super::Core;

impl Core {
    /// Runs a call for a move, and starts garbage collection if it left something to remove.
    pub fn unit_call<T>(
        &mut self,
        call: impl FnOnce(&mut Self) -> Result<T, UnitError>,
    ) -> Result<T, UnitError> {
        let answer = call(self);
        self.collecting |= self.engine.wants_gc();
        answer
    }

    /// Runs several calls for moves, after which the table of units is logged once.
    pub fn unit_calls(&mut self, calls: impl FnOnce(&mut Self)) {
        self.engine.hold_units();
        calls(self);
        self.engine.log_units_held();
        self.collecting |= self.engine.wants_gc();
    }

    /// Drops a unit once no read uses it here (completion of a move).
    pub fn unit_drop(&mut self, by: &UnitMove, epoch: Epoch) -> Result<(), UnitError> {
        let cursors = self.cursors.values().filter(|cursor| cursor.owner.strong_count() > 0);
        let open = cursors.filter(|cursor| self.engine.unit_is_read(by, &cursor.open)).count();
        self.engine.unit_drop_when_unread(self.clock.mono(), by, epoch, open)
    }

    /// Refuses a request whose spans or pseudo-keys are not this shard's by the map of `generation`. What does not
    /// depend on a generation, the engine checks at execution. Both branches of a transaction count, since it is not
    /// known yet which one is taken.
    pub(super) fn owns(&self, op: &Op, generation: Option<Epoch>) -> Result<(), NotOwned> {
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

    /// The same for a read. Up to its final revision a unit that changed hands may still be read.
    pub(super) fn owns_read(&self, query: &RangeQuery, generation: Option<Epoch>) -> Result<(), NotOwned> {
        match generation {
            None => Ok(()),
            Some(_) => self.engine.owns_at(&query.range, generation, query.revision),
        }
    }
}
