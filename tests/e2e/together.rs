//! `kindred up --together`: the stores run in the process of the first router.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{LeaseGrantRequest, PutRequest, RangeRequest};
use kindred_tests::{
    admin::Admin,
    client::Client,
    scenario::{self, report, wait_for},
    servers::Up,
};

use crate::e2e::{
    moves::Cli,
    watchers::{read_events, watch},
};

const LIMIT: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(60);
const CONFIG: &str = "default: main\nstores:\n- {name: main, slot: 1}\n- {name: pods, slot: 2}\n- {name: spare, slot: 3}\n\
                      partitions:\n- { metadata: { name: pods }, resource: pods, serviceGroupId: pods }\n";
const KEYS: [&str; 2] = ["/registry/configmaps/d/a", "/registry/pods/d/a"];

async fn put(client: &Client, key: &str, lease: i64) -> Result<i64, tonic::Status> {
    let put = PutRequest { key: key.to_owned().into(), value: "x".into(), lease, ..Default::default() };
    let answer = client.kv.clone().put(put).await?.into_inner();
    Ok(answer.header.map_or(0, |header| header.revision))
}

async fn keys(client: &Client) -> Result<Vec<String>, tonic::Status> {
    let all = RangeRequest { key: "/".into(), range_end: "0".into(), ..Default::default() };
    let answer = client.kv.clone().range(all).await?.into_inner();
    Ok(answer.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.key).into_owned()).collect())
}

/// The children of `kindred up`, by what they are.
fn children(up: &Up) -> anyhow::Result<Vec<(String, u32)>> {
    let parent = up.process.pid().context("kindred up is not running")?;
    let listed = Command::new("ps").args(["-o", "pid=,args=", "--ppid", &parent.to_string()]).output()?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let child = |line: &str| {
        let mut words = line.split_whitespace();
        let pid = words.next()?.parse().ok()?;
        Some((words.nth(1)?.to_owned(), pid))
    };
    Ok(text.lines().filter_map(child).collect())
}

fn is_line(log: &Path, part: &str) -> anyhow::Result<bool> {
    Ok(fs::read_to_string(log)?.lines().any(|line| line.contains(part)))
}

#[test]
fn stores_run_in_a_routers_process_and_come_back_with_it() {
    scenario::run("together", LIMIT, |dir| async move {
        let config = dir.join("config.yaml");
        fs::write(&config, CONFIG)?;
        let flags = [format!("--config={}", config.display()), "--together".to_owned()];
        let mut up = Up::start(&dir, "together", &flags).await?;
        let client = up.client().await?;
        let all = children(&up)?;
        let words: Vec<&str> = all.iter().map(|(word, _)| word.as_str()).collect();
        ensure!(words == ["shard", "router"], "the meta store and all others: {all:?}");

        let (_requests, mut events) = watch(&client, "/registry/pods/", 1).await?;
        let granted =
            client.lease.clone().lease_grant(LeaseGrantRequest { ttl: 600, id: 0 }).await?.into_inner();
        for key in KEYS {
            put(&client, key, granted.id).await?;
        }
        read_events(&mut events, 1).await?;
        let (_, text) = Admin::at(&up.admin).ask("GET", "/metrics", "").await?;
        for store in ["main", "pods", "spare"] {
            let line = format!("etcd_server_has_leader{{store=\"{store}\"}} 1");
            ensure!(text.lines().any(|of| of == line), "{line} is not in {text}");
        }

        // They all end, and come back with what they have acknowledged.
        let (_, router) = all.last().context("a router")?;
        ensure!(Command::new("kill").args(["-KILL", &router.to_string()]).status()?.success());
        wait_for("a write after the end of the process", SOON, || async {
            let Ok(client) = up.client().await else { return Ok(None) };
            Ok(put(&client, "/registry/pods/d/b", 0).await.ok())
        })
        .await?;
        let client = up.client().await?;
        let there = keys(&client).await?;
        ensure!(there == [KEYS[0], KEYS[1], "/registry/pods/d/b"], "{there:?}");
        client
            .lease
            .clone()
            .lease_revoke(kindred_proto::etcdserverpb::LeaseRevokeRequest { id: granted.id })
            .await?;
        ensure!(keys(&client).await? == ["/registry/pods/d/b"]);

        // The meta store, in which nothing happens now, is followed all the same.
        let log = dir.join("together.err.log");
        tokio::time::sleep(Duration::from_secs(6)).await;
        ensure!(
            !is_line(&log, "the meta store is listed again")?,
            "a quiet meta store was taken for a dead one"
        );

        // A store that is removed ends here. One of its name that is added later has a process of its own, and this one's data
        // is not its.
        let cli = Cli::new(&up)?;
        cli.ok(&["store", "remove", "spare"]).await?;
        let aside = up.data_dir.join("stores").join("spare.removed-3");
        wait_for("the end of the store", SOON, || async { Ok(aside.is_dir().then_some(())) }).await?;
        cli.ok(&["store", "add", "spare", "--local"]).await?;
        ensure!(children(&up)?.len() == 3, "{:?}", children(&up)?);

        // From the next start on it is with the others.
        up.process.stop().await?;
        up.process.restart().await?;
        ensure!(children(&up)?.len() == 2, "{:?}", children(&up)?);
        ensure!(keys(&up.client().await?).await? == ["/registry/pods/d/b"]);
        report("e2e together stores=3 processes=2");
        Ok(())
    });
}

#[test]
fn together_over_tls_and_with_flags_of_the_configuration() {
    scenario::run("together_tls", LIMIT, |dir| async move {
        let config = dir.join("config.yaml");
        fs::write(&config, format!("{CONFIG}up:\n  shard: {{flush-interval: 7ms}}\n"))?;
        let flags =
            [format!("--config={}", config.display()), "--together".to_owned(), "--auto-tls".to_owned()];
        let up = Up::start(&dir, "together_tls", &flags).await?;
        let certificates = up.data_dir.join("auto-tls");
        let file = |name: &str| certificates.join(name).display().to_string();
        let etcdctl = kindred_tests::etcdctl::Etcdctl::new(&format!("https://{}", up.address)).with(&[
            format!("--cacert={}", file("ca.crt")),
            format!("--cert={}", file("client.crt")),
            format!("--key={}", file("client.key")),
        ]);
        for key in KEYS {
            etcdctl.ok(&["put", key, "x"]).await?;
        }
        let listed = etcdctl.ok(&["get", "--prefix", "--keys-only", "/registry"]).await?;
        ensure!(listed.split_whitespace().eq(KEYS), "{listed}");
        Ok(())
    });
}
