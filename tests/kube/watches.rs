//! A watch delivers every change once and in order: as it happens, later from a revision, and through kubectl.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, bail};
use kindred_tests::kube_client::{KubeClient, Watch, full_name, revision};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use crate::kube::{
    cluster::{Cluster, SEEN_LIMIT, Tally},
    load::many,
    objects::{ALL_PODS, NAMESPACES, collection, configmap, pod, spread},
};

/// A change as its writer knows it. A writer does not learn the revisions of a delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub kind: &'static str,
    pub name: String,
    pub revision: Option<u64>,
}

impl Change {
    fn of(kind: &'static str, object: &Value) -> anyhow::Result<Self> {
        Ok(Self { kind, name: full_name(object), revision: Some(revision(object)?) })
    }
}

pub async fn run(cluster: &Cluster) -> anyhow::Result<()> {
    one_writer(cluster).await?;
    many_writers(cluster).await?;
    through_kubectl(cluster).await
}

/// Creates `count` pods named after `stem`, changes each twice and deletes it. Returns the changes in their order.
pub async fn script(
    clients: &[&KubeClient],
    home: &str,
    stem: &str,
    count: usize,
) -> anyhow::Result<Vec<Change>> {
    let pods = collection(home, "pods");
    let mut changes = Vec::new();
    let mut turn = clients.iter().copied().cycle();
    let mut next = || turn.next().context("a client");
    for index in 0..count {
        let made = next()?.create(&pods, &pod(home, &spread(stem, index))).await?.ok()?;
        changes.push(Change::of("ADDED", &made)?);
    }
    for round in 1..=2 {
        for index in 0..count {
            let path = format!("{pods}/{}", spread(stem, index));
            let label = json!({"metadata": {"labels": {"round": round.to_string()}}});
            changes.push(Change::of("MODIFIED", &next()?.merge(&path, &label).await?.ok()?)?);
        }
    }
    for index in 0..count {
        let path = format!("{pods}/{}", spread(stem, index));
        let gone = next()?.delete(&path).await?.ok()?;
        // The apiserver first marks a pod as deleted, and then removes it.
        changes.push(Change { kind: "MODIFIED", name: full_name(&gone), revision: None });
        changes.push(Change { kind: "DELETED", name: full_name(&gone), revision: None });
    }
    Ok(changes)
}

/// Reads changes from a watch, which must be exactly those of `wanted`.
pub async fn follow(tally: &Tally, watch: &mut Watch, wanted: &[Change], what: &str) -> anyhow::Result<()> {
    let mut last = 0;
    for (index, change) in wanted.iter().enumerate() {
        let event = watch.change(SEEN_LIMIT).await.with_context(|| format!("{what}: {index}: {change:?}"))?;
        let at = revision(&event.object)?;
        tally.check(at > last, format_args!("{what}: revision {at} after {last}"))?;
        last = at;
        let got = (event.change.as_str(), full_name(&event.object));
        tally.equal(&got, &(change.kind, change.name.clone()), format_args!("{what}: event {index}"))?;
        if let Some(revision) = change.revision {
            tally.equal(&at, &revision, format_args!("{what}: revision of event {index}"))?;
        }
    }
    tally.add_watch_events(wanted.len());
    Ok(())
}

/// The revision of a consistent list.
pub async fn now(client: &KubeClient, path: &str) -> anyhow::Result<u64> {
    revision(&client.get(&format!("{path}?limit=1")).await?.ok()?)
}

async fn one_writer(cluster: &Cluster) -> anyhow::Result<()> {
    let (client, tally) = (&cluster.first.client, &cluster.tally);
    let home = NAMESPACES[0];
    let start = now(client, ALL_PODS).await?;
    let mut all = client.watch(ALL_PODS, Some(start)).await?;
    let mut here = client.watch(&collection(home, "pods"), Some(start)).await?;
    let mut elsewhere = client.watch(&collection(NAMESPACES[1], "pods"), Some(start)).await?;
    let changes = script(&[client], home, "watched", 12).await?;
    follow(tally, &mut all, &changes, "watch of all pods").await?;
    follow(tally, &mut here, &changes, "watch of a namespace").await?;

    // Watches that start later, from the beginning and from the middle, deliver the same changes.
    let mut late = client.watch(ALL_PODS, Some(start)).await?;
    follow(tally, &mut late, &changes, "watch from an older revision").await?;
    let middle = changes[changes.len() / 2].revision.context("a change with a revision")?;
    let mut late = client.watch(&collection(home, "pods"), Some(middle)).await?;
    follow(tally, &mut late, &changes[changes.len() / 2 + 1..], "watch from the middle").await?;

    // The watch of a namespace without changes begins with the next change there.
    let next = script(&[client], NAMESPACES[1], "watched", 1).await?;
    follow(tally, &mut elsewhere, &next, "watch of another namespace").await?;
    follow(tally, &mut all, &next, "watch of all pods, later").await
}

/// With several writers at once, a watch delivers each writer's changes in their order, and all by rising revision.
async fn many_writers(cluster: &Cluster) -> anyhow::Result<()> {
    const WRITERS: usize = 12;
    const ROUNDS: usize = 15;
    let (client, tally) = (&cluster.first.client, &cluster.tally);
    let path = &collection(NAMESPACES[2], "configmaps");
    let mut watch = client.watch(path, Some(now(client, path).await?)).await?;
    let written = many(WRITERS, |writer| async move {
        let name = spread("busy", writer);
        let made = client.create(path, &configmap(NAMESPACES[2], &name, "0")).await?.ok()?;
        let mut revisions = vec![revision(&made)?];
        for round in 1..ROUNDS {
            let value = json!({"data": {"value": round.to_string()}});
            let changed = client.merge(&format!("{path}/{name}"), &value).await?.ok()?;
            revisions.push(revision(&changed)?);
        }
        Ok((format!("{}/{name}", NAMESPACES[2]), revisions))
    })
    .await?;
    let wanted: BTreeMap<String, Vec<u64>> = written.into_iter().collect();
    let mut told: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    let mut last = 0;
    for _ in 0..WRITERS * ROUNDS {
        let event = watch.change(SEEN_LIMIT).await?;
        let at = revision(&event.object)?;
        tally.check(at > last, format_args!("revision {at} told after {last}"))?;
        last = at;
        told.entry(full_name(&event.object)).or_default().push(at);
    }
    tally.add_watch_events(WRITERS * ROUNDS);
    tally.equal(&told, &wanted, "what was told of each writer")?;
    many(WRITERS, |writer| async move {
        client.delete(&format!("{path}/{}", spread("busy", writer))).await?.ok()
    })
    .await?;
    Ok(())
}

/// `kubectl get --watch` prints the existing objects first, and then changes.
async fn through_kubectl(cluster: &Cluster) -> anyhow::Result<()> {
    let (client, tally) = (&cluster.first.client, &cluster.tally);
    let home = NAMESPACES[3];
    let there = crate::kube::load::names(cluster, &collection(home, "pods")).await?;
    let args = ["get", "pods", "-n", home, "--watch", "--output-watch-events", "-o", "json"];
    let mut kubectl = cluster.first.kubectl.start(&args)?;
    let mut output = JsonStream { from: kubectl.stdout.take().context("stdout")?, pending: Vec::new() };
    for _ in 0..there.len() {
        let listed = output.next(SEEN_LIMIT).await.context("what is there")?;
        tally.check(there.contains(&full_name(&listed["object"])), "kubectl lists what is there")?;
    }
    let changes = script(&[client], home, "shown", 8).await?;
    for (index, change) in changes.iter().enumerate() {
        let event = output.next(SEEN_LIMIT).await.with_context(|| format!("{index}: {change:?}"))?;
        let got = (event["type"].as_str().unwrap_or_default(), full_name(&event["object"]));
        tally.equal(&got, &(change.kind, change.name.clone()), format_args!("kubectl's event {index}"))?;
        if let Some(wanted) = change.revision {
            tally.equal(&revision(&event["object"])?, &wanted, "its revision")?;
        }
    }
    tally.add_watch_events(changes.len());
    kubectl.kill().await?;
    Ok(())
}

/// A stream of JSON documents, as kubectl prints them.
struct JsonStream<R> {
    from: R,
    pending: Vec<u8>,
}

impl<R: tokio::io::AsyncRead + Unpin> JsonStream<R> {
    async fn next(&mut self, limit: Duration) -> anyhow::Result<Value> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            let mut documents = serde_json::Deserializer::from_slice(&self.pending).into_iter::<Value>();
            match documents.next() {
                Some(Ok(document)) => {
                    let used = documents.byte_offset();
                    self.pending.drain(..used);
                    return Ok(document);
                }
                Some(Err(error)) if !error.is_eof() => return Err(error.into()),
                _ => {}
            }
            let read = self.from.read_buf(&mut self.pending);
            let count = tokio::time::timeout_at(deadline, read).await.context("nothing more printed")??;
            if count == 0 {
                bail!("kubectl ended");
            }
        }
    }
}
