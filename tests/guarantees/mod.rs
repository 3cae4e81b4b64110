//! Checks etcd's guarantees on recorded histories of concurrent clients. The suites run a shard alone, one router and
//! two routers, with processes that die, and a real etcd to test the test itself. `kindred-checker` checks what the
//! clients recorded.
//!
//! `KINDRED_GUARANTEES_SECONDS` is how long each suite runs. `KINDRED_GUARANTEES_SEED` selects a single seed. A history
//! that breaks a guarantee is stored, and `KINDRED_GUARANTEES_HISTORY=FILE make test ONLY=guarantees::replay` checks it again.

mod run;
mod stored;
mod system;

use std::time::Duration;

use kindred_checker::Counts;
use kindred_tests::{
    layouts::Layout,
    scenario::{self, env_number, report},
};

use run::{Fault, Suite};
use system::{Durability, Target};

const SECONDS: u64 = 6;
const LIMIT: Duration = Duration::from_secs(1200);
const FIRST_SEED: u64 = 1;

/// A cluster whose Kinds have mode `none`.
fn cluster(layout: Layout, routers: usize, threads: usize) -> Target {
    Target::Cluster { layout, routers, threads, durability: Durability::None }
}

/// Kinds over several shards with mode `fsync`, so events wait for a disk before they are visible (R9).
fn durable(layout: Layout) -> Target {
    Target::Cluster { layout, routers: 2, threads: 1, durability: Durability::Fsync }
}

fn suite(name: &'static str, target: Target, fault: Fault) {
    let suite = Suite { name, target, fault };
    scenario::run(name, LIMIT, |dir| async move {
        let seconds = env_number("KINDRED_GUARANTEES_SECONDS", SECONDS)?;
        let works = Duration::from_secs(seconds).as_millis() / run::WORK.as_millis();
        let only = env_number("KINDRED_GUARANTEES_SEED", 0)?;
        let (first, seeds) = if only > 0 { (only, 1) } else { (FIRST_SEED, u64::try_from(works)?.max(1)) };
        let mut all = Counts::default();
        let mut failed = 0;
        for seed in first..first + seeds {
            let done = suite.run(&dir, seed).await?;
            add(&mut all, &done.counts);
            failed += done.failed;
        }
        let Counts { operations, unknown, events, watches, resumes, progress, .. } = all;
        let (keys, undecided) = (all.keys_linearizable, all.keys_undecided);
        report(&format!(
            "guarantees suite={name} seeds={seeds} operations={operations} failed={failed} unknown={unknown} \
             events={events} watches={watches} resumes={resumes} progress={progress} keys={keys} \
             undecided={undecided} violations=0"
        ));
        Ok(())
    });
}

fn add(all: &mut Counts, one: &Counts) {
    all.operations += one.operations;
    all.unknown += one.unknown;
    all.events += one.events;
    all.watches += one.watches;
    all.resumes += one.resumes;
    all.progress += one.progress;
    all.keys_linearizable += one.keys_linearizable;
    all.keys_undecided += one.keys_undecided;
}

#[test]
fn etcd() {
    suite("etcd", Target::Etcd, Fault::None);
}

#[test]
fn shard_hlc() {
    suite("shard_hlc", Target::Shard { dense: false }, Fault::None);
}

#[test]
fn shard_dense() {
    suite("shard_dense", Target::Shard { dense: true }, Fault::None);
}

#[test]
fn one_router() {
    suite("one_router", cluster(Layout::Default, 1, 1), Fault::None);
}

#[test]
fn two_routers() {
    suite("two_routers", cluster(Layout::Default, 2, 3), Fault::None);
}

#[test]
fn shard_killed() {
    suite("shard_killed", cluster(Layout::Default, 2, 1), Fault::Shard);
}

#[test]
fn router_killed() {
    suite("router_killed", cluster(Layout::Default, 2, 3), Fault::Router);
}

#[test]
fn spread_one_router() {
    suite("spread_one_router", cluster(Layout::Ranges, 1, 1), Fault::None);
}

#[test]
fn spread_two_routers() {
    suite("spread_two_routers", cluster(Layout::Ring, 2, 3), Fault::None);
}

#[test]
fn spread_router_killed() {
    suite("spread_router_killed", cluster(Layout::Ring, 2, 1), Fault::Router);
}

#[test]
fn spread_fsync() {
    suite("spread_fsync", durable(Layout::Ranges), Fault::None);
}

#[test]
fn spread_fsync_shard_killed() {
    suite("spread_fsync_shard_killed", durable(Layout::Ring), Fault::DurableShard);
}

#[test]
fn long_every_layout() {
    for layout in [Layout::Whole, Layout::Ranges, Layout::Ring] {
        for routers in [1, 2] {
            suite("long_every_layout", cluster(layout, routers, 1), Fault::None);
            suite("long_every_layout", cluster(layout, routers, 3), Fault::Router);
        }
        suite("long_every_layout", durable(layout), Fault::None);
        suite("long_every_layout", durable(layout), Fault::DurableShard);
    }
}

/// Checks a stored history again if the environment names one.
#[test]
fn replay() {
    if let Some(path) = run::asked_for() {
        match run::replay(&path) {
            Ok(found) => report(&found),
            Err(error) => panic!("{error:#}"),
        }
    }
}
