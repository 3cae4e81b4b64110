//! Everything that is kept, a slice at a time, while requests go on.
//!
//! A walk sees each key at another moment. What is applied after its beginning is in the logs behind that, so the records
//! of a walk and of those logs together are everything (they may say a thing twice). Half a transaction may stand in the
//! walk alone: a checkpoint counts only when both logs are on disk up to where the walk ended.

use kindred_partition_config::ids::{LeaseId, Revision};

use super::Engine;
use crate::{
    durability::{LeaseRecord, Logged},
    space::{Place, Walked},
};

/// Leases of one slice.
const LEASES: usize = 1024;

/// How far a walk is.
#[derive(Debug)]
pub struct Walk(Stage);

#[derive(Debug)]
enum Stage {
    Keys(Place),
    Unkept(Place),
    Leases(std::vec::IntoIter<LeaseId>),
    Rest,
    Over,
}

impl Engine {
    /// Begins a walk. What [`Engine::take_applied`] answers from now on must be in the logs behind the place from which the
    /// checkpoint will be replayed.
    pub fn checkpoint_begin(&mut self) -> Walk {
        Walk(Stage::Keys(Place::default()))
    }

    /// Begins a walk over what [`Engine::checkpoint_begin`] leaves out: the keys of the Kinds of mode none. For a stop in good
    /// order; nothing may be applied before its end.
    pub fn unkept_begin(&self) -> Walk {
        Walk(Stage::Unkept(Place::default()))
    }

    /// Gives the next records: of about `max_keys` keys, or `max_bytes` of them. False when there are no more.
    pub fn checkpoint_next(
        &mut self,
        walk: &mut Walk,
        max_keys: usize,
        max_bytes: usize,
        mut give: impl FnMut(Logged),
    ) -> bool {
        match &mut walk.0 {
            Stage::Keys(place) => {
                if !self.space.walk_slice(place, Walked::Kept, max_keys, max_bytes, &mut give) {
                    walk.0 = Stage::Leases(self.leases.known().into_iter());
                }
                true
            }
            Stage::Unkept(place) => {
                let more = self.space.walk_slice(place, Walked::Unkept, max_keys, max_bytes, &mut give);
                if !more {
                    walk.0 = Stage::Over;
                }
                more
            }
            Stage::Leases(ids) => {
                let slice: Vec<LeaseId> = ids.by_ref().take(LEASES).collect();
                if slice.is_empty() {
                    walk.0 = Stage::Rest;
                }
                for id in slice {
                    give(Logged::Lease(Box::new(LeaseRecord { id, state: self.leases.durable(id) })));
                }
                true
            }
            Stage::Rest => {
                // At the end: what the walk saw of keys below the floor may be gone by now.
                self.rest(&mut give);
                walk.0 = Stage::Over;
                false
            }
            Stage::Over => false,
        }
    }

    fn rest(&self, give: &mut impl FnMut(Logged)) {
        let space = &self.space;
        if let Some(modes) = &space.modes_logged {
            give(Logged::Modes(Box::new(modes.clone())));
        }
        give(Logged::Units(Box::new(space.units.durable())));
        for gap in space.kind_gaps().iter().cloned().chain(self.beginning()) {
            give(Logged::Gap(Box::new(gap)));
        }
        if space.compacted > Revision::ZERO {
            give(Logged::Compaction(space.compacted));
        }
    }
}
