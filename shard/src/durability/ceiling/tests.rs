use std::{collections::HashSet, path::Path};

use bytes::Bytes;
use kindred_engine::{
    engine::{Engine, EngineConfig, MonoMillis, RevisionMode},
    ops::{Op, OpAnswer, Put},
    recover::Recovered,
};
use kindred_partition_config::{ids::Slot, key::KeyRange, kind::KindScheme};
use kindred_wal::{
    Disk as _, FrameSeq, RealDisk,
    sim::{Faults, SimDisk},
};
use proptest::prelude::*;

use super::*;

const T0: u64 = 1_767_225_600_000_000;

fn at(micros: u64) -> Revision {
    Revision((micros as i64) << SLOT_BITS)
}

#[test]
fn r2_the_ceiling_is_raised_when_half_of_it_is_used() {
    let soon = Duration::from_millis(2);
    let asked = |now, last, ceiling| wanted(WallMicros(now), at(last), at(ceiling), soon);
    let first = asked(T0, T0, 0).unwrap();
    assert_eq!(first, at(T0 + 3_004_000), "the wall clock and 3 s, and twice what a write takes");
    let ceiling = T0 + 3_004_000;
    assert_eq!(asked(T0 + 1_000_000, T0, ceiling), None);
    assert_eq!(asked(T0 + 1_600_000, T0, ceiling), Some(at(T0 + 4_604_000)));
    // A burst or raise ahead of the wall clock needs more, but does not move the ceiling 3 s further each time.
    assert_eq!(asked(T0, ceiling - 6000, ceiling), None);
    assert_eq!(asked(T0, ceiling - 4000, ceiling), Some(at(ceiling + 6000)));
    // With a slow disk the next ceiling is requested earlier.
    let slow = wanted(WallMicros(T0), at(T0), at(T0 + 4_000_000), Duration::from_secs(5));
    assert_eq!(slow, Some(at(T0 + 13_000_000)));
    assert_eq!(wanted(WallMicros(u64::MAX), Revision(i64::MAX), Revision(i64::MAX), soon), None);
}

#[test]
fn an_idle_loop_looks_at_the_ceiling_before_a_third_of_it_is_left() {
    let look = |left: u64, took_millis: u64| {
        let took = Duration::from_millis(took_millis);
        look_in(WallMicros(T0), at(T0 + left), took).as_millis()
    };
    assert_eq!([look(3_000_000, 0), look(1_500_000, 0), look(900_001, 0)], [2_100, 600, 0]);
    assert_eq!(look(3_004_000, 2), 2_102, "as far as a slower disk has it raised");
    // Asked for already, and far behind a wall clock that was set: never in a loop without a pause.
    assert_eq!([look(900_000, 0), look(0, 0)], [600, 600]);
    assert_eq!(look_in(WallMicros(u64::MAX), Revision::ZERO, Duration::ZERO), LOOK_LATE);
    // No clock is confirmed yet.
    assert_eq!(look_in(WallMicros(0), Revision(i64::MAX), Duration::ZERO), AHEAD_MAX);
}

proptest! {
    /// Whenever the loop looks because of this, the ceiling is raised.
    #[test]
    fn r2_a_look_at_the_ceiling_is_not_in_vain(left in 0..100_000_000_u64, took_micros in 0..80_000_000_u64) {
        let (took, ceiling) = (Duration::from_micros(took_micros), at(T0 + left));
        let then = WallMicros(T0 + look_in(WallMicros(T0), ceiling, took).as_micros() as u64);
        let early = look_in(WallMicros(T0), ceiling, took) == AHEAD_MAX;
        prop_assert!(early || wanted(then, at(T0), ceiling, took).is_some());
    }
}

#[tokio::test]
async fn the_keeper_raises_in_the_background_and_lowers_at_a_clean_stop() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("clock");
    let file = ClockFile::create(&RealDisk, &path, Revision(1)).unwrap();
    let changed = Arc::new(Notify::new());
    let places = Arc::new(AtomicU64::new(0));
    let of_keeper = places.clone();
    let durable = move || {
        let last = FrameSeq(of_keeper.load(Ordering::Acquire));
        LogPlaces { fsync: last, buffered: last.prev() }
    };
    let mut keeper =
        CeilingKeeper::start(&kindred_wal::Workers::threads(), file, changed.clone(), Box::new(durable))
            .unwrap();
    for ceiling in [10, 20] {
        keeper.ask(Revision(ceiling));
        while keeper.ceiling() < Revision(ceiling) {
            changed.notified().await;
        }
        keeper.ask(Revision(5));
        assert_eq!(keeper.ceiling(), Revision(ceiling), "never lower while it runs");
    }
    // The log positions are stored with each ceiling, and without one when none is wanted.
    let noted = || ClockFile::open(&RealDisk, &path).unwrap().unwrap().0.durable();
    assert_eq!(noted(), LogPlaces::NONE);
    places.store(7, Ordering::Release);
    keeper.note(LogPlaces { fsync: FrameSeq(7), buffered: FrameSeq(6) });
    while noted().fsync < FrameSeq(7) {
        changed.notified().await;
    }
    assert_eq!(noted().buffered, FrameSeq(6));
    assert_eq!(keeper.ceiling(), Revision(20));
    places.store(9, Ordering::Release);
    keeper.stop(Some(Revision(15))).unwrap();
    let (file, ceiling) = ClockFile::open(&RealDisk, &path).unwrap().unwrap();
    assert_eq!((ceiling, file.durable().fsync), (Revision(15), FrameSeq(9)));
}

/// Something that may happen to a shard, its disk or its wall clock.
#[derive(Debug, Clone)]
enum Step {
    Wall(i64),
    Assign,
    Promise,
    /// Raises this far above the last revision, if that is allowed.
    Raise(i64),
    /// Renews the ceiling if it is time; the sync that may follow fails or not.
    Renew {
        fails: bool,
    },
    /// Stops the machine in the middle of the next renewal.
    StopInRenewal(u64),
    /// Kills the process, or cuts the power.
    End {
        power: bool,
    },
    Stop,
}

fn step() -> impl Strategy<Value = Step> {
    let hour = 3_600_000_000_i64;
    let wall = prop_oneof![4 => 0..3_000_000_i64, 1 => -5_000_000..5_000_000_i64, 1 => -hour..hour];
    prop_oneof![
        5 => wall.prop_map(Step::Wall),
        8 => Just(Step::Assign),
        3 => Just(Step::Promise),
        2 => (0..20_000_000_i64).prop_map(|micros| Step::Raise(micros << SLOT_BITS)),
        5 => prop::bool::weighted(0.2).prop_map(|fails| Step::Renew { fails }),
        1 => (0..4_u64).prop_map(Step::StopInRenewal),
        2 => any::<bool>().prop_map(|power| Step::End { power }),
        1 => Just(Step::Stop),
    ]
}

const PATH: &str = "d/clock";

/// A shard that keeps only its clock's ceiling.
struct Shard {
    disk: SimDisk,
    wall: u64,
    engine: Engine,
    file: ClockFile,
    /// All assigned revisions, and the highest that was assigned or shown.
    given: HashSet<Revision>,
    shown: Revision,
}

impl Shard {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new(seed);
        disk.create_directory(Path::new("d")).unwrap();
        let (engine, file) = Self::start(&disk, T0);
        Self { disk, wall: T0, engine, file, given: HashSet::new(), shown: Revision::ZERO }
    }

    /// Starts as a shard does: above the ceiling found, with a new one on disk before anything is assigned.
    fn start(disk: &SimDisk, wall: u64) -> (Engine, ClockFile) {
        let found = ClockFile::open(disk, Path::new(PATH)).unwrap();
        let in_force = found.as_ref().map_or(Revision::ZERO, |(_, ceiling)| *ceiling);
        let config = EngineConfig {
            revisions: RevisionMode::Hlc(Slot::new(5).unwrap()),
            kinds: KindScheme::default(),
            max_clock_offset_micros: 10_000_000,
            min_lease_ttl_s: 2,
        };
        let recovered = Recovered { start: in_force, ..Recovered::default() };
        let mut engine = match found {
            Some(_) => Engine::recover(config, WallMicros(wall), MonoMillis(0), recovered).unwrap(),
            None => Engine::new(config, WallMicros(wall)),
        };
        let next = first(WallMicros(wall), engine.last_revision(), in_force);
        let file = match found {
            Some((mut file, _)) => file.store(next).map(|()| file),
            None => ClockFile::create(disk, Path::new(PATH), next),
        };
        engine.set_ceiling(next);
        (engine, file.unwrap())
    }

    fn now(&self) -> WallMicros {
        WallMicros(self.wall)
    }

    fn show(&mut self, revision: Revision) {
        assert!(revision >= self.shown, "{revision} is shown behind {}", self.shown);
        self.shown = revision;
    }

    fn assign(&mut self) {
        if !self.engine.may_assign(self.now()) {
            return;
        }
        let key = "/registry/pods/a".into();
        let value = Bytes::from_static(b"v");
        let put = Put { key, value, lease: None, ignore_value: false, ignore_lease: false, prev_kv: false };
        let answer = self.engine.apply(self.now(), Op::Put(put)).unwrap();
        let OpAnswer::Put { header, .. } = answer else { panic!("{answer:?}") };
        self.engine.publish();
        assert!(header > self.shown, "{header} is given behind {}", self.shown);
        assert!(self.given.insert(header), "{header} is given twice");
        assert!(header < self.engine.ceiling());
        self.shown = header;
    }

    fn renew(&mut self) {
        let (last, ceiling) = (self.engine.last_revision(), self.file.ceiling());
        let Some(next) = wanted(self.now(), last, ceiling, Duration::ZERO) else { return };
        if self.file.store(next).is_ok() {
            self.engine.set_ceiling(next);
        }
    }

    fn restart(&mut self) {
        (self.engine, self.file) = Self::start(&self.disk, self.wall);
        let current = self.engine.current_all();
        assert!(
            current > self.shown || self.given.is_empty(),
            "{current} is shown first, behind {}",
            self.shown
        );
        self.show(current.max(self.shown));
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Wall(by) => self.wall = self.wall.saturating_add_signed(*by),
            Step::Assign => self.assign(),
            Step::Promise => {
                self.engine.progress_tick(self.now());
                self.show(self.engine.last_revision());
            }
            Step::Raise(by) => {
                let to = Revision(self.engine.last_revision().get().saturating_add(*by));
                if self.engine.may_reach(to) {
                    // Refused when it is too far above the wall clock.
                    drop(self.engine.raise(self.now(), &[KeyRange::everything()], to));
                    self.show(self.engine.last_revision());
                }
            }
            Step::Renew { fails } => {
                let fail_sync_in = fails.then_some(0);
                self.disk.set_faults(Faults { fail_sync_in, ..Faults::default() });
                self.renew();
                self.disk.set_faults(Faults::default());
            }
            Step::StopInRenewal(stop_in) => {
                self.disk.set_faults(Faults { stop_in: Some(*stop_in), ..Faults::default() });
                self.renew();
                self.disk.crash();
                self.restart();
            }
            Step::End { power } => {
                if *power {
                    self.disk.crash()
                } else {
                    self.disk.kill()
                }
                self.restart();
            }
            Step::Stop => {
                let last = self.engine.last_revision();
                // If it fails, the previous ceiling stays in force.
                drop(self.file.store(last));
                self.disk.kill();
                self.restart();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn r2_no_revision_is_given_twice_or_goes_back_whatever_ends_and_whatever_the_wall_clock_says(
        seed: u64, steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut shard = Shard::new(seed);
        steps.iter().for_each(|step| shard.step(step));
    }
}
