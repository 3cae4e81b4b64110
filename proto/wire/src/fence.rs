//! Requests to a stock etcd behind its fence key (R13): each is nested in a txn that compares the key's mod revision, so
//! that etcd itself executes it only as long as nothing has changed there; and the answers out of the txn's.
//!
//! What a client gets is what etcd would have answered to the request alone: the nested answer as it is, with the header
//! of the txn, as etcd leaves nested headers empty but for some revisions.

use crate::{
    answer,
    kv::KeyValueRef,
    patch::HeaderPatch,
    peek::{self, ResponseHeader},
    scan::{Fields, WireError, put_bytes, put_len, put_number, varint_len},
};

/// The key that every request compares: the first one that there is, so that a range that begins with it can begin behind
/// it instead, and no client ever sees it.
pub const FENCE_KEY: &[u8] = &[0];

/// The key that comes next.
pub const BEHIND_FENCE: &[u8] = &[0, 0];

/// What is nested.
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
    /// The field of a `RequestOp`, and of a `ResponseOp`.
    const fn field(self) -> u32 {
        match self {
            Self::Range => 1,
            Self::Put => 2,
            Self::DeleteRange => 3,
            Self::Txn => 4,
        }
    }
}

/// etcd's numbers: `Compare.result` EQUAL, `Compare.target` MOD.
const EQUAL: u64 = 0;
const MOD: u64 = 2;

/// What is sent in place of a request: a txn that executes it if the fence key still has this mod revision (0: if it does
/// not exist), and reads the fence key if not.
///
/// A range of keys begins behind the fence key, and a read is linearizable, as the compare must be: a serializable one may
/// be carried out by a member that has not heard of the fence.
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

/// Fields that are to override those of a request, to be appended to it.
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

/// Where a range of keys begins instead when it begins with the fence key.
#[must_use]
pub fn begins_behind(key: &[u8], range_end: &[u8]) -> Option<&'static [u8]> {
    (key == FENCE_KEY && !range_end.is_empty()).then_some(BEHIND_FENCE)
}

/// A `RangeRequest` for a stream that reads what was there at a revision, and nothing of the fence.
#[must_use]
pub fn streamed_at(request: &[u8], revision: i64) -> Vec<u8> {
    let mut streamed = request.to_vec();
    streamed.extend(override_of(Nested::Range, request));
    put_number(&mut streamed, 4, revision.cast_unsigned());
    streamed
}

/// What became of a nested request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unnested<'a> {
    /// It was executed.
    Executed {
        /// Its answer, without the header that is to be appended.
        answer: &'a [u8],
        /// The header of its answer.
        header: ResponseHeader,
    },
    /// The fence has changed: it was not executed.
    Refused(Fence<'a>),
}

/// The fence key as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence<'a> {
    /// Its mod revision; 0 where it does not exist.
    pub mod_revision: i64,
    /// Its value.
    pub value: &'a [u8],
    /// The etcd's current revision then.
    pub revision: i64,
}

/// Reads the answer to a nested request.
///
/// # Errors
/// When the bytes are no answer to one.
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
    // gogo leaves a message without content out of a list, never out of a oneof.
    let inner = inner.ok_or(WireError::Truncated)?;
    if succeeded {
        return Ok(Unnested::Executed { answer: inner, header });
    }
    Ok(Unnested::Refused(fence_of(inner, header.revision)?))
}

/// The fence key out of the answer to a range of it, at this revision.
///
/// # Errors
/// When the bytes are no such answer.
pub fn fence_of(range: &[u8], revision: i64) -> Result<Fence<'_>, WireError> {
    let Some(kv) = answer::range_kvs(range).next().transpose()? else {
        return Ok(Fence { mod_revision: 0, value: &[], revision });
    };
    let kv = KeyValueRef::parse(kv)?;
    Ok(Fence { mod_revision: kv.mod_revision, value: kv.value, revision })
}

/// The answer of its own: the nested one with the header.
#[must_use]
pub fn with_header(answer: &[u8], header: ResponseHeader) -> Vec<u8> {
    let mut own = Vec::with_capacity(answer.len() + 32);
    own.extend_from_slice(answer);
    HeaderPatch::all(header).append_to(&mut own);
    own
}

/// Whether a request names the fence key itself: alone, or in a txn also as the first of a range.
///
/// # Errors
/// When the bytes are no such request.
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
