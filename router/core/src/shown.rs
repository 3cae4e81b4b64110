//! The highest revision that this router has shown of each spread Kind, one that is on several stores (R8).
//!
//! A read of such a Kind asks its stores to answer at least at this revision, so that one store never shows less than
//! another has shown; and if all stores answer with the same revision, a list costs one round trip. A Kind on one store
//! needs none of this.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::consistent_read::{RevisionScope, Shown};
use kindred_partition_config::ids::Revision;
use kindred_partition_config::kind::KindPrefix;

/// What was shown. Requests read and raise it; never locked across an await.
#[derive(Debug)]
pub struct ShownRevisions {
    scope: RevisionScope,
    /// `None` is the key for everything in the global scope.
    shown: Mutex<Shown<Option<KindPrefix>>>,
}

impl ShownRevisions {
    #[must_use]
    pub fn new(scope: RevisionScope) -> Self {
        Self { scope, shown: Mutex::new(Shown::new(scope)) }
    }

    /// Whether a request of these spread Kinds must read and raise what was shown.
    #[must_use]
    pub fn concerns(&self, spread: &[KindPrefix]) -> bool {
        self.scope == RevisionScope::Global || !spread.is_empty()
    }

    /// The revision that answers of a read of these spread Kinds must have at least; zero for none.
    #[must_use]
    pub fn of(&self, spread: &[KindPrefix]) -> Revision {
        if !self.concerns(spread) {
            return Revision::ZERO;
        }
        let shown = self.lock();
        match self.scope {
            RevisionScope::Global => shown.of(&None),
            RevisionScope::Kind => {
                let of = |kind: &KindPrefix| shown.of(&Some(kind.clone()));
                spread.iter().map(of).max().unwrap_or(Revision::ZERO)
            }
        }
    }

    /// Notes that a header, an event or a progress answer shows `revision` of these spread Kinds. Call it before the
    /// bytes leave.
    pub fn show(&self, spread: &[KindPrefix], revision: Revision) {
        if !self.concerns(spread) {
            return;
        }
        let mut shown = self.lock();
        match self.scope {
            RevisionScope::Global => shown.show(None, revision),
            RevisionScope::Kind => spread.iter().for_each(|kind| shown.show(Some(kind.clone()), revision)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shown<Option<KindPrefix>>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::kind::KindScheme;

    use super::*;

    #[test]
    fn per_kind_or_for_all() {
        let kind = |name: &str| vec![KindScheme::default().resolve(name).unwrap()];
        let per_kind = ShownRevisions::new(RevisionScope::Kind);
        per_kind.show(&kind("pods"), Revision(7));
        per_kind.show(&kind("pods"), Revision(5));
        per_kind.show(&[], Revision(9));
        assert_eq!(per_kind.of(&kind("pods")), Revision(7));
        assert_eq!([per_kind.of(&kind("events")), per_kind.of(&[])], [Revision::ZERO; 2]);
        assert_eq!(per_kind.of(&[kind("events"), kind("pods")].concat()), Revision(7));

        let global = ShownRevisions::new(RevisionScope::Global);
        global.show(&[], Revision(9));
        assert_eq!([global.of(&kind("pods")), global.of(&[])], [Revision(9); 2]);
    }
}
