//! What clients record: operations with their outcome, and watches with their responses in arrival order.
//!
//! A history is plain data, serde-able to JSON lines (`json.rs`), so that a failure can be stored and replayed.
//!
//! How to record, so that the checks see as much as they can:
//! * values are unique per write (a counter in the value is enough): a write whose outcome is unknown is then
//!   recognised when it turns up in a read or an event;
//! * all times come from one monotonic clock; `call` is taken before the request is sent, `returned` after the
//!   whole answer came in;
//! * a request that timed out or lost its connection has `Outcome::Unknown`, unless it certainly did not run;
//! * `sequence` counts the responses of one watch *stream* in the order in which they came in.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bytes::{Key, Value};

/// etcd's revision, Kubernetes' resourceVersion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Revision(pub i64);

impl Revision {
    /// The revision after this one (revisions need not be dense: nothing may have it).
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The revision before this one.
    pub fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $letter:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(/** One client that talks to one endpoint, one request after another or many at once. */ ClientId, u32, "client");
id!(/** Number of an operation, unique in the history. */ OperationId, u64, "op");
id!(/** Number of a watch, unique in the history (not the wire's watch id). */ WatchId, u64, "watch");
id!(/** Number of a watch stream, unique in the history. */ StreamId, u64, "stream");
id!(/** A lease; 0 is none. */ LeaseId, i64, "lease");

/// Nanoseconds of one monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Nanos(pub u64);

/// A key, or a half-open range of keys, with etcd's meaning of `range_end`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyRange {
    /// First key.
    pub key: Key,
    /// Empty: only `key`. `\0`: everything from `key`. Otherwise the first key after the range.
    #[serde(default, skip_serializing_if = "Key::is_empty")]
    pub end: Key,
}

impl KeyRange {
    /// One key.
    pub fn one(key: Key) -> Self {
        Self { key, end: Key::default() }
    }

    /// Every key with this prefix.
    pub fn prefix(prefix: Key) -> Self {
        let mut end = prefix.as_bytes().to_vec();
        while let Some(last) = end.pop() {
            if last < 0xff {
                end.push(last + 1);
                return Self { key: prefix, end: end.into() };
            }
        }
        Self { key: prefix, end: vec![0u8].into() }
    }

    /// Whether the key lies in the range.
    pub fn contains(&self, key: &Key) -> bool {
        match self.end.as_bytes() {
            [] => *key == self.key,
            [0] => *key >= self.key,
            _ => *key >= self.key && *key < self.end,
        }
    }

    /// Whether it names one key only.
    pub fn is_one(&self) -> bool {
        self.end.is_empty()
    }
}

impl fmt::Debug for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_one() { write!(f, "{}", self.key) } else { write!(f, "[{}, {})", self.key, self.end) }
    }
}

/// A key with its value, as a read or an event shows it.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyValue {
    /// The key.
    pub key: Key,
    /// Empty in a DELETE event.
    #[serde(default, skip_serializing_if = "Value::is_empty")]
    pub value: Value,
    /// Revision of the create; 0 in a DELETE event.
    pub create: Revision,
    /// Revision of the last write.
    pub modified: Revision,
    /// Writes since the create; 0 in a DELETE event.
    pub version: i64,
    /// The lease, or 0.
    #[serde(default)]
    pub lease: LeaseId,
}

impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, create, modified, version, lease } = self;
        write!(f, "{key}={value}@{modified}(create {create}, version {version}")?;
        if lease.0 != 0 { write!(f, ", {lease})") } else { write!(f, ")") }
    }
}

/// A range read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct List {
    /// The keys asked for.
    pub range: KeyRange,
    /// Read at this revision; none is the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Revision>,
    /// At most this many keys; 0 is no limit.
    #[serde(default)]
    pub limit: u64,
    /// Only the count was asked for.
    #[serde(default)]
    pub count_only: bool,
    /// Allowed to be stale.
    #[serde(default)]
    pub serializable: bool,
}

impl List {
    /// A linearizable read of the whole range at the current revision.
    pub fn current(range: KeyRange) -> Self {
        Self { range, revision: None, limit: 0, count_only: false, serializable: false }
    }
}

/// One compare of a Txn (`=` unless it says otherwise).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Compare {
    /// `mod_revision` of the key, 0 when it does not exist.
    Modified(Key, Revision),
    /// `create_revision` of the key, 0 when it does not exist.
    Create(Key, Revision),
    /// `version` of the key, 0 when it does not exist.
    Version(Key, i64),
    /// The value; false when the key does not exist.
    Value(Key, Value),
    /// Any other compare: the checks take its result as it comes.
    Other(Key),
}

impl Compare {
    /// The key compared.
    pub fn key(&self) -> &Key {
        match self {
            Self::Modified(key, _) | Self::Create(key, _) | Self::Version(key, _) => key,
            Self::Value(key, _) | Self::Other(key) => key,
        }
    }
}

/// One operation inside a Txn.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TxnOp {
    /// Write a key.
    Put { key: Key, value: Value, lease: LeaseId },
    /// Delete a key or a range.
    Delete(KeyRange),
    /// Read.
    Range(List),
}

/// What a client asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Read one key or a range.
    List(List),
    /// Write unconditionally.
    Put { key: Key, value: Value, lease: LeaseId },
    /// Write if the key does not exist (`mod_revision == 0`).
    Create { key: Key, value: Value, lease: LeaseId },
    /// Write if the key's `mod_revision` is this.
    Update { key: Key, expected: Revision, value: Value, lease: LeaseId },
    /// Delete one key.
    Delete { key: Key },
    /// Delete one key if its `mod_revision` is this.
    DeleteIf { key: Key, expected: Revision },
    /// Delete a range.
    DeleteRange { range: KeyRange },
    /// Compact the history up to this revision.
    Compact { revision: Revision },
    /// Any other transaction.
    Txn { compares: Vec<Compare>, success: Vec<TxnOp>, failure: Vec<TxnOp> },
}

impl Request {
    /// A linearizable read of one key.
    pub fn get(key: Key) -> Self {
        Self::List(List { limit: 1, ..List::current(KeyRange::one(key)) })
    }
}

/// The answer to one read.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReadResult {
    /// The keys, in order.
    pub kvs: Vec<KeyValue>,
    /// There are more keys than the limit let through.
    #[serde(default)]
    pub more: bool,
    /// Keys in the range, whatever the limit.
    pub count: i64,
}

/// The answer to one operation inside a Txn.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TxnResult {
    /// Of a put.
    Put,
    /// Of a delete: how many keys.
    Delete(i64),
    /// Of a range.
    Range(ReadResult),
}

/// Why a request certainly did nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DefiniteError {
    /// The revision asked for has been compacted.
    Compacted,
    /// The revision asked for is in the future.
    FutureRevision,
    /// Anything else of which the client is sure that it had no effect.
    Other(String),
}

/// What the else-branch of a conditional write shows of the key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Current {
    /// There was no such branch.
    NotRead,
    /// There is no such key.
    Missing,
    /// The key as it is.
    Found(KeyValue),
}

/// What came back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// Of a read.
    Read { header: Revision, result: ReadResult },
    /// Of a put, create or update that wrote.
    Written { header: Revision },
    /// Of a delete: how many keys, and the old ones if they were asked for.
    Deleted { header: Revision, deleted: i64, previous: Vec<KeyValue> },
    /// Of a create, update or conditional delete whose compare failed. `current` is what the else-branch read.
    CompareFailed { header: Revision, current: Current },
    /// Of a generic Txn.
    Txn { header: Revision, succeeded: bool, results: Vec<TxnResult> },
    /// Of a compaction.
    Compacted { header: Revision },
    /// It certainly did nothing.
    Failed(DefiniteError),
    /// Timed out, or the connection broke: it may have run, may still run, or never will.
    Unknown,
}

impl Outcome {
    /// The header's revision, if there was an answer.
    pub fn header(&self) -> Option<Revision> {
        match self {
            Self::Read { header, .. } | Self::Written { header } | Self::Deleted { header, .. } => {
                Some(*header)
            }
            Self::CompareFailed { header, .. } | Self::Txn { header, .. } | Self::Compacted { header } => {
                Some(*header)
            }
            Self::Failed(_) | Self::Unknown => None,
        }
    }
}

/// One request with its outcome.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Operation {
    /// Unique in the history.
    pub id: OperationId,
    /// Who asked.
    pub client: ClientId,
    /// Just before it was sent.
    pub call: Nanos,
    /// Just after the answer; for `Unknown`, when the client gave up (the checks do not use it).
    pub returned: Nanos,
    /// What was asked.
    pub request: Request,
    /// What came back.
    pub outcome: Outcome,
}

/// What a watch asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WatchOptions {
    /// First revision wanted; none is "from now on".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Revision>,
    /// Events carry the version before.
    #[serde(default)]
    pub prev_kv: bool,
    /// No PUT events.
    #[serde(default)]
    pub no_put: bool,
    /// No DELETE events.
    #[serde(default)]
    pub no_delete: bool,
    /// Periodic progress notifications.
    #[serde(default)]
    pub progress_notify: bool,
    /// Large responses may be split.
    #[serde(default)]
    pub fragment: bool,
}

/// PUT or DELETE.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum EventKind {
    /// A key was written.
    Put,
    /// A key was deleted.
    Delete,
}

/// One event of a watch.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// PUT or DELETE.
    pub kind: EventKind,
    /// The key as it is after the event; for a DELETE only key and mod_revision.
    pub kv: KeyValue,
    /// The version before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev_kv: Option<KeyValue>,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            EventKind::Put => write!(f, "PUT {:?}", self.kv),
            EventKind::Delete => write!(f, "DELETE {}@{}", self.kv.key, self.kv.modified),
        }
    }
}

/// What one watch response says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum WatchBody {
    /// The watch exists.
    Created,
    /// Events; `fragment` when the rest of this response follows in the next one.
    Events { events: Vec<Event>, fragment: bool },
    /// A progress notification. `manual`: it came with watch id -1 and speaks for every watch of the stream; it
    /// may be recorded with one watch of the stream or with each. `requested`: when the client sent the request
    /// that this certainly answers, if it had only one outstanding.
    Progress { manual: bool, requested: Option<Nanos> },
    /// The server ended the watch; `compact_revision` above 0 because of a compaction.
    Canceled { compact_revision: Revision, reason: String },
    /// The stream broke.
    Broken,
}

/// One response, as it came in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WatchResponse {
    /// When it came in.
    pub at: Nanos,
    /// Its number on the stream, in arrival order; copies of a manual progress share one.
    pub sequence: u64,
    /// The header's revision (0 for `Broken`).
    pub header: Revision,
    /// What it says.
    pub body: WatchBody,
}

/// One watch with everything that came in for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Watch {
    /// Unique in the history.
    pub id: WatchId,
    /// Who watched.
    pub client: ClientId,
    /// On which stream.
    pub stream: StreamId,
    /// When it was asked for.
    pub call: Nanos,
    /// What is watched.
    pub range: KeyRange,
    /// How.
    pub options: WatchOptions,
    /// This watch continues that one; `options.start` is where. One watch is continued by at most one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumes: Option<WatchId>,
    /// In arrival order.
    pub responses: Vec<WatchResponse>,
}

/// Everything that the clients of one run recorded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// In any order.
    pub operations: Vec<Operation>,
    /// In any order.
    pub watches: Vec<Watch>,
}
