//! Decodes versions that another shard encoded.

use kindred_partition_config::ids::{LeaseId, Revision};

use super::{NewVersion, Version};

/// Why bytes are not a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an encoded KeyValue of a key: {0}")]
pub struct BadVersion(&'static str);

impl Version {
    /// Decodes a `mvccpb.KeyValue`, or a deletion (key and mod_revision only). `sub` is its position among the changes
    /// of its revision. Unknown fields are dropped.
    pub fn from_wire(kv: &[u8], deletion: bool, sub: u32) -> Result<Self, BadVersion> {
        let (mut key, mut value) = (&[][..], &[][..]);
        let mut numbers = [0_i64; 7];
        let mut rest = kv;
        while !rest.is_empty() {
            let tag = take_varint(&mut rest)?;
            let field = usize::try_from(tag >> 3).unwrap_or(usize::MAX);
            match tag & 7 {
                0 => {
                    let number = take_varint(&mut rest)?;
                    if let Some(known) = numbers.get_mut(field) {
                        *known = number.cast_signed();
                    }
                }
                2 => {
                    let len = usize::try_from(take_varint(&mut rest)?).unwrap_or(usize::MAX);
                    let (bytes, after) = rest.split_at_checked(len).ok_or(BadVersion("cut off"))?;
                    rest = after;
                    match field {
                        1 => key = bytes,
                        5 => value = bytes,
                        _ => {}
                    }
                }
                _ => return Err(BadVersion("a field of another type")),
            }
        }
        let [_, _, create, modified, version, _, lease] = numbers;
        if key.is_empty() || modified <= 0 {
            return Err(BadVersion("without key or mod_revision"));
        }
        if i32::try_from(kv.len()).is_err() {
            return Err(BadVersion("too large"));
        }
        if deletion {
            return Ok(Self::tombstone(key, Revision(modified), sub));
        }
        if create <= 0 || create > modified || version <= 0 {
            return Err(BadVersion("create_revision or version does not fit"));
        }
        let lease = LeaseId::from_wire(lease);
        let (create, modified) = (Revision(create), Revision(modified));
        Ok(Self::put(&NewVersion { key, value, create, modified, sub, version, lease }))
    }
}

fn take_varint(rest: &mut &[u8]) -> Result<u64, BadVersion> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or(BadVersion("cut off"))?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(BadVersion("a number of more than 64 bits"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn comes_back_from_its_encoding(
            key in prop::collection::vec(any::<u8>(), 1..200),
            value in prop::collection::vec(any::<u8>(), 0..200),
            create in 1_i64.., more in 0_i64..1000, version in 1_i64.., lease in any::<i64>(),
        ) {
            let (create, modified) = (create.min(i64::MAX - more), create.min(i64::MAX - more) + more);
            let made = Version::put(&NewVersion {
                key: &key, value: &value, create: Revision(create), modified: Revision(modified), sub: 3, version,
                lease: LeaseId::from_wire(lease),
            });
            let back = Version::from_wire(&made.encoded().to_vec(), false, 3).unwrap();
            prop_assert_eq!(back.encoded().to_vec(), made.encoded().to_vec());
            prop_assert_eq!((back.order(), back.lease(), back.key()), (made.order(), made.lease(), made.key()));
            let dead = Version::tombstone(&key, Revision(modified), 1);
            let back = Version::from_wire(&dead.encoded().to_vec(), true, 1).unwrap();
            prop_assert!(back.is_tombstone() && back.order() == dead.order() && back.key() == dead.key());
        }

        #[test]
        fn refuses_other_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40), deletion: bool) {
            if let Ok(version) = Version::from_wire(&bytes, deletion, 0) {
                prop_assert!(!version.key().is_empty() && version.mod_revision() > Revision::ZERO);
            }
        }
    }
}
