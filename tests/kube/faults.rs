//! Events expire with their leases. Then the shard of the events is killed while clients write other objects.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use kindred_tests::{
    kube_client::{KubeClient, Watch, full_name, items, revision},
    scenario::{report, wait_for},
};
use serde_json::{Value, json};

use crate::kube::{
    cluster::{Cluster, EVENT_TTL, Kindred, SEEN_LIMIT},
    load::many,
    objects::{ALL_EVENTS, NAMESPACES, collection, event, new_event, pod, spread},
};

const EVENTS: usize = 24;

/// Kubernetes rounds leases up by as much as 5 %. Then the store has to delete the events, and the watch to deliver
/// the deletes.
const END_LIMIT: Duration = Duration::from_secs(45);

/// A dead shard must be back within this time, with the router connected to it.
const BACK_LIMIT: Duration = Duration::from_secs(20);

/// Events of both APIs are deleted after their TTL, and not before.
pub async fn events_end(cluster: &Cluster) -> anyhow::Result<()> {
    let (client, tally) = (&cluster.first.client, &cluster.tally);
    wait_for("earlier events to end", END_LIMIT, || async {
        let list = client.get(ALL_EVENTS).await?.ok()?;
        Ok(items(&list)?.is_empty().then_some(()))
    })
    .await?;
    let start = revision(&client.get(ALL_EVENTS).await?.ok()?)?;
    let mut old_api = client.watch(ALL_EVENTS, Some(start)).await?;
    let mut new_api = client.watch("/apis/events.k8s.io/v1/events", Some(start)).await?;
    let started = Instant::now();
    many(EVENTS, |index| async move { create_event(client, index).await }).await?;
    let created = Instant::now();
    tally.add_objects(EVENTS);
    let watches = [(&mut old_api, "v1"), (&mut new_api, "events.k8s.io")];
    for (watch, api) in watches {
        let added = tell(watch, "ADDED").await.with_context(|| format!("{api}: events that begin"))?;
        let gone = tell(watch, "DELETED").await.with_context(|| format!("{api}: events that end"))?;
        tally.equal(&gone, &added, format_args!("{api}: the events that end are those that began"))?;
        tally.add_watch_events(2 * EVENTS);
    }
    let lived = started.elapsed();
    tally.check(lived >= EVENT_TTL, format_args!("all events were gone after {lived:?}"))?;
    tally.equal(&items(&client.get(ALL_EVENTS).await?.ok()?)?.len(), &0, "events left")?;
    report(&format!("kube events={EVENTS} ended_after_seconds={:.1}", created.elapsed().as_secs_f64()));
    Ok(())
}

async fn create_event(client: &KubeClient, index: usize) -> anyhow::Result<Value> {
    let home = NAMESPACES[index % NAMESPACES.len()];
    let name = spread("ending", index);
    let path = collection(home, "events");
    if index.is_multiple_of(2) {
        client.create(&path, &event(home, &name)).await?.ok()
    } else {
        let path = path.replace("/api/v1/", "/apis/events.k8s.io/v1/");
        client.create(&path, &new_event(home, &name)).await?.ok()
    }
}

/// The names in the next `EVENTS` changes of a watch, which must all be of this type.
async fn tell(watch: &mut Watch, kind: &str) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for told in 0..EVENTS {
        let event = watch.change(END_LIMIT).await.with_context(|| format!("{told} told"))?;
        ensure!(event.change == kind, "{} {} instead of {kind}", event.change, full_name(&event.object));
        names.push(full_name(&event.object));
    }
    names.sort();
    Ok(names)
}

/// Kills the shard of the events with `kill -9`. Writes of other objects do not fail, the apiserver stays ready, and
/// events can soon be written again. Returns the name of the shard. Does nothing if the apiserver itself depends on it.
pub async fn kill_the_events_shard(cluster: &Cluster) -> anyhow::Result<Option<String>> {
    let Some(kindred) = cluster.kindred() else { return Ok(None) };
    let home = NAMESPACES[0];
    let victim = kindred.store_of(&format!("/registry/events/{home}/a")).to_owned();
    let pods = pods_elsewhere(kindred, home, &victim);
    if kindred.config.stores[usize::from(kindred.config.default.0)].name.0 == victim || pods.is_empty() {
        report(&format!("kube kill_shard skipped: {victim} holds more than events"));
        return Ok(None);
    }
    let events: Vec<String> = (0..)
        .map(|index| format!("killed-{index}"))
        .filter(|name| kindred.store_of(&format!("/registry/events/{home}/{name}")) == victim)
        .take(10_000)
        .collect();
    let client = &cluster.first.client;
    let before = client.create(&collection(home, "events"), &event(home, &events[0])).await?.ok()?;

    let (done, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let writers = many(pods.len(), |index| write_pod(client, &pods[index], &done, &written));
    let outage = async {
        let outage = outage(cluster, kindred, &victim, &events[1..], &written).await;
        done.store(true, Relaxed);
        outage
    };
    let ((back, after), _, ready) = tokio::try_join!(outage, writers, stays_ready(client, &done))?;
    cluster.tally.check(ready > 0, "the apiserver was asked whether it is ready")?;
    cluster.tally.check(
        revision(&after)? > revision(&before)?,
        "an event written by the new process has a higher revision than those of the old one",
    )?;
    report(&format!(
        "kube kill_shard={victim} back_after_seconds={:.1} pod_writes={} failed=0 ready_answers={ready}",
        back.as_secs_f64(),
        written.load(Relaxed)
    ));
    Ok(Some(victim))
}

/// Names for pods of this namespace that are not on this store. Each gets one writer.
fn pods_elsewhere(kindred: &Kindred, home: &str, store: &str) -> Vec<String> {
    (0..26)
        .map(|index| spread("steady", index))
        .filter(|name| kindred.store_of(&format!("/registry/pods/{home}/{name}")) != store)
        .take(4)
        .collect()
}

/// Creates, changes and deletes a pod repeatedly. No request may fail.
async fn write_pod(
    client: &KubeClient,
    name: &str,
    done: &AtomicBool,
    written: &AtomicU64,
) -> anyhow::Result<()> {
    let home = NAMESPACES[0];
    let pods = collection(home, "pods");
    while !done.load(Relaxed) {
        client.create(&pods, &pod(home, name)).await?.ok()?;
        let label = json!({"metadata": {"labels": {"round": written.load(Relaxed).to_string()}}});
        client.merge(&format!("{pods}/{name}"), &label).await?.ok()?;
        client.delete(&format!("{pods}/{name}")).await?.ok()?;
        written.fetch_add(3, Relaxed);
    }
    Ok(())
}

/// Asks the apiserver repeatedly whether it is ready, and fails if it ever is not. Returns the number of answers.
async fn stays_ready(client: &KubeClient, done: &AtomicBool) -> anyhow::Result<u64> {
    let mut answers = 0;
    while !done.load(Relaxed) {
        client.get("/readyz").await?.ok().context("the apiserver is not ready")?;
        answers += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(answers)
}

/// Kills the shard while pods are written. Returns how long events could not be written, and the first event
/// afterwards.
async fn outage(
    cluster: &Cluster,
    kindred: &Kindred,
    victim: &str,
    names: &[String],
    written: &AtomicU64,
) -> anyhow::Result<(Duration, Value)> {
    let more_written = |count: u64| {
        wait_for("pods to be written", SEEN_LIMIT, move || async move {
            Ok((written.load(Relaxed) >= count).then_some(()))
        })
    };
    more_written(12).await?;
    let pid = kindred.up.shard_pid(victim)?;
    kindred.up.kill_shard(victim)?;
    let killed = Instant::now();
    let (home, client) = (NAMESPACES[0], &cluster.first.client);
    let mut names = names.iter();
    let after = wait_for("events to be written again", BACK_LIMIT, || {
        // Each attempt has a name of its own, because a failed one may have been executed.
        let name = names.next();
        async move {
            let object = event(home, name.context("another name")?);
            // An answer may still have come from the old process while it died.
            let restarted = kindred.up.shard_pid(victim).is_ok_and(|now| now != pid);
            let answer = client.create(&collection(home, "events"), &object).await?;
            Ok((restarted && answer.status == 201).then_some(answer.body))
        }
    })
    .await?;
    let back = killed.elapsed();
    more_written(written.load(Relaxed) + 12).await?;
    let events = client.get(&collection(home, "events")).await?.ok()?;
    let listed = items(&events)?.iter().any(|event| full_name(event) == full_name(&after));
    cluster.tally.check(listed, "the event that was written is listed")?;
    Ok((back, after))
}
