//! Shards by a wall clock that the test sets.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use super::Shard;
use kindred_proto::shard_v1::{HelloRequest, shard_client::ShardClient};
use kindred_shard::{clock::WallClock, config::Options};

/// 2026-01-01 in microseconds.
pub const T0: u64 = 1_767_225_600_000_000;
pub const SECOND: u64 = 1_000_000;

/// A wall clock that shows what it is set to.
#[derive(Clone)]
pub struct Wall(Arc<AtomicU64>);

impl Wall {
    pub fn at(micros: u64) -> Self {
        Self(Arc::new(AtomicU64::new(micros)))
    }

    pub fn set(&self, micros: u64) {
        self.0.store(micros, Ordering::SeqCst);
    }

    fn clock(&self) -> WallClock {
        let shown = self.0.clone();
        WallClock::Other(Arc::new(move || UNIX_EPOCH + Duration::from_micros(shown.load(Ordering::SeqCst))))
    }
}

/// Starts a shard by this clock, with a durability for all Kinds or the usual one.
pub async fn start_in(dir: &Path, wall: &Wall, in_cluster: bool, durability: Option<&str>) -> Shard {
    let durability = durability.map(str::to_owned);
    let options = Options { data_dir: Some(dir.to_owned()), in_cluster, durability, ..Options::default() };
    Shard::changed(options, |settings| settings.wall_clock = wall.clock()).await
}

/// Makes the handshake of a router that has this time.
pub async fn hello(shard: &Shard, reference_micros: u64) {
    let mut client = ShardClient::new(shard.channel().await);
    client.hello(HelloRequest { reference_micros, ..HelloRequest::default() }).await.unwrap();
}
