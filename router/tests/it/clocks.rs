//! R3: a store whose clock is wrong is not routed to, is reported, and comes back by itself.

use std::time::Duration;

use crate::support::fake::Fake;
use crate::support::{all_up, router_with, spread_config};
use kindred_proto::etcdserverpb as pb;
use kindred_router::run::Bound;
use tonic::Code;
use tonic::transport::Channel;

const HOUR: i64 = 3_600_000_000;

async fn world() -> (Vec<Fake>, Bound, kindred_transport::Drain, Channel) {
    let mut stores = Vec::new();
    for slot in 1..=3 {
        stores.push(Fake::start(slot).await);
    }
    let urls: Vec<_> = stores.iter().map(|store| store.url.clone()).collect();
    let (bound, drain, channel) = router_with(&spread_config(&urls, false), &[]).await;
    (stores, bound, drain, channel)
}

fn states(bound: &Bound) -> Vec<&'static str> {
    bound.app.stores.iter().map(|store| store.state().phase().word()).collect()
}

async fn until(bound: &Bound, expected: [&str; 3]) {
    let reached = async {
        while states(bound) != expected {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), reached).await;
    assert!(waited.is_ok(), "{:?} in place of {expected:?}", states(bound));
}

#[tokio::test]
async fn r3_a_store_is_skewed_as_long_as_its_clock_is_wrong() {
    let (stores, bound, drain, channel) = world().await;
    all_up(&bound).await;
    for wrong in [HOUR, -HOUR, 11_000_000] {
        stores[1].set_wall_offset(wrong);
        until(&bound, ["up", "skewed", "up"]).await;
        let request = pb::RangeRequest { key: "/registry/pods/k".into(), ..Default::default() };
        let refused = pb::kv_client::KvClient::new(channel.clone()).range(request).await.unwrap_err();
        let text = refused.message();
        assert!(
            refused.code() == Code::Unavailable && text.contains("\"s2\"") && text.contains("clock"),
            "{text}"
        );
        let offset = bound.app.stores.clocks().offset(kindred_router_core::store::StoreIx(1)).unwrap();
        assert!(offset.abs_diff(wrong) < 2_000_000, "{offset}");
        stores[1].set_wall_offset(0);
        until(&bound, ["up", "up", "up"]).await;
    }
    // If most clocks are off they count as right: no store is left out, and their time becomes the reference.
    stores.iter().for_each(|store| store.set_wall_offset(HOUR));
    let own = || u64::try_from(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap();
    let hear = async {
        while !stores.iter().all(|store| store.reference() > own() + 3_000_000_000) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), hear).await.expect("the reference follows most clocks");
    until(&bound, ["up", "up", "up"]).await;
    assert!(bound.app.stores.clocks().own_offset().unwrap() < -HOUR / 2);
    drain.kill();
}
