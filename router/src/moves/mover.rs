//! What moves and other changes of the cluster use of a router.

use std::sync::Arc;

use crate::identity::Identity;
use crate::leases::LeaseRouter;
use crate::meta::take::StateKeeper;
use crate::moves::rate::CopySpeed;
use crate::moves::taken::Taken;
use crate::routing::Routing;
use crate::stores::Stores;

/// See the text above.
#[derive(Debug)]
pub struct Mover {
    pub keeper: Arc<StateKeeper>,
    pub stores: Stores,
    pub routing: Arc<Routing>,
    pub leases: Arc<LeaseRouter>,
    pub identity: Arc<Identity>,
    /// How fast this router copies the data of moves.
    pub copy_speed: CopySpeed,
    /// How far stock etcds follow units that come to them.
    pub taken: Taken,
}
