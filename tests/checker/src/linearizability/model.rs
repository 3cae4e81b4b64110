//! One key as a sequential object.

use crate::history::Revision;

/// An interned value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct ValueId(pub(super) u32);

impl ValueId {
    /// Stands for every value that no client has seen, as no check can tell such values apart.
    pub(super) const UNSEEN: Self = Self(u32::MAX);
}

/// The result of a read that found the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shown {
    pub(super) value: ValueId,
    pub(super) create: Revision,
    pub(super) modified: Revision,
    pub(super) version: i64,
}

/// What is known of the key. `None` in a field means that the field is not known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Known {
    Any,
    Absent,
    Present { value: ValueId, create: Option<Revision>, modified: Option<Revision>, version: Option<i64> },
}

/// The state of the sequential object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct State {
    pub(super) known: Known,
    /// Every write of the key at or below this revision has happened.
    pub(super) floor: Revision,
}

/// A compare with this key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Guard {
    Modified(Revision),
    Create(Revision),
    Version(i64),
    Value(ValueId),
    Other,
}

/// One step of an operation on the key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Holds(Guard),
    /// At least one of the compares does not hold.
    Fails(Vec<Guard>),
    Read(Option<Shown>),
    Put(ValueId),
    /// Whether the key existed, if the answer says so.
    Delete(Option<bool>),
}

/// The effect that an operation has if it runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Action {
    /// One of these happens. There are several only if the outcome is unknown.
    pub(super) alternatives: Vec<Vec<Step>>,
    /// The revision of the header, if the header covers this key.
    pub(super) header: Option<Revision>,
    /// The revision that the operation assigned, if it wrote.
    pub(super) revision: Option<Revision>,
}

impl State {
    /// The possible states after the action. There is none if the action cannot happen in this state.
    pub(super) fn after<'a>(self, action: &'a Action) -> impl Iterator<Item = State> + 'a {
        action.alternatives.iter().filter_map(move |steps| self.run(steps, action))
    }

    fn run(mut self, steps: &[Step], action: &Action) -> Option<State> {
        let mut wrote = false;
        for step in steps {
            match step {
                Step::Holds(guard) => {
                    if self.known.compare(*guard) == Some(false) {
                        return None;
                    }
                }
                Step::Fails(guards) => {
                    if guards.iter().all(|guard| self.known.compare(*guard) == Some(true)) {
                        return None;
                    }
                }
                Step::Read(shown) => self.known = self.known.read(*shown)?,
                Step::Put(value) => {
                    self.known = self.known.put(*value, action.revision);
                    wrote = true;
                }
                Step::Delete(removed) => {
                    let existed = match (self.known, removed) {
                        (Known::Any, Some(removed)) => *removed,
                        (Known::Any, None) => true,
                        (known, removed) => {
                            let existed = known != Known::Absent;
                            if removed.is_some_and(|removed| removed != existed) {
                                return None;
                            }
                            existed
                        }
                    };
                    self.known = Known::Absent;
                    wrote |= existed;
                }
            }
        }
        self.advance(wrote, action)
    }

    fn advance(mut self, wrote: bool, action: &Action) -> Option<State> {
        if wrote && let Some(revision) = action.revision {
            if revision <= self.floor {
                return None;
            }
            self.floor = revision;
        }
        if let Some(header) = action.header {
            if header < self.floor {
                return None;
            }
            self.floor = header;
        }
        Some(self)
    }
}

impl Known {
    /// The result of a compare; none if it is not known.
    fn compare(self, guard: Guard) -> Option<bool> {
        let zero = Revision(0);
        match (self, guard) {
            (Known::Any, _) | (_, Guard::Other) => None,
            (Known::Absent, Guard::Modified(revision) | Guard::Create(revision)) => Some(revision == zero),
            (Known::Absent, Guard::Version(version)) => Some(version == 0),
            (Known::Absent, Guard::Value(_)) => Some(false),
            (Known::Present { .. }, Guard::Modified(revision) | Guard::Create(revision))
                if revision == zero =>
            {
                Some(false)
            }
            (Known::Present { modified, .. }, Guard::Modified(revision)) => {
                modified.map(|own| own == revision)
            }
            (Known::Present { create, .. }, Guard::Create(revision)) => create.map(|own| own == revision),
            (Known::Present { .. }, Guard::Version(0)) => Some(false),
            (Known::Present { version, .. }, Guard::Version(wanted)) => version.map(|own| own == wanted),
            (Known::Present { value, .. }, Guard::Value(wanted)) => Some(value == wanted),
        }
    }

    fn read(self, shown: Option<Shown>) -> Option<Known> {
        let as_shown = |shown: Shown| Known::Present {
            value: shown.value,
            create: Some(shown.create),
            modified: Some(shown.modified),
            version: Some(shown.version),
        };
        match (self, shown) {
            (Known::Any | Known::Absent, None) => Some(Known::Absent),
            (Known::Absent, Some(_)) | (Known::Present { .. }, None) => None,
            (Known::Any, Some(shown)) => Some(as_shown(shown)),
            (Known::Present { value, create, modified, version }, Some(shown)) => {
                let same = value == shown.value
                    && create.is_none_or(|own| own == shown.create)
                    && modified.is_none_or(|own| own == shown.modified)
                    && version.is_none_or(|own| own == shown.version);
                same.then(|| as_shown(shown))
            }
        }
    }

    fn put(self, value: ValueId, revision: Option<Revision>) -> Known {
        let (create, version) = match self {
            Known::Any => (None, None),
            Known::Absent => (revision, Some(1)),
            Known::Present { create, version, .. } => (create, version.map(|version| version + 1)),
        };
        Known::Present { value, create, modified: revision, version }
    }
}
