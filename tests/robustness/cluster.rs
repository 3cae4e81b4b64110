//! The systems under test, and what happens to them while clients work.

use std::{path::Path, time::Duration};

use kindred_tests::{
    admin::Admin,
    servers::{Etcd, Shard, Up},
};
use serde_json::json;

const MOVE_LIMIT: Duration = Duration::from_secs(60);
/// From the start of the program until a fault: clients work by then.
const BEFORE: Duration = Duration::from_millis(1500);

/// What clients talk to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    Etcd,
    /// One shard, without a router.
    Shard {
        dense: bool,
    },
    /// A `kindred up`, with the Kind of the keys laid out as a configuration says.
    Up {
        layout: Layout,
        routers: usize,
    },
}

/// Where the keys of the Kind are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    Whole,
    Ranges,
    Ring,
}

impl System {
    pub const WHOLE: Self = Self::Up { layout: Layout::Whole, routers: 1 };
    pub const RANGES: Self = Self::Up { layout: Layout::Ranges, routers: 1 };
    pub const RING: Self = Self::Up { layout: Layout::Ring, routers: 1 };

    pub fn with_routers(self, routers: usize) -> Self {
        match self {
            Self::Up { layout, .. } => Self::Up { layout, routers },
            other => other,
        }
    }

    /// Whether the Kind is on several stores.
    pub fn spread(self) -> bool {
        matches!(self, Self::Up { layout: Layout::Ranges | Layout::Ring, .. })
    }

    /// Whether one router may answer below what another has shown: what a Kind on several stores has shown is remembered
    /// by each router for itself (R8).
    pub fn apart(self) -> bool {
        self.spread() && matches!(self, Self::Up { routers: 2.., .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The Kind moves to another store and back.
    Moves,
    /// `kill -9` of a shard of mode `fsync`, which starts again.
    Shard,
    /// `kill -9` of the second router, which starts again.
    Router,
}

impl Fault {
    /// How many seconds longer the clients work.
    pub fn takes(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Moves | Self::Shard | Self::Router => 3,
        }
    }
}

/// The running servers.
#[derive(Debug)]
pub struct Cluster {
    /// Where clients connect, one address for each router.
    pub endpoints: Vec<String>,
    up: Option<Up>,
    _etcd: Option<Etcd>,
    _shard: Option<Shard>,
}

impl Cluster {
    /// Starts fresh servers.
    ///
    /// # Errors
    /// If one of them does not start.
    pub async fn start(dir: &Path, system: System) -> anyhow::Result<Self> {
        match system {
            System::Etcd => {
                let etcd = Etcd::start(dir, "etcd").await?;
                let endpoints = vec![etcd.address.clone()];
                Ok(Self { endpoints, up: None, _etcd: Some(etcd), _shard: None })
            }
            System::Shard { dense } => {
                let revisions = if dense { "--revisions=dense" } else { "--revisions=hlc" };
                let shard = Shard::start(dir, "shard", &[revisions.to_owned()]).await?;
                let endpoints = vec![shard.address.clone()];
                Ok(Self { endpoints, up: None, _etcd: None, _shard: Some(shard) })
            }
            System::Up { layout, routers } => {
                let file = dir.join("kinds.yaml");
                let config = match layout {
                    Layout::Whole => include_str!("configs/whole.yaml"),
                    Layout::Ranges => include_str!("configs/ranges.yaml"),
                    Layout::Ring => include_str!("configs/ring.yaml"),
                };
                std::fs::write(&file, config)?;
                let flags = [format!("--config={}", file.display()), format!("--routers={routers}")];
                let up = Up::start(dir, "up", &flags).await?;
                let endpoints = up.addresses("listen")?;
                Ok(Self { endpoints, up: Some(up), _etcd: None, _shard: None })
            }
        }
    }

    /// Lets a fault happen while clients work.
    ///
    /// # Errors
    /// If a move fails, or there is no process to kill.
    pub async fn strike(&self, fault: Fault) -> anyhow::Result<()> {
        let Some(up) = &self.up else { return Ok(()) };
        if fault != Fault::None {
            tokio::time::sleep(BEFORE).await;
        }
        match fault {
            Fault::None => Ok(()),
            Fault::Moves => {
                for store in ["b", "a"] {
                    moved(&Admin::at(&up.admin), store).await?;
                }
                Ok(())
            }
            Fault::Shard => up.kill_shard("a"),
            Fault::Router => up.kill_router("router-2"),
        }
    }
}

/// Moves the Kind to a store, and waits until the move is over.
async fn moved(admin: &Admin, store: &str) -> anyhow::Result<()> {
    for id in admin.change("move", &json!({ "kind": "pods", "to": store })).await? {
        admin.until(id, MOVE_LIMIT, |shown| shown["phase"] == "Switched").await?;
        admin.request(id, "complete").await?;
        admin.until(id, MOVE_LIMIT, |shown| shown["over"] == true).await?;
    }
    Ok(())
}
