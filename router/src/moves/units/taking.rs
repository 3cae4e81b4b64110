//! How a coordinator takes units to an etcd: the etcd's fence names it, in the term in which it acts.

use std::sync::Arc;

use super::etcd::{TRIES, write_fence};
use super::{CALL_MAX, Failed, LegSteps, UnitSteps};
use crate::execute::{Deadline, fenced};
use crate::moves::mover::Mover;
use crate::moves::taken::Brought;
use crate::stores::fence::Known;

impl UnitSteps<'_, Arc<Mover>> {
    /// The fence of the etcd, while this coordinator takes the unit in its term. Forgets what was brought if another
    /// coordinator has taken the unit since.
    pub(super) async fn taking(&self, brought: &mut Brought) -> Result<Arc<Known>, Failed> {
        let (store, by) = (self.follower(), self.fenced_unit());
        for _ in 0..TRIES {
            let known = fenced::read(store, Deadline::within(CALL_MAX)).await?;
            let Some(term) = known.doc.taken_in(&by)? else { break };
            if brought.term != Some(term) {
                *brought = Brought { term: Some(term), through: None };
            }
            if term == by.term {
                return Ok(known);
            }
            let mut doc = known.doc.clone();
            doc.take(&by)?;
            if write_fence(store, known.mod_revision, &doc).await?.is_some() {
                brought.term = Some(by.term);
            }
        }
        Err(Failed::Lost(format!("store {:?} does not take the unit", store.name())))
    }
}

impl LegSteps<Arc<Mover>> {
    /// Takes all units in this term with one change of the fence. Each unit by itself would change it under the writes of the
    /// others. A unit that cannot be taken is left to its own step, which says why.
    pub(super) async fn take_all(&self) -> Result<(), Failed> {
        let units: Vec<_> =
            self.calls.iter().map(|call| self.stores.taken.unit(self.id, &call.unit)).collect();
        // Whoever holds one of them waits for no other.
        let mut brought = Vec::with_capacity(units.len());
        for unit in &units {
            brought.push(unit.lock().await);
        }
        let store = self.follower();
        for _ in 0..TRIES {
            let known = fenced::read(store, Deadline::within(CALL_MAX)).await?;
            let mut doc = known.doc.clone();
            let mut taken = Vec::new();
            for (call, brought) in self.calls.iter().zip(&mut brought) {
                let by = self.unit(call).fenced_unit();
                let Ok(Some(term)) = doc.taken_in(&by) else { continue };
                if brought.term != Some(term) {
                    **brought = Brought { term: Some(term), through: None };
                }
                if term != by.term && doc.take(&by).is_ok() {
                    taken.push((brought, by.term));
                }
            }
            if taken.is_empty() {
                return Ok(());
            }
            if write_fence(store, known.mod_revision, &doc).await?.is_some() {
                for (brought, term) in taken {
                    brought.term = Some(term);
                }
                return Ok(());
            }
        }
        Err(Failed::Other(format!("the fence of store {:?} is being changed all the time", store.name())))
    }
}
