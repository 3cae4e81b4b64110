//! A second `kindred up` on the folder of an earlier one. All keys are on the stores to which a move had brought them,
//! and the move can still be reversed.

use std::time::Duration;

use anyhow::{Context, ensure};
use kindred_tests::{
    etcdctl::Etcdctl,
    scenario::{self, report, wait_for},
    servers::Up,
};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::e2e::moves::{Cli, fill};

const LIMIT: Duration = Duration::from_secs(180);
const LINE_LIMIT: Duration = Duration::from_secs(120);
const BACK_LIMIT: Duration = Duration::from_secs(30);
const SECRET: &str = "/registry/secrets/ns/s";
/// By default its Kind has mode `none`.
const EVENT: &str = "/registry/events/ns/e";

/// Every key with its metadata, and the revision of the read.
async fn everything(etcdctl: &Etcdctl) -> anyhow::Result<(Value, i64)> {
    let mut answer = etcdctl.json(&["get", "", "--prefix"]).await?;
    let revision = answer["header"]["revision"].as_i64().context("a revision")?;
    Ok((answer["kvs"].take(), revision))
}

/// Asserts that a watch from `revision + 1` delivers the next write.
async fn goes_on(etcdctl: &Etcdctl, revision: i64, value: &str) -> anyhow::Result<()> {
    let from = format!("--rev={}", revision + 1);
    let mut watch = etcdctl.start(&["watch", SECRET, &from])?;
    let mut lines = BufReader::new(watch.stdout.take().context("stdout")?).lines();
    etcdctl.ok(&["put", SECRET, value]).await?;
    for expected in ["PUT", SECRET, value] {
        let line =
            tokio::time::timeout(LINE_LIMIT, lines.next_line()).await.context("the watch is silent")??;
        ensure!(line.as_deref() == Some(expected), "{line:?}, expected {expected}");
    }
    watch.kill().await?;
    Ok(())
}

#[test]
fn a_second_up_finds_everything_where_it_was() {
    scenario::run("again", LIMIT, |dir| async move {
        let mut up = Up::start(&dir, "again", &[]).await?;
        let (cli, etcdctl) = (Cli::new(&up)?, Etcdctl::new(&up.address));
        fill(&etcdctl).await?;
        let granted = etcdctl.json(&["lease", "grant", "600"]).await?;
        let lease = format!("{:x}", granted["ID"].as_i64().context("a lease")?);
        etcdctl.ok(&["put", SECRET, "leased", "--lease", &lease]).await?;
        cli.ok(&["store", "add", "pods2", "--local"]).await?;
        cli.ok(&["move", "pods", "--to", "pods2"]).await?;
        // A clean stop writes even Kinds of mode `none` to disk.
        etcdctl.ok(&["put", EVENT, "in memory"]).await?;
        let (before, revision) = everything(&etcdctl).await?;

        ensure!(up.process.stop().await?.success());
        up.process.restart().await?;
        let (found, now) = everything(&etcdctl).await?;
        ensure!(
            found == before,
            "after a stop, {} keys are not those of before",
            found.as_array().map_or(0, Vec::len)
        );
        ensure!(now > revision, "the revision went from {revision} to {now}");
        let lives = etcdctl.ok(&["lease", "timetolive", &lease, "--keys"]).await?;
        ensure!(lives.contains("granted with TTL(600s)") && lives.contains(SECRET), "{lives}");
        let partitions = cli.ok(&["get", "dpc", "pods", "-o", "yaml"]).await?;
        ensure!(partitions.contains("serviceGroupId: pods2"), "{partitions}");
        goes_on(&etcdctl, now, "after a stop").await?;
        // After the restart the old owner first has to follow the new one again.
        let reversed = wait_for("the way back", BACK_LIMIT, || async {
            let said = cli.output(&["move", "reverse"]).await?;
            ensure!(said.success || said.stderr.contains("does not follow yet"), "{said:?}");
            Ok(said.success.then_some(said.stdout))
        })
        .await?;
        ensure!(reversed.contains("pods is on pods; "), "{reversed}");
        cli.ok(&["move", "complete"]).await?;

        etcdctl.ok(&["del", EVENT]).await?;
        let (before, revision) = everything(&etcdctl).await?;
        etcdctl.ok(&["put", EVENT, "in memory"]).await?;
        up.process.kill()?;
        up.process.restart().await?;
        let (found, now) = everything(&etcdctl).await?;
        ensure!(
            found == before,
            "after kill -9, {} keys are not those of before",
            found.as_array().map_or(0, Vec::len)
        );
        ensure!(now > revision, "the revision went from {revision} to {now}");
        goes_on(&etcdctl, now, "after kill -9").await?;
        report("e2e again stops=1 kills=1 keys=2001 lost=0");
        Ok(())
    });
}
