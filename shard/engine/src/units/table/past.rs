//! Which units a read at a revision sees (R13). Such a read may go by a map that is no longer in force, because its
//! list began before a switch or its router does not know of one yet. Up to the final revision of the switch, source
//! and target hold the same. So the read is answered until the unit is dropped, and sees what this store owned by that
//! map. Every key of it is then read at one store, whoever owns it now.
//!
//! Only the map generation in a request tells which map it goes by. So a record knows the generations by which this
//! store owned the unit. A request by a generation that the record does not know is refused.

use std::collections::VecDeque;

use kindred_partition_config::{
    ids::{Epoch, Revision},
    key::{Key, KeyRange},
    unit::Unit,
};

use super::{NotOwned, Record, UnitId, UnitState, Units, View};
use crate::types::MonoMillis;

/// Milliseconds after its last page when a list counts as ended, or continues at the new owner.
const LIST_MS: u64 = 5_000;
/// The longest time in milliseconds that reads delay the drop of a unit.
const READERS_MS_MAX: u64 = 60_000;

/// Changes of owner that are remembered for a unit.
const TURNOVERS_MAX: usize = 8;

/// The map generations by which this store owned a unit.
#[derive(Debug, Clone)]
pub(crate) struct Past {
    /// Generations below this are unknown.
    since: Epoch,
    /// Whether this store owned the unit from `since` on.
    before: bool,
    /// The later changes: from this generation on, whether this store owned it. Lowest generation first.
    turnovers: VecDeque<(Epoch, bool)>,
    /// A pending decision will have a generation above this one.
    undecided: Epoch,
}

impl Past {
    /// A past known from a generation on.
    pub(crate) fn since(since: Epoch, owned: bool) -> Self {
        Self { since, before: owned, turnovers: VecDeque::new(), undecided: Epoch::NONE }
    }

    /// Whether this store owned the unit by the map of `generation`, which must not be newer than the last decision.
    /// `None` when unknown.
    fn owned_by(&self, generation: Epoch) -> Option<bool> {
        if generation < self.since {
            return None;
        }
        let turnover = self.turnovers.iter().rev().find(|(since, _)| *since <= generation);
        Some(turnover.map_or(self.before, |(_, owned)| *owned))
    }

    fn turn(&mut self, generation: Epoch, owned: bool) {
        self.turnovers.push_back((generation, owned));
        if self.turnovers.len() > TURNOVERS_MAX
            && let Some((since, before)) = self.turnovers.pop_front()
        {
            (self.since, self.before) = (since, before);
        }
    }

    /// The generation of the last known change.
    fn last(&self) -> Epoch {
        self.turnovers.back().map_or(self.since, |(generation, _)| *generation)
    }
}

/// The reads of a unit that another store owns.
#[derive(Debug, Clone, Default)]
pub(crate) struct Readers {
    /// Page reads of spans so far.
    pages: u64,
    /// The number of pages at the last look that found new ones, and its time.
    seen: Option<(u64, MonoMillis)>,
    /// Time of the first call that wanted to drop the unit.
    dropped_since: Option<MonoMillis>,
}

impl Readers {
    pub(crate) fn page(&mut self) {
        self.pages += 1;
    }

    /// Notes when the last pages were read. Called about every second, so that a drop need not wait for lists that
    /// ended before.
    pub(crate) fn look(&mut self, now: MonoMillis) {
        if self.seen.is_none_or(|(pages, _)| pages < self.pages) {
            self.seen = Some((self.pages, now));
        }
    }

    /// The milliseconds for which the drop of the unit may still have to wait, because `others` read it or lists did
    /// until lately. `None` when no read uses it or the drop has waited long enough.
    pub(crate) fn hold_up(&mut self, now: MonoMillis, others: bool) -> Option<u64> {
        let until = self.dropped_since.get_or_insert(now).0.saturating_add(READERS_MS_MAX);
        self.look(now);
        let lists = self.pages > 0 && self.seen.is_some_and(|(_, at)| now.0 < at.0.saturating_add(LIST_MS));
        let left = until.saturating_sub(now.0);
        (left > 0 && (others || lists)).then_some(left)
    }
}

impl Record {
    /// The map generation of the last change of owner.
    pub(crate) fn changed(&self) -> Epoch {
        self.epoch.max(self.past.last())
    }

    /// Changes the owner with the map of generation `epoch`; `settled` is the final revision when the unit is given
    /// away.
    pub(crate) fn turn(&mut self, epoch: Epoch, settled: Option<Revision>) {
        self.epoch = epoch;
        self.settled = settled;
        self.readers = Readers::default();
        self.past.turn(epoch, settled.is_none());
    }

    /// Notes that the attempt under way will be decided by a map above this generation.
    pub(crate) fn undecided(&mut self, generation: Epoch) {
        self.past.undecided = generation;
    }

    /// Whether another store owns the unit while this one can still serve reads at revision `at`.
    fn can_tell(&self, at: Revision) -> bool {
        let is_here = matches!(self.state, UnitState::Following { .. });
        is_here && self.settled.is_some_and(|settled| at <= settled)
    }

    /// Whether a request by the map of this generation may already know a decision that this store does not know yet.
    fn may_be_decided(&self, generation: Epoch) -> bool {
        let decides =
            matches!(self.state, UnitState::Frozen { .. } | UnitState::Following { sealed: Some(_), .. });
        decides && generation > self.past.undecided
    }
}

impl Units {
    /// The past of a unit that begins to be tracked or imported; `owned` = this store owns its keys.
    pub(crate) fn past_of(&self, unit: &Unit, owned: bool) -> Past {
        let (over, rest) = self.over(unit);
        match over.as_slice() {
            [one] if rest.is_empty() => one.past.clone(),
            over => {
                Past::since(over.iter().map(|record| record.changed()).max().unwrap_or(Epoch::NONE), owned)
            }
        }
    }

    /// The view of a read of one key at a revision, or its refusal. The sender of such a read takes this store for the
    /// owner.
    pub(crate) fn sight_of_key(&self, key: &Key, at: Revision) -> Result<View, NotOwned> {
        match self.deciding(key).filter(|record| record.can_tell(at)) {
            Some(record) => Ok(View::ByMap { with: vec![record.id], without: Vec::new() }),
            None => self.check_key(key, Some(at)).map(|()| View::Now),
        }
    }

    /// The view of a read of a span at a revision, or its refusal, judged by the map of `generation` if one is named.
    pub(crate) fn sight_of_span(
        &self,
        range: &KeyRange,
        generation: Option<Epoch>,
        at: Revision,
    ) -> Result<View, NotOwned> {
        let asked = Unit::of_range(range.clone());
        let newest = self.records.iter().rev().find(|record| record.by.unit.overlaps(range)).map(|r| r.id);
        let (mut with, mut without): (Vec<UnitId>, Vec<UnitId>) = Default::default();
        for record in self.records.iter().filter(|record| record.by.unit.overlaps(range)) {
            let refuse = |epoch| Err(NotOwned { key: range.start().clone(), epoch });
            // The sender of a read within one unit takes this store for its owner.
            let all_of_it = newest == Some(record.id) && record.by.unit.covers(&asked);
            let owned = match generation {
                None => record.is_visible() || all_of_it,
                Some(generation) if !all_of_it && record.may_be_decided(generation) => {
                    return refuse(Epoch::NONE);
                }
                Some(generation) => match record.past.owned_by(generation) {
                    Some(owned) => owned,
                    None => return refuse(record.changed()),
                },
            };
            match record.state {
                UnitState::Tracked { .. } | UnitState::Owned if owned => {}
                UnitState::Frozen { last } if owned && at <= last => {}
                UnitState::Following { .. } if owned && record.can_tell(at) => with.push(record.id),
                UnitState::Frozen { .. } if owned => return refuse(Epoch::NONE),
                UnitState::Following { sealed: Some(_), .. } if owned || all_of_it => {
                    return refuse(Epoch::NONE);
                }
                UnitState::Following { .. } | UnitState::Dropping | UnitState::Gone if owned || all_of_it => {
                    return refuse(record.changed());
                }
                _ if record.is_visible() && all_of_it => return refuse(record.changed()),
                UnitState::Tracked { .. } | UnitState::Owned | UnitState::Frozen { .. } => {
                    without.push(record.id);
                }
                UnitState::Following { .. } | UnitState::Dropping | UnitState::Gone => {}
            }
        }
        Ok(if with.is_empty() && without.is_empty() { View::Now } else { View::ByMap { with, without } })
    }

    /// The lowest final revision among the frozen or released units that a read of `range` sees: the answer shows
    /// nothing above it.
    pub(crate) fn last_seen(&self, range: &KeyRange, view: &View) -> Option<Revision> {
        let seen = self.records.iter().filter(|record| record.by.unit.overlaps(range) && view.sees(record));
        seen.filter_map(|record| match record.state {
            UnitState::Frozen { last } => Some(last),
            UnitState::Following { .. } => record.settled,
            _ => None,
        })
        .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_of_the_past_is_not_known() {
        let mut past = Past::since(Epoch(3), true);
        let owned_by = |past: &Past, generation| past.owned_by(Epoch(generation));
        assert_eq!([2, 3, 99].map(|generation| owned_by(&past, generation)), [None, Some(true), Some(true)]);
        (0..20_u64).for_each(|turn| past.turn(Epoch(10 + 2 * turn), turn % 2 == 1));
        let known = |generation: u64| Some((generation - 10) / 2 % 2 == 1);
        let first = past.since.0;
        assert!((30..36).contains(&first), "{past:?}");
        assert_eq!(owned_by(&past, first - 1), None);
        for generation in first..60 {
            assert_eq!(
                owned_by(&past, generation),
                known(generation.min(48)),
                "by map {generation}: {past:?}"
            );
        }
    }
}
