//! Which units a read at a revision sees (R13). Who reads at a revision may go by a map that is no longer in force: of a
//! list that began before a switch, or of a router that has not heard of it. What was settled before the switch is the same
//! here and there, so such a read is answered until the unit is dropped, and sees what this store owned by that very map:
//! every key of it on one store, whoever owns it now.
//!
//! Nobody but a map's generation tells which one an asker goes by. So a record knows by which generations the unit was this
//! store's. Of those about which it does not know, everything is refused.

use std::collections::VecDeque;

use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
    unit::Unit,
};

use super::{NotOwned, Record, UnitId, UnitState, Units, View};
use crate::engine::MonoMillis;

/// After its last page a list has ended, or goes on where the unit is now.
const LIST_MS: u64 = 5_000;
/// A unit that is to be dropped waits no longer for who reads it.
const READERS_MS_MAX: u64 = 60_000;

/// Changes of hands of a unit that are remembered.
const TURNOVERS_MAX: usize = 8;

/// By which generations of the map a unit was this store's.
#[derive(Debug, Clone, Default)]
pub(crate) struct Past {
    /// Nothing is known of generations below.
    since: u64,
    /// Whether it was this store's from there on.
    before: bool,
    /// And whether it was from each of these generations on, the lowest first.
    turnovers: VecDeque<(u64, bool)>,
    /// What is being decided, is decided by a later generation than this.
    undecided: u64,
}

impl Past {
    /// Known from a generation on, since when it was as it is.
    pub(crate) fn since(since: u64, owned: bool) -> Self {
        Self { since, before: owned, ..Self::default() }
    }

    /// Whether the unit was this store's by the map of this generation, which is not newer than what is decided; `None`
    /// when that is not known.
    fn owned_by(&self, generation: u64) -> Option<bool> {
        if generation < self.since {
            return None;
        }
        let turnover = self.turnovers.iter().rev().find(|(since, _)| *since <= generation);
        Some(turnover.map_or(self.before, |(_, owned)| *owned))
    }

    /// It changes hands.
    fn turn(&mut self, generation: u64, owned: bool) {
        self.turnovers.push_back((generation, owned));
        if self.turnovers.len() > TURNOVERS_MAX
            && let Some((since, before)) = self.turnovers.pop_front()
        {
            (self.since, self.before) = (since, before);
        }
    }

    /// The last change that is known of.
    fn last(&self) -> u64 {
        self.turnovers.back().map_or(self.since, |(generation, _)| *generation)
    }
}

/// Who reads a unit that another store owns.
#[derive(Debug, Clone, Default)]
pub(crate) struct Readers {
    /// Reads of spans so far.
    pages: u64,
    /// How many there were at a look, when that was new.
    seen: Option<(u64, MonoMillis)>,
    /// Since when it is to be dropped.
    dropped_since: Option<MonoMillis>,
}

impl Readers {
    /// Another page of a list.
    pub(crate) fn page(&mut self) {
        self.pages += 1;
    }

    /// Notes when the last pages came; told now and then, so that a drop need not wait for lists that ended long ago.
    pub(crate) fn look(&mut self, now: MonoMillis) {
        if self.seen.is_none_or(|(pages, _)| pages < self.pages) {
            self.seen = Some((self.pages, now));
        }
    }

    /// For how many milliseconds more the drop of the unit may have to wait: `others` read it, or lists did until lately.
    /// `None` when nobody reads it, or it has waited long enough.
    pub(crate) fn hold_up(&mut self, now: MonoMillis, others: bool) -> Option<u64> {
        let until = self.dropped_since.get_or_insert(now).0.saturating_add(READERS_MS_MAX);
        self.look(now);
        let lists = self.pages > 0 && self.seen.is_some_and(|(_, at)| now.0 < at.0.saturating_add(LIST_MS));
        let left = until.saturating_sub(now.0);
        (left > 0 && (others || lists)).then_some(left)
    }
}

impl Record {
    /// The generation since which the keys of the unit are with another store, or with this one.
    pub(crate) fn changed(&self) -> u64 {
        self.epoch.max(self.past.last())
    }

    /// The unit changes hands by the map of this generation; `settled` is the final revision when it goes.
    pub(crate) fn turn(&mut self, epoch: u64, settled: Option<Revision>) {
        self.epoch = epoch;
        self.settled = settled;
        self.readers = Readers::default();
        self.past.turn(epoch, settled.is_none());
    }

    /// An attempt is made to let the unit change hands by a map above this generation.
    pub(crate) fn undecided(&mut self, generation: u64) {
        self.past.undecided = generation;
    }

    /// Another store owns the unit, and what was settled by then can still be read here at a revision.
    fn can_tell(&self, at: Revision) -> bool {
        let is_here = matches!(self.state, UnitState::Following { .. });
        is_here && self.settled.is_some_and(|settled| at <= settled)
    }

    /// Whether who asks by the map of this generation may go by a decision that this store has not heard of.
    fn may_be_decided(&self, generation: u64) -> bool {
        let decides =
            matches!(self.state, UnitState::Frozen { .. } | UnitState::Following { sealed: Some(_), .. });
        decides && generation > self.past.undecided
    }
}

impl Units {
    /// What is known of a unit that begins to be tracked, or imported (`owned`: the keys of it are this store's).
    pub(crate) fn past_of(&self, unit: &Unit, owned: bool) -> Past {
        let (over, rest) = self.over(unit);
        match over.as_slice() {
            [one] if rest.is_empty() => one.past.clone(),
            over => Past::since(over.iter().map(|record| record.changed()).max().unwrap_or(0), owned),
        }
    }

    /// What a read of one key at a revision sees, or that it is refused. Who asks for one key takes this store for its owner.
    pub(crate) fn sight_of_key(&self, key: &Key, at: Revision) -> Result<View, NotOwned> {
        match self.deciding(key).filter(|record| record.can_tell(at)) {
            Some(record) => Ok(View::ByMap { with: vec![record.id], without: Vec::new() }),
            None => self.check_key(key, Some(at)).map(|()| View::Now),
        }
    }

    /// What a read of a span at a revision sees, or that it is refused; by the map of this generation, if one is named.
    pub(crate) fn sight_of_span(
        &self,
        range: &KeyRange,
        generation: Option<u64>,
        at: Revision,
    ) -> Result<View, NotOwned> {
        let asked = Unit::of_range(range.clone());
        let newest = self.records.iter().rev().find(|record| record.by.unit.overlaps(range)).map(|r| r.id);
        let (mut with, mut without): (Vec<UnitId>, Vec<UnitId>) = Default::default();
        for record in self.records.iter().filter(|record| record.by.unit.overlaps(range)) {
            let refuse = |epoch| Err(NotOwned { key: range.start().clone(), epoch });
            // Who asks for nothing but keys of one unit takes this store for its owner.
            let all_of_it = newest == Some(record.id) && record.by.unit.covers(&asked);
            let owned = match generation {
                None => record.is_visible() || all_of_it,
                Some(generation) if !all_of_it && record.may_be_decided(generation) => return refuse(0),
                Some(generation) => match record.past.owned_by(generation) {
                    Some(owned) => owned,
                    None => return refuse(record.changed()),
                },
            };
            match record.state {
                UnitState::Tracked { .. } | UnitState::Owned if owned => {}
                UnitState::Frozen { last } if owned && at <= last => {}
                UnitState::Following { .. } if owned && record.can_tell(at) => with.push(record.id),
                UnitState::Frozen { .. } if owned => return refuse(0),
                UnitState::Following { sealed: Some(_), .. } if owned || all_of_it => return refuse(0),
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

    /// The lowest final revision of what a read of a range sees and this store may show nothing above of.
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
        let mut past = Past::since(3, true);
        assert_eq!((past.owned_by(2), past.owned_by(3), past.owned_by(99)), (None, Some(true), Some(true)));
        (0..20_u64).for_each(|turn| past.turn(10 + 2 * turn, turn % 2 == 1));
        let known = |generation: u64| Some((generation - 10) / 2 % 2 == 1);
        let first = past.since;
        assert!((30..36).contains(&first), "{past:?}");
        assert_eq!(past.owned_by(first - 1), None);
        for generation in first..60 {
            assert_eq!(past.owned_by(generation), known(generation.min(48)), "by map {generation}: {past:?}");
        }
    }
}
