//! Makes the writes to meta that begin the moves of a configuration change; they go into the transaction of the change.

use std::collections::BTreeMap;

use kindred_partition_config::ids::MoveId;
use kindred_partition_config::state::{Change, ClusterState, StoreState};
use kindred_router_core::moves::record::MoveRecord;
use kindred_router_core::parts::store_ix;

use super::keys::record_key;
use super::units::UnitStores;
use crate::meta::Next;
use crate::meta::client::{Expect, Write};

/// The new state for `change`, with a record for each Kind that moves, and the numbers of these moves. The numbers are
/// above all of `known` (the records in meta), `before.last_move`, and `used` (from [`used_numbers`]), so none is used
/// again. With `hold` they wait for an operator before they switch.
#[must_use]
pub fn begin(
    before: &ClusterState,
    change: &Change,
    known: &BTreeMap<MoveId, (MoveRecord, i64)>,
    used: u64,
    hold: bool,
) -> (Next, Vec<MoveId>) {
    let mut next = Next::from(change.state.clone());
    let mut ids = Vec::new();
    let of_records = known.keys().next_back().map_or(0, |id| id.0);
    let mut last = of_records.max(used).max(before.last_move);
    for (kind, transfers) in change.by_kind() {
        last += 1;
        let Some(record) = MoveRecord::new(MoveId(last), &transfers) else { continue };
        let record = record
            .held(hold)
            .after(before.said_of(kind.as_ref()))
            .one_way_from(|store| before.is_etcd(store));
        next.expects.push(Expect { key: record_key(record.id), mod_revision: 0 });
        next.writes.push(Write::put(record_key(record.id), record.to_json()));
        next.state.last_move = last;
        ids.push(record.id);
    }
    (next, ids)
}

/// A number at or above that of every move that any shard has heard of, including moves whose records meta has lost. If
/// a shard that keys move from or to does not answer, the number is at least the present time in milliseconds, which is
/// above all real ones.
pub async fn used_numbers(router: &impl UnitStores, change: &Change) -> u64 {
    if change.transfers.is_empty() {
        return 0;
    }
    let there =
        change.state.stores.iter().enumerate().filter(|(_, store)| store.state != StoreState::Removed);
    let asked = there.filter_map(|(at, _)| {
        let at = kindred_partition_config::map::StoreIdx(u16::try_from(at).ok()?);
        let store = store_ix(at);
        (router.knows(store) && router.is_shard(store)).then_some((at, store))
    });
    let answers =
        asked.map(async |(at, store)| (at, router.list(store).await.map(|listed| listed.highest_move)));
    let mut highest = 0;
    for (at, answer) in futures_util::future::join_all(answers).await {
        match answer {
            Ok(number) => highest = highest.max(number),
            Err(status) if change.transfers.iter().any(|of| of.from == at || of.to == at) => {
                tracing::info!(%status, "a store of a move cannot be asked for its moves: the number is the time");
                highest = highest.max(u64::try_from(router.since_1970().as_millis()).unwrap_or(0));
            }
            Err(_) => {}
        }
    }
    highest
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
    fn a_change_begins_a_move_of_each_kind() {
        let change = state().move_kind("pods", &StoreName("b".to_owned())).unwrap();
        let (next, ids) = begin(&state(), &change, &BTreeMap::new(), 0, false);
        assert_eq!((ids, next.state.last_move), (vec![MoveId(1)], 1));
        let record = MoveRecord::from_json(next.writes[0].value.as_ref().unwrap()).unwrap();
        assert_eq!(record.before.unwrap().configs, state().configs);
        assert_eq!(next.state.map, state().map, "the map changes when the move is decided");
        assert_eq!(next.expects, [Expect { key: "/kindred/moves/1".to_owned(), mod_revision: 0 }]);
    }

    /// A number is not used again if meta's records, the state or a shard remembers it.
    #[test]
    fn f16_no_number_is_used_again() {
        let change = state().move_kind("pods", &StoreName("b".to_owned())).unwrap();
        let (next, _) = begin(&state(), &change, &BTreeMap::new(), 0, false);
        let record = MoveRecord::from_json(next.writes[0].value.as_ref().unwrap()).unwrap();
        let known = BTreeMap::from([(record.id, (record, 9))]);
        assert_eq!(begin(&state(), &change, &known, 0, false).1, [MoveId(2)]);
        // The records are lost; the state is not.
        let mut later = state();
        later.last_move = next.state.last_move;
        assert_eq!(begin(&later, &change, &BTreeMap::new(), 0, false).1, [MoveId(2)]);
        // Everything is lost except what a shard knows.
        let (next, ids) = begin(&state(), &change, &BTreeMap::new(), 41, false);
        assert_eq!((ids, next.state.last_move), (vec![MoveId(42)], 42));
    }
}
