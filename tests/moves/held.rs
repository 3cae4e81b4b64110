//! The state of the shards when all moves are over: each has only keys that it owns, and no unit is frozen or sealed.

use anyhow::{Context, ensure};
use bytes::Bytes;
use kindred_partition_config::state::ClusterState;
use kindred_proto::{
    etcdserverpb::RangeRequest,
    shard_v1::{UnitState, UnitsListRequest},
};
use kindred_tests::{client::Client, servers::Up, workload::keys::KINDS};
use kindred_wire::protocol::NOT_OWNED;

/// The key of the cluster's state in the meta store.
const STATE: &str = "/kindred/state";

/// Checks that every unit record of every shard is settled, and that each key is on the store that the map in the meta
/// store names. Returns the number of keys.
///
/// # Errors
/// If one of these does not hold.
pub async fn settled(up: &Up) -> anyhow::Result<u64> {
    let stores = up.stores()?;
    let meta =
        Client::as_router(up.addresses("meta")?.first().context("a meta store")?, &up.secret()).await?;
    let state = RangeRequest { key: Bytes::from_static(STATE.as_bytes()), ..Default::default() };
    let state = meta.kv.clone().range(state).await?.into_inner().kvs;
    let state = ClusterState::from_json(&state.first().context("a state")?.value)?;
    let mut keys = 0;
    for (name, address) in &stores {
        let client = Client::as_router(address, &up.secret()).await?;
        for record in client.units.clone().list(UnitsListRequest {}).await?.into_inner().records {
            let state = UnitState::try_from(record.state)?;
            ensure!(matches!(state, UnitState::Owned | UnitState::Gone), "store {name} still has {record:?}");
        }
        for kind in &KINDS {
            let mut end = kind.prefix.as_bytes().to_vec();
            if let Some(last) = end.last_mut() {
                *last += 1;
            }
            let all =
                RangeRequest { key: kind.prefix.into(), range_end: Bytes::from(end), ..Default::default() };
            let kvs = match client.kv.clone().range(all).await {
                Ok(answer) => answer.into_inner().kvs,
                // A store refuses a read of keys that it does not own at all.
                Err(status) if status.metadata().contains_key(NOT_OWNED) => continue,
                Err(status) => return Err(status.into()),
            };
            for kv in kvs {
                let owner = &state.store_name(state.map.store_of(&kv.key));
                let key = String::from_utf8_lossy(&kv.key).into_owned();
                ensure!(owner == name, "store {name} shows {key}, which is of store {owner}");
                keys += 1;
            }
        }
    }
    Ok(keys)
}
