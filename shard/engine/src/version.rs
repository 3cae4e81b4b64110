//! One version of one key: the only copy of a value, kept as the encoded `KeyValue` that every answer and event carries.

use kindred_partition_config::ids::{LeaseId, Revision};
use triomphe::ThinArc;

mod wire;

pub use self::wire::BadVersion;

/// Everything about a version but its bytes.
#[derive(Clone, Copy)]
struct Meta {
    create: i64,
    modified: i64,
    version: i64,
    lease: i64,
    sub: u32,
    key_at: u32,
    key_len: u32,
    value_at: u32,
    value_len: u32,
    tombstone: bool,
}

/// A cheap handle (one pointer, reference counted) on an immutable version of a key: one allocation that holds the
/// encoded message and what was parsed of it.
#[derive(Clone)]
pub struct Version(ThinArc<Meta, u8>);

/// What a new version is made of.
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
    /// Encodes a put.
    pub(crate) fn put(new: &NewVersion<'_>) -> Self {
        let lease = new.lease.map_or(0, LeaseId::get);
        let mut out = Vec::with_capacity(new.key.len() + new.value.len() + 40);
        let key_at = put_bytes(&mut out, 1, new.key);
        put_int64(&mut out, 2, new.create.get());
        put_int64(&mut out, 3, new.modified.get());
        put_int64(&mut out, 4, new.version);
        let value_at = put_bytes(&mut out, 5, new.value);
        put_int64(&mut out, 6, lease);
        let meta = Meta {
            create: new.create.get(),
            modified: new.modified.get(),
            version: new.version,
            lease,
            sub: new.sub,
            key_at,
            key_len: length(new.key),
            value_at,
            value_len: length(new.value),
            tombstone: false,
        };
        Self(ThinArc::from_header_and_slice(meta, &out))
    }

    /// Encodes a deletion: the key and the revision of the deletion.
    pub(crate) fn tombstone(key: &[u8], modified: Revision, sub: u32) -> Self {
        let mut out = Vec::with_capacity(key.len() + 16);
        let key_at = put_bytes(&mut out, 1, key);
        put_int64(&mut out, 3, modified.get());
        let meta = Meta {
            create: 0,
            modified: modified.get(),
            version: 0,
            lease: 0,
            sub,
            key_at,
            key_len: length(key),
            value_at: 0,
            value_len: 0,
            tombstone: true,
        };
        Self(ThinArc::from_header_and_slice(meta, &out))
    }

    fn meta(&self) -> &Meta {
        &self.0.header.header
    }

    fn part(&self, at: u32, len: u32) -> &[u8] {
        self.0.slice.get(at as usize..at as usize + len as usize).unwrap_or_default()
    }

    /// The key's bytes.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.part(self.meta().key_at, self.meta().key_len)
    }

    /// The value's bytes.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        self.part(self.meta().value_at, self.meta().value_len)
    }

    /// When the key was created.
    #[must_use]
    pub fn create_revision(&self) -> Revision {
        Revision(self.meta().create)
    }

    /// When this version was written.
    #[must_use]
    pub fn mod_revision(&self) -> Revision {
        Revision(self.meta().modified)
    }

    /// Writes since creation, 1 for the first.
    #[must_use]
    pub fn version(&self) -> i64 {
        self.meta().version
    }

    /// The attached lease's id, 0 for none.
    #[must_use]
    pub fn lease(&self) -> i64 {
        self.meta().lease
    }

    /// Whether this is a deletion (a tombstone has a key and a modification revision only).
    #[must_use]
    pub fn is_tombstone(&self) -> bool {
        self.meta().tombstone
    }

    /// Position among the changes of its revision, from 0 (etcd's sub-revision).
    #[must_use]
    pub fn sub(&self) -> u32 {
        self.meta().sub
    }

    /// The order of events: by revision, then by position within it.
    pub(crate) fn order(&self) -> (Revision, u32) {
        (self.mod_revision(), self.sub())
    }

    /// The lease as an id.
    pub(crate) fn lease_id(&self) -> Option<LeaseId> {
        LeaseId::from_wire(self.meta().lease)
    }

    /// The version as a protobuf `mvccpb.KeyValue` message (encoded once, at the write).
    #[must_use]
    pub fn encoded(&self) -> &[u8] {
        &self.0.slice
    }

    /// Memory that the allocation takes, about.
    pub(crate) fn footprint(&self) -> u64 {
        (self.0.slice.len() + std::mem::size_of::<Meta>() + 16) as u64
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

/// A length as kept in [`Meta`]. Requests are limited to a few MiB long before they get here.
fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a request of 4 GiB is refused at the door")
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// An `int64` field, left out when zero as protobuf 3 does.
fn put_int64(out: &mut Vec<u8>, field: u8, value: i64) {
    if value != 0 {
        out.push(field << 3);
        put_varint(out, value as u64);
    }
}

/// A `bytes` field, left out when empty; answers where its content begins.
fn put_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) -> u32 {
    if !bytes.is_empty() {
        out.push((field << 3) | 2);
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
    }
    length(out) - length(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kindred_proto::mvccpb::KeyValue;
    use proptest::prelude::*;
    use prost::Message;

    fn number() -> impl Strategy<Value = i64> {
        prop_oneof![Just(0), 1..300_i64, any::<i64>(), Just(i64::MAX)]
    }

    proptest! {
        #[test]
        fn encodes_as_protobuf(
            key in prop::collection::vec(any::<u8>(), 0..200),
            value in prop::collection::vec(any::<u8>(), 0..200),
            create in number(), modified in number(), version in number(), lease in number(),
        ) {
            let made = Version::put(&NewVersion {
                key: &key, value: &value, create: Revision(create), modified: Revision(modified), sub: 3, version,
                lease: LeaseId::from_wire(lease),
            });
            let wire = KeyValue {
                key: key.clone().into(), create_revision: create, mod_revision: modified, version,
                value: value.clone().into(), lease,
            };
            let wire = wire.encode_to_vec();
            prop_assert_eq!(made.encoded(), &wire[..]);
            prop_assert_eq!(made.key(), key.as_slice());
            prop_assert_eq!(made.value(), value.as_slice());
            prop_assert_eq!((made.create_revision().get(), made.mod_revision().get()), (create, modified));
            prop_assert_eq!((made.version(), made.lease()), (version, lease));

            let dead = Version::tombstone(&key, Revision(modified), 0);
            let wire = KeyValue { key: key.clone().into(), mod_revision: modified, ..KeyValue::default() };
            let wire = wire.encode_to_vec();
            prop_assert_eq!(dead.encoded(), &wire[..]);
            prop_assert_eq!(dead.key(), key.as_slice());
        }
    }
}
