//! Compares kindred with a real etcd. Each seed gives a random sequence of every RPC and of concurrent watches. It runs
//! on both, and every answer and every event is compared. `answer.rs` lists the differences that are allowed.
//!
//! `KINDRED_SEED` is the first seed, `KINDRED_SEEDS` the number of seeds, and `KINDRED_OPS` the length of a sequence.
//! With `KINDRED_KEEP_GOING` a run reports every answer that differs. Otherwise it stops at the first and shrinks the
//! sequence.

mod answer;
mod confine;
mod forgive;
mod generate;
mod generate_txn;
mod keys;
mod operation;
mod revision;
mod run;
mod shrink;
mod side;
mod watches;

use std::{path::Path, time::Duration};

use anyhow::bail;
use confine::Stores;
use kindred_tests::{
    layouts::{Layout, Place, Wanted},
    scenario::{self, env_number, report},
};
use operation::Operation;
use revision::Mode;
use run::{Counts, Mismatch, Run};

const LIMIT: Duration = Duration::from_secs(1800);
/// Sequences of each comparison, and operations in each.
const SEEDS: u64 = 2;
const LENGTH: u64 = 1500;
const LONG_SEEDS: u64 = 5;
const LONG_LENGTH: u64 = 2500;

#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// For reports and replay commands.
    pub test: &'static str,
    pub mode: Mode,
    /// The system on the right side. It is another etcd to test the comparison itself.
    pub right: Place,
}

impl Comparison {
    /// Runs a sequence on fresh servers.
    async fn run(self, dir: &Path, operations: &[Operation]) -> anyhow::Result<Result<Counts, Mismatch>> {
        let placed = keys::placed();
        let wanted = Wanted { kinds: &placed, ..Wanted::default() };
        let (left, right) =
            tokio::try_join!(Place::ETCD.start(dir, Wanted::default()), self.right.start(dir, wanted))?;
        let run = Run::new([&left.addresses, &right.addresses], self.mode, self.right).await?;
        Ok(run.sequence(operations).await)
    }

    /// Runs all seeds. Fails at the first difference, with a sequence shrunk as far as time allows.
    async fn seeds(self, dir: &Path, seeds: u64, length: u64) -> anyhow::Result<()> {
        let first = env_number("KINDRED_SEED", 1)?;
        let seeds =
            env_number("KINDRED_SEEDS", if std::env::var_os("KINDRED_SEED").is_some() { 1 } else { seeds })?;
        let length = usize::try_from(env_number("KINDRED_OPS", length)?)?;
        let mut total = Counts::default();
        let stores = &Stores::of(self.right)?;
        // The seeds run concurrently, as each waits for its servers most of the time.
        let runs = (first..first + seeds).map(|seed| async move {
            let operations = generate::sequence(seed, length, self.mode, stores);
            let outcome = self.run(dir, &operations).await;
            outcome.map(|outcome| (seed, operations, outcome))
        });
        for (seed, operations, outcome) in futures_util::future::try_join_all(runs).await? {
            match outcome {
                Ok(counts) => {
                    total.operations += counts.operations;
                    total.errors += counts.errors;
                    total.watches += counts.watches;
                    total.watch_events += counts.watch_events;
                    total.mismatches += counts.mismatches;
                }
                Err(mismatch) => {
                    report(&format!("differential {}: seed {seed} differs\n{}", self.test, mismatch.text));
                    let small = shrink::shrink(self, dir, &operations[..=mismatch.index]).await?;
                    bail!(
                        "seed {seed} differs\n{}\nsmallest sequence found, {} operations:\n{}\nreplay: \
                         KINDRED_SEED={seed} KINDRED_OPS={length} make test ONLY=differential::{}",
                        small.mismatch.map_or(mismatch.text, |mismatch| mismatch.text),
                        small.operations.len(),
                        shrink::listing(&small.operations),
                        self.test
                    );
                }
            }
        }
        report(&format!(
            "differential mode={} right={} ops={} errors={} watches={} watch_events={} seeds={first}..{} mismatches={}",
            match self.mode {
                Mode::Dense => "dense",
                Mode::Mapped => "mapped",
            },
            self.right,
            total.operations,
            total.errors,
            total.watches,
            total.watch_events,
            first + seeds - 1,
            total.mismatches,
        ));
        if total.mismatches > 0 {
            bail!("{} answers differ (above)", total.mismatches);
        }
        Ok(())
    }
}

fn compare(comparison: Comparison, seeds: u64, length: u64) {
    scenario::run(comparison.test, LIMIT, |dir| async move { comparison.seeds(&dir, seeds, length).await });
}

/// Compares a layout of kindred.
fn equals_etcd(test: &'static str, right: Place) {
    compare(Comparison { test, mode: Mode::Mapped, right }, SEEDS, LENGTH);
}

#[test]
fn etcd_equals_etcd() {
    compare(Comparison { test: "etcd_equals_etcd", mode: Mode::Dense, right: Place::ETCD }, 1, 1500);
}

#[test]
fn etcd_equals_etcd_with_other_revisions() {
    let test = "etcd_equals_etcd_with_other_revisions";
    compare(Comparison { test, mode: Mode::Mapped, right: Place::ETCD }, 1, 1500);
}

#[test]
fn shard_equals_etcd() {
    let (test, right) = ("shard_equals_etcd", Layout::Dense.behind(0));
    compare(Comparison { test, mode: Mode::Dense, right }, SEEDS, LENGTH);
}

#[test]
fn kindred_equals_etcd() {
    equals_etcd("kindred_equals_etcd", Layout::Default.behind(1));
}

#[test]
fn kindred_in_ranges_equals_etcd() {
    equals_etcd("kindred_in_ranges_equals_etcd", Layout::Ranges.behind(1));
}

#[test]
fn kindred_on_a_ring_equals_etcd() {
    equals_etcd("kindred_on_a_ring_equals_etcd", Layout::Ring.behind(1));
}

#[test]
fn kindred_in_one_process_equals_etcd() {
    equals_etcd("kindred_in_one_process_equals_etcd", Layout::Together.behind(1));
}

#[test]
fn kindred_behind_two_routers_equals_etcd() {
    equals_etcd("kindred_behind_two_routers_equals_etcd", Layout::Default.behind(2));
}

#[test]
fn kindred_on_a_ring_behind_two_routers_equals_etcd() {
    equals_etcd("kindred_on_a_ring_behind_two_routers_equals_etcd", Layout::Ring.behind(2));
}

/// Kinds on a stock etcd are left out: a compaction does not reach an etcd beside shards, which compacts itself.
#[test]
fn long_every_layout_equals_etcd() {
    let test = "long_every_layout_equals_etcd";
    let left_out = [Layout::Shard, Layout::Stock];
    for right in Place::all() {
        if left_out.contains(&right.layout) {
            continue;
        }
        let mode = if right.layout == Layout::Dense { Mode::Dense } else { Mode::Mapped };
        compare(Comparison { test, mode, right }, LONG_SEEDS, LONG_LENGTH);
    }
}
