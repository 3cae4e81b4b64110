//! Revisions in generated operations are symbols. So a sequence stays meaningful on two servers that count differently,
//! and after the shrinker has removed earlier operations.

use std::collections::{BTreeSet, HashMap};

/// Symbols are in the `i64` revision fields of the generated protobuf requests, far above any literal used there.
const SYMBOL: i64 = 1 << 62;
const KIND_BITS: u32 = 32;

/// A symbol for a revision. [`History::resolve`] turns it into a number for each side. Literals below `1 << 62` stay as
/// they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symbol {
    /// A revision of the history, by its position in thousandths.
    Past(i64),
    /// A revision since the last compaction, by its position in thousandths.
    Recent(i64),
    /// The revision so many writes after the last compaction; before it if negative.
    Compacted(i64),
    /// The revision of the last write.
    Current,
    /// A revision above the last write that later writes will reach, so that a watch can wait for it.
    Next(i64),
    /// A revision that no write will reach.
    Future(i64),
    /// The mod revision that the compared key has now.
    KeyMod,
    /// The create revision that the compared key has now.
    KeyCreate,
}

impl Symbol {
    pub fn code(self) -> i64 {
        let (tag, argument) = match self {
            Self::Past(permille) => (0, permille),
            Self::Recent(permille) => (1, permille),
            Self::Compacted(delta) => (2, delta + 1000),
            Self::Current => (3, 0),
            Self::Next(n) => (4, n),
            Self::Future(n) => (5, n),
            Self::KeyMod => (6, 0),
            Self::KeyCreate => (7, 0),
        };
        SYMBOL | (tag << KIND_BITS) | argument
    }

    pub fn of(code: i64) -> Option<Self> {
        if code < SYMBOL {
            return None;
        }
        let argument = code & 0xffff_ffff;
        Some(match (code & !SYMBOL) >> KIND_BITS {
            0 => Self::Past(argument),
            1 => Self::Recent(argument),
            2 => Self::Compacted(argument - 1000),
            3 => Self::Current,
            4 => Self::Next(argument),
            5 => Self::Future(argument),
            6 => Self::KeyMod,
            _ => Self::KeyCreate,
        })
    }
}

/// One of the two sides. The left one is always a real etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Left,
    Right,
}

/// The keys of an operation: those of one kind of [`crate::differential::keys::KINDS`], of several, or all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Kind(usize),
    Several(Kinds),
    All,
}

/// A set of kinds. Each has one bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kinds(u32);

impl Kinds {
    pub fn of(kinds: impl Iterator<Item = usize>) -> Self {
        Self(kinds.fold(0, |set, kind| set | 1 << kind))
    }

    fn has(self, kind: usize) -> bool {
        self.0 & 1 << kind != 0
    }
}

/// How the revisions of the two sides relate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Both sides count 1, 2, 3, so every number must be equal.
    Dense,
    /// Each side has its own numbers. Two are equal if they have the same place in the order of a kind's events.
    Mapped,
}

/// One hour of a hybrid clock, which counts microseconds in steps of 1024. No test runs that long.
const HOUR: i64 = 3_600_000_000 << 10;

/// A write: its revision on the left, and its first and last revision on the right. The two differ if the write was
/// executed in parts on several stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    left: i64,
    first: i64,
    last: i64,
}

impl Step {
    const fn same(revision: i64) -> Self {
        Self { left: revision, first: revision, last: revision }
    }

    fn last(&self, who: Who) -> i64 {
        match who {
            Who::Left => self.left,
            Who::Right => self.last,
        }
    }
}

/// The use of a revision. A write may have several revisions on the right. A read at the write must see all its parts,
/// so it takes the last one. A watch from the write must deliver all its parts, so it takes the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Read,
    Start,
}

/// The revisions of all events, on both sides.
#[derive(Debug)]
pub struct History {
    pub mode: Mode,
    /// The writes of each kind, in order. Dense mode has them all in one list.
    kinds: Vec<Vec<Step>>,
    right_to_left: HashMap<i64, i64>,
    /// The left revisions of the writes that have several revisions on the right, over all kinds.
    split: BTreeSet<i64>,
    /// The revisions of the last compaction, left and right.
    compacted: [i64; 2],
    /// The left revisions of all compactions.
    compactions: BTreeSet<i64>,
    /// For each kind, the revisions before its first write, left and right.
    base: Vec<[i64; 2]>,
}

impl History {
    pub fn new(mode: Mode, kinds: usize, base: Vec<[i64; 2]>) -> Self {
        let mut history = Self {
            mode,
            kinds: vec![Vec::new(); kinds],
            right_to_left: HashMap::new(),
            split: BTreeSet::new(),
            compacted: [0, 0],
            compactions: BTreeSet::new(),
            base,
        };
        if mode == Mode::Dense {
            // An empty etcd is at revision 1.
            history.kinds = vec![vec![Step::same(1)]];
        }
        history
    }

    /// Adds the next write of a kind. `left` is its revision on the left, `rights` those of its events on the right.
    pub fn push(&mut self, kind: usize, left: i64, rights: &[i64]) {
        let (Some(&first), Some(&last)) = (rights.iter().min(), rights.iter().max()) else { return };
        let elsewhere = self.kinds.iter().flatten().rev().find(|step| step.left == left);
        if first != last || elsewhere.is_some_and(|step| step.last != last) {
            self.split.insert(left);
        }
        self.kinds[kind].push(Step { left, first, last });
        for &right in rights {
            self.right_to_left.insert(right, left);
        }
    }

    /// Whether the write with this left revision has several revisions on the right.
    pub fn is_split(&self, left: i64) -> bool {
        self.split.contains(&left)
    }

    /// Dense mode only: adds a write for every revision up to this one.
    pub fn extend_dense(&mut self, revision: i64) {
        while self.last(Scope::All, Who::Left) < revision {
            let next = self.last(Scope::All, Who::Left) + 1;
            self.kinds[0].push(Step::same(next));
        }
    }

    pub fn set_compacted(&mut self, sides: [i64; 2]) {
        self.compacted = [self.compacted[0].max(sides[0]), self.compacted[1].max(sides[1])];
        self.compactions.insert(sides[0]);
    }

    /// Whether there was a compaction exactly at this left revision.
    pub fn is_compaction(&self, left: i64) -> bool {
        self.compactions.contains(&left)
    }

    /// Whether this left revision is below the last compaction.
    pub fn is_compacted(&self, left: i64) -> bool {
        left < self.compacted[0]
    }

    /// The writes that an operation of this scope may name, in the order of the left side.
    fn steps(&self, scope: Scope) -> Vec<Step> {
        let mut steps: Vec<Step> = match (self.mode, scope) {
            (Mode::Mapped, Scope::Kind(kind)) => self.kinds[kind].clone(),
            (Mode::Mapped, Scope::Several(kinds)) => self.of_several(kinds).flatten().copied().collect(),
            _ => self.kinds.iter().flatten().copied().collect(),
        };
        steps.sort_unstable();
        steps
    }

    /// The writes with one revision on the right that split the events of all kinds in the same way on both sides: the
    /// same events are before them and after them. A write with several revisions is none, as a compaction at one of
    /// them would remove only a part of it.
    fn cuts(&self) -> Vec<Step> {
        let mut steps = self.steps(Scope::All);
        // A write of several kinds has a step in each of them, which become one.
        steps.dedup_by(|next, step| {
            let same = next.left == step.left;
            if same {
                (step.first, step.last) = (step.first.min(next.first), step.last.max(next.last));
            }
            same
        });
        let mut lowest_after = vec![i64::MAX; steps.len() + 1];
        for index in (0..steps.len()).rev() {
            lowest_after[index] = lowest_after[index + 1].min(steps[index].first);
        }
        let mut highest_before = i64::MIN;
        let mut cuts = Vec::new();
        for (index, step) in steps.into_iter().enumerate() {
            let alone = highest_before < step.first && step.last < lowest_after[index + 1];
            highest_before = highest_before.max(step.last);
            if alone && step.first == step.last {
                cuts.push(step);
            }
        }
        cuts
    }

    fn of_several(&self, kinds: Kinds) -> impl Iterator<Item = &Vec<Step>> {
        self.kinds.iter().enumerate().filter(move |(kind, _)| kinds.has(*kind)).map(|(_, steps)| steps)
    }

    /// Those of `cuts` that are writes of one of these kinds. The revision of another kind's write may be in the future
    /// for the stores of these kinds.
    fn cuts_of(&self, kinds: Kinds) -> Vec<Step> {
        let own: BTreeSet<i64> = self.of_several(kinds).flatten().map(|step| step.left).collect();
        self.cuts().into_iter().filter(|cut| own.contains(&cut.left)).collect()
    }

    fn first_base(&self) -> [i64; 2] {
        self.base
            .iter()
            .copied()
            .reduce(|one, other| [one[0].max(other[0]), one[1].max(other[1])])
            .unwrap_or([1, 1])
    }

    pub fn last(&self, scope: Scope, who: Who) -> i64 {
        let column = who as usize;
        match (self.mode, scope) {
            (Mode::Mapped, Scope::Kind(kind)) => {
                self.kinds[kind].last().map_or(self.base[kind][column], |step| step.last(who))
            }
            _ => {
                let steps = self.steps(scope).into_iter();
                steps.map(|step| step.last(who)).max().unwrap_or(self.first_base()[column])
            }
        }
    }

    /// The numbers, left and right, that a revision field gets.
    pub fn resolve(&self, scope: Scope, code: i64, key: Option<[KeyRevisions; 2]>, of: Use) -> [i64; 2] {
        let Some(symbol) = Symbol::of(code) else { return [code, code] };
        let steps = match scope {
            Scope::Several(kinds) if self.mode == Mode::Mapped => self.cuts_of(kinds),
            Scope::Kind(_) => self.steps(scope),
            _ => self.cuts(),
        };
        let base = match scope {
            Scope::Kind(kind) => self.base[kind],
            _ => self.first_base(),
        };
        let compacted = steps.partition_point(|step| step.left < self.compacted[0]);
        let at = |index: usize| {
            let step = steps.get(index.min(steps.len().saturating_sub(1)));
            let [left, right] = step.map_or(base, |step| match of {
                Use::Read => [step.left, step.last],
                Use::Start => [step.left, step.first],
            });
            // A compaction may be above the last event of an idle kind on the right and yet remove nothing of the kind.
            let kept = left >= self.compacted[0];
            [left, if kept { right.max(self.compacted[1]) } else { right }]
        };
        let part = |from: usize, permille: i64| {
            let length = steps.len().saturating_sub(from);
            from + length * usize::try_from(permille).unwrap_or(0) / 1000
        };
        let last = [self.last(scope, Who::Left), self.last(scope, Who::Right)];
        match symbol {
            Symbol::Past(permille) => at(part(0, permille)),
            Symbol::Recent(permille) => at(part(compacted, permille)),
            Symbol::Compacted(delta) if self.mode == Mode::Dense => {
                let number = (self.compacted[0] + delta).max(1);
                [number, number]
            }
            Symbol::Compacted(delta) => {
                at(usize::try_from(i64::try_from(compacted).unwrap_or(0) + delta).unwrap_or(0))
            }
            Symbol::Current => at(steps.len()),
            Symbol::Next(n) if self.mode == Mode::Dense => last.map(|revision| revision + n),
            // The last event of an idle kind may be below the compaction.
            Symbol::Next(_) => [self.last(Scope::All, Who::Left) + 1, (last[1] + 1).max(self.compacted[1])],
            Symbol::Future(n) => [
                self.last(Scope::All, Who::Left) + n,
                match self.mode {
                    Mode::Dense => self.last(Scope::All, Who::Left) + n,
                    Mode::Mapped => self.last(Scope::All, Who::Right) + n + HOUR,
                },
            ],
            Symbol::KeyMod => key.map_or([0, 0], |sides| sides.map(|side| side.modified)),
            Symbol::KeyCreate => key.map_or([0, 0], |sides| sides.map(|side| side.created)),
        }
    }

    /// The left side's number of an event's revision. A revision that the left side never had becomes negative.
    pub fn exact(&self, who: Who, revision: i64) -> i64 {
        if self.mode == Mode::Dense || who == Who::Left || revision == 0 {
            return revision;
        }
        self.right_to_left.get(&revision).copied().unwrap_or(-revision)
    }

    /// A header's revision in comparable form. Dense mode has the number itself, mapped mode the number of the scope's
    /// writes at or below it.
    pub fn header(&self, scope: Scope, who: Who, revision: i64) -> i64 {
        if self.mode == Mode::Dense {
            return revision;
        }
        let count = |steps: &Vec<Step>| steps.partition_point(|step| step.last(who) <= revision);
        let events: usize = match scope {
            Scope::Kind(kind) => count(&self.kinds[kind]),
            Scope::Several(kinds) => self.of_several(kinds).map(count).sum(),
            Scope::All => self.kinds.iter().map(count).sum(),
        };
        i64::try_from(events).unwrap_or(i64::MAX)
    }
}

/// The revisions of one key on one side, 0 if the key does not exist.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeyRevisions {
    pub created: i64,
    pub modified: i64,
}
