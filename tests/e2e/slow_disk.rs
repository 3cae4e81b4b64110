//! A disk does not answer for a while. Only operations that must be on disk first wait, and all others on the same
//! stream continue.

use std::{future::Future, path::Path, time::Duration};

use anyhow::{Context, ensure};
use futures_util::FutureExt as _;
use kindred_proto::{
    etcdserverpb::{PutRequest, RangeRequest},
    mvccpb::event::EventType,
    shard_v1::{LeaseAdoptRequest, LeaseEndRequest, SetModesRequest, shard_client::ShardClient},
};
use kindred_tests::{
    client::Client,
    scenario::{self, report, wait_for},
};
use tokio::task::{JoinHandle, JoinSet};
use tonic::{
    Code, Request, Status,
    transport::{Channel, Endpoint},
};

use crate::e2e::{
    cluster::Cluster,
    ops::{self, below, get_op, mod_is, open_calls, put_of, put_op, value_of},
    watchers::{next, watch},
};

const LIMIT: Duration = Duration::from_secs(60);
const STEP_LIMIT: Duration = Duration::from_secs(20);
const CONFIG: &str = "default: main\nstores:\n- {name: main, slot: 1}\n";
const A: &str = "/registry/secrets/ns/a";
const B: &str = "/registry/secrets/ns/b";
const C: &str = "/registry/secrets/ns/c";
const D: &str = "/registry/secrets/ns/d";
const PROBE: &str = "/registry/secrets/ns/probe";
/// A start makes fewer syncs than this.
const SYNCS: usize = 60;
const CLIENTS: usize = 8;
const TURNS: usize = 10;
/// The deadline of a client that gives up.
const PATIENCE: Duration = Duration::from_millis(200);

struct Held {
    /// The log of mode `fsync` does not sync while this file exists.
    file: std::path::PathBuf,
    /// The write whose sync does not end.
    first: JoinHandle<Result<i64, Status>>,
}

/// Writes until the failpoint blocks the disk.
async fn hold(client: &Client, file: &Path) -> anyhow::Result<Held> {
    for turn in 0..10 * SYNCS {
        let (client, value) = (client.clone(), turn.to_string());
        let mut first = tokio::spawn(async move { ops::put(&client, PROBE, &value).await });
        let held = wait_for("the failpoint", LIMIT, || async { Ok(file.exists().then_some(())) });
        tokio::select! {
            biased;
            answered = &mut first => answered??,
            held = held => {
                held?;
                return Ok(Held { file: file.to_owned(), first });
            }
        };
    }
    anyhow::bail!("the disk answered {} writes", 10 * SYNCS)
}

/// Begins a call, and waits until the shard has read it. So the shard reads calls in the order in which they begin.
async fn begin<T: Send + 'static>(
    admin: &str,
    method: &str,
    call: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> anyhow::Result<JoinHandle<Result<T, Status>>> {
    let before = open_calls(admin, method).await?;
    let begun = tokio::spawn(call);
    wait_for(&format!("{method} to be read"), STEP_LIMIT, || async {
        Ok((open_calls(admin, method).await? > before).then_some(()))
    })
    .await?;
    Ok(begun)
}

/// Concurrent writes and reads of Kinds that do not wait for the disk.
async fn others(client: &Client) -> anyhow::Result<()> {
    let mut tasks = JoinSet::new();
    for number in 0..CLIENTS {
        let client = client.clone();
        tasks.spawn(async move {
            for kind in ["pods", "configmaps"] {
                let key = format!("/registry/{kind}/ns/{number}");
                let (mut number, _) = ops::add_one(&client, &key).await?;
                for _ in 0..TURNS {
                    let (next, conflicts) = ops::add_one(&client, &key).await?;
                    ensure!(next == number + 1 && conflicts == 0, "{key}: {next} behind {number}");
                    number = next;
                }
                let written = ops::put(&client, &key, "0").await?;
                let found = ops::get(&client, &key).await?;
                ensure!(value_of(&found)? == ("0".into(), written), "{found:?}");
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

#[test]
fn r9_a_write_that_waits_for_the_disk_holds_up_nothing_else_of_its_stream() {
    scenario::run("slow-disk", LIMIT, |dir| async move {
        let flags = |_: &str| {
            vec![
                "--durability=none".to_owned(),
                "--durability-of=secrets=fsync,configmaps=buffered".to_owned(),
            ]
        };
        let mut cluster = Cluster::start(&dir, CONFIG, &["main"], flags).await?;
        let file = dir.join("held");
        let process = &mut cluster.shards[0].process;
        process.kill()?;
        process.set_env(vec![
            ("KINDRED_SHARD_FAILPOINTS".to_owned(), format!("fsync-log.sync.before=wait@{SYNCS}")),
            ("KINDRED_SHARD_FAILPOINT_FILE".to_owned(), file.display().to_string()),
        ]);
        process.restart().await?;
        let admin = cluster.shards[0].admin.clone();
        let client = cluster.client().await?;
        let old = wait_for("the restarted shard", STEP_LIMIT, || async {
            Ok(ops::put(&client, A, "old").await.ok())
        })
        .await?;
        ops::put(&client, B, "old").await?;
        let (_requests, mut events) = watch(&client, "/registry/secrets/", 1).await?;

        let shard = Endpoint::from_shared(format!("http://{}", cluster.shards[0].address))?;
        let mut shard = ShardClient::new(shard.connect().await?);
        let modes = shard.set_modes(SetModesRequest::default()).await?.into_inner();

        let Held { file, first } = hold(&client, &file).await?;
        wait_for("the held write to be read", STEP_LIMIT, || async {
            Ok((open_calls(&admin, "Put").await? > 0).then_some(()))
        })
        .await?;
        let secrets =
            ops::range(&client, RangeRequest { count_only: true, ..below("/registry/secrets/") }).await?;
        let call = |key: &'static str, value: &'static str| {
            let client = client.clone();
            async move { ops::put(&client, key, value).await }
        };
        let newer = begin(&admin, "Put", call(A, "newer")).await?;
        let newest = begin(&admin, "Put", call(A, "newest")).await?;
        let deleted = client.clone();
        let deleted = begin(&admin, "DeleteRange", async move { ops::delete(&deleted, B).await }).await?;
        // This txn compares with a write that is not visible yet, so its answer waits too (R9).
        let lost = client.clone();
        let lost = async move {
            ops::txn(&lost, vec![mod_is(A, old)], vec![put_op(A, "lost")], vec![get_op(A)]).await
        };
        let lost = begin(&admin, "Txn", lost).await?;
        let left = begin(&admin, "Put", call(D, "left")).await?;
        others(&client).await?;
        // A read over several Kinds needs one revision at which all of them are visible, so it waits too.
        let all = client.clone();
        let all =
            async move { ops::range(&all, RangeRequest { count_only: true, ..below("/registry/") }).await };
        let all = begin(&admin, "Range", all).await?;
        // The shard executes in order and has just answered later operations, so it has executed all of these. A
        // client that goes away changes none of them.
        left.abort();
        ensure!(left.await.is_err_and(|ended| ended.is_cancelled()));
        let mut hasty = Request::new(put_of(C, "given up"));
        hasty.set_timeout(PATIENCE);
        let hasty = client.kv.clone().put(hasty).await.err().context("answered before its sync")?;
        ensure!(matches!(hasty.code(), Code::DeadlineExceeded | Code::Cancelled), "{hasty:?}");
        others(&client).await?;
        others(&cluster.client().await?).await?;

        // A router that starts now sends the modes that are in force, which changes nothing.
        let again = SetModesRequest { generation: modes.generation, ..SetModesRequest::default() };
        ensure!(shard.set_modes(again).await.context("modes that change nothing")?.into_inner() == modes);
        // Modes of a later state of the cluster wait for the disk, and nothing else waits for them.
        let edition = SetModesRequest { generation: modes.generation + 1, ..SetModesRequest::default() };
        let edition = tokio::spawn(async move { shard.set_modes(edition).await });
        others(&client).await?;
        others(&client).await?;
        let shown = ops::get(&client, A).await?;
        ensure!(value_of(&shown)? == ("old".into(), old), "{shown:?}");
        ensure!(value_of(&ops::get(&client, B).await?)?.0 == "old");
        ensure!(ops::get(&client, D).await?.kvs.is_empty());
        let now = ops::range(&client, RangeRequest { limit: 1, ..below("/registry/secrets/") }).await?;
        ensure!(now.count == secrets.count && value_of(&now)? == ("old".into(), old), "{now:?}");
        let waiting = [
            first.is_finished(),
            newer.is_finished(),
            newest.is_finished(),
            deleted.is_finished(),
            lost.is_finished(),
        ];
        ensure!(!edition.is_finished(), "modes were answered before they were on disk: {:?}", edition.await);
        ensure!(waiting == [false; 5] && !all.is_finished(), "answered before it was on disk: {waiting:?}");
        ensure!(file.exists(), "the disk has answered");
        // The watch has received the acknowledged writes and nothing else.
        let mut last = old;
        while let Some(seen) = next(&mut events).now_or_never() {
            for event in seen?.events {
                let kv = event.kv.context("kv")?;
                ensure!(kv.key == PROBE && kv.mod_revision > last, "{kv:?}");
                last = kv.mod_revision;
            }
        }

        std::fs::remove_file(&file)?;
        let edition = edition.await?.context("a later edition of the modes")?.into_inner();
        ensure!(edition.generation == modes.generation + 1 && edition.unmet == modes.unmet, "{edition:?}");
        let (first, newer, newest) = (first.await??, newer.await??, newest.await??);
        let (count, deleted) = deleted.await??;
        ensure!(old < first && first < newer && newer < newest && newest < deleted && count == 1);
        let lost = lost.await??;
        ensure!(!lost.succeeded && format!("{lost:?}").contains("newest"), "{lost:?}");
        let all = all.await??;
        let kept = ops::get(&client, D).await?;
        ensure!(value_of(&kept)?.0 == "left" && kept.kvs[0].mod_revision > deleted, "{kept:?}");
        let all_now = 2 * i64::try_from(CLIENTS)? + 3;
        // Whether C was written is not known, as its client gave up.
        ensure!(all.count == all_now || all.count == all_now + 1, "{all:?}");
        ensure!(value_of(&ops::get(&client, A).await?)? == ("newest".into(), newest));
        ensure!(ops::get(&client, B).await?.kvs.is_empty());
        let (key, end) =
            ("/registry/secrets/ns/z", ops::put(&client, "/registry/secrets/ns/z", "end").await?);
        let mut seen = Vec::new();
        while seen.last().is_none_or(|(_, revision, _)| *revision < end) {
            for event in next(&mut events).await?.events {
                let gone = event.r#type() == EventType::Delete;
                let kv = event.kv.context("kv")?;
                seen.push((String::from_utf8(kv.key.to_vec())?, kv.mod_revision, gone));
            }
        }
        ensure!(seen.is_sorted_by(|a, b| a.1 < b.1) && seen[0].1 > last, "{seen:?}");
        seen.retain(|(key, revision, _)| key != C && *revision >= first);
        let expected = [(PROBE, first, false), (A, newer, false), (A, newest, false), (B, deleted, true)];
        let expected = expected.into_iter().chain([(D, kept.kvs[0].mod_revision, false), (key, end, false)]);
        let expected: Vec<_> =
            expected.map(|(key, revision, gone)| (key.to_owned(), revision, gone)).collect();
        ensure!(seen == expected, "{seen:?}\n{expected:?}");
        report(&format!("e2e slow_disk held=6 others={}", 3 * CLIENTS * 2 * (TURNS + 3)));
        Ok(())
    });
}

/// Two routers end the same lease at once. Neither is answered while the keys of the lease are still visible.
#[test]
fn r12_the_end_of_a_lease_is_told_when_it_is_seen_and_not_before() {
    scenario::run("slow-lease", LIMIT, |dir| async move {
        const LEASE: i64 = 7 << 10 | 2;
        let flags =
            |_: &str| vec!["--durability=none".to_owned(), "--durability-of=secrets=fsync".to_owned()];
        let mut cluster = Cluster::start(&dir, CONFIG, &["main"], flags).await?;
        let file = dir.join("held");
        let process = &mut cluster.shards[0].process;
        process.kill()?;
        process.set_env(vec![
            ("KINDRED_SHARD_FAILPOINTS".to_owned(), format!("fsync-log.sync.before=wait@{SYNCS}")),
            ("KINDRED_SHARD_FAILPOINT_FILE".to_owned(), file.display().to_string()),
        ]);
        process.restart().await?;
        let client = cluster.client().await?;
        wait_for("the restarted shard", STEP_LIMIT, || async { Ok(ops::put(&client, B, "old").await.ok()) })
            .await?;
        let endpoint = Endpoint::from_shared(format!("http://{}", cluster.shards[0].address))?;
        let mut shard = ShardClient::new(endpoint.connect().await?);
        let adopt = LeaseAdoptRequest { id: LEASE, granted_ttl: 600, home_slot: 2, ..Default::default() };
        shard.lease_adopt(adopt).await?;
        let direct = Client::connect(&cluster.shards[0].address).await?;
        let put = PutRequest { key: A.into(), value: "old".into(), lease: LEASE, ..Default::default() };
        direct.kv.clone().put(put).await?;

        let Held { file, first } = hold(&client, &file).await?;
        let end = |mut shard: ShardClient<Channel>| async move {
            shard.lease_end(LeaseEndRequest { id: LEASE, ..Default::default() }).await.map(drop)
        };
        let ends = [tokio::spawn(end(shard.clone())), tokio::spawn(end(shard.clone()))];
        for _ in 0..50 {
            ops::put(&client, "/registry/pods/ns/other", "x").await?;
        }
        let seen = value_of(&ops::get(&client, A).await?)?.0 == "old";
        let told = ends.iter().any(JoinHandle::is_finished);
        ensure!(seen && !told, "the key is seen: {seen}, the end is told: {told}");
        std::fs::remove_file(&file)?;
        for end in ends {
            end.await??;
        }
        first.await??;
        let found = ops::get(&client, A).await?;
        ensure!(value_of(&found).is_err(), "{found:?}");
        report("e2e slow_lease ends=2");
        Ok(())
    });
}
