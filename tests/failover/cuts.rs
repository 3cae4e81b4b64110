//! The network between routers and members is cut, wholly and in one direction. Each process has links of its own to the
//! members, under the same relative addresses, so that any pair can be cut.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{PutRequest, RangeRequest};
use kindred_tests::{
    admin::Admin,
    client::Client,
    process::{Process, Spec},
    proxy::{Cut, Link},
    scenario::{self, wait_for},
    servers::Etcd,
};
use serde_json::{Value, json};

use crate::failover::members::LIMIT;

const CLUSTER: &str = "--cluster-id=0x1ee7";
const MEMBERS: [&str; 2] = ["first", "second"];
const ROUTERS: [&str; 2] = ["one", "two"];
const KEY: &[u8] = b"/registry/pods/a/1";

/// A process, and its links to the members.
struct Host {
    process: Process,
    address: String,
    admin: Admin,
    folder: PathBuf,
    links: BTreeMap<&'static str, Link>,
}

impl Host {
    async fn start(dir: &Path, spec: Spec, links: BTreeMap<&'static str, Link>) -> anyhow::Result<Self> {
        let folder = dir.join(format!("host-{}", spec.name));
        let mut process = Process::start_in(dir, &folder, spec).await?;
        let field = |process: &Process, name| {
            anyhow::Ok(process.ready_field(name)?.trim_start_matches("http://").to_owned())
        };
        let (address, admin) = (field(&process, "listen")?, field(&process, "admin")?);
        process.set_arg("--listen", &address);
        Ok(Self { process, address, admin: Admin::at(&admin), folder, links })
    }

    fn link(&mut self, name: &'static str, to: &str) -> anyhow::Result<()> {
        self.links.insert(name, Link::open(&self.folder.join(name), to)?);
        Ok(())
    }

    fn client(&self) -> anyhow::Result<Client> {
        Client::lazy(&self.address)
    }
}

/// Two routers and two members, the second one a standby in sync.
struct Net {
    _meta: Etcd,
    members: Vec<Host>,
    routers: Vec<Host>,
}

fn folder(dir: &Path, name: &str) -> anyhow::Result<()> {
    Ok(fs::create_dir(dir.join(format!("host-{name}")))?)
}

fn member_args(more: &str) -> Vec<String> {
    let mut args: Vec<String> = [
        "--listen=127.0.0.1:0",
        "--admin-listen=127.0.0.1:0",
        "--data-dir=data",
        "--name=default",
        "--slot=1",
        "--in-cluster",
        "--durability=none",
        CLUSTER,
    ]
    .map(str::to_owned)
    .to_vec();
    args.extend((!more.is_empty()).then(|| more.to_owned()));
    args
}

impl Net {
    async fn start(dir: &Path) -> anyhow::Result<Self> {
        let meta = Etcd::start(dir, "meta").await?;
        let config = json!({
            "default": "default", "stores": [{ "name": "default", "slot": 1, "endpoints": ["unix:first"] }],
        });
        let file = dir.join("config.json");
        fs::write(&file, config.to_string())?;
        for name in MEMBERS.into_iter().chain(ROUTERS) {
            folder(dir, name)?;
        }
        let mut first = Host::start(dir, Spec::shard("first", member_args(""))?, BTreeMap::new()).await?;
        let mut routers = Vec::new();
        for name in ROUTERS {
            let to_first = Link::open(&dir.join(format!("host-{name}/first")), &first.address)?;
            let args = vec![
                "--listen=127.0.0.1:0".to_owned(),
                "--admin=127.0.0.1:0".to_owned(),
                format!("--name={name}"),
                format!("--config={}", file.display()),
                format!("--meta=http://{}", meta.address),
                CLUSTER.to_owned(),
            ];
            routers.push(Host::start(dir, Spec::router(name, args)?, [("first", to_first)].into()).await?);
        }
        // A primary has followers once a router has confirmed its clock.
        let to_first = Link::open(&dir.join("host-second/first"), &first.address)?;
        let args = member_args("--standby-of=unix:first");
        let second = Host::start(dir, Spec::shard("second", args)?, [("first", to_first)].into()).await?;
        first.link("second", &second.address)?;
        for router in &mut routers {
            router.link("second", &second.address)?;
        }
        let net = Self { _meta: meta, members: vec![first, second], routers };
        let mut group = net.group().await?;
        group["standby"] = json!({ "endpoints": ["unix:second"] });
        net.routers[1].admin.ok("PUT", "/api/v1/servicegroups/default", &group).await?;
        net.until("the standby in sync", |group| in_sync(group) == 1).await?;
        Ok(net)
    }

    async fn group(&self) -> anyhow::Result<Value> {
        self.routers[1].admin.ok("GET", "/api/v1/servicegroups/default", &json!({})).await
    }

    async fn until(&self, what: &str, is: impl Fn(&Value) -> bool) -> anyhow::Result<()> {
        let waited = wait_for(what, LIMIT, || async {
            let group = self.group().await?;
            Ok(is(&group).then_some(()))
        });
        match waited.await {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(self.group().await?.to_string())),
        }
    }

    fn cut(&self, from: &str, to: &'static str, how: Option<Cut>) -> anyhow::Result<()> {
        let host = match from {
            "one" => &self.routers[0],
            "two" => &self.routers[1],
            "second" => &self.members[1],
            _ => &self.members[0],
        };
        let link = host.links.get(to).with_context(|| format!("no link from {from} to {to}"))?;
        match how {
            Some(how) => link.cut(how),
            None => link.heal(),
        }
        Ok(())
    }

    /// Writes by a router, however often that has to be tried.
    async fn write(&self, router: usize, value: &str) -> anyhow::Result<()> {
        let client = self.routers[router].client()?;
        wait_for("a write", LIMIT, || async {
            let mut kv = client.kv.clone();
            let write = tokio::time::timeout(Duration::from_secs(3), kv.put(put(value)));
            Ok(write.await.ok().and_then(Result::ok).map(drop))
        })
        .await
        .with_context(|| format!("{value:?} by router {router}"))
    }

    async fn value(&self, router: usize) -> anyhow::Result<String> {
        let range = RangeRequest { key: KEY.to_vec().into(), ..RangeRequest::default() };
        let found = self.routers[router].client()?.kv.range(range).await?.into_inner().kvs;
        Ok(found.first().map(|kv| String::from_utf8_lossy(&kv.value).into_owned()).unwrap_or_default())
    }
}

fn put(value: &str) -> PutRequest {
    PutRequest { key: KEY.to_vec().into(), value: value.as_bytes().to_vec().into(), ..PutRequest::default() }
}

fn in_sync(group: &Value) -> usize {
    group["members"]["inSync"].as_array().map_or(0, Vec::len)
}

fn primary(group: &Value) -> &str {
    group["endpoints"][0].as_str().unwrap_or_default()
}

#[test]
fn r19_a_standby_that_is_cut_off_is_taken_out_and_comes_back() {
    scenario::run("cuts_standby", 3 * LIMIT, |dir| async move { standby(&dir).await });
}

async fn standby(dir: &Path) -> anyhow::Result<()> {
    let net = Net::start(dir).await?;
    for how in [Cut::Silent, Cut::ToServer, Cut::ToClient, Cut::Refused] {
        net.write(0, &format!("before {how:?}")).await?;
        net.cut("second", "first", Some(how))?;
        net.write(1, &format!("without it {how:?}")).await?;
        net.until("the standby out of the set", |group| in_sync(group) == 0).await?;
        net.cut("second", "first", None)?;
        net.until("the standby in sync", |group| in_sync(group) == 1)
            .await
            .with_context(|| format!("{how:?}"))?;
        ensure!(primary(&net.group().await?) == "unix:first", "{how:?}: nobody had to take over");
    }
    Ok(())
}

#[test]
fn r19_what_one_router_does_not_reach_changes_nothing_for_others() {
    scenario::run("cuts_router", 3 * LIMIT, |dir| async move { router(&dir).await });
}

async fn router(dir: &Path) -> anyhow::Result<()> {
    let net = Net::start(dir).await?;
    let term = net.group().await?["members"]["term"].clone();
    for how in [Cut::Silent, Cut::ToServer, Cut::ToClient, Cut::Refused] {
        net.cut("one", "first", Some(how))?;
        let one = net.routers[0].client()?;
        let lost = tokio::time::timeout(Duration::from_secs(3), one.kv.clone().put(put("lost"))).await;
        ensure!(!matches!(lost, Ok(Ok(_))), "{how:?}");
        net.write(1, &format!("by the other {how:?}")).await?;
        let group = net.group().await?;
        ensure!(group["members"]["term"] == term && primary(&group) == "unix:first", "{how:?}: {group}");
        net.cut("one", "first", None)?;
        net.write(0, &format!("again {how:?}")).await?;
    }
    Ok(())
}

#[test]
fn r20_a_primary_that_is_cut_off_answers_nothing_and_follows_when_it_is_back() {
    scenario::run("cuts_primary", 4 * LIMIT, |dir| async move { isolated(&dir).await });
}

async fn isolated(dir: &Path) -> anyhow::Result<()> {
    let mut net = Net::start(dir).await?;
    net.write(0, "before").await?;
    for from in ["one", "two", "second"] {
        net.cut(from, "first", Some(Cut::Silent))?;
    }
    net.write(0, "after").await?;
    ensure!(primary(&net.group().await?) == "unix:second");
    // Somebody still reaches it.
    let direct = net.members[0].client()?;
    let range = RangeRequest { key: KEY.to_vec().into(), ..RangeRequest::default() };
    let read = tokio::time::timeout(Duration::from_secs(2), direct.kv.clone().range(range)).await;
    ensure!(!matches!(read, Ok(Ok(_))), "it answered: {read:?}");
    let written = tokio::time::timeout(Duration::from_secs(2), direct.kv.clone().put(put("stale"))).await;
    ensure!(!matches!(written, Ok(Ok(_))), "it acknowledged: {written:?}");
    for from in ["one", "two", "second"] {
        net.cut(from, "first", None)?;
    }
    // It is told, ends, and follows when it is started again.
    let first = &mut net.members[0].process;
    wait_for("the end of the former primary", LIMIT, || {
        let running = first.is_running();
        async move { Ok((!running?).then_some(())) }
    })
    .await?;
    first.restart().await?;
    net.until("the former primary in sync", |group| in_sync(group) == 1).await?;
    ensure!(net.value(1).await? == "after");
    Ok(())
}

#[test]
fn r20_an_operator_may_have_the_standby_take_over_from_a_primary_that_no_router_reaches() {
    scenario::run("cuts_wish", 3 * LIMIT, |dir| async move { wished(&dir).await });
}

async fn wished(dir: &Path) -> anyhow::Result<()> {
    let net = Net::start(dir).await?;
    net.write(0, "before").await?;
    for from in ROUTERS {
        net.cut(from, "first", Some(Cut::Silent))?;
    }
    wait_for("a router that says so", LIMIT, || async {
        let stores = net.routers[0].admin.ok("GET", "/api/v1/stores", &json!({})).await?;
        let trouble = stores["stores"][0]["standbyTrouble"].as_str().unwrap_or_default().to_owned();
        Ok(trouble.contains("does not reach").then_some(()))
    })
    .await?;
    ensure!(primary(&net.group().await?) == "unix:first", "the standby hears of its primary");
    let body = json!({ "store": "default" });
    net.routers[0].admin.ok("POST", "/api/v1/failover", &body).await?;
    net.write(1, "after").await?;
    ensure!(primary(&net.group().await?) == "unix:second");
    Ok(())
}
