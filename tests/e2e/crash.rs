//! A shard is killed. Its Kind is unavailable until it restarts, and no other Kind is affected.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use kindred_proto::etcdserverpb::{PutRequest, WatchResponse};
use kindred_tests::{
    client::Client,
    scenario::{self, report, wait_for},
    servers::Up,
};
use tonic::Streaming;

use crate::e2e::watchers::watch;

const LIMIT: Duration = Duration::from_secs(120);
const RECOVERY_LIMIT: Duration = Duration::from_secs(120);

async fn put(client: &mut Client, key: String) -> Result<i64, tonic::Status> {
    let request = PutRequest { key: Bytes::from(key), value: Bytes::from_static(b"x"), ..Default::default() };
    let answer = client.kv.put(request).await?.into_inner();
    Ok(answer.header.map_or(0, |header| header.revision))
}

#[test]
fn a_dead_shard_is_its_own_kinds_problem() {
    scenario::run("dead_shard", LIMIT, |dir| async move {
        let up = Up::start(&dir, "kindred", &[]).await?;
        let mut client = up.client().await?;
        put(&mut client, "/registry/events/ns/before".to_owned()).await?;
        let pods_client = up.client().await?;
        let (_pods_requests, mut pods) = watch(&pods_client, "/registry/pods/", 1).await?;
        let events_client = up.client().await?;
        let (_events_requests, mut events) = watch(&events_client, "/registry/events/", 1).await?;

        // A writer writes pods during the whole test.
        let stop = Arc::new(AtomicBool::new(false));
        let written = Arc::new(AtomicUsize::new(0));
        let mut writer = up.client().await?;
        let writing = tokio::spawn({
            let (stop, written) = (stop.clone(), written.clone());
            async move {
                while !stop.load(Ordering::Relaxed) {
                    let index = written.load(Ordering::Relaxed);
                    put(&mut writer, format!("/registry/pods/ns/{index}"))
                        .await
                        .context("a write to pods")?;
                    written.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            }
        });

        let before_kill = up.shard_pid("events")?;
        up.kill_shard("events")?;
        let killed = Instant::now();
        wait_for("a new process of the events shard", RECOVERY_LIMIT, || async {
            Ok(up.shard_pid("events").ok().filter(|&pid| pid != before_kill))
        })
        .await?;
        // The time from the shard's first answer to a direct client until the router serves it again is reported.
        let stores = up.stores()?;
        let (_, address) = stores.iter().find(|(name, _)| name == "events").context("no events shard")?;
        wait_for("the restarted events shard", RECOVERY_LIMIT, || async {
            Ok(Client::connect(address).await.ok())
        })
        .await?;
        let ready = Instant::now();
        let away = ready - killed;
        let mut refused = 0;
        let revision = loop {
            match put(&mut client, "/registry/events/ns/after".to_owned()).await {
                Ok(revision) => break revision,
                Err(_) => refused += 1,
            }
            ensure!(ready.elapsed() < RECOVERY_LIMIT, "events are still refused");
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        let recovered = ready.elapsed();

        stop.store(true, Ordering::Relaxed);
        writing.await??;
        let written = written.load(Ordering::Relaxed);
        ensure!(written > 0);
        count_events(&mut pods, written).await.context("the watch of pods")?;
        let ending = resumed_or_compacted(&mut events, revision).await.context("the watch of events")?;
        report(&format!(
            "e2e dead_shard pods_written={written} pods_failed=0 events_refused={refused} shard_away={away:.1?} \
             router_recovered_in={recovered:.1?} events_watch={ending}"
        ));
        Ok(())
    });
}

async fn next(answers: &mut Streaming<WatchResponse>) -> anyhow::Result<WatchResponse> {
    let answer =
        tokio::time::timeout(RECOVERY_LIMIT, answers.message()).await.context("no watch answer")??;
    answer.context("the watch stream ended")
}

async fn count_events(answers: &mut Streaming<WatchResponse>, wanted: usize) -> anyhow::Result<()> {
    let mut seen = 0;
    while seen < wanted {
        let answer = next(answers).await?;
        ensure!(!answer.canceled, "canceled: {answer:?}");
        seen += answer.events.len();
    }
    ensure!(seen == wanted, "{seen} events, {wanted} were written");
    Ok(())
}

/// The shard's data was only in memory, so its watches are canceled as compacted, or continue with later writes.
async fn resumed_or_compacted(
    answers: &mut Streaming<WatchResponse>,
    revision: i64,
) -> anyhow::Result<&'static str> {
    loop {
        let answer = next(answers).await?;
        if answer.canceled {
            ensure!(answer.compact_revision > 0, "canceled, but not as compacted: {answer:?}");
            return Ok("compacted");
        }
        if answer.events.iter().any(|event| event.kv.as_ref().is_some_and(|kv| kv.mod_revision == revision)) {
            return Ok("resumed");
        }
    }
}
