//! The on-disk format, byte by byte. **Every number in this file is persisted, and none may ever change its
//! meaning**: additions get new numbers, and a changed layout gets a new [`FORMAT_VERSION`]. `tests/golden.rs`
//! compares the code with files of this format.
//!
//! All numbers are little endian. Checksums are CRC-32C, which processors compute about as fast as they read
//! memory. 32 bits suffice, because a frame that passes by chance must also have the expected sequence number.
//!
//! # Files
//!
//! | file | kind | content |
//! | --- | --- | --- |
//! | `wal/fsync/<number>.wal` | 1 | a file header, then frames of kind 1 |
//! | `wal/buffered/<number>.wal` | 2 | a file header, then frames of kind 1 |
//! | `checkpoint/<number>.ckp` | 3 | a file header, a frame of kind 2, frames of kind 1, a frame of kind 3 |
//! | `clock` | | two slots, see [`ClockSlot`] |
//!
//! File numbers have ten decimal digits and start at 1. A file is written as `<name>.new` and gets its name when
//! its first [`FileHeader::whole`] bytes are durable. A start with `--accept-data-loss` renames the files that it
//! sets aside to `<name>.lost`.
//!
//! # File header, 64 bytes
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | `KNDRDWAL` |
//! | 8 | 2 | format version: 2, or 1 in older files |
//! | 10 | 1 | kind of the file |
//! | 11 | 5 | zero |
//! | 16 | 8 | number of the file |
//! | 24 | 8 | sequence number of the file's first frame |
//! | 32 | 8 | where the previous file ends: the sequence number after its last valid frame. Differs from the field above only after an accepted loss |
//! | 40 | 8 | the number of bytes of this file, with this header, that were durable before it got its name |
//! | 48 | 8 | salt: a random number |
//! | 56 | 4 | the file's length when it got its name, with the zeros written ahead; saturates at the highest number. Zero in version 1 |
//! | 60 | 4 | checksum of the preceding 60 bytes; also the *seed* of the file's frames |
//!
//! # Frame, 32 bytes and its payload
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | checksum of the following 28 bytes, started from the file's seed, so that a frame of another file, or a value that looks like a frame, does not pass |
//! | 4 | 4 | payload length in bytes |
//! | 8 | 4 | checksum of the payload |
//! | 12 | 1 | kind of the frame |
//! | 13 | 2 | the number of sectors that begin within the frame and whose bytes in the frame are all zero; saturates at the highest number. Zero in version 1 |
//! | 15 | 1 | zero |
//! | 16 | 8 | sequence number: one more than the frame before |
//! | 24 | 8 | *synced*: the number of bytes of this file known to be durable when this frame was written |
//!
//! A frame of kind 1 is one batch: all of its records are recovered, or none.
//!
//! # Torn or damaged
//!
//! Bytes below a `synced` (or `whole`) of a later frame were durable once, so damage there is corruption. The same
//! holds for damage to a frame that a checkpoint relies on (its `until`) or that the clock file records as durable
//! ([`ClockSlot`]).
//!
//! Above all of these, a crash may have cut short the last write of the fsync log. A disk writes each sector
//! ([`SECTOR_BYTES`]) as a whole or not at all, and between two syncs no sector of a log is written twice, except
//! over zeros. So a sector that was not written is zeros or lies after the end of the file. A frame that lacks a
//! whole sector, that is, has more zero sectors than its header says, is *torn*. Any other invalid frame was fully
//! written and is damaged, even in the last write.
//!
//! The buffered log has many writes between two syncs, and its mode permits the loss of unsynced data. There,
//! everything that is not proven durable counts as torn, and a gap reports the loss.
//!
//! # Records
//!
//! The payload of a frame of kind 1 is a sequence of records: id (1 byte), length (LEB128, at most 5 bytes),
//! content. [`RecordId`] lists the ids and contents.

use crate::number::{FileNumber, FrameSeq};

/// The magic bytes at the start of a log segment or checkpoint.
pub const MAGIC: [u8; 8] = *b"KNDRDWAL";
/// The format version that this code writes, and the highest that it reads.
pub const FORMAT_VERSION: u16 = 2;
/// The unit that a disk writes atomically.
pub const SECTOR_BYTES: u64 = 512;
/// The length of a file header.
pub const FILE_HEADER_BYTES: usize = 64;
/// The length of a frame header.
pub const FRAME_HEADER_BYTES: usize = 32;
/// The maximum payload of a frame. The writer refuses a larger batch, and a reader treats a larger length as
/// damage.
pub const MAX_PAYLOAD_BYTES: usize = 2 << 30;

/// The content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A segment of the log that is synced before its frames become visible.
    FsyncLog = 1,
    /// A segment of the log that is synced every few milliseconds.
    BufferedLog = 2,
    /// A checkpoint of a whole shard.
    Checkpoint = 3,
}

impl FileKind {
    /// Decodes the byte of a file header.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::FsyncLog),
            2 => Some(Self::BufferedLog),
            3 => Some(Self::Checkpoint),
            _ => None,
        }
    }
}

/// The content of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    Batch = 1,
    /// The first frame of a checkpoint: where the replay of each log starts. Its entries have 9 bytes: the file
    /// kind of the log (1 byte) and a sequence number (8 bytes).
    CheckpointHead = 2,
    /// The last frame of a checkpoint: how far each log must reach for the checkpoint to be usable, in entries like
    /// those of the head.
    CheckpointEnd = 3,
}

impl FrameKind {
    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Batch),
            2 => Some(Self::CheckpointHead),
            3 => Some(Self::CheckpointEnd),
            _ => None,
        }
    }
}

/// The type of a record. A newtype and not an enum, because a file of a newer version may hold unknown ids, which
/// is an error to report but not damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordId(pub u8);

impl RecordId {
    /// A version of a key: flags (1 byte; bit 0 marks a deletion), position among the changes of its revision (4
    /// bytes), revision (8 bytes), the encoded `mvccpb.KeyValue`.
    pub const VERSION: Self = Self(1);
    /// Revision (8 bytes). Every change at or below it that this log keeps precedes this record.
    pub const PROMISE: Self = Self(2);
    /// A change of a lease. The shard defines the content.
    pub const LEASE: Self = Self(3);
    /// A change of a unit that the shard owns, imports or has given away. The shard defines the content.
    pub const UNIT: Self = Self(4);
    /// Revision (8 bytes) of a compaction.
    pub const COMPACTION: Self = Self(5);
    /// The durability modes of the Kinds. The shard defines the content.
    pub const MODES: Self = Self(6);
    /// A gap of revisions that may have been shown and are lost (R10): the last durable revision (8 bytes), the
    /// first revision after the gap (8 bytes), the Kind prefix (the remaining bytes; empty for all Kinds).
    pub const GAP: Self = Self(7);
    /// Revision (8 bytes): the last revision at a clean stop, after which there is no gap.
    pub const CLEAN: Self = Self(8);
    /// The number of a checkpoint (8 bytes) that holds data that no log has. The records after this one must not be
    /// replayed on an older checkpoint.
    pub const NEEDS: Self = Self(9);
    /// Data imported into a unit that the shard does not own yet, whatever the Kind's mode. The shard defines the
    /// content.
    pub const IMPORT: Self = Self(10);
    /// Revision (8 bytes) at which the store began. It never showed a revision at or below it.
    pub const BEGAN: Self = Self(11);
}

pub(crate) const VERSION_IS_DELETION: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHeader {
    pub kind: FileKind,
    /// The file's number, as in its name.
    pub number: FileNumber,
    /// The sequence number of the file's first frame.
    pub first: FrameSeq,
    /// The end of the previous file: its frames from this number on do not count.
    pub after: FrameSeq,
    /// The number of bytes that were durable before the file got its name.
    pub whole: u64,
    /// A random number, so that no bytes written elsewhere pass as a frame of this file.
    pub salt: u64,
    /// The file's length when it got its name; a shorter file is damaged. 0 if unknown.
    pub length: u32,
    /// The file's format: [`FORMAT_VERSION`], or lower in older files.
    pub version: u16,
}

/// Why bytes are not a valid file header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderDamage {
    /// The file is shorter than a header.
    #[error("the file ends within its header")]
    Short,
    /// The magic bytes are wrong.
    #[error("it does not begin as a file of kindred does")]
    Magic,
    /// The header's checksum is wrong.
    #[error("the checksum of the header does not fit")]
    Checksum,
    /// A later version of this program wrote the file.
    #[error(
        "it has format {0}; this version reads up to {FORMAT_VERSION}: start the version that wrote it, or a later one"
    )]
    Newer(u16),
    /// The kind of file does not belong in this directory.
    #[error("it holds something else (kind {0})")]
    Kind(u8),
    /// The number differs from the one in the file's name.
    #[error("it is number {0} by its header: it was renamed or copied")]
    Number(FileNumber),
}

/// The initial checksum state for the frames of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub(crate) u32);

impl FileHeader {
    /// Encodes the header, and returns the seed for the file's frames.
    #[must_use]
    pub fn encode(&self) -> ([u8; FILE_HEADER_BYTES], Seed) {
        let mut out = [0; FILE_HEADER_BYTES];
        put(&mut out, 0, &MAGIC);
        put(&mut out, 8, &self.version.to_le_bytes());
        put(&mut out, 10, &[self.kind as u8]);
        put(&mut out, 16, &self.number.0.to_le_bytes());
        put(&mut out, 24, &self.first.0.to_le_bytes());
        put(&mut out, 32, &self.after.0.to_le_bytes());
        put(&mut out, 40, &self.whole.to_le_bytes());
        put(&mut out, 48, &self.salt.to_le_bytes());
        put(&mut out, 56, &self.length.to_le_bytes());
        let seed = crc32c::crc32c(&out[..60]);
        put(&mut out, 60, &seed.to_le_bytes());
        (out, Seed(seed))
    }

    /// Decodes and checks a header.
    ///
    /// # Errors
    /// When it is not a header, is damaged, or is of a later format.
    pub fn decode(bytes: &[u8]) -> Result<(Self, Seed), HeaderDamage> {
        let bytes = bytes.get(..FILE_HEADER_BYTES).ok_or(HeaderDamage::Short)?;
        if bytes[..8] != MAGIC {
            return Err(HeaderDamage::Magic);
        }
        let seed = get_u32(bytes, 60);
        if crc32c::crc32c(&bytes[..60]) != seed {
            return Err(HeaderDamage::Checksum);
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version == 0 || version > FORMAT_VERSION {
            return Err(HeaderDamage::Newer(version));
        }
        let header = Self {
            kind: FileKind::from_byte(bytes[10]).ok_or(HeaderDamage::Kind(bytes[10]))?,
            number: FileNumber(get_u64(bytes, 16)),
            first: FrameSeq(get_u64(bytes, 24)),
            after: FrameSeq(get_u64(bytes, 32)),
            whole: get_u64(bytes, 40),
            salt: get_u64(bytes, 48),
            length: get_u32(bytes, 56),
            version,
        };
        Ok((header, Seed(seed)))
    }

    /// The seed that a damaged header contains, used to search for frames that are still readable.
    pub(crate) fn claimed_seed(bytes: &[u8]) -> Option<Seed> {
        (bytes.len() >= FILE_HEADER_BYTES).then(|| Seed(get_u32(bytes, 60)))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The kind of the payload.
    pub kind: FrameKind,
    /// The payload's length in bytes.
    pub payload_bytes: u32,
    pub payload_checksum: u32,
    pub seq: FrameSeq,
    /// The number of bytes of the file that were durable when the frame was written.
    pub synced: u64,
    /// The number of the frame's sectors that are all zero (see [`zero_sectors`]).
    pub zero_sectors: u16,
}

/// Why a frame is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameDamage {
    #[error("the file ends within a frame")]
    Short,
    /// The header's checksum is wrong.
    #[error("no frame begins here, or its checksum does not fit")]
    Header,
    /// The payload's checksum is wrong.
    #[error("the checksum of frame {0} does not fit")]
    Payload(FrameSeq),
    /// The frame has another sequence number than expected.
    #[error("frame {found} stands where frame {wanted} belongs")]
    Sequence {
        /// The expected number.
        wanted: FrameSeq,
        /// The number in the frame.
        found: FrameSeq,
    },
    /// The kind of frame does not belong here.
    #[error("frame {0} is of a kind that does not belong here")]
    Kind(FrameSeq),
    /// The checksum is right, but the records are not valid.
    #[error("frame {seq}: {why}")]
    Records {
        /// The frame's sequence number.
        seq: FrameSeq,
        /// What is wrong with the records.
        why: crate::record::RecordDamage,
    },
}

impl FrameHeader {
    /// The header for a frame with this payload at this offset of its file.
    ///
    /// The caller has checked that the payload is at most [`MAX_PAYLOAD_BYTES`].
    #[must_use]
    pub fn of(kind: FrameKind, seq: FrameSeq, synced: u64, offset: u64, payload: &[u8]) -> Self {
        debug_assert!(payload.len() <= MAX_PAYLOAD_BYTES, "refused when it was appended");
        let payload_bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let zero_sectors = zero_sectors(offset, seq, synced, payload);
        Self { kind, payload_bytes, payload_checksum: crc32c::crc32c(payload), seq, synced, zero_sectors }
    }

    /// Encodes the header for the file with this seed.
    #[must_use]
    pub fn encode(&self, seed: Seed) -> [u8; FRAME_HEADER_BYTES] {
        let mut out = [0; FRAME_HEADER_BYTES];
        put(&mut out, 4, &self.payload_bytes.to_le_bytes());
        put(&mut out, 8, &self.payload_checksum.to_le_bytes());
        put(&mut out, 12, &[self.kind as u8]);
        put(&mut out, 13, &self.zero_sectors.to_le_bytes());
        put(&mut out, 16, &self.seq.0.to_le_bytes());
        put(&mut out, 24, &self.synced.to_le_bytes());
        let checksum = crc32c::crc32c_append(seed.0, &out[4..]);
        put(&mut out, 0, &checksum.to_le_bytes());
        out
    }

    /// Decodes and checks a header. The returned payload length is authentic, but the payload may extend beyond the
    /// file's end.
    #[must_use]
    pub fn decode(seed: Seed, bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..FRAME_HEADER_BYTES)?;
        // Cheap checks first, because a search tries every offset of a damaged file.
        let kind = FrameKind::from_byte(bytes[12])?;
        let payload_bytes = get_u32(bytes, 4);
        if bytes[15] != 0 || payload_bytes as usize > MAX_PAYLOAD_BYTES {
            return None;
        }
        if crc32c::crc32c_append(seed.0, &bytes[4..]) != get_u32(bytes, 0) {
            return None;
        }
        Some(Self {
            kind,
            payload_bytes,
            payload_checksum: get_u32(bytes, 8),
            seq: FrameSeq(get_u64(bytes, 16)),
            synced: get_u64(bytes, 24),
            zero_sectors: u16::from_le_bytes([bytes[13], bytes[14]]),
        })
    }

    /// Whether this is the payload that was written.
    #[must_use]
    pub fn fits(&self, payload: &[u8]) -> bool {
        payload.len() == self.payload_bytes as usize && crc32c::crc32c(payload) == self.payload_checksum
    }

    /// The length of the header and the payload.
    #[must_use]
    pub const fn frame_bytes(&self) -> u64 {
        FRAME_HEADER_BYTES as u64 + self.payload_bytes as u64
    }
}

/// The number of sectors that begin within a frame at this offset and are all zero as far as the frame reaches. A
/// sector that was never written is zero, too. A sector that holds the sequence number is never all zero, because
/// no frame has number 0.
#[must_use]
pub fn zero_sectors(offset: u64, seq: FrameSeq, synced: u64, payload: &[u8]) -> u16 {
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let (mut tail, mut zeros) = ([0; 16], 0);
    put(&mut tail, 0, &seq.0.to_le_bytes());
    put(&mut tail, 8, &synced.to_le_bytes());
    let sector = SECTOR_BYTES as usize;
    let begins = offset + (FRAME_HEADER_BYTES - tail.len()) as u64;
    // The offset of the first sector that begins at or after the sequence number.
    let mut first = usize::try_from(begins.next_multiple_of(SECTOR_BYTES) - begins).unwrap_or(usize::MAX);
    if let Some(of_header) = tail.get(first..).filter(|rest| !rest.is_empty()) {
        let of_payload = payload.len().min(sector - of_header.len());
        zeros += usize::from(is_zero(of_header) && is_zero(&payload[..of_payload]));
        first += sector;
    }
    let sectors = payload.get(first - tail.len()..).unwrap_or_default().chunks(sector);
    zeros += sectors.filter(|sector| is_zero(sector)).count();
    u16::try_from(zeros).unwrap_or(u16::MAX)
}

/// The length of one copy of a clock slot, of which the first [`CLOCK_SLOT_USED`] bytes are used. It is a disk
/// block, so that a torn write of one copy does not affect the others.
pub const CLOCK_COPY_BYTES: usize = 4096;
/// The version of clock slots that this code writes, and the highest that it reads.
pub const CLOCK_VERSION: u16 = 2;
/// The used length of a clock slot.
pub const CLOCK_SLOT_USED: usize = 64;
/// The used length of a clock slot of version 1.
const CLOCK_SLOT_USED_1: usize = 40;
/// The number of adjacent copies of a slot, written at once. A flipped bit in one loses nothing.
pub const CLOCK_COPIES: usize = 2;
/// The magic bytes of a clock slot.
pub const CLOCK_MAGIC: [u8; 8] = *b"KNDRDCLK";

/// A slot of the clock file (R2). The file has two, each with [`CLOCK_COPIES`] copies of [`CLOCK_COPY_BYTES`]. A
/// write replaces the slot with the lower generation. A copy:
///
/// | at | bytes | what |
/// | --- | --- | --- |
/// | 0 | 8 | `KNDRDCLK` |
/// | 8 | 2 | version: 2, or 1 in older files |
/// | 10 | 2 | zero |
/// | 12 | 8 | generation |
/// | 20 | 8 | ceiling |
/// | 28 | 8 | incarnation; zero in version 1 |
/// | 36 | 8 | the last frame of the fsync log that was durable when the slot was written |
/// | 44 | 8 | the same for the buffered log |
/// | 52 | 8 | zero |
/// | 60 | 4 | checksum of the preceding 60 bytes |
///
/// Version 1 ends after its checksum, which is at 36 and covers the preceding 36 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockSlot {
    /// Grows with every write; the slot with the higher one counts.
    pub generation: u64,
    pub ceiling: i64,
    /// The incarnation of the shard that wrote the slot; 0 if unknown.
    pub incarnation: u64,
    /// The last frame of the fsync log that was known to be durable; 0 for none.
    pub fsync: FrameSeq,
    /// The same for the buffered log.
    pub buffered: FrameSeq,
}

impl ClockSlot {
    /// Encodes one copy, without its padding.
    #[must_use]
    pub fn encode(&self) -> [u8; CLOCK_SLOT_USED] {
        let mut out = [0; CLOCK_SLOT_USED];
        put(&mut out, 0, &CLOCK_MAGIC);
        put(&mut out, 8, &CLOCK_VERSION.to_le_bytes());
        put(&mut out, 12, &self.generation.to_le_bytes());
        put(&mut out, 20, &self.ceiling.to_le_bytes());
        put(&mut out, 28, &self.incarnation.to_le_bytes());
        put(&mut out, 36, &self.fsync.0.to_le_bytes());
        put(&mut out, 44, &self.buffered.0.to_le_bytes());
        let checksum = crc32c::crc32c(&out[..60]);
        put(&mut out, 60, &checksum.to_le_bytes());
        out
    }

    /// Decodes one copy; `None` if it is not valid.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let old = bytes.get(..CLOCK_SLOT_USED_1)?;
        if old[..8] != CLOCK_MAGIC {
            return None;
        }
        let (generation, ceiling) = (get_u64(old, 12), get_u64(old, 20).cast_signed());
        match u16::from_le_bytes([old[8], old[9]]) {
            1 if crc32c::crc32c(&old[..36]) == get_u32(old, 36) => {
                let none = FrameSeq(0);
                Some(Self { generation, ceiling, incarnation: 0, fsync: none, buffered: none })
            }
            CLOCK_VERSION => {
                let bytes = bytes.get(..CLOCK_SLOT_USED)?;
                let [incarnation, fsync, buffered] = [28, 36, 44].map(|at| get_u64(bytes, at));
                (crc32c::crc32c(&bytes[..60]) == get_u32(bytes, 60)).then_some(Self {
                    generation,
                    ceiling,
                    incarnation,
                    fsync: FrameSeq(fsync),
                    buffered: FrameSeq(buffered),
                })
            }
            _ => None,
        }
    }
}

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The caller must check the length.
fn get_u32(bytes: &[u8], at: usize) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(out)
}

/// The caller must check the length.
pub(crate) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}
