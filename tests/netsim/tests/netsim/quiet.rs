//! A stream's progress round waits for a store that does not answer, and meanwhile the router must be idle.
//!
//! A session on two feeds must not poll the feed that has reached the target until the other one has. Simulated time
//! does not pass while a host is busy, so such a loop would stop the simulation.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;
use kindred_checker::history::{KeyRange, WatchOptions};
use kindred_netsim::{Link, Plan, ROUTERS, SHARDS, Step};
use kindred_tests::workload::{
    caller::{Caller, Endpoints},
    recorder::Recorder,
    stream::{Heard, Wanted, WatchStream},
};
use rand::{SeedableRng as _, rngs::StdRng};

use crate::cluster;
use crate::log::Log;
use crate::network;
use crate::run::drive;
use crate::seconds;

/// The limit of real time. The test takes milliseconds, or for ever if the router spins.
const WATCHDOG: Duration = seconds(120);
/// The times at which the store's links are held and released.
const SILENT: Duration = seconds(2);
const HEARD: Duration = seconds(6);

#[test]
fn a_round_that_waits_for_a_store_does_not_spin() {
    let _alone = network::alone();
    let (done, waiting) = mpsc::channel();
    std::thread::spawn(move || done.send(simulate()));
    let ended = waiting.recv_timeout(WATCHDOG).expect("the simulated time passes");
    ended.unwrap();
}

fn simulate() -> anyhow::Result<()> {
    // The second shard has the middle range of namespaces.
    let links = (0..ROUTERS).map(|router| Link::Store { router, shard: 1 });
    let hold = links.clone().map(|link| (SILENT, Step::Hold(link)));
    let release = links.map(|link| (HEARD, Step::Release(link)));
    let plan = Plan {
        latency_max: Duration::from_millis(1),
        skews_ms: [0; SHARDS],
        work: HEARD,
        steps: hold.chain(release).collect(),
    };
    let dir = tempfile::tempdir()?;
    let mut sim = turmoil::Builder::new()
        .rng_seed(1)
        .simulation_duration(seconds(60))
        .max_message_latency(plan.latency_max)
        .build();
    cluster::build(&mut sim, &plan, dir.path())?;
    sim.client(cluster::CLIENTS, async { Ok(watches().await?) });
    drive(&mut sim, &plan, &Log::default())
}

/// Opens two watches on one stream, on two stores. It requests progress while one store is silent, and expects it when
/// that store answers again.
async fn watches() -> anyhow::Result<()> {
    let endpoints = Arc::new(Endpoints { addresses: cluster::endpoints(), connect: network::connect });
    let caller = Caller::new(Arc::new(Recorder::new()), endpoints, &mut StdRng::seed_from_u64(1))?;
    let wanted = |prefix: &str| Wanted {
        range: KeyRange::prefix(prefix.into()),
        options: WatchOptions::default(),
        resumes: None,
    };
    tokio::time::sleep(seconds(1)).await;
    let opened = WatchStream::open(&caller, wanted("/registry/pods/alpha/")).await?;
    let mut stream = opened.context("a router is there")?;
    while stream.is_creating() {
        stream.hear().await?;
    }
    stream.create(wanted("/registry/pods/mike/"));
    while stream.is_creating() {
        stream.hear().await?;
    }
    // After the first pause the store is silent, and after the second it answers again.
    tokio::time::sleep(SILENT).await;
    stream.ask_progress();
    tokio::time::sleep(HEARD).await;
    // The first round has been given up by now.
    stream.ask_progress();
    let before: Vec<_> = stream.watches.iter().map(|watch| watch.position).collect();
    let answered = async {
        while stream.watches.iter().zip(&before).any(|(watch, before)| watch.position <= *before) {
            anyhow::ensure!(stream.hear().await? != Heard::Broken, "the stream broke");
        }
        Ok(())
    };
    tokio::time::timeout(seconds(20), answered).await.context("no progress")?
}
