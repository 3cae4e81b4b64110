//! Crashes at every disk operation of a checkpoint's end, when it gets its name (only after both logs are on disk up to
//! the end of its walk) and old segments are removed.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use kindred_partition_config::key::KeyRange;
use kindred_wal::{
    Disk as _, Layout,
    sim::{Faults, SimDisk},
};

use super::{
    disk::LifeDisk,
    driven::Bench,
    life::{both, new_disk, open, put, query},
};
use crate::core::Core;

const PREFIX: &str = "/registry/configmaps/";
const SECRET: &str = "/registry/secrets/a";
/// More than one slice of a walk.
const KEYS: usize = 700;

fn key(number: usize) -> String {
    format!("{PREFIX}{number:04}")
}

fn checkpoints(disk: &SimDisk) -> Vec<String> {
    let mut names = disk.list(&Layout::new(Path::new("data")).checkpoints()).unwrap_or_default();
    names.retain(|name| name.ends_with(".ckp"));
    names
}

fn revision_of(core: &mut Core, key: &str) -> Option<kindred_partition_config::ids::Revision> {
    let found = core.engine.range(&query(KeyRange::Single(key.into()), None)).unwrap();
    found.kvs.first().map(|kv| kv.mod_revision())
}

/// A shard before its third checkpoint, so that segments and a checkpoint are removed at its end. The first slice of
/// the walk covers one key of a pair before both are written.
async fn walked(disk: &SimDisk, wall: &Arc<AtomicU64>) -> Bench {
    let life = LifeDisk::new(disk);
    let (core, logs) = open(life.clone(), wall).await.unwrap();
    let mut bench = Bench { core, logs, life };
    bench.apply(both(&format!("{PREFIX}0"), "before"));
    for number in 0..KEYS {
        bench.apply(put(&key(number), &"v".repeat(40)));
    }
    for _ in 0..2 {
        bench.apply(put(SECRET, "before"));
        bench.flushed().await;
        bench.checkpoint(disk, |_| {}).await;
    }
    bench
}

#[tokio::test]
async fn a_checkpoint_has_no_name_before_both_logs_reach_the_end_of_its_walk() {
    let (disk, wall) = new_disk(1);
    let mut bench = walked(&disk, &wall).await;
    let before = checkpoints(&disk);
    let (waiter, mut told) = tokio::sync::oneshot::channel();
    bench.core.ask_checkpoint(waiter);
    bench.logs.checkpoint_slice(&mut bench.core);
    bench.logs.checkpoint_slice(&mut bench.core);
    disk.hold_syncs();
    bench.apply(both(&format!("{PREFIX}0"), "together"));
    for _ in 0..300 {
        bench.turn();
        bench.logs.checkpoint_slice(&mut bench.core);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(!bench.logs.has_checkpoint_work(), "the walk has ended");
    assert!(told.try_recv().is_err());
    assert_eq!(checkpoints(&disk), before, "the log of mode buffered is not on disk");
    disk.release_syncs();
    bench
        .until("a checkpoint", |bench| {
            bench.logs.checkpoint_slice(&mut bench.core);
            told.try_recv().is_ok()
        })
        .await;
    assert_ne!(checkpoints(&disk), before);
}

#[tokio::test]
async fn a_crash_at_any_operation_of_a_checkpoints_end_loses_nothing_and_leaves_no_half() {
    let mut operations = 0;
    for stop_in in 0.. {
        let mut ended = 0;
        for seed in 0..SEEDS {
            let (disk, wall) = new_disk(seed);
            let mut bench = walked(&disk, &wall).await;
            bench.apply(put(SECRET, "acknowledged"));
            bench.flushed().await;
            let secret = revision_of(&mut bench.core, SECRET);
            let of_disk = disk.clone();
            bench
                .checkpoint(&disk, |bench| {
                    of_disk.set_faults(Faults { stop_in: Some(stop_in), ..Faults::default() });
                    bench.apply(both(&format!("{PREFIX}0"), "together"));
                })
                .await;
            ended += u64::from(!disk.stopped());
            disk.set_faults(Faults { stop_in: Some(0), ..Faults::default() });
            drop(bench);
            disk.crash();
            let at = format!("operation {stop_in}, seed {seed}");
            let (mut core, _logs) =
                open(LifeDisk::new(&disk), &wall).await.unwrap_or_else(|error| panic!("{at}: {error:#}"));
            assert_eq!(revision_of(&mut core, SECRET), secret, "{at}: what was fsynced is lost");
            let [left, right] =
                ["left", "right"].map(|side| revision_of(&mut core, &format!("{PREFIX}0-{side}")));
            assert!(left.is_some() && left == right, "{at}: half a txn: {left:?} and {right:?}");
            for number in 0..KEYS {
                assert!(
                    revision_of(&mut core, &key(number)).is_some(),
                    "{at}: {number} was on disk long before"
                );
            }
        }
        operations = stop_in;
        if ended == SEEDS {
            break;
        }
    }
    assert!(operations > 8, "a checkpoint ends in more steps than {operations}");
}

/// Each seed leaves another part of what was not synced.
const SEEDS: u64 = 3;
