//! From applied to visible (R9).
//!
//! Kinds of mode `none` and `buffered` become visible at every publish. Those of mode `fsync` wait: what one batch of
//! records for the fsync log holds is sealed together with how far each Kind was then, and becomes visible when that batch
//! is on disk. So within either group the order of visibility is the order of revisions, and neither waits for the other.

use std::collections::VecDeque;

use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
};

use super::{Kind, KindId, OTHERS, Space};
use crate::{
    durability::{Applied, Durability, FsyncMark, KindModes, Logged, ModesError, ModesTaken},
    error::{EngineError, MixedModes},
    version::Version,
};

/// Kinds that wait for the fsync log.
#[derive(Default)]
pub(super) struct Waiting {
    /// Events that no mark covers yet.
    open: Vec<(KindId, Version)>,
    /// Kinds that were raised, or written, since the last mark.
    pub(super) dirty: Vec<KindId>,
    sealed: VecDeque<Sealed>,
}

/// What one mark covers.
struct Sealed {
    mark: FsyncMark,
    events: Vec<(KindId, Version)>,
    kinds: Vec<Reached>,
}

/// How far a Kind was at a mark.
struct Reached {
    kind: KindId,
    applied: Revision,
    /// Its first event under the mark.
    first: Option<Revision>,
}

impl Space {
    /// Whether a Kind waits for the fsync log.
    pub(super) fn waits(&self, id: KindId) -> bool {
        match id {
            // With revisions of its own for every Kind, nothing is ever written of the others.
            OTHERS => self.dense && self.modes.default == Durability::Fsync,
            id => self.kind(id).mode == Durability::Fsync,
        }
    }

    /// Notes an event that was written.
    pub(super) fn wrote(&mut self, home: KindId, version: Version) {
        let kind = self.kind_mut(home);
        kind.written += version.encoded_len() as u64;
        let mode = kind.mode;
        self.outbox.version(mode, &version);
        let revision = version.mod_revision();
        if mode == Durability::Fsync {
            self.waiting.open.push((home, version));
        } else {
            self.unpublished.push((home, version));
        }
        self.frontier_mut(home).unpublished.get_or_insert(revision);
    }

    /// Makes everything applied visible that does not wait for the fsync log; answers the events that became so, in their
    /// order.
    pub(crate) fn publish(&mut self) -> Vec<(KindId, Version)> {
        for id in std::mem::take(&mut self.dirty) {
            self.frontier_mut(id).publish();
        }
        std::mem::take(&mut self.unpublished)
    }

    /// What is to be written to the logs since the last call.
    pub(crate) fn take_applied(&mut self) -> Applied {
        let applied = self.outbox.take(!self.waiting.open.is_empty());
        self.seal(applied.mark);
        applied
    }

    /// What became applied since the last mark becomes visible with this one.
    fn seal(&mut self, mark: FsyncMark) {
        if self.waiting.dirty.is_empty() {
            return;
        }
        let events = std::mem::take(&mut self.waiting.open);
        if events.is_empty() && self.waiting.sealed.is_empty() {
            return self.settle_raised();
        }
        let dirty = std::mem::take(&mut self.waiting.dirty);
        let reached = |space: &mut Self, kind: KindId| {
            let dense = space.dense;
            let frontier = space.frontier_mut(kind);
            frontier.dirty = false;
            let first = events.iter().find(|(home, _)| dense || *home == kind);
            Reached {
                kind,
                applied: frontier.applied,
                first: first.map(|(_, version)| version.mod_revision()),
            }
        };
        let kinds: Vec<Reached> = dirty.into_iter().map(|kind| reached(self, kind)).collect();
        match self.waiting.sealed.back_mut() {
            // Raises need what is before them only.
            Some(last) if events.is_empty() => last.kinds.extend(kinds),
            _ => self.waiting.sealed.push_back(Sealed { mark, events, kinds }),
        }
    }

    /// Makes visible what the fsync log has on disk; answers the events that became so, in their order.
    pub(crate) fn publish_fsync(&mut self, upto: FsyncMark) -> Vec<(KindId, Version)> {
        let (mut published, mut touched) = (Vec::new(), Vec::new());
        while let Some(sealed) = self.waiting.sealed.pop_front_if(|sealed| sealed.mark <= upto) {
            for Reached { kind, applied, .. } in sealed.kinds {
                let frontier = self.frontier_mut(kind);
                frontier.visible = frontier.visible.max(applied);
                touched.push(kind);
            }
            published.extend(sealed.events);
        }
        touched.sort_unstable();
        touched.dedup();
        for kind in touched {
            let next = self.next_unpublished(kind);
            self.frontier_mut(kind).unpublished = next;
        }
        if self.waiting.sealed.is_empty() && self.waiting.open.is_empty() {
            self.settle_raised();
        }
        published
    }

    fn next_unpublished(&self, kind: KindId) -> Option<Revision> {
        let sealed = self.waiting.sealed.iter().flat_map(|sealed| &sealed.kinds);
        let sealed = sealed.filter(|reached| reached.kind == kind).find_map(|reached| reached.first);
        let open = || self.waiting.open.iter().find(|(home, _)| kind == OTHERS || *home == kind);
        sealed.or_else(|| open().map(|(_, version)| version.mod_revision()))
    }

    /// With nothing before them unpublished, raises are visible.
    fn settle_raised(&mut self) {
        for kind in std::mem::take(&mut self.waiting.dirty) {
            self.frontier_mut(kind).publish();
        }
    }

    /// Whether some event is applied and becomes visible at the next publish.
    pub(crate) fn has_unpublished(&self) -> bool {
        !self.unpublished.is_empty()
    }

    /// The revision of the first event that is applied and not visible.
    pub(crate) fn first_unpublished(&self) -> Option<Revision> {
        let sealed = self.waiting.sealed.front().and_then(|sealed| sealed.events.first());
        let waiting = sealed.or(self.waiting.open.first());
        let first = [self.unpublished.first(), waiting].into_iter().flatten();
        first.map(|(_, version)| version.mod_revision()).min()
    }

    /// The same of what the ranges read: their keys' Kinds, and those that their pseudo-keys stand for.
    pub(crate) fn first_unpublished_in(&self, ranges: &[KeyRange]) -> Option<Revision> {
        self.first_unpublished()?;
        let of = |range: &KeyRange| {
            let scope = self.scope(range);
            let kinds = self.frontiers(&scope).filter_map(|frontier| frontier.unpublished).min();
            [kinds, self.first_unpublished_of(&self.homes(range))].into_iter().flatten().min()
        };
        ranges.iter().filter_map(of).min()
    }

    /// The same of these keyspaces.
    pub(crate) fn first_unpublished_of(&self, homes: &[KindId]) -> Option<Revision> {
        homes.iter().filter_map(|home| self.frontier(*home).unpublished).min()
    }

    // ---- modes

    /// Whether some Kind waits for the fsync log.
    pub(crate) fn some_wait(&self) -> bool {
        self.some_wait
    }

    /// Whether a transaction may be over these ranges: what they hold is kept or lost together.
    pub(crate) fn check_modes(&self, ranges: &[KeyRange]) -> Result<(), EngineError> {
        if !self.mixed {
            return Ok(());
        }
        let mut first: Option<(&Key, Durability)> = None;
        for range in ranges {
            for mode in self.modes_of(range) {
                match first {
                    None => first = Some((range.start(), mode)),
                    Some((one, one_mode)) if one_mode != mode => {
                        return Err(EngineError::MixedModes(Box::new(MixedModes {
                            one: one.clone(),
                            one_mode,
                            other: range.start().clone(),
                            other_mode: mode,
                        })));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// The modes of the Kinds of which a range may have keys.
    fn modes_of(&self, range: &KeyRange) -> Vec<Durability> {
        if let Some(prefix) = self.only_kind(range) {
            return vec![self.modes.of(prefix)];
        }
        if matches!(range, KeyRange::Single(_)) {
            return vec![self.modes.default];
        }
        let named = self.modes.kinds.iter().filter(|(prefix, _)| {
            let kind = KeyRange::prefix((*prefix).clone());
            range.overlaps(&kind)
        });
        named.map(|(_, mode)| *mode).chain([self.modes.default]).collect()
    }

    /// See [`crate::engine::Engine::set_modes`].
    pub(crate) fn set_modes(&mut self, modes: KindModes) -> Result<ModesTaken, ModesError> {
        if modes.generation < self.modes.generation {
            return Err(ModesError::Stale { asked: modes.generation, known: self.modes.generation });
        }
        if self.dense {
            let all = modes.kinds.iter().map(|(prefix, mode)| (prefix.clone(), *mode));
            let mut all = all.chain([(Key::copy_from(b""), modes.default)]);
            let odd = all.find(|(_, mode)| *mode != modes.default || *mode == Durability::Buffered);
            if let Some((prefix, mode)) = odd {
                return Err(ModesError::Dense { prefix, mode });
            }
        }
        let changed = |kind: &&Kind| kind.mode != modes.of(&kind.prefix);
        for (i, kind) in self.kinds.iter().enumerate().filter(|(_, kind)| changed(kind)) {
            if self.frontier(KindId(i)).unpublished.is_some() {
                return Err(ModesError::Unpublished { prefix: kind.prefix.clone() });
            }
        }
        // What is logged is never stronger than what is in force: a crash in between would not tell what it took.
        let logged = self.modes_logged.clone().unwrap_or_else(|| KindModes::all(Durability::None));
        if let Some(weaker) = logged.weakened(&modes) {
            self.log_modes(weaker);
            self.modes_before = Some(logged);
            return Ok(ModesTaken::AfterLog);
        }
        self.modes_before = None;
        // Raises that wait are of Kinds that may change their group.
        self.publish_raised();
        for kind in &mut self.kinds {
            let mode = modes.of(&kind.prefix);
            let (was_kept, is_kept) = (kind.mode != Durability::None, mode != Durability::None);
            kind.leftovers |= was_kept && !is_kept;
            kind.unsettled |= !was_kept && is_kept && (kind.leftovers || kind.holds_keys());
            kind.unsettled &= is_kept;
            kind.mode = mode;
        }
        self.mixed = modes.differ();
        self.some_wait = modes.some_wait();
        self.modes = modes;
        if self.kinds.iter().any(|kind| kind.unsettled) {
            return Ok(ModesTaken::AfterCheckpoint);
        }
        self.log_modes(self.modes.clone());
        Ok(ModesTaken::InForce)
    }

    /// See [`crate::engine::Engine::keep_modes`].
    pub(crate) fn keep_modes(&mut self) {
        if let Some(before) = self.modes_before.take() {
            self.log_modes(before);
        }
    }

    /// See [`Engine::renumber_modes`](crate::engine::Engine::renumber_modes).
    pub(crate) fn renumber_modes(&mut self, modes: &KindModes) -> bool {
        let same = self.modes.default == modes.default && self.modes.kinds == modes.kinds;
        // What waits for a log or a checkpoint waits by the number that it has.
        let settled = self.modes_before.is_none() && self.kinds.iter().all(|kind| !kind.unsettled);
        if !same || !settled || modes.generation < self.modes.generation {
            return false;
        }
        self.modes.generation = modes.generation;
        self.log_modes(self.modes.clone());
        true
    }

    /// A checkpoint that was begun with these modes is on disk.
    pub(crate) fn modes_settled(&mut self, generation: u64) {
        if generation == self.modes.generation && self.kinds.iter().any(|kind| kind.unsettled) {
            for kind in self.kinds.iter_mut().filter(|kind| kind.mode != Durability::None) {
                (kind.unsettled, kind.leftovers) = (false, false);
            }
            self.log_modes(self.modes.clone());
        }
    }

    /// The mode that a start now would find: not the one in force while that is still to be logged, or waits for a checkpoint.
    pub(super) fn mode_at_start(&self, prefix: &[u8]) -> Durability {
        self.modes_logged.as_ref().map_or(Durability::None, |modes| modes.of(prefix))
    }

    fn log_modes(&mut self, modes: KindModes) {
        if self.modes_logged.as_ref() != Some(&modes) {
            self.outbox.push(|| Logged::Modes(Box::new(modes.clone())));
            self.modes_logged = Some(modes);
        }
    }

    /// Makes raises visible of Kinds of which no event waits.
    fn publish_raised(&mut self) {
        for list in [std::mem::take(&mut self.dirty), std::mem::take(&mut self.waiting.dirty)] {
            for id in list {
                let frontier = self.frontier_mut(id);
                frontier.dirty = false;
                frontier.raise_visible(frontier.applied);
                if frontier.applied > frontier.visible {
                    self.mark_dirty(id);
                }
            }
        }
    }

    /// Panics when a keyspace shows what it must not. For tests.
    pub(super) fn validate_frontier(&self, id: KindId, last_assigned: Revision) {
        if self.dense && id != OTHERS {
            return;
        }
        let frontier = self.frontier(id);
        let sealed = self.waiting.sealed.iter().flat_map(|sealed| &sealed.events);
        let events = self.unpublished.iter().chain(sealed).chain(&self.waiting.open);
        let events = events.filter(|(home, _)| self.dense || *home == id);
        let first = events.map(|(_, version)| version.mod_revision()).min();
        assert_eq!(frontier.unpublished, first, "{id:?}");
        assert!(frontier.visible <= frontier.applied && frontier.applied <= last_assigned, "{frontier:?}");
        assert!(first.is_none_or(|first| frontier.visible < first), "{frontier:?}");
        let listed = if self.waits(id) { &self.waiting.dirty } else { &self.dirty };
        assert_eq!(frontier.dirty, listed.contains(&id), "{id:?}");
        let sealed = self.waiting.sealed.iter().flat_map(|sealed| &sealed.kinds);
        let sealed = sealed.filter(|reached| reached.kind == id).map(|reached| reached.applied).max();
        let waits = frontier.dirty || sealed == Some(frontier.applied);
        assert!(waits || frontier.applied == frontier.visible, "{id:?} {frontier:?}");
    }
}
