//! Leases (R12). A lease has one home store and expires only there. Another store that holds keys of it has *adopted*
//! it: it knows id, TTL and home, and waits to be told that the lease ended.
//!
//! At its home a lease is first live. Then it is *ended*: its keys here are handed out to be deleted, and nothing can
//! attach to it or keep it alive. It is remembered while other stores still hold keys of it, then forgotten.
//!
//! Attaching and detaching a key cost O(log n) in the lease's keys; only the end of a lease costs O(keys) (B10).

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::{HashMap, hash_map::Entry};
use kindred_partition_config::{
    ids::{LeaseId, Slot},
    key::Key,
};

use crate::{
    durability::{LeaseRecord, LeaseState},
    error::EngineError,
    types::{EndedLease, LeaseView, MonoMillis},
};

mod handing;
#[cfg(test)]
mod tests;

pub use self::handing::{AdoptedLease, HandedLease};

/// The longest TTL that etcd grants, in seconds.
pub const MAX_TTL_S: i64 = 9_000_000_000;

#[derive(Debug, Default)]
pub struct LeaseTable {
    /// Live leases, whether their home is here or not.
    live: HashMap<LeaseId, Lease>,
    /// The live leases whose home is moving from here to another store.
    handing: BTreeSet<LeaseId>,
    /// The expiry times of the live leases whose home is here, soonest first; one entry each.
    deadlines: BTreeSet<(MonoMillis, LeaseId)>,
    /// Ended leases whose home is here, with the stores that still hold keys of them (never none).
    ended: BTreeMap<LeaseId, BTreeSet<Slot>>,
    /// Keys that a restart found of ended leases: their deletions were lost.
    orphans: BTreeMap<LeaseId, BTreeSet<Key>>,
    /// When the orphans are examined next.
    orphans_due: Option<MonoMillis>,
}

#[derive(Debug)]
struct Lease {
    granted_ttl_s: i64,
    place: Place,
    /// The keys on this store. An ordered set, so that a large lease never pauses to rehash and its end needs no sort.
    keys: BTreeSet<Key>,
}

#[derive(Debug)]
enum Place {
    /// The home is here. It expires at `deadline`; the stores `attached` hold keys of it, or will.
    ///
    /// The table looks at it when it is `due`, which is its deadline unless its end was put off.
    Home { deadline: MonoMillis, due: MonoMillis, attached: BTreeSet<Slot> },
    /// The home was here and moves to another store: the lease does not expire, and requests for it are told to retry.
    Handing { attached: BTreeSet<Slot> },
    /// The home is another store. `handed`: it was here, so requests for the lease are told to retry, not that it
    /// ended.
    Adopted { home: Slot, handed: bool },
}

impl LeaseTable {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of live leases, whether their home is here or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// Whether keys can be attached to the lease here. As in etcd this includes expired leases that are not ended yet.
    #[must_use]
    pub fn contains(&self, id: LeaseId) -> bool {
        self.live.contains_key(&id)
    }

    /// Grants a lease whose home is here. A TTL below `min_ttl_s`, zero and negative ones included, is raised to it.
    /// Returns the granted TTL. The id of an ended lease stays in use while that is remembered: stores that have not
    /// yet deleted its keys could not tell the new lease's from them.
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
        let place = Place::Home { deadline, due: deadline, attached: BTreeSet::new() };
        vacant.insert(Lease { granted_ttl_s, place, keys: BTreeSet::new() });
        self.deadlines.insert((deadline, id));
        Ok(granted_ttl_s)
    }

    /// Renews a lease whose home is here for its whole TTL, which is returned. Refused once the lease has expired: one
    /// that a client may have seen expired must not come back.
    pub fn keep_alive(&mut self, now: MonoMillis, id: LeaseId) -> Result<i64, EngineError> {
        match self.live.get_mut(&id) {
            Some(Lease { granted_ttl_s, place: Place::Home { deadline, due, .. }, .. })
                if now < *deadline =>
            {
                self.deadlines.remove(&(*due, id));
                *deadline = deadline_after(now, *granted_ttl_s);
                *due = *deadline;
                self.deadlines.insert((*due, id));
                Ok(*granted_ttl_s)
            }
            _ => Err(self.elsewhere(id)),
        }
    }

    /// The TTLs of a lease whose home is here, without its keys. Remaining seconds are truncated as in etcd, and
    /// negative from one second past the deadline while the lease is not ended.
    pub fn view(&self, now: MonoMillis, id: LeaseId) -> Result<LeaseView, EngineError> {
        match self.live.get(&id) {
            Some(Lease { granted_ttl_s, place: Place::Home { deadline, .. }, .. }) => {
                let ttl_s = seconds_until(now, *deadline);
                Ok(LeaseView { ttl_s, granted_ttl_s: *granted_ttl_s, keys: Vec::new() })
            }
            _ => Err(self.elsewhere(id)),
        }
    }

    /// The live leases whose home is here or was and is being handed over, sorted by id.
    #[must_use]
    pub fn home_ids(&self) -> Vec<LeaseId> {
        let live = self.deadlines.iter().map(|(_, id)| id);
        let mut ids: Vec<_> = live.chain(&self.handing).copied().collect();
        ids.sort_unstable();
        ids
    }

    // ---- keys

    /// Attaches a key, which the lease's end will delete.
    pub fn attach_key(&mut self, id: LeaseId, key: &Key) -> Result<(), EngineError> {
        let lease = self.live.get_mut(&id).ok_or(EngineError::LeaseNotFound(id))?;
        if !lease.keys.contains(key) {
            // A copy: the key may be a slice of a much larger buffer, which it would keep alive.
            lease.keys.insert(Key::copy_from(&key.0));
        }
        Ok(())
    }

    /// Detaches a key that is deleted or has another lease. False when it was not attached, as after the lease's end.
    pub fn detach_key(&mut self, id: LeaseId, key: &Key) -> bool {
        self.live.get_mut(&id).is_some_and(|lease| lease.keys.remove(key))
    }

    /// The lease's keys on this store, sorted; `None` when the lease is not live here.
    #[must_use]
    pub fn keys(&self, id: LeaseId) -> Option<Vec<Key>> {
        Some(self.live.get(&id)?.keys.iter().cloned().collect())
    }

    // ---- expiry and end, at the home

    /// When the next lease expires, or orphans are to be examined.
    #[must_use]
    pub fn deadline(&self) -> Option<MonoMillis> {
        let first = self.deadlines.first().map(|(deadline, _)| *deadline);
        let orphans = self.has_orphans().then(|| self.orphans_due.unwrap_or(MonoMillis(0)));
        first.into_iter().chain(orphans).min()
    }

    /// Expired leases whose home is here, the longest expired first, at most `max`. They stay live until they are
    /// ended.
    #[must_use]
    pub fn due(&self, now: MonoMillis, max: usize) -> Vec<LeaseId> {
        self.deadlines
            .iter()
            .take_while(|(deadline, _)| *deadline <= now)
            .map(|(_, id)| *id)
            .take(max)
            .collect()
    }

    /// Postpones the end of an expired lease.
    pub(crate) fn put_off(&mut self, now: MonoMillis, id: LeaseId, by_ms: u64) {
        if let Some(Lease { place: Place::Home { due, .. }, .. }) = self.live.get_mut(&id) {
            self.deadlines.remove(&(*due, id));
            *due = MonoMillis(now.0.saturating_add(by_ms));
            self.deadlines.insert((*due, id));
        }
    }

    /// Ends a lease whose home is here. Returns its keys here, sorted, which the caller deletes now, and the other
    /// stores that hold keys of it; for these it is remembered until [`LeaseTable::forget`]. `None` when no such lease
    /// is live, so also on a second call.
    pub fn begin_end(&mut self, id: LeaseId) -> Option<(Vec<Key>, Vec<Slot>)> {
        let Entry::Occupied(entry) = self.live.entry(id) else { return None };
        let Place::Home { due, .. } = entry.get().place else { return None };
        let Lease { place, keys, .. } = entry.remove();
        self.deadlines.remove(&(due, id));
        let Place::Home { attached, .. } = place else { return None };
        let stores = attached.iter().copied().collect();
        if !attached.is_empty() {
            self.ended.insert(id, attached);
        }
        Some((keys.into_iter().collect(), stores))
    }

    /// Ended leases of which other stores may still hold keys, sorted by id.
    #[must_use]
    pub fn ended(&self) -> Vec<EndedLease> {
        let lease = |(id, stores): (&LeaseId, &BTreeSet<Slot>)| EndedLease {
            id: *id,
            attached: stores.iter().copied().collect(),
        };
        self.ended.iter().map(lease).collect()
    }

    /// Forgets an ended lease of which no store holds keys any more. False, and without effect, if it is not ended.
    pub fn forget(&mut self, id: LeaseId) -> bool {
        self.ended.remove(&id).is_some()
    }

    /// Notes at the home that `store` will hold keys of the lease. Returns the granted TTL. Refused when the lease is
    /// ended or unknown.
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

    /// The leases as their last records describe them, each with its whole TTL.
    pub(crate) fn restore(now: MonoMillis, records: Vec<LeaseRecord>) -> Self {
        let last: HashMap<LeaseId, LeaseState> =
            records.into_iter().map(|record| (record.id, record.state)).collect();
        let mut table = Self::new();
        for (id, state) in last {
            table.set(now, id, state);
        }
        table
    }

    /// Adds a lease that is not in the table, with its whole TTL.
    fn set(&mut self, now: MonoMillis, id: LeaseId, state: LeaseState) {
        let (granted_ttl_s, place) = match state {
            LeaseState::Home { ttl_s, attached } => {
                let deadline = deadline_after(now, ttl_s);
                self.deadlines.insert((deadline, id));
                (ttl_s, Place::Home { deadline, due: deadline, attached: attached.into_iter().collect() })
            }
            LeaseState::Adopted { ttl_s, home } => (ttl_s, Place::Adopted { home, handed: false }),
            LeaseState::Handed { ttl_s, home } => (ttl_s, Place::Adopted { home, handed: true }),
            LeaseState::Handing { ttl_s, attached } => {
                self.handing.insert(id);
                (ttl_s, Place::Handing { attached: attached.into_iter().collect() })
            }
            LeaseState::Ended { attached } => {
                self.ended.insert(id, attached.into_iter().collect());
                return;
            }
            LeaseState::Gone => return,
        };
        self.live.insert(id, Lease { granted_ttl_s, place, keys: BTreeSet::new() });
    }

    // ---- in a replica

    /// Takes over the state of a lease. Its keys stay attached; those of a lease that is over are orphans until they are
    /// deleted.
    pub(crate) fn replicate(&mut self, now: MonoMillis, record: LeaseRecord) {
        let LeaseRecord { id, state } = record;
        let mut keys = self.orphans.remove(&id).unwrap_or_default();
        if let Some(known) = self.live.remove(&id) {
            if let Place::Home { due, .. } = known.place {
                self.deadlines.remove(&(due, id));
            }
            keys.extend(known.keys);
        }
        self.handing.remove(&id);
        self.ended.remove(&id);
        self.set(now, id, state);
        for key in keys {
            self.restore_key(id, key);
        }
    }

    /// Detaches a key, also from a lease that is over.
    pub(crate) fn unlink(&mut self, id: LeaseId, key: &Key) {
        if !self.detach_key(id, key)
            && let Some(orphans) = self.orphans.get_mut(&id)
        {
            orphans.remove(key);
            if orphans.is_empty() {
                self.orphans.remove(&id);
            }
        }
    }

    /// Gives every lease whose home is here its whole TTL from now on.
    pub(crate) fn renew(&mut self, now: MonoMillis) {
        self.deadlines.clear();
        for (id, lease) in &mut self.live {
            if let Place::Home { deadline, due, .. } = &mut lease.place {
                *deadline = deadline_after(now, lease.granted_ttl_s);
                *due = *deadline;
                self.deadlines.insert((*due, *id));
            }
        }
    }

    /// Attaches a recovered key to its lease, or adds it to the orphans if the lease has ended.
    pub(crate) fn restore_key(&mut self, id: LeaseId, key: Key) {
        match self.live.get_mut(&id) {
            Some(lease) => lease.keys.insert(key),
            None => self.orphans.entry(id).or_default().insert(key),
        };
    }

    /// Whether there are keys of leases that ended before a restart.
    pub(crate) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// The first lease behind `after` that ended before a restart, and its keys.
    pub(crate) fn orphans(&self, after: Option<LeaseId>) -> Option<(LeaseId, Vec<Key>)> {
        let mut rest = self.orphans.iter().filter(|(id, _)| after.is_none_or(|after| **id > after));
        rest.next().map(|(id, keys)| (*id, keys.iter().cloned().collect()))
    }

    /// Sets when the remaining orphans are examined again.
    pub(crate) fn orphans_wait(&mut self, until: MonoMillis) {
        self.orphans_due = Some(until);
    }

    /// Forgets the orphans of a lease, which are deleted.
    pub(crate) fn orphans_done(&mut self, id: LeaseId) {
        self.orphans.remove(&id);
    }

    /// The live and ended leases, sorted by id.
    pub(crate) fn known(&self) -> Vec<LeaseId> {
        let mut ids: Vec<LeaseId> = self.live.keys().chain(self.ended.keys()).copied().collect();
        ids.sort_unstable();
        ids
    }

    /// The state of a lease that must be durable.
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

    /// Adopts a lease whose home is another store; repeating it changes nothing. Refused when the id belongs to a lease
    /// whose home is here, live or ended, or to one adopted from a different home, unless that is one of `before`, whom
    /// this home succeeded: two leases must never become one.
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
                // It will become an adopted lease, and already takes keys.
                Place::Handing { .. } => Ok(()),
                _ => Err(EngineError::LeaseExists(id)),
            },
        }
    }

    /// As [`LeaseTable::adopt_after`], for a home without predecessors.
    pub fn adopt(&mut self, id: LeaseId, granted_ttl_s: i64, home: Slot) -> Result<(), EngineError> {
        self.adopt_after(id, granted_ttl_s, home, &[])
    }

    /// Forgets a lease that ended at its home, another store. Returns its keys here, sorted, which the caller deletes
    /// now; none when it was not adopted, so the home may repeat the call.
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

/// Whole seconds, truncated towards zero on both sides of the deadline (etcd's `int64(Remaining().Seconds())`).
fn seconds_until(now: MonoMillis, deadline: MonoMillis) -> i64 {
    let seconds = |ms: u64| i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    match deadline.0.checked_sub(now.0) {
        Some(left) => seconds(left),
        None => -seconds(now.0 - deadline.0),
    }
}
