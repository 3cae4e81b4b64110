//! The parts of a shard that outlive its process: two logs, checkpoints, the clock's ceiling, and recovery from them.
//!
//! The loop hands every batch to the logs and continues ([`Logs::append`]). Threads of the logs write, and notify the
//! loop through one [`Notify`]; the loop then handles what they completed ([`Logs::settle`]). Positions in the fsync
//! log tell which answers may be sent; answers to writes of mode `buffered` are sent when the kernel has the record.
//! Only the start and the stop wait for a disk.

pub mod ceiling;
pub mod checkpoint;
pub mod clock_file;
#[cfg(test)]
mod crashes;
pub mod disk_logs;
pub mod failpoint;
pub mod record;
pub mod recovery;
pub mod reserve;
pub mod start;
pub mod status;
pub mod stopped;
pub mod times;
pub mod waiting;

use std::sync::Arc;

use kindred_engine::{durability::Applied, engine::Engine};
use kindred_partition_config::ids::Revision;
use tokio::{sync::Notify, time::Instant};

use crate::{core::Core, standby::shipping::Shipping};

use self::{disk_logs::DiskLogs, status::DurabilityStatus};

#[derive(Debug)]
pub enum Logs {
    /// Nothing is kept: after a restart the shard is empty and all earlier revisions are compacted.
    Memory(Arc<Notify>),
    OnDisk(Box<DiskLogs>),
}

impl Logs {
    /// The logs of a shard that keeps nothing.
    #[must_use]
    pub fn memory() -> Self {
        Self::Memory(Arc::new(Notify::new()))
    }

    /// Notified when [`Logs::settle`] has something to do.
    #[must_use]
    pub fn changed(&self) -> Arc<Notify> {
        match self {
            Self::Memory(never) => never.clone(),
            Self::OnDisk(logs) => logs.changed(),
        }
    }

    /// Hands over what was applied, which was shipped up to a position.
    pub fn append(&mut self, engine: &mut Engine, applied: Applied, shipped: u64) {
        match self {
            // The records are dropped.
            Self::Memory(_) => engine.publish_fsync(applied.mark),
            Self::OnDisk(logs) => logs.append(applied, shipped),
        }
    }

    /// The position of the fsync log after the last [`Logs::append`].
    #[must_use]
    pub fn position(&self) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::OnDisk(logs) => logs.position(),
        }
    }

    /// The position up to which the fsync log is on disk and published.
    #[must_use]
    pub fn durable(&self) -> u64 {
        match self {
            Self::Memory(_) => u64::MAX,
            Self::OnDisk(logs) => logs.durable(),
        }
    }

    /// The position of the buffered log after the last [`Logs::append`].
    #[must_use]
    pub fn position_buffered(&self) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::OnDisk(logs) => logs.position_buffered(),
        }
    }

    /// The position up to which the kernel has the buffered log: it outlives this process, but not a crash of the
    /// machine.
    #[must_use]
    pub fn written(&self) -> u64 {
        match self {
            Self::Memory(_) => u64::MAX,
            Self::OnDisk(logs) => logs.written(),
        }
    }

    /// Whether everything appended to either log is on disk; if not, hurries the flush.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::OnDisk(logs) => logs.is_flushed(),
        }
    }

    /// Whether everything is on disk and published, and the ceiling on disk is above this one; if not, hurries that.
    pub fn is_whole_above(&mut self, ceiling: Revision) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::OnDisk(logs) => logs.is_whole_above(ceiling),
        }
    }

    /// Handles what the threads completed: publishes, raises the ceiling, and notes whether the logs take writes.
    /// Of what is shipped, only what the standbys have is published (R18).
    pub fn settle(&mut self, core: &mut Core, shipping: &mut Shipping) {
        match self {
            Self::Memory(_) => {}
            Self::OnDisk(logs) => logs.settle(core, shipping),
        }
    }

    /// Requests a higher ceiling for an assignment, or for a raise to `to`.
    pub fn ask_ceiling(&mut self, to: Option<Revision>) {
        if let Self::OnDisk(logs) = self {
            logs.ask_ceiling(to);
        }
    }

    /// Does a slice of a checkpoint, if one is due or under way.
    pub fn checkpoint_slice(&mut self, core: &mut Core) {
        match self {
            // There is nothing to keep.
            Self::Memory(_) => {
                core.checkpoint_waiters().into_iter().for_each(|waiter| drop(waiter.send(Ok(()))))
            }
            Self::OnDisk(logs) => logs.checkpoint_slice(core),
        }
    }

    /// Whether a checkpoint under way should be written without rests.
    #[must_use]
    pub fn checkpoint_is_urgent(&self) -> bool {
        matches!(self, Self::OnDisk(logs) if logs.checkpoint_is_urgent())
    }

    /// Whether a checkpoint has another slice to do at once.
    #[must_use]
    pub fn has_checkpoint_work(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::OnDisk(logs) => logs.has_checkpoint_work(),
        }
    }

    /// When the loop must look at the logs again.
    #[must_use]
    pub fn next_timer(&self, core: &Core) -> Option<Instant> {
        match self {
            Self::Memory(_) => None,
            Self::OnDisk(logs) => logs.next_timer(core),
        }
    }

    /// The state of the logs, for status; also updates the metrics.
    pub fn report(&mut self, core: &Core) -> Option<DurabilityStatus> {
        match self {
            Self::Memory(_) => None,
            Self::OnDisk(logs) => Some(logs.report(core)),
        }
    }

    /// Takes driven jobs through their steps until none works. Returns whether one did.
    pub fn work(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::OnDisk(logs) => logs.workers.work(),
        }
    }

    /// As [`Logs::close`], with driven jobs.
    pub fn close_driven(self, core: &mut Core) {
        match self {
            Self::Memory(_) => {}
            Self::OnDisk(logs) => logs.close_driven(core),
        }
    }

    /// Stops cleanly: everything appended is written, and the next start finds that nothing is missing.
    pub async fn close(self, core: &mut Core) {
        match self {
            Self::Memory(_) => {}
            Self::OnDisk(logs) => logs.close(core).await,
        }
    }
}
