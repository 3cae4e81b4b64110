//! Kubernetes' own tests of its storage: of the package that speaks to etcd, of the cache over it, and of the registry over
//! both. Each case runs at a real etcd, at a shard alone, and at routers over stores in several layouts. A case that passes at
//! etcd passes at kindred, or is in the table of differences with the reason.

mod differences;
mod run;
mod table;

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use kindred_tests::{
    layouts::{Kind, Layout, Place, Wanted},
    peers::{Peer, PeerSet, listed},
    scenario::{self, report},
};
use tokio::{sync::Semaphore, task::JoinSet};

use self::run::{Cases, run};
use super::clients::run::Outcome;

/// How many packages run at a time, each with servers of its own.
const AT_A_TIME: usize = 6;

/// Pods are what most of the tests write. They have theirs in namespaces such as first, ns, second, test-ns and third, and count
/// names in a namespace from 0.
const PODS: Kind = Kind { resource: "pods", cuts: ["ns/pod-1", "second/c"] };

/// What the tests expect of their server.
const WANTED: Wanted<'_> = Wanted { kinds: &[PODS], progress: Some("1s"), sections: None, flags: &[] };

/// What became of the cases of each package at each place.
type Results = BTreeMap<String, BTreeMap<Place, Cases>>;

/// The package that speaks to etcd, at the layout with the most stores, behind two routers.
#[test]
fn kubernetes_storage_finds_what_it_finds_at_etcd() {
    let places = [Layout::Ring.behind(2)];
    scenario::run("kube_storage", Duration::from_secs(120), |dir| async move {
        compare(&dir, "etcd3", &places).await.map(|_| ())
    });
}

#[test]
fn the_differences_are_documented() {
    table::differences_are_documented().unwrap();
}

/// `KINDRED_LAYOUTS` has names of layouts, and `KINDRED_PACKAGES` of packages, separated by commas, if not all are to run.
#[test]
fn long_kubernetes_storage_finds_what_it_finds_at_etcd_in_every_layout() {
    let packages = std::env::var("KINDRED_PACKAGES").unwrap_or_default();
    let layouts = std::env::var("KINDRED_LAYOUTS").unwrap_or_default();
    let mut places = Place::all();
    places.retain(|place| {
        let named = layouts.is_empty() || layouts.split(',').any(|name| place.to_string().contains(name));
        // Its pods are on one store as in others, and the tests count revisions from 1 also without a router.
        named && ![Layout::Default, Layout::Shard].contains(&place.layout)
    });
    scenario::run("kube_storage_all", Duration::from_secs(1200), |dir| async move {
        let results = compare(&dir, &packages, &places).await?;
        let whole = packages.is_empty() && layouts.is_empty();
        if whole { table::places_are_documented(&results) } else { Ok(()) }
    });
}

/// Runs the packages with these names, or all, at etcd and at the places.
async fn compare(dir: &Path, packages: &str, places: &[Place]) -> anyhow::Result<Results> {
    let mut programs = listed(PeerSet::KubeStorage)?;
    programs.retain(|program| packages.is_empty() || packages.split(',').any(|name| program.name == name));
    ensure!(!programs.is_empty(), "no package is called {packages}");
    let mut results = run_all(&programs, places, dir).await?;
    results.values_mut().for_each(leave_those_that_ask);
    for row in table::rows(&results) {
        report(&row);
    }
    let wrong = differences::unexpected(&results);
    ensure!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    Ok(results)
}

/// Of interest are the cases that ask a server, and that do not skip themselves at etcd.
fn leave_those_that_ask(places: &mut BTreeMap<Place, Cases>) {
    let Some(Cases { outcomes, asked }) = places.get(&Place::ETCD).cloned() else { return };
    for cases in places.values_mut() {
        cases.outcomes.retain(|case, _| {
            let test = case.split('/').next().unwrap_or(case);
            asked.contains(test) && !matches!(outcomes.get(case), Some(Outcome::Skipped(_)))
        });
    }
}

/// Runs the packages at etcd and at the places, a few at a time.
async fn run_all(programs: &[Peer], places: &[Place], dir: &Path) -> anyhow::Result<Results> {
    let turns = Arc::new(Semaphore::new(AT_A_TIME));
    let mut runs = JoinSet::new();
    for place in [Place::ETCD].iter().chain(places).copied() {
        for program in programs.iter().cloned() {
            let (turns, dir) = (Arc::clone(&turns), dir.to_owned());
            runs.spawn(async move {
                let _turn = turns.acquire().await?;
                let cases = run(&program, place, &dir).await;
                let cases = cases.with_context(|| format!("{} at {place}", program.name))?;
                anyhow::Ok((program.name, place, cases))
            });
        }
    }
    let mut results = Results::new();
    while let Some(done) = runs.join_next().await {
        let (package, place, cases) = done??;
        results.entry(package).or_default().insert(place, cases);
    }
    Ok(results)
}
