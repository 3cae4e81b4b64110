//! Makes the data directory of a new store from the keys and leases of another database, before the store's first start.

use std::path::Path;

use anyhow::Context as _;
use kindred_engine::durability::{Durability, LeaseRecord, LeaseState};
use kindred_engine::recover::Recovered;
use kindred_engine::version::Version;
use kindred_partition_config::ids::{LeaseId, Revision, Slot};
use kindred_proto::mvccpb::KeyValue;
use prost::Message as _;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::apply_loop::call;
use crate::config::{Args, Options, Settings};
use crate::durability::start::{self, Directory, Origin};
use crate::handle;
use crate::identity::Identity;
use crate::server;
use crate::standby::shipping::Shipping;

/// What a store begins with.
#[derive(Debug, Default)]
pub struct Contents {
    /// The current version of each key. Its revisions are kept.
    pub keys: Vec<KeyValue>,
    pub leases: Vec<Lease>,
    /// The revision of the other database. History below it is compacted.
    pub revision: i64,
}

/// A lease, with its whole TTL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    pub ttl_s: i64,
    /// The home, if that is another store.
    pub home: Option<Slot>,
    /// The other stores that have keys of it; told at the home.
    pub attached: Vec<Slot>,
}

/// The store to make.
#[derive(Debug, Clone)]
pub struct Store<'a> {
    pub name: &'a str,
    pub slot: Slot,
    /// A folder that is empty or not there.
    pub directory: &'a Path,
    pub etcd_prefix: &'a str,
}

/// Makes the directory of a store, as a clean stop leaves it. All of it is on disk when this returns.
///
/// # Errors
/// When the directory is that of a store already, the disk does not take it, or a revision is one that no clock could have
/// assigned.
pub async fn write(store: &Store<'_>, contents: Contents) -> anyhow::Result<()> {
    let options = Options {
        name: Some(store.name.to_owned()),
        data_dir: Some(store.directory.to_owned()),
        etcd_prefix: Some(store.etcd_prefix.to_owned()),
        ..Options::default()
    };
    let mut settings = Settings::resolve(Args { options, ..Args::default() })?;
    settings.slot = store.slot;
    // Whatever the modes are to be, the import must be on disk.
    settings.durability.default = Durability::Fsync;
    settings.durability.of.clear();
    settings.quota_bytes = Some(0);
    let directory = Directory::take(store.directory)?;
    let is_new = Identity::read(directory.path())?.is_none();
    anyhow::ensure!(is_new, "{}: a store is there already", store.directory.display());
    let identity = start::identity(&directory, (store.name, store.slot), false, &settings.durability)?;
    let (config, clock, of_core) =
        server::engine_settings(&settings, server::quota(&settings), identity.member_id);
    let origin = Origin::Import(Box::new(recovered(contents, &settings)?));
    let (core, logs) = start::open(directory, config, clock, of_core, &settings.durability, origin).await?;
    let stop = CancellationToken::new();
    let (handle, apply_loop) =
        handle::spawn(core, logs, Shipping::alone(), settings.progress_interval, stop.clone());
    let (waiter, done) = oneshot::channel();
    handle.call(call::AskCheckpoint { waiter }).await?;
    let checkpoint = done.await.context("the store ended")?;
    stop.cancel();
    apply_loop.await.context("the store failed")?;
    checkpoint.map_err(|why| anyhow::anyhow!("{}: no checkpoint: {why}", store.directory.display()))
}

/// The contents as a start finds them in files.
fn recovered(contents: Contents, settings: &Settings) -> anyhow::Result<Recovered> {
    let Contents { mut keys, leases, revision } = contents;
    keys.sort_by(|a, b| (a.mod_revision, &a.key).cmp(&(b.mod_revision, &b.key)));
    let (mut versions, mut last, mut sub) = (Vec::with_capacity(keys.len()), 0, 0);
    let mut encoded = Vec::new();
    for kv in keys {
        sub = if kv.mod_revision == last { sub + 1 } else { 0 };
        last = kv.mod_revision;
        encoded.clear();
        kv.encode(&mut encoded)?;
        let version = Version::from_wire(&encoded, false, sub)
            .map_err(|error| anyhow::anyhow!("key {:?}: {error}", String::from_utf8_lossy(&kv.key)))?;
        versions.push(version);
    }
    let record = |Lease { id, ttl_s, home, attached }| {
        let state = match home {
            None => LeaseState::Home { ttl_s, attached },
            Some(home) => LeaseState::Adopted { ttl_s, home },
        };
        LeaseRecord { id, state }
    };
    Ok(Recovered {
        versions,
        leases: leases.into_iter().map(record).collect(),
        compacted: Some(Revision(revision)),
        modes: Some(start::modes(&settings.durability)),
        start: Revision(revision),
        ..Recovered::default()
    })
}
