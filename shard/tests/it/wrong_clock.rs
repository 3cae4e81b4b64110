//! R3: a wall clock that is wrong for a while, at a start or while a shard runs.

use std::path::Path;

use crate::common::{clock::*, *};
use kindred_proto::shard_v1::shard_client::ShardClient;

const HOUR: u64 = 3_600 * SECOND;

async fn start(dir: &Path, wall: &Wall, in_cluster: bool) -> Shard {
    start_in(dir, wall, in_cluster, None).await
}

/// Does what the loop does at each tick.
async fn tick(shard: &Shard) {
    let tick = |core: &mut kindred_shard::core::Core| core.engine.progress_tick(core.clock.wall());
    shard.running.handle.inspect(tick).await.unwrap();
}

fn near(revision: i64, micros: u64) {
    assert!((revision >> 10).unsigned_abs().abs_diff(micros) < 30 * SECOND, "{revision} is not of {micros}");
}

#[tokio::test]
async fn f45_a_clock_that_is_not_confirmed_promises_nothing() {
    for has_data in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let wall = Wall::at(T0);
        if has_data {
            let shard = start(dir.path(), &wall, false).await;
            near(shard.client().await.put("/registry/pods/a", "1").await, T0);
            shard.stop().await;
        }
        wall.set(T0 + 120 * SECOND);
        let shard = start(dir.path(), &wall, true).await;
        tick(&shard).await;
        let refused =
            shard.client().await.put_request(put_request("/registry/pods/a", "2")).await.unwrap_err();
        assert!(refused.message().contains("clock"), "{refused:?}");
        hello(&shard, T0 + 7 * SECOND).await;
        tick(&shard).await;
        // The wall clock is set right: everything continues at once, at the right time.
        wall.set(T0 + 7 * SECOND);
        hello(&shard, T0 + 7 * SECOND).await;
        near(shard.client().await.put("/registry/pods/a", "3").await, T0 + 7 * SECOND);
        assert_eq!(shard.running.handle.refuses(), None);
        shard.stop().await;
        // No revision of the wrong time remains.
        let shard = start(dir.path(), &wall, false).await;
        near(shard.client().await.put("/registry/pods/a", "4").await, T0 + 7 * SECOND);
        shard.stop().await;
    }
}

#[tokio::test]
async fn f45_writes_go_on_when_a_clock_is_set_back() {
    let dir = tempfile::tempdir().unwrap();
    let wall = Wall::at(T0 + HOUR);
    let shard = start(dir.path(), &wall, false).await;
    let client = shard.client().await;
    let mut last = client.put("/registry/pods/a", "1").await;
    wall.set(T0);
    for _ in 0..100 {
        let next = client.put("/registry/pods/a", "2").await;
        assert!(next > last);
        last = next;
    }
    tick(&shard).await;
    drop(client);
    shard.stop().await;
    let shard = start(dir.path(), &wall, false).await;
    assert!(shard.client().await.put("/registry/pods/a", "3").await > last);
    shard.stop().await;
}

/// A router that asks for a revision far ahead moves neither the clock nor what the shard keeps of it.
#[tokio::test]
async fn f45_no_ceiling_is_raised_to_where_the_clock_may_not_follow() {
    let dir = tempfile::tempdir().unwrap();
    let wall = Wall::at(T0);
    let shard = start(dir.path(), &wall, false).await;
    let far = i64::try_from(T0 + HOUR).unwrap() << 10;
    let raise = kindred_proto::shard_v1::RaiseRequest {
        ranges: vec![kindred_proto::shard_v1::KeyRange {
            key: "/registry/pods/".into(),
            range_end: "/registry/pods0".into(),
        }],
        to: far,
        ..Default::default()
    };
    ShardClient::new(shard.channel().await).raise(raise).await.unwrap_err();
    near(shard.client().await.put("/registry/pods/a", "1").await, T0);
    let ceiling = shard.running.handle.inspect(|core| core.engine.ceiling()).await.unwrap();
    near(ceiling.get(), T0);
    shard.stop().await;
}
