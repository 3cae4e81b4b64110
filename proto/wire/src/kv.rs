//! Encodes key-values, events and the fixed parts of answers by hand, with the same bytes as prost and Go: fields
//! in the order of their numbers, defaults omitted. The engine stores encoded key-values, and answers are assembled
//! from them without decoding.

use crate::{
    flat::flat,
    peek::ResponseHeader,
    scan::{Fields, WireError, put_bytes, put_len, put_number, varint_len},
};

flat! {
    /// An `mvccpb.KeyValue`.
    KeyValueRef<'a> {
        1 key: &'a [u8],
        2 create_revision: i64,
        3 mod_revision: i64,
        4 version: i64,
        5 value: &'a [u8],
        6 lease: i64,
    }
}

impl KeyValueRef<'_> {
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        bytes_len(self.key)
            + [self.create_revision, self.mod_revision, self.version, self.lease]
                .map(number_len)
                .iter()
                .sum::<usize>()
            + bytes_len(self.value)
    }

    pub fn encode_into(&self, out: &mut Vec<u8>) {
        non_empty(out, 1, self.key);
        non_zero(out, 2, self.create_revision.cast_unsigned());
        non_zero(out, 3, self.mod_revision.cast_unsigned());
        non_zero(out, 4, self.version.cast_unsigned());
        non_empty(out, 5, self.value);
        non_zero(out, 6, self.lease.cast_unsigned());
    }
}

/// The encoded message, in a vector without spare capacity.
#[must_use]
pub fn encode_key_value(kv: &KeyValueRef<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(kv.encoded_len());
    kv.encode_into(&mut out);
    out
}

/// `mvccpb.Event.EventType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    Put,
    Delete,
}

/// A parsed `mvccpb.Event` with encoded key-values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRef<'a> {
    pub event_type: EventType,
    /// The encoded key-value after the event; for a delete only its key and mod_revision are set.
    pub kv: &'a [u8],
    /// The encoded key-value before the event, if it was requested and is known.
    pub prev_kv: Option<&'a [u8]>,
}

impl<'a> EventRef<'a> {
    /// Parses the message. An unknown event type counts as a put, as in prost's accessor.
    ///
    /// # Errors
    /// When the bytes are not such a message, or hold a key-value in several pieces, which no server writes.
    pub fn parse(message: &'a [u8]) -> Result<Self, WireError> {
        let (mut event_type, mut kv, mut prev_kv) = (EventType::Put, None, None);
        for field in Fields::new(message) {
            let field = field?;
            match field.number {
                1 if field.varint()? as i32 == 1 => event_type = EventType::Delete,
                1 => event_type = EventType::Put,
                2 | 3 => {
                    let part = if field.number == 2 { &mut kv } else { &mut prev_kv };
                    if part.replace(field.bytes()?).is_some() {
                        return Err(WireError::Repeated(field.number));
                    }
                }
                _ => {}
            }
        }
        Ok(Self { event_type, kv: kv.unwrap_or_default(), prev_kv })
    }

    fn stored(&self) -> StoredEvent<&'a [u8]> {
        let Self { event_type, kv, prev_kv } = *self;
        StoredEvent { event_type, kv, prev_kv }
    }

    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.stored().encoded_len()
    }

    pub fn encode_into(&self, out: &mut Vec<u8>) {
        self.stored().encode_into(out);
    }
}

/// An encoded message that need not lie in one piece.
pub trait Part {
    /// The length of the message.
    fn bytes(&self) -> usize;

    /// Appends the message, which has [`Part::bytes`] bytes.
    fn append_to(&self, out: &mut Vec<u8>);
}

impl Part for [u8] {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<P: Part + ?Sized> Part for &P {
    fn bytes(&self) -> usize {
        (**self).bytes()
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        (**self).append_to(out);
    }
}

/// Appends a message as a length-delimited field.
fn put_part(out: &mut Vec<u8>, field: u32, part: &(impl Part + ?Sized)) {
    put_len(out, field, part.bytes());
    part.append_to(out);
}

/// An `mvccpb.Event` to encode, with encoded key-values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredEvent<P> {
    pub event_type: EventType,
    /// The encoded key-value after the event; for a delete only its key and mod_revision are set.
    pub kv: P,
    /// The encoded key-value before the event, if it was requested and is known.
    pub prev_kv: Option<P>,
}

impl<P: Part> StoredEvent<P> {
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let kind = if self.event_type == EventType::Delete { 2 } else { 0 };
        kind + part_len(&self.kv) + self.prev_kv.as_ref().map_or(0, part_len)
    }

    pub fn encode_into(&self, out: &mut Vec<u8>) {
        non_zero(out, 1, u64::from(self.event_type == EventType::Delete));
        put_part(out, 2, &self.kv);
        if let Some(prev_kv) = &self.prev_kv {
            put_part(out, 3, prev_kv);
        }
    }
}

impl ResponseHeader {
    /// The length of the encoded message without its tag.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        [self.cluster_id, self.member_id, self.revision.cast_unsigned(), self.raft_term]
            .map(|number| number_len(number.cast_signed()))
            .iter()
            .sum()
    }

    /// Appends the header as field 1 of a response.
    pub fn put(&self, response: &mut Vec<u8>) {
        put_len(response, 1, self.encoded_len());
        non_zero(response, 1, self.cluster_id);
        non_zero(response, 2, self.member_id);
        non_zero(response, 3, self.revision.cast_unsigned());
        non_zero(response, 4, self.raft_term);
    }
}

/// Appends an encoded key-value to a `RangeResponse` (after the header).
pub fn put_range_kv(response: &mut Vec<u8>, kv: &(impl Part + ?Sized)) {
    put_part(response, 2, kv);
}

/// Completes a `RangeResponse` with `more` and `count`.
pub fn put_range_end(response: &mut Vec<u8>, more: bool, count: i64) {
    non_zero(response, 3, u64::from(more));
    non_zero(response, 4, count.cast_unsigned());
}

/// Wraps an encoded `RangeResponse` in a `RangeStreamResponse`.
pub fn put_range_stream(message: &mut Vec<u8>, response: &[u8]) {
    put_bytes(message, 1, response);
}

/// Appends the encoded key-value before the put to a `PutResponse` (after the header).
pub fn put_put_prev_kv(response: &mut Vec<u8>, prev_kv: &(impl Part + ?Sized)) {
    put_part(response, 2, prev_kv);
}

/// Appends the number of deleted keys to a `DeleteRangeResponse` (after the header).
pub fn put_deleted(response: &mut Vec<u8>, deleted: i64) {
    non_zero(response, 2, deleted.cast_unsigned());
}

/// Appends an encoded deleted key-value to a `DeleteRangeResponse` (after `deleted`).
pub fn put_deleted_prev_kv(response: &mut Vec<u8>, prev_kv: &(impl Part + ?Sized)) {
    put_part(response, 3, prev_kv);
}

/// Appends to a `TxnResponse` which branch ran (after the header).
pub fn put_txn_succeeded(response: &mut Vec<u8>, succeeded: bool) {
    non_zero(response, 2, u64::from(succeeded));
}

/// The kind of a `ResponseOp`, with its field number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ResponseOp {
    /// A `RangeResponse`.
    Range = 1,
    /// A `PutResponse`.
    Put = 2,
    /// A `DeleteRangeResponse`.
    DeleteRange = 3,
    /// A `TxnResponse`.
    Txn = 4,
}

/// Appends an encoded response to a `TxnResponse` (after `succeeded`).
pub fn put_txn_response(response: &mut Vec<u8>, op: ResponseOp, inner: &[u8]) {
    put_len(response, 3, part_len(inner));
    put_bytes(response, op as u32, inner);
}

/// All fields of a `WatchResponse` except its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "etcd's own names")]
pub struct WatchHead<'a> {
    pub header: ResponseHeader,
    pub watch_id: i64,
    pub created: bool,
    pub canceled: bool,
    pub compact_revision: i64,
    pub cancel_reason: &'a str,
    pub fragment: bool,
}

impl WatchHead<'_> {
    /// Appends the fields, to which [`put_watch_event`] then adds the events.
    pub fn put(&self, response: &mut Vec<u8>) {
        self.header.put(response);
        non_zero(response, 2, self.watch_id.cast_unsigned());
        non_zero(response, 3, u64::from(self.created));
        non_zero(response, 4, u64::from(self.canceled));
        non_zero(response, 5, self.compact_revision.cast_unsigned());
        non_empty(response, 6, self.cancel_reason.as_bytes());
        non_zero(response, 7, u64::from(self.fragment));
    }
}

/// Appends an encoded event to a `WatchResponse`.
pub fn put_watch_event(response: &mut Vec<u8>, event: &[u8]) {
    put_bytes(response, 11, event);
}

/// The encoded length of `part` as a length-delimited field with a number below 16.
#[must_use]
pub fn part_len(part: &(impl Part + ?Sized)) -> usize {
    field_len(part.bytes())
}

/// The encoded length of a field with a number below 16 and so many bytes in it.
#[must_use]
#[inline]
pub fn field_len(bytes: usize) -> usize {
    1 + varint_len(bytes as u64) + bytes
}

/// The encoded length of such a field that is omitted when empty.
fn bytes_len(bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { part_len(bytes) }
}

/// The encoded length of a varint field with a number below 16 that is omitted when zero.
fn number_len(number: i64) -> usize {
    if number == 0 { 0 } else { 1 + varint_len(number.cast_unsigned()) }
}

pub(crate) fn non_zero(out: &mut Vec<u8>, field: u32, number: u64) {
    if number != 0 {
        put_number(out, field, number);
    }
}

pub(crate) fn non_empty(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_bytes(out, field, bytes);
    }
}
