//! Who this store is: minted at the first start, kept in the data directory, random without one.

use std::{
    fs,
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// The file in the data directory.
const FILE: &str = "identity.json";

/// Who a store is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// UUID of the store, as text.
    pub uuid: String,
    /// Minted with the store; `--cluster-id` overrides it.
    pub cluster_id: u64,
    /// Minted with the store.
    pub member_id: u64,
    /// Grows with every start (nothing in memory survives one).
    pub incarnation: u64,
}

/// Why the identity cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file system refuses.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is not what was written.
    #[error("{path} is not an identity ({source}); restore it, or remove it to start as a new store")]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
}

impl Identity {
    /// A new one, first incarnation.
    #[must_use]
    pub fn random() -> Self {
        let (high, low) = (random(), random());
        // Version 4, variant 1.
        let (high, low) = (high & !0xf000 | 0x4000, low & !(0b11 << 62) | (0b10 << 62));
        Self {
            uuid: format!(
                "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                high >> 32,
                (high >> 16) & 0xffff,
                high & 0xffff,
                low >> 48,
                low & 0xffff_ffff_ffff
            ),
            // Zero means "none" on the wire.
            cluster_id: random().max(1),
            member_id: random().max(1),
            incarnation: 1,
        }
    }

    /// That of a process that keeps nothing: as it cannot count its starts, its incarnation is random, so that nobody takes
    /// the next process on the same address for this one.
    #[must_use]
    pub fn of_process() -> Self {
        Self { incarnation: (random() >> 32).max(2), ..Self::random() }
    }

    /// The identity kept in `directory`, one incarnation further; a new one if there is none yet.
    ///
    /// # Errors
    /// When the directory cannot be used or the file is damaged.
    pub fn open(directory: &Path) -> Result<Self, IdentityError> {
        let error = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| IdentityError::Io { doing, path, source }
        };
        fs::create_dir_all(directory).map_err(error("create", directory))?;
        let path = directory.join(FILE);
        let identity = match fs::read(&path) {
            Ok(bytes) => {
                let mut kept: Self = serde_json::from_slice(&bytes)
                    .map_err(|source| IdentityError::Malformed { path: path.clone(), source })?;
                kept.incarnation += 1;
                kept
            }
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => Self::random(),
            Err(source) => return Err(error("read", &path)(source)),
        };
        identity.write(&path).map_err(error("write", &path))?;
        Ok(identity)
    }

    /// Written beside and renamed, so that a crash leaves the old one or the new one.
    fn write(&self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("new");
        let mut file = fs::File::create(&new)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        path.parent().map_or(Ok(()), |directory| fs::File::open(directory)?.sync_all())
    }
}

/// 64 bits of the keys that the standard library draws from the operating system for its hash maps.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_a_restart_with_a_new_incarnation() {
        let directory = tempfile::tempdir().unwrap();
        let first = Identity::open(directory.path()).unwrap();
        let second = Identity::open(directory.path()).unwrap();
        assert_eq!(second, Identity { incarnation: 2, ..first.clone() });
        assert_ne!(Identity::random().uuid, first.uuid);
        assert_eq!(first.uuid.len(), 36);

        fs::write(directory.path().join(FILE), "{").unwrap();
        let error = Identity::open(directory.path()).unwrap_err();
        assert!(matches!(error, IdentityError::Malformed { .. }), "{error}");
    }
}
