//! Decodes arbitrary bytes as each kind of file, for the fuzzer and for tests that stand in for it. Decoding must
//! not panic, must not allocate more than the file's length, and must terminate.

use std::path::Path;

use crate::{
    ClockFile, Frame, Layout, LogKind, LogPlaces, OnDamage, Record, Recovery, Source, VisitError, WalError,
    format::{FORMAT_VERSION, FileHeader, FileKind, FrameHeader, FrameKind},
    number::{FileNumber, FrameSeq},
    record::Records,
    recover,
    sim::SimDisk,
};

/// Counts the payload bytes that recovery returns.
#[derive(Debug, Default)]
struct Counted {
    bytes: usize,
}

impl Recovery for Counted {
    fn reset(&mut self) {
        self.bytes = 0;
    }

    fn frame(&mut self, _source: Source, frame: &Frame<'_>) -> Result<(), VisitError> {
        self.bytes += frame.payload.len();
        for record in frame.records() {
            if let Record::Version(version) = record {
                assert!(version.key_value.len() <= frame.payload.len(), "a record within its frame");
            }
        }
        Ok(())
    }
}

/// Decodes the input as a segment, a checkpoint, a clock file, and a frame payload behind valid headers.
///
/// # Panics
/// When it finds a defect.
pub fn decode(input: &[u8]) {
    let layout = Layout::new(Path::new("data"));
    let log = layout.log(LogKind::Fsync).join("0000000001.wal");
    let checkpoint = layout.checkpoints().join("0000000001.ckp");
    for path in [&log, &checkpoint] {
        read(path, input.to_vec(), &layout);
        if let Some(framed) = framed(input) {
            read(path, framed, &layout);
        }
    }
    let disk = SimDisk::new(1);
    disk.place(&layout.clock(), input.to_vec());
    match ClockFile::open(&disk, &layout.clock()) {
        Ok(found) => assert!(found.is_some(), "the file is there"),
        Err(error) => assert!(matches!(error, WalError::Clock { .. }), "{error}"),
    }
    let records: Vec<_> = Records::new(input).collect();
    assert!(records.len() <= input.len(), "each record takes a byte");
}

fn read(path: &Path, content: Vec<u8>, layout: &Layout) {
    let length = content.len();
    let disk = SimDisk::new(1);
    disk.place(path, content);
    for on_damage in [OnDamage::Refuse, OnDamage::Accept] {
        let mut counted = Counted::default();
        match recover(&disk, layout, LogPlaces::NONE, on_damage, &mut counted) {
            Ok(_) => assert!(counted.bytes <= length, "more than there is"),
            Err(WalError::Damaged(_)) => {
                assert_eq!(on_damage, OnDamage::Refuse, "what is accepted is no error")
            }
            Err(WalError::Newer { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    // Every allocation for file contents is read into, so the largest read bounds it.
    assert!(
        disk.largest_read() <= length.max(64 << 10),
        "a buffer of {} for {length} bytes",
        disk.largest_read()
    );
}

/// The input wrapped in valid checksums. Its first bytes choose the header, the kind of frame and the length that
/// are claimed.
fn framed(input: &[u8]) -> Option<Vec<u8>> {
    let (choice, rest) = input.split_first_chunk::<8>()?;
    let kind = [FileKind::FsyncLog, FileKind::Checkpoint][usize::from(choice[0] & 1)];
    let first = FrameSeq(u64::from(choice[0] >> 1 & 1) + 1);
    let whole = u64::from(choice[3]) << (choice[4] % 40);
    let (head, seed) = FileHeader {
        kind,
        number: FileNumber(1),
        first,
        after: first,
        whole,
        salt: 0,
        length: u32::from(choice[6] >> 1),
        version: FORMAT_VERSION - u16::from(choice[2] & 1),
    }
    .encode();
    let mut out = head.to_vec();
    let mut offset = head.len() as u64;
    for (index, part) in rest.chunks(usize::from(choice[5]).max(1)).enumerate() {
        let kind = [FrameKind::Batch, FrameKind::CheckpointHead, FrameKind::CheckpointEnd]
            [usize::from(choice[1] % 3)];
        let kind = if index == 0 && choice[6] & 1 == 1 { FrameKind::CheckpointHead } else { kind };
        let mut frame = FrameHeader::of(
            kind,
            FrameSeq(index as u64 + 1),
            u64::from(choice[7]) * index as u64,
            offset,
            part,
        );
        offset += frame.frame_bytes();
        if index == usize::from(choice[2]) {
            // Claim a length that exceeds the file, in a header with a valid checksum.
            frame.payload_bytes = u32::from_le_bytes([choice[3], choice[4], choice[5], choice[6] & 0x7f]);
        }
        out.extend_from_slice(&frame.encode(seed));
        out.extend_from_slice(part);
    }
    Some(out)
}
