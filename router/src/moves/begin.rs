//! A change of the configuration that moves keys: what is written to meta for it, in the transaction of the change.

use std::collections::BTreeMap;

use kindred_partition_config::ids::MoveId;
use kindred_partition_config::state::{Change, ClusterState};
use kindred_router_core::moves::record::MoveRecord;

use super::record_key;
use crate::meta::Next;
use crate::meta::client::{Expect, Write};

/// Why a change cannot begin its moves.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BeginError {
    /// Keys of it are moving already.
    #[error("{kind} is being moved by move {id}; wait until it is over, or abort it")]
    Moving {
        /// The Kind.
        kind: String,
        /// The move that is under way.
        id: u64,
    },
}

/// The change of `before` with a record for each Kind that moves, and the numbers of the moves. `known` are the records that there
/// are: if there are newer ones, the transaction does not commit, as their numbers are the same.
///
/// # Errors
/// When keys of the change are moving already.
pub fn begin(
    before: &ClusterState,
    change: &Change,
    known: &BTreeMap<MoveId, (MoveRecord, i64)>,
) -> Result<(Next, Vec<MoveId>), BeginError> {
    let mut next = Next::from(change.state.clone());
    let mut ids = Vec::new();
    let mut last = known.keys().next_back().map_or(0, |id| id.0);
    for (kind, transfers) in change.by_kind() {
        let named = || kind.as_ref().map_or_else(|| "the rest of the keys".to_owned(), ToString::to_string);
        let moving = known
            .values()
            .map(|(record, _)| record)
            .find(|record| transfers.iter().any(|transfer| record.concerns(&transfer.unit.range)));
        if let Some(record) = moving {
            return Err(BeginError::Moving { kind: named(), id: record.id.0 });
        }
        last += 1;
        let Some(record) = MoveRecord::new(MoveId(last), &transfers) else { continue };
        let record = record.after(before.said_of(kind.as_ref())).one_way_from(|store| before.is_etcd(store));
        next.expects.push(Expect { key: record_key(record.id), mod_revision: 0 });
        next.writes.push(Write::put(record_key(record.id), record.to_json()));
        ids.push(record.id);
    }
    Ok((next, ids))
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::ids::StoreName;
    use kindred_partition_config::parse::parse_config;

    use super::*;

    fn state() -> ClusterState {
        let config = "default: a\nstores: [{name: a, slot: 1}, {name: b, slot: 2}]\n\
                      partitions: [{metadata: {name: pods}, resource: pods, serviceGroupId: a}]\n";
        ClusterState::bootstrap(&parse_config(config).unwrap()).unwrap()
    }

    #[test]
    fn a_kind_moves_once_at_a_time() {
        let change = state().move_kind("pods", &StoreName("b".to_owned())).unwrap();
        let (next, ids) = begin(&state(), &change, &BTreeMap::new()).unwrap();
        assert_eq!(ids, [MoveId(1)]);
        let record = MoveRecord::from_json(next.writes[0].value.as_ref().unwrap()).unwrap();
        assert_eq!(record.before.unwrap().configs, state().configs);
        assert_eq!(next.state.map, state().map, "the map changes when the move is decided");
        assert_eq!(next.expects, [Expect { key: "/kindred/moves/1".to_owned(), mod_revision: 0 }]);
        let record = MoveRecord::from_json(next.writes[0].value.as_ref().unwrap()).unwrap();
        let known = BTreeMap::from([(record.id, (record.clone(), 7))]);
        let refused = begin(&state(), &change, &known).unwrap_err();
        assert!(refused.to_string().contains("by move 1"), "{refused}");
        let mut over = record;
        over.phase = kindred_router_core::moves::record::Phase::Done;
        let (_, ids) = begin(&state(), &change, &BTreeMap::from([(over.id, (over, 9))])).unwrap();
        assert_eq!(ids, [MoveId(2)]);
    }
}
