//! `manifest.json` describes a backup and its files. Numbers beyond 53 bits are strings, as in Kubernetes.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use kindred_partition_config::kind::{KindPrefix, KindScheme};
use kindred_transport::private;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::format::{self, Sum};
use crate::admin::failure::Failure;

/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";
/// The file name of the manifest's checksum.
pub const MANIFEST_SUM: &str = "manifest.xxh3";
/// The folder of the data files.
pub const DATA: &str = "data";

/// Creates a file that is durable when this returns.
fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = private::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The content of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    /// [`format::VERSION`].
    pub format_version: u32,
    /// The version of kindred that wrote the backup.
    pub written_by: String,
    /// When the snapshot was taken, in RFC 3339, by the clock of the machine that wrote it.
    pub taken: String,
    /// When the last byte was written, in the same form.
    pub finished: String,
    /// T, the revision of all keys that shards serve.
    pub revision: String,
    pub cluster_id: String,
    /// kube-apiserver's `--etcd-prefix`, which determines the Kinds of keys.
    pub etcd_prefix: String,
    /// The stock etcds, which were read at revisions of their own.
    #[serde(default)]
    pub etcd_revisions: Vec<EtcdRevision>,
    /// The stores with slot, UUID and incarnation, as the router reported them.
    pub stores: Value,
    /// The cluster state document: stores, slots, configs, map.
    pub state: Value,
    /// The data files in key order; the file with the keys of no Kind comes last.
    pub files: Vec<File>,
    pub leases: Vec<Lease>,
    /// The total number of keys.
    pub keys: u64,
    /// The total length of the data files.
    pub bytes: u64,
}

/// The revision of a stock etcd in the backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdRevision {
    pub store: String,
    /// The revision that was read.
    pub revision: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct File {
    /// The path in the folder.
    pub file: String,
    /// The Kind's name as in a configuration.
    pub kind: String,
    /// The Kind prefix; `None` for the keys of no Kind.
    pub prefix: Option<String>,
    /// The number of keys.
    pub keys: u64,
    /// The file's length.
    pub bytes: u64,
    /// The checksum of the whole file.
    pub xxh3: String,
}

impl File {
    /// The expected sum of the file.
    #[must_use]
    pub fn sum(&self) -> Sum {
        Sum { keys: self.keys, bytes: self.bytes, xxh3: self.xxh3.clone() }
    }
}

/// A lease, with times in seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Lease {
    /// The id as etcdctl prints it.
    pub id: String,
    /// The granted TTL; `None` if the lease ended during the backup.
    pub ttl: Option<i64>,
    pub remaining: Option<i64>,
}

impl Lease {
    /// The numeric id.
    #[must_use]
    pub fn number(&self) -> Option<i64> {
        u64::from_str_radix(&self.id, 16).ok().map(u64::cast_signed)
    }
}

/// Formats a lease id as etcdctl does.
#[must_use]
pub fn lease_text(id: i64) -> String {
    format!("{:016x}", id.cast_unsigned())
}

impl Manifest {
    /// The key layout.
    #[must_use]
    pub fn scheme(&self) -> KindScheme {
        KindScheme::new(&self.etcd_prefix)
    }

    #[must_use]
    pub fn prefix_of(&self, file: &File) -> Option<KindPrefix> {
        self.scheme().kind_prefix(file.prefix.as_ref()?.as_bytes())
    }

    /// Writes the manifest and its checksum.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        text.push('\n');
        write_synced(&folder.join(MANIFEST), text.as_bytes())?;
        let sum = format::sum_of(text.as_bytes()) + "\n";
        write_synced(&folder.join(MANIFEST_SUM), sum.as_bytes())
    }

    /// Reads the manifest of a backup.
    ///
    /// # Errors
    /// When it is missing or damaged; says which, and what to do.
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
