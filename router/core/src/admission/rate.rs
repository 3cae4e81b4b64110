//! So many a second, and a second's worth at once: the generic cell rate algorithm (ITU-T I.371), on one number.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

const SECOND: u64 = 1_000_000_000;

/// What has been admitted of something, at a rate that each question names.
#[derive(Debug, Default)]
pub struct Rate {
    /// When all that was admitted would be over at the rate, in nanoseconds of the caller's clock.
    over_at: AtomicU64,
}

impl Rate {
    /// Whether one more is admitted at this time, in nanoseconds; time may not go back by much. `per_second` is at least 1.
    pub fn admits(&self, now: u64, per_second: u32) -> bool {
        let each = SECOND / u64::from(per_second.max(1));
        let admitted = self.over_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |over_at| {
            let next = over_at.max(now) + each;
            // An hour's debt at a lower rate does not count when the rate is raised.
            let next = if over_at > now + SECOND { now + each } else { next };
            (next <= now + SECOND).then_some(next)
        });
        admitted.is_ok()
    }
}

/// The clients whose rates are remembered; those beyond share one.
pub const CLIENTS_MAX: usize = 4096;

/// A rate for each client.
#[derive(Debug, Default)]
pub struct RateByClient {
    clients: HashMap<Box<str>, Rate>,
    /// Of those that found no room.
    others: Rate,
}

impl RateByClient {
    /// Whether one more of this client is admitted, as [`Rate::admits`] says.
    pub fn admits(&mut self, client: &str, now: u64, per_second: u32) -> bool {
        if let Some(rate) = self.clients.get(client) {
            return rate.admits(now, per_second);
        }
        if self.clients.len() >= CLIENTS_MAX {
            // One whose time is over is as good as new.
            self.clients.retain(|_, rate| *rate.over_at.get_mut() > now);
        }
        if self.clients.len() >= CLIENTS_MAX {
            return self.others.admits(now, per_second);
        }
        self.clients.entry(client.into()).or_default().admits(now, per_second)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_second_is_worth_its_number_and_then_each_has_its_time() {
        let rate = Rate::default();
        let now = 5 * SECOND;
        assert_eq!((0..100).filter(|_| rate.admits(now, 10)).count(), 10);
        assert!(!rate.admits(now + SECOND / 10 - 1, 10));
        assert!(rate.admits(now + SECOND / 10, 10));
        assert!(!rate.admits(now + SECOND / 10, 10));
        assert_eq!(
            (0..100).filter(|_| rate.admits(now + 60 * SECOND, 10)).count(),
            10,
            "time that is not used is lost"
        );
    }

    #[test]
    fn one_a_second_is_one_a_second() {
        let rate = Rate::default();
        let admitted = (0..100).filter(|tenth| rate.admits(tenth * SECOND / 10, 1)).count();
        assert_eq!(admitted, 10);
    }

    #[test]
    fn each_client_has_its_rate_and_no_number_of_clients_fills_the_memory() {
        let (mut rates, now) = (RateByClient::default(), SECOND);
        let admitted = |rates: &mut RateByClient, client: &str, now| {
            (0..10).filter(|_| rates.admits(client, now, 2)).count()
        };
        assert_eq!(admitted(&mut rates, "a", now), 2);
        assert_eq!(admitted(&mut rates, "b", now), 2);
        for client in 0..2 * CLIENTS_MAX {
            rates.admits(&format!("client {client}"), now, 2);
        }
        assert_eq!(rates.clients.len(), CLIENTS_MAX);
        assert_eq!(admitted(&mut rates, "one more", now), 0, "the others share one rate, which is used up");
        assert_eq!(admitted(&mut rates, "b", now), 0, "who asked before is remembered");
        // Later all have what they would have had, and there is room again.
        assert_eq!(admitted(&mut rates, "one more", now + 2 * SECOND), 2);
        assert_eq!(rates.clients.len(), 1);
        assert_eq!(admitted(&mut rates, "a", now + 2 * SECOND), 2);
    }

    proptest! {
        #[test]
        fn no_window_has_more_than_its_rate_and_one_seconds_worth(
            steps in prop::collection::vec(0..SECOND / 20, 1..400), per_second in 1..200_u32,
        ) {
            let rate = Rate::default();
            let (mut now, mut admitted) = (SECOND, Vec::new());
            for step in steps {
                now += step;
                if rate.admits(now, per_second) {
                    admitted.push(now);
                }
            }
            for (from, first) in admitted.iter().enumerate() {
                for (to, last) in admitted.iter().enumerate().skip(from) {
                    let allowed = (last - first) as f64 / SECOND as f64 * f64::from(per_second) * 1.001 + f64::from(per_second) + 1.0;
                    prop_assert!((to - from + 1) as f64 <= allowed);
                }
            }
        }
    }
}
