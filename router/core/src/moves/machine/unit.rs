//! What a coordinator knows of a unit: how far an attempt to switch it is, and what does not depend on that.

use std::{collections::BTreeSet, time::Duration};

use kindred_partition_config::ids::Revision;

use crate::moves::step::StepName;

/// How far an attempt is with a unit. Each stage has what those before it have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// The owner serves, for all that is known, and the follower follows.
    #[default]
    Following,
    /// The owner has said its final revision.
    Frozen,
    /// The follower has all up to that.
    Imported,
    /// It is sure to miss nothing.
    Sealed,
    /// Both stand in the incarnations that said so.
    Confirmed,
}

/// What this coordinator knows of a unit.
#[derive(Debug, Clone, Default)]
pub(super) struct UnitState {
    /// Of the attempt.
    stage: Stage,
    /// From [`Stage::Frozen`] on: the final revision, and the owner's incarnation.
    pub frozen: Option<(Revision, u64)>,
    /// From [`Stage::Sealed`] on: the follower's incarnation.
    pub sealed: Option<u64>,
    /// Steps that were done and have not come to nothing since: those that prepare an attempt, `Drop` and `Forget`.
    done: BTreeSet<StepName>,
    /// Steps that follow from an attempt that is over: `Unfreeze`, where the owner may be frozen, `Release` and `Open`;
    /// and `Unseal`, see [`UnitState::doubt`].
    owed: BTreeSet<StepName>,
    /// How far the follower is behind; `None` before the first round.
    pub lag: Option<Duration>,
    /// When both stores last answered for it.
    pub followed_at: Option<Duration>,
    pub follow_at: Duration,
    /// Not before this, after a failure.
    pub retry_at: Duration,
}

impl UnitState {
    /// Of a unit whose follower owns it now, and whose owner will follow: that one has everything.
    pub fn handed_over() -> Self {
        Self {
            done: [StepName::Copy, StepName::AttachLeases, StepName::Verify].into(),
            owed: [StepName::Release, StepName::Open].into(),
            ..Self::default()
        }
    }

    /// What a coordinator that begins in the middle cannot rule out, after an attempt, or a decision.
    pub fn begun(&mut self, attempted: bool, decided: bool) {
        let owed = [(attempted, StepName::Unfreeze), (decided, StepName::Release), (decided, StepName::Open)];
        self.owed = owed.into_iter().filter(|(owed, _)| *owed).map(|(_, name)| name).collect();
        // Compared before it was switched.
        match decided {
            true => self.done.insert(StepName::Verify),
            false => self.done.remove(&StepName::Verify),
        };
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether a step need not be done again.
    pub fn has(&self, name: StepName) -> bool {
        self.done.contains(&name)
    }

    /// Whether a step is due, whatever the phase.
    pub fn owes(&self, name: StepName) -> bool {
        self.owed.contains(&name)
    }

    /// Whether no step is due of what was decided or given up.
    pub fn is_settled(&self) -> bool {
        self.owed.is_empty()
    }

    /// A step was done that tells nothing else.
    pub fn did(&mut self, name: StepName) {
        match name {
            StepName::ImportLast if self.stage == Stage::Frozen => self.stage = Stage::Imported,
            StepName::Confirm if self.stage == Stage::Sealed => self.stage = Stage::Confirmed,
            StepName::Release | StepName::Open | StepName::Unseal | StepName::Unfreeze => {
                self.owed.remove(&name);
            }
            StepName::Track
            | StepName::Copy
            | StepName::AttachLeases
            | StepName::Verify
            | StepName::Drop
            | StepName::Forget => {
                self.done.insert(name);
            }
            _ => {}
        }
    }

    pub fn froze(&mut self, final_revision: Revision, incarnation: u64) {
        self.frozen = Some((final_revision, incarnation));
        self.stage = self.stage.max(Stage::Frozen);
    }

    pub fn was_sealed(&mut self, incarnation: u64) {
        self.sealed = Some(incarnation);
        self.stage = self.stage.max(Stage::Sealed);
    }

    /// What it was confirmed for did not happen: the next time it may be otherwise.
    pub fn unconfirm(&mut self) {
        self.stage = self.stage.min(Stage::Sealed);
    }

    /// The follower does not have what it was given.
    pub fn lost(&mut self) {
        for name in [StepName::Copy, StepName::AttachLeases, StepName::Verify] {
            self.done.remove(&name);
        }
        self.lag = None;
    }

    /// The owner may know nothing of its track.
    pub fn untrack(&mut self) {
        self.done.remove(&StepName::Track);
    }

    /// A store did not answer for it.
    pub fn not_followed(&mut self) {
        (self.lag, self.followed_at) = (None, None);
    }

    /// An attempt that the record does not know may have frozen the owner: meta has lost what was written of it. That
    /// attempt may also have been decided, so the owner serves again only when the follower no longer can: one that
    /// has opened the unit refuses to be unsealed, and one that has not will not.
    pub fn doubt(&mut self) {
        self.owed.extend([StepName::Unseal, StepName::Unfreeze]);
    }

    /// The attempt was given up.
    pub fn given_up(&mut self) {
        (self.stage, self.frozen, self.sealed) = (Stage::Following, None, None);
        // Both stores are to answer before anything is frozen again.
        self.not_followed();
        // Why the attempt failed is not known: the owner may have restarted.
        self.untrack();
        self.owed.insert(StepName::Unfreeze);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seals a unit.
    fn sealed() -> UnitState {
        let mut unit = UnitState::default();
        unit.froze(Revision(7), 1);
        unit.did(StepName::ImportLast);
        unit.was_sealed(2);
        unit
    }

    #[test]
    fn an_attempt_goes_from_stage_to_stage_and_back_to_the_first() {
        let mut unit = sealed();
        assert_eq!(
            (unit.stage(), unit.frozen, unit.sealed),
            (Stage::Sealed, Some((Revision(7), 1)), Some(2))
        );
        unit.did(StepName::Confirm);
        assert_eq!(unit.stage(), Stage::Confirmed);
        unit.unconfirm();
        assert_eq!(unit.stage(), Stage::Sealed);
        unit.given_up();
        assert_eq!((unit.stage(), unit.frozen, unit.sealed), (Stage::Following, None, None));
        assert!(unit.owes(StepName::Unfreeze) && !unit.is_settled());
        unit.did(StepName::Unfreeze);
        assert!(unit.is_settled());
    }

    #[test]
    fn no_stage_is_left_out() {
        let mut unit = UnitState::default();
        unit.did(StepName::Confirm);
        unit.did(StepName::ImportLast);
        unit.unconfirm();
        assert_eq!(unit.stage(), Stage::Following);
    }

    #[test]
    fn a_copy_that_is_lost_leaves_the_attempt_and_the_track() {
        let mut unit = sealed();
        let known = [StepName::Track, StepName::Copy, StepName::AttachLeases, StepName::Verify];
        known.iter().for_each(|name| unit.did(*name));
        unit.lost();
        assert_eq!(known.map(|name| unit.has(name)), [true, false, false, false]);
        assert_eq!(unit.stage(), Stage::Sealed);
    }
}
