//! `kindred-sim`: runs one seed and prints its log (`SEED=`), or many from a random one on (`SEEDS=`). `SIM=standbys` runs
//! the simulation of standbys.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what it is for")]

use std::hash::{BuildHasher, Hasher, RandomState};
use std::process::ExitCode;

use kindred_sim::many::many;
use kindred_sim::run::run;
use kindred_sim::standbys::{self, Violation};

const USAGE: &str = "usage: kindred-sim, with its settings in the environment:
  SEED=N        runs this seed and prints its log
  SEEDS=N       runs so many seeds (100000, of standbys 10000)
  FROM=N        the first of them (a random one)
  SIM=standbys  simulates a shard with standbys, not a cluster";

/// A number of the environment. One that cannot be read ends the process: another number would run something else.
fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    match value.parse() {
        Ok(number) => Some(number),
        Err(error) => {
            eprintln!("{name}={value}: {error}\n{USAGE}");
            std::process::exit(2);
        }
    }
}

fn standbys() -> ExitCode {
    if let Some(seed) = number("SEED") {
        let outcome = standbys::run(seed, None, true);
        outcome.log.iter().for_each(|line| println!("{line}"));
        println!("{}", outcome.counts);
        return if outcome.violation.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let first = first();
    let seeds = number("SEEDS").unwrap_or(10_000);
    let (counts, broken) = standbys::many(first..first.saturating_add(seeds), 2);
    for outcome in &broken {
        if let Some(Violation { invariant, what }) = &outcome.violation {
            println!("seed {} broke {invariant}: {what}", outcome.seed);
        }
    }
    println!("seeds from {first}\n{counts}");
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn first() -> u64 {
    number("FROM").unwrap_or_else(|| RandomState::new().build_hasher().finish() >> 16)
}

fn main() -> ExitCode {
    if std::env::args().len() > 1 {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    if std::env::var("SIM").is_ok_and(|sim| sim == "standbys") {
        return standbys();
    }
    if let Some(seed) = number("SEED") {
        let outcome = run(seed, None);
        outcome.log.iter().for_each(|line| println!("{line}"));
        println!("{}", outcome.counts);
        for violation in &outcome.violations {
            println!("seed {seed} broke {violation}");
        }
        return if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let first = first();
    let seeds = number("SEEDS").unwrap_or(100_000);
    let (counts, broken) = many(first..first.saturating_add(seeds), 2);
    broken.iter().for_each(|outcome| println!("{}", outcome.report()));
    println!("seeds from {first}");
    println!("{counts}");
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
