//! A simulation of live moves: the coordinators are the real machine; stores and meta store are models of the contract
//! that the machine relies on. Everything follows from a seed.
//!
//! `KINDRED_SIM_SEED=7 cargo test -p kindred-router-core --test moves_sim` runs one seed, `KINDRED_SIM_SEEDS=100000`
//! that many.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is a test")]

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

mod hardship;
mod invariants;
mod shard;
mod world;

use invariants::Broken;
use world::{Counts, World};

/// A rule that is broken on purpose; some invariant must notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// A frozen unit serves reads and writes (R15a).
    FrozenServes,
    /// A released unit serves reads (R13).
    ReleasedReads,
    /// Stores admit calls of old terms.
    OldTermsAdmitted,
    /// A coordinator uses a single term, instead of one for each attempt and for each abort of an attempt. So delayed
    /// calls of one attempt reach the next one.
    AttemptsShareATerm,
    /// An unfreeze does nothing.
    UnfreezeIgnored,
    /// Units are unfrozen before the abort of the attempt is written (R15).
    UnfreezeFirst,
    /// A seal does not raise the target's clock (R15b).
    SealKeepsClock,
    /// The decision does not check that the record is the one that was read (R15c).
    DecideUnguarded,
    /// A tail leaves out an event.
    LosesAnEvent,
    /// A follower without a copy, because it has restarted, imports events that belong to one.
    EventsToNothing,
    /// A drop keeps the data.
    DropIgnored,
    /// A switch is decided although a store has restarted since its part of it (R15c).
    IncarnationsIgnored,
}

fn run(seed: u64, mutation: Option<Mutation>) -> (Counts, Result<(), Broken>) {
    let mut world = World::new(seed, mutation);
    let result = world.run();
    (world.counts, result)
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

fn add(sum: &mut Counts, of_run: Counts) {
    let Counts {
        events,
        writes,
        reads,
        refusals,
        switches,
        cancelled,
        takeovers,
        fenced,
        done,
        aborted,
        reversed,
        copies_lost,
        freezes_lost,
        rescued,
    } = of_run;
    sum.events += events;
    sum.writes += writes;
    sum.reads += reads;
    sum.refusals += refusals;
    sum.switches += switches;
    sum.cancelled += cancelled;
    sum.takeovers += takeovers;
    sum.fenced += fenced;
    sum.done += done;
    sum.aborted += aborted;
    sum.reversed += reversed;
    sum.copies_lost += copies_lost;
    sum.freezes_lost += freezes_lost;
    sum.rescued += rescued;
}

#[test]
fn three_thousand_seeds() {
    no_seed_breaks_anything(3_000);
}

#[test]
fn long_ten_thousand_seeds() {
    no_seed_breaks_anything(10_000);
}

fn no_seed_breaks_anything(seeds: u64) {
    let seeds = match number("KINDRED_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("KINDRED_SOAK_SEED").unwrap_or(0);
            first..first + number("KINDRED_SIM_SEEDS").or(number("KINDRED_SOAK_CASES")).unwrap_or(seeds)
        }
    };
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut sum = Counts::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return sum;
            }
            let (counts, result) = run(seed, None);
            if let Err(Broken { invariant, how }) = result {
                panic!(
                    "seed {seed}: \"{invariant}\": {how}\n\
                     again: KINDRED_SIM_SEED={seed} cargo test -p kindred-router-core --test moves_sim three_thousand"
                );
            }
            add(&mut sum, counts);
        }
    };
    let threads = thread::available_parallelism().map_or(2, |n| n.get());
    let mut sum = Counts::default();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            match worker.join() {
                Ok(counts) => add(&mut sum, counts),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    println!("{} seeds: {sum:?}", seeds.end - seeds.start);
    if seeds.end - seeds.start >= 1_000 {
        let all = [
            sum.writes,
            sum.reads,
            sum.refusals,
            sum.switches,
            sum.cancelled,
            sum.fenced,
            sum.done,
            sum.aborted,
            sum.reversed,
            sum.copies_lost,
            sum.freezes_lost,
            sum.rescued,
        ];
        assert!(
            all.iter().all(|count| *count > 100),
            "the simulation no longer does all that it is for: {sum:?}"
        );
    }
}

/// The first seed at which the mutation is noticed, and the invariant that notices it.
fn noticed(mutation: Mutation) -> (u64, &'static str) {
    for seed in 0..20_000 {
        if let (_, Err(broken)) = run(seed, Some(mutation)) {
            println!("{mutation:?}: seed {seed}: {}: {}", broken.invariant, broken.how);
            return (seed, broken.invariant);
        }
    }
    panic!("nobody noticed {mutation:?}");
}

#[test]
fn a_seed_is_a_run() {
    let of = |seed| format!("{:?}", run(seed, None));
    assert_eq!(of(5), of(5));
    assert_ne!(of(5), of(6));
}

macro_rules! mutations {
    ($($test:ident: $mutation:ident => $($invariant:literal)|+,)*) => {$(
        #[test]
        fn $test() {
            let (_, invariant) = noticed(Mutation::$mutation);
            assert!(matches!(invariant, $($invariant)|+), "{invariant}");
        }
    )*};
}

mutations! {
    frozen_units_that_serve_are_noticed: FrozenServes =>
        "two owners never accept a write at overlapping revisions" | "an acknowledged write is never lost" | "reads see every acknowledged write",
    released_units_that_are_read_are_noticed: ReleasedReads => "reads see every acknowledged write",
    old_terms_are_noticed: OldTermsAdmitted =>
        "two owners never accept a write at overlapping revisions" | "an acknowledged write is never lost" | "no lock is left"
        | "a move ends done or aborted" | "map and records agree at the end" | "reads see every acknowledged write",
    attempts_of_one_term_are_noticed: AttemptsShareATerm =>
        "two owners never accept a write at overlapping revisions" | "an acknowledged write is never lost" | "no lock is left"
        | "a move ends done or aborted" | "map and records agree at the end" | "reads see every acknowledged write",
    a_lock_that_stays_is_noticed: UnfreezeIgnored => "no lock is left" | "a move ends done or aborted",
    unfreezing_before_the_abort_is_noticed: UnfreezeFirst =>
        "two owners never accept a write at overlapping revisions" | "an acknowledged write is never lost" | "a move ends done or aborted" | "no lock is left"
        | "reads see every acknowledged write",
    a_lost_event_is_noticed: LosesAnEvent =>
        "an acknowledged write is never lost" | "reads see every acknowledged write" | "revisions of a key only rise",
    events_without_a_copy_are_noticed: EventsToNothing =>
        "an acknowledged write is never lost" | "reads see every acknowledged write" | "revisions of a key only rise"
        | "two owners never accept a write at overlapping revisions",
    a_clock_that_stays_behind_is_noticed: SealKeepsClock =>
        "two owners never accept a write at overlapping revisions" | "revisions of a key only rise",
    a_decision_without_check_is_noticed: DecideUnguarded =>
        "two owners never accept a write at overlapping revisions" | "an acknowledged write is never lost" | "no lock is left"
        | "a move ends done or aborted" | "map and records agree at the end" | "reads see every acknowledged write",
    lives_that_are_ignored_are_noticed: IncarnationsIgnored =>
        "two owners never accept a write at overlapping revisions" | "an acknowledged write is never lost" | "reads see every acknowledged write"
        | "a move ends done or aborted",
    data_that_stays_is_noticed: DropIgnored => "map and records agree at the end",
}
