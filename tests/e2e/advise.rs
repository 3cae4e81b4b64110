//! `kindred advise`: a full shard gives a Kind to one with room, and a busy one is told of.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, ensure};
use kindred_tests::{
    admin::Admin,
    process::our_binary,
    scenario::{self, report, wait_for},
    servers::Up,
};
use serde_json::Value;

use crate::e2e::ops::{below, put, range};

const LIMIT: Duration = Duration::from_secs(120);
const CONFIG: &str = "default: main\nstores:\n- {name: main, slot: 1}\n- {name: busy, slot: 2}\n- {name: rest, slot: 3}\n\
                      partitions:\n\
                      - {metadata: {name: pods}, resource: pods, serviceGroupId: busy}\n\
                      - {metadata: {name: nodes}, resource: nodes, serviceGroupId: busy}\n";

/// Runs `kindred advise` with these flags.
async fn advise(up: &Up, flags: &[&str]) -> anyhow::Result<String> {
    let mut command = tokio::process::Command::new(our_binary("kindred")?);
    command.args(["advise", "--seconds=2"]).args(flags).arg(format!("--admin=http://{}", up.admin));
    let output = command.kill_on_drop(true).output().await?;
    let said = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(said)
}

/// The stores of a Kind, by the map.
async fn stores_of(up: &Up, kind: &str) -> anyhow::Result<BTreeSet<String>> {
    let map = Admin::at(&up.admin).ok("GET", "/api/v1/partitions", &Value::Null).await?;
    let partitions = map["partitions"].as_array().context("partitions")?;
    let of = partitions.iter().filter(|partition| partition["resource"] == kind);
    let stores = of.flat_map(|partition| partition["stores"].as_array().into_iter().flatten());
    Ok(stores.filter_map(|store| store.as_str().map(str::to_owned)).collect())
}

/// The sum of the bytes and of the quota of a store.
async fn fill(up: &Up, store: &str) -> anyhow::Result<f64> {
    let kinds = Admin::at(&up.admin).ok("GET", "/api/v1/kinds", &Value::Null).await?;
    let of = kinds["stores"].as_array().into_iter().flatten().find(|of| of["store"] == store);
    let of = of.with_context(|| format!("{store}: {kinds}"))?;
    let [held, quota] = ["heldBytes", "quotaBytes"].map(|field| of[field].as_f64().unwrap_or_default());
    ensure!(held > 0.0 && quota > 0.0 && of["cpuSeconds"].as_f64() > Some(0.0), "{of}");
    Ok(held / quota)
}

#[test]
fn a_full_shard_gives_a_kind_on_advice_and_it_stays_there() {
    scenario::run("advise", LIMIT, |dir| async move {
        let file = dir.join("config.yaml");
        std::fs::write(&file, CONFIG)?;
        let up = Up::start(&dir, "kindred", &[format!("--config={}", file.display())]).await?;
        let client = up.client().await?;
        for at in 0..80 {
            // Nodes are called minions in etcd.
            let (kind, bytes) = if at < 40 { ("pods/ns", 50_000) } else { ("minions", 45_000) };
            put(&client, &format!("/registry/{kind}/x{at}"), &"v".repeat(bytes)).await?;
        }
        // Nobody asks anything, and the quota is the memory of a machine.
        let idle = advise(&up, &["--cores=60"]).await?;
        ensure!(idle.starts_with("nothing to do"), "{idle}");
        let room = format!("--room={}", fill(&up, "busy").await? * 0.95);
        let said = advise(&up, &["--cores=60", &room, "-o=json"]).await?;
        let said: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
        let first = &said["proposals"][0];
        ensure!(first["what"].as_str().is_some_and(|what| what.starts_with("move pods to ")), "{said}");
        ensure!(first["plan"]["moves"][0]["legs"][0]["keys"] == 40 && first["problem"].is_null(), "{said}");
        ensure!(
            stores_of(&up, "pods").await? == BTreeSet::from(["busy".to_owned()]),
            "advice changes nothing"
        );
        // A decision that is made again and again counts up; here no change may be made at all.
        let none = ["--auto", "--seconds=1", "--looks=1", "--changes-per-day=0", "--cores=60", &room];
        let waits = wait_for("decisions", LIMIT, || async {
            let mut auto = tokio::process::Command::new(our_binary("kindred")?);
            auto.arg("advise").args(none).arg(format!("--admin=http://{}", up.admin));
            let mut auto = auto.stdout(std::process::Stdio::null()).kill_on_drop(true).spawn()?;
            let ended = tokio::time::timeout(Duration::from_secs(6), auto.wait()).await;
            ensure!(ended.is_err(), "it goes on: {ended:?}");
            auto.kill().await?;
            let kept = Admin::at(&up.admin).ok("GET", "/api/v1/advice", &Value::Null).await?;
            let mut items = kept["items"].as_array().into_iter().flatten();
            Ok(items.find(|one| one["times"].as_u64() > Some(1)).cloned())
        })
        .await?;
        // Two stores can take it equally well.
        let is_of_pods =
            |one: &Value| one["what"].as_str().is_some_and(|what| what.starts_with("move pods to "));
        ensure!(waits["outcome"] == "waited" && is_of_pods(&waits), "{waits}");
        ensure!(waits["reason"] == "0 changes were made in a day", "{waits}");
        ensure!(stores_of(&up, "pods").await? == BTreeSet::from(["busy".to_owned()]), "{waits}");
        let said = advise(&up, &["--cores=60", &room, "--apply"]).await?;
        report(&format!("e2e advise: {}", said.lines().take(3).collect::<Vec<_>>().join(";")));
        let places = stores_of(&up, "pods").await?;
        ensure!(places.len() == 1 && !places.contains("busy"), "{places:?}: {said}");
        ensure!(stores_of(&up, "nodes").await? == BTreeSet::from(["busy".to_owned()]));
        ensure!(range(&client, below("/registry/pods/")).await?.kvs.len() == 40);
        let kept = Admin::at(&up.admin).ok("GET", "/api/v1/advice", &Value::Null).await?;
        let items = kept["items"].as_array().context("items")?;
        let (newest, older) = items.split_first().context("a decision")?;
        ensure!(newest["outcome"] == "applied" && items.iter().all(is_of_pods), "{kept}");
        ensure!(!older.is_empty() && older.iter().all(|one| one["outcome"] == "waited"), "{kept}");
        let history = advise(&up, &["--history"]).await?;
        let lines: Vec<&str> = history.lines().collect();
        ensure!(lines.len() == items.len() + 1 && lines[1].contains("applied"), "{history}");
        ensure!(lines[2].contains("0 changes were made in a day"), "{history}");
        // What the move frees counts until the operator lets the former copy go.
        let moves = Admin::at(&up.admin).ok("GET", "/api/v1/moves", &Value::Null).await?;
        let id = moves["items"][0]["metadata"]["name"].as_str().context("the move")?;
        Admin::at(&up.admin).ok("POST", &format!("/api/v1/moves/{id}/complete"), &Value::Null).await?;
        // The store that it is at now is not to be relieved in turn.
        let place = places.first().context("a store")?;
        wait_for("the former copy to go", LIMIT, || async {
            let said = advise(&up, &["--cores=60", &room]).await?;
            ensure!(!said.contains("move pods") && fill(&up, place).await? > 0.0, "{said}");
            Ok(said.starts_with("nothing to do").then_some(()))
        })
        .await?;
        Ok(())
    });
}

#[test]
fn a_shard_that_works_is_told_of_with_what_it_works_for() {
    scenario::run("advise-cores", LIMIT, |dir| async move {
        let file = dir.join("config.yaml");
        std::fs::write(&file, CONFIG)?;
        let up = Up::start(&dir, "kindred", &[format!("--config={}", file.display())]).await?;
        let client = up.client().await?;
        let load = tokio::spawn(async move {
            for at in 0_u64.. {
                put(&client, &format!("/registry/pods/ns/x{}", at % 50), "v").await?;
            }
            anyhow::Ok(())
        });
        let said = wait_for("advice", LIMIT, || async {
            let said = advise(&up, &["--cores=0.002"]).await?;
            Ok(said.contains("store busy uses").then_some(said))
        })
        .await?;
        ensure!(said.contains("of them for pods"), "{said}");
        load.abort();
        Ok(())
    });
}
