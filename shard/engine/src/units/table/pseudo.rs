//! Reads and writes of a Kind's pseudo-key, `/registry/<kind>`.
//!
//! As a key it belongs to a unit like any other, and the owner of that unit executes writes and transactions of it. A
//! *read* of it means the Kind: kube-apiserver reads it to learn the Kind's current revision, and the router asks every
//! store of the Kind (see the partition map). So a read is answered whether or not this store owns the key: a store
//! that does not own it shows the current revision of its part of the Kind, and no such key. The request's map must
//! know every change of owner that this store knows.

use kindred_partition_config::{
    ids::Epoch,
    key::{Key, KeyRange},
    unit::Unit,
};

use super::{NotOwned, Record, Units};
use crate::units::UnitState;

impl Units {
    /// Refuses a read of a Kind's pseudo-key where it must not be answered; `kind` is the range of the Kind's objects.
    /// It is refused during a switch of the key or of a part of the Kind (R13), by a map `generation` older than one of
    /// their changes of owner, and where this store owns no part of either: then it knows no map that gives it one.
    pub(crate) fn check_pseudo_read(
        &self,
        key: &Key,
        kind: &KeyRange,
        generation: Option<Epoch>,
    ) -> Result<(), NotOwned> {
        self.check_settled(key, kind, generation)?;
        let Some(keeper) = self.deciding(key).filter(|record| !record.is_visible()) else { return Ok(()) };
        let (parts, rest) = self.over(&Unit::of_range(kind.clone()));
        if !rest.is_empty() || parts.iter().any(|record| record.is_visible()) {
            return Ok(());
        }
        let epoch = parts.iter().map(|record| record.changed()).fold(keeper.changed(), Epoch::max);
        Err(NotOwned { key: key.clone(), epoch })
    }

    /// Refuses a write of the pseudo-key, or a transaction that reads it, unless this store owns the key.
    pub(crate) fn check_pseudo_write(
        &self,
        key: &Key,
        kind: &KeyRange,
        generation: Option<Epoch>,
    ) -> Result<(), NotOwned> {
        self.check_key(key, None)?;
        self.check_settled(key, kind, generation)
    }

    /// Refuses requests during a switch of the key or of a part of its Kind, and requests by a map that is older than
    /// one.
    fn check_settled(&self, key: &Key, kind: &KeyRange, generation: Option<Epoch>) -> Result<(), NotOwned> {
        let refuse = |epoch| Err(NotOwned { key: key.clone(), epoch });
        let touches = |record: &&Record| record.by.unit.contains(key) || record.by.unit.overlaps(kind);
        for record in self.records.iter().filter(touches) {
            match record.state {
                UnitState::Frozen { .. } | UnitState::Following { sealed: Some(_), .. } => {
                    return refuse(Epoch::NONE);
                }
                _ if generation.is_some_and(|generation| record.changed() > generation) => {
                    return refuse(record.changed());
                }
                _ => {}
            }
        }
        Ok(())
    }
}
