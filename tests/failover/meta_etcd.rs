//! The meta store as in production: an etcd of three members with mutual TLS. Clients write and watch through two
//! routers all the time and must notice nothing. While a majority of the members lives, the state changes and Kinds move.

use std::{path::Path, time::Duration};

use anyhow::ensure;
use kindred_proto::etcdserverpb::StatusRequest;
use kindred_tests::{
    etcd_cluster::MEMBERS,
    scenario::{self, report},
    stall::Stalls,
};
use kindred_transport::tls::{ClientTls, ClientTlsSettings};

use crate::failover::{
    members::LIMIT,
    meta_cluster::{Cluster, Took},
    meta_traffic::Traffic,
};

/// How long a member hangs: longer than it takes to notice that, and to elect a leader.
const HANG: Duration = Duration::from_secs(3);
/// The longest that a change may take while a member that does not lead is dead or hung. A call asks another member
/// after 250 ms, and a machine that is busy with other tests takes its time.
const WITHOUT_FOLLOWER: Duration = Duration::from_millis(1500);
/// While the leader is dead or hung, the others first elect one, which takes them up to 1.5 s.
const WITHOUT_LEADER: Duration = Duration::from_secs(3);
/// A move has many changes one after the other. On a busy machine it gives attempts up, and waits longer after each.
const MOVE_MAX: Duration = Duration::from_secs(60);
/// The longest until a change is refused. A call gives up after 3 s.
const REFUSED_MAX: Duration = Duration::from_secs(5);

#[test]
fn members_of_the_meta_store_die_and_hang_and_nobody_notices() {
    scenario::run("meta_etcd", 3 * LIMIT, |dir| async move { die_and_hang(&dir).await });
}

async fn die_and_hang(dir: &Path) -> anyhow::Result<()> {
    let stalls = Stalls::watch(dir)?;
    let began = std::time::Instant::now();
    // What took too long while the machine stalled says nothing.
    let in_time = |what: &str, took: Duration, limit: Duration| {
        ensure!(took < limit || stalls.longest(began).is_some(), "{what} took {took:?}, more than {limit:?}");
        Ok(())
    };
    let mut cluster = Cluster::start(dir).await?;
    strangers_are_refused(&cluster).await?;
    let mut traffic = Traffic::start(&cluster.routers).await?;
    let shown = |what: &str, took: Took| {
        report(&format!(
            "failover meta_etcd case={what} change_max={:?} heard_max={:?} changes={}",
            took.change, took.heard, took.changes
        ));
    };
    let took = cluster.changes(Duration::ZERO).await?;
    shown("all", took);

    // Each hangs in turn: first the one that the routers ask, which does not lead, then the one that leads.
    cluster.meta.lead(1).await?;
    for member in 0..MEMBERS {
        let leads = cluster.meta.leader().await? == member;
        cluster.meta.signal(member, "-STOP")?;
        let took = cluster.changes(HANG).await?;
        let what = if leads { "leader" } else { "follower" };
        shown(&format!("hung_{what}_{member}"), took);
        let limit = if leads { WITHOUT_LEADER } else { WITHOUT_FOLLOWER };
        in_time("a change", took.change, limit)?;
        in_time("hearing of it", took.heard, limit + WITHOUT_FOLLOWER)?;
        traffic.more(50).await?;
        cluster.meta.signal(member, "-CONT")?;
    }

    // One is dead: first one that does not lead, then the one that leads.
    for (what, limit, to) in [("follower", WITHOUT_FOLLOWER, "b"), ("leader", WITHOUT_LEADER, "a")] {
        let leader = cluster.meta.leader().await?;
        let member = if what == "leader" { leader } else { (leader + 1) % MEMBERS };
        cluster.meta.kill(member)?;
        let took = cluster.changes(Duration::ZERO).await?;
        shown(&format!("dead_{what}"), took);
        in_time("a change", took.change, limit)?;
        in_time("hearing of it", took.heard, limit + WITHOUT_FOLLOWER)?;
        let moved = cluster.moved(to).await?;
        report(&format!("failover meta_etcd case=dead_{what} move={moved:?}"));
        in_time("a move", moved, MOVE_MAX)?;
        traffic.more(50).await?;
        cluster.meta.restart(&[member]).await?;
    }

    // Without a majority nothing changes, and traffic goes on.
    cluster.meta.leader().await?;
    let two = [0, 1];
    for member in two {
        cluster.meta.kill(member)?;
    }
    for _ in 0..2 {
        let (code, said, took) = cluster.change().await?;
        ensure!(code == 503 && said.contains("traffic goes on with the last map"), "{code} {said}");
        in_time("a refusal", took, REFUSED_MAX)?;
        report(&format!("failover meta_etcd case=two_dead refused_after={took:?} {said}"));
        traffic.more(50).await?;
    }
    cluster.meta.restart(&two).await?;
    let again = cluster.changes_again().await?;
    let took = cluster.changes(Duration::ZERO).await?;
    shown("all_again", took);
    let moved = cluster.moved("b").await?;
    report(&format!("failover meta_etcd case=all_again first_change={again:?} move={moved:?}"));
    let (writes, slowest) = traffic.finish().await?;
    report(&format!("failover meta_etcd writes={writes} slowest_write={slowest:?}"));
    Ok(())
}

/// The meta store serves neither who has no certificate nor who has one of the stores' authority.
async fn strangers_are_refused(cluster: &Cluster) -> anyhow::Result<()> {
    let of_store = cluster.stores.leaf("stranger")?;
    for identity in [None, Some((of_store.cert, of_store.key))] {
        let what = format!("{identity:?}");
        let tls = ClientTlsSettings {
            trusted_ca_file: Some(cluster.meta.authority.cert.clone()),
            identity,
            ..ClientTlsSettings::default()
        };
        let mut client = cluster.meta.client_with(0, ClientTls::load(tls)?)?;
        let asked = client.maintenance.status(StatusRequest {}).await;
        ensure!(asked.is_err(), "{what} was let in");
    }
    Ok(())
}
