//! Compaction: raises floors, of the store or of one Kind, and frees what is below them.

use kindred_partition_config::{ids::Revision, key::Key};

use super::{Engine, MonoMillis, RevisionMode};
use crate::{durability::Logged, error::EngineError, types::KindGap, units::UnitState};

/// Milliseconds after which a compaction that met something unpublished is tried again.
const UNPUBLISHED_WAIT_MS: u64 = 1;

impl Engine {
    /// Raises the floor to `at`: lower revisions become unreadable. `Compacted` when `at` is not above the last
    /// compaction, `Future` above the current revision. The cost grows with the number of Kinds and units; `gc`
    /// frees the memory.
    ///
    /// A store's beginning is also a floor, but not a compaction: a revision before this store existed is accepted, as
    /// other stores accept it.
    ///
    /// A compaction does not pass a pinned revision (R5). It then returns when to try again; pins taken meanwhile do
    /// not delay that.
    pub fn compact(&mut self, now: MonoMillis, at: Revision) -> Result<Option<MonoMillis>, EngineError> {
        if at <= self.space.compacted {
            return Err(EngineError::Compacted { floor: self.space.compacted });
        }
        let current = self.current_all();
        if at > current {
            return Err(EngineError::Future { current });
        }
        if self.space.first_unpublished().is_some_and(|first| first <= at) {
            // A write must not be below the floor when it becomes visible.
            return Ok(Some(MonoMillis(now.0.saturating_add(UNPUBLISHED_WAIT_MS))));
        }
        // An idle Kind's current revision must stay readable (R4). From here on no lower revision is shown, so none is
        // pinned.
        let everything = self.space.everything();
        self.space.raise_visible(&everything, at);
        let until = self.holds.below(now, at);
        if until.is_none() {
            self.compacted_to(at);
        }
        Ok(until)
    }

    pub(super) fn compacted_to(&mut self, at: Revision) {
        for record in &mut self.space.units.records {
            record.floor = record.floor.max(at);
        }
        self.space.floor = self.space.floor.max(at);
        self.space.compacted = at;
        self.space.compact_gaps(at);
        self.space.pass_kind_floors(at);
        self.space.outbox.push(|| Logged::Compaction(at));
    }

    /// The same for the history of one Kind, named by its prefix. Below `at` the Kind is unreadable, as after a compaction;
    /// other Kinds stay as they are. Nothing is done, and nothing returned, when `at` is not above the Kind's floor or the
    /// shard has nothing of the Kind. An engine with dense revisions has one history for all Kinds and does nothing.
    ///
    /// As [`Engine::compact`], it does not pass a pinned revision, and then returns when to try again.
    pub fn compact_kind(&mut self, now: MonoMillis, prefix: &[u8], at: Revision) -> Option<MonoMillis> {
        let kind = self.space.known_kind(prefix).filter(|_| self.config.revisions != RevisionMode::Dense)?;
        let at = at.min(self.current_all());
        if at <= self.space.floor_of_kind(kind) {
            return None;
        }
        // Reads of several Kinds show nothing at or above what is unpublished in one of them, and must be able to read there.
        if self.space.first_unpublished().is_some_and(|first| first <= at) {
            return Some(MonoMillis(now.0.saturating_add(UNPUBLISHED_WAIT_MS)));
        }
        // As for all Kinds: its current revision must stay readable (R4).
        self.space.raise_kind(kind, at);
        let until = self.holds.below(now, at);
        if until.is_none() {
            self.space.compact_kind(kind, at);
            let gap = Box::new(KindGap::floor(Key::copy_from(prefix), at));
            self.space.outbox.push(|| Logged::Gap(gap));
            self.log_units();
        }
        until
    }

    /// The lowest readable revision of a Kind's keys that are in no unit; that of the shard for a Kind that is not here.
    #[must_use]
    pub fn floor_of_kind(&self, prefix: &[u8]) -> Revision {
        let kind = self.space.known_kind(prefix);
        kind.map_or(self.space.floor, |kind| self.space.floor_of_kind(kind)).max(Revision::ZERO)
    }

    /// Frees versions below the floor that no pin needs, about `budget` at most; `true` when there is more to do.
    pub fn gc(&mut self, budget: usize) -> bool {
        let unpinned = std::mem::take(&mut self.unpinned);
        let mut budget = budget;
        let dropping = self.unit_gc(&mut budget);
        self.space.gc(&self.pins, unpinned, budget) | dropping
    }

    /// Whether a pin below the floor ended since the last garbage collection, or a unit is being dropped.
    #[must_use]
    pub fn wants_gc(&self) -> bool {
        self.unpinned || self.space.units.records.iter().any(|record| record.state == UnitState::Dropping)
    }
}
