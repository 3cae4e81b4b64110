//! Compares kindred with a real etcd. Each seed gives a random sequence of every RPC and of concurrent watches. It runs
//! on both, and every answer and every event is compared. `answer.rs` lists the differences that are allowed.
//!
//! `KINDRED_SEED` is the first seed, `KINDRED_SEEDS` the number of seeds, and `KINDRED_OPS` the length of a sequence.
//! With `KINDRED_KEEP_GOING` a run reports every answer that differs. Otherwise it stops at the first and shrinks the
//! sequence.

mod answer;
mod forgive;
mod generate;
mod generate_txn;
mod keys;
mod layout;
mod operation;
mod revision;
mod run;
mod shrink;
mod side;
mod watches;

use std::{fs, path::Path, time::Duration};

use anyhow::bail;
use kindred_tests::{
    scenario::{self, env_number, report},
    servers::{Etcd, Shard, Up},
};
use layout::Layout;
use operation::Operation;
use revision::Mode;
use run::{Counts, Mismatch, Run};

const LIMIT: Duration = Duration::from_secs(1800);
/// Sequences of each comparison, and operations in each.
const SEEDS: u64 = 2;
const LENGTH: u64 = 1500;
const LONG_SEEDS: u64 = 5;
const LONG_LENGTH: u64 = 2500;

/// The system on the right side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Another etcd, to test the comparison itself.
    Etcd,
    Shard,
    /// Router and shards, with this configuration or the default one.
    Up(Option<Map>),
}

/// A configuration with its name in reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Map {
    name: &'static str,
    config: &'static str,
    /// Whether the stores run in the router's process.
    together: bool,
}

const RANGES: Map = Map { name: "ranges", config: include_str!("configs/ranges.yaml"), together: false };
const RING: Map = Map { name: "ring", config: include_str!("configs/ring.yaml"), together: false };
const TOGETHER: Map = Map { name: "together", together: true, ..RANGES };

#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// For reports and replay commands.
    pub test: &'static str,
    pub mode: Mode,
    pub subject: Subject,
}

enum Right {
    Etcd(Etcd),
    Shard(Shard),
    Up(Up),
}

impl Right {
    async fn start(dir: &Path, name: &str, subject: Subject) -> anyhow::Result<Self> {
        Ok(match subject {
            Subject::Etcd => Self::Etcd(Etcd::start(dir, name).await?),
            Subject::Shard => Self::Shard(Shard::start(dir, name, &["--revisions=dense".to_owned()]).await?),
            Subject::Up(None) => Self::Up(Up::start(dir, name, &[]).await?),
            Subject::Up(Some(map)) => {
                let file = dir.join(format!("{name}.yaml"));
                fs::write(&file, map.config)?;
                let mut flags = vec![format!("--config={}", file.display())];
                flags.extend(map.together.then(|| "--together".to_owned()));
                Self::Up(Up::start(dir, name, &flags).await?)
            }
        })
    }

    fn address(&self) -> &str {
        match self {
            Self::Etcd(server) => &server.address,
            Self::Shard(server) => &server.address,
            Self::Up(server) => &server.address,
        }
    }
}

impl Comparison {
    /// Runs a sequence on fresh servers.
    async fn run(
        self,
        dir: &Path,
        attempt: &str,
        operations: &[Operation],
    ) -> anyhow::Result<Result<Counts, Mismatch>> {
        let names = [format!("left-{attempt}"), format!("right-{attempt}")];
        let (left, right) =
            tokio::try_join!(Etcd::start(dir, &names[0]), Right::start(dir, &names[1], self.subject))?;
        let run = Run::new([&left.address, right.address()], self.mode, self.subject).await?;
        let outcome = run.sequence(operations).await;
        drop((left, right));
        // An etcd allocates its log 64 MB at a time, and shrinking starts very many etcds. So their data is removed,
        // and only the logs of the processes stay.
        for data in names {
            if let Err(error) = fs::remove_dir_all(dir.join(&data)) {
                report(&format!("differential: {data} is left behind: {error}"));
            }
        }
        Ok(outcome)
    }

    /// Runs all seeds. Fails at the first difference, with a sequence shrunk as far as time allows.
    async fn seeds(self, dir: &Path, seeds: u64, length: u64) -> anyhow::Result<()> {
        let first = env_number("KINDRED_SEED", 1)?;
        let seeds =
            env_number("KINDRED_SEEDS", if std::env::var_os("KINDRED_SEED").is_some() { 1 } else { seeds })?;
        let length = usize::try_from(env_number("KINDRED_OPS", length)?)?;
        let mut total = Counts::default();
        let layout = &match self.subject {
            Subject::Up(Some(map)) => Layout::of(map.config)?,
            _ => Layout::default(),
        };
        // The seeds run concurrently, as each waits for its servers most of the time.
        let runs = (first..first + seeds).map(|seed| async move {
            let operations = generate::sequence(seed, length, self.mode, layout);
            let outcome = self.run(dir, &format!("seed{seed}"), &operations).await;
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
            "differential mode={} subject={} map={} ops={} errors={} watches={} watch_events={} seeds={first}..{} \
             mismatches={}",
            match self.mode {
                Mode::Dense => "dense",
                Mode::Mapped => "mapped",
            },
            match self.subject {
                Subject::Etcd => "etcd",
                Subject::Shard => "shard",
                Subject::Up(_) => "kindred",
            },
            match self.subject {
                Subject::Up(Some(map)) => map.name,
                Subject::Up(None) => "default",
                Subject::Etcd | Subject::Shard => "none",
            },
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

#[test]
fn etcd_equals_etcd() {
    let comparison = Comparison { test: "etcd_equals_etcd", mode: Mode::Dense, subject: Subject::Etcd };
    compare(comparison, 1, 1500);
}

#[test]
fn etcd_equals_etcd_with_other_revisions() {
    let test = "etcd_equals_etcd_with_other_revisions";
    compare(Comparison { test, mode: Mode::Mapped, subject: Subject::Etcd }, 1, 1500);
}

#[test]
fn shard_equals_etcd() {
    compare(
        Comparison { test: "shard_equals_etcd", mode: Mode::Dense, subject: Subject::Shard },
        SEEDS,
        LENGTH,
    );
}

#[test]
fn kindred_equals_etcd() {
    compare(
        Comparison { test: "kindred_equals_etcd", mode: Mode::Mapped, subject: Subject::Up(None) },
        SEEDS,
        LENGTH,
    );
}

#[test]
fn kindred_in_ranges_equals_etcd() {
    let test = "kindred_in_ranges_equals_etcd";
    compare(Comparison { test, mode: Mode::Mapped, subject: Subject::Up(Some(RANGES)) }, SEEDS, LENGTH);
}

#[test]
fn kindred_on_a_ring_equals_etcd() {
    let test = "kindred_on_a_ring_equals_etcd";
    compare(Comparison { test, mode: Mode::Mapped, subject: Subject::Up(Some(RING)) }, SEEDS, LENGTH);
}

#[test]
fn kindred_in_one_process_equals_etcd() {
    let test = "kindred_in_one_process_equals_etcd";
    compare(Comparison { test, mode: Mode::Mapped, subject: Subject::Up(Some(TOGETHER)) }, SEEDS, LENGTH);
}

#[test]
fn long_every_layout_equals_etcd() {
    let test = "long_every_layout_equals_etcd";
    compare(Comparison { test, mode: Mode::Dense, subject: Subject::Shard }, LONG_SEEDS, LONG_LENGTH);
    for map in [None, Some(RANGES), Some(RING), Some(TOGETHER)] {
        let comparison = Comparison { test, mode: Mode::Mapped, subject: Subject::Up(map) };
        compare(comparison, LONG_SEEDS, LONG_LENGTH);
    }
}
