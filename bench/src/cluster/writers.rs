//! The writers of one Kind at its pace. Each write is Kubernetes' optimistic update. A value begins with the time
//! when its write was due, from which watchers compute the delay of its event.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use kindred_proto::etcdserverpb::kv_client::KvClient;
use tokio::{sync::mpsc, task::JoinSet};
use tonic::transport::Channel;

use crate::{load, pace};

/// The capacity of the queue of due writes.
const DUE_MAX: usize = 1 << 16;

#[derive(Clone)]
pub struct Writer {
    /// The name in the Kind's keys.
    pub kind: &'static str,
    /// The known revision of each key; empty if every write creates a new key.
    revisions: Arc<Vec<AtomicI64>>,
    value_bytes: usize,
    rate: u64,
    made: Arc<AtomicI64>,
}

/// A value that begins with the microseconds from `origin` to `at`.
fn value(origin: Instant, at: Instant, bytes: usize) -> Bytes {
    let due = u64::try_from(at.saturating_duration_since(origin).as_micros()).unwrap_or(u64::MAX);
    pace::value(due, bytes)
}

impl Writer {
    pub fn new(kind: &'static str, keys: usize, value_bytes: usize, rate: u64) -> Self {
        let revisions = (0..keys).map(|_| AtomicI64::new(0)).collect();
        Self { kind, revisions: Arc::new(revisions), value_bytes, rate, made: Arc::new(AtomicI64::new(0)) }
    }

    pub fn operation(&self) -> String {
        format!("write {}", self.kind)
    }

    fn key(&self, number: usize) -> Bytes {
        match self.kind {
            "minions" => format!("/registry/minions/node-{number:07}"),
            "leases" => format!("/registry/leases/kube-node-lease/node-{number:07}"),
            kind => format!("/registry/{kind}/bench/{kind}-{number:08}"),
        }
        .into()
    }

    async fn one(&self, kv: &mut KvClient<Channel>, number: usize, value: Bytes) -> anyhow::Result<()> {
        if self.revisions.is_empty() {
            let number = usize::try_from(self.made.fetch_add(1, Ordering::Relaxed))?;
            load::update(kv, self.key(number), value, 0).await?;
            return Ok(());
        }
        let number = number % self.revisions.len();
        let known = &self.revisions[number];
        let (_, revision) = load::update(kv, self.key(number), value, known.load(Ordering::Relaxed)).await?;
        known.store(revision, Ordering::Relaxed);
        Ok(())
    }

    pub async fn fill(&self, channels: &[Channel], in_flight: usize) -> anyhow::Result<()> {
        let now = Instant::now();
        let mut tasks = JoinSet::new();
        for worker in 0..in_flight {
            let (writer, mut kv) = (self.clone(), KvClient::new(channels[worker % channels.len()].clone()));
            tasks.spawn(async move {
                for number in (worker..writer.revisions.len()).step_by(in_flight) {
                    writer.one(&mut kv, number, value(now, now, writer.value_bytes)).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        Ok(())
    }

    /// Writes at the Kind's pace for `limit`; returns all times, in microseconds from when each write was due.
    pub async fn run(
        self,
        channels: Vec<Channel>,
        origin: Instant,
        limit: Duration,
    ) -> anyhow::Result<(String, Vec<u32>)> {
        let (to, mut due) = mpsc::channel(DUE_MAX);
        let (rate, count) = (self.rate, self.rate * limit.as_secs());
        let clock = std::thread::spawn(move || pace::tick(rate, count, &to));
        let (mut writes, mut times, mut number) = (JoinSet::new(), Vec::new(), 0);
        loop {
            tokio::select! {
                next = due.recv() => {
                    let Some(at) = next else { break };
                    let mut kv = KvClient::new(channels[number % channels.len()].clone());
                    let writer = self.clone();
                    writes.spawn(async move {
                        writer.one(&mut kv, number, value(origin, at, writer.value_bytes)).await?;
                        anyhow::Ok(micros(at.elapsed()))
                    });
                    number += 1;
                }
                Some(done) = writes.join_next(), if !writes.is_empty() => times.push(done??),
            }
        }
        while let Some(done) = writes.join_next().await {
            times.push(done??);
        }
        clock.join().ok().context("the clock's thread ended badly")?;
        Ok((self.operation(), times))
    }
}

/// Whole microseconds, saturating.
pub fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}
