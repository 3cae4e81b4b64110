//! What of a shard outlives its process: both logs, checkpoints, the clock's ceiling, and what a start finds of them.
//!
//! The loop hands every batch to the logs and goes on ([`Logs::append`]); threads of the logs write, and tell the loop by one
//! [`Notify`]; the loop then takes in what they did ([`Logs::settle`]). Positions in the log of mode fsync say which answers
//! may go out; those to writes of mode buffered go out when the system has what they wrote. Nothing here waits for a disk but the start and the end.

pub mod ceiling;
pub mod checkpoint;
pub mod clock_file;
#[cfg(test)]
mod crashes;
pub mod failpoint;
pub mod kept;
pub mod record;
pub mod recovery;
pub mod reserve;
pub mod start;
pub mod status;
pub mod stopped;
pub mod times;
pub mod waiting;

use std::sync::Arc;

use kindred_engine::engine::Engine;
use kindred_partition_config::ids::Revision;
use tokio::{sync::Notify, time::Instant};

use crate::core::Core;

use self::{kept::Kept, status::DurabilityStatus};

/// The logs under a shard.
#[derive(Debug)]
pub enum Logs {
    /// Nothing is kept: a restart is empty, and every revision of before is compacted.
    Memory(Arc<Notify>),
    /// A data directory.
    Kept(Box<Kept>),
}

impl Logs {
    /// Those of a shard that keeps nothing.
    #[must_use]
    pub fn memory() -> Self {
        Self::Memory(Arc::new(Notify::new()))
    }

    /// Notified when there is something to [`Logs::settle`].
    #[must_use]
    pub fn changed(&self) -> Arc<Notify> {
        match self {
            Self::Memory(never) => never.clone(),
            Self::Kept(kept) => kept.changed(),
        }
    }

    /// Hands over what was applied since the last time.
    pub fn append(&mut self, engine: &mut Engine) {
        match self {
            // It has nothing to say then.
            Self::Memory(_) => {
                let applied = engine.take_applied();
                engine.publish_fsync(applied.mark);
            }
            Self::Kept(kept) => kept.append(engine),
        }
    }

    /// Where the log of mode fsync stands after the last [`Logs::append`].
    #[must_use]
    pub fn position(&self) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::Kept(kept) => kept.position(),
        }
    }

    /// Up to where that log is on disk and published.
    #[must_use]
    pub fn durable(&self) -> u64 {
        match self {
            Self::Memory(_) => u64::MAX,
            Self::Kept(kept) => kept.durable(),
        }
    }

    /// Where the log of mode buffered stands after the last [`Logs::append`].
    #[must_use]
    pub fn position_buffered(&self) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::Kept(kept) => kept.position_buffered(),
        }
    }

    /// Up to where the system has that log: it outlives this process, though not yet the system.
    #[must_use]
    pub fn written(&self) -> u64 {
        match self {
            Self::Memory(_) => u64::MAX,
            Self::Kept(kept) => kept.written(),
        }
    }

    /// Whether all that was appended to either log is on disk; makes haste when not.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Kept(kept) => kept.is_flushed(),
        }
    }

    /// Takes in what the threads did: publishes, raises the ceiling, notes what the disk takes.
    pub fn settle(&mut self, core: &mut Core) {
        match self {
            Self::Memory(_) => {}
            Self::Kept(kept) => kept.settle(core),
        }
    }

    /// The clock's ceiling is in the way of something that wants to assign, or to come to a revision.
    pub fn ask_ceiling(&mut self, to: Option<Revision>) {
        if let Self::Kept(kept) = self {
            kept.ask_ceiling(to);
        }
    }

    /// A slice of a checkpoint, if one is due or under way.
    pub fn checkpoint_slice(&mut self, core: &mut Core) {
        match self {
            // Everything that there is to keep is kept.
            Self::Memory(_) => {
                core.checkpoint_waiters().into_iter().for_each(|waiter| drop(waiter.send(Ok(()))))
            }
            Self::Kept(kept) => kept.checkpoint_slice(core),
        }
    }

    /// Whether a checkpoint has another slice to be taken now.
    #[must_use]
    pub fn has_checkpoint_work(&self) -> bool {
        match self {
            Self::Memory(_) => false,
            Self::Kept(kept) => kept.has_checkpoint_work(),
        }
    }

    /// When there is something to be done again.
    #[must_use]
    pub fn next_timer(&self) -> Option<Instant> {
        match self {
            Self::Memory(_) => None,
            Self::Kept(kept) => kept.next_timer(),
        }
    }

    /// How the logs stand, for status and metrics; told to metrics, too.
    pub fn report(&mut self, core: &Core) -> Option<DurabilityStatus> {
        match self {
            Self::Memory(_) => None,
            Self::Kept(kept) => Some(kept.report(core)),
        }
    }

    /// The end: everything appended is written, and the next start finds that nothing is missing.
    pub async fn close(self, core: &mut Core) {
        match self {
            Self::Memory(_) => {}
            Self::Kept(kept) => kept.close(core).await,
        }
    }
}
