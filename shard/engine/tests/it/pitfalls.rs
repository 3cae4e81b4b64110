//! Each test is named after its line in the list of what others got wrong.

use crate::common::*;
use kindred_engine::{engine::*, error::EngineError, ops::*};
use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::{Key, KeyRange},
};

const ALL: usize = 1 << 20;

fn create(key: &str, value: &str) -> Op {
    txn(vec![compare(key, CompareTarget::Mod(0), CompareResult::Equal)], vec![put(key, value)], vec![])
}

#[test]
fn pitfall_a2_only_one_create_wins() {
    let mut engine = hlc();
    let answers: Vec<bool> = (0..100)
        .map(|i| {
            succeeded(&engine.apply(NOW, create("/registry/pods/a/b", &i.to_string())).expect("accepted"))
        })
        .collect();
    assert!(answers[0] && answers[1..].iter().all(|won| !won));
    engine.publish();
    assert_eq!(engine.range(&all()).expect("current").kvs[0].value()[..], *b"0");
}

#[test]
fn pitfall_a3_a_list_holds_every_key_at_or_below_its_header() {
    let mut engine = hlc();
    let pods = prefix("/registry/pods/");
    for i in 0..50 {
        let answer = engine.apply(NOW, put(&format!("/registry/pods/a/{i}"), "")).expect("accepted");
        let list = engine.range(&query(pods.clone())).expect("current");
        assert!(list.header < header(&answer), "nothing unpublished is shown");
        engine.publish();
        let list = engine.range(&query(pods.clone())).expect("current");
        assert_eq!((list.header, list.count), (header(&answer), i + 1));
    }
}

#[test]
fn pitfall_a4_compaction_keeps_what_is_current_at_a_readable_revision() {
    let mut engine = dense();
    let first = write(&mut engine, put("a", "1"));
    for i in 0..5 {
        write(&mut engine, put("b", &i.to_string()));
    }
    let current = engine.current_all();
    engine.compact(MonoMillis(0), Revision(4)).expect("current");
    while engine.gc(1) {}
    for at in 4..=current.get() {
        let answer = engine.range(&RangeQuery { revision: Some(Revision(at)), ..all() }).expect("readable");
        assert_eq!((answer.count, answer.header), (2, current));
        assert_eq!(answer.kvs[0].mod_revision(), first);
        assert_eq!(answer.kvs[1].mod_revision(), Revision(at));
    }
}

#[test]
fn pitfall_a5_history_joins_live_events_in_order_and_once() {
    let mut engine = dense();
    for key in ["b", "a", "b"] {
        write(&mut engine, put(key, ""));
    }
    let stream = engine.watch_open();
    engine.watch_create(stream, watch(KeyRange::everything(), Some(Revision(2)))).expect("free");
    engine.apply(NOW, put("c", "")).expect("accepted");
    assert_eq!(pull(&mut engine, stream, ALL), ["created 0", "0: +b@2 +a@3 +b@4(2)"]);
    engine.publish();
    write(&mut engine, delete("a"));
    assert_eq!(pull(&mut engine, stream, ALL), ["0: +c@5 -a@6(3)"]);
    assert_eq!(pull(&mut engine, stream, ALL), Vec::<String>::new());
}

/// F27: a watch that is cancelled leaves its place in the queue behind, and nothing is sent for it.
#[test]
fn f27_a_cancelled_watch_leaves_nothing_behind() {
    let mut engine = dense();
    let stream = engine.watch_open();
    for key in ["a", "a", "b"] {
        engine.watch_create(stream, watch(single(key), None)).expect("free");
    }
    engine.watch_create(stream, watch(KeyRange::everything(), None)).expect("free");
    assert_eq!(pull(&mut engine, stream, ALL).len(), 4);
    write(&mut engine, put("a", ""));
    // Both watches have an event that is not given out yet.
    assert!(engine.watch_cancel(stream, WatchId(0)) && engine.watch_cancel(stream, WatchId(3)));
    engine.validate();
    engine.watch_progress(stream);
    assert_eq!(pull(&mut engine, stream, ALL), ["canceled 0", "canceled 3", "1: +a@2", "progress * 2"]);
    engine.validate();
    assert!(engine.watch_cancel(stream, WatchId(1)) && engine.watch_cancel(stream, WatchId(2)));
    write(&mut engine, put("b", ""));
    assert_eq!(pull(&mut engine, stream, ALL), ["canceled 1", "canceled 2"]);
    // The stream is not woken for watches that are gone.
    let _ = engine.take_wakes();
    assert_eq!(pull(&mut engine, stream, ALL), Vec::<String>::new());
    assert!(engine.take_wakes().is_empty());
}

#[test]
fn pitfall_a6_many_watches_a_stream_and_compacted_starts() {
    let mut engine = dense();
    for i in 0..4 {
        write(&mut engine, put("a", &i.to_string()));
    }
    engine.compact(MonoMillis(0), Revision(4)).expect("current");
    while engine.gc(1) {}
    let stream = engine.watch_open();
    for start in [None, Some(Revision(3)), Some(Revision(4)), None] {
        engine.watch_create(stream, watch(single("a"), start)).expect("free");
    }
    write(&mut engine, put("a", "x"));
    let want = ["created 0", "created 1", "compacted 1 at 4", "created 2", "created 3"];
    let said = pull(&mut engine, stream, ALL);
    assert_eq!(said[..5], want);
    // The event at the floor itself comes with the version before it, which etcd has lost by then.
    assert_eq!(said[5..], ["2: +a@4(3) +a@5(4) +a@6(5)", "0: +a@6(5)", "3: +a@6(5)"]);
    assert!(engine.watch_cancel(stream, WatchId(1)), "as etcd: the client may still cancel it");
    assert!(engine.watch_cancel(stream, WatchId(0)));
    assert!(!engine.watch_cancel(stream, WatchId(9)));
    assert_eq!(pull(&mut engine, stream, ALL), ["canceled 1", "canceled 0"]);
}

#[test]
fn pitfall_a6_a_restarted_engine_makes_watchers_relist() {
    let mut engine = hlc();
    let floor = engine.floor();
    let stream = engine.watch_open();
    engine.watch_create(stream, watch(prefix("/registry/pods/"), Some(floor.prev()))).expect("free");
    engine.watch_create(stream, watch(prefix("/registry/pods/"), Some(floor))).expect("free");
    assert_eq!(
        pull(&mut engine, stream, ALL),
        ["created 0".to_owned(), format!("compacted 0 at {floor}"), "created 1".to_owned()]
    );
    let old = engine.range(&RangeQuery { revision: Some(floor.prev()), ..all() });
    assert_eq!(old.map(|_| ()), Err(EngineError::Compacted { floor }));
}

#[test]
fn pitfall_a7_b1_progress_never_overtakes_events() {
    let mut engine = hlc();
    let stream = engine.watch_open();
    engine.watch_create(stream, watch(prefix("/registry/pods/"), None)).expect("free");
    engine.watch_create(stream, watch(prefix("/registry/minions/"), None)).expect("free");
    pull(&mut engine, stream, ALL);
    let first = write(&mut engine, put("/registry/pods/a/1", ""));
    let second = write(&mut engine, put("/registry/pods/a/2", ""));
    engine.watch_progress(stream);
    let third = write(&mut engine, put("/registry/minions/n", ""));
    // One revision a pull: the progress waits for both events below it, and what came later waits for the progress.
    assert_eq!(pull(&mut engine, stream, 1), [format!("0: +/registry/pods/a/1@{first}")]);
    engine.watch_progress(stream);
    assert_eq!(pull(&mut engine, stream, 1), [format!("0: +/registry/pods/a/2@{second}")]);
    assert_eq!(
        pull(&mut engine, stream, 1),
        [format!("progress * {second}"), format!("1: +/registry/minions/n@{third}")]
    );
    assert_eq!(pull(&mut engine, stream, 1), [format!("progress * {third}")]);
    // What the progress covered can be listed, for every Kind on the stream.
    for kind in ["/registry/pods/", "/registry/minions/"] {
        engine.range(&RangeQuery { revision: Some(third), ..query(prefix(kind)) }).expect("readable");
    }
}

#[test]
fn pitfall_a7_no_progress_below_a_start_in_the_future() {
    let mut engine = dense();
    let stream = engine.watch_open();
    engine.watch_create(stream, watch(single("a"), Some(Revision(3)))).expect("free");
    engine.watch_progress(stream);
    assert_eq!(pull(&mut engine, stream, ALL), ["created 0"]);
    write(&mut engine, put("a", "too early"));
    assert_eq!(pull(&mut engine, stream, ALL), Vec::<String>::new());
    write(&mut engine, put("a", ""));
    engine.watch_progress(stream);
    assert_eq!(pull(&mut engine, stream, ALL), ["0: +a@3(2)", "progress * 3"]);
}

#[test]
fn pitfall_a7_progress_for_a_watch_that_begins_now_over_an_idle_store() {
    for mut engine in [dense(), hlc()] {
        let stream = engine.watch_open();
        let spec = WatchSpec { progress_notify: true, ..watch(single("a"), None) };
        engine.watch_create(stream, spec).expect("free");
        let header = engine.current(&[single("a")]);
        engine.watch_progress(stream);
        assert_eq!(pull(&mut engine, stream, ALL), ["created 0".to_owned(), format!("progress * {header}")]);
        // The next revision is above every promise.
        let written = write(&mut engine, put("a", ""));
        assert!(written > header);
        assert_eq!(pull(&mut engine, stream, ALL), [format!("0: +a@{written}")]);
    }
    let mut engine = dense();
    let stream = engine.watch_open();
    let spec = WatchSpec { progress_notify: true, ..watch(single("a"), None) };
    engine.watch_create(stream, spec).expect("free");
    engine.progress_tick(WallMicros(0));
    assert_eq!(pull(&mut engine, stream, ALL), ["created 0", "progress 0 1"]);
}

#[test]
fn pitfall_a8_an_empty_value_is_not_a_deletion() {
    let mut engine = dense();
    let stream = engine.watch_open();
    engine.watch_create(stream, watch(single("a"), None)).expect("free");
    write(&mut engine, put("a", ""));
    assert_eq!(pull(&mut engine, stream, ALL), ["created 0", "0: +a@2"]);
    let answer = engine.range(&all()).expect("current");
    assert_eq!((answer.count, &answer.kvs[0].value()[..]), (1, &b""[..]));
    // An empty value can be compared, while an absent one cannot.
    let empty = |key| vec![compare(key, CompareTarget::Value("".into()), CompareResult::Equal)];
    assert!(succeeded(&engine.apply(NOW, txn(empty("a"), vec![], vec![])).expect("accepted")));
    assert!(!succeeded(&engine.apply(NOW, txn(empty("b"), vec![], vec![])).expect("accepted")));
}

#[test]
fn pitfall_a9_b3_b6_a_slow_watcher_costs_nothing_and_loses_nothing() {
    let mut engine = dense();
    let (slow, quick) = (engine.watch_open(), engine.watch_open());
    for stream in [slow, quick] {
        engine.watch_create(stream, watch(KeyRange::everything(), None)).expect("free");
    }
    let mut heard = 0;
    for i in 0..10_000 {
        write(&mut engine, put(&format!("k{}", i % 7), ""));
        heard +=
            engine.watch_pull(quick, ALL).iter().filter(|o| matches!(o, WatchOut::Events { .. })).count();
    }
    assert_eq!(heard, 10_000);
    engine.take_wakes();
    let mut next = 2;
    loop {
        let out = engine.watch_pull(slow, 10_000);
        if out.is_empty() {
            break;
        }
        for message in out {
            let WatchOut::Events { events, .. } = message else { continue };
            for event in events {
                assert_eq!(event.kv.mod_revision(), Revision(next));
                next += 1;
            }
        }
    }
    assert_eq!(next, 10_002);
    engine.watch_close(slow);
    assert_eq!(engine.stats().watches, 1);
    engine.validate();
}

#[test]
fn pitfall_a10_compares_mean_what_they_say() {
    let mut engine = dense();
    write(&mut engine, put("a", "m"));
    use CompareResult::{Equal, Greater, Less, NotEqual};
    let table = [
        ("a", CompareTarget::Mod(2), Equal, true),
        ("a", CompareTarget::Mod(-1), Equal, false),
        ("a", CompareTarget::Mod(-1), Greater, true),
        ("a", CompareTarget::Mod(2), NotEqual, false),
        ("a", CompareTarget::Version(1), Less, false),
        ("a", CompareTarget::Version(2), Less, true),
        ("a", CompareTarget::Value("l".into()), Greater, true),
        ("b", CompareTarget::Mod(0), Equal, true),
        ("b", CompareTarget::Version(0), Greater, false),
        ("b", CompareTarget::Lease(1), Less, true),
        ("b", CompareTarget::Value("".into()), NotEqual, false),
    ];
    for (key, target, result, want) in table {
        let op = txn(vec![compare(key, target.clone(), result)], vec![], vec![]);
        assert_eq!(succeeded(&engine.apply(NOW, op).expect("accepted")), want, "{key} {target:?} {result:?}");
    }
    // All compares must hold; one over a range must hold for every key of it.
    write(&mut engine, put("b", "m"));
    let yes = compare("a", CompareTarget::Mod(2), Equal);
    let no = compare("b", CompareTarget::Mod(2), Equal);
    assert!(!succeeded(&engine.apply(NOW, txn(vec![yes, no], vec![], vec![])).expect("accepted")));
    let range = |target| Compare { range: KeyRange::everything(), target, result: Equal };
    for (target, want) in [(CompareTarget::Value("m".into()), true), (CompareTarget::Mod(2), false)] {
        let answer = engine.apply(NOW, txn(vec![range(target)], vec![], vec![])).expect("accepted");
        assert_eq!(succeeded(&answer), want);
    }
}

#[test]
fn pitfall_a10_odd_ranges_and_missing_keys() {
    let mut engine = hlc();
    let before = engine.current_all();
    assert_eq!(write(&mut engine, delete("/registry/pods/none")), before, "nothing deleted assigns nothing");
    write(&mut engine, put("/registry/pods/a/1", ""));
    write(&mut engine, put("compact_rev_key", ""));
    let backwards = KeyRange::Span { start: Key::from("z"), end: Some(Key::from("a")) };
    assert_eq!(engine.range(&query(backwards.clone())).map(|a| a.count), Ok(0));
    engine
        .apply(NOW, Op::Delete(Delete { range: backwards, buckets: None, prev_kv: true }))
        .expect("accepted");
    assert_eq!(engine.range(&query(prefix("/registry/"))).map(|a| a.count), Ok(1));
    assert_eq!(engine.range(&all()).map(|a| a.count), Ok(2));
    // Tombstones are not counted, and are freed.
    write(&mut engine, delete("/registry/pods/a/1"));
    assert_eq!(engine.range(&query(prefix("/registry/"))).map(|a| a.count), Ok(0));
    let now = write(&mut engine, put("compact_rev_key", "1"));
    engine.compact(MonoMillis(0), now).expect("current");
    while engine.gc(1) {}
    let stats = engine.stats();
    assert_eq!((stats.keys, stats.events, stats.live_bytes), (1, 1, stats.total_bytes));
    engine.validate();
}

#[test]
fn pitfall_a11_leases_expire_with_delete_events() {
    let (mut engine, lease) = (hlc(), LeaseId(9));
    assert_eq!(engine.lease_grant(MonoMillis(0), lease, 1), Ok(2));
    write(&mut engine, leased("/registry/events/a/1", Some(lease)));
    let stream = engine.watch_open();
    engine.watch_create(stream, watch(prefix("/registry/events/"), None)).expect("free");
    pull(&mut engine, stream, ALL);
    assert!(!engine.lease_expire(NOW, MonoMillis(1_999), 10));
    engine.publish();
    assert_eq!(pull(&mut engine, stream, ALL), Vec::<String>::new());
    engine.lease_expire(NOW, MonoMillis(2_000), 10);
    engine.publish();
    assert_eq!(engine.take_wakes(), [stream]);
    let said = pull(&mut engine, stream, ALL);
    assert!(said.len() == 1 && said[0].starts_with("0: -/registry/events/a/1@"), "{said:?}");
}

#[test]
fn pitfall_a13_a_page_does_not_walk_to_the_end() {
    let mut engine = hlc();
    for i in 0..20_000 {
        engine.apply(NOW, put(&format!("/registry/pods/a/{i:06}"), "")).expect("accepted");
    }
    engine.publish();
    let page = RangeQuery { limit: 1, ..query(prefix("/registry/pods/")) };
    // `bench/tests/instructions.rs` counts that no step depends on the number of keys ("engine page of 1").
    let answer = engine.range(&page).expect("current");
    assert_eq!((answer.count, answer.more, answer.kvs.len()), (20_000, true, 1));
}

#[test]
fn pitfall_b2_a_resumed_watch_does_not_travel_back() {
    let mut engine = dense();
    for _ in 0..5 {
        write(&mut engine, put("a", ""));
    }
    let stream = engine.watch_open();
    engine.watch_create(stream, watch(single("a"), Some(Revision(5)))).expect("free");
    assert_eq!(pull(&mut engine, stream, ALL), ["created 0", "0: +a@5(4) +a@6(5)"]);
}

#[test]
fn pitfall_b4_compacting_a_delete_keeps_its_event() {
    let mut engine = dense();
    write(&mut engine, put("a", ""));
    let deleted = write(&mut engine, delete("a"));
    engine.compact(MonoMillis(0), deleted).expect("current");
    while engine.gc(1) {}
    let stream = engine.watch_open();
    for range in [single("a"), KeyRange::everything()] {
        engine.watch_create(stream, watch(range, Some(deleted))).expect("free");
    }
    assert_eq!(pull(&mut engine, stream, ALL), ["created 0", "created 1", "0: -a@3(2)", "1: -a@3(2)"]);
}

#[test]
fn pitfall_b5_compaction_moves_no_revision() {
    let mut engine = dense();
    write(&mut engine, put("a", ""));
    let deleted = write(&mut engine, delete("a"));
    engine.compact(MonoMillis(0), deleted).expect("current");
    while engine.gc(1) {}
    assert_eq!(engine.current_all(), deleted);
    assert_eq!(write(&mut engine, put("a", "")), deleted.next());
    assert_eq!(engine.range(&all()).map(|a| a.kvs[0].version()), Ok(1));
}

#[test]
fn pitfall_b11_a_txn_reads_old_revisions_consistently() {
    let mut engine = dense();
    let first = write(&mut engine, put("a", "1"));
    let at = Op::Range(RangeQuery { revision: Some(first), ..all() });
    let ops = vec![put("a", "2"), at.clone(), Op::Range(all())];
    let OpAnswer::Txn(answer) = engine.apply(NOW, txn(vec![], ops, vec![])).expect("accepted") else {
        panic!()
    };
    let values: Vec<Vec<u8>> = answer
        .responses
        .iter()
        .filter_map(|r| match r {
            OpAnswer::Range(range) => Some(range.kvs[0].value().to_vec()),
            _ => None,
        })
        .collect();
    assert_eq!(values, [b"1", b"2"]);
    engine.publish();
    engine.compact(MonoMillis(0), answer.header).expect("current");
    let refused = engine.apply(NOW, txn(vec![], vec![put("a", "3"), at], vec![]));
    assert_eq!(refused.map(|_| ()), Err(EngineError::Compacted { floor: answer.header }));
    assert_eq!(engine.range(&all()).map(|a| a.header), Ok(answer.header));
}

#[test]
fn pitfall_b12_a_watch_on_one_key_is_on_one_key() {
    let mut engine = dense();
    let stream = engine.watch_open();
    engine.watch_create(stream, watch(KeyRange::from_wire("a".into(), "".into()), None)).expect("free");
    engine.watch_create(stream, watch(KeyRange::from_wire("b".into(), "\0".into()), None)).expect("free");
    for key in ["a", "a0", "a\0", "b", "c"] {
        write(&mut engine, put(key, ""));
    }
    assert_eq!(pull(&mut engine, stream, ALL)[2..], ["0: +a@2", "1: +b@5 +c@6"]);
}

#[test]
fn pitfall_b13_r7_periodic_progress_promises_the_present() {
    let mut engine = hlc();
    let stream = engine.watch_open();
    for _ in 0..2 {
        let spec = WatchSpec { progress_notify: true, ..watch(prefix("/registry/pods/"), None) };
        engine.watch_create(stream, spec).expect("free");
    }
    pull(&mut engine, stream, ALL);
    // An event that is applied and not published holds the promise back.
    let unpublished = engine.apply(NOW, put("/registry/minions/n", "")).expect("accepted");
    engine.progress_tick(WallMicros(9_000));
    assert_eq!(pull(&mut engine, stream, ALL), Vec::<String>::new());
    engine.publish();
    let shown = engine.current(&[prefix("/registry/pods/")]);
    assert!(shown > header(&unpublished) && shown.get() >> 10 == 9_000);
    assert_eq!(
        pull(&mut engine, stream, ALL),
        [format!("progress 0 {shown}"), format!("progress 1 {shown}")]
    );
    // An idle watch's promise stays above compaction.
    engine.compact(MonoMillis(0), shown).expect("current");
    assert_eq!(pull(&mut engine, stream, ALL), Vec::<String>::new());
    let event = write(&mut engine, put("/registry/pods/a/1", ""));
    assert!(event > shown);
    // A watch that had an event needs no progress.
    pull(&mut engine, stream, ALL);
    engine.progress_tick(WallMicros(10_000));
    assert_eq!(pull(&mut engine, stream, ALL), Vec::<String>::new());
}
