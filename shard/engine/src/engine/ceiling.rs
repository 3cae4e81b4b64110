//! The clock's ceiling (R2), which is the process's to keep on disk.

use kindred_partition_config::ids::Revision;

use super::{Engine, WallMicros};

impl Engine {
    /// Everything that is assigned, promised or raised to stays below this from now on.
    pub fn set_ceiling(&mut self, ceiling: Revision) {
        self.clock.set_ceiling(ceiling);
    }

    /// See [`Engine::set_ceiling`].
    #[must_use]
    pub fn ceiling(&self) -> Revision {
        self.clock.ceiling()
    }

    /// Whether a request may be executed that assigns a revision. What is not asked before is refused by nobody.
    #[must_use]
    pub fn may_assign(&self, now: WallMicros) -> bool {
        self.clock.may_assign(now)
    }

    /// Whether the clock may be raised to a revision, as far as the maximum offset goes (R3).
    #[must_use]
    pub fn may_follow(&self, now: WallMicros, to: Revision) -> bool {
        self.clock.may_follow(now, to, self.config.max_clock_offset_micros)
    }

    /// Whether the ceiling lets the clock come to a revision.
    #[must_use]
    pub fn may_reach(&self, to: Revision) -> bool {
        to < self.clock.ceiling()
    }

    /// The highest revision that was assigned, promised or raised to.
    #[must_use]
    pub fn last_revision(&self) -> Revision {
        self.clock.last()
    }
}
