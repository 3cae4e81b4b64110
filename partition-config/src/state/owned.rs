//! Corrects the document to match what stores own, after meta has lost decisions.

use super::{ClusterState, refused};
use crate::{
    ids::{Epoch, StoreName},
    kind::KindPrefix,
    map::{Partition, Placement, StoreIdx},
    model::{DataPartitionConfig, Metadata, RingConfig},
    transfers::{self, Transfer},
    validate::FieldError,
};

impl ClusterState {
    /// The document after these transfers, with a map of this generation and with configs that match it. Other
    /// settings of the Kinds stay. Draining stores that the matching configs name become active.
    ///
    /// # Errors
    /// When the transfers do not apply to the map, or the result is not valid and must not be written.
    pub fn with_owners(&self, transfers: &[Transfer], generation: Epoch) -> Result<Self, Vec<FieldError>> {
        let map = transfers::with_transfers(&self.map, transfers, generation).map_err(|error| {
            refused("map", error.to_string(), "look again: the map has changed meanwhile")
        })?;
        let mut next = Self { map, generation, revision: self.revision + 1, ..self.clone() };
        let mut kinds: Vec<_> = transfers.iter().map(|transfer| transfer.kind.clone()).collect();
        kinds.sort();
        kinds.dedup();
        for kind in kinds {
            match kind {
                Some(kind) => next.says_what_the_map_does(&kind),
                None => next.default = next.owner_of_the_rest()?,
            }
        }
        next.validated()?;
        Ok(next)
    }

    /// The one store that owns all keys of no Kind.
    fn owner_of_the_rest(&self) -> Result<StoreName, Vec<FieldError>> {
        let rest = self.map.partitions().iter().filter(|partition| partition.kind.is_none());
        let mut owners: Vec<StoreIdx> = rest.flat_map(|partition| partition.placement.stores()).collect();
        owners.sort_unstable();
        owners.dedup();
        match owners[..] {
            [owner] => Ok(StoreName(self.store_name(owner))),
            _ => Err(refused(
                "default",
                "keys of no configured Kind are at several stores, which no configuration can say",
                "give the Kinds that are at another store than the others configs of their own",
            )),
        }
    }

    /// Replaces a Kind's configs with configs that match the map.
    fn says_what_the_map_does(&mut self, kind: &KindPrefix) {
        let before: Vec<_> =
            self.configs.iter().filter(|config| self.is_of(config, Some(kind))).cloned().collect();
        self.configs.retain(|config| !before.contains(config));
        let objects =
            |partition: &&Partition| partition.kind.as_ref() == Some(kind) && !partition.is_pseudo();
        let partitions: Vec<_> = self.map.partitions().iter().filter(objects).cloned().collect();
        for partition in partitions {
            let config = self.config_of(kind, &partition, &before);
            self.configs.push(config);
        }
        self.activate_named(Some(kind));
    }

    fn config_of(
        &self,
        kind: &KindPrefix,
        partition: &Partition,
        before: &[DataPartitionConfig],
    ) -> DataPartitionConfig {
        let name = |key: &[u8]| String::from_utf8_lossy(&key[kind.as_key().len()..]).into_owned();
        let start = Some(partition.start()).filter(|start| *start != kind.as_key());
        let end = partition.end().filter(|end| **end != kind.end());
        let (start, end) = (start.map(|key| name(key)), end.map(|key| name(key)));
        let begins = |config: &&DataPartitionConfig| {
            config.is_range_start_valid.then_some(&config.range_start) == start.as_ref()
        };
        let of_range = before.iter().find(begins);
        let base = of_range.or(before.first()).cloned();
        let base = base.unwrap_or_else(|| self.on_store(kind, &self.default));
        let free = |name: &String| self.config(name).is_none();
        let named = Some(&base.metadata.name).filter(|_| of_range.is_some() || before.is_empty());
        let named = named.filter(|name| free(name)).cloned();
        let named = named.unwrap_or_else(|| self.fresh_name(&base.metadata.name));
        let (store, ring) = match &partition.placement {
            Placement::Single(store) => (Some(StoreName(self.store_name(*store))), None),
            Placement::Ring(table) => {
                let stores = table.stores().into_iter().map(|store| StoreName(self.store_name(store)));
                (None, Some(RingConfig { stores: stores.collect() }))
            }
        };
        DataPartitionConfig {
            metadata: Metadata { name: named, resource_version: Some(self.revision.to_string()) },
            is_range_start_valid: start.is_some(),
            range_start: start.unwrap_or_default(),
            is_range_end_valid: end.is_some(),
            range_end: end.unwrap_or_default(),
            service_group_id: store,
            ring,
            ..base
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse_config;

    fn name(text: &str) -> StoreName {
        StoreName(text.to_owned())
    }

    fn state() -> ClusterState {
        let text = "default: a\nstores: [{name: a, slot: 1}, {name: b, slot: 2}, {name: c, slot: 3}]\npartitions:\n\
            - {metadata: {name: pods}, resource: pods, serviceGroupId: b, durability: buffered}\n";
        ClusterState::bootstrap(&parse_config(text).unwrap()).unwrap()
    }

    /// Configs made from the map lead to the same map, whatever was decided about the Kind.
    #[test]
    fn f49_configs_say_what_the_map_does() {
        let before = state();
        let (ring, pods) = (before.clone(), before.scheme().resolve("pods").unwrap());
        let mut spread = ring.configs[0].clone();
        (spread.ring, spread.service_group_id) =
            (Some(RingConfig { stores: vec![name("b"), name("c")] }), None);
        let spread = ring.apply_configs(&[super::super::ConfigChange::Update(spread)]).unwrap();
        let split = before.split("pods", "m", &name("c")).unwrap();
        let moved = before.move_kind("nodes", &name("c")).unwrap();
        for change in [spread, split, moved, before.move_kind("pods", &name("a")).unwrap()] {
            let next = before.with_owners(&change.transfers, Epoch(9)).unwrap();
            assert_eq!((next.generation, next.revision), (Epoch(9), before.revision + 1));
            let (_, _, wanted) = next.placed().unwrap();
            assert_eq!(transfers::transfers(&next.map, &wanted), [], "{:?}", next.configs);
            assert_eq!(transfers::transfers(&next.map, &change.desired), []);
            let pods = next.configs.iter().filter(|config| next.is_of(config, Some(&pods)));
            assert!(pods.clone().count() > 0);
            for config in pods {
                assert_eq!(config.durability.as_deref(), Some("buffered"), "{config:?}");
            }
        }
    }

    #[test]
    fn f49_the_default_is_who_owns_the_rest_and_a_drained_owner_is_active() {
        let mut before = state();
        let rest = before.drain_store(&name("a"), Some(&name("c"))).unwrap();
        let next = before.with_owners(&rest.transfers, Epoch(5)).unwrap();
        assert_eq!(next.default, name("c"));
        let refused = before.with_owners(&rest.transfers[..1], Epoch(5)).unwrap_err();
        assert_eq!(refused[0].path, "default");
        let change = before.move_kind("pods", &name("c")).unwrap();
        before.stores[2].state = super::super::StoreState::Draining;
        let next = before.with_owners(&change.transfers, Epoch(5)).unwrap();
        assert_eq!(next.stores[2].state, super::super::StoreState::Active);
        // The same transfers cannot apply twice.
        assert_eq!(next.with_owners(&change.transfers, Epoch(6)).unwrap_err()[0].path, "map");
    }
}
