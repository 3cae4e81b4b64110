//! Fenced requests to a stock etcd (R13). Each request is nested in a txn that compares the mod revision of a fence
//! key, so etcd itself executes it only while the ownership there is unchanged. This module also extracts the
//! answers.
//!
//! The client gets what etcd would have answered to the plain request: the nested answer with the header of the
//! txn, because etcd leaves nested headers empty except for some revisions.

use crate::{
    answer,
    kv::KeyValueRef,
    patch::HeaderPatch,
    peek::{self, ResponseHeader},
    scan::{Fields, WireError, put_bytes, put_len, put_number, varint_len},
};

/// The key that every request compares. It is the first possible key, so a range that begins with it can begin
/// after it instead, and no client ever sees it.
pub const FENCE_KEY: &[u8] = &[0];

/// The first key after the fence key.
pub const BEHIND_FENCE: &[u8] = &[0, 0];

/// The kind of a nested request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nested {
    /// A `RangeRequest`.
    Range,
    /// A `PutRequest`.
    Put,
    /// A `DeleteRangeRequest`.
    DeleteRange,
    /// A `TxnRequest`.
    Txn,
}

impl Nested {
    /// The field number in a `RequestOp` and in a `ResponseOp`.
    const fn field(self) -> u32 {
        match self {
            Self::Range => 1,
            Self::Put => 2,
            Self::DeleteRange => 3,
            Self::Txn => 4,
        }
    }
}

/// etcd's numbers of `Compare.result` EQUAL and `Compare.target` MOD.
const EQUAL: u64 = 0;
const MOD: u64 = 2;

/// Nests a request in a txn that executes it if the fence key has this mod revision (0: if it does not exist), and
/// otherwise reads the fence key.
///
/// A range that begins with the fence key is changed to begin after it. A serializable read becomes linearizable
/// like the compare, because a member that has not seen the fence change could execute it.
#[must_use]
pub fn nest(nested: Nested, request: &[u8], mod_revision: i64) -> Vec<u8> {
    let tail = override_of(nested, request);
    let inner = request.len() + tail.len();
    let mut txn = Vec::with_capacity(inner + 64);
    let mut compare = Vec::with_capacity(20);
    put_number(&mut compare, 1, EQUAL);
    put_number(&mut compare, 2, MOD);
    put_bytes(&mut compare, 3, FENCE_KEY);
    put_number(&mut compare, 6, mod_revision.cast_unsigned());
    put_bytes(&mut txn, 1, &compare);
    put_len(&mut txn, 2, 1 + varint_len(inner as u64) + inner);
    put_len(&mut txn, nested.field(), inner);
    txn.extend_from_slice(request);
    txn.extend_from_slice(&tail);
    let (mut range, mut op) = (Vec::new(), Vec::new());
    put_bytes(&mut range, 1, FENCE_KEY);
    put_bytes(&mut op, Nested::Range.field(), &range);
    put_bytes(&mut txn, 3, &op);
    txn
}

/// The fields to append to a request, where they override its own.
fn override_of(nested: Nested, request: &[u8]) -> Vec<u8> {
    let mut tail = Vec::new();
    let span = match nested {
        Nested::Range => {
            let range = peek::RangeRequest::parse(request).unwrap_or_default();
            if range.serializable {
                put_number(&mut tail, 7, 0);
            }
            (range.key, range.range_end)
        }
        Nested::DeleteRange => {
            let delete = peek::DeleteRangeRequest::parse(request).unwrap_or_default();
            (delete.key, delete.range_end)
        }
        Nested::Put | Nested::Txn => return tail,
    };
    if let Some(key) = begins_behind(span.0, span.1) {
        put_bytes(&mut tail, 1, key);
    }
    tail
}

/// The start of a range that would begin with the fence key; `None` for other ranges.
#[must_use]
pub fn begins_behind(key: &[u8], range_end: &[u8]) -> Option<&'static [u8]> {
    (key == FENCE_KEY && !range_end.is_empty()).then_some(BEHIND_FENCE)
}

/// A `RangeRequest` for a stream that reads at a revision and leaves out the fence key.
#[must_use]
pub fn streamed_at(request: &[u8], revision: i64) -> Vec<u8> {
    let mut streamed = request.to_vec();
    streamed.extend(override_of(Nested::Range, request));
    put_number(&mut streamed, 4, revision.cast_unsigned());
    streamed
}

/// The result of a nested request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unnested<'a> {
    /// It was executed.
    Executed {
        /// The answer. The header must be appended to it.
        answer: &'a [u8],
        /// The header of the txn.
        header: ResponseHeader,
    },
    /// The fence has changed, so the request was not executed.
    Refused(Fence<'a>),
}

/// The present state of the fence key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence<'a> {
    /// Its mod revision; 0 if it does not exist.
    pub mod_revision: i64,
    pub value: &'a [u8],
    /// The etcd's current revision at that time.
    pub revision: i64,
}

/// Parses the answer to a nested request.
///
/// # Errors
/// When the bytes are not such an answer.
pub fn unnest(nested: Nested, answer: &[u8]) -> Result<Unnested<'_>, WireError> {
    let (mut header, mut succeeded, mut op) = (ResponseHeader::default(), false, &[][..]);
    for field in Fields::new(answer) {
        let field = field?;
        match field.number {
            1 => header.merge(field.bytes()?)?,
            2 => succeeded = field.varint()? != 0,
            3 => op = field.bytes()?,
            _ => {}
        }
    }
    let variant = if succeeded { nested.field() } else { Nested::Range.field() };
    let mut inner = None;
    for field in Fields::new(op) {
        let field = field?;
        if field.number == variant {
            inner = Some(field.bytes()?);
        }
    }
    // gogo omits an empty message from a repeated field, but never from a oneof.
    let inner = inner.ok_or(WireError::Truncated)?;
    if succeeded {
        return Ok(Unnested::Executed { answer: inner, header });
    }
    Ok(Unnested::Refused(fence_of(inner, header.revision)?))
}

/// Extracts the fence key from the answer to a range over it; `revision` is that of the header.
///
/// # Errors
/// When the bytes are not such an answer.
pub fn fence_of(range: &[u8], revision: i64) -> Result<Fence<'_>, WireError> {
    let Some(kv) = answer::range_kvs(range).next().transpose()? else {
        return Ok(Fence { mod_revision: 0, value: &[], revision });
    };
    let kv = KeyValueRef::parse(kv)?;
    Ok(Fence { mod_revision: kv.mod_revision, value: kv.value, revision })
}

/// The answer to the plain request: the nested answer behind the header, without one of its own.
#[must_use]
pub fn with_header(answer: &[u8], header: ResponseHeader) -> Vec<u8> {
    let mut own = Vec::with_capacity(answer.len() + 48);
    HeaderPatch::all(header).append_to(&mut own);
    let mut fields = Fields::new(answer);
    let nested = fields.next().is_some_and(|field| field.is_ok_and(|field| field.number == 1));
    own.extend_from_slice(&answer[if nested { fields.offset() } else { 0 }..]);
    own
}

/// Whether a request names the fence key: alone or, inside a txn, also as the start of a range.
///
/// # Errors
/// When the bytes are not such a request.
pub fn touches_fence(nested: Nested, request: &[u8]) -> Result<bool, WireError> {
    let alone = |key: &[u8], range_end: &[u8]| key == FENCE_KEY && range_end.is_empty();
    Ok(match nested {
        Nested::Range => {
            let range = peek::RangeRequest::parse(request)?;
            alone(range.key, range.range_end)
        }
        Nested::Put => peek::PutRequest::parse(request)?.key == FENCE_KEY,
        Nested::DeleteRange => {
            let delete = peek::DeleteRangeRequest::parse(request)?;
            alone(delete.key, delete.range_end)
        }
        Nested::Txn => peek::visit_txn(request, &mut |part| match part.span() {
            Some((key, _)) if key == FENCE_KEY => std::ops::ControlFlow::Break(()),
            _ => std::ops::ControlFlow::Continue(()),
        })?
        .is_break(),
    })
}
