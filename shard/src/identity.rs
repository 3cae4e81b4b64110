//! The identity of a store: minted at the first start and kept in the data directory, or random without one. A
//! directory belongs to one store with one name and slot and, from its first handshake with a cluster on, to that
//! cluster alone.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use kindred_partition_config::ids::{Lineage, Slot, uuid_of};
use kindred_transport::{private, random::bits as random};
use serde::{Deserialize, Serialize};

/// The file in the data directory.
const FILE: &str = "identity.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The store's UUID, as text.
    pub uuid: String,
    /// Minted with the store; `--cluster-id` overrides it.
    pub cluster_id: u64,
    /// Minted with the store.
    pub member_id: u64,
    /// Grows with every start (nothing in memory survives one). The file holds that of the first start, or of the last
    /// start of a version that counted there. Later starts are counted in the clock's file, which is written in place.
    pub incarnation: u64,
    /// `--name` of the first start that kept it; earlier versions did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `--slot` of that start: the directory contains revisions with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<Slot>,
    /// The lineage of the cluster whose routers joined it first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
}

/// Why the identity cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// An error of the file system.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// The attempted operation.
        doing: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The file is not in a form that this version writes.
    #[error("{path} is not an identity ({source}); restore it, or remove it to start as a new store")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The directory belongs to another store.
    #[error(
        "{path}: the directory is that of {kept}, and this process is started as {given}: start each store with its own \
         --data-dir (were two exchanged?), --name and --slot; a store that begins anew, as in a lost one's place, gets an \
         empty directory"
    )]
    Another {
        /// The identity's file.
        path: PathBuf,
        /// The store to which it belongs.
        kept: String,
        /// The store that was started.
        given: String,
    },
}

impl Identity {
    /// A new identity, with the first incarnation.
    #[must_use]
    pub fn random() -> Self {
        Self {
            uuid: uuid_of(random(), random()),
            // Zero means "none" in the protocol.
            cluster_id: random().max(1),
            member_id: random().max(1),
            incarnation: 1,
            name: None,
            slot: None,
            lineage: None,
        }
    }

    /// The identity of a process that keeps nothing. It cannot count its starts, so its incarnation is random: the next
    /// process at the same address must not be taken for this one.
    #[must_use]
    pub fn of_process() -> Self {
        Self { incarnation: (random() >> 32).max(2), ..Self::random() }
    }

    /// The identity of a store that has lost everything: another store.
    #[must_use]
    pub fn with_new_uuid(self) -> Self {
        Self { uuid: uuid_of(random(), random()), ..self }
    }

    /// Whether name and slot are kept.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.name.is_some() && self.slot.is_some()
    }

    /// Adds name and slot where they are not kept yet.
    #[must_use]
    pub fn named(mut self, name: &str, slot: Slot) -> Self {
        self.name.get_or_insert_with(|| name.to_owned());
        self.slot.get_or_insert(slot);
        self
    }

    /// Checks that a process with this name and slot may use the store. What an earlier version did not keep is not
    /// compared.
    ///
    /// # Errors
    /// When the directory belongs to another store.
    pub fn check(&self, directory: &Path, name: &str, slot: Slot) -> Result<(), IdentityError> {
        let same_name = self.name.as_deref().is_none_or(|kept| kept == name);
        let same_slot = self.slot.is_none_or(|kept| kept == slot);
        if same_name && same_slot {
            return Ok(());
        }
        let kept_name = self.name.as_deref().unwrap_or(name);
        Err(IdentityError::Another {
            path: directory.join(FILE),
            kept: format!("store {kept_name:?} with slot {}", self.slot.unwrap_or(slot)),
            given: format!("store {name:?} with slot {slot}"),
        })
    }

    /// The identity in `directory`, if there is one. The clock's file counts the starts since.
    ///
    /// # Errors
    /// When the file cannot be read or is damaged.
    pub fn read(directory: &Path) -> Result<Option<Self>, IdentityError> {
        let path = directory.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(kept) => Ok(Some(kept)),
                Err(source) => Err(IdentityError::Malformed { path, source }),
            },
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(IdentityError::Io { doing: "read", path, source }),
        }
    }

    /// Keeps it in `directory`: writes a new file and renames it, so that a crash leaves the old or the new one.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn write(&self, directory: &Path) -> Result<(), IdentityError> {
        let path = directory.join(FILE);
        let written = || private::write(&path, &serde_json::to_vec_pretty(self)?);
        written().map_err(|source| IdentityError::Io { doing: "write", path: path.clone(), source })
    }

    /// Removes the one in `directory`, if there is any.
    ///
    /// # Errors
    /// When the file system refuses.
    pub fn remove(directory: &Path) -> io::Result<()> {
        match fs::remove_file(directory.join(FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Identity::read(directory.path()).unwrap(), None);
        let first = Identity::random().named("pods", Slot::new(4).unwrap());
        first.write(directory.path()).unwrap();
        assert_eq!(Identity::read(directory.path()).unwrap(), Some(first.clone()));
        assert_ne!(Identity::random().uuid, first.uuid);
        assert_eq!(first.uuid.len(), 36);

        fs::write(directory.path().join(FILE), "{").unwrap();
        let error = Identity::read(directory.path()).unwrap_err();
        assert!(matches!(error, IdentityError::Malformed { .. }), "{error}");
    }

    #[test]
    fn f50_the_folder_of_another_store_is_refused_and_one_of_an_earlier_version_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        let slot = |number| Slot::new(number).unwrap();
        let kept = Identity::random().named("pods", slot(4));
        let check = |identity: &Identity, name, number| identity.check(directory.path(), name, slot(number));
        assert!(check(&kept, "pods", 4).is_ok());
        for (name, number) in [("nodes", 4), ("pods", 3), ("nodes", 3)] {
            let error = check(&kept, name, number).unwrap_err().to_string();
            let given = format!("{name:?} with slot {number}");
            for part in ["identity.json", "\"pods\" with slot 4", &given, "--data-dir"] {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
        let before = "{\"uuid\": \"u\", \"cluster_id\": 1, \"member_id\": 2, \"incarnation\": 7}";
        fs::write(directory.path().join(FILE), before).unwrap();
        let old = Identity::read(directory.path()).unwrap().unwrap();
        assert!(!old.is_named() && check(&old, "nodes", 3).is_ok());
        let named = old.named("nodes", slot(3));
        assert!(named.is_named() && check(&named, "nodes", 3).is_ok() && check(&named, "pods", 3).is_err());
    }
}
