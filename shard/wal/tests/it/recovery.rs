//! Recovery at start: torn tails, damage, missing files and checkpoints.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kindred_partition_config::ids::Revision;
use kindred_wal::{
    Batch, CheckpointWriter, Damage, Disk as _, FileNumber, Frame, FrameSeq, Layout, Log, LogEnd, LogKind,
    LogOptions, LogPlaces, OnDamage, Progress, Record, Recovered, Recovery, Source, Swept, VersionRecord,
    VisitError, WalError, checkpoints,
    format::{FrameDamage, FrameHeader, FrameKind, HeaderDamage},
    recover, removable, segments,
    sim::SimDisk,
    sweep,
};

const PATIENCE: Duration = Duration::from_secs(60);
/// The length of a frame with one version and a value of 100 bytes.
const FRAME: u64 = 32 + 2 + 13 + 100;
const HEADER: u64 = 64;

/// The recovered revisions, by their origin.
#[derive(Debug, Default)]
struct Found {
    checkpoint: Vec<i64>,
    log: Vec<i64>,
    progress: Vec<Progress>,
    refuse: bool,
}

impl Recovery for Found {
    fn reset(&mut self) {
        *self = Self { refuse: self.refuse, ..Self::default() };
    }

    fn frame(&mut self, source: Source, frame: &Frame<'_>) -> Result<(), VisitError> {
        if self.refuse {
            return Err("not today".into());
        }
        for record in frame.records() {
            let Record::Version(version) = record else { continue };
            match source {
                Source::Checkpoint => self.checkpoint.push(version.revision.get()),
                Source::Log(_) => self.log.push(version.revision.get()),
            }
        }
        Ok(())
    }

    fn progress(&mut self, progress: Progress) {
        self.progress.push(progress);
    }
}

struct Store {
    disk: SimDisk,
    layout: Layout,
    /// The positions that the clock file records as durable.
    known: LogPlaces,
}

fn batch(revision: i64) -> Batch {
    let mut batch = Batch::new();
    let key_value = &[b'v'; 100];
    batch.push(&Record::Version(VersionRecord {
        revision: Revision(revision),
        sub: 0,
        deletion: false,
        key_value,
    }));
    batch
}

impl Store {
    fn new() -> Self {
        Self { disk: SimDisk::new(7), layout: Layout::new(Path::new("data")), known: LogPlaces::NONE }
    }

    fn read(&self, on_damage: OnDamage) -> Result<(Recovered, Found), WalError> {
        let mut found = Found::default();
        recover(&self.disk, &self.layout, self.known, on_damage, &mut found)
            .map(|recovered| (recovered, found))
    }

    #[track_caller]
    fn good(&self) -> (Recovered, Found) {
        self.read(OnDamage::Refuse).unwrap()
    }

    #[track_caller]
    fn damaged(&self) -> kindred_wal::Loss {
        match self.read(OnDamage::Refuse) {
            Err(WalError::Damaged(loss)) => *loss,
            other => panic!("{other:?}"),
        }
    }

    fn open(&self, end: LogEnd) -> Log {
        let options = LogOptions {
            segment_bytes: HEADER + 4 * FRAME,
            fill_bytes: 0,
            ..LogOptions::new(LogKind::Fsync, 1)
        };
        Log::open(Arc::new(self.disk.clone()), self.layout.log(LogKind::Fsync), options, end, |_| {}).unwrap()
    }

    /// Appends these revisions one by one and waits until each is durable.
    fn write(&self, log: &Log, revisions: impl IntoIterator<Item = i64>) {
        for revision in revisions {
            let seq = log.append(batch(revision)).unwrap();
            assert!(log.wait_durable(seq, PATIENCE));
        }
    }

    /// A store with these revisions, in segments of four frames.
    fn with(revisions: std::ops::RangeInclusive<i64>) -> Self {
        let store = Self::new();
        let log = store.open(LogEnd::fresh());
        store.write(&log, revisions);
        drop(log);
        store
    }

    fn segment(&self, number: u64) -> PathBuf {
        self.layout.log(LogKind::Fsync).join(format!("{number:010}.wal"))
    }

    fn flip(&self, number: u64, byte: u64) {
        self.disk.flip(&self.segment(number), byte * 8);
    }

    fn checkpoint(&self, log: &Log, revisions: impl IntoIterator<Item = i64>) -> FileNumber {
        let from = LogPlaces { fsync: log.next(), buffered: FrameSeq(1) };
        let disk = Arc::new(self.disk.clone());
        let mut writer = CheckpointWriter::create(disk, &self.layout, from, 3, 0).unwrap();
        for revision in revisions {
            writer.write(batch(revision)).unwrap();
        }
        writer.finish(LogPlaces { fsync: log.next().prev(), buffered: FrameSeq(0) }).unwrap().number
    }

    fn checkpoint_path(&self, number: u64) -> PathBuf {
        self.layout.checkpoints().join(format!("{number:010}.ckp"))
    }
}

#[test]
fn nothing_is_there_at_first() {
    let (recovered, found) = Store::new().good();
    assert_eq!((recovered.fsync.next, found.log.len()), (FrameSeq(1), 0));
    assert!(recovered.checkpoint.is_none());
}

#[test]
fn a_torn_tail_is_cut_at_the_last_whole_frame_and_reported() {
    let store = Store::with(1..=3);
    let path = store.segment(1);
    let whole = store.disk.content(&path).unwrap();
    assert_eq!(whole.len() as u64, HEADER + 3 * FRAME);
    for cut in 0..FRAME {
        let kept = usize::try_from(HEADER + 2 * FRAME + cut).unwrap();
        store.disk.place(&path, whole[..kept].to_vec());
        let (recovered, found) = store.good();
        assert_eq!((found.log, recovered.fsync.next), (vec![1, 2], FrameSeq(3)));
        match recovered.fsync.torn {
            None => assert_eq!(cut, 0),
            Some(torn) => {
                // Trailing zeros may have been written ahead and are not counted.
                let tail = &whole[kept - usize::try_from(cut).unwrap()..kept];
                let bytes = tail.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1);
                assert_eq!((torn.file, torn.offset, torn.bytes), (path.clone(), HEADER + 2 * FRAME, bytes));
                assert_eq!(torn.damage, FrameDamage::Short);
            }
        }
    }
    // A file system may leave zeros for a write that never happened.
    store.disk.place(&path, [&whole[..usize::try_from(HEADER + 2 * FRAME).unwrap()], &[0; 5000]].concat());
    let (recovered, found) = store.good();
    assert_eq!((found.log, recovered.fsync.torn), (vec![1, 2], None));
}

#[test]
fn a_bad_frame_that_was_on_the_disk_is_refused_with_what_is_lost() {
    let store = Store::with(1..=10);
    assert_eq!(store.good().1.log, (1..=10).collect::<Vec<_>>());
    // The second frame of the first segment. Two more frames follow in the segment, and six in later ones.
    store.flip(1, HEADER + FRAME + 60);
    let loss = store.damaged();
    assert_eq!((loss.file.clone(), loss.offset), (store.segment(1), HEADER + FRAME));
    assert_eq!(loss.damage, Damage::Frame(FrameDamage::Payload(FrameSeq(2))));
    assert_eq!((loss.frames, loss.revisions), (8, Some((Revision(3), Revision(10)))));
    assert_eq!(loss.bytes, 3 * FRAME + 4 * FRAME + 2 * FRAME);
    let told = loss.to_string();
    for part in ["0000000001.wal", "byte 211", "8 readable frames", "revisions 3 to 10", "--accept-data-loss"]
    {
        assert!(told.contains(part), "{told}");
    }

    let (recovered, found) = store.read(OnDamage::Accept).unwrap();
    assert_eq!((found.log, recovered.losses), (vec![1], vec![loss]));
    assert_eq!(recovered.fsync.next, FrameSeq(11), "numbers are not given twice");
    let log = store.open(recovered.fsync);
    store.write(&log, [20]);
    drop(log);
    assert_eq!(store.good().1.log, [1, 20], "the loss is accepted once");
    let names = store.disk.list(&store.layout.log(LogKind::Fsync)).unwrap();
    assert_eq!(names, ["0000000001.wal", "0000000002.wal", "0000000002.wal.lost", "0000000003.wal.lost"]);
}

/// In the last segment, too: the frames after it prove that it was synced.
#[test]
fn a_bad_frame_before_a_later_write_is_no_torn_tail() {
    let store = Store::with(1..=3);
    store.flip(1, HEADER + FRAME + 3);
    assert_eq!(store.damaged().damage, Damage::Frame(FrameDamage::Header));
}

/// A torn write lacks a whole sector. A frame that lacks none was fully written and is damaged.
#[test]
fn f07_a_bit_that_flips_in_the_last_write_is_no_torn_tail() {
    let store = Store::with(1..=3);
    for bit in 0..FRAME * 8 {
        let bit = (HEADER + 2 * FRAME) * 8 + bit;
        store.disk.flip(&store.segment(1), bit);
        let loss = store.damaged();
        assert_eq!((loss.file.clone(), loss.offset), (store.segment(1), HEADER + 2 * FRAME), "bit {bit}");
        assert_eq!(loss.bytes, FRAME);
        assert!(loss.to_string().contains("--accept-data-loss"), "{loss}");
        store.disk.flip(&store.segment(1), bit);
    }
    store.flip(1, HEADER + 2 * FRAME + 3);
    let (recovered, found) = store.read(OnDamage::Accept).unwrap();
    assert_eq!((found.log, recovered.losses.len()), (vec![1, 2], 1));
    store.write(&store.open(recovered.fsync), [20]);
    assert_eq!(store.good().1.log, [1, 2, 20]);
}

/// A value of zeros looks like sectors that were never written; its frame header says that they are zeros.
#[test]
fn f07_a_value_of_zeros_hides_no_flipped_bit_and_a_sector_that_is_missing_is_torn() {
    for value in [vec![0; 5000], [vec![7; 700], vec![0; 2000], vec![7; 900]].concat(), vec![7; 3000]] {
        let store = Store::with(1..=3);
        let log = store.open(store.good().0.fsync);
        let mut batch = Batch::new();
        let version = VersionRecord { revision: Revision(4), sub: 0, deletion: false, key_value: &value };
        batch.push(&Record::Version(version));
        let seq = log.append(batch).unwrap();
        assert!(log.wait_durable(seq, PATIENCE));
        drop(log);
        let path = store.segment(2);
        let whole = store.disk.content(&path).unwrap();
        // The frames that were not proven durable come first, then this frame's 32-byte header and its payload.
        let begins = whole.len() - value.len() - 32 - 16;
        for byte in (begins..whole.len()).step_by(37) {
            let mut flipped = whole.clone();
            flipped[byte] ^= 1 << (byte % 8);
            store.disk.place(&path, flipped);
            assert_eq!(store.damaged().offset, begins as u64, "byte {byte}");
        }
        for sector in begins / 512..=(whole.len() - 1) / 512 {
            let mut torn = whole.clone();
            let missing = (sector * 512).max(begins)..((sector + 1) * 512).min(whole.len());
            let was_zero = torn[missing.clone()].iter().all(|byte| *byte == 0);
            torn[missing].fill(0);
            let nothing_is_left = torn[begins..].iter().all(|byte| *byte == 0);
            store.disk.place(&path, torn);
            let (recovered, found) = store.good();
            assert_eq!(found.log, if was_zero { vec![1, 2, 3, 4] } else { vec![1, 2, 3] });
            assert_eq!(recovered.fsync.torn.is_some(), !was_zero && !nothing_is_left, "sector {sector}");
        }
    }
}

#[test]
fn f50_a_log_that_ends_before_what_is_known_to_be_on_the_disk_is_refused() {
    let mut store = Store::with(1..=3);
    let path = store.segment(1);
    let whole = store.disk.content(&path).unwrap();
    for kept in [HEADER, HEADER + FRAME, HEADER + FRAME + 40, HEADER + 2 * FRAME, HEADER + 3 * FRAME - 1] {
        store.disk.place(&path, whole[..usize::try_from(kept).unwrap()].to_vec());
        store.known = LogPlaces { fsync: FrameSeq(3), buffered: FrameSeq(0) };
        let last = FrameSeq((kept - HEADER) / FRAME);
        let loss = store.damaged();
        assert_eq!(loss.damage, Damage::TooShort { last, needed: FrameSeq(3) }, "{kept}");
        assert_eq!(loss.file, path);
        // A frame that was not recorded as durable may have been cut by a crash.
        store.known = LogPlaces { fsync: last, buffered: FrameSeq(0) };
        store.good();
    }
    store.known = LogPlaces { fsync: FrameSeq(3), buffered: FrameSeq(0) };
    let (recovered, _) = store.read(OnDamage::Accept).unwrap();
    assert_eq!(recovered.fsync.next, FrameSeq(4), "numbers that were given are not given again");
    store.write(&store.open(recovered.fsync), [4]);
    assert_eq!(store.good().1.log, [1, 2, 4]);
    store.disk.remove(&path).unwrap();
    store.disk.remove(&store.segment(2)).unwrap();
    assert_eq!(store.damaged().damage, Damage::Missing, "the whole log");
}

/// A segment is filled with zeros before it gets its name, and never becomes shorter.
#[test]
fn f50_a_file_that_is_shorter_than_it_was_is_refused() {
    let store = Store::new();
    let options = LogOptions { fill_bytes: 4096, ..LogOptions::new(LogKind::Fsync, 1) };
    let disk = Arc::new(store.disk.clone());
    let log = Log::open(disk, store.layout.log(LogKind::Fsync), options, LogEnd::fresh(), |_| {}).unwrap();
    store.write(&log, 1..=3);
    drop(log);
    let path = store.segment(1);
    let whole = store.disk.content(&path).unwrap();
    for kept in [HEADER, HEADER + FRAME, HEADER + FRAME + 40, HEADER + 3 * FRAME, HEADER + 4095] {
        store.disk.place(&path, whole[..usize::try_from(kept).unwrap()].to_vec());
        let loss = store.damaged();
        assert_eq!(loss.damage, Damage::Cut { bytes: kept, were: HEADER + 4096 }, "{kept}");
    }
    store.disk.place(&path, whole);
    store.good();
}

#[test]
fn a_segment_that_is_missing_or_of_elsewhere_is_refused() {
    let store = Store::with(1..=12);
    store.disk.remove(&store.segment(2)).unwrap();
    let loss = store.damaged();
    assert_eq!((loss.file, loss.damage), (store.segment(2), Damage::Missing));
    assert_eq!((loss.frames, loss.revisions), (4, Some((Revision(9), Revision(12)))));
    let (recovered, found) = store.read(OnDamage::Accept).unwrap();
    assert_eq!(found.log, [1, 2, 3, 4]);
    drop(store.open(recovered.fsync));
    assert_eq!(store.good().1.log, [1, 2, 3, 4]);

    let store = Store::with(1..=12);
    store.disk.remove(&store.segment(1)).unwrap();
    assert_eq!(store.damaged().file, store.segment(1));

    let store = Store::with(1..=12);
    let first = store.disk.content(&store.segment(1)).unwrap();
    store.disk.place(&store.segment(2), first);
    let loss = store.damaged();
    assert_eq!(
        (loss.file, loss.damage),
        (store.segment(2), Damage::Header(HeaderDamage::Number(FileNumber(1))))
    );
}

#[test]
fn files_of_a_later_version_are_refused_whatever_is_accepted() {
    let store = Store::with(1..=3);
    let path = store.segment(1);
    let mut bytes = store.disk.content(&path).unwrap();
    let (_, seed) = kindred_wal::format::FileHeader::decode(&bytes).unwrap();
    let payload = [200, 0];
    let frame =
        FrameHeader::of(FrameKind::Batch, FrameSeq(4), bytes.len() as u64, bytes.len() as u64, &payload);
    bytes.extend(frame.encode(seed).into_iter().chain(payload));
    store.disk.place(&path, bytes.clone());
    for on_damage in [OnDamage::Refuse, OnDamage::Accept] {
        let error = store.read(on_damage).unwrap_err();
        assert!(matches!(&error, WalError::Newer { path: at, .. } if *at == path), "{error}");
        assert!(error.to_string().contains("kind 200"), "{error}");
    }
    bytes[8] = 9;
    let checksum = crc32c::crc32c(&bytes[..60]).to_le_bytes();
    bytes[60..64].copy_from_slice(&checksum);
    store.disk.place(&path, bytes);
    let error = store.read(OnDamage::Accept).unwrap_err();
    assert!(error.to_string().contains("format 9"), "{error}");
}

#[test]
fn a_checkpoint_is_read_and_the_log_after_it() {
    let store = Store::new();
    let log = store.open(LogEnd::fresh());
    store.write(&log, 1..=9);
    store.checkpoint(&log, [100, 101]);
    store.write(&log, 10..=11);
    drop(log);
    let (recovered, found) = store.good();
    assert_eq!((found.checkpoint, found.log), (vec![100, 101], vec![10, 11]));
    assert_eq!(recovered.checkpoint.unwrap().number, FileNumber(1));
    let last = found.progress.last().unwrap();
    assert_eq!(last.done, last.total);

    let mut refusing = Found { refuse: true, ..Found::default() };
    let error =
        recover(&store.disk, &store.layout, LogPlaces::NONE, OnDamage::Refuse, &mut refusing).unwrap_err();
    assert!(
        error.to_string().contains("0000000001.ckp") && error.to_string().contains("not today"),
        "{error}"
    );
}

#[test]
fn what_no_checkpoint_needs_is_removed_and_the_newest_but_one_still_serves() {
    let store = Store::new();
    let log = store.open(LogEnd::fresh());
    let numbers = |store: &Store| -> Vec<u64> {
        let all = segments(&store.disk, &store.layout.log(LogKind::Fsync), LogKind::Fsync).unwrap();
        all.iter().map(|segment| segment.number.0).collect()
    };
    store.write(&log, 1..=9);
    store.checkpoint(&log, [100]);
    assert_eq!(sweep(&store.disk, &store.layout, 2).unwrap(), Swept::default(), "one is not enough");
    store.write(&log, 10..=18);
    store.checkpoint(&log, [200]);
    let swept = sweep(&store.disk, &store.layout, 2).unwrap();
    assert_eq!((swept.checkpoints, swept.segments), (0, 2));
    assert_eq!(numbers(&store), [3, 4, 5]);
    let all = segments(&store.disk, &store.layout.log(LogKind::Fsync), LogKind::Fsync).unwrap();
    let gone = |from| removable(&all, FrameSeq(from)).len();
    assert_eq!([1, 9, 12, 13, 16, 17, 1000].map(gone), [0, 0, 0, 1, 1, 2, 2]);

    store.disk.flip(&store.checkpoint_path(2), 8 * 150);
    let (recovered, found) = store.good();
    assert_eq!((found.checkpoint, found.log), (vec![100], (10..=18).collect()));
    assert_eq!(recovered.passed_over.len(), 1);
    assert_eq!(recovered.passed_over[0].file, store.checkpoint_path(2));

    // A newer checkpoint serves. The damaged one does not count, and is removed in its turn.
    store.checkpoint(&log, [300]);
    store.write(&log, 19..=30);
    store.checkpoint(&log, [400]);
    sweep(&store.disk, &store.layout, 2).unwrap();
    let left: Vec<u64> =
        checkpoints(&store.disk, &store.layout).unwrap().iter().map(|file| file.number.0).collect();
    assert_eq!(left, [3, 4]);
}

#[test]
fn without_a_whole_checkpoint_only_the_whole_log_serves() {
    let store = Store::new();
    let log = store.open(LogEnd::fresh());
    store.write(&log, 1..=9);
    store.checkpoint(&log, [100, 101]);
    store.write(&log, [10]);
    drop(log);
    let content = store.disk.content(&store.checkpoint_path(1)).unwrap();
    // Cut in the middle, and within the last frame.
    for kept in [content.len() / 2, content.len() - 50] {
        store.disk.place(&store.checkpoint_path(1), content[..kept].to_vec());
        let (recovered, found) = store.good();
        assert_eq!((found.checkpoint, found.log), (vec![], (1..=10).collect()), "nothing was removed yet");
        assert_eq!(recovered.passed_over.len(), 1);
    }
    assert_eq!(sweep(&store.disk, &store.layout, 1).unwrap(), Swept::default(), "what is cut off is none");
    store.disk.remove(&store.segment(1)).unwrap();
    let loss = store.damaged();
    assert_eq!(loss.file, store.checkpoint_path(1));
    let (recovered, found) = store.read(OnDamage::Accept).unwrap();
    assert_eq!((found.checkpoint, found.log), (vec![100, 101], vec![10]), "what can be read");
    assert_eq!(recovered.losses.len(), 1);
}

#[test]
fn a_checkpoint_that_the_log_needs_is_not_fallen_back_behind() {
    let store = Store::new();
    let log = store.open(LogEnd::fresh());
    store.write(&log, 1..=2);
    store.checkpoint(&log, [100]);
    let needed = store.checkpoint(&log, [200]);
    let mut batch = Batch::new();
    batch.push(&Record::Needs(needed));
    let seq = log.append(batch).unwrap();
    assert!(log.wait_durable(seq, PATIENCE));
    assert_eq!(store.good().1.checkpoint, [200]);
    store.disk.flip(&store.checkpoint_path(2), 8 * 150);
    let loss = store.damaged();
    assert_eq!((loss.file, loss.damage), (store.checkpoint_path(2), Damage::NeedsCheckpoint(FileNumber(2))));
    let (recovered, found) = store.read(OnDamage::Accept).unwrap();
    assert_eq!((found.checkpoint, recovered.losses.len()), (vec![100], 1));
}

/// A checkpoint may hold changes of frames up to `until`. On a shorter log, it would be ahead of their
/// predecessors.
#[test]
fn a_log_that_ends_before_what_its_checkpoint_relies_on_is_refused() {
    let store = Store::new();
    let log = store.open(LogEnd::fresh());
    store.write(&log, 1..=2);
    let from = LogPlaces { fsync: log.next(), buffered: FrameSeq(1) };
    let writer = CheckpointWriter::create(Arc::new(store.disk.clone()), &store.layout, from, 3, 0).unwrap();
    store.write(&log, 3..=4);
    writer.finish(LogPlaces { fsync: log.next().prev(), buffered: FrameSeq(0) }).unwrap();
    drop(log);
    let path = store.segment(1);
    let content = store.disk.content(&path).unwrap();
    store.disk.place(&path, content[..usize::try_from(HEADER + 3 * FRAME).unwrap()].to_vec());
    let loss = store.damaged();
    assert_eq!(loss.damage, Damage::TooShort { last: FrameSeq(3), needed: FrameSeq(4) });
    let (recovered, _) = store.read(OnDamage::Accept).unwrap();
    assert_eq!(recovered.fsync.next, FrameSeq(5));
    drop(store.open(recovered.fsync));
    store.good();
}

#[test]
fn an_unfinished_checkpoint_leaves_nothing() {
    let store = Store::with(1..=3);
    let disk = Arc::new(store.disk.clone());
    let new = || CheckpointWriter::create(disk.clone(), &store.layout, LogPlaces::FIRST, 3, 0).unwrap();
    drop(new());
    assert_eq!(store.disk.list(&store.layout.checkpoints()).unwrap(), [""; 0]);
    std::mem::forget(new());
    assert_eq!(store.disk.list(&store.layout.checkpoints()).unwrap(), ["0000000001.ckp.new"]);
    assert_eq!(store.good().1.log, [1, 2, 3]);
    assert_eq!(new().number(), FileNumber(1));
    let full =
        CheckpointWriter::create(disk.clone(), &store.layout, LogPlaces::FIRST, 3, u64::MAX).unwrap_err();
    assert!(full.to_string().contains("0000000001.ckp"), "{full}");
}

#[test]
fn a_directory_that_is_no_log_of_ours_is_left_alone() {
    let store = Store::with(1..=3);
    let directory = store.layout.log(LogKind::Fsync);
    for name in ["notes.txt", "0000000009.wal.new", "9.wal", "0000000000.wal"] {
        store.disk.place(&directory.join(name), b"x".to_vec());
    }
    assert_eq!(store.good().1.log, [1, 2, 3]);
}

/// The same where a sector begins within the frame's header, whose last bytes are zeros anyway.
#[test]
fn f07_a_sector_that_is_missing_behind_any_part_of_a_header_is_torn() {
    // The last frame begins between 39 bytes before a sector boundary and 26 bytes after it.
    for before in 240..305 {
        let store = Store::new();
        let options = LogOptions { fill_bytes: 0, ..LogOptions::new(LogKind::Fsync, 1) };
        let disk = Arc::new(store.disk.clone());
        let log =
            Log::open(disk, store.layout.log(LogKind::Fsync), options, LogEnd::fresh(), |_| {}).unwrap();
        let mut begins = HEADER;
        for bytes in [before, 100, 600] {
            begins = store.disk.content(&store.segment(1)).map_or(HEADER, |content| content.len() as u64);
            let mut batch = Batch::new();
            batch.push(&Record::Lease(&vec![7; bytes]));
            let seq = log.append(batch).unwrap();
            assert!(log.wait_durable(seq, PATIENCE));
        }
        drop(log);
        let path = store.segment(1);
        let whole = store.disk.content(&path).unwrap();
        let begins = usize::try_from(begins).unwrap();
        for sector in begins / 512..=(whole.len() - 1) / 512 {
            let mut torn = whole.clone();
            torn[(sector * 512).max(begins)..((sector + 1) * 512).min(whole.len())].fill(0);
            store.disk.place(&path, torn);
            let (recovered, _) = store.good();
            assert_eq!(recovered.fsync.next, FrameSeq(3), "a frame at {begins} without sector {sector}");
        }
        for byte in begins..whole.len() {
            let mut flipped = whole.clone();
            flipped[byte] ^= 16;
            store.disk.place(&path, flipped);
            assert_eq!(store.damaged().offset, begins as u64, "a frame at {begins}, byte {byte}");
        }
    }
}
