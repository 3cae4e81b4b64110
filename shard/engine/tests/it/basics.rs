//! Tables of requests and their answers.

use crate::common::*;
use kindred_engine::{
    durability::{Durability, KindModes},
    engine::*,
    error::EngineError,
    ops::*,
};
use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::{Key, KeyRange},
};

#[test]
fn dense_counts_as_etcd() {
    let mut engine = dense();
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
    engine.compact(MonoMillis(0), Revision(4)).unwrap();
    assert_eq!(
        engine.compact(MonoMillis(0), Revision(4)),
        Err(EngineError::Compacted { floor: Revision(4) })
    );
    while engine.gc(10) {}
    engine.validate();
    let old = engine.range(&RangeQuery { revision: Some(Revision(3)), ..all() });
    assert_eq!(old.unwrap_err(), EngineError::Compacted { floor: Revision(4) });
}

#[test]
fn hlc_keeps_a_revision_per_kind() {
    let mut engine = hlc();
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

#[test]
fn refused_requests_change_nothing() {
    let mut engine = dense();
    write(&mut engine, put("a", "1"));
    let ignoring = |key: &str| match put(key, "") {
        Op::Put(put) => Op::Put(Put { ignore_value: true, ..put }),
        other => other,
    };
    let at = |revision: i64| Op::Range(RangeQuery { revision: Some(Revision(revision)), ..all() });
    let lease = LeaseId(7);
    let table = [
        (leased("b", Some(lease)), EngineError::LeaseNotFound(lease)),
        (ignoring("b"), EngineError::KeyNotFound),
        (txn(vec![], vec![put("b", "2"), ignoring("c")], vec![]), EngineError::KeyNotFound),
        (
            txn(vec![], vec![put("b", "2"), leased("c", Some(lease))], vec![]),
            EngineError::LeaseNotFound(lease),
        ),
        // As in etcd, the revision that the transaction will assign is in the future of its own reads.
        (txn(vec![], vec![put("b", "2"), at(3)], vec![]), EngineError::Future { current: Revision(2) }),
        (
            txn(vec![], vec![txn(vec![], vec![put("b", "2"), at(9)], vec![])], vec![]),
            EngineError::Future { current: Revision(2) },
        ),
    ];
    for (op, error) in table {
        assert_eq!(engine.apply(NOW, op).map(|_| ()), Err(error));
        engine.publish();
        assert_eq!(engine.range(&all()).map(|a| (a.count, a.header)), Ok((1, Revision(2))));
        engine.validate();
    }
    // A read at the revision before its own write is accepted.
    let answer = engine.apply(NOW, txn(vec![], vec![put("b", "2"), at(2)], vec![])).expect("accepted");
    let OpAnswer::Txn(TxnAnswer { responses, .. }) = answer else { panic!() };
    assert!(matches!(&responses[1], OpAnswer::Range(RangeAnswer { count: 1, header: Revision(3), .. })));
}

#[test]
fn nested_headers_are_etcds() {
    let mut engine = dense();
    write(&mut engine, put("a", "1"));
    let nested = txn(vec![], vec![Op::Range(all()), put("b", "2"), Op::Range(all())], vec![]);
    let ops = vec![Op::Range(all()), delete("none"), nested, delete("none")];
    let OpAnswer::Txn(answer) = engine.apply(NOW, txn(vec![], ops, vec![])).expect("accepted") else {
        panic!()
    };
    let headers: Vec<i64> = answer.responses.iter().map(|r| header(r).get()).collect();
    assert_eq!((answer.header.get(), headers), (3, vec![2, 2, 0, 3]));
    let OpAnswer::Txn(nested) = &answer.responses[2] else { panic!() };
    let headers: Vec<i64> = nested.responses.iter().map(|r| header(r).get()).collect();
    assert_eq!(headers, [2, 3, 3]);
}

#[test]
fn sorts_filters_and_limits_as_etcd() {
    let mut engine = dense();
    for (key, value) in [("c", "1"), ("a", "3"), ("b", "2"), ("c", "0")] {
        write(&mut engine, put(key, value));
    }
    let sort = |target, descending| Some(Sort { target, descending, late: false });
    let late = Some(Sort { target: SortTarget::Value, descending: false, late: true });
    let filter = RevisionFilter::default();
    let table = [
        (all(), "abc", false),
        (RangeQuery { limit: 2, ..all() }, "ab", true),
        (RangeQuery { sort: sort(SortTarget::Key, true), limit: 2, ..all() }, "cb", true),
        (RangeQuery { sort: sort(SortTarget::Value, false), ..all() }, "cba", false),
        (RangeQuery { sort: sort(SortTarget::Mod, false), limit: 1, ..all() }, "a", true),
        (RangeQuery { sort: sort(SortTarget::Create, false), ..all() }, "cab", false),
        // A sort without an order covers only the keys that the limit let through, as in etcd.
        (RangeQuery { sort: late, limit: 1, ..all() }, "b", true),
        (RangeQuery { sort: late, ..all() }, "cba", false),
        (RangeQuery { sort: sort(SortTarget::Version, true), ..all() }, "cab", false),
        (
            RangeQuery { filter: RevisionFilter { min_mod: Some(Revision(4)), ..filter }, ..all() },
            "bc",
            false,
        ),
        (
            RangeQuery { filter: RevisionFilter { max_create: Some(Revision(2)), ..filter }, ..all() },
            "c",
            false,
        ),
        (
            RangeQuery { filter: RevisionFilter { max_mod: Some(Revision(4)), ..filter }, limit: 1, ..all() },
            "a",
            true,
        ),
        (
            RangeQuery {
                filter: RevisionFilter { min_create: Some(Revision(3)), ..filter },
                limit: 2,
                ..all()
            },
            "ab",
            false,
        ),
    ];
    for (query, want, more) in table {
        let answer = engine.range(&query).expect("current");
        assert_eq!(
            (keys(&answer).concat().as_str(), answer.more, answer.count),
            (want, more, 3),
            "{query:?}"
        );
    }
}

#[test]
fn leases_take_their_keys_along() {
    let (mut engine, lease, other) = (dense(), LeaseId(7), LeaseId(8));
    let then = MonoMillis(0);
    assert_eq!(engine.lease_grant(then, lease, 10), Ok(10));
    engine.lease_grant(then, other, 10).expect("free");
    for key in ["b", "a", "c", "d"] {
        write(&mut engine, leased(key, Some(lease)));
    }
    write(&mut engine, leased("c", Some(other)));
    write(&mut engine, leased("d", None));
    let names = |engine: &Engine, lease| -> Vec<String> {
        let keys = engine.lease_keys(lease, None).expect("nothing moves");
        keys.into_iter().flatten().map(|k| k.to_string()).collect()
    };
    assert_eq!((names(&engine, lease).concat(), names(&engine, other).concat()), ("ab".into(), "c".into()));
    let ignoring = match put("a", "new") {
        Op::Put(put) => Op::Put(Put { ignore_lease: true, ..put }),
        other => other,
    };
    write(&mut engine, ignoring);
    assert_eq!(names(&engine, lease).concat(), "ab");
    write(&mut engine, delete("b"));
    assert_eq!(names(&engine, lease).concat(), "a");
    write(&mut engine, leased("b", Some(lease)));

    let stream = engine.watch_open();
    engine.watch_create(stream, watch(KeyRange::everything(), None)).expect("free");
    let (revision, stores) = engine.lease_revoke(NOW, lease).expect("there");
    engine.publish();
    assert_eq!((revision, stores), (engine.current_all(), vec![]));
    // One revision, in key order (B10, C4).
    let want = ["created 0".to_owned(), format!("0: -a@{revision}(8) -b@{revision}(10)")];
    assert_eq!(pull(&mut engine, stream, 1 << 20), want);
    assert_eq!(
        engine.apply(NOW, leased("x", Some(lease))).map(|_| ()),
        Err(EngineError::LeaseNotFound(lease))
    );
    assert!(!engine.lease_expire(NOW, MonoMillis(10_000), 10));
    engine.publish();
    assert_eq!(engine.range(&all()).map(|a| keys(&a).concat()), Ok("d".to_owned()));
    engine.validate();
}

/// The answer to a revoke showed what was visible, although the last key of the lease had just been deleted: at that
/// revision the key was there, with the lease that was said to be gone.
#[test]
fn f56_a_revoke_shows_no_revision_at_which_a_key_has_the_lease() {
    for mut engine in [dense(), hlc()] {
        let lease = LeaseId(7);
        engine.lease_grant(MonoMillis(0), lease, 60).expect("free");
        write(&mut engine, leased("a", Some(lease)));
        let deleted = header(&engine.apply(NOW, delete("a")).expect("accepted"));
        let (revoked, _) = engine.lease_revoke(NOW, lease).expect("there");
        assert!(revoked >= deleted, "{revoked} {deleted}");
        engine.publish();
        assert_eq!(revoked, engine.current_all(), "it is visible when the answer is sent");
    }
}

#[test]
fn a_long_read_is_not_disturbed_by_compaction() {
    let mut engine = dense();
    for i in 0..10 {
        write(&mut engine, put(&format!("k{i}"), "old"));
    }
    let mut open = engine.open_range(&KeyRange::everything(), None).expect("current");
    assert_eq!((open.count, open.at), (10, Revision(11)));
    let mut got = engine.next_chunk(&mut open, 3, 1 << 20).unwrap();
    for i in 0..10 {
        write(&mut engine, if i % 2 == 0 { delete(&format!("k{i}")) } else { put(&format!("k{i}"), "new") });
    }
    write(&mut engine, put("k0", "again"));
    engine.compact(MonoMillis(0), Revision(22)).expect("current");
    while engine.gc(1) {}
    engine.validate();
    loop {
        let chunk = engine.next_chunk(&mut open, 4, 1 << 20).unwrap();
        if chunk.is_empty() {
            break;
        }
        got.extend(chunk);
    }
    assert_eq!(got.len(), 10);
    assert!(got.iter().all(|kv| kv.value()[..] == *b"old"));
    engine.close_range(open);
    write(&mut engine, put("z", ""));
    engine.compact(MonoMillis(0), Revision(23)).expect("current");
    while engine.gc(1) {}
    engine.validate();
    let stats = engine.stats();
    assert_eq!((stats.keys, stats.events), (7, 1), "the pin's versions are freed with it");
    assert_eq!(stats.live_bytes, stats.total_bytes);
}

#[test]
fn an_event_tells_what_was_before_its_revision() {
    let mut engine = dense();
    let stream = engine.watch_open();
    engine.watch_create(stream, watch(KeyRange::everything(), Some(Revision(2)))).unwrap();
    // Nested transactions may put a key and delete it again.
    let nested = |op| txn(vec![], vec![op], vec![]);
    write(&mut engine, txn(vec![], vec![nested(put("a", "1")), nested(delete("a"))], vec![]));
    write(&mut engine, put("a", "2"));
    write(&mut engine, txn(vec![], vec![nested(put("a", "3")), nested(delete("a"))], vec![]));
    write(&mut engine, put("a", "4"));
    write(&mut engine, txn(vec![], vec![nested(delete("a")), nested(put("a", "5"))], vec![]));
    engine.validate();
    let events = "0: +a@2 -a@2 +a@3 +a@4(3) -a@4(3) +a@5 -a@6(5) +a@6";
    assert_eq!(pull(&mut engine, stream, 1 << 20), ["created 0", events]);
}

#[test]
fn a_kind_tells_what_it_takes_and_what_was_written_to_it() {
    let mut engine = hlc();
    let load = |engine: &Engine, range: KeyRange| engine.loads(&[range]);
    let pods = || KeyRange::prefix("/registry/pods/".into());
    assert_eq!(load(&engine, pods()), [], "nobody asked for it");
    for op in [put("/registry/pods/a", "1"), put("/registry/pods/a", "22"), put("/registry/pods/b", "3")] {
        write(&mut engine, op);
    }
    write(&mut engine, put("/registry/minions/n", "4"));
    let [kind] = &load(&engine, pods())[..] else { panic!("one Kind") };
    assert_eq!((kind.prefix.as_ref(), kind.keys), (&b"/registry/pods/"[..], 2));
    let versions = engine.range(&query(pods())).unwrap().kvs;
    let encoded: u64 = versions.iter().map(|version| version.encoded_len() as u64).sum();
    assert!(kind.written_bytes > encoded && kind.written_bytes < 2 * encoded, "three versions, two live");
    assert!(kind.bytes > kind.live_bytes && kind.live_bytes > encoded, "{kind:?}");
    assert_eq!(kind.held_bytes, kind.bytes);
    assert_eq!(kind.bytes, engine.kind_bytes(b"/registry/pods/"));
    // A part of a Kind reports the whole Kind; the range of all keys reports every Kind and the keys of none.
    assert_eq!(load(&engine, KeyRange::Single("/registry/pods/zz".into()))[0], *kind);
    let all = load(&engine, KeyRange::everything());
    assert_eq!(all.iter().map(|kind| kind.keys).collect::<Vec<_>>(), [0, 2, 1]);
    let total: u64 = engine.written().map(|(_, bytes)| bytes).sum();
    assert_eq!(total, all.iter().map(|kind| kind.written_bytes).sum::<u64>());
}

/// A feed whose cursor stops at an unpublished event promises nothing above it, even if none of its ranges shows that
/// event's revisions: a pseudo-key that does not exist shows its Kind's, while a key of that name would be in no Kind.
#[test]
fn r6_a_watermark_stays_below_what_the_cursor_waits_for() {
    let mut engine = hlc();
    let kinds = [(Key::from("/registry/services/specs/"), Durability::None)].into();
    engine.set_modes(KindModes { generation: 1, default: Durability::Fsync, kinds }).unwrap();
    engine.log_changes();
    let ranges = vec![single("/registry/pods"), single("/registry/services/specs/a/x")];
    let feed = engine.feed_open(ranges, None);
    engine.apply(NOW, put("/registry/health", "waits for the disk")).unwrap();
    let written = header(&engine.apply(NOW, put("/registry/services/specs/a/x", "does not")).unwrap());
    let mark = engine.take_applied().mark;
    engine.publish();
    let said = engine.feed_pull(feed, 1 << 20).unwrap();
    assert!(said.events.is_empty() && said.watermark.is_none_or(|watermark| watermark < written), "{said:?}");
    engine.publish_fsync(mark);
    let said = engine.feed_pull(feed, 1 << 20).unwrap();
    assert_eq!(said.events.len(), 1);
    assert!(said.watermark >= Some(written), "{said:?}");
}

/// A revision between the beginnings of two shards can be compacted on both.
#[test]
fn f26_where_a_store_began_is_no_compaction() {
    let mut engine = hlc();
    let begun = engine.floor();
    let refused = |floor| Err(EngineError::Compacted { floor });
    assert_eq!(engine.compact(MonoMillis(0), begun.prev().prev()), Ok(None));
    assert_eq!(engine.compact(MonoMillis(0), begun.prev().prev()), refused(begun.prev().prev()), "again");
    assert_eq!(engine.compact(MonoMillis(0), begun), Ok(None));
    assert_eq!(engine.floor(), begun, "what is current is readable");
    let at = write(&mut engine, put("/registry/pods/a", "1"));
    assert_eq!(engine.compact(MonoMillis(0), at), Ok(None));
    assert_eq!(engine.compact(MonoMillis(0), begun.next()), refused(at));
    assert_eq!(engine.floor(), at);
}

#[test]
fn f29_the_count_of_the_next_page_is_what_the_last_one_left() {
    let mut engine = hlc();
    let name = |n: usize| format!("/registry/pods/a/{n:04}");
    for n in 0..100 {
        write(&mut engine, put(&name(n), ""));
    }
    let pods = |from: &str| {
        query(KeyRange::Span { start: Key::from(from), end: Some(Key::from("/registry/pods0")) })
    };
    let first = engine.range(&RangeQuery { limit: 10, ..pods("/registry/pods/") }).unwrap();
    assert_eq!((first.count, first.more), (100, true));
    for page in 1..10 {
        // Creates and deletes before and behind the page, and a list of the present beside it.
        write(&mut engine, delete(&name(page)));
        write(&mut engine, delete(&name(99 - page)));
        write(&mut engine, put(&format!("{}-new", name(50)), ""));
        let now = engine.range(&RangeQuery { limit: 10, ..pods("/registry/pods/") }).unwrap();
        assert_eq!(now.count, 101 - 2 * page as u64);
        let from = format!("{}\0", name(page * 10 - 1));
        let next = RangeQuery { limit: 10, revision: Some(first.header), ..pods(&from) };
        // Repeated, the answer is the same.
        for _ in 0..2 {
            let answer = engine.range(&next).unwrap();
            assert_eq!((answer.count, answer.more), (100 - 10 * page as u64, page < 9));
            assert_eq!(keys(&answer).first(), Some(&name(page * 10)));
        }
    }
}
