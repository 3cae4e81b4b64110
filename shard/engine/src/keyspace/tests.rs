use super::*;
use crate::version::NewVersion;

fn put(key: usize, at: i64, create: i64) -> Version {
    let (at, create) = (Revision(at), Revision(create));
    let key = format!("/registry/pods/default/pod-{key:06}");
    Version::put(&NewVersion {
        key: key.as_bytes(),
        value: b"v",
        create,
        modified: at,
        sub: 0,
        version: 1,
        lease: None,
    })
}

/// Collects garbage until nothing is left to free, checking that no slice exceeds the budget. Returns the number of slices.
fn gc(keys: &mut Keyspace, floor: Revision, pins: &Pins, budget: usize) -> usize {
    let entries =
        |keys: &Keyspace| keys.log.len() + keys.flips.len() + keys.early.len() + keys.early_flips.len();
    let mut slices = 0;
    while keys.wants_gc(floor) {
        let before = entries(keys);
        let left = keys.gc(floor, pins, budget);
        let freed = before - entries(keys);
        assert!(freed <= budget, "{freed} in a slice of {budget}");
        assert!(left <= budget - freed);
        slices += 1;
    }
    keys.validate();
    slices
}

#[test]
fn no_slice_of_a_compaction_does_more_than_its_budget() {
    const KEYS: usize = 10_000;
    const BUDGET: usize = 64;
    let mut keys = Keyspace::new();
    for key in 0..KEYS {
        keys.write(put(key, key as i64 + 1, key as i64 + 1));
    }
    // As many keys were created as exist: each has an event and a flip.
    let floor = Revision(KEYS as i64 + 1);
    let slices = gc(&mut keys, floor, &Pins::new(), BUDGET);
    assert_eq!(slices, (2 * KEYS).div_ceil(BUDGET));
    assert_eq!((keys.log.len(), keys.flips.len(), keys.sizes().0), (0, 0, KEYS as u64));

    // They are deleted while a reader has a pin below.
    let pins = Pins::from([(floor, 1)]);
    for key in 0..KEYS {
        let name = format!("/registry/pods/default/pod-{key:06}");
        keys.write(Version::tombstone(name.as_bytes(), Revision((KEYS + key) as i64 + 2), 0));
    }
    let floor = Revision(3 * KEYS as i64);
    gc(&mut keys, floor, &pins, BUDGET);
    assert_eq!(keys.objects().count(), KEYS, "kept for the reader");
    keys.release_held();
    assert!(gc(&mut keys, floor, &Pins::new(), BUDGET) >= KEYS.div_ceil(BUDGET));
    assert_eq!(keys.objects().count(), 0);
}
