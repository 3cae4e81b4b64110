//! The clock that assigns revisions (docs/design.md): a hybrid logical clock, or etcd's dense counter.
//!
//! A hybrid revision is `microseconds << 10 | slot`, so no two shards ever assign the same one (R1). Every revision
//! that the clock returns is above those before, whatever the wall clock does: a step forward is followed at once, and
//! the clock is *held* while the wall clock stands still or is behind. In a burst the clock runs ahead of the wall
//! clock by one microsecond per assignment, until the wall clock has caught up.

use kindred_partition_config::ids::{Revision, SLOT_BITS, Slot};

pub use crate::types::ClockOffset;
use crate::types::{RevisionMode, WallMicros};

/// The highest microsecond to which the wall clock, a raise or a recovery can bring the clock, about the year 2254. The
/// 2^43 microseconds above it, up to the end of `i64`, are left for bursts: 100 days at a million assignments a second.
const LAST_MICROS: i64 = (1 << 53) - (1 << 43);

/// etcd's first revision: an empty store is at 1, and its first write gets 2.
const DENSE_START: i64 = 1;

/// Assigns revisions and makes promises.
#[derive(Debug, Clone)]
pub struct Clock {
    mode: RevisionMode,
    last: i64,
    /// The highest wall clock reading below the ceiling, in microseconds. Raises do not move it, so a chain of raises
    /// cannot carry the clock further than one maximum offset from the wall clock (R3).
    held: i64,
    /// Every revision assigned, promised or raised to is below this (R2).
    ceiling: i64,
}

impl Clock {
    /// A clock at `start`: the wall clock, or the durable ceiling after a restart when that is higher (R2). In dense
    /// mode it is at 1, as an empty etcd; [`Clock::recover`] moves it further.
    #[must_use]
    pub fn new(mode: RevisionMode, start: WallMicros) -> Self {
        let held = micros(start);
        let last = match mode {
            RevisionMode::Hlc(slot) => compose(held, slot),
            RevisionMode::Dense => DENSE_START,
        };
        Self { mode, last, held, ceiling: i64::MAX }
    }

    /// The highest revision assigned, promised or raised to.
    #[must_use]
    pub fn last(&self) -> Revision {
        Revision(self.last)
    }

    /// The shard's present as a revision: the wall clock, held when it steps back, without bursts and raises. In dense
    /// mode it is the counter.
    #[must_use]
    pub fn now_revision(&self, now: WallMicros) -> Revision {
        match self.mode {
            RevisionMode::Hlc(slot) => Revision(compose(self.held.max(micros(now)), slot)),
            RevisionMode::Dense => self.last(),
        }
    }

    /// Sets the ceiling, which is on disk: every revision assigned, promised or raised to is below it from now on (R2).
    /// A new clock has none.
    pub fn set_ceiling(&mut self, ceiling: Revision) {
        self.ceiling = ceiling.0;
    }

    /// The ceiling of [`Clock::set_ceiling`].
    #[must_use]
    pub fn ceiling(&self) -> Revision {
        Revision(self.ceiling)
    }

    /// Whether the next revision is below the ceiling. The caller asks before it assigns.
    #[must_use]
    pub fn may_assign(&self, now: WallMicros) -> bool {
        self.next(self.held.max(micros(now))) < self.ceiling
    }

    fn next(&self, held: i64) -> i64 {
        match self.mode {
            RevisionMode::Hlc(slot) => first_above(self.last.max(compose(held, slot) - 1), slot),
            RevisionMode::Dense => self.last + 1,
        }
    }

    /// Assigns the next revision: above all that were assigned, promised or raised to, not below `now`, and no other
    /// shard's.
    pub fn assign(&mut self, now: WallMicros) -> Revision {
        self.hold(now);
        self.last = self.next(self.held);
        debug_assert!(self.last < self.ceiling, "asked before: `may_assign`");
        self.last()
    }

    /// Promises that this shard will have no event at or below the returned revision. It follows the wall clock, so an
    /// idle shard's promises advance. If the clock is ahead of the wall clock, it returns the last revision: promises
    /// never run the clock ahead.
    ///
    /// A promise that moves the clock carries this shard's slot, as if it had been assigned and left unused. So it is
    /// no event's revision on any shard, and a log shows whose promise it was. Dense mode returns the last revision.
    pub fn promise(&mut self, now: WallMicros) -> Revision {
        self.hold(now);
        if let RevisionMode::Hlc(slot) = self.mode {
            let below_ceiling = first_above(self.ceiling - 1 - (1 << SLOT_BITS), slot);
            self.last = self.last.max(compose(self.held, slot).min(below_ceiling));
        }
        self.last()
    }

    /// Moves the clock so that later assignments are above `to`, a revision from another store's clock. Without effect
    /// if they already are. Refused, without effect, if `to` is more than `max_offset_micros` above this shard's
    /// present (R3), or not below the ceiling, which the caller raises first. In dense mode anything above the counter
    /// is refused: a dense shard is alone, so no store can have assigned it.
    pub fn raise(
        &mut self,
        now: WallMicros,
        to: Revision,
        max_offset_micros: u64,
    ) -> Result<(), ClockOffset> {
        self.hold(now);
        if to.0 <= self.last {
            return Ok(());
        }
        if !self.may_follow(now, to, max_offset_micros) || to.0 >= self.ceiling {
            return Err(self.refuse(now, to));
        }
        self.last = to.0;
        Ok(())
    }

    /// Whether a raise to `to` is within the offset (R3), whatever the ceiling.
    #[must_use]
    pub fn may_follow(&self, now: WallMicros, to: Revision, max_offset_micros: u64) -> bool {
        match self.mode {
            _ if to.0 <= self.last => true,
            RevisionMode::Hlc(_) => {
                let offset = i64::try_from(max_offset_micros).unwrap_or(i64::MAX);
                let held = self.held.max(micros(now));
                to.0 >> SLOT_BITS <= held.saturating_add(offset).min(LAST_MICROS)
            }
            RevisionMode::Dense => false,
        }
    }

    /// Moves the clock above a revision that this shard knows durably: from its own log, its ceiling (R2), or an
    /// import's final watermark (R15). It accepts any offset, so being behind never refuses a start. It refuses only
    /// what no clock can assign, so that one damaged number does not use up the clock.
    pub fn recover(&mut self, to: Revision) -> Result<(), ClockOffset> {
        if to.0 >> SLOT_BITS > LAST_MICROS {
            return Err(ClockOffset { asked: to, now: self.last() });
        }
        self.last = self.last.max(to.0);
        Ok(())
    }

    /// Follows the wall clock, but only below the ceiling: nothing can be assigned above before the ceiling is raised,
    /// so a wrong reading that is corrected by then leaves no trace.
    fn hold(&mut self, now: WallMicros) {
        let highest = (self.ceiling >> SLOT_BITS) - 1;
        self.held = self.held.max(micros(now).min(highest));
    }

    fn refuse(&self, now: WallMicros, asked: Revision) -> ClockOffset {
        ClockOffset { asked, now: self.now_revision(now) }
    }
}

/// The wall clock in microseconds, at most [`LAST_MICROS`].
fn micros(wall: WallMicros) -> i64 {
    i64::try_from(wall.0).map_or(LAST_MICROS, |micros| micros.min(LAST_MICROS))
}

fn compose(micros: i64, slot: Slot) -> i64 {
    micros << SLOT_BITS | i64::from(slot.get())
}

/// The first revision with this slot above `floor`.
fn first_above(floor: i64, slot: Slot) -> i64 {
    let same = compose(floor >> SLOT_BITS, slot);
    if same > floor { same } else { same + (1 << SLOT_BITS) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const OFFSET: u64 = 10_000_000;
    const T0: u64 = 1_767_225_600_000_000;

    fn slot(n: u16) -> Slot {
        Slot::new(n).unwrap()
    }

    fn hlc(n: u16, start: u64) -> Clock {
        Clock::new(RevisionMode::Hlc(slot(n)), WallMicros(start))
    }

    #[test]
    fn a_revision_is_the_wall_clock_and_the_slot() {
        let mut clock = hlc(5, T0);
        assert_eq!(clock.last().0, (T0 as i64) << 10 | 5);
        assert_eq!(clock.assign(WallMicros(T0 + 7)).0, (T0 as i64 + 7) << 10 | 5);
        // Standing still, and stepping back: one microsecond per assignment.
        assert_eq!(clock.assign(WallMicros(T0 + 7)).0, (T0 as i64 + 8) << 10 | 5);
        assert_eq!(clock.assign(WallMicros(0)).0, (T0 as i64 + 9) << 10 | 5);
        assert_eq!(clock.now_revision(WallMicros(0)).0, (T0 as i64 + 7) << 10 | 5);
        assert_eq!(clock.assign(WallMicros(T0 + 20)).0, (T0 as i64 + 20) << 10 | 5);
    }

    #[test]
    fn the_first_value_above_a_foreign_slot() {
        for (raised, expected) in [(4, 5), (5, 1029), (6, 1029), (1023, 1029), (1024, 1029)] {
            let mut clock = hlc(5, 0);
            clock.last = 0;
            clock.raise(WallMicros(0), Revision(raised), OFFSET).unwrap();
            assert_eq!(clock.assign(WallMicros(0)).0, expected, "above {raised}");
        }
    }

    #[test]
    fn r2_nothing_reaches_the_ceiling() {
        let mut clock = hlc(5, T0);
        let ceiling = Revision((T0 as i64 + 3) << 10);
        clock.set_ceiling(ceiling);
        assert!(clock.may_assign(WallMicros(T0 + 2)) && !clock.may_assign(WallMicros(T0 + 3)));
        // Promises continue up to the ceiling.
        let promised = clock.promise(WallMicros(T0 + 50));
        assert_eq!(promised.0, (T0 as i64 + 2) << 10 | 5);
        assert!(!clock.may_assign(WallMicros(T0)), "that was the last one");
        clock.raise(WallMicros(T0 + 50), ceiling, OFFSET).unwrap_err();
        clock.raise(WallMicros(T0 + 50), Revision(ceiling.0 - 1), OFFSET).unwrap();
        assert_eq!(clock.last(), Revision(ceiling.0 - 1));
        assert_eq!(clock.promise(WallMicros(T0 + 60)), Revision(ceiling.0 - 1));
        clock.set_ceiling(Revision((T0 as i64 + 100) << 10));
        assert!(clock.may_assign(WallMicros(T0 + 60)));
        assert_eq!(clock.assign(WallMicros(T0 + 60)).0, (T0 as i64 + 60) << 10 | 5);
    }

    #[test]
    fn f45_a_reading_that_never_came_below_the_ceiling_leaves_no_trace() {
        let mut clock = hlc(5, T0);
        let seconds = |seconds: u64| WallMicros(T0 + seconds * 1_000_000);
        clock.set_ceiling(Revision((seconds(3).0 as i64) << 10));
        // The wall clock is two minutes ahead, and corrected before that became a ceiling.
        assert!(!clock.may_assign(seconds(120)));
        assert!(clock.promise(seconds(120)).0 >> 10 < seconds(3).0 as i64);
        clock.raise(seconds(120), Revision((seconds(100).0 as i64) << 10), OFFSET).unwrap_err();
        clock.set_ceiling(Revision((seconds(5).0 as i64) << 10));
        assert!(clock.may_assign(seconds(2)), "refused for as long as it was ahead");
        let assigned = clock.assign(seconds(2)).0 >> 10;
        assert!(assigned <= seconds(4).0 as i64, "{assigned}");
        // The bound of raises follows the corrected time, too.
        assert!(!clock.may_follow(seconds(2), Revision((seconds(60).0 as i64) << 10), OFFSET));
        assert!(clock.may_follow(seconds(2), Revision((seconds(11).0 as i64) << 10), OFFSET));
    }

    #[test]
    fn dense_counts_as_etcd() {
        let mut clock = Clock::new(RevisionMode::Dense, WallMicros(T0));
        assert_eq!(clock.last(), Revision(1));
        assert_eq!(clock.promise(WallMicros(T0)), Revision(1));
        assert_eq!(clock.assign(WallMicros(T0 + 5)), Revision(2));
        assert_eq!(clock.assign(WallMicros(0)), Revision(3));
        assert_eq!(clock.promise(WallMicros(T0 + 9)), Revision(3));
        assert_eq!(clock.raise(WallMicros(T0), Revision(3), OFFSET), Ok(()));
        let refused = ClockOffset { asked: Revision(4), now: Revision(3) };
        assert_eq!(clock.raise(WallMicros(T0), Revision(4), OFFSET), Err(refused));
        clock.recover(Revision(40)).unwrap();
        assert_eq!(clock.assign(WallMicros(T0)), Revision(41));
    }

    #[test]
    fn r3_a_raise_is_bounded_by_the_wall_and_a_chain_of_raises_is_too() {
        let mut clock = hlc(1, T0);
        let at = |micros: u64| Revision((micros as i64) << 10 | 1023);
        clock.raise(WallMicros(T0), at(T0 + OFFSET), OFFSET).unwrap();
        let before = clock.last();
        let refused = clock.raise(WallMicros(T0), at(T0 + OFFSET + 1), OFFSET).unwrap_err();
        assert_eq!(refused.now, Revision((T0 as i64) << 10 | 1));
        assert_eq!(clock.last(), before, "refused without effect");
        assert!(clock.assign(WallMicros(T0)) > before);
        // The assignment above does not widen the bound; a raise to a past revision is accepted.
        clock.raise(WallMicros(T0), at(T0 + OFFSET + 2), OFFSET).unwrap_err();
        clock.raise(WallMicros(0), before, OFFSET).unwrap();
        // Stepping back does not narrow the bound: peers that followed the same wall clock are still there.
        clock.raise(WallMicros(T0 + 100), at(T0 + OFFSET + 50), OFFSET).unwrap();
        clock.raise(WallMicros(0), at(T0 + OFFSET + 100), OFFSET).unwrap();
    }

    #[test]
    fn the_end_of_the_clock_is_far_and_safe() {
        let mut clock = hlc(1023, u64::MAX);
        let first = clock.assign(WallMicros(u64::MAX));
        assert!(clock.promise(WallMicros(u64::MAX)) >= first && clock.assign(WallMicros(u64::MAX)) > first);
        clock.raise(WallMicros(u64::MAX), Revision(i64::MAX), u64::MAX).unwrap_err();
        clock.recover(Revision(i64::MAX)).unwrap_err();
        hlc(0, T0).raise(WallMicros(T0), Revision(i64::MAX), u64::MAX).unwrap_err();
        assert!(clock.assign(WallMicros(0)) > first);
        let mut fresh = hlc(0, 0);
        fresh.raise(WallMicros(0), Revision(i64::MIN), 0).unwrap();
        assert_eq!(fresh.assign(WallMicros(0)), Revision(1024));
    }

    #[derive(Debug, Clone)]
    enum Step {
        Wall(i64),
        Assign(usize),
        Promise(usize),
        /// Raises the first clock to the last revision of the second, plus this.
        Raise(usize, usize, i64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let wall =
            prop_oneof![Just(0), -3i64..4, -2_000_000i64..2_000_000, Just(i64::MIN / 2), Just(60_000_000)];
        prop_oneof![
            2 => wall.prop_map(Step::Wall),
            6 => (0usize..3).prop_map(Step::Assign),
            3 => (0usize..3).prop_map(Step::Promise),
            3 => (0usize..3, 0usize..3, prop_oneof![Just(0), -5000i64..5000, Just(11_000_000i64 << 10)])
                .prop_map(|(a, b, plus)| Step::Raise(a, b, plus)),
        ]
    }

    proptest! {
        #[test]
        fn r1_r2_revisions_are_monotonic_unique_never_below_a_promise_and_near_the_wall(
            steps in prop::collection::vec(step(), 1..300),
        ) {
            let mut wall = T0;
            let mut highest_wall = T0;
            let mut clocks = [hlc(0, T0), hlc(7, T0), hlc(1023, T0)];
            let mut seen = HashSet::new();
            let mut assigned = 0;
            for step in steps {
                highest_wall = highest_wall.max(wall);
                let now = WallMicros(wall);
                match step {
                    Step::Wall(by) => wall = wall.saturating_add_signed(by).min(T0 * 2),
                    Step::Assign(i) => {
                        let before = clocks[i].last();
                        let revision = clocks[i].assign(now);
                        assigned += 1;
                        prop_assert!(revision > before && clocks[i].last() == revision);
                        prop_assert!(revision.0 >> 10 >= wall as i64, "behind the wall");
                        prop_assert_eq!(revision.0 & 1023, [0, 7, 1023][i]);
                        prop_assert!(seen.insert(revision), "assigned twice");
                    }
                    Step::Promise(i) => {
                        let before = clocks[i].last();
                        let promise = clocks[i].promise(now);
                        // `last` follows, and the assignments above are checked against it.
                        prop_assert!(promise >= before && clocks[i].last() == promise);
                        prop_assert!(promise.0 >> 10 >= wall as i64);
                        prop_assert_eq!(clocks[i].promise(now), promise, "a promise alone moves nothing");
                    }
                    Step::Raise(i, j, plus) => {
                        let (before, to) = (clocks[i].last(), Revision(clocks[j].last().0 + plus));
                        match clocks[i].raise(now, to, OFFSET) {
                            Ok(()) => prop_assert_eq!(clocks[i].last(), before.max(to)),
                            Err(refused) => {
                                prop_assert!((to.0 >> 10) - (refused.now.0 >> 10) > OFFSET as i64);
                                prop_assert_eq!(clocks[i].last(), before);
                            }
                        }
                    }
                }
                for clock in &clocks {
                    let ahead = (clock.last().0 >> 10) - highest_wall.max(wall) as i64;
                    prop_assert!(ahead <= OFFSET as i64 + assigned, "ahead by {ahead} us");
                }
            }
        }
    }
}
