//! Measures what durability costs a real kube-apiserver. It times writes, one by one and many at a time, over kindred
//! in each mode and over etcd. All use the same disk, and take turns in each round. `make bench ARGS=apiserver` runs it.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use kindred_tests::{
    kube::{Apiserver, ClusterFiles},
    scenario::{self, report},
    servers::{Etcd, Up},
};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(600);
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// The size of a value in bytes, which is that of a small object.
const VALUE: usize = 1024;
/// How many requests are under way at a time. Each round has both.
const WIDTHS: [usize; 2] = [1, 16];
const WRITES: usize = 600;
const ROUNDS: usize = 3;

/// A store with its apiserver.
struct Subject {
    name: &'static str,
    apiserver: Apiserver,
    /// For each width, the milliseconds of each write.
    took: [Vec<f64>; WIDTHS.len()],
    _store: Store,
}

/// The servers run until this is dropped.
enum Store {
    Kindred { _up: Up },
    Etcd { _etcd: Etcd },
}

async fn subject(dir: &Path, name: &'static str, mode: Option<&str>) -> anyhow::Result<Subject> {
    let (store, address) = match mode {
        Some(mode) => {
            let config = dir.join(format!("{name}.yaml"));
            let text = format!(
                "default: main\nstores:\n- {{name: main, slot: 1}}\nup:\n  shard: {{durability: {mode}}}\n"
            );
            std::fs::write(&config, text)?;
            let up = Up::start(dir, name, &[format!("--config={}", config.display())]).await?;
            let address = up.address.clone();
            (Store::Kindred { _up: up }, address)
        }
        None => {
            let etcd = Etcd::start_with(dir, name, &["--unsafe-no-fsync=false"]).await?;
            let address = etcd.address.clone();
            (Store::Etcd { _etcd: etcd }, address)
        }
    };
    let own = dir.join(format!("{name}-apiserver"));
    let files = ClusterFiles::create(&own)?;
    let flags = [format!("--etcd-servers=http://{address}")];
    let apiserver = Apiserver::start(&own, "apiserver", &files, &flags).await?;
    Ok(Subject { name, apiserver, took: Default::default(), _store: store })
}

fn config_map(name: &str) -> Value {
    let metadata = json!({"name": name, "namespace": "default"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": "v".repeat(VALUE)}})
}

impl Subject {
    async fn write(&mut self, round: usize) -> anyhow::Result<()> {
        for (took, width) in self.took.iter_mut().zip(WIDTHS) {
            let client = &self.apiserver.client;
            let one = |at: usize| async move {
                let object = config_map(&format!("c{round}-{width}-{at}"));
                let began = Instant::now();
                client.create(CONFIG_MAPS, &object).await?.ok()?;
                anyhow::Ok(began.elapsed().as_secs_f64() * 1000.0)
            };
            let all: Vec<f64> =
                stream::iter(0..WRITES).map(one).buffer_unordered(width).try_collect().await?;
            took.extend(all);
        }
        Ok(())
    }

    fn print(mut self) {
        for (took, width) in self.took.iter_mut().zip(WIDTHS) {
            took.sort_by(f64::total_cmp);
            let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
            let (median, high) = (at(0.5), at(0.99));
            report(&format!("| {} | {width} | {} | {median:.2} | {high:.2} |", self.name, took.len()));
        }
    }
}

fn main() {
    scenario::run("apiserver-writes", LIMIT, |dir| async move {
        let modes = [("kindred, fsync", Some("fsync")), ("kindred, buffered", Some("buffered"))];
        let more = [("kindred, none", Some("none")), ("etcd", None)];
        let mut subjects = Vec::new();
        for (name, mode) in modes.into_iter().chain(more) {
            let own = dir.join(mode.unwrap_or("etcd"));
            std::fs::create_dir(&own)?;
            subjects.push(subject(&own, name, mode).await.with_context(|| name.to_owned())?);
        }
        for round in 0..ROUNDS {
            for subject in &mut subjects {
                subject.write(round).await.with_context(|| subject.name.to_owned())?;
            }
        }
        report(
            "| a kube-apiserver over | at a time | creates of a ConfigMap | p50 ms | p99 ms |\n| --- | --- | --- | --- | --- |",
        );
        subjects.into_iter().for_each(Subject::print);
        Ok(())
    });
}
