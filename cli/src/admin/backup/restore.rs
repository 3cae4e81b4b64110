//! `kindred restore DIR` writes keys of a backup to a running cluster through ordinary writes, so its watchers see
//! ordinary events at new revisions.
//!
//! It compares the backup with the cluster twice, in key order: first to report what it will do, and to refuse
//! before anything changes; then to write. Each write applies only if the key is unchanged since it was compared.
//! An interrupted restore can be repeated: it finds the finished part equal.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use kindred_partition_config::kind::KindScheme;
use kindred_proto::mvccpb::KeyValue;
use serde_json::{Value, json};

use super::args::{LeaseTtl, RestoreArgs};
use super::etcd::{Etcd, Interval};
use super::kinds::prefix_of;
use super::manifest::Manifest;
use super::merge::{self, Counts, Step};
use super::rate::Rate;
use super::records::Records;
use super::select::{self, Selection};
use super::sides::Cluster;
use super::{snapshot, verify};
use crate::admin::args::{Connect, Output};
use crate::admin::client::{Client, Form};
use crate::admin::output::{self, Table, count, counted, time};
use crate::admin::{context, failure::Failure};

/// The maximum number of concurrent writes.
const WRITES_AT_ONCE: usize = 64;
/// The number of keys to list for each type of change.
const NAMED: usize = 10;

/// What a restore will do, or has done.
#[derive(Debug, Default)]
struct Tally {
    kinds: BTreeMap<String, Counts>,
    /// The first keys of each type of change, with its sign.
    named: Vec<String>,
    unnamed: u64,
    /// The first of the keys that differ.
    differing: Vec<String>,
}

impl Tally {
    fn note(&mut self, kind: &str, step: &Step) {
        if !self.kinds.contains_key(kind) {
            self.kinds.insert(kind.to_owned(), Counts::default());
        }
        if let Some(counts) = self.kinds.get_mut(kind) {
            counts.note(step);
        }
        let (sign, kv) = match step {
            Step::Same(_) => return,
            Step::Create(kv) => ('+', kv),
            Step::Change(kv, _) => ('~', kv),
            Step::Extra(kv) => ('-', kv),
        };
        let key = kv.key.escape_ascii().to_string();
        if sign == '~' && self.differing.len() < NAMED {
            self.differing.push(key.clone());
        }
        if self.named.iter().filter(|line| line.starts_with(sign)).count() < NAMED {
            self.named.push(format!("{sign} {key}"));
        } else {
            self.unnamed += 1;
        }
    }

    fn sum(&self, of: fn(&Counts) -> u64) -> u64 {
        self.kinds.values().map(of).sum()
    }

    fn leases(&self) -> BTreeSet<i64> {
        self.kinds.values().flat_map(|counts| counts.leases.iter().copied()).collect()
    }
}

pub async fn run(args: &RestoreArgs, outer: &Connect) -> Result<(), Failure> {
    let manifest = Manifest::read(&args.dir)?;
    let selection = select::of(&manifest, args.kind.as_deref(), args.namespace.as_deref())?;
    let problems = verify::problems(&args.dir, &manifest, |file| selection.files.contains(&file.file));
    if !problems.is_empty() {
        return Err(Failure::Refused(format!(
            "{}: damaged, nothing was restored: use another copy of this backup, or restore by --kind what is whole\n{}",
            args.dir.display(),
            problems.join("\n")
        )));
    }
    let began = Instant::now();
    let restore = Restore::connect(args, outer, &manifest, &selection).await?;
    let plan = restore.plan().await?;
    if plan.sum(|counts| counts.created + counts.changed + counts.same) == 0 {
        return Err(Failure::Refused(format!(
            "{}: it has no such keys; nothing was changed",
            args.dir.display()
        )));
    }
    if args.dry_run {
        return restore.print(&plan, None, began);
    }
    let differing = plan.sum(|counts| counts.changed);
    if differing > 0 && !args.overwrite {
        return Err(Failure::Refused(format!(
            "{} of the cluster differ{} from the backup's, and nothing was changed: give --overwrite to put the backup's in \
             their place, or --dry-run to see what that would do\n{}",
            counted(differing, "key"),
            if differing == 1 { "s" } else { "" },
            plan.differing.join("\n")
        )));
    }
    let leases = restore.grant(&plan.leases()).await?;
    let done = tokio::select! {
        done = restore.apply() => done?,
        _ = tokio::signal::ctrl_c() => {
            return Err(Failure::Refused("interrupted; run it again to go on: what was restored stays and is found the same".to_owned()));
        }
    };
    restore.print(&done.tally, Some((&done, leases)), began)?;
    if done.overtaken > 0 {
        return Err(Failure::Refused(format!(
            "others have changed {} that the restore was to write, and that is left so; run it again to see",
            counted(done.overtaken, "key")
        )));
    }
    Ok(())
}

/// The two sides of a restore.
struct Restore<'a> {
    args: &'a RestoreArgs,
    manifest: &'a Manifest,
    selection: &'a Selection,
    scheme: KindScheme,
    etcd: Etcd,
    /// The compared parts of the cluster's key space, divided where one read cannot cross.
    intervals: Vec<Interval>,
}

/// The outcome of a restore.
#[derive(Debug, Default)]
struct Done {
    tally: Tally,
    /// The number of keys that another client changed meanwhile.
    overtaken: u64,
}

impl<'a> Restore<'a> {
    async fn connect(
        args: &'a RestoreArgs,
        outer: &Connect,
        manifest: &'a Manifest,
        selection: &'a Selection,
    ) -> Result<Self, Failure> {
        let address = context::address(&args.through.connect.over(outer))?;
        // With `--endpoints` any etcd works. Otherwise a router provides the addresses and the ranges that one read
        // can cover.
        let who = match Client::new(&address)?.get("/api/v1/cluster", Form::Objects).await {
            Ok(who) => who,
            Err(Failure::Unreachable(_)) if !args.through.endpoints.is_empty() => Value::Null,
            Err(failure) => return Err(failure),
        };
        let urls = who["clientUrls"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|url| url.as_str().map(str::to_owned));
        let advertised: Vec<String> = urls.collect();
        let through = &args.through;
        let etcd = Etcd::connect(through.endpoints_or(&advertised), &address.tls, &through.login).await?;
        if let Some(prefix) = who["etcdPrefix"].as_str()
            && KindScheme::new(prefix) != manifest.scheme()
        {
            return Err(Failure::Refused(format!(
                "the backup's keys are under {}, this cluster's under {prefix}: restore into a cluster with the same --etcd-prefix",
                manifest.etcd_prefix
            )));
        }
        let runs = runs(&who)?;
        let mut wanted = selection.intervals.clone();
        if let Some(namespace) = args.namespace.as_deref().filter(|_| args.kind.is_none()) {
            // Kinds that only the cluster has may also have keys in the namespace.
            let kinds = select::kinds(&etcd, &manifest.scheme(), &runs).await?;
            wanted.extend(kinds.iter().map(|kind| select::in_namespace(kind, namespace)));
            wanted.sort();
            wanted.dedup();
        }
        let parts = wanted.iter().flat_map(|interval| runs.iter().filter_map(|run| interval.with(run)));
        let intervals = parts.collect();
        Ok(Self { args, manifest, selection, scheme: manifest.scheme(), etcd, intervals })
    }

    fn sides(&self) -> Result<(Records, Cluster), Failure> {
        let records = Records::open(&self.args.dir, self.manifest, self.selection)?;
        Ok((records, Cluster::new(self.etcd.clone(), self.intervals.clone())))
    }

    fn kind_of(&self, key: &[u8]) -> String {
        let kind = prefix_of(&self.scheme, key).and_then(|prefix| self.scheme.kind_prefix(prefix.as_bytes()));
        kind.map_or_else(|| "<other>".to_owned(), |kind| self.scheme.name_of(&kind))
    }

    /// Determines the changes without making any.
    async fn plan(&self) -> Result<Tally, Failure> {
        let (mut records, mut cluster) = self.sides()?;
        let mut tally = Tally::default();
        let (mut wanted, mut found) = (records.next()?, cluster.next().await?);
        while let Some(step) = merge::step(&mut wanted, &mut found) {
            tally.note(&self.kind_of(step.key()), &step);
            if wanted.is_none() {
                wanted = records.next()?;
            }
            if found.is_none() {
                found = cluster.next().await?;
            }
        }
        Ok(tally)
    }

    /// Grants the leases of the restored keys, or all leases in a complete restore. Returns how many did not exist
    /// before.
    async fn grant(&self, used: &BTreeSet<i64>) -> Result<u64, Failure> {
        let whole = self.args.kind.is_none() && self.args.namespace.is_none();
        let mut granted = 0;
        for lease in &self.manifest.leases {
            let Some(id) = lease.number() else { continue };
            if !used.contains(&id) && !whole {
                continue;
            }
            let seconds = match self.args.lease_ttl {
                LeaseTtl::Remaining => lease.remaining,
                LeaseTtl::Granted => lease.ttl,
            };
            let ttl = match seconds {
                Some(seconds) => seconds.max(1),
                // The lease ended during the backup, so its keys are to end soon.
                None if used.contains(&id) => 60,
                None => continue,
            };
            granted += u64::from(self.etcd.grant(id, ttl).await?);
        }
        Ok(granted)
    }

    async fn apply(&self) -> Result<Done, Failure> {
        let (mut records, mut cluster) = self.sides()?;
        let mut done = Done::default();
        let mut rate = Rate::new(self.args.through.rate);
        let mut writes = FuturesUnordered::new();
        let (mut wanted, mut found) = (records.next()?, cluster.next().await?);
        while let Some(step) = merge::step(&mut wanted, &mut found) {
            let kind = self.kind_of(step.key());
            if self.wants(&step) {
                rate.spend(weight(&step)).await;
                if writes.len() >= WRITES_AT_ONCE
                    && let Some(written) = writes.next().await
                {
                    self.note(&mut done, written)?;
                }
                writes.push(self.write(kind, step));
            } else {
                done.tally.note(&kind, &step);
            }
            if wanted.is_none() {
                wanted = records.next()?;
            }
            if found.is_none() {
                found = cluster.next().await?;
            }
        }
        while let Some(written) = writes.next().await {
            self.note(&mut done, written)?;
        }
        Ok(done)
    }

    fn wants(&self, step: &Step) -> bool {
        match step {
            Step::Same(_) => false,
            Step::Create(_) => true,
            Step::Change(..) => self.args.overwrite,
            Step::Extra(_) => self.args.delete_extra,
        }
    }

    fn note(&self, done: &mut Done, written: Result<(String, Step, bool), Failure>) -> Result<(), Failure> {
        let (kind, step, held) = written.map_err(|failure| {
            let on = "; run it again to go on: what was restored stays and is found the same";
            match failure {
                Failure::Unreachable(text) => Failure::Unreachable(text + on),
                other => Failure::Refused(other.to_string() + on),
            }
        })?;
        if held {
            done.tally.note(&kind, &step);
        } else {
            done.overtaken += 1;
        }
        Ok(())
    }

    /// Writes a key; the flag in the result says whether the key has its restored value.
    async fn write(&self, kind: String, step: Step) -> Result<(String, Step, bool), Failure> {
        let Some(txn) = merge::txn(&step) else { return Ok((kind, step, true)) };
        let held = self.etcd.txn(&txn).await.map_err(|status| self.etcd.failed(&status))?;
        if held {
            return Ok((kind, step, true));
        }
        // Another client changed the key, or this write was executed, its answer was lost, and it was resent.
        let wanted = match &step {
            Step::Create(wanted) | Step::Change(wanted, _) => Some(wanted),
            Step::Same(_) | Step::Extra(_) => None,
        };
        let key: &Bytes = &txn.compare[0].key;
        let found = self.etcd.get(key).await?;
        let held = match (wanted, &found) {
            (Some(wanted), Some(found)) => merge::is_as(found, wanted),
            (None, None) => true,
            _ => false,
        };
        Ok((kind, step, held))
    }

    fn print(&self, tally: &Tally, done: Option<(&Done, u64)>, began: Instant) -> Result<(), Failure> {
        let args = self.args;
        let (extra, changed) = match (done.is_some(), args.delete_extra) {
            (_, false) => ("left, not in backup", "changed"),
            (true, true) => ("deleted", "changed"),
            (false, true) => ("to delete", "to change"),
        };
        let (created, changed) =
            if done.is_some() { ("created", changed) } else { ("to create", "to change") };
        if args.through.output != Output::Table {
            let kinds = tally.kinds.iter().map(|(kind, counts)| {
                json!({ "kind": kind, "created": counts.created, "changed": counts.changed, "same": counts.same,
                    "notInBackup": counts.extra })
            });
            let shown = json!({
                "backup": args.dir, "dryRun": args.dry_run, "deleteExtra": args.delete_extra,
                "kinds": kinds.collect::<Vec<_>>(), "leasesGranted": done.map(|(_, leases)| leases),
                "changedByOthers": done.map(|(done, _)| done.overtaken),
                "millis": u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            });
            return output::print(&output::rendered(&shown, args.through.output)?);
        }
        let mut table = Table::new(&["kind", created, changed, "same", extra]);
        for (kind, counts) in &tally.kinds {
            let cells = [counts.created, counts.changed, counts.same, counts.extra].map(count);
            table.row(std::iter::once(kind.clone()).chain(cells).collect());
        }
        let mut text = table.render();
        match done {
            None => {
                text += &tally.named.iter().map(|line| format!("{line}\n")).collect::<String>();
                if tally.unnamed > 0 {
                    text += &format!("… and {} more\n", count(tally.unnamed));
                }
                text += "dry run: nothing was changed\n";
            }
            Some((_, leases)) => {
                let written = tally.sum(|counts| counts.created + counts.changed);
                text += &format!(
                    "{} restored, {} granted in {}\n",
                    counted(written, "key"),
                    counted(leases, "lease"),
                    time(began.elapsed())
                );
            }
        }
        output::print(&text)
    }
}

fn weight(step: &Step) -> u64 {
    let size = |kv: &KeyValue| (kv.key.len() + kv.value.len()) as u64;
    match step {
        Step::Same(_) => 0,
        Step::Create(kv) | Step::Change(kv, _) => size(kv),
        Step::Extra(kv) => kv.key.len() as u64,
    }
}

/// The ranges that one read can cover: reads cannot cross the bounds of what stock etcds serve.
fn runs(who: &Value) -> Result<Vec<Interval>, Failure> {
    let Some(ranges) = who["ranges"].as_array() else { return Ok(vec![Interval::everything()]) };
    let wrong = || Failure::Refused("the router's answer has no ranges; is it of this version?".to_owned());
    let run = |range: &Value| {
        let start = snapshot::unhex(range["start"].as_str()?)?;
        let end = match &range["end"] {
            Value::Null => None,
            end => Some(snapshot::unhex(end.as_str()?)?),
        };
        Some(Interval { start, end })
    };
    ranges.iter().map(|range| run(range).ok_or_else(wrong)).collect()
}
