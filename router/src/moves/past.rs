//! Deletes records of finished moves. The latest are kept, so that one can ask how a move ended. A record holds the
//! earlier configuration of its Kind, so keeping all of them would grow without bound.

use kindred_partition_config::ids::MoveId;

use super::keys::{coordinator_key, record_key, records, request_key};
use crate::meta::client::{Entries, Expect, Write};
use crate::meta::store::MetaStore;

/// The number of records that are kept.
const KEPT: usize = 50;
/// The number of records that one transaction deletes; etcd limits the operations of a transaction.
const AT_ONCE: usize = 32;

/// Deletes the oldest finished records, at most `AT_ONCE` of them. Any router may do so: the transaction compares
/// each record.
pub async fn forget(meta: &impl MetaStore, entries: &Entries) {
    let due = to_forget(entries);
    if due.is_empty() {
        return;
    }
    let expect =
        |(id, mod_revision): &(MoveId, i64)| Expect { key: record_key(*id), mod_revision: *mod_revision };
    let gone = |key: String| Write { value: None, ..Write::put(key, "") };
    let expects: Vec<_> = due.iter().map(expect).collect();
    let writes = due.iter().flat_map(|(id, _)| [gone(record_key(*id)), gone(request_key(*id))]).collect();
    match meta.commit(&expects, writes).await {
        Ok(Some(_)) => tracing::debug!(records = due.len(), "moves that were over long ago are forgotten"),
        // Another router was faster.
        Ok(None) => {}
        Err(error) => tracing::debug!(%error, "moves that were over long ago are not forgotten yet"),
    }
}

/// The oldest finished records beyond those that are kept, with their mod revisions. The record with the highest number
/// is never among them, so that new moves get higher numbers.
fn to_forget(entries: &Entries) -> Vec<(MoveId, i64)> {
    let is_over = |id: &MoveId, record: &kindred_router_core::moves::record::MoveRecord| {
        record.phase.is_over() && !entries.keys.contains_key(&coordinator_key(*id))
    };
    let over = records(entries).into_iter().filter(|(id, (record, _))| is_over(id, record));
    let over: Vec<_> = over.map(|(id, (_, version))| (id, version)).collect();
    let beyond = over.len().saturating_sub(KEPT);
    over.into_iter().take(beyond.min(AT_ONCE)).collect()
}

/// Whether a move that these entries do not contain was finished and deleted, so that an older copy of its record must
/// not revive it.
pub fn is_forgotten(entries: &Entries, id: MoveId) -> bool {
    let last = records(entries).keys().next_back().copied();
    last.is_some_and(|last| id < last) && !entries.keys.contains_key(&record_key(id))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kindred_partition_config::ids::StoreName;
    use kindred_partition_config::parse::parse_config;
    use kindred_partition_config::state::ClusterState;
    use kindred_router_core::moves::record::{MoveRecord, Phase};

    use super::super::begin::begin;
    use super::*;
    use crate::meta::client::Stored;

    fn state() -> ClusterState {
        let config = "default: a\nstores: [{name: a, slot: 1}, {name: b, slot: 2}]\n\
                      partitions: [{metadata: {name: pods}, resource: pods, serviceGroupId: a}]\n";
        ClusterState::bootstrap(&parse_config(config).unwrap()).unwrap()
    }

    fn stored(value: Vec<u8>, mod_revision: i64) -> Stored {
        Stored { value: value.into(), mod_revision }
    }

    /// Entries with records of these numbers, each with its number as mod revision.
    fn entries(moves: &[(u64, Phase)]) -> Entries {
        let change = state().move_kind("pods", &StoreName("b".to_owned())).unwrap();
        let record = |id: u64, phase| {
            let mut record = MoveRecord::new(MoveId(id), &change.transfers).unwrap();
            record.phase = phase;
            (record_key(MoveId(id)), stored(record.to_json(), i64::try_from(id).unwrap()))
        };
        let keys = moves.iter().map(|(id, phase)| record(*id, *phase)).collect();
        Entries { revision: 9, keys }
    }

    #[test]
    fn f30_the_oldest_moves_that_are_over_are_forgotten() {
        let mut moves: Vec<_> = (1..=60).map(|id| (id, Phase::Done)).collect();
        moves[1].1 = Phase::Switched;
        moves[4].1 = Phase::Aborted;
        let mut all = entries(&moves);
        // One move is open, so 59 are over, and one of these is still claimed.
        all.keys.insert(coordinator_key(MoveId(4)), stored(Vec::new(), 70));
        let ids: Vec<_> = to_forget(&all).iter().map(|(id, _)| id.0).collect();
        assert_eq!(ids, [1, 3, 5, 6, 7, 8, 9, 10]);
        assert!(to_forget(&all).iter().all(|(id, version)| i64::try_from(id.0) == Ok(*version)));
        for id in ids {
            all.keys.remove(&record_key(MoveId(id)));
        }
        assert_eq!(to_forget(&all), []);
        let many: Vec<_> = (1..=500).map(|id| (id, Phase::Done)).collect();
        assert_eq!(to_forget(&entries(&many)).len(), AT_ONCE);
    }

    #[test]
    fn f30_numbers_of_forgotten_moves_are_not_used_again() {
        let moves: Vec<_> = (1..=80).map(|id| (id, Phase::Done)).collect();
        let mut all = entries(&moves);
        while let [first, ..] = to_forget(&all)[..] {
            all.keys.remove(&record_key(first.0));
        }
        assert_eq!(all.keys.len(), KEPT);
        let change = state().move_kind("pods", &StoreName("b".to_owned())).unwrap();
        // Also with a state of an earlier version, which does not count moves.
        let begun = begin(&state(), &change, &records(&all), 0, false).1;
        assert_eq!(begun, [MoveId(81)]);
        let mut later = state();
        later.last_move = 80;
        assert_eq!(begin(&later, &change, &BTreeMap::new(), 0, false).1, [MoveId(81)]);
        assert!(is_forgotten(&all, MoveId(30)) && !is_forgotten(&all, MoveId(31)));
        assert!(!is_forgotten(&all, MoveId(81)), "it may be one that this router has not heard of");
        assert!(!is_forgotten(&Entries::default(), MoveId(1)));
    }
}
