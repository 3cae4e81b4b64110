//! Leases and the deletion of their keys.

use kindred_partition_config::{
    ids::{Epoch, LeaseId, Revision, Slot},
    key::Key,
    unit::Unit,
};

use super::{EndedLease, Engine, LeaseView, MonoMillis, WallMicros};
use crate::{
    error::EngineError,
    lease::{AdoptedLease, HandedLease},
    types::LATEST,
    units::{NotOwned, UnitError, UnitState, table::Record},
    version::Version,
};

/// How long an expiry waits, in milliseconds, when keys that it would delete are in a switch.
const WAIT_MS: u64 = 100;

impl Engine {
    /// Grants a lease whose home is this store. `id` is never zero (the caller generates one). Returns the granted TTL.
    pub fn lease_grant(&mut self, now: MonoMillis, id: LeaseId, ttl_s: i64) -> Result<i64, EngineError> {
        let granted = self.leases.grant(now, id, ttl_s, self.config.min_lease_ttl_s)?;
        self.unit_leases_known(id);
        self.log_lease(id);
        Ok(granted)
    }

    /// Renews a lease; returns its TTL.
    pub fn lease_keep_alive(&mut self, now: MonoMillis, id: LeaseId) -> Result<i64, EngineError> {
        self.leases.keep_alive(now, id)
    }

    /// Revokes a lease: its keys here are deleted in one revision. Returns that revision, or the current one when there
    /// were no keys, and the stores that hold other keys of the lease.
    pub fn lease_revoke(
        &mut self,
        wall: WallMicros,
        id: LeaseId,
    ) -> Result<(Revision, Vec<Slot>), EngineError> {
        self.lease_waits(id)?;
        self.may_assign_or_wait(wall)?;
        let (keys, stores) = self.leases.begin_end(id).ok_or_else(|| self.leases.elsewhere(id))?;
        self.log_lease(id);
        let keys = self.keys_to_end(id, keys);
        Ok((self.delete_leased(wall, &keys), stores))
    }

    /// Ends expired leases, at most `max`; `true` when more are due.
    pub fn lease_expire(&mut self, wall: WallMicros, now: MonoMillis, max: usize) -> bool {
        if self.leases.has_orphans() {
            let ended = self.orphans_end(wall, max);
            // Keys that cannot be deleted now are tried again a little later.
            self.leases.orphans_wait(if ended { now } else { MonoMillis(now.0.saturating_add(WAIT_MS)) });
        }
        for id in self.leases.due(now, max) {
            if self.lease_waits(id).is_err() || !self.clock.may_assign(wall) {
                self.leases.put_off(now, id, WAIT_MS);
                continue;
            }
            if let Some((keys, _)) = self.leases.begin_end(id) {
                self.log_lease(id);
                let keys = self.keys_to_end(id, keys);
                self.delete_leased(wall, &keys);
            }
        }
        self.leases.deadline().is_some_and(|deadline| deadline <= now)
    }

    /// Deletes the keys, found at a restart, of leases that had ended: their deletions were lost. It handles at most
    /// `max` leases and skips those with keys in a switch. Keys that are gone or carry another lease by now are left
    /// alone.
    fn orphans_end(&mut self, wall: WallMicros, max: usize) -> bool {
        let (mut after, mut ended) = (None, false);
        for _ in 0..max {
            let Some((id, keys)) = self.leases.orphans(after) else { break };
            after = Some(id);
            if self.keys_wait(&keys).is_err() || !self.clock.may_assign(wall) {
                continue;
            }
            let mut keys = self.keys_to_end(id, keys);
            keys.retain(|key| self.space.get(key).is_some_and(|version| version.lease() == id.get()));
            self.delete_leased(wall, &keys);
            self.leases.orphans_done(id);
            ended = true;
        }
        ended
    }

    /// The time at which the next lease may expire.
    #[must_use]
    pub fn lease_deadline(&self) -> Option<MonoMillis> {
        self.leases.deadline()
    }

    /// A lease's TTLs and, with `keys`, its keys; see [`Engine::lease_keys`].
    pub fn lease_view(&self, now: MonoMillis, id: LeaseId, keys: bool) -> Result<LeaseView, EngineError> {
        let mut view = self.leases.view(now, id)?;
        if keys {
            view.keys = self.lease_keys(id, None)?.unwrap_or_default();
        }
        Ok(view)
    }

    /// The leases whose home is here, sorted by id.
    #[must_use]
    pub fn leases(&self) -> Vec<LeaseId> {
        self.leases.home_ids()
    }

    /// At the home: notes that `store` will hold keys of the lease. Returns the granted TTL.
    pub fn lease_attach(&mut self, id: LeaseId, store: Slot) -> Result<i64, EngineError> {
        let known = self.leases.durable(id);
        let granted = self.leases.attach_store(id, store)?;
        if self.leases.durable(id) != known {
            self.log_lease(id);
        }
        Ok(granted)
    }

    /// At another store: adopts a lease whose home is elsewhere. It never expires here.
    pub fn lease_adopt(&mut self, id: LeaseId, granted_ttl_s: i64, home: Slot) -> Result<(), EngineError> {
        self.lease_adopt_after(id, granted_ttl_s, home, &[])
    }

    /// The same for a home that inherited the lease from the stores `before`.
    pub fn lease_adopt_after(
        &mut self,
        id: LeaseId,
        granted_ttl_s: i64,
        home: Slot,
        before: &[Slot],
    ) -> Result<(), EngineError> {
        let known = self.leases.durable(id);
        self.leases.adopt_after(id, granted_ttl_s, home, before)?;
        self.unit_leases_known(id);
        if self.leases.durable(id) != known {
            self.log_lease(id);
        }
        Ok(())
    }

    /// At another store: deletes the lease's keys in one revision and forgets the lease. Refused, to be retried, while
    /// one of its keys is in a switch.
    pub fn lease_end(&mut self, wall: WallMicros, id: LeaseId) -> Result<Revision, EngineError> {
        self.lease_waits(id)?;
        self.may_assign_or_wait(wall)?;
        let known = self.leases.contains(id);
        let keys = self.leases.end_adopted(id);
        if known && !self.leases.contains(id) {
            self.log_lease(id);
        }
        let keys = self.keys_to_end(id, keys);
        Ok(self.delete_leased(wall, &keys))
    }

    /// The same for a lease that no home declared ended, but that the stores `denied` do not know. Executed only if the
    /// home that this store knows is among them: a router that does not know where a lease has gone must not end it.
    pub fn lease_end_denied(
        &mut self,
        wall: WallMicros,
        id: LeaseId,
        denied: &[Slot],
    ) -> Result<Revision, EngineError> {
        match self.leases.adopted_from(id) {
            Some(home) if !denied.contains(&home) => {
                Err(NotOwned { key: Key::from(format!("lease {id}").as_str()), epoch: Epoch::NONE }.into())
            }
            _ => self.lease_end(wall, id),
        }
    }

    // ---- units

    /// Attaches imported keys to a lease that became known.
    pub(super) fn unit_leases_known(&mut self, id: LeaseId) {
        for record in &mut self.space.units.records {
            for key in record.unattached.remove(&id).unwrap_or_default() {
                let attached = self.leases.attach_key(id, &key);
                debug_assert!(attached.is_ok(), "it is known");
            }
        }
    }

    /// The leases of the next `max_keys` keys behind `after`, and the key to continue behind.
    pub fn unit_leases(
        &self,
        unit: &Unit,
        after: Option<&Key>,
        max_keys: usize,
    ) -> Result<(Vec<LeaseId>, Option<Key>), UnitError> {
        let record =
            self.space.units.of(unit).filter(|record| record.is_whole()).ok_or(UnitError::BadUnit)?;
        let (mut leases, mut looked, mut last, mut next) = (Vec::new(), 0, None, None);
        self.space.walk_unit(record, after, |_, object| {
            if looked == max_keys.max(1) {
                next = last.take();
                return false;
            }
            looked += 1;
            last = Some(Key::copy_from(object.key()));
            leases.extend(object.at(LATEST).and_then(Version::lease_id));
            true
        });
        leases.sort_unstable();
        leases.dedup();
        Ok((leases, next))
    }

    /// The leases of keys of a unit that this store follows, but does not know: it cannot be sealed before it does. None
    /// if it does not follow.
    #[must_use]
    pub fn unit_leases_missing(&self, unit: &Unit) -> Vec<LeaseId> {
        let follows = |record: &&Record| matches!(record.state, UnitState::Following { .. });
        let record = self.space.units.of(unit).filter(follows);
        record.map(|record| record.unattached.keys().copied().collect()).unwrap_or_default()
    }

    // ---- a home that goes away

    /// Leases whose home is here and that an heir is to take over, at most `max`; see [`crate::lease::HandedLease`].
    /// This store stops serving the leases that it returns. Without `begin` only leases whose handover has begun are
    /// returned.
    pub fn lease_hand_over(&mut self, max: usize, begin: bool) -> Vec<HandedLease> {
        let (leases, fresh) = self.leases.hand_over(max, begin);
        fresh.into_iter().for_each(|id| self.log_lease(id));
        leases
    }

    /// The number of leases that have or had their home here and are not yet handed over.
    #[must_use]
    pub fn leases_left(&self) -> usize {
        self.leases.left()
    }

    /// At the heir: makes this store the lease's home.
    pub fn lease_inherit(
        &mut self,
        now: MonoMillis,
        id: LeaseId,
        granted_ttl_s: i64,
        attached: &[Slot],
    ) -> Result<(), EngineError> {
        let known = self.leases.durable(id);
        self.leases.inherit(now, id, granted_ttl_s, attached)?;
        self.unit_leases_known(id);
        if self.leases.durable(id) != known {
            self.log_lease(id);
        }
        Ok(())
    }

    /// At the former home: notes that the heir has the lease and that every store attached to it knows.
    pub fn lease_handed(&mut self, id: LeaseId, heir: Slot) {
        if self.leases.handed(id, heir) {
            self.log_lease(id);
        }
    }

    /// Leases that were adopted from one of these homes, at most `max`.
    #[must_use]
    pub fn leases_adopted(&self, homes: &[Slot], above: Option<LeaseId>, max: usize) -> Vec<AdoptedLease> {
        self.leases.adopted(homes, above, max)
    }

    /// Refuses to end a lease while one of its keys is in a switch: no store can delete it then.
    fn lease_waits(&self, id: LeaseId) -> Result<(), EngineError> {
        match self.leases.keys(id) {
            Some(keys) if !self.space.units.is_empty() => Ok(self.keys_wait(&keys)?),
            _ => Ok(()),
        }
    }

    /// At the home: forgets a lease of which no store holds keys any more.
    pub fn lease_forget(&mut self, id: LeaseId) {
        if self.leases.forget(id) {
            self.log_lease(id);
        }
    }

    /// At the home: ended leases that other stores still have to end.
    #[must_use]
    pub fn leases_ended(&self) -> Vec<EndedLease> {
        self.leases.ended()
    }

    /// The keys of a lease here, sorted; `None` for an unknown lease. Refused, to be retried, while one of them is
    /// frozen, or sealed and not opened: then no store lists it. Also refused to a request by a map older than the one
    /// by which one of them changed owner.
    pub fn lease_keys(&self, id: LeaseId, generation: Option<Epoch>) -> Result<Option<Vec<Key>>, NotOwned> {
        let Some(keys) = self.leases.keys(id) else { return Ok(None) };
        if self.space.units.is_empty() {
            return Ok(Some(keys));
        }
        let mut here = Vec::new();
        for key in keys {
            if self.space.units.lists(&key, generation)? && self.space.get(&key).is_some() {
                here.push(key);
            }
        }
        Ok(Some(here))
    }

    fn may_assign_or_wait(&self, wall: WallMicros) -> Result<(), EngineError> {
        if self.clock.may_assign(wall) {
            Ok(())
        } else {
            Err(EngineError::Ceiling { ceiling: self.clock.ceiling() })
        }
    }

    /// Deletes the keys of a lease that ended. Returns the revision of that, or the last applied if there are none: it may
    /// be that of the deletion of the last of them, which is not visible yet.
    fn delete_leased(&mut self, wall: WallMicros, keys: &[Key]) -> Revision {
        let deleted = self.applier(wall, Revision::ZERO).delete_keys(keys);
        deleted.unwrap_or_else(|| self.space.applied(&self.space.everything()))
    }
}
