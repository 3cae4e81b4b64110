//! A whole cluster: an etcd as its meta store, two routers, a default shard, and a store with a primary and standbys, whose
//! processes are started again whenever they end, as a supervisor does.

use std::{fs, path::Path, process::Command, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use kindred_proto::shard_v1::MemberRequest;
use kindred_tests::{
    admin::Admin,
    client::Client,
    etcdctl::Etcdctl,
    process::{Process, Spec},
    scenario::wait_for,
    servers::{Etcd, Shard},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::failover::members::LIMIT;

/// The store with standbys.
pub const STORE: &str = "pods";
const CLUSTER: &str = "--cluster-id=0x1ee7";
/// How often a supervisor looks after its process.
const LOOK: Duration = Duration::from_millis(20);

/// A router.
pub struct Router {
    _process: Process,
    pub client: Client,
    pub admin: Admin,
}

/// A member of the store, with its supervisor.
#[derive(Clone)]
pub struct Member {
    shard: Arc<tokio::sync::Mutex<Shard>>,
    pub url: String,
    /// Held while the member is to stay down.
    down: Arc<Mutex<bool>>,
}

impl Member {
    fn new(shard: Shard, stop: &CancellationToken) -> Self {
        let url = format!("http://{}", shard.address);
        let member = Self { shard: Arc::new(tokio::sync::Mutex::new(shard)), url, down: Arc::default() };
        let supervised = member.clone();
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move { supervised.supervise().await }));
        member
    }

    /// Starts the process again whenever it has ended. A standby that begins anew is ready only when it has a copy.
    async fn supervise(self) {
        loop {
            tokio::time::sleep(LOOK).await;
            if *self.down.lock() {
                continue;
            }
            let mut shard = self.shard.lock().await;
            if matches!(shard.process.is_running(), Ok(false)) {
                // What it waits for may not be there yet; then it ends, or goes on trying.
                let _ = shard.process.launch();
            }
        }
    }

    async fn pid(&self) -> anyhow::Result<String> {
        Ok(self.shard.lock().await.process.pid().context("the process has ended")?.to_string())
    }

    /// Sends a signal to the process.
    pub async fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let pid = self.pid().await?;
        ensure!(Command::new("kill").args([signal, &pid]).status()?.success(), "kill {signal} {pid}");
        Ok(())
    }

    /// Kills the process, and does not start it again before [`Member::up`].
    pub async fn kill(&self) -> anyhow::Result<()> {
        *self.down.lock() = true;
        self.shard.lock().await.process.kill()
    }

    /// The bytes that the log of mode `fsync` has written, if all of them are on disk.
    pub async fn on_disk(&self) -> anyhow::Result<Option<f64>> {
        let admin = Admin::at(&self.shard.lock().await.admin);
        let (_, text) = admin.ask("GET", "/metrics", "").await?;
        let of = |name: &str| {
            let mut lines = text.lines().filter(|line| line.starts_with(name) && line.contains("\"fsync\""));
            lines.next().and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        };
        let written = of("kindred_shard_wal_written_bytes_total").context(text.clone())?;
        Ok((of("kindred_shard_wal_pending_bytes") == Some(0.0)).then_some(written))
    }

    /// Starts the process again.
    pub fn up(&self) {
        *self.down.lock() = false;
    }
}

/// The cluster.
pub struct Cluster {
    meta: Etcd,
    pub routers: Vec<Router>,
    pub members: Vec<Member>,
    pub default: Shard,
    stop: CancellationToken,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Pods are kept by fsync, nodes buffered, and events by no disk; all of them are on the store with standbys.
pub fn config(default: &str, primary: &str) -> Value {
    let of = |name: &str, durability: &str| {
        json!({
            "metadata": { "name": name }, "resource": name, "serviceGroupId": STORE, "durability": durability,
        })
    };
    json!({
        "default": "default",
        "stores": [
            { "name": "default", "slot": 1, "endpoints": [format!("http://{default}")] },
            { "name": STORE, "slot": 2, "endpoints": [format!("http://{primary}")] },
        ],
        "partitions": [of("pods", "fsync"), of("nodes", "buffered"), of("events", "none")],
    })
}

impl Cluster {
    /// A cluster without standbys.
    pub async fn start(dir: &Path) -> anyhow::Result<Self> {
        let stop = CancellationToken::new();
        let meta = Etcd::start(dir, "meta").await?;
        let default = shard(dir, "default", "default", 1, &[]).await?;
        let first = shard(dir, "first", STORE, 2, &[]).await?;
        let file = dir.join("config.json");
        fs::write(&file, config(&default.address, &first.address).to_string())?;
        let members = vec![Member::new(first, &stop)];
        let mut cluster = Self { meta, routers: Vec::new(), members, default, stop };
        cluster.start_routers(dir, &["one", "two"], &[]).await?;
        Ok(cluster)
    }

    /// Starts so many standbys, says that the store is to have them, and waits until they are in sync.
    pub async fn add_standbys(&mut self, dir: &Path, names: &[&str], more: Value) -> anyhow::Result<()> {
        let primary = self.members[0].url.clone();
        for name in names {
            let standby = shard(dir, name, STORE, 2, &[format!("--standby-of={primary}")]).await?;
            self.members.push(Member::new(standby, &self.stop));
        }
        let urls: Vec<_> = self.members[1..].iter().map(|member| member.url.clone()).collect();
        self.set_standbys(&urls, more).await
    }

    /// Says that the store is to have standbys at these addresses.
    pub async fn set_standbys(&self, urls: &[String], more: Value) -> anyhow::Result<()> {
        let mut standby = json!({ "endpoints": urls });
        for (field, value) in more.as_object().into_iter().flatten() {
            standby[field] = value.clone();
        }
        let path = format!("/api/v1/servicegroups/{STORE}");
        let mut group = self.routers[0].admin.ok("GET", &path, &json!({})).await?;
        group["standby"] = standby;
        self.routers[0].admin.ok("PUT", &path, &group).await?;
        Ok(())
    }

    /// Keeps what the meta store has now, for [`Cluster::restore_meta`].
    pub async fn keep_meta(&self, dir: &Path) -> anyhow::Result<()> {
        let kept = dir.join("meta.db");
        let kept = kept.to_str().context("a path")?;
        Etcdctl::new(&self.meta.address).ok(&["snapshot", "save", kept]).await?;
        Ok(())
    }

    /// Ends every process, restores what [`Cluster::keep_meta`] kept, and starts all again; the routers have no cache.
    pub async fn restore_meta(&mut self, dir: &Path) -> anyhow::Result<()> {
        self.end_all().await?;
        self.meta = Etcd::restored(dir, "meta-back", &dir.join("meta.db")).await?;
        self.members.iter().for_each(Member::up);
        self.start_routers(dir, &["three", "four"], &[]).await
    }

    /// Loses the meta store, and starts every process again but that at `missing`. The routers have no cache, and the
    /// configuration of before any failover.
    pub async fn lose_meta(&mut self, dir: &Path, missing: Option<&str>) -> anyhow::Result<()> {
        let first = self.members[0].shard.lock().await.client().await?;
        let shown = first.standbys.clone().member(MemberRequest::default()).await?.into_inner();
        let lineage = shown.lineage.context("a member that belongs to the cluster")?;
        self.end_all().await?;
        let meta = if missing.is_none() { "meta-anew" } else { "meta-anew-again" };
        self.meta = Etcd::start(dir, meta).await?;
        let back = self.members.iter().filter(|member| Some(member.url.as_str()) != missing);
        back.for_each(Member::up);
        let first = self.members[0].url.trim_start_matches("http://");
        let mut config = config(&self.default.address, first);
        let standbys: Vec<_> = self.members[1..].iter().map(|member| &member.url).collect();
        config["stores"][1]["standby"] = json!({ "endpoints": standbys });
        fs::write(dir.join("config.json"), config.to_string())?;
        let names = if missing.is_none() { ["three", "four"] } else { ["five", "six"] };
        self.start_routers(dir, &names, &[format!("--lineage={lineage}")]).await
    }

    async fn end_all(&mut self) -> anyhow::Result<()> {
        self.routers.clear();
        for member in &self.members {
            member.kill().await?;
        }
        Ok(())
    }

    async fn start_routers(&mut self, dir: &Path, names: &[&str], flags: &[String]) -> anyhow::Result<()> {
        for name in names {
            self.routers.push(router(dir, name, &self.meta, &dir.join("config.json"), flags).await?);
        }
        Ok(())
    }

    /// The store as routers have it.
    pub async fn group(&self) -> anyhow::Result<Value> {
        self.routers[0].admin.ok("GET", &format!("/api/v1/servicegroups/{STORE}"), &json!({})).await
    }

    /// The store with its members, as a router sees them.
    pub async fn shown(&self) -> anyhow::Result<Value> {
        let stores = self.routers[0].admin.ok("GET", "/api/v1/stores", &json!({})).await?;
        let found = stores["stores"].as_array().into_iter().flatten().find(|store| store["name"] == STORE);
        found.cloned().context("the store")
    }

    /// Waits until all standbys are as they are to be, and so many are in sync. Returns the address of the primary.
    pub async fn in_sync(&self, standbys: usize) -> anyhow::Result<String> {
        self.until(standbys, true).await
    }

    /// Waits until so many standbys are in sync, although another is missing.
    pub async fn in_sync_of(&self, standbys: usize) -> anyhow::Result<String> {
        self.until(standbys, false).await
    }

    async fn until(&self, standbys: usize, well: bool) -> anyhow::Result<String> {
        let waited = wait_for("standbys in sync", LIMIT, || async {
            let group = self.group().await?;
            let in_sync = group["members"]["inSync"].as_array().map_or(0, Vec::len);
            let shown = self.shown().await?;
            let asked = shown["members"].is_array();
            let is = in_sync == standbys
                && shown["state"] == "up"
                && asked
                && shown["standbyTrouble"].is_null() == well;
            Ok(is.then(|| group["endpoints"][0].as_str().unwrap_or_default().to_owned()))
        });
        match waited.await {
            Ok(primary) => Ok(primary),
            Err(error) => Err(error.context(format!("{}\n{}", self.group().await?, self.shown().await?))),
        }
    }

    /// Waits until every router says that only an operator can go on.
    pub async fn waits_for_an_operator(&self) -> anyhow::Result<()> {
        for router in &self.routers {
            wait_for("the loss to be known", LIMIT, || async {
                let stores = router.admin.ok("GET", "/api/v1/stores", &json!({})).await?;
                Ok(stores.to_string().contains("--force").then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// Has a member serve by force.
    pub async fn force(&self, to: &str) -> anyhow::Result<()> {
        let body = json!({ "store": STORE, "to": to, "force": true });
        self.failover(&body).await.map(drop)
    }

    /// The member at an address.
    pub fn member(&self, url: &str) -> anyhow::Result<&Member> {
        self.members.iter().find(|member| member.url == url).with_context(|| format!("no member at {url}"))
    }

    /// The first member at another address.
    pub fn other(&self, url: &str) -> anyhow::Result<&Member> {
        self.members.iter().find(|member| member.url != url).context("no other member")
    }

    /// Plans a handover, and returns the milliseconds that the router says it took.
    pub async fn failover(&self, body: &Value) -> anyhow::Result<u64> {
        let answer = self.routers[0].admin.ok("POST", "/api/v1/failover", body).await?;
        answer["millis"].as_u64().with_context(|| answer.to_string())
    }
}

pub async fn shard(
    dir: &Path,
    folder: &str,
    name: &str,
    slot: u16,
    more: &[String],
) -> anyhow::Result<Shard> {
    let mut flags = vec![
        format!("--name={name}"),
        format!("--slot={slot}"),
        "--in-cluster".to_owned(),
        "--durability=fsync".to_owned(),
        CLUSTER.to_owned(),
    ];
    flags.extend_from_slice(more);
    Shard::start(dir, folder, &flags).await
}

pub async fn router(
    dir: &Path,
    name: &str,
    meta: &Etcd,
    config: &Path,
    more: &[String],
) -> anyhow::Result<Router> {
    let mut args = vec![
        "--listen=127.0.0.1:0".to_owned(),
        "--admin=127.0.0.1:0".to_owned(),
        format!("--name={name}"),
        format!("--config={}", config.display()),
        format!("--meta=http://{}", meta.address),
        "--log-level=info,kindred_router::standbys=debug".to_owned(),
        CLUSTER.to_owned(),
    ];
    args.extend_from_slice(more);
    let spec = Spec::router(&format!("router-{name}"), args)?;
    let process = Process::start(dir, spec).await?;
    let field = |name| anyhow::Ok(process.ready_field(name)?.trim_start_matches("http://").to_owned());
    let (client, admin) = (Client::lazy(&field("listen")?)?, Admin::at(&field("admin")?));
    Ok(Router { _process: process, client, admin })
}
