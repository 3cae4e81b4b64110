use kindred_partition_config::kind::{KindScheme, Located};
use kindred_proto::etcdserverpb as pb;
use proptest::prelude::*;
use prost::Message;

use super::*;

const DEFAULT: StoreIx = StoreIx(0);
const PODS: StoreIx = StoreIx(1);
const NODES: StoreIx = StoreIx(2);

/// Pods on one store, nodes and leases together on another, the rest on the default one.
struct Table(KindScheme);

impl Table {
    fn new() -> Self {
        Self(KindScheme::new("/registry"))
    }
}

const KINDS: [(&str, StoreIx); 3] =
    [("/registry/leases/", NODES), ("/registry/minions/", NODES), ("/registry/pods/", PODS)];

impl Placement for Table {
    fn store_of(&self, key: &[u8]) -> StoreIx {
        let stem = self.0.locate(key).stem().unwrap_or_default();
        let kind = KINDS.iter().find(|(prefix, _)| prefix.trim_end_matches('/').as_bytes() == stem);
        kind.map_or(DEFAULT, |(_, store)| *store)
    }

    fn stores_of(&self, range: &KeyRange) -> Vec<(Vec<u8>, StoreIx)> {
        let mut stores: Vec<(Vec<u8>, StoreIx)> = Vec::new();
        let mut gaps = vec![(String::new(), "/registry/leases/", DEFAULT)];
        for (i, (prefix, store)) in KINDS.iter().enumerate() {
            gaps.push(((*prefix).to_owned(), "", *store));
            let end = prefix.replacen("s/", "s0", 1).trim_end_matches('/').to_owned();
            let next = KINDS.get(i + 1).map_or("\u{7f}", |(next, _)| *next);
            gaps.push((end, next, DEFAULT));
        }
        for (start, end, store) in gaps {
            let part = match end {
                "" => KeyRange::prefix(start.as_str().into()),
                end => KeyRange::Span { start: start.as_str().into(), end: Some(end.into()) },
            };
            if part.overlaps(range) && !stores.iter().any(|(_, seen)| *seen == store) {
                stores.push((start.into_bytes(), store));
            }
        }
        stores
    }

    fn default_store(&self) -> StoreIx {
        DEFAULT
    }

    fn name(&self, store: StoreIx) -> &str {
        ["default", "pods", "nodes"][store.0]
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
    plan(Call::Range, &request.encode_to_vec(), &Table::new())
}

fn on(store: StoreIx) -> Result<Plan, Refusal> {
    Ok(Plan::One { store, leases: vec![] })
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
        ("/registry/secrets/", "/registry/secrets0", DEFAULT),
        ("/registry/pods0", "\0", DEFAULT),
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

#[test]
fn a_range_over_stores_is_refused_by_name() {
    let refusal = range("/registry/", "/registry0").unwrap_err();
    assert_eq!(refusal.grpc_code(), Code::FailedPrecondition);
    let text = refusal.to_string();
    assert!(text.starts_with("kindred: a range from \"/registry/\" touches 3 stores"), "{text}");
    assert!(["default", "pods", "nodes"].iter().all(|store| text.contains(store)), "{text}");
}

#[test]
fn bytes_that_are_no_request_are_malformed() {
    for call in [Call::Range, Call::Put, Call::DeleteRange, Call::Txn] {
        let refusal = plan(call, b"\x0a\xff", &Table::new()).unwrap_err();
        assert!(matches!(refusal, Refusal::Kindred(KindredError::Malformed { .. })), "{call:?}");
    }
}

fn put_op(key: &str, lease: i64) -> pb::RequestOp {
    let put = pb::PutRequest { key: key.to_owned().into(), value: "v".into(), lease, ..Default::default() };
    pb::RequestOp { request: Some(pb::request_op::Request::RequestPut(put)) }
}

fn txn_of(ops: Vec<pb::RequestOp>, otherwise: Vec<pb::RequestOp>) -> Result<Plan, Refusal> {
    let compare = pb::Compare { key: "/registry/pods/a".into(), ..Default::default() };
    let txn = pb::TxnRequest { compare: vec![compare], success: ops, failure: otherwise };
    plan(Call::Txn, &txn.encode_to_vec(), &Table::new())
}

#[test]
fn a_txn_within_one_store_goes_there_with_its_leases() {
    let ops = vec![put_op("/registry/pods/a", 7), put_op("/registry/pods/b", 7)];
    let leases = vec![LeaseId(7), LeaseId(9)];
    assert_eq!(txn_of(ops, vec![put_op("/registry/pods/c", 9)]), Ok(Plan::One { store: PODS, leases }));
    assert_eq!(plan(Call::Txn, b"", &Table::new()), on(DEFAULT));
}

#[test]
fn a_txn_over_stores_is_refused_with_keys_and_stores() {
    let Err(Refusal::Kindred(KindredError::CrossStoreTxn { keys })) =
        txn_of(vec![], vec![put_op("/registry/minions/n", 0)])
    else {
        panic!("not refused");
    };
    let named: Vec<_> = keys.iter().map(|k| k.store.as_str()).collect();
    assert_eq!(named, ["pods", "nodes"]);
}

proptest! {
    #[test]
    fn a_range_is_refused_exactly_when_its_keys_differ(
        a in "/registry/(pods|minions|leases|secrets|podtemplates)/[a-c]",
        b in "/registry/(pods|minions|leases|secrets|podtemplates)/[a-c]",
    ) {
        let table = Table::new();
        let (start, end) = if a <= b { (a, b) } else { (b, a) };
        let planned = range(&start, &end);
        if let Ok(Plan::One { store, .. }) = planned {
            prop_assert_eq!(store, table.store_of(start.as_bytes()));
        } else {
            prop_assert!(start < end);
        }
    }

    #[test]
    fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        for call in [Call::Range, Call::Put, Call::DeleteRange, Call::Txn] {
            let _ = plan(call, &bytes, &Table::new());
        }
    }
}
