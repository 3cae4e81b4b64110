//! The clocks of the stores, as their handshakes showed them, and the reference time of the cluster (R3).

use std::time::Duration;

use kindred_partition_config::ids::Revision;
use kindred_router_core::clock_offset;
use kindred_router_core::store::StoreIx;
use kindred_transport::clock::WallClock;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long after the start the first reference may be delayed by stores whose clocks are unknown.
const SETTLE_MAX: Duration = Duration::from_secs(2);

/// What is known of a store's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sample {
    /// No handshake has ended yet.
    Unknown,
    /// The store cannot be asked, or its clock does not matter.
    None,
    /// At this moment the clock showed so many microseconds since the Unix epoch.
    At(u64, Instant),
}

/// The clocks of all stores. Samples advance with this process's monotonic clock, so a step of its own wall clock
/// shifts one voice of the median only.
#[derive(Debug)]
pub struct Clocks {
    /// When the first reference is given at the latest.
    settled_at: Instant,
    samples: watch::Sender<Vec<Sample>>,
    own: WallClock,
}

impl Clocks {
    /// No stores yet.
    #[must_use]
    pub fn new(own: WallClock) -> Self {
        Self { settled_at: Instant::now() + SETTLE_MAX, samples: watch::Sender::default(), own }
    }

    /// Adds a store whose clock is unknown. Nothing waits for it once the settling time after the start has passed.
    pub fn expect(&self, store: StoreIx) {
        self.samples.send_modify(|samples| {
            samples.resize(samples.len().max(store.0 + 1), Sample::Unknown);
        });
    }

    /// Notes that a store's clock showed `micros` at `moment`.
    pub fn set(&self, store: StoreIx, micros: u64, moment: Instant) {
        self.put(store, Sample::At(micros, moment));
    }

    /// Notes that a store cannot be asked, or that its clock does not matter.
    pub fn leave_out(&self, store: StoreIx) {
        self.put(store, Sample::None);
    }

    fn put(&self, store: StoreIx, sample: Sample) {
        self.samples.send_if_modified(|samples| match samples.get_mut(store.0) {
            Some(old) if *old != sample => {
                *old = sample;
                true
            }
            _ => false,
        });
    }

    /// Waits until every store's clock is known, or known to be out of reach; at most `SETTLE_MAX` after the start,
    /// so that a store that does not answer does not delay the others.
    pub async fn settled(&self) {
        let mut samples = self.samples.subscribe();
        let known = samples.wait_for(|samples| !samples.contains(&Sample::Unknown));
        // A timeout counts as settled. The sender lives as long as this borrow of it.
        let _ = tokio::time::timeout_at(self.settled_at, known).await;
    }

    /// The reference time of the cluster in microseconds since the Unix epoch; `None` until the clocks have settled.
    #[must_use]
    pub fn reference(&self) -> Option<u64> {
        let now = Instant::now();
        let samples = self.samples.borrow();
        if samples.contains(&Sample::Unknown) && now < self.settled_at {
            return None;
        }
        let clocks: Vec<u64> = samples.iter().filter_map(|sample| sample.at(now)).collect();
        Some(clock_offset::reference(self.own.micros(), &clocks))
    }

    /// The offset of a store's clock from the reference in microseconds, positive if ahead; `None` if unknown.
    #[must_use]
    pub fn offset(&self, store: StoreIx) -> Option<i64> {
        let reference = self.reference()?;
        let sample = *self.samples.borrow().get(store.0)?;
        Some(clock_offset::offset(sample.at(Instant::now())?, reference))
    }

    /// How long ago a shard assigned a revision, by its clock and this process's own; zero if that is ahead. `None` for
    /// the revision of a stock etcd, which is no time.
    #[must_use]
    pub fn age(&self, revision: Revision) -> Option<Duration> {
        let micros = revision.micros()?;
        Some(Duration::from_micros(self.own.micros().saturating_sub(micros)))
    }

    /// The offset of this process's clock from the reference in microseconds.
    #[must_use]
    pub fn own_offset(&self) -> Option<i64> {
        Some(clock_offset::offset(self.own.micros(), self.reference()?))
    }
}

impl Sample {
    /// What the clock shows at `now`.
    fn at(self, now: Instant) -> Option<u64> {
        let Self::At(micros, moment) = self else { return None };
        let passed = now.saturating_duration_since(moment).as_micros();
        Some(micros.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX)))
    }
}

/// An offset for people, such as "1.5 s behind".
#[must_use]
pub fn words(offset_micros: i64) -> String {
    let seconds = offset_micros.unsigned_abs() as f64 / 1e6;
    format!("{seconds:.1} s {}", if offset_micros < 0 { "behind" } else { "ahead of" })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000_000;

    fn own() -> u64 {
        WallClock::System.micros()
    }

    #[tokio::test(start_paused = true)]
    async fn r3_nobody_is_judged_before_the_others_are_known() {
        let clocks = Clocks::new(WallClock::System);
        let (first, second, third) = (StoreIx(0), StoreIx(1), StoreIx(2));
        [first, second, third].iter().for_each(|store| clocks.expect(*store));
        let ahead = own().saturating_add_signed(HOUR);
        clocks.set(first, ahead, Instant::now());
        assert_eq!((clocks.reference(), clocks.offset(first)), (None, None));
        clocks.set(second, own(), Instant::now());
        clocks.leave_out(third);
        clocks.settled().await;
        let near =
            |offset: Option<i64>, at: i64| offset.is_some_and(|offset| offset.abs_diff(at) < 5_000_000);
        assert!(near(clocks.offset(first), HOUR) && near(clocks.offset(second), 0), "{clocks:?}");
        assert!(near(clocks.own_offset(), 0) && clocks.offset(third).is_none());
        // Most clocks are an hour ahead, so this process's clock is the wrong one.
        clocks.set(second, ahead, Instant::now());
        assert!(near(clocks.offset(first), 0) && near(clocks.own_offset(), -HOUR), "{clocks:?}");
        assert_eq!((words(-1_500_000), words(HOUR)), ("1.5 s behind".into(), "3600.0 s ahead of".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_never_answers_does_not_keep_the_others_out() {
        let mut clocks = Clocks::new(WallClock::System);
        [StoreIx(0), StoreIx(1)].iter().for_each(|store| clocks.expect(*store));
        clocks.settled_at = Instant::now() + Duration::from_millis(50);
        clocks.set(StoreIx(0), own(), Instant::now());
        assert_eq!(clocks.reference(), None);
        clocks.settled().await;
        assert!(clocks.reference().is_some());
    }
}
