//! The revisions that ranges show, and how they are raised.

use kindred_partition_config::{ids::Revision, key::KeyRange};

use super::{KindId, OTHERS, Scope, Space, publishing::Group};
use crate::durability::AnswerWaits;

/// The revisions of a keyspace. **Invariant:** `visible` is below `unpublished`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frontier {
    pub(super) applied: Revision,
    pub(super) visible: Revision,
    /// The revision of the first event that is applied and not published.
    pub(super) unpublished: Option<Revision>,
    /// Whether it is in a list of what the next publish, or mark, makes visible.
    pub(super) dirty: bool,
}

const NO_LIMIT: Revision = Revision(i64::MAX);

impl Frontier {
    pub(super) fn at(revision: Revision) -> Self {
        Self { applied: revision, visible: revision, unpublished: None, dirty: false }
    }

    fn limit(&self) -> Revision {
        self.unpublished.map_or(NO_LIMIT, Revision::prev)
    }

    fn raise_applied(&mut self, to: Revision) {
        self.applied = self.applied.max(to);
    }

    pub(super) fn raise_visible(&mut self, to: Revision) {
        self.applied = self.applied.max(to);
        self.visible = self.visible.max(to.min(self.limit()));
    }

    pub(super) fn publish(&mut self) {
        *self = Self::at(self.applied);
    }
}

impl Space {
    pub(super) fn frontier(&self, id: KindId) -> &Frontier {
        if self.dense || id == OTHERS { &self.others } else { &self.kind(id).frontier }
    }

    pub(super) fn frontier_mut(&mut self, id: KindId) -> &mut Frontier {
        if self.dense || id == OTHERS { &mut self.others } else { &mut self.kind_mut(id).frontier }
    }

    pub(super) fn mark_dirty(&mut self, id: KindId) {
        let id = if self.dense { OTHERS } else { id };
        if !std::mem::replace(&mut self.frontier_mut(id).dirty, true) {
            match self.group(id) {
                Some(group) => self.waiting.of_mut(group).dirty.push(id),
                None => self.dirty.push(id),
            }
        }
    }

    pub(super) fn frontiers(&self, scope: &Scope) -> impl Iterator<Item = &Frontier> {
        let (one, kinds, others) = match scope {
            _ if self.dense => (None, &[][..], true),
            Scope::One(id) => (Some(*id), &[][..], false),
            Scope::Many { kinds, others } => (None, &kinds[..], *others),
        };
        let kinds = one.into_iter().chain(kinds.iter().copied()).map(|id| &self.kind(id).frontier);
        kinds.chain(others.then_some(&self.others))
    }

    fn highest(&self, scope: &Scope, of: impl Fn(&Frontier) -> Revision) -> Revision {
        self.frontiers(scope).map(of).max().unwrap_or(Revision::ZERO)
    }

    /// The scope's current revision as the apply loop sees it.
    pub(crate) fn applied(&self, scope: &Scope) -> Revision {
        self.highest(scope, |frontier| frontier.applied)
    }

    /// The scope's current revision (R4): the highest that one of its keyspaces shows, limited to below every
    /// unpublished event of the scope.
    pub(crate) fn visible(&self, scope: &Scope) -> Revision {
        let shown = self.highest(scope, |frontier| frontier.visible);
        match scope {
            Scope::One(_) => shown,
            Scope::Many { .. } => shown.min(self.limit(scope)),
        }
    }

    /// The highest revision that the scope can show now.
    pub(crate) fn limit(&self, scope: &Scope) -> Revision {
        self.frontiers(scope).map(Frontier::limit).min().unwrap_or(NO_LIMIT)
    }

    /// The highest revision that one of the scope's keyspaces shows. Other keyspaces may have unpublished events below
    /// it.
    pub(crate) fn visible_somewhere(&self, scope: &Scope) -> Revision {
        self.highest(scope, |frontier| frontier.visible)
    }

    /// Adds what events of the range wait for.
    pub(super) fn waits_in(&self, range: &KeyRange, waits: &mut AnswerWaits) {
        let mut add = |id: KindId| {
            let waiting = self.frontier(id).unpublished.and(self.group(id));
            waits.fsync |= waiting == Some(Group::Fsync);
            waits.received |= waiting == Some(Group::Received);
        };
        match self.scope(range) {
            Scope::One(id) => add(id),
            // A key named like a pseudo-key may just have been created.
            Scope::Many { kinds, .. } => kinds.into_iter().chain(self.homes(range)).for_each(add),
        }
    }

    /// Whether the scope has unpublished events.
    pub(crate) fn has_unpublished_in(&self, scope: &Scope) -> bool {
        self.frontiers(scope).any(|frontier| frontier.unpublished.is_some())
    }

    /// The scope's current revision. Raises all of its keyspaces to it, so that they are readable there.
    pub(crate) fn show(&mut self, scope: &Scope) -> Revision {
        let shown = self.visible(scope);
        if matches!(scope, Scope::Many { .. }) {
            self.raise_visible(scope, shown);
        }
        shown
    }

    /// As [`Space::show`], for several scopes.
    pub(crate) fn show_all(&mut self, scopes: &[Scope]) -> Revision {
        if let [scope] = scopes {
            return self.show(scope);
        }
        let shown = scopes.iter().map(|scope| self.visible_somewhere(scope)).max().unwrap_or(Revision::ZERO);
        let shown = scopes.iter().map(|scope| self.limit(scope)).fold(shown, Revision::min);
        for scope in scopes {
            self.raise_visible(scope, shown);
        }
        shown
    }

    /// Raises scopes to a revision that the clock has reached. It becomes visible at once, or once all that is applied
    /// below it is published.
    pub(crate) fn raise_all(&mut self, scopes: &[Scope], to: Revision) {
        for scope in scopes {
            self.raise_visible(scope, to);
        }
    }

    fn raise(&mut self, scope: &Scope, change: impl Fn(&mut Frontier)) {
        let mut raise = |id: KindId| {
            let frontier = self.frontier_mut(id);
            change(frontier);
            if frontier.applied > frontier.visible && !frontier.dirty {
                self.mark_dirty(id);
            }
        };
        match scope {
            Scope::One(id) => raise(*id),
            Scope::Many { kinds, others } => {
                kinds.iter().copied().for_each(&mut raise);
                if *others {
                    raise(OTHERS);
                }
            }
        }
    }

    /// Raises the applied revision; readers see it after the next publish, or once what its Kind waits for is over.
    pub(crate) fn raise_applied(&mut self, scope: &Scope, to: Revision) {
        self.raise(scope, |frontier| frontier.raise_applied(to));
    }

    /// Raises the applied revision, and the visible one as far as unpublished events allow.
    pub(crate) fn raise_visible(&mut self, scope: &Scope, to: Revision) {
        self.raise(scope, |frontier| frontier.raise_visible(to));
    }

    /// Raises one Kind to a revision that the clock has reached.
    pub(crate) fn raise_kind(&mut self, id: KindId, to: Revision) {
        self.raise_visible(&Scope::One(id), to);
    }

    /// All keyspaces, existing and future.
    pub(crate) fn everything(&self) -> Scope {
        Scope::Many { kinds: (0..self.kinds.len()).map(KindId).collect(), others: true }
    }
}
