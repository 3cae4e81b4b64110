//! Reads in place what routing needs of requests and answers: keys, revisions, leases and ids. Values are skipped.
//!
//! As protobuf requires, the last occurrence of a scalar wins, and occurrences of a message merge (`merge` adds one
//! more piece of the message). Slices point into the parsed bytes.

use std::ops::ControlFlow;

pub use crate::scan::WireError;
use crate::{
    flat::{FromField, flat},
    scan::{Field, Fields, Value, varints},
};

/// The maximum nesting depth of txns. etcd's own limit follows from `--max-txn-ops` (default 128), of which each
/// level takes at least one. Code that walks a txn recurses, on stacks of 2 MiB.
pub const TXN_DEPTH_MAX: usize = 256;

flat! {
    /// A `RangeRequest` of Range or RangeStream.
    RangeRequest<'a> {
        1 key: &'a [u8],
        2 range_end: &'a [u8],
        3 limit: i64,
        4 revision: i64,
        5 sort_order: i32,
        6 sort_target: i32,
        7 serializable: bool,
        8 keys_only: bool,
        9 count_only: bool,
        10 min_mod_revision: i64,
        11 max_mod_revision: i64,
        12 min_create_revision: i64,
        13 max_create_revision: i64,
    }
    /// A `PutRequest`.
    PutRequest<'a> {
        1 key: &'a [u8],
        2 value: &'a [u8],
        3 lease: i64,
        4 prev_kv: bool,
        5 ignore_value: bool,
        6 ignore_lease: bool,
    }
    /// A `DeleteRangeRequest`.
    DeleteRangeRequest<'a> {
        1 key: &'a [u8],
        2 range_end: &'a [u8],
        3 prev_kv: bool,
    }
    /// A `Compare` of a txn; of what it compares with only a revision of the last change.
    Compare<'a> {
        1 result: i32,
        2 target: i32,
        3 key: &'a [u8],
        6 mod_revision: i64,
        64 range_end: &'a [u8],
    }
    /// A `CompactionRequest`.
    CompactionRequest {
        1 revision: i64,
        2 physical: bool,
    }
    /// A `WatchCancelRequest`.
    WatchCancelRequest {
        1 watch_id: i64,
    }
    /// A `LeaseGrantRequest`.
    LeaseGrantRequest {
        1 ttl: i64,
        2 id: i64,
    }
    /// A `LeaseRevokeRequest` or `LeaseKeepAliveRequest`.
    LeaseIdRequest {
        1 id: i64,
    }
    /// A `LeaseTimeToLiveRequest`.
    LeaseTimeToLiveRequest {
        1 id: i64,
        2 keys: bool,
    }
    /// A `ResponseHeader`.
    ResponseHeader {
        1 cluster_id: u64,
        2 member_id: u64,
        3 revision: i64,
        4 raft_term: u64,
    }
}

/// A `WatchCreateRequest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "etcd's own names")]
pub struct WatchCreateRequest<'a> {
    pub key: &'a [u8],
    pub range_end: &'a [u8],
    pub start_revision: i64,
    pub progress_notify: bool,
    /// Whether the filter NOPUT is set.
    pub no_put: bool,
    /// Whether the filter NODELETE is set.
    pub no_delete: bool,
    pub prev_kv: bool,
    pub watch_id: i64,
    pub fragment: bool,
}

impl<'a> WatchCreateRequest<'a> {
    /// Merges another piece of the same message into this one.
    ///
    /// # Errors
    /// When the bytes are not such a message.
    pub fn merge(&mut self, piece: &'a [u8]) -> Result<(), WireError> {
        for field in Fields::new(piece) {
            let field = field?;
            match field.number {
                1 => self.key = FromField::from_field(&field)?,
                2 => self.range_end = FromField::from_field(&field)?,
                3 => self.start_revision = FromField::from_field(&field)?,
                4 => self.progress_notify = FromField::from_field(&field)?,
                5 => match field.value {
                    // Packed, as proto3 writes repeated enums, or as single values.
                    Value::Len(packed) => {
                        for filter in varints(packed) {
                            self.filter(filter?);
                        }
                    }
                    _ => self.filter(field.varint()?),
                },
                6 => self.prev_kv = FromField::from_field(&field)?,
                7 => self.watch_id = FromField::from_field(&field)?,
                8 => self.fragment = FromField::from_field(&field)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn filter(&mut self, filter: u64) {
        match filter as i32 {
            0 => self.no_put = true,
            1 => self.no_delete = true,
            _ => {}
        }
    }
}

/// A request on a client's watch stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchRequest<'a> {
    Create(WatchCreateRequest<'a>),
    Cancel(WatchCancelRequest),
    /// Requests a progress notification for the whole stream.
    Progress,
    /// Empty or unknown; etcd ignores such a request.
    Nothing,
}

impl<'a> WatchRequest<'a> {
    /// Parses the message.
    ///
    /// # Errors
    /// When the bytes are not such a message.
    pub fn parse(message: &'a [u8]) -> Result<Self, WireError> {
        let mut read = Self::Nothing;
        for field in Fields::new(message) {
            let field = field?;
            // In a oneof the same variant merges, and another variant replaces.
            read = match field.number {
                1 => {
                    let mut create =
                        if let Self::Create(create) = read { create } else { Default::default() };
                    create.merge(field.bytes()?)?;
                    Self::Create(create)
                }
                2 => {
                    let mut cancel =
                        if let Self::Cancel(cancel) = read { cancel } else { Default::default() };
                    cancel.merge(field.bytes()?)?;
                    Self::Cancel(cancel)
                }
                3 => {
                    Fields::new(field.bytes()?).try_for_each(|inner| inner.map(drop))?;
                    Self::Progress
                }
                _ => read,
            };
        }
        Ok(read)
    }
}

/// A compare or operation of a txn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TxnPart<'a> {
    /// A compare of one key or of a range.
    Compare(Compare<'a>),
    Range(RangeRequest<'a>),
    Put(PutRequest<'a>),
    DeleteRange(DeleteRangeRequest<'a>),
    /// An operation without content, which etcd refuses (`key not found`).
    Empty,
}

impl<'a> TxnPart<'a> {
    /// The key and `range_end` (empty for a single key) of this part; `None` for an empty operation.
    #[must_use]
    pub fn span(&self) -> Option<(&'a [u8], &'a [u8])> {
        match self {
            Self::Compare(compare) => Some((compare.key, compare.range_end)),
            Self::Range(range) => Some((range.key, range.range_end)),
            Self::Put(put) => Some((put.key, b"")),
            Self::DeleteRange(delete) => Some((delete.key, delete.range_end)),
            Self::Empty => None,
        }
    }
}

/// Passes every compare and operation of a `TxnRequest` to `visit`, in the order of the bytes. Includes nested txns
/// and both branches. Stops early if `visit` breaks, and leaves the remaining bytes unchecked.
///
/// # Errors
/// When the bytes are not a txn, or txns nest deeper than [`TXN_DEPTH_MAX`].
pub fn visit_txn<'a, B>(
    txn: &'a [u8],
    visit: &mut impl FnMut(TxnPart<'a>) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, WireError> {
    visit_nested(txn, 0, visit)
}

fn visit_nested<'a, B>(
    txn: &'a [u8],
    depth: usize,
    visit: &mut impl FnMut(TxnPart<'a>) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, WireError> {
    if depth > TXN_DEPTH_MAX {
        return Err(WireError::TooDeep);
    }
    for field in Fields::new(txn) {
        let field = field?;
        let flow = match field.number {
            1 => visit(TxnPart::Compare(Compare::parse(field.bytes()?)?)),
            2 | 3 => visit_op(field.bytes()?, depth, visit)?,
            _ => ControlFlow::Continue(()),
        };
        if flow.is_break() {
            return Ok(flow);
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Visits a `RequestOp`, a oneof in which only the last run of fields of one variant counts.
fn visit_op<'a, B>(
    op: &'a [u8],
    depth: usize,
    visit: &mut impl FnMut(TxnPart<'a>) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, WireError> {
    let mut fields = Fields::new(op);
    // Nearly always there is one field.
    if let Some(Ok(Field { number, value: Value::Len(piece) })) = fields.next()
        && fields.offset() == op.len()
    {
        match number {
            1 => return Ok(visit(TxnPart::Range(RangeRequest::parse(piece)?))),
            2 => return Ok(visit(TxnPart::Put(PutRequest::parse(piece)?))),
            _ => {}
        }
    }
    let (mut variant, mut from) = (0, 0);
    let mut fields = Fields::new(op);
    let mut begins = 0;
    while let Some(field) = fields.next() {
        let number = field?.number;
        if (1..=4).contains(&number) && number != variant {
            (variant, from) = (number, begins);
        }
        begins = fields.offset();
    }
    let mut part = match variant {
        1 => TxnPart::Range(RangeRequest::default()),
        2 => TxnPart::Put(PutRequest::default()),
        3 => TxnPart::DeleteRange(DeleteRangeRequest::default()),
        _ => TxnPart::Empty,
    };
    for field in Fields::new(op.get(from..).unwrap_or_default()) {
        let field = field?;
        if field.number != variant {
            continue;
        }
        let piece = field.bytes()?;
        match &mut part {
            TxnPart::Range(range) => range.merge(piece)?,
            TxnPart::Put(put) => put.merge(piece)?,
            TxnPart::DeleteRange(delete) => delete.merge(piece)?,
            _ => {
                let flow = visit_nested(piece, depth + 1, visit)?;
                if flow.is_break() {
                    return Ok(flow);
                }
            }
        }
    }
    Ok(if variant == 4 { ControlFlow::Continue(()) } else { visit(part) })
}

/// The header (field 1) of any response except a `RangeStreamResponse`; `None` if there is none.
///
/// # Errors
/// When the bytes are not such a message.
pub fn response_header(response: &[u8]) -> Result<Option<ResponseHeader>, WireError> {
    let mut header: Option<ResponseHeader> = None;
    for field in Fields::new(response) {
        let field = field?;
        if field.number == 1 {
            header.get_or_insert_default().merge(field.bytes()?)?;
        }
    }
    Ok(header)
}

/// The header's revision in any response except a `RangeStreamResponse`; 0 if there is no header.
///
/// # Errors
/// When the bytes are not such a message.
pub fn header_revision(response: &[u8]) -> Result<i64, WireError> {
    Ok(response_header(response)?.map_or(0, |header| header.revision))
}

/// The revision of a header at the start of the response, where every server writes it. Reads nothing after the
/// header, because each field of a long answer would cost a cache miss. `None` if another field comes first or the
/// bytes end within the header.
#[must_use]
pub fn leading_revision(response: &[u8]) -> Option<i64> {
    let first = Fields::new(response).next()?.ok().filter(|field| field.number == 1)?;
    Some(ResponseHeader::parse(first.bytes().ok()?).ok()?.revision)
}

/// The revision in the header of any response except a `RangeStreamResponse`; 0 if there is none to be read. The header
/// is expected at the start, and is looked for in the whole response only if it is not there.
#[must_use]
pub fn revision_shown(response: &[u8]) -> i64 {
    leading_revision(response).or_else(|| header_revision(response).ok()).unwrap_or_default()
}

/// Whether a `TxnResponse` says that the compares held. Reads only its beginning, where every server writes the header and
/// this field behind it; `None` if another field comes first or the bytes end before.
#[must_use]
pub fn leading_succeeded(response: &[u8]) -> Option<bool> {
    let mut fields = Fields::new(response);
    fields.next()?.ok().filter(|field| field.number == 1)?;
    match fields.next() {
        // The field of a transaction that did not succeed is not written.
        None => Some(false),
        Some(field) => {
            let field = field.ok()?;
            if field.number == 2 { field.varint().ok().map(|said| said != 0) } else { Some(false) }
        }
    }
}
