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

/// A reader's pin keeps an older version than the last one below the floor. A copy, as a checkpoint makes it too, takes
/// what the event at the floor replaced.
#[test]
fn a_copy_begins_with_the_version_before_the_floor_and_not_with_one_that_a_pin_keeps() {
    let mut keys = Keyspace::new();
    keys.write(put(1, 10, 10));
    keys.write(put(1, 20, 10));
    let name = b"/registry/pods/default/pod-000001";
    keys.write(Version::tombstone(name, Revision(30), 0));
    let floor = Revision(30);
    gc(&mut keys, floor, &Pins::from([(Revision(15), 1)]), 64);
    let object = keys.object(name).expect("its deletion is at the floor");
    let left: Vec<i64> = object.versions().map(|version| version.mod_revision().get()).collect();
    assert_eq!(left, [10, 30], "the pin keeps one");
    let copied = keys.copied(object, floor, None).expect("it has an event");
    let copied: Vec<i64> = copied.versions.iter().map(|version| version.mod_revision().get()).collect();
    assert_eq!(copied, [20, 30]);
}

#[test]
fn a_look_ahead_takes_any_keys_and_changes_nothing() {
    let mut keys = Keyspace::new();
    keys.warm([&b"none"[..]].into_iter());
    for key in 0..2_000 {
        keys.write(put(key, 10 + key as i64, 10 + key as i64));
    }
    assert!(keys.is_large());
    let names: Vec<Vec<u8>> = (0..2_100).map(|key| put(key, 1, 1).key().to_vec()).collect();
    let found = |keys: &Keyspace| -> Vec<_> {
        let at = |name: &Vec<u8>| Some(keys.object(name)?.head().mod_revision());
        names.iter().map(at).collect()
    };
    let before = found(&keys);
    assert_eq!(before.iter().flatten().count(), 2_000);
    for some in names.chunks(7) {
        keys.warm(some.iter().map(Vec::as_slice));
    }
    keys.warm(names.iter().chain(&names).map(Vec::as_slice));
    keys.warm(std::iter::empty());
    assert_eq!(found(&keys), before);
}
