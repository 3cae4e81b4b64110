//! What is on the disk, byte by byte. **Every number in this file is persisted: none may ever change its meaning**; what is new gets a
//! new number, and a change of layout gets a new [`FORMAT_VERSION`]. `tests/golden.rs` holds files of this format against the code.
//!
//! All numbers are little endian. Checksums are CRC-32C (the processor computes it, about as fast as memory is read; 32 bits are enough
//! because a frame that passes by chance must also carry the one sequence number that is next).
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
//! Numbers of files are ten decimal digits, from 1. A file is written under `<name>.new` and gets its name when its first
//! [`FileHeader::whole`] bytes are on the disk. `<name>.lost` was put aside by a start with `--accept-data-loss`.
//!
//! # File header, 64 bytes
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | `KNDRDWAL` |
//! | 8 | 2 | format version: 2, or 1 in files of before |
//! | 10 | 1 | kind of the file |
//! | 11 | 5 | zero |
//! | 16 | 8 | number of the file |
//! | 24 | 8 | sequence number of its first frame |
//! | 32 | 8 | where the file before ends: the sequence number after its last frame that counts. Differs from the one above only where a loss was accepted |
//! | 40 | 8 | how many bytes of this file, this header included, were on the disk before it got its name |
//! | 48 | 8 | salt: a random number |
//! | 56 | 4 | how long the file was when it got its name, zeros written ahead included; of a longer one the highest number. Zero in version 1 |
//! | 60 | 4 | checksum of the 60 bytes before; the *seed* of the file's frames |
//!
//! # Frame, 32 bytes and its payload
//!
//! | at | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4 | checksum of the 28 bytes that follow, begun from the file's seed: a frame of another file, or a value that looks like a frame, is none |
//! | 4 | 4 | bytes of payload |
//! | 8 | 4 | checksum of the payload |
//! | 12 | 1 | kind of the frame |
//! | 13 | 2 | how many sectors of the file that begin within the frame are zeros as far as it goes; the highest number: so many or more. Zero in version 1 |
//! | 15 | 1 | zero |
//! | 16 | 8 | sequence number: one more than the frame before |
//! | 24 | 8 | *synced*: how many bytes of this file were known to be on the disk when this frame was written |
//!
//! A frame of kind 1 is one batch: all of its records or none.
//!
//! # Torn or damaged
//!
//! What lies below a `synced` (or `whole`) of a later frame was on the disk once, so damage there is corruption. So is damage to a frame that
//! a checkpoint relies on (its `until`), or that the file of the clock knows to be on the disk ([`ClockSlot`]).
//!
//! Above all of these a crash may have cut the last write of the fsync log short. A disk writes a sector ([`SECTOR_BYTES`]) whole or not at
//! all, and no sector of a log is written twice between two syncs but for zeros, so what was not written is zeros or lies behind the end
//! of the file: a frame that lacks a whole sector, more than its header says are zeros by themselves, is *torn*. Any other that does not
//! fit was written and is damaged, also in the last write before the end.
//!
//! The buffered log is written many times between two syncs, and what was not synced of it may be lost by its mode: there everything that
//! nothing proves is torn, and a gap tells it.
//!
//! # Records
//!
//! The payload of a frame of kind 1 is records, one after the other: id (1 byte), length (LEB128, at most 5 bytes), content. The ids and
//! contents stand at [`RecordId`].

use crate::number::{FileNumber, FrameSeq};

/// The first bytes of every file.
pub const MAGIC: [u8; 8] = *b"KNDRDWAL";
/// The layout that this code writes, and the highest that it reads.
pub const FORMAT_VERSION: u16 = 2;
/// What a disk writes whole or not at all.
pub const SECTOR_BYTES: u64 = 512;
/// Bytes of a file header.
pub const FILE_HEADER_BYTES: usize = 64;
/// Bytes of a frame before its payload.
pub const FRAME_HEADER_BYTES: usize = 32;
/// The most that one frame holds: a batch above it is refused by the writer, and a length above it is damage to the reader.
pub const MAX_PAYLOAD_BYTES: usize = 2 << 30;

/// What a file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A segment of the log whose frames are synced before they are shown.
    FsyncLog = 1,
    /// A segment of the log that is written every few milliseconds.
    BufferedLog = 2,
    /// A checkpoint of the whole shard.
    Checkpoint = 3,
}

impl FileKind {
    /// The kind of a number on the disk.
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

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Records: one batch.
    Batch = 1,
    /// The first frame of a checkpoint: from where each log is to be replayed after it. Entries of 9 bytes: kind of the log's files (1
    /// byte), sequence number (8 bytes).
    CheckpointHead = 2,
    /// The last frame of a checkpoint: how far each log must reach for this checkpoint to be used, as entries like those of the head.
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

/// What a record is. A newtype and not an enum: a file of a newer version may hold ids that this one does not know, which is an error to
/// name, not damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordId(pub u8);

impl RecordId {
    /// A version of a key: flags (1 byte, bit 0: a deletion), position among the changes of its revision (4 bytes), revision (8 bytes),
    /// the encoded `mvccpb.KeyValue`.
    pub const VERSION: Self = Self(1);
    /// Revision (8 bytes): every change at or below it of what this log keeps stands before this record.
    pub const PROMISE: Self = Self(2);
    /// Something about a lease. The content is the shard's.
    pub const LEASE: Self = Self(3);
    /// Something about a unit that the shard owns, imports or has given away. The content is the shard's.
    pub const UNIT: Self = Self(4);
    /// Revision (8 bytes): compacted there.
    pub const COMPACTION: Self = Self(5);
    /// The durability modes of the Kinds. The content is the shard's.
    pub const MODES: Self = Self(6);
    /// Revisions that may have been shown and are lost (R10): last one kept (8 bytes), first one after (8 bytes), the Kind prefix (the
    /// rest; empty: all).
    pub const GAP: Self = Self(7);
    /// Revision (8 bytes), the last one: the shard was stopped in good order, there is no gap.
    pub const CLEAN: Self = Self(8);
    /// Number of a checkpoint (8 bytes): it holds what no log holds, so what follows is not to be replayed on an older one.
    pub const NEEDS: Self = Self(9);
    /// Something imported into a unit that is not ours yet, whatever its Kind's mode. The content is the shard's.
    pub const IMPORT: Self = Self(10);
    /// Revision (8 bytes): the store began there; nothing was ever shown at or below it.
    pub const BEGAN: Self = Self(11);
}

/// Bit 0 of a version's flags.
pub(crate) const VERSION_IS_DELETION: u8 = 1;

/// The head of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHeader {
    /// What the file holds.
    pub kind: FileKind,
    /// Its number, the one in its name.
    pub number: FileNumber,
    /// The sequence number of its first frame.
    pub first: FrameSeq,
    /// Where the file before ends: the frames there from this number on do not count.
    pub after: FrameSeq,
    /// How many bytes of the file were on the disk before it got its name.
    pub whole: u64,
    /// A random number, so that nothing written elsewhere passes as a frame of this file.
    pub salt: u64,
    /// How long the file was when it got its name: it never gets shorter. 0 where that is not known.
    pub length: u32,
    /// The layout of the file: [`FORMAT_VERSION`], or a lower one in a file of before.
    pub version: u16,
}

/// Why bytes are no file header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderDamage {
    /// Fewer bytes than a header has.
    #[error("the file ends within its header")]
    Short,
    /// Something else.
    #[error("it does not begin as a file of kindred does")]
    Magic,
    /// The checksum does not fit.
    #[error("the checksum of the header does not fit")]
    Checksum,
    /// Made by a later version of this program.
    #[error(
        "it has format {0}; this version reads up to {FORMAT_VERSION}: start the version that wrote it, or a later one"
    )]
    Newer(u16),
    /// A kind that does not belong here.
    #[error("it holds something else (kind {0})")]
    Kind(u8),
    /// The number is not the one of the name.
    #[error("it is number {0} by its header: it was renamed or copied")]
    Number(FileNumber),
}

/// The state of the checksum from which the frames of a file begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub(crate) u32);

impl FileHeader {
    /// The header as bytes, and the seed of the file's frames.
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

    /// Reads a header and checks it.
    ///
    /// # Errors
    /// When it is none, is damaged, or is of a later format.
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

    /// The seed that a damaged header claims, to look for what may still be readable behind it.
    pub(crate) fn claimed_seed(bytes: &[u8]) -> Option<Seed> {
        (bytes.len() >= FILE_HEADER_BYTES).then(|| Seed(get_u32(bytes, 60)))
    }
}

/// A frame but for its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// What the payload is.
    pub kind: FrameKind,
    /// Bytes of payload.
    pub payload_bytes: u32,
    /// Checksum of the payload.
    pub payload_checksum: u32,
    /// The frame's sequence number.
    pub seq: FrameSeq,
    /// How many bytes of the file were on the disk when the frame was written.
    pub synced: u64,
    /// How many of its sectors are zeros by themselves (see [`zero_sectors`]).
    pub zero_sectors: u16,
}

/// Why a frame is no good.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameDamage {
    /// The file ends within the frame.
    #[error("the file ends within a frame")]
    Short,
    /// The frame's own checksum does not fit.
    #[error("no frame begins here, or its checksum does not fit")]
    Header,
    /// The payload's checksum does not fit.
    #[error("the checksum of frame {0} does not fit")]
    Payload(FrameSeq),
    /// Another frame than the next one.
    #[error("frame {found} stands where frame {wanted} belongs")]
    Sequence {
        /// The next one.
        wanted: FrameSeq,
        /// The one that is here.
        found: FrameSeq,
    },
    /// Not a kind of frame that belongs here.
    #[error("frame {0} is of a kind that does not belong here")]
    Kind(FrameSeq),
    /// The checksum fits, the records do not.
    #[error("frame {seq}: {why}")]
    Records {
        /// Which frame.
        seq: FrameSeq,
        /// What is wrong.
        why: crate::record::RecordDamage,
    },
}

impl FrameHeader {
    /// The header of a frame with this payload, to be written at an offset of its file.
    ///
    /// The caller has checked that the payload is at most [`MAX_PAYLOAD_BYTES`].
    #[must_use]
    pub fn of(kind: FrameKind, seq: FrameSeq, synced: u64, offset: u64, payload: &[u8]) -> Self {
        debug_assert!(payload.len() <= MAX_PAYLOAD_BYTES, "refused when it was appended");
        let payload_bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let zero_sectors = zero_sectors(offset, seq, synced, payload);
        Self { kind, payload_bytes, payload_checksum: crc32c::crc32c(payload), seq, synced, zero_sectors }
    }

    /// The header as bytes, for the file of this seed.
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

    /// Reads a header and checks it: what it says of the payload's length can be trusted then, up to what is there.
    #[must_use]
    pub fn decode(seed: Seed, bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..FRAME_HEADER_BYTES)?;
        // The cheap checks first: a search tries every position of a damaged file.
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

    /// Whether the payload is the one that was written.
    #[must_use]
    pub fn fits(&self, payload: &[u8]) -> bool {
        payload.len() == self.payload_bytes as usize && crc32c::crc32c(payload) == self.payload_checksum
    }

    /// Bytes of the whole frame.
    #[must_use]
    pub const fn frame_bytes(&self) -> u64 {
        FRAME_HEADER_BYTES as u64 + self.payload_bytes as u64
    }
}

/// How many sectors of a file that begin within a frame at this offset are zeros, as far as the frame goes. They are zeros as well where they
/// were never written. Those that hold the frame's number are none: no frame has number 0.
#[must_use]
pub fn zero_sectors(offset: u64, seq: FrameSeq, synced: u64, payload: &[u8]) -> u16 {
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let (mut tail, mut zeros) = ([0; 16], 0);
    put(&mut tail, 0, &seq.0.to_le_bytes());
    put(&mut tail, 8, &synced.to_le_bytes());
    let sector = SECTOR_BYTES as usize;
    let begins = offset + (FRAME_HEADER_BYTES - tail.len()) as u64;
    // The first sector that begins at the number or behind it.
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

/// Bytes of one copy of a clock slot, of which the first [`CLOCK_SLOT_USED`] are used: a block of the disk, so that a torn write of one
/// copy leaves the others alone.
pub const CLOCK_COPY_BYTES: usize = 4096;
/// The layout of a clock slot that this code writes, and the highest that it reads.
pub const CLOCK_VERSION: u16 = 2;
/// Bytes of a clock slot that mean something.
pub const CLOCK_SLOT_USED: usize = 64;
/// The same of version 1.
const CLOCK_SLOT_USED_1: usize = 40;
/// Copies of a slot, side by side, written at once: a flipped bit in one is no loss.
pub const CLOCK_COPIES: usize = 2;
/// The first bytes of a clock slot.
pub const CLOCK_MAGIC: [u8; 8] = *b"KNDRDCLK";

/// A slot of the clock's file (R2). The file has two, each of [`CLOCK_COPIES`] copies of [`CLOCK_COPY_BYTES`]; the one of the lower
/// generation is overwritten. A copy:
///
/// | at | bytes | what |
/// | --- | --- | --- |
/// | 0 | 8 | `KNDRDCLK` |
/// | 8 | 2 | version: 2, or 1 in files of before |
/// | 10 | 2 | zero |
/// | 12 | 8 | generation |
/// | 20 | 8 | ceiling |
/// | 28 | 8 | incarnation; zero in version 1 |
/// | 36 | 8 | the last frame of the fsync log that was on the disk when the slot was written |
/// | 44 | 8 | the same of the buffered log |
/// | 52 | 8 | zero |
/// | 60 | 4 | checksum of the 60 bytes before |
///
/// Version 1 has its checksum, of the 36 bytes before, at 36, and ends there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockSlot {
    /// Grows with every write: the higher one counts.
    pub generation: u64,
    /// The ceiling of the shard's clock.
    pub ceiling: i64,
    /// Which start of the shard wrote it; 0 where that is not known.
    pub incarnation: u64,
    /// The last frame of the fsync log that was known to be on the disk; 0 for none.
    pub fsync: FrameSeq,
    /// The same of the buffered log.
    pub buffered: FrameSeq,
}

impl ClockSlot {
    /// One copy, without its padding.
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

    /// One copy, if it is whole.
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

/// The caller has checked the length.
fn get_u32(bytes: &[u8], at: usize) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(out)
}

/// The caller has checked the length.
pub(crate) fn get_u64(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}
