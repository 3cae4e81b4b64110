//! Pods move from a shard to a real etcd under clients at two routers, and all that was written is there.

use std::{path::Path, sync::atomic::Ordering, time::Duration};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest,
};
use kindred_tests::{
    admin::Admin,
    client::Client,
    etcdctl,
    process::our_binary,
    scenario::{self, report, wait_for},
    servers::Etcd,
};
use serde_json::json;

use crate::e2e::from_etcd::{Clients, Cluster, fill, list};

const LIMIT: Duration = Duration::from_secs(240);
const STEP_LIMIT: Duration = Duration::from_secs(60);
/// The turns of each writer before the move, and after it.
const SOME: usize = 30;

/// An etcd whose revisions are above those of shards.
pub async fn prepared(dir: &Path, name: &str) -> anyhow::Result<Etcd> {
    let file = dir.join("prepared.db");
    let path = file.to_str().context("a path")?;
    let made = etcdctl::run(&our_binary("kindred")?, &["leave", "prepare", path], "").await?;
    ensure!(made.success, "{made:?}");
    Etcd::restored(dir, name, &file).await
}

async fn begin(admin: &Admin) -> anyhow::Result<u64> {
    let ids = admin.change("move", &json!({ "kind": "pods", "to": "old" })).await?;
    ids.first().copied().context("a move")
}

#[test]
fn pods_move_to_an_etcd_under_clients() {
    scenario::run("to-etcd", LIMIT, |dir| async move {
        let cluster = Cluster::start_on(&dir, prepared(&dir, "old").await?, "new").await?;
        let (one, two) = (cluster.router("one", "").await?, cluster.router("two", "").await?);
        let client = Client::connect(&one.address).await?;
        fill(&client).await?;
        let lease =
            client.lease.clone().lease_grant(LeaseGrantRequest { id: 0, ttl: 600 }).await?.into_inner().id;
        let leased = PutRequest { key: "/registry/pods/leased/a".into(), lease, ..PutRequest::default() };
        client.kv.clone().put(leased).await?;
        let mut clients = Clients::start(&[&one.address, &two.address]).await?;
        clients.shared.renumbers.store(true, Ordering::SeqCst);
        clients.some(SOME).await?;
        let id = begin(&one.admin).await?;
        one.admin.until(id, STEP_LIMIT, |shown| shown["phase"] == "Done").await?;
        clients.some(SOME).await?;
        let shared = clients.shared.clone();
        let written = clients.finish().await?;
        let (cancelled, conflicts) =
            (shared.cancelled.load(Ordering::SeqCst), shared.conflicts.load(Ordering::SeqCst));
        ensure!(cancelled <= 4, "{cancelled} cancellations of 4 watches");
        ensure!(conflicts <= written.len() + 8, "{conflicts} conflicts of {} keys", written.len());
        // The etcd itself has everything.
        let (listed, direct) = (list(&client).await?, list(&cluster.old.client().await?).await?);
        ensure!(listed.kvs == direct.kvs && listed.kvs.len() > 700, "{} keys", listed.kvs.len());
        for (key, (revision, value)) in &written {
            let kv = direct.kvs.iter().find(|kv| kv.key == key.as_bytes());
            let kv = kv.with_context(|| format!("{key} is lost"))?;
            ensure!(kv.mod_revision == *revision && kv.value == value.to_string(), "{kv:?}");
        }
        let asked = LeaseTimeToLiveRequest { id: lease, keys: true };
        let told = client.lease.clone().lease_time_to_live(asked).await?.into_inner();
        ensure!(told.keys == ["/registry/pods/leased/a"] && told.granted_ttl == 600, "{told:?}");
        report(&format!(
            "{} pods moved to an etcd; {cancelled} of 4 watches relisted, {conflicts} compares with older revisions",
            listed.kvs.len()
        ));
        Ok(())
    });
}

/// As when an adopted etcd is left for another one: its keys go there directly.
#[test]
fn pods_move_from_one_etcd_to_another_under_clients() {
    scenario::run("between-etcds", LIMIT, |dir| async move {
        let cluster = Cluster::start(&dir).await?;
        let next = prepared(&dir, "next").await?;
        let (one, two) = (cluster.router("one", "").await?, cluster.router("two", "").await?);
        let client = Client::connect(&one.address).await?;
        fill(&client).await?;
        let grant = LeaseGrantRequest { id: 0, ttl: 600 };
        let ours = client.lease.clone().lease_grant(grant).await?.into_inner().id;
        let direct = cluster.old.client().await?;
        let theirs = direct.lease.clone().lease_grant(grant).await?.into_inner().id;
        for (key, lease) in [("ours", ours), ("theirs", theirs)] {
            let key = format!("/registry/pods/leased/{key}").into();
            client.kv.clone().put(PutRequest { key, lease, ..PutRequest::default() }).await?;
        }
        let endpoint = format!("http://{}", next.address);
        let admin = format!("--admin=http://{}", one.admin.address());
        let words = [&admin, "store", "add", "next", "--etcd", "--endpoint", &endpoint];
        etcdctl::run(&our_binary("kindred")?, &words, "").await?.ok()?;
        let mut clients = Clients::start(&[&one.address, &two.address]).await?;
        clients.shared.renumbers.store(true, Ordering::SeqCst);
        clients.some(SOME).await?;
        let ids = one.admin.change("move", &json!({ "kind": "pods", "to": "next" })).await?;
        let id = ids.first().copied().context("a move")?;
        one.admin.until(id, STEP_LIMIT, |shown| shown["phase"] == "Done").await?;
        clients.some(SOME).await?;
        let cancelled = clients.shared.cancelled.load(Ordering::SeqCst);
        let written = clients.finish().await?;
        ensure!(cancelled <= 4, "{cancelled} cancellations of 4 watches");
        let (listed, there) = (list(&client).await?, list(&next.client().await?).await?);
        ensure!(listed.kvs == there.kvs && listed.kvs.len() > 700, "{} keys", listed.kvs.len());
        for (key, (revision, value)) in &written {
            let kv = there.kvs.iter().find(|kv| kv.key == key.as_bytes());
            let kv = kv.with_context(|| format!("{key} is lost"))?;
            ensure!(kv.mod_revision == *revision && kv.value == value.to_string(), "{kv:?}");
        }
        for (key, lease) in [("ours", ours), ("theirs", theirs)] {
            let asked = LeaseTimeToLiveRequest { id: lease, keys: true };
            let told = client.lease.clone().lease_time_to_live(asked).await?.into_inner();
            ensure!(
                told.keys == [format!("/registry/pods/leased/{key}")] && told.granted_ttl == 600,
                "{told:?}"
            );
            client.lease.clone().lease_revoke(LeaseRevokeRequest { id: lease }).await?;
        }
        let (listed, there) = (list(&client).await?, list(&next.client().await?).await?);
        ensure!(listed.kvs == there.kvs && there.kvs.iter().all(|kv| kv.lease == 0), "both leases are over");
        report(&format!(
            "{} pods moved from an etcd to another; {cancelled} of 4 watches relisted",
            listed.kvs.len()
        ));
        Ok(())
    });
}

/// The coordinator dies at a step of the switch. The other router ends the move: it copies again what it did not see.
#[test]
fn r15_a_coordinator_that_dies_while_an_etcd_takes_a_kind_is_followed() {
    for (name, failpoint) in [
        ("freeze-after", "freeze.after=exit"),
        ("seal-after", "seal.after=exit"),
        ("decide-after", "decide.after=exit"),
        ("open-before", "open.before=exit"),
    ] {
        scenario::run(&format!("to-etcd-{name}"), LIMIT, |dir| async move {
            let cluster = Cluster::start_on(&dir, prepared(&dir, "old").await?, "new").await?;
            let victim = cluster.router("victim", failpoint).await?;
            let client = Client::connect(&victim.address).await?;
            fill(&client).await?;
            let id = begin(&victim.admin).await?;
            let survivor = cluster.router("survivor", "").await?;
            let mut clients = Clients::start(&[&survivor.address]).await?;
            clients.shared.renumbers.store(true, Ordering::SeqCst);
            let done = survivor.admin.until(id, STEP_LIMIT, |shown| shown["phase"] == "Done").await?;
            ensure!(done["goal"] == "there", "{done}");
            clients.some(SOME).await?;
            let cancelled = clients.shared.cancelled.load(Ordering::SeqCst);
            clients.finish().await?;
            ensure!(cancelled <= 2, "{cancelled} cancellations of 2 watches");
            let client = Client::connect(&survivor.address).await?;
            let (listed, direct) = (list(&client).await?, list(&cluster.old.client().await?).await?);
            ensure!(listed.kvs == direct.kvs && listed.kvs.len() >= 700, "{} keys", listed.kvs.len());
            report(&format!(
                "{failpoint}: another router moved the pods, after {} attempts",
                done["attempts"]
            ));
            Ok(())
        });
    }
}

/// Everything leaves the only shard, its keys of no Kind too, and its leases are as before. All parts are switched at the first
/// attempt, however many they are.
#[test]
fn everything_moves_to_an_etcd_at_the_first_attempt() {
    scenario::run("all-to-etcd", LIMIT, |dir| async move {
        let cluster = Cluster::start_on(&dir, prepared(&dir, "old").await?, "new").await?;
        let one = cluster.router("one", "").await?;
        let client = Client::connect(&one.address).await?;
        let (mut kv, mut leases) = (client.kv.clone(), client.lease.clone());
        let lease = leases.lease_grant(LeaseGrantRequest { id: 0, ttl: 600 }).await?.into_inner().id;
        let idle = leases.lease_grant(LeaseGrantRequest { id: 0, ttl: 500 }).await?.into_inner().id;
        let keys =
            ["/registry/pods/a/b", "/registry/gadgets/a", "/registry/widgets/a", "a", "compact_rev_key", "z"];
        for key in keys {
            kv.put(PutRequest { key: key.into(), value: key.into(), lease, ..Default::default() }).await?;
        }
        let mut kinds = Vec::new();
        for kind in 0..12 {
            let body = json!({ "kind": format!("/registry/kind-{kind:02}/"), "to": "old" });
            kinds.extend(one.admin.change("move", &body).await?);
        }
        for id in kinds {
            one.admin.until(id, STEP_LIMIT, |shown| shown["phase"] == "Done").await?;
        }
        let ids = one.admin.change("drain", &json!({ "store": "new", "to": "old" })).await?;
        ensure!(ids.len() == 2, "{ids:?}");
        for id in ids {
            let done = one.admin.until(id, STEP_LIMIT, |shown| shown["phase"] == "Done").await?;
            ensure!(done["goal"] == "there" && done["attempts"] == 1, "{done}");
        }
        let direct = cluster.old.client().await?;
        for key in keys {
            let get = || RangeRequest { key: key.into(), ..Default::default() };
            let (served, there) =
                (kv.range(get()).await?.into_inner(), direct.kv.clone().range(get()).await?.into_inner());
            ensure!(
                served.kvs == there.kvs && there.kvs.len() == 1 && there.kvs[0].lease == lease,
                "{key}: {there:?}"
            );
        }
        // A lease with keys is known by the etcd as well, and one without is as it was.
        for (id, ttl) in [(lease, 600), (idle, 500)] {
            let asked = LeaseTimeToLiveRequest { id, keys: true };
            let told = leases.lease_time_to_live(asked).await?.into_inner();
            ensure!(told.granted_ttl == ttl && told.ttl > 0, "{told:?}");
        }
        let asked = LeaseTimeToLiveRequest { id: lease, keys: true };
        let told = direct.lease.clone().lease_time_to_live(asked).await?.into_inner();
        ensure!(told.keys.len() == keys.len() && told.granted_ttl == 600, "{told:?}");
        kv.put(PutRequest { key: "y".into(), lease: idle, ..Default::default() }).await?;
        leases.lease_revoke(LeaseRevokeRequest { id: lease }).await?;
        wait_for("the end of its keys", STEP_LIMIT, || async {
            let all = RangeRequest {
                key: "/registry/".into(),
                range_end: "/registry0".into(),
                ..Default::default()
            };
            Ok(client.kv.clone().range(all).await?.into_inner().kvs.is_empty().then_some(()))
        })
        .await?;
        Ok(())
    });
}

/// A move that is given up leaves nothing at the etcd, and the Kind comes there with the next one.
#[test]
fn what_an_etcd_does_not_get_after_all_is_deleted_there() {
    scenario::run("to-etcd-abort", LIMIT, |dir| async move {
        let cluster = Cluster::start_on(&dir, prepared(&dir, "old").await?, "new").await?;
        let one = cluster.router("one", "verify.before=hold").await?;
        let client = Client::connect(&one.address).await?;
        fill(&client).await?;
        let mut clients = Clients::start(&[&one.address]).await?;
        clients.shared.renumbers.store(true, Ordering::SeqCst);
        let id = begin(&one.admin).await?;
        one.admin.until(id, STEP_LIMIT, |shown| shown["phase"] == "Verifying").await?;
        clients.some(SOME).await?;
        ensure!(list(&cluster.old.client().await?).await?.kvs.len() >= 700, "it has a copy");
        let (code, said) = one.admin.ask("POST", &format!("/api/v1/moves/{id}/abort"), "").await?;
        ensure!(code < 300, "{code} {said}");
        wait_for("the end", STEP_LIMIT, || async {
            Ok((one.admin.shown(id).await?["over"] == true).then_some(()))
        })
        .await?;
        let there = list(&cluster.old.client().await?).await?;
        ensure!(there.kvs.is_empty(), "{} keys are left there", there.kvs.len());
        clients.some(SOME).await?;
        ensure!(clients.shared.cancelled.load(Ordering::SeqCst) == 0, "nothing has happened to watches");
        let id = begin(&one.admin).await?;
        one.admin.until(id, STEP_LIMIT, |shown| shown["phase"] == "Done").await?;
        clients.some(SOME).await?;
        clients.finish().await?;
        let (listed, direct) = (list(&client).await?, list(&cluster.old.client().await?).await?);
        ensure!(listed.kvs == direct.kvs, "{} keys", listed.kvs.len());
        Ok(())
    });
}

/// An etcd whose revisions are too low for what clients have seen takes nothing.
#[test]
fn an_etcd_that_began_at_revision_one_takes_no_kind() {
    scenario::run("to-etcd-low", LIMIT, |dir| async move {
        let cluster = Cluster::start_on(&dir, Etcd::start(&dir, "old").await?, "new").await?;
        let one = cluster.router("one", "").await?;
        let client = Client::connect(&one.address).await?;
        fill(&client).await?;
        let id = begin(&one.admin).await?;
        let over = wait_for("the end", STEP_LIMIT, || async {
            let shown = one.admin.shown(id).await?;
            Ok((shown["over"] == true).then_some(shown))
        })
        .await?;
        let reason = over["reason"].as_str().unwrap_or_default();
        ensure!(over["phase"] == "Aborted" && reason.contains("kindred leave prepare"), "{over}");
        let there = list(&cluster.old.client().await?).await?;
        ensure!(there.kvs.is_empty(), "nothing is left there: {there:?}");
        ensure!(list(&client).await?.kvs.len() == 700);
        Ok(())
    });
}
