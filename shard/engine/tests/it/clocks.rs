//! R3, R4 and R5 under arbitrary wall clocks. Several engines are driven as by a router. Each has a clock that steps
//! back, jumps forward or is an hour off.

use std::collections::HashSet;

use crate::common::*;
use kindred_engine::{engine::*, error::EngineError, ops::*};
use kindred_partition_config::{
    ids::{Revision, Slot},
    key::KeyRange,
    kind::KindScheme,
};
use proptest::prelude::*;

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3600 * SECOND;
const OFFSET: i64 = 10 * SECOND;
const T0: i64 = 1_767_225_600_000_000;
const KINDS: [&str; 2] = ["/registry/pods/", "/registry/leases/"];
const HOLD_MS: u64 = 5_000;

struct Shard {
    engine: Engine,
    /// The distance of its wall clock from the true time, in microseconds.
    skew: i64,
    held: i64,
    /// The last revision of the shard, and the highest that it has shown of each Kind.
    last: Revision,
    shown: [Revision; 2],
    /// The highest raise, in microseconds, and the number of assignments. They bound how far the clock may be ahead of
    /// `held`.
    raised: i64,
    assigned: i64,
}

struct World {
    /// The true time in microseconds; the monotonic clocks follow it.
    time: i64,
    shards: Vec<Shard>,
    seen: HashSet<Revision>,
    /// Pinned snapshots: (revision, Kind, until, shards).
    pins: Vec<(Revision, usize, u64, Vec<usize>)>,
}

fn kind(index: usize) -> KeyRange {
    prefix(KINDS[index])
}

fn micros(revision: Revision) -> i64 {
    revision.get() >> 10
}

impl World {
    fn new(skews: &[i64]) -> Self {
        let shards = skews.iter().zip(0..).map(|(skew, slot)| {
            let config = EngineConfig {
                revisions: RevisionMode::Hlc(Slot::new(slot + 1).expect("small")),
                kinds: KindScheme::default(),
                max_clock_offset_micros: OFFSET.unsigned_abs(),
                min_lease_ttl_s: 2,
            };
            let start = T0 + skew;
            let mut engine = Engine::new(config, WallMicros(start.unsigned_abs()));
            let last = engine.current_all();
            Shard { engine, skew: *skew, held: start, last, shown: [last; 2], raised: start, assigned: 0 }
        });
        Self { time: T0, shards: shards.collect(), seen: HashSet::new(), pins: Vec::new() }
    }

    fn wall(&mut self, at: usize) -> WallMicros {
        let shard = &mut self.shards[at];
        let wall = (self.time + shard.skew).max(0);
        shard.held = shard.held.max(wall);
        WallMicros(wall.unsigned_abs())
    }

    fn mono(&self) -> MonoMillis {
        MonoMillis(((self.time - T0) / 1000).unsigned_abs())
    }

    /// R4: the current revision of a Kind, which never goes back.
    fn current(&mut self, at: usize, of: usize) -> Revision {
        let shard = &mut self.shards[at];
        let current = shard.engine.current(&[kind(of)]);
        assert!(current >= shard.shown[of], "current went from {} back to {current}", shard.shown[of]);
        shard.shown[of] = current;
        current
    }

    fn currents(&mut self) -> Vec<Revision> {
        let all: Vec<_> = (0..self.shards.len()).flat_map(|at| [(at, 0), (at, 1)]).collect();
        all.into_iter().map(|(at, of)| self.current(at, of)).collect()
    }

    fn write(&mut self, at: usize, of: usize, name: u8) {
        let wall = self.wall(at);
        let before = self.current(at, of);
        let shard = &mut self.shards[at];
        let answer = shard.engine.apply(wall, put(&format!("{}{name}", KINDS[of]), "v")).expect("a put");
        let revision = header(&answer);
        assert!(revision > shard.last && revision > before, "{revision} after {} and {before}", shard.last);
        assert!(self.seen.insert(revision), "{revision} was assigned twice");
        shard.last = revision;
        shard.assigned += 1;
        // The revision is above the present, and no further ahead than raises and bursts explain.
        assert!(micros(revision) >= wall.0.cast_signed());
        assert!(micros(revision) <= shard.held.max(shard.raised) + shard.assigned, "{revision} is poisoned");
        // R4, R9: the revision is visible only when it is published.
        assert_eq!(self.current(at, of), before);
        self.shards[at].engine.publish();
        assert_eq!(self.current(at, of), revision);
    }

    /// R3: a raise is refused without effect when it is too far above the shard's present.
    fn raise(&mut self, at: usize, of: usize, to: Revision) -> Result<Revision, EngineError> {
        let wall = self.wall(at);
        let before = (self.current(at, 0), self.current(at, 1));
        let shard = &mut self.shards[at];
        let highest = shard.last.max(shard.shown[0]).max(shard.shown[1]);
        let raised = shard.engine.raise(wall, &[kind(of)], to);
        let too_far =
            to > highest && micros(to) > shard.held + OFFSET && micros(to) > shard.raised + shard.assigned;
        match &raised {
            Ok(current) => {
                assert!(*current >= to && !too_far, "{to} is above {} + 10 s", shard.held);
                shard.raised = shard.raised.max(micros(to));
                // R4: the other Kind does not move.
                let other = if of == 0 { before.1 } else { before.0 };
                assert_eq!(self.current(at, 1 - of), other);
            }
            Err(EngineError::ClockOffset { asked, .. }) => {
                assert!(*asked == to && micros(to) > shard.held + OFFSET);
                assert_eq!((self.current(at, 0), self.current(at, 1)), before);
            }
            Err(other) => panic!("{other}"),
        }
        raised
    }

    /// R5: a consistent read over these shards as a router makes it: choose T, raise all to it, read at T, pin T.
    fn read(&mut self, over: &[usize], of: usize) -> Result<Revision, EngineError> {
        let cut = over.iter().map(|at| self.current(*at, of)).max().expect("some shard");
        for at in over {
            self.raise(*at, of, cut)?;
        }
        let mono = self.mono();
        for at in over {
            let engine = &mut self.shards[*at].engine;
            engine.hold(mono, cut, PinId(1));
            let asked = RangeQuery { revision: Some(cut), ..query(kind(of)) };
            assert!(engine.range(&asked).expect("readable at the cut").header >= cut);
        }
        self.pins.push((cut, of, mono.0 + HOLD_MS, over.to_vec()));
        Ok(cut)
    }

    /// Checks that every pinned revision is readable, whatever the clocks and compactions do.
    fn check_pins(&mut self) {
        let now = self.mono().0;
        self.pins.retain(|(.., until, _)| *until > now);
        for (cut, of, _, over) in self.pins.clone() {
            for at in over {
                let engine = &mut self.shards[at].engine;
                assert!(engine.floor() <= cut, "floor {} passed the pin {cut}", engine.floor());
                let asked = RangeQuery { revision: Some(cut), ..query(kind(of)) };
                engine.range(&asked).expect("pinned");
            }
        }
    }

    /// R4: `current + 1` and later revisions are in the future; asking changes nothing, and the current one is
    /// readable.
    fn ask_for_the_future(&mut self, at: usize, of: usize) {
        let current = self.current(at, of);
        for revision in
            [current.next(), Revision(current.get().saturating_add(HOUR << 10)), Revision(i64::MAX)]
        {
            let asked = RangeQuery { revision: Some(revision), ..query(kind(of)) };
            let engine = &mut self.shards[at].engine;
            assert_eq!(engine.range(&asked).err(), Some(EngineError::Future { current }));
        }
        let asked = RangeQuery { revision: Some(current), ..query(kind(of)) };
        let answer = self.shards[at].engine.range(&asked);
        assert!(answer.is_ok() || current < self.shards[at].engine.floor());
        assert_eq!(self.current(at, of), current);
    }

    /// R5: a client's compaction at a snapshot; it waits for lower pins.
    fn compact(&mut self, over: &[usize], of: usize) {
        let Ok(cut) = self.read(over, of) else { return };
        let mono = self.mono();
        for at in over {
            let below = self
                .pins
                .iter()
                .filter(|(pin, _, until, on)| *pin < cut && *until > mono.0 && on.contains(at));
            let waits = below.count() > 0;
            let engine = &mut self.shards[*at].engine;
            match engine.compact(mono, cut) {
                Ok(None) => assert!(!waits && engine.floor() == cut),
                // Pins end together, a little later than requested.
                Ok(Some(until)) => assert!(until > mono && until.0 <= mono.0 + HOLD_MS + 100),
                Err(EngineError::Compacted { floor }) => assert!(floor >= cut),
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    /// Advances the true time.
    Pass(i64),
    /// Sets one wall clock.
    Skew(usize, i64),
    Write(usize, usize, u8),
    /// Raises a shard to another's current revision, plus this.
    Raise(usize, usize, usize, i64),
    Read(usize),
    Compact(usize),
    Tick(usize),
    Future(usize, usize),
}

fn step(skews: impl Strategy<Value = i64> + 'static) -> impl Strategy<Value = Step> {
    let plus =
        prop_oneof![Just(0), -5000..5000i64, Just(OFFSET << 10), Just((OFFSET + 1) << 10), Just(HOUR << 10)];
    let pass = prop_oneof![0..2000i64, 0..3 * SECOND, Just(20 * SECOND)];
    prop_oneof![
        3 => pass.prop_map(Step::Pass),
        2 => (0..3usize, skews).prop_map(|(at, skew)| Step::Skew(at, skew)),
        6 => (0..3usize, 0..2usize, 0..4u8).prop_map(|(at, of, name)| Step::Write(at, of, name)),
        3 => (0..3usize, 0..3usize, 0..2usize, plus).prop_map(|(a, b, of, plus)| Step::Raise(a, b, of, plus)),
        4 => (0..2usize).prop_map(Step::Read),
        1 => (0..2usize).prop_map(Step::Compact),
        2 => (0..3usize).prop_map(Step::Tick),
        2 => (0..3usize, 0..2usize).prop_map(|(at, of)| Step::Future(at, of)),
    ]
}

fn run(world: &mut World, step: &Step, healthy: &[usize]) {
    match *step {
        Step::Pass(by) => {
            let before = world.currents();
            world.time += by;
            assert_eq!(world.currents(), before, "R4: time alone moves nothing");
        }
        Step::Skew(at, skew) => {
            let before = world.currents();
            world.shards[at].skew = skew;
            assert_eq!(world.currents(), before, "R4: a clock that is set moves nothing");
        }
        Step::Write(at, of, name) => world.write(at, of, name),
        Step::Raise(at, from, of, plus) => {
            let to = Revision(world.current(from, of).get().saturating_add(plus));
            // The raise may be accepted or refused; `raise` checks which of the two is right.
            let _ = world.raise(at, of, to);
        }
        Step::Read(of) => {
            let _ = world.read(&[0, 1, 2], of);
            world.read(healthy, of).expect("clocks that are near each other are always read together");
        }
        Step::Compact(of) => world.compact(&[0, 1, 2], of),
        Step::Tick(at) => {
            let wall = world.wall(at);
            let shard = &mut world.shards[at];
            shard.engine.progress_tick(wall);
        }
        Step::Future(at, of) => world.ask_for_the_future(at, of),
    }
    world.check_pins();
    world.shards.iter().for_each(|shard| shard.engine.validate());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Three shards whose clocks step back, jump forward and are up to an hour apart.
    #[test]
    fn r3_r4_r5_whatever_the_wall_clocks_do(
        start in prop::collection::vec(prop_oneof![Just(0), Just(HOUR), Just(-HOUR), -3 * SECOND..3 * SECOND], 3),
        steps in prop::collection::vec(
            step(prop_oneof![Just(0), Just(HOUR), Just(-HOUR), -12 * SECOND..12 * SECOND, -50..50i64]), 1..120),
    ) {
        let mut world = World::new(&start);
        for step in &steps {
            run(&mut world, step, &[0]);
        }
    }

    /// Two shards some seconds apart and one an hour ahead. The two go on as if it were not there, even after the
    /// router tried to raise all to its revision; an hour later it can take part again.
    #[test]
    fn r3_one_bad_clock_does_not_poison_all_for_ever(
        apart in -4 * SECOND..4 * SECOND,
        steps in prop::collection::vec(step(Just(0)), 1..120),
    ) {
        let mut world = World::new(&[0, apart, HOUR]);
        for step in &steps {
            match step {
                Step::Skew(..) | Step::Raise(..) => {
                    // Raises the others to what the bad clock shows.
                    let bad = world.current(2, 0);
                    for at in [0, 1] {
                        let far = micros(bad) > world.time + 20 * SECOND;
                        prop_assert!(!far || world.raise(at, 0, bad).is_err(), "{at} followed to {bad}");
                    }
                }
                step => run(&mut world, step, &[0, 1]),
            }
            let bursts: i64 = world.shards.iter().map(|shard| shard.assigned).sum();
            for at in [0, 1] {
                let ahead = micros(world.current(at, 0).max(world.current(at, 1))) - world.time;
                prop_assert!(ahead <= 4 * SECOND + OFFSET + bursts, "{at} is {ahead} us ahead");
            }
        }
        let written = world.shards[2].assigned;
        let refused = world.read(&[0, 1, 2], 0);
        let is_refused = matches!(refused, Err(EngineError::ClockOffset { .. }));
        prop_assert!(is_refused || world.time > T0 + HOUR - 30 * SECOND, "{refused:?}");
        // The bad clock is set right. Its revisions never go back, and the other shards reach them after the hour.
        world.shards[2].skew = 0;
        world.write(2, 0, 0);
        world.time += HOUR;
        world.read(&[0, 1, 2], 0).expect("an hour later all are together");
        world.write(0, 0, 1);
        prop_assert_eq!(world.shards[2].assigned, written + 1);
    }
}
