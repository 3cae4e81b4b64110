//! How far stock etcds follow the units that come to them. A shard knows that itself. For an etcd the coordinator of the move
//! knows it, and another coordinator copies again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kindred_partition_config::ids::{MoveId, Revision, Term};
use kindred_partition_config::unit::Unit;

/// What this router has brought of a unit.
#[derive(Debug, Default)]
pub struct Brought {
    /// The term in which the etcd's fence last said that this router takes the unit. If the fence has another one,
    /// another coordinator may have begun anew, and what was brought before does not count.
    pub term: Option<Term>,
    /// The revision of the source up to which the etcd has everything; `None` without a whole copy.
    pub through: Option<Revision>,
}

/// It is locked by whoever reads or changes the unit's keys at the etcd, so one round of following and one comparison
/// exclude each other.
pub type OfUnit = Arc<tokio::sync::Mutex<Brought>>;

/// The units that this router takes to etcds.
#[derive(Debug, Default)]
pub struct Taken {
    units: Mutex<HashMap<(MoveId, Unit), OfUnit>>,
}

impl Taken {
    #[must_use]
    pub fn unit(&self, id: MoveId, unit: &Unit) -> OfUnit {
        self.lock().entry((id, unit.clone())).or_default().clone()
    }

    /// Ends the unit's move.
    pub fn forget(&self, id: MoveId, unit: &Unit) {
        self.lock().remove(&(id, unit.clone()));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(MoveId, Unit), OfUnit>> {
        // No holder panics.
        self.units.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
