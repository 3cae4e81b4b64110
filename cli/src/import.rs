//! `kindred import`: makes the data folder of a new `kindred up` from a snapshot of an etcd, or of kindred.
//!
//! Every shard of the configuration gets its keys with their revisions and versions, and every lease its whole TTL, as in an
//! etcd that begins with the snapshot. Nothing runs meanwhile. A folder counts only when all of it is made: it is called
//! `DIR.unfinished` before.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use kindred_database::etcd;
use kindred_partition_config::ids::{LeaseId, Slot};
use kindred_partition_config::map::StoreIdx;
use kindred_partition_config::model::StoreType;
use kindred_partition_config::state::ClusterState;
use kindred_proto::mvccpb::KeyValue;
use kindred_router_core::fence::FenceDoc;
use kindred_shard::importing::{self, Contents, Lease, Store};
use kindred_transport::logging::{Format, Process};
use kindred_wire::fence::FENCE_KEY;

use crate::admin::output::{self, Table, bytes, count, counted};
use crate::up;

pub mod args;

use args::ImportArgs;

pub fn run(args: &ImportArgs) -> anyhow::Result<()> {
    let process = Process { kind: "import", name: None };
    let _logging = kindred_shard::begin_logging("warn", Format::Text, process)?;
    let state = up::first_state(args.config.as_deref())?;
    let folder = &args.data_dir;
    if folder.exists() {
        bail!("--data-dir {}: it is there already; an import makes a new folder", folder.display());
    }
    let shown = args.file.display();
    let file = File::open(&args.file).with_context(|| shown.to_string())?;
    let mut found = etcd::read(file).with_context(|| shown.to_string())?;
    take_fence(&mut found.keys).with_context(|| shown.to_string())?;
    if found.users + found.roles > 0 {
        let (users, roles) = (counted(found.users, "user"), counted(found.roles, "role"));
        tracing::warn!("{users} and {roles} are not taken over; they are not in use in the snapshot");
    }
    let revision = found.revision;
    let parts = divide(&state, found).with_context(|| shown.to_string())?;
    let unfinished = PathBuf::from(format!("{}.unfinished", folder.display()));
    if unfinished.exists() {
        bail!("{}: an import was interrupted there; remove it first", unfinished.display());
    }
    let mut table = Table::new(&["store", "keys", "bytes", "leases"]);
    for (name, part) in &parts {
        let size: u64 = part.contents.keys.iter().map(|kv| (kv.key.len() + kv.value.len()) as u64).sum();
        let keys = part.contents.keys.len() as u64;
        table.row(vec![name.clone(), count(keys), bytes(size), count(part.contents.leases.len() as u64)]);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let made = runtime.block_on(make(&unfinished, &state, parts));
    if let Err(error) = made {
        // Nobody has used it.
        let _ = fs::remove_dir_all(&unfinished);
        return Err(error);
    }
    fs::rename(&unfinished, folder).with_context(|| folder.display().to_string())?;
    output::print(&table.render())?;
    let with = args.config.as_ref().map(|config| format!(" --config {}", config.display()));
    output::print(&format!(
        "{shown} at revision {revision} is in {}: start `kindred up --data-dir {}{}`\n",
        folder.display(),
        folder.display(),
        with.unwrap_or_default()
    ))
    .map_err(Into::into)
}

async fn make(folder: &Path, state: &ClusterState, parts: BTreeMap<String, Part>) -> anyhow::Result<()> {
    up::found(folder)?;
    for (name, Part { slot, contents }) in parts {
        let directory = up::folder_of_store(folder, &name);
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        let store = Store { name: &name, slot, directory: &directory, etcd_prefix: &state.etcd_prefix };
        importing::write(&store, contents).await.with_context(|| format!("store {name}"))?;
    }
    Ok(())
}

/// Takes out the key in which a kindred keeps which Kinds it has moved away from an etcd.
///
/// # Errors
/// When some are away: what the snapshot has of them is old.
fn take_fence(keys: &mut Vec<KeyValue>) -> anyhow::Result<()> {
    let Some(at) = keys.iter().position(|kv| kv.key == FENCE_KEY) else { return Ok(()) };
    let doc = FenceDoc::read(&keys[at].value)
        .context("the key \"\\x00\" of the snapshot is not kindred's: it cannot be imported")?;
    if !doc.is_open() {
        let moved = doc.moved();
        let from: Vec<_> =
            moved.iter().map(|range| format!("\"{}\"", range.start().escape_ascii())).collect();
        bail!(
            "a kindred has moved {} of its key ranges, from {}: what the snapshot has there is old. Import a snapshot that \
             was taken at a router of that kindred",
            moved.len(),
            from.join(", ")
        );
    }
    keys.swap_remove(at);
    Ok(())
}

/// The keys and leases of one store.
struct Part {
    slot: Slot,
    contents: Contents,
}

/// Divides a snapshot among the shards of the first state.
fn divide(state: &ClusterState, found: etcd::Contents) -> anyhow::Result<BTreeMap<String, Part>> {
    let etcd::Contents { revision, keys, leases, .. } = found;
    let mut parts: BTreeMap<String, Part> = BTreeMap::new();
    let mut slots: BTreeMap<StoreIdx, (String, Slot)> = BTreeMap::new();
    for (at, store) in state.stores.iter().enumerate() {
        let slot = store.slot.and_then(Slot::new);
        let (Some(slot), StoreType::Shard) = (slot, store.store_type) else { continue };
        let name = store.name.to_string();
        let contents = Contents { revision, ..Contents::default() };
        parts.insert(name.clone(), Part { slot, contents });
        slots.insert(StoreIdx(u16::try_from(at)?), (name, slot));
    }
    let known: BTreeSet<i64> = leases.iter().map(|lease| lease.id).collect();
    let mut holders: BTreeMap<i64, BTreeSet<Slot>> = BTreeMap::new();
    let (mut elsewhere, mut without_lease) = (0, 0);
    for mut kv in keys {
        let Some((name, slot)) = slots.get(&state.map.store_of(&kv.key)) else {
            elsewhere += 1;
            continue;
        };
        if kv.lease != 0 && !known.contains(&kv.lease) {
            // In an etcd it would stay for ever too.
            (kv.lease, without_lease) = (0, without_lease + 1);
        }
        if kv.lease != 0 {
            holders.entry(kv.lease).or_default().insert(*slot);
        }
        if let Some(part) = parts.get_mut(name) {
            part.contents.keys.push(kv);
        }
    }
    if elsewhere > 0 {
        bail!(
            "{} belong to a stock etcd by the configuration: an import makes shards; place their Kinds on shards",
            counted(elsewhere, "key")
        );
    }
    if without_lease > 0 {
        tracing::warn!(
            keys = without_lease,
            "they name leases that the snapshot does not have, and have none now"
        );
    }
    let Some(home) = state.lease_home().and_then(Slot::new) else { bail!("the configuration has no shard") };
    for lease in leases {
        let Some(id) = LeaseId::from_wire(lease.id) else { continue };
        let holders = holders.remove(&lease.id).unwrap_or_default();
        let others: Vec<Slot> = holders.into_iter().filter(|slot| *slot != home).collect();
        for part in parts.values_mut() {
            let one = Lease { id, ttl_s: lease.ttl.max(1), home: Some(home), attached: Vec::new() };
            if part.slot == home {
                part.contents.leases.push(Lease { home: None, attached: others.clone(), ..one });
            } else if others.contains(&part.slot) {
                part.contents.leases.push(one);
            }
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::ids::{Epoch, MoveId, Revision, Term};
    use kindred_partition_config::key::{Key, KeyRange};
    use kindred_partition_config::transfers::Transfer;
    use kindred_partition_config::unit::Unit;
    use kindred_router_core::fence::FencedUnit;

    use super::*;

    /// A snapshot of an etcd that had given Kinds away brought their old objects back, and the fence's key with them.
    #[test]
    fn f89_a_snapshot_without_what_was_moved_away_is_not_imported() {
        let kv = |key: &[u8], value: Vec<u8>| KeyValue {
            key: key.to_vec().into(),
            value: value.into(),
            ..KeyValue::default()
        };
        let range = KeyRange::prefix(Key::from("/registry/pods/"));
        let transfer =
            Transfer { unit: Unit::of_range(range), from: StoreIdx(0), to: StoreIdx(1), kind: None };
        let by = FencedUnit { id: MoveId(1), term: Term(1), transfer };
        let mut doc = FenceDoc::default();
        let with =
            |doc: &FenceDoc| vec![kv(FENCE_KEY, doc.to_json()), kv(b"/registry/pods/a/b", b"old".to_vec())];
        let mut keys = with(&doc);
        take_fence(&mut keys).unwrap();
        assert_eq!(keys.len(), 1, "an open fence is left out");
        doc.track(&by).unwrap();
        doc.freeze(&by, Revision(7)).unwrap();
        doc.release(&by, Epoch(2)).unwrap();
        let refused = take_fence(&mut with(&doc)).unwrap_err().to_string();
        assert!(refused.contains(r#"1 of its key ranges, from "/registry/pods/""#), "{refused}");
        assert!(take_fence(&mut vec![kv(FENCE_KEY, b"mine".to_vec())]).is_err());
    }
}
