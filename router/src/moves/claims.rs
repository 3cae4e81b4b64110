//! Which moves a router coordinates: their claims in meta. The choice is made without I/O.

use std::collections::BTreeSet;
use std::time::Duration;

use kindred_partition_config::ids::MoveId;
use kindred_router_core::moves::record::MoveRecord;

use super::keys::{Progress, coordinator_key, progress, records};
use super::units::UnitStores;
use crate::meta::MetaError;
use crate::meta::client::{Entries, Expect, Write};
use crate::meta::store::MetaStore;

/// How long a coordinator may be silent before its claims expire.
pub const LEASE_TTL: Duration = Duration::from_secs(3);
/// How often the lease of the claims is renewed.
pub const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// The claims of one router.
#[derive(Debug)]
pub struct Claims {
    /// The router's name.
    router: String,
    /// The moves that it coordinates.
    running: BTreeSet<MoveId>,
}

/// A move to claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Due {
    pub record: MoveRecord,
    /// The record's mod revision in meta.
    pub version: i64,
    /// Whether meta has a claim of this router already.
    claimed: bool,
}

impl Claims {
    /// Those of the router with this name.
    #[must_use]
    pub fn new(router: String) -> Self {
        Self { router, running: BTreeSet::new() }
    }

    /// The moves to claim: those that are not over and that no router coordinates. A claim of this router for a move
    /// that it does not coordinate counts for nothing: its coordinator has failed, or meta has lost its last writes and
    /// has the claim again.
    #[must_use]
    pub fn due(&self, entries: &Entries) -> Vec<Due> {
        let open = records(entries)
            .into_values()
            .filter(|(record, _)| !record.phase.is_over() && !self.running.contains(&record.id));
        open.filter_map(|(record, version)| {
            let claimed = entries.keys.contains_key(&coordinator_key(record.id));
            let ours = claimed && progress(entries, record.id).is_some_and(|of| of.router == self.router);
            (!claimed || ours).then_some(Due { record, version, claimed })
        })
        .collect()
    }

    /// A coordinator of this router has begun.
    pub fn began(&mut self, id: MoveId) {
        self.running.insert(id);
    }

    /// It has ended.
    pub fn ended(&mut self, id: MoveId) {
        self.running.remove(&id);
    }

    /// Claims a move under the lease of this router's claims; `false` if another router has it, or an earlier process of
    /// this one.
    ///
    /// # Errors
    /// When meta cannot be asked.
    pub async fn claim(
        meta: &impl MetaStore,
        router: &str,
        due: &Due,
        lease: i64,
    ) -> Result<bool, MetaError> {
        let progress = Progress { router: router.to_owned(), ..Progress::default() };
        let key = coordinator_key(due.record.id);
        let value = serde_json::to_vec(&progress).unwrap_or_default();
        let write = Write { lease, ..Write::put(key.clone(), value) };
        if due.claimed {
            return meta.commit_under(lease, write).await;
        }
        Ok(meta.commit(&[Expect { key, mod_revision: 0 }], vec![write]).await?.is_some())
    }
}

/// Renews a lease of claims; returns when it is lost.
pub async fn keep_alive(clock: &impl UnitStores, meta: &impl MetaStore, lease: i64) {
    let mut last = clock.now();
    while clock.now().saturating_sub(last) < LEASE_TTL {
        match meta.renew(lease).await {
            Ok(true) => last = clock.now(),
            Ok(false) => return,
            // It may have been renewed, and lives in any case until its time is over.
            Err(_) => {}
        }
        clock.pause(KEEP_ALIVE).await;
    }
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::ids::StoreName;
    use kindred_partition_config::parse::parse_config;
    use kindred_partition_config::state::ClusterState;
    use kindred_router_core::moves::record::Phase;

    use super::super::keys::record_key;
    use super::*;
    use crate::meta::client::Stored;

    /// Meta with one move in this phase, claimed by this router or by none.
    fn entries(phase: Phase, claimed_by: Option<&str>) -> Entries {
        let config = "default: a\nstores: [{name: a, slot: 1}, {name: b, slot: 2}]\n\
                      partitions: [{metadata: {name: pods}, resource: pods, serviceGroupId: a}]\n";
        let state = ClusterState::bootstrap(&parse_config(config).unwrap()).unwrap();
        let change = state.move_kind("pods", &StoreName("b".to_owned())).unwrap();
        let mut record = MoveRecord::new(MoveId(1), &change.transfers).unwrap();
        record.phase = phase;
        let stored = |value: Vec<u8>| Stored { value: value.into(), mod_revision: 7 };
        let mut all = Entries { revision: 9, ..Entries::default() };
        all.keys.insert(record_key(record.id), stored(record.to_json()));
        if let Some(router) = claimed_by {
            let progress = Progress { router: router.to_owned(), ..Progress::default() };
            all.keys.insert(coordinator_key(record.id), stored(serde_json::to_vec(&progress).unwrap()));
        }
        all
    }

    fn due(claims: &Claims, entries: &Entries) -> Vec<(u64, bool)> {
        claims.due(entries).iter().map(|due| (due.record.id.0, due.claimed)).collect()
    }

    #[test]
    fn a_move_is_due_unless_it_is_over_or_somebody_coordinates_it() {
        let mut claims = Claims::new("r1".to_owned());
        assert_eq!(due(&claims, &entries(Phase::Copying, None)), [(1, false)]);
        assert_eq!(due(&claims, &entries(Phase::Done, None)), []);
        assert_eq!(due(&claims, &entries(Phase::Copying, Some("r2"))), []);
        claims.began(MoveId(1));
        assert_eq!(due(&claims, &entries(Phase::Copying, None)), []);
        assert_eq!(due(&claims, &entries(Phase::Copying, Some("r1"))), []);
    }

    /// Seeds 4682, 8642 and 9104 of the simulation: the coordinator had finished the move, and the meta store came back
    /// with the move and the claim of before; or it was fenced, and its claim lived on with its lease.
    #[test]
    fn a_claim_of_this_router_without_a_coordinator_is_taken_up_again() {
        let mut claims = Claims::new("r1".to_owned());
        claims.began(MoveId(1));
        claims.ended(MoveId(1));
        assert_eq!(due(&claims, &entries(Phase::Completing, Some("r1"))), [(1, true)]);
    }
}
