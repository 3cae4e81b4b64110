//! The writer of a log: [`core`] decides on the next step and [`executor`] performs it, in turns, on the log's
//! thread.

pub(crate) mod core;
pub(crate) mod executor;

use std::{fmt, io, time::Duration};

use crate::number::{FileNumber, FrameSeq};

/// An event of a log. Events are reported in order, from the log's own threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// In the buffered log: every frame up to this one was written to the operating system. They survive the
    /// process, but not yet a crash of the machine.
    Written {
        /// The last such frame.
        seq: FrameSeq,
    },
    /// Every frame up to this one is durable.
    Durable {
        /// The last such frame.
        seq: FrameSeq,
        /// The number of bytes that were written for these frames.
        bytes: u64,
        /// The time to write and sync them: `etcd_disk_wal_fsync_duration_seconds`.
        took: Duration,
    },
    /// The disk refuses writes. No frame becomes durable until [`Event::Recovered`]; pending frames are kept in
    /// memory and retried. Reported again when the reason changes.
    Failing(Failure),
    /// The disk accepts writes again. The pending frames have been written, and [`Event::Durable`] follows.
    Recovered,
}

/// Why a log cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The class of the failure.
    pub reason: FailureReason,
    /// The system's error message and the file's name.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The class of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureReason {
    /// The disk or a quota is full.
    NoSpace,
    /// The file system is read-only.
    ReadOnly,
    /// Any other I/O error.
    Io,
}

impl FailureReason {
    #[must_use]
    pub fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly,
            _ => Self::Io,
        }
    }

    /// The label in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoSpace => "no_space",
            Self::ReadOnly => "read_only",
            Self::Io => "io",
        }
    }
}

/// The progress of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogStatus {
    /// The last durable frame; 0 if there is none.
    pub durable: FrameSeq,
    /// The sequence number of the next frame.
    pub next: FrameSeq,
    /// The length of the frames that are not yet durable, which a crash would lose.
    pub pending_bytes: u64,
    /// The age of the oldest of these frames.
    pub pending_for: Duration,
    pub segment: Option<FileNumber>,
    pub written_bytes: u64,
    /// Why writes fail at present, if they do.
    pub failing: Option<Failure>,
}
