//! What a request of KV asks for, in the words that an operator of Kubernetes uses, and for which Kind it is counted.
//!
//! A kube-apiserver makes no puts and deletes: it creates, updates and deletes with transactions of one form each
//! (`OptimisticPut` and `OptimisticDelete` of etcd's package `client/v3/kubernetes`), which are told apart here.

use std::ops::ControlFlow;

use kindred_partition_config::kind::{KindScheme, Located};
use kindred_wire::optimistic::{Change, Optimistic};
use kindred_wire::peek::{self, TxnPart};

use crate::parsed::{Call, Form, Parsed};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// A read of one key.
    Get,
    /// A read of a range.
    List,
    /// A read of the number of keys alone.
    Count,
    /// A transaction that creates a key if it does not exist.
    Create,
    /// A transaction that changes a key if nobody else has changed it.
    Update,
    /// A deletion: a transaction that deletes a key if nobody has changed it, or any call of `DeleteRange`.
    Delete,
    Put,
    /// Any other transaction.
    Txn,
    /// A watch that begins.
    Watch,
}

impl Verb {
    pub const ALL: [Self; 9] = [
        Self::Get,
        Self::List,
        Self::Count,
        Self::Create,
        Self::Update,
        Self::Delete,
        Self::Put,
        Self::Txn,
        Self::Watch,
    ];

    /// Whether it changes keys.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Count | Self::Watch)
    }

    /// The label on metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Count => "count",
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Put => "put",
            Self::Txn => "txn",
            Self::Watch => "watch",
        }
    }
}

/// A request, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked<'r> {
    pub verb: Verb,
    /// The first key that it names.
    pub key: &'r [u8],
    /// The end of its range; empty for one key.
    pub range_end: &'r [u8],
    /// The most keys that a list may have; 0 for all.
    pub limit: i64,
    /// Whether the answer has no values.
    pub keys_only: bool,
}

impl<'r> Asked<'r> {
    fn of_key(verb: Verb, key: &'r [u8]) -> Self {
        Self { verb, key, range_end: b"", limit: 0, keys_only: false }
    }
}

/// What a request asks for. One that does not parse is refused elsewhere, and is counted as one of no key.
#[must_use]
pub fn asked<'r>(request: &Parsed<'r>) -> Asked<'r> {
    match &request.form {
        Form::Range(range) => of_range(range),
        Form::Put(put) => Asked::of_key(Verb::Put, put.key),
        Form::Delete(delete) => {
            Asked { range_end: delete.range_end, ..Asked::of_key(Verb::Delete, delete.key) }
        }
        Form::Optimistic(Optimistic { key, mod_revision, change, .. }) => {
            let verb = match (change, mod_revision) {
                (Change::Put(_), 0) => Verb::Create,
                (Change::Put(_), _) => Verb::Update,
                // It deletes nothing: the key must not exist.
                (Change::Delete(_), 0) => Verb::Txn,
                (Change::Delete(_), _) => Verb::Delete,
            };
            Asked::of_key(verb, key)
        }
        Form::Txn => of_txn(request.bytes),
        Form::Malformed(_) => Asked::of_key(verb_of(request.call), b""),
    }
}

fn verb_of(call: Call) -> Verb {
    match call {
        Call::Range => Verb::Get,
        Call::RangeStream => Verb::List,
        Call::Put => Verb::Put,
        Call::DeleteRange => Verb::Delete,
        Call::Txn => Verb::Txn,
    }
}

fn of_range<'r>(range: &peek::RangeRequest<'r>) -> Asked<'r> {
    let verb = match (range.count_only, range.range_end) {
        (true, _) => Verb::Count,
        (false, b"") => Verb::Get,
        (false, _) => Verb::List,
    };
    Asked { verb, key: range.key, range_end: range.range_end, limit: range.limit, keys_only: range.keys_only }
}

/// A transaction, by its first two parts: a compare and what follows it. Further parts can only be read, as the third
/// of a kube-apiserver's, or make it a transaction of another form.
fn of_txn(request: &[u8]) -> Asked<'_> {
    let (mut first, mut verb, mut parts) = (None, None, 0);
    let _ = peek::visit_txn(request, &mut |part: TxnPart<'_>| {
        parts += 1;
        let key = part.span().map_or(&b""[..], |(key, _)| key);
        first = first.or(part.span());
        verb = match (parts, part, verb) {
            (1, TxnPart::Compare(compare), _) => on_revision(&compare),
            // What a compare promises holds for its own key.
            (_, _, Some(_)) if first.is_some_and(|(first, _)| first != key) => None,
            (2, TxnPart::Put(_), Some(verb)) => Some(verb),
            (2, TxnPart::DeleteRange(delete), Some(Verb::Update)) if delete.range_end.is_empty() => {
                Some(Verb::Delete)
            }
            (3, TxnPart::Range(_), verb) => verb,
            _ => None,
        };
        if verb.is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let (key, range_end) = first.unwrap_or_default();
    // With a compare alone nothing was decided.
    let verb = verb.filter(|_| parts > 1).unwrap_or(Verb::Txn);
    Asked { range_end, ..Asked::of_key(verb, key) }
}

/// `Compare.CompareResult.EQUAL` and `Compare.CompareTarget.MOD`.
const EQUAL: i32 = 0;
const MOD: i32 = 2;

fn on_revision(compare: &peek::Compare<'_>) -> Option<Verb> {
    let one = compare.range_end.is_empty() && compare.result == EQUAL && compare.target == MOD;
    one.then_some(if compare.mod_revision == 0 { Verb::Create } else { Verb::Update })
}

/// The Kind for which a request is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Counted<'k> {
    /// The Kind with this prefix, without the trailing slash.
    Kind(&'k [u8]),
    /// Keys of no Kind.
    Rest,
    /// Keys of several Kinds.
    Several,
}

/// The Kind of a key, or of a range from a key on.
#[must_use]
pub fn counted<'k>(scheme: &KindScheme, key: &'k [u8], range_end: &[u8]) -> Counted<'k> {
    match scheme.locate(key) {
        Located::Object { kind } => {
            let stem = &kind[..kind.len() - 1];
            if range_end.is_empty() || is_within(stem, range_end) {
                Counted::Kind(stem)
            } else {
                Counted::Several
            }
        }
        Located::Pseudo { stem } if range_end.is_empty() => Counted::Kind(stem),
        Located::Health | Located::Other if range_end.is_empty() => Counted::Rest,
        _ => Counted::Several,
    }
}

/// Whether a range that begins in the Kind with this stem ends there: at the stem followed by `0`, the byte behind `/`,
/// or before.
fn is_within(stem: &[u8], range_end: &[u8]) -> bool {
    range_end.strip_prefix(stem).is_some_and(|rest| rest == b"0" || rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use kindred_proto::etcdserverpb::{self as pb, compare, request_op};
    use prost::Message as _;

    use super::*;

    fn get(key: &'static str) -> pb::RangeRequest {
        pb::RangeRequest { key: key.into(), ..Default::default() }
    }

    fn range_of(key: &'static str, range_end: &'static str) -> pb::RangeRequest {
        pb::RangeRequest { range_end: range_end.into(), ..get(key) }
    }

    fn op(request: request_op::Request) -> pb::RequestOp {
        pb::RequestOp { request: Some(request) }
    }

    fn put(key: &'static str) -> pb::RequestOp {
        op(request_op::Request::RequestPut(pb::PutRequest { key: key.into(), ..Default::default() }))
    }

    fn delete(key: &'static str) -> pb::RequestOp {
        let request = pb::DeleteRangeRequest { key: key.into(), ..Default::default() };
        op(request_op::Request::RequestDeleteRange(request))
    }

    fn read(key: &'static str) -> pb::RequestOp {
        op(request_op::Request::RequestRange(get(key)))
    }

    fn compared(key: &'static str, revision: i64) -> pb::Compare {
        pb::Compare {
            key: key.into(),
            target: MOD,
            target_union: Some(compare::TargetUnion::ModRevision(revision)),
            ..Default::default()
        }
    }

    fn verb_of_txn(
        compare: Vec<pb::Compare>,
        success: Vec<pb::RequestOp>,
        failure: Vec<pb::RequestOp>,
    ) -> (Verb, Vec<u8>) {
        let bytes = pb::TxnRequest { compare, success, failure }.encode_to_vec();
        let asked = asked(&Parsed::new(Call::Txn, &bytes));
        (asked.verb, asked.key.to_vec())
    }

    #[test]
    fn the_transactions_of_a_kube_apiserver_have_their_verbs() {
        let key = "/registry/pods/a/b";
        let of = |verb| (verb, key.as_bytes().to_vec());
        assert_eq!(verb_of_txn(vec![compared(key, 0)], vec![put(key)], vec![]), of(Verb::Create));
        assert_eq!(verb_of_txn(vec![compared(key, 7)], vec![put(key)], vec![read(key)]), of(Verb::Update));
        assert_eq!(verb_of_txn(vec![compared(key, 7)], vec![delete(key)], vec![read(key)]), of(Verb::Delete));
        // The compaction of kube-apiserver's compactor compares a version.
        let version = pb::Compare { target: 0, ..compared(key, 7) };
        assert_eq!(verb_of_txn(vec![version], vec![put(key)], vec![read(key)]), of(Verb::Txn));
    }

    #[test]
    fn other_transactions_are_transactions() {
        let (key, other) = ("/registry/pods/a/b", "/registry/pods/a/c");
        let of = |verb| (verb, key.as_bytes().to_vec());
        for (compare, success, failure) in [
            (vec![compared(key, 7)], vec![], vec![]),
            (vec![compared(key, 7)], vec![put(other)], vec![]),
            (vec![compared(key, 7)], vec![put(key), put(other)], vec![]),
            (vec![compared(key, 7)], vec![put(key)], vec![put(key)]),
            (vec![compared(key, 7), compared(key, 8)], vec![put(key)], vec![]),
            (vec![compared(key, 0)], vec![delete(key)], vec![]),
            (vec![], vec![put(key)], vec![]),
        ] {
            assert_eq!(verb_of_txn(compare, success, failure), of(Verb::Txn));
        }
        assert_eq!(verb_of_txn(vec![], vec![], vec![]), (Verb::Txn, Vec::new()));
        assert_eq!(asked(&Parsed::new(Call::Txn, b"\xff\xff")).verb, Verb::Txn);
        assert_eq!(asked(&Parsed::new(Call::Put, b"\xff\xff")), Asked::of_key(Verb::Put, b""));
    }

    #[test]
    fn reads_are_told_by_what_they_return() {
        let of = |request: pb::RangeRequest| asked(&Parsed::new(Call::Range, &request.encode_to_vec())).verb;
        assert_eq!(of(get("/registry/pods/a/b")), Verb::Get);
        assert_eq!(of(range_of("/registry/pods/", "/registry/pods0")), Verb::List);
        let count = pb::RangeRequest { count_only: true, ..range_of("/registry/pods/", "/registry/pods0") };
        assert_eq!(of(count), Verb::Count);
    }

    #[test]
    fn a_range_is_counted_for_its_kind_unless_it_leaves_it() {
        let scheme = KindScheme::default();
        let of = |key: &'static str, end: &str| counted(&scheme, key.as_bytes(), end.as_bytes());
        let pods = Counted::Kind(b"/registry/pods");
        for (key, end) in [
            ("/registry/pods/a/b", ""),
            ("/registry/pods", ""),
            ("/registry/pods/", "/registry/pods0"),
            ("/registry/pods/a/", "/registry/pods/a0"),
            ("/registry/pods/a/b\0", "/registry/pods0"),
        ] {
            assert_eq!(of(key, end), pods, "{key} {end}");
        }
        assert_eq!(
            of("/registry/example.com/foos/", "/registry/example.com/foos0"),
            Counted::Kind(b"/registry/example.com/foos")
        );
        for (key, end) in [
            ("/registry/", "/registry0"),
            ("/registry/pods/", "/registry/podt"),
            ("/registry/pods/", "\0"),
            ("/registry/pods", "/registry/pods0"),
            ("a", "b"),
        ] {
            assert_eq!(of(key, end), Counted::Several, "{key} {end}");
        }
        for key in ["", "compact_rev_key", "/registry/health"] {
            assert_eq!(of(key, ""), Counted::Rest, "{key}");
        }
    }
}
