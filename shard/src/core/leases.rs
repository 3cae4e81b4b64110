//! Leases on the loop: their ids, their ends, and the watchers of these.

use std::collections::HashSet;

use kindred_engine::{engine::EndedLease, error::EngineError};
use kindred_partition_config::ids::{LeaseId, Revision, Slot};
use tokio::sync::mpsc;

use super::{Core, LEASE_OVERHEAD, WhenDurable};
use crate::etcd_status::KvError;

/// A watcher that wants to know which leases ended (R12).
pub(super) struct EndedWatcher {
    told: HashSet<LeaseId>,
    pub(super) sender: mpsc::Sender<(LeaseId, Vec<Slot>)>,
}

impl Core {
    /// Grants a lease with the given id, or with a new one: positive, unique, and with this shard's slot in its low
    /// bits.
    pub fn lease_grant(&mut self, id: Option<LeaseId>, ttl_s: i64) -> Result<(LeaseId, i64), KvError> {
        self.check_room(LEASE_OVERHEAD)?;
        self.check_lease_disk()?;
        self.applied += 1;
        let now = self.clock.mono();
        if let Some(id) = id {
            return Ok((id, self.engine.lease_grant(now, id, ttl_s)?));
        }
        loop {
            let id = self.new_lease_id();
            match self.engine.lease_grant(now, id, ttl_s) {
                // A client may have chosen this number.
                Err(EngineError::LeaseExists(_)) => {}
                granted => return Ok((id, granted?)),
            }
        }
    }

    fn new_lease_id(&mut self) -> LeaseId {
        let slots = i64::from(Slot::MAX) + 1;
        let micros = i64::try_from(self.clock.wall().0).unwrap_or(i64::MAX) & (i64::MAX >> 10);
        let now = micros * slots + i64::from(self.slot.get());
        self.lease_last = now.max(self.lease_last.saturating_add(slots));
        LeaseId(self.lease_last)
    }

    /// Renews a lease; returns its TTL. One that has expired is refused, so it ends here and now if nothing has ended it
    /// yet (R12).
    pub fn lease_keep_alive(&mut self, id: LeaseId) -> Result<i64, EngineError> {
        let now = self.clock.mono();
        let kept = self.engine.lease_keep_alive(now, id);
        if kept.is_err() && self.engine.lease_view(now, id, false).is_ok() {
            self.engine.lease_revoke(self.clock.wall(), id)?;
            self.ended_news = true;
        }
        kept
    }

    pub fn lease_revoke(&mut self, id: LeaseId) -> Result<(Revision, Vec<Slot>), KvError> {
        self.check_corrupt()?;
        self.check_lease_disk()?;
        self.check_clock()?;
        self.applied += 1;
        let ended = self.engine.lease_revoke(self.clock.wall(), id)?;
        self.ended_news = true;
        Ok(ended)
    }

    /// Inherits leases; see [`kindred_engine::engine::Engine::lease_inherit`]. After an error some may have been
    /// inherited.
    pub fn lease_inherit(&mut self, leases: &[(LeaseId, i64, Vec<Slot>)]) -> Result<(), KvError> {
        self.check_lease_disk()?;
        let now = self.clock.mono();
        for (id, granted_ttl_s, attached) in leases {
            self.engine.lease_inherit(now, *id, *granted_ttl_s, attached)?;
        }
        Ok(())
    }

    /// Deletes the keys here of a lease that ended at its home, or that none of the stores in `denied` knows.
    pub fn lease_end(&mut self, id: LeaseId, denied: &[Slot]) -> Result<Revision, KvError> {
        self.check_lease_disk()?;
        self.check_clock()?;
        let wall = self.clock.wall();
        Ok(match denied {
            [] => self.engine.lease_end(wall, id)?,
            denied => self.engine.lease_end_denied(wall, id, denied)?,
        })
    }

    /// Ends one expired lease. Returns whether more are due.
    pub fn lease_expire(&mut self) -> bool {
        let (wall, mono) = (self.clock.wall(), self.clock.mono());
        if self.engine.lease_deadline().is_none_or(|deadline| deadline > mono) {
            return false;
        }
        // One at a time, because a lease may hold thousands of keys.
        let more = self.engine.lease_expire(wall, mono, 1);
        self.ended_news = true;
        more
    }

    /// Sends every ended lease that waits for other stores, now and as they end. A watcher that cannot keep up is
    /// dropped and asks again.
    pub fn watch_ended(&mut self, sender: mpsc::Sender<(LeaseId, Vec<Slot>)>) {
        self.ended.push(EndedWatcher { told: HashSet::new(), sender });
        self.ended_news = true;
    }

    /// Reports ended leases once a restart would remember them (R12): otherwise keys of a lease that lives again could
    /// be deleted.
    pub(super) fn defer_ended(&mut self) {
        if std::mem::take(&mut self.ended_news) && !self.ended.is_empty() {
            let waiting = self.engine.leases_ended();
            self.when_durable(WhenDurable::Ended(waiting));
        }
    }

    /// Tells the watchers which leases ended.
    pub(crate) fn tell_ended(&mut self, waiting: &[EndedLease]) {
        self.ended.retain_mut(|watcher| {
            watcher.told.retain(|id| waiting.iter().any(|lease| lease.id == *id));
            waiting.iter().all(|lease| {
                !watcher.told.insert(lease.id)
                    || watcher.sender.try_send((lease.id, lease.attached.clone())).is_ok()
            })
        });
    }
}
