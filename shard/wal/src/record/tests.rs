use proptest::prelude::*;

use super::*;

fn revision() -> impl Strategy<Value = Revision> {
    any::<i64>().prop_map(Revision)
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..40),
        1 => prop::collection::vec(any::<u8>(), 100..300),
        1 => Just(vec![7; 20_000]),
    ]
}

/// The owned parts of a record.
fn owned() -> impl Strategy<Value = (u8, Revision, Revision, u32, bool, Vec<u8>)> {
    (1..=11_u8, revision(), revision(), any::<u32>(), any::<bool>(), bytes())
}

fn record(of: &(u8, Revision, Revision, u32, bool, Vec<u8>)) -> Record<'_> {
    let (id, one, two, sub, deletion, bytes) = of;
    match id {
        1 => {
            let (revision, sub, deletion) = (*one, *sub, *deletion);
            Record::Version(VersionRecord { revision, sub, deletion, key_value: bytes })
        }
        2 => Record::Promise(*one),
        3 => Record::Lease(bytes),
        4 => Record::Unit(bytes),
        5 => Record::Compaction(*one),
        6 => Record::Modes(bytes),
        7 => Record::Gap(GapRecord { after: *one, until: *two, kind: bytes }),
        8 => Record::Clean(*one),
        10 => Record::Import(bytes),
        11 => Record::Began(*one),
        _ => Record::Needs(FileNumber(one.get().cast_unsigned())),
    }
}

proptest! {
    #[test]
    fn records_come_back(all in prop::collection::vec(owned(), 0..8)) {
        let mut batch = Batch::new();
        all.iter().for_each(|one| batch.push(&record(one)));
        prop_assert_eq!(batch.len(), all.len());
        let back: Vec<Record<'_>> = batch.records().collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(back, all.iter().map(record).collect::<Vec<_>>());
    }

    #[test]
    fn a_version_in_two_pieces_is_written_as_one(bytes in bytes(), cut: usize, revision in revision()) {
        let (key_value, rest) = bytes.split_at(cut % (bytes.len() + 1));
        let record = VersionRecord { revision, sub: 3, deletion: false, key_value: &bytes };
        let (mut whole, mut pieces) = (Batch::new(), Batch::new());
        whole.push(&Record::Version(record));
        pieces.push_version(VersionHead { revision, sub: 3, deletion: false }, bytes.len(), |out| {
            out.extend_from_slice(key_value);
            out.extend_from_slice(rest);
        });
        prop_assert_eq!(whole, pieces);
    }

    /// Decoding arbitrary bytes terminates and returns nothing after an error.
    #[test]
    fn other_bytes_are_refused(bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0..16_u8], 0..200)) {
        let all: Vec<_> = Records::new(&bytes).collect();
        prop_assert!(all.len() <= bytes.len());
        let bad = all.iter().position(Result::is_err);
        prop_assert!(bad.is_none_or(|at| at + 1 == all.len()));
    }
}

#[test]
fn each_breach_has_its_name() {
    let refused = |bytes: &[u8]| Records::new(bytes).last().and_then(Result::err);
    assert_eq!(refused(&[99, 0]), Some(RecordDamage::Unknown(99)));
    assert_eq!(refused(&[3, 5, 1, 2]), Some(RecordDamage::Length));
    assert_eq!(refused(&[3]), Some(RecordDamage::Length));
    assert_eq!(refused(&[3, 0xff, 0xff, 0xff, 0xff, 0xff, 1]), Some(RecordDamage::Length));
    assert_eq!(refused(&[2, 7, 0, 0, 0, 0, 0, 0, 0]), Some(RecordDamage::Malformed(2)));
    assert_eq!(refused(&[1, 2, 0, 0]), Some(RecordDamage::Malformed(1)));
    // An unknown flag.
    assert_eq!(refused(&[1, 13, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Some(RecordDamage::Malformed(1)));
    assert_eq!(refused(&[7, 3, 0, 0, 0]), Some(RecordDamage::Malformed(7)));
    assert_eq!(refused(&[]), None);
}
