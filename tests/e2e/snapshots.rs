//! Counts and small reads of a Kind over two shards, through the batch streams, while keys pass from one shard to the
//! other. Every answer is one snapshot. No compaction waits for reads that were answered or whose client has gone (R5).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{CompactionRequest, RangeRequest, RangeResponse};
use kindred_tests::{
    client::Client,
    scenario::{self, report, wait_for},
};
use tokio::task::JoinSet;

use crate::e2e::{
    cluster::Cluster,
    ops::{self, below, calls},
};

/// The compactions would take longer if pins were not released, 5 s each.
const LIMIT: Duration = Duration::from_secs(45);
const STEP_LIMIT: Duration = Duration::from_secs(30);
const COMPACTIONS: usize = 10;
/// The number of reads to wait for before the first compaction, and after the last.
const READS: u64 = 200;
/// At least this many reads must find the shards at different revisions, as only they need a raise.
const RAISES: u64 = 30;
const READERS: usize = 3;
const STILL: i64 = 20;
const PODS: &str = "/registry/pods/";
const CONFIG: &str = "default: low\nstores:\n- {name: low, slot: 1}\n- {name: high, slot: 2}\npartitions:\n\
    - {metadata: {name: a}, resource: pods, rangeEnd: m, isRangeEndValid: true, serviceGroupId: low}\n\
    - {metadata: {name: b}, resource: pods, rangeStart: m, isRangeStartValid: true, serviceGroupId: high}\n";

#[derive(Default)]
struct Shared {
    done: AtomicBool,
    reads: AtomicU64,
    /// The highest revision in the header of an answer.
    shown: AtomicU64,
}

/// Moves one pod, the walker, between the shards. It writes the new key before it deletes the old one.
async fn pass(client: Client, shared: Arc<Shared>) -> anyhow::Result<()> {
    let places = [format!("{PODS}b/walker"), format!("{PODS}y/walker")];
    for turn in 0_usize.. {
        let (from, to) = (&places[turn % 2], &places[(turn + 1) % 2]);
        ops::put(&client, to, &turn.to_string()).await?;
        let (deleted, _) = ops::delete(&client, from).await?;
        ensure!(deleted == 1, "turn {turn}: {deleted} at {from}");
        if shared.done.load(Ordering::SeqCst) {
            break;
        }
    }
    Ok(())
}

/// Writes other pods, which stay on their shard.
async fn write(client: Client, namespace: &'static str, shared: Arc<Shared>) -> anyhow::Result<()> {
    for turn in 0_i64.. {
        ops::put(&client, &still(namespace, turn % (STILL / 2)), &turn.to_string()).await?;
        if shared.done.load(Ordering::SeqCst) {
            break;
        }
    }
    Ok(())
}

fn still(namespace: &str, number: i64) -> String {
    format!("{PODS}{namespace}/{number:02}")
}

fn revision(answer: &RangeResponse) -> anyhow::Result<i64> {
    Ok(answer.header.as_ref().context("header")?.revision)
}

fn probes() -> [RangeRequest; 3] {
    let count = RangeRequest { count_only: true, ..below(PODS) };
    // One reads the first key of all, the other the first key from one place of the walker on.
    let first = RangeRequest { limit: 1, ..below(PODS) };
    let walker = RangeRequest { key: format!("{PODS}b/").into(), ..first.clone() };
    [count, first, walker]
}

async fn read(client: Client, shared: Arc<Shared>) -> anyhow::Result<()> {
    let (mut last, mut turn) = (0, 0);
    while !shared.done.load(Ordering::SeqCst) {
        for (probe, missing) in probes().into_iter().zip([0, 0, STILL / 2]) {
            turn += 1;
            if turn % 4 == 0 {
                // The client of this read goes away at an arbitrary moment.
                let (client, probe) = (client.clone(), probe.clone());
                let gone = tokio::spawn(async move { ops::range(&client, probe).await });
                tokio::task::yield_now().await;
                gone.abort();
            }
            let answer = ops::range(&client, probe.clone()).await?;
            let now = revision(&answer)?;
            ensure!(now >= last, "revision {now} behind {last}");
            last = now;
            let expected = STILL + 1 - missing;
            let both = answer.count - expected;
            ensure!(both == 0 || both == 1, "{} pods instead of {expected}: {probe:?}", answer.count);
            ensure!(answer.kvs.len() == usize::from(!probe.count_only), "{answer:?}");
            ensure!(answer.more != probe.count_only, "{answer:?}");
            // A read at the answer's revision must give the same answer.
            let again = match ops::range(&client, RangeRequest { revision: now, ..probe.clone() }).await {
                Ok(again) => again,
                Err(status) if status.message().contains("has been compacted") => continue,
                Err(status) => return Err(status.into()),
            };
            ensure!((again.count, &again.kvs) == (answer.count, &answer.kvs), "{answer:?}\n{again:?}");
            shared.shown.fetch_max(now.unsigned_abs(), Ordering::SeqCst);
            shared.reads.fetch_add(1, Ordering::SeqCst);
        }
    }
    Ok(())
}

struct Crowd {
    shared: Arc<Shared>,
    tasks: JoinSet<anyhow::Result<()>>,
}

impl Crowd {
    /// Waits until this many more reads are answered.
    async fn reads(&mut self, more: u64) -> anyhow::Result<()> {
        let until = self.shared.reads.load(Ordering::SeqCst) + more;
        self.until(|shared| shared.reads.load(Ordering::SeqCst) >= until).await
    }

    async fn until(&mut self, wanted: impl Fn(&Shared) -> bool) -> anyhow::Result<()> {
        let shared = self.shared.clone();
        let reads = wait_for("reads", STEP_LIMIT, || async { Ok(wanted(&shared).then_some(())) });
        tokio::select! {
            ended = self.tasks.join_next() => ended.context("no client runs")??.and_then(|()| anyhow::bail!("a client has ended")),
            reads = reads => reads,
        }
    }

    async fn finish(mut self) -> anyhow::Result<()> {
        self.shared.done.store(true, Ordering::SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}

#[test]
fn r5_counts_and_probes_over_shards_under_writes_are_of_one_moment() {
    scenario::run("snapshots", LIMIT, |dir| async move {
        let cluster = Cluster::start(&dir, CONFIG, &["low", "high"], |_| Vec::new()).await?;
        let client = cluster.client().await?;
        for namespace in ["a", "z"] {
            for number in 0..STILL / 2 {
                ops::put(&client, &still(namespace, number), "new").await?;
            }
        }
        ops::put(&client, &format!("{PODS}b/walker"), "new").await?;
        let shared = Arc::<Shared>::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(pass(client.clone(), shared.clone()));
        for namespace in ["a", "z"] {
            tasks.spawn(write(client.clone(), namespace, shared.clone()));
        }
        for _ in 0..READERS {
            tasks.spawn(read(cluster.client().await?, shared.clone()));
        }
        let mut crowd = Crowd { shared: shared.clone(), tasks };
        crowd.reads(READS).await?;
        // The readers never stop, so some revision is always pinned, but none for long.
        for _ in 0..COMPACTIONS {
            let at = i64::try_from(shared.shown.load(Ordering::SeqCst))?;
            let compact = CompactionRequest { revision: at, physical: true };
            client.kv.clone().compact(compact).await.with_context(|| format!("compaction at {at}"))?;
            crowd.until(|shared| shared.shown.load(Ordering::SeqCst) > at.unsigned_abs()).await?;
        }
        crowd.reads(READS).await?;
        let raises = || async {
            let mut raises = 0;
            for shard in &cluster.shards {
                raises += calls(&shard.admin, "grpc_server_handled_total", "RaiseSince").await?;
            }
            anyhow::Ok(raises)
        };
        while raises().await? < RAISES {
            crowd.reads(1).await?;
        }
        crowd.finish().await?;
        let reads = shared.reads.load(Ordering::SeqCst);
        report(&format!("e2e snapshots reads={reads} raises={} compactions={COMPACTIONS}", raises().await?));
        Ok(())
    });
}
