//! A whole cluster whose processes are of either build: a small shard as its meta store, two routers, a default store, a
//! second one, and a store with a standby. All keep their data in folders. A process that ends is started again, as by a
//! supervisor.

use std::{fs, path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use kindred_tests::{
    admin::Admin,
    client::Client,
    process::{Process, Spec},
    scenario::wait_for,
    servers::{ANY_PORT, Shard},
};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::upgrade::builds::{Build, Builds};

pub const LIMIT: Duration = Duration::from_secs(60);
/// The store with a standby.
pub const PAIR: &str = "pair";
/// The store without one, beside the default one.
pub const SINGLE: &str = "single";
pub const DEFAULT: &str = "default";
const CLUSTER: &str = "--cluster-id=0x0b5e";
/// How often a supervisor looks after its process.
const LOOK: Duration = Duration::from_millis(20);

/// The configuration: the Kinds of the workload and of the ledger, with every durability, and two of them on two stores.
/// A clean stop keeps also what has `none`. `services` are nowhere in it, and so on the default store.
fn config(default: &str, single: &str, pair: &str) -> Value {
    let at = |name: &str, store: &str, durability: &str| {
        json!({
            "metadata": { "name": name }, "resource": name, "serviceGroupId": store, "durability": durability,
        })
    };
    let ring = |name: &str, durability: &str| {
        json!({
            "metadata": { "name": name }, "resource": name, "durability": durability,
            "ring": { "stores": [DEFAULT, SINGLE] },
        })
    };
    let store = |name: &str, slot: u16, address: &str| json!({ "name": name, "slot": slot, "endpoints": [format!("http://{address}")] });
    json!({
        "default": DEFAULT,
        "stores": [store(DEFAULT, 1, default), store(SINGLE, 2, single), store(PAIR, 3, pair)],
        "partitions": [
            at("pods", PAIR, "fsync"), at("nodes", PAIR, "buffered"), at("secrets", PAIR, "buffered"),
            at("leases.coordination.k8s.io", SINGLE, "fsync"), at("deployments.apps", SINGLE, "none"),
            at("configmaps", DEFAULT, "fsync"), ring("events", "buffered"), ring("jobs.batch", "fsync"),
        ],
    })
}

/// A process with its supervisor.
#[derive(Clone)]
pub struct Server {
    process: Arc<Mutex<Process>>,
    builds: Builds,
}

impl Server {
    fn new(process: Process, builds: &Builds, stop: &CancellationToken) -> Self {
        let server = Self { process: Arc::new(Mutex::new(process)), builds: builds.clone() };
        let supervised = server.clone();
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                let mut process = supervised.process.lock().await;
                if matches!(process.is_running(), Ok(false)) {
                    // Whoever waits for the process says that it does not come.
                    let _ = process.launch();
                }
            }
        }));
        server
    }

    /// Installs the program of a build. Its next start is of that.
    pub async fn install(&self, build: Build) -> anyhow::Result<()> {
        let program = self.builds.program(build)?;
        self.process.lock().await.set_program(program);
        Ok(())
    }

    /// Installs the program of a build, and starts the process anew. Returns when it is ready.
    pub async fn change(&self, build: Build) -> anyhow::Result<()> {
        self.install(build).await?;
        {
            let mut process = self.process.lock().await;
            process.stop().await?;
            process.launch()?;
        }
        self.is_of(build).await
    }

    /// Asks the process to end. Its supervisor starts it again.
    pub async fn stop(&self) -> anyhow::Result<()> {
        self.process.lock().await.stop().await.map(drop)
    }

    /// Waits until the process is of a build, and ready.
    pub async fn is_of(&self, build: Build) -> anyhow::Result<()> {
        let wanted = self.builds.program(build)?;
        let what = format!("a ready process of the {build:?} build");
        wait_for(&what, LIMIT, || async {
            let mut process = self.process.lock().await;
            let running = process.pid().and_then(|pid| fs::read_link(format!("/proc/{pid}/exe")).ok());
            Ok((running.as_ref() == Some(&wanted) && process.is_ready()).then_some(()))
        })
        .await
    }
}

/// A router.
pub struct Router {
    pub server: Server,
    pub address: String,
    pub client: Client,
    pub admin: Admin,
}

/// A store's process.
#[derive(Clone)]
pub struct Store {
    pub server: Server,
    pub url: String,
}

/// The cluster.
pub struct Cluster {
    pub meta: Store,
    pub default: Store,
    pub single: Store,
    pub members: Vec<Store>,
    pub routers: Vec<Router>,
    stop: CancellationToken,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Starts processes of one build.
struct Starter<'a> {
    dir: &'a Path,
    builds: &'a Builds,
    build: Build,
    stop: CancellationToken,
}

impl Starter<'_> {
    async fn shard(&self, folder: &str, flags: &[&str]) -> anyhow::Result<Store> {
        let program = self.builds.program(self.build)?;
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        let shard = Shard::start_program(&program, self.dir, folder, ANY_PORT, &flags).await?;
        let url = format!("http://{}", shard.address);
        Ok(Store { server: Server::new(shard.process, self.builds, &self.stop), url })
    }

    async fn store(&self, folder: &str, name: &str, slot: u16, more: &[&str]) -> anyhow::Result<Store> {
        let (name, slot) = (format!("--name={name}"), format!("--slot={slot}"));
        let flags = [&*name, &*slot, "--in-cluster", "--durability=fsync", CLUSTER];
        self.shard(folder, &[&flags[..], more].concat()).await
    }

    async fn router(&self, name: &str, meta: &Store, config: &Path) -> anyhow::Result<Router> {
        let args = vec![
            format!("--listen={ANY_PORT}"),
            format!("--admin={ANY_PORT}"),
            format!("--name={name}"),
            format!("--config={}", config.display()),
            format!("--meta={}", meta.url),
            format!("--meta-cache={}", self.dir.join(format!("{name}.state.json")).display()),
            "--log-level=info,kindred_router::standbys=debug,kindred_router::moves=debug".to_owned(),
            CLUSTER.to_owned(),
        ];
        let program = self.builds.program(self.build)?;
        let spec = Spec { program, ..Spec::router(&format!("router-{name}"), args)? };
        let process = Process::start(self.dir, spec).await?;
        let field = |name| anyhow::Ok(process.ready_field(name)?.trim_start_matches("http://").to_owned());
        let (address, admin) = (field("listen")?, Admin::at(&field("admin")?));
        let server = Server::new(process, self.builds, &self.stop);
        Ok(Router { server, client: Client::lazy(&address)?, address, admin })
    }
}

impl Cluster {
    /// Starts a cluster all of whose processes are of one build, and waits until its standby is in sync.
    pub async fn start(dir: &Path, builds: &Builds, build: Build) -> anyhow::Result<Self> {
        let start = Starter { dir, builds, build, stop: CancellationToken::new() };
        let flags = ["--name=meta", "--slot=0", "--revisions=dense", "--durability=fsync"];
        let meta = start.shard("meta", &flags).await?;
        let default = start.store("default", DEFAULT, 1, &[]).await?;
        let single = start.store("single", SINGLE, 2, &[]).await?;
        let first = start.store("first", PAIR, 3, &[]).await?;
        let file = dir.join("config.json");
        let at = |store: &Store| store.url.trim_start_matches("http://").to_owned();
        fs::write(&file, config(&at(&default), &at(&single), &at(&first)).to_string())?;
        let mut routers = Vec::new();
        for name in ["one", "two"] {
            routers.push(start.router(name, &meta, &file).await?);
        }
        let second = start.store("second", PAIR, 3, &[&format!("--standby-of={}", first.url)]).await?;
        let members = vec![first, second];
        let cluster = Self { meta, default, single, members, routers, stop: start.stop };
        let admin = &cluster.routers[0].admin;
        let path = format!("/api/v1/servicegroups/{PAIR}");
        let mut group = admin.ok("GET", &path, &json!({})).await?;
        group["standby"] = json!({ "endpoints": [cluster.members[1].url] });
        admin.ok("PUT", &path, &group).await?;
        cluster.in_sync().await?;
        Ok(cluster)
    }

    /// Waits until both routers say that all stores are up and the standby is in sync, and name the same primary. Returns
    /// the members, the primary first.
    pub async fn in_sync(&self) -> anyhow::Result<[Store; 2]> {
        let waited = wait_for("all stores up, and the standby in sync", LIMIT, || async {
            let [one, two] = [self.primary(0).await?, self.primary(1).await?];
            Ok(one.filter(|one| two.as_ref() == Some(one)))
        });
        let primary = match waited.await {
            Ok(primary) => primary,
            Err(error) => {
                let shown = self.routers[0].admin.ask("GET", "/api/v1/stores", "").await?;
                return Err(error.context(format!("{shown:?}")));
            }
        };
        let of = |wanted: bool| {
            self.members.iter().find(|member| (member.url == primary) == wanted).cloned().context("a member")
        };
        Ok([of(true)?, of(false)?])
    }

    /// The primary of the store with a standby, if a router says that everything is well.
    async fn primary(&self, router: usize) -> anyhow::Result<Option<String>> {
        let admin = &self.routers[router].admin;
        let shown = admin.ok("GET", "/api/v1/stores", &json!({})).await?;
        let stores = shown["stores"].as_array().context("stores")?;
        let group = admin.ok("GET", &format!("/api/v1/servicegroups/{PAIR}"), &json!({})).await?;
        let well = stores.len() == 3
            && stores.iter().all(|store| store["state"] == "up" && store["standbyTrouble"].is_null())
            && stores.iter().any(|store| store["name"] == PAIR && store["members"].is_array())
            && group["members"]["inSync"].as_array().is_some_and(|members| members.len() == 1);
        Ok(well.then(|| group["endpoints"][0].as_str().unwrap_or_default().to_owned()))
    }

    /// Checks that every process is of a build.
    pub async fn all_of(&self, build: Build) -> anyhow::Result<()> {
        let stores = [&self.meta, &self.default, &self.single].into_iter().chain(&self.members);
        let servers = stores.map(|store| &store.server);
        for server in servers.chain(self.routers.iter().map(|router| &router.server)) {
            server.is_of(build).await?;
        }
        Ok(())
    }

    /// What is wrong with a router, as its probe says.
    pub async fn readyz(&self, router: usize) -> anyhow::Result<(u16, String)> {
        self.routers[router].admin.ask("GET", "/readyz?verbose", "").await
    }
}
