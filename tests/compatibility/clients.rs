//! Client libraries that were written for etcd, with the tests that their authors wrote for them, or with ours where
//! there are none: each case at a real etcd, at a shard alone and at a router. A case that passes at etcd passes at
//! kindred, or is in the table of differences with the reason.

mod differences;
pub mod go;
mod libraries;
pub mod run;
mod rust;
mod side;
mod table;

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use kindred_tests::scenario::{self, report};
use tokio::{sync::Semaphore, task::JoinSet};

use self::{
    run::{Outcome, Suite, run},
    side::Side,
};

/// How many suites run at a time. Most of their time is waiting.
const AT_A_TIME: usize = 12;

/// What became of each case of a client, at each side.
type Results = BTreeMap<String, BTreeMap<Side, Outcome>>;

/// One client of each language, of those whose tests are quick.
const QUICK: &str = "naming,etcd-client crate,Python etcd3gw,npm,Java";

/// `KINDRED_CLIENTS` has words of the names of those to run, separated by commas.
#[test]
fn clients_in_each_language_find_what_they_find_at_etcd() {
    let wanted = std::env::var("KINDRED_CLIENTS").unwrap_or_else(|_| QUICK.to_owned());
    scenario::run(
        "clients",
        Duration::from_secs(120),
        |dir| async move { compare(&dir, Some(&wanted)).await },
    );
}

#[test]
fn long_clients_of_etcd_find_what_they_find_at_etcd() {
    scenario::run("clients_all", Duration::from_secs(1200), |dir| async move { compare(&dir, None).await });
}

#[test]
fn long_etcds_tests_of_its_api_find_what_they_find_at_etcd() {
    scenario::run("clients_api", Duration::from_secs(1200), |dir| async move {
        compare(&dir, Some(differences::API)).await
    });
}

#[test]
fn long_etcds_common_tests_find_what_they_find_at_etcd() {
    scenario::run("clients_common", Duration::from_secs(1200), |dir| async move {
        compare(&dir, Some(differences::COMMON)).await
    });
}

/// Without words all clients run but etcd's tests that are of its servers more than of a client.
async fn compare(dir: &Path, wanted: Option<&str>) -> anyhow::Result<()> {
    let mut suites = go::suites()?;
    suites.extend(go::coredns()?);
    suites.extend(rust::suites()?);
    let (libraries, lacking) = libraries::suites()?;
    suites.extend(libraries);
    for language in &lacking {
        report(&format!(
            "NOT RUN: the clients of {language}, which this machine lacks. See tests/peers/README.md"
        ));
    }
    suites.retain(|suite| match wanted {
        Some(wanted) => wanted.split(',').any(|word| suite.client.contains(word)),
        None => ![differences::API, differences::COMMON].contains(&suite.client.as_str()),
    });
    ensure!(!suites.is_empty(), "no client here has a name with one of {wanted:?}");
    let mut results = run_all(suites.clone(), dir).await?;
    again_at_etcd(&suites, &mut results, dir).await?;
    let rows = table::rows(&suites, &results);
    for row in &rows {
        report(&row.to_string());
    }
    let wrong = differences::unexpected(&results);
    ensure!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    if wanted.is_none() && lacking.is_empty() { table::documented(&rows) } else { Ok(()) }
}

/// Runs what failed at etcd once more, alone: some of its own tests wait for tens of milliseconds, which a busy machine does
/// not have.
async fn again_at_etcd(
    suites: &[Suite],
    results: &mut BTreeMap<String, Results>,
    dir: &Path,
) -> anyhow::Result<()> {
    for suite in suites {
        let Some(of_client) = results.get_mut(&suite.client) else { continue };
        let failed = |case: &&String| {
            let at = of_client.get(*case).and_then(|at| at.get(&Side::Etcd));
            matches!(at, Some(Outcome::Failed(_)))
        };
        let cases: Vec<String> = suite.cases.iter().filter(failed).cloned().collect();
        if cases.is_empty() {
            continue;
        }
        let quiet = Suite { cases, ..suite.clone() };
        for (case, outcome) in run(&quiet, Side::Etcd, dir).await? {
            of_client.entry(case).or_default().insert(Side::Etcd, outcome);
        }
    }
    Ok(())
}

/// Runs every suite at every side, a few at a time.
async fn run_all(suites: Vec<Suite>, dir: &Path) -> anyhow::Result<BTreeMap<String, Results>> {
    let turns = Arc::new(Semaphore::new(AT_A_TIME));
    let mut runs = JoinSet::new();
    for suite in suites {
        for side in Side::ALL {
            let (suite, turns, dir) = (suite.clone(), Arc::clone(&turns), dir.to_owned());
            runs.spawn(async move {
                let _turn = turns.acquire().await?;
                let what = format!("{} {} at {side:?}", suite.client, suite.part);
                let outcomes = run(&suite, side, &dir).await.context(what)?;
                anyhow::Ok((suite.client, side, outcomes))
            });
        }
    }
    let mut results: BTreeMap<String, Results> = BTreeMap::new();
    while let Some(done) = runs.join_next().await {
        let (client, side, outcomes) = done??;
        let of_client = results.entry(client).or_default();
        for (case, outcome) in outcomes {
            of_client.entry(case).or_default().insert(side, outcome);
        }
    }
    Ok(results)
}
