//! R14: an empty store replaces a store that is lost with its data. The old process is not used when it comes back.

use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use kindred_proto::etcdserverpb::{PutRequest, RangeRequest, RangeResponse, WatchResponse};
use kindred_tests::{
    client::Client,
    scenario::{self, report, wait_for},
    servers::{Shard, Up},
};
use tonic::Streaming;

use crate::e2e::{moves::Cli, watchers::watch};

const LIMIT: Duration = Duration::from_secs(180);
const SOON: Duration = Duration::from_secs(120);
const CLUSTER: &str = "--cluster-id=0x1ee7";
const PODS: &str = "/registry/pods/";

async fn put(client: &mut Client, name: &str) -> Result<i64, tonic::Status> {
    let key = Bytes::from(format!("{PODS}{name}"));
    let request = PutRequest { key, value: Bytes::from_static(b"x"), ..Default::default() };
    Ok(client.kv.put(request).await?.into_inner().header.map_or(0, |header| header.revision))
}

async fn pods(client: &mut Client, revision: i64) -> Result<RangeResponse, tonic::Status> {
    let (key, range_end) = (Bytes::from_static(PODS.as_bytes()), Bytes::from_static(b"/registry/pods0"));
    let request = RangeRequest { key, range_end, revision, ..Default::default() };
    Ok(client.kv.range(request).await?.into_inner())
}

fn names(pods: &RangeResponse) -> Vec<String> {
    let name =
        |key: &[u8]| String::from_utf8_lossy(key.strip_prefix(PODS.as_bytes()).unwrap_or(key)).into_owned();
    pods.kvs.iter().map(|kv| name(&kv.key)).collect()
}

async fn next(watch: &mut Streaming<WatchResponse>) -> anyhow::Result<WatchResponse> {
    let answer = tokio::time::timeout(SOON, watch.message()).await.context("the watch says nothing")??;
    answer.context("the watch stream ended")
}

/// Starts a process of the store `ext` with this slot.
async fn ext(up: &Up, dir: &std::path::Path, folder: &str, slot: u16) -> anyhow::Result<Shard> {
    let (slot, secret) =
        (format!("--slot={slot}"), format!("--cluster-secret-file={}", up.secret().display()));
    let flags = ["--name=ext", &slot, "--in-cluster", &secret, CLUSTER, "--durability=buffered"];
    Shard::start(dir, folder, &flags.map(str::to_owned)).await
}

#[test]
fn r14_a_lost_store_is_replaced_and_its_old_process_is_not_used() {
    scenario::run("replace", LIMIT, |dir| async move {
        let up = Up::start(&dir, "replace", &[CLUSTER.to_owned()]).await?;
        let (cli, mut client) = (Cli::new(&up)?, up.client().await?);
        let mut old = ext(&up, &dir, "old", 6).await?;
        cli.ok(&["store", "add", "ext", "--endpoint", &format!("http://{}", old.address)]).await?;
        put(&mut client, "before").await?;
        // The move can still be reversed, but its target is about to be lost.
        cli.ok(&["move", "pods", "--to", "ext"]).await?;
        let watcher = up.client().await?;
        let (_requests, mut events) = watch(&watcher, PODS, 1).await?;
        let shown = put(&mut client, "lost").await?;
        ensure!(next(&mut events).await?.events.len() == 1);

        // A store that is up cannot be replaced, but it can be drained.
        let new = ext(&up, &dir, "new", 7).await?;
        let url = format!("http://{}", new.address);
        let replace = ["store", "replace", "ext", "--endpoint", &url];
        let forced = [&replace[..], &["--force"]].concat();
        let said = cli.refused(&forced).await?;
        ensure!(said.contains("store \"ext\" is up; to take its keys away run kindred drain ext"), "{said}");
        old.process.kill()?;
        wait_for("a router that knows of the death", SOON, || async {
            let said = cli.refused(&replace).await?;
            Ok(said.contains("what only it has is lost").then_some(said))
        })
        .await?;
        let planned = cli.ok(&[&forced[..], &["--dry-run"]].concat()).await?;
        ensure!(planned.starts_with("servicegroups/ext configured (dry run)\n"), "{planned}");
        ensure!(put(&mut client, "nowhere").await.is_err(), "nothing was changed");

        let said = cli.ok(&forced).await?;
        ensure!(said.starts_with("store ext is replaced by an empty one, slot 7"), "{said}");
        ensure!(said.ends_with(&format!("store ext is up at {url}\n")), "{said}");
        // The old process comes back at its address, with its data.
        old.process.restart().await?;
        let written = put(&mut client, "new").await?;
        ensure!((written >> 10) - (shown >> 10) >= 20_000_000, "{written} follows {shown}");
        ensure!(written & 1023 == 7, "{written} is of slot 7");
        let listed = pods(&mut client, 0).await?;
        ensure!(names(&listed) == ["new"], "{listed:?}");
        ensure!(listed.header.map(|header| header.revision) >= Some(written));
        let compacted = pods(&mut client, shown).await.err().context("a revision of what is lost")?;
        ensure!(compacted.message().contains("required revision has been compacted"), "{compacted}");

        // A watch is canceled as compacted once. A new watch works.
        let canceled = next(&mut events).await?;
        ensure!(canceled.canceled && canceled.compact_revision > shown, "{canceled:?}");
        let (_requests, mut events) = watch(&watcher, PODS, 1).await?;
        put(&mut client, "newer").await?;
        ensure!(next(&mut events).await?.events.len() == 1);

        // No router has sent a handshake to the old process, so it serves nothing.
        let mut direct = Client::as_router(&old.address, &up.secret()).await?;
        let refused = pods(&mut direct, 0).await.err().context("the old process serves")?;
        ensure!(refused.code() == tonic::Code::Unavailable, "{refused}");
        let status = cli.ok(&["get", "servicegroups"]).await?;
        ensure!(status.lines().filter(|line| line.starts_with("ext ")).count() == 1, "{status}");

        // The move ends without the lost store, and its Kind moves again.
        cli.ok(&["move", "complete"]).await?;
        for to in ["pods", "ext"] {
            let said = cli.ok(&["move", "pods", "--to", to]).await?;
            ensure!(said.contains(&format!("pods is on {to}; ")), "{said}");
            cli.ok(&["move", "complete"]).await?;
        }
        ensure!(names(&pods(&mut client, 0).await?) == ["new", "newer"]);

        // The new store survives a crash with its data like any other.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut new = new;
        new.process.kill()?;
        new.process.restart().await?;
        let again = wait_for("a write to the restarted store", SOON, || async {
            let mut client = up.client().await?;
            Ok(put(&mut client, "again").await.ok())
        })
        .await?;
        ensure!(again > written && names(&pods(&mut client, 0).await?) == ["again", "new", "newer"]);
        report(&format!(
            "revisions went from {shown} to {written} to {again}; the old process was asked for nothing"
        ));
        Ok(())
    });
}

#[test]
fn r14_kindred_up_runs_the_new_store_itself() {
    scenario::run("replace-local", LIMIT, |dir| async move {
        let mut up = Up::start(&dir, "replace-local", &[]).await?;
        let (cli, mut client) = (Cli::new(&up)?, up.client().await?);
        let shown = put(&mut client, "lost").await?;
        // The file with the store's identity is damaged, so no process starts on this folder.
        let folder = up.data_dir.join("stores").join("pods");
        std::fs::write(folder.join("identity.json"), "{")?;
        up.kill_shard("pods")?;
        let replace = ["store", "replace", "pods", "--local"];
        wait_for("a router that knows of the death", SOON, || async {
            let said = cli.refused(&replace).await?;
            Ok(said.contains("what only it has is lost").then_some(said))
        })
        .await?;
        let said = cli.ok(&[&replace[..], &["--force"]].concat()).await?;
        ensure!(said.starts_with("store pods is replaced by an empty one, slot 6"), "{said}");
        ensure!(said.contains("\nstore pods is up at http://"), "{said}");
        let written = put(&mut client, "new").await?;
        ensure!(written > shown && written & 1023 == 6, "{written} follows {shown}");
        ensure!(names(&pods(&mut client, 0).await?) == ["new"]);
        let aside = std::fs::read_dir(up.data_dir.join("stores"))?.flatten();
        let aside = aside.filter(|entry| entry.file_name().to_string_lossy().starts_with("pods.removed-"));
        ensure!(aside.count() == 1, "what is left of the lost one is put aside");
        // The next start also uses the new store.
        up.process.stop().await?;
        up.process.restart().await?;
        let again = wait_for("a write after a restart of everything", SOON, || async {
            let mut client = up.client().await?;
            Ok(put(&mut client, "again").await.ok())
        })
        .await?;
        let mut client = up.client().await?;
        ensure!(again > written && names(&pods(&mut client, 0).await?) == ["again", "new"]);
        report(&format!("revisions went from {shown} to {written} to {again}"));
        Ok(())
    });
}

/// A disk was emptied while everything was down. The process on it is another store with the same name. It is refused
/// and reported everywhere, until an operator replaces the lost store.
#[test]
fn f02_an_emptied_disk_is_not_taken_for_the_store_that_it_was() {
    scenario::run("emptied", LIMIT, |dir| async move {
        let mut up = Up::start(&dir, "emptied", &[]).await?;
        let mut client = up.client().await?;
        let shown = put(&mut client, "lost").await?;
        ensure!(up.process.stop().await?.success());
        std::fs::remove_dir_all(up.data_dir.join("stores").join("pods"))?;
        up.process.restart().await?;
        let (cli, mut client) = (Cli::new(&up)?, up.client().await?);
        let status = cli.ok(&["status"]).await?;
        let line = status.lines().find(|line| line.starts_with("pods ")).context("the store is shown")?;
        for part in [" foreign ", "its disk was emptied", "kindred store replace pods"] {
            ensure!(line.contains(part), "{part}: {status}");
        }
        let refused = put(&mut client, "nowhere").await.err().context("a write to an emptied store")?;
        ensure!(refused.message().contains("its disk was emptied"), "{refused}");
        ensure!(pods(&mut client, 0).await.is_err(), "a list that shows nothing is no answer");
        let other = PutRequest { key: Bytes::from_static(b"/registry/secrets/n/s"), ..Default::default() };
        client.kv.put(other).await?;

        let said = cli.ok(&["store", "replace", "pods", "--local", "--force"]).await?;
        ensure!(said.contains("store pods is up at http://"), "{said}");
        let written = put(&mut client, "new").await?;
        ensure!(written > shown && names(&pods(&mut client, 0).await?) == ["new"]);
        report(&format!("revisions went from {shown} to {written}"));
        Ok(())
    });
}
