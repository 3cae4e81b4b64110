//! One store with its standbys, two routers that keep its record, a meta store and clients, simulated from a seed. The code
//! that runs is the product's: the member's decisions, what a primary ships and a standby acknowledges, real engines,
//! and what routers decide. Simulated are processes, clocks, disks and the network.
//!
//! | module | what |
//! | --- | --- |
//! | [`world`] | time, clocks, processes, what is under way |
//! | [`net`] | connections and calls |
//! | [`member`], [`calls`], [`stream`], [`serving`] | a member: its process, calls about the record, following, requests |
//! | [`router`], [`meta`] | who keeps the record, and where |
//! | [`client`] | writes and reads |
//! | [`faults`] | what goes wrong, and what operators wish |
//! | [`invariants`] | what must hold |
//!
//! A process that is paused does everything that waits for it when it goes on, at once and by its clock of then.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub mod calls;
pub mod client;
pub mod faults;
pub mod invariants;
pub mod member;
pub mod meta;
pub mod net;
pub mod router;
pub mod serving;
pub mod stream;
pub mod world;

use world::Sim;

/// What is broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sabotage {
    /// A primary answers a write before its standbys have it (R18).
    AnswersEarly,
    /// A promoted standby begins at its own clock, whatever its primary's ceiling was (R2, R18).
    NoCeiling,
    /// A standby may be promoted at once (R20).
    NoWait,
    /// A router promotes a standby that is prepared, without the record (R19).
    NoRecord,
    /// A primary continues without a standby that has been silent for a while (R19).
    GoesOnAlone,
    /// A primary reads its clock before it waits for a request (R20).
    OldClock,
    /// A primary answers reads whether its standbys let it or not (R20).
    Stale,
    /// A standby that is to begin anew does not start again.
    NoRebuild,
}

/// What a run did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub seeds: u64,
    pub events: u64,
    pub writes: u64,
    pub reads: u64,
    pub records: u64,
    pub promotions: u64,
    pub handovers: u64,
    pub forced: u64,
    pub kills: u64,
    pub pauses: u64,
    pub cuts: u64,
    /// Records that were lost with the meta store.
    pub lost: u64,
    /// Members that an operator chose without a record.
    pub chosen: u64,
    pub rebuilt: u64,
    /// Runs in which everything was lost.
    pub hopeless: u64,
    /// Standbys that an operator had to start with another flag.
    pub redirected: u64,
    pub violations: u64,
}

impl Counts {
    fn add(&mut self, of: &Self) {
        self.seeds += of.seeds;
        self.events += of.events;
        self.writes += of.writes;
        self.reads += of.reads;
        self.records += of.records;
        self.promotions += of.promotions;
        self.handovers += of.handovers;
        self.forced += of.forced;
        self.kills += of.kills;
        self.pauses += of.pauses;
        self.cuts += of.cuts;
        self.lost += of.lost;
        self.chosen += of.chosen;
        self.rebuilt += of.rebuilt;
        self.hopeless += of.hopeless;
        self.redirected += of.redirected;
        self.violations += of.violations;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} seeds: {} events, {} writes, {} reads, {} records, {} promotions ({} handed over, {} forced), {} kills, {} \
             pauses, {} cuts, {} records lost ({} chosen), {} standbys rebuilt ({} with another flag), {} runs without hope, {} violations",
            self.seeds,
            self.events,
            self.writes,
            self.reads,
            self.records,
            self.promotions,
            self.handovers,
            self.forced,
            self.kills,
            self.pauses,
            self.cuts,
            self.lost,
            self.chosen,
            self.rebuilt,
            self.redirected,
            self.hopeless,
            self.violations
        )
    }
}

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub invariant: &'static str,
    pub what: String,
}

/// The outcome of a seed.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub seed: u64,
    pub counts: Counts,
    pub violation: Option<Violation>,
    pub log: Vec<String>,
}

/// Runs a seed. The log is kept if it is wanted.
#[must_use]
pub fn run(seed: u64, sabotage: Option<Sabotage>, log: bool) -> Outcome {
    let mut sim = Sim::new(seed, sabotage, log);
    sim.run();
    let mut counts = sim.counts;
    (counts.seeds, counts.violations) = (1, u64::from(sim.violation.is_some()));
    Outcome { seed, counts, violation: sim.violation, log: sim.log }
}

/// Runs seeds on so many threads. Returns the sum of their counts, and the first that broke something.
#[must_use]
pub fn many(seeds: Range<u64>, threads: usize) -> (Counts, Vec<Outcome>) {
    let next = AtomicU64::new(seeds.start);
    let all = Mutex::new((Counts::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let outcome = run(seed, None, false);
                    let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    all.0.add(&outcome.counts);
                    if outcome.violation.is_some() && all.1.len() < 40 {
                        all.1.push(outcome);
                    }
                }
            });
        }
    });
    let (counts, mut broken) = all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    broken.sort_by_key(|outcome| outcome.seed);
    (counts, broken)
}
