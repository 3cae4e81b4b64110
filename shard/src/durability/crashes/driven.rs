//! A shard without its loop: the test takes the turns.

use std::time::Duration;

use kindred_wal::sim::SimDisk;

use super::disk::LifeDisk;
use crate::{core::Core, durability::Logs, read_hints::ReadHints, standby::shipping::Shipping};

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Bench {
    pub core: Core,
    pub logs: Logs,
    /// The disk as this life sees it.
    pub life: LifeDisk,
}

/// A dying process takes its threads with it: one that is about to remove what a checkpoint replaced must not do so on
/// the disk of the next life.
impl Drop for Bench {
    fn drop(&mut self) {
        self.life.end();
    }
}

impl Bench {
    /// Applies a request as the loop does.
    pub fn apply(&mut self, op: kindred_engine::ops::Op) {
        self.core.apply(op, ReadHints::default()).unwrap();
        self.turn();
    }

    pub fn turn(&mut self) {
        self.logs.settle(&mut self.core, &mut Shipping::alone());
        let applied = self.core.engine.take_applied();
        self.logs.append(&mut self.core.engine, applied, 0);
        self.core.engine.publish();
    }

    pub async fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let began = tokio::time::Instant::now();
        while !is_so(self) {
            assert!(began.elapsed() < PATIENCE, "{what}");
            self.turn();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub async fn flushed(&mut self) {
        self.until("the logs are flushed", |bench| bench.logs.is_flushed()).await;
    }

    /// Requests a checkpoint and drives it to its end, or until the disk has stopped.
    pub async fn checkpoint(&mut self, disk: &SimDisk, before_its_end: impl FnOnce(&mut Self)) {
        let (waiter, mut told) = tokio::sync::oneshot::channel();
        self.core.ask_checkpoint(waiter);
        // Begins it and takes a first slice.
        for _ in 0..2 {
            self.logs.checkpoint_slice(&mut self.core);
        }
        before_its_end(self);
        self.until("the walk has ended", |bench| {
            bench.logs.checkpoint_slice(&mut bench.core);
            !bench.logs.has_checkpoint_work() || disk.stopped()
        })
        .await;
        self.until("a checkpoint", |bench| {
            bench.logs.checkpoint_slice(&mut bench.core);
            disk.stopped() || told.try_recv().is_ok()
        })
        .await;
    }
}
