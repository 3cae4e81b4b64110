//! Measures a server: the CPU that its processes use, and the latency of its answers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use kindred_proto::etcdserverpb::{PutRequest, kv_client::KvClient};
use tokio::{sync::oneshot, task::JoinSet};

use crate::{
    cpu::Usage,
    load::{Kind, Target},
    pace::{self, Pace, Sent},
    servers::Server,
    stats::Latency,
    watcher,
};

/// The maximum percentage of refused updates. Beyond it, the run did not measure updates.
const REFUSED_MAX_PERCENT: u64 = 1;
/// The prefix of the keys whose events are counted.
const WATCHED: &str = "/registry/leases/watched/";

/// The measurement of a round.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The CPU microseconds per operation of each role.
    pub cpu_us: Vec<(String, f64)>,
    /// Splits the CPU of each role into its parts.
    pub split: Vec<(String, Split)>,
    pub latency: Latency,
    pub ops_per_second: f64,
}

/// The cost of an operation in one process.
#[derive(Debug, Clone, Copy, Default)]
pub struct Split {
    pub user_us: f64,
    pub system_us: f64,
    /// How often one of its threads goes to sleep, and is woken again.
    pub sleeps: f64,
    /// How often another thread takes its processor.
    pub preempted: f64,
}

impl Split {
    fn of(used: Usage, ops: u64) -> Self {
        let ops = ops as f64;
        let [user, system] = used.ticks.map(|ticks| ticks as f64);
        let us = used.nanos as f64 / 1e3 / ops;
        let in_system = if user + system > 0.0 { system / (user + system) } else { 0.0 };
        let [sleeps, preempted] = used.switches.map(|switches| switches as f64 / ops);
        Self { user_us: us * (1.0 - in_system), system_us: us * in_system, sleeps, preempted }
    }
}

impl Sample {
    /// The CPU microseconds per operation of all processes.
    pub fn cpu(&self) -> f64 {
        self.cpu_us.iter().map(|(_, us)| us).sum()
    }
}

/// What a server's processes had used at the start of a measurement.
pub struct Before<'a> {
    pids: &'a [(String, u32)],
    usage: Vec<Usage>,
    began: Instant,
}

/// The CPU and the switches that a server's processes used during a measurement.
pub struct Used {
    by_role: Vec<(String, Usage)>,
    took: Duration,
}

impl Used {
    /// The cost of an operation, if there were so many.
    pub fn sample(self, ops: u64, latency: Latency) -> Sample {
        let count = ops as f64;
        let each = |(role, used): &(String, Usage)| (role.clone(), used.nanos as f64 / 1e3 / count);
        let cpu_us = self.by_role.iter().map(each).collect();
        let split = self.by_role.into_iter().map(|(role, used)| (role, Split::of(used, ops))).collect();
        Sample { cpu_us, split, latency, ops_per_second: count / self.took.as_secs_f64() }
    }
}

impl<'a> Before<'a> {
    /// Begins a measurement.
    pub fn now(pids: &'a [(String, u32)]) -> anyhow::Result<Self> {
        let usage = pids.iter().map(|(_, pid)| Usage::of(*pid)).collect::<Result<_, _>>()?;
        Ok(Self { pids, usage, began: Instant::now() })
    }

    /// Ends it.
    pub fn end(self) -> anyhow::Result<Used> {
        let took = self.began.elapsed();
        let used = |((role, pid), before): (&(String, u32), &Usage)| {
            anyhow::Ok((role.clone(), Usage::of(*pid)?.since(*before)))
        };
        let by_role = self.pids.iter().zip(&self.usage).map(used).collect::<Result<_, _>>()?;
        Ok(Used { by_role, took })
    }
}

/// How many operations precede those that are measured.
pub fn warm_up(ops: u64) -> u64 {
    (ops / 10).max(1)
}

/// Measures operations, after a tenth as many for warm-up: in an open loop with a rate, otherwise in a closed loop.
pub async fn ops(
    server: &Server,
    target: &Target,
    kind: Kind,
    ops: u64,
    rate: Option<u64>,
) -> anyhow::Result<Sample> {
    ops_of(&server.pids, target, kind, ops, rate).await
}

/// The same of a server that consists of these processes.
pub async fn ops_of(
    pids: &[(String, u32)],
    target: &Target,
    kind: Kind,
    ops: u64,
    rate: Option<u64>,
) -> anyhow::Result<Sample> {
    target.closed(kind, warm_up(ops)).await?;
    let before = Before::now(pids)?;
    let outcome = match rate {
        None => target.closed(kind, ops).await?,
        Some(rate) => target.open(kind, ops, rate).await?,
    };
    let (ops, refused) = (outcome.ops(), outcome.refused);
    let sample = before.end()?.sample(ops, Latency::of(outcome.nanos));
    anyhow::ensure!(refused * 100 <= ops * REFUSED_MAX_PERCENT, "{refused} of {ops} updates were refused");
    Ok(sample)
}

/// Measures watched writes. An operation is an event at one watcher; the CPU of the writes is included. Latencies
/// are from when the write began or was due until the event arrived.
pub async fn events(
    server: &Server,
    target: &Target,
    watchers: usize,
    writes: u64,
    rate: Option<u64>,
) -> anyhow::Result<Sample> {
    let channels = target.channels();
    let mut seen = Vec::new();
    for at in 0..watchers {
        seen.push(watcher::start(&channels[at % channels.len()], WATCHED, writes).await?);
    }
    let keys: Vec<Bytes> =
        (0..target.shape().keys.min(1_000)).map(|i| format!("{WATCHED}node-{i:07}").into()).collect();
    let pace = Pace {
        keys: Arc::new(keys),
        rate: rate.unwrap_or(0),
        count: writes,
        value_bytes: target.shape().value_bytes,
    };
    let before = Before::now(&server.pids)?;
    let sent: Vec<Instant> = match rate {
        None => closed(target, &pace).await?,
        Some(_) => {
            let (_go_on, stop) = oneshot::channel();
            let sent: Vec<Sent> = pace::write(channels, &pace, stop).await?;
            sent.into_iter().map(|sent| sent.due).collect()
        }
    };
    anyhow::ensure!(sent.len() as u64 == writes, "{} of {writes} writes were done", sent.len());
    let mut nanos = Vec::new();
    for watcher in seen {
        let late = |(at, sent): (Instant, &Instant)| {
            u64::try_from(at.saturating_duration_since(*sent).as_nanos()).unwrap_or(u64::MAX)
        };
        nanos.extend(watcher.await??.into_iter().zip(&sent).map(late));
    }
    Ok(before.end()?.sample(nanos.len() as u64, Latency::of(nanos)))
}

/// Numbered writes in a closed loop; returns when each began.
async fn closed(target: &Target, pace: &Pace) -> anyhow::Result<Vec<Instant>> {
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for worker in 0..target.shape().in_flight {
        let (next, pace) = (next.clone(), pace.clone());
        let mut kv = KvClient::new(target.channels()[worker % target.channels().len()].clone());
        tasks.spawn(async move {
            let mut began = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= pace.count {
                    return anyhow::Ok(began);
                }
                let key = pace.keys[usize::try_from(number)? % pace.keys.len()].clone();
                let value = pace::value(number, pace.value_bytes);
                began.push((number, Instant::now()));
                kv.put(PutRequest { key, value, ..Default::default() }).await?;
            }
        });
    }
    let mut all = Vec::new();
    while let Some(done) = tasks.join_next().await {
        all.extend(done??);
    }
    all.sort_unstable_by_key(|(number, _)| *number);
    Ok(all.into_iter().map(|(_, at)| at).collect())
}
