//! Requests to the engine and its answers: etcd's KV requests after validation, independent of the wire format.

use std::cmp::Ordering;

use bytes::Bytes;
use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::{Key, KeyRange},
    unit::UnitBuckets,
};

use crate::version::Version;

/// A read of a range (etcd's `RangeRequest`).
#[derive(Debug, Clone, PartialEq)]
pub struct RangeQuery {
    pub range: KeyRange,
    /// The revision to read; `None` = the current one.
    pub revision: Option<Revision>,
    /// The maximum number of keys; 0 = no limit.
    pub limit: usize,
    /// The order of the answer; `None` = key order.
    pub sort: Option<Sort>,
    /// The parts of each key that the answer carries.
    pub contents: Contents,
    /// Whether the answer carries only the count.
    pub count_only: bool,
    /// Leaves out keys modified or created outside these bounds (inclusive). As in etcd, `count` ignores them.
    pub filter: RevisionFilter,
}

/// The parts of each key that an answer carries; the encoder leaves out the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    Whole,
    WithoutValue,
    /// Neither value nor lease: what etcd has in its index, from which it answers `keys_only`.
    Index,
}

/// Inclusive bounds on the modification and creation revisions; `None` = unbounded.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RevisionFilter {
    pub min_mod: Option<Revision>,
    pub max_mod: Option<Revision>,
    pub min_create: Option<Revision>,
    pub max_create: Option<Revision>,
}

/// An order other than ascending by key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sort {
    pub target: SortTarget,
    pub descending: bool,
    /// With a limit and no filter, sorts only the first `limit` + 1 keys in key order. etcd does so for a target
    /// without an order.
    pub late: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortTarget {
    Key,
    /// The number of writes since creation.
    Version,
    Create,
    Mod,
    Value,
}

/// A write of one key (etcd's `PutRequest`).
#[derive(Debug, Clone, PartialEq)]
pub struct Put {
    /// The key, not empty.
    pub key: Key,
    /// The value; unused with `ignore_value`.
    pub value: Bytes,
    /// The lease to attach the key to; `None` detaches it.
    pub lease: Option<LeaseId>,
    /// Keep the current value; the key must exist.
    pub ignore_value: bool,
    /// Keep the current lease; the key must exist.
    pub ignore_lease: bool,
    /// Answer with the previous version.
    pub prev_kv: bool,
}

/// A deletion of a range (etcd's `DeleteRangeRequest`).
#[derive(Debug, Clone, PartialEq)]
pub struct Delete {
    pub range: KeyRange,
    /// If set, only keys in these buckets are deleted.
    pub buckets: Option<UnitBuckets>,
    /// Answer with the deleted versions.
    pub prev_kv: bool,
}

/// A condition of a transaction. It must hold for every existing key of the range. As in etcd's `applyCompares`, a
/// range without keys compares as zeros, and a compare of `Value` fails.
#[derive(Debug, Clone, PartialEq)]
pub struct Compare {
    pub range: KeyRange,
    /// The compared field, with the number or bytes to compare it to.
    pub target: CompareTarget,
    pub result: CompareResult,
}

impl Compare {
    /// Whether the condition holds for each of these keys of the range. An empty list stands for a range that has no key.
    #[must_use]
    pub fn holds_for_all(&self, kvs: &[Version]) -> bool {
        if kvs.is_empty() { self.holds_for_none() } else { kvs.iter().all(|kv| self.holds_for(kv)) }
    }

    /// An absent key has no value, not even an empty one; all its numbers are zero.
    fn holds_for_none(&self) -> bool {
        match &self.target {
            CompareTarget::Value(_) => false,
            CompareTarget::Version(n)
            | CompareTarget::Create(n)
            | CompareTarget::Mod(n)
            | CompareTarget::Lease(n) => self.result.allows(0.cmp(n)),
        }
    }

    fn holds_for(&self, kv: &Version) -> bool {
        self.result.allows(match &self.target {
            CompareTarget::Version(n) => kv.version().cmp(n),
            CompareTarget::Create(n) => kv.create_revision().get().cmp(n),
            CompareTarget::Mod(n) => kv.mod_revision().get().cmp(n),
            CompareTarget::Value(value) => kv.cmp_value(value),
            CompareTarget::Lease(n) => kv.lease().cmp(n),
        })
    }
}

/// The compared field, with the other side of the comparison.
#[derive(Debug, Clone, PartialEq)]
pub enum CompareTarget {
    /// The number of writes since creation; 0 = absent.
    Version(i64),
    /// The creation revision; 0 = absent.
    Create(i64),
    /// The modification revision; 0 = absent.
    Mod(i64),
    Value(Bytes),
    /// The lease id; 0 = none.
    Lease(i64),
}

/// The required result, with the key's field on the left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompareResult {
    Equal,
    Greater,
    Less,
    NotEqual,
}

impl CompareResult {
    fn allows(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Greater => order.is_gt(),
            Self::Less => order.is_lt(),
        }
    }
}

/// An atomic group: compares, then one of two lists of operations (etcd's `TxnRequest`).
#[derive(Debug, Clone, PartialEq)]
pub struct Txn {
    /// Conditions; all must hold for `success`.
    pub compares: Vec<Compare>,
    /// Executed when all compares hold.
    pub success: Vec<Op>,
    /// Executed otherwise.
    pub failure: Vec<Op>,
}

/// An operation of a transaction, or a request of its own.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    Range(RangeQuery),
    Put(Put),
    Delete(Delete),
    Txn(Box<Txn>),
}

#[derive(Debug, Clone)]
pub struct RangeAnswer {
    /// The header's revision (R4).
    pub header: Revision,
    /// The keys, in the requested order.
    pub kvs: Vec<Version>,
    /// Whether the limit cut off keys.
    pub more: bool,
    /// The number of keys in the range at that revision, regardless of limit and filter.
    pub count: u64,
    /// The parts of each key that the answer carries.
    pub contents: Contents,
}

/// The answer to an [`Op`]. Inside a transaction, `header` is the revision of the nested response's header, as in etcd.
#[derive(Debug, Clone)]
pub enum OpAnswer {
    /// To a read.
    Range(RangeAnswer),
    /// To a put: the previous version, if requested and existing.
    Put { header: Revision, prev: Option<Version> },
    /// To a deletion: the number of deleted keys and, if requested, their last versions.
    Delete { header: Revision, deleted: u64, prev: Vec<Version> },
    /// To a transaction.
    Txn(TxnAnswer),
}

#[derive(Debug, Clone)]
pub struct TxnAnswer {
    /// The assigned revision, or the current one of the touched ranges if nothing was written.
    pub header: Revision,
    /// Whether all compares held.
    pub succeeded: bool,
    /// One answer per operation of the branch taken.
    pub responses: Vec<OpAnswer>,
}
