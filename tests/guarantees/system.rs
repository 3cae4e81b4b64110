//! The servers under test, and what the checker may assume about them.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use bytes::Bytes;
use kindred_checker::{
    Config, Domain, Gap,
    history::{Nanos, Revision},
};
use kindred_partition_config::{
    key::{Key, KeyRange},
    parse::parse_config,
    validate::{Validated, validate},
};
use kindred_proto::etcdserverpb::{
    RangeRequest, WatchCreateRequest, WatchRequest, watch_request::RequestUnion,
};
use kindred_tests::{
    client::Client,
    layouts::Layout,
    process::{Process, Spec},
    scenario::wait_for,
    servers::{Etcd, Shard},
    workload::{
        caller::Endpoints,
        keys::{self, KINDS},
    },
};
use serde::{Deserialize, Serialize};

const ANSWER_LIMIT: Duration = Duration::from_secs(120);
const ANY_PORT: &str = "127.0.0.1:0";
/// Short, so that a short run has periodic progress.
const PROGRESS_EVERY: &str = "--watch-progress-notify-interval=500ms";

/// The system to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    Etcd,
    /// One shard, without a router.
    Shard {
        dense: bool,
    },
    /// A process for each store of the layout, and routers.
    Cluster {
        layout: Layout,
        routers: usize,
        /// The number of threads for connections, in each router and shard.
        threads: usize,
        /// The mode of every Kind.
        durability: Durability,
    },
}

/// What the death of a shard loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// All its keys.
    None,
    /// Nothing that was visible, so no watch is canceled either.
    Fsync,
}

impl Durability {
    fn flag(self) -> String {
        let mode = match self {
            Self::None => "none",
            Self::Fsync => "fsync",
        };
        format!("--durability={mode}")
    }
}

/// What the checker may assume. It is stored with a failed history, so that the history can be checked again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assumptions {
    pub order: Order,
    /// Whether some Kind is on several stores.
    pub spread: bool,
    /// Each gap has a Kind prefix, the last durable revision, and the first revision after the restart.
    pub gaps: Vec<(String, i64, i64)>,
    /// The prefixes of the Kinds whose stores the fault affected. Only these may be slow (R17).
    #[serde(default)]
    pub struck: Vec<String>,
}

/// kube-apiserver stops reading from its watch cache for a Kind whose watch is this far behind (R17).
const BEHIND_MAX: Nanos = Nanos(3_000_000_000);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    Etcd,
    /// One counter as in etcd, but otherwise kindred's stricter rules.
    Dense,
    PerKind,
}

impl Assumptions {
    pub fn of(target: Target) -> Self {
        let order = match target {
            Target::Etcd => Order::Etcd,
            Target::Shard { dense: true } => Order::Dense,
            Target::Shard { dense: false } | Target::Cluster { .. } => Order::PerKind,
        };
        let spread = matches!(target, Target::Cluster { layout, .. } if layout.is_spread());
        Self { order, spread, gaps: Vec::new(), struck: Vec::new() }
    }

    pub fn config(&self) -> Config {
        let base = match self.order {
            Order::Etcd => Config::etcd(),
            Order::Dense => Config {
                prev_kv_compactable: false,
                prev_kv_late: false,
                created_above_start: false,
                progress_below_start: false,
                ..Config::etcd()
            },
            Order::PerKind => {
                Config::kindred(KINDS.iter().map(|kind| kindred_checker::Key::from(kind.prefix)))
            }
        };
        let gaps = self.gaps.iter().map(|(prefix, durable, restart)| Gap {
            domain: Domain(kindred_checker::Key::from(prefix.as_str())),
            durable: Revision(*durable),
            restart: Revision(*restart),
        });
        let latency_exempt = self
            .struck
            .iter()
            .map(|prefix| base.domain(&kindred_checker::Key::from(prefix.as_str())))
            .collect();
        let latency_max = (self.order != Order::Etcd).then_some(BEHIND_MAX);
        Config { gaps: gaps.collect(), split_delete_ranges: self.spread, latency_max, latency_exempt, ..base }
    }
}

/// The running servers.
#[derive(Debug)]
pub struct System {
    /// Where clients connect.
    pub endpoints: Arc<Endpoints>,
    _etcd: Option<Etcd>,
    shards: Vec<(String, Shard)>,
    /// The configuration of a cluster; none for other systems.
    valid: Option<Validated>,
    routers: Vec<Process>,
}

impl System {
    /// Starts fresh servers.
    ///
    /// # Errors
    /// If one of them does not start.
    pub async fn start(dir: &Path, target: Target) -> anyhow::Result<Self> {
        match target {
            Target::Etcd => {
                let etcd = Etcd::start(dir, "etcd").await?;
                let endpoints = Endpoints::over_tcp(vec![etcd.address.clone()]);
                Ok(Self {
                    endpoints,
                    _etcd: Some(etcd),
                    shards: Vec::new(),
                    valid: None,
                    routers: Vec::new(),
                })
            }
            Target::Shard { dense } => {
                let revisions = if dense { "--revisions=dense" } else { "--revisions=hlc" };
                let flags = [revisions.to_owned(), PROGRESS_EVERY.to_owned()];
                let shard = Shard::start(dir, "shard", &flags).await?;
                let endpoints = Endpoints::over_tcp(vec![shard.address.clone()]);
                let shards = vec![("shard".to_owned(), shard)];
                Ok(Self { endpoints, _etcd: None, shards, valid: None, routers: Vec::new() })
            }
            Target::Cluster { layout, routers, threads, durability } => {
                Self::cluster(dir, layout, routers, threads, durability).await
            }
        }
    }

    async fn cluster(
        dir: &Path,
        layout: Layout,
        routers: usize,
        threads: usize,
        durability: Durability,
    ) -> anyhow::Result<Self> {
        let threads = format!("--threads={threads}");
        let text = layout.config(&keys::placed())?.to_string();
        let mut shards = Vec::new();
        let config = parse_config(&text)?;
        let valid = validate(&config).map_err(|errors| anyhow::anyhow!("{errors:?}"))?;
        for store in config.stores {
            let name = store.name.0;
            let slot = store.slot.with_context(|| format!("store {name} has no slot"))?;
            let (of_name, of_slot) = (format!("--name={name}"), format!("--slot={slot}"));
            let flags = [of_name, of_slot, PROGRESS_EVERY.to_owned(), threads.clone(), durability.flag()];
            let shard = Shard::start(dir, &name, &flags).await?;
            shards.push((name, shard));
        }
        let file = dir.join("partitions.yaml");
        std::fs::write(&file, text)?;
        let mut args = vec![
            format!("--listen={ANY_PORT}"),
            format!("--admin={ANY_PORT}"),
            format!("--config={}", file.display()),
            threads,
        ];
        args.extend(shards.iter().map(|(name, shard)| format!("--store={name}={}", shard.address)));
        let (mut processes, mut endpoints) = (Vec::new(), Vec::new());
        for index in 0..routers {
            let spec = Spec::router(&format!("router{index}"), args.clone())?;
            let mut process = Process::start(dir, spec).await?;
            let address = process.ready_field("listen")?.trim_start_matches("http://").to_owned();
            process.set_arg("--listen", &address);
            endpoints.push(address);
            processes.push(process);
        }
        for endpoint in &endpoints {
            let client = Client::connect(endpoint).await?;
            for kind in &KINDS {
                serves(&client, kind.prefix).await?;
            }
        }
        Ok(Self {
            endpoints: Endpoints::over_tcp(endpoints),
            _etcd: None,
            shards,
            valid: Some(valid),
            routers: processes,
        })
    }

    /// Kills a router with `kill -9` and starts it again.
    ///
    /// # Errors
    /// If the router does not come back.
    pub async fn restart_router(&mut self, index: usize) -> anyhow::Result<()> {
        let router = self.routers.get_mut(index).context("no such router")?;
        router.kill()?;
        router.restart().await
    }

    /// Kills the shard that has all keys of this Kind with `kill -9`, and starts it again without its data. Returns the
    /// first revision of the new process. Nothing below it can be read any more.
    ///
    /// # Errors
    /// If the shard does not come back.
    pub async fn restart_shard(&mut self, kind: usize) -> anyhow::Result<Revision> {
        let store = KINDS[kind].default_store;
        let (_, shard) = self.shards.iter_mut().find(|(name, _)| name == store).context("no such store")?;
        shard.process.kill()?;
        shard.process.restart().await?;
        first_revision(&shard.address, KINDS[kind].prefix).await
    }

    /// Kills a shard that loses nothing with `kill -9`, and starts it again. Returns the prefixes of the Kinds that it
    /// has keys of.
    ///
    /// # Errors
    /// If the shard does not come back.
    pub async fn restart_durable_shard(&mut self, index: usize) -> anyhow::Result<Vec<String>> {
        let (name, shard) = self.shards.get_mut(index).context("no such shard")?;
        shard.process.kill()?;
        shard.process.restart().await?;
        let name = name.clone();
        self.kinds_on(&name)
    }

    /// The indexes of the shards that have a Kind.
    pub fn used(&self) -> anyhow::Result<Vec<usize>> {
        let mut used = Vec::new();
        for (index, (name, _)) in self.shards.iter().enumerate() {
            if !self.kinds_on(name)?.is_empty() {
                used.push(index);
            }
        }
        Ok(used)
    }

    /// The prefixes of the Kinds of which a shard has something.
    fn kinds_on(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let Some(valid) = &self.valid else { bail!("no configuration says what is on a shard") };
        let is_there = |prefix: &&str| {
            let stores = valid.map.stores_of(&KeyRange::prefix(Key::copy_from(prefix.as_bytes())));
            stores.iter().any(|at| valid.stores[usize::from(at.0)].name.0 == *name)
        };
        Ok(KINDS.iter().map(|kind| kind.prefix).filter(is_there).map(str::to_owned).collect())
    }
}

/// Waits until a router reaches the store of these keys.
async fn serves(client: &Client, prefix: &str) -> anyhow::Result<()> {
    let request =
        RangeRequest { key: Bytes::copy_from_slice(prefix.as_bytes()), limit: 1, ..Default::default() };
    wait_for(&format!("the store of {prefix}"), ANSWER_LIMIT, || {
        let (mut kv, request) = (client.kv.clone(), request.clone());
        async move { Ok(kv.range(request).await.ok()) }
    })
    .await?;
    Ok(())
}

/// The first revision of a Kind after a restart. A watch from revision 2 lies in the Kind's gap (R10), which begins at
/// 0 here, and is canceled with the end of the gap. A watch from revision 1 would not be, as there is nothing before it
/// that it could have missed.
async fn first_revision(address: &str, prefix: &str) -> anyhow::Result<Revision> {
    let mut client = Client::connect(address).await?;
    let key = Bytes::from(format!("{prefix}a"));
    let create = WatchCreateRequest { key, start_revision: 2, ..Default::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::StreamExt::chain(tokio_stream::iter([create]), tokio_stream::pending());
    let reading = async {
        let mut answers = client.watch.watch(requests).await?.into_inner();
        while let Some(answer) = answers.message().await? {
            if answer.canceled {
                return Ok(Revision(answer.compact_revision));
            }
        }
        bail!("the stream ended")
    };
    tokio::time::timeout(ANSWER_LIMIT, reading).await.context("no answer of a restarted shard")?
}
