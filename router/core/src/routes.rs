//! The partition map as requests use it: from keys to stores.

use crate::parts::{Part, Piece, parts_of, pieces_left, store_ix};
use crate::plan::Placement;
use crate::store::{StoreIx, StoreKind};
use kindred_partition_config::ids::Epoch;
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::{KindPrefix, KindScheme, Located};
use kindred_partition_config::map::{PartitionMap, StoreIdx};
use kindred_partition_config::unit::Unit;

/// One whole map, with the names and types of its stores.
#[derive(Debug)]
pub struct Routes {
    generation: Epoch,
    map: PartitionMap,
    scheme: KindScheme,
    stores: Vec<(String, StoreKind)>,
    default: StoreIx,
}

impl Routes {
    /// A map over these stores, in their order, that never changes; see [`Routes::of_generation`].
    #[must_use]
    pub fn new(
        map: PartitionMap,
        scheme: KindScheme,
        stores: Vec<(String, StoreKind)>,
        default: StoreIx,
    ) -> Self {
        Self { generation: Epoch::NONE, map, scheme, stores, default }
    }

    /// The same map with this generation. Every change of the map has a new one.
    #[must_use]
    pub fn of_generation(self, generation: Epoch) -> Self {
        Self { generation, ..self }
    }

    /// The generation of the map; [`Epoch::NONE`] for a map that never changes.
    #[must_use]
    pub fn generation(&self) -> Epoch {
        self.generation
    }

    /// How keys map to Kinds.
    #[must_use]
    pub fn scheme(&self) -> &KindScheme {
        &self.scheme
    }

    #[must_use]
    pub fn map(&self) -> &PartitionMap {
        &self.map
    }

    /// The pieces of `range` that are left by this map; see [`pieces_left`].
    #[must_use]
    pub fn pieces_left(&self, range: &KeyRange, done: &[Unit]) -> Vec<Piece> {
        pieces_left(&self.map, range, done)
    }

    /// The shards of a Kind that is on several stores; none for any other Kind.
    pub fn shards_of_spread(&self, kind: &KindPrefix) -> impl Iterator<Item = StoreIx> {
        self.map
            .stores_of_spread(kind)
            .iter()
            .map(|store| store_ix(*store))
            .filter(|store| !self.is_etcd(*store))
    }

    #[must_use]
    pub fn store_name(&self, store: StoreIdx) -> &str {
        self.name(store_ix(store))
    }
}

impl Placement for Routes {
    fn store_of(&self, key: &[u8]) -> StoreIx {
        store_ix(self.map.store_of(key))
    }

    fn parts_of(&self, range: &KeyRange) -> Vec<Part> {
        parts_of(&self.map, range)
    }

    fn spread_of(&self, key: &[u8]) -> Option<KindPrefix> {
        self.map.spread_of(key).cloned()
    }

    fn spread_in(&self, range: &KeyRange) -> Vec<KindPrefix> {
        self.map.spread_in(range)
    }

    fn is_etcd(&self, store: StoreIx) -> bool {
        self.stores.get(store.0).is_some_and(|(_, kind)| *kind == StoreKind::Etcd)
    }

    fn default_store(&self) -> StoreIx {
        self.default
    }

    fn name(&self, store: StoreIx) -> &str {
        self.stores.get(store.0).map_or("?", |(name, _)| name)
    }

    fn is_health(&self, key: &[u8]) -> bool {
        self.scheme.locate(key) == Located::Health
    }
}
