use kindred_partition_config::ids::Epoch;
use kindred_partition_config::key::Key;
use kindred_partition_config::kind::{KindScheme, Located};
use kindred_partition_config::map::{Partition, PartitionMap, Placement as Placed, StoreIdx};
use kindred_partition_config::ring::BucketTable;
use kindred_proto::etcdserverpb as pb;
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::parts::{parts_of, store_ix};

const DEFAULT: StoreIx = StoreIx(0);
const PODS: StoreIx = StoreIx(1);
const NODES: StoreIx = StoreIx(2);
const ETCD: StoreIx = StoreIx(3);

/// Pods on one store; nodes and leases on another; config maps on both by name; events on both by hash; secrets on a
/// stock etcd; all else on the default store.
struct Table(KindScheme, PartitionMap);

impl Table {
    fn new() -> Self {
        let scheme = KindScheme::new("/registry");
        let single = |store: StoreIx| Placed::Single(StoreIdx(u16::try_from(store.0).unwrap()));
        let part = |name: &str, start: Option<&str>, end: Option<&str>, placement: Placed| {
            let kind = scheme.resolve(name).unwrap();
            let at = |text: &str| Key::from(format!("{kind}{text}").as_str());
            let start = start.map_or_else(|| kind.as_key().clone(), at);
            let range = KeyRange::Span { start, end: Some(end.map_or_else(|| kind.end(), at)) };
            Partition { range, kind: Some(kind), placement, epoch: Epoch(1) }
        };
        let pseudo = |name: &str, store| {
            let kind = scheme.resolve(name).unwrap();
            let stem = Key::copy_from(kind.stem());
            let range = KeyRange::Span { start: stem.clone(), end: Some(stem.successor()) };
            Partition { range, kind: Some(kind), placement: single(store), epoch: Epoch(1) }
        };
        let owner = |bucket| StoreIdx(if bucket % 2 == 0 { 1 } else { 2 });
        let ring = Placed::Ring(Box::new(BucketTable::new(std::array::from_fn(owner))));
        let partitions = vec![
            pseudo("leases", NODES),
            part("leases", None, None, single(NODES)),
            pseudo("nodes", NODES),
            part("nodes", None, None, single(NODES)),
            pseudo("pods", PODS),
            part("pods", None, None, single(PODS)),
            pseudo("configmaps", PODS),
            part("configmaps", None, Some("m"), single(PODS)),
            part("configmaps", Some("m"), None, single(NODES)),
            pseudo("events", PODS),
            part("events", None, None, ring),
            pseudo("secrets", ETCD),
            part("secrets", None, None, single(ETCD)),
        ];
        let map = PartitionMap::filled(partitions, StoreIdx(0), Epoch(1)).unwrap();
        Self(scheme, map)
    }

    fn kind(&self, name: &str) -> KindPrefix {
        self.0.resolve(name).unwrap()
    }
}

impl Placement for Table {
    fn store_of(&self, key: &[u8]) -> StoreIx {
        store_ix(self.1.store_of(key))
    }

    fn parts_of(&self, range: &KeyRange) -> Vec<Part> {
        parts_of(&self.1, range)
    }

    fn spread_of(&self, key: &[u8]) -> Option<KindPrefix> {
        self.1.spread_of(key).cloned()
    }

    fn spread_in(&self, range: &KeyRange) -> Vec<KindPrefix> {
        self.1.spread_in(range)
    }

    fn is_etcd(&self, store: StoreIx) -> bool {
        store == ETCD
    }

    fn default_store(&self) -> StoreIx {
        DEFAULT
    }

    fn name(&self, store: StoreIx) -> &str {
        ["default", "pods", "nodes", "etcd"][store.0]
    }

    fn is_health(&self, key: &[u8]) -> bool {
        self.0.locate(key) == Located::Health
    }
}

fn range(key: &str, end: &str) -> Result<Plan, Refusal> {
    let request = pb::RangeRequest {
        key: key.to_owned().into(),
        range_end: end.to_owned().into(),
        ..Default::default()
    };
    plan(&Parsed::new(Call::Range, &request.encode_to_vec()), &Table::new())
}

fn on(store: StoreIx) -> Result<Plan, Refusal> {
    Ok(Plan::One { store, leases: vec![], spread: vec![] })
}

#[test]
fn ranges_go_to_the_store_of_their_keys() {
    for (key, end, store) in [
        ("/registry/pods/ns/a", "", PODS),
        ("/registry/pods", "", PODS),
        ("/registry/podtemplates/ns/a", "", DEFAULT),
        ("/registry/minions", "", NODES),
        ("compact_rev_key", "", DEFAULT),
        ("", "", DEFAULT),
        ("/registry/pods/", "/registry/pods0", PODS),
        ("/registry/pods/ns/", "/registry/pods/ns0", PODS),
        ("/registry/pods/ns/a\0", "/registry/pods0", PODS),
        ("/registry/secrets/", "/registry/secrets0", ETCD),
        ("/registry/zoo", "\0", DEFAULT),
        ("/registry/pods/b", "/registry/pods/a", PODS),
    ] {
        assert_eq!(range(key, end), on(store), "{key:?} {end:?}");
    }
}

#[test]
fn health_is_answered_here_and_only_as_one_key() {
    assert_eq!(range("/registry/health", ""), Ok(Plan::Health));
    assert_eq!(range("/registry/health", "/registry/healti"), on(DEFAULT));
    assert_eq!(range("/other/health", ""), on(DEFAULT));
}

/// The parts of a range as (start, stores), and its spread Kinds.
fn fanned_out(key: &str, end: &str) -> (Vec<(String, Vec<StoreIx>)>, Vec<KindPrefix>) {
    let Plan::FanOut(FanOut { parts, spread }) = range(key, end).unwrap() else {
        panic!("not several stores")
    };
    (parts.into_iter().map(|part| (part.range.start().to_string(), part.stores)).collect(), spread)
}

#[test]
fn a_range_over_stores_has_parts_in_key_order() {
    let table = Table::new();
    let (configs, events) = (table.kind("configmaps"), table.kind("events"));
    let parts = |list: &[(&str, &[StoreIx])]| {
        list.iter().map(|(start, stores)| ((*start).to_owned(), stores.to_vec())).collect::<Vec<_>>()
    };
    let both = [PODS, NODES];
    assert_eq!(
        fanned_out("/registry/configmaps/", "/registry/configmaps0"),
        (
            parts(&[("/registry/configmaps/", &[PODS]), ("/registry/configmaps/m", &[NODES])]),
            vec![configs.clone()]
        )
    );
    assert_eq!(
        fanned_out("/registry/events/", "/registry/events0"),
        (parts(&[("/registry/events/", &both)]), vec![events])
    );
    // The pseudo-key is read as one key from all stores of the Kind.
    assert_eq!(
        fanned_out("/registry/configmaps", ""),
        (parts(&[("/registry/configmaps", &both)]), vec![configs.clone()])
    );
    let one = |store| Ok(Plan::One { store, leases: vec![], spread: vec![configs.clone()] });
    assert_eq!(range("/registry/configmaps/a", "/registry/configmaps/b"), one(PODS));
    assert_eq!(range("/registry/configmaps/x", ""), one(NODES));
    // Adjacent ranges on one store form one part.
    assert_eq!(range("/registry/leases/", "/registry/leases/x"), on(NODES));
}

#[test]
fn a_range_that_joins_a_stock_etcd_is_refused() {
    let refusal = range("/registry/", "/registry0").unwrap_err();
    assert_eq!(refusal.0.grpc_code(), kindred_wire::error::Code::FailedPrecondition);
    let Refusal(KindredError::RangeJoinsEtcd { stores, .. }) = refusal else { panic!("{refusal}") };
    assert_eq!(stores, ["default", "pods", "nodes", "etcd"]);
    let watch = plan_watch_parts(b"/registry/", b"/registry0", &Table::new());
    assert!(matches!(watch, Err(Refusal(KindredError::RangeJoinsEtcd { .. }))));
    let watch = plan_watch_parts(b"/registry/events/", b"/registry/events0", &Table::new()).unwrap();
    assert_eq!(watch.stores(), [PODS, NODES]);
}

#[test]
fn bytes_that_are_no_request_are_malformed() {
    for call in [Call::Range, Call::Put, Call::DeleteRange, Call::Txn] {
        let refusal = plan(&Parsed::new(call, b"\x0a\xff"), &Table::new()).unwrap_err();
        assert!(matches!(refusal, Refusal(KindredError::Malformed { .. })), "{call:?}");
    }
}

fn put_op(key: &str, lease: i64) -> pb::RequestOp {
    let put = pb::PutRequest { key: key.to_owned().into(), value: "v".into(), lease, ..Default::default() };
    pb::RequestOp { request: Some(pb::request_op::Request::RequestPut(put)) }
}

fn txn_of(ops: Vec<pb::RequestOp>, otherwise: Vec<pb::RequestOp>) -> Result<Plan, Refusal> {
    let compare = pb::Compare { key: "/registry/pods/a".into(), ..Default::default() };
    let txn = pb::TxnRequest { compare: vec![compare], success: ops, failure: otherwise };
    plan(&Parsed::new(Call::Txn, &txn.encode_to_vec()), &Table::new())
}

#[test]
fn a_txn_within_one_store_goes_there_with_its_leases() {
    let ops = vec![put_op("/registry/pods/a", 7), put_op("/registry/pods/b", 7)];
    let leases = vec![LeaseId(7), LeaseId(9)];
    assert_eq!(
        txn_of(ops, vec![put_op("/registry/pods/c", 9)]),
        Ok(Plan::One { store: PODS, leases, spread: vec![] })
    );
    assert_eq!(plan(&Parsed::new(Call::Txn, b""), &Table::new()), on(DEFAULT));
}

#[test]
fn a_txn_over_stores_is_refused_with_keys_and_stores() {
    let Err(Refusal(KindredError::CrossStoreTxn { keys })) =
        txn_of(vec![], vec![put_op("/registry/minions/n", 0)])
    else {
        panic!("not refused");
    };
    let named: Vec<_> = keys.iter().map(|k| k.store.as_str()).collect();
    assert_eq!(named, ["pods", "nodes"]);
}

prop_compose! {
    /// A transaction as a kube-apiserver makes it; in one of ten another key or a range is named.
    fn kubernetes_txn()(
        keys in prop::collection::vec(prop_oneof![9 => Just("/registry/configmaps/a"), 1 => Just("/registry/minions/n")], 3),
        health: bool, range_end in prop_oneof![9 => Just(""), 1 => Just("/registry/z")],
        target in prop_oneof![9 => Just(2), 1 => Just(0)], revision in 0..3i64, lease in 0..2i64,
        deletes: bool, reads: bool, prev_kv: bool,
    ) -> pb::TxnRequest {
        let key = |at: usize| Bytes::from_static(if health { "/registry/health" } else { keys[at] }.as_bytes());
        let op = |request| vec![pb::RequestOp { request: Some(request) }];
        let target_union = Some(pb::compare::TargetUnion::ModRevision(revision));
        let compare = pb::Compare { key: key(0), target, target_union, ..Default::default() };
        let range_end = Bytes::from_static(range_end.as_bytes());
        let delete = pb::DeleteRangeRequest { key: key(1), range_end: range_end.clone(), prev_kv };
        let put = pb::PutRequest { key: key(1), value: "v".into(), lease, prev_kv, ..Default::default() };
        let read = pb::RangeRequest { key: key(2), range_end, ..Default::default() };
        let read = pb::request_op::Request::RequestRange(read);
        pb::TxnRequest {
            compare: vec![compare],
            success: op(if deletes {
                pb::request_op::Request::RequestDeleteRange(delete)
            } else {
                pb::request_op::Request::RequestPut(put)
            }),
            failure: if reads { op(read) } else { Vec::new() },
        }
    }
}

proptest! {
    #[test]
    fn a_txn_in_the_usual_form_is_answered_as_any_txn(
        txn in kubernetes_txn(), damage in prop::option::weighted(0.3, any::<(prop::sample::Index, u8)>()),
    ) {
        let mut bytes = txn.encode_to_vec();
        if let Some((at, byte)) = damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let parsed = Parsed::new(Call::Txn, &bytes);
        let visited = Parsed { form: Form::Txn, ..parsed };
        prop_assert_eq!(plan(&parsed, &Table::new()), plan(&visited, &Table::new()));
        prop_assert_eq!(crate::verb::asked(&parsed), crate::verb::asked(&visited));
        prop_assert_eq!(crate::small::is_small(&parsed), crate::small::is_small(&visited));
    }

    #[test]
    fn every_key_is_asked_of_its_store(
        a in "/registry/(pods|minions|leases|configmaps|events|podtemplates)/[a-z]",
        b in "/registry/(pods|minions|leases|configmaps|events|podtemplates)/[a-z]",
        key in "/registry/(pods|minions|leases|configmaps|events|podtemplates)/[a-z]",
    ) {
        let table = Table::new();
        let (start, end) = if a <= b { (a, b) } else { (b, a) };
        let store = table.store_of(key.as_bytes());
        match range(&start, &end) {
            _ if key < start || key >= end => {}
            Ok(Plan::One { store: only, .. }) => prop_assert_eq!(only, store),
            Ok(Plan::FanOut(fan_out)) => {
                let mut holding = fan_out.parts.iter().filter(|part| part.range.contains(key.as_bytes()));
                prop_assert!(holding.next().unwrap().stores.contains(&store));
                prop_assert!(holding.next().is_none());
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        for call in [Call::Range, Call::Put, Call::DeleteRange, Call::Txn] {
            let _ = plan(&Parsed::new(call, &bytes), &Table::new());
        }
    }
}
