use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use kindred_engine::{
    error::EngineError,
    ops::{CompareResult, CompareTarget, Contents, Put, RevisionFilter, Sort, SortTarget},
};
use kindred_partition_config::{ids::Revision, key::Key};
use proptest::{prelude::*, sample::select};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    apply_loop::Respond, core::sample, durability::Logs, handle::spawn, standby::shipping::Shipping,
};

const KINDS: [&str; 2] = ["/registry/pods/", "/registry/leases/"];
/// Some slices.
const KEYS: usize = 700;

fn put(kind: &str, key: usize, value: usize) -> Op {
    Op::Put(Put {
        key: format!("{kind}a/{key:04}").as_str().into(),
        value: Bytes::from(value.to_string()),
        lease: None,
        ignore_value: false,
        ignore_lease: false,
        prev_kv: false,
    })
}

/// Two Kinds of many keys, of which every third was written twice.
fn filled() -> core::Core {
    let mut core = sample::core(sample::settings(), &Arc::new(AtomicU64::new(0)));
    for (kind, key) in KINDS.into_iter().flat_map(|kind| (0..KEYS).map(move |key| (kind, key))) {
        core.apply(put(kind, key, key % 7), ReadHints::default()).unwrap();
        if key % 3 == 0 {
            core.apply(put(kind, key, 9), ReadHints::default()).unwrap();
        }
    }
    core.engine.publish();
    core
}

fn range() -> impl Strategy<Value = KeyRange> {
    (select(&KINDS[..]), 0..KEYS + 50, 0..KEYS + 50, any::<bool>()).prop_map(|(kind, from, to, single)| {
        let key = |at: usize| Key::from(format!("{kind}a/{at:04}").as_str());
        match single {
            true => KeyRange::Single(key(from)),
            false => KeyRange::Span { start: key(from), end: Some(key(to.max(from + 1))) },
        }
    })
}

fn query() -> impl Strategy<Value = Op> {
    let targets =
        [SortTarget::Key, SortTarget::Version, SortTarget::Create, SortTarget::Mod, SortTarget::Value];
    let sort = proptest::option::of((select(targets.to_vec()), any::<bool>(), any::<bool>()));
    (range(), sort, select(&[0, 1, 5, 600][..]), any::<bool>()).prop_map(
        |(range, sort, limit, count_only)| {
            let sort = sort.map(|(target, descending, late)| Sort { target, descending, late });
            let (contents, filter) = (Contents::Whole, RevisionFilter::default());
            Op::Range(RangeQuery { range, revision: None, limit, sort, contents, count_only, filter })
        },
    )
}

fn compare() -> impl Strategy<Value = Compare> {
    let results =
        [CompareResult::Equal, CompareResult::NotEqual, CompareResult::Greater, CompareResult::Less];
    let target = prop_oneof![
        (0_i64..4).prop_map(CompareTarget::Version),
        Just(CompareTarget::Create(0)),
        Just(CompareTarget::Mod(0)),
        (0_usize..10).prop_map(|value| CompareTarget::Value(Bytes::from(value.to_string()))),
    ];
    (range(), target, select(results.to_vec())).prop_map(|(range, target, result)| Compare {
        range,
        target,
        result,
    })
}

fn txn() -> impl Strategy<Value = Txn> {
    let ops = || proptest::collection::vec(query(), 0..4);
    (proptest::collection::vec(compare(), 0..3), ops(), ops()).prop_map(|(compares, success, failure)| Txn {
        compares,
        success,
        failure,
    })
}

/// The header's revision of an answer, and everything else in it.
fn without_headers(answer: OpAnswer) -> (Revision, String) {
    let OpAnswer::Txn(mut txn) = answer else { panic!("{answer:?}") };
    for response in &mut txn.responses {
        let OpAnswer::Range(range) = response else { panic!("{response:?}") };
        assert_eq!(std::mem::replace(&mut range.header, Revision::ZERO), txn.header);
    }
    (txn.header, format!("{} {:?}", txn.succeeded, txn.responses))
}

/// The answer of a transaction that is executed in one turn.
async fn at_once(handle: &Handle, txn: Txn) -> OpAnswer {
    let (answer, answered) = oneshot::channel();
    let (op, answer) = (Op::Txn(Box::new(txn)), Respond::One(answer));
    let request = Request::Apply { op, hints: ReadHints::default(), answer };
    handle.send(request, answered).await.unwrap().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever a transaction reads and compares, its answer is the one of an execution in one turn.
    #[test]
    fn r26_a_transaction_in_slices_answers_as_one_at_once(txns in proptest::collection::vec(txn(), 1..20)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stop = CancellationToken::new();
            let (handle, apply_loop) =
                spawn(filled(), Logs::memory(), Shipping::alone(), Duration::from_secs(5), stop.clone());
            for txn in txns.into_iter().filter(|txn| !core::ranges_of(txn).is_empty()) {
                let whole = at_once(&handle, txn.clone()).await;
                let sliced = handle.read_txn(Arc::new(txn), ReadHints::default(), || true).await.unwrap();
                let ((at, sliced), (above, whole)) = (without_headers(sliced), without_headers(whole));
                assert_eq!(sliced, whole);
                // The branch that is not taken counts too. Who reads nothing at once has the revision of another Kind (R4).
                let reads_nothing = whole.ends_with(" []");
                assert!(at >= above || reads_nothing, "{at} {above}");
            }
            stop.cancel();
            apply_loop.await.unwrap();
        });
    }
}

#[test]
fn what_may_visit_many_keys_is_long() {
    let single = KeyRange::Single("a".into());
    let span = KeyRange::Span { start: "a".into(), end: None };
    let read = |range: &KeyRange, limit: usize| {
        let (range, revision, filter) = (range.clone(), None, RevisionFilter::default());
        let contents = Contents::Whole;
        Op::Range(RangeQuery { range, revision, limit, sort: None, contents, count_only: false, filter })
    };
    let of = |success: Vec<Op>| Txn { compares: Vec::new(), success, failure: Vec::new() };
    assert!(!is_long(&of(vec![read(&single, 0); 128])));
    assert!(!is_long(&of(vec![read(&span, 500)])));
    assert!(is_long(&of(vec![read(&span, 500); 2])));
    assert!(is_long(&of(vec![read(&span, 0)])));
    assert!(!is_long(&of(vec![read(&span, 0), put("/registry/pods/", 1, 1)])), "it writes");
    let target = CompareTarget::Version(1);
    let compares = vec![Compare { range: span, target, result: CompareResult::Equal }];
    assert!(is_long(&Txn { compares, ..of(Vec::new()) }));
}

/// One transaction of 128 ranges of a large Kind held the loop for seconds, and routers took the store for dead.
#[tokio::test]
async fn f78_others_are_answered_while_a_transaction_reads_for_long() {
    let stop = CancellationToken::new();
    let (handle, apply_loop) =
        spawn(filled(), Logs::memory(), Shipping::alone(), Duration::from_secs(5), stop.clone());
    let sort = Some(Sort { target: SortTarget::Value, descending: false, late: false });
    let read = Op::Range(RangeQuery {
        range: KeyRange::Span { start: KINDS[0].into(), end: None },
        revision: None,
        limit: 1,
        sort,
        contents: Contents::Index,
        count_only: false,
        filter: RevisionFilter::default(),
    });
    let written = Arc::new(AtomicUsize::new(0));
    let (count, other) = (written.clone(), handle.clone());
    let writer = tokio::spawn(async move {
        loop {
            other.apply(put(KINDS[1], 0, 0), ReadHints::default()).await.unwrap();
            count.fetch_add(1, Relaxed);
        }
    });
    tokio::task::yield_now().await;
    let txn = Txn { compares: Vec::new(), success: vec![read; 128], failure: Vec::new() };
    let before = written.load(Relaxed);
    handle.apply(Op::Txn(Box::new(txn)), ReadHints::default()).await.unwrap();
    let meanwhile = written.load(Relaxed) - before;
    assert!(meanwhile >= 128, "{meanwhile} writes of another client");
    writer.abort();
    stop.cancel();
    apply_loop.await.unwrap();
}

/// All compares and reads of a transaction see one state, also beside writers and compactions.
#[tokio::test]
async fn r26_all_reads_of_a_transaction_see_one_state() {
    const ROUNDS: usize = 40;
    let stop = CancellationToken::new();
    let (handle, apply_loop) =
        spawn(filled(), Logs::memory(), Shipping::alone(), Duration::from_secs(5), stop.clone());
    let both = |value| {
        let success = KINDS.map(|kind| put(kind, 0, value)).to_vec();
        Op::Txn(Box::new(Txn { compares: Vec::new(), success, failure: Vec::new() }))
    };
    // The first key of either Kind always has the same value, and is the newest.
    handle.apply(both(0), ReadHints::default()).await.unwrap();
    let other = handle.clone();
    let writer = tokio::spawn(async move {
        for value in 1.. {
            let written = other.apply(both(value), ReadHints::default()).await.unwrap();
            if value % 20 == 0
                && let OpAnswer::Txn(TxnAnswer { header, .. }) = written
            {
                // It waits for what reads hold.
                other.compact(header, false).await.unwrap();
            }
        }
    });
    let all = |kind: &str, target: SortTarget| {
        let end = Key::from(format!("{}0", kind.trim_end_matches('/')).as_str());
        Op::Range(RangeQuery {
            range: KeyRange::Span { start: kind.into(), end: Some(end) },
            revision: None,
            limit: 0,
            sort: Some(Sort { target, descending: true, late: false }),
            contents: Contents::Whole,
            count_only: false,
            filter: RevisionFilter::default(),
        })
    };
    for _ in 0..ROUNDS {
        // The newest key comes first.
        let success = [KINDS[0], KINDS[1], KINDS[0]].map(|kind| all(kind, SortTarget::Mod)).to_vec();
        let txn = Txn { compares: Vec::new(), success, failure: Vec::new() };
        let answer = handle.apply(Op::Txn(Box::new(txn)), ReadHints::default()).await.unwrap();
        let OpAnswer::Txn(answer) = answer else { panic!("{answer:?}") };
        let first = answer.responses.iter().map(|response| match response {
            OpAnswer::Range(range) => (range.kvs.len(), range.kvs[0].mod_revision(), range.kvs[0].value()),
            other => panic!("{other:?}"),
        });
        let first: Vec<_> = first.collect();
        assert!(first.iter().all(|one| *one == first[0] && one.0 == KEYS), "{first:?}");
    }
    writer.abort();
    stop.cancel();
    apply_loop.await.unwrap();
}

/// A revision above that of the transaction is in the future, also when it has come until it is read.
#[tokio::test]
async fn a_sliced_transaction_refuses_the_future_and_leaves_negative_revisions_to_one_turn() {
    let stop = CancellationToken::new();
    let (handle, apply_loop) =
        spawn(filled(), Logs::memory(), Shipping::alone(), Duration::from_secs(5), stop.clone());
    let read = |revision: Option<Revision>| {
        let (contents, filter) = (Contents::Whole, RevisionFilter::default());
        let range = KeyRange::Span { start: KINDS[0].into(), end: None };
        let query = RangeQuery { range, revision, limit: 0, sort: None, contents, count_only: false, filter };
        let txn = Txn { compares: Vec::new(), success: vec![Op::Range(query)], failure: Vec::new() };
        handle.apply(Op::Txn(Box::new(txn)), ReadHints::default())
    };
    let OpAnswer::Txn(answer) = read(None).await.unwrap() else { panic!() };
    let future = read(Some(Revision(answer.header.get() + 1))).await.unwrap_err();
    assert!(matches!(future, KvError::Engine(EngineError::Future { .. })), "{future:?}");
    // It lies below where this engine began, as below a compaction.
    let negative = read(Some(Revision(-1))).await.unwrap_err();
    assert!(matches!(negative, KvError::Engine(EngineError::Compacted { .. })), "{negative:?}");
    stop.cancel();
    apply_loop.await.unwrap();
}
