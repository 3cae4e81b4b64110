//! R9: how shards are told the durability modes of the Kinds.

use std::time::Duration;

use crate::support::fake::Fake;
use crate::support::{all_up, router_with};
use kindred_partition_config::model::Durability;
use kindred_proto::shard_v1 as pb;
use kindred_router::stores::modes::Modes;

/// Waits until a store was told the modes this often; returns all of them.
async fn told(store: &Fake, times: usize) -> Vec<pb::SetModesRequest> {
    let enough = async {
        while store.modes().len() < times {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), enough).await.unwrap();
    store.modes()
}

fn kinds(request: &pb::SetModesRequest) -> Vec<(&str, pb::Durability)> {
    request.modes.iter().map(|of| (std::str::from_utf8(&of.prefix).unwrap(), of.mode())).collect()
}

#[tokio::test]
async fn r9_a_shard_is_told_before_it_is_up_after_each_change_and_in_each_life() {
    let stores = [Fake::start(1).await, Fake::start(2).await];
    stores[1].keep_nothing(true);
    let [first, second] = stores.each_ref().map(|store| &store.url);
    let config = format!(
        "default: a\nstores:\n- {{name: a, slot: 1, endpoints: ['{first}']}}\n\
         - {{name: b, slot: 2, endpoints: ['{second}']}}\npartitions:\n\
         - {{metadata: {{name: pods}}, resource: pods, serviceGroupId: b, durability: fsync}}\n\
         - {{metadata: {{name: leases}}, resource: leases, serviceGroupId: b, durability: none}}\n\
         - {{metadata: {{name: nodes}}, resource: nodes, serviceGroupId: a}}\n"
    );
    let (bound, _drain, _channel) = router_with(&config, &[]).await;
    all_up(&bound).await;
    let expected = [("/registry/leases/", pb::Durability::None), ("/registry/pods/", pb::Durability::Fsync)];
    for store in &stores {
        let once = store.modes();
        assert_eq!((once.len(), once[0].generation, kinds(&once[0])), (1, 1, expected.to_vec()));
    }
    let state = |name: &str| {
        let store = bound.app.stores.iter().find(|store| store.name() == name).unwrap();
        store.told().get()
    };
    assert!(state("a").unmet.is_empty());
    let unmet = state("b").unmet.clone();
    let shown = (&unmet[0].prefix[..], unmet[0].wanted, unmet[0].has, unmet.len());
    assert_eq!(shown, (&b"/registry/pods/"[..], Some(Durability::Fsync), Some(Durability::None), 1));

    // In a new incarnation it is told again before it is up.
    stores[1].crash(stores[1].current());
    assert_eq!(kinds(&told(&stores[1], 2).await[1]), expected);

    // A change of the modes; an older configuration is ignored.
    let pods = bound.app.stores.modes().borrow().kinds[1].0.clone();
    bound.app.stores.set_modes(Modes {
        generation: 5,
        kinds: vec![(pods, Durability::Buffered)],
        history: vec![],
    });
    bound.app.stores.set_modes(Modes { generation: 4, ..Modes::default() });
    let changed = told(&stores[0], 2).await;
    assert_eq!(
        (changed[1].generation, kinds(&changed[1])),
        (5, vec![("/registry/pods/", pb::Durability::Buffered)])
    );
    assert_eq!(told(&stores[1], 3).await[2], changed[1]);
}
