//! Damaged, truncated or missing files: a start names the file and what is lost, and never takes the loss of
//! acknowledged writes for a write that a crash cut short.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64},
};

use kindred_engine::durability::{Durability, KindModes, ModesTaken};
use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
};
use kindred_wal::{
    ClockDamage, ClockFile, Disk as _, FileNumber, FrameSeq, Layout, LogKind, OnDamage, WalError,
    format::{FORMAT_VERSION, FileHeader, FileKind},
    sim::{Faults, SimDisk},
};

use super::{
    disk::LifeDisk,
    driven::Bench,
    life::{new_disk, open, put, query},
};
use crate::durability::clock_file::{self, Beside};

const SECRET: &str = "/registry/secrets/a";
const EVENTS: &str = "/registry/events/";
const EVENT: &str = "/registry/events/e";

fn layout() -> Layout {
    Layout::new(Path::new("data"))
}

async fn driven(disk: &SimDisk, wall: &Arc<AtomicU64>) -> Bench {
    let life = LifeDisk::new(disk);
    let (core, logs) = open(life.clone(), wall).await.unwrap();
    Bench { core, logs, life }
}

/// The error of a start that finds damage.
async fn refused(disk: &SimDisk, wall: &Arc<AtomicU64>) -> String {
    match open(LifeDisk::new(disk), wall).await {
        Ok(_) => panic!("damage was taken for the end of a write that a crash cut short"),
        Err(error) => format!("{error:#}"),
    }
}

fn has(bench: &mut Bench, key: &str) -> bool {
    let found = bench.core.engine.range(&query(KeyRange::Single(key.into()), None)).unwrap();
    !found.kvs.is_empty()
}

/// The last segment of a log, and the end of its used part.
fn last_segment(disk: &SimDisk, kind: LogKind) -> (PathBuf, usize) {
    let directory = layout().log(kind);
    let names = disk.list(&directory).unwrap();
    let path = directory.join(names.iter().rfind(|name| name.ends_with(".wal")).unwrap());
    let content = disk.content(&path).unwrap();
    let used = content.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    (path, used)
}

#[tokio::test]
async fn f07_a_bit_that_flips_in_the_last_fsynced_batch_stops_the_start() {
    let (disk, wall) = new_disk(1);
    let mut bench = driven(&disk, &wall).await;
    for value in ["1", "2"] {
        bench.apply(put(SECRET, value));
        bench.flushed().await;
    }
    drop(bench);
    disk.kill();
    let (path, used) = last_segment(&disk, LogKind::Fsync);
    for byte in [used - 1, used - 20, used - 60] {
        let damaged = disk.copy(2);
        damaged.flip(&path, byte as u64 * 8);
        let told = refused(&damaged, &wall).await;
        for part in [&*path.to_string_lossy(), "at byte", "bytes are lost", "--accept-data-loss"] {
            assert!(told.contains(part), "{told}");
        }
    }
    assert!(has(&mut driven(&disk, &wall).await, SECRET));
}

/// The clock's file knows how far the log was.
#[tokio::test]
async fn f50_a_log_that_is_cut_off_stops_the_start() {
    for kind in LogKind::ALL {
        let (disk, wall) = new_disk(1);
        let mut bench = driven(&disk, &wall).await;
        for number in 0..50 {
            bench.apply(put(&format!("{SECRET}{number}"), "v"));
            bench.apply(put(&format!("/registry/configmaps/{number}"), "v"));
            bench.flushed().await;
        }
        let noted = || ClockFile::open(&disk, &layout().clock()).unwrap().unwrap().0.durable();
        bench
            .until("the clock knows", |bench| {
                bench.logs.report(&bench.core);
                noted().fsync.0 >= bench.logs.position()
                    && noted().buffered.0 >= bench.logs.position_buffered()
            })
            .await;
        drop(bench);
        disk.kill();
        let (path, used) = last_segment(&disk, kind);
        let content = disk.content(&path).unwrap();
        let tail = content.len() - used;
        for cut in [used / 2, used - 1, 64] {
            // The file may keep its length, or lose it.
            for zeros in [0, tail] {
                let damaged = disk.copy(3);
                damaged.place(&path, [&content[..cut], &vec![0; zeros]].concat());
                let told = refused(&damaged, &wall).await;
                assert!(told.contains(&*path.to_string_lossy()) && told.contains("--accept"), "{told}");
            }
        }
        let gone = disk.copy(4);
        gone.remove(&path).unwrap();
        assert!(refused(&gone, &wall).await.contains("is missing"));
    }
}

#[tokio::test]
async fn f09_a_missing_file_of_the_clock_stops_the_start_where_anything_else_is_there() {
    let (disk, wall) = new_disk(1);
    let mut bench = driven(&disk, &wall).await;
    bench.apply(put(SECRET, "v"));
    bench.flushed().await;
    drop(bench);
    disk.kill();
    disk.remove(&layout().clock()).unwrap();
    let told = refused(&disk, &wall).await;
    for part in ["data/clock is missing", "a log or a checkpoint is there", "--accept-data-loss"] {
        assert!(told.contains(part), "{told}");
    }
}

#[test]
fn f09_what_must_have_a_file_of_the_clock_beside_it() {
    let segment = |version| {
        let header = FileHeader {
            kind: FileKind::FsyncLog,
            number: FileNumber(1),
            first: FrameSeq::FIRST,
            after: FrameSeq::FIRST,
            whole: 64,
            salt: 0,
            length: 0,
            version,
        };
        Some(header.encode().0.to_vec())
    };
    let path = layout().log(LogKind::Fsync).join("0000000001.wal");
    for (dense, identity, log, must) in [
        (false, false, None, false),
        (false, true, None, true),
        (false, false, segment(1), true),
        (false, false, segment(FORMAT_VERSION), true),
        // Versions before format 2 created none for dense revisions.
        (true, true, None, false),
        (true, true, segment(1), false),
        (true, true, segment(FORMAT_VERSION), true),
        (true, true, Some(vec![1; 64]), true),
    ] {
        let disk = new_disk(1).0;
        if let Some(log) = log {
            disk.place(&path, log);
        }
        let beside = Beside { dense, identity };
        let found = clock_file::open(&disk, &layout(), beside, OnDamage::Refuse);
        match found {
            Err(WalError::Clock { why: ClockDamage::Missing(_), .. }) => assert!(must, "{beside:?}"),
            other => assert!(!must && other.unwrap().is_none(), "{beside:?}"),
        }
        assert!(clock_file::open(&disk, &layout(), beside, OnDamage::Accept).unwrap().is_none());
    }
}

/// Starts are counted in place: a full disk prevents none.
#[test]
fn f47_a_start_is_counted_on_a_full_disk() {
    let disk = new_disk(1).0;
    let begin = || {
        let beside = Beside { dense: false, identity: true };
        clock_file::begin(&disk, &layout(), beside, OnDamage::Refuse, None).unwrap()
    };
    drop(ClockFile::create(&disk, &layout().clock(), Revision(5)).unwrap());
    assert_eq!(begin(), 1);
    disk.set_faults(Faults { space_left: Some(0), ..Faults::default() });
    assert_eq!([begin(), begin()], [2, 3]);
    disk.crash();
    let (file, ceiling) = ClockFile::open(&disk, &layout().clock()).unwrap().unwrap();
    assert_eq!((file.incarnation(), ceiling), (3, Revision(5)));
}

/// Modes that keep events, which were in mode `none`, in mode `fsync`.
fn events_fsynced(bench: &Bench) -> KindModes {
    let mut modes = bench.core.engine.modes().clone();
    modes.generation = 1;
    modes.kinds.insert(Key::from(EVENTS), Durability::Fsync);
    modes
}

fn mode_of_events(bench: &Bench) -> Durability {
    bench.core.engine.modes().of(EVENTS.as_bytes())
}

/// When a Kind goes from `none` to `fsync`, only a checkpoint has what was there before. A crash at any operation on
/// the way leaves the old mode, or the new one and all keys; and a start that finds the new mode refuses to do without
/// that checkpoint.
#[tokio::test]
async fn f06_a_kind_that_is_kept_from_now_on_needs_the_checkpoint_that_has_it() {
    let (mut settled, mut before) = (0, 0);
    for stop_in in 0.. {
        let (disk, wall) = new_disk(stop_in);
        let mut bench = driven(&disk, &wall).await;
        bench.apply(put(EVENT, "of before"));
        bench.flushed().await;
        let modes = events_fsynced(&bench);
        assert_eq!(bench.core.set_modes(modes).unwrap(), ModesTaken::AfterCheckpoint);
        let of_disk = disk.clone();
        bench
            .checkpoint(&disk, |_| {
                of_disk.set_faults(Faults { stop_in: Some(stop_in), ..Faults::default() });
            })
            .await;
        let ended = !disk.stopped();
        if ended {
            disk.set_faults(Faults::default());
            bench.turn();
            bench.flushed().await;
        }
        drop(bench);
        disk.crash();
        let at = format!("operation {stop_in}");
        let mut after = driven(&disk, &wall).await;
        // The modes that were logged last are in force, not those of the flags.
        if mode_of_events(&after) == Durability::Fsync {
            settled += 1;
            assert!(has(&mut after, EVENT), "{at}: what the mode promises is lost");
            drop(after);
            let checkpoints = layout().checkpoints();
            let names = disk.list(&checkpoints).unwrap();
            let newest = checkpoints.join(names.iter().rfind(|name| name.ends_with(".ckp")).unwrap());
            for gone in [false, true] {
                let damaged = disk.copy(stop_in);
                if gone {
                    damaged.remove(&newest).unwrap();
                } else {
                    damaged.flip(&newest, damaged.content(&newest).unwrap().len() as u64 * 4);
                }
                let told = refused(&damaged, &wall).await;
                assert!(told.contains(&*newest.to_string_lossy()), "{at}: {told}");
                assert!(told.contains("relies on checkpoint"), "{at}: {told}");
            }
        } else {
            before += 1;
        }
        if ended {
            break;
        }
    }
    assert!(settled > 0 && before > 3, "{settled} and {before}");
}
