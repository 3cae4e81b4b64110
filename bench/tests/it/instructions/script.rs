//! The counted script: the work of a shard and a router for a call, between the received and the sent bytes.
//!
//! Each path is a separate function that is never inlined, so that a profile shows its cost.

use std::hint::black_box;

use bytes::Bytes;
use kindred_engine::{
    engine::{Engine, EngineConfig, RevisionMode, StreamId, WallMicros, WatchSpec},
    ops::Op,
};
use kindred_partition_config::{
    ids::{LeaseId, Slot},
    key::{Key, KeyRange},
    kind::KindScheme,
    parse,
    state::ClusterState,
};
use kindred_proto::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, compare, request_op::Request,
};
use kindred_router_core::{
    parsed::Parsed,
    plan::{Call, Plan, plan},
    routes::Routes,
    store::{StoreIx, StoreKind},
};
use kindred_shard::{
    convert,
    encode::{self, ServerIds},
};
use kindred_wire::{patch::HeaderPatch, peek::header_revision};
use prost::Message as _;

/// The number of counted calls of each path.
pub const CALLS: u64 = 200;
/// The paths, named after their functions.
pub const PATHS: [&str; 9] = [
    "engine page of 1",
    "router get",
    "router list",
    "router put",
    "router txn put",
    "shard event",
    "shard get",
    "shard list",
    "shard put",
];

const PODS: &str = "/registry/pods/";
const KEYS: u64 = 1_000;
/// The number of keys in the engine of `page of 1`; the cost must not depend on it.
const MANY: u64 = 20_000;
const PAGE: i64 = 500;
const OPS_MAX: usize = 128;
const NOW: WallMicros = WallMicros(1_767_225_600_000_000);
const IDS: ServerIds = ServerIds { cluster_id: 0x1234_5678_9abc, member_id: 0x9abc_def0_1234, raft_term: 3 };
const CONFIG: &str = "default: other\nstores:\n\
    - {name: low, slot: 1, endpoints: ['http://a:1']}\n- {name: high, slot: 2, endpoints: ['http://a:2']}\n\
    - {name: other, slot: 3, endpoints: ['http://a:3']}\npartitions:\n\
    - {metadata: {name: a}, resource: pods, rangeEnd: m, isRangeEndValid: true, serviceGroupId: low}\n\
    - {metadata: {name: b}, resource: pods, rangeStart: m, isRangeStartValid: true, serviceGroupId: high}\n";

fn key(number: u64) -> Bytes {
    Bytes::from(format!("{PODS}default/pod-{number:06}"))
}

fn put(number: u64) -> PutRequest {
    PutRequest { key: key(number), value: Bytes::from(vec![b'x'; 512]), ..PutRequest::default() }
}

fn get(number: u64) -> RangeRequest {
    RangeRequest { key: key(number), ..RangeRequest::default() }
}

fn page(limit: i64) -> RangeRequest {
    let (key, range_end) = (Bytes::from(PODS), Bytes::from("/registry/pods0"));
    RangeRequest { key, range_end, limit, ..RangeRequest::default() }
}

/// kube-apiserver's update: put if unchanged, else read.
fn txn_put(number: u64, mod_revision: i64) -> TxnRequest {
    let unchanged = Compare {
        result: compare::CompareResult::Equal.into(),
        target: compare::CompareTarget::Mod.into(),
        key: key(number),
        target_union: Some(compare::TargetUnion::ModRevision(mod_revision)),
        ..Compare::default()
    };
    TxnRequest {
        compare: vec![unchanged],
        success: vec![RequestOp { request: Some(Request::RequestPut(put(number))) }],
        failure: vec![RequestOp { request: Some(Request::RequestRange(get(number))) }],
    }
}

fn messages<M: prost::Message>(of: impl Fn(u64) -> M) -> Vec<Bytes> {
    (0..CALLS).map(|number| of(number * 3 % KEYS).encode_to_vec().into()).collect()
}

fn engine(keys: u64) -> Engine {
    let config = EngineConfig {
        revisions: RevisionMode::Hlc(Slot::new(1).unwrap()),
        kinds: KindScheme::default(),
        max_clock_offset_micros: 10_000_000,
        min_lease_ttl_s: 2,
    };
    let mut engine = Engine::new(config, NOW);
    for number in 0..keys {
        engine.apply(NOW, Op::Put(convert::put(put(number)).unwrap())).unwrap();
    }
    engine.publish();
    engine
}

/// A shard's part of a call: execute, publish, encode.
fn executed(engine: &mut Engine, op: Op) -> Bytes {
    let answer = engine.apply(NOW, op).unwrap();
    drop(engine.take_applied());
    engine.publish();
    encode::answer(&IDS, &answer)
}

#[inline(never)]
fn counted_shard_put(engine: &mut Engine, requests: &[Bytes]) -> i64 {
    let answers = requests.iter().map(|request| {
        // One half as etcd clients write, the other as kube-apiserver does.
        let put = PutRequest::decode(request.clone()).unwrap();
        let revision =
            header_revision(&executed(engine, Op::Put(convert::put(put.clone()).unwrap()))).unwrap();
        let number = String::from_utf8_lossy(&put.key[put.key.len() - 6..]).parse().unwrap();
        let txn = Op::Txn(Box::new(convert::txn(txn_put(number, revision), OPS_MAX).unwrap()));
        header_revision(&executed(engine, txn)).unwrap()
    });
    answers.max().unwrap()
}

#[inline(never)]
fn counted_shard_get(engine: &mut Engine, requests: &[Bytes]) -> usize {
    let read = |request: &Bytes| {
        let query = convert::range(RangeRequest::decode(request.clone()).unwrap()).unwrap();
        encode::range(&IDS, &engine.range(&query).unwrap()).len()
    };
    requests.iter().map(read).sum()
}

#[inline(never)]
fn counted_shard_list(engine: &mut Engine, requests: &[Bytes]) -> usize {
    counted_pages(engine, requests)
}

#[inline(never)]
fn counted_engine_page_of_1(engine: &mut Engine, requests: &[Bytes]) -> usize {
    counted_pages(engine, requests)
}

fn counted_pages(engine: &mut Engine, requests: &[Bytes]) -> usize {
    let read = |request: &Bytes| {
        let query = convert::range(RangeRequest::decode(request.clone()).unwrap()).unwrap();
        encode::range(&IDS, &engine.range(&query).unwrap()).len()
    };
    requests.iter().map(read).sum()
}

#[inline(never)]
fn counted_shard_event(engine: &mut Engine, stream: StreamId, requests: &[Bytes]) -> usize {
    let mut bytes = 0;
    for request in requests {
        executed(engine, Op::Put(convert::put(PutRequest::decode(request.clone()).unwrap()).unwrap()));
        for out in engine.watch_pull(stream, 1 << 20) {
            encode::watch(&IDS, &out, 1 << 20, |message| bytes += message.len());
        }
    }
    bytes
}

/// A router's part of a call: plan it, and put its ids in the answer's header.
fn routed(routes: &Routes, call: Call, requests: &[Bytes]) -> usize {
    let patch = HeaderPatch {
        cluster_id: Some(IDS.cluster_id),
        member_id: Some(IDS.member_id),
        revision: None,
        raft_term: Some(1),
    };
    let mut stores = 0;
    for request in requests {
        stores += match plan(&Parsed::new(call, request), routes).unwrap() {
            Plan::One { leases, .. } => {
                1 + leases.iter().map(|lease: &LeaseId| lease.get() as usize).sum::<usize>()
            }
            Plan::FanOut(over) => over.stores().len(),
            Plan::Health => 0,
        };
        let mut answer = Vec::with_capacity(64);
        patch.append_to(&mut answer);
        black_box(&answer);
    }
    stores
}

#[inline(never)]
fn counted_router_put(routes: &Routes, requests: &[Bytes]) -> usize {
    routed(routes, Call::Put, requests)
}

#[inline(never)]
fn counted_router_txn_put(routes: &Routes, requests: &[Bytes]) -> usize {
    routed(routes, Call::Txn, requests)
}

#[inline(never)]
fn counted_router_get(routes: &Routes, requests: &[Bytes]) -> usize {
    routed(routes, Call::Range, requests)
}

#[inline(never)]
fn counted_router_list(routes: &Routes, requests: &[Bytes]) -> usize {
    routed(routes, Call::Range, requests)
}

fn routes() -> Routes {
    let state = ClusterState::bootstrap(&parse::parse_config(CONFIG).unwrap()).unwrap();
    let stores = state.stores.iter().map(|store| (store.name.to_string(), StoreKind::Shard)).collect();
    Routes::new(state.map.clone(), KindScheme::default(), stores, StoreIx(2))
}

fn watched(engine: &mut Engine) -> StreamId {
    let stream = engine.watch_open();
    let spec = WatchSpec {
        range: KeyRange::prefix(Key::from(PODS)),
        start: None,
        id: None,
        prev_kv: true,
        no_put: false,
        no_delete: false,
        progress_notify: false,
        fragment: false,
    };
    engine.watch_create(stream, spec).unwrap();
    engine.watch_pull(stream, 1 << 20);
    stream
}

/// Calls every path `CALLS` times, after a shorter run that warms up tables and the allocator.
pub fn run() {
    let calls = usize::try_from(CALLS).unwrap();
    let (puts, gets) = (messages(put), messages(get));
    let (pages, firsts) = (messages(|_| page(PAGE)), messages(|_| page(1)));
    let txns = messages(|number| txn_put(number, 7));
    let mut shard = engine(KEYS);
    let written = counted_shard_put(&mut shard, &puts);
    assert!(written >> 10 >= NOW.0 as i64, "{written}");
    assert!(counted_shard_get(&mut shard, &gets) > calls * 512);
    assert!(counted_shard_list(&mut shard, &pages) > calls * 500 * 512);
    let mut many = engine(MANY);
    let first = counted_engine_page_of_1(&mut many, &firsts);
    assert!((calls * 512..calls * 1024).contains(&first), "{first} bytes");
    let stream = watched(&mut shard);
    assert!(counted_shard_event(&mut shard, stream, &puts) > calls * 2 * 512);
    let routes = routes();
    assert_eq!(counted_router_put(&routes, &puts), calls);
    assert_eq!(counted_router_txn_put(&routes, &txns), calls);
    assert_eq!(counted_router_get(&routes, &gets), calls);
    assert_eq!(counted_router_list(&routes, &pages), 2 * calls);
}
