use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::*;
use crate::core::sample;

const MINUTE: u64 = 60_000;

/// A shard in which nothing happens, with a clock that the test moves.
struct Idle {
    machine: Machine,
    millis: Arc<AtomicU64>,
}

impl Idle {
    fn new() -> Self {
        let millis = Arc::new(AtomicU64::new(0));
        let core = sample::core(sample::settings(), &millis);
        let machine = Machine::new(core, Logs::memory(), Shipping::alone(), Duration::from_secs(5), 1);
        Self { machine, millis }
    }

    fn turn_at(&mut self, millis: u64) {
        self.millis.store(millis, Relaxed);
        self.machine.end_batch(self.machine.core.clock.now());
    }

    /// Takes the turns of a minute in which others ask something at these times. Returns how many turns nobody asked for.
    fn own_turns(&mut self, asked_at: impl IntoIterator<Item = u64>) -> usize {
        let mut own = 0;
        for asked in asked_at.into_iter().chain([MINUTE]) {
            loop {
                let now = self.machine.core.clock.now();
                let wait = self.machine.next_timer().duration_since(now).as_millis();
                let due = self.millis.load(Relaxed) + u64::try_from(wait).unwrap().max(1);
                if due >= asked {
                    break;
                }
                self.turn_at(due);
                own += 1;
            }
            self.turn_at(asked);
        }
        own
    }
}

#[test]
fn an_idle_shard_wakes_once_a_second_at_most_and_not_beside_what_its_router_asks() {
    assert!((45..=60).contains(&Idle::new().own_turns([])));
    assert_eq!(Idle::new().own_turns((1_000..MINUTE).step_by(1_000)), 0);
    // What is asked is late or early by a little. Twelve promises a minute do not wait for it.
    let uneven = (1..60).map(|second| second * 1_000 + [0, 40, 0, 15][second as usize % 4]);
    assert!(Idle::new().own_turns(uneven) <= 12);
}
