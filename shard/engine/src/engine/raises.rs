//! Current revisions (R4), raising them (R3, R5, R8), and whether something changed since one.

use kindred_partition_config::{ids::Revision, key::KeyRange};

use super::{Engine, MonoMillis, PinId, WallMicros};
use crate::{
    error::EngineError,
    ops::{Op, OpAnswer},
    space::{KindId, Scope},
    units::table::View,
};

/// The events that [`Engine::changed`] looks at, at most.
const LOOK_BACK_MAX: usize = 4096;

impl Engine {
    /// The current revision of the ranges (R4): the highest of their Kinds', or the shard's one counter in dense mode.
    /// All of the ranges become readable at it.
    pub fn current(&mut self, ranges: &[KeyRange]) -> Revision {
        let scopes: Vec<Scope> = ranges.iter().map(|range| self.space.scope(range)).collect();
        self.space.show_all(&scopes)
    }

    /// The current revision of the whole shard. Unlike [`Engine::current`] it raises no Kind, since it serves the
    /// headers of answers about no key (leases, status), which must not make an idle Kind's caches stale.
    pub fn current_all(&mut self) -> Revision {
        self.current_highest()
    }

    pub(super) fn current_highest(&self) -> Revision {
        self.space.visible_somewhere(&self.space.everything())
    }

    /// Raises the ranges' current revision to at least `to`, a revision from another store's clock (R3, R5). While
    /// applied writes wait to be published the returned revision may be lower; the raise becomes visible with them.
    pub fn raise(
        &mut self,
        now: WallMicros,
        ranges: &[KeyRange],
        to: Revision,
    ) -> Result<Revision, EngineError> {
        self.owns(ranges, None)?;
        self.raise_whole(now, ranges, to)
    }

    /// As [`Engine::raise`], for requests about the shard as a whole (a compaction): units that are frozen or not owned
    /// do not refuse it. A frozen unit still shows nothing above its final revision.
    pub fn raise_whole(
        &mut self,
        now: WallMicros,
        ranges: &[KeyRange],
        to: Revision,
    ) -> Result<Revision, EngineError> {
        self.clock.raise(now, to, self.config.max_clock_offset_micros)?;
        let scopes: Vec<Scope> = ranges.iter().map(|range| self.space.scope_to_raise(range)).collect();
        self.space.raise_all(&scopes, to);
        Ok(self.space.show_all(&scopes))
    }

    /// As [`Engine::raise`], but ignores a `to` that the clock may not follow (R8), and any other refusal.
    pub fn raise_if_allowed(&mut self, now: WallMicros, ranges: &[KeyRange], to: Revision) -> Revision {
        match self.raise(now, ranges, to) {
            Ok(current) => current,
            Err(_) => self.current(ranges),
        }
    }

    /// As [`Engine::apply`], with the answer's revision at or above `min_revision`, a write's strictly above it, unless the
    /// clock may not follow to it (R8).
    pub fn apply_above(
        &mut self,
        now: WallMicros,
        op: Op,
        min_revision: Revision,
    ) -> Result<OpAnswer, EngineError> {
        let followed = self.clock.raise(now, min_revision, self.config.max_clock_offset_micros).is_ok();
        let above = if followed { min_revision } else { Revision::ZERO };
        self.applier(now, above).apply(op)
    }

    /// Whether an event of the ranges above `since` is published. `false` is certain. `true` may also mean that the
    /// history does not reach back to `since` or is too long to search.
    #[must_use]
    pub fn changed(&self, ranges: &[KeyRange], since: Revision) -> bool {
        let mut look = LOOK_BACK_MAX;
        let mut changed = |range: &KeyRange| {
            let homes = self.space.homes(range);
            let published = |revision, home: &KindId| {
                let unpublished = self.space.first_unpublished_of(std::slice::from_ref(home));
                unpublished.is_none_or(|first| revision < first)
            };
            if let KeyRange::Single(key) = range {
                let object = self.space.object(key, &View::Now);
                let newest = object.and_then(|object| {
                    let mut versions = object.versions().rev();
                    versions.find(|version| homes.iter().all(|home| published(version.mod_revision(), home)))
                });
                return newest.is_some_and(|version| version.mod_revision() > since);
            }
            homes.iter().any(|home| {
                let spaces = self.space.spaces(*home, &View::Now);
                let mut events = spaces.flat_map(|keys| keys.events_above(since));
                events.any(|event| {
                    let seen = published(event.kv.mod_revision(), home) && range.contains(event.kv.key());
                    let over = look == 0;
                    look = look.saturating_sub(1);
                    seen || over
                })
            })
        };
        let lost = |range: &KeyRange| self.space.check_gaps(range, Some(since), &View::Now).is_err();
        ranges.iter().any(|range| since < self.space.floor_of(range) || lost(range) || changed(range))
    }

    /// Pins `at`, which some Kind shows, until [`Engine::release`] or for about five seconds (R5): [`Engine::compact`]
    /// does not pass it meanwhile.
    pub fn hold(&mut self, now: MonoMillis, at: Revision, pin: PinId) {
        self.holds.hold(now, at, pin);
    }

    /// Releases these pins. Returns whether any was held: then a waiting compaction should be tried again.
    pub fn release(&mut self, pins: &[PinId]) -> bool {
        self.holds.release(pins)
    }
}
