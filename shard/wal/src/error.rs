//! What can go wrong, and what damage costs.

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

/// What the caller of a reader answers when it cannot take what was read.
pub type VisitError = Box<dyn Error + Send + Sync>;

/// Why files cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The file system refuses.
    #[error("cannot {doing} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Something that was on the disk is not there any more, or is not what was written.
    #[error("{0}")]
    Damaged(Box<Loss>),
    /// A later version of this program wrote it. `--accept-data-loss` does not help here, and need not.
    #[error("{path} cannot be read: {why}", path = path.display())]
    Newer {
        /// Which file.
        path: PathBuf,
        /// What is not known.
        why: Damage,
    },
    /// The clock's file is not there, though it must be, or both of its slots are damaged.
    #[error(
        "{path} {why}: the ceiling of this shard's revisions is lost, and how far its logs were on the disk. Restore the file; or, with \
         --accept-data-loss, the shard starts above every revision in its logs and at or above the wall clock, its Kinds of mode none may \
         see revisions again, and a log that was cut off is not found out",
        path = path.display()
    )]
    Clock {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: ClockDamage,
    },
    /// The caller could not take what was read.
    #[error("what {path} holds at byte {offset} cannot be taken: {source}", path = path.display())]
    Visit {
        /// Which file.
        path: PathBuf,
        /// Where the frame begins.
        offset: u64,
        /// The caller's error.
        source: VisitError,
    },
}

impl WalError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { doing, path, source }
    }
}

/// What is wrong with the clock's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClockDamage {
    /// Neither slot is whole.
    #[error("has no whole slot")]
    Slots,
    /// It is not there, but other files are that a shard makes after it.
    #[error("is missing, though {0} is there")]
    Missing(&'static str),
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Its head.
    #[error("{0}")]
    Header(#[from] HeaderDamage),
    /// A frame.
    #[error("{0}")]
    Frame(#[from] FrameDamage),
    /// It is not there.
    #[error("the file is missing")]
    Missing,
    /// It ends before something that was on the disk.
    #[error("it ends after frame {last}, but {needed} frames were on the disk")]
    TooShort {
        /// The last frame that is there.
        last: FrameSeq,
        /// The last one that was on the disk.
        needed: FrameSeq,
    },
    /// It is shorter than it was.
    #[error("it has {bytes} bytes, but had {were} or more")]
    Cut {
        /// Its length.
        bytes: u64,
        /// What was on the disk before it got its name.
        were: u64,
    },
    /// A checkpoint without its last frame, or without its first.
    #[error("it is not a whole checkpoint")]
    Incomplete,
    /// The log goes on from a checkpoint that is not there or is damaged.
    #[error(
        "the fsync log relies on checkpoint {0}, which cannot be read: it has all that was written of a Kind before that was kept in a log"
    )]
    NeedsCheckpoint(FileNumber),
}

impl Damage {
    /// Whether it is none, but of a later version.
    pub(crate) const fn is_newer(&self) -> bool {
        matches!(
            self,
            Self::Header(HeaderDamage::Newer(_))
                | Self::Frame(FrameDamage::Records { why: RecordDamage::Unknown(_), .. })
        )
    }
}

/// Damage, and what it costs to go on without what is damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Which file.
    pub file: PathBuf,
    /// Where in the file.
    pub offset: u64,
    /// What is wrong.
    pub damage: Damage,
    /// Frames behind it that could be read but follow on what is lost.
    pub frames: u64,
    /// Bytes from there to the end of the log, but for zeros at the ends of its files.
    pub bytes: u64,
    /// The lowest and the highest revision in those frames.
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

/// What to do with damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDamage {
    /// Answer an error.
    Refuse,
    /// Go on with what lies before it, and report the loss (`--accept-data-loss`).
    Accept,
}

/// The unwritten or half written end that a crash left of the last write. Nothing of it was ever reported as durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// Which file.
    pub file: PathBuf,
    /// Where the last whole frame ends.
    pub offset: u64,
    /// Bytes behind it, but for zeros at the end, which are left out.
    pub bytes: u64,
    /// How the first of them is no frame.
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
