//! The state at the end of a run: the owners, the open moves, and the keys with leases.

use std::rc::Rc;

use kindred_engine::engine::Engine;
use kindred_engine::ops::{Contents, RangeAnswer, RangeQuery, RevisionFilter};
use kindred_partition_config::ids::LeaseId;
use kindred_partition_config::key::{Key, KeyRange};
use kindred_partition_config::map::StoreIdx;
use kindred_partition_config::state::ClusterState;
use kindred_router::meta::STATE;
use kindred_router::moves::reconcile::held;
use kindred_router::moves::records;
use kindred_router_core::moves::reconcile::Report;
use kindred_router_core::moves::reconcile::repairs::elsewhere;
use kindred_router_core::parts::store_ix;
use kindred_router_core::plan::Placement as _;
use kindred_shard::convert::units as convert;

use crate::history::History;
use crate::meta::MetaStore;
use crate::shard::Shard;

pub fn note(history: &History, meta: &MetaStore, shards: &[Rc<Shard>]) {
    let entries = meta.entries();
    let Some(stored) = entries.keys.get(STATE) else {
        history.write().elsewhere_at_end.push("meta has no state".to_owned());
        return;
    };
    let state = ClusterState::from_json(&stored.value).expect("routers write states");
    let moves: Vec<_> = records(&entries).into_values().map(|(record, _)| record).collect();
    let report = |shard: &Rc<Shard>| {
        let records = shard.engine(|engine| engine.unit_records());
        let records = records.into_iter().filter_map(|record| held(convert::record(record))).collect();
        Report { store: StoreIdx(u16::try_from(shard.index.0).unwrap_or(0)), records }
    };
    let reports: Vec<Report> = shards.iter().filter(|shard| shard.runs()).map(report).collect();
    let record = &mut *history.write();
    for of in moves.iter().filter(|of| !of.phase.is_over()) {
        let ends = of.legs.iter().flat_map(|leg| [leg.from, leg.to]);
        let bad = ends.map(store_ix).any(|store| record.bad_stores.contains(&store));
        record.open_at_end.push((format!("{of:?}"), bad));
    }
    record.elsewhere_at_end = elsewhere(&state, &moves.iter().collect::<Vec<_>>(), &reports);
    let Some((_, routes)) = record.maps.last().cloned() else { return };
    let mut keys: Vec<Vec<u8>> = record.events.iter().map(|published| published.event.key.clone()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let range = KeyRange::Single(Key::copy_from(&key));
        let owner = routes.store_of(&key);
        let shard = &shards[owner.0];
        if !shard.runs() {
            record.elsewhere_at_end.push(format!(
                "store {} has {}, and is lost",
                owner.0,
                key.escape_ascii()
            ));
            continue;
        }
        let serves = shard.engine(|engine| engine.owns_to_write(&range, Some(routes.generation())).is_ok());
        let moving = moves.iter().any(|of| !of.phase.is_over() && of.concerns(&range));
        if !serves && !moving {
            let what = format!("store {} does not serve {}, which is its", owner.0, key.escape_ascii());
            record.elsewhere_at_end.push(what);
        }
        if let Some(lease) = shard.engine(|engine| leased(engine, range)) {
            record.leased_at_end.push((owner, key, lease));
        }
    }
}

/// The lease that a key carries.
fn leased(engine: &mut Engine, range: KeyRange) -> Option<LeaseId> {
    let query = RangeQuery {
        range,
        revision: None,
        limit: 0,
        sort: None,
        contents: Contents::Whole,
        count_only: false,
        filter: RevisionFilter::default(),
    };
    let RangeAnswer { kvs, .. } = engine.range(&query).ok()?;
    LeaseId::from_wire(kvs.first()?.lease())
}
