//! etcd's HashKV (3.7): a CRC-32C over storage keys and values in revision order, as after a completed compaction.
//! Versions that etcd would have deleted by then are left out, whether or not they are freed here.

use kindred_partition_config::ids::Revision;
use kindred_wire::kv::Part;

use crate::{object::Object, space::Space, version::Version};

/// The hash of everything up to `at`, with the last compaction at `floor`.
pub(crate) fn hash_kv(space: &Space, floor: Revision, at: Revision) -> u32 {
    let mut versions: Vec<(&Version, bool)> = Vec::new();
    // etcd leaves out what a compaction at `at` would not keep, but only when it would keep anything at all.
    let mut keeps_any = false;
    for object in space.owned().flat_map(|keys| keys.objects()) {
        let current = object.at(at).map(Version::order);
        keeps_any |= current.is_some();
        let held = retained(object, floor).filter(|v| v.mod_revision() <= at);
        versions.extend(held.map(|v| (v, v.mod_revision() > floor || Some(v.order()) == current)));
    }
    // Changes of one revision at several stores may have met here.
    versions.sort_unstable_by(|(a, _), (b, _)| a.order().cmp(&b.order()).then_with(|| a.key().cmp(b.key())));
    let mut crc = crc32c::crc32c(b"key");
    let mut value = Vec::new();
    for (version, kept) in versions {
        if kept || !keeps_any {
            crc = crc32c::crc32c_append(crc, &storage_key(version));
            value.clear();
            storage_value(version).encoded().append_to(&mut value);
            crc = crc32c::crc32c_append(crc, &value);
        }
    }
    crc
}

/// The versions that etcd holds of a key after a compaction at `floor`. A tombstone exactly at the floor never counts.
fn retained(object: &Object, floor: Revision) -> impl Iterator<Item = &Version> {
    let at_floor = object.at(floor).map(Version::order);
    object.versions().filter(move |v| v.mod_revision() > floor || Some(v.order()) == at_floor)
}

/// Revision and sub-revision in etcd's encoding, with a mark for a deletion.
fn storage_key(version: &Version) -> Vec<u8> {
    let mut key = Vec::with_capacity(18);
    key.extend_from_slice(&version.mod_revision().get().to_be_bytes());
    key.push(b'_');
    key.extend_from_slice(&u64::from(version.sub()).to_be_bytes());
    if version.is_tombstone() {
        key.push(b't');
    }
    key
}

/// The stored value: for a deletion etcd stores the key alone.
fn storage_value(version: &Version) -> Version {
    if version.is_tombstone() {
        return Version::tombstone(version.key(), Revision::ZERO, 0);
    }
    version.clone()
}
