//! Lists the numbered files of a directory, and finds the segments that can be removed.

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

/// A numbered file (a log segment or a checkpoint) with its header.
#[derive(Debug, Clone)]
pub struct Segment {
    pub number: FileNumber,
    pub path: PathBuf,
    pub bytes: u64,
    /// The header, or why it is invalid.
    pub header: Result<FileHeader, HeaderDamage>,
    /// The seed of its frames' checksums, if it can be determined.
    pub(crate) seed: Option<Seed>,
}

/// The segments of a log in order. None if the directory does not exist.
///
/// # Errors
/// When the file system fails. Damage is part of the result.
pub fn segments(disk: &dyn Disk, directory: &Path, kind: LogKind) -> Result<Vec<Segment>, WalError> {
    numbered_files(disk, directory, SEGMENT, kind.file_kind())
}

/// The numbered files of a directory, in order.
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

/// The segments that a replay from this position does not need: all before the last one that begins at or before
/// it. Never includes the segment that is being written.
#[must_use]
pub fn removable(segments: &[Segment], from: FrameSeq) -> &[Segment] {
    let needed =
        segments.iter().rposition(|segment| segment.header.as_ref().is_ok_and(|header| header.after <= from));
    segments.get(..needed.unwrap_or(0)).unwrap_or_default()
}
