//! Real clients against running servers: `etcdctl`, the `etcd-client` crate and raw streams. The suites also cover TLS,
//! backups, moves, and shards that die.
//!
//! `KINDRED_E2E` chooses the server. `kindred` runs `kindred up` and is the default, `shard` runs one shard alone, and
//! `etcd` tests these tests. Suites about several shards or about kindred's TLS flags need `kindred`.

mod adopt;
mod advise;
mod again;
mod auth;
mod backup;
mod backup_snapshot;
mod clients;
mod clocks;
mod cluster;
mod commands;
mod compaction_beside;
mod crash;
mod etcd_leases;
mod from_etcd;
mod frozen;
mod lease_homes;
mod leases;
mod leave;
mod many_units;
mod meta;
mod moves;
mod observed;
mod openapi;
mod ops;
mod quota;
mod replace;
mod replay;
mod slow_disk;
mod snapshots;
mod spans;
mod spread;
mod stalled;
mod tls;
mod to_etcd;
mod together;
mod unix;
mod up;
mod watchers;

use std::path::Path;

use anyhow::bail;
use kindred_tests::{
    client::Client,
    servers::{Etcd, Shard, Up},
};

/// The server under test.
pub enum Server {
    Etcd(Etcd),
    Shard(Shard),
    Up(Up),
}

impl Server {
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        let chosen = std::env::var("KINDRED_E2E").unwrap_or_else(|_| "kindred".to_owned());
        Ok(match chosen.as_str() {
            "kindred" => Self::Up(Up::start(dir, "kindred", &[]).await?),
            "shard" => Self::Shard(Shard::start(dir, "shard", &[]).await?),
            "etcd" => Self::Etcd(Etcd::start(dir, "etcd").await?),
            other => bail!("KINDRED_E2E={other} is none of kindred, shard, etcd"),
        })
    }

    pub fn address(&self) -> &str {
        match self {
            Self::Etcd(server) => &server.address,
            Self::Shard(server) => &server.address,
            Self::Up(server) => &server.address,
        }
    }

    pub async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(self.address()).await
    }
}
