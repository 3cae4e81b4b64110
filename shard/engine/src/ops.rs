//! What can be asked of the engine and what it answers: etcd's KV requests after validation, free of any wire format.

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
    /// The keys to read.
    pub range: KeyRange,
    /// Read as of this revision; `None` = the current one.
    pub revision: Option<Revision>,
    /// At most this many keys; 0 = no limit.
    pub limit: usize,
    /// Order of the answer; `None` = key order.
    pub sort: Option<Sort>,
    /// What of each key the answer carries.
    pub contents: Contents,
    /// The answer carries only the count.
    pub count_only: bool,
    /// Leave out keys modified or created outside these bounds (inclusive). `count` ignores them, as etcd's does.
    pub filter: RevisionFilter,
}

/// What of each key an answer carries; the encoder leaves the rest out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Everything.
    Whole,
    /// Everything but the value.
    WithoutValue,
    /// Neither value nor lease: what etcd has in its index, from which it answers `keys_only`.
    Index,
}

/// Inclusive bounds on the modification and creation revisions; `None` = unbounded.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RevisionFilter {
    /// Lowest modification revision.
    pub min_mod: Option<Revision>,
    /// Highest modification revision.
    pub max_mod: Option<Revision>,
    /// Lowest creation revision.
    pub min_create: Option<Revision>,
    /// Highest creation revision.
    pub max_create: Option<Revision>,
}

/// An order other than the natural one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sort {
    /// What is compared.
    pub target: SortTarget,
    /// Highest first.
    pub descending: bool,
    /// Among the first `limit` keys, in key order, and the one behind them only; with a limit and without a filter. What
    /// etcd does for a target without an order.
    pub late: bool,
}

/// What a sort compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SortTarget {
    /// The key's bytes.
    Key,
    /// The number of writes since creation.
    Version,
    /// The creation revision.
    Create,
    /// The modification revision.
    Mod,
    /// The value's bytes.
    Value,
}

/// A write of one key (etcd's `PutRequest`).
#[derive(Debug, Clone, PartialEq)]
pub struct Put {
    /// The key, not empty.
    pub key: Key,
    /// The value; ignored when `ignore_value`.
    pub value: Bytes,
    /// Attach to this lease; `None` detaches.
    pub lease: Option<LeaseId>,
    /// Keep the current value; the key must exist.
    pub ignore_value: bool,
    /// Keep the current lease; the key must exist.
    pub ignore_lease: bool,
    /// Answer with the version before.
    pub prev_kv: bool,
}

/// A deletion of a range (etcd's `DeleteRangeRequest`).
#[derive(Debug, Clone, PartialEq)]
pub struct Delete {
    /// The keys to delete.
    pub range: KeyRange,
    /// Only those in these buckets.
    pub buckets: Option<UnitBuckets>,
    /// Answer with the versions before.
    pub prev_kv: bool,
}

/// A condition of a transaction: it holds when it holds for every key of the range that exists (etcd `applyCompares`:
/// a range without keys compares against zero values, except `Value`, which fails).
#[derive(Debug, Clone, PartialEq)]
pub struct Compare {
    /// The keys compared.
    pub range: KeyRange,
    /// What is compared, and with which number or bytes.
    pub target: CompareTarget,
    /// How.
    pub result: CompareResult,
}

/// What a compare looks at, with the other side of the comparison.
#[derive(Debug, Clone, PartialEq)]
pub enum CompareTarget {
    /// The number of writes since creation; 0 = absent.
    Version(i64),
    /// The creation revision; 0 = absent.
    Create(i64),
    /// The modification revision; 0 = absent.
    Mod(i64),
    /// The value.
    Value(Bytes),
    /// The lease; 0 = none.
    Lease(i64),
}

/// How a compare's two sides must stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompareResult {
    /// Left = right.
    Equal,
    /// Left > right.
    Greater,
    /// Left < right.
    Less,
    /// Left != right.
    NotEqual,
}

/// An atomic group: compares, then one of two lists of operations (etcd's `TxnRequest`).
#[derive(Debug, Clone, PartialEq)]
pub struct Txn {
    /// All must hold for `success`.
    pub compares: Vec<Compare>,
    /// Run when all compares hold.
    pub success: Vec<Op>,
    /// Run otherwise.
    pub failure: Vec<Op>,
}

/// One operation of a transaction, or a request by itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Read.
    Range(RangeQuery),
    /// Write one key.
    Put(Put),
    /// Delete a range.
    Delete(Delete),
    /// Nested transaction.
    Txn(Box<Txn>),
}

/// Answer to a read.
#[derive(Debug, Clone)]
pub struct RangeAnswer {
    /// The header's revision (R4).
    pub header: Revision,
    /// The keys, in the order asked for.
    pub kvs: Vec<Version>,
    /// Whether the limit cut keys off.
    pub more: bool,
    /// Keys in the range at that revision, whatever limit and filter.
    pub count: u64,
    /// What of each key it carries.
    pub contents: Contents,
}

/// Answer to an [`Op`]. `header` inside a transaction is what etcd puts into the nested headers' revision.
#[derive(Debug, Clone)]
pub enum OpAnswer {
    /// To a read.
    Range(RangeAnswer),
    /// To a put: the version before, when asked for and there was one.
    Put { header: Revision, prev: Option<Version> },
    /// To a deletion: how many keys went, and their last versions when asked for.
    Delete { header: Revision, deleted: u64, prev: Vec<Version> },
    /// To a transaction.
    Txn(TxnAnswer),
}

/// Answer to a transaction.
#[derive(Debug, Clone)]
pub struct TxnAnswer {
    /// The revision that it assigned, else the current one of what it read.
    pub header: Revision,
    /// Whether the compares held.
    pub succeeded: bool,
    /// One answer an operation of the branch taken.
    pub responses: Vec<OpAnswer>,
}
