//! Compares reads over simulated stores during writes with reads of one store that holds the same history.

use std::collections::BTreeMap;
use std::sync::Mutex;

use bytes::Bytes;
use futures_util::FutureExt as _;
use kindred_partition_config::key::{Key, KeyRange};
use kindred_proto::{etcdserverpb as pb, mvccpb};
use kindred_router_core::parts::Part;
use kindred_router_core::store::StoreIx;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use proptest::prelude::*;
use prost::Message as _;

use super::*;

/// A store: every version of every key, and its current revision.
#[derive(Debug, Clone, Default)]
struct Fake {
    versions: Vec<mvccpb::KeyValue>,
    current: i64,
}

impl Fake {
    /// An empty value deletes the key.
    fn write(&mut self, key: &str, value: &str, revision: i64) {
        let last = self.versions.iter().rev().find(|kv| kv.key == key.as_bytes());
        let live = last.filter(|kv| kv.version > 0).cloned();
        self.current = revision;
        if value.is_empty() && live.is_none() {
            return;
        }
        self.versions.push(mvccpb::KeyValue {
            key: key.to_owned().into(),
            value: value.to_owned().into(),
            create_revision: live.as_ref().map_or(revision, |kv| kv.create_revision),
            mod_revision: revision,
            version: if value.is_empty() { 0 } else { live.map_or(0, |kv| kv.version) + 1 },
            lease: 0,
        });
    }

    fn range(&self, request: &pb::RangeRequest) -> Result<pb::RangeResponse, Status> {
        if request.revision > self.current {
            return Err(grpc::status(EtcdError::FutureRevision));
        }
        let at = if request.revision > 0 { request.revision } else { self.current };
        let range = KeyRange::from_wire(request.key.clone(), request.range_end.clone());
        let mut newest = BTreeMap::new();
        for kv in self.versions.iter().filter(|kv| kv.mod_revision <= at && range.contains(&kv.key)) {
            newest.insert(kv.key.clone(), kv.clone());
        }
        let mut kvs: Vec<_> = newest.into_values().filter(|kv| kv.version > 0).collect();
        let header = Some(pb::ResponseHeader { revision: self.current, ..Default::default() });
        let count = kvs.len() as i64;
        if request.count_only {
            return Ok(pb::RangeResponse { header, count, ..Default::default() });
        }
        let above = |bound: i64, revision: i64| bound == 0 || revision >= bound;
        let below = |bound: i64, revision: i64| bound == 0 || revision <= bound;
        kvs.retain(|kv| {
            above(request.min_mod_revision, kv.mod_revision)
                && below(request.max_mod_revision, kv.mod_revision)
                && above(request.min_create_revision, kv.create_revision)
                && below(request.max_create_revision, kv.create_revision)
        });
        let number = |kv: &mvccpb::KeyValue| match request.sort_target {
            1 => kv.version,
            2 => kv.create_revision,
            3 => kv.mod_revision,
            _ => 0,
        };
        let by = |kv: &mvccpb::KeyValue| match request.sort_target {
            0 => kv.key.clone(),
            4 => kv.value.clone(),
            _ => Bytes::new(),
        };
        let filtered = request.min_mod_revision + request.max_mod_revision > 0
            || request.min_create_revision + request.max_create_revision > 0;
        if request.sort_order == 0 && !filtered && request.limit > 0 {
            // etcd reads no more than this before it sorts.
            kvs.truncate(request.limit as usize + 1);
        }
        kvs.sort_by(|a, b| {
            let order = number(a).cmp(&number(b)).then_with(|| by(a).cmp(&by(b)));
            (if request.sort_order == 2 { order.reverse() } else { order }).then_with(|| a.key.cmp(&b.key))
        });
        let more = request.limit > 0 && kvs.len() as i64 > request.limit;
        if more {
            kvs.truncate(request.limit as usize);
        }
        if request.keys_only {
            kvs.iter_mut().for_each(|kv| kv.value = Bytes::new());
        }
        Ok(pb::RangeResponse { header, kvs, more, count })
    }
}

/// Several stores, and writes that happen between the calls of a read.
#[derive(Debug)]
struct Cluster {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stores: Vec<Fake>,
    whole: Fake,
    layout: fn(&str) -> usize,
    writes: Vec<(String, String)>,
    /// A write happens at every so many calls; 0 for never.
    every: usize,
    calls: usize,
    clock: i64,
    down: Option<StoreIx>,
}

impl State {
    fn write(&mut self) -> i64 {
        let Some((key, value)) = self.writes.pop() else { return self.clock };
        self.clock += 10;
        let store = (self.layout)(&key);
        self.clock = self.clock.max(self.stores[store].current + 10);
        self.stores[store].write(&key, &value, self.clock);
        self.whole.write(&key, &value, self.clock);
        self.clock
    }

    fn call(&mut self, store: StoreIx) -> Result<&mut Fake, Status> {
        self.calls += 1;
        if self.every > 0 && self.calls.is_multiple_of(self.every) {
            self.write();
        }
        if self.down == Some(store) {
            return Err(Status::unavailable(format!("kindred: store {} is away", store.0)));
        }
        Ok(&mut self.stores[store.0])
    }
}

impl Shards for Cluster {
    async fn range(
        &self,
        store: StoreIx,
        request: Bytes,
        min_revision: Revision,
        _: bool,
    ) -> Result<Rope, Status> {
        let mut state = self.state.lock().unwrap();
        let store = state.call(store)?;
        store.current = store.current.max(min_revision.get());
        let answer = store.range(&pb::RangeRequest::decode(request).unwrap())?;
        // Splits the answer at arbitrary places, as frames do.
        let whole = Bytes::from(answer.encode_to_vec());
        let mut pieces = Rope::default();
        for begin in (0..whole.len()).step_by(101) {
            pieces.push(whole.slice(begin..whole.len().min(begin + 101)));
        }
        Ok(pieces)
    }

    async fn raise(&self, source: &Source, to: Revision, since: Option<Revision>) -> Result<Raised, Status> {
        let mut state = self.state.lock().unwrap();
        let store = state.call(source.store)?;
        store.current = store.current.max(to.get());
        let since = since.map_or(0, Revision::get);
        let mut changes = store.versions.iter().filter(|kv| kv.mod_revision > since);
        let changed = changes.any(|kv| source.range.contains(&kv.key));
        Ok(Raised { current: Revision(store.current), changed })
    }

    fn cannot_follow(&self, store: StoreIx, _: Revision) -> Status {
        Status::unavailable(format!("kindred: store {} cannot follow", store.0))
    }
}

fn by_name(key: &str) -> usize {
    usize::from(key >= "d") + usize::from(key >= "g")
}

fn by_hash(key: &str) -> usize {
    key.bytes().map(usize::from).sum::<usize>() % 3
}

fn span(start: &str, end: &str) -> KeyRange {
    KeyRange::Span { start: Key::from(start), end: Some(Key::from(end)) }
}

/// The plan of a range over name ranges, or over a ring.
fn fan_out(ring: bool, range: &KeyRange) -> FanOut {
    let all = [(span("", "d"), vec![0]), (span("d", "g"), vec![1]), (span("g", "z"), vec![2])];
    let parts: Vec<_> = if ring { vec![(span("", "z"), vec![0, 1, 2])] } else { all.to_vec() };
    let part = |(keys, stores): &(KeyRange, Vec<usize>)| Part {
        range: keys.intersection(range),
        stores: stores.iter().copied().map(StoreIx).collect(),
    };
    let parts = parts.iter().map(part).filter(|part| !part.range.is_empty()).collect();
    FanOut { parts, spread: Vec::new() }
}

fn cluster(
    ring: bool,
    written: Vec<(String, String)>,
    later: Vec<(String, String)>,
    every: usize,
) -> Cluster {
    let layout = if ring { by_hash } else { by_name };
    let mut state = State {
        stores: vec![Fake { current: 1, ..Fake::default() }; 3],
        whole: Fake::default(),
        layout,
        writes: written,
        every,
        calls: 0,
        clock: 100,
        down: None,
    };
    while !state.writes.is_empty() {
        state.write();
    }
    state.writes = later;
    Cluster { state: Mutex::new(state) }
}

fn read(
    cluster: &Cluster,
    ring: bool,
    request: &pb::RangeRequest,
    shown: i64,
) -> Result<pb::RangeResponse, Status> {
    let keys = KeyRange::from_wire(request.key.clone(), request.range_end.clone());
    let ask = Ask::of(request.clone()).unwrap();
    let done = range(cluster, &fan_out(ring, &keys), &ask, Revision(shown)).now_or_never().unwrap();
    done.map(|(answer, _)| pb::RangeResponse::decode(answer).unwrap())
}

fn writes() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec(("[a-i]", "[xy]{0,2}"), 0..24)
}

fn request() -> impl Strategy<Value = pb::RangeRequest> {
    let bound = || prop_oneof![3 => Just(0), 1 => 100..300i64];
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    ("[a-e]", "[f-j]", 0..6i64, 0..3i32, 0..5i32, flags, (bound(), bound(), bound(), bound())).prop_map(
        |(key, range_end, limit, sort_order, sort_target, (keys_only, count_only), bounds)| {
            pb::RangeRequest {
                key: key.into(),
                range_end: range_end.into(),
                limit,
                sort_order,
                sort_target,
                keys_only,
                count_only,
                min_mod_revision: bounds.0,
                max_mod_revision: bounds.1,
                min_create_revision: bounds.2,
                max_create_revision: bounds.3,
                ..Default::default()
            }
        },
    )
}

proptest! {
    /// R5
    #[test]
    fn a_read_over_stores_is_one_stores_read_at_its_revision(
        ring: bool, written in writes(), later in writes(), every in 0..4usize, request in request(), past: bool,
    ) {
        let cluster = cluster(ring, written, later, every);
        let acknowledged = cluster.state.lock().unwrap().clock;
        let request = pb::RangeRequest { revision: if past { (acknowledged - 40).max(1) } else { 0 }, ..request };
        let answer = read(&cluster, ring, &request, if past { acknowledged } else { 0 }).unwrap();
        let header = answer.header.as_ref().unwrap().revision;
        let at = if past { request.revision } else { header };
        let mut whole = cluster.state.lock().unwrap().whole.clone();
        let keys = KeyRange::from_wire(request.key.clone(), request.range_end.clone());
        let written = whole.versions.iter().filter(|kv| keys.contains(&kv.key)).map(|kv| kv.mod_revision);
        let last = written.filter(|revision| *revision <= acknowledged).max();
        prop_assert!(past || header >= last.unwrap_or(0), "an acknowledged write is not covered");
        whole.current = whole.current.max(header);
        let expected = whole.range(&pb::RangeRequest { revision: at, ..request.clone() }).unwrap();
        prop_assert_eq!(answer.kvs, expected.kvs);
        prop_assert_eq!((answer.count, answer.more), (expected.count, expected.more));
        // T is a snapshot: no store will ever write at or below it.
        let state = cluster.state.lock().unwrap();
        let asked = fan_out(ring, &keys).stores();
        prop_assert!(asked.iter().all(|store| state.stores[store.0].current >= header));
    }

    /// A4: all pages of a list show one revision, whatever is written between them.
    #[test]
    fn pages_miss_nothing_and_double_nothing(
        ring: bool, written in writes(), later in writes(), limit in 1..4i64,
    ) {
        let cluster = cluster(ring, written, later, 1);
        let mut request = pb::RangeRequest { key: "a".into(), range_end: "z".into(), limit, ..Default::default() };
        let mut keys = Vec::new();
        loop {
            let answer = read(&cluster, ring, &request, request.revision).unwrap();
            if request.revision == 0 {
                request.revision = answer.header.as_ref().unwrap().revision;
            }
            prop_assert!(answer.count >= answer.kvs.len() as i64);
            keys.extend(answer.kvs.iter().map(|kv| kv.key.clone()));
            let Some(last) = answer.kvs.last().filter(|_| answer.more) else { break };
            request.key = Key(last.key.clone()).successor().0;
        }
        let mut whole = cluster.state.lock().unwrap().whole.clone();
        whole.current = whole.current.max(request.revision);
        let all = pb::RangeRequest { key: "a".into(), limit: 0, ..request };
        let expected: Vec<_> = whole.range(&all).unwrap().kvs.into_iter().map(|kv| kv.key).collect();
        prop_assert_eq!(keys, expected);
    }
}

#[test]
fn without_writes_a_read_is_one_call_a_store() {
    let cluster = cluster(true, vec![("a".into(), "1".into()), ("b".into(), "2".into())], vec![], 0);
    let all = pb::RangeRequest { key: "a".into(), range_end: "z".into(), ..Default::default() };
    let header = read(&cluster, true, &all, 0).unwrap().header.unwrap().revision;
    cluster.state.lock().unwrap().calls = 0;
    assert_eq!(read(&cluster, true, &all, header).unwrap().header.unwrap().revision, header);
    assert_eq!(cluster.state.lock().unwrap().calls, 3);
}

#[test]
fn a_store_that_is_away_is_named_and_the_future_refused() {
    let cluster = cluster(false, vec![("a".into(), "1".into())], vec![], 0);
    let all = pb::RangeRequest { key: "a".into(), range_end: "z".into(), ..Default::default() };
    let future = read(&cluster, false, &pb::RangeRequest { revision: 1000, ..all.clone() }, 0).unwrap_err();
    assert_eq!(grpc::etcd_error(&future), Some(EtcdError::FutureRevision));
    cluster.state.lock().unwrap().down = Some(StoreIx(2));
    let away = read(&cluster, false, &all, 0).unwrap_err();
    assert_eq!((away.code(), away.message()), (tonic::Code::Unavailable, "kindred: store 2 is away"));
}
