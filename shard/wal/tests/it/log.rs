//! A log with its threads, as a shard sees it.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    time::Duration,
};

use kindred_partition_config::ids::Revision;
use kindred_wal::{
    Batch, Disk as _, Event, FailureReason, Frame, FrameSeq, Log, LogEnd, LogKind, LogOptions, RealDisk,
    Record, Visit, VisitError, Wanted, scan,
    sim::{Faults, SimDisk},
};

/// Long enough for any machine; no test waits for it to pass.
const PATIENCE: Duration = Duration::from_secs(60);

fn directory() -> PathBuf {
    PathBuf::from("data/wal")
}

fn batch(content: &[u8]) -> Batch {
    let mut batch = Batch::new();
    batch.push(&Record::Lease(content));
    batch
}

fn options(kind: LogKind) -> LogOptions {
    LogOptions {
        fill_bytes: 200,
        retry_first: Duration::from_millis(1),
        max_pending_bytes: 1000,
        min_free_bytes: 100,
        ..LogOptions::new(kind, 9)
    }
}

fn open(disk: &SimDisk, kind: LogKind, end: LogEnd) -> (Log, mpsc::Receiver<Event>) {
    let (tell, told) = mpsc::channel();
    let log = Log::open(Arc::new(disk.clone()), directory(), options(kind), end, move |event| {
        tell.send(event).ok();
    });
    (log.unwrap(), told)
}

/// A log's leases and promises, in order.
#[derive(Default)]
struct All(Vec<String>);

impl Visit for All {
    fn frame(&mut self, frame: &Frame<'_>) -> Result<(), VisitError> {
        for record in frame.records() {
            self.0.push(match record {
                Record::Lease(content) => String::from_utf8(content.to_vec())?,
                Record::Promise(revision) => format!("promise {revision}"),
                other => return Err(format!("{other:?}").into()),
            });
        }
        Ok(())
    }
}

fn read(disk: &SimDisk, kind: LogKind) -> (Vec<String>, LogEnd) {
    let mut all = All::default();
    let end = scan(disk, &directory(), kind, Wanted::ALL, &mut all).unwrap();
    (all.0, end)
}

fn durable(told: &mpsc::Receiver<Event>) -> FrameSeq {
    loop {
        match told.recv_timeout(PATIENCE).unwrap() {
            Event::Written { .. } => {}
            Event::Durable { seq, .. } => return seq,
            other => panic!("{other:?}"),
        }
    }
}

/// Frames that the operating system has survive the process, even if the disk has not synced for a long time.
#[test]
fn f11_what_the_buffered_log_has_written_outlives_the_process() {
    let disk = SimDisk::new(1);
    let (log, told) = open(&disk, LogKind::Buffered, LogEnd::fresh());
    log.append(batch(b"first")).unwrap();
    assert_eq!(durable(&told), FrameSeq(1));
    disk.hold_syncs();
    let mut names = vec!["first".to_owned()];
    for number in 2..50 {
        names.push(format!("{number}"));
        let seq = log.append(batch(names.last().unwrap().as_bytes())).unwrap();
        let mut written = FrameSeq(0);
        while written < seq {
            let Event::Written { seq } = told.recv_timeout(PATIENCE).unwrap() else { panic!() };
            written = seq;
        }
        assert!(log.written() >= seq);
    }
    assert_eq!(log.durable(), FrameSeq(1));
    disk.kill();
    drop(log);
    let (all, end) = read(&disk, LogKind::Buffered);
    assert_eq!(all, names);
    assert_eq!(end.torn, None);
}

#[test]
fn what_is_reported_durable_survives_power_loss() {
    for kind in LogKind::ALL {
        let disk = SimDisk::new(1);
        let (log, told) = open(&disk, kind, LogEnd::fresh());
        assert_eq!(log.append(batch(b"a")), Ok(FrameSeq(1)));
        assert_eq!(durable(&told), FrameSeq(1));
        assert_eq!(log.append(batch(b"b")), Ok(FrameSeq(2)));
        log.promise(Revision(4));
        assert!(log.wait_durable(FrameSeq(2), PATIENCE));
        assert!(log.durable() >= FrameSeq(2));
        drop(log);
        disk.crash();
        let (all, end) = read(&disk, kind);
        assert_eq!(all[..2], ["a", "b"]);
        assert_eq!(end.next, FrameSeq(all.len() as u64 + 1));
    }
}

#[test]
fn closing_writes_everything_and_the_next_start_goes_on() {
    let disk = SimDisk::new(1);
    let (log, _told) = open(&disk, LogKind::Buffered, LogEnd::fresh());
    for name in ["a", "b", "c"] {
        log.append(batch(name.as_bytes())).unwrap();
    }
    log.promise(Revision(9));
    log.close(PATIENCE).unwrap();
    disk.crash();
    let (all, end) = read(&disk, LogKind::Buffered);
    assert_eq!(all, ["a", "b", "c", "promise 9"]);

    let (log, _told) = open(&disk, LogKind::Buffered, end);
    assert_eq!(log.next(), FrameSeq(5));
    log.append(batch(b"d")).unwrap();
    log.close(PATIENCE).unwrap();
    disk.crash();
    let (all, end) = read(&disk, LogKind::Buffered);
    assert_eq!(all, ["a", "b", "c", "promise 9", "d"]);
    assert_eq!((end.next, end.torn), (FrameSeq(6), None));
}

/// Appending never waits for a slow disk, and a caller that asks for room bounds the pending frames.
#[test]
fn a_slow_disk_holds_up_nobody() {
    let disk = SimDisk::new(1);
    let (log, told) = open(&disk, LogKind::Fsync, LogEnd::fresh());
    disk.hold_syncs();
    let mut last = FrameSeq(0);
    let mut appended = 0;
    while log.has_room() {
        last = log.append(batch(&[b'x'; 100])).unwrap();
        appended += 1;
    }
    assert_eq!(appended, 8, "the limit and one batch");
    assert_eq!((log.durable(), log.status().failing), (FrameSeq(0), None));
    assert!(told.try_recv().is_err(), "nothing is durable yet");
    assert!(!log.wait_durable(last, Duration::from_millis(1)));
    disk.release_syncs();
    while durable(&told) < last {}
    assert!(log.has_room());
    assert_eq!(log.status().pending_bytes, 0);
}

#[test]
fn a_full_disk_fails_and_recovers_and_nothing_is_lost() {
    let disk = SimDisk::new(1);
    let (log, told) = open(&disk, LogKind::Fsync, LogEnd::fresh());
    log.append(batch(b"a")).unwrap();
    assert_eq!(durable(&told), FrameSeq(1));
    disk.set_faults(Faults { space_left: Some(20), ..Faults::default() });
    let last = log.append(batch(&[b'b'; 300])).unwrap();
    let Event::Failing(failure) = told.recv_timeout(PATIENCE).unwrap() else { panic!() };
    assert_eq!(failure.reason, FailureReason::NoSpace);
    assert!(failure.message.contains("0000000001.wal"), "{failure}");
    assert_eq!(log.status().failing.map(|failure| failure.reason), Some(FailureReason::NoSpace));
    disk.set_faults(Faults::default());
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Event::Recovered);
    assert_eq!(durable(&told), last);
    assert_eq!(log.status().failing, None);
    drop(log);
    disk.crash();
    assert_eq!(read(&disk, LogKind::Fsync).0, ["a".to_owned(), "b".repeat(300)]);
}

#[test]
fn a_failed_sync_is_not_believed_later() {
    for seed in 0..30 {
        let disk = SimDisk::new(seed);
        let (log, told) = open(&disk, LogKind::Fsync, LogEnd::fresh());
        log.append(batch(b"a")).unwrap();
        assert_eq!(durable(&told), FrameSeq(1));
        disk.set_faults(Faults { fail_sync_in: Some(0), ..Faults::default() });
        log.append(batch(b"b")).unwrap();
        assert!(
            matches!(told.recv_timeout(PATIENCE).unwrap(), Event::Failing(failure) if failure.reason == FailureReason::Io)
        );
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Event::Recovered);
        assert_eq!(durable(&told), FrameSeq(2));
        drop(log);
        disk.crash();
        assert_eq!(read(&disk, LogKind::Fsync).0, ["a", "b"], "seed {seed}");
    }
}

#[test]
fn a_log_opens_on_a_full_or_read_only_disk_and_says_so() {
    for (faults, reason) in [
        (Faults { space_left: Some(50), ..Faults::default() }, FailureReason::NoSpace),
        (Faults { read_only: true, ..Faults::default() }, FailureReason::ReadOnly),
    ] {
        let disk = SimDisk::new(1);
        disk.create_directory(&directory()).unwrap();
        disk.set_faults(faults);
        let (tell, told) = mpsc::channel();
        let opened = Log::open(
            Arc::new(disk.clone()),
            directory(),
            options(LogKind::Fsync),
            LogEnd::fresh(),
            move |event| {
                tell.send(event).ok();
            },
        );
        let Ok(log) = opened else { panic!("{reason:?}: {}", opened.unwrap_err()) };
        assert!(
            matches!(told.recv_timeout(PATIENCE).unwrap(), Event::Failing(failure) if failure.reason == reason)
        );
        let unwritten = log.close(PATIENCE).unwrap_err();
        assert_eq!(unwritten.from, FrameSeq(1));
    }
}

#[test]
fn segments_follow_each_other_on_a_real_disk() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = temporary.path().join("wal/fsync");
    let options = LogOptions { segment_bytes: 20_000, ..LogOptions::new(LogKind::Fsync, 5) };
    let log = Log::open(Arc::new(RealDisk), directory.clone(), options, LogEnd::fresh(), |_| {}).unwrap();
    for number in 0..200 {
        let seq = log.append(batch(format!("{number:01000}").as_bytes())).unwrap();
        if number % 10 == 0 {
            assert!(log.wait_durable(seq, PATIENCE));
        }
    }
    log.close(PATIENCE).unwrap();
    let mut all = All::default();
    let end = scan(&RealDisk, &directory, LogKind::Fsync, Wanted::ALL, &mut all).unwrap();
    assert_eq!(end.next, FrameSeq(201));
    assert!(all.0.iter().enumerate().all(|(number, content)| *content == format!("{number:01000}")));
    assert!(RealDisk.list(&directory).unwrap().len() > 3);
    assert_eq!(
        RealDisk.list(Path::new(&directory)).unwrap().iter().filter(|name| !name.ends_with(".wal")).count(),
        0
    );
}

/// Writing zeros costs a stall and a journal commit of the file system, so a busy log does it less often. A quiet
/// log takes little space.
#[test]
fn zeros_are_written_ahead_and_more_each_time() {
    let disk = SimDisk::new(1);
    let options = LogOptions { fill_bytes: 1000, ..LogOptions::new(LogKind::Fsync, 9) };
    let log = Log::open(Arc::new(disk.clone()), directory(), options, LogEnd::fresh(), |_| {}).unwrap();
    let path = directory().join(disk.list(&directory()).unwrap().first().unwrap());
    let mut lengths = vec![disk.content(&path).unwrap().len()];
    while lengths.len() < 6 {
        let seq = log.append(batch(&[7; 60])).unwrap();
        assert!(log.wait_durable(seq, PATIENCE));
        let length = disk.content(&path).unwrap().len();
        if length > *lengths.last().unwrap() {
            lengths.push(length);
        }
    }
    let grew: Vec<_> = lengths.windows(2).map(|pair| (pair[1] - pair[0]) / 1000).collect();
    assert_eq!(grew, [2, 4, 4, 4, 4]);
    log.close(PATIENCE).unwrap();
}
