//! Leases and the keys that end with them.

use kindred_partition_config::{
    ids::{LeaseId, Revision, Slot},
    key::Key,
};

use super::{EndedLease, Engine, LeaseView, MonoMillis, WallMicros};
use crate::{
    error::EngineError,
    lease::{AdoptedLease, HandedLease},
    units::NotOwned,
};

/// How long an expiry waits that would delete keys that are moving.
const WAIT_MS: u64 = 100;

impl Engine {
    /// A new lease whose home is this store. `id` is never zero (the caller generates one). Answers the granted TTL.
    pub fn lease_grant(&mut self, now: MonoMillis, id: LeaseId, ttl_s: i64) -> Result<i64, EngineError> {
        let granted = self.leases.grant(now, id, ttl_s, self.config.min_lease_ttl_s)?;
        self.unit_leases_known(id);
        self.log_lease(id);
        Ok(granted)
    }

    /// Keeps it alive; answers the TTL.
    pub fn lease_keep_alive(&mut self, now: MonoMillis, id: LeaseId) -> Result<i64, EngineError> {
        self.leases.keep_alive(now, id)
    }

    /// Ends it now: its keys are deleted in one revision. The stores that hold other keys of it are in the answer. The
    /// revision is the deletion's, or the shard's current one when there were no keys.
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

    /// Ends what has expired, at most `max` leases; `true` when more are due.
    pub fn lease_expire(&mut self, wall: WallMicros, now: MonoMillis, max: usize) -> bool {
        if self.leases.has_orphans() {
            let ended = self.orphans_end(wall, max);
            // What could not be deleted now waits a little.
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

    /// Deletes keys that a restart found of leases that were over: their deletions were lost. Of at most `max` leases; those
    /// with keys of which it is being decided whose they are wait; keys that have another lease or are gone by now are left
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

    /// When the next lease may expire.
    #[must_use]
    pub fn lease_deadline(&self) -> Option<MonoMillis> {
        self.leases.deadline()
    }

    /// A lease's times and, when asked, keys; see [`Engine::lease_keys`].
    pub fn lease_view(&self, now: MonoMillis, id: LeaseId, keys: bool) -> Result<LeaseView, EngineError> {
        let mut view = self.leases.view(now, id)?;
        if keys {
            view.keys = self.lease_keys(id, None)?.unwrap_or_default();
        }
        Ok(view)
    }

    /// All leases whose home is here, in the order of their ids.
    #[must_use]
    pub fn leases(&self) -> Vec<LeaseId> {
        self.leases.home_ids()
    }

    /// At the home: `store` will hold keys of it. Answers the granted TTL.
    pub fn lease_attach(&mut self, id: LeaseId, store: Slot) -> Result<i64, EngineError> {
        let known = self.leases.durable(id);
        let granted = self.leases.attach_store(id, store)?;
        if self.leases.durable(id) != known {
            self.log_lease(id);
        }
        Ok(granted)
    }

    /// At another store: know a lease whose home is elsewhere; it never expires here.
    pub fn lease_adopt(&mut self, id: LeaseId, granted_ttl_s: i64, home: Slot) -> Result<(), EngineError> {
        self.lease_adopt_after(id, granted_ttl_s, home, &[])
    }

    /// The same for a home that took the place of those `before`.
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

    /// At another store: delete its keys in one revision and forget it. Refused, to be asked again, while it is being decided
    /// whose one of them is.
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

    /// The same when nobody said that it is over: these stores do not know it. That is enough only where its home is one of
    /// them, so that who does not know where a lease has gone cannot end it.
    pub fn lease_end_denied(
        &mut self,
        wall: WallMicros,
        id: LeaseId,
        denied: &[Slot],
    ) -> Result<Revision, EngineError> {
        match self.leases.adopted_from(id) {
            Some(home) if !denied.contains(&home) => {
                Err(NotOwned { key: Key::from(format!("lease {id}").as_str()), epoch: 0 }.into())
            }
            _ => self.lease_end(wall, id),
        }
    }

    // ---- a home that goes away

    /// Leases whose home is here and is to go to an heir, at most `max` at a time; see [`crate::lease::HandedLease`]. Those
    /// that are answered are served no more; only with `begin` any that were until now.
    pub fn lease_hand_over(&mut self, max: usize, begin: bool) -> Vec<HandedLease> {
        let (leases, fresh) = self.leases.hand_over(max, begin);
        fresh.into_iter().for_each(|id| self.log_lease(id));
        leases
    }

    /// How many leases have or had their home here and are not handed over.
    #[must_use]
    pub fn leases_left(&self) -> usize {
        self.leases.left()
    }

    /// At the heir: the lease has its home here now.
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

    /// At the home before: the heir has the lease, and all stores that know it know that.
    pub fn lease_handed(&mut self, id: LeaseId, heir: Slot) {
        if self.leases.handed(id, heir) {
            self.log_lease(id);
        }
    }

    /// Leases that were adopted from one of these stores, at most `max`.
    #[must_use]
    pub fn leases_adopted(&self, homes: &[Slot], max: usize) -> Vec<AdoptedLease> {
        self.leases.adopted(homes, max)
    }

    /// The end of a lease waits for its keys to have one owner who can delete them.
    fn lease_waits(&self, id: LeaseId) -> Result<(), EngineError> {
        match self.leases.keys(id) {
            Some(keys) if !self.space.units.is_empty() => Ok(self.keys_wait(&keys)?),
            _ => Ok(()),
        }
    }

    /// At the home: nobody holds keys of it any more.
    pub fn lease_forget(&mut self, id: LeaseId) {
        if self.leases.forget(id) {
            self.log_lease(id);
        }
    }

    /// At the home: leases that are over and wait for other stores.
    #[must_use]
    pub fn leases_ended(&self) -> Vec<EndedLease> {
        self.leases.ended()
    }

    /// Keys of a lease here, sorted; `None` when it is unknown. Refused, to be asked again, while one of them is frozen, or
    /// sealed and not opened: then it is on no store's list; and for the same reason by a map that is older than the one by
    /// which one went.
    pub fn lease_keys(&self, id: LeaseId, generation: Option<u64>) -> Result<Option<Vec<Key>>, NotOwned> {
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

    fn delete_leased(&mut self, wall: WallMicros, keys: &[Key]) -> Revision {
        let deleted = self.applier(wall, Revision::ZERO).delete_keys(keys);
        deleted.unwrap_or_else(|| self.current_all())
    }
}
