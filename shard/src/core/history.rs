//! A bound for the bytes of history: what is oldest is compacted before it takes the room of what is to be written.
//!
//! Only writes make history, so the bound is looked at where a write is checked against the quota, and needs no timer.

use std::time::Duration;

use kindred_engine::engine::MonoMillis;

/// How long after one look at the bound the next one is.
const LOOKS_MILLIS: u64 = 1_000;
/// The age at which history may always be read: lists at younger revisions must be readable to their end (R5).
pub const HISTORY_AGE_MIN: Duration = Duration::from_secs(10);

/// A bound, and when it was looked at.
#[derive(Debug)]
pub struct HistoryBound {
    /// 0 = none.
    bytes: u64,
    next: MonoMillis,
}

impl HistoryBound {
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        Self { bytes, next: MonoMillis(0) }
    }

    /// Whether it is time for another look.
    pub fn is_due(&mut self, now: MonoMillis) -> bool {
        let due = self.bytes > 0 && now >= self.next;
        if due {
            self.next = MonoMillis(now.0 + LOOKS_MILLIS);
        }
        due
    }

    /// The age beyond which history is to go, when there are so many bytes of it, the oldest from so long ago.
    #[must_use]
    pub fn age_to_keep(&self, history: u64, span: Duration) -> Option<Duration> {
        age_to_keep(history, self.bytes, span)
    }
}

/// The age beyond which history is to go, if there are more bytes of it than may be. A quarter of the room becomes free
/// if writes came evenly over `span`; if they did not, later looks go on from there.
fn age_to_keep(history: u64, bound: u64, span: Duration) -> Option<Duration> {
    if bound == 0 || history <= bound {
        return None;
    }
    let part = bound as f64 * 0.75 / history as f64;
    Some(span.mul_f64(part).max(HISTORY_AGE_MIN))
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering::Relaxed},
        },
        time::UNIX_EPOCH,
    };

    use bytes::Bytes;
    use kindred_engine::{
        engine::{Engine, EngineConfig, RevisionMode},
        ops::{Op, Put},
        trust::ClockTrust,
    };
    use kindred_partition_config::{
        ids::{Revision, Slot},
        key::KeyRange,
        kind::KindScheme,
    };

    use super::*;
    use crate::{
        clock::{Clock, WallClock},
        core::{Core, CoreSettings, Sizes},
        etcd_status::KvError,
        read_hints::ReadHints,
    };

    #[test]
    fn what_is_within_the_bound_stays() {
        let span = Duration::from_secs(600);
        assert_eq!(age_to_keep(1_000, 0, span), None);
        assert_eq!(age_to_keep(1_000, 1_000, span), None);
        assert_eq!(age_to_keep(0, 1, Duration::ZERO), None);
    }

    #[test]
    fn a_quarter_of_the_room_is_freed_and_ten_seconds_stay_readable() {
        let span = Duration::from_secs(600);
        assert_eq!(age_to_keep(1_000, 500, span), Some(Duration::from_secs(225)));
        assert_eq!(age_to_keep(u64::MAX, 1, span), Some(HISTORY_AGE_MIN));
    }

    #[test]
    fn looks_come_below_the_bound_however_unevenly_history_came() {
        // All of it came in one minute, nine minutes after the floor.
        let bytes = |age: Duration| 600_u64.min(10 * age.as_secs());
        let mut span = Duration::from_secs(600);
        for _ in 0..20 {
            let Some(age) = age_to_keep(bytes(span), 300, span) else { break };
            assert!(age < span);
            span = age;
        }
        assert!(bytes(span) <= 300 && bytes(span) > 0, "{span:?}");
    }

    /// A shard with a clock that the test moves.
    struct Sim {
        core: Core,
        elapsed: Arc<AtomicU64>,
    }

    impl Sim {
        fn new(history_bytes_max: u64, quota_bytes: u64) -> Self {
            let elapsed = Arc::new(AtomicU64::new(0));
            let (of_wall, of_mono) = (elapsed.clone(), elapsed.clone());
            let start = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
            let wall =
                WallClock::Other(Arc::new(move || start + Duration::from_millis(of_wall.load(Relaxed))));
            let mono = Arc::new(move || Duration::from_millis(of_mono.load(Relaxed)));
            let clock = Clock::simulated(wall, mono, ClockTrust::alone());
            let (slot, kinds) = (Slot::new(5).unwrap(), KindScheme::default());
            let config = EngineConfig {
                revisions: RevisionMode::Hlc(slot),
                kinds: kinds.clone(),
                max_clock_offset_micros: 10_000_000,
                min_lease_ttl_s: 2,
            };
            let settings = CoreSettings {
                member_id: 1,
                slot,
                quota_bytes,
                quotas: BTreeMap::new(),
                history_bytes_max,
                kinds,
                sizes: Sizes::default(),
            };
            Self { core: Core::new(Engine::new(config, clock.wall()), clock, settings), elapsed }
        }

        /// Writes a kilobyte, and does what the loop does after it.
        fn write(&mut self) -> Result<Revision, KvError> {
            let put = Put {
                key: "/registry/leases/a/b".into(),
                value: Bytes::from(vec![7; 1000]),
                lease: None,
                ignore_value: false,
                ignore_lease: false,
                prev_kv: false,
            };
            self.core.apply(Op::Put(put), ReadHints::default())?;
            self.core.engine.publish();
            while self.core.gc(100) {}
            Ok(self.core.engine.current(&[KeyRange::everything()]))
        }

        fn history(&self) -> u64 {
            let stats = self.core.engine.stats();
            stats.total_bytes - stats.live_bytes
        }
    }

    #[test]
    fn f28_history_goes_before_writes_are_refused_and_ten_seconds_of_it_stay() {
        // A write in 100 ms, so ten seconds have 100 kB and a little more.
        let mut sim = Sim::new(200_000, 400_000);
        let mut revisions = Vec::new();
        for _ in 0..5_000 {
            sim.elapsed.fetch_add(100, Relaxed);
            revisions.push(sim.write().unwrap());
            assert!(sim.history() <= 250_000, "{}", sim.history());
        }
        let floor = sim.core.engine.floor();
        assert!(revisions[..4_000].iter().all(|at| *at < floor), "history is compacted");
        assert!(revisions[4_900..].iter().all(|at| *at >= floor), "the last ten seconds are readable");
    }

    #[test]
    fn without_a_bound_nothing_goes_and_the_quota_refuses() {
        let mut sim = Sim::new(0, 400_000);
        let refused = (0..1_000).any(|_| {
            sim.elapsed.fetch_add(100, Relaxed);
            matches!(sim.write(), Err(KvError::NoSpace))
        });
        assert!(refused && sim.history() > 300_000);
    }
}
