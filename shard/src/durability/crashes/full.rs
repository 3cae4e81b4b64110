//! A full disk frees itself by a checkpoint, for which room is reserved; a crash at any step of that loses nothing.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicU64},
};

use kindred_partition_config::key::KeyRange;
use kindred_wal::{
    Disk as _, Layout, LogKind,
    sim::{Faults, SimDisk},
};

use super::{
    disk::LifeDisk,
    driven::Bench,
    life::{new_disk, open_with, put, query},
};
use crate::read_hints::ReadHints;

const SECRET: &str = "/registry/secrets/a";
const RESERVE: u64 = 32 << 20;

async fn driven(disk: &SimDisk, wall: &Arc<AtomicU64>) -> Bench {
    let life = LifeDisk::new(disk);
    let (core, logs) = open_with(life.clone(), wall, RESERVE).await.unwrap();
    Bench { core, logs, life }
}

fn has(bench: &mut Bench, key: &str) -> bool {
    let found = bench.core.engine.range(&query(KeyRange::Single(key.into()), None)).unwrap();
    !found.kvs.is_empty()
}

/// A shard with far more log than data, before its disk becomes full.
async fn filled(seed: u64) -> (SimDisk, Arc<AtomicU64>, Bench) {
    let (disk, wall) = new_disk(seed);
    let mut bench = driven(&disk, &wall).await;
    for _ in 0..40 {
        bench.apply(put(SECRET, &"v".repeat(6_000)));
        bench.flushed().await;
    }
    (disk, wall, bench)
}

fn segments(disk: &SimDisk) -> usize {
    disk.list(&Layout::new(Path::new("data")).log(LogKind::Fsync)).unwrap().len()
}

/// Writes until the log finds no room.
async fn fails(bench: &mut Bench, disk: &SimDisk) {
    for _ in 0..3 {
        // Refused once the log fails.
        let _ = bench.core.apply(put(SECRET, &"w".repeat(6_000)), ReadHints::default());
        bench.turn();
    }
    bench.until("no room", |bench| bench.core.disk.is_failing() || disk.stopped()).await;
}

async fn frees_itself(bench: &mut Bench, disk: &SimDisk) {
    bench
        .until("room again", |bench| {
            bench.logs.checkpoint_slice(&mut bench.core);
            bench.logs.report(&bench.core);
            (!bench.core.disk.is_failing() && bench.logs.is_flushed()) || disk.stopped()
        })
        .await;
}

#[tokio::test]
async fn f31_a_full_disk_frees_itself_by_a_checkpoint() {
    let (disk, wall, mut bench) = filled(1).await;
    disk.set_faults(Faults { space_left: Some(0), ..Faults::default() });
    let before = segments(&disk);
    fails(&mut bench, &disk).await;
    frees_itself(&mut bench, &disk).await;
    assert!(segments(&disk) < before / 2, "{} of {before}", segments(&disk));
    assert!(disk.content(Path::new("data/reserve")).is_some_and(|it| it.len() as u64 == RESERVE));
    // A checkpoint can be requested as well.
    bench.checkpoint(&disk, |_| {}).await;
    bench.apply(put(&format!("{SECRET}2"), "after"));
    bench.flushed().await;
    drop(bench);
    disk.crash();
    let mut bench = driven(&disk, &wall).await;
    assert!(has(&mut bench, SECRET) && has(&mut bench, &format!("{SECRET}2")));
}

#[tokio::test]
async fn f31_a_crash_while_a_full_disk_frees_itself_loses_nothing() {
    let mut stopped = 0;
    for stop_in in (0..).step_by(2) {
        let (disk, wall, mut bench) = filled(stop_in).await;
        disk.set_faults(Faults { space_left: Some(0), stop_in: Some(stop_in), ..Faults::default() });
        fails(&mut bench, &disk).await;
        frees_itself(&mut bench, &disk).await;
        let ended = !disk.stopped();
        drop(bench);
        disk.crash();
        let mut bench = driven(&disk, &wall).await;
        assert!(has(&mut bench, SECRET), "operation {stop_in}");
        if ended {
            break;
        }
        stopped += 1;
    }
    assert!(stopped > 5, "{stopped}");
}
