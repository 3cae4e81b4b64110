//! The plan of one seed: latencies, clock offsets, and links and routers that fail and come back. Pure; the test
//! `netsim` carries it out on the real routers and shards.

use std::time::Duration;

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

pub const ROUTERS: usize = 2;
pub const SHARDS: usize = 3;

/// How long clients work at least. All faults begin within this time.
const WORK_MS: u64 = 2_500;
/// The time of the first fault, when clients are at work.
const FIRST_FAULT_MS: u64 = 300;
/// The largest offset of a shard's wall clock. R3 allows 10 s between two clocks.
const SKEW_MS: i64 = 2_000;

/// Two hosts between which messages pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// The clients and a router.
    Client {
        /// Less than [`ROUTERS`].
        router: usize,
    },
    /// A router and a shard.
    Store {
        /// Less than [`ROUTERS`].
        router: usize,
        /// Less than [`SHARDS`].
        shard: usize,
    },
}

/// A change of the simulated world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Messages of the link wait, in both directions.
    Hold(Link),
    /// The messages that waited arrive, all at once.
    Release(Link),
    /// Messages of the link are lost, and each connection that loses one is dead. The side that connected gets an error
    /// later, as from a kernel that receives no acknowledgement.
    Cut(Link),
    /// The link works again, for new connections.
    Mend(Link),
    /// A router's process dies.
    Kill(usize),
    /// A router's process is started again.
    Start(usize),
    /// Messages of the link take up to this long from now on.
    Slow(Link, Duration),
}

impl Step {
    /// Whether the step begins a fault. Otherwise it ends one.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        matches!(self, Self::Hold(_) | Self::Cut(_) | Self::Kill(_) | Self::Slow(..))
    }
}

/// Everything that is drawn from a seed before the run. During the run clients draw from the same seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The highest latency of a message on a link that no step has slowed.
    pub latency_max: Duration,
    /// The offset of each shard's wall clock, in milliseconds.
    pub skews_ms: [i64; SHARDS],
    /// How long clients work.
    pub work: Duration,
    /// The steps with their times since the start, in order. All faults have ended when clients end.
    pub steps: Vec<(Duration, Step)>,
}

impl Plan {
    /// The plan of a seed. Equal seeds give equal plans.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let latency_max = Duration::from_millis(*pick(&mut rng, &[1, 2, 4, 8, 20]));
        let skews_ms = std::array::from_fn(|_| match rng.random_range(0..3) {
            0 => 0,
            _ => rng.random_range(-SKEW_MS..=SKEW_MS),
        });
        let mut steps = Vec::new();
        let mut work_ms = WORK_MS;
        let mut at = FIRST_FAULT_MS;
        // The next fault may begin before the last one ends, so some overlap.
        while at < WORK_MS * 3 / 4 {
            let lasts = fault(&mut rng, at, &mut steps);
            work_ms = work_ms.max(at + lasts + 500);
            at += rng.random_range(lasts / 2..=lasts + 1_000).max(50);
        }
        steps.sort_by_key(|(at, _)| *at);
        Self { latency_max, skews_ms, work: Duration::from_millis(work_ms), steps }
    }
}

/// Adds a fault and its end. Returns its duration in milliseconds.
fn fault(rng: &mut StdRng, at: u64, steps: &mut Vec<(Duration, Step)>) -> u64 {
    let link = link(rng);
    let (lasts, begin, end) = match rng.random_range(0..20) {
        0..8 => (rng.random_range(20..1_500), Step::Hold(link), Step::Release(link)),
        8..14 => {
            let router = rng.random_range(0..ROUTERS);
            (rng.random_range(100..1_500), Step::Kill(router), Step::Start(router))
        }
        14..18 => {
            let slow = Duration::from_millis(rng.random_range(30..300));
            (rng.random_range(300..1_500), Step::Slow(link, slow), Step::Slow(link, Duration::from_millis(2)))
        }
        _ => (rng.random_range(100..3_000), Step::Cut(link), Step::Mend(link)),
    };
    steps.push((Duration::from_millis(at), begin));
    steps.push((Duration::from_millis(at + lasts), end));
    lasts
}

fn link(rng: &mut StdRng) -> Link {
    let router = rng.random_range(0..ROUTERS);
    if rng.random_bool(0.3) {
        Link::Client { router }
    } else {
        Link::Store { router, shard: rng.random_range(0..SHARDS) }
    }
}

fn pick<'a, T>(rng: &mut StdRng, of: &'a [T]) -> &'a T {
    &of[rng.random_range(0..of.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_ends_while_clients_work() {
        for seed in 0..500 {
            let plan = Plan::of(seed);
            assert_eq!(plan, Plan::of(seed));
            assert!(plan.steps.is_sorted_by_key(|(at, _)| *at));
            let (last, _) = plan.steps.last().unwrap();
            assert!(*last < plan.work, "seed {seed}");
            let count = |wanted: fn(&Step) -> bool| plan.steps.iter().filter(|(_, s)| wanted(s)).count();
            assert_eq!(count(|s| matches!(s, Step::Hold(_))), count(|s| matches!(s, Step::Release(_))));
            assert_eq!(count(|s| matches!(s, Step::Cut(_))), count(|s| matches!(s, Step::Mend(_))));
            assert_eq!(count(|s| matches!(s, Step::Kill(_))), count(|s| matches!(s, Step::Start(_))));
        }
    }
}
