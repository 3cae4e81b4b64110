//! `kindred backup --to DIR`: reads one snapshot of the whole key space through a router, as any client reads.
//!
//! The router keeps the snapshot's revision readable at every shard while this command renews it, whatever clients
//! compact. Keys come in key order and go to one file for each Kind. Memory holds at most a message of the stream
//! and a frame.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufWriter;
use std::time::Instant;

use futures_util::StreamExt as _;
use kindred_partition_config::kind::KindScheme;
use kindred_proto::mvccpb::KeyValue;
use serde_json::json;

use super::args::{BackupArgs, Existing, Through};
use super::etcd::Etcd;
use super::folder::{Unfinished, written};
use super::format::{self, FileWriter};
use super::kinds::{OTHER, prefix_of};
use super::manifest::{self, DATA, EtcdRevision, Lease, Manifest};
use super::rate::Rate;
use super::snapshot::Snapshot;
use super::{moment, verify};
use crate::admin::args::{Connect, Output};
use crate::admin::client::Client;
use crate::admin::output::{self, bytes, counted, time};
use crate::admin::{context, failure::Failure};

/// The number of leases to query at a time.
const LEASES_AT_ONCE: usize = 32;

pub async fn run(args: &BackupArgs, outer: &Connect) -> Result<(), Failure> {
    if let Some(Existing::Verify(args)) = &args.existing {
        return verify::run(args);
    }
    let Some(target) = &args.to else {
        return Err(Failure::Usage("--to: name the folder that is to be the backup".to_owned()));
    };
    let through = &args.through;
    let address = context::address(&through.connect.over(outer))?;
    let client = Client::new(&address)?;
    // Before the first request to the cluster.
    let folder = Unfinished::begin(target)?;
    let began = Instant::now();
    let work = async {
        let leases = known_leases(&client, through, &address.tls).await?;
        let taken = moment::now();
        let snapshot = Snapshot::take(&client).await?;
        let etcd =
            Etcd::connect(through.endpoints_or(&snapshot.client_urls), &address.tls, &through.login).await?;
        let (files, leases) =
            snapshot.renewed_during(&client, read(&etcd, &snapshot, &folder, through, leases)).await?;
        Ok(manifest_of(snapshot, taken, files, leases))
    };
    let manifest = tokio::select! {
        manifest = work => manifest?,
        _ = tokio::signal::ctrl_c() => return Err(Failure::Refused("interrupted; the unfinished backup was removed".to_owned())),
    };
    folder.finish(&manifest)?;
    let shown = target.display();
    if through.output != Output::Table {
        let summary = json!({ "backup": target, "millis": u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            "revision": manifest.revision, "taken": manifest.taken, "keys": manifest.keys, "bytes": manifest.bytes,
            "leases": manifest.leases.len(), "files": manifest.files });
        return output::print(&output::rendered(&summary, through.output)?);
    }
    output::print(&verify::contents(&manifest).render())?;
    output::print(&format!(
        "{shown}: {} and {} at revision {}, {} in {}\n",
        counted(manifest.keys, "key"),
        counted(manifest.leases.len() as u64, "lease"),
        manifest.revision,
        bytes(manifest.bytes),
        time(began.elapsed())
    ))
}

/// Granted TTL and remaining time of leases, by id.
type Leases = BTreeMap<i64, (i64, i64)>;

/// The leases before the snapshot, so that leases which end right after it are recorded as well.
async fn known_leases(
    client: &Client,
    through: &Through,
    tls: &kindred_transport::tls::ClientTlsArgs,
) -> Result<Leases, Failure> {
    let who = client.get("/api/v1/cluster", crate::admin::client::Form::Objects).await?;
    let urls =
        who["clientUrls"].as_array().into_iter().flatten().filter_map(|url| url.as_str().map(str::to_owned));
    let urls: Vec<String> = urls.collect();
    let etcd = Etcd::connect(through.endpoints_or(&urls), tls, &through.login).await?;
    let ids = etcd.leases().await?;
    times(&etcd, ids).await
}

async fn times(etcd: &Etcd, ids: impl IntoIterator<Item = i64>) -> Result<Leases, Failure> {
    let asked = ids.into_iter().map(|id| async move { etcd.lease(id).await.map(|times| (id, times)) });
    let mut answers = futures_util::stream::iter(asked).buffer_unordered(LEASES_AT_ONCE);
    let mut known = Leases::new();
    while let Some(answer) = answers.next().await {
        if let (id, Some(times)) = answer? {
            known.insert(id, times);
        }
    }
    Ok(known)
}

/// Reads all keys into files, and collects their leases.
async fn read(
    etcd: &Etcd,
    snapshot: &Snapshot,
    folder: &Unfinished,
    through: &Through,
    mut known: Leases,
) -> Result<(Vec<manifest::File>, Vec<Lease>), Failure> {
    let mut files = Files::new(folder, KindScheme::new(&snapshot.etcd_prefix));
    let mut used = BTreeSet::new();
    let mut rate = Rate::new(through.rate);
    snapshot
        .read(etcd, &mut rate, |kv| {
            if kv.lease != 0 {
                used.insert(kv.lease);
            }
            files.add(kv)
        })
        .await?;
    let files = files.finish()?;
    let new: Vec<i64> = used.iter().copied().filter(|id| !known.contains_key(id)).collect();
    known.extend(times(etcd, new).await?);
    for id in used {
        // The lease existed at the snapshot and has ended since.
        known.entry(id).or_insert((-1, -1));
    }
    let some = |seconds: i64| (seconds >= 0).then_some(seconds);
    let leases = known.into_iter().map(|(id, (ttl, remaining))| Lease {
        id: manifest::lease_text(id),
        ttl: some(ttl),
        remaining: some(remaining),
    });
    Ok((files, leases.collect()))
}

fn manifest_of(
    snapshot: Snapshot,
    taken: String,
    files: Vec<manifest::File>,
    leases: Vec<Lease>,
) -> Manifest {
    let mut etcd_revisions: Vec<EtcdRevision> = Vec::new();
    for range in snapshot.ranges {
        if let Some(store) = range.etcd
            && !etcd_revisions.iter().any(|known| known.store == store)
        {
            etcd_revisions.push(EtcdRevision { store, revision: range.revision });
        }
    }
    Manifest {
        format_version: format::VERSION,
        written_by: concat!("kindred ", env!("CARGO_PKG_VERSION")).to_owned(),
        taken,
        finished: moment::now(),
        revision: snapshot.revision,
        cluster_id: snapshot.cluster_id,
        etcd_prefix: snapshot.etcd_prefix,
        etcd_revisions,
        stores: snapshot.stores,
        state: snapshot.state,
        keys: files.iter().map(|file| file.keys).sum(),
        bytes: files.iter().map(|file| file.bytes).sum(),
        files,
        leases,
    }
}

struct Open {
    /// The Kind prefix; empty for the keys of no Kind.
    prefix: String,
    name: String,
    file: String,
    writer: FileWriter<BufWriter<File>>,
}

/// The data files. Keys come in key order, so those of one Kind are adjacent; keys of no Kind may come between
/// Kinds.
struct Files<'f> {
    folder: &'f Unfinished,
    scheme: KindScheme,
    kind: Option<Open>,
    other: Option<Open>,
    done: Vec<manifest::File>,
}

impl<'f> Files<'f> {
    fn new(folder: &'f Unfinished, scheme: KindScheme) -> Self {
        Self { folder, scheme, kind: None, other: None, done: Vec::new() }
    }

    fn add(&mut self, kv: &KeyValue) -> Result<(), Failure> {
        let prefix = prefix_of(&self.scheme, &kv.key).unwrap_or_default();
        let slot = if prefix.is_empty() { &mut self.other } else { &mut self.kind };
        if slot.as_ref().is_none_or(|open| open.prefix != prefix) {
            let before = slot.take();
            let number = self.done.len() + usize::from(before.is_some());
            if let Some(before) = before {
                self.done.push(closed(self.folder, before)?);
            }
            let opened = open(self.folder, &self.scheme, prefix, number)?;
            let slot = if opened.prefix.is_empty() { &mut self.other } else { &mut self.kind };
            *slot = Some(opened);
        }
        let slot = if prefix.is_empty() { &mut self.other } else { &mut self.kind };
        match slot {
            Some(open) => {
                open.writer.add(kv).map_err(|error| written(&self.folder.path().join(&open.file), &error))
            }
            // Unreachable: the file was opened above.
            None => Ok(()),
        }
    }

    fn finish(mut self) -> Result<Vec<manifest::File>, Failure> {
        for open in [self.kind.take(), self.other.take()].into_iter().flatten() {
            self.done.push(closed(self.folder, open)?);
        }
        Ok(self.done)
    }
}

fn open(folder: &Unfinished, scheme: &KindScheme, prefix: &str, number: usize) -> Result<Open, Failure> {
    let name = match scheme.kind_prefix(prefix.as_bytes()) {
        Some(kind) => scheme.name_of(&kind),
        None => OTHER.to_owned(),
    };
    let slug = |text: &str| -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        text.trim_matches(['/', '<', '>']).chars().map(plain).take(80).collect()
    };
    // Keys of no Kind may come between any Kinds, so their file has no number.
    let file = match prefix {
        "" => format!("{DATA}/other.kbk"),
        _ => format!("{DATA}/{number:04}-{}.kbk", slug(&name)),
    };
    let made = folder.create(&file).and_then(FileWriter::new);
    let writer = made.map_err(|error| written(&folder.path().join(&file), &error))?;
    Ok(Open { prefix: prefix.to_owned(), name, file, writer })
}

fn closed(folder: &Unfinished, open: Open) -> Result<manifest::File, Failure> {
    let Open { prefix, name: kind, file, writer } = open;
    let failed = |error: &std::io::Error| written(&folder.path().join(&file), error);
    let (sum, out) = writer.finish().map_err(|error| failed(&error))?;
    let out = out.into_inner().map_err(|error| failed(error.error()))?;
    out.sync_all().map_err(|error| failed(&error))?;
    let prefix = (!prefix.is_empty()).then_some(prefix);
    Ok(manifest::File { file, kind, prefix, keys: sum.keys, bytes: sum.bytes, xxh3: sum.xxh3 })
}
