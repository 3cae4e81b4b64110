//! The clock's ceiling (R2). The process keeps it on disk.

use kindred_partition_config::ids::Revision;

use super::{Engine, WallMicros};

impl Engine {
    /// Sets the ceiling: every revision assigned, promised or raised to from now on is below it.
    pub fn set_ceiling(&mut self, ceiling: Revision) {
        self.clock.set_ceiling(ceiling);
    }

    /// The ceiling of [`Engine::set_ceiling`].
    #[must_use]
    pub fn ceiling(&self) -> Revision {
        self.clock.ceiling()
    }

    /// Whether the ceiling leaves room to assign a revision now. Nothing else enforces it, so the caller asks before
    /// each write.
    #[must_use]
    pub fn may_assign(&self, now: WallMicros) -> bool {
        self.clock.may_assign(now)
    }

    /// Whether a raise to this revision stays within the maximum clock offset (R3).
    #[must_use]
    pub fn may_follow(&self, now: WallMicros, to: Revision) -> bool {
        self.clock.may_follow(now, to, self.config.max_clock_offset_micros)
    }

    /// Whether a revision is below the ceiling.
    #[must_use]
    pub fn may_reach(&self, to: Revision) -> bool {
        to < self.clock.ceiling()
    }

    #[must_use]
    pub fn last_revision(&self) -> Revision {
        self.clock.last()
    }
}
