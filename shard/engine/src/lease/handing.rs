//! A home that goes away hands its leases to an heir (R12), each in three steps that may be repeated. First the lease
//! is *handing* here: it neither expires nor is served. Then the heir takes it over with its whole TTL. Then all other
//! stores that know it are told their new home, and this store counts it as adopted. Throughout, it is durable which
//! store may declare the lease ended, and it is one store at a time.

use std::collections::BTreeSet;

use hashbrown::hash_map::Entry;
use kindred_partition_config::{
    ids::{Epoch, LeaseId, Slot},
    key::Key,
};

use super::{Lease, LeaseTable, Place, deadline_after};
use crate::{error::EngineError, types::MonoMillis, units::NotOwned};

/// A lease whose home is moving to another store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedLease {
    pub id: LeaseId,
    /// Seconds granted.
    pub granted_ttl_s: i64,
    /// The other stores that hold, or will hold, keys of it.
    pub attached: Vec<Slot>,
}

/// A lease whose home is another store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdoptedLease {
    pub id: LeaseId,
    /// Seconds granted.
    pub granted_ttl_s: i64,
    pub home: Slot,
}

impl LeaseTable {
    /// Why a lease is not served here: it is unknown or ended, or the request is to be retried.
    pub(crate) fn elsewhere(&self, id: LeaseId) -> EngineError {
        match self.live.get(&id).map(|lease| &lease.place) {
            Some(Place::Handing { .. } | Place::Adopted { handed: true, .. }) => {
                NotOwned { key: Key::from(format!("lease {id}").as_str()), epoch: Epoch::NONE }.into()
            }
            _ => EngineError::LeaseNotFound(id),
        }
    }

    /// The number of leases that are or were at home here and are not handed over yet, including ended ones that are
    /// not forgotten.
    #[must_use]
    pub fn left(&self) -> usize {
        self.deadlines.len() + self.handing.len() + self.ended.len()
    }

    /// At most `max` leases that are being handed over. With `begin`, further leases are added, which are not served
    /// here from now on and whose ids are also returned.
    pub fn hand_over(&mut self, max: usize, begin: bool) -> (Vec<HandedLease>, Vec<LeaseId>) {
        let more = if begin { max.saturating_sub(self.handing.len()) } else { 0 };
        let fresh: Vec<LeaseId> = self.deadlines.iter().map(|(_, id)| *id).take(more).collect();
        for id in &fresh {
            let Some(lease) = self.live.get_mut(id) else { continue };
            let Place::Home { due, attached, .. } = &mut lease.place else { continue };
            self.deadlines.remove(&(*due, *id));
            lease.place = Place::Handing { attached: std::mem::take(attached) };
            self.handing.insert(*id);
        }
        let handed = self.handing.iter().take(max).filter_map(|id| {
            let Lease { granted_ttl_s, place: Place::Handing { attached }, .. } = self.live.get(id)? else {
                return None;
            };
            let attached = attached.iter().copied().collect();
            Some(HandedLease { id: *id, granted_ttl_s: *granted_ttl_s, attached })
        });
        (handed.collect(), fresh)
    }

    /// Makes this store the home of a lease, with its whole TTL; the stores `attached` may hold keys of it. A lease
    /// that has ended here stays ended. Refused while it is being handed over from here.
    pub fn inherit(
        &mut self,
        now: MonoMillis,
        id: LeaseId,
        granted_ttl_s: i64,
        attached: &[Slot],
    ) -> Result<(), EngineError> {
        if self.ended.contains_key(&id) {
            return Ok(());
        }
        let new = || {
            let deadline = deadline_after(now, granted_ttl_s);
            (deadline, Place::Home { deadline, due: deadline, attached: attached.iter().copied().collect() })
        };
        match self.live.entry(id) {
            Entry::Vacant(vacant) => {
                let (deadline, place) = new();
                vacant.insert(Lease { granted_ttl_s, place, keys: BTreeSet::new() });
                self.deadlines.insert((deadline, id));
            }
            Entry::Occupied(mut known) => match &mut known.get_mut().place {
                Place::Home { attached: known, .. } => known.extend(attached),
                place @ Place::Adopted { .. } => {
                    let (deadline, home) = new();
                    *place = home;
                    self.deadlines.insert((deadline, id));
                }
                Place::Handing { .. } => return Err(self.elsewhere(id)),
            },
        }
        Ok(())
    }

    /// Notes that the heir has a lease that was handing here. False when none was.
    pub fn handed(&mut self, id: LeaseId, heir: Slot) -> bool {
        let found = self.handing.remove(&id);
        if found && let Some(lease) = self.live.get_mut(&id) {
            lease.place = Place::Adopted { home: heir, handed: true };
        }
        found
    }

    /// The home of an adopted lease, as this store knows it.
    #[must_use]
    pub fn adopted_from(&self, id: LeaseId) -> Option<Slot> {
        match self.live.get(&id)?.place {
            Place::Adopted { home, .. } => Some(home),
            _ => None,
        }
    }

    /// Leases that were adopted from one of these homes, at most `max`, by id; with `above` only those with higher ids.
    #[must_use]
    pub fn adopted(&self, homes: &[Slot], above: Option<LeaseId>, max: usize) -> Vec<AdoptedLease> {
        let of = |(id, lease): (&LeaseId, &Lease)| match lease.place {
            Place::Adopted { home, .. } if homes.contains(&home) => {
                Some(AdoptedLease { id: *id, granted_ttl_s: lease.granted_ttl_s, home })
            }
            _ => None,
        };
        let mut found: Vec<AdoptedLease> = self.live.iter().filter_map(of).collect();
        found.retain(|lease| above.is_none_or(|above| lease.id > above));
        found.sort_unstable_by_key(|lease| lease.id);
        found.truncate(max);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durability::LeaseRecord;

    fn slot(number: u16) -> Slot {
        Slot::new(number).unwrap()
    }

    fn moved(error: EngineError) -> bool {
        matches!(error, EngineError::NotOwned(NotOwned { epoch: Epoch::NONE, .. }))
    }

    const NOW: MonoMillis = MonoMillis(1_000);
    const LATER: MonoMillis = MonoMillis(100_000);
    const ID: LeaseId = LeaseId(7);

    fn at_home() -> LeaseTable {
        let mut home = LeaseTable::new();
        home.grant(NOW, ID, 10, 1).unwrap();
        home.attach_store(ID, slot(3)).unwrap();
        home.attach_key(ID, &Key::from("k")).unwrap();
        home
    }

    #[test]
    fn f04_a_lease_goes_to_an_heir_and_is_over_nowhere() {
        let (mut home, mut heir, mut other) = (at_home(), LeaseTable::new(), LeaseTable::new());
        other.adopt(ID, 10, slot(1)).unwrap();
        assert_eq!(home.hand_over(10, false), (vec![], vec![]));
        let (leases, fresh) = home.hand_over(10, true);
        assert_eq!(leases, [HandedLease { id: ID, granted_ttl_s: 10, attached: vec![slot(3)] }]);
        assert_eq!(fresh, [ID]);
        assert_eq!(home.hand_over(10, false), (leases, vec![]), "again the same");
        // No request is told that it ended, and it does not end here, even over a restart.
        let record = LeaseRecord { id: ID, state: home.durable(ID) };
        for mut home in [home, LeaseTable::restore(NOW, vec![record])] {
            assert!(moved(home.keep_alive(NOW, ID).unwrap_err()));
            assert!(moved(home.view(NOW, ID).unwrap_err()));
            assert!(moved(home.attach_store(ID, slot(4)).unwrap_err()));
            assert_eq!((home.begin_end(ID), home.due(LATER, 10)), (None, vec![]));
            assert_eq!((home.left(), home.home_ids(), home.deadline()), (1, vec![ID], None));
            assert!(home.contains(ID), "keys can be put with it all the same");
            assert!(home.grant(NOW, ID, 10, 1).is_err());

            heir.inherit(NOW, ID, 10, &[slot(1), slot(3)]).unwrap();
            heir.inherit(LATER, ID, 10, &[slot(1), slot(3)]).unwrap();
            assert_eq!(heir.view(NOW, ID).unwrap().ttl_s, 10, "its whole time, once");
            other.adopt_after(ID, 10, slot(2), &[slot(1)]).unwrap();
            assert_eq!(other.adopted_from(ID), Some(slot(2)));
            assert!(home.handed(ID, slot(2)) && !home.handed(ID, slot(2)));
            assert_eq!(home.left(), 0);
            assert!(moved(home.keep_alive(NOW, ID).unwrap_err()), "who still looks here is sent on");
            let record = LeaseRecord { id: ID, state: home.durable(ID) };
            let again = LeaseTable::restore(NOW, vec![record]);
            assert!(moved(again.view(NOW, ID).unwrap_err()));
            // The heir ends it.
            let (keys, stores) = heir.begin_end(ID).unwrap();
            assert_eq!((keys, stores), (vec![], vec![slot(1), slot(3)]));
            other.end_adopted(ID);
            home.end_adopted(ID);
            assert_eq!(home.keep_alive(NOW, ID), Err(EngineError::LeaseNotFound(ID)));
            heir = LeaseTable::new();
            other.adopt(ID, 10, slot(1)).unwrap();
        }
    }

    #[test]
    fn f04_a_lease_that_comes_back_or_ends_on_the_way() {
        // The heir, which held keys of it, hands it back later to a store that has it as handed.
        let (mut home, mut heir) = (at_home(), LeaseTable::new());
        heir.adopt(ID, 10, slot(1)).unwrap();
        heir.attach_key(ID, &Key::from("h")).unwrap();
        home.hand_over(10, true);
        heir.inherit(NOW, ID, 10, &[slot(1)]).unwrap();
        home.handed(ID, slot(2));
        let (back, _) = heir.hand_over(10, true);
        assert!(moved(heir.inherit(NOW, ID, 10, &[]).unwrap_err()), "it is on its way");
        home.inherit(NOW, ID, 10, &[slot(2)]).unwrap();
        heir.handed(ID, slot(1));
        assert_eq!(back[0].attached, [slot(1)]);
        assert_eq!(home.keep_alive(NOW, ID), Ok(10));
        assert_eq!(home.keys(ID), Some(vec![Key::from("k")]));
        assert_eq!(heir.keys(ID), Some(vec![Key::from("h")]));
        assert_eq!(home.adopted(&[slot(2)], None, 10), []);
        assert_eq!(heir.adopted(&[slot(1)], None, 10).len(), 1);
        assert_eq!(heir.adopted(&[slot(1)], Some(ID), 10), []);

        // It ends at the heir before this store is told that the handover is complete.
        let (mut home, mut heir) = (at_home(), LeaseTable::new());
        home.hand_over(10, true);
        heir.inherit(NOW, ID, 10, &[slot(1)]).unwrap();
        heir.begin_end(ID).unwrap();
        assert_eq!(home.end_adopted(ID), [Key::from("k")]);
        assert!(!home.handed(ID, slot(2)));
        assert_eq!((home.left(), home.is_empty()), (0, true));
        heir.inherit(NOW, ID, 10, &[slot(1)]).unwrap();
        assert!(heir.is_empty(), "what is over stays so");
    }
}
