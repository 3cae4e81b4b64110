//! The version chain of one key since the last compaction.

use std::collections::BTreeMap;

use kindred_partition_config::ids::Revision;

use self::older::Older;
use crate::version::Version;

mod older;

/// Pinned revisions, each with its number of pins.
pub(crate) type Pins = BTreeMap<Revision, usize>;

/// Versions that one [`Object::prune`] examines. Each version is written by one event, and pruned for that event at the
/// earliest, so two per event would keep pace. A few more let a key that fell behind catch up, while no event of a key
/// with a long history holds up the loop.
const LOOK_MAX: usize = 4;

/// The versions of a key, tombstones included, in revision order.
pub(crate) struct Object {
    head: Version,
    /// The versions before the head. Most objects have none, and most others one or two.
    older: Option<Box<Older>>,
}

/// The result of [`Object::prune`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Pruned {
    pub dropped: usize,
    /// Memory of the dropped versions.
    pub bytes: u64,
    /// Number of versions examined.
    pub looked: usize,
    /// Whether nothing is left to read, so that the object can be removed.
    pub gone: bool,
    /// Whether a version is held only for a pin, and this was not reported before. When pins end, call
    /// [`Object::prune_held`].
    pub held: bool,
}

impl Object {
    pub(crate) fn new(first: Version) -> Self {
        Self { head: first, older: None }
    }

    pub(crate) fn key(&self) -> &[u8] {
        self.head.key()
    }

    /// The latest version, possibly a tombstone.
    pub(crate) fn head(&self) -> &Version {
        &self.head
    }

    /// The latest version, unless it is a tombstone.
    pub(crate) fn live(&self) -> Option<&Version> {
        (!self.head.is_tombstone()).then_some(&self.head)
    }

    pub(crate) fn push(&mut self, version: Version) {
        debug_assert!(version.order() > self.head.order());
        let before = std::mem::replace(&mut self.head, version);
        self.older.get_or_insert_default().push(before);
    }

    /// Whether it was reported that versions are held only for pins.
    pub(crate) fn is_held(&self) -> bool {
        self.older.as_ref().is_some_and(|older| older.is_noted())
    }

    /// The version at revision `at`; `None` if the key did not exist then.
    pub(crate) fn at(&self, at: Revision) -> Option<&Version> {
        let found = if self.head.mod_revision() <= at { &self.head } else { self.older.as_ref()?.at(at)? };
        (!found.is_tombstone()).then_some(found)
    }

    pub(crate) fn versions(&self) -> impl DoubleEndedIterator<Item = &Version> {
        self.older.iter().flat_map(|older| older.iter()).chain(std::iter::once(&self.head))
    }

    /// The versions written at or after `from`, without a look at each of the others.
    pub(crate) fn versions_from(&self, from: Revision) -> impl Iterator<Item = &Version> {
        let older = self.older.iter().flat_map(move |older| older.iter_from(from));
        older.chain(std::iter::once(&self.head).filter(move |head| head.mod_revision() >= from))
    }

    /// Drops some of the versions that no read at or above `floor`, no pin and no watch from `floor` on needs. Called
    /// once for each event of this key that falls below the floor, it drops all of them.
    pub(crate) fn prune(&mut self, floor: Revision, pins: &Pins) -> Pruned {
        self.prune_some(floor, pins, LOOK_MAX)
    }

    /// As [`Object::prune`], including the versions that were held for pins, after one ended.
    pub(crate) fn prune_held(&mut self, floor: Revision, pins: &Pins) -> Pruned {
        let mut look = LOOK_MAX;
        if let Some(older) = &mut self.older {
            look += older.release();
        }
        self.prune_some(floor, pins, look)
    }

    fn prune_some(&mut self, floor: Revision, pins: &Pins, look: usize) -> Pruned {
        let mut pruned = Pruned::default();
        if let Some(older) = &mut self.older {
            older.prune(&self.head, floor, pins, look, &mut pruned);
            if older.is_empty() {
                self.older = None;
            }
        }
        pruned.gone = self.older.is_none() && self.head.is_tombstone() && self.head.mod_revision() < floor;
        pruned
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::NewVersion;

    fn put(at: i64) -> Version {
        let at = Revision(at);
        Version::put(&NewVersion {
            key: b"k",
            value: b"v",
            create: at,
            modified: at,
            sub: 0,
            version: 1,
            lease: None,
        })
    }

    fn dead(at: i64) -> Version {
        Version::tombstone(b"k", Revision(at), 0)
    }

    fn object(versions: Vec<Version>) -> Object {
        let mut versions = versions.into_iter();
        let mut object = Object::new(versions.next().unwrap());
        for version in versions {
            object.push(version);
        }
        object
    }

    fn revisions(object: &Object) -> Vec<i64> {
        object.versions().map(|v| v.mod_revision().get()).collect()
    }

    #[test]
    fn versions_from_a_revision_are_the_last_ones() {
        for count in 1..20_i64 {
            let object = object((1..=count).map(|at| put(10 * at)).collect());
            for from in 0..10 * count + 20 {
                let found: Vec<i64> =
                    object.versions_from(Revision(from)).map(|v| v.mod_revision().get()).collect();
                let all = revisions(&object).into_iter();
                assert_eq!(found, all.filter(|at| *at >= from).collect::<Vec<_>>(), "{count}, {from}");
            }
        }
    }

    #[test]
    fn prunes_to_what_can_still_be_read() {
        // (chain, floor, pins) -> (left, gone, held); negative = tombstone
        type Row = (&'static [i64], i64, &'static [i64], &'static [i64], bool, bool);
        let table: &[Row] = &[
            (&[5], 9, &[], &[5], false, false),
            (&[5, 8], 7, &[], &[5, 8], false, false),
            (&[5, 8], 8, &[], &[8], false, false),
            (&[5, 7, 8, 12], 9, &[], &[8, 12], false, false),
            (&[5, -8], 8, &[], &[-8], false, false),
            (&[5, -8], 9, &[], &[-8], true, false),
            (&[5, -8, 12], 9, &[], &[12], false, false),
            (&[5, -8, 12], 8, &[], &[-8, 12], false, false),
            (&[5, 7, 8], 9, &[6], &[5, 8], false, true),
            (&[5, -8], 9, &[6], &[5, -8], false, true),
            (&[5, -8, 20], 10, &[6], &[5, -8, 20], false, true),
            (&[5, -8, 9, 20], 10, &[6], &[5, 9, 20], false, true),
            (&[5, 7], 6, &[6], &[5, 7], false, false),
            // A pinned revision at which the key did not exist, behind one at which it did.
            (&[5, -8, 9, 20], 10, &[6, 8], &[5, -8, 9, 20], false, true),
            (&[5, -8, 9, 20], 10, &[8], &[9, 20], false, false),
        ];
        for (chain, floor, pins, left, gone, held) in table {
            let make = |at: &i64| if *at < 0 { dead(-at) } else { put(*at) };
            let mut object = object(chain.iter().map(make).collect());
            let pins: Pins = pins.iter().map(|p| (Revision(*p), 1)).collect();
            let pruned = object.prune(Revision(*floor), &pins);
            let want: Vec<i64> = left.iter().map(|r| r.abs()).collect();
            assert_eq!(revisions(&object), want, "{chain:?} floor {floor}");
            assert_eq!((pruned.gone, pruned.held), (*gone, *held), "{chain:?} floor {floor}");
        }
    }

    #[test]
    fn reads_at_every_revision() {
        let object = object(vec![put(5), put(7), dead(9), put(12)]);
        let seen: Vec<Option<i64>> =
            (4..14).map(|at| object.at(Revision(at)).map(|v| v.mod_revision().get())).collect();
        let p = Some;
        assert_eq!(seen, [None, p(5), p(5), p(7), p(7), None, None, None, p(12), p(12)]);
    }

    /// Prunes once per event, as a compaction does. Returns the versions examined, the reports of held ones, and those
    /// left.
    fn prune_for_each(
        object: &mut Object,
        events: usize,
        floor: Revision,
        pins: &Pins,
    ) -> (usize, usize, usize) {
        let (mut looked, mut said) = (0, 0);
        for _ in 0..events {
            let pruned = object.prune(floor, pins);
            assert!(pruned.looked <= LOOK_MAX, "no step is long");
            looked += pruned.looked;
            said += usize::from(pruned.held);
        }
        (looked, said, object.versions().count())
    }

    #[test]
    fn a_key_with_a_long_history_is_pruned_in_steps_that_its_events_pay_for() {
        const VERSIONS: i64 = 100_000;
        let long = || object((1..=VERSIONS).map(put).collect());
        let floor = Revision(VERSIONS);
        let mut hot = long();
        let (looked, said, left) = prune_for_each(&mut hot, VERSIONS as usize - 1, floor, &Pins::new());
        assert_eq!((said, left), (0, 1));
        assert!(looked <= 2 * VERSIONS as usize, "{looked} steps");

        // With a pin every hundred revisions, held versions are neither examined nor reported again.
        let pins: Pins = (1..VERSIONS).step_by(100).map(|at| (Revision(at), 1)).collect();
        let mut hot = long();
        let (looked, said, left) = prune_for_each(&mut hot, VERSIONS as usize - 1, floor, &pins);
        assert_eq!((said, left), (1, pins.len() + 1));
        assert!(looked <= 2 * VERSIONS as usize, "{looked} steps");
        let released = hot.prune_held(floor, &Pins::new());
        assert_eq!((released.dropped, released.held), (pins.len(), false));
        assert!(released.looked <= pins.len() + LOOK_MAX);
        assert_eq!(revisions(&hot), [VERSIONS]);
        assert!(hot.older.is_none(), "its memory is given back");
    }
}
