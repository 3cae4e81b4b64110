//! The keyspaces of a shard, one per Kind and one for the keys of no Kind, and the revision that each of them shows
//! (R4).
//!
//! No Kind prefix is a prefix of another, so a range is a sequence of segments: keys of no Kind, a Kind, keys of no
//! Kind … A keyspace is created at the first write, watch or raise of its Kind. `others` holds what all Kinds without a
//! keyspace show; a new keyspace starts there.
//!
//! Each keyspace has two revisions: `applied`, which the apply loop sees, and `visible`, which readers see. `visible`
//! follows once the applied writes are as durable as their mode requires (R9, `publishing`). **Invariant:** a
//! keyspace's visible revision is below its first unpublished event, so it can be raised up to that event and no
//! further.

use std::{collections::BTreeMap, ops::Bound};

use hashbrown::HashMap;
use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
    kind::{KindScheme, Located},
};

use crate::{
    durability::Outbox,
    keyspace::{Keyspace, Span},
    types::{Durability, Gap, KindGap, KindModes, gaps_of},
    units::table::{UnitId, Units, View},
    version::Version,
};

mod floors;
mod gaps;
mod load;
mod parts;
mod publishing;
mod recover;
mod revisions;
mod walk;

pub use self::recover::RestoredKind;
pub(crate) use self::recover::{Displaced, DisplacedKind};
pub(crate) use self::walk::{Place, Walked};
use self::{publishing::Waiting, revisions::Frontier};

/// Index of a keyspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KindId(usize);

/// The keyspace of the keys that belong to no Kind.
const MISC: KindId = KindId(0);
/// Not a keyspace: stands for all Kinds without one.
const OTHERS: KindId = KindId(usize::MAX);

struct Kind {
    prefix: Key,
    end: Option<Key>,
    keys: Keyspace,
    /// The keyspaces of units; nearly always none.
    parts: Vec<(UnitId, Keyspace)>,
    frontier: Frontier,
    /// Whether keys of this Kind that are in no unit were written, watched or raised here (see
    /// [`Space::floor_of_unit`]).
    asked: bool,
    mode: Durability,
    /// The Kind is to be kept and was not: no log or checkpoint has all of it yet.
    unsettled: bool,
    /// The Kind is not kept and was: logs or checkpoints may hold keys of it that are gone.
    leftovers: bool,
    gaps: Vec<Gap>,
    /// The lowest readable revision of the keys in no unit, if it is above that of the store: history that was compacted
    /// for this Kind alone.
    floor: Revision,
    /// Encoded bytes of the versions written since the start.
    written: u64,
}

impl Kind {
    fn new(prefix: Key, end: Option<Key>, frontier: Frontier, mode: Durability) -> Self {
        Self {
            prefix,
            end,
            keys: Keyspace::new(),
            parts: Vec::new(),
            frontier,
            asked: false,
            mode,
            unsettled: false,
            leftovers: false,
            gaps: Vec::new(),
            floor: Revision::ZERO,
            written: 0,
        }
    }

    fn holds_keys(&self) -> bool {
        !self.keys.is_empty() || self.parts.iter().any(|(_, keys)| !keys.is_empty())
    }
}

/// The keyspaces whose revisions a range reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The usual case.
    One(KindId),
    Many {
        kinds: Vec<KindId>,
        /// Whether Kinds without a keyspace belong to it.
        others: bool,
    },
}

/// The keyspaces; see the module's documentation.
pub(crate) struct Space {
    scheme: KindScheme,
    /// Whether all keyspaces share one revision, that of `others`.
    dense: bool,
    kinds: Vec<Kind>,
    by_prefix: HashMap<Key, KindId>,
    in_order: BTreeMap<Key, KindId>,
    others: Frontier,
    /// The units that are moving, or were.
    pub(crate) units: Units,
    /// The lowest readable revision, except of units that came with their own history: the last compaction or the
    /// store's beginning.
    pub(crate) floor: Revision,
    /// The last requested compaction.
    pub(crate) compacted: Revision,
    /// The highest floor of any imported unit, or the end of a gap that a compaction has passed, whichever is higher.
    /// Below it the history may have holes.
    pub(crate) imported_floor: Revision,
    pub(crate) modes: KindModes,
    /// The modes that were logged last.
    pub(crate) modes_logged: Option<KindModes>,
    /// The modes logged before weaker ones that are not in force yet.
    modes_before: Option<KindModes>,
    /// Gaps of keys that are in no unit (R10).
    gaps: Vec<KindGap>,
    /// Whether there are gaps, of units or of other keys.
    has_gaps: bool,
    /// Whether some Kind has a floor of its own.
    kinds_have_floors: bool,
    /// The revision at which the store began, before which nothing is known; zero with dense revisions.
    pub(crate) began: Revision,
    /// Whether the Kinds' modes differ.
    mixed: bool,
    /// Whether writes of some Kind wait for the fsync log.
    some_wait: bool,
    /// Records for the logs.
    pub(crate) outbox: Outbox,
    /// Kinds whose visible revision rises at the next publish.
    dirty: Vec<KindId>,
    /// Events that the next publish makes visible.
    unpublished: Vec<(KindId, Version)>,
    /// The same for Kinds that wait for the fsync log.
    waiting: Waiting,
}

impl Space {
    pub(crate) fn new(scheme: KindScheme, dense: bool, start: Revision, floor: Revision) -> Self {
        let misc = Kind::new(Key::copy_from(b""), None, Frontier::at(start), Durability::None);
        Self {
            scheme,
            dense,
            kinds: vec![misc],
            by_prefix: HashMap::new(),
            in_order: BTreeMap::new(),
            others: Frontier::at(start),
            units: Units::new(),
            floor,
            compacted: Revision::ZERO.min(floor),
            imported_floor: Revision::ZERO,
            modes: KindModes::all(Durability::None),
            modes_logged: None,
            modes_before: None,
            gaps: Vec::new(),
            has_gaps: false,
            kinds_have_floors: false,
            began: if dense { Revision::ZERO } else { start },
            mixed: false,
            some_wait: false,
            outbox: Outbox::default(),
            dirty: Vec::new(),
            unpublished: Vec::new(),
            waiting: Waiting::default(),
        }
    }

    fn kind(&self, id: KindId) -> &Kind {
        self.kinds.get(id.0).expect("ids are made here and keyspaces are never removed")
    }

    fn kind_mut(&mut self, id: KindId) -> &mut Kind {
        self.kinds.get_mut(id.0).expect("ids are made here and keyspaces are never removed")
    }

    /// The keyspace of a Kind prefix; creates it if needed.
    fn open_kind(&mut self, prefix: &[u8]) -> KindId {
        if let Some(id) = self.by_prefix.get(prefix) {
            return *id;
        }
        let id = KindId(self.kinds.len());
        let prefix = Key::copy_from(prefix);
        self.by_prefix.insert(prefix.clone(), id);
        self.in_order.insert(prefix.clone(), id);
        let end = prefix.prefix_end();
        let frontier = Frontier { unpublished: None, dirty: false, ..self.others };
        let mode = self.modes.of(&prefix);
        let gaps = gaps_of(&self.gaps, &prefix);
        self.kinds.push(Kind { gaps, ..Kind::new(prefix, end, frontier, mode) });
        if frontier.applied > frontier.visible && !self.dense {
            self.mark_dirty(id);
        }
        id
    }

    /// Bytes of all versions of a Kind; the empty prefix means keys of no Kind.
    pub(crate) fn kind_bytes(&self, prefix: &[u8]) -> u64 {
        let id = if prefix.is_empty() { Some(MISC) } else { self.by_prefix.get(prefix).copied() };
        let Some(kind) = id.map(|id| self.kind(id)) else { return 0 };
        let parts = kind.parts.iter().map(|(_, keys)| keys);
        parts.chain([&kind.keys]).map(|keys| keys.sizes().3).sum()
    }

    // ---- what a range touches

    /// The keyspace of a Kind, by its prefix.
    pub(crate) fn known_kind(&self, prefix: &[u8]) -> Option<KindId> {
        self.by_prefix.get(prefix).copied()
    }

    /// The keyspace of a key, if it exists. A pseudo-key sorts before its Kind and is kept among the keys of no Kind.
    fn home_of(&self, key: &[u8]) -> Option<KindId> {
        match self.scheme.locate(key) {
            Located::Object { kind } => self.by_prefix.get(kind).copied(),
            Located::Pseudo { .. } | Located::Health | Located::Other => Some(MISC),
        }
    }

    /// Makes lookups of these keys faster, those of the first one's Kind: see [`Keyspace::warm`].
    pub(crate) fn warm<'k>(&self, keys: impl Iterator<Item = &'k [u8]> + Clone) {
        let first = keys.clone().next();
        let Some(KindId(at)) = first.and_then(|first| self.home_of(first)) else { return };
        let kind = &self.kinds[at];
        if kind.keys.is_large() {
            kind.keys.warm(keys.filter(|key| key.starts_with(&kind.prefix)));
        }
    }

    /// The prefix of the Kind that contains the whole range.
    fn only_kind<'r>(&self, range: &'r KeyRange) -> Option<&'r [u8]> {
        let Located::Object { kind } = self.scheme.locate(range.start()) else { return None };
        match range {
            KeyRange::Single(_) => Some(kind),
            KeyRange::Span { end, .. } => {
                let end = end.as_ref()?;
                let inside = end.starts_with(kind)
                    || Key::copy_from(kind).prefix_end().is_some_and(|last| *end <= last);
                inside.then_some(kind)
            }
        }
    }

    /// The keyspaces whose revisions a range reads. Creates none.
    pub(crate) fn scope(&self, range: &KeyRange) -> Scope {
        if self.dense {
            return Scope::Many { kinds: Vec::new(), others: true };
        }
        if let Some(prefix) = self.only_kind(range) {
            let known = self.by_prefix.get(prefix).copied();
            return known.map_or(Scope::Many { kinds: Vec::new(), others: true }, Scope::One);
        }
        if let KeyRange::Single(key) = range {
            let Located::Pseudo { stem } = self.scheme.locate(key) else { return Scope::One(MISC) };
            let known = self.by_prefix.get([stem, b"/"].concat().as_slice()).copied();
            // An ordinary key named like a pseudo-key shows the revisions of both.
            let exists = self.object(key, &View::Now).is_some();
            return match (known, exists) {
                (Some(kind), false) => Scope::One(kind),
                (Some(kind), true) => Scope::Many { kinds: vec![MISC, kind], others: false },
                (None, exists) => {
                    Scope::Many { kinds: if exists { vec![MISC] } else { vec![] }, others: true }
                }
            };
        }
        let mut kinds: Vec<KindId> = self.kinds_in(range).collect();
        kinds.push(MISC);
        Scope::Many { kinds, others: true }
    }

    /// As [`Space::scope`], for a write, watch or raise: creates the Kind's keyspace.
    pub(crate) fn scope_to_raise(&mut self, range: &KeyRange) -> Scope {
        self.scope_made(range, true)
    }

    /// As [`Space::scope_to_raise`], for a unit that is opened: does not count as a request for the Kind.
    pub(crate) fn scope_to_open(&mut self, range: &KeyRange) -> Scope {
        self.scope_made(range, false)
    }

    fn scope_made(&mut self, range: &KeyRange, asked: bool) -> Scope {
        if !self.dense {
            if let Some(prefix) = self.only_kind(range) {
                let kind = self.open_kind(prefix);
                if asked {
                    self.ask(kind);
                }
                return Scope::One(kind);
            }
            if let (KeyRange::Single(key), Located::Pseudo { stem }) =
                (range, self.scheme.locate(range.start()))
            {
                let kind = self.open_kind(&[stem, b"/"].concat());
                self.ask(kind);
                let exists = self.object(key, &View::Now).is_some();
                return if exists {
                    Scope::Many { kinds: vec![MISC, kind], others: false }
                } else {
                    Scope::One(kind)
                };
            }
        }
        self.scope(range)
    }

    /// The Kind that contains the whole range, for a watch; creates its keyspace.
    pub(crate) fn kind_to_watch(&mut self, range: &KeyRange) -> Option<KindId> {
        let prefix = self.only_kind(range)?;
        Some(self.open_kind(prefix))
    }

    /// The existing Kinds that a range overlaps, in key order.
    fn kinds_in(&self, range: &KeyRange) -> impl Iterator<Item = KindId> {
        let (start, end) = bounds(range);
        let before = self
            .in_order
            .range::<[u8], _>((Bound::Unbounded, Bound::Excluded(start)))
            .next_back()
            .map(|(_, id)| *id);
        let before = before.filter(|id| self.kind(*id).end.as_ref().is_none_or(|last| &last[..] > start));
        let upper = end.map_or(Bound::Unbounded, Bound::Excluded);
        let begin = Bound::Included(start);
        let empty = end.is_some_and(|end| end <= start);
        let inside = (!empty).then(|| self.in_order.range::<[u8], _>((begin, upper)));
        before.filter(|_| !empty).into_iter().chain(inside.into_iter().flatten().map(|(_, id)| *id))
    }

    /// Splits a range into segments of keyspaces, in key order. `single` is scratch space for the end of a single key.
    pub(crate) fn segments<'s>(
        &'s self,
        range: &'s KeyRange,
        single: &'s mut Option<Key>,
    ) -> Vec<(KindId, Span<'s>)> {
        if let KeyRange::Single(key) = range {
            let end = single.insert(key.successor());
            let span = Span { start: key, end: Some(end) };
            return self.home_of(key).into_iter().map(|home| (home, span)).collect();
        }
        if range.is_empty() {
            return Vec::new();
        }
        if let Some(prefix) = self.only_kind(range) {
            let (start, end) = bounds(range);
            return self.by_prefix.get(prefix).map(|id| (*id, Span { start, end })).into_iter().collect();
        }
        let (mut at, end) = bounds(range);
        let mut segments = Vec::new();
        for id in self.kinds_in(range) {
            let kind = self.kind(id);
            let from = at.max(&kind.prefix);
            if at < &kind.prefix[..] {
                segments.push((MISC, Span { start: at, end: Some(&kind.prefix) }));
            }
            let kind_end = kind.end.as_deref();
            let to = match (kind_end, end) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            segments.push((id, Span { start: from, end: to }));
            let Some(next) = kind_end else { return segments };
            at = next;
        }
        if end.is_none_or(|end| at < end) {
            segments.push((MISC, Span { start: at, end }));
        }
        segments
    }

    /// The keyspaces that hold the keys and events of a range.
    pub(crate) fn homes(&self, range: &KeyRange) -> Vec<KindId> {
        let mut scratch = None;
        let mut homes: Vec<KindId> =
            self.segments(range, &mut scratch).into_iter().map(|(id, _)| id).collect();
        homes.sort_unstable();
        homes.dedup();
        homes
    }

    // ---- reads

    pub(crate) fn get(&self, key: &[u8]) -> Option<&Version> {
        self.object(key, &View::Now)?.live()
    }

    /// The versions of the range's keys at `at`, in key order, at most `limit` of them (0 = all).
    pub(crate) fn collect(&self, range: &KeyRange, at: Revision, limit: usize, view: &View) -> Vec<Version> {
        let limit = if limit == 0 { usize::MAX } else { limit };
        if let KeyRange::Single(key) = range {
            let object = self.object(key, view);
            return object.and_then(|o| o.at(at)).cloned().into_iter().take(limit).collect();
        }
        let mut found = Vec::new();
        self.walk(range, at, view, |version| {
            found.push(version.clone());
            found.len() < limit
        });
        found
    }

    /// The number of keys of the range at `at`. The view must not leave out any names.
    pub(crate) fn count(&self, range: &KeyRange, at: Revision, view: &View) -> u64 {
        if let KeyRange::Single(_) = range {
            return self.collect(range, at, 1, view).len() as u64;
        }
        let mut scratch = None;
        let segments = self.segments(range, &mut scratch);
        let counts =
            segments.iter().flat_map(|(id, span)| self.spaces(*id, view).map(|keys| keys.count(*span, at)));
        // While a unit is split off, keys and flips may be in different keyspaces: one count may be negative, the sum
        // is not.
        counts.fold(0, u64::wrapping_add)
    }

    /// The next keys of a long read, at least one if there is any, and the range that is left.
    pub(crate) fn chunk(
        &self,
        range: &KeyRange,
        at: Revision,
        view: &View,
        max_keys: usize,
        max_bytes: usize,
    ) -> (Vec<Version>, KeyRange) {
        let done = KeyRange::Span { start: Key::copy_from(b""), end: Some(Key::copy_from(b"")) };
        if let KeyRange::Single(key) = range {
            return (self.object(key, view).and_then(|o| o.at(at)).cloned().into_iter().collect(), done);
        }
        let mut chunk: Vec<Version> = Vec::new();
        let mut bytes = 0;
        let mut next = None;
        self.walk(range, at, view, |version| {
            bytes += version.encoded_len();
            if chunk.len() == max_keys || (bytes > max_bytes && !chunk.is_empty()) {
                next = Some(Key::copy_from(version.key()));
                return false;
            }
            chunk.push(version.clone());
            true
        });
        let rest = next.map(|start| KeyRange::Span { start, end: bounds(range).1.map(Key::copy_from) });
        (chunk, rest.unwrap_or(done))
    }

    /// Calls `give` for each version of the range at `at`, in key order, until it returns false.
    fn walk(&self, range: &KeyRange, at: Revision, view: &View, mut give: impl FnMut(&Version) -> bool) {
        let mut scratch = None;
        for (id, span) in self.segments(range, &mut scratch) {
            let kind = self.kind(id);
            let goes_on = if kind.parts.is_empty() && view.sees_rest() {
                kind.keys.scan(span, at).all(&mut give)
            } else {
                let spaces: Vec<&Keyspace> = self.spaces(id, view).collect();
                parts::merged(&spaces, span, at).filter(|v| !view.leaves_out(v.key())).all(&mut give)
            };
            if !goes_on {
                return;
            }
        }
    }

    // ---- writes

    /// Adds a version at its own revision, visible to readers after a publish. Returns the previous version.
    pub(crate) fn write(&mut self, version: Version) -> Option<Version> {
        let home = match self.scheme.locate(version.key()) {
            Located::Object { kind } => self.open_kind(kind),
            Located::Pseudo { .. } | Located::Health | Located::Other => MISC,
        };
        let revision = version.mod_revision();
        self.wrote(home, version.clone());
        let before = self.space_to_write(home, version.key()).write(version);
        self.raise_applied(&Scope::One(home), revision);
        before
    }

    /// Panics when an invariant is violated. For tests.
    pub(crate) fn validate(&self, last_assigned: Revision) {
        for (i, kind) in self.kinds.iter().enumerate() {
            kind.keys.validate();
            self.validate_parts(kind);
            self.validate_frontier(KindId(i), last_assigned);
        }
        self.validate_frontier(OTHERS, last_assigned);
    }
}

/// The bounds of a span. For a single key the end is `None` and must not be used.
fn bounds(range: &KeyRange) -> (&[u8], Option<&[u8]>) {
    match range {
        KeyRange::Single(key) => (key, None),
        KeyRange::Span { start, end } => (start, end.as_deref()),
    }
}
