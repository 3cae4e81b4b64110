//! `kindred backup verify DIR`: reads every byte of a backup, without contacting a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::BufReader;
use std::path::Path;

use kindred_partition_config::errors::Errors;
use kindred_proto::mvccpb::KeyValue;
use serde_json::json;

use super::args::VerifyArgs;
use super::format::{FileReader, FormatError};
use super::hashes::Contents;
use super::kinds::prefix_of;
use super::manifest::{File, Manifest, lease_text};
use crate::admin::args::Output;
use crate::admin::failure::Failure;
use crate::admin::output::{self, Table, bytes, count, counted};

/// The remedy for a damaged file.
const INSTEAD: &str = "use another copy of this backup";

pub fn run(args: &VerifyArgs) -> Result<(), Failure> {
    let manifest = Manifest::read(&args.dir)?;
    let (hashes, problems) = read(&args.dir, &manifest, |_| true);
    if !problems.is_empty() {
        return Err(Failure::Refused(format!("{}: {INSTEAD}\n{}", args.dir.display(), problems.join("\n"))));
    }
    if args.output != Output::Table {
        let value = serde_json::to_value(&manifest).unwrap_or_default();
        let hashes: BTreeMap<_, _> = manifest.files.iter().map(|file| &file.kind).zip(hashes).collect();
        let shown = json!({ "backup": args.dir, "verified": true, "hashes": hashes, "manifest": value });
        return output::print(&output::rendered(&shown, args.output)?);
    }
    let mut table = Table::new(&["kind", "keys", "bytes", "hash"]);
    for (file, hash) in manifest.files.iter().zip(hashes) {
        table.row(vec![file.kind.clone(), count(file.keys), bytes(file.bytes), hash]);
    }
    output::print(&table.render())?;
    output::print(&format!(
        "{} of {}, cluster {}: whole; {} and {} at revision {}, {}\n",
        args.dir.display(),
        manifest.taken,
        manifest.cluster_id,
        counted(manifest.keys, "key"),
        counted(manifest.leases.len() as u64, "lease"),
        manifest.revision,
        bytes(manifest.bytes)
    ))
}

/// The contents of a backup as a table.
#[must_use]
pub fn contents(manifest: &Manifest) -> Table {
    let mut table = Table::new(&["kind", "keys", "bytes", "file"]);
    for file in &manifest.files {
        table.row(vec![file.kind.clone(), count(file.keys), bytes(file.bytes), file.file.clone()]);
    }
    table
}

/// All problems of the chosen files.
pub fn problems(folder: &Path, manifest: &Manifest, which: impl Fn(&File) -> bool) -> Errors<String> {
    read(folder, manifest, which).1
}

/// The hashes of the chosen files' contents, as `kindred verify` prints them for a cluster, and all problems.
fn read(folder: &Path, manifest: &Manifest, which: impl Fn(&File) -> bool) -> (Vec<String>, Errors<String>) {
    let (mut hashes, mut problems) = (Vec::new(), Errors::default());
    let total = |of: fn(&File) -> u64| manifest.files.iter().map(of).sum::<u64>();
    if (total(|file| file.keys), total(|file| file.bytes)) != (manifest.keys, manifest.bytes) {
        problems.push("manifest.json: its totals are not those of its files");
    }
    let leases: BTreeSet<&str> = manifest.leases.iter().map(|lease| lease.id.as_str()).collect();
    for file in manifest.files.iter().filter(|file| which(file)) {
        match check(folder, manifest, file, &leases) {
            Ok(hash) => hashes.push(hash),
            Err(problem) => problems.push(format!("{}: {problem}", file.file)),
        }
    }
    (hashes, problems)
}

/// Opens a data file.
///
/// # Errors
/// When it is missing or is not a data file.
pub fn open(folder: &Path, file: &File) -> Result<FileReader<BufReader<fs::File>>, FormatError> {
    let opened = fs::File::open(folder.join(&file.file))?;
    let length = opened.metadata()?.len();
    FileReader::new(BufReader::with_capacity(1 << 20, opened), length)
}

fn check(folder: &Path, manifest: &Manifest, file: &File, leases: &BTreeSet<&str>) -> Result<String, String> {
    let text = |error: FormatError| error.to_string();
    let mut reader = open(folder, file).map_err(text)?;
    let scheme = manifest.scheme();
    // Keys of a stock etcd have revisions of their own.
    let highest = match manifest.etcd_revisions.is_empty() {
        true => manifest.revision.parse().unwrap_or(i64::MAX),
        false => i64::MAX,
    };
    let mut contents = Contents::default();
    let mut last: Option<KeyValue> = None;
    loop {
        let records = reader.next().map_err(text)?;
        let Some(end) = records.last() else { break };
        let before = last.iter().chain(&records);
        let after = if last.is_none() { &records[1..] } else { &records[..] };
        for (before, kv) in before.zip(after) {
            if before.key >= kv.key {
                return Err(format!("its keys are not in order at \"{}\"", kv.key.escape_ascii()));
            }
        }
        for kv in &records {
            contents.add(kv);
            let key = kv.key.escape_ascii();
            if prefix_of(&scheme, &kv.key) != file.prefix.as_deref() {
                return Err(format!("\"{key}\" is not a key of {}", file.kind));
            }
            if kv.mod_revision > highest || kv.create_revision > kv.mod_revision || kv.version < 1 {
                return Err(format!("the revisions of \"{key}\" are not ones of this backup"));
            }
            if kv.lease != 0 && !leases.contains(lease_text(kv.lease).as_str()) {
                return Err(format!("\"{key}\" has a lease that the manifest does not know"));
            }
        }
        last = Some(end.clone());
    }
    let (found, told) = (reader.sum(), file.sum());
    if found.bytes != told.bytes {
        return Err(format!("it has {} bytes, the manifest says {}", found.bytes, told.bytes));
    }
    if found.xxh3 != told.xxh3 {
        return Err("its checksum is not the one in the manifest".to_owned());
    }
    if found.keys != told.keys {
        return Err(format!("it has {}, the manifest says {}", counted(found.keys, "key"), told.keys));
    }
    Ok(contents.hash())
}
