use kindred_proto::mvccpb::KeyValue;
use kindred_wire::kv::Part;
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
        create in number(), modified in number(), version in number(), lease in number(), bits in 0..32_u32, sub: u32,
    ) {
        let sub = sub >> bits;
        let made = Version::put(&NewVersion {
            key: &key, value: &value, create: Revision(create), modified: Revision(modified), sub, version,
            lease: LeaseId::from_wire(lease),
        });
        let wire = KeyValue {
            key: key.clone().into(), create_revision: create, mod_revision: modified, version,
            value: value.clone().into(), lease,
        };
        let wire = wire.encode_to_vec();
        prop_assert_eq!(made.encoded_len(), wire.len());
        prop_assert!((wire.len()..=wire.len() + 96).contains(&made.encoded_room()), "{} of {}", made.encoded_room(), wire.len());
        prop_assert_eq!(made.encoded().to_vec(), wire);
        prop_assert_eq!(made.key(), key.as_slice());
        prop_assert_eq!(&made.value()[..], value.as_slice());
        prop_assert_eq!((made.create_revision().get(), made.mod_revision().get()), (create, modified));
        prop_assert_eq!((made.version(), made.lease(), made.sub()), (version, lease, sub));
        prop_assert_eq!((made.is_tombstone(), made.is_creation()), (false, create == modified));

        let dead = Version::tombstone(&key, Revision(modified), sub);
        let wire = KeyValue { key: key.clone().into(), mod_revision: modified, ..KeyValue::default() };
        prop_assert_eq!(dead.encoded_len(), wire.encoded_len());
        prop_assert_eq!(dead.encoded().to_vec(), wire.encode_to_vec());
        prop_assert_eq!((dead.mod_revision().get(), dead.sub()), (modified, sub));
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
}

/// Covers every length of the key's length, and what a page of an answer may hold of a version without a value.
#[test]
fn every_key_is_read_back() {
    let lens = (0..300).chain(16_380..16_390).chain([100_000, (1 << 21) - 1, 1 << 21]);
    for len in lens {
        let key: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        for (value, lease, version) in [(&b""[..], 0, 1), (b"v", 1 << 62, 2), (&[1; 2000], 7, 70_000)] {
            let made = Version::put(&NewVersion {
                key: &key,
                value,
                create: Revision((1 << 60) - 5),
                modified: Revision((1 << 60) + version),
                sub: 0,
                version,
                lease: LeaseId::from_wire(lease),
            });
            assert_eq!((made.key(), &made.value()[..]), (&key[..], value), "{len}");
            assert_eq!(
                (made.version(), made.lease(), made.create_revision().get()),
                (version, lease, (1 << 60) - 5)
            );
            let wire = KeyValue {
                key: key.clone().into(),
                create_revision: (1 << 60) - 5,
                mod_revision: (1 << 60) + version,
                version,
                value: value.to_vec().into(),
                lease,
            };
            // Into vectors with and without room behind.
            let (mut exact, mut roomy) = (Vec::new(), Vec::with_capacity(made.encoded_len() + 100));
            exact.reserve_exact(made.encoded_len());
            made.encoded().append_to(&mut exact);
            made.encoded().append_to(&mut roomy);
            assert!(exact == wire.encode_to_vec() && roomy == exact, "{len}");
            assert_eq!(exact.len(), made.encoded_len());
        }
        let dead = Version::tombstone(&key, Revision(9), 1 << 31);
        assert_eq!((dead.key(), dead.sub(), dead.is_tombstone()), (&key[..], 1 << 31, true));
    }
}

#[test]
fn a_huge_value_is_read_back() {
    for len in [1 << 20, (1 << 22) + 100, 9 << 20] {
        let value: Vec<u8> = (0..len).map(|at| (at % 253) as u8).collect();
        let made = Version::put(&NewVersion {
            key: b"k",
            value: &value,
            create: Revision(5),
            modified: Revision(5),
            sub: 0,
            version: 1,
            lease: None,
        });
        assert!(made.value()[..] == value, "{len}");
        let back = Version::from_wire(&made.encoded().to_vec(), false, 0).unwrap();
        assert!(back.value()[..] == value && back.encoded_len() == made.encoded_len(), "{len}");
    }
}

/// The estimate that quotas use, beside what an allocator gives.
#[test]
fn a_footprint_is_close_to_the_memory() {
    for len in 0..5000 {
        let value = vec![7; len];
        let made = Version::put(&NewVersion {
            key: b"/registry/pods/default/a",
            value: &value,
            create: Revision((1 << 60) - (1 << 40)),
            modified: Revision(1 << 60),
            sub: 0,
            version: 3,
            lease: None,
        });
        let [first, second] = made.0.lengths();
        let spent = match second {
            0 => cut::taken(block::WHOLE_BYTES + first),
            _ => cut::taken(block::CUT_BYTES + first) + cut::taken(second),
        };
        let (spent, said) = (spent + BESIDE_BYTES, made.footprint() as usize);
        assert!(said <= spent && spent - said <= 32 + spent / 25, "{spent}, estimated as {said}");
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
            let back = Version::from_wire(&made.encoded().to_vec(), false, 0).unwrap();
            assert_eq!((back.encoded().to_vec(), back.lease()), (made.encoded().to_vec(), lease));
        }
    }
}

#[test]
fn a_version_has_little_beside_its_message() {
    assert_eq!((size_of::<Version>(), size_of::<Option<Version>>()), (8, 8));
    let event = size_of::<crate::types::Event>();
    assert_eq!((size_of::<Option<crate::object::Object>>(), event), (16, 16));
}
