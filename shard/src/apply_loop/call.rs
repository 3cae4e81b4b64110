//! Everything that may touch the engine besides the frequent requests of `super::Request`: each call by its name, with
//! what it answers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use kindred_engine::{
    durability::{KindModes, Logged},
    engine::{EngineStats, FeedId, LeaseView, PinId, StreamId, WallMicros, WatchId, WatchSpec},
    error::EngineError,
    lease::{AdoptedLease, HandedLease},
    ops::{RangeQuery, Txn},
    units::{CopyChunk, NotOwned, UnitDigest, UnitError, UnitMove, UnitRecord},
};
use kindred_partition_config::{
    history::HistoryBounds,
    ids::{Epoch, LeaseId, MoveId, Revision, Slot},
    key::{Key, KeyRange},
    unit::Unit,
};
use kindred_proto::{
    etcdserverpb::{AlarmType, alarm_request::AlarmAction},
    shard_v1 as pb,
};
use tokio::sync::{Notify, mpsc, oneshot};
use tonic::Status;

use super::request::{RaiseSince, Respond};
use crate::{
    core::{
        self, AfterPublish, BegunReads, CheckpointWaiter, Core, CursorId, FeedWanted, LoggedModes, Started,
        Taken, WhenDurable,
        feeds::Pushed,
        jobs::{Jobs, Turn},
        meet::{Handshake, Opening},
        modes,
    },
    durability::status::DurabilityStatus,
    encode,
    etcd_status::KvError,
    read_hints::ReadHints,
    replies::Reply,
};

/// A call with a name, made through a [`Handle`](crate::handle::Handle).
pub trait CoreCall: Send + Sized + 'static {
    /// What it answers.
    type Answer: Send + 'static;

    /// Does it, on the loop. It must return at once.
    fn run(self, core: &mut Core) -> Self::Answer;

    /// As one of all calls.
    #[doc(hidden)]
    fn named(self, to: To<Self::Answer>) -> Named;
}

/// Where the answer of a call goes, and when.
#[doc(hidden)]
pub enum To<T> {
    /// When what the call changed is published, and as durable as it must be.
    Published(oneshot::Sender<T>),
    /// When everything executed so far is as durable as it must be.
    Durable(oneshot::Sender<T>),
    /// As `Published`; the call waits for both logs before, and may have to wait too long.
    Flushed(oneshot::Sender<Result<T, KvError>>),
    /// Nobody waits.
    Nowhere,
}

impl<T: Send + 'static> To<T> {
    fn give(self, core: &mut Core, answer: T) -> AfterPublish {
        match self {
            Self::Published(to) => Box::new(move || drop(to.send(answer))),
            Self::Durable(to) => {
                core.when_durable(WhenDurable::Send(Box::new(move || drop(to.send(answer)))));
                Box::new(|| {})
            }
            Self::Flushed(to) => Box::new(move || drop(to.send(Ok(answer)))),
            Self::Nowhere => Box::new(|| {}),
        }
    }

    fn refuse(self, error: KvError) {
        if let Self::Flushed(to) = self {
            drop(to.send(Err(error)));
        }
    }
}

/// Any call, for the trait's sake.
#[doc(hidden)]
pub struct Named(pub(crate) Call);

macro_rules! calls {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($field:ident: $type:ty),* $(,)? } -> $answer:ty, |$core:ident| $run:expr;
    )*) => {
        $(
            $(#[$doc])*
            pub struct $name { $(pub $field: $type),* }

            impl CoreCall for $name {
                type Answer = $answer;

                fn run(self, $core: &mut Core) -> $answer {
                    let Self { $($field),* } = self;
                    $run
                }

                fn named(self, to: To<$answer>) -> Named {
                    Named(Call::$name(self, to))
                }
            }
        )*

        /// All of them, and those that only the loop makes.
        pub(crate) enum Call {
            $($(#[$doc])* $name($name, To<$answer>),)*
            /// A read, once its range is raised.
            Read { query: RangeQuery, hints: ReadHints, owner: Weak<()>, answer: Respond<Started> },
            /// The beginning of a transaction of reads, once its ranges are raised.
            BeginReads { txn: Arc<Txn>, hints: ReadHints, owner: Weak<()>, answer: oneshot::Sender<Result<BegunReads, KvError>> },
            /// A raise of a batch, once it is visible.
            RaisedInBatch { asked: RaiseSince, reply: Reply },
            /// Reads of a batch release their pins.
            ReleasedInBatch { pins: Vec<PinId>, reply: Reply },
            /// Other modes for the Kinds, when both logs are flushed.
            SetModes { asked: KindModes, answer: oneshot::Sender<Result<Taken, KvError>> },
            /// The core asked for it.
            Durable(WhenDurable),
            /// The core asked for it.
            Logged(LoggedModes),
            /// A test looks at the core.
            Inspect(Box<dyn FnOnce(&mut Core) -> AfterPublish + Send>),
        }

        impl Call {
            /// Does it, and returns what sends its answer.
            pub(super) fn run(self, core: &mut Core) -> AfterPublish {
                match self {
                    $(Self::$name(call, to) => {
                        let answer = call.run(core);
                        to.give(core, answer)
                    })*
                    Self::Read { query, hints, owner, answer } => {
                        let read = core.read(&query, hints, &owner);
                        Box::new(move || answer.send(read))
                    }
                    Self::BeginReads { txn, hints, owner, answer } => {
                        let begun = core.begin_reads(&txn, hints, &owner);
                        Box::new(move || drop(answer.send(begun)))
                    }
                    Self::RaisedInBatch { asked, reply } => {
                        let raised = asked.run(core);
                        Box::new(move || reply.raised(raised))
                    }
                    Self::ReleasedInBatch { pins, reply } => {
                        core.release(&pins);
                        Box::new(|| reply.released())
                    }
                    Self::SetModes { asked, answer } => match modes::take(core, asked.clone()) {
                        Some(taken) => Box::new(move || drop(answer.send(Ok(taken)))),
                        None => {
                            core.when_flushed(LoggedModes { asked, answer });
                            Box::new(|| {})
                        }
                    },
                    Self::Durable(WhenDurable::Compacted(answer)) => {
                        let current = core.engine.current_all();
                        Box::new(move || drop(answer.send(Ok(current))))
                    }
                    Self::Durable(WhenDurable::Ended(leases)) => {
                        core.tell_ended(&leases);
                        Box::new(|| {})
                    }
                    Self::Durable(WhenDurable::Send(send)) => send,
                    Self::Logged(LoggedModes { asked, answer }) => {
                        let taken = modes::take_logged(core, asked);
                        Box::new(move || drop(answer.send(Ok(taken))))
                    }
                    Self::Inspect(look) => look(core),
                }
            }

            /// Answers a call that waited too long for the logs. It did nothing.
            pub(super) fn refuse(self, error: KvError) {
                match self {
                    $(Self::$name(_, to) => to.refuse(error),)*
                    Self::SetModes { answer, .. } | Self::Logged(LoggedModes { answer, .. }) => {
                        drop(answer.send(Err(error)));
                    }
                    // They do not wait for both logs.
                    Self::Read { .. }
                    | Self::BeginReads { .. }
                    | Self::RaisedInBatch { .. }
                    | Self::ReleasedInBatch { .. }
                    | Self::Durable(_)
                    | Self::Inspect(_) => {}
                }
            }
        }
    };
}

/// Alarms, and the current revision.
type Alarms = (Vec<(i32, u64)>, Revision);
/// A refusal of a unit's call, which is answered together with others.
type OfUnit<T> = Result<T, UnitError>;

calls! {
    /// The current revision of the whole shard.
    Current {} -> Revision, |core| core.engine.current_all();

    // ---- standbys

    /// Ships to standbys from now on. Made when everything is published.
    Ship {} -> (), |core| core.engine.ship(true);
    /// Takes over what the primary has shipped.
    Replicate { records: Vec<Logged>, ceiling: Revision } -> Result<(), KvError>, |core| {
        core.replicate(records, ceiling)
    };
    /// Whether checkpoint and logs have everything that the engine has.
    IsCovered {} -> bool, |core| core.disk.covered;
    /// Why the logs take nothing more, if they do not.
    Stalls {} -> Option<String>, |core| core.stalls();

    // ---- maintenance

    /// Shows, raises or clears alarms.
    Alarm { action: i32, alarm: i32, member: u64 } -> Alarms, |core| {
        let alarms = match AlarmAction::try_from(action) {
            Ok(AlarmAction::Get) => core.alarms(alarm),
            Ok(AlarmAction::Activate) if alarm != AlarmType::None as i32 => {
                core.alarm_raise(alarm, member);
                vec![(alarm, member)]
            }
            Ok(AlarmAction::Deactivate) if core.alarm_clear(alarm, member) => vec![(alarm, member)],
            Ok(AlarmAction::Activate | AlarmAction::Deactivate) | Err(_) => Vec::new(),
        };
        (alarms, core.engine.current_all())
    };
    /// Sizes, the number of requests so far, and all alarms.
    ShowStatus {} -> (EngineStats, u64, Alarms), |core| {
        let alarms = core.alarms(AlarmType::None as i32);
        (core.engine.stats(), core.applied, (alarms, core.engine.current_all()))
    };
    /// Asks for a checkpoint of everything executed so far.
    AskCheckpoint { waiter: CheckpointWaiter } -> (), |core| core.ask_checkpoint(waiter);
    /// etcd's hash at a revision, `None` = now: hash, revision, compacted revision; with the current revision.
    HashKv { at: Option<Revision> } -> (Result<(u32, Revision, Revision), EngineError>, Revision), |core| {
        (core.engine.hash_kv(at), core.engine.current_all())
    };
    /// Compacts; the answer goes to `answer` (see [`Core::compact`]).
    Compact { at: Revision, physical: bool, answer: core::Answer } -> (), |core| core.compact(at, physical, answer);
    /// Compacts what is older.
    CompactOlder { age: Duration } -> (), |core| core.compact_older(age);
    /// The state of the logs at the last report.
    ShowDurability {} -> Option<DurabilityStatus>, |core| core.durability.clone();

    // ---- long reads, watches and feeds

    /// Closes a long read.
    CloseRead { cursor: CursorId } -> (), |core| core.close(cursor);
    /// Opens a client's watch stream.
    OpenWatches { wake: Arc<Notify>, owner: Weak<()> } -> StreamId, |core| core.watch_open(wake, owner);
    /// Closes one.
    CloseWatches { stream: StreamId } -> (), |core| core.watch_close(stream);
    /// Adds a watch. A refusal comes with the current revision, for its header.
    CreateWatch { stream: StreamId, spec: WatchSpec } -> Result<WatchId, (KvError, Revision)>, |core| {
        let created = core.engine.watch_create(stream, spec);
        created.map_err(|error| (error.into(), core.engine.current_all()))
    };
    /// Cancels a watch; answers whether it existed.
    CancelWatch { stream: StreamId, watch: WatchId } -> bool, |core| core.engine.watch_cancel(stream, watch);
    /// Asks for progress on a watch stream.
    AskProgress { stream: StreamId } -> (), |core| core.engine.watch_progress(stream);
    /// Opens a feed.
    OpenFeed { wanted: FeedWanted, to: mpsc::Sender<Pushed> } -> Result<FeedId, KvError>, |core| core.feed_open(wanted, to);
    /// Closes a feed.
    CloseFeed { feed: FeedId } -> (), |core| core.feed_close(feed);
    /// Raises the ranges of a feed.
    AdvanceFeed { feed: FeedId, to: Revision } -> (), |core| core.feed_advance(feed, to);

    // ---- leases

    /// Grants a lease; answers its id and TTL, and the current revision.
    GrantLease { id: Option<LeaseId>, ttl_s: i64 } -> Result<((LeaseId, i64), Revision), KvError>, |core| {
        let granted = core.lease_grant(id, ttl_s)?;
        Ok((granted, core.engine.current_all()))
    };
    /// Ends a lease; answers the revision, and the stores that hold keys of it.
    RevokeLease { id: LeaseId } -> Result<(Revision, Vec<Slot>), KvError>, |core| core.lease_revoke(id);
    /// Renews a lease; answers its TTL. The revision is of before: it must not be above a revoke that comes right after
    /// the renewal.
    KeepLeaseAlive { id: LeaseId } -> (Result<i64, EngineError>, Revision), |core| {
        let current = core.engine.current_all();
        (core.lease_keep_alive(id), current)
    };
    /// Shows a lease, with its keys if asked for.
    ViewLease { id: LeaseId, keys: bool } -> (Result<LeaseView, EngineError>, Revision), |core| {
        (core.engine.lease_view(core.clock.mono(), id, keys), core.engine.current_all())
    };
    /// All leases at home here.
    ListLeases {} -> (Vec<LeaseId>, Revision), |core| (core.engine.leases(), core.engine.current_all());
    /// At the home: a store is about to hold keys of the lease.
    AttachLease { id: LeaseId, store: Slot } -> Result<i64, EngineError>, |core| core.engine.lease_attach(id, store);
    /// At another store: knows a lease of that home.
    AdoptLease { id: LeaseId, ttl_s: i64, home: Slot, before: Vec<Slot> } -> Result<(), EngineError>, |core| {
        core.engine.lease_adopt_after(id, ttl_s, home, &before)
    };
    /// At another store: deletes the keys of a lease that ended.
    EndLease { id: LeaseId, denied: Vec<Slot> } -> Result<Revision, KvError>, |core| core.lease_end(id, &denied);
    /// At the home: all stores have deleted the keys.
    ForgetLease { id: LeaseId } -> (), |core| core.engine.lease_forget(id);
    /// The leases that ended and wait for other stores, now and as they end.
    WatchEnded { sender: mpsc::Sender<(LeaseId, Vec<Slot>)> } -> (), |core| core.watch_ended(sender);
    /// The keys of a lease; `None` if it is not known here.
    LeaseKeys { id: LeaseId, generation: Option<Epoch> } -> Result<Option<Vec<Key>>, NotOwned>, |core| {
        core.engine.lease_keys(id, generation)
    };
    /// Hands leases to an heir; answers how many are left, too.
    HandOver { max: usize, begin: bool } -> (Vec<HandedLease>, usize), |core| {
        (core.engine.lease_hand_over(max, begin), core.engine.leases_left())
    };
    /// Inherits leases.
    InheritLeases { leases: Vec<(LeaseId, i64, Vec<Slot>)> } -> Result<(), KvError>, |core| core.lease_inherit(&leases);
    /// The heir has them.
    LeasesHanded { ids: Vec<LeaseId>, heir: Slot } -> (), |core| {
        ids.into_iter().for_each(|id| core.engine.lease_handed(id, heir));
    };
    /// Leases of these homes that are known here.
    ListAdopted { homes: Vec<Slot>, above: Option<LeaseId>, max: usize } -> Vec<AdoptedLease>, |core| {
        core.engine.leases_adopted(&homes, above, max)
    };

    // ---- routers

    /// The part of a handshake that runs here; `None`: the caller means another store. Answers the wall clock's reading,
    /// whether the shard serves, and what is wrong with it.
    Meet { handshake: Option<Handshake> } -> (Result<(WallMicros, Opening), Status>, String), |core| {
        let met = match handshake {
            Some(handshake) => core.meet(handshake),
            None => Ok((core.clock.reading(), core.opening())),
        };
        (met, core.trouble())
    };
    /// Answers a raise that is visible: the current revision of the ranges.
    Raised { ranges: Vec<KeyRange>, to: Revision, generation: Option<Epoch> } -> Result<Revision, KvError>, |core| {
        core.raise(&ranges, to, generation)
    };
    /// The same, and whether something changed.
    RaisedSince { asked: RaiseSince } -> Result<(Revision, bool), KvError>, |core| asked.run(core);
    /// Does nothing but answer: the clock may reach a revision, or what was executed is durable.
    Reachable {} -> (), |_core| ();
    /// Reads release their pins.
    ReleasePins { pins: Vec<PinId> } -> (), |core| core.release(&pins);
    /// Retains a revision, or lets it go.
    Retain { at: Revision, name: PinId, millis: u64 } -> Result<(), KvError>, |core| core.retain(at, name, millis);
    /// Answers modes that change nothing; `None` if they have to be set.
    CheckModes { asked: KindModes } -> Result<Option<Taken>, Status>, |core| {
        modes::bounded(core, &asked)?;
        Ok(modes::unchanged(core, &asked))
    };
    /// Takes the bounds for the history of Kinds.
    BoundHistory { generation: u64, kinds: BTreeMap<Key, HistoryBounds> } -> (), |core| {
        core.tell_history(generation, kinds);
    };
    /// Sizes and rates, for the plan of a move.
    ShowLoad { ranges: Vec<KeyRange> } -> pb::LoadResponse, |core| core.load(&ranges);

    // ---- moves

    /// All units, and the highest move that the shard has heard of.
    ListUnits {} -> (Vec<UnitRecord>, Option<MoveId>), |core| (core.engine.unit_records(), core.engine.highest_move());
    /// The revision at which the copy of a unit begins.
    BeginCopy { by: UnitMove } -> OfUnit<Revision>, |core| core.unit_call(|core| core.engine.unit_copy_begin(&by));
    /// The next keys of a unit.
    CopyUnit { by: UnitMove, after: Option<Key>, keys: usize, bytes: usize } -> OfUnit<CopyChunk>, |core| {
        core.unit_call(|core| core.engine.unit_copy(&by, after.as_ref(), keys, bytes))
    };
    /// A digest of the next keys of a unit.
    VerifyUnit { unit: Unit, floor: Revision, at: Revision, after: Option<Key> } -> OfUnit<Option<UnitDigest>>, |core| {
        core.unit_call(|core| core.engine.unit_verify(&unit, floor, at, after.as_ref()))
    };
    /// The encoded tails of units, up to about `left` bytes; answers what is left of these.
    Tails { units: Vec<(Unit, Revision)>, left: usize } -> (Vec<OfUnit<Bytes>>, usize), |core| {
        let mut left = left;
        let tails = units.iter().map(|(unit, start)| {
            // Once the answer is full, the remaining tails stay empty.
            let tail = match left {
                0 => Ok(Bytes::new()),
                _ => core.engine.unit_tail(unit, *start, left).map(|out| encode::feed::response(&out)),
            };
            left = left.saturating_sub(tail.as_ref().map_or(0, Bytes::len));
            tail
        });
        (tails.collect(), left)
    };
    /// One turn of calls about units.
    RunJobs { jobs: Jobs, turn: Turn } -> Jobs, |core| jobs.turn(core, turn);
}
