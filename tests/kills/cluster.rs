//! The cluster of the cases: a meta store, two shards, a router that survives, and a router as the coordinator of each
//! move.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};
use kindred_proto::{
    etcdserverpb::{PutRequest, RangeRequest},
    shard_v1::{UnfreezeRequest, UnitMove, UnitRecord, UnitState, UnitsListRequest},
};
use kindred_tests::{
    admin::Admin,
    client::Client,
    process::{Process, Spec},
    proxy::Link,
    scenario::wait_for,
    servers::Shard,
};
use kindred_wire::protocol::NOT_OWNED;
use serde_json::Value;

use crate::kills::writers::{PODS, PODS_END};

const CONFIG: &str = include_str!("configs/pair.yaml");
const CLUSTER: &str = "--cluster-id=0x1ee7";
const MOVES: &str = "/kindred/moves/";
const REACH_LIMIT: Duration = Duration::from_secs(60);
/// By how much a term is above that of a record.
const HIGHER: u64 = 5;
/// The environment variable that arms the failpoints of a router.
pub const FAILPOINTS: &str = "KINDRED_FAILPOINTS";
/// The name of the meta store, which differs from those of the stores.
pub const META: &str = "meta";
/// The name of the router that is never killed.
pub const SURVIVOR: &str = "survivor";
/// The names of all other routers begin so.
pub const VICTIM: &str = "victim";

/// One of the routers.
pub struct Router {
    pub process: Process,
    pub address: String,
    pub admin: Admin,
    /// This file exists while the router waits at a failpoint.
    held: PathBuf,
    /// The links to the servers, with the servers' names. Empty if the router connects to them directly.
    links: Vec<(&'static str, Link)>,
}

impl Router {
    /// Sends a signal, such as `STOP` or `CONT`.
    pub fn signal(&self, signal: &str) -> anyhow::Result<()> {
        let pid = self.process.pid().context("not running")?.to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &pid]).status()?;
        ensure!(sent.success(), "SIG{signal} to {pid} failed");
        Ok(())
    }

    /// Whether the router waits at a failpoint.
    pub fn is_held(&self) -> bool {
        self.held.exists()
    }

    /// Lets the router continue from the failpoint.
    pub fn go_on(&self) -> anyhow::Result<()> {
        fs::remove_file(&self.held).with_context(|| format!("{} waits nowhere", self.address))
    }

    /// The link of the router to a server.
    pub fn link(&self, server: &str) -> anyhow::Result<&Link> {
        let found = self.links.iter().find(|(name, _)| *name == server);
        Ok(&found.with_context(|| format!("no link to {server}"))?.1)
    }
}

/// Whether routers and servers are connected by links that can be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wiring {
    /// No links. As outside of tests, connections to a killed server are refused.
    Direct,
    Linked,
}

/// The processes of one cluster. Every Kind has mode `fsync`, as in the meta store of `kindred up`.
pub struct Cluster {
    dir: PathBuf,
    prefix: String,
    wiring: Wiring,
    meta: Shard,
    stores: Vec<(&'static str, Shard)>,
    pub survivor: Router,
    victims: u32,
}

impl Cluster {
    /// `prefix` begins the names of logs and files. It must be unique in `dir`.
    pub async fn start(dir: &Path, prefix: &str, wiring: Wiring) -> anyhow::Result<Self> {
        // Each cluster has a file of its own. Routers of another cluster could read a shared one while it is written.
        fs::write(dir.join(format!("{prefix}.yaml")), CONFIG)?;
        let flags = |name: &str, slot: u8| {
            vec![format!("--name={name}"), format!("--slot={slot}"), "--durability=fsync".to_owned()]
        };
        let mut of_meta = flags(META, 0);
        of_meta.push("--revisions=dense".to_owned());
        let meta = Shard::start(dir, &format!("{prefix}-{META}"), &of_meta).await?;
        let mut stores = Vec::new();
        for (name, slot) in [("a", 1), ("b", 2)] {
            let mut own = flags(name, slot);
            own.push(CLUSTER.to_owned());
            stores.push((name, Shard::start(dir, &format!("{prefix}-{name}"), &own).await?));
        }
        let survivor = router(dir, prefix, wiring, SURVIVOR, &meta, &stores, "").await?;
        let (dir, prefix) = (dir.to_owned(), prefix.to_owned());
        Ok(Self { dir, prefix, wiring, meta, stores, survivor, victims: 0 })
    }

    /// Starts another router with these failpoints.
    pub async fn victim(&mut self, failpoints: &str) -> anyhow::Result<Router> {
        self.victims += 1;
        let name = format!("{VICTIM}{}", self.victims);
        router(&self.dir, &self.prefix, self.wiring, &name, &self.meta, &self.stores, failpoints).await
    }

    /// The process of a store, or of the meta store.
    pub fn server(&mut self, name: &str) -> anyhow::Result<&mut Process> {
        if name == META {
            return Ok(&mut self.meta.process);
        }
        let found = self.stores.iter_mut().find(|(store, _)| *store == name);
        Ok(&mut found.with_context(|| format!("no store {name}"))?.1.process)
    }

    /// The value of a key in the meta store, as JSON and as bytes.
    async fn meta_key(&self, key: &str) -> anyhow::Result<Option<(Value, bytes::Bytes)>> {
        let get = RangeRequest { key: key.to_owned().into(), ..Default::default() };
        let kvs = self.meta.client().await?.kv.range(get).await?.into_inner().kvs;
        let Some(kv) = kvs.into_iter().next() else { return Ok(None) };
        Ok(Some((serde_json::from_slice(&kv.value)?, kv.value)))
    }

    /// The record of a move.
    pub async fn record(&self, id: u64) -> anyhow::Result<Option<Value>> {
        Ok(self.meta_key(&format!("{MOVES}{id}")).await?.map(|(record, _)| record))
    }

    /// The claim of a move's coordinator.
    pub async fn claim(&self, id: u64) -> anyhow::Result<Option<Value>> {
        Ok(self.meta_key(&format!("/kindred/coordinators/{id}")).await?.map(|(claim, _)| claim))
    }

    /// Writes the record of a move again without a change, so that the coordinator's next write of it has a conflict.
    pub async fn touch(&self, id: u64) -> anyhow::Result<()> {
        let key = format!("{MOVES}{id}");
        let (_, value) = self.meta_key(&key).await?.context("a move to touch")?;
        let put = PutRequest { key: key.into(), value, ..Default::default() };
        self.meta.client().await?.kv.put(put).await?;
        Ok(())
    }

    /// Whether the decision about a move is carried out: no unit is frozen, and none is sealed.
    async fn is_settled(&self) -> anyhow::Result<bool> {
        for (name, _) in &self.stores {
            let waits = |(state, record): &(UnitState, UnitRecord)| {
                let sealed = *state == UnitState::Following && record.final_revision > 0;
                *state == UnitState::Frozen || sealed
            };
            if self.units(name).await?.iter().any(waits) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Has all stores see a term of a switched move above that of its record. What is asked of them changes nothing: no
    /// unit is frozen any more.
    pub async fn outbid(&self, id: u64) -> anyhow::Result<()> {
        let settled = || async { Ok(self.is_settled().await?.then_some(())) };
        wait_for("the decision to be carried out", REACH_LIMIT, settled).await?;
        for (name, store) in &self.stores {
            for (_, record) in self.units(name).await? {
                let Some(by) = record.r#move.filter(|by| by.r#move == id) else { continue };
                let by = UnitMove { term: by.term + HIGHER, ..by };
                store.client().await?.units.unfreeze(UnfreezeRequest { r#move: Some(by) }).await?;
            }
        }
        Ok(())
    }

    /// The number that the next move will have.
    pub async fn next_move(&self) -> anyhow::Result<u64> {
        let all = RangeRequest {
            key: MOVES.into(),
            range_end: "/kindred/moves0".into(),
            keys_only: true,
            ..Default::default()
        };
        let kvs = self.meta.client().await?.kv.range(all).await?.into_inner().kvs;
        let numbers = kvs
            .iter()
            .filter_map(|kv| std::str::from_utf8(&kv.key).ok()?.strip_prefix(MOVES)?.parse::<u64>().ok());
        Ok(numbers.max().unwrap_or(0) + 1)
    }

    /// The unit records of a store.
    async fn units(&self, store: &str) -> anyhow::Result<Vec<(UnitState, UnitRecord)>> {
        let mut client = self.store(store)?.client().await?;
        let records = client.units.list(UnitsListRequest {}).await?.into_inner().records;
        records.into_iter().map(|record| Ok((UnitState::try_from(record.state)?, record))).collect()
    }

    /// The unit records of all stores, as text for error messages.
    pub async fn units_shown(&self) -> String {
        let mut shown = String::new();
        for (name, _) in &self.stores {
            shown += &match self.units(name).await {
                Ok(units) => format!("store {name} has {units:?}; "),
                Err(error) => format!("store {name}: {error:#}; "),
            };
        }
        shown
    }

    fn store(&self, name: &str) -> anyhow::Result<&Shard> {
        let found = self.stores.iter().find(|(store, _)| *store == name);
        Ok(&found.with_context(|| format!("no store {name}"))?.1)
    }

    /// Whether no store has a record in one of these states.
    pub async fn none_is(&self, states: &[UnitState]) -> anyhow::Result<bool> {
        for (name, _) in &self.stores {
            if self.units(name).await?.iter().any(|(state, _)| states.contains(state)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Asserts that `owner` has all pods, of which there are `keys`, that the other store has none, and that every unit
    /// record is owned or gone.
    pub async fn one_owner(&self, owner: &str, keys: usize) -> anyhow::Result<()> {
        for (name, store) in &self.stores {
            for (state, record) in self.units(name).await? {
                let settled = matches!(state, UnitState::Owned | UnitState::Gone);
                ensure!(settled, "store {name} still has {record:?}");
                let owned = state == UnitState::Owned;
                ensure!(!owned || *name == owner, "store {name} owns what is at {owner}: {record:?}");
            }
            let all = RangeRequest {
                key: PODS.into(),
                range_end: PODS_END.into(),
                count_only: true,
                ..Default::default()
            };
            let found = match store.client().await?.kv.range(all).await {
                Ok(answer) => answer.into_inner().count,
                // A store refuses keys that it does not own.
                Err(status) if status.metadata().contains_key(NOT_OWNED) => 0,
                Err(status) => return Err(status.into()),
            };
            let expected = if *name == owner { i64::try_from(keys)? } else { 0 };
            ensure!(found == expected, "store {name} shows {found} pods instead of {expected}");
        }
        Ok(())
    }

    /// Waits until the surviving router reaches all stores. Routers see a returning store at different times. A move
    /// that continues at one of them may make requests at the other wait for it.
    pub async fn reaches_all(&self) -> anyhow::Result<()> {
        wait_for("the survivor to reach all stores", REACH_LIMIT, || async {
            let (_, checks) = self.survivor.admin.ask("GET", "/readyz?verbose", "").await?;
            Ok((!checks.contains("[!]store-")).then_some(()))
        })
        .await
    }

    /// Connects to the surviving router.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Client::connect(&self.survivor.address).await
    }
}

async fn router(
    dir: &Path,
    prefix: &str,
    wiring: Wiring,
    name: &str,
    meta: &Shard,
    stores: &[(&'static str, Shard)],
    failpoints: &str,
) -> anyhow::Result<Router> {
    let own_dir = dir.join(format!("{prefix}-{name}"));
    fs::create_dir(&own_dir)?;
    let mut links = Vec::new();
    // The address of a store is in the cluster's state, so it is the same for all routers. A relative Unix socket in
    // each router's own folder gives each router its own link.
    let mut url = |name: &'static str, server: &Shard| match wiring {
        Wiring::Direct => anyhow::Ok(format!("http://{}", server.address)),
        Wiring::Linked => {
            links.push((name, Link::open(&own_dir.join(name), &server.address)?));
            Ok(format!("unix:{name}"))
        }
    };
    let mut args = vec![
        "--listen=127.0.0.1:0".to_owned(),
        "--admin=127.0.0.1:0".to_owned(),
        format!("--name={name}"),
        format!("--config={}", dir.join(format!("{prefix}.yaml")).display()),
        format!("--meta={}", url(META, meta)?),
        "--log-level=info,kindred_router::moves=debug".to_owned(),
        CLUSTER.to_owned(),
    ];
    for (store, shard) in stores {
        args.push(format!("--store={store}={}", url(store, shard)?));
    }
    let held = own_dir.join("held");
    let spec = Spec {
        env: vec![
            (FAILPOINTS.to_owned(), failpoints.to_owned()),
            ("KINDRED_FAILPOINT_FILE".to_owned(), held.display().to_string()),
        ],
        ..Spec::router(&format!("{prefix}-{name}"), args)?
    };
    let process = Process::start_in(dir, &own_dir, spec).await?;
    let field = |name| anyhow::Ok(process.ready_field(name)?.trim_start_matches("http://").to_owned());
    let (address, admin) = (field("listen")?, Admin::at(&field("admin")?));
    Ok(Router { process, address, admin, held, links })
}
