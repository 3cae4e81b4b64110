//! A stream's progress round waits for a store that does not answer, and meanwhile the router does nothing.
//!
//! Found by `seeds`: a session on two feeds read the feed that had come to the target again and again until the other one
//! had, a core at full load for up to a second. Simulated time does not pass while a host has something to do, so that
//! the simulation stood still.

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

/// What takes milliseconds and would else take for ever.
const WATCHDOG: Duration = seconds(120);
/// When the store falls silent, and when it is heard again.
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
    // The second of the shards has the namespaces in the middle.
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

/// Two watches of one stream on two stores, asked for progress while one store is silent, and answered when it is not.
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
    // By now the store is silent, and after the second pause it is not.
    tokio::time::sleep(SILENT).await;
    stream.ask_progress();
    tokio::time::sleep(HEARD).await;
    // The round of then is given up.
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
