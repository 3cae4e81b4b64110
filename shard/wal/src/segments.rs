//! The segments of a log as they lie in its directory, and which of them may go.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    disk::{Disk, read_full},
    error::WalError,
    format::{FILE_HEADER_BYTES, FileHeader, FileKind, HeaderDamage, Seed},
    layout::{LogKind, SEGMENT, number_of, numbered},
    number::{FileNumber, FrameSeq},
};

/// A numbered file and what its header says.
#[derive(Debug, Clone)]
pub struct Segment {
    /// The number in its name.
    pub number: FileNumber,
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Its header, or why there is none.
    pub header: Result<FileHeader, HeaderDamage>,
    /// From where the checksums of its frames begin, as far as that can be told.
    pub(crate) seed: Option<Seed>,
}

/// The segments of a log, in their order. A directory that is not there has none.
///
/// # Errors
/// When the file system refuses. Damage is in the answer.
pub fn segments(disk: &dyn Disk, directory: &Path, kind: LogKind) -> Result<Vec<Segment>, WalError> {
    numbered_files(disk, directory, SEGMENT, kind.file_kind())
}

/// The files of a directory that are named by a number.
pub(crate) fn numbered_files(
    disk: &dyn Disk,
    directory: &Path,
    suffix: &str,
    kind: FileKind,
) -> Result<Vec<Segment>, WalError> {
    let names = match disk.list(directory) {
        Ok(names) => names,
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(WalError::io("list", directory)(source)),
    };
    let mut numbers: Vec<FileNumber> = names.iter().filter_map(|name| number_of(name, suffix)).collect();
    numbers.sort_unstable();
    numbers.into_iter().map(|number| look(disk, numbered(directory, number, suffix), number, kind)).collect()
}

fn look(disk: &dyn Disk, path: PathBuf, number: FileNumber, kind: FileKind) -> Result<Segment, WalError> {
    let file = disk.open_read(&path).map_err(WalError::io("open", &path))?;
    let bytes = file.length().map_err(WalError::io("read", &path))?;
    let mut head = [0; FILE_HEADER_BYTES];
    let have = read_full(&*file, 0, &mut head).map_err(WalError::io("read", &path))?;
    let seed = FileHeader::claimed_seed(&head[..have]);
    let header = FileHeader::decode(&head[..have]).and_then(|(header, _)| {
        if header.kind != kind {
            Err(HeaderDamage::Kind(header.kind as u8))
        } else if header.number != number {
            Err(HeaderDamage::Number(header.number))
        } else {
            Ok(header)
        }
    });
    Ok(Segment { number, path, bytes, header, seed })
}

/// Which segments, in their order, hold nothing that is replayed after a checkpoint that names this place in the log: all before the last
/// one that begins at or before it. The one that is being written is never among them.
#[must_use]
pub fn removable(segments: &[Segment], from: FrameSeq) -> &[Segment] {
    let needed =
        segments.iter().rposition(|segment| segment.header.as_ref().is_ok_and(|header| header.after <= from));
    segments.get(..needed.unwrap_or(0)).unwrap_or_default()
}
