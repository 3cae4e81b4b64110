use std::fs;
use std::io::Write as _;

use proptest::prelude::*;

use super::*;

type KeysAndValues = Vec<(Vec<u8>, Vec<u8>)>;

fn written(buckets: &[(&'static str, Pairs)]) -> Vec<u8> {
    let plan = Plan::new(buckets.iter().map(|(name, items)| Bucket { name, items }).collect());
    let mut file = Vec::new();
    plan.write(&mut file).unwrap();
    assert_eq!(file.len() as u64, plan.bytes());
    file
}

fn opened(bytes: &[u8]) -> Result<Reader, BoltError> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Reader::new(file)
}

fn items(reader: &Reader, bucket: &str) -> Result<Option<KeysAndValues>, BoltError> {
    let mut items = Vec::new();
    let is_there = reader.each(bucket, |key, value| {
        items.push((key.to_vec(), value.to_vec()));
        Ok::<(), BoltError>(())
    })?;
    Ok(is_there.then_some(items))
}

fn numbered(count: u64, value_bytes: usize) -> Pairs {
    Pairs((0..count).map(|at| (at.to_be_bytes().to_vec(), vec![at as u8; value_bytes])).collect())
}

#[test]
fn what_is_written_is_read() {
    // Two branches high, one branch high, one leaf, values over many pages, nothing.
    for (count, bytes) in [(300_000, 3), (5_000, 100), (3, 10), (7, 30_000), (0, 0)] {
        let file = written(&[("empty", Pairs(Vec::new())), ("key", numbered(count, bytes))]);
        let reader = opened(&file).unwrap();
        assert_eq!(items(&reader, "key").unwrap().unwrap(), numbered(count, bytes).0);
        assert_eq!(items(&reader, "empty").unwrap(), Some(Vec::new()));
        assert_eq!(items(&reader, "other").unwrap(), None);
    }
}

#[test]
fn one_damaged_meta_does_no_harm() {
    let file = written(&[("key", numbered(5_000, 100))]);
    for damaged in [vec![20], vec![PAGE_BYTES + 20], vec![20, PAGE_BYTES + 20]] {
        let mut file = file.clone();
        damaged.iter().for_each(|at| file[*at] ^= 1);
        match opened(&file) {
            Ok(reader) => assert_eq!(items(&reader, "key").unwrap().unwrap().len(), 5_000),
            Err(error) => {
                assert_eq!(damaged.len(), 2);
                assert!(error.to_string().contains("neither of its metas is valid"), "{error}");
            }
        }
    }
}

#[test]
fn a_tree_without_an_end_is_refused() {
    let mut file = written(&[("key", numbered(5_000, 100))]);
    // The root of the bucket is the last page; its first child becomes itself.
    let root = file.len() - PAGE_BYTES;
    let id = (root / PAGE_BYTES) as u64;
    file[root + HEADER_BYTES + 8..root + HEADER_BYTES + 16].copy_from_slice(&id.to_le_bytes());
    let refused = items(&opened(&file).unwrap(), "key").unwrap_err();
    assert!(refused.to_string().contains("its tree has no end"), "{refused}");
}

#[test]
fn other_files_are_refused() {
    for bytes in [&b""[..], b"kindred", &[0; 8192]] {
        assert!(matches!(opened(bytes), Err(BoltError::NotBolt(_))));
    }
    let missing = fs::File::open("/").map(Reader::new).unwrap();
    assert!(missing.is_err());
}

proptest! {
    #[test]
    fn any_items_are_read_again(
        pairs in prop::collection::btree_map(
            prop::collection::vec(any::<u8>(), 1..40),
            prop::collection::vec(any::<u8>(), 0..6000), 0..60),
    ) {
        let pairs: Vec<_> = pairs.into_iter().collect();
        let file = written(&[("key", Pairs(pairs.clone()))]);
        prop_assert_eq!(items(&opened(&file).unwrap(), "key").unwrap(), Some(pairs));
    }

    /// A damaged file gives an error or other items, and never panics.
    #[test]
    fn damage_is_no_panic(at in 0_usize..100_000, bits in 1_u8.., cut in 0_usize..100_000) {
        let mut file = written(&[("key", numbered(600, 100)), ("meta", numbered(2, 9000))]);
        let at = at % file.len();
        file[at] ^= bits;
        file.truncate(file.len() - cut % file.len() / 2);
        if let Ok(reader) = opened(&file) {
            let _ = (items(&reader, "key"), items(&reader, "meta"));
        }
    }
}
