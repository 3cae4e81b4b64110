//! R25: what the clock skips at a start may have been shown by a process of which the disk is lost.

use kindred_engine::engine::{Engine, WallMicros};
use kindred_engine::error::EngineError;
use kindred_engine::recover::Recovered;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;

use crate::common::{pull, query, watch};
use crate::recovery::{
    standby::hlc,
    world::{MONO, World, config, mixed, put},
};

const KEY: &str = "/registry/pods/a/x";
/// When the ceiling is, and when the clock is confirmed.
const CEILING: Revision = Revision(2_000_000 << 10);
const LATER: WallMicros = WallMicros(9_000_000);

fn single() -> KeyRange {
    KeyRange::Single(KEY.into())
}

fn is_told(engine: &mut Engine, start: Revision) -> bool {
    let stream = engine.watch_open();
    engine.watch_create(stream, watch(single(), Some(start))).expect("a watch");
    let told = pull(engine, stream, 1 << 20);
    engine.watch_close(stream);
    told.iter().any(|line| line.starts_with("compacted"))
}

fn begin(records: &[kindred_engine::durability::Logged], now: WallMicros) -> Engine {
    let mut recovered = Recovered { start: CEILING, ..Recovered::default() };
    records.iter().for_each(|logged| recovered.push(logged.clone()));
    Engine::recover(config(hlc()), now, MONO, recovered).expect("no clock is off")
}

#[test]
fn r25_what_the_clock_skips_is_a_gap() {
    let mut world = World::new(hlc(), mixed());
    world.apply(put(KEY, None));
    world.log();
    // A clock that is confirmed later, and one that is followed at once.
    for waits in [true, false] {
        let mut records = world.all();
        let mut engine = begin(&records, if waits { WallMicros(0) } else { LATER });
        let shown = engine.current_all();
        if waits {
            assert!(shown.get() - CEILING.get() <= 1 << 10 && !is_told(&mut engine, shown.next()));
            engine.go_on(LATER);
        }
        let until = engine.current_all();
        assert_eq!(until.get() >> 10, 9_000_000, "it shows the present everywhere");
        for (start, told) in [(CEILING, false), (Revision(CEILING.get() + (2 << 10)), true), (until, false)] {
            assert_eq!(is_told(&mut engine, start), told, "{start}, {waits}");
        }
        let within = query(single());
        let within = kindred_engine::ops::RangeQuery { revision: Some(until.prev()), ..within };
        assert!(matches!(engine.range(&within), Err(EngineError::Compacted { floor }) if floor == until));
        assert_eq!(engine.range(&query(single())).expect("the present").kvs.len(), 1);
        // Once only, however often it is told to.
        engine.go_on(WallMicros(99_000_000));
        assert_eq!(engine.current_all(), until);
        // A later start knows it too.
        let applied = engine.take_applied();
        records.extend(applied.fsync.iter().chain(&applied.buffered).cloned());
        let mut again = begin(&records, WallMicros(0));
        assert!(is_told(&mut again, until.prev()) && !is_told(&mut again, CEILING));
    }
}
