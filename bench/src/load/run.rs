//! The order of operations. In a closed loop, a fixed number of calls is in flight and the next begins when one
//! ends. In an open loop each begins when it is due, regardless of earlier ones, and is timed from when it was
//! *due*, so that a stalled server is charged for every operation that it delayed (no coordinated omission).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use anyhow::Context;
use tokio::{sync::mpsc, task::JoinSet};

use super::{Kind, Target, scatter};
use crate::pace;

/// The capacity of the queue of due operations, which is more than any run has.
const DUE_MAX: usize = 1 << 22;

/// The measurements of a run.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The time of each operation in nanoseconds, unsorted.
    pub nanos: Vec<u64>,
    /// The number of refused updates.
    pub refused: u64,
}

impl Outcome {
    pub fn ops(&self) -> u64 {
        self.nanos.len() as u64
    }

    fn add(&mut self, nanos: u64, done: bool) {
        self.nanos.push(nanos);
        self.refused += u64::from(!done);
    }
}

fn nanos_since(at: Instant) -> u64 {
    u64::try_from(at.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// The keys of one of `workers` workers. Each has its own, so that optimistic updates succeed.
fn own(worker: usize, workers: usize, keys: usize) -> Vec<usize> {
    if worker < keys { (worker..keys).step_by(workers).collect() } else { vec![worker % keys] }
}

impl Target {
    /// Makes `ops` operations in a closed loop.
    pub async fn closed(&self, kind: Kind, ops: u64) -> anyhow::Result<Outcome> {
        let next = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        // Where the previous run ended, in turns of each worker.
        let turns = usize::try_from(ops)?.div_ceil(self.shape.in_flight);
        let from = self.scattered.as_ref().map(|taken| taken.fetch_add(turns, Ordering::Relaxed));
        for worker in 0..self.shape.in_flight {
            let (next, mut caller) = (next.clone(), self.caller(worker));
            let keys = own(worker, self.shape.in_flight, self.shape.keys);
            tasks.spawn(async move {
                let mut outcome = Outcome::default();
                let mut turn = from.unwrap_or(0);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= ops {
                        return anyhow::Ok(outcome);
                    }
                    let i = match from {
                        None => keys[turn % keys.len()],
                        Some(_) => keys[scatter(turn, keys.len())],
                    };
                    turn += 1;
                    let began = Instant::now();
                    let done = caller.one(kind, i, number).await?;
                    outcome.add(nanos_since(began), done);
                }
            });
        }
        let mut all = Outcome::default();
        while let Some(done) = tasks.join_next().await {
            let outcome = done??;
            all.nanos.extend(outcome.nanos);
            all.refused += outcome.refused;
        }
        anyhow::ensure!(!all.nanos.is_empty(), "no operation ran");
        Ok(all)
    }

    /// Makes `ops` operations in an open loop, `rate` per second.
    pub async fn open(&self, kind: Kind, ops: u64, rate: u64) -> anyhow::Result<Outcome> {
        anyhow::ensure!(ops > 0 && rate > 0, "no operation is ever due");
        let (to, mut due) = mpsc::channel(DUE_MAX);
        // The runtime's timer has steps of a millisecond; a separate thread is more precise.
        let clock = std::thread::spawn(move || pace::tick(rate, ops, &to));
        let callers: Vec<_> = (0..self.channels.len()).map(|number| self.caller(number)).collect();
        let (mut running, mut outcome, mut number) = (JoinSet::new(), Outcome::default(), 0);
        loop {
            tokio::select! {
                next = due.recv() => {
                    let Some(at) = next else { break };
                    let mut caller = callers[number % callers.len()].clone();
                    let i = number % self.shape.keys;
                    running.spawn(async move {
                        let done = caller.one(kind, i, number as u64).await?;
                        anyhow::Ok((nanos_since(at), done))
                    });
                    number += 1;
                }
                Some(done) = running.join_next(), if !running.is_empty() => {
                    let (nanos, done) = done??;
                    outcome.add(nanos, done);
                }
            }
        }
        while let Some(done) = running.join_next().await {
            let (nanos, done) = done??;
            outcome.add(nanos, done);
        }
        clock.join().ok().context("the clock's thread ended badly")?;
        anyhow::ensure!(outcome.ops() == ops, "{} of {ops} operations were done", outcome.ops());
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests;
