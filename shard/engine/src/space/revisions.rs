//! What the ranges of a shard show, and how it is raised.

use kindred_partition_config::ids::Revision;

use super::{KindId, Scope, Space};

/// How far a keyspace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frontier {
    pub(super) applied: Revision,
    pub(super) visible: Revision,
}

impl Frontier {
    pub(super) fn at(revision: Revision) -> Self {
        Self { applied: revision, visible: revision }
    }

    fn raise_applied(&mut self, to: Revision) {
        self.applied = self.applied.max(to);
    }

    fn raise_visible(&mut self, to: Revision) {
        self.applied = self.applied.max(to);
        self.visible = self.visible.max(to);
    }
}

impl Space {
    pub(super) fn mark_dirty(&mut self, id: KindId) {
        if !std::mem::replace(&mut self.kind_mut(id).dirty, true) {
            self.dirty.push(id);
        }
    }

    fn highest(&self, scope: &Scope, of: impl Fn(&Frontier) -> Revision) -> Revision {
        if self.dense {
            return of(&self.others);
        }
        match scope {
            Scope::One(id) => of(&self.kind(*id).frontier),
            Scope::Many { kinds, others } => {
                let kinds = kinds.iter().map(|id| of(&self.kind(*id).frontier));
                kinds.chain(others.then(|| of(&self.others))).max().unwrap_or(Revision::ZERO)
            }
        }
    }

    /// What the apply loop sees as the scope's current revision.
    pub(crate) fn applied(&self, scope: &Scope) -> Revision {
        self.highest(scope, |frontier| frontier.applied)
    }

    /// The scope's current revision (R4).
    pub(crate) fn visible(&self, scope: &Scope) -> Revision {
        self.highest(scope, |frontier| frontier.visible)
    }

    /// The scope's current revision, which becomes that of each of its keyspaces: what is shown can be read.
    pub(crate) fn show(&mut self, scope: &Scope) -> Revision {
        let shown = self.visible(scope);
        if matches!(scope, Scope::Many { .. }) {
            self.raise_visible(scope, shown);
        }
        shown
    }

    /// As [`Space::show`], for several.
    pub(crate) fn show_all(&mut self, scopes: &[Scope]) -> Revision {
        if let [scope] = scopes {
            return self.show(scope);
        }
        let shown = scopes.iter().map(|scope| self.visible(scope)).max().unwrap_or(Revision::ZERO);
        for scope in scopes {
            self.raise_visible(scope, shown);
        }
        shown
    }

    /// Raises scopes to a revision that the clock has come to: at once, or when what is applied before is published.
    pub(crate) fn raise_all(&mut self, scopes: &[Scope], to: Revision) {
        for scope in scopes {
            self.raise_applied(scope, to);
            if !self.has_unpublished() {
                self.raise_visible(scope, to);
            }
        }
    }

    fn raise(&mut self, scope: &Scope, change: impl Fn(&mut Frontier) -> bool) {
        if self.dense {
            change(&mut self.others);
            return;
        }
        let one;
        let (kinds, others) = match scope {
            Scope::One(id) => {
                one = [*id];
                (&one[..], false)
            }
            Scope::Many { kinds, others } => (&kinds[..], *others),
        };
        for id in kinds {
            if change(&mut self.kind_mut(*id).frontier) {
                self.mark_dirty(*id);
            }
        }
        if others {
            change(&mut self.others);
        }
    }

    /// Raises what the apply loop sees; others see it after the next publish.
    pub(crate) fn raise_applied(&mut self, scope: &Scope, to: Revision) {
        self.raise(scope, |frontier| {
            frontier.raise_applied(to);
            frontier.applied > frontier.visible
        });
    }

    /// Raises what everybody sees, to a revision that something already shows (see the invariant).
    pub(crate) fn raise_visible(&mut self, scope: &Scope, to: Revision) {
        self.raise(scope, |frontier| {
            frontier.raise_visible(to);
            false
        });
    }

    /// Raises one Kind to a revision that the clock has come to, while nothing is unpublished.
    pub(crate) fn raise_kind(&mut self, id: KindId, to: Revision) {
        self.raise_all(&[Scope::One(id)], to);
    }

    /// Every keyspace and those to come.
    pub(crate) fn everything(&self) -> Scope {
        Scope::Many { kinds: (0..self.kinds.len()).map(KindId).collect(), others: true }
    }
}
