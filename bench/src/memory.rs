//! `memory`: the bytes that an engine needs for an object beyond its key and value, and for an event of its
//! history. It measures an engine in this process, without a server. A build without optimisation gives the same
//! results.

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use kindred_engine::{
    durability::{Durability, KindModes, Logged},
    engine::{Engine, EngineConfig, MonoMillis, Recovery, RevisionMode, WallMicros},
    ops::{Op, Put},
    recover::{KindReplay, Recovered},
    version::Version,
};
use kindred_partition_config::{
    ids::{Revision, Slot},
    key::Key,
    kind::KindScheme,
};

use crate::restart::resident;

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// Number of objects.
    #[arg(long, default_value_t = 1_000_000)]
    objects: usize,
    /// Bytes of a value.
    #[arg(long, default_value_t = 1024)]
    value_bytes: usize,
    /// Further writes of each object, which make its history.
    #[arg(long, default_value_t = 1)]
    updates: usize,
    /// Measure the objects after a replay, as at a start from disk.
    #[arg(long)]
    start: bool,
}

/// A present-day time in microseconds, so that revisions have a realistic length.
const NOW: u64 = 1_760_000_000_000_000;
/// The time in which the allocator returns free memory.
const SETTLE: Duration = Duration::from_millis(1500);

fn config() -> anyhow::Result<EngineConfig> {
    Ok(EngineConfig {
        revisions: RevisionMode::Hlc(Slot::new(1).context("a slot")?),
        kinds: KindScheme::default(),
        max_clock_offset_micros: 10_000_000,
        min_lease_ttl_s: 2,
    })
}

fn key(i: usize) -> String {
    format!("/registry/pods/default/node-{i:012}")
}

struct Meter {
    empty: u64,
    raw: u64,
    count: usize,
}

impl Meter {
    async fn now() -> anyhow::Result<u64> {
        // The allocator returns freed memory at the next large allocation.
        for _ in 0..2 {
            tokio::time::sleep(SETTLE).await;
            drop(std::hint::black_box(vec![1_u8; 1 << 20]));
        }
        resident(std::process::id())
    }

    #[allow(clippy::print_stdout, reason = "the result of the program")]
    async fn show(&self, what: &str) -> anyhow::Result<()> {
        let at_once = resident(std::process::id())?;
        let over = |resident: u64| {
            (resident.saturating_sub(self.empty) as f64 - self.raw as f64) / self.count as f64
        };
        println!("| {what} | {:.0} | {:.0} |", over(at_once), over(Self::now().await?));
        Ok(())
    }
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
pub async fn run(options: &Options) -> anyhow::Result<()> {
    // The same setup as in a shard: without it, free parts of a large page would count as used.
    kindred_transport::memory::set_up();
    let Options { objects, value_bytes, .. } = *options;
    let raw = (objects * (key(0).len() + value_bytes)) as u64;
    println!("{objects} objects, keys of {} and values of {value_bytes} bytes\n", key(0).len());
    println!("| | bytes over keys and values | after a while |");
    println!("| --- | --- | --- |");
    let meter = Meter { empty: resident(std::process::id())?, raw, count: objects };
    if options.start { start(options, &meter).await } else { fill(options, &meter).await }
}

async fn fill(options: &Options, meter: &Meter) -> anyhow::Result<()> {
    let mut engine = Engine::new(config()?, WallMicros(NOW));
    let mut at = NOW;
    let mut round = |engine: &mut Engine| -> anyhow::Result<()> {
        for i in 0..options.objects {
            at += 10;
            let put = Put {
                // As they arrive on the wire: slices of a buffer.
                key: Key::copy_from(key(i).as_bytes()),
                value: Bytes::from(vec![i as u8; options.value_bytes]),
                lease: None,
                ignore_value: false,
                ignore_lease: false,
                prev_kv: false,
            };
            engine.apply(WallMicros(at), Op::Put(put))?;
            if i % 64 == 0 {
                engine.publish();
            }
        }
        engine.publish();
        Ok(())
    };
    round(&mut engine)?;
    meter.show("an object, with the event of its creation").await?;
    for update in 1..=options.updates {
        let before = Meter { empty: Meter::now().await?, ..*meter };
        round(&mut engine)?;
        before.show(&format!("an event of its history, the {update}. write after the first")).await?;
    }
    let last = engine.last_revision();
    engine.compact(MonoMillis(0), last)?;
    while engine.gc(1024) {}
    meter.show("an object, compacted").await
}

async fn start(options: &Options, meter: &Meter) -> anyhow::Result<()> {
    let mut found = Recovered::default();
    let mut kinds = KindModes::all(Durability::Fsync);
    kinds.generation = 1;
    found.push(Logged::Modes(Box::new(kinds)));
    let value = vec![7; options.value_bytes];
    for i in 0..options.objects {
        let revision = ((NOW + 10 * i as u64) << 10).cast_signed();
        let mut kv = Vec::new();
        kindred_wire::kv::KeyValueRef {
            key: key(i).as_bytes(),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            value: &value,
            lease: 0,
        }
        .encode_into(&mut kv);
        found.push(Logged::Version(Version::from_wire(&kv, false, 0)?));
    }
    let found = Recovered { start: Revision(((NOW + 1_000_000_000) << 10).cast_signed()), ..found };
    let now = WallMicros(NOW + 1_000_000_000);
    let mut recovery = Recovery::new(config()?, found);
    // On another thread, as in a shard.
    let kinds = std::mem::take(&mut recovery.kinds);
    let restored = std::thread::scope(|scope| {
        let replay = || kinds.into_iter().map(KindReplay::run).collect();
        scope.spawn(replay).join().map_err(|_| anyhow::anyhow!("a replay panicked"))
    })?;
    let engine = recovery.finish(restored, now, MonoMillis(0))?;
    meter.show("an object, after a start").await?;
    anyhow::ensure!(engine.stats().keys == options.objects as u64, "objects are missing");
    Ok(())
}
