//! Which file is where in a shard's data directory.

use std::path::{Path, PathBuf};

use crate::{format::FileKind, number::FileNumber};

/// Which of a shard's logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogKind {
    /// That of the Kinds of mode `fsync`, and of what is always synced before it is answered.
    Fsync,
    /// That of the Kinds of mode `buffered`.
    Buffered,
}

impl LogKind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Fsync, Self::Buffered];

    /// The kind of its segments.
    #[must_use]
    pub const fn file_kind(self) -> FileKind {
        match self {
            Self::Fsync => FileKind::FsyncLog,
            Self::Buffered => FileKind::BufferedLog,
        }
    }

    pub(crate) const fn of_file_kind(kind: FileKind) -> Option<Self> {
        match kind {
            FileKind::FsyncLog => Some(Self::Fsync),
            FileKind::BufferedLog => Some(Self::Buffered),
            FileKind::Checkpoint => None,
        }
    }

    /// As in the name of its directory, in messages and in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fsync => "fsync",
            Self::Buffered => "buffered",
        }
    }
}

impl std::fmt::Display for LogKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The paths below a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Those of this data directory.
    #[must_use]
    pub fn new(data_directory: &Path) -> Self {
        Self { root: data_directory.to_owned() }
    }

    /// Where the segments of a log are.
    #[must_use]
    pub fn log(&self, kind: LogKind) -> PathBuf {
        self.root.join("wal").join(kind.name())
    }

    /// Where the checkpoints are.
    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoint")
    }

    /// A file that only takes room, to be given up when there is no other.
    #[must_use]
    pub fn reserve(&self) -> PathBuf {
        self.root.join("reserve")
    }

    /// What a stop in good order leaves of what the logs do not keep.
    #[must_use]
    pub fn stopped(&self) -> PathBuf {
        self.root.join("stopped")
    }

    /// The file of the clock's ceiling.
    #[must_use]
    pub fn clock(&self) -> PathBuf {
        self.root.join("clock")
    }
}

/// The end of a segment's name.
pub(crate) const SEGMENT: &str = ".wal";
/// The end of a checkpoint's name.
pub(crate) const CHECKPOINT: &str = ".ckp";

/// The path of a numbered file.
pub(crate) fn numbered(directory: &Path, number: FileNumber, suffix: &str) -> PathBuf {
    directory.join(format!("{:010}{suffix}", number.0))
}

/// The number in a name, if it is one of ours.
pub(crate) fn number_of(name: &str, suffix: &str) -> Option<FileNumber> {
    let digits = name.strip_suffix(suffix)?;
    let number = digits.parse().ok().filter(|number| *number > 0)?;
    // One name a number: no sign, no other count of zeros.
    (format!("{number:010}") == digits).then_some(FileNumber(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        let path = numbered(Path::new("d"), FileNumber(12), SEGMENT);
        assert_eq!(path, Path::new("d/0000000012.wal"));
        assert_eq!(number_of("0000000012.wal", SEGMENT), Some(FileNumber(12)));
        assert_eq!(number_of("12345678901.ckp", CHECKPOINT), Some(FileNumber(12_345_678_901)));
        for other in
            ["12.wal", "+000000012.wal", "0000000000.wal", "0000000012.wal.new", "x.wal", "0000000012.ckp"]
        {
            assert_eq!(number_of(other, SEGMENT), None, "{other}");
        }
    }
}
