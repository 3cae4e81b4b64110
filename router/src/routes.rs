//! The partition map as requests see it: keys to stores.

use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::{KindScheme, Located};
use kindred_partition_config::map::{PartitionMap, StoreIdx};
use kindred_router_core::plan::Placement;
use kindred_router_core::store::StoreIx;

/// One whole map with what is needed to explain it.
#[derive(Debug)]
pub struct Routes {
    map: PartitionMap,
    scheme: KindScheme,
    names: Vec<String>,
    default: StoreIx,
}

fn index(store: StoreIdx) -> StoreIx {
    StoreIx(usize::from(store.0))
}

impl Routes {
    /// The map over the stores with these names, in their order.
    #[must_use]
    pub fn new(map: PartitionMap, scheme: KindScheme, names: Vec<String>, default: StoreIx) -> Self {
        Self { map, scheme, names, default }
    }

    /// The map itself.
    #[must_use]
    pub fn map(&self) -> &PartitionMap {
        &self.map
    }

    /// The name of a store of the map.
    #[must_use]
    pub fn store_name(&self, store: StoreIdx) -> &str {
        self.name(index(store))
    }
}

impl Placement for Routes {
    fn store_of(&self, key: &[u8]) -> StoreIx {
        index(self.map.lookup(key).store)
    }

    fn stores_of(&self, range: &KeyRange) -> Vec<(Vec<u8>, StoreIx)> {
        if range.is_empty() {
            return Vec::new();
        }
        let mut stores: Vec<(Vec<u8>, StoreIx)> = Vec::new();
        for partition in self.map.overlapping(range) {
            let store = index(partition.store);
            if !stores.iter().any(|(_, seen)| *seen == store) {
                let first = partition.start().max(range.start());
                stores.push((first.to_vec(), store));
            }
        }
        stores
    }

    fn default_store(&self) -> StoreIx {
        self.default
    }

    fn name(&self, store: StoreIx) -> &str {
        self.names.get(store.0).map_or("?", String::as_str)
    }

    fn is_health(&self, key: &[u8]) -> bool {
        self.scheme.locate(key) == Located::Health
    }
}
