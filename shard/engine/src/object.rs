//! One key's versions since the last compaction.

use std::collections::BTreeMap;

use kindred_partition_config::ids::Revision;

use crate::version::Version;

/// Revisions that long reads stand at, with how many stand there.
pub(crate) type Pins = BTreeMap<Revision, usize>;

/// A key's chain of versions, tombstones included, in the order of their revisions.
pub(crate) struct Object {
    head: Version,
    /// Before the head, oldest first; most objects have none.
    older: Vec<Version>,
}

/// What [`Object::prune`] came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Pruned {
    /// Versions dropped.
    pub dropped: usize,
    /// Their memory.
    pub bytes: u64,
    /// Nothing is left to read: the object can go.
    pub gone: bool,
    /// Something is kept only for a pin; look again when pins end.
    pub held: bool,
}

impl Object {
    pub(crate) fn new(first: Version) -> Self {
        Self { head: first, older: Vec::new() }
    }

    pub(crate) fn key(&self) -> &[u8] {
        self.head.key()
    }

    /// The latest version, a tombstone perhaps.
    pub(crate) fn head(&self) -> &Version {
        &self.head
    }

    /// The latest version of a key that exists.
    pub(crate) fn live(&self) -> Option<&Version> {
        (!self.head.is_tombstone()).then_some(&self.head)
    }

    pub(crate) fn push(&mut self, version: Version) {
        debug_assert!(version.order() > self.head.order());
        self.older.push(std::mem::replace(&mut self.head, version));
    }

    /// What the key was at `at`; `None` when it did not exist then.
    pub(crate) fn at(&self, at: Revision) -> Option<&Version> {
        let found = if self.head.mod_revision() <= at {
            &self.head
        } else {
            let after = self.older.partition_point(|v| v.mod_revision() <= at);
            self.older.get(after.checked_sub(1)?)?
        };
        (!found.is_tombstone()).then_some(found)
    }

    /// Every version held, oldest first.
    pub(crate) fn versions(&self) -> impl DoubleEndedIterator<Item = &Version> {
        self.older.iter().chain(std::iter::once(&self.head))
    }

    /// Drops what no read at or above `floor`, no read at a pin and no watch from `floor` on can ask for.
    pub(crate) fn prune(&mut self, floor: Revision, pins: &Pins) -> Pruned {
        let mut pruned = Pruned::default();
        if self.older.is_empty() {
            pruned.gone = self.head.is_tombstone() && self.head.mod_revision() < floor;
            return pruned;
        }
        let mut kept: Vec<Version> = Vec::new();
        let count = self.older.len();
        for (i, version) in self.older.iter().enumerate() {
            let begin = version.mod_revision();
            let end = self.older.get(i + 1).unwrap_or(&self.head).mod_revision();
            let needed_above = begin >= floor || (end > floor && !version.is_tombstone());
            // A tombstone still ends an older version that a pin holds.
            let pinned = begin < end && pins.range(begin..end).next().is_some() && !version.is_tombstone();
            let ends_pinned = version.is_tombstone() && end > floor && !kept.is_empty();
            pruned.held |= (pinned || ends_pinned) && !needed_above;
            if needed_above || pinned || ends_pinned {
                kept.push(version.clone());
            } else {
                pruned.bytes += version.footprint();
            }
        }
        pruned.dropped = count - kept.len();
        if pruned.dropped > 0 {
            self.older = kept;
        }
        pruned.gone = self.older.is_empty() && self.head.is_tombstone() && self.head.mod_revision() < floor;
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
}
