//! Two routers and two shards, whose meta store is an etcd of three members. Towards the meta store the routers have
//! certificates of another authority than towards the shards.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use kindred_tests::{
    admin::Admin,
    certs::Authority,
    etcd_cluster::EtcdCluster,
    process::{Process, Spec},
    scenario::wait_for,
    servers::Shard,
};
use serde_json::{Value, json};

use crate::failover::members::LIMIT;

const CONFIG: &str = "default: a\nstores:\n- {name: a, slot: 1}\n- {name: b, slot: 2}\npartitions:\n\
                      - {metadata: {name: pods}, resource: pods, serviceGroupId: a}\n";
const CONFIGS: &str = "/api/v1/datapartitionconfigs";

/// What it took to change the state, at worst.
#[derive(Debug, Default, Clone, Copy)]
pub struct Took {
    /// Until the change was answered: a read, a compare-and-swap, and the watch of the router that made it.
    pub change: Duration,
    /// Until the other router had heard of it as well.
    pub heard: Duration,
    pub changes: usize,
}

pub struct Cluster {
    pub meta: EtcdCluster,
    pub stores: Authority,
    /// Where clients connect.
    pub routers: Vec<String>,
    admins: Vec<Admin>,
    made: usize,
    _processes: Vec<Process>,
    _shards: Vec<Shard>,
}

impl Cluster {
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        let meta = EtcdCluster::start(dir).await?;
        let stores = Authority::new(dir, "store-ca")?;
        let (of_shards, of_routers) = (stores.leaf("shard")?, stores.leaf("kindred-router")?);
        let towards_meta = meta.authority.leaf("kindred-router-meta")?;
        let config = dir.join("config.yaml");
        std::fs::write(&config, CONFIG)?;
        let mut flags = vec![
            "--listen=127.0.0.1:0".to_owned(),
            "--admin=127.0.0.1:0".to_owned(),
            format!("--config={}", config.display()),
            format!("--meta={}", meta.urls()),
            format!("--meta-trusted-ca-file={}", meta.authority.cert.display()),
            format!("--meta-cert-file={}", towards_meta.cert.display()),
            format!("--meta-key-file={}", towards_meta.key.display()),
            format!("--store-trusted-ca-file={}", stores.cert.display()),
            format!("--store-cert-file={}", of_routers.cert.display()),
            format!("--store-key-file={}", of_routers.key.display()),
        ];
        let mut shards = Vec::new();
        for (at, name) in ["a", "b"].into_iter().enumerate() {
            let own = [
                format!("--name={name}"),
                format!("--slot={}", at + 1),
                "--in-cluster".to_owned(),
                "--router-names=kindred-router".to_owned(),
                format!("--cert-file={}", of_shards.cert.display()),
                format!("--key-file={}", of_shards.key.display()),
                format!("--trusted-ca-file={}", stores.cert.display()),
            ];
            let shard = Shard::start(dir, name, &own).await?;
            flags.push(format!("--store={name}=https://{}", shard.address));
            shards.push(shard);
        }
        let (mut processes, mut routers, mut admins) = (Vec::new(), Vec::new(), Vec::new());
        for name in ["router-0", "router-1"] {
            let mut args = flags.clone();
            args.push(format!("--name={name}"));
            args.push(format!("--meta-cache={}", dir.join(format!("{name}.json")).display()));
            let spec = Spec::router(name, args)?;
            let process = Process::start(dir, spec).await?;
            let field =
                |name| anyhow::Ok(process.ready_field(name)?.trim_start_matches("http://").to_owned());
            routers.push(field("listen")?);
            admins.push(Admin::at(&field("admin")?));
            processes.push(process);
        }
        Ok(Self { meta, stores, routers, admins, made: 0, _processes: processes, _shards: shards })
    }

    /// Makes a config that moves nothing, at one router. Returns the answer, and how long it took.
    pub async fn change(&mut self) -> anyhow::Result<(u16, String, Duration)> {
        self.made += 1;
        let name = format!("extra{}", self.made);
        let config = format!("metadata: {{name: {name}}}\nresource: {name}.example.com\nserviceGroupId: a\n");
        let began = Instant::now();
        let (code, said) = self.turn(0).ask("POST", CONFIGS, &config).await?;
        Ok((code, said, began.elapsed()))
    }

    fn turn(&self, more: usize) -> &Admin {
        &self.admins[(self.made + more) % self.admins.len()]
    }

    /// Makes changes in turn at every router, until so much time is over, and each has made two. Every one must succeed,
    /// and come to the other router.
    pub async fn changes(&mut self, at_least: Duration) -> anyhow::Result<Took> {
        let (began, mut took) = (Instant::now(), Took::default());
        while began.elapsed() < at_least || took.changes < 2 * self.admins.len() {
            let asked = Instant::now();
            let (code, said, change) = self.change().await?;
            ensure!(code == 201, "change {} after {change:?}: {code} {said}", self.made);
            let path = format!("{CONFIGS}/extra{}", self.made);
            wait_for("the change at the other router", LIMIT, || async {
                Ok((self.turn(1).ask("GET", &path, "").await?.0 == 200).then_some(()))
            })
            .await?;
            took.change = took.change.max(change);
            took.heard = took.heard.max(asked.elapsed());
            took.changes += 1;
        }
        Ok(took)
    }

    /// Waits until a change succeeds again; returns how long that took.
    pub async fn changes_again(&mut self) -> anyhow::Result<Duration> {
        let began = Instant::now();
        loop {
            let (code, said, _) = self.change().await?;
            match code {
                201 => return Ok(began.elapsed()),
                503 if began.elapsed() < LIMIT => {}
                _ => anyhow::bail!("after {:?}: {code} {said}", began.elapsed()),
            }
        }
    }

    /// Moves pods to a store, and waits until the move is over. Returns how long it took.
    pub async fn moved(&mut self, to: &str) -> anyhow::Result<Duration> {
        self.made += 1;
        let began = Instant::now();
        let ids = self.turn(0).change("move", &json!({ "kind": "pods", "to": to })).await?;
        let id = *ids.first().context("pods move")?;
        let there = |shown: &Value| shown["phase"] == "Switched" && shown["goal"] == "there";
        let other = self.turn(1);
        other.until(id, LIMIT, there).await?;
        other.request(id, "complete").await?;
        let over = self.turn(0).until(id, LIMIT, |shown| shown["over"] == true).await?;
        ensure!(over["phase"] == "Done", "{over}");
        Ok(began.elapsed())
    }
}
