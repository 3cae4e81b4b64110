//! Runs a real kube-apiserver on `kindred up` over mTLS, with kubectl and an HTTP client.
//!
//! | module | what it has or proves |
//! | --- | --- |
//! | [`cluster`] | the store, its configuration, the apiservers and the counters |
//! | [`objects`], [`load`] | what nodes, controllers and users write |
//! | [`writes`] | field managers, patches, optimistic locks and deletes work |
//! | [`watches`] | a watch delivers every change once and in order, also from a revision |
//! | [`lists`] | lists are right: in pages during writes, consistent, cached, and at a revision |
//! | [`pairs`] | a second apiserver on the same store, restarts, and compacted revisions |
//! | [`faults`] | events expire with their leases; a killed shard affects no other Kind |
//! | [`placement`] | each key is on the shard that the map names |
//! | [`crashes`] | every shard is killed, with Kinds of every mode |
//! | [`failover`], [`steady`] | stores with standbys fail over while clients write and watch |
//! | [`moves`] | Kinds move to other shards and back |
//! | [`adopt`], [`busy`], [`strangers`] | a cluster goes from an etcd to kindred, and from there to another etcd, under writers |
//! | [`backups`] | objects come back from a backup |
//! | [`snapshots`] | an apiserver goes on with a stock etcd that begins with a snapshot |
//! | [`health`] | the apiserver's own metrics show no error |
//!
//! The run uses the default configuration, and layouts that split each Kind with many objects by name and by hash. The
//! expected places of keys are read from them. `KINDRED_TEST_CONFIG=FILE` replaces the default configuration.
//! `KINDRED_KUBE_STORE=etcd` runs on a real etcd, to test these tests.

mod adopt;
mod backups;
mod busy;
mod cluster;
mod crashes;
mod failover;
mod faults;
mod health;
mod lists;
mod load;
mod moves;
mod objects;
mod pairs;
mod placement;
mod snapshots;
mod steady;
mod strangers;
mod watches;
mod writes;

use std::time::{Duration, Instant};

use cluster::{Certificates, Cluster, Map};
use kindred_tests::scenario::{self, report};

const LIMIT: Duration = Duration::from_secs(480);

/// Reports the duration of each step. It shows slow steps, and how far a failed run came.
struct Steps {
    test: &'static str,
    started: Instant,
}

impl Steps {
    fn done(&mut self, name: &str) {
        let seconds = self.started.elapsed().as_secs_f64();
        report(&format!("kube step {name} seconds={seconds:.1} test={}", self.test));
        self.started = Instant::now();
    }
}

fn over_mtls(name: &'static str, map: Map) {
    scenario::run(name, LIMIT, |dir| async move {
        let mut steps = Steps { test: name, started: Instant::now() };
        let mut cluster = Cluster::start(&dir, Certificates::Given, map).await?;
        let at_start = health::Baseline::take(&cluster).await?;
        steps.done("start");
        load::run(&cluster).await?;
        steps.done("load");
        writes::run(&cluster).await?;
        steps.done("writes");
        watches::run(&cluster).await?;
        steps.done("watches");
        lists::run(&cluster).await?;
        steps.done("lists");
        at_start.no_errors(&cluster).await?;
        pairs::run(&mut cluster).await?;
        steps.done("pairs");
        // The first apiserver was started again, so its counters begin anew.
        let after_restart = health::Baseline::take(&cluster).await?;
        faults::events_end(&cluster).await?;
        steps.done("events_end");
        placement::check(&cluster).await?;
        steps.done("placement");
        let killed = faults::kill_the_events_shard(&cluster).await?;
        steps.done("kill_shard");
        placement::check(&cluster).await?;
        writes::delete_all(&cluster).await?;
        after_restart.undisturbed(&cluster, killed.as_deref()).await?;
        steps.done("end");
        report(&format!("{} test={name}", cluster.stop().await?.line()));
        Ok(())
    });
}

#[test]
fn kubernetes_over_mtls() {
    over_mtls("kubernetes_over_mtls", Map::Default);
}

#[test]
fn kubernetes_over_ranges() {
    over_mtls("kubernetes_over_ranges", Map::Ranges);
}

#[test]
fn kubernetes_over_a_ring() {
    over_mtls("kubernetes_over_a_ring", Map::Ring);
}

#[test]
fn kubernetes_with_its_stores_in_a_routers_process() {
    scenario::run("kubernetes_together", LIMIT, |dir| async move {
        let cluster = Cluster::start_with(&dir, Certificates::Given, Map::Default, &["--together"]).await?;
        let at_start = health::Baseline::take(&cluster).await?;
        load::run(&cluster).await?;
        writes::run(&cluster).await?;
        watches::run(&cluster).await?;
        lists::run(&cluster).await?;
        at_start.no_errors(&cluster).await?;
        placement::check(&cluster).await?;
        report(&format!("{} test=kubernetes_together", cluster.stop().await?.line()));
        Ok(())
    });
}

#[test]
fn kubernetes_with_auto_tls() {
    scenario::run("kubernetes_with_auto_tls", LIMIT, |dir| async move {
        let cluster = Cluster::start(&dir, Certificates::Auto, Map::Default).await?;
        load::run(&cluster).await?;
        placement::check(&cluster).await?;
        report(&cluster.stop().await?.line());
        Ok(())
    });
}

#[test]
fn kubernetes_while_kinds_move() {
    scenario::run("kubernetes_while_kinds_move", LIMIT, |dir| async move {
        let cluster = Cluster::start(&dir, Certificates::Given, Map::Default).await?;
        load::run(&cluster).await?;
        let at_start = health::Baseline::take(&cluster).await?;
        let moves = moves::run(&cluster).await?;
        at_start.no_errors(&cluster).await?;
        placement::check(&cluster).await?;
        report(&format!("{} moves={moves} test=kubernetes_while_kinds_move", cluster.stop().await?.line()));
        Ok(())
    });
}

#[test]
fn kubernetes_objects_come_back_from_a_backup() {
    scenario::run("kubernetes_backup", LIMIT, |dir| async move {
        let cluster = Cluster::start(&dir, Certificates::Auto, Map::Ranges).await?;
        let at_start = health::Baseline::take(&cluster).await?;
        backups::run(&cluster, &dir).await?;
        snapshots::run(&cluster, &dir).await?;
        at_start.no_errors(&cluster).await?;
        report(&format!("{} test=kubernetes_backup", cluster.stop().await?.line()));
        Ok(())
    });
}

#[test]
fn kubernetes_adopts_kindred_and_leaves_it() {
    scenario::run("kubernetes_adopt", LIMIT, |dir| async move { adopt::run(&dir).await });
}

#[test]
fn kubernetes_while_shards_crash() {
    scenario::run("kubernetes_crashes", LIMIT, |dir| async move {
        let cluster = Cluster::start(&dir, Certificates::Given, Map::Modes).await?;
        let (acknowledged, lost) = crashes::run(&cluster).await?;
        let line = cluster.stop().await?.line();
        report(&format!("{line} acknowledged={acknowledged} lost={lost} test=kubernetes_while_shards_crash"));
        Ok(())
    });
}

#[test]
fn r18_an_apiserver_goes_on_over_failovers_without_a_relist() {
    scenario::run("kubernetes_failover", LIMIT, |dir| async move {
        let flags = ["--standbys", "--routers=2"];
        let cluster = Cluster::start_with(&dir, Certificates::Given, Map::Default, &flags).await?;
        let events = failover::run(&cluster).await?;
        let line = cluster.stop().await?.line();
        report(&format!("{line} events={events} test=kubernetes_over_failovers"));
        Ok(())
    });
}
