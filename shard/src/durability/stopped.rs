//! Keeps the Kinds of mode `none`, which are in no log, over a clean stop: one file, written after both logs are closed
//! and read by the next start if nothing was lost in between. It carries the last revision of the shard, so that no
//! other start takes it for its own: after any other stop these Kinds are empty.
//!
//! All numbers are little endian. The file has `MAGIC`, the revision, and frames: a length, a checksum of revision
//! and payload, and the payload (records as in the logs). The last frame has length zero and a checksum of the revision
//! and the number of frames.

use std::{io, path::Path};

use kindred_partition_config::ids::Revision;
use kindred_wal::{Batch, Disk, DiskFile, Frame, FrameSeq, Record};

/// The first bytes, with the version of the format.
const MAGIC: [u8; 8] = *b"KNDSTOP\x01";
const HEAD_BYTES: u64 = 16;
const FRAME_HEAD_BYTES: u64 = 8;

fn checksum(last: Revision, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&last.get().to_le_bytes()), bytes)
}

/// Writes the file under a temporary name and renames it once it is on disk. Returns its size, or `None` when `goes_on`
/// ended the writing.
///
/// # Errors
/// An error of the disk. Whatever was written is then removed, if the disk can.
pub fn write(
    disk: &dyn Disk,
    path: &Path,
    last: Revision,
    mut next: impl FnMut() -> Option<Batch>,
    mut goes_on: impl FnMut() -> bool,
) -> io::Result<Option<u64>> {
    let unfinished = path.with_extension("new");
    let mut written = || {
        let mut file = disk.create(&unfinished)?;
        let mut head = MAGIC.to_vec();
        head.extend(last.get().to_le_bytes());
        file.write_at(0, &head)?;
        let (mut at, mut frames) = (HEAD_BYTES, 0_u64);
        while let Some(batch) = next() {
            if !goes_on() {
                return Ok(None);
            }
            let payload = batch.payload();
            at += frame(&mut *file, at, checksum(last, payload), payload)?;
            frames += 1;
        }
        at += frame(&mut *file, at, checksum(last, &frames.to_le_bytes()), &[])?;
        file.sync()?;
        drop(file);
        disk.rename(&unfinished, path)?;
        if let Some(directory) = path.parent() {
            disk.sync_directory(directory)?;
        }
        Ok(Some(at))
    };
    let ended = written();
    if !matches!(ended, Ok(Some(_))) {
        // It may not exist, or the disk may refuse that too; no start reads a file of this name.
        let _ = disk.remove(&unfinished);
    }
    ended
}

fn frame(file: &mut dyn DiskFile, at: u64, checksum: u32, payload: &[u8]) -> io::Result<u64> {
    let length =
        u32::try_from(payload.len()).map_err(|_| io::Error::other("a batch is longer than 4 GiB"))?;
    let mut bytes = Vec::with_capacity(payload.len() + 8);
    bytes.extend(length.to_le_bytes());
    bytes.extend(checksum.to_le_bytes());
    bytes.extend(payload);
    file.write_at(at, &bytes)?;
    Ok(bytes.len() as u64)
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoppedError {
    /// An error of the disk.
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("damaged at offset {0}")]
    Damaged(u64),
}

/// The payloads of the frames, if the file is of a stop at this revision; otherwise `None`.
///
/// # Errors
/// When it cannot be read, or is damaged.
pub fn read(disk: &dyn Disk, path: &Path, last: Revision) -> Result<Option<Vec<Vec<u8>>>, StoppedError> {
    let file = match disk.open_read(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let head = exactly(&*file, 0, HEAD_BYTES)?;
    if head[..8] != MAGIC || head[8..] != last.get().to_le_bytes() {
        return Ok(None);
    }
    let (mut at, mut payloads) = (HEAD_BYTES, Vec::new());
    loop {
        let head = exactly(&*file, at, FRAME_HEAD_BYTES)?;
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
        let (length, expected) = (number(&head[..4]), number(&head[4..]));
        if length == 0 {
            let frames = payloads.len() as u64;
            let whole = checksum(last, &frames.to_le_bytes()) == expected;
            return if whole { Ok(Some(payloads)) } else { Err(StoppedError::Damaged(at)) };
        }
        let payload = exactly(&*file, at + FRAME_HEAD_BYTES, u64::from(length))?;
        if checksum(last, &payload) != expected {
            return Err(StoppedError::Damaged(at));
        }
        at += FRAME_HEAD_BYTES + u64::from(length);
        payloads.push(payload);
    }
}

fn exactly(file: &dyn DiskFile, at: u64, bytes: u64) -> Result<Vec<u8>, StoppedError> {
    // A damaged length must not allocate more than the file holds.
    if at.saturating_add(bytes) > file.length()? {
        return Err(StoppedError::Damaged(at));
    }
    let mut buffer = vec![0; usize::try_from(bytes).map_err(|_| StoppedError::Damaged(at))?];
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(at + done as u64, &mut buffer[done..])? {
            0 => return Err(StoppedError::Damaged(at)),
            read => done += read,
        }
    }
    Ok(buffer)
}

pub fn records(payload: &[u8]) -> impl Iterator<Item = Record<'_>> {
    Frame { seq: FrameSeq::FIRST, payload }.records()
}

#[cfg(test)]
mod tests {
    use kindred_wal::sim::SimDisk;

    use super::*;

    const AT: Revision = Revision(77);

    fn batches() -> std::vec::IntoIter<Batch> {
        let batch = |at: i64| {
            let mut batch = Batch::new();
            batch.push(&Record::Promise(Revision(at)));
            batch
        };
        vec![batch(5), batch(6)].into_iter()
    }

    fn found(disk: &dyn Disk, at: Revision) -> Result<Option<usize>, StoppedError> {
        read(disk, Path::new("d/stopped"), at).map(|payloads| payloads.map(|payloads| payloads.len()))
    }

    fn written(disk: &dyn Disk) -> u64 {
        disk.create_directory(Path::new("d")).unwrap();
        let mut left = batches();
        write(disk, Path::new("d/stopped"), AT, || left.next(), || true).unwrap().unwrap()
    }

    #[test]
    fn f41_only_the_start_behind_the_stop_reads_it() {
        let disk = SimDisk::new(1);
        assert_eq!(found(&disk, AT).unwrap(), None, "there is none");
        written(&disk);
        assert_eq!(found(&disk, AT).unwrap(), Some(2));
        assert_eq!(found(&disk, Revision(78)).unwrap(), None, "it is of another stop");
        let payloads = read(&disk, Path::new("d/stopped"), AT).unwrap().unwrap();
        let said: Vec<String> =
            payloads.iter().flat_map(|payload| records(payload)).map(|r| format!("{r:?}")).collect();
        assert!(said.len() == 2 && said[0].contains('5') && said[1].contains('6'), "{said:?}");
    }

    #[test]
    fn f41_what_is_cut_or_flipped_is_damage() {
        let disk = SimDisk::new(1);
        let length = written(&disk);
        for at in HEAD_BYTES..length {
            let mut file = disk.open(Path::new("d/stopped")).unwrap();
            let mut byte = [0];
            file.read_at(at, &mut byte).unwrap();
            file.write_at(at, &[byte[0] ^ 0x10]).unwrap();
            assert!(matches!(found(&disk, AT), Err(StoppedError::Damaged(_))), "a flip at {at}");
            file.write_at(at, &byte).unwrap();
        }
        let mut file = disk.open(Path::new("d/stopped")).unwrap();
        file.truncate(length - 1).unwrap();
        assert!(matches!(found(&disk, AT), Err(StoppedError::Damaged(_))));
    }

    #[test]
    fn f41_what_takes_too_long_is_not_kept() {
        let disk = SimDisk::new(1);
        disk.create_directory(Path::new("d")).unwrap();
        let (mut left, mut turns) = (batches(), 0);
        let goes_on = || {
            turns += 1;
            turns < 2
        };
        assert_eq!(write(&disk, Path::new("d/stopped"), AT, || left.next(), goes_on).unwrap(), None);
        assert_eq!(found(&disk, AT).unwrap(), None);
        assert_eq!(disk.list(Path::new("d")).unwrap(), Vec::<String>::new());
    }
}
