//! The cluster state document: stores, partition configs and the map in use. The meta store keeps it under one key,
//! and every write of it is a compare-and-swap. This module has the changes, each a pure function from one document
//! to the next.
//!
//! `configs` says where keys should be, `map` who owns them. A change of configs that moves nothing changes the map
//! at once. Any other change yields transfers, and the map changes as each transfer is decided
//! ([`ClusterState::with_transfers`]). An invalid change is refused as a whole, with every error by object and
//! field.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{ClusterId, Epoch, Lineage, Slot, StoreName},
    kind::{KindPrefix, KindScheme},
    map::{PartitionMap, StoreIdx},
    model::{DataPartitionConfig, KindredConfig, StoreConfig, StoreType},
    transfers::{self, Transfer, TransferError},
    validate::{self, FieldError, FieldErrors, Input, KindSettings},
};

mod configs;
mod leases;
mod lineage;
mod members;
mod owned;
mod said;
mod sound;
mod stores;

pub use configs::ConfigChange;
pub use lineage::Kinship;
pub use members::{Members, MembersChange, MembersRefusal};
pub use said::{Said, SaidOutcome};
pub use stores::{StoreObject, StoreState};

/// The version of the document that this code writes, and the only one that it reads.
pub const STATE_VERSION: u32 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterState {
    /// Always [`STATE_VERSION`].
    version: u32,
    /// The cluster's id, set in its first state. Documents of earlier versions lack it until a router adds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<ClusterId>,
    /// The cluster's lineage, minted with its first state and never changed. Documents of earlier versions lack it
    /// as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
    /// The version of the map: starts at 1 and grows by one with each change of the map. A partition's epoch is the
    /// generation of its last change of owner.
    pub generation: Epoch,
    /// The version of the document's objects: starts at 1 and grows by one with each change of an object. The
    /// objects' resourceVersions are such numbers.
    pub revision: u64,
    /// The highest move id ever given. Ids are never reused, even after the records of their moves are deleted.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub last_move: u64,
    /// kube-apiserver's `--etcd-prefix`.
    pub etcd_prefix: String,
    /// Every store ever added. The list only grows, because a [`StoreIdx`] is an index in it.
    pub stores: Vec<StoreObject>,
    /// The store of every key that no config covers.
    pub default: StoreName,
    /// The slots of former homes of leases with client-chosen ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lease_homes: Vec<u16>,
    /// The partition configs, each with a resourceVersion.
    pub configs: Vec<DataPartitionConfig>,
    /// The current owners of all keys.
    pub map: PartitionMap,
}

/// Why bytes are not a valid document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The bytes are not JSON of this document.
    #[error("the cluster state is malformed: {0}")]
    Malformed(String),
    /// Another version of kindred wrote the document.
    #[error(
        "the cluster state has version {0}, this kindred reads {STATE_VERSION}: use the version that wrote it"
    )]
    Version(u32),
    /// Parts of the document contradict each other.
    #[error("the cluster state is inconsistent: {0}")]
    Inconsistent(String),
}

/// A planned change of the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The document with all objects changed, but with a changed map only if nothing moves.
    pub state: ClusterState,
    /// The map after all transfers. Kinds that the change does not touch keep their present owners, even while
    /// they are being moved.
    pub desired: PartitionMap,
    /// The transfers that lead to `desired`.
    pub transfers: Vec<Transfer>,
}

/// The maximum number of units of a Kind in one move. Measured on two cores with unoptimised builds: a switch of
/// 250 units paused writes for 60 ms and one of 500 units for 210 ms. An attempt to switch is given up after 500
/// ms.
pub const UNITS_OF_A_MOVE_MAX: usize = 256;

impl Change {
    /// The transfers of each Kind, which form one move. The transfers of keys of no Kind form one move as well.
    #[must_use]
    pub fn by_kind(&self) -> BTreeMap<Option<KindPrefix>, Vec<Transfer>> {
        let mut kinds: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for transfer in &self.transfers {
            kinds.entry(transfer.kind.clone()).or_default().push(transfer.clone());
        }
        kinds
    }
}

/// The part of the map that a change may affect.
#[derive(Default)]
struct Touched {
    kinds: BTreeSet<KindPrefix>,
    /// Whether keys of no configured Kind are affected.
    rest: bool,
}

impl ClusterState {
    /// The first document of a cluster. A document that routers share also needs [`ClusterState::founded`].
    ///
    /// # Errors
    /// Every error in the configuration.
    pub fn bootstrap(config: &KindredConfig) -> Result<Self, Vec<FieldError>> {
        let valid = validate::validate(config)?;
        let mut configs = config.partitions.clone();
        for config in &mut configs {
            config.metadata.resource_version = Some("1".to_owned());
        }
        let state = Self {
            version: STATE_VERSION,
            cluster_id: None,
            lineage: None,
            generation: Epoch(1),
            revision: 1,
            last_move: 0,
            etcd_prefix: config.etcd_prefix.clone(),
            stores: valid.stores.into_iter().map(|store| StoreObject::new(store, 1)).collect(),
            default: config.default.clone(),
            lease_homes: Vec::new(),
            configs,
            map: valid.map,
        };
        Ok(state.with_slots())
    }

    /// Gives every store without a slot one: a stock etcd, whose slot is in no revision, but in the records of leases that
    /// have keys there (R12). Earlier versions gave it none.
    fn with_slots(mut self) -> Self {
        let without = |store: &StoreObject| store.slot.is_none() && store.state != StoreState::Removed;
        while let Some(at) = self.stores.iter().position(without) {
            let Some(slot) = self.free_slot(self.stores[at].store_type) else { break };
            self.stores[at].slot = Some(slot);
        }
        self
    }

    /// Parses a document. The result may still fail [`ClusterState::validated`]. A reader then uses its sound parts
    /// ([`ClusterState::salvaged`]), and no process may write it.
    ///
    /// # Errors
    /// When the document is malformed or of another version, or its map names an index that no store has.
    pub fn from_json(bytes: &[u8]) -> Result<Self, StateError> {
        /// Parsed first, because another version may have other fields.
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        let malformed = |error: serde_json::Error| StateError::Malformed(error.to_string());
        let head: Head = serde_json::from_slice(bytes).map_err(malformed)?;
        if head.version != STATE_VERSION {
            return Err(StateError::Version(head.version));
        }
        let state: Self = serde_json::from_slice(bytes).map_err(malformed)?;
        for store in state.map.partitions().iter().flat_map(|partition| partition.placement.stores()) {
            if usize::from(store.0) >= state.stores.len() {
                let what = format!("the map names store {store} of {}", state.stores.len());
                return Err(StateError::Inconsistent(what));
            }
        }
        Ok(state)
    }

    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self)
            .expect("the document has string keys only and nothing that fails to serialise")
    }

    #[must_use]
    pub fn scheme(&self) -> KindScheme {
        KindScheme::new(&self.etcd_prefix)
    }

    /// Finds a store that is not removed, with its index.
    #[must_use]
    pub fn store(&self, name: &StoreName) -> Option<(StoreIdx, &StoreObject)> {
        let is_it = |store: &StoreObject| store.name == *name && store.state != StoreState::Removed;
        let at = self.stores.iter().position(is_it)?;
        Some((StoreIdx(u16::try_from(at).ok()?), &self.stores[at]))
    }

    /// The name of the store at an index, or the index as text if there is none.
    #[must_use]
    pub fn store_name(&self, store: StoreIdx) -> String {
        self.stores.get(usize::from(store.0)).map_or_else(|| store.to_string(), |store| store.name.0.clone())
    }

    #[must_use]
    pub fn config(&self, name: &str) -> Option<&DataPartitionConfig> {
        self.configs.iter().find(|config| config.metadata.name == name)
    }

    /// The document after these transfers, with the next generation.
    ///
    /// # Errors
    /// When the map has changed so that the transfers do not apply.
    pub fn with_transfers(&self, transfers: &[Transfer]) -> Result<Self, TransferError> {
        let generation = self.generation.next();
        let map = transfers::with_transfers(&self.map, transfers, generation)?;
        Ok(Self { generation, map, ..self.clone() })
    }

    /// The default store, the settings and the map that the configs ask for. Rings are built on the map in use.
    fn placed(&self) -> Result<(StoreIdx, Vec<KindSettings>, PartitionMap), Vec<FieldError>> {
        let mut errors = FieldErrors::default();
        let scheme = self.scheme();
        let stores: Vec<StoreConfig> = self.stores.iter().map(StoreObject::config).collect();
        let with_state = |state| self.stores.iter().filter(move |store| store.state == state);
        let names: HashMap<_, _> = with_state(StoreState::Active)
            .filter_map(|store| self.store(&store.name).map(|(at, _)| (store.name.clone(), at)))
            .collect();
        let draining: Vec<_> = with_state(StoreState::Draining).map(|store| store.name.clone()).collect();
        let default = names.get(&self.default).copied();
        if default.is_none() {
            let message = format!("store {:?} is not there, or is being drained", self.default.0);
            errors.add("default", message, "name an active store");
        }
        let paths: Vec<_> = self.configs.iter().map(|config| config_path(&config.metadata.name)).collect();
        let input = Input {
            scheme: &scheme,
            stores: &stores,
            names: &names,
            draining: &draining,
            partitions: &self.configs,
            paths: &paths,
            in_use: Some(&self.map),
        };
        match (validate::place(&input, default, &mut errors), default) {
            (Some((map, kinds)), Some(default)) => Ok((default, kinds, map)),
            _ => Err(errors.into()),
        }
    }

    /// The change that leads to `next`, a copy of this document with changed objects.
    fn change_to(&self, mut next: Self, touched: &Touched) -> Result<Change, Vec<FieldError>> {
        let (_, _, wanted) = next.placed()?;
        let desired =
            transfers::grafted(&self.map, &wanted, &touched.kinds, touched.rest).map_err(|error| {
                refused("map", error.to_string(), "report this: the map of a valid configuration is valid")
            })?;
        next.revision = self.revision + 1;
        let transfers = transfers::transfers(&self.map, &desired);
        self.all_movable(&transfers)?;
        if transfers.is_empty() && desired != self.map {
            next.map = desired.clone();
            next.generation = self.generation.next();
        }
        Ok(Change { state: next, desired, transfers })
    }

    #[must_use]
    pub fn is_etcd(&self, store: StoreIdx) -> bool {
        self.stores.get(usize::from(store.0)).is_some_and(|store| store.store_type == StoreType::Etcd)
    }

    /// Refuses transfers that a live move cannot do. A Kind leaves a stock etcd, and goes to one, only as a whole and in one
    /// step, because an etcd can neither be raised nor read at a foreign revision: it shares no list with another store.
    fn all_movable(&self, transfers: &[Transfer]) -> Result<(), Vec<FieldError>> {
        let mut errors = FieldErrors::default();
        let mut add = |store: StoreIdx, message: &str, what_to_do: &str| {
            let path = self.stores.get(usize::from(store.0)).map(|store| store_path(&store.name));
            let path = path.unwrap_or_else(|| store.to_string());
            if !errors.iter().any(|error| error.path == path) {
                errors.add(path, message, what_to_do);
            }
        };
        for transfer in transfers {
            if self.stores.get(usize::from(transfer.from.0)).is_some_and(|store| store.adopting) {
                let message =
                    "it is being adopted: others may still use it directly, and would lose what they write";
                add(
                    transfer.from,
                    message,
                    "point every apiserver at kindred, then run kindred adopt finish",
                );
            } else if self.is_etcd(transfer.to) {
                let of_kind = |other: &&Transfer| other.kind == transfer.kind;
                let sources: BTreeSet<_> =
                    transfers.iter().filter(of_kind).map(|other| (other.from, other.to)).collect();
                if sources.len() > 1 || transfer.unit.buckets.is_some() {
                    let message = "it is a stock etcd, and a Kind moves to one from a single shard";
                    add(transfer.to, message, "move the Kind to one shard first, and from there to the etcd");
                }
            } else if self.is_etcd(transfer.from) {
                let of_kind = |other: &&Transfer| other.kind == transfer.kind;
                let targets: BTreeSet<_> = transfers.iter().filter(of_kind).map(|other| other.to).collect();
                if transfer.kind.is_none() {
                    let message = "it is a stock etcd, and what is of no Kind does not move away from one";
                    add(transfer.from, message, "move its Kinds, one by one, and leave it the default store");
                } else if targets.len() > 1 || transfer.unit.buckets.is_some() {
                    let message = "it is a stock etcd, and a Kind moves away from one to a single shard";
                    add(transfer.from, message, "move the Kind to one shard first, then spread it");
                }
            }
        }
        let mut of_kinds: BTreeMap<_, usize> = BTreeMap::new();
        transfers.iter().for_each(|transfer| *of_kinds.entry(&transfer.kind).or_default() += 1);
        for (kind, units) in of_kinds.into_iter().filter(|(_, units)| *units > UNITS_OF_A_MOVE_MAX) {
            let what = kind.as_ref().map_or_else(|| "what is of no Kind".to_owned(), ToString::to_string);
            errors.add(
                "datapartitionconfigs",
                format!(
                    "{units} separate parts of {what} would move at once, and more than {UNITS_OF_A_MOVE_MAX} pause writes for \
                     too long"
                ),
                format!(
                    "move it in parts: change at most {UNITS_OF_A_MOVE_MAX} ranges at a time, of which neighbours that go the \
                     same way count as one, and complete each move before the next"
                ),
            );
        }
        errors.into_result(())
    }

    /// A slot that no store has ever had (R1): the lowest for a shard, and for a stock etcd the highest, out of the way of
    /// slots that people choose.
    fn free_slot(&self, of: StoreType) -> Option<u16> {
        let taken: BTreeSet<_> = self.stores.iter().filter_map(|store| store.slot).collect();
        let mut free = (1..=Slot::MAX).filter(|slot| !taken.contains(slot));
        if of == StoreType::Etcd { free.next_back() } else { free.next() }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A config's path in an error.
fn config_path(name: &str) -> String {
    format!("datapartitionconfigs/{name}")
}

/// A store's path in an error.
fn store_path(name: &StoreName) -> String {
    format!("servicegroups/{name}")
}

fn refused(
    path: impl Into<String>,
    message: impl Into<String>,
    what_to_do: impl Into<String>,
) -> Vec<FieldError> {
    vec![FieldError { path: path.into(), message: message.into(), what_to_do: what_to_do.into() }]
}

#[cfg(test)]
mod given_up_tests;
#[cfg(test)]
mod tests;
