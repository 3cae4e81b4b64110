//! Reads the frames of a file in order or, in a damaged file, wherever frames can still be found.
//!
//! A length is trusted only after its checksum is verified, and never beyond the end of the file, so allocations
//! are bounded by the file's length.

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

/// The size of a read.
const CHUNK: usize = 1 << 20;

/// Reads the frames of a file in order.
#[derive(Debug)]
pub(crate) struct FrameReader {
    file: Box<dyn DiskFile>,
    length: u64,
    seed: Seed,
    /// The offset of the next frame.
    offset: u64,
    /// `buffer[start..end]` holds the bytes of the file from `offset` on.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

/// The next item in a file.
#[derive(Debug)]
pub(crate) enum Found<'b> {
    /// The expected frame.
    Frame { header: FrameHeader, payload: &'b [u8] },
    /// The end of the file, or only zeros up to it.
    End,
    /// Bytes that are not the expected frame. The reader's offset does not advance.
    Damaged(FrameDamage),
}

impl FrameReader {
    /// Starts after the file's header.
    pub(crate) fn new(file: Box<dyn DiskFile>, seed: Seed) -> io::Result<Self> {
        let length = file.length()?;
        let offset = FILE_HEADER_BYTES as u64;
        Ok(Self { file, length, seed, offset, buffer: Vec::new(), start: 0, end: 0 })
    }

    /// The offset of the next frame.
    pub(crate) const fn offset(&self) -> u64 {
        self.offset
    }

    pub(crate) fn file(&self) -> &dyn DiskFile {
        &*self.file
    }

    pub(crate) fn seek(&mut self, offset: u64) {
        (self.offset, self.start, self.end) = (offset, 0, 0);
    }

    /// Reads the next frame, which should have the number `expected`.
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

    /// Buffers at least `want` bytes, or all that the file has; returns how many of the `want` bytes are there.
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

/// Whether an invalid frame was torn: at least one of its sectors is all zeros or lies after the end of the file,
/// so it was never written. If every sector was written, the frame is damaged.
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
    // At the highest number, the count may have saturated, so nothing can be concluded from it.
    Ok(header.zero_sectors == u16::MAX
        || zero_sectors(offset, header.seq, header.synced, &payload) > header.zero_sectors)
}

/// Whether a sector of a frame's header was never written. A header lies in one sector or in two. Every write after
/// the header included it.
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

/// Validates a frame whose header checksum is right.
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

/// The length of a file without its trailing zeros.
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
    /// The frame's offset.
    pub offset: u64,
    pub header: FrameHeader,
    /// The payload, if its checksum is right.
    pub payload: Option<&'b [u8]>,
}

/// Searches for frames at every offset from `from` on, until `visit` returns false.
pub(crate) fn survivors(
    file: &dyn DiskFile,
    seed: Seed,
    from: u64,
    mut visit: impl FnMut(&Survivor<'_>) -> bool,
) -> io::Result<()> {
    let length = file.length()?;
    let mut window = vec![0; CHUNK.min(usize::try_from(length.saturating_sub(from)).unwrap_or(CHUNK))];
    // `window[..have]` holds the bytes of the file from `base` on.
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
        // An invalid payload may contain the start of the next frame, so the search resumes right after this
        // offset.
        let next = if payload.is_some() { end } else { offset + 1 };
        if !visit(&Survivor { offset, header, payload }) {
            break;
        }
        offset = next;
    }
    Ok(())
}
