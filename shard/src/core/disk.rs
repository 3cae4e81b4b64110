//! What the loop knows of the disk: which writes it takes, and what is to be done once something is there.

use kindred_engine::{
    durability::{Durability, KindModes, ModesError, ModesTaken},
    ops::Op,
};
use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
    kind::Located,
};
use kindred_wire::error::EtcdError;

use super::Core;
use crate::{
    apply_loop::{Call, Flushed},
    durability::checkpoint::CheckpointWaiter,
    etcd_status::KvError,
};

/// Whether the log of a mode takes what is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogState {
    /// It does, or there is none.
    #[default]
    Takes,
    /// So much waits for the disk that no more is taken.
    Full,
    /// The disk refuses: no space, an error, read-only.
    Failing,
}

/// The state of both logs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Disk {
    /// Of the Kinds of mode buffered.
    pub buffered: LogState,
    /// Of the Kinds of mode fsync, and of leases, units and compactions of all.
    pub fsync: LogState,
}

impl Disk {
    fn check(self, mode: Durability) -> Result<(), KvError> {
        let state = match mode {
            Durability::None => LogState::Takes,
            Durability::Buffered => self.buffered,
            Durability::Fsync => self.fsync,
        };
        match state {
            LogState::Takes => Ok(()),
            LogState::Full => Err(KvError::Invalid(EtcdError::TooManyRequests)),
            LogState::Failing => Err(KvError::NoSpace),
        }
    }

    /// Whether NOSPACE is raised because of it.
    #[must_use]
    pub fn is_failing(self) -> bool {
        [self.buffered, self.fsync].contains(&LogState::Failing)
    }
}

impl Core {
    /// The clock is right now: a shard that found nothing of before begins at its present.
    pub fn begin(&mut self) {
        if !std::mem::take(&mut self.found_nothing) {
            return;
        }
        let (ceiling, modes) = (self.engine.ceiling(), self.engine.modes().clone());
        self.engine.begin_at(self.clock.wall());
        if self.keeps {
            self.engine.log_changes();
        }
        self.engine.set_ceiling(ceiling);
        if let Err(error) = self.set_modes(modes) {
            tracing::error!(%error, "the modes of the Kinds are not in force");
        }
    }

    /// Other modes (see [`Engine::set_modes`](kindred_engine::engine::Engine::set_modes)), when both logs are flushed; those
    /// that need a checkpoint first get one.
    pub fn set_modes(&mut self, modes: KindModes) -> Result<ModesTaken, ModesError> {
        let generation = modes.generation;
        let taken = self.engine.set_modes(modes)?;
        if taken == ModesTaken::AfterCheckpoint {
            self.modes_wait = Some(generation);
        }
        Ok(taken)
    }

    /// Runs something, once more, when what was logged until now is on disk; nothing is executed before.
    pub(crate) fn again_when_flushed(&mut self, call: Flushed) {
        self.again = Some(call);
    }

    /// What is to be run so.
    pub(crate) fn take_again(&mut self) -> Option<Flushed> {
        self.again.take()
    }

    /// Whether there is a present to assign from (R3), and the clock's ceiling leaves room for another revision (R2).
    #[must_use]
    pub fn may_assign(&self) -> bool {
        self.clock.is_confirmed() && self.engine.may_assign(self.clock.wall())
    }

    /// Whether the ceiling is in the way of a revision that the clock may follow to (R3). For one that it may not follow to
    /// no ceiling is raised: it is refused, or answered with what there is.
    #[must_use]
    pub fn waits_for_ceiling(&self, to: Revision) -> bool {
        !self.engine.may_reach(to) && self.engine.may_follow(self.clock.wall(), to)
    }

    /// What does not work though the shard serves, for the operators of its routers; empty when all does. Of the clock's
    /// ceiling the shard's own readiness tells: a first or late one is no trouble while it is on its way.
    #[must_use]
    pub fn trouble(&self) -> String {
        let logs = [("fsync", self.disk.fsync), ("buffered", self.disk.buffered)];
        let failing = logs.into_iter().filter(|(_, state)| *state == LogState::Failing);
        match failing.map(|(mode, _)| mode).collect::<Vec<_>>()[..] {
            [] => String::new(),
            ref modes => format!("cannot write its log of mode {}: see its disk", modes.join(" and ")),
        }
    }

    /// What a shard that has begun to serve refuses at the moment, for who looks at it; nothing when all is well.
    #[must_use]
    pub fn refuses(&self) -> Option<&'static str> {
        if !self.opened {
            None
        } else if !self.may_assign() {
            Some("writes: the clock's ceiling cannot be raised on disk")
        } else if self.disk.fsync == LogState::Failing {
            Some("writes to Kinds of mode fsync, and leases: their log cannot be written")
        } else if self.disk.buffered == LogState::Failing {
            Some("writes to Kinds of mode buffered: their log cannot be written")
        } else {
            None
        }
    }

    /// Whether the Kinds that the request writes may take more room: one that is full stops its own writes only.
    pub(super) fn check_quota(&self, op: &Op) -> Result<(), KvError> {
        if self.quotas.is_empty() {
            return Ok(());
        }
        match op {
            Op::Put(put) => {
                let kind = self.only_kind_of(&put.key);
                let full =
                    |quota: &u64| self.engine.kind_bytes(kind).saturating_add(super::cost(op)) >= *quota;
                if self.quotas.get(kind).is_some_and(full) { Err(KvError::NoSpace) } else { Ok(()) }
            }
            Op::Txn(txn) => txn.success.iter().chain(&txn.failure).try_for_each(|op| self.check_quota(op)),
            Op::Range(_) | Op::Delete(_) => Ok(()),
        }
    }

    fn only_kind_of<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        match self.kinds.locate(key) {
            Located::Object { kind } => kind,
            Located::Pseudo { .. } | Located::Health | Located::Other => &[],
        }
    }

    /// Whether the logs take what the request may write.
    pub(super) fn check_disk(&self, op: &Op) -> Result<(), KvError> {
        if self.disk == Disk::default() {
            return Ok(());
        }
        match op {
            Op::Range(_) => Ok(()),
            Op::Put(put) => self.check_range(&KeyRange::Single(put.key.clone())),
            Op::Delete(delete) => self.check_range(&delete.range),
            Op::Txn(txn) => txn.success.iter().chain(&txn.failure).try_for_each(|op| self.check_disk(op)),
        }
    }

    fn check_range(&self, range: &KeyRange) -> Result<(), KvError> {
        let modes = self.engine.modes();
        match self.only_kind(range) {
            Some(prefix) => self.disk.check(modes.of(prefix)),
            None => modes.kinds.values().chain([&modes.default]).try_for_each(|mode| self.disk.check(*mode)),
        }
    }

    /// The Kind prefix of all keys of a range, empty for keys of no Kind; `None` when they may be of several.
    fn only_kind<'r>(&self, range: &'r KeyRange) -> Option<&'r [u8]> {
        let kind = self.only_kind_of(range.start());
        match range {
            KeyRange::Single(_) => Some(kind),
            KeyRange::Span { end: Some(end), .. } if !kind.is_empty() => {
                let last = Key::copy_from(kind).prefix_end();
                (last.is_none_or(|last| *end <= last)).then_some(kind)
            }
            KeyRange::Span { .. } => None,
        }
    }

    /// The same of leases, which are always on disk.
    pub(super) fn check_lease_disk(&self) -> Result<(), KvError> {
        self.disk.check(Durability::Fsync)
    }

    /// Whether something that deletes keys by itself may do so.
    pub(super) fn check_clock(&self) -> Result<(), KvError> {
        if self.may_assign() { Ok(()) } else { Err(KvError::DiskWait) }
    }

    /// To be run when everything that was executed so far is on disk where it must be.
    pub(crate) fn when_durable(&mut self, call: Call) {
        self.deferred.push(call);
    }

    /// What is to be run then.
    pub(crate) fn take_deferred(&mut self) -> Vec<Call> {
        self.defer_ended();
        std::mem::take(&mut self.deferred)
    }

    /// Asks for a checkpoint that holds everything executed so far.
    pub fn ask_checkpoint(&mut self, waiter: CheckpointWaiter) {
        self.checkpoint_waiters.push(waiter);
    }

    /// Who asked since the last call.
    pub(crate) fn checkpoint_waiters(&mut self) -> Vec<CheckpointWaiter> {
        std::mem::take(&mut self.checkpoint_waiters)
    }
}
