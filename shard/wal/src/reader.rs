//! Reads the frames of one file, in their order or, in a damaged file, wherever there still are any.
//!
//! No length is believed before its checksum fits, and none beyond the end of the file: what is allocated is bounded by what is there.

use std::io;

use crate::{
    disk::{DiskFile, read_full},
    format::{
        FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FrameDamage, FrameHeader, FrameKind, SECTOR_BYTES, Seed,
        zero_sectors,
    },
    number::FrameSeq,
    record::Records,
};

/// How much is read at once.
const CHUNK: usize = 1 << 20;

/// The frames of a file, one after the other.
#[derive(Debug)]
pub(crate) struct FrameReader {
    file: Box<dyn DiskFile>,
    length: u64,
    seed: Seed,
    /// Where the next frame begins.
    offset: u64,
    /// Bytes of the file from `offset` on are at `start..end`.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// What comes next in a file.
#[derive(Debug)]
pub(crate) enum Found<'b> {
    /// A whole frame.
    Frame { header: FrameHeader, payload: &'b [u8] },
    /// Nothing, or zeros to the end of the file.
    End,
    /// Something that is not the next frame. The reader stays in front of it.
    Damaged(FrameDamage),
}

impl FrameReader {
    /// Begins behind the file's header.
    pub(crate) fn new(file: Box<dyn DiskFile>, seed: Seed) -> io::Result<Self> {
        let length = file.length()?;
        let offset = FILE_HEADER_BYTES as u64;
        Ok(Self { file, length, seed, offset, buffer: Vec::new(), start: 0, end: 0 })
    }

    /// Where the next frame begins.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn file(&self) -> &dyn DiskFile {
        &*self.file
    }

    /// Goes on somewhere else.
    pub(crate) fn seek(&mut self, offset: u64) {
        (self.offset, self.start, self.end) = (offset, 0, 0);
    }

    /// The next frame, which should have this number.
    pub(crate) fn next(&mut self, expected: FrameSeq) -> io::Result<Found<'_>> {
        let left = self.length.saturating_sub(self.offset);
        if left == 0 {
            return Ok(Found::End);
        }
        let have = self.fill(FRAME_HEADER_BYTES)?;
        let head = &self.buffer[self.start..self.start + have];
        if head.iter().all(|byte| *byte == 0) && self.zeros_to_the_end()? {
            return Ok(Found::End);
        }
        if have < FRAME_HEADER_BYTES {
            return Ok(Found::Damaged(FrameDamage::Short));
        }
        let Some(header) = FrameHeader::decode(self.seed, &self.buffer[self.start..]) else {
            return Ok(Found::Damaged(FrameDamage::Header));
        };
        if header.frame_bytes() > left {
            return Ok(Found::Damaged(FrameDamage::Short));
        }
        let whole = FRAME_HEADER_BYTES + header.payload_bytes as usize;
        if self.fill(whole)? < whole {
            return Ok(Found::Damaged(FrameDamage::Short));
        }
        let payload = self.start + FRAME_HEADER_BYTES..self.start + whole;
        if let Some(damage) = check(&header, &self.buffer[payload.clone()], expected) {
            return Ok(Found::Damaged(damage));
        }
        self.offset += whole as u64;
        self.start += whole;
        Ok(Found::Frame { header, payload: &self.buffer[payload] })
    }

    /// Has at least so many bytes in the buffer, or all that the file has; answers how many of them there are.
    fn fill(&mut self, want: usize) -> io::Result<usize> {
        if self.end - self.start < want {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            let left = self.length.saturating_sub(self.offset);
            let size = usize::try_from(left).map_or(want, |left| left.min(want.max(CHUNK)));
            if self.buffer.len() < size {
                self.buffer.resize(size, 0);
            }
            let at = self.offset + self.end as u64;
            if self.end < size {
                self.end += read_full(&*self.file, at, &mut self.buffer[self.end..size])?;
            }
        }
        Ok((self.end - self.start).min(want))
    }

    fn zeros_to_the_end(&self) -> io::Result<bool> {
        let mut chunk = vec![0; 64 << 10];
        let mut at = self.offset;
        while at < self.length {
            let read = read_full(&*self.file, at, &mut chunk)?;
            if chunk[..read].iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            if read == 0 {
                break;
            }
            at += read as u64;
        }
        Ok(true)
    }
}

/// Whether a frame that does not fit is one of which a sector was never written, whole: it is all zeros, or behind the end of the file. A
/// frame of which every sector was written is damaged.
pub(crate) fn is_torn(
    file: &dyn DiskFile,
    seed: Seed,
    offset: u64,
    damage: &FrameDamage,
) -> io::Result<bool> {
    match damage {
        FrameDamage::Short => return Ok(true),
        FrameDamage::Header | FrameDamage::Payload(_) => {}
        FrameDamage::Sequence { .. } | FrameDamage::Kind(_) | FrameDamage::Records { .. } => {
            return Ok(false);
        }
    }
    let mut head = [0; FRAME_HEADER_BYTES];
    read_full(file, offset, &mut head)?;
    let Some(header) = FrameHeader::decode(seed, &head) else {
        return lacks_a_sector_of_its_header(file, offset, &head);
    };
    let mut payload = vec![0; header.payload_bytes as usize];
    read_full(file, offset + FRAME_HEADER_BYTES as u64, &mut payload)?;
    // Of the highest number nobody knows how many more there were.
    Ok(header.zero_sectors == u16::MAX
        || zero_sectors(offset, header.seq, header.synced, &payload) > header.zero_sectors)
}

/// A header lies in one sector, or in two. Nothing was ever written behind it but with it.
fn lacks_a_sector_of_its_header(file: &dyn DiskFile, offset: u64, head: &[u8]) -> io::Result<bool> {
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let boundary = (offset + 1).next_multiple_of(SECTOR_BYTES);
    let in_first = usize::try_from(boundary - offset).map_or(head.len(), |first| first.min(head.len()));
    if is_zero(&head[..in_first]) {
        return Ok(true);
    }
    if in_first == head.len() {
        return Ok(false);
    }
    let mut second = [0; SECTOR_BYTES as usize];
    let read = read_full(file, boundary, &mut second)?;
    Ok(is_zero(&second[..read]))
}

/// What is wrong with a frame whose header fits.
fn check(header: &FrameHeader, payload: &[u8], expected: FrameSeq) -> Option<FrameDamage> {
    if !header.fits(payload) {
        return Some(FrameDamage::Payload(header.seq));
    }
    if header.seq != expected {
        return Some(FrameDamage::Sequence { wanted: expected, found: header.seq });
    }
    if header.kind == FrameKind::Batch {
        let why = Records::new(payload).find_map(Result::err)?;
        return Some(FrameDamage::Records { seq: header.seq, why });
    }
    None
}

/// Where a file ends, but for the zeros that were written ahead.
pub(crate) fn used(file: &dyn DiskFile) -> io::Result<u64> {
    let mut end = file.length()?;
    let mut chunk = vec![0; 64 << 10];
    while end > 0 {
        let from = end.saturating_sub(chunk.len() as u64);
        let part = usize::try_from(end - from).unwrap_or(chunk.len());
        let read = read_full(file, from, &mut chunk[..part])?;
        if let Some(last) = chunk[..read].iter().rposition(|byte| *byte != 0) {
            return Ok(from + last as u64 + 1);
        }
        end = from;
    }
    Ok(0)
}

/// A frame found in a damaged file.
#[derive(Debug)]
pub(crate) struct Survivor<'b> {
    /// Where it begins.
    pub offset: u64,
    pub header: FrameHeader,
    /// The payload, if it is whole.
    pub payload: Option<&'b [u8]>,
}

/// Looks for frames at every position from an offset on, until the visitor has seen enough (answers false).
pub(crate) fn survivors(
    file: &dyn DiskFile,
    seed: Seed,
    from: u64,
    mut visit: impl FnMut(&Survivor<'_>) -> bool,
) -> io::Result<()> {
    let length = file.length()?;
    let mut window = vec![0; CHUNK.min(usize::try_from(length.saturating_sub(from)).unwrap_or(CHUNK))];
    // The window holds `have` bytes of the file from `base` on.
    let (mut base, mut have, mut offset) = (from, 0, from);
    let mut large = Vec::new();
    while offset + FRAME_HEADER_BYTES as u64 <= length {
        if offset + FRAME_HEADER_BYTES as u64 > base + have as u64 {
            (base, have) = (offset, read_full(file, offset, &mut window)?);
            if have < FRAME_HEADER_BYTES {
                break;
            }
        }
        let at = usize::try_from(offset - base).unwrap_or(usize::MAX);
        let Some(header) = FrameHeader::decode(seed, &window[at..have]) else {
            offset += 1;
            continue;
        };
        let end = offset + header.frame_bytes();
        let behind = at + FRAME_HEADER_BYTES;
        let payload = if let Some(inside) = window[..have].get(behind..behind + header.payload_bytes as usize)
        {
            header.fits(inside).then_some(inside)
        } else if end <= length {
            large.resize(header.payload_bytes as usize, 0);
            let read = read_full(file, offset + FRAME_HEADER_BYTES as u64, &mut large)?;
            (read == large.len() && header.fits(&large)).then_some(large.as_slice())
        } else {
            None
        };
        // A payload that is not whole may hide the beginnings of the frames that follow.
        let next = if payload.is_some() { end } else { offset + 1 };
        if !visit(&Survivor { offset, header, payload }) {
            break;
        }
        offset = next;
    }
    Ok(())
}
