//! The writer of a log: what to do is decided by [`core`], done by [`executor`], one after the other on a thread of its own.

pub(crate) mod core;
pub(crate) mod executor;

use std::{fmt, io, time::Duration};

use crate::number::{FileNumber, FrameSeq};

/// What a log tells. Told in order, from the log's own thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Of the buffered log: the system has every frame up to this one, so that they outlive the process, though not yet the system.
    Written {
        /// The last one.
        seq: FrameSeq,
    },
    /// Every frame up to this one is on the disk.
    Durable {
        /// The last one.
        seq: FrameSeq,
        /// How many bytes were written for it.
        bytes: u64,
        /// How long it took to write and sync them: `etcd_disk_wal_fsync_duration_seconds`.
        took: Duration,
    },
    /// The disk does not take what is written. Nothing appended from now on becomes durable until [`Event::Recovered`]. What is not yet
    /// durable is kept in memory and tried again. Told again when the reason changes.
    Failing(Failure),
    /// The disk takes it again. What could not be written has been written; its [`Event::Durable`] follows.
    Recovered,
}

/// Why a log cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// What it comes to.
    pub reason: FailureReason,
    /// What the system said, and of which file.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// What a failure comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureReason {
    /// The disk, or the quota, is full.
    NoSpace,
    /// The file system cannot be written any more.
    ReadOnly,
    /// Anything else: the disk is failing.
    Io,
}

impl FailureReason {
    /// What an error comes to.
    #[must_use]
    pub fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly,
            _ => Self::Io,
        }
    }

    /// For metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSpace => "no_space",
            Self::ReadOnly => "read_only",
            Self::Io => "io",
        }
    }
}

/// What a log has done and still has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogStatus {
    /// The last frame that is on the disk; 0 when there is none.
    pub durable: FrameSeq,
    /// The next frame that is appended.
    pub next: FrameSeq,
    /// Bytes of the frames that are not yet durable: what a crash would lose.
    pub pending_bytes: u64,
    /// For how long the oldest of them has been waiting.
    pub pending_for: Duration,
    /// The segment that is being written.
    pub segment: Option<FileNumber>,
    /// Bytes written since the start.
    pub written_bytes: u64,
    /// Why it cannot be written now.
    pub failing: Option<Failure>,
}
