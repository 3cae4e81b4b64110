//! Kinds are spread over several shards as in `deploy/spread.yaml`, and the real `etcdctl` sees one etcd.

use std::{path::Path, time::Duration};

use anyhow::{Context, ensure};
use bytes::Bytes;
use kindred_proto::etcdserverpb::{PutRequest, RangeRequest};
use kindred_tests::{
    admin::Admin,
    client::Client,
    etcdctl::Etcdctl,
    scenario::{self, report, wait_for},
    servers::Up,
};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::e2e::moves::Cli;

const LIMIT: Duration = Duration::from_secs(180);
const LINE_LIMIT: Duration = Duration::from_secs(120);
const PODS: usize = 60;
const LEASES: usize = 40;

async fn put(client: &Client, key: &str) -> anyhow::Result<i64> {
    let request =
        PutRequest { key: key.to_owned().into(), value: Bytes::from_static(b"v"), ..Default::default() };
    let answer = client.kv.clone().put(request).await?.into_inner();
    Ok(answer.header.context("header")?.revision)
}

/// The number of keys below `/registry/` on one shard, read without a router.
async fn held(up: &Up, address: &str) -> anyhow::Result<i64> {
    let client = Client::as_router(address, &up.secret()).await?;
    let all = RangeRequest {
        key: "/registry/".into(),
        range_end: "/registry0".into(),
        count_only: true,
        ..Default::default()
    };
    Ok(client.kv.clone().range(all).await?.into_inner().count)
}

/// The value after `"NAME" : ` in the output of `-w fields`.
fn field(fields: &str, name: &str) -> anyhow::Result<String> {
    let head = format!("\"{name}\" : ");
    let value = fields.lines().find_map(|line| line.strip_prefix(&head));
    Ok(value.with_context(|| format!("no {name} in {fields}"))?.to_owned())
}

#[test]
fn kinds_over_several_shards_are_one_etcd() {
    scenario::run("spread", LIMIT, |dir| async move {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/spread.yaml");
        let up = Up::start(&dir, "spread", &[format!("--config={}", config.display())]).await?;
        let (client, etcdctl) = (up.client().await?, Etcdctl::new(&up.address));
        let first = put(&client, "/registry/configmaps/default/first").await?;

        // The watch covers every Kind from here on.
        let mut child =
            etcdctl.start(&["watch", "", "--prefix", &format!("--rev={}", first + 1), "-w", "json"])?;
        let mut lines = BufReader::new(child.stdout.take().context("stdout")?).lines();

        let mut written = Vec::new();
        for i in 0..PODS {
            let namespace = char::from(b'a' + u8::try_from(i * 7 % 26)?);
            let key = format!("/registry/pods/{namespace}/pod-{i}");
            written.push((put(&client, &key).await?, key));
            if i < LEASES {
                let key = format!("/registry/leases/kube-node-lease/node-{i}");
                written.push((put(&client, &key).await?, key));
            }
        }
        for (store, address) in up.stores()? {
            let count = held(&up, &address).await?;
            ensure!(count > 0, "{store} holds nothing");
            ensure!(store == "default" || count < i64::try_from(PODS)?, "{store} holds {count}");
        }

        let page =
            etcdctl.ok(&["get", "/registry/pods/", "--prefix", "--limit", "10", "-w", "fields"]).await?;
        let before = field(&page, "Revision")?;
        ensure!(field(&page, "Count")? == PODS.to_string() && field(&page, "More")? == "true", "{page}");
        ensure!(page.lines().filter(|line| line.starts_with("\"Key\" : ")).count() == 10, "{page}");
        let keys = etcdctl.ok(&["get", "/registry/", "--prefix", "--keys-only"]).await?;
        let keys: Vec<&str> = keys.lines().filter(|line| !line.is_empty()).collect();
        ensure!(keys.len() == PODS + LEASES + 1 && keys.is_sorted(), "{keys:?}");

        // Delete one pod in each range of names.
        for (revision, key) in written.clone().iter().filter(|(_, key)| key.starts_with("/registry/pods/")) {
            if ["/a/", "/h/", "/z/"].iter().any(|namespace| key.contains(namespace)) {
                let answer = etcdctl.json(&["del", key]).await?;
                let deleted = answer["header"]["revision"].as_i64().context("header")?;
                ensure!(deleted > *revision && answer["deleted"] == 1, "{key}: {answer}");
                written.push((deleted, key.clone()));
            }
        }
        let left = 2 * PODS + LEASES - written.len();
        let count = ["get", "/registry/pods/", "--prefix", "--limit", "10", "-w", "fields"];
        let now = etcdctl.ok(&count).await?;
        ensure!(field(&now, "Count")? == left.to_string(), "{left} pods are left: {now}");
        let at = format!("--rev={before}");
        let older = [&count[..], &[at.as_str()]].concat();
        let then = etcdctl.ok(&older).await?;
        ensure!(field(&then, "Count")? == PODS.to_string(), "at {before}: {then}");

        // The watch delivers all writes in the order of revisions.
        written.sort_unstable();
        let mut seen = Vec::new();
        while seen.len() < written.len() {
            let line = tokio::time::timeout(LINE_LIMIT, lines.next_line()).await;
            let line = line.with_context(|| format!("{} events of {}", seen.len(), written.len()))??;
            let response: serde_json::Value = serde_json::from_str(&line.context("etcdctl watch ended")?)?;
            for event in response["Events"].as_array().into_iter().flatten() {
                let revision = event["kv"]["mod_revision"].as_i64().context("mod_revision")?;
                let key = event["kv"]["key"].as_str().context("key")?.to_owned();
                seen.push((revision, key));
            }
        }
        // The JSON of etcdctl has keys in base64, so events are compared by their revisions.
        let revisions = |all: &[(i64, String)]| all.iter().map(|(revision, _)| *revision).collect::<Vec<_>>();
        ensure!(revisions(&seen) == revisions(&written), "seen {seen:?}\nwritten {written:?}");
        child.kill().await?;

        ensure!(etcdctl.ok(&["del", "/registry/pods/", "--prefix"]).await?.trim() == left.to_string());
        ensure!(etcdctl.ok(&["del", "/registry/leases/", "--prefix"]).await?.trim() == LEASES.to_string());
        ensure!(field(&etcdctl.ok(&count).await?, "Count")? == "0");
        ensure!(field(&etcdctl.ok(&older).await?, "Count")? == PODS.to_string());
        report(&format!("e2e spread shards=8 events={} pods={PODS} leases={LEASES}", seen.len()));
        Ok(())
    });
}

/// A Kind is merged and split again. A kube-apiserver's reads still work: the probe of the Kind, lists, counts, and a
/// watch from each revision that it received.
#[test]
fn f44_the_key_of_a_kind_is_answered_after_any_merge_and_split() {
    scenario::run("pseudo-key", LIMIT, |dir| async move {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/spread.yaml");
        let up = Up::start(&dir, "pseudo-key", &[format!("--config={}", config.display())]).await?;
        let (cli, etcdctl) = (Cli::new(&up)?, Etcdctl::new(&up.address));
        // Before the first write of a Kind, a watch can start after the revision in the header of a get.
        let shown: i64 =
            field(&etcdctl.ok(&["get", "/registry/pods/", "-w", "fields"]).await?, "Revision")?.parse()?;
        let early = ["watch", "/registry/pods/", "--prefix", &format!("--rev={}", shown + 1)];
        let mut early = etcdctl.start(&early)?;
        let mut lines = BufReader::new(early.stdout.take().context("stdout")?).lines();
        // One transaction writes keys on both sides of the splits that follow.
        let puts = ["a", "b", "h", "k"].map(|namespace| format!("put /registry/leases/{namespace}/x 1\n"));
        let alone = cli.ok(&["move", "leases", "--to", "leases-a"]).await;
        ensure!(alone.is_ok(), "{alone:?}");
        cli.ok(&["move", "complete"]).await?;
        let before: i64 =
            field(&etcdctl.ok(&["get", "/registry/leases", "-w", "fields"]).await?, "Revision")?.parse()?;
        ensure!(
            etcdctl.output(&["txn"], &format!("\n{}\n\n", puts.concat())).await?.ok()?.starts_with("SUCCESS")
        );
        for namespace in ["a", "h", "z"] {
            etcdctl.ok(&["put", &format!("/registry/pods/{namespace}/x"), "1"]).await?;
        }
        for namespace in ["a", "h", "z"] {
            for line in ["PUT".to_owned(), format!("/registry/pods/{namespace}/x"), "1".to_owned()] {
                let said = tokio::time::timeout(LINE_LIMIT, lines.next_line()).await??;
                ensure!(said.as_ref() == Some(&line), "{said:?} is not {line}");
            }
        }
        let steps = [
            "merge pods --to pods-b",
            "split pods --at g --to pods-a",
            "split leases --at c --to leases-b",
            "merge pods",
            "split pods --at d --to pods-c",
            "merge pods --to pods-a",
            "split pods --at g --to pods-b",
            "split leases --at i --to leases-a",
        ];
        for step in steps {
            cli.ok(&step.split(' ').collect::<Vec<_>>()).await?;
            cli.ok(&["move", "complete"]).await?;
            for (kind, keys) in [("pods", 3), ("leases", 4)] {
                let stem = format!("/registry/{kind}");
                let probe = etcdctl.ok(&["get", &stem, "-w", "fields"]).await.context(step)?;
                let probe: i64 = field(&probe, "Revision")?.parse()?;
                let prefix = format!("{stem}/");
                let list = etcdctl.ok(&["get", &prefix, "--prefix", "-w", "fields"]).await.context(step)?;
                let listed: i64 = field(&list, "Revision")?.parse()?;
                ensure!(listed >= probe && field(&list, "Count")? == keys.to_string(), "{step}: {list}");
                etcdctl.ok(&["get", &stem, &format!("--rev={listed}")]).await.context(step)?;
            }
        }
        // The events of the transaction come in one response, although several stores have them by now.
        let past = ["watch", "/registry/leases/", "--prefix", &format!("--rev={}", before + 1), "-w", "json"];
        let mut past = etcdctl.start(&past)?;
        let mut lines = BufReader::new(past.stdout.take().context("stdout")?).lines();
        let said = tokio::time::timeout(LINE_LIMIT, lines.next_line()).await??.context("a line")?;
        let said: serde_json::Value = serde_json::from_str(&said)?;
        ensure!(said["Events"].as_array().is_some_and(|events| events.len() == 4), "{said}");
        early.kill().await?;
        past.kill().await?;
        report("the keys of Kinds were answered after each of the steps");
        Ok(())
    });
}

/// The header of a get of one key is above the beginning of every shard of its Kind, so a watch can start there.
#[test]
fn f25_a_kind_that_was_never_written_is_watched_from_the_header_of_a_get() {
    scenario::run("spread-unwritten", LIMIT, |dir| async move {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/spread.yaml");
        let up = Up::start(&dir, "spread", &[format!("--config={}", config.display())]).await?;
        let (client, etcdctl) = (up.client().await?, Etcdctl::new(&up.address));
        let addresses = up.addresses("admin")?;
        let admin = Admin::at(addresses.first().context("an admin port")?);
        wait_for("all stores", LINE_LIMIT, async || {
            Ok((!admin.ask("GET", "/readyz?verbose", "").await?.1.contains("[!]store-")).then_some(()))
        })
        .await?;
        for (key, prefix) in [
            ("/registry/pods/", "/registry/pods/"),
            ("/registry/leases/kube-node-lease/node-1", "/registry/leases/"),
        ] {
            let read = etcdctl.json(&["get", key]).await?;
            let shown = read["header"]["revision"].as_i64().context("header")?;
            let from = format!("--rev={}", shown + 1);
            let mut child = etcdctl.start(&["watch", prefix, "--prefix", &from, "-w", "json"])?;
            let mut lines = BufReader::new(child.stdout.take().context("stdout")?).lines();
            let written = put(&client, &format!("{prefix}ns/new")).await?;
            ensure!(written > shown, "{written} is behind {shown}");
            let line = tokio::time::timeout(LINE_LIMIT, lines.next_line()).await??;
            let line = line.with_context(|| format!("the watch of {prefix} from {from} was canceled"))?;
            let response: serde_json::Value = serde_json::from_str(&line)?;
            ensure!(response["Events"][0]["kv"]["mod_revision"].as_i64() == Some(written), "{line}");
        }
        Ok(())
    });
}
