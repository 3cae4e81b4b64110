use kindred_proto::mvccpb::KeyValue;
use proptest::prelude::*;
use prost::Message;

use super::*;

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), 1..300_i64, any::<i64>(), Just(i64::MAX), (0..64_u32).prop_map(|bit| 1 << bit)]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let long = (any::<u8>(), 200..6000_usize)
        .prop_map(|(first, len)| (0..len).map(|at| first.wrapping_add((at % 251) as u8)).collect());
    prop_oneof![prop::collection::vec(any::<u8>(), 0..200), long]
}

proptest! {
    #[test]
    fn encodes_as_protobuf(
        key in bytes(), value in bytes(),
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
        prop_assert_eq!(made.encoded_len(), wire.len());
        prop_assert_eq!(made.encoded().concat(), wire);
        prop_assert_eq!(made.key(), key.as_slice());
        prop_assert_eq!(&made.value()[..], value.as_slice());
        prop_assert_eq!((made.create_revision().get(), made.mod_revision().get()), (create, modified));
        prop_assert_eq!((made.version(), made.lease(), made.sub()), (version, lease, 3));
        prop_assert_eq!((made.is_tombstone(), made.is_creation()), (false, create == modified));

        let dead = Version::tombstone(&key, Revision(modified), 0);
        let wire = KeyValue { key: key.clone().into(), mod_revision: modified, ..KeyValue::default() };
        prop_assert_eq!(dead.encoded().concat(), wire.encode_to_vec());
        prop_assert_eq!(dead.key(), key.as_slice());
        prop_assert_eq!((dead.value().len(), dead.lease(), dead.version()), (0, 0, 0));
        prop_assert_eq!((dead.is_tombstone(), dead.create_revision()), (true, Revision::ZERO));
    }

    #[test]
    fn values_compare_as_their_bytes(
        a in prop::collection::vec(0..3_u8, 0..12), b in prop::collection::vec(0..3_u8, 0..12), cuts in any::<[u8; 2]>(),
    ) {
        let [a_cut, b_cut] = [(&a, cuts[0]), (&b, cuts[1])].map(|(of, cut)| usize::from(cut) % (of.len() + 1));
        let ((a_head, a_rest), (b_head, b_rest)) = (a.split_at(a_cut), b.split_at(b_cut));
        prop_assert_eq!(cmp_pieces([a_head, a_rest], [b_head, b_rest]), a.cmp(&b));
    }

    #[test]
    fn numbers_are_read_as_they_were_written(number: u64, bits in 0..64_u32, behind in 0..12_usize) {
        let number = number >> bits;
        let mut out = Vec::new();
        put_varint(&mut out, number);
        out.resize(out.len() + behind, 0xff);
        prop_assert_eq!(varint(&out), number);
        prop_assert_eq!(varint_slow(&out), number);
    }
}

/// Covers lengths around several allocation sizes.
#[test]
fn every_length_is_read_back() {
    for lease in [0, 5, i64::MAX] {
        for len in 0..2600 {
            let value: Vec<u8> = (0..len).map(|at| (at % 253) as u8).collect();
            let made = Version::put(&NewVersion {
                key: b"/registry/pods/default/a",
                value: &value,
                create: Revision(1 << 60),
                modified: Revision((1 << 60) + 1),
                sub: 0,
                version: 300,
                lease: LeaseId::from_wire(lease),
            });
            assert_eq!((&made.value()[..], made.lease(), made.version()), (&value[..], lease, 300), "{len}");
            let back = Version::from_wire(&made.encoded().concat(), false, 0).unwrap();
            assert_eq!((back.encoded(), back.lease()), (made.encoded(), lease));
        }
    }
}

#[test]
fn a_version_has_little_beside_its_message() {
    assert_eq!((size_of::<Version>(), size_of::<Option<Version>>(), cut::HEAD_BYTES), (8, 8, 40));
    let event = size_of::<crate::types::Event>();
    assert_eq!((size_of::<Option<crate::object::Object>>(), event), (16, 16));
}
