//! The loop's view of the disk: which writes the logs take, and calls that wait for them.

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
use tokio::sync::oneshot;

use super::{Core, Later, LoggedModes, WhenDurable};
use crate::etcd_status::KvError;

/// What has waited for the disk so long, in milliseconds, says that it hangs. Usual are some dozens.
const HANGS_MS: u64 = 1_000;

/// A caller that waits for a checkpoint begun after its request.
pub type CheckpointWaiter = oneshot::Sender<Result<(), String>>;

/// Whether the log of a mode takes writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogState {
    /// It takes writes, or there is no log.
    #[default]
    Takes,
    /// Too much already waits for the disk.
    Full,
    /// The disk refuses: no space, an error, or read-only.
    Failing,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Disk {
    /// The log of Kinds in mode `buffered`.
    pub buffered: LogState,
    /// The log of Kinds in mode `fsync`, and of all leases, units and compactions.
    pub fsync: LogState,
    /// Whether checkpoint and logs have everything. A standby's do not before its first checkpoint.
    pub covered: bool,
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

    /// Whether NOSPACE is raised because of a log.
    #[must_use]
    pub fn is_failing(self) -> bool {
        [self.buffered, self.fsync].contains(&LogState::Failing)
    }
}

impl Core {
    /// Called when the clock is confirmed: a shard that found no data begins at its present.
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

    /// Whether it has begun, so that its engine stays.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.opened || !self.found_nothing
    }

    /// Sets other modes when both logs are flushed (see
    /// [`Engine::set_modes`](kindred_engine::engine::Engine::set_modes)), and requests a checkpoint for those that need
    /// one first.
    pub fn set_modes(&mut self, modes: KindModes) -> Result<ModesTaken, ModesError> {
        let generation = modes.generation;
        let taken = self.engine.set_modes(modes)?;
        if taken == ModesTaken::AfterCheckpoint {
            self.modes_wait = Some(generation);
        }
        Ok(taken)
    }

    /// Puts modes in force when what was logged so far is on disk, with nothing executed before.
    pub(crate) fn when_flushed(&mut self, modes: LoggedModes) {
        self.later.push(Later::Flushed(modes));
    }

    /// Whether the clock is confirmed (R3) and its ceiling leaves room for another revision (R2).
    #[must_use]
    pub fn may_assign(&self) -> bool {
        self.replica.is_none() && self.clock.is_confirmed() && self.engine.may_assign(self.clock.wall())
    }

    /// Whether only the ceiling keeps the clock from a revision. A revision that it may not follow to (R3) waits for no
    /// ceiling: it is refused, or answered with the present one.
    #[must_use]
    pub fn waits_for_ceiling(&self, to: Revision) -> bool {
        !self.engine.may_reach(to) && self.engine.may_follow(self.clock.wall(), to)
    }

    /// A description of the trouble of a shard that serves, for the operators of its routers; empty without trouble.
    /// The ceiling is left to the shard's own readiness, since a first or late one is no trouble while it is being
    /// written.
    #[must_use]
    pub fn trouble(&self) -> String {
        let logs = [("fsync", self.disk.fsync), ("buffered", self.disk.buffered)];
        let failing = logs.into_iter().filter(|(_, state)| *state == LogState::Failing);
        match failing.map(|(mode, _)| mode).collect::<Vec<_>>()[..] {
            [] => String::new(),
            ref modes => format!("cannot write its log of mode {}: see its disk", modes.join(" and ")),
        }
    }

    /// Why the logs take nothing more, if one of them does not. Those of a standby are given whatever comes, so it is the
    /// standby that stops then.
    #[must_use]
    pub fn stalls(&self) -> Option<String> {
        if self.disk.is_failing() {
            return Some(self.trouble());
        }
        let full = [self.disk.fsync, self.disk.buffered].contains(&LogState::Full);
        let mut logs = self.durability.iter().flat_map(|status| &status.logs);
        let hangs = logs.any(|log| log.not_durable_ms >= HANGS_MS);
        (full || hangs).then(|| "waits for its disk, which is too slow or hangs".to_owned())
    }

    /// The requests that a shard that serves refuses at present, for its operators; `None` when it refuses none.
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

    /// Refuses a write to a Kind that is over its quota; other Kinds are not affected.
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

    /// Refuses a request whose writes the logs do not take.
    pub(super) fn check_disk(&self, op: &Op) -> Result<(), KvError> {
        if (self.disk.fsync, self.disk.buffered) == <(LogState, LogState)>::default() {
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

    /// The prefix of the only Kind of a range's keys, empty for keys of no Kind; `None` when there may be several.
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

    /// Refuses lease changes that the fsync log does not take.
    pub(super) fn check_lease_disk(&self) -> Result<(), KvError> {
        self.disk.check(Durability::Fsync)
    }

    /// Refuses internal deletions while no revision may be assigned.
    pub(super) fn check_clock(&self) -> Result<(), KvError> {
        if self.may_assign() { Ok(()) } else { Err(KvError::DiskWait) }
    }

    /// Does something when everything executed so far is as durable as it must be.
    pub(crate) fn when_durable(&mut self, call: WhenDurable) {
        self.later.push(Later::Durable(call));
    }

    /// Takes the calls that were asked for since the last time.
    pub(crate) fn take_later(&mut self) -> Vec<Later> {
        self.defer_ended();
        std::mem::take(&mut self.later)
    }

    /// Requests a checkpoint that holds everything executed so far.
    pub fn ask_checkpoint(&mut self, waiter: CheckpointWaiter) {
        self.checkpoint_waiters.push(waiter);
    }

    /// Takes the waiters that came since the last call.
    pub(crate) fn checkpoint_waiters(&mut self) -> Vec<CheckpointWaiter> {
        std::mem::take(&mut self.checkpoint_waiters)
    }
}
