//! Router and shard on one machine, connected by a Unix socket.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    Compare, PutRequest, RangeRequest, RequestOp, TxnRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request,
};
use kindred_tests::{
    admin::Admin,
    client::Client,
    etcdctl::Etcdctl,
    process::{Process, Spec},
    scenario::{self, report, wait_for},
    servers::Up,
};
use tokio::task::JoinSet;

use crate::e2e::{
    cluster::Cluster,
    watchers::{read_events, watch},
};

const LIMIT: Duration = Duration::from_secs(120);
const RECOVERY_LIMIT: Duration = Duration::from_secs(30);
const WRITERS: usize = 16;
const WRITES: usize = 25;

const CONFIG: &str = "default: main\nstores:\n- {name: main, slot: 1}\n";

async fn put(client: &Client, key: &str, value: &str) -> anyhow::Result<i64> {
    let put = PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() };
    let answer = client.kv.clone().put(put).await.with_context(|| format!("put {key}"))?.into_inner();
    Ok(answer.header.context("header")?.revision)
}

async fn get(client: &Client, key: &str) -> anyhow::Result<Bytes> {
    let get = RangeRequest { key: key.to_owned().into(), ..Default::default() };
    let mut answer = client.kv.clone().range(get).await.with_context(|| format!("get {key}"))?.into_inner();
    Ok(answer.kvs.pop().with_context(|| format!("no {key}"))?.value)
}

/// Writes the value if the key has this mod revision. Returns whether it did.
async fn put_if(client: &Client, key: &str, value: &str, mod_revision: i64) -> anyhow::Result<bool> {
    let compare = Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Mod.into(),
        key: key.to_owned().into(),
        target_union: Some(TargetUnion::ModRevision(mod_revision)),
        ..Default::default()
    };
    let put = PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() };
    let put = RequestOp { request: Some(Request::RequestPut(put)) };
    let txn = TxnRequest { compare: vec![compare], success: vec![put], failure: Vec::new() };
    Ok(client.kv.clone().txn(txn).await.with_context(|| format!("txn on {key}"))?.into_inner().succeeded)
}

/// Waits until a write succeeds after its shard was started again.
async fn put_again(client: &Client, key: &str) -> anyhow::Result<()> {
    wait_for("a write to the restarted shard", RECOVERY_LIMIT, || async {
        Ok(put(client, key, "again").await.ok())
    })
    .await
    .map(drop)
}

/// The error of a shard that cannot listen at this address.
async fn refused(dir: &Path, name: &str, listen: &str) -> anyhow::Result<String> {
    let args = vec![format!("--listen={listen}"), "--admin-listen=127.0.0.1:0".to_owned()];
    let spec = Spec::shard(name, args)?;
    ensure!(Process::start(dir, spec).await.is_err(), "it listens on {listen}, too");
    Ok(fs::read_to_string(dir.join(format!("{name}.err.log")))?)
}

/// The number of connections that a server has at its socket.
fn connections(socket: &Path) -> anyhow::Result<usize> {
    // The columns are Num RefCount Protocol Flags Type St Inode Path. In column St, 03 is connected.
    let table = fs::read_to_string("/proc/net/unix")?;
    let path = socket.display().to_string();
    let ours = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    Ok(ours.filter(|words| words.get(7) == Some(&path.as_str()) && words[5] == "03").count())
}

/// A shard's counter of begun calls of one method; none before the first call.
async fn started(shard_admin: &str, method: &str) -> anyhow::Result<Option<f64>> {
    let (_, text) = Admin::at(shard_admin).ask("GET", "/metrics", "").await?;
    let method = format!("grpc_method=\"{method}\"");
    let mut lines = text.lines().filter(|line| line.starts_with("grpc_server_started_total{"));
    let line = lines.find(|line| line.contains(&method));
    line.map(|line| anyhow::Ok(line.rsplit(' ').next().context("a value")?.parse::<f64>()?)).transpose()
}

#[test]
fn a_shard_on_a_unix_socket_alone() {
    scenario::run("unix", LIMIT, |dir| async move {
        let socket = dir.join("main.sock");
        let url = format!("unix://{}", socket.display());
        // With mode fsync a watch continues after kill -9, because no acknowledged write is lost.
        let flags = |_: &str| vec!["--durability=fsync".to_owned()];
        let mut cluster = Cluster::start_at(&dir, CONFIG, &["main"], |_| url.clone(), flags).await?;
        ensure!(cluster.shards[0].address == url, "{}", cluster.shards[0].process.ready_line());
        let file = fs::symlink_metadata(&socket)?;
        let mode = file.permissions().mode() & 0o777;
        ensure!(file.file_type().is_socket() && mode == 0o600, "mode {mode:o}");
        ensure!(
            cluster.admin("/api/v1/stores").await?.contains(&format!("\"{url}\"")),
            "the address as written"
        );

        let client = cluster.client().await?;
        let (_requests, mut events) = watch(&client, "/registry/pods/", 1).await?;
        let revision = put(&client, "/registry/pods/a/1", "one").await?;
        ensure!(get(&client, "/registry/pods/a/1").await? == "one");
        ensure!(put_if(&client, "/registry/pods/a/1", "two", revision).await?);
        ensure!(!put_if(&client, "/registry/pods/a/1", "three", revision).await?);
        ensure!(get(&client, "/registry/pods/a/1").await? == "two");
        read_events(&mut events, 2).await?;
        // Many concurrent writes fill the socket, so that waiting ones are sent together.
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let client = client.clone();
            writers.spawn(async move {
                for write in 0..WRITES {
                    put(&client, &format!("/registry/pods/{writer}/{write}"), "x").await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(written) = writers.join_next().await {
            written??;
        }
        read_events(&mut events, WRITERS * WRITES).await?;
        let large = "v".repeat(1 << 20);
        put(&client, "/registry/pods/large/1", &large).await?;
        ensure!(get(&client, "/registry/pods/large/1").await? == large);
        read_events(&mut events, 1).await?;
        // The router also opens its batch stream and its feeds over the socket.
        for stream in ["Run", "Feed"] {
            let opened = started(&cluster.shards[0].admin, stream).await?;
            ensure!(opened.is_some_and(|times| times >= 1.0), "{stream}: {opened:?}");
        }
        let connected = connections(&socket)?;
        ensure!(connected > 0);
        // etcd's own client accepts the same form of address.
        let direct = Etcdctl::new(&url);
        ensure!(direct.ok(&["get", "/registry/pods/a/1", "--print-value-only"]).await?.trim() == "two");
        ensure!(direct.ok(&["member", "list"]).await?.contains(&url), "no URL of a socket");

        let alive = refused(&dir, "second", &url).await?;
        ensure!(alive.contains(&url) && alive.contains("another process listens there"), "{alive}");
        put(&client, "/registry/pods/a/2", "first").await?;
        read_events(&mut events, 1).await?;

        cluster.shards[0].process.kill()?;
        ensure!(socket.exists(), "kill -9 leaves the file");
        cluster.shards[0].process.restart().await?;
        put_again(&client, "/registry/pods/a/3").await?;
        read_events(&mut events, 1).await?;

        cluster.shards[0].process.stop().await?;
        ensure!(!socket.exists(), "a stop in good order removes the file");
        fs::write(&socket, "no socket")?;
        let taken = refused(&dir, "third", &url).await?;
        ensure!(taken.contains(&url) && taken.contains("no socket"), "{taken}");
        ensure!(fs::read_to_string(&socket)? == "no socket");
        fs::remove_file(&socket)?;
        cluster.shards[0].process.restart().await?;
        put_again(&client, "/registry/pods/a/4").await?;
        read_events(&mut events, 1).await?;
        let long = refused(&dir, "long", &format!("unix:///{}", "p".repeat(107))).await?;
        ensure!(long.contains("listen:") && long.contains("at most 107"), "{long}");
        report(&format!("e2e unix writes={} connections={connected}", WRITERS * WRITES + 6));
        Ok(())
    });
}

/// The endpoints of a store in the cluster's state.
async fn endpoints(up: &Up, store: &str) -> anyhow::Result<Vec<String>> {
    let path = format!("/api/v1/servicegroups/{store}");
    let (code, group) = Admin::at(&up.admin).ask("GET", &path, "").await?;
    ensure!(code == 200, "{path}: {code} {group}");
    let group: serde_json::Value = serde_json::from_str(&group)?;
    let endpoints = group["endpoints"].as_array().with_context(|| group.to_string())?;
    Ok(endpoints.iter().filter_map(|url| url.as_str().map(str::to_owned)).collect())
}

fn socket(up: &Up, store: &str) -> PathBuf {
    up.data_dir.join("sockets").join(store)
}

#[test]
fn kindred_up_with_unix_sockets() {
    scenario::run("up-unix", LIMIT, |dir| async move {
        let mut up = Up::start(&dir, "kindred", &["--unix".to_owned(), "--routers=2".to_owned()]).await?;
        let (stores, routers) = (up.stores()?, up.addresses("listen")?);
        ensure!(stores.len() == 5 && routers.len() == 2, "{}", up.process.ready_line());
        let mut clients = Vec::new();
        for router in &routers {
            clients.push(Client::connect(router).await?);
        }
        for (store, tcp) in &stores {
            let socket = socket(&up, store);
            let expected = [format!("unix://{}", socket.display()), format!("http://{tcp}")];
            ensure!(endpoints(&up, store).await? == expected, "{store}");
            ensure!(fs::symlink_metadata(&socket)?.permissions().mode() & 0o777 == 0o600, "{store}");
            ensure!(connections(&socket)? > 0, "no router is connected to {}", socket.display());
        }
        let dir_mode = fs::metadata(up.data_dir.join("sockets"))?.permissions().mode() & 0o777;
        ensure!(dir_mode == 0o700, "{dir_mode:o}");
        put(&clients[0], "/registry/pods/a/1", "one").await?;
        ensure!(get(&clients[1], "/registry/pods/a/1").await? == "one");
        // Each shard still listens at TCP too, for operators.
        let (_, pods) = stores.iter().find(|(name, _)| name == "pods").context("pods")?;
        ensure!(get(&Client::as_router(pods, &up.secret()).await?, "/registry/pods/a/1").await? == "one");

        up.kill_shard("pods")?;
        put_again(&clients[0], "/registry/pods/a/2").await?;
        ensure!(connections(&socket(&up, "pods"))? > 0, "it is found where it was");

        // A store that is added later gets a socket too.
        let body = serde_json::json!({
            "apiVersion": "v1", "kind": "ServiceGroup", "metadata": { "name": "more" }, "type": "shard",
        });
        Admin::at(&up.admin).ok("POST", "/api/v1/servicegroups", &body).await?;
        let more = wait_for("the added store", RECOVERY_LIMIT, || async {
            Ok(Some(endpoints(&up, "more").await?).filter(|endpoints| !endpoints.is_empty()))
        })
        .await?;
        ensure!(
            more.len() == 2 && more[0] == format!("unix://{}", socket(&up, "more").display()),
            "{more:?}"
        );

        up.process.stop().await?;
        let left: Vec<_> = fs::read_dir(up.data_dir.join("sockets"))?.flatten().collect();
        ensure!(left.is_empty(), "{left:?}");
        // The next `kindred up` runs without sockets.
        let again = Up::start(&dir, "kindred", &[]).await?;
        let only = endpoints(&again, "pods").await?;
        ensure!(only.len() == 1 && only[0].starts_with("http://"), "{only:?}");
        ensure!(get(&again.client().await?, "/registry/pods/a/2").await? == "again");
        report(&format!("e2e up_unix stores={} routers={}", stores.len() + 1, routers.len()));
        Ok(())
    });
}
