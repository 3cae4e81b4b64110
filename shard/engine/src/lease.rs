//! Leases (R12). A lease has one home store, and only there does it expire. Another store that holds keys of it has
//! *adopted* it: the store knows id, TTL and home, and waits to be told that it is over.
//!
//! At its home a lease is live, then *ended* (its keys here are handed out to be deleted; nothing can be attached to it
//! or keep it alive any more) and remembered so while other stores still hold keys of it, then forgotten.
//!
//! Attaching and detaching a key cost O(log n) in the lease's keys, and only the end of a lease costs O(keys) (B10).

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::{HashMap, hash_map::Entry};
use kindred_partition_config::{
    ids::{LeaseId, Slot},
    key::Key,
};

use crate::{
    durability::{LeaseRecord, LeaseState},
    engine::{EndedLease, LeaseView, MonoMillis},
    error::EngineError,
};

mod handing;
#[cfg(test)]
mod tests;

pub use self::handing::{AdoptedLease, HandedLease};

/// The longest TTL that etcd grants, seconds.
pub const MAX_TTL_S: i64 = 9_000_000_000;

/// All leases that a store knows.
#[derive(Debug, Default)]
pub struct LeaseTable {
    /// Live ones, at home here or adopted.
    live: HashMap<LeaseId, Lease>,
    /// Those of them whose home is on its way to another store.
    handing: BTreeSet<LeaseId>,
    /// When each live home lease expires, soonest first; one entry each.
    deadlines: BTreeSet<(MonoMillis, LeaseId)>,
    /// Over at their home, which is here, with the stores that still hold keys of them (never none).
    ended: BTreeMap<LeaseId, BTreeSet<Slot>>,
    /// Keys that a restart found of leases that are over: their deletion was lost.
    orphans: BTreeMap<LeaseId, BTreeSet<Key>>,
    /// When they are to be looked at next.
    orphans_due: Option<MonoMillis>,
}

#[derive(Debug)]
struct Lease {
    granted_ttl_s: i64,
    place: Place,
    /// Keys on this store. Ordered, so that a big lease never pauses to rehash and its end needs no sort.
    keys: BTreeSet<Key>,
}

#[derive(Debug)]
enum Place {
    /// The home is here.
    Home { deadline: MonoMillis, attached: BTreeSet<Slot> },
    /// The home was here and goes to another store: it does not expire, and who asks for it is to ask again.
    Handing { attached: BTreeSet<Slot> },
    /// The home is that store. `handed`: it was here, and who still looks for it here is not told that it is over.
    Adopted { home: Slot, handed: bool },
}

impl LeaseTable {
    /// No leases.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Live leases, at home here or adopted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Whether no lease is live here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Whether keys can be attached to the lease here. True for one that has expired until it is ended, as in etcd.
    #[must_use]
    pub fn contains(&self, id: LeaseId) -> bool {
        self.live.contains_key(&id)
    }

    /// A new lease whose home is here. A TTL below `min_ttl_s`, zero and negative ones included, is raised to it; answers
    /// the TTL granted. An id is in use also while an ended lease of it is remembered: the stores that have not yet
    /// deleted the old lease's keys could not tell the new one's from them.
    pub fn grant(
        &mut self,
        now: MonoMillis,
        id: LeaseId,
        ttl_s: i64,
        min_ttl_s: i64,
    ) -> Result<i64, EngineError> {
        if ttl_s > MAX_TTL_S {
            return Err(EngineError::LeaseTtlTooLarge(ttl_s));
        }
        if self.ended.contains_key(&id) {
            return Err(EngineError::LeaseExists(id));
        }
        let Entry::Vacant(vacant) = self.live.entry(id) else {
            return Err(EngineError::LeaseExists(id));
        };
        let granted_ttl_s = ttl_s.max(min_ttl_s);
        let deadline = deadline_after(now, granted_ttl_s);
        let place = Place::Home { deadline, attached: BTreeSet::new() };
        vacant.insert(Lease { granted_ttl_s, place, keys: BTreeSet::new() });
        self.deadlines.insert((deadline, id));
        Ok(granted_ttl_s)
    }

    /// Gives a home lease its whole TTL again; answers the TTL. Refused once it has expired, ended or not: what a client
    /// may have been told is over does not come back.
    pub fn keep_alive(&mut self, now: MonoMillis, id: LeaseId) -> Result<i64, EngineError> {
        match self.live.get_mut(&id) {
            Some(Lease { granted_ttl_s, place: Place::Home { deadline, .. }, .. }) if now < *deadline => {
                self.deadlines.remove(&(*deadline, id));
                *deadline = deadline_after(now, *granted_ttl_s);
                self.deadlines.insert((*deadline, id));
                Ok(*granted_ttl_s)
            }
            _ => Err(self.elsewhere(id)),
        }
    }

    /// A home lease's times, without its keys. The seconds left are cut off as etcd does, and negative from one second
    /// after a deadline at which the lease was not ended yet.
    pub fn view(&self, now: MonoMillis, id: LeaseId) -> Result<LeaseView, EngineError> {
        match self.live.get(&id) {
            Some(Lease { granted_ttl_s, place: Place::Home { deadline, .. }, .. }) => {
                let ttl_s = seconds_until(now, *deadline);
                Ok(LeaseView { ttl_s, granted_ttl_s: *granted_ttl_s, keys: Vec::new() })
            }
            _ => Err(self.elsewhere(id)),
        }
    }

    /// Ids of the live leases whose home is here, in their order.
    #[must_use]
    pub fn home_ids(&self) -> Vec<LeaseId> {
        let live = self.deadlines.iter().map(|(_, id)| id);
        let mut ids: Vec<_> = live.chain(&self.handing).copied().collect();
        ids.sort_unstable();
        ids
    }

    // ---- keys

    /// The lease's end will delete this key.
    pub fn attach_key(&mut self, id: LeaseId, key: &Key) -> Result<(), EngineError> {
        let lease = self.live.get_mut(&id).ok_or(EngineError::LeaseNotFound(id))?;
        if !lease.keys.contains(key) {
            // A copy: the key may be a slice of a much larger buffer, which it would keep.
            lease.keys.insert(Key::copy_from(&key.0));
        }
        Ok(())
    }

    /// The key is gone or has another lease now. False when it was not attached, as after the lease's end.
    pub fn detach_key(&mut self, id: LeaseId, key: &Key) -> bool {
        self.live.get_mut(&id).is_some_and(|lease| lease.keys.remove(key))
    }

    /// The lease's keys on this store, sorted; `None` when it is not live here.
    #[must_use]
    pub fn keys(&self, id: LeaseId) -> Option<Vec<Key>> {
        Some(self.live.get(&id)?.keys.iter().cloned().collect())
    }

    // ---- expiry and end, at the home

    /// When the next home lease expires.
    #[must_use]
    pub fn deadline(&self) -> Option<MonoMillis> {
        let first = self.deadlines.first().map(|(deadline, _)| *deadline);
        let orphans = self.has_orphans().then(|| self.orphans_due.unwrap_or(MonoMillis(0)));
        first.into_iter().chain(orphans).min()
    }

    /// Home leases that have expired, the longest expired first, at most `max`. They stay live until they are ended.
    #[must_use]
    pub fn due(&self, now: MonoMillis, max: usize) -> Vec<LeaseId> {
        self.deadlines
            .iter()
            .take_while(|(deadline, _)| *deadline <= now)
            .map(|(_, id)| *id)
            .take(max)
            .collect()
    }

    /// A home lease that is due is not ended now but looked at again a little later.
    pub(crate) fn put_off(&mut self, now: MonoMillis, id: LeaseId, by_ms: u64) {
        if let Some(Lease { place: Place::Home { deadline, .. }, .. }) = self.live.get_mut(&id) {
            self.deadlines.remove(&(*deadline, id));
            *deadline = MonoMillis(now.0.saturating_add(by_ms));
            self.deadlines.insert((*deadline, id));
        }
    }

    /// Ends a home lease. Answers its keys here, sorted, which are the caller's to delete now, and the other stores that
    /// hold keys of it, for which it is remembered until [`LeaseTable::forget`]. `None` when no such lease is live with
    /// its home here, so also the second time.
    pub fn begin_end(&mut self, id: LeaseId) -> Option<(Vec<Key>, Vec<Slot>)> {
        let Entry::Occupied(entry) = self.live.entry(id) else { return None };
        let Place::Home { deadline, .. } = entry.get().place else { return None };
        let Lease { place, keys, .. } = entry.remove();
        self.deadlines.remove(&(deadline, id));
        let Place::Home { attached, .. } = place else { return None };
        let stores = attached.iter().copied().collect();
        if !attached.is_empty() {
            self.ended.insert(id, attached);
        }
        Some((keys.into_iter().collect(), stores))
    }

    /// Leases that are over and that other stores may still hold keys of, in the order of their ids.
    #[must_use]
    pub fn ended(&self) -> Vec<EndedLease> {
        let lease = |(id, stores): (&LeaseId, &BTreeSet<Slot>)| EndedLease {
            id: *id,
            attached: stores.iter().copied().collect(),
        };
        self.ended.iter().map(lease).collect()
    }

    /// No store holds keys of an ended lease any more. False, and without effect, for one that is not ended.
    pub fn forget(&mut self, id: LeaseId) -> bool {
        self.ended.remove(&id).is_some()
    }

    /// Notes at the home that `store` will hold keys of the lease; answers the TTL granted. Refused for one that is over
    /// or was never here.
    pub fn attach_store(&mut self, id: LeaseId, store: Slot) -> Result<i64, EngineError> {
        match self.live.get_mut(&id) {
            Some(Lease { granted_ttl_s, place: Place::Home { attached, .. }, .. }) => {
                attached.insert(store);
                Ok(*granted_ttl_s)
            }
            _ => Err(self.elsewhere(id)),
        }
    }

    // ---- after a restart

    /// Leases as their last records describe them, with their whole TTL.
    pub(crate) fn restore(now: MonoMillis, records: Vec<LeaseRecord>) -> Self {
        let last: HashMap<LeaseId, LeaseState> =
            records.into_iter().map(|record| (record.id, record.state)).collect();
        let mut table = Self::new();
        for (id, state) in last {
            let (granted_ttl_s, place) = match state {
                LeaseState::Home { ttl_s, attached } => {
                    let deadline = deadline_after(now, ttl_s);
                    table.deadlines.insert((deadline, id));
                    (ttl_s, Place::Home { deadline, attached: attached.into_iter().collect() })
                }
                LeaseState::Adopted { ttl_s, home } => (ttl_s, Place::Adopted { home, handed: false }),
                LeaseState::Handed { ttl_s, home } => (ttl_s, Place::Adopted { home, handed: true }),
                LeaseState::Handing { ttl_s, attached } => {
                    table.handing.insert(id);
                    (ttl_s, Place::Handing { attached: attached.into_iter().collect() })
                }
                LeaseState::Ended { attached } => {
                    table.ended.insert(id, attached.into_iter().collect());
                    continue;
                }
                LeaseState::Gone => continue,
            };
            table.live.insert(id, Lease { granted_ttl_s, place, keys: BTreeSet::new() });
        }
        table
    }

    /// A key that carries a lease: attached, or to be deleted with [`LeaseTable::orphans`].
    pub(crate) fn restore_key(&mut self, id: LeaseId, key: Key) {
        match self.live.get_mut(&id) {
            Some(lease) => lease.keys.insert(key),
            None => self.orphans.entry(id).or_default().insert(key),
        };
    }

    /// Whether there are keys of leases that were over before a restart.
    pub(crate) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// The keys of a lease that was over before a restart, of the next one behind `after`.
    pub(crate) fn orphans(&self, after: Option<LeaseId>) -> Option<(LeaseId, Vec<Key>)> {
        let mut rest = self.orphans.iter().filter(|(id, _)| after.is_none_or(|after| **id > after));
        rest.next().map(|(id, keys)| (*id, keys.iter().cloned().collect()))
    }

    /// Those that are left are to be looked at again then.
    pub(crate) fn orphans_wait(&mut self, until: MonoMillis) {
        self.orphans_due = Some(until);
    }

    /// They are deleted.
    pub(crate) fn orphans_done(&mut self, id: LeaseId) {
        self.orphans.remove(&id);
    }

    /// Ids of all that is known, in their order.
    pub(crate) fn known(&self) -> Vec<LeaseId> {
        let mut ids: Vec<LeaseId> = self.live.keys().chain(self.ended.keys()).copied().collect();
        ids.sort_unstable();
        ids
    }

    /// What must be durable of a lease.
    pub(crate) fn durable(&self, id: LeaseId) -> LeaseState {
        match (self.live.get(&id), self.ended.get(&id)) {
            (Some(Lease { granted_ttl_s, place: Place::Home { attached, .. }, .. }), _) => {
                LeaseState::Home { ttl_s: *granted_ttl_s, attached: attached.iter().copied().collect() }
            }
            (Some(Lease { granted_ttl_s, place: Place::Handing { attached }, .. }), _) => {
                LeaseState::Handing { ttl_s: *granted_ttl_s, attached: attached.iter().copied().collect() }
            }
            (Some(Lease { granted_ttl_s, place: Place::Adopted { home, handed: true }, .. }), _) => {
                LeaseState::Handed { ttl_s: *granted_ttl_s, home: *home }
            }
            (Some(Lease { granted_ttl_s, place: Place::Adopted { home, .. }, .. }), _) => {
                LeaseState::Adopted { ttl_s: *granted_ttl_s, home: *home }
            }
            (None, Some(attached)) => LeaseState::Ended { attached: attached.iter().copied().collect() },
            (None, None) => LeaseState::Gone,
        }
    }

    // ---- at another store

    /// Knows a lease whose home is another store. Repeating it changes nothing. Refused when the id is a home lease's
    /// here, live or ended, or was adopted from a different home, unless from one of `before`, whose place this home took:
    /// two leases must never become one.
    pub fn adopt_after(
        &mut self,
        id: LeaseId,
        granted_ttl_s: i64,
        home: Slot,
        before: &[Slot],
    ) -> Result<(), EngineError> {
        if self.ended.contains_key(&id) {
            return Err(EngineError::LeaseExists(id));
        }
        match self.live.entry(id) {
            Entry::Vacant(vacant) => {
                let place = Place::Adopted { home, handed: false };
                vacant.insert(Lease { granted_ttl_s, place, keys: BTreeSet::new() });
                Ok(())
            }
            Entry::Occupied(mut known) => match &mut known.get_mut().place {
                Place::Adopted { home: same, .. } if *same == home => Ok(()),
                Place::Adopted { home: other, .. } if before.contains(other) => {
                    *other = home;
                    Ok(())
                }
                // It is about to be an adopted one, and takes keys already.
                Place::Handing { .. } => Ok(()),
                _ => Err(EngineError::LeaseExists(id)),
            },
        }
    }

    /// As [`LeaseTable::adopt_after`], for a home that took nobody's place.
    pub fn adopt(&mut self, id: LeaseId, granted_ttl_s: i64, home: Slot) -> Result<(), EngineError> {
        self.adopt_after(id, granted_ttl_s, home, &[])
    }

    /// Forgets an adopted lease that its home has ended. Answers its keys here, sorted, which are the caller's to delete
    /// now; none when it was not adopted, so that the home can ask again.
    pub fn end_adopted(&mut self, id: LeaseId) -> Vec<Key> {
        match self.live.entry(id) {
            Entry::Occupied(entry) if !matches!(entry.get().place, Place::Home { .. }) => {
                self.handing.remove(&id);
                entry.remove().keys.into_iter().collect()
            }
            _ => Vec::new(),
        }
    }
}

fn deadline_after(now: MonoMillis, ttl_s: i64) -> MonoMillis {
    let ttl_ms = u64::try_from(ttl_s).unwrap_or(0).saturating_mul(1000);
    MonoMillis(now.0.saturating_add(ttl_ms))
}

/// Whole seconds, cut off towards zero on both sides of the deadline (etcd's `int64(Remaining().Seconds())`).
fn seconds_until(now: MonoMillis, deadline: MonoMillis) -> i64 {
    let seconds = |ms: u64| i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    match deadline.0.checked_sub(now.0) {
        Some(left) => seconds(left),
        None => -seconds(now.0 - deadline.0),
    }
}
