//! The command line as an operator uses it beside `kindred up`: objects, plans, refusals, and Kinds that move under a
//! watch.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use kindred_tests::{
    etcdctl::{self, Etcdctl},
    process::our_binary,
    scenario::{self, report},
    servers::{Shard, Up},
};
use tokio::io::{AsyncBufReadExt as _, BufReader};

const LIMIT: Duration = Duration::from_secs(180);
const LINE_LIMIT: Duration = Duration::from_secs(120);
/// The number of transactions. Each puts a hundred pods.
const BATCHES: usize = 20;

/// Runs `kindred --admin …`.
pub struct Cli {
    program: PathBuf,
    admin: String,
}

impl Cli {
    pub fn new(up: &Up) -> anyhow::Result<Self> {
        Ok(Self { program: our_binary("kindred")?, admin: format!("http://{}", up.admin) })
    }

    pub async fn output(&self, words: &[&str]) -> anyhow::Result<etcdctl::Output> {
        let all: Vec<&str> = ["--admin", &self.admin].iter().chain(words).copied().collect();
        etcdctl::run(&self.program, &all, "").await
    }

    pub async fn ok(&self, words: &[&str]) -> anyhow::Result<String> {
        self.output(words).await?.ok().with_context(|| format!("kindred {}", words.join(" ")))
    }

    /// The error output of a command that must fail.
    pub async fn refused(&self, words: &[&str]) -> anyhow::Result<String> {
        self.output(words).await?.failed().with_context(|| format!("kindred {}", words.join(" ")))
    }
}

async fn pods(etcdctl: &Etcdctl) -> anyhow::Result<i64> {
    let fields = etcdctl.ok(&["get", "/registry/pods/", "--prefix", "--count-only", "-w", "fields"]).await?;
    let count = fields.lines().find_map(|line| line.strip_prefix("\"Count\" : "));
    Ok(count.context("count")?.parse()?)
}

/// Writes `BATCHES` times a hundred pods.
pub async fn fill(etcdctl: &Etcdctl) -> anyhow::Result<()> {
    let value = "x".repeat(500);
    for batch in 0..BATCHES {
        let puts = (0..100).map(|at| format!("put /registry/pods/ns/pod-{batch:02}-{at:02} {value}\n"));
        let txn = format!("\n{}\n\n", puts.collect::<String>());
        ensure!(etcdctl.output(&["txn"], &txn).await?.ok()?.starts_with("SUCCESS"));
    }
    Ok(())
}

#[test]
fn the_command_line_shows_plans_and_refuses() {
    scenario::run("operate", LIMIT, |dir| async move {
        let up = Up::start(&dir, "operate", &[]).await?;
        let cli = Cli::new(&up)?;
        let table = cli.ok(&["get", "datapartitionconfigs"]).await?;
        ensure!(table.starts_with("NAME "), "{table}");
        ensure!(table.lines().any(|line| line.starts_with("pods ") && line.contains(" pods  ")), "{table}");
        let yaml = cli.ok(&["get", "dpc", "pods", "-o", "yaml"]).await?;
        ensure!(yaml.contains("serviceGroupId: pods\n"), "{yaml}");
        let status = cli.ok(&["status"]).await?;
        ensure!(status.contains("No move is under way."), "{status}");

        // A plan for a file that gives pods to another store shows the move and changes nothing.
        let file = dir.join("pods.yaml");
        std::fs::write(&file, yaml.replace("serviceGroupId: pods", "serviceGroupId: nodes"))?;
        let path = file.to_str().context("path")?;
        for words in [vec!["plan", "-f", path], vec!["apply", "-f", path, "--dry-run"]] {
            let planned = cli.ok(&words).await?;
            ensure!(planned.starts_with("datapartitionconfigs/pods configured (dry run)\n"), "{planned}");
            ensure!(planned.lines().any(|line| line.starts_with("pods   pods   nodes ")), "{planned}");
        }
        ensure!(cli.ok(&["get", "dpc", "pods", "-o", "yaml"]).await? == yaml);
        // The unchanged file moves no key.
        std::fs::write(&file, &yaml)?;
        ensure!(cli.ok(&["apply", "-f", path]).await? == "no key moves\n");

        let half =
            "kind: DataPartitionConfig\nmetadata: {name: more}\nresource: pods\nserviceGroupId: nodes\n";
        std::fs::write(&file, half)?;
        let refusals: [(&[&str], &str); 7] = [
            (&["move", "pdos", "--to", "nodes"], "did you mean \"pods\"?"),
            (&["move", "pods", "--to", "moon"], "there is no store \"moon\"; name one of default, leases"),
            (&["apply", "-f", path], "datapartitionconfigs/more"),
            (&["merge", "pods"], "pods is one range already"),
            (&["store", "remove", "pods"], "it still owns pods; run kindred drain pods"),
            (&["move", "status", "7"], "moves \"7\" not found"),
            (&["move", "abort"], "no move is under way"),
        ];
        for (words, expected) in refusals {
            let said = cli.refused(words).await?;
            ensure!(said.contains(expected), "{words:?}: {said}");
        }
        ensure!(cli.ok(&["get", "dpc", "-o", "json"]).await?.contains("\"resourceVersion\": \"1\""));
        report("3 shows, 3 plans and 7 refusals changed nothing");
        Ok(())
    });
}

#[test]
fn a_kind_moves_under_a_watch_and_comes_back() {
    scenario::run("move", LIMIT, |dir| async move {
        let up = Up::start(&dir, "move", &[]).await?;
        let (cli, etcdctl) = (Cli::new(&up)?, Etcdctl::new(&up.address));
        fill(&etcdctl).await?;
        let keys = (BATCHES * 100) as i64;
        ensure!(pods(&etcdctl).await? == keys);
        let mut watch = etcdctl.start(&["watch", "/registry/pods/", "--prefix"])?;
        let mut lines = BufReader::new(watch.stdout.take().context("stdout")?).lines();

        let added = cli.ok(&["store", "add", "pods2", "--local"]).await?;
        let said: Vec<&str> = added.lines().collect();
        ensure!(said.first() == Some(&"store pods2 added, slot 6"), "{added}");
        // Other lines may come in between: they say what the command waits for until the store is up.
        ensure!(said.last().is_some_and(|last| last.starts_with("store pods2 is up at ")), "{added}");
        let steps: [(&[&str], &str); 6] = [
            (&["move", "pods", "--to", "pods2"], "pods is on pods2; "),
            (&["move", "reverse"], "pods is on pods; "),
            (&["move", "complete"], "and there is no way back"),
            (&["split", "pods", "--at", "ns/pod-10", "--to", "pods2"], "pods is on pods2; "),
            (&["move", "complete"], "and there is no way back"),
            (&["merge", "pods"], "pods is on pods; "),
        ];
        for (at, (words, expected)) in steps.into_iter().enumerate() {
            let said = cli.ok(words).await?;
            ensure!(said.contains(expected), "{words:?}: {said}");
            if words[1] != "complete" {
                ensure!(said.contains("longest write pause "), "{words:?}: {said}");
            }
            // A write is read and delivered to the watch, on whatever store the key is.
            for name in ["pod-00", "pod-15"] {
                let key = format!("/registry/pods/ns/{name}-00");
                etcdctl.ok(&["put", &key, &format!("after {at}")]).await?;
                for expected in ["PUT", &key, &format!("after {at}")] {
                    let line = tokio::time::timeout(LINE_LIMIT, lines.next_line()).await;
                    let line = line.with_context(|| format!("the watch says nothing after {words:?}"))??;
                    ensure!(line.as_deref() == Some(expected), "{words:?}: {line:?}, expected {expected}");
                }
            }
            ensure!(pods(&etcdctl).await? == keys, "{words:?}");
        }
        ensure!(cli.refused(&["move", "abort"]).await?.contains("reverse it"));
        // The estimate of the next copy is based on the router's last copy.
        let planned = cli.ok(&["move", "nodes", "--to", "pods2", "--dry-run"]).await?;
        ensure!(planned.contains("a second: as the router made its last copy\n"), "{planned}");
        cli.ok(&["move", "complete"]).await?;
        // The store is empty, so it can be removed.
        let removed = cli.ok(&["store", "remove", "pods2"]).await?;
        ensure!(removed == "store pods2 removed\n", "{removed}");
        watch.kill().await?;
        report(&format!("{keys} pods moved, came back, were split and merged under one watch"));
        Ok(())
    });
}

#[test]
fn a_kind_does_not_go_where_there_is_no_room() {
    const ROOM: u64 = 200_000;
    scenario::run("no-room", LIMIT, |dir| async move {
        let up = Up::start(&dir, "no-room", &[]).await?;
        let (cli, etcdctl) = (Cli::new(&up)?, Etcdctl::new(&up.address));
        fill(&etcdctl).await?;
        let flags = ["--name=small".to_owned(), "--slot=6".to_owned(), format!("--quota=pods={ROOM}")];
        let small = Shard::start(&dir, "small", &flags).await?;
        cli.ok(&["store", "add", "small", "--endpoint", &format!("http://{}", small.address)]).await?;

        let json = cli.ok(&["move", "pods", "--to", "small", "--dry-run", "-o", "json"]).await?;
        let json: serde_json::Value = serde_json::from_str(&json)?;
        let leg = &json["plan"]["moves"][0]["legs"][0];
        let takes = leg["takesBytes"].as_u64().context("takesBytes")?;
        ensure!(leg["roomBytes"] == ROOM && takes > (BATCHES * 100 * 500) as u64, "{leg}");
        ensure!(leg["keys"] == BATCHES * 100 && leg["writtenPerSecond"].as_u64() > Some(0), "{leg}");
        let expected =
            format!("store \"small\" has room for {ROOM} bytes of pods, and {takes} are to move there");
        let planned = cli.ok(&["move", "pods", "--to", "small", "--dry-run"]).await?;
        ensure!(planned.contains(&format!("pods: {expected}\n")), "{planned}");
        let refused = cli.refused(&["move", "pods", "--to", "small"]).await?;
        ensure!(refused.contains(&format!("to: {expected}; raise the quota there")), "{refused}");
        let status = cli.ok(&["status"]).await?;
        ensure!(status.contains("No move is under way."), "{status}");
        // A part of the Kind that fits does move.
        let said = cli.ok(&["split", "pods", "--at", "ns/pod-19-50", "--to", "small"]).await?;
        ensure!(said.contains("pods is on small; "), "{said}");
        ensure!(pods(&etcdctl).await? == (BATCHES * 100) as i64);
        report(&format!("{takes} bytes of pods were not begun to be moved into {ROOM}; fifty pods were"));
        Ok(())
    });
}
