use std::io::Write as _;

use super::*;
use crate::spool::Spool;

fn kv(key: &str, revision: i64, lease: i64) -> KeyValue {
    KeyValue {
        key: Bytes::copy_from_slice(key.as_bytes()),
        create_revision: revision - 1,
        mod_revision: revision,
        version: 2,
        value: Bytes::from(vec![b'v'; 100]),
        lease,
    }
}

fn file_of(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn snapshot(keys: &[KeyValue], leases: &[Lease], revision: i64) -> Vec<u8> {
    let mut spool = Spool::new().unwrap();
    keys.iter().for_each(|kv| spool.add(kv).unwrap());
    let spooled = spool.finish().unwrap();
    let (mut written, mut size) = (Vec::new(), 0);
    write(&spooled, leases, Revision(revision), |bytes| {
        size = bytes;
        &mut written
    })
    .unwrap();
    assert_eq!(written.len() as u64, size);
    written
}

#[test]
fn a_snapshot_is_read_as_it_was_written() {
    // Two keys of one revision, and keys whose order is not that of their revisions.
    let keys = [kv("a", 9, 0), kv("b", 5, 7), kv("c", 5, 0), kv("d", 3, 8)];
    let leases = [Lease { id: 8, ttl: 60, remaining: 20 }, Lease { id: 7, ttl: 10, remaining: 0 }];
    let contents = read(file_of(&snapshot(&keys, &leases, 12))).unwrap();
    let mut read = contents.keys;
    read.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(read, keys);
    assert_eq!(contents.leases, [leases[1], leases[0]]);
    assert_eq!(contents.revision, 12, "the snapshot's, which is above every key");
    assert_eq!(read.len(), 4);
}

#[test]
fn every_flipped_byte_of_a_snapshot_is_found() {
    let whole = snapshot(&[kv("a", 9, 0)], &[], 12);
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(matches!(read(file_of(&damaged)), Err(ReadError::Checksum)), "byte {at}");
    }
    assert!(read(file_of(&whole[..whole.len() - 100])).is_err());
    // The database of an etcd has no checksum behind it.
    assert_eq!(read(file_of(&whole[..whole.len() - 32])).unwrap().keys.len(), 1);
}
