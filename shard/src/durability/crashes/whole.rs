//! Up to where a start says that a Kind is whole (R10).

use kindred_engine::ops::{Delete, Op};
use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
};
use kindred_wal::sim::SimDisk;

use super::{
    disk::LifeDisk,
    driven::Bench,
    life::{new_disk, open, put},
};

const PREFIX: &str = "/registry/configmaps/";
const KEY: &str = "/registry/configmaps/a";

fn delete(key: &str) -> Op {
    Op::Delete(Delete { range: KeyRange::Single(key.into()), buckets: None, prev_kv: false })
}

/// Ends the process, not the machine, and leaves its disk to the next.
fn kill(bench: Bench, disk: &SimDisk) {
    drop(bench);
    disk.kill();
}

/// Whether a reader of the Kind that has seen everything up to `seen` is told that something may be lost.
fn is_told(bench: &mut Bench, seen: Revision) -> bool {
    let engine = &mut bench.core.engine;
    let feed = engine.feed_open(vec![KeyRange::prefix(Key::copy_from(PREFIX.as_bytes()))], Some(seen.next()));
    let gaps = engine.feed_pull(feed, usize::MAX).map(|out| out.gaps).unwrap_or_default();
    engine.feed_close(feed);
    gaps.iter().any(|gap| gap.holds_start(seen.next()))
}

/// A checkpoint replaces the log that had the promises, and a compaction takes the versions that showed how far the log
/// went.
#[tokio::test]
async fn r10_a_kind_is_whole_up_to_what_a_checkpoint_has_of_it() {
    let (disk, wall) = new_disk(1);
    let life = LifeDisk::new(&disk);
    let (core, logs) = open(life.clone(), &wall).await.unwrap();
    let mut bench = Bench { core, logs, life };
    bench.apply(put(KEY, "acknowledged"));
    bench.apply(delete(KEY));
    bench.apply(put("/registry/secrets/a", "of another Kind"));
    bench.flushed().await;
    let seen = bench.core.engine.last_revision();
    let (answer, _) = tokio::sync::oneshot::channel();
    bench.core.compact(seen, true, answer);
    while bench.core.gc(usize::MAX) {}
    bench.turn();
    bench.flushed().await;
    bench.checkpoint(&disk, |_| {}).await;
    kill(bench, &disk);

    let life = LifeDisk::new(&disk);
    let (core, logs) = open(life.clone(), &wall).await.unwrap();
    let mut bench = Bench { core, logs, life };
    assert!(!is_told(&mut bench, seen), "nothing is lost of what this reader saw");
    assert!(is_told(&mut bench, seen.next()), "what came behind it and had no answer may be lost");
}
