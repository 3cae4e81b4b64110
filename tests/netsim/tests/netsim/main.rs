//! The real routers and shards over a simulated network, with links and routers that fail. `kindred-checker` checks the
//! history of the clients. A seed decides everything: `meta` runs one twice and compares the logs.
//!
//! `seeds` runs `KINDRED_NETSIM_SEEDS` seeds from `KINDRED_NETSIM_FIRST` on, which is 1 by default. The command
//! `KINDRED_NETSIM_SEED=N cargo test -p kindred-netsim --test netsim one -- --nocapture` runs a single seed in its own
//! process. There `KINDRED_NETSIM_LOG` is the servers' log level (`debug`, `trace`, or a filter), and
//! `KINDRED_NETSIM_DIR` the folder of the log.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod cluster;
mod entropy;
mod log;
mod lost;
mod network;
mod quiet;
mod run;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use run::Done;

const SEED: &str = "KINDRED_NETSIM_SEED";
const DIR: &str = "KINDRED_NETSIM_DIR";
const LEVEL: &str = "KINDRED_NETSIM_LOG";
const SEEDS: u64 = 10;
const LONG_SEEDS: u64 = 200;
/// On an idle machine the run of a seed takes some seconds. It gives way to everything else, so on a busy one it may take minutes.
const RUN_LIMIT: Duration = seconds(900);
const LOG_FILE: &str = "log.txt";
const DONE_FILE: &str = "done.json";

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Runs the seed that the environment names, in this process. Without one it does nothing.
#[test]
fn one() {
    let Some(seed) = number(SEED) else { return };
    entropy::seed(seed);
    // The random numbers of a thread depend on how many it has drawn, so the run needs a new thread.
    let ran = std::thread::Builder::new().name(format!("seed-{seed}")).spawn(move || {
        entropy::stop_the_clock();
        one_seed(seed)
    });
    let done = ran.unwrap().join().unwrap().unwrap();
    say(&format!("netsim seed={seed} {}", summary(&done)));
    if let Some(complaint) = done.complaint {
        panic!("seed {seed}: {complaint}");
    }
}

/// Several seeds, each in a process of its own, break no guarantee.
#[test]
fn seeds() {
    many(SEEDS);
}

#[test]
fn long_seeds() {
    many(LONG_SEEDS);
}

fn many(seeds: u64) {
    if number(SEED).is_some() {
        return;
    }
    let (first, seeds) =
        (number("KINDRED_NETSIM_FIRST").unwrap_or(1), number("KINDRED_NETSIM_SEEDS").unwrap_or(seeds));
    let dir = tempfile::tempdir().unwrap();
    let at_a_time = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    let mut waiting = first..first + seeds;
    let mut running: Vec<(u64, Run)> = Vec::new();
    let mut all = Done::default();
    let mut failed = Vec::new();
    loop {
        while running.len() < at_a_time
            && let Some(seed) = waiting.next()
        {
            running.push((seed, Run::start(seed, &dir.path().join(seed.to_string()), "off").unwrap()));
        }
        if running.is_empty() {
            break;
        }
        let (seed, run) = running.remove(0);
        match run.finish() {
            Ok(done) => add(&mut all, &done),
            Err(error) => failed.push(format!("seed {seed}: {error:#}")),
        }
    }
    say(&format!("netsim: seeds={seeds} {}", summary(&all)));
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(all.counts.operations > 100 * seeds as usize, "little happened: {all:?}");
    assert!(all.counts.events > 100 * seeds as usize, "little was watched: {all:?}");
}

/// Tests the simulation itself: two runs of a seed have the same log, and another seed has another.
#[test]
fn meta() {
    if number(SEED).is_some() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let logs: Vec<Vec<u8>> = [(7, "first"), (7, "again"), (8, "other")]
        .map(|(seed, name)| Run::start(seed, &dir.path().join(name), "debug").unwrap())
        .into_iter()
        .map(|run| run.log().unwrap())
        .collect();
    if logs[0] != logs[1] {
        panic!("seed 7 was run twice and the logs differ:\n{}", difference(&logs[0], &logs[1]));
    }
    assert_ne!(logs[0], logs[2], "seeds 7 and 8 have the same log");
    assert!(logs[0].len() > 100_000, "little was logged: {} bytes", logs[0].len());
}

fn one_seed(seed: u64) -> anyhow::Result<Done> {
    let log = log::Log::default();
    let _listening = log.listen(&std::env::var(LEVEL).unwrap_or_else(|_| "info".to_owned()))?;
    let done = run::run(seed, &log)?;
    if let Some(dir) = std::env::var_os(DIR) {
        let dir = PathBuf::from(dir);
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join(LOG_FILE), log.bytes())?;
        std::fs::write(dir.join(DONE_FILE), serde_json::to_vec(&done)?)?;
    }
    Ok(done)
}

/// A seed in a process of its own.
struct Run {
    seed: u64,
    dir: PathBuf,
    child: Child,
}

impl Run {
    fn start(seed: u64, dir: &Path, level: &str) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let output = std::fs::File::create(dir.join("output.txt"))?;
        let child = Command::new(std::env::current_exe()?)
            .args(["--exact", "one", "--nocapture"])
            .env(SEED, seed.to_string())
            .env(DIR, dir)
            .env(LEVEL, level)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        Ok(Self { seed, dir: dir.to_owned(), child })
    }

    /// Waits until the process ends, and kills it after [`RUN_LIMIT`].
    fn finish(mut self) -> anyhow::Result<Done> {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if began.elapsed() > RUN_LIMIT {
                self.child.kill()?;
                self.child.wait()?;
                bail!("it did not end within {RUN_LIMIT:?}{}", self.replay());
            }
            std::thread::park_timeout(Duration::from_millis(5));
        };
        if !status.success() {
            let output = std::fs::read_to_string(self.dir.join("output.txt"))?;
            bail!("{output}{}", self.replay());
        }
        Ok(serde_json::from_slice(&std::fs::read(self.dir.join(DONE_FILE))?)?)
    }

    fn log(self) -> anyhow::Result<Vec<u8>> {
        let path = self.dir.join(LOG_FILE);
        let done = self.finish()?;
        ensure!(done.complaint.is_none(), "{:?}", done.complaint);
        std::fs::read(path).context("reading the log of a run")
    }

    fn replay(&self) -> String {
        format!(
            "\nrun it again: {SEED}={} {LEVEL}=debug {DIR}=DIRECTORY cargo test -p kindred-netsim --test netsim one -- \
             --nocapture\n",
            self.seed
        )
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}: {text:?} is no number")))
}

fn add(all: &mut Done, one: &Done) {
    all.counts.operations += one.counts.operations;
    all.counts.unknown += one.counts.unknown;
    all.counts.events += one.counts.events;
    all.counts.watches += one.counts.watches;
    all.counts.resumes += one.counts.resumes;
    all.counts.progress += one.counts.progress;
    all.faults += one.faults;
    all.violations += one.violations;
}

fn summary(Done { counts, faults, violations, .. }: &Done) -> String {
    format!(
        "requests={} unknown={} events={} watches={} resumes={} progress={} faults={faults} violations={violations}",
        counts.operations, counts.unknown, counts.events, counts.watches, counts.resumes, counts.progress
    )
}

/// The first pair of lines that differ.
fn difference(one: &[u8], other: &[u8]) -> String {
    let (one, other) = (String::from_utf8_lossy(one), String::from_utf8_lossy(other));
    let (mut ones, mut others) = (one.lines(), other.lines());
    for line in 1.. {
        let (a, b) = (ones.next(), others.next());
        if a != b {
            return format!("line {line}:\n- {}\n+ {}", a.unwrap_or("(ends)"), b.unwrap_or("(ends)"));
        }
        if a.is_none() {
            break;
        }
    }
    String::new()
}

/// Prints to standard output without the capture of the test harness, so that a passing run shows its counts.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    // A closed standard output does not make the test fail.
    let _ = writeln!(out, "{text}");
}
