//! `manifest.json`: what a backup is of, and what its files must be. Numbers beyond 53 bits are texts, as in Kubernetes.

use std::fs;
use std::io;
use std::path::Path;

use kindred_partition_config::kind::{KindPrefix, KindScheme};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::format::{self, Sum};
use crate::admin::Failure;

/// The manifest's name in the folder.
pub const MANIFEST: &str = "manifest.json";
/// The name of its checksum.
pub const MANIFEST_SUM: &str = "manifest.xxh3";
/// The folder of the data files.
pub const DATA: &str = "data";

/// The whole manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// [`format::VERSION`].
    pub format_version: u32,
    /// The program.
    pub written_by: String,
    /// When the cut was taken, RFC 3339, by the clock of the machine that wrote it.
    pub taken: String,
    /// When the last byte was written.
    pub finished: String,
    /// T: every key that shards serve is as it was at this revision.
    pub revision: String,
    /// The cluster.
    pub cluster_id: String,
    /// kube-apiserver's `--etcd-prefix`: how keys are told apart by Kind.
    pub etcd_prefix: String,
    /// Stock etcds that were read at revisions of their own.
    #[serde(default)]
    pub etcd_revisions: Vec<EtcdRevision>,
    /// The stores, with slot, UUID and incarnation, as the router showed them.
    pub stores: Value,
    /// The cluster's state document: stores, slots, configs, map.
    pub state: Value,
    /// The data files, in key order; that of the keys of no Kind last.
    pub files: Vec<File>,
    /// Leases.
    pub leases: Vec<Lease>,
    /// All keys.
    pub keys: u64,
    /// The length of all data files.
    pub bytes: u64,
}

/// A stock etcd's own revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdRevision {
    /// The store.
    pub store: String,
    /// Where it was read.
    pub revision: String,
}

/// A data file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct File {
    /// Its path in the folder.
    pub file: String,
    /// The name of the Kind, as people write it.
    pub kind: String,
    /// The prefix of the Kind's keys; none for the keys of no Kind.
    pub prefix: Option<String>,
    /// Keys.
    pub keys: u64,
    /// Length of the file.
    pub bytes: u64,
    /// Of the whole file.
    pub xxh3: String,
}

impl File {
    /// What the file must come to.
    #[must_use]
    pub fn sum(&self) -> Sum {
        Sum { keys: self.keys, bytes: self.bytes, xxh3: self.xxh3.clone() }
    }
}

/// A lease. Times in seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Lease {
    /// Its id as etcdctl shows it.
    pub id: String,
    /// The TTL that it was granted; none when it ended while the backup ran.
    pub ttl: Option<i64>,
    /// What was left of it.
    pub remaining: Option<i64>,
}

impl Lease {
    /// The id as on the wire.
    #[must_use]
    pub fn number(&self) -> Option<i64> {
        u64::from_str_radix(&self.id, 16).ok().map(u64::cast_signed)
    }
}

/// A lease id as etcdctl shows it.
#[must_use]
pub fn lease_text(id: i64) -> String {
    format!("{:016x}", id.cast_unsigned())
}

impl Manifest {
    /// How keys are told apart.
    #[must_use]
    pub fn scheme(&self) -> KindScheme {
        KindScheme::new(&self.etcd_prefix)
    }

    /// The Kind of a file.
    #[must_use]
    pub fn prefix_of(&self, file: &File) -> Option<KindPrefix> {
        self.scheme().kind_prefix(file.prefix.as_ref()?.as_bytes())
    }

    /// Writes it, and its checksum.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        text.push('\n');
        super::folder::write_synced(&folder.join(MANIFEST), text.as_bytes())?;
        let sum = format::sum_of(text.as_bytes()) + "\n";
        super::folder::write_synced(&folder.join(MANIFEST_SUM), sum.as_bytes())
    }

    /// Reads the manifest of a backup.
    ///
    /// # Errors
    /// When there is none, or it is damaged: says which, and what to do.
    pub fn read(folder: &Path) -> Result<Self, Failure> {
        let shown = folder.display();
        let path = folder.join(MANIFEST);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let unfinished = folder.join(DATA).is_dir();
                return Err(Failure::Refused(if unfinished {
                    format!(
                        "{shown}: this backup is unfinished: it was interrupted, or is being written; it cannot be used: remove it \
                         and back up again"
                    )
                } else {
                    format!(
                        "{shown} is no backup: it has no {MANIFEST}; name the folder that kindred backup --to wrote"
                    )
                }));
            }
            Err(error) => return Err(Failure::Refused(format!("{}: {error}", path.display()))),
        };
        let sum = folder.join(MANIFEST_SUM);
        let told = fs::read(&sum).map_err(|error| Failure::Refused(format!("{}: {error}", sum.display())))?;
        if told != (format::sum_of(&text) + "\n").into_bytes() {
            return Err(Failure::Refused(format!(
                "{}: its checksum is not the one in {MANIFEST_SUM}: one of the two is damaged; use another copy of this backup",
                path.display()
            )));
        }
        let version =
            serde_json::from_slice::<Value>(&text).ok().and_then(|value| value["formatVersion"].as_u64());
        if let Some(version) = version.filter(|version| *version != u64::from(format::VERSION)) {
            return Err(Failure::Refused(format!(
                "{shown}: this backup has format version {version}, this kindred reads {}: use the kindred that wrote it, or a newer one",
                format::VERSION
            )));
        }
        serde_json::from_slice(&text)
            .map_err(|error| Failure::Refused(format!("{}: not a manifest: {error}", path.display())))
    }
}
