//! A router with a store that has a primary and a standby that counts. Members are started again whenever they end, as a
//! supervisor does. Each is a process of its own, which ends when it is dropped.

use std::{convert::Infallible, path::Path, process::Child, time::Duration};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::admin::Admin;
use crate::servers::{self, Server};

/// The store with a standby.
const STORE: &str = "pods";
const CLUSTER: &str = "--cluster-id=0x1ee7";
/// How long anything may take that is waited for.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// How often members and their states are looked at.
const LOOK: Duration = Duration::from_millis(20);

fn url(listen: &str) -> String {
    format!("http://{listen}")
}

/// A shard, at the same address whenever it is started.
pub struct Member {
    listen: String,
    flags: Vec<String>,
    child: Child,
    /// Whether it stays down when it has ended.
    down: bool,
}

impl Drop for Member {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Member {
    /// Starts a shard at an address, and waits until it listens or, as a standby, has a copy of its primary.
    fn start(
        dir: &Path,
        folder: &str,
        listen: String,
        (name, slot): (&str, u16),
        standby_of: Option<&Self>,
    ) -> anyhow::Result<Self> {
        let mut flags = vec![
            format!("--data-dir={}", dir.join(folder).display()),
            secret_of(dir),
            format!("--name={name}"),
            format!("--slot={slot}"),
            "--in-cluster".to_owned(),
            "--durability=fsync".to_owned(),
            CLUSTER.to_owned(),
        ];
        flags.extend(standby_of.map(|primary| format!("--standby-of={}", url(&primary.listen))));
        let child = servers::start_shard_at(&listen, &flags).with_context(|| format!("starting {name}"))?;
        Ok(Self { listen, flags, child, down: false })
    }

    /// Starts the process again if it has ended, unless it is to stay down.
    fn look_after(&mut self) -> anyhow::Result<()> {
        if !self.down && self.child.try_wait()?.is_some() {
            self.child = servers::launch_shard_at(&self.listen, &self.flags)?;
        }
        Ok(())
    }

    /// Kills the process, and does not start it again before [`Member::up`].
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.down = true;
        self.child.kill().context("killing a member")
    }

    /// Lets the process be started again.
    pub fn up(&mut self) {
        self.down = false;
    }

    /// Sends a signal to the process.
    pub async fn signal(&mut self, signal: &str) -> anyhow::Result<()> {
        ensure!(self.child.try_wait()?.is_none(), "{signal} to a member that has ended");
        let pid = self.child.id().to_string();
        let status = tokio::process::Command::new("kill").args([signal, &pid]).status().await?;
        ensure!(status.success(), "kill {signal} {pid}: {status}");
        Ok(())
    }
}

/// Starts members again whenever they end. A former primary ends when it learns of its successor, and then follows it.
async fn supervise(members: &mut [Member]) -> anyhow::Result<Infallible> {
    loop {
        for member in &mut *members {
            member.look_after()?;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The members are dropped first, and the folder of their data last.
pub struct Cluster {
    pub members: [Member; 2],
    pub router: Server,
    admin: Admin,
    _default: Member,
    _meta: Server,
    _dir: tempfile::TempDir,
}

/// The file in the folder of a cluster with the secret that its routers and shards share.
const SECRET: &str = "cluster-secret";

fn secret_of(dir: &Path) -> String {
    format!("--cluster-secret-file={}", dir.join(SECRET).display())
}

/// The configuration with members at these addresses.
fn config(default: &str, primary: &str, standby: &str) -> Value {
    json!({
        "default": "default",
        "stores": [
            { "name": "default", "slot": 1, "endpoints": [url(default)] },
            {
                "name": STORE, "slot": 2, "endpoints": [url(primary)],
                "standby": { "endpoints": [url(standby)] },
            },
        ],
        "partitions": [
            { "metadata": { "name": STORE }, "resource": STORE, "serviceGroupId": STORE, "durability": "fsync" },
        ],
    })
}

impl Cluster {
    /// Starts everything, with the members' data on this disk and this etcd as the meta store.
    pub fn start(disk: &Path, etcd: &Path) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir_in(disk)?;
        let listen = || anyhow::Ok(format!("127.0.0.1:{}", servers::lasting_port()?));
        let (default, first, second) = (listen()?, listen()?, listen()?);
        let file = dir.path().join("config.json");
        std::fs::write(&file, config(&default, &first, &second).to_string())?;
        std::fs::write(dir.path().join(SECRET), "of-a-benchmark-alone\n")?;
        let meta = servers::etcd(etcd)?;
        let default = Member::start(dir.path(), "default", default, ("default", 1), None)?;
        let first = Member::start(dir.path(), "first", first, (STORE, 2), None)?;
        let router = servers::router(&[
            "--name=bench".to_owned(),
            format!("--config={}", file.display()),
            format!("--meta={}", url(&meta.endpoint)),
            secret_of(dir.path()),
            CLUSTER.to_owned(),
        ])?;
        // A primary serves, and has standbys, when a router has greeted it.
        let second = Member::start(dir.path(), "second", second, (STORE, 2), Some(&first))?;
        let admin = Admin(router.admin.clone().context("the router has no admin address")?);
        Ok(Self { members: [first, second], router, admin, _default: default, _meta: meta, _dir: dir })
    }

    /// Waits for something, and meanwhile starts members again that end.
    pub async fn beside<T>(
        &mut self,
        what: &str,
        wanted: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        tokio::select! {
            done = wanted => done.with_context(|| what.to_owned()),
            failed = supervise(&mut self.members) => match failed? {},
            () = tokio::time::sleep(WAIT_MAX) => bail!("{what}: not within {WAIT_MAX:?}"),
        }
    }

    /// Waits until the store has its standby in sync, and nothing is wrong with it. Returns the number of the primary.
    pub async fn in_sync(&mut self) -> anyhow::Result<usize> {
        let admin = self.admin.clone();
        let wanted = async {
            loop {
                let state = state(&admin).await?;
                if let Some(primary) = primary_in_sync(&state) {
                    return Ok(primary.to_owned());
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        let primary = match self.beside("a standby in sync", wanted).await {
            Ok(primary) => primary,
            Err(error) => return Err(error.context(format!("{:?}", state(&self.admin).await))),
        };
        let found = self.members.iter().position(|member| url(&member.listen) == primary);
        found.with_context(|| format!("no member is at {primary}"))
    }

    /// Has the primary hand over to its standby.
    pub async fn hand_over(&mut self) -> anyhow::Result<()> {
        let (admin, body) = (self.admin.clone(), json!({ "store": STORE }).to_string());
        let asked = async { admin.ask("POST", "/api/v1/failover", &body).await };
        self.beside("a handover", asked).await.map(drop)
    }
}

/// The store as configured with its members, and as the router sees it.
async fn state(admin: &Admin) -> anyhow::Result<[Value; 2]> {
    let group = admin.ask("GET", &format!("/api/v1/servicegroups/{STORE}"), "").await?;
    let stores = admin.ask("GET", "/api/v1/stores", "").await?;
    let shown = stores["stores"].as_array().into_iter().flatten().find(|store| store["name"] == STORE);
    Ok([group, shown.cloned().context("the router shows no such store")?])
}

/// The address of the primary, if the store is up with its standby in sync.
fn primary_in_sync([group, shown]: &[Value; 2]) -> Option<&str> {
    let in_sync = group["members"]["inSync"].as_array().is_some_and(|members| members.len() == 1);
    let well = shown["state"] == "up" && shown["members"].is_array() && shown["standbyTrouble"].is_null();
    (in_sync && well).then(|| group["endpoints"][0].as_str()).flatten()
}
