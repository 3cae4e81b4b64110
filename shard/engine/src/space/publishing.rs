//! Makes applied writes visible (R9).
//!
//! Kinds of mode `none` and `buffered` become visible at every publish. Kinds of mode `fsync` wait: the events of one
//! batch of records for the fsync log are sealed under a mark, with the applied revision of each Kind at that time, and
//! become visible when the batch is on disk. While the engine ships, the other Kinds wait in the same way for the
//! standbys. Within either group the order of visibility is the order of revisions, and neither group waits for the
//! other.

use std::collections::VecDeque;

use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
};

use super::{Kind, KindId, OTHERS, Space};
use crate::{
    durability::{AnswerWaits, Applied, Logged, Mark},
    error::{EngineError, MixedModes},
    types::{Durability, KindModes, ModesError, ModesTaken},
    version::Version,
};

/// Kinds that become visible together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// Kinds of mode `fsync`, which wait for their log.
    Fsync,
    /// The other Kinds of an engine that ships: they wait for the standbys.
    Received,
}

/// What waits, by group.
#[derive(Default)]
pub(super) struct Waiting {
    fsync: Queue,
    received: Queue,
}

impl Waiting {
    pub(super) fn of(&self, group: Group) -> &Queue {
        match group {
            Group::Fsync => &self.fsync,
            Group::Received => &self.received,
        }
    }

    pub(super) fn of_mut(&mut self, group: Group) -> &mut Queue {
        match group {
            Group::Fsync => &mut self.fsync,
            Group::Received => &mut self.received,
        }
    }

    fn all(&self) -> [&Queue; 2] {
        [&self.fsync, &self.received]
    }
}

/// The Kinds of a group.
#[derive(Default)]
pub(super) struct Queue {
    /// Events that no mark covers yet.
    open: Vec<(KindId, Version)>,
    /// Kinds that were raised or written since the last mark.
    pub(super) dirty: Vec<KindId>,
    sealed: VecDeque<Sealed>,
}

/// Events and raises that become visible when the mark is on disk.
struct Sealed {
    mark: Mark,
    events: Vec<(KindId, Version)>,
    kinds: Vec<Reached>,
}

/// The progress of a Kind at a mark.
struct Reached {
    kind: KindId,
    applied: Revision,
    /// The Kind's first event under the mark.
    first: Option<Revision>,
}

impl Space {
    /// The group of a Kind whose writes wait.
    pub(super) fn group(&self, id: KindId) -> Option<Group> {
        let mode = match id {
            // Unless revisions are dense, nothing is ever written to `OTHERS`.
            OTHERS if self.dense => self.modes.default,
            OTHERS => return None,
            id => self.kind(id).mode,
        };
        self.group_of(mode)
    }

    fn group_of(&self, mode: Durability) -> Option<Group> {
        match mode {
            Durability::Fsync => Some(Group::Fsync),
            _ => self.ships().then_some(Group::Received),
        }
    }

    /// Notes a written version as an unpublished event, and for the logs.
    pub(super) fn wrote(&mut self, home: KindId, version: Version) {
        let kind = self.kind_mut(home);
        kind.written += version.encoded_len() as u64;
        let mode = kind.mode;
        self.outbox.version(mode, &version);
        let revision = version.mod_revision();
        match self.group_of(mode) {
            Some(group) => self.waiting.of_mut(group).open.push((home, version)),
            None => self.unpublished.push((home, version)),
        }
        self.frontier_mut(home).unpublished.get_or_insert(revision);
    }

    /// Makes visible all that waits for nothing. Returns the events that became visible, in order.
    pub(crate) fn publish(&mut self) -> Vec<(KindId, Version)> {
        for id in std::mem::take(&mut self.dirty) {
            self.frontier_mut(id).publish();
        }
        std::mem::take(&mut self.unpublished)
    }

    /// Takes the records for the logs and seals the events that wait for them.
    pub(crate) fn take_applied(&mut self) -> Applied {
        let applied = self.outbox.take(self.waiting.all().iter().any(|queue| !queue.open.is_empty()));
        self.seal(Group::Fsync, applied.mark);
        self.seal(Group::Received, applied.mark);
        applied
    }

    /// Puts the events and raises of a group since the last mark under this one.
    fn seal(&mut self, group: Group, mark: Mark) {
        let queue = self.waiting.of_mut(group);
        if queue.dirty.is_empty() {
            return;
        }
        let events = std::mem::take(&mut queue.open);
        if events.is_empty() && queue.sealed.is_empty() {
            return self.settle_raised(group);
        }
        let dirty = std::mem::take(&mut queue.dirty);
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
        let sealed = &mut self.waiting.of_mut(group).sealed;
        match sealed.back_mut() {
            // Raises without events become visible with the last mark before them.
            Some(last) if events.is_empty() => last.kinds.extend(kinds),
            _ => sealed.push_back(Sealed { mark, events, kinds }),
        }
    }

    /// Makes visible what the fsync log has on disk. Returns the events that became visible, in order.
    pub(crate) fn publish_fsync(&mut self, upto: Mark) -> Vec<(KindId, Version)> {
        self.publish_upto(Group::Fsync, upto)
    }

    /// Makes visible what the standbys have and no log keeps back. Returns the events that became visible, in order.
    pub(crate) fn publish_received(&mut self, upto: Mark) -> Vec<(KindId, Version)> {
        self.publish_upto(Group::Received, upto)
    }

    fn publish_upto(&mut self, group: Group, upto: Mark) -> Vec<(KindId, Version)> {
        let (mut published, mut touched) = (Vec::new(), Vec::new());
        while let Some(sealed) = self.waiting.of_mut(group).sealed.pop_front_if(|sealed| sealed.mark <= upto)
        {
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
            let next = self.next_unpublished(group, kind);
            self.frontier_mut(kind).unpublished = next;
        }
        let queue = self.waiting.of(group);
        if queue.sealed.is_empty() && queue.open.is_empty() {
            self.settle_raised(group);
        }
        published
    }

    fn next_unpublished(&self, group: Group, kind: KindId) -> Option<Revision> {
        let queue = self.waiting.of(group);
        let sealed = queue.sealed.iter().flat_map(|sealed| &sealed.kinds);
        let sealed = sealed.filter(|reached| reached.kind == kind).find_map(|reached| reached.first);
        let open = || queue.open.iter().find(|(home, _)| kind == OTHERS || *home == kind);
        sealed.or_else(|| open().map(|(_, version)| version.mod_revision()))
    }

    /// Makes raises of a group visible when no event before them is unpublished.
    fn settle_raised(&mut self, group: Group) {
        for kind in std::mem::take(&mut self.waiting.of_mut(group).dirty) {
            self.frontier_mut(kind).publish();
        }
    }

    /// Whether an event waits for the next publish.
    pub(crate) fn has_unpublished(&self) -> bool {
        !self.unpublished.is_empty()
    }

    /// The first revision that is applied and not visible.
    pub(crate) fn first_unpublished(&self) -> Option<Revision> {
        let waiting = self.waiting.all().map(|queue| {
            let sealed = queue.sealed.front().and_then(|sealed| sealed.events.first());
            sealed.or(queue.open.first())
        });
        let first = waiting.into_iter().chain([self.unpublished.first()]).flatten();
        first.map(|(_, version)| version.mod_revision()).min()
    }

    /// The same within the ranges: of the Kinds of their keys, and of those whose pseudo-keys they contain.
    pub(crate) fn first_unpublished_in(&self, ranges: &[KeyRange]) -> Option<Revision> {
        self.first_unpublished()?;
        let of = |range: &KeyRange| {
            let scope = self.scope(range);
            let kinds = self.frontiers(&scope).filter_map(|frontier| frontier.unpublished).min();
            [kinds, self.first_unpublished_of(&self.homes(range))].into_iter().flatten().min()
        };
        ranges.iter().filter_map(of).min()
    }

    /// The same within these keyspaces.
    pub(crate) fn first_unpublished_of(&self, homes: &[KindId]) -> Option<Revision> {
        homes.iter().filter_map(|home| self.frontier(*home).unpublished).min()
    }

    // ---- modes

    /// Whether writes of some Kind wait.
    pub(crate) fn some_wait(&self) -> bool {
        self.some_wait || self.ships()
    }

    /// What an answer waits for that depends on these ranges.
    pub(crate) fn waits_of(&self, ranges: impl IntoIterator<Item = KeyRange>) -> AnswerWaits {
        let mut waits = AnswerWaits::default();
        for range in ranges {
            self.waits_in(&range, &mut waits);
        }
        waits
    }

    // ---- standbys

    pub(crate) fn ships(&self) -> bool {
        self.outbox.shipped.is_some()
    }

    /// Turns shipping on or off. Nothing may be unpublished.
    pub(crate) fn ship(&mut self, on: bool) {
        if on == self.ships() {
            return;
        }
        debug_assert!(self.first_unpublished().is_none(), "all that is applied is published");
        self.publish_raised();
        self.outbox.shipped = on.then(Vec::new);
    }

    /// Refuses a transaction over ranges of different modes: what it writes must be kept or lost together.
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
        // The logged modes are never stronger than those in force: otherwise a crash could lose writes without a gap.
        let logged = self.modes_logged.clone().unwrap_or_else(|| KindModes::all(Durability::None));
        if let Some(weaker) = logged.weakened(&modes) {
            self.log_modes(weaker);
            self.modes_before = Some(logged);
            return Ok(ModesTaken::AfterLog);
        }
        self.modes_before = None;
        // The raised Kinds may move to the other group.
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

    pub(crate) fn keep_modes(&mut self) {
        if let Some(before) = self.modes_before.take() {
            self.log_modes(before);
        }
    }

    pub(crate) fn renumber_modes(&mut self, modes: &KindModes) -> bool {
        let same = self.modes.default == modes.default && self.modes.kinds == modes.kinds;
        // Modes that wait for a log or checkpoint do so under their present number.
        let settled = self.modes_before.is_none() && self.kinds.iter().all(|kind| !kind.unsettled);
        if !same || !settled || modes.generation < self.modes.generation {
            return false;
        }
        self.modes.generation = modes.generation;
        self.log_modes(self.modes.clone());
        true
    }

    /// Notes that a checkpoint begun under the modes of this generation is on disk.
    pub(crate) fn modes_settled(&mut self, generation: u64) {
        if generation == self.modes.generation && self.kinds.iter().any(|kind| kind.unsettled) {
            for kind in self.kinds.iter_mut().filter(|kind| kind.mode != Durability::None) {
                (kind.unsettled, kind.leftovers) = (false, false);
            }
            self.log_modes(self.modes.clone());
        }
    }

    /// The mode that a restart now would find. It differs from the one in force while that waits for a log or
    /// checkpoint.
    pub(super) fn mode_at_start(&self, prefix: &[u8]) -> Durability {
        self.modes_logged.as_ref().map_or(Durability::None, |modes| modes.of(prefix))
    }

    fn log_modes(&mut self, modes: KindModes) {
        if self.modes_logged.as_ref() != Some(&modes) {
            self.outbox.push(|| Logged::Modes(Box::new(modes.clone())));
            self.modes_logged = Some(modes);
        }
    }

    /// Forgets raises, because everything shows the same revision.
    pub(super) fn forget_raised(&mut self) {
        self.dirty.clear();
        for group in [Group::Fsync, Group::Received] {
            self.waiting.of_mut(group).dirty.clear();
        }
    }

    /// Makes raises visible of Kinds without unpublished events.
    fn publish_raised(&mut self) {
        let waiting = [Group::Fsync, Group::Received]
            .map(|group| std::mem::take(&mut self.waiting.of_mut(group).dirty));
        for list in waiting.into_iter().chain([std::mem::take(&mut self.dirty)]) {
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

    /// Panics when a keyspace's revisions are inconsistent. For tests.
    pub(super) fn validate_frontier(&self, id: KindId, last_assigned: Revision) {
        if self.dense && id != OTHERS {
            return;
        }
        let frontier = self.frontier(id);
        let waiting = self.waiting.all().into_iter().flat_map(|queue| {
            let sealed = queue.sealed.iter().flat_map(|sealed| &sealed.events);
            sealed.chain(&queue.open)
        });
        let events = self.unpublished.iter().chain(waiting);
        let events = events.filter(|(home, _)| self.dense || *home == id);
        let first = events.map(|(_, version)| version.mod_revision()).min();
        assert_eq!(frontier.unpublished, first, "{id:?}");
        assert!(frontier.visible <= frontier.applied && frontier.applied <= last_assigned, "{frontier:?}");
        assert!(first.is_none_or(|first| frontier.visible < first), "{frontier:?}");
        let group = self.group(id);
        let listed = group.map_or(&self.dirty, |group| &self.waiting.of(group).dirty);
        assert_eq!(frontier.dirty, listed.contains(&id), "{id:?}");
        let sealed = self.waiting.all().into_iter().flat_map(|queue| &queue.sealed);
        let sealed = sealed.flat_map(|sealed| &sealed.kinds);
        let sealed = sealed.filter(|reached| reached.kind == id).map(|reached| reached.applied).max();
        let waits = frontier.dirty || sealed == Some(frontier.applied);
        assert!(waits || frontier.applied == frontier.visible, "{id:?} {frontier:?}");
    }
}
