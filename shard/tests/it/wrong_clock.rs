//! R3: a wall clock that is wrong for a while, at a start or while a shard runs.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use crate::common::*;
use kindred_proto::shard_v1::{HelloRequest, shard_client::ShardClient};
use kindred_shard::{clock::WallClock, config::Options};

/// 2026-01-01 in microseconds.
const T0: u64 = 1_767_225_600_000_000;
const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;

/// A wall clock that shows what it is set to.
#[derive(Clone)]
struct Wall(Arc<AtomicU64>);

impl Wall {
    fn at(micros: u64) -> Self {
        Self(Arc::new(AtomicU64::new(micros)))
    }

    fn set(&self, micros: u64) {
        self.0.store(micros, Ordering::SeqCst);
    }

    fn clock(&self) -> WallClock {
        let shown = self.0.clone();
        WallClock::Other(Arc::new(move || UNIX_EPOCH + Duration::from_micros(shown.load(Ordering::SeqCst))))
    }
}

async fn start(dir: &Path, wall: &Wall, in_cluster: bool) -> Shard {
    let options = Options { data_dir: Some(dir.to_owned()), in_cluster, ..Options::default() };
    Shard::changed(options, |settings| settings.wall_clock = wall.clock()).await
}

/// Does what the loop does at each tick.
async fn tick(shard: &Shard) {
    let tick = |core: &mut kindred_shard::core::Core| core.engine.progress_tick(core.clock.wall());
    shard.running.handle.inspect(tick).await.unwrap();
}

/// Makes the handshake of a router that has the right time.
async fn hello(shard: &Shard, reference_micros: u64) {
    let mut client = ShardClient::new(shard.channel().await);
    client.hello(HelloRequest { reference_micros, ..HelloRequest::default() }).await.unwrap();
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
