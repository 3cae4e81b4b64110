//! Keeps to the bounds of [`super::history`].

use std::{collections::BTreeMap, time::Duration};

use kindred_partition_config::{
    history::HistoryBounds,
    ids::{Revision, SLOT_BITS},
    key::{Key, KeyRange},
};
use tokio::sync::oneshot;

use super::{
    Compaction, Core,
    history::{AGE_SLACK, HISTORY_AGE_ASSUMED, HISTORY_AGE_MIN, age_to_keep},
};

impl Core {
    /// See [`super::history::History::tell`].
    pub fn tell_history(&mut self, generation: u64, kinds: BTreeMap<Key, HistoryBounds>) {
        self.history.tell(generation, kinds);
    }

    /// Compacts revisions older than `age`, by the clock that makes revisions. It does nothing if none is older or the
    /// clock is not trusted.
    pub fn compact_older(&mut self, age: Duration) {
        if self.check_corrupt().is_err() || self.check_clock().is_err() {
            return;
        }
        let at = self.before(age);
        if at > self.engine.floor() {
            // The answer is dropped.
            let (answer, _) = oneshot::channel();
            self.start_compaction(Compaction { at, physical: false, answer });
        }
    }

    /// The revision that the clock gave so long ago.
    fn before(&self, age: Duration) -> Revision {
        let age = u64::try_from(age.as_micros()).unwrap_or(u64::MAX);
        let micros = self.clock.wall().0.saturating_sub(age);
        Revision(i64::try_from(micros).unwrap_or(i64::MAX >> SLOT_BITS).saturating_mul(1 << SLOT_BITS))
    }

    /// Compacts the oldest history if there is too much of it. Only writes make history, so it is asked for before a write.
    pub(super) fn bound_history(&mut self) {
        // What is being freed still counts.
        if self.collecting || !self.compactions.is_empty() || !self.history.is_due(self.clock.mono()) {
            return;
        }
        let stats = self.engine.stats();
        let history = stats.total_bytes.saturating_sub(stats.live_bytes);
        let span = self.span(self.engine.floor());
        if let Some(age) = age_to_keep(history, self.history.bytes, span) {
            return self.compact_older(age);
        }
        if self.history.kinds.is_empty() || self.check_corrupt().is_err() || self.check_clock().is_err() {
            return;
        }
        for (kind, bounds) in self.history.kinds.clone() {
            self.bound_kind(&kind, bounds);
        }
    }

    /// The time since a revision.
    fn since(&self, at: Revision) -> Duration {
        let since = u64::try_from(at.0 >> SLOT_BITS).unwrap_or_default();
        Duration::from_micros(self.clock.wall().0.saturating_sub(since))
    }

    /// The time over which the history above a floor came.
    fn span(&mut self, floor: Revision) -> Duration {
        let assumed = self.before(HISTORY_AGE_ASSUMED);
        let begins = *self.history.begins.get_or_insert(assumed);
        self.since(if floor > Revision::ZERO { floor } else { begins })
    }

    fn bound_kind(&mut self, kind: &Key, bounds: HistoryBounds) {
        let floor = self.engine.floor_of_kind(kind);
        let (span, since) = (self.span(floor), self.since(floor));
        let by_bytes = bounds.bytes.and_then(|bytes| {
            let loads = self.engine.loads(&[KeyRange::prefix(kind.clone())]);
            let of_kind = loads.iter().find(|load| load.prefix == *kind)?;
            age_to_keep(of_kind.bytes.saturating_sub(of_kind.live_bytes), bytes, span)
        });
        let by_age = bounds.seconds.map(Duration::from_secs).filter(|age| since > *age + *age / AGE_SLACK);
        let Some(age) = [by_bytes, by_age].into_iter().flatten().min() else { return };
        let at = self.before(age.max(HISTORY_AGE_MIN));
        // Where a pin or an unpublished write is in the way, the next look tries again.
        self.engine.compact_kind(self.clock.mono(), kind, at);
        self.collecting |= self.engine.floor_of_kind(kind) > floor;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering::Relaxed},
        },
    };

    use bytes::Bytes;
    use kindred_engine::{
        engine::{Engine, MonoMillis},
        ops::{Contents, Op, Put, RangeQuery},
        recover::Recovered,
    };
    use kindred_partition_config::{ids::Revision, key::KeyRange};

    use kindred_proto::shard_v1 as pb;

    use super::*;
    use crate::{
        core::{Core, CoreSettings, history::asked, sample},
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

    const LEASES: &str = "/registry/leases/";

    /// A shard with a clock that the test moves.
    struct Sim {
        core: Core,
        elapsed: Arc<AtomicU64>,
    }

    impl Sim {
        fn new(history_bytes_max: u64, quota_bytes: u64) -> Self {
            let elapsed = Arc::new(AtomicU64::new(0));
            let settings = CoreSettings { quota_bytes, history_bytes_max, ..sample::settings() };
            Self { core: sample::core(settings, &elapsed), elapsed }
        }

        /// Writes a kilobyte, and does what the loop does after it.
        fn write(&mut self) -> Result<Revision, KvError> {
            self.write_to("/registry/leases/a/b")
        }

        fn write_to(&mut self, key: &'static str) -> Result<Revision, KvError> {
            let put = Put {
                key: key.into(),
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

    /// The history of a store that was started again began in 1970, so what was to be freed was a part of fifty years: it took more
    /// than a minute of looks until that was shorter than what there was.
    #[test]
    fn f79_the_history_of_a_store_that_was_started_again_is_bounded_as_soon() {
        let mut sim = Sim::new(200_000, 400_000);
        let now = sim.core.clock.wall();
        let recovered = Engine::recover(sample::config(), now, MonoMillis(0), Recovered::default());
        sim.core.engine = recovered.unwrap();
        assert_eq!(sim.core.engine.floor(), Revision::ZERO);
        for _ in 0..2_000 {
            sim.elapsed.fetch_add(100, Relaxed);
            sim.write().unwrap();
            assert!(sim.history() <= 350_000, "{}", sim.history());
        }
        assert!(sim.history() <= 250_000, "{}", sim.history());
    }

    /// Writes a kilobyte to each of two Kinds in each of these tenths of a second.
    fn write_both(sim: &mut Sim, tenths: u32) -> Vec<Revision> {
        let mut revisions = Vec::new();
        for _ in 0..tenths {
            sim.elapsed.fetch_add(100, Relaxed);
            sim.write_to("/registry/pods/a/b").unwrap();
            revisions.push(sim.write().unwrap());
        }
        revisions
    }

    fn bounds(bytes: Option<u64>, seconds: Option<u64>) -> BTreeMap<Key, HistoryBounds> {
        BTreeMap::from([(LEASES.into(), HistoryBounds { bytes, seconds })])
    }

    /// The bytes of a Kind's history.
    fn history_of(sim: &Sim, kind: &str) -> u64 {
        let loads = sim.core.engine.loads(&[KeyRange::prefix(kind.into())]);
        loads[0].bytes - loads[0].live_bytes
    }

    #[test]
    fn f28_the_history_of_one_kind_is_bounded_and_that_of_others_stays() {
        for (told, seconds_kept) in [(bounds(Some(200_000), None), 14), (bounds(None, Some(60)), 60)] {
            let mut sim = Sim::new(0, 0);
            sim.core.tell_history(1, told);
            let revisions = write_both(&mut sim, 3_000);
            let (leases, pods) = (LEASES.as_bytes(), "/registry/pods/");
            assert!(history_of(&sim, pods) > 3_000_000, "no bound was told of pods");
            assert_eq!(sim.core.engine.floor_of_kind(pods.as_bytes()), sim.core.engine.floor());
            assert!(sim.core.engine.floor() < revisions[0], "the shard as a whole was not compacted");
            let floor = sim.core.engine.floor_of_kind(leases);
            let kept = revisions.iter().filter(|at| **at >= floor).count() / 10;
            assert!((seconds_kept..=seconds_kept * 3 / 2).contains(&kept), "{kept} seconds are left");
            assert!(history_of(&sim, LEASES) <= 1_100 * 10 * (kept as u64 + 2));
            let read = |sim: &mut Sim, at| {
                let query = RangeQuery {
                    range: KeyRange::prefix(LEASES.into()),
                    revision: Some(at),
                    limit: 0,
                    sort: None,
                    contents: Contents::Whole,
                    count_only: false,
                    filter: kindred_engine::ops::RevisionFilter::default(),
                };
                sim.core.engine.range(&query).is_ok()
            };
            assert!(read(&mut sim, floor) && !read(&mut sim, floor.prev()));
        }
    }

    #[test]
    fn bounds_of_an_older_configuration_are_not_taken() {
        let mut sim = Sim::new(0, 0);
        sim.core.tell_history(2, BTreeMap::new());
        sim.core.tell_history(1, bounds(None, Some(10)));
        write_both(&mut sim, 400);
        assert_eq!(sim.core.engine.floor_of_kind(LEASES.as_bytes()), sim.core.engine.floor());
        sim.core.tell_history(3, bounds(None, Some(10)));
        write_both(&mut sim, 20);
        assert!(sim.core.engine.floor_of_kind(LEASES.as_bytes()) > sim.core.engine.floor());
        sim.core.tell_history(4, BTreeMap::new());
        let before = history_of(&sim, LEASES);
        write_both(&mut sim, 400);
        assert!(history_of(&sim, LEASES) > before + 300_000, "a bound that was taken back");
    }

    #[test]
    fn what_is_no_kind_is_refused() {
        let history =
            |prefix: &'static str| pb::KindHistory { prefix: prefix.into(), max_bytes: 1, max_seconds: 0 };
        let refused = |history: Vec<pb::KindHistory>| {
            let request = pb::SetModesRequest { history, ..Default::default() };
            asked(&request).unwrap_err().message().to_owned()
        };
        assert!(
            refused(vec![history("/registry/pods")]).contains(r#"history[0] of "/registry/pods" is not"#)
        );
        assert!(refused(vec![history(LEASES), history(LEASES)]).contains("is the second one"));
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
