//! The highest revision that this router has shown of each Kind that is spread over stores (R8).
//!
//! A read of such a Kind asks its stores to answer at least with it, so that what one store shows is never below what
//! another has shown; and stores that agree on it make a list one round trip. Kinds on one store need none of this.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::consistent_read::{RevisionScope, Shown};
use kindred_partition_config::ids::Revision;
use kindred_partition_config::kind::KindPrefix;

/// What was shown. Requests load and raise it; never locked across an await.
#[derive(Debug)]
pub struct ShownRevisions {
    scope: RevisionScope,
    /// `None` stands for everything, where the scope is not the Kind.
    shown: Mutex<Shown<Option<KindPrefix>>>,
}

impl ShownRevisions {
    /// Nothing shown yet.
    #[must_use]
    pub fn new(scope: RevisionScope) -> Self {
        Self { scope, shown: Mutex::new(Shown::new(scope)) }
    }

    /// Whether a request that concerns these spread Kinds has to ask and tell.
    #[must_use]
    pub fn concerns(&self, spread: &[KindPrefix]) -> bool {
        self.scope == RevisionScope::Global || !spread.is_empty()
    }

    /// What a read of these spread Kinds is answered with at least; zero for no wish.
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

    /// A header, an event or a progress answer about these spread Kinds shows `revision`. Before the bytes leave.
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
