//! A cluster under load is upgraded in the order of docs/operations.md, changed, rolled back in the reverse order, and
//! upgraded again.

use std::path::Path;

use anyhow::ensure;
use kindred_tests::scenario::report;
use serde_json::json;

use crate::upgrade::{
    builds::{Build, Builds},
    cluster::{Cluster, DEFAULT, LIMIT, PAIR, SINGLE, Store},
    faults::Struck,
    load::Load,
};

/// What is upgraded at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The members of the store with a standby, the standby first.
    Pair,
    /// A store without a standby.
    Default,
    Single,
    Meta,
    Router(usize),
}

/// The order of docs/operations.md; a rollback takes it from behind.
const ORDER: [Part; 6] =
    [Part::Pair, Part::Single, Part::Default, Part::Meta, Part::Router(0), Part::Router(1)];

struct Rolling {
    cluster: Cluster,
    load: Load,
    /// The store of configmaps, which move.
    configmaps: &'static str,
    steps: usize,
}

/// The scenario.
pub async fn run(dir: &Path, builds: &Builds) -> anyhow::Result<()> {
    let cluster = Cluster::start(dir, builds, Build::Previous).await?;
    let addresses: Vec<String> = cluster.routers.iter().map(|router| router.address.clone()).collect();
    let load = Load::start(&addresses).await?;
    load.enough().await?;
    let mut all = Rolling { cluster, load, configmaps: DEFAULT, steps: 0 };
    all.roll(Build::Current, ORDER).await?;
    all.change(SINGLE, "fsync").await?;
    let mut back = ORDER;
    back.reverse();
    all.roll(Build::Previous, back).await?;
    all.change(PAIR, "buffered").await?;
    all.roll(Build::Current, ORDER).await?;
    all.load.enough().await?;
    let done = all.load.finish(dir).await?;
    report(&format!("upgrade rolling steps={} {done}", all.steps));
    Ok(())
}

impl Rolling {
    async fn roll(&mut self, build: Build, order: [Part; 6]) -> anyhow::Result<()> {
        let short = self.load.leases.short(self.steps % 2).await?;
        for part in order {
            match part {
                Part::Pair => self.pair(build).await?,
                Part::Single => self.alone(self.cluster.single.clone(), SINGLE, build).await?,
                Part::Default => self.alone(self.cluster.default.clone(), DEFAULT, build).await?,
                Part::Meta => {
                    let meta = self.cluster.meta.server.clone();
                    self.step("the meta store", Struck::Nobody, build, meta.change(build)).await?;
                }
                Part::Router(router) => {
                    let server = self.cluster.routers[router].server.clone();
                    let name = format!("router {router}");
                    self.step(&name, Struck::Router, build, server.change(build)).await?;
                }
            }
        }
        self.cluster.all_of(build).await?;
        self.load.leases.is_over(&short).await
    }

    async fn step(
        &mut self,
        name: &str,
        struck: Struck,
        build: Build,
        step: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        self.steps += 1;
        let name = format!("step {}, {name} to the {build:?} build", self.steps);
        let cluster = &self.cluster;
        self.load
            .during(&name, struck, async {
                step.await?;
                cluster.in_sync().await.map(drop)
            })
            .await
    }

    /// As docs/high-availability.md has it: the standby, a handover to it, and the former primary.
    async fn pair(&mut self, build: Build) -> anyhow::Result<()> {
        let [primary, standby] = self.cluster.in_sync().await?;
        self.step("the standby", Struck::Nobody, build, standby.server.change(build)).await?;
        let admin = self.cluster.routers[self.steps % 2].admin.clone();
        self.step("the handover and the former primary", Struck::Nobody, build, async {
            primary.server.install(build).await?;
            admin.ok("POST", "/api/v1/failover", &json!({ "store": PAIR })).await?;
            primary.server.is_of(build).await
        })
        .await?;
        let [serves, _] = self.cluster.in_sync().await?;
        ensure!(serves.url == standby.url, "{} serves, not the former standby", serves.url);
        Ok(())
    }

    async fn alone(&mut self, store: Store, name: &'static str, build: Build) -> anyhow::Result<()> {
        let mut kinds = vec!["/registry/events/", "/registry/jobs/"];
        kinds.extend(match name {
            SINGLE => ["/registry/leases/", "/registry/deployments/"].iter(),
            _ => ["/registry/services/"].iter(),
        });
        if self.configmaps == name {
            kinds.push("/registry/configmaps/");
        }
        self.step(&format!("store {name}"), Struck::Kinds(kinds), build, store.server.change(build)).await
    }

    /// A Kind moves to a store, and another gets another durability. Both builds know these.
    async fn change(&mut self, to: &'static str, durability: &str) -> anyhow::Result<()> {
        self.steps += 1;
        self.configmaps = to;
        let name = format!("step {}, changes", self.steps);
        let [one, two] = [0, 1].map(|router| self.cluster.routers[router].admin.clone());
        self.load
            .during(&name, Struck::Nobody, async {
                for id in one.change("move", &json!({ "kind": "configmaps", "to": to })).await? {
                    two.until(id, LIMIT, |shown| shown["phase"] == "Switched").await?;
                    two.request(id, "complete").await?;
                    let over = one.until(id, LIMIT, |shown| shown["over"] == true).await?;
                    ensure!(over["phase"] == "Done", "{over}");
                }
                let path = "/api/v1/datapartitionconfigs/nodes";
                let mut nodes = two.ok("GET", path, &json!({})).await?;
                nodes["durability"] = json!(durability);
                nodes["historyMax"] = json!("10m");
                two.ok("PUT", path, &nodes).await.map(drop)
            })
            .await
    }
}
