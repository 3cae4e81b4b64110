//! Requests and answers by table.

use bytes::Bytes;
use kindred_engine::{engine::*, error::EngineError, ops::*};
use kindred_partition_config::{
    ids::{Revision, Slot},
    key::{Key, KeyRange},
    kind::KindScheme,
};

fn engine(revisions: RevisionMode) -> Engine {
    let kinds = KindScheme::default();
    let config = EngineConfig { revisions, kinds, max_clock_offset_micros: 10_000_000, min_lease_ttl_s: 2 };
    Engine::new(config, WallMicros(1_000))
}

fn put(key: &str, value: &str) -> Op {
    Op::Put(Put {
        key: key.into(),
        value: Bytes::copy_from_slice(value.as_bytes()),
        lease: None,
        ignore_value: false,
        ignore_lease: false,
        prev_kv: false,
    })
}

fn delete(key: &str) -> Op {
    Op::Delete(Delete { range: KeyRange::Single(key.into()), prev_kv: true })
}

fn all() -> RangeQuery {
    query(KeyRange::everything())
}

fn query(range: KeyRange) -> RangeQuery {
    RangeQuery {
        range,
        revision: None,
        limit: 0,
        sort: None,
        keys_only: false,
        count_only: false,
        filter: RevisionFilter::default(),
    }
}

fn keys(answer: &RangeAnswer) -> Vec<String> {
    answer.kvs.iter().map(|kv| String::from_utf8_lossy(kv.key()).into_owned()).collect()
}

#[test]
fn dense_counts_as_etcd() {
    let mut engine = engine(RevisionMode::Dense);
    assert_eq!(engine.current_all(), Revision(1));
    let now = WallMicros(1);
    for (op, revision) in [(put("b", "1"), 2), (put("a", "2"), 3), (delete("none"), 3), (delete("b"), 4)] {
        match engine.apply(now, op).unwrap() {
            OpAnswer::Put { header, .. } | OpAnswer::Delete { header, .. } => {
                assert_eq!(header, Revision(revision));
            }
            other => panic!("{other:?}"),
        }
    }
    // R9: nothing is visible before it is published.
    assert_eq!(engine.range(&all()).unwrap().count, 0);
    assert_eq!(engine.current_all(), Revision(1));
    engine.publish();
    let answer = engine.range(&all()).unwrap();
    assert_eq!((keys(&answer), answer.count, answer.header), (vec!["a".to_owned()], 1, Revision(4)));
    let old = engine.range(&RangeQuery { revision: Some(Revision(3)), ..all() }).unwrap();
    assert_eq!((keys(&old), old.header), (vec!["a".to_owned(), "b".to_owned()], Revision(4)));
    let future = engine.range(&RangeQuery { revision: Some(Revision(5)), ..all() });
    assert_eq!(future.unwrap_err(), EngineError::Future { current: Revision(4) });
    engine.compact(Revision(4)).unwrap();
    assert_eq!(engine.compact(Revision(4)), Err(EngineError::Compacted { floor: Revision(4) }));
    while engine.scrub(10) {}
    engine.validate();
    let old = engine.range(&RangeQuery { revision: Some(Revision(3)), ..all() });
    assert_eq!(old.unwrap_err(), EngineError::Compacted { floor: Revision(4) });
}

#[test]
fn hlc_keeps_a_revision_per_kind() {
    let mut engine = engine(RevisionMode::Hlc(Slot::new(3).unwrap()));
    let start = engine.current_all();
    assert_eq!(engine.floor(), start);
    let now = WallMicros(5_000);
    engine.apply(now, put("/registry/pods/a/b", "")).unwrap();
    engine.publish();
    let pods = KeyRange::prefix(Key::from("/registry/pods/"));
    let probe = KeyRange::Single(Key::from("/registry/pods"));
    let nodes = KeyRange::prefix(Key::from("/registry/minions/"));
    let shown = engine.current(std::slice::from_ref(&pods));
    assert!(shown > start);
    assert_eq!(engine.current(&[probe]), shown, "the pseudo-key shows its Kind's revision");
    assert_eq!(engine.current(std::slice::from_ref(&nodes)), start, "an idle Kind stands still");
    let ahead = engine.range(&RangeQuery { revision: Some(shown), ..query(nodes.clone()) });
    assert!(matches!(ahead, Err(EngineError::Future { .. })));
    assert_eq!(engine.range(&all()).unwrap().header, shown);
    let nodes = engine.range(&RangeQuery { revision: Some(shown), ..query(nodes) }).unwrap();
    assert_eq!((nodes.header, nodes.count), (shown, 0), "a read over several Kinds raises them all");
    engine.validate();
}
