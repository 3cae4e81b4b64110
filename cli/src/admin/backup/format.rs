//! The data files of a backup. Version 1 of the format is frozen: files written in it must stay readable for ever.
//!
//! A backup is a folder:
//!
//! | file | what |
//! | --- | --- |
//! | `manifest.json` | everything but the keys: revision, time, stores, map, leases, and for each data file its Kind, number of keys, length and checksum |
//! | `manifest.xxh3` | the checksum of `manifest.json`, in hex with a line feed |
//! | `data/NNNN-NAME.kbk` | the keys of one Kind in key order; keys of no Kind are in a file of their own |
//!
//! A data file is a header and frames; numbers are little endian:
//!
//! ```text
//! header   "KNDRBKUP"  u32 version (1)  u32 crc32c of the 12 bytes before
//! frame    u32 length of the payload  u32 crc32c of the payload  payload
//! payload  records, one or more, each: varint length, then the encoded mvccpb.KeyValue
//! ```
//!
//! A record never crosses the end of a frame. Values are opaque bytes. A restore uses a record's lease, but not its
//! create and mod revision and version. Checksums of whole files are XXH3 (128 bits, seed 0), in hex.

use std::io::{self, Read, Write};

use bytes::Bytes;
use kindred_proto::mvccpb::KeyValue;
use prost::Message as _;
use xxhash_rust::xxh3::Xxh3;

/// The version of the format.
pub const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"KNDRBKUP";
const HEADER_BYTES: u64 = 16;
/// The size from which a frame is written. A large record makes a larger frame.
const FRAME_BYTES: usize = 256 << 10;

/// The size and checksum of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sum {
    /// The number of records.
    pub keys: u64,
    /// The file's length in bytes.
    pub bytes: u64,
    /// The checksum of the whole file, in hex.
    pub xxh3: String,
}

/// Why a file is not a valid data file.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("its first 16 bytes are not the header of a data file of a backup")]
    Header,
    /// A later version of kindred wrote the file.
    #[error("its format has version {0}, this kindred reads {VERSION}: use a newer kindred")]
    Version(u32),
    #[error("it ends inside the frame at byte {at}")]
    Cut {
        /// The frame's offset.
        at: u64,
    },
    /// A frame's checksum is wrong.
    #[error("the checksum of the frame at byte {at} is wrong")]
    Checksum {
        /// The frame's offset.
        at: u64,
    },
    /// A frame has the right checksum, but no valid records.
    #[error("the frame at byte {at} holds something other than records")]
    Record {
        /// The frame's offset.
        at: u64,
    },
}

pub struct FileWriter<W> {
    out: W,
    hash: Xxh3,
    frame: Vec<u8>,
    keys: u64,
    bytes: u64,
}

impl<W: Write> FileWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(out: W) -> io::Result<Self> {
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        let mut file = Self { out, hash: Xxh3::new(), frame: Vec::new(), keys: 0, bytes: 0 };
        file.put(&header)?;
        Ok(file)
    }

    /// Adds a key. The caller must add keys in key order.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, kv: &KeyValue) -> io::Result<()> {
        let too_large = || io::Error::new(io::ErrorKind::InvalidInput, "a key-value above 2 GiB");
        let length = kv.encoded_len();
        if i32::try_from(length).is_err() {
            return Err(too_large());
        }
        self.frame.reserve(length + 10);
        kv.encode_length_delimited(&mut self.frame).map_err(|_| too_large())?;
        self.keys += 1;
        if self.frame.len() >= FRAME_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        let frame = std::mem::take(&mut self.frame);
        let length = u32::try_from(frame.len()).map_err(|_| io::Error::other("a frame above 4 GiB"))?;
        self.put(&length.to_le_bytes())?;
        self.put(&crc32c::crc32c(&frame).to_le_bytes())?;
        self.put(&frame)?;
        self.frame = frame;
        self.frame.clear();
        self.frame.shrink_to(2 * FRAME_BYTES);
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Writes the last frame, and returns the file's sum and the inner writer.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(mut self) -> io::Result<(Sum, W)> {
        if !self.frame.is_empty() {
            self.flush()?;
        }
        self.out.flush()?;
        let sum = Sum { keys: self.keys, bytes: self.bytes, xxh3: hex(&self.hash) };
        Ok((sum, self.out))
    }
}

fn hex(hash: &Xxh3) -> String {
    format!("{:032x}", hash.digest128())
}

/// The checksum of a whole file's content.
#[must_use]
pub fn sum_of(bytes: &[u8]) -> String {
    let mut hash = Xxh3::new();
    hash.update(bytes);
    hex(&hash)
}

/// Reads a data file frame by frame. Allocations are bounded by the file's length, whatever its content.
pub struct FileReader<R> {
    input: R,
    hash: Xxh3,
    at: u64,
    length: u64,
    keys: u64,
}

impl<R: Read> FileReader<R> {
    /// Reads the header of a file with this length.
    ///
    /// # Errors
    /// When the header is invalid.
    pub fn new(input: R, length: u64) -> Result<Self, FormatError> {
        let mut file = Self { input, hash: Xxh3::new(), at: 0, length, keys: 0 };
        if length < HEADER_BYTES {
            return Err(FormatError::Header);
        }
        let header = file.take(16)?;
        let number =
            |at: usize| header.get(at..at + 4).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes);
        let right = header.starts_with(MAGIC) && number(12) == header.get(..12).map(crc32c::crc32c);
        match number(8).filter(|_| right) {
            None => Err(FormatError::Header),
            Some(VERSION) => Ok(file),
            Some(other) => Err(FormatError::Version(other)),
        }
    }

    fn take(&mut self, length: u64) -> Result<Vec<u8>, FormatError> {
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        self.input.read_exact(&mut bytes)?;
        self.hash.update(&bytes);
        self.at += length;
        Ok(bytes)
    }

    /// The records of the next frame; empty at the end of the file.
    ///
    /// # Errors
    /// When the frame is damaged.
    pub fn next(&mut self) -> Result<Vec<KeyValue>, FormatError> {
        let (at, left) = (self.at, self.length - self.at);
        if left == 0 {
            return Ok(Vec::new());
        }
        if left < 8 {
            return Err(FormatError::Cut { at });
        }
        let head = self.take(8)?;
        let number = |at: usize| {
            head.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_le_bytes)
        };
        let (length, crc) = (u64::from(number(0)), number(4));
        if length > left - 8 {
            return Err(FormatError::Cut { at });
        }
        let payload = Bytes::from(self.take(length)?);
        if crc32c::crc32c(&payload) != crc {
            return Err(FormatError::Checksum { at });
        }
        let records = records(payload).ok_or(FormatError::Record { at })?;
        self.keys += records.len() as u64;
        Ok(records)
    }

    /// The file's sum, after all of it was read.
    pub fn sum(&self) -> Sum {
        Sum { keys: self.keys, bytes: self.at, xxh3: hex(&self.hash) }
    }
}

/// The records of a payload; `None` if there are none or one is invalid.
fn records(mut payload: Bytes) -> Option<Vec<KeyValue>> {
    let mut records = Vec::new();
    while !payload.is_empty() {
        let length = usize::try_from(prost::encoding::decode_varint(&mut payload).ok()?).ok()?;
        if length > payload.len() {
            return None;
        }
        let record = payload.split_to(length);
        records.push(KeyValue::decode(record).ok().filter(|kv| !kv.key.is_empty())?);
    }
    (!records.is_empty()).then_some(records)
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
