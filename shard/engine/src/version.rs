//! One version of one key. It holds the only copy of the value, inside the encoded `KeyValue` that every answer and
//! event carries.

use std::{borrow::Cow, cell::RefCell, cmp::Ordering};

use kindred_partition_config::ids::{LeaseId, Revision};
use triomphe::ThinArc;

mod cut;
mod wire;

pub use self::wire::BadVersion;

/// Facts that are too costly to parse from the message each time, and offsets into it.
struct Meta {
    sub: u32,
    /// Offset of the key; 0 without a key.
    key_at: u8,
    /// Distance from the key's end to the number of mod_revision; 0 without one.
    modified_at: u8,
    /// Distance from the key's end to the value.
    value_at: u8,
    /// Length of the lease field, which comes last; [`DELETED`] in a tombstone.
    lease_len: u8,
    /// The end of the message, if it was cut. A box here takes less than a shared one beside this allocation, which
    /// would need a reference count of its own.
    rest: Box<[u8]>,
}

impl Meta {
    /// Offset of the key's end, from the length in front of the key.
    fn key_end(&self, head: &[u8]) -> usize {
        let at = usize::from(self.key_at);
        let len = match at {
            0 => 0,
            2 => usize::from(head[1]),
            _ => varint(&head[1..]) as usize,
        };
        at + len
    }
}

/// The lease length of a tombstone.
const DELETED: u8 = u8::MAX;

/// A handle (one pointer, reference counted) to an immutable version of a key. One allocation holds the encoded message
/// and its `Meta`. The end of a long value may be in a second allocation: allocators round sizes up, by an eighth on
/// average, and two sizes that fit waste less (`cut`).
#[derive(Clone)]
pub struct Version(ThinArc<Meta, u8>);

/// The fields of a new version.
pub(crate) struct NewVersion<'a> {
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub create: Revision,
    pub modified: Revision,
    /// Position among the changes of one revision, from 0.
    pub sub: u32,
    pub version: i64,
    pub lease: Option<LeaseId>,
}

impl Version {
    pub(crate) fn put(new: &NewVersion<'_>) -> Self {
        with_buffer(|out| {
            let key_at = put_bytes(out, 1, new.key);
            let key_end = out.len();
            put_int64(out, 2, new.create.get());
            let modified_at = put_modified(out, new.modified, key_end);
            put_int64(out, 4, new.version);
            let value_at = put_bytes(out, 5, new.value) - key_end;
            let lease_from = out.len();
            put_int64(out, 6, new.lease.map_or(0, LeaseId::get));
            let meta = Meta {
                sub: new.sub,
                key_at: place(key_at),
                modified_at,
                value_at: place(value_at),
                lease_len: place(out.len() - lease_from),
                rest: Box::default(),
            };
            Self::hold(meta, out, key_end + value_at)
        })
    }

    /// Encodes a deletion, which has a key and a mod_revision only.
    pub(crate) fn tombstone(key: &[u8], modified: Revision, sub: u32) -> Self {
        with_buffer(|out| {
            let key_at = place(put_bytes(out, 1, key));
            let key_end = out.len();
            let modified_at = put_modified(out, modified, key_end);
            let value_at = place(out.len() - key_end);
            let meta = Meta { sub, key_at, modified_at, value_at, lease_len: DELETED, rest: Box::default() };
            Self::hold(meta, out, out.len())
        })
    }

    /// Copies the message into its allocations; the first `whole` bytes are not cut.
    fn hold(mut meta: Meta, message: &[u8], whole: usize) -> Self {
        let (head, rest) = message.split_at(cut::place(message.len(), whole));
        meta.rest = rest.into();
        Self(ThinArc::from_header_and_slice(meta, head))
    }

    fn meta(&self) -> &Meta {
        &self.0.header.header
    }

    /// The part of the message beside [`Meta`]: at least everything before the value.
    fn head(&self) -> &[u8] {
        &self.0.slice
    }

    fn rest(&self) -> &[u8] {
        &self.meta().rest
    }

    fn key_end(&self) -> usize {
        self.meta().key_end(self.head())
    }

    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.head()[usize::from(self.meta().key_at)..self.key_end()]
    }

    /// The value; copied only if it is in two pieces.
    #[must_use]
    pub fn value(&self) -> Cow<'_, [u8]> {
        match self.value_pieces() {
            [value, []] => Cow::Borrowed(value),
            pieces => Cow::Owned(pieces.concat()),
        }
    }

    /// The value's two pieces; the second may be empty.
    #[must_use]
    pub fn value_pieces(&self) -> [&[u8]; 2] {
        let Meta { value_at, lease_len, .. } = *self.meta();
        if lease_len == DELETED {
            return [&[], &[]];
        }
        let (head, rest) = (&self.head()[self.key_end() + usize::from(value_at)..], self.rest());
        let lease_len = usize::from(lease_len);
        match rest.len().checked_sub(lease_len) {
            Some(end) => [head, &rest[..end]],
            // The message is not cut: otherwise the rest would contain the whole lease.
            None => [&head[..head.len() - lease_len], &[]],
        }
    }

    #[must_use]
    pub fn cmp_values(&self, other: &Self) -> Ordering {
        cmp_pieces(self.value_pieces(), other.value_pieces())
    }

    pub(crate) fn cmp_value(&self, value: &[u8]) -> Ordering {
        cmp_pieces(self.value_pieces(), [value, &[]])
    }

    /// The message from the key's end on: create_revision, mod_revision and version, if present, then the rest.
    fn revisions(&self) -> &[u8] {
        &self.head()[self.key_end()..]
    }

    #[must_use]
    pub fn create_revision(&self) -> Revision {
        match self.revisions() {
            [CREATE, number @ ..] => Revision(varint(number).cast_signed()),
            _ => Revision::ZERO,
        }
    }

    /// Whether this version created its key.
    #[must_use]
    pub fn is_creation(&self) -> bool {
        self.create_revision() == self.mod_revision()
    }

    #[must_use]
    pub fn mod_revision(&self) -> Revision {
        let version = &*self.0;
        let (meta, head) = (&version.header.header, &version.slice);
        match usize::from(meta.modified_at) {
            0 => Revision::ZERO,
            at => Revision(varint(&head[meta.key_end(head) + at..]).cast_signed()),
        }
    }

    /// The number of writes since creation, 1 for the first.
    #[must_use]
    pub fn version(&self) -> i64 {
        let mut fields = &self.revisions()[usize::from(self.meta().modified_at).saturating_sub(1)..];
        while let [tag @ ..=VERSION, number @ ..] = fields {
            if *tag == VERSION {
                return varint(number).cast_signed();
            }
            // The last byte of a varint has its highest bit clear.
            let last = number.iter().position(|byte| byte & 0x80 == 0);
            fields = last.map_or(&[], |last| &number[last + 1..]);
        }
        0
    }

    /// The attached lease's id, 0 for none.
    #[must_use]
    pub fn lease(&self) -> i64 {
        let len = match self.meta().lease_len {
            0 | DELETED => return 0,
            len => usize::from(len),
        };
        let (head, rest) = (self.head(), self.rest());
        match rest.len().checked_sub(len) {
            Some(at) => varint(&rest[at + 1..]).cast_signed(),
            None => varint(&head[head.len() - len + 1..]).cast_signed(),
        }
    }

    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.meta().lease_len == DELETED
    }

    /// Position among the changes of its revision, from 0 (etcd's sub-revision).
    #[must_use]
    pub fn sub(&self) -> u32 {
        self.meta().sub
    }

    /// The sort key of events: revision, then position within it.
    #[must_use]
    pub fn order(&self) -> (Revision, u32) {
        (self.mod_revision(), self.sub())
    }

    pub(crate) fn lease_id(&self) -> Option<LeaseId> {
        LeaseId::from_wire(self.lease())
    }

    /// The version as a `mvccpb.KeyValue` message, in two pieces; the second may be empty.
    #[must_use]
    pub fn encoded(&self) -> [&[u8]; 2] {
        [self.head(), self.rest()]
    }

    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.head().len() + self.rest().len()
    }

    /// Approximate memory that the version takes.
    pub(crate) fn footprint(&self) -> u64 {
        (self.encoded_len() + cut::HEAD_BYTES) as u64
    }
}

impl std::fmt::Debug for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}.{}", self.key().escape_ascii(), self.mod_revision(), self.sub())?;
        if self.is_tombstone() {
            return f.write_str(" deleted");
        }
        write!(f, " v{} (created {})", self.version(), self.create_revision())
    }
}

/// Tag of the field `create_revision`.
const CREATE: u8 = 2 << 3;
/// Tag of the field `version`.
const VERSION: u8 = 4 << 3;
/// A buffer with more capacity is freed after use.
const BUFFER_MAX: usize = 64 << 10;

/// Runs a function with a reused thread-local buffer.
fn with_buffer<R>(run: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    thread_local!(static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    BUFFER.with_borrow_mut(|buffer| {
        buffer.clear();
        let result = run(buffer);
        if buffer.capacity() > BUFFER_MAX {
            *buffer = Vec::new();
        }
        result
    })
}

/// An offset as stored in [`Meta`]; it spans a few number fields at most.
fn place(distance: usize) -> u8 {
    u8::try_from(distance).expect("four numbers with their tags take at most 50 bytes")
}

fn cmp_pieces([a, a_rest]: [&[u8]; 2], [b, b_rest]: [&[u8]; 2]) -> Ordering {
    let first = a.len().min(b.len());
    let ((a, a_more), (b, b_more)) = (a.split_at(first), b.split_at(first));
    // At most one of the two has bytes left in its first piece.
    a.cmp(b).then_with(|| match (a_more, b_more) {
        ([], []) => a_rest.cmp(b_rest),
        (more, []) => {
            let (front, back) = b_rest.split_at(b_rest.len().min(more.len()));
            more.cmp(front).then_with(|| a_rest.cmp(back))
        }
        (_, more) => {
            let (front, back) = a_rest.split_at(a_rest.len().min(more.len()));
            front.cmp(more).then_with(|| back.cmp(b_rest))
        }
    })
}

/// Reads a varint that was encoded here.
fn varint(bytes: &[u8]) -> u64 {
    const MORE: u64 = 0x8080_8080_8080_8080;
    let Some(eight) = bytes.first_chunk() else { return varint_slow(bytes) };
    let word = u64::from_le_bytes(*eight);
    let last = !word & MORE;
    // Joins the seven bits of each byte, up to the last one, in pairs, fours and eights.
    let bits = word & !MORE & (last ^ last.wrapping_sub(1));
    let bits = (bits & 0x007f_007f_007f_007f) | (bits & 0x7f00_7f00_7f00_7f00) >> 1;
    let bits = (bits & 0x0000_3fff_0000_3fff) | (bits & 0x3fff_0000_3fff_0000) >> 2;
    let bits = (bits & 0x0fff_ffff) | (bits & 0x0fff_ffff_0000_0000) >> 4;
    if last != 0 {
        return bits;
    }
    // Present-day revisions have a ninth byte; only negative numbers have a tenth.
    let ninth = u64::from(bytes[8]);
    let bits = bits | (ninth & 0x7f) << 56;
    if ninth < 0x80 { bits } else { bits | u64::from(bytes[9]) << 63 }
}

fn varint_slow(bytes: &[u8]) -> u64 {
    let mut value = 0;
    for (byte, shift) in bytes.iter().zip((0..64).step_by(7)) {
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Writes an `int64` field; zero is left out, as in protobuf 3.
fn put_int64(out: &mut Vec<u8>, field: u8, value: i64) {
    if value != 0 {
        out.push(field << 3);
        put_varint(out, value as u64);
    }
}

/// Writes mod_revision. Returns the distance from the key's end to its number, 0 when it is left out.
fn put_modified(out: &mut Vec<u8>, modified: Revision, key_end: usize) -> u8 {
    let at = place(out.len() + 1 - key_end);
    put_int64(out, 3, modified.get());
    if modified == Revision::ZERO { 0 } else { at }
}

/// Writes a `bytes` field; an empty one is left out. Returns the offset of its content.
fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) -> usize {
    if !bytes.is_empty() {
        out.push((field << 3) | 2);
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }
    out.len() - bytes.len()
}

#[cfg(test)]
mod tests;
