//! Decides at which revision T a read over several stores is made and answered (R4, R5, R8); a state machine.
//!
//! T is the maximum of the stores' current revisions, asked for after the request came in. Every store promises T
//! before the answer, so T is a snapshot: nothing at or below it is still to come anywhere. Stores are asked with
//! `min_revision`, the highest revision that this router has shown. So unless something was written since, all answer with
//! the same revision, and a read costs **one round trip**, as the data come with that answer. Otherwise each store
//! below T is raised to it, and says whether its part of the range has changed meanwhile ([`Command::Confirm`]: raise,
//! pin and compare). Only a store whose part has changed is read again.
//!
//! ```text
//! Now       Read min_revision=shown (pins) ─ all equal ────────────────────────────► Done
//!                                      └ below T: Confirm since..T ─ unchanged ─► Done
//!                                                                  └ changed: ReadAt T ► Done
//! At(N)     N <= shown ─────────────────────────────► ReadAt N ─ below T: Raise T ─► Done, header T
//!           N > shown: Current ─ N > T: future        ↑
//!                              └ N <= T ──────────────┘
//! Current   Current min_revision=shown ─ below T: Raise T ─► Done     (the probe; a watch without a start)
//! ```
//!
//! The header of a read at N is T, not N, as in etcd (pitfall C1). `min_revision` is only a hint: a store that cannot
//! follow answers with its own current revision. A raise to T is not: if a store refuses because its clock may not go
//! that far (R3), the read fails. So no revision is shown that some store has not promised.

use std::collections::HashMap;
use std::hash::Hash;

use kindred_partition_config::ids::Revision;

use crate::store::StoreIx;

/// What a read is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The current data.
    Now,
    /// The data at the client's revision.
    At(Revision),
    /// No data, only T.
    Current,
}

/// An answer of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The answer to a [`Command::Read`] or [`Command::ReadAt`], with the revision of its header. The caller keeps the
    /// data; a later answer of the store replaces them.
    Answered {
        store: StoreIx,
        /// The store's current revision for the range, which it promises.
        header: Revision,
    },
    /// The answer to a [`Command::Current`] or [`Command::Raise`].
    Raised {
        store: StoreIx,
        /// The store's current revision for the range, which it promises.
        current: Revision,
    },
    /// The answer to a [`Command::Confirm`]: the store is at `to` or above, and its earlier answer also holds at `to`.
    Unchanged {
        store: StoreIx,
        /// The `to` of the command.
        to: Revision,
    },
    /// The answer to a [`Command::Confirm`]: the store is at `to` or above, and the range has changed.
    Changed {
        store: StoreIx,
        /// The `to` of the command.
        to: Revision,
    },
    /// The store has compacted the revision that it was to read.
    Compacted {
        /// The store that was to read there.
        store: StoreIx,
    },
    /// The store refuses to be raised (R3).
    CannotFollow {
        /// The store that refuses.
        store: StoreIx,
    },
}

impl Event {
    fn store(self) -> StoreIx {
        let (Self::Answered { store, .. }
        | Self::Raised { store, .. }
        | Self::Unchanged { store, .. }
        | Self::Changed { store, .. }
        | Self::Compacted { store }
        | Self::CannotFollow { store }) = self;
        store
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Read at the store's current revision, raised to `min_revision` if the store can, and pin it.
    Read {
        store: StoreIx,
        /// A hint that the store may ignore.
        min_revision: Revision,
    },
    /// Read at exactly this revision, after raising the store to it. The client named it, or the store has pinned it.
    ReadAt {
        store: StoreIx,
        /// The revision to read at.
        revision: Revision,
    },
    /// Report the current revision, raised to `min_revision` if the store can.
    Current {
        store: StoreIx,
        /// A hint that the store may ignore.
        min_revision: Revision,
    },
    /// Raise the store to a revision, or fail with [`Event::CannotFollow`].
    Raise {
        store: StoreIx,
        /// The revision to reach at least.
        to: Revision,
    },
    /// Raise the store to `to`, or fail with [`Event::CannotFollow`]; pin `to`; report whether the range has changed
    /// between `since` and `to`.
    Confirm {
        store: StoreIx,
        /// The revision of the store's earlier answer.
        since: Revision,
        /// T.
        to: Revision,
    },
    /// The read is complete.
    Done {
        at: Revision,
        /// The revision for the header, which every store has promised.
        header: Revision,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The client's revision is above the current ones of all stores: etcd's `ErrFutureRev`.
    #[error("revision {wanted} is in the future of {current}")]
    Future {
        /// The client's revision.
        wanted: Revision,
        /// T.
        current: Revision,
    },
    /// A store has compacted the revision: etcd's `ErrCompacted`.
    #[error("store {} has compacted the revision", .0.0)]
    Compacted(StoreIx),
    /// A store could not be raised to a revision that another has assigned or promised.
    #[error("store {} cannot follow to {to}", .store.0)]
    CannotFollow {
        store: StoreIx,
        /// The revision to reach.
        to: Revision,
    },
    /// A store gave an answer to no question, or one below what it had to reach.
    #[error("store {}: unexpected answer", .0.0)]
    Unexpected(StoreIx),
}

/// The state of a store in the read: what it was last asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Read,
    ReadAt(Revision),
    Current,
    Raise(Revision),
    Confirm(Revision),
    /// It has answered, and promises this revision.
    Nothing(Revision),
}

#[derive(Debug)]
pub struct ConsistentRead {
    mode: Mode,
    stores: Vec<(StoreIx, Asked)>,
    /// The revision for the header: T, once all stores have reported their current revisions.
    target: Option<Revision>,
    /// For [`Mode::At`]: whether the client's revision is known not to be in the future.
    checked: bool,
    done: bool,
}

impl ConsistentRead {
    /// Begins a read over these stores, at least one and each once; returns the first commands. `shown` is the highest
    /// revision that this router has shown of the keys ([`Shown`]).
    #[must_use]
    pub fn start(mode: Mode, stores: &[StoreIx], shown: Revision) -> (Self, Vec<Command>) {
        // Some store has assigned or promised what was shown, so T lies at or above it without asking.
        let checked = matches!(mode, Mode::At(at) if at <= shown);
        debug_assert!(!stores.is_empty(), "a read without a store has no revision");
        let ask = |store| match mode {
            Mode::Now => (Asked::Read, Command::Read { store, min_revision: shown }),
            Mode::At(revision) if checked => (Asked::ReadAt(revision), Command::ReadAt { store, revision }),
            Mode::At(_) | Mode::Current => (Asked::Current, Command::Current { store, min_revision: shown }),
        };
        let (asked, commands) = stores
            .iter()
            .map(|store| {
                let (asked, command) = ask(*store);
                ((*store, asked), command)
            })
            .unzip();
        (Self { mode, stores: asked, target: None, checked, done: false }, commands)
    }

    /// Takes an answer.
    ///
    /// # Errors
    /// When the read fails; it is then over.
    pub fn step(&mut self, event: Event) -> Result<Vec<Command>, ReadError> {
        let commands = self.take(event);
        self.done |= commands.is_err();
        commands
    }

    fn take(&mut self, event: Event) -> Result<Vec<Command>, ReadError> {
        let store = event.store();
        let entry = self.stores.iter_mut().find(|entry| entry.0 == store);
        let entry = entry.filter(|_| !self.done).ok_or(ReadError::Unexpected(store))?;
        let promised = match (event, entry.1) {
            (Event::Answered { header: current, .. }, Asked::Read)
            | (Event::Raised { current, .. }, Asked::Current) => current,
            (Event::Answered { header: current, .. }, Asked::ReadAt(to))
            | (Event::Raised { current, .. }, Asked::Raise(to)) => {
                // The store did not follow: neither its data nor its promise reach `to`.
                if current < to {
                    return Err(ReadError::CannotFollow { store, to });
                }
                current
            }
            (Event::Unchanged { to, .. }, Asked::Confirm(asked)) if to == asked => to,
            (Event::Changed { to, .. }, Asked::Confirm(asked)) if to == asked => {
                entry.1 = Asked::ReadAt(to);
                return Ok(vec![Command::ReadAt { store, revision: to }]);
            }
            (Event::Compacted { .. }, Asked::Read | Asked::ReadAt(_) | Asked::Confirm(_)) => {
                return Err(ReadError::Compacted(store));
            }
            (Event::CannotFollow { .. }, Asked::ReadAt(to) | Asked::Raise(to) | Asked::Confirm(to)) => {
                return Err(ReadError::CannotFollow { store, to });
            }
            _ => return Err(ReadError::Unexpected(store)),
        };
        entry.1 = Asked::Nothing(promised);
        self.settle()
    }

    /// Decides what is next, once every store has answered.
    fn settle(&mut self) -> Result<Vec<Command>, ReadError> {
        let promised = |entry: &(StoreIx, Asked)| match entry.1 {
            Asked::Nothing(promised) => Some(promised),
            _ => None,
        };
        let Some(all) = self.stores.iter().map(promised).collect::<Option<Vec<_>>>() else {
            return Ok(Vec::new());
        };
        // T is fixed at the first full round. Stores that have moved on since have promised it as well.
        let highest = all.iter().copied().max().unwrap_or(Revision::ZERO);
        let target = *self.target.get_or_insert(highest);
        if let Mode::At(wanted) = self.mode
            && !self.checked
        {
            if wanted > target {
                return Err(ReadError::Future { wanted, current: target });
            }
            self.checked = true;
            return Ok(self.read_all(wanted));
        }
        let commands = self.ask_below(target, &all);
        if !commands.is_empty() {
            return Ok(commands);
        }
        self.done = true;
        let at = if let Mode::At(at) = self.mode { at } else { target };
        Ok(vec![Command::Done { at, header: target }])
    }

    fn read_all(&mut self, revision: Revision) -> Vec<Command> {
        let ask = |(store, asked): &mut (StoreIx, Asked)| {
            *asked = Asked::ReadAt(revision);
            Command::ReadAt { store: *store, revision }
        };
        self.stores.iter_mut().map(ask).collect()
    }

    fn ask_below(&mut self, target: Revision, promised: &[Revision]) -> Vec<Command> {
        let below = self.stores.iter_mut().zip(promised).filter(|(_, promised)| **promised < target);
        let ask = |((store, asked), since): (&mut (StoreIx, Asked), &Revision)| {
            let (store, since) = (*store, *since);
            if self.mode == Mode::Now {
                *asked = Asked::Confirm(target);
                Command::Confirm { store, since, to: target }
            } else {
                *asked = Asked::Raise(target);
                Command::Raise { store, to: target }
            }
        };
        below.map(ask).collect()
    }
}

/// What "shown" is kept for (`--revision-scope`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RevisionScope {
    /// Each Kind, so that reads of an idle Kind find its stores equal, however busy others are.
    #[default]
    Kind,
    /// All keys together, for clients that compare revisions across Kinds.
    Global,
}

/// The highest revision that this router has shown, per Kind or for all. It only grows, and keeps a number for each
/// Kind ever shown.
#[derive(Debug)]
pub struct Shown<K> {
    scope: RevisionScope,
    global: Revision,
    kinds: HashMap<K, Revision>,
}

impl<K: Eq + Hash> Shown<K> {
    #[must_use]
    pub fn new(scope: RevisionScope) -> Self {
        Self { scope, global: Revision::ZERO, kinds: HashMap::new() }
    }

    /// Notes that a header, event or progress answer of this Kind shows `revision`. Call it before the bytes leave.
    pub fn show(&mut self, kind: K, revision: Revision) {
        let highest = match self.scope {
            RevisionScope::Kind => self.kinds.entry(kind).or_insert(Revision::ZERO),
            RevisionScope::Global => &mut self.global,
        };
        *highest = revision.max(*highest);
    }

    /// The revision that answers of a read of this Kind must have at least.
    #[must_use]
    pub fn of(&self, kind: &K) -> Revision {
        match self.scope {
            RevisionScope::Kind => self.kinds.get(kind).copied().unwrap_or(Revision::ZERO),
            RevisionScope::Global => self.global,
        }
    }
}

#[cfg(test)]
#[path = "consistent_read_test.rs"]
mod tests;
