//! The errors of this crate, and what damage costs.

use std::{
    error::Error,
    fmt, io,
    path::{Path, PathBuf},
};

use kindred_partition_config::ids::Revision;

use crate::{
    format::{FrameDamage, HeaderDamage},
    number::{FileNumber, FrameSeq},
    record::RecordDamage,
};

/// The error of a caller that cannot accept what was read.
pub type VisitError = Box<dyn Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// A file system operation failed.
    #[error("cannot {doing} {path}: {source}", path = path.display())]
    Io {
        /// The operation that failed, such as "write".
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Durable data is missing or has changed.
    #[error("{0}")]
    Damaged(Box<Loss>),
    /// A later version of this program wrote the file. `--accept-data-loss` does not help, and is not needed.
    #[error("{path} cannot be read: {why}", path = path.display())]
    Newer {
        path: PathBuf,
        /// The unknown format, version or record.
        why: Damage,
    },
    /// The clock file is missing though it must exist, or both of its slots are damaged.
    #[error(
        "{path} {why}: the ceiling of this shard's revisions is lost, and how far its logs were on the disk. Restore the file; or, with \
         --accept-data-loss, the shard starts above every revision in its logs and at or above the wall clock, its Kinds of mode none may \
         see revisions again, and a log that was cut off is not found out",
        path = path.display()
    )]
    Clock {
        path: PathBuf,
        /// What is wrong with the file.
        why: ClockDamage,
    },
    /// The caller could not accept a frame.
    #[error("what {path} holds at byte {offset} cannot be taken: {source}", path = path.display())]
    Visit {
        path: PathBuf,
        /// The frame's offset in the file.
        offset: u64,
        source: VisitError,
    },
}

impl WalError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}

/// What is wrong with the clock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClockDamage {
    #[error("has no whole slot")]
    Slots,
    /// The file is missing, but files exist that a shard creates after it.
    #[error("is missing, though {0} is there")]
    Missing(&'static str),
}

/// What is wrong with a file of the log or a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The file header is damaged.
    #[error("{0}")]
    Header(#[from] HeaderDamage),
    #[error("{0}")]
    Frame(#[from] FrameDamage),
    #[error("the file is missing")]
    Missing,
    /// The log ends before a frame that was durable.
    #[error("it ends after frame {last}, but {needed} frames were on the disk")]
    TooShort {
        /// The last frame in the log.
        last: FrameSeq,
        /// The last frame that was durable.
        needed: FrameSeq,
    },
    /// The file is shorter than it was when it got its name.
    #[error("it has {bytes} bytes, but had {were} or more")]
    Cut {
        /// The file's present length.
        bytes: u64,
        /// The length that its header records.
        were: u64,
    },
    /// A checkpoint lacks its first or its last frame.
    #[error("it is not a whole checkpoint")]
    Incomplete,
    /// The log relies on a checkpoint that is missing or damaged.
    #[error(
        "the fsync log relies on checkpoint {0}, which cannot be read: it has all that was written of a Kind before that was kept in a log"
    )]
    NeedsCheckpoint(FileNumber),
}

impl Damage {
    /// Whether the file is intact but of a later version.
    pub(crate) const fn is_newer(&self) -> bool {
        matches!(
            self,
            Self::Header(HeaderDamage::Newer(_))
                | Self::Frame(FrameDamage::Records { why: RecordDamage::Unknown(_), .. })
        )
    }
}

/// Damage, and what is lost by continuing without the damaged part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    pub file: PathBuf,
    /// The offset at which the damage begins.
    pub offset: u64,
    pub damage: Damage,
    /// Readable frames after the damage, which are lost with it.
    pub frames: u64,
    /// Bytes from the damage to the end of the log, without the zeros at the ends of files.
    pub bytes: u64,
    /// The lowest and the highest revision in those frames, if known.
    pub revisions: Option<(Revision, Revision)>,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, damage, frames, bytes, revisions } = self;
        write!(f, "{} is damaged at byte {offset}: {damage}; ", file.display())?;
        write!(f, "from there on {bytes} bytes are lost, among them {frames} readable frames")?;
        if let Some((first, last)) = revisions {
            write!(f, " of revisions {first} to {last}")?;
        }
        f.write_str(
            ". Restore the file from a copy, or start once with --accept-data-loss to go on without all that",
        )
    }
}

/// The reaction to damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDamage {
    /// Return an error.
    Refuse,
    /// Continue with what comes before the damage, and report the loss (`--accept-data-loss`).
    Accept,
}

/// The incomplete last write that a crash left at the end of a log. None of it was ever reported durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    pub file: PathBuf,
    /// The offset at which the last whole frame ends.
    pub offset: u64,
    /// The number of bytes after it, without the zeros at the end.
    pub bytes: u64,
    /// Why these bytes are not a valid frame.
    pub damage: FrameDamage,
}

impl fmt::Display for TornTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, offset, bytes, damage } = self;
        let file = file.display();
        write!(
            f,
            "{file}: the last write was cut short by a crash; {bytes} bytes from byte {offset} on are left out ({damage})"
        )
    }
}
