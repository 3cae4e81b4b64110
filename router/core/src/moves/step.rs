//! What a coordinator does to the world: one call to a store or one access to the meta store each. There is a failpoint
//! before and one after each, by its name.

use std::{collections::BTreeMap, time::Duration};

use kindred_partition_config::{
    ids::{Epoch, Revision, Term},
    map::StoreIdx,
    unit::Unit,
};

use super::record::MoveRecord;

/// Names and list of all steps.
macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The kinds of steps, in about the order of a move.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum StepName {
            $($(#[$doc])* $name,)*
        }

        impl StepName {
            /// Every kind of step.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// As in failpoints, logs and metrics.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

steps! {
    /// Meta: takes the move over. An attempt that was not decided is given up with it.
    TakeTerm = "take-term",
    /// Meta: reads the record, after an answer that left its state open.
    Read = "read",
    /// Meta: notes how far the move is.
    Advance = "advance",
    /// Owner: keep a separate index of the unit. Repeated until ready.
    Track = "track",
    /// Follower: make sure that it has a whole copy as of some revision; done at once if it does already.
    Copy = "copy",
    /// Homes of the leases of the unit's keys: attach the follower (R12).
    AttachLeases = "attach-leases",
    /// Follower: import what has happened at the owner since. Repeated.
    Tail = "tail",
    /// Both: compare at one revision.
    Verify = "verify",
    /// Meta: an attempt begins.
    BeginSwitch = "begin-switch",
    /// Owner: nothing in the unit is read, written or shown any more (R13, R15a).
    Freeze = "freeze",
    /// Follower: import all up to the final revision, and attach leases that are new.
    ImportLast = "import-last",
    /// Follower: nothing is missing, and the clock is above the final revision (R15b).
    Seal = "seal",
    /// Both: the freeze and the seal stand, in the lives of the stores in which they were made (R15c).
    Confirm = "confirm",
    /// Meta: record and map, in one transaction (R15c).
    Decide = "decide",
    /// The owner that was: it follows (R15d).
    Release = "release",
    /// The owner that is: it serves (R15e).
    Open = "open",
    /// Meta: the attempt is given up; only then may the owner be unfrozen.
    CancelAttempt = "cancel-attempt",
    /// Owner: it serves again.
    Unfreeze = "unfreeze",
    /// As `Tail`, after a switch: keeps the way back open.
    ReverseTail = "reverse-tail",
    /// Meta: another goal, by an operator or because there is no way on.
    Redirect = "redirect",
    /// Meta: there will be no way back.
    Complete = "complete",
    /// Follower: its data of the unit goes.
    Drop = "drop",
    /// Owner: no index of its own any more.
    Forget = "forget",
    /// Meta: the move is over.
    Finish = "finish",
}

/// Which step an answer is to: new with every step, so that answers that come too late are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A unit of a move: a leg, and a transfer of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitAt {
    /// The leg.
    pub leg: usize,
    /// The transfer.
    pub transfer: usize,
}

/// A step to run. The one who runs it answers exactly once, in bounded time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What the answer carries.
    pub ticket: Ticket,
    /// Its kind.
    pub name: StepName,
    /// What to do.
    pub what: What,
}

impl StepName {
    /// Whether one call does it for all units of a leg. What carries all of a unit's data is done unit by unit.
    fn is_of_many(self) -> bool {
        !matches!(self, Self::Copy | Self::Verify)
    }
}

/// Steps that were begun at once, put together where one call can do several: the same step of units of one leg, by the
/// same term. Each is still answered for itself.
#[must_use]
pub fn together(steps: Vec<Step>) -> Vec<Vec<Step>> {
    let mut joint: Vec<Vec<Step>> = Vec::new();
    // Where those of a kind stand that others may join.
    let mut places: BTreeMap<(StepName, usize, Term), usize> = BTreeMap::new();
    for step in steps {
        let key = match &step.what {
            What::Unit(call) if step.name.is_of_many() => Some((step.name, call.at.leg, call.term)),
            _ => None,
        };
        match key.and_then(|key| places.get(&key)).and_then(|place| joint.get_mut(*place)) {
            Some(others) => others.push(step),
            None => {
                places.extend(key.map(|key| (key, joint.len())));
                joint.push(vec![step]);
            }
        }
    }
    joint
}

/// What a step does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Read the record.
    Read,
    /// Write this record if the one there still has this version (mod_revision).
    Swap {
        /// What to write.
        record: Box<MoveRecord>,
        /// The version to replace.
        version: i64,
    },
    /// In one transaction: [`MoveRecord::decided`] of this record if the one there still has this version, and the
    /// cluster's state with the leg's [`super::record::Leg::next_transfers`] if that is still the one that was read for it.
    /// When only the state has changed meanwhile, read it and try again.
    Decide {
        /// The record to decide.
        record: Box<MoveRecord>,
        /// The version to replace.
        version: i64,
        /// Which leg.
        leg: usize,
    },
    /// Call a store, or two.
    Unit(UnitCall),
}

/// A call about one unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitCall {
    /// Which.
    pub at: UnitAt,
    /// The unit.
    pub unit: Unit,
    /// To send with each call.
    pub term: Term,
    /// Who owns it by the record.
    pub owner: StoreIdx,
    /// Who follows.
    pub follower: StoreIdx,
    /// Of `ImportLast`, `Seal` and `Confirm`: the final revision.
    pub final_revision: Revision,
    /// Of `Confirm`: the incarnations of the owner that froze the unit, and of the follower that sealed it.
    pub lives: (u64, u64),
    /// Of `Release`, `Open` and `Drop`: the generation of the last decision; 0 before the first.
    pub epoch: Epoch,
}

/// How a step ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// `Swap`, `Decide`: this is what is written now.
    Swapped {
        /// The record, as written.
        record: Box<MoveRecord>,
        /// Its version.
        version: i64,
    },
    /// `Swap`, `Decide`: surely not written; the record is another one.
    Conflict,
    /// `Decide`: surely not written; the map has changed so that the leg cannot be switched.
    Refused {
        /// Why.
        reason: String,
    },
    /// `Read`: what is there.
    Record {
        /// The record.
        record: Box<MoveRecord>,
        /// Its version.
        version: i64,
    },
    /// `Read`: there is no such move any more.
    NoRecord,
    /// Done; of `Track`: ready.
    Done,
    /// `Track`: not ready yet.
    NotReady,
    /// `Tail`, `ReverseTail`: how far the follower is behind.
    Followed {
        /// About.
        lag: Duration,
    },
    /// `Verify`: the two differ.
    Different {
        /// Where.
        reason: String,
    },
    /// `Freeze`: nothing above this was assigned or promised.
    Frozen {
        /// The final revision.
        final_revision: Revision,
        /// The owner's incarnation.
        life: u64,
    },
    /// `Seal`: everything is there.
    Sealed {
        /// The follower's incarnation.
        life: u64,
    },
    /// `Confirm`: a store has restarted since, or what it did for the attempt is undone.
    Restarted {
        /// Which, and how it stands.
        reason: String,
    },
    /// The follower does not have what it was given: it has to be copied again.
    Lost {
        /// Why.
        reason: String,
    },
    /// A store has seen a higher term.
    Stale {
        /// The highest that it has seen of the move.
        seen: Term,
    },
    /// Anything else, a deadline included: it may have been done, and is tried again. A `Swap` may be written yet.
    Failed {
        /// Why.
        reason: String,
    },
}
