//! The network loses one connection between a router and a store, and neither side gets an error.
//!
//! The router's handshakes use another connection, so the store stays up. Requests on the lost connection must not wait
//! for HTTP/2's keepalive, which takes 15 s: another Kind may be 3 s behind at most (R17).

use std::time::Duration;

use anyhow::{Context as _, ensure};
use kindred_netsim::{Link, Plan, ROUTERS, SHARDS, Step};
use kindred_proto::etcdserverpb::PutRequest;
use kindred_transport::connect::UNACKNOWLEDGED_MAX;
use tokio::time::Instant;

use crate::cluster;
use crate::log::Log;
use crate::network;
use crate::run::drive;
use crate::seconds;

/// The time at which messages begin to be lost. It is between two handshakes.
const LOST: Duration = Duration::from_millis(2_500);
const LOST_FOR: Duration = Duration::from_millis(100);
/// How long a client waits for an answer while messages are lost.
const PATIENCE: Duration = Duration::from_millis(20);
/// The time for a new connection and the store's handshake.
const MARGIN: Duration = seconds(1);

#[test]
fn r17_a_lost_connection_is_found_in_three_seconds() {
    let _alone = network::alone();
    let links = (0..ROUTERS).map(|router| Link::Store { router, shard: 0 });
    let cut = links.clone().map(|link| (LOST, Step::Cut(link)));
    let mend = links.map(|link| (LOST + LOST_FOR, Step::Mend(link)));
    let plan = Plan {
        latency_max: Duration::from_millis(1),
        skews_ms: [0; SHARDS],
        work: seconds(10),
        steps: cut.chain(mend).collect(),
    };
    let dir = tempfile::tempdir().unwrap();
    let mut sim = turmoil::Builder::new()
        .rng_seed(1)
        .simulation_duration(seconds(60))
        .max_message_latency(plan.latency_max)
        .build();
    cluster::build(&mut sim, &plan, dir.path()).unwrap();
    sim.client(cluster::CLIENTS, async { Ok(writes().await?) });
    drive(&mut sim, &plan, &Log::default()).unwrap();
}

async fn writes() -> anyhow::Result<()> {
    let began = Instant::now();
    let endpoint = cluster::endpoints().into_iter().next().context("a router")?;
    let client = network::connect(&endpoint)?;
    let put = || {
        let mut kv = client.kv.clone();
        // This key is on the first shard.
        let put =
            PutRequest { key: "/registry/pods/alpha/n1".into(), value: "v".into(), ..Default::default() };
        async move { kv.put(put).await }
    };
    tokio::time::sleep(seconds(1)).await;
    put().await.context("before anything is lost")?;
    tokio::time::sleep_until(began + LOST).await;
    let mut lost = 0;
    while began.elapsed() < LOST + LOST_FOR {
        let sent = Instant::now();
        lost += usize::from(tokio::time::timeout(PATIENCE, put()).await.is_err());
        tokio::time::sleep_until(sent + PATIENCE).await;
    }
    ensure!(lost > 0, "the cut was not noticed");
    let until = began + LOST + LOST_FOR + UNACKNOWLEDGED_MAX + MARGIN;
    let answered = async {
        while put().await.is_err() {
            tokio::time::sleep(PATIENCE).await;
        }
    };
    tokio::time::timeout_at(until, answered).await.context("the store is not written to again")
}
