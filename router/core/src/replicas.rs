//! The members of a store: who is its primary, and who may be promoted (R19). One record per store in the meta store,
//! changed only by compare-and-swap. This module says which records may follow each other; it does no I/O.
//!
//! The term grows with every change. A primary and its standbys refuse what an older term asks of them, so a request
//! that was delayed cannot undo what came after it.

use std::collections::BTreeSet;

use kindred_partition_config::ids::Term;
use serde::{Deserialize, Serialize};

/// The version of the record that this code writes, and the only one that it reads.
pub const RECORD_VERSION: u32 = 1;

/// The record of a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Replicas {
    version: u32,
    /// Incremented with every change.
    pub term: Term,
    /// The uuid of the process that serves the store.
    pub primary: String,
    /// The uuids of the standbys that have everything that was acknowledged. Each of them may be promoted.
    #[serde(default)]
    pub in_sync: BTreeSet<String>,
}

/// Why a record may not be changed so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not have all that was acknowledged.
    #[error("{0:?} is not in sync: it may lack acknowledged writes")]
    NotInSync(String),
    /// It is the primary.
    #[error("{0:?} is the primary")]
    IsPrimary(String),
}

impl Replicas {
    /// The record of a store without standbys.
    #[must_use]
    pub fn alone(primary: String) -> Self {
        Self { version: RECORD_VERSION, term: Term(1), primary, in_sync: BTreeSet::new() }
    }

    fn next(&self) -> Self {
        Self { term: Term(self.term.0 + 1), ..self.clone() }
    }

    /// The record after a standby has caught up. The primary must wait for it already (R18): from the moment at which
    /// this is written, it may be promoted.
    ///
    /// # Errors
    /// When it is the primary.
    pub fn with(&self, standby: &str) -> Result<Self, Refusal> {
        if self.primary == standby {
            return Err(Refusal::IsPrimary(standby.to_owned()));
        }
        let mut next = self.next();
        next.in_sync.insert(standby.to_owned());
        Ok(next)
    }

    /// The record without a standby. Only when this is written, the primary may go on without it.
    #[must_use]
    pub fn without(&self, standby: &str) -> Self {
        let mut next = self.next();
        next.in_sync.remove(standby);
        next
    }

    /// The record after a standby was promoted. The former primary and the other standbys do not count before they have
    /// caught up with it.
    ///
    /// # Errors
    /// When it is not in sync.
    pub fn promoted(&self, standby: &str) -> Result<Self, Refusal> {
        if !self.in_sync.contains(standby) {
            return Err(Refusal::NotInSync(standby.to_owned()));
        }
        Ok(Self { primary: standby.to_owned(), in_sync: BTreeSet::new(), ..self.next() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r19_only_a_standby_that_is_in_sync_is_promoted() {
        let alone = Replicas::alone("a".to_owned());
        assert_eq!(alone.promoted("b"), Err(Refusal::NotInSync("b".to_owned())));
        assert_eq!(alone.with("a"), Err(Refusal::IsPrimary("a".to_owned())));
        let pair = alone.with("b").expect("another one");
        let promoted = pair.promoted("b").expect("in sync");
        assert_eq!((&*promoted.primary, promoted.in_sync.len(), promoted.term), ("b", 0, Term(3)));
        // The former primary counts again when it has caught up.
        assert_eq!(promoted.promoted("a"), Err(Refusal::NotInSync("a".to_owned())));
        assert!(promoted.with("a").expect("another one").promoted("a").is_ok());
        assert_eq!(pair.without("b").promoted("b"), Err(Refusal::NotInSync("b".to_owned())));
    }

    #[test]
    fn r19_every_change_has_a_term_of_its_own() {
        let first = Replicas::alone("a".to_owned());
        let second = first.with("b").expect("another one");
        let terms =
            [first.term, second.term, second.without("b").term, second.promoted("b").expect("in sync").term];
        assert_eq!(terms, [Term(1), Term(2), Term(3), Term(3)]);
    }
}
