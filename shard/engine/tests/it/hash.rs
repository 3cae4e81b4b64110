//! HashKV, compared with values that a real etcd 3.7.3 gave for the same requests.

use crate::common::*;
use kindred_engine::{
    engine::{Engine, MonoMillis},
    ops::*,
};
use kindred_partition_config::ids::Revision;

fn hash(engine: &mut Engine, at: i64) -> (u32, i64, i64) {
    let (hash, at, compacted) = engine.hash_kv(Revision::from_wire(at)).expect("readable");
    (hash, at.get(), compacted.get())
}

#[test]
fn equals_etcds() {
    let mut engine = dense();
    assert_eq!(hash(&mut engine, 0), (1_084_519_789, 1, -1));
    for op in [put("a", "1"), put("b", "2"), put("a", "3"), delete("b"), put("c", "")] {
        write(&mut engine, op);
    }
    assert_eq!(hash(&mut engine, 0), (1_947_802_976, 6, -1));
    assert_eq!(hash(&mut engine, 3), (1_827_592_406, 3, -1));
    assert_eq!(hash(&mut engine, 4), (2_069_675_932, 4, -1));
    // A negative revision hashes nothing.
    assert_eq!(engine.hash_kv(Some(Revision(-1))).unwrap(), (1_084_519_789, Revision(-1), Revision(-1)));

    engine.compact(MonoMillis(0), Revision(4)).expect("current");
    for collected in [false, true] {
        while collected && engine.gc(1) {}
        assert_eq!(hash(&mut engine, 0), (323_977_103, 6, 4), "collected: {collected}");
        assert_eq!(hash(&mut engine, 5), (1_468_967_122, 5, 4), "collected: {collected}");
    }
    engine.compact(MonoMillis(0), Revision(5)).expect("current");
    while engine.gc(1) {}
    assert_eq!(hash(&mut engine, 0), (244_968_164, 6, 5));
    // Every key is deleted, so a compaction at 8 leaves no version, and etcd hashes all versions that it still has.
    write(&mut engine, delete("a"));
    write(&mut engine, delete("c"));
    assert_eq!(hash(&mut engine, 0), (1_101_635_891, 8, 5));
    engine.compact(MonoMillis(0), Revision(7)).expect("current");
    assert_eq!(hash(&mut engine, 0), (2_172_744_096, 8, 7));
    while engine.gc(1) {}
    assert_eq!(hash(&mut engine, 0), (2_172_744_096, 8, 7));
    engine.compact(MonoMillis(0), Revision(8)).expect("current");
    assert_eq!(hash(&mut engine, 0), (1_084_519_789, 8, 8));
    // Two changes at one revision.
    let is_x = compare("value(\"x\")", CompareTarget::Value("0".into()), CompareResult::Greater);
    write(&mut engine, txn(vec![is_x], vec![], vec![put("x", "1"), put("y", "2")]));
    assert_eq!(hash(&mut engine, 0), (3_651_214_263, 9, 8));
}
