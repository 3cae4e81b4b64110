//! The paths in a shard's data directory.

use std::path::{Path, PathBuf};

use crate::{format::FileKind, number::FileNumber};

/// One of a shard's two logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogKind {
    /// The log for Kinds of mode `fsync`, and for everything that is synced before it is answered.
    Fsync,
    /// The log for Kinds of mode `buffered`.
    Buffered,
}

impl LogKind {
    pub const ALL: [Self; 2] = [Self::Fsync, Self::Buffered];

    /// The file kind of the log's segments.
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

    /// The name in the log's directory, in messages and in metrics.
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
    /// The layout of this data directory.
    #[must_use]
    pub fn new(data_directory: &Path) -> Self {
        Self { root: data_directory.to_owned() }
    }

    /// The directory of a log's segments.
    #[must_use]
    pub fn log(&self, kind: LogKind) -> PathBuf {
        self.root.join("wal").join(kind.name())
    }

    /// The directory of the checkpoints.
    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoint")
    }

    /// A file that only occupies space, removed when the disk is full.
    #[must_use]
    pub fn reserve(&self) -> PathBuf {
        self.root.join("reserve")
    }

    /// The file that a clean stop writes for data that the logs do not keep.
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

/// The suffix of a segment's name.
pub(crate) const SEGMENT: &str = ".wal";
/// The suffix of a checkpoint's name.
pub(crate) const CHECKPOINT: &str = ".ckp";

pub(crate) fn numbered(directory: &Path, number: FileNumber, suffix: &str) -> PathBuf {
    directory.join(format!("{:010}{suffix}", number.0))
}

/// Parses the number of a segment or checkpoint name; `None` for other names.
pub(crate) fn number_of(name: &str, suffix: &str) -> Option<FileNumber> {
    let digits = name.strip_suffix(suffix)?;
    let number = digits.parse().ok().filter(|number| *number > 0)?;
    // Each number has one name: no sign, and exactly ten digits.
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
