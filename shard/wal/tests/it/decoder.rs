//! Runs the fuzz target on seeded inputs for a bounded time.

use std::{path::Path, sync::Arc, time::Duration};

use kindred_partition_config::ids::Revision;
use kindred_wal::{
    Batch, FrameSeq, GapRecord, Log, LogEnd, LogKind, LogOptions, Record, VersionRecord, exercise::decode,
    sim::SimDisk,
};
use rand::{Rng as _, RngCore as _, SeedableRng as _, rngs::SmallRng};

#[test]
fn random_bytes_are_refused() {
    let mut random = SmallRng::seed_from_u64(1);
    for _ in 0..3000 {
        let mut bytes = vec![0; random.random_range(0..400)];
        random.fill_bytes(&mut bytes);
        // Small numbers are more often valid ids and lengths.
        if random.random_bool(0.5) {
            bytes.iter_mut().for_each(|byte| *byte %= 24);
        }
        decode(&bytes);
    }
}

/// A segment with records of many types.
fn segment() -> Vec<u8> {
    let disk = SimDisk::new(1);
    let directory = Path::new("wal").to_owned();
    let options = LogOptions { fill_bytes: 300, ..LogOptions::new(LogKind::Fsync, 3) };
    let log = Log::open(Arc::new(disk.clone()), directory.clone(), options, LogEnd::fresh(), |_| {}).unwrap();
    for number in 1..=6_u8 {
        let mut batch = Batch::new();
        let key_value = &vec![number; usize::from(number) * 20];
        let revision = Revision(number.into());
        batch.push(&Record::Version(VersionRecord { revision, sub: 0, deletion: number == 3, key_value }));
        batch.push(&Record::Gap(GapRecord {
            after: revision,
            until: Revision(99),
            kind: b"/registry/pods/",
        }));
        log.append(batch).unwrap();
    }
    assert!(log.wait_durable(FrameSeq(6), Duration::from_secs(60)));
    disk.content(&directory.join("0000000001.wal")).unwrap()
}

#[test]
fn mutated_files_are_refused_or_read() {
    let whole = segment();
    decode(&whole);
    let mut random = SmallRng::seed_from_u64(2);
    for _ in 0..2000 {
        let mut bytes = whole.clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..bytes.len());
            match random.random_range(0..5) {
                0 => bytes[at] ^= 1 << random.random_range(0..8),
                1 => bytes[at] = random.random(),
                2 => bytes.truncate(at.max(1)),
                3 => {
                    let part = bytes[at..bytes.len().min(at + 100)].to_vec();
                    let to = random.random_range(0..bytes.len());
                    bytes.splice(to..to, part);
                }
                _ => bytes[at..].iter_mut().take(50).for_each(|byte| *byte = 0),
            }
        }
        decode(&bytes);
    }
}
