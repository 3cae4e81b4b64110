//! The last state on disk, for a start while meta is away and for a meta store that has lost its data.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kindred_partition_config::state::{ClusterState, StateError};
use kindred_transport::private;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// Reading or writing failed.
    #[error("--meta-cache {path}: {source}")]
    Io {
        /// The file's path.
        path: String,
        /// The error of the file system.
        source: io::Error,
    },
    /// The content is no state.
    #[error("--meta-cache {path}: {source}; remove the file to go on without it")]
    State {
        /// The file's path.
        path: String,
        /// What is wrong with the content.
        source: StateError,
    },
}

/// Reads the file; `None` if it does not exist.
///
/// # Errors
/// When the file exists and cannot be read. Starting without it could mean starting with an older map.
pub fn read(path: &Path) -> Result<Option<ClusterState>, CacheError> {
    let named = || path.display().to_string();
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(CacheError::Io { path: named(), source }),
    };
    ClusterState::from_json(&bytes).map(Some).map_err(|source| CacheError::State { path: named(), source })
}

/// Writes the file atomically: after a crash, it holds either the old or the new state.
///
/// # Errors
/// When the file system refuses.
pub fn write(path: &Path, state: &ClusterState) -> Result<(), CacheError> {
    private::write(path, &state.to_json())
        .map_err(|source| CacheError::Io { path: path.display().to_string(), source })
}

/// Renames a file that belongs to another cluster, because it may be the last copy of that state. Returns the new path.
///
/// # Errors
/// When the file system refuses.
pub fn put_aside(path: &Path) -> Result<PathBuf, CacheError> {
    let failed = |source| CacheError::Io { path: path.display().to_string(), source };
    for number in 1_u32.. {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".foreign-{number}"));
        let aside = path.with_file_name(name);
        if !aside.try_exists().map_err(failed)? {
            fs::rename(path, &aside).map_err(failed)?;
            return Ok(aside);
        }
    }
    Err(failed(io::Error::other("every name for it is taken")))
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::parse::{DEFAULT_CONFIG, parse_config};

    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn what_was_written_is_read_and_what_was_not_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        assert!(read(&path).unwrap().is_none());
        let state = ClusterState::bootstrap(&parse_config(DEFAULT_CONFIG).unwrap()).unwrap();
        write(&path, &state).unwrap();
        write(&path, &state).unwrap();
        assert_eq!(read(&path).unwrap(), Some(state));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "f34: it says where the stores are");
        for number in [1, 2] {
            let aside = put_aside(&path).unwrap();
            assert!(
                aside.ends_with(format!("state.json.foreign-{number}")) && read(&aside).unwrap().is_some()
            );
            assert!(read(&path).unwrap().is_none());
            fs::copy(&aside, &path).unwrap();
        }
        fs::write(&path, "{").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("state.json"));
    }
}
