//! `kindred backup`, `backup verify` and `restore` beside clusters under load: snapshots during writes and compactions,
//! and what a restore changes.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, LeaseGrantRequest, LeaseTimeToLiveRequest, PutRequest,
    RangeRequest, RequestOp, TxnRequest, request_op::Request,
};
use kindred_proto::mvccpb::KeyValue;
use kindred_tests::{
    client::Client,
    etcdctl,
    process::our_binary,
    scenario::{self, report, wait_for},
    servers::{Etcd, Shard, Up},
};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(240);
/// Each is on a shard of its own.
const NAMESPACES: [&str; 3] = ["alpha", "mike", "zulu"];
const ACCOUNTS: i64 = 6;
const EACH: i64 = 1_000;
/// A number of keys of 1 KiB, which slow the backup down.
const FILL: usize = 300;
/// Bytes per second. A backup of `FILL` KiB takes some seconds at this rate.
const RATE: &str = "150000";

struct Cli {
    program: PathBuf,
    admin: String,
}

impl Cli {
    fn new(admin: &str) -> anyhow::Result<Self> {
        Ok(Self { program: our_binary("kindred")?, admin: format!("http://{admin}") })
    }

    async fn output(&self, words: &[&str]) -> anyhow::Result<etcdctl::Output> {
        let all: Vec<&str> = ["--admin", &self.admin].iter().chain(words).copied().collect();
        etcdctl::run(&self.program, &all, "").await
    }

    async fn ok(&self, words: &[&str]) -> anyhow::Result<String> {
        self.output(words).await?.ok().with_context(|| format!("kindred {}", words.join(" ")))
    }

    async fn json(&self, words: &[&str]) -> anyhow::Result<Value> {
        let all: Vec<&str> = words.iter().chain(&["-o", "json"]).copied().collect();
        Ok(serde_json::from_str(&self.ok(&all).await?)?)
    }

    async fn refused(&self, words: &[&str]) -> anyhow::Result<String> {
        self.output(words).await?.failed().with_context(|| format!("kindred {}", words.join(" ")))
    }
}

fn put(key: &str, value: impl Into<Bytes>, lease: i64) -> PutRequest {
    PutRequest { key: key.to_owned().into(), value: value.into(), lease, ..Default::default() }
}

async fn write(client: &Client, key: &str, value: &str) -> anyhow::Result<i64> {
    let answer = client.kv.clone().put(put(key, value.to_owned(), 0)).await?.into_inner();
    Ok(answer.header.context("header")?.revision)
}

/// All keys with a prefix, or all keys if it is empty.
async fn all(client: &Client, prefix: &str) -> anyhow::Result<Vec<KeyValue>> {
    let (key, range_end) = match prefix {
        "" => (Bytes::from_static(b"\0"), Bytes::from_static(b"\0")),
        prefix => {
            let mut end = prefix.as_bytes().to_vec();
            if let Some(last) = end.last_mut() {
                *last += 1;
            }
            (prefix.to_owned().into(), end.into())
        }
    };
    Ok(client.kv.clone().range(RangeRequest { key, range_end, ..Default::default() }).await?.into_inner().kvs)
}

/// What a restore must bring back of each key: its value and its lease.
fn content(kvs: &[KeyValue]) -> BTreeMap<Bytes, (Bytes, i64)> {
    kvs.iter().map(|kv| (kv.key.clone(), (kv.value.clone(), kv.lease))).collect()
}

fn number(kvs: &BTreeMap<Bytes, (Bytes, i64)>, key: &str) -> anyhow::Result<i64> {
    let (value, _) = kvs.get(key.as_bytes()).with_context(|| format!("no {key}"))?;
    Ok(std::str::from_utf8(value)?.parse()?)
}

fn account(namespace: &str, number: i64) -> String {
    format!("/registry/pods/{namespace}/account-{number}")
}

/// Moves amounts between the accounts of a namespace, each time in one transaction.
async fn transfers(
    client: Client,
    namespace: &'static str,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> anyhow::Result<()> {
    let mut amounts = [EACH; ACCOUNTS as usize];
    let mut turn = 0_usize;
    while !stop.load(Ordering::Relaxed) {
        let (from, to) = (turn % amounts.len(), (turn * 5 + 1) % amounts.len());
        turn += 1;
        if from == to {
            continue;
        }
        (amounts[from], amounts[to]) = (amounts[from] - 1, amounts[to] + 1);
        let set = |at: usize| {
            let key = account(namespace, i64::try_from(at).unwrap_or_default());
            RequestOp { request: Some(Request::RequestPut(put(&key, amounts[at].to_string(), 0))) }
        };
        let txn = TxnRequest { success: vec![set(from), set(to)], ..Default::default() };
        client.kv.clone().txn(txn).await?;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Writes the same number to one pod of each shard, one after the other. In between it creates and deletes another pod.
async fn counting(client: Client, stop: Arc<AtomicBool>) -> anyhow::Result<()> {
    let mut turn = 1;
    while !stop.load(Ordering::Relaxed) {
        for namespace in NAMESPACES {
            write(&client, &format!("/registry/pods/{namespace}/turn"), &turn.to_string()).await?;
        }
        let key = format!("/registry/pods/mike/gone-{}", turn % 50);
        match turn % 3 {
            0 => drop(
                client
                    .kv
                    .clone()
                    .delete_range(DeleteRangeRequest { key: key.into(), ..Default::default() })
                    .await?,
            ),
            _ => drop(write(&client, &key, "here").await?),
        }
        turn += 1;
    }
    Ok(())
}

/// Compacts repeatedly at the revision of a new write.
async fn compacting(client: Client, stop: Arc<AtomicBool>, last: Arc<AtomicU64>) -> anyhow::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let revision = write(&client, "/registry/configmaps/default/tick", "tick").await?;
        let physical = true;
        client.kv.clone().compact(CompactionRequest { revision, physical }).await?;
        last.store(revision.cast_unsigned(), Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

fn spread() -> String {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/spread.yaml");
    format!("--config={}", config.display())
}

/// R5: a backup has everything at one revision, also a Kind over three shards, during writes and compactions.
#[test]
fn r5_a_backup_under_writes_and_compactions_is_one_cut() {
    scenario::run("backup-snapshot", LIMIT, |dir| async move {
        let up = Up::start(&dir, "spread", &[spread()]).await?;
        let (cli, client) = (Cli::new(&up.admin)?, up.client().await?);
        for namespace in NAMESPACES {
            for at in 0..ACCOUNTS {
                write(&client, &account(namespace, at), &EACH.to_string()).await?;
            }
            write(&client, &format!("/registry/pods/{namespace}/turn"), "0").await?;
        }
        for at in 0..FILL {
            let value = format!("{at}").repeat(1024);
            write(&client, &format!("/registry/secrets/default/s-{at:04}"), &value[..1024]).await?;
            write(&client, &format!("/registry/leases/kube-node-lease/n-{at:04}"), "alive").await?;
        }
        let (stop, moved, compacted) =
            (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let mut tasks = tokio::task::JoinSet::new();
        for namespace in NAMESPACES {
            tasks.spawn(transfers(up.client().await?, namespace, stop.clone(), moved.clone()));
        }
        tasks.spawn(counting(up.client().await?, stop.clone()));
        tasks.spawn(compacting(up.client().await?, stop.clone(), compacted.clone()));
        wait_for("writes", Duration::from_secs(30), async || {
            Ok((moved.load(Ordering::Relaxed) > 100).then_some(()))
        })
        .await?;

        let target = dir.join("backup");
        let shown = target.to_str().context("path")?;
        let summary = cli.json(&["backup", "--to", shown, "--rate", RATE]).await?;
        let revision: i64 = summary["revision"].as_str().context("revision")?.parse()?;
        let floor = compacted.load(Ordering::Relaxed).cast_signed();
        ensure!(floor > revision, "nothing was compacted above {revision} while it was read: {floor}");
        // The second backup is a snapshot of its own.
        let second = dir.join("second");
        cli.ok(&["backup", "--to", second.to_str().context("path")?]).await?;
        stop.store(true, Ordering::Relaxed);
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        let moved = moved.load(Ordering::Relaxed);

        let verified = cli.ok(&["backup", "verify", shown]).await?;
        ensure!(verified.lines().any(|line| line.starts_with("pods ")), "{verified}");
        ensure!(verified.contains(": whole; "), "{verified}");
        // After the backup nothing retains its revision.
        let at = RangeRequest { key: "/registry/pods/alpha/turn".into(), revision, ..Default::default() };
        let refused = client.kv.clone().range(at).await.err().context("it is compacted")?;
        ensure!(refused.message().contains("compacted"), "{refused}");

        // The other cluster has another layout: no Kind is spread.
        let other = Up::start(&dir, "other", &[]).await?;
        let (other_cli, other_client) = (Cli::new(&other.admin)?, other.client().await?);
        for backup in [&target, &second] {
            let path = backup.to_str().context("path")?;
            let restored = other_cli.json(&["restore", path, "--overwrite", "--delete-extra"]).await?;
            let kvs = all(&other_client, "").await?;
            let manifest = cli.json(&["backup", "verify", path]).await?;
            ensure!(manifest["manifest"]["keys"] == kvs.len(), "{restored}: {} keys", kvs.len());
            let now = content(&kvs);
            let mut turns = Vec::new();
            for namespace in NAMESPACES {
                let amounts: anyhow::Result<Vec<i64>> =
                    (0..ACCOUNTS).map(|at| number(&now, &account(namespace, at))).collect();
                let sum: i64 = amounts?.iter().sum();
                ensure!(sum == ACCOUNTS * EACH, "{namespace}: {sum} of {}", ACCOUNTS * EACH);
                turns.push(number(&now, &format!("/registry/pods/{namespace}/turn"))?);
            }
            // The pods are written in this order, so a snapshot never has a later one without the earlier one.
            ensure!(turns.is_sorted_by(|a, b| a >= b) && turns[0] - turns[2] <= 1, "{turns:?}");
            ensure!(turns[0] > 0, "{turns:?}");
            let secrets = kvs.iter().filter(|kv| kv.key.starts_with(b"/registry/secrets/")).count();
            ensure!(secrets == FILL, "{secrets}");
            let again = other_cli.json(&["restore", path]).await?;
            let changed: u64 = again["kinds"]
                .as_array()
                .context("kinds")?
                .iter()
                .map(|kind| {
                    ["created", "changed", "notInBackup"]
                        .iter()
                        .filter_map(|field| kind[field].as_u64())
                        .sum::<u64>()
                })
                .sum();
            ensure!(changed == 0, "{again}");
            let hashes = hashes(&other_cli).await?;
            ensure!(hashes == manifest["hashes"], "{hashes} is not {}", manifest["hashes"]);
        }
        let (before, turn) = (hashes(&other_cli).await?, "/registry/pods/alpha/turn");
        write(&other_client, turn, "changed").await?;
        let after = hashes(&other_cli).await?;
        ensure!(after["pods"] != before["pods"] && after["secrets"] == before["secrets"], "{before} {after}");
        report(&format!(
            "backup: 2 snapshots under {moved} transfers, compacted {} ms beyond the first",
            ((floor - revision) >> 10) / 1_000
        ));
        Ok(())
    });
}

/// The hash of each Kind, as `kindred verify` computes it.
async fn hashes(cli: &Cli) -> anyhow::Result<Value> {
    let told = cli.json(&["verify"]).await?;
    let kinds = told["kinds"].as_array().context("kinds")?;
    Ok(kinds
        .iter()
        .map(|kind| (kind["kind"].as_str().unwrap_or_default().to_owned(), kind["hash"].clone()))
        .collect())
}

async fn grant(client: &Client, ttl: i64) -> anyhow::Result<i64> {
    Ok(client.lease.clone().lease_grant(LeaseGrantRequest { id: 0, ttl }).await?.into_inner().id)
}

async fn keys_of(client: &Client, id: i64) -> anyhow::Result<(i64, Vec<Bytes>)> {
    let request = LeaseTimeToLiveRequest { id, keys: true };
    let told = client.lease.clone().lease_time_to_live(request).await?.into_inner();
    let mut keys = told.keys;
    keys.sort();
    Ok((told.granted_ttl, keys))
}

#[test]
fn a_restore_brings_back_what_is_named_and_nothing_else() {
    scenario::run("restore", LIMIT, |dir| async move {
        let up = Up::start(&dir, "one", &[]).await?;
        let (cli, client) = (Cli::new(&up.admin)?, up.client().await?);
        let lease = grant(&client, 3_000).await?;
        for namespace in ["a", "b"] {
            write(&client, &format!("/registry/namespaces/{namespace}"), namespace).await?;
            for kind in ["pods", "configmaps"] {
                for name in ["x", "y"] {
                    write(&client, &format!("/registry/{kind}/{namespace}/{name}"), "before").await?;
                }
            }
        }
        for key in ["/registry/events/a/e", "/registry/pods/a/leased", "foo"] {
            client.kv.clone().put(put(key, "leased", lease)).await?;
        }
        // A value may be any bytes, not only UTF-8.
        client.kv.clone().put(put("/registry/secrets/a/s", Bytes::from_static(&[0, 255, 10]), 0)).await?;
        let before = content(&all(&client, "").await?);
        let target = dir.join("backup");
        let path = target.to_str().context("path")?;
        let said = cli.ok(&["backup", "--to", path]).await?;
        ensure!(said.contains(&format!("{} keys and 1 lease at revision", before.len())), "{said}");

        // A restore into an unchanged cluster writes nothing.
        let same = cli.ok(&["restore", path]).await?;
        ensure!(same.contains("0 keys restored, 0 leases granted"), "{same}");

        write(&client, "/registry/pods/a/x", "after").await?;
        write(&client, "/registry/pods/b/x", "after").await?;
        write(&client, "/registry/pods/a/new", "after").await?;
        write(&client, "/registry/replicasets/a/new", "after").await?;
        let gone = |key: &str| DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
        for key in ["/registry/pods/a/y", "/registry/configmaps/a/x", "/registry/configmaps/b/x"] {
            client.kv.clone().delete_range(gone(key)).await?;
        }
        let changed = content(&all(&client, "").await?);

        let refused = cli.refused(&["restore", path]).await?;
        ensure!(
            refused.contains("2 keys of the cluster differ") && refused.contains("--overwrite"),
            "{refused}"
        );
        ensure!(refused.contains("/registry/pods/a/x\n/registry/pods/b/x"), "{refused}");
        let dry = cli.ok(&["restore", path, "--overwrite", "--delete-extra", "--dry-run"]).await?;
        let rows: Vec<Vec<&str>> = dry.lines().map(|line| line.split_whitespace().collect()).collect();
        ensure!(rows.contains(&vec!["pods", "1", "2", "2", "1"]), "{dry}");
        ensure!(rows.contains(&vec!["configmaps", "2", "0", "2", "0"]), "{dry}");
        ensure!(dry.contains("+ /registry/pods/a/y\n") && dry.contains("~ /registry/pods/a/x\n"), "{dry}");
        ensure!(
            dry.contains("- /registry/replicasets/a/new\n") && dry.contains("nothing was changed"),
            "{dry}"
        );
        ensure!(content(&all(&client, "").await?) == changed, "a dry run changed something");

        for (words, expected) in [
            (
                &["restore", path, "--kind", "deployments"][..],
                "the backup has no keys of \"deployments\"; it has configmaps",
            ),
            (&["restore", path, "--kind", "pdos"], "did you mean \"pods\"?"),
            (&["restore", path, "--namespace", "nowhere", "--delete-extra"], "it has no such keys"),
            (&["backup", "--to", path], "it is not empty"),
            (&["backup", "verify", "/nowhere"], "/nowhere is no backup: it has no manifest.json"),
        ] {
            let said = cli.refused(words).await?;
            ensure!(said.contains(expected), "{words:?}: {said}");
        }

        // The restore of one Kind changes no other Kind, and leaves keys that are not in the backup.
        let mut expected = changed.clone();
        let take = |expected: &mut BTreeMap<_, _>, within: &dyn Fn(&[u8]) -> bool, delete: bool| {
            expected.retain(|key: &Bytes, _| !(delete && within(key)) || before.contains_key(key));
            expected.extend(
                before.iter().filter(|(key, _)| within(key)).map(|(key, value)| (key.clone(), value.clone())),
            );
        };
        cli.ok(&["restore", path, "--kind", "configmaps"]).await?;
        take(&mut expected, &|key| key.starts_with(b"/registry/configmaps/"), false);
        ensure!(content(&all(&client, "").await?) == expected, "one Kind");
        // The restore of one namespace with --delete-extra also deletes keys of Kinds that the backup does not have.
        cli.ok(&["restore", path, "--namespace", "a", "--overwrite", "--delete-extra"]).await?;
        let in_a = |key: &[u8]| key.windows(3).any(|part| part == b"/a/");
        take(&mut expected, &in_a, true);
        let now = content(&all(&client, "").await?);
        ensure!(now == expected, "one namespace: {now:?}");
        ensure!(
            now.contains_key(&b"/registry/pods/b/x"[..])
                && !now.contains_key(&b"/registry/replicasets/a/new"[..])
        );
        ensure!(number(&now, "/registry/pods/b/x").is_err());

        // The restore into a shard without a router also grants the lease again, with its keys.
        let one = Shard::start(&dir, "shard", &["--revisions=dense".to_owned()]).await?;
        let (address, alone) = (format!("http://{}", one.address), one.client().await?);
        let nobody = Cli::new("127.0.0.1:1")?;
        let restored = nobody.ok(&["restore", path, "--endpoints", &address]).await?;
        ensure!(restored.contains("1 lease granted"), "{restored}");
        ensure!(content(&all(&alone, "").await?) == before, "a shard alone");
        let (ttl, keys) = keys_of(&alone, lease).await?;
        ensure!((2_000..=3_000).contains(&ttl) && keys.len() == 3, "TTL {ttl}, {keys:?}");
        ensure!(keys_of(&alone, lease).await?.1 == keys_of(&client, lease).await?.1);
        report(&format!(
            "restore: {} keys into 2 topologies, one Kind, one namespace, 5 refusals",
            before.len()
        ));
        Ok(())
    });
}

/// A backup reads a stock etcd at a revision of that etcd, and a restore brings its Kind back.
#[test]
fn a_stock_etcd_is_part_of_a_backup() {
    scenario::run("backup-etcd", LIMIT, |dir| async move {
        let etcd = Etcd::start(&dir, "etcd").await?;
        let config = dir.join("config.yaml");
        std::fs::write(
            &config,
            format!(
                "default: default\nstores:\n- {{name: default, slot: 1}}\n- {{name: old, type: etcd, endpoints: [\"http://{}\"]}}\n\
             partitions:\n- {{metadata: {{name: secrets}}, resource: secrets, serviceGroupId: old}}\n",
                etcd.address
            ),
        )?;
        let up = Up::start(&dir, "mixed", &[format!("--config={}", config.display())]).await?;
        let (cli, client) = (Cli::new(&up.admin)?, up.client().await?);
        for at in 0..450 {
            write(&client, &format!("/registry/secrets/default/s-{at}"), &at.to_string()).await?;
        }
        for key in ["/registry/pods/a/b", "/registry/services/specs/a/b", "foo"] {
            write(&client, key, "v").await?;
        }
        let target = dir.join("backup");
        let path = target.to_str().context("path")?;
        cli.ok(&["backup", "--to", path]).await?;
        let verified = cli.json(&["backup", "verify", path]).await?;
        let etcds = &verified["manifest"]["etcdRevisions"];
        ensure!(etcds[0]["store"] == "old" && etcds[0]["revision"] == "451", "{etcds}");
        ensure!(verified["manifest"]["keys"] == 453, "{verified}");
        let secrets = content(&all(&client, "/registry/secrets/").await?);
        let all_secrets = DeleteRangeRequest {
            key: "/registry/secrets/".into(),
            range_end: "/registry/secrets0".into(),
            ..Default::default()
        };
        client.kv.clone().delete_range(all_secrets).await?;
        let restored = cli.ok(&["restore", path]).await?;
        ensure!(restored.contains("450 keys restored"), "{restored}");
        ensure!(content(&all(&client, "/registry/secrets/").await?) == secrets);
        report("backup: a stock etcd's Kind at its own revision, 450 keys back");
        Ok(())
    });
}

/// A backup that was killed in the middle is recognised as incomplete, and blocks only backups to the same folder.
#[test]
fn an_interrupted_backup_is_recognised() {
    scenario::run("backup-killed", LIMIT, |dir| async move {
        let up = Up::start(&dir, "one", &[]).await?;
        let (cli, client) = (Cli::new(&up.admin)?, up.client().await?);
        for at in 0..200 {
            write(&client, &format!("/registry/secrets/default/s-{at}"), &"x".repeat(1024)).await?;
        }
        let target = dir.join("backup");
        let path = target.to_str().context("path")?;
        let unfinished = dir.join("backup.unfinished");
        let mut killed = tokio::process::Command::new(&cli.program)
            .args(["--admin", &cli.admin, "backup", "--to", path, "--rate", "10k"])
            .kill_on_drop(true)
            .spawn()?;
        wait_for("the backup to write", Duration::from_secs(30), async || {
            let data = std::fs::read_dir(unfinished.join("data")).map(Iterator::count).unwrap_or(0);
            Ok((data > 0).then_some(()))
        })
        .await?;
        ensure!(!target.exists(), "it has its name before it is whole");
        killed.kill().await?;
        let left = unfinished.to_str().context("path")?;
        let verified = cli.refused(&["backup", "verify", left]).await?;
        ensure!(verified.contains("this backup is unfinished"), "{verified}");
        let restored = cli.refused(&["restore", left]).await?;
        ensure!(restored.contains("this backup is unfinished"), "{restored}");
        let again = cli.refused(&["backup", "--to", path]).await?;
        ensure!(again.contains("was interrupted, or is being written now"), "{again}");
        std::fs::remove_dir_all(&unfinished)?;
        cli.ok(&["backup", "--to", path]).await?;

        // A restore names a damaged file and restores nothing of it. It still restores a Kind whose file is intact.
        write(&client, "/registry/pods/a/b", "v").await?;
        let damaged = dir.join("damaged");
        let other = damaged.to_str().context("path")?;
        cli.ok(&["backup", "--to", other]).await?;
        let secrets = std::fs::read_dir(damaged.join("data"))?.flatten().map(|entry| entry.path());
        let secrets =
            { secrets }.find(|path| path.to_string_lossy().contains("secrets")).context("secrets")?;
        let mut bytes = std::fs::read(&secrets)?;
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        std::fs::write(&secrets, bytes)?;
        client
            .kv
            .clone()
            .delete_range(DeleteRangeRequest { key: "/registry/pods/a/b".into(), ..Default::default() })
            .await?;
        let verified = cli.refused(&["backup", "verify", other]).await?;
        ensure!(
            verified.contains("secrets.kbk: the checksum of the frame at byte 16 is wrong"),
            "{verified}"
        );
        ensure!(cli.refused(&["restore", other]).await?.contains("nothing was restored"));
        ensure!(all(&client, "/registry/pods/").await?.is_empty());
        ensure!(cli.ok(&["restore", other, "--kind", "pods"]).await?.contains("1 key restored"));
        report("backup: killed, recognised, run again; a flipped bit named");
        Ok(())
    });
}
