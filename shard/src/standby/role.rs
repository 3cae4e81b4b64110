//! What a member of a store remembers of its role over restarts, in its data directory (R19, R20). Without the file a
//! member is a primary without standbys, as every store was before there were any.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use kindred_partition_config::ids::Term;
use kindred_transport::private;
use serde::{Deserialize, Serialize};

use super::MemberId;
use crate::identity::Identity;

/// The file in the data directory.
const FILE: &str = "standby.json";

/// What a member does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Does {
    /// It serves, once everything that it waits for is there.
    Primary,
    /// It follows a primary. What is on its disk counts for nothing before it is promoted.
    Standby,
    /// It was the primary, and another member is now. What is on its disk counts for nothing.
    Superseded,
}

/// A member's role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Role {
    pub does: Does,
    /// The highest term that it has seen.
    pub term: Term,
    /// At a primary: the last term in which the record named it as such, by a call that said so.
    #[serde(default = "none", skip_serializing_if = "is_zero")]
    pub named: Term,
    /// At a primary: the standbys that have everything that was shown. One of them may be the primary by now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counted: Vec<MemberId>,
    /// Where the primary is, at the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// The `--standby-of` with which the process ran that learnt of that primary. While it is the same, the primary that
    /// was learnt counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_as: Option<String>,
}

/// Why the role cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    #[error("cannot {doing} {path}: {source}", path = .path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "{path} is not a member's role ({source}): empty the directory to begin anew as a standby", path = .path.display()
    )]
    Malformed { path: PathBuf, source: serde_json::Error },
}

impl Role {
    /// A primary that never had a standby.
    #[must_use]
    pub fn alone() -> Self {
        Self {
            does: Does::Primary,
            term: Term(0),
            named: Term(0),
            counted: Vec::new(),
            primary: None,
            started_as: None,
        }
    }

    /// Where a member that is started with this `--standby-of` finds its primary; `None` if it is one itself, or does not
    /// know.
    #[must_use]
    pub fn follows(&self, wanted: Option<&str>) -> Option<String> {
        let learnt = self.primary.as_deref();
        let follows = match self.does {
            Does::Primary => None,
            // The flag is as it was when this member learnt of the primary.
            _ if self.started_as.as_deref() == wanted => learnt.or(wanted),
            _ => wanted.or(learnt),
        };
        follows.map(str::to_owned)
    }

    /// The role kept in a directory.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    pub fn read(directory: &Path) -> Result<Option<Self>, RoleError> {
        let path = directory.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(role) => Ok(Some(role)),
                Err(source) => Err(RoleError::Malformed { path, source }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(RoleError::Io { doing: "read", path, source }),
        }
    }

    /// Keeps it on disk. A crash leaves the former role or this one.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn write(&self, directory: &Path) -> Result<(), RoleError> {
        let path = directory.join(FILE);
        let written = serde_json::to_vec_pretty(self).map_err(io::Error::other);
        let written = written.and_then(|bytes| private::write(&path, &bytes));
        written.map_err(|source| RoleError::Io { doing: "write", path, source })
    }

    /// Removes what a store has written to a directory, and keeps that it is a standby's from now on.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn begin_anew(
        directory: &Path,
        term: Term,
        primary: &str,
        started_as: Option<String>,
    ) -> Result<Self, RoleError> {
        let primary = Some(primary.to_owned());
        let role = Self { does: Does::Standby, term, primary, started_as, ..Self::alone() };
        let failed = |path: PathBuf| move |source| RoleError::Io { doing: "remove", path, source };
        if Self::read(directory)?.is_some_and(|former| former.does != Does::Standby) {
            // A standby says of the id that it finds that it was never promoted. This one may have been.
            Identity::remove(directory).map_err(failed(directory.to_owned()))?;
        }
        // Before anything else goes, so that what is left after a crash is taken for nothing.
        role.write(directory)?;
        let entries = fs::read_dir(directory).map_err(failed(directory.to_owned()))?;
        for entry in entries {
            let path = entry.map_err(failed(directory.to_owned()))?.path();
            let kept = path.file_name().is_some_and(|name| name == FILE || name == "lock");
            if !kept {
                let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                removed.map_err(failed(path))?;
            }
        }
        Ok(role)
    }
}

fn none() -> Term {
    Term(0)
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(term: &Term) -> bool {
    term.0 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Role::read(directory.path()).unwrap(), None);
        let counted = vec![MemberId("00ab".to_owned())];
        let role = Role { term: Term(3), counted, ..Role::alone() };
        role.write(directory.path()).unwrap();
        assert_eq!(Role::read(directory.path()).unwrap(), Some(role));
        let text = fs::read_to_string(directory.path().join(FILE)).unwrap();
        let text: String = text.split_whitespace().collect();
        assert_eq!(text, r#"{"does":"primary","term":3,"counted":["00ab"]}"#, "read for ever");
        fs::write(directory.path().join(FILE), r#"{"does":"nothing"}"#).unwrap();
        assert!(Role::read(directory.path()).unwrap_err().to_string().contains("empty the directory"));
    }

    #[test]
    fn a_standby_follows_the_primary_that_it_learnt_of_until_its_flag_says_another() {
        let role = |does, primary: &str, started_as: Option<&str>| Role {
            does,
            primary: Some(primary.to_owned()),
            started_as: started_as.map(str::to_owned),
            ..Role::alone()
        };
        let standby = role(Does::Standby, "b", Some("a"));
        assert_eq!(standby.follows(Some("a")).as_deref(), Some("b"), "a was superseded by b");
        assert_eq!(standby.follows(Some("c")).as_deref(), Some("c"), "somebody has said otherwise since");
        assert_eq!(standby.follows(None).as_deref(), Some("b"));
        let former = role(Does::Superseded, "b", None);
        assert_eq!(former.follows(None).as_deref(), Some("b"));
        assert_eq!(former.follows(Some("a")).as_deref(), Some("a"));
        assert_eq!(role(Does::Primary, "b", None).follows(Some("a")), None);
    }

    #[test]
    fn who_begins_anew_leaves_nothing_of_the_former_store() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("wal")).unwrap();
        fs::write(directory.path().join("wal").join("1"), "records").unwrap();
        fs::write(directory.path().join("identity.json"), "{}").unwrap();
        let role = Role::begin_anew(directory.path(), Term(2), "http://127.0.0.1:1", None).unwrap();
        let left: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [FILE]);
        assert_eq!(Role::read(directory.path()).unwrap(), Some(role));
    }
}
