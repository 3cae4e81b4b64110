//! A version as the message that answers, events and logs carry. The message is made where it is needed: key and value
//! are copied there once, and the numbers are encoded each time, which saves a third of what a version takes beside them.

use kindred_wire::kv::Part;

use super::{Version, varint};

/// Tags of the fields of `mvccpb.KeyValue`.
const KEY: u8 = 1 << 3 | 2;
const CREATE: u8 = 2 << 3;
const MODIFIED: u8 = 3 << 3;
const VERSION: u8 = 4 << 3;
const VALUE: u8 = 5 << 3 | 2;
const LEASE: u8 = 6 << 3;

/// A version as a `mvccpb.KeyValue` message, as protobuf 3 writes it: fields that are empty or zero are left out.
#[derive(Clone, Copy)]
pub struct Encoded<'a> {
    /// The key behind its length; nothing without a key.
    key: &'a [u8],
    /// The fields between key and value, and what stands before the value.
    numbers: Numbers<4>,
    value: [&'a [u8]; 2],
    lease: u64,
    bytes: usize,
}

/// The length of a version's message.
#[inline]
pub(super) fn len(version: &Version) -> usize {
    let [here, rest] = version.0.lengths();
    let first = version.0.first();
    let (key_at, key_end) = Version::key_places(first);
    let widths = Version::widths(first);
    let modified = version.mod_revision().get().cast_unsigned();
    let mut bytes = if key_at == key_end { 0 } else { 1 + key_end - super::KEY_AT } + field_len(modified);
    if !version.is_tombstone() {
        let version_at = key_end + widths.create;
        let create = modified.wrapping_sub(super::number(first, key_end, widths.create));
        let count = super::number(first, version_at, widths.version).wrapping_add(1);
        let lease = super::number(first, version_at + widths.version, widths.lease);
        let value_len = here - key_end - widths.total() + rest;
        bytes +=
            field_len(create) + field_len(count) + field_len(value_len as u64) + value_len + field_len(lease);
    }
    bytes
}

/// The length of a field that is a number; zero is left out.
#[inline]
fn field_len(number: u64) -> usize {
    if number == 0 { 0 } else { 1 + varint::len(number) }
}

impl<'a> Encoded<'a> {
    pub(super) fn of(version: &'a Version) -> Self {
        let [first, rest] = [version.0.first(), version.0.second()];
        let (key_at, key_end) = Version::key_places(first);
        let widths = Version::widths(first);
        let modified = version.mod_revision().get().cast_unsigned();
        let is_put = !version.is_tombstone();
        let version_at = key_end + widths.create;
        let mut numbers = Numbers::new();
        if is_put {
            let create = modified.wrapping_sub(super::number(first, key_end, widths.create));
            numbers.put_revisions(create, modified);
            numbers.put(VERSION, super::number(first, version_at, widths.version).wrapping_add(1));
        } else {
            numbers.put(MODIFIED, modified);
        }
        let value = &first[key_end + widths.total()..];
        let value_len = value.len() + rest.len();
        numbers.put(VALUE, value_len as u64);
        let lease = super::number(first, version_at + widths.version, widths.lease);
        let lease_len = if lease == 0 { 0 } else { 1 + varint::len(lease) };
        let (key, key_len) = match key_end - key_at {
            0 => (&[][..], 0),
            _ => (&first[super::KEY_AT..key_end], 1 + key_end - super::KEY_AT),
        };
        let bytes = key_len + numbers.end + value_len + lease_len;
        Self { key, numbers, value: [value, rest], lease, bytes }
    }

    #[must_use]
    pub fn to_vec(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes);
        self.append_to(&mut out);
        out
    }
}

impl Part for Encoded<'_> {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn append_to(&self, out: &mut Vec<u8>) {
        if !self.key.is_empty() {
            out.push(KEY);
            out.extend_from_slice(self.key);
        }
        self.numbers.append_to(out);
        let [value, rest] = self.value;
        out.extend_from_slice(value);
        if !rest.is_empty() {
            out.extend_from_slice(rest);
        }
        if self.lease != 0 {
            let mut numbers = Numbers::<1>::new();
            numbers.put(LEASE, self.lease);
            numbers.append_to(out);
        }
    }
}

/// The most that a field takes which is a number.
const NUMBER_BYTES_MAX: usize = 1 + varint::BYTES_MAX;
/// The most that a message takes beside the key behind its length, and the value: the key's tag and five numbers.
pub(super) const BESIDE_MAX: usize = 1 + 5 * NUMBER_BYTES_MAX;

/// Up to `N` fields that are numbers.
#[derive(Clone, Copy)]
struct Numbers<const N: usize> {
    bytes: [[u8; NUMBER_BYTES_MAX]; N],
    end: usize,
}

impl<const N: usize> Numbers<N> {
    fn new() -> Self {
        Self { bytes: [[0; _]; N], end: 0 }
    }

    /// Adds a field; zero is left out.
    #[inline]
    fn put(&mut self, tag: u8, number: u64) {
        if number != 0
            && let Some(place) = self.bytes.as_flattened_mut().get_mut(self.end..)
            && let Some([place, out @ ..]) = place.first_chunk_mut::<NUMBER_BYTES_MAX>()
        {
            *place = tag;
            self.end += 1 + varint::put(out, number);
        }
    }

    /// Adds the first fields. They are nearly always of this length, so their places need no look at them.
    #[inline]
    fn put_revisions(&mut self, create: u64, modified: u64) {
        if let [Some(created), Some(changed)] = [create, modified].map(varint::nine)
            && let Some(place) = self.bytes.as_flattened_mut().first_chunk_mut::<20>()
        {
            (place[0], place[10]) = (CREATE, MODIFIED);
            place[1..10].copy_from_slice(&created);
            place[11..].copy_from_slice(&changed);
            self.end = 20;
        } else {
            self.put(CREATE, create);
            self.put(MODIFIED, modified);
        }
    }

    #[inline]
    fn append_to(&self, out: &mut Vec<u8>) {
        let bytes = self.bytes.as_flattened();
        let end = out.len() + self.end;
        // To copy all of it takes a few instructions, to copy what is used a call.
        if out.capacity() - out.len() >= bytes.len() {
            out.extend_from_slice(bytes);
            out.truncate(end);
        } else {
            out.extend_from_slice(&bytes[..self.end]);
        }
    }
}
