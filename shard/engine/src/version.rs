//! One version of one key: the only copy of its value. The numbers beside it are kept in few bytes, and
//! [`Version::encoded`] makes them the `KeyValue` message that every answer and event carries.

use std::{borrow::Cow, cmp::Ordering};

use kindred_partition_config::ids::{LeaseId, Revision};

use self::block::Block;

#[expect(unsafe_code, reason = "an allocation with little beside it, for millions of versions")]
mod block;
mod cut;
mod encoded;
mod varint;
mod wire;

pub use self::{encoded::Encoded, wire::BadVersion};

/// A handle (one pointer, reference counted) to an immutable version of a key. One allocation holds it all:
///
/// | bytes | |
/// | --- | --- |
/// | 8 | mod_revision |
/// | 2 | the widths of the numbers behind the key, and `DELETED` |
/// | 1 to 5 | the key's length, as protobuf writes it |
/// | | the key |
/// | 0 to 28 | mod_revision - create_revision, version - 1, lease and `sub`, each in the bytes that it needs |
/// | | the value |
///
/// The end of a long value may be in a second allocation: allocators round sizes up, by an eighth on average, and two
/// sizes that fit waste less (`cut`).
#[derive(Clone)]
pub struct Version(Block);

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

/// The place of the widths: that of create_revision in the low half of a byte, that of version in the high half, then
/// lease and `sub` in the same way.
const WIDTHS_AT: usize = 8;
/// The place of the key's length.
const KEY_AT: usize = 10;
/// The bit beside the widths that marks a deletion.
const DELETED: u8 = 0x80;
/// What the log, the indexes and the chain of an object take for a version, about.
const BESIDE_BYTES: usize = 32;

/// The bytes that a number needs, 0 for 0.
fn width(number: u64) -> usize {
    (71 - number.leading_zeros() as usize) / 8
}

/// Reads a number of that width.
#[inline]
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    if width == 0 {
        return 0;
    }
    let bytes = &bytes[at..];
    match bytes.first_chunk() {
        Some(eight) => u64::from_le_bytes(*eight) & u64::MAX >> (64 - 8 * width),
        None => bytes[..width].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)),
    }
}

/// The widths of the numbers behind the key, in their order.
#[derive(Clone, Copy)]
struct Widths {
    create: usize,
    version: usize,
    lease: usize,
    sub: usize,
}

impl Widths {
    #[inline]
    fn total(self) -> usize {
        self.create + self.version + self.lease + self.sub
    }
}

impl Version {
    pub(crate) fn put(new: &NewVersion<'_>) -> Self {
        let back = new.modified.get().wrapping_sub(new.create.get());
        let before = new.version.wrapping_sub(1);
        let lease = new.lease.map_or(0, LeaseId::get);
        let numbers = [back, before, lease, new.sub.into()].map(i64::cast_unsigned);
        Self::hold(new.key, new.modified, numbers, 0, new.value)
    }

    /// A deletion, which has a key and a mod_revision only.
    pub(crate) fn tombstone(key: &[u8], modified: Revision, sub: u32) -> Self {
        Self::hold(key, modified, [0, 0, 0, sub.into()], DELETED, &[])
    }

    fn hold(key: &[u8], modified: Revision, numbers: [u64; 4], deleted: u8, value: &[u8]) -> Self {
        let (mut front, mut behind, mut end) = ([0; KEY_AT + varint::BYTES_MAX], [0; 32], 0);
        front[..WIDTHS_AT].copy_from_slice(&modified.get().to_le_bytes());
        let widths = numbers.map(|number| {
            // The last of them, `sub`, begins at 24 at most.
            behind[end..end + 8].copy_from_slice(&number.to_le_bytes());
            end += width(number);
            width(number) as u8
        });
        front[WIDTHS_AT] = widths[0] | widths[1] << 4;
        front[WIDTHS_AT + 1] = widths[2] | widths[3] << 4 | deleted;
        let (_, key_len) = front.split_at_mut(KEY_AT);
        let key_at = KEY_AT + key_len.first_chunk_mut().map_or(0, |out| varint::put(out, key.len() as u64));
        let value_at = key_at + key.len() + end;
        let (first, rest) = value.split_at(cut::place(value_at + value.len(), value_at) - value_at);
        Self(Block::new(&[&front[..key_at], key, &behind[..end], first], rest))
    }

    /// The places of the key and of its end.
    #[inline]
    fn key_places(bytes: &[u8]) -> (usize, usize) {
        let (len, digits) = match bytes[KEY_AT] {
            short @ ..0x80 => (usize::from(short), 1),
            _ => varint::read_short(&bytes[KEY_AT..]),
        };
        (KEY_AT + digits, KEY_AT + digits + len)
    }

    #[inline]
    fn widths(bytes: &[u8]) -> Widths {
        let [low, high] = [bytes[WIDTHS_AT], bytes[WIDTHS_AT + 1]].map(usize::from);
        Widths { create: low & 15, version: low >> 4, lease: high & 15, sub: high >> 4 & 7 }
    }

    #[must_use]
    pub fn key(&self) -> &[u8] {
        let bytes = self.0.first();
        let (from, end) = Self::key_places(bytes);
        &bytes[from..end]
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
        let bytes = self.0.first();
        let value_at = Self::key_places(bytes).1 + Self::widths(bytes).total();
        [&bytes[value_at..], self.0.second()]
    }

    #[must_use]
    pub fn cmp_values(&self, other: &Self) -> Ordering {
        cmp_pieces(self.value_pieces(), other.value_pieces())
    }

    pub(crate) fn cmp_value(&self, value: &[u8]) -> Ordering {
        cmp_pieces(self.value_pieces(), [value, &[]])
    }

    #[must_use]
    pub fn create_revision(&self) -> Revision {
        if self.is_tombstone() {
            return Revision::ZERO;
        }
        let bytes = self.0.first();
        let back = number(bytes, Self::key_places(bytes).1, Self::widths(bytes).create);
        Revision(self.mod_revision().get().wrapping_sub(back.cast_signed()))
    }

    /// Whether this version created its key.
    #[must_use]
    pub fn is_creation(&self) -> bool {
        self.create_revision() == self.mod_revision()
    }

    #[must_use]
    pub fn mod_revision(&self) -> Revision {
        let bytes = self.0.first().first_chunk().expect("a version begins with its revision");
        Revision(i64::from_le_bytes(*bytes))
    }

    /// The number of writes since creation, 1 for the first.
    #[must_use]
    pub fn version(&self) -> i64 {
        if self.is_tombstone() {
            return 0;
        }
        let bytes = self.0.first();
        let widths = Self::widths(bytes);
        let before = number(bytes, Self::key_places(bytes).1 + widths.create, widths.version);
        before.cast_signed().wrapping_add(1)
    }

    /// The attached lease's id, 0 for none.
    #[must_use]
    pub fn lease(&self) -> i64 {
        let bytes = self.0.first();
        let widths = Self::widths(bytes);
        let at = Self::key_places(bytes).1 + widths.create + widths.version;
        number(bytes, at, widths.lease).cast_signed()
    }

    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.0.first()[WIDTHS_AT + 1] & DELETED != 0
    }

    /// Position among the changes of its revision, from 0 (etcd's sub-revision).
    #[must_use]
    pub fn sub(&self) -> u32 {
        let bytes = self.0.first();
        let widths = Self::widths(bytes);
        let at = Self::key_places(bytes).1 + widths.total() - widths.sub;
        number(bytes, at, widths.sub) as u32
    }

    /// The sort key of events: revision, then position within it.
    #[must_use]
    pub fn order(&self) -> (Revision, u32) {
        (self.mod_revision(), self.sub())
    }

    pub(crate) fn lease_id(&self) -> Option<LeaseId> {
        LeaseId::from_wire(self.lease())
    }

    /// The version as a `mvccpb.KeyValue` message.
    #[must_use]
    pub fn encoded(&self) -> Encoded<'_> {
        Encoded::of(self)
    }

    /// The length of that message. Nothing is encoded for it.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        encoded::len(self)
    }

    /// Room for that message: its length or a little more, without a look at the numbers.
    #[must_use]
    pub fn encoded_room(&self) -> usize {
        let [first, second] = self.0.lengths();
        first + second + encoded::BESIDE_MAX - KEY_AT
    }

    /// Approximate memory that the version takes, with what refers to it.
    pub(crate) fn footprint(&self) -> u64 {
        let [first, second] = self.0.lengths();
        let block = if second == 0 { block::WHOLE_BYTES } else { block::CUT_BYTES };
        (block + first + second + BESIDE_BYTES) as u64
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

#[cfg(test)]
mod tests;
