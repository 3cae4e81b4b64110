//! The walk of a checkpoint: everything that is kept, one slice at a time, while requests are still executed.
//!
//! A walk reads each key at a different moment. Whatever is applied after it began is in the logs behind that point, so
//! the walk's records together with those logs are complete; some things appear twice. The walk alone may contain half
//! a transaction: a checkpoint counts only when both logs are on disk up to where the walk ended.

use kindred_partition_config::ids::{LeaseId, Revision};

use super::Engine;
use crate::{
    durability::{Imported, LeaseRecord, Logged},
    space::{Place, Walked},
};

/// Leases in one slice.
const LEASES: usize = 1024;

/// The position of a walk.
#[derive(Debug)]
pub struct Walk(Stage);

#[derive(Debug)]
enum Stage {
    /// First, because they may be placed among the keys meanwhile.
    Imports(std::vec::IntoIter<Imported>, Walked),
    Keys(Place, Walked),
    Unkept(Place),
    Leases(std::vec::IntoIter<LeaseId>),
    Rest,
    Over,
}

impl Engine {
    /// Begins a walk. Everything that [`Engine::take_applied`] returns from now on must be logged behind the place from
    /// which this checkpoint will be replayed.
    pub fn checkpoint_begin(&mut self) -> Walk {
        self.walk_over(Walked::Kept)
    }

    /// Begins a walk over everything, whatever the Kinds' modes, for a standby. What [`Engine::take_applied`] returns as
    /// shipped from now on is to be sent behind.
    pub fn copy_begin(&mut self) -> Walk {
        self.walk_over(Walked::All)
    }

    fn walk_over(&self, walked: Walked) -> Walk {
        if self.imports.is_empty() {
            return Walk(Stage::Keys(Place::default(), walked));
        }
        Walk(Stage::Imports(self.imports.clone().into_iter(), walked))
    }

    /// Begins a walk over what [`Engine::checkpoint_begin`] leaves out: the keys of Kinds in mode `none`. It serves a
    /// clean stop; nothing may be applied until it ends.
    pub fn unkept_begin(&self) -> Walk {
        Walk(Stage::Unkept(Place::default()))
    }

    /// Gives the next records, about `max_keys` keys or `max_bytes` of them. Returns false when the walk is over.
    pub fn checkpoint_next(
        &mut self,
        walk: &mut Walk,
        max_keys: usize,
        max_bytes: usize,
        mut give: impl FnMut(Logged),
    ) -> bool {
        match &mut walk.0 {
            Stage::Imports(imports, walked) => {
                match imports.next() {
                    Some(imported) => give(Logged::Imported(Box::new(imported))),
                    None => walk.0 = Stage::Keys(Place::default(), *walked),
                }
                true
            }
            Stage::Keys(place, walked) => {
                if !self.space.walk_slice(place, *walked, max_keys, max_bytes, &mut give) {
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
                // These come last: versions that the walk has given may since have fallen below the floor that is
                // written here.
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
        for gap in space.kind_gaps().iter().cloned().chain(space.kind_floors()).chain(self.beginning()) {
            give(Logged::Gap(Box::new(gap)));
        }
        if space.compacted > Revision::ZERO {
            give(Logged::Compaction(space.compacted));
        }
    }
}
