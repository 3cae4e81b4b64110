//! At which revision T a read over several stores is made and answered (R4, R5, R8), as a state machine.
//!
//! T is the maximum of the stores' current revisions, asked for after the request came in; every store promises T
//! before the answer, so T is a cut: nothing at or below it is still to come anywhere. Stores are asked with `at_least`
//! = the highest revision that this router has shown, so that unless something was written since, all answer with the
//! same one and a read costs **one round trip**: the data come with the question. Otherwise each store below T is asked
//! to follow, and whether its part of the range has changed on the way ([`Command::Confirm`]: raise, pin and compare);
//! only one that did is read again.
//!
//! ```text
//! Now       Read at_least=shown (pins) ─ all equal ────────────────────────────► Done
//!                                      └ below T: Confirm since..T ─ unchanged ─► Done
//!                                                                  └ changed: ReadAt T ► Done
//! At(N)     N <= shown ─────────────────────────────► ReadAt N ─ below T: Raise T ─► Done, header T
//!           N > shown: Current ─ N > T: future        ↑
//!                              └ N <= T ──────────────┘
//! Current   Current at_least=shown ─ below T: Raise T ─► Done     (the probe; a watch without a start)
//! ```
//!
//! The header of a read at N is T, not N, as etcd's (pitfall C1). `at_least` is a wish: a store that cannot follow
//! answers with its own current revision. To be raised to T is not: where a store refuses (its clock may not go that
//! far, R3) the read fails with an error, and never shows a revision that a store has not promised.

use std::collections::HashMap;
use std::hash::Hash;

use kindred_partition_config::ids::Revision;

use crate::store::StoreIx;

/// What is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Data as of now.
    Now,
    /// Data at the client's revision.
    At(Revision),
    /// No data: only T.
    Current,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The answer to a [`Command::Read`] or [`Command::ReadAt`]: the revision of its header. The caller keeps the data;
    /// a later answer of the store replaces them.
    Answered {
        /// From where.
        store: StoreIx,
        /// The store's current revision for the range, promised.
        header: Revision,
    },
    /// The answer to a [`Command::Current`] or [`Command::Raise`].
    Raised {
        /// From where.
        store: StoreIx,
        /// The store's current revision for the range, promised.
        current: Revision,
    },
    /// The answer to a [`Command::Confirm`]: the store stands at `to` or above, and what it answered holds at `to`.
    Unchanged {
        /// From where.
        store: StoreIx,
        /// Up to where.
        to: Revision,
    },
    /// The answer to a [`Command::Confirm`]: the store stands at `to` or above, and the range has changed.
    Changed {
        /// From where.
        store: StoreIx,
        /// Up to where.
        to: Revision,
    },
    /// The store has compacted the revision that it was to read.
    Compacted {
        /// From where.
        store: StoreIx,
    },
    /// The store refuses to be raised (R3).
    CannotFollow {
        /// From where.
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

/// What the caller must do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Read at the current revision, raised to `at_least` if the store can, and pin it.
    Read {
        /// Where.
        store: StoreIx,
        /// The wish.
        at_least: Revision,
    },
    /// Read at exactly this revision; raise the store to it first. It is pinned already where it is not the client's.
    ReadAt {
        /// Where.
        store: StoreIx,
        /// The revision.
        revision: Revision,
    },
    /// Tell the current revision, raised to `at_least` if the store can.
    Current {
        /// Where.
        store: StoreIx,
        /// The wish.
        at_least: Revision,
    },
    /// Raise to this, or fail with [`Event::CannotFollow`].
    Raise {
        /// Where.
        store: StoreIx,
        /// The revision.
        to: Revision,
    },
    /// Raise to `to`, or fail with [`Event::CannotFollow`]; pin `to`; say whether the range is the same at `since` and
    /// at `to`.
    Confirm {
        /// Where.
        store: StoreIx,
        /// What it answered at.
        since: Revision,
        /// T.
        to: Revision,
    },
    /// The answer is complete.
    Done {
        /// The revision of the data.
        at: Revision,
        /// The revision to show in the header: promised by every store.
        header: Revision,
    },
}

/// Why the read fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The client's revision is above the current one of all stores: etcd's `ErrFutureRev`.
    #[error("revision {wanted} is in the future of {current}")]
    Future {
        /// The client's.
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
        /// Which.
        store: StoreIx,
        /// Where to.
        to: Revision,
    },
    /// An answer that nothing asked for, or below what it had to be.
    #[error("store {}: unexpected answer", .0.0)]
    Unexpected(StoreIx),
}

/// What a store was last asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Read,
    ReadAt(Revision),
    Current,
    Raise(Revision),
    Confirm(Revision),
    /// It has answered, and promises this.
    Nothing(Revision),
}

/// One read.
#[derive(Debug)]
pub struct ConsistentRead {
    mode: Mode,
    stores: Vec<(StoreIx, Asked)>,
    /// Set once all stores have told their current revisions: the header's revision.
    target: Option<Revision>,
    /// Of [`Mode::At`]: the check against the future is passed.
    checked: bool,
    done: bool,
}

impl ConsistentRead {
    /// A read over these stores, each once and at least one; `shown` is the highest revision that this router has shown
    /// for what is read ([`Shown`]). The commands are the first ones.
    #[must_use]
    pub fn start(mode: Mode, stores: &[StoreIx], shown: Revision) -> (Self, Vec<Command>) {
        // Some store has assigned or promised what was shown, so T lies at or above it without asking.
        let checked = matches!(mode, Mode::At(at) if at <= shown);
        debug_assert!(!stores.is_empty(), "a read without a store has no revision");
        let ask = |store| match mode {
            Mode::Now => (Asked::Read, Command::Read { store, at_least: shown }),
            Mode::At(revision) if checked => (Asked::ReadAt(revision), Command::ReadAt { store, revision }),
            Mode::At(_) | Mode::Current => (Asked::Current, Command::Current { store, at_least: shown }),
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
    /// When the read fails; it is over then.
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
                // Below what it was to follow to: it did not, and its data and its promise are not those at `to`.
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

    /// Decides once every store has answered.
    fn settle(&mut self) -> Result<Vec<Command>, ReadError> {
        let promised = |entry: &(StoreIx, Asked)| match entry.1 {
            Asked::Nothing(promised) => Some(promised),
            _ => None,
        };
        let Some(all) = self.stores.iter().map(promised).collect::<Option<Vec<_>>>() else {
            return Ok(Vec::new());
        };
        // T is fixed at the first full round: stores that moved on since have promised it as well.
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
    /// Per Kind: an idle Kind's reads find its stores equal, however busy others are.
    #[default]
    Kind,
    /// For all keys: for clients that compare revisions across Kinds.
    Global,
}

/// The highest revision that this router has shown, per Kind or for all. It only grows; it holds a number for each
/// Kind ever shown.
#[derive(Debug)]
pub struct Shown<K> {
    scope: RevisionScope,
    global: Revision,
    kinds: HashMap<K, Revision>,
}

impl<K: Eq + Hash> Shown<K> {
    /// Nothing shown yet.
    #[must_use]
    pub fn new(scope: RevisionScope) -> Self {
        Self { scope, global: Revision::ZERO, kinds: HashMap::new() }
    }

    /// A header, an event or a progress answer of this Kind shows `revision`. Call it before the bytes leave.
    pub fn show(&mut self, kind: K, revision: Revision) {
        let highest = match self.scope {
            RevisionScope::Kind => self.kinds.entry(kind).or_insert(Revision::ZERO),
            RevisionScope::Global => &mut self.global,
        };
        *highest = revision.max(*highest);
    }

    /// What a read of this Kind must be answered at least with.
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
