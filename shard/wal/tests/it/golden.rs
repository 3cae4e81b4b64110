//! Golden files of formats 1 and 2. They must be written (format 2) and read byte by byte like this for ever,
//! because a shard starts on files of older versions. If a test fails, the change must not be made to the format;
//! additions get new numbers.

use std::{fmt::Write as _, path::Path, sync::Arc, time::Duration};

use kindred_partition_config::ids::Revision;
use kindred_wal::{
    Batch, CheckpointWriter, ClockFile, FileNumber, Frame, FrameSeq, GapRecord, Layout, Log, LogEnd, LogKind,
    LogOptions, LogPlaces, OnDamage, Record, Recovery, Source, VersionRecord, VisitError, recover,
    sim::SimDisk,
};

/// The segment, checkpoint and clock file of a format.
type Files = [&'static str; 3];
const FILES_1: Files = [
    include_str!("golden/segment.hex"),
    include_str!("golden/checkpoint.hex"),
    include_str!("golden/clock.hex"),
];
const FILES_2: Files = [
    include_str!("golden/segment-2.hex"),
    include_str!("golden/checkpoint-2.hex"),
    include_str!("golden/clock-2.hex"),
];
const TEXT: &str = include_str!("golden/decoded.txt");

/// Hexadecimal lines of 32 bytes; `*n` stands for n lines of zeros.
fn hex(bytes: &[u8]) -> String {
    let (mut out, mut zeros) = (String::new(), 0);
    for line in bytes.chunks(32) {
        if line == [0; 32] {
            zeros += 1;
            continue;
        }
        if zeros > 0 {
            writeln!(out, "*{zeros}").unwrap();
            zeros = 0;
        }
        line.iter().for_each(|byte| write!(out, "{byte:02x}").unwrap());
        out.push('\n');
    }
    if zeros > 0 {
        writeln!(out, "*{zeros}").unwrap();
    }
    out
}

fn bytes(hex: &str) -> Vec<u8> {
    let line = |line: &str| match line.strip_prefix('*') {
        Some(zeros) => vec![0; 32 * zeros.parse::<usize>().unwrap()],
        None => line
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect(),
    };
    hex.lines().flat_map(line).collect()
}

fn batches() -> [Batch; 2] {
    let mut first = Batch::new();
    let mut second = Batch::new();
    let key_value = b"\x0a\x05/a/b1\x10\x07\x18\x07\x20\x01\x2a\x01v";
    first.push(&Record::Began(Revision(5)));
    first.push(&Record::Version(VersionRecord { revision: Revision(7), sub: 0, deletion: false, key_value }));
    let key_value = b"\x0a\x05/a/b2\x18\x07";
    first.push(&Record::Version(VersionRecord { revision: Revision(7), sub: 1, deletion: true, key_value }));
    first.push(&Record::Lease(b"lease"));
    first.push(&Record::Unit(&[b'u'; 130]));
    second.push(&Record::Compaction(Revision(6)));
    second.push(&Record::Modes(b"modes"));
    second.push(&Record::Gap(GapRecord { after: Revision(8), until: Revision(1 << 40), kind: b"/a/" }));
    second.push(&Record::Needs(FileNumber(1)));
    second.push(&Record::Import(b"import"));
    second.push(&Record::Promise(Revision(9)));
    second.push(&Record::Clean(Revision(9)));
    [first, second]
}

/// All records as text.
#[derive(Default)]
struct Text(String);

impl Recovery for Text {
    fn reset(&mut self) {
        panic!("nothing is damaged");
    }

    fn frame(&mut self, source: Source, frame: &Frame<'_>) -> Result<(), VisitError> {
        writeln!(self.0, "{source:?} frame {}", frame.seq)?;
        for record in frame.records() {
            writeln!(self.0, "  {record:?}")?;
        }
        Ok(())
    }
}

fn paths(layout: &Layout) -> [std::path::PathBuf; 3] {
    let segment = layout.log(LogKind::Fsync).join("0000000001.wal");
    [segment, layout.checkpoints().join("0000000001.ckp"), layout.clock()]
}

#[test]
fn files_are_written_as_ever() {
    let disk = SimDisk::new(1);
    let layout = Layout::new(Path::new("data"));
    let options = LogOptions { fill_bytes: 0, ..LogOptions::new(LogKind::Fsync, 0x0102_0304_0506_0708) };
    let log = Log::open(Arc::new(disk.clone()), layout.log(LogKind::Fsync), options, LogEnd::fresh(), |_| {})
        .unwrap();
    for batch in batches() {
        let seq = log.append(batch).unwrap();
        assert!(log.wait_durable(seq, Duration::from_secs(60)));
    }
    let from = LogPlaces { fsync: FrameSeq(2), buffered: FrameSeq(1) };
    let mut writer = CheckpointWriter::create(Arc::new(disk.clone()), &layout, from, 0x1112_1314, 0).unwrap();
    writer.write(batches()[0].clone()).unwrap();
    writer.finish(LogPlaces { fsync: FrameSeq(2), buffered: FrameSeq(0) }).unwrap();
    let mut clock = ClockFile::create(&disk, &layout.clock(), Revision(0x1234)).unwrap();
    clock.begin(7).unwrap();
    let durable = LogPlaces { fsync: FrameSeq(2), buffered: FrameSeq(0) };
    clock.store_with(Revision(0x5678_9abc), durable).unwrap();
    for (path, golden) in paths(&layout).iter().zip(FILES_2) {
        assert_eq!(hex(&disk.content(path).unwrap()), golden, "{}", path.display());
    }
}

#[test]
fn files_are_read_as_ever() {
    read(FILES_1, (0, LogPlaces::NONE));
    read(FILES_2, (7, LogPlaces { fsync: FrameSeq(2), buffered: FrameSeq(0) }));
}

fn read(files: Files, known: (u64, LogPlaces)) {
    let disk = SimDisk::new(1);
    let layout = Layout::new(Path::new("data"));
    for (path, golden) in paths(&layout).iter().zip(files) {
        disk.place(path, bytes(golden));
    }
    let mut text = Text::default();
    let (clock, ceiling) = ClockFile::open(&disk, &layout.clock()).unwrap().unwrap();
    assert_eq!((clock.incarnation(), clock.durable()), known);
    let recovered = recover(&disk, &layout, clock.durable(), OnDamage::Refuse, &mut text).unwrap();
    let checkpoint = recovered.checkpoint.unwrap();
    writeln!(text.0, "checkpoint from {:?} until {:?}", checkpoint.from, checkpoint.until).unwrap();
    writeln!(
        text.0,
        "fsync log goes on with frame {}, torn: {:?}",
        recovered.fsync.next, recovered.fsync.torn
    )
    .unwrap();
    writeln!(text.0, "ceiling {ceiling}").unwrap();
    assert_eq!(text.0, TEXT);
}
