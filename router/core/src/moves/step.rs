//! The steps of a coordinator: each is one call to a store or one access to meta. There is a failpoint before and after
//! each, with its name.

use std::{collections::BTreeMap, time::Duration};

use kindred_partition_config::{
    ids::{Epoch, Revision, Term},
    map::StoreIdx,
    unit::Unit,
};

use super::record::MoveRecord;

/// Declares all steps with their names.
macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The kinds of steps, roughly in the order of a move.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum StepName {
            $($(#[$doc])* $name,)*
        }

        impl StepName {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name in failpoints, logs and metrics.
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
    /// Meta: take the move over; this also gives up an attempt without a decision.
    TakeTerm = "take-term",
    /// Meta: read the record, after an answer that left it unknown.
    Read = "read",
    /// Meta: record a new phase.
    Advance = "advance",
    /// Owner: keep a separate index of the unit. Repeated until it is ready.
    Track = "track",
    /// Follower: get a whole copy as of some revision; done at once if it has one.
    Copy = "copy",
    /// Homes of the leases of the unit's keys: attach the follower (R12).
    AttachLeases = "attach-leases",
    /// Follower: import the owner's news. Repeated.
    Tail = "tail",
    /// Both: compare the unit at one revision.
    Verify = "verify",
    /// Meta: begin an attempt.
    BeginSwitch = "begin-switch",
    /// Owner: stop all reads, writes and promises of the unit (R13, R15a).
    Freeze = "freeze",
    /// Follower: import everything up to the final revision, and attach new leases.
    ImportLast = "import-last",
    /// Follower: make the complete import durable, and raise the clock to the final revision (R15b).
    Seal = "seal",
    /// Both: check that freeze and seal still stand, in the incarnations that made them (R15c).
    Confirm = "confirm",
    /// Meta: write record and map in one transaction (R15c).
    Decide = "decide",
    /// Former owner: become a follower (R15d).
    Release = "release",
    /// New owner: serve the unit (R15e).
    Open = "open",
    /// Meta: give the attempt up; only then may the owner be unfrozen.
    CancelAttempt = "cancel-attempt",
    /// Follower: do not open the unit for any earlier attempt; refused if it has.
    Unseal = "unseal",
    /// Owner: serve the unit again.
    Unfreeze = "unfreeze",
    /// Like `Tail`, after a switch: keeps the way back open.
    ReverseTail = "reverse-tail",
    /// Meta: change the goal, for an operator or because the move cannot go on.
    Redirect = "redirect",
    /// Meta: close the way back.
    Complete = "complete",
    /// Follower: drop the unit's data.
    Drop = "drop",
    /// Owner: give up the separate index.
    Forget = "forget",
    /// Meta: end the move.
    Finish = "finish",
}

/// Identifies a step and its answer; unique per step, so that late answers are recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A unit of a move, by its leg and its transfer within that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitAt {
    pub leg: usize,
    pub transfer: usize,
}

/// A step to run. The caller answers it exactly once, in bounded time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// To be passed with the answer.
    pub ticket: Ticket,
    pub name: StepName,
    pub what: What,
}

impl StepName {
    /// Whether one call can do this step for all units of a leg. Steps that carry a unit's data are done unit by unit.
    fn is_of_many(self) -> bool {
        !matches!(self, Self::Copy | Self::Verify)
    }
}

/// Groups steps that were begun together, where one call can do several: the same step of units of one leg, with the
/// same term. Each step still gets its own answer.
#[must_use]
pub fn together(steps: Vec<Step>) -> Vec<Vec<Step>> {
    let mut joint: Vec<Vec<Step>> = Vec::new();
    // The index of the group that later steps of a kind can join.
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

/// The action of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Read the record.
    Read,
    /// Write this record if meta still has this version (mod revision).
    Swap {
        record: Box<MoveRecord>,
        /// The version to replace.
        version: i64,
    },
    /// In one transaction, write [`MoveRecord::decided`] of this record if meta still has this version, and the
    /// cluster's state with the leg's [`super::record::Leg::next_transfers`] if that is still the one that was read. If
    /// only the state has changed meanwhile, read it and try again.
    Decide {
        record: Box<MoveRecord>,
        /// The version to replace.
        version: i64,
        /// The leg to decide.
        leg: usize,
    },
    /// Call one store, or two.
    Unit(UnitCall),
}

/// A call about one unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitCall {
    pub at: UnitAt,
    pub unit: Unit,
    /// Sent with each call.
    pub term: Term,
    /// The owner by the record.
    pub owner: StoreIdx,
    /// The follower by the record.
    pub follower: StoreIdx,
    /// For `ImportLast`, `Seal` and `Confirm`: the final revision.
    pub final_revision: Revision,
    /// For `Confirm`: the incarnations of the owner at the freeze and of the follower at the seal.
    pub incarnations: (u64, u64),
    /// For `Release`, `Open` and `Drop`: the map generation of the last decision; [`Epoch::NONE`] before the first.
    pub epoch: Epoch,
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// `Swap`, `Decide`: it was written.
    Swapped {
        /// The record that was written.
        record: Box<MoveRecord>,
        version: i64,
    },
    /// `Swap`, `Decide`: it was certainly not written, because meta has another version of the record.
    Conflict,
    /// `Decide`: it was certainly not written, because the changed map does not allow it.
    Refused {
        /// For people.
        reason: String,
    },
    /// `Read`: the record.
    Record {
        record: Box<MoveRecord>,
        /// Its mod revision.
        version: i64,
    },
    /// `Read`: the move has no record any more.
    NoRecord,
    /// Done; for `Track`: ready.
    Done,
    /// `Track`: not ready yet.
    NotReady,
    /// `Tail`, `ReverseTail`: the follower imported the owner's news.
    Followed {
        /// How far it is behind, approximately.
        lag: Duration,
    },
    /// `Verify`: the two sides differ.
    Different {
        /// Where they differ.
        reason: String,
    },
    /// `Freeze`: the unit is frozen.
    Frozen {
        /// The final revision: the owner has assigned and promised nothing above it.
        final_revision: Revision,
        /// The owner's incarnation.
        incarnation: u64,
    },
    /// `Seal`: the follower has everything.
    Sealed {
        /// The follower's incarnation.
        incarnation: u64,
    },
    /// A store has restarted since, or what it did for the attempt is undone.
    Restarted {
        /// Which store, and its state.
        reason: String,
    },
    /// The follower has lost its copy, which must be made again.
    Lost {
        /// For people.
        reason: String,
    },
    /// A store has seen a higher term.
    Stale {
        /// The highest term that it has seen of the move.
        seen: Term,
    },
    /// Anything else, including a missed deadline: it may have been done, and is retried. A `Swap` may yet be written.
    Failed {
        /// For people.
        reason: String,
    },
}
