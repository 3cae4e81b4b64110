//! Who answers for a Kind's pseudo-key, `/registry/<kind>`.
//!
//! As a key it is a unit's like any other, and the store that owns the unit executes writes and transactions of it. A
//! *read* of it means the Kind: kube-apiserver reads it to learn the Kind's current revision, and every store of the Kind
//! is asked, each for how far it is (see the partition map). So it does not matter to a read whether this store owns the
//! key: who does not own it tells the revision of its part of the Kind, and sees no such key. What matters is that the
//! asker's map knows of every change of hands that this store has heard of.

use kindred_partition_config::{
    key::{Key, KeyRange},
    unit::Unit,
};

use super::{NotOwned, Record, Units};
use crate::units::UnitState;

impl Units {
    /// Whether a read of a Kind's pseudo-key is refused, by a map of this generation if one is named; `kind` is the range
    /// of the Kind's objects. It is refused while something of either is at a switch (R13), by a map that is behind, and
    /// where nothing of either is left: whatever map says that this store has a part of it is not the one by which this
    /// store knows it.
    pub(crate) fn check_pseudo_read(
        &self,
        key: &Key,
        kind: &KeyRange,
        generation: Option<u64>,
    ) -> Result<(), NotOwned> {
        self.check_settled(key, kind, generation)?;
        let Some(keeper) = self.deciding(key).filter(|record| !record.is_visible()) else { return Ok(()) };
        let (parts, rest) = self.over(&Unit::of_range(kind.clone()));
        if !rest.is_empty() || parts.iter().any(|record| record.is_visible()) {
            return Ok(());
        }
        let epoch = parts.iter().map(|record| record.changed()).fold(keeper.changed(), u64::max);
        Err(NotOwned { key: key.clone(), epoch })
    }

    /// Whether a write of the pseudo-key is refused, or a transaction that looks at it: these are of the store that owns
    /// the key, whoever has the Kind.
    pub(crate) fn check_pseudo_write(
        &self,
        key: &Key,
        kind: &KeyRange,
        generation: Option<u64>,
    ) -> Result<(), NotOwned> {
        self.check_key(key, None)?;
        self.check_settled(key, kind, generation)
    }

    /// Refuses while something of the key or its Kind is at a switch, and a map that is behind one.
    fn check_settled(&self, key: &Key, kind: &KeyRange, generation: Option<u64>) -> Result<(), NotOwned> {
        let refuse = |epoch| Err(NotOwned { key: key.clone(), epoch });
        let touches = |record: &&Record| record.by.unit.contains(key) || record.by.unit.overlaps(kind);
        for record in self.records.iter().filter(touches) {
            match record.state {
                UnitState::Frozen { .. } | UnitState::Following { sealed: Some(_), .. } => return refuse(0),
                _ if generation.is_some_and(|generation| record.changed() > generation) => {
                    return refuse(record.changed());
                }
                _ => {}
            }
        }
        Ok(())
    }
}
