//! `kindred-bench replay`: a trace of a mixed load, recorded at a router with several shards by `kindred trace`, leaves the
//! same keys at a fresh cluster.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{
    DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest,
    RangeRequest, WatchCreateRequest, WatchRequest, watch_request::RequestUnion,
};
use kindred_tests::{
    certs::Authority,
    client::Client,
    process::our_binary,
    scenario::{self, report},
    servers::Up,
};
use kindred_transport::{
    connect::Connector,
    tls::{ClientTls, ClientTlsSettings},
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};
use tokio_stream::wrappers::ReceiverStream;

use crate::e2e::ops::{below, delete_op, get_op, mod_is, put, put_of, put_op, range, txn};

const LIMIT: Duration = Duration::from_secs(120);
const KINDS: [&str; 3] = ["pods", "minions", "configmaps"];
const OBJECTS: usize = 12;
/// The last call of the load.
const END: &str = "/registry/marks/end";

/// A `kindred trace` that runs.
struct Trace {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    seen: Vec<String>,
}

impl Trace {
    fn begin(up: &Up, flags: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(our_binary("kindred")?);
        command.arg("trace").args(flags).arg(format!("--admin=http://{}", up.admin));
        let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        Ok(Self { _child: child, lines, seen: Vec::new() })
    }

    /// Reads until a call of this key, which is said whether it came.
    async fn until(&mut self, key: &str) -> anyhow::Result<()> {
        loop {
            let line = self.lines.next_line().await?.context("the trace ended")?;
            let found = serde_json::from_str::<Value>(&line)?["key"] == key;
            self.seen.push(line);
            if found {
                return Ok(());
            }
        }
    }

    /// Begins: repeats a call until the trace has it.
    async fn has_begun(&mut self, client: &Client) -> anyhow::Result<()> {
        let key = "/registry/marks/begin";
        loop {
            put(client, key, "x").await?;
            if let Ok(seen) = tokio::time::timeout(Duration::from_millis(100), self.until(key)).await {
                return seen;
            }
        }
    }

    /// The calls by method and Kind.
    fn counts(&self) -> anyhow::Result<BTreeMap<(String, String), u64>> {
        let mut counts = BTreeMap::new();
        for line in &self.seen {
            let line: Value = serde_json::from_str(line)?;
            let text = |field: &str| line[field].as_str().map(str::to_owned).context(line.to_string());
            *counts.entry((text("method")?, text("kind")?)).or_insert(0) += 1;
        }
        Ok(counts)
    }

    fn write(&self, file: PathBuf) -> anyhow::Result<PathBuf> {
        std::fs::write(&file, self.seen.join("\n") + "\n")?;
        Ok(file)
    }
}

/// Objects of a Kind are created, changed, listed and deleted as by an apiserver, and some by plain calls.
async fn load(client: Client, kind: &str) -> anyhow::Result<()> {
    let key = |at: usize| format!("/registry/{kind}/ns/x{at:02}");
    let mut revisions = Vec::new();
    for at in 0..OBJECTS {
        let value = "v".repeat(100 * (at + 1));
        let made = txn(&client, vec![mod_is(&key(at), 0)], vec![put_op(&key(at), &value)], vec![]).await?;
        ensure!(made.succeeded);
        revisions.push(made.header.context("a header")?.revision);
    }
    for (at, known) in revisions.iter().enumerate() {
        let (key, known) = (key(at), *known);
        let change = if at % 4 == 3 { delete_op(&key) } else { put_op(&key, &"w".repeat(50 + at)) };
        let changed = txn(&client, vec![mod_is(&key, known)], vec![change], vec![get_op(&key)]).await?;
        ensure!(changed.succeeded);
    }
    // One who knows an old revision.
    let stale =
        txn(&client, vec![mod_is(&key(0), revisions[0])], vec![put_op(&key(0), "no")], vec![]).await?;
    ensure!(!stale.succeeded);
    let prefix = format!("/registry/{kind}/");
    let page = range(&client, RangeRequest { limit: 4, ..below(&prefix) }).await?;
    let revision = page.header.context("a header")?.revision;
    range(&client, RangeRequest { limit: 4, revision, key: key(5).into(), ..below(&prefix) }).await?;
    put(&client, &format!("/registry/{kind}/gone/a"), "soon").await?;
    let gone = below(&format!("/registry/{kind}/gone/"));
    let delete = DeleteRangeRequest { key: gone.key, range_end: gone.range_end, ..Default::default() };
    ensure!(client.kv.clone().delete_range(delete).await?.into_inner().deleted == 1);
    Ok(())
}

/// Keys with leases, one of which is revoked.
async fn leases(client: Client) -> anyhow::Result<()> {
    let grant = async || {
        let granted = client.lease.clone().lease_grant(LeaseGrantRequest { ttl: 600, id: 0 }).await?;
        anyhow::Ok(granted.into_inner().id)
    };
    let (kept, revoked) = (grant().await?, grant().await?);
    for (name, lease) in [("kept", kept), ("revoked", revoked)] {
        let key = format!("/registry/events/ns/{name}");
        let leased = PutRequest { lease, ..put_of(&key, "leased") };
        client.kv.clone().put(leased).await?;
    }
    let (renewals, queue) = tokio::sync::mpsc::channel(1);
    renewals.send(LeaseKeepAliveRequest { id: kept }).await?;
    let mut renewed = client.lease.clone().lease_keep_alive(ReceiverStream::new(queue)).await?.into_inner();
    ensure!(renewed.message().await?.is_some_and(|answer| answer.ttl > 0));
    client.lease.clone().lease_revoke(LeaseRevokeRequest { id: revoked }).await?;
    Ok(())
}

/// Keys with the lengths of their values, or with the values, and whether they have a lease.
async fn keys(client: &Client, values: bool) -> anyhow::Result<BTreeMap<String, (String, bool)>> {
    let all = range(client, below("/registry/")).await?;
    let of = |value: &[u8]| match values {
        true => String::from_utf8_lossy(value).into_owned(),
        false => value.len().to_string(),
    };
    let keys = all.kvs.iter();
    Ok(keys
        .map(|kv| (String::from_utf8_lossy(&kv.key).into_owned(), (of(&kv.value), kv.lease != 0)))
        .collect())
}

/// Runs `kindred-bench replay` with these flags.
async fn replay(file: &Path, endpoint: &str, flags: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(our_binary("kindred-bench")?);
    command.arg("replay").arg(file).arg(format!("--endpoint={endpoint}")).args(flags);
    let output = command.kill_on_drop(true).output().await?;
    let said = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}

/// The counts in a report; no call failed.
fn reported(said: &str) -> anyhow::Result<BTreeMap<(String, String), u64>> {
    let mut counts = BTreeMap::new();
    for line in said.lines().filter(|line| line.starts_with("| ")).skip(2) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        ensure!(cells.len() == 11 && cells[3] == "0" && cells[4] == "0", "{line}");
        counts.insert((cells[0].to_owned(), cells[1].to_owned()), cells[2].parse()?);
    }
    Ok(counts)
}

/// Replays to a cluster that wants certificates, and compares the keys.
async fn by_tls(dir: &Path, file: &Path, expected: &BTreeMap<String, (String, bool)>) -> anyhow::Result<()> {
    let authority = Authority::new(dir, "authority")?;
    let (server, client) = (authority.leaf("server")?, authority.leaf("apiserver")?);
    let flag = |name: &str, file: &Path| format!("--{name}={}", file.display());
    let flags = [
        flag("cert-file", &server.cert),
        flag("key-file", &server.key),
        flag("trusted-ca-file", &authority.cert),
        "--client-cert-auth".to_owned(),
    ];
    let up = Up::start(dir, "secure", &flags).await?;
    let files = [("cacert", &authority.cert), ("cert", &client.cert), ("key", &client.key)];
    let [ca, cert, key] = files.map(|(name, file)| flag(name, file));
    let endpoint = format!("https://{}", up.address);
    let said = replay(file, &endpoint, &["--live-revisions", "--speed=max", &ca, &cert, &key]).await?;
    ensure!(said.contains("compares: 0 of "), "{said}");
    let tls = ClientTls::load(ClientTlsSettings {
        trusted_ca_file: Some(authority.cert.clone()),
        identity: Some((client.cert, client.key)),
        ..ClientTlsSettings::default()
    })?;
    let channel = Connector::with_tls(Some(tls)).channel(&endpoint.parse()?)?;
    let here = keys(&Client::over(channel), true).await?;
    ensure!(*expected == here, "{expected:?}\n{here:?}");
    Ok(())
}

#[test]
fn a_replayed_trace_leaves_the_keys_of_the_recorded_load() {
    scenario::run("replay", LIMIT, |dir| async move {
        let recorded = Up::start(&dir, "recorded", &[]).await?;
        let client = recorded.client().await?;
        let (mut shown, mut whole) = (Trace::begin(&recorded, &[])?, Trace::begin(&recorded, &["--values"])?);
        shown.has_begun(&client).await?;
        whole.has_begun(&client).await?;
        let create = WatchCreateRequest {
            key: "/registry/pods/".into(),
            range_end: "/registry/pods0".into(),
            ..Default::default()
        };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let (requests, queue) = tokio::sync::mpsc::channel(1);
        requests.send(create).await?;
        let mut watch = client.watch.clone().watch(ReceiverStream::new(queue)).await?.into_inner();
        ensure!(watch.message().await?.is_some_and(|answer| answer.created));
        let mut loads = tokio::task::JoinSet::new();
        for kind in KINDS {
            let client = recorded.client().await?;
            loads.spawn(async move { load(client, kind).await });
        }
        loads.spawn(leases(recorded.client().await?));
        while let Some(done) = loads.join_next().await {
            done??;
        }
        // With both halves gone the stream ends.
        drop((watch, requests));
        while !shown.seen.iter().any(|line| line.contains("\"method\":\"Watch\"")) {
            put(&client, END, "x").await?;
            shown.until(END).await?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        put(&client, END, "xx").await?;
        shown.until(END).await?;
        let puts = |trace: &Trace| trace.seen.iter().filter(|line| line.contains(END)).count();
        while puts(&whole) < puts(&shown) {
            whole.until(END).await?;
        }
        let expected = shown.counts()?;
        for method in
            ["Txn", "Range", "Put", "DeleteRange", "LeaseGrant", "LeaseKeepAlive", "LeaseRevoke", "Watch"]
        {
            ensure!(expected.keys().any(|(of, _)| of == method), "{method}: {expected:?}");
        }
        ensure!(shown.seen.iter().all(|line| !line.contains("\"request\"")), "values are shown");
        let (shown, whole) = (shown.write(dir.join("shown"))?, whole.write(dir.join("whole"))?);

        let fresh = Up::start(&dir, "fresh", &[]).await?;
        let said = replay(&shown, &fresh.address, &["--live-revisions", "--speed=4"]).await?;
        report(&format!("e2e replay:\n{said}"));
        ensure!(reported(&said)? == expected, "{expected:?}\n{said}");
        ensure!(said.contains("compares: 0 of ") && said.contains("0 of 3 that had failed"), "{said}");
        ensure!(said.contains("watches: 1, with ") && said.contains("; 0 ended early"), "{said}");
        ensure!(!said.contains("not replayed") && !said.contains("lost:"), "{said}");
        let (there, here) = (keys(&client, false).await?, keys(&fresh.client().await?, false).await?);
        ensure!(there == here, "{there:?}\n{here:?}");
        ensure!(
            here.contains_key("/registry/events/ns/kept") && here.len() > KINDS.len() * OBJECTS / 2,
            "{here:?}"
        );

        let second = Up::start(&dir, "second", &[]).await?;
        replay(&whole, &second.address, &["--live-revisions", "--speed=max", "--connections=2"]).await?;
        let (there, here) = (keys(&client, true).await?, keys(&second.client().await?, true).await?);
        ensure!(there == here, "{there:?}\n{here:?}");
        by_tls(&dir, &whole, &there).await?;
        // As recorded, compares with revisions of another store do not hold.
        let said = replay(&shown, &second.address, &["--speed=max"]).await?;
        ensure!(!said.contains("compares: 0 of ") && said.contains("compares: "), "{said}");
        Ok(())
    });
}

#[test]
fn a_file_that_is_no_trace_is_named_with_the_line() {
    scenario::run("replay-wrong", LIMIT, |dir| async move {
        let file = dir.join("trace");
        std::fs::write(&file, "\n{\"at\": 1}\n")?;
        let output = Command::new(our_binary("kindred-bench")?).arg("replay").arg(&file).output().await?;
        let said = String::from_utf8(output.stderr)?;
        ensure!(!output.status.success() && said.contains("trace:2"), "{said}");
        ensure!(said.contains("kindred trace"), "{said}");
        Ok(())
    });
}
