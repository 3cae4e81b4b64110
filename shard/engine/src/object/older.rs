//! The versions of a key before its newest one.

use std::collections::VecDeque;

use kindred_partition_config::ids::Revision;

use super::{Pins, Pruned};
use crate::version::Version;

/// Versions kept inside [`Older`] itself.
const FEW: usize = 2;
/// Up to this capacity, spare memory is not given back.
const SHRINK_ABOVE: usize = 64;

/// The versions before the head, oldest first; never empty in an object. It takes 32 bytes with up to [`FEW`] of them.
#[derive(Default)]
pub(super) struct Older {
    /// All versions, from the front, unless there are more than [`FEW`].
    few: [Option<Version>; FEW],
    /// All versions, if there are more than [`FEW`].
    many: Option<Box<Many>>,
    /// How many of the first versions are below the floor and held for pins. They are not examined until a pin ends.
    held: u32,
    /// Whether it was reported that some are held.
    noted: bool,
}

struct Many(VecDeque<Version>);

const _: () = assert!(size_of::<Older>() == 32);

impl Older {
    pub(super) fn is_empty(&self) -> bool {
        self.get(0).is_none()
    }

    fn get(&self, at: usize) -> Option<&Version> {
        match &self.many {
            Some(many) => many.0.get(at),
            None => self.few.get(at)?.as_ref(),
        }
    }

    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Version> {
        self.few.iter().flatten().chain(self.many.iter().flat_map(|many| &many.0))
    }

    /// The versions written at or after `from`.
    pub(super) fn iter_from(&self, from: Revision) -> impl Iterator<Item = &Version> {
        let is_earlier = move |version: &Version| version.mod_revision() < from;
        let few = self.few.iter().flatten().filter(move |version| !is_earlier(version));
        few.chain(self.many.iter().flat_map(move |many| many.0.range(many.0.partition_point(is_earlier)..)))
    }

    /// The last version written at or before `at`.
    pub(super) fn at(&self, at: Revision) -> Option<&Version> {
        let before = |version: &Version| version.mod_revision() <= at;
        match &self.many {
            Some(many) => many.0.get(many.0.partition_point(before).checked_sub(1)?),
            None => self.few.iter().flatten().rfind(|version| before(version)),
        }
    }

    pub(super) fn push(&mut self, version: Version) {
        match (&mut self.many, self.few.iter_mut().find(|place| place.is_none())) {
            (Some(many), _) => many.0.push_back(version),
            (None, Some(place)) => *place = Some(version),
            (None, None) => {
                let few = self.few.iter_mut().filter_map(Option::take);
                self.many = Some(Box::new(Many(few.chain([version]).collect())));
            }
        }
    }

    fn remove(&mut self, at: usize) -> Option<Version> {
        let Some(many) = &mut self.many else {
            let removed = self.few.get_mut(at)?.take();
            self.few[at..].rotate_left(1);
            return removed;
        };
        let removed = many.0.remove(at);
        if many.0.len() <= FEW {
            for (place, version) in self.few.iter_mut().zip(many.0.drain(..)) {
                *place = Some(version);
            }
            self.many = None;
        }
        removed
    }

    /// Whether it was reported that some are held.
    pub(super) fn is_noted(&self) -> bool {
        self.noted
    }

    /// Ends the holding of versions. Returns how many were held.
    pub(super) fn release(&mut self) -> usize {
        self.noted = false;
        std::mem::take(&mut self.held) as usize
    }

    /// Prunes behind the held versions. Those needed above the floor are a suffix, so the first of them ends it.
    pub(super) fn prune(
        &mut self,
        head: &Version,
        floor: Revision,
        pins: &Pins,
        look: usize,
        pruned: &mut Pruned,
    ) {
        while pruned.looked < look
            && let Some(version) = self.get(self.held as usize)
        {
            pruned.looked += 1;
            let begin = version.mod_revision();
            let end = self.get(self.held as usize + 1).unwrap_or(head).mod_revision();
            if begin >= floor || (end > floor && !version.is_tombstone()) {
                break;
            }
            let pinned = begin < end && pins.range(begin..end).next().is_some();
            // A tombstone is needed only to end an older version that is held.
            let needed =
                if version.is_tombstone() { self.held > 0 && (pinned || end > floor) } else { pinned };
            if needed {
                self.held += 1;
            } else if let Some(version) = self.remove(self.held as usize) {
                pruned.dropped += 1;
                pruned.bytes += version.footprint();
            }
        }
        pruned.held = self.held > 0 && !std::mem::replace(&mut self.noted, self.held > 0);
        if let Some(many) = &mut self.many {
            let room = many.0.capacity();
            if room > SHRINK_ABOVE && many.0.len() < room / 4 {
                many.0.shrink_to(room / 2);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(at: i64) -> Version {
        Version::tombstone(b"k", Revision(at), 0)
    }

    /// Grows beyond [`FEW`] and shrinks again, removing versions anywhere, beside a plain vector.
    #[test]
    fn few_and_many_are_one_queue() {
        for take_at in [|_: usize| 0, |len: usize| len / 2, |len: usize| len - 1] {
            let (mut older, mut plain) = (Older::default(), Vec::new());
            for at in 1..40 {
                older.push(version(2 * at));
                plain.push(2 * at);
                // Each time from a greater length down, so that every boundary is crossed.
                if at % 5 == 0 {
                    while plain.len() > (at / 10) as usize {
                        let taken = take_at(plain.len());
                        let removed = older.remove(taken).map(|v| v.mod_revision().get());
                        assert_eq!(removed, Some(plain.remove(taken)));
                    }
                }
                let found: Vec<i64> = older.iter().map(|v| v.mod_revision().get()).collect();
                assert_eq!((&found, older.is_empty()), (&plain, plain.is_empty()));
                assert_eq!(older.many.is_some(), plain.len() > FEW);
                assert_eq!(older.get(plain.len()).map(Version::order), None);
                for at in 0..2 * at + 2 {
                    let want = plain.iter().rfind(|have| **have <= at);
                    assert_eq!(older.at(Revision(at)).map(|v| v.mod_revision().get()), want.copied());
                }
            }
        }
    }
}
