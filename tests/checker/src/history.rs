//! What clients record: operations with their outcome, and watches with their responses in arrival order.
//!
//! A history is plain data. `json.rs` turns it into JSON lines and back, so that a failure can be stored and replayed.
//!
//! A recorder obeys these rules, so that the checks see as much as they can:
//! * Every write has a value of its own; a counter in the value is enough. A write whose outcome is unknown is then
//!   recognised when its value turns up in a read or an event.
//! * All times come from one monotonic clock. `call` is taken before the request is sent, and `returned` after the
//!   whole answer has come in.
//! * A request that timed out or lost its connection has `Outcome::Unknown`, unless it certainly did not run.
//! * `sequence` counts the responses of one watch *stream* in the order in which they came in.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::bytes::{Key, Value};

/// etcd's revision, Kubernetes' resourceVersion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Revision(pub i64);

impl Revision {
    /// This revision plus one. Revisions need not be dense, so nothing may have it.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// This revision minus one. Nothing may have it either.
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

id!(/** A client of one endpoint. It may have many requests under way. */ ClientId, u32, "client");
id!(/** Unique in the history. */ OperationId, u64, "op");
id!(/** Unique in the history. It is not the watch id of etcd's API. */ WatchId, u64, "watch");
id!(/** Unique in the history. */ StreamId, u64, "stream");
id!(/** 0 means no lease. */ LeaseId, i64, "lease");

/// Nanoseconds of one monotonic clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Nanos(pub u64);

/// A key, or a half-open range of keys, with etcd's meaning of `range_end`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyRange {
    pub key: Key,
    /// The first key after the range. If empty, the range is only `key`. `\0` stands for everything from `key`.
    #[serde(default, skip_serializing_if = "Key::is_empty")]
    pub end: Key,
}

impl KeyRange {
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

    pub fn contains(&self, key: &Key) -> bool {
        match self.end.as_bytes() {
            [] => *key == self.key,
            [0] => *key >= self.key,
            _ => *key >= self.key && *key < self.end,
        }
    }

    /// Whether the range has the form that names a single key.
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
    pub key: Key,
    /// Empty in a DELETE event.
    #[serde(default, skip_serializing_if = "Value::is_empty")]
    pub value: Value,
    /// The revision that created the key; 0 in a DELETE event.
    pub create: Revision,
    /// The revision of the last write.
    pub modified: Revision,
    /// Writes since the create; 0 in a DELETE event.
    pub version: i64,
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
    pub range: KeyRange,
    /// The revision to read at; none is the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Revision>,
    /// The largest number of keys to answer with; 0 is no limit.
    #[serde(default)]
    pub limit: u64,
    /// The client asked for the count only.
    #[serde(default)]
    pub count_only: bool,
    /// The answer may be stale.
    #[serde(default)]
    pub serializable: bool,
}

impl List {
    /// A linearizable read of the whole range at the current revision.
    pub fn current(range: KeyRange) -> Self {
        Self { range, revision: None, limit: 0, count_only: false, serializable: false }
    }
}

/// One compare of a Txn. All but `Other` test for equality.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Compare {
    /// `mod_revision` of the key, 0 when it does not exist.
    Modified(Key, Revision),
    /// `create_revision` of the key, 0 when it does not exist.
    Create(Key, Revision),
    /// `version` of the key, 0 when it does not exist.
    Version(Key, i64),
    /// The value of the key. The compare is false when the key does not exist.
    Value(Key, Value),
    /// Any other compare. The checks accept either result.
    Other(Key),
}

impl Compare {
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
    /// Write a key. Its lease becomes `lease`, or none.
    Put { key: Key, value: Value, lease: LeaseId },
    /// Delete a key or a range.
    Delete(KeyRange),
    /// Read a key or a range.
    Range(List),
}

/// A request as a client sent it.
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
    /// Delete one key unconditionally.
    Delete { key: Key },
    /// Delete one key if its `mod_revision` is this.
    DeleteIf { key: Key, expected: Revision },
    /// Delete every key of a range, over several stores if the range spans them.
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
    /// In order of their keys.
    pub kvs: Vec<KeyValue>,
    /// The range has more keys than the limit allowed.
    #[serde(default)]
    pub more: bool,
    /// The number of keys in the range, whatever the limit.
    pub count: i64,
}

/// The answer to one operation inside a Txn.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TxnResult {
    Put,
    /// How many keys the delete removed.
    Delete(i64),
    Range(ReadResult),
}

/// An error after which the request has certainly changed nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DefiniteError {
    /// The requested revision has been compacted.
    Compacted,
    /// The requested revision is in the future.
    FutureRevision,
    /// Any other error that proves that the request had no effect.
    Other(String),
}

/// What the else branch of a conditional write read of the key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Current {
    /// The request had no else branch.
    NotRead,
    /// The key does not exist.
    Missing,
    Found(KeyValue),
}

/// The answer to a request, or what is known without one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// A range was read. `header` may be above the revision that was read.
    Read { header: Revision, result: ReadResult },
    /// A put, create or update wrote its key.
    Written { header: Revision },
    /// `deleted` keys were deleted. `previous` has their old versions if the request asked for them.
    Deleted { header: Revision, deleted: i64, previous: Vec<KeyValue> },
    /// The compare of a create, update or conditional delete failed. `current` is what the else branch read.
    CompareFailed { header: Revision, current: Current },
    /// `results` has one entry for each operation of the branch that ran.
    Txn { header: Revision, succeeded: bool, results: Vec<TxnResult> },
    /// `header` is the current revision, not the compacted one.
    Compacted { header: Revision },
    /// The request certainly changed nothing.
    Failed(DefiniteError),
    /// The request timed out, or its connection broke. It may have run, may run later, or may never run.
    Unknown,
}

impl Outcome {
    /// The revision of the header, if there was an answer.
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
    pub id: OperationId,
    pub client: ClientId,
    /// Just before the request was sent.
    pub call: Nanos,
    /// Just after the answer came in. Of an `Unknown` outcome it is when the client gave up, which no check uses.
    pub returned: Nanos,
    pub request: Request,
    pub outcome: Outcome,
}

/// The options of a watch's create request.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WatchOptions {
    /// The first revision to deliver; none is "from now on".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Revision>,
    /// Events carry the previous version.
    #[serde(default)]
    pub prev_kv: bool,
    /// The server leaves PUT events out.
    #[serde(default)]
    pub no_put: bool,
    /// The server leaves DELETE events out.
    #[serde(default)]
    pub no_delete: bool,
    /// The server sends progress notifications periodically.
    #[serde(default)]
    pub progress_notify: bool,
    /// The server may split large responses.
    #[serde(default)]
    pub fragment: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum EventKind {
    Put,
    Delete,
}

/// One event of a watch.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub kind: EventKind,
    /// The key after the event. A DELETE has only the key and its mod_revision.
    pub kv: KeyValue,
    /// The key before the event, if the watch asked for it.
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

/// The content of one watch response.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum WatchBody {
    /// The server confirms that the watch exists.
    Created,
    /// With `fragment`, the rest of the response follows in the next one.
    Events { events: Vec<Event>, fragment: bool },
    /// A progress notification. A `manual` one came with watch id -1 and covers every watch of the stream; it may be
    /// recorded with one watch of the stream or with each. `requested` is when the client sent the request for it. It
    /// is set only if that request was the only one outstanding.
    Progress { manual: bool, requested: Option<Nanos> },
    /// The server ended the watch. A `compact_revision` above 0 says that a compaction was the reason.
    Canceled { compact_revision: Revision, reason: String },
    /// The client recorded that the stream broke.
    Broken,
}

/// One response as the client received it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WatchResponse {
    /// When the response came in.
    pub at: Nanos,
    /// The number of the response on its stream, in arrival order. Copies of a manual progress share one number.
    pub sequence: u64,
    /// The revision of the header; 0 for `Broken`.
    pub header: Revision,
    pub body: WatchBody,
}

/// One watch with all its responses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Watch {
    pub id: WatchId,
    pub client: ClientId,
    pub stream: StreamId,
    /// When the client sent the create request.
    pub call: Nanos,
    pub range: KeyRange,
    pub options: WatchOptions,
    /// The watch that this one continues, at `options.start`. At most one watch continues another.
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
