//! Stores as objects of the document. Stores are added, drained and removed, but their index in the list never
//! changes.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Change, ClusterState, Members, Touched, config_path, refused, store_path};
use crate::{
    ids::{Slot, StoreName},
    map::StoreIdx,
    model::{DataPartitionConfig, Durability, StandbyConfig, StoreConfig, StoreType},
    transfers,
    validate::{self, FieldError, FieldErrors},
};

/// A store; Arktos calls it a service group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoreObject {
    /// Unique among the stores that are not removed.
    pub name: StoreName,
    #[serde(rename = "type")]
    pub store_type: StoreType,
    /// A shard's slot: the low bits of its revisions (R1). Never given to another store, because meta does not know
    /// the store's ceiling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u16>,
    /// Where the store listens. May be empty if the part of kindred that starts the store knows the address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// The standbys that the store is to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<StandbyConfig>,
    /// The record of its members (R19). Absent, it never had a standby.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Members>,
    /// The store's UUID, recorded at its first handshake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// When the store opens, in microseconds since the Unix epoch, if it replaces a lost store (R14).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opens_at: Option<u64>,
    /// The slot of the store that inherits this store's leases (R12), set when the store is drained or lost. It is
    /// kept after that, because the heir keeps what it inherited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_heir: Option<u16>,
    /// Whether others still use this stock etcd directly, so that nothing may move away from it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopting: bool,
    /// The slots of earlier heirs, the latest last. They keep what they inherited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lease_heirs_before: Vec<u16>,
    pub state: StoreState,
    /// The document's revision at the last change of this object.
    pub resource_version: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoreState {
    Active,
    /// Configs may not name it. It may still own keys that are being moved away.
    Draining,
    /// The store is gone; its index stays taken.
    Removed,
}

impl StoreObject {
    /// Sets the heir of this store's leases and remembers the previous one.
    fn leave_leases_to(&mut self, heir: Option<u16>) {
        let before = std::mem::replace(&mut self.lease_heir, heir);
        self.lease_heirs_before.retain(|known| Some(*known) != before && Some(*known) != heir);
        self.lease_heirs_before.extend(before.filter(|before| Some(*before) != heir));
    }

    pub(super) fn new(config: StoreConfig, resource_version: u64) -> Self {
        Self {
            name: config.name,
            store_type: config.store_type,
            // Validation has checked that the slot is at most `Slot::MAX`.
            slot: config.slot.and_then(|slot| u16::try_from(slot).ok()),
            endpoints: config.endpoints,
            standby: config.standby,
            members: None,
            uuid: None,
            opens_at: None,
            lease_heir: None,
            adopting: config.adopting,
            lease_heirs_before: Vec::new(),
            state: StoreState::Active,
            resource_version,
        }
    }

    /// The store as an entry of a configuration file.
    #[must_use]
    pub fn config(&self) -> StoreConfig {
        StoreConfig {
            name: self.name.clone(),
            slot: self.slot.map(u32::from),
            endpoints: self.endpoints.clone(),
            store_type: self.store_type,
            standby: self.standby.clone(),
            adopting: self.adopting,
        }
    }
}

impl ClusterState {
    /// Adds a store at the end of the list. A shard without a slot gets the lowest slot that no store has ever had (R1), a
    /// stock etcd the highest.
    ///
    /// # Errors
    /// Every error in its name, slot and endpoints.
    pub fn add_store(&self, mut store: StoreConfig) -> Result<(Self, StoreIdx), Vec<FieldError>> {
        let path = store_path(&store.name);
        let mut errors = FieldErrors::default();
        if store.slot.is_none() {
            store.slot = self.free_slot(store.store_type).map(u32::from);
            if store.slot.is_none() {
                let message = format!("all {} slots have been given away", Slot::MAX);
                errors.add(
                    format!("{path}.slot"),
                    message,
                    "slots are not used again: use the stores that are there, or restore a backup into a new cluster",
                );
                return Err(errors.into());
            }
        }
        let place = match u16::try_from(self.stores.len()) {
            Ok(place) => StoreIdx(place),
            Err(_) => return Err(refused(path, "too many stores", "use those that are there")),
        };
        let gone = |object: &&StoreObject| object.state == StoreState::Removed;
        let mut all: Vec<_> =
            self.stores.iter().filter(|object| !gone(object)).map(StoreObject::config).collect();
        all.push(store.clone());
        let paths = |at: usize| store_path(&all[at].name);
        validate::stores(&all, paths, &mut errors);
        validate::members_apart(&all, paths, &mut errors);
        if let Some(other) = self
            .stores
            .iter()
            .filter(gone)
            .find(|object| object.slot.is_some() && object.slot.map(u32::from) == store.slot)
        {
            let message = format!("the slot was the slot of store {:?}, which is removed", other.name.0);
            errors.add(format!("{path}.slot"), message, "leave the slot out, and a free one is given");
        }
        if !errors.is_empty() {
            return Err(errors.into());
        }
        let mut next = self.clone();
        next.revision += 1;
        next.stores.push(StoreObject::new(store, next.revision));
        Ok((next, place))
    }

    /// Records the UUID that a store reported at its first handshake.
    ///
    /// # Errors
    /// When there is no such store, it already has another UUID, or another store has this UUID.
    pub fn identify_store(&self, name: &StoreName, uuid: &str) -> Result<Self, Vec<FieldError>> {
        let (at, object) = self.known(name)?;
        match &object.uuid {
            Some(known) if known == uuid => Ok(self.clone()),
            Some(known) => {
                let message = format!("the store is {known}, and {uuid} answers in its place");
                let what_to_do = format!(
                    "start it with its old data folder, or, if its data is lost, run kindred store replace {name} --force"
                );
                Err(refused(format!("{}.uuid", store_path(name)), message, what_to_do))
            }
            None => match self.stores.iter().find(|other| other.uuid.as_deref() == Some(uuid)) {
                Some(other) => {
                    let message = format!("{uuid}, which answers there, is store {:?}", other.name.0);
                    Err(refused(format!("{}.uuid", store_path(name)), message, "correct its endpoints"))
                }
                None => Ok(self.with_store(at, |store| store.uuid = Some(uuid.to_owned()))),
            },
        }
    }

    /// Replaces the UUID of a store that keeps nothing on disk after its process was started again.
    ///
    /// # Errors
    /// When there is no such store, another UUID was recorded meanwhile, or the store should keep its data.
    pub fn renew_store(&self, name: &StoreName, before: &str, uuid: &str) -> Result<Self, Vec<FieldError>> {
        let (at, object) = self.known(name)?;
        if object.uuid.as_deref() != Some(before) || before == uuid || !self.holds_only_none(at) {
            return self.identify_store(name, uuid);
        }
        Ok(self.with_store(at, |store| store.uuid = Some(uuid.to_owned())))
    }

    /// Whether the store holds, and is configured to hold, only Kinds of mode none. Such a store may come back
    /// empty (R9, R10).
    #[must_use]
    pub fn holds_only_none(&self, at: StoreIdx) -> bool {
        let Some(store) = self.stores.get(usize::from(at.0)) else { return false };
        let is_none = |config: &DataPartitionConfig| {
            config.durability.as_deref().is_some_and(|mode| mode.parse() == Ok(Durability::None))
        };
        let scheme = self.scheme();
        let none: BTreeSet<_> = self
            .configs
            .iter()
            .filter(|config| is_none(config))
            .filter_map(|config| scheme.resolve(&config.resource).ok())
            .collect();
        let is_kept = |config: &DataPartitionConfig| {
            scheme.resolve(&config.resource).map_or(true, |kind| !none.contains(&kind))
        };
        let owns_kept = self
            .map
            .partitions()
            .iter()
            .filter(|partition| partition.placement.stores().contains(&at))
            .any(|partition| partition.kind.as_ref().is_none_or(|kind| !none.contains(kind)));
        let is_to_keep = self.configs.iter().any(|config| names(config, &store.name) && is_kept(config));
        self.default != store.name && !owns_kept && !is_to_keep
    }

    /// Replaces a store's endpoints. An address of one of its standbys changes nothing: which member serves is the record's
    /// to say, so a file or flag from before a failover does not undo it.
    ///
    /// # Errors
    /// When there is no such store, or an endpoint is invalid.
    pub fn readdress_store(&self, name: &StoreName, endpoints: Vec<String>) -> Result<Self, Vec<FieldError>> {
        self.readdress(name, endpoints, true)
    }

    /// The same for a process that says itself where it listens. It may have the address that a standby of another store had in a
    /// former run, and has in the document until that one says where it is now.
    ///
    /// # Errors
    /// When there is no such store, or an endpoint is invalid.
    pub fn relocate_store(&self, name: &StoreName, endpoints: Vec<String>) -> Result<Self, Vec<FieldError>> {
        self.readdress(name, endpoints, false)
    }

    fn readdress(
        &self,
        name: &StoreName,
        endpoints: Vec<String>,
        apart: bool,
    ) -> Result<Self, Vec<FieldError>> {
        let (at, object) = self.known(name)?;
        let of_standby = |endpoint: &String| {
            object.standby.as_ref().is_some_and(|standby| standby.endpoints.contains(endpoint))
        };
        if object.members.is_some() && endpoints.iter().any(of_standby) {
            return Ok(self.clone());
        }
        let mut errors = FieldErrors::default();
        let config = StoreConfig { endpoints: endpoints.clone(), ..object.config() };
        self.check_beside(at, config, apart, &mut errors);
        if errors.is_empty() {
            Ok(self.with_store(at, |store| store.endpoints = endpoints))
        } else {
            Err(errors.into())
        }
    }

    /// Drains a store: rings drop it, and everything that it serves alone, the default's part included, goes to
    /// `to`. Without `to`, it goes to the default store, if that is another store. The store owns nothing after the
    /// transfers and can then be removed.
    ///
    /// # Errors
    /// Every obstacle: no other store to take the keys, a ring left without stores, a stock etcd beside shards.
    pub fn drain_store(&self, name: &StoreName, to: Option<&StoreName>) -> Result<Change, Vec<FieldError>> {
        let (at, _) = self.known(name)?;
        if to == Some(name) {
            return Err(refused(
                "to",
                format!("store {:?} is the one to drain", name.0),
                "name another store",
            ));
        }
        if let Some(to) = to {
            self.known(to)?;
        }
        let heir = to.or(Some(&self.default).filter(|default| *default != name));
        let mut errors = FieldErrors::default();
        let lease_heir = self.heir_of_leases(at, heir);
        let mut next = self.with_store(at, |store| {
            store.state = StoreState::Draining;
            store.leave_leases_to(lease_heir.or(store.lease_heir));
        });
        let mut touched = Touched::default();
        let scheme = self.scheme();
        for config in next.configs.iter_mut().filter(|config| names(config, name)) {
            touched.kinds.extend(scheme.resolve(&config.resource).ok());
            if !give_up(config, name, heir) {
                let message = format!("no store is left but {:?}", name.0);
                errors.add(config_path(&config.metadata.name), message, "name the store that takes over");
            }
            config.metadata.resource_version = Some(next.revision.to_string());
        }
        if self.default == *name {
            match heir {
                Some(heir) => next.default = heir.clone(),
                None => errors.add("default", "it is the store to drain", "name the store that takes over"),
            }
            touched.rest = true;
        }
        // Also moves keys that only the map gives to the store, as aborted moves leave them.
        for partition in self.map.partitions().iter().filter(|p| p.placement.stores().contains(&at)) {
            match &partition.kind {
                Some(kind) => drop(touched.kinds.insert(kind.clone())),
                None => touched.rest = true,
            }
        }
        if !errors.is_empty() {
            return Err(errors.into());
        }
        self.change_to(next, &touched)
    }

    /// Makes a draining store active again after [`ClusterState::drain_store`]. No keys move back.
    ///
    /// # Errors
    /// When there is no such store.
    pub fn activate_store(&self, name: &StoreName) -> Result<Self, Vec<FieldError>> {
        let (at, _) = self.known(name)?;
        Ok(self.with_store(at, |store| store.state = StoreState::Active))
    }

    /// Ends the adoption of a stock etcd: whoever used it directly now uses a router.
    ///
    /// # Errors
    /// When there is no such store.
    pub fn finish_adoption(&self, name: &StoreName) -> Result<Self, Vec<FieldError>> {
        let (at, _) = self.known(name)?;
        Ok(self.with_store(at, |store| store.adopting = false))
    }

    /// Removes a store. Its index and its slot stay taken.
    ///
    /// # Errors
    /// Everything that still holds it: keys that it owns, configs and a default that name it.
    pub fn remove_store(&self, name: &StoreName) -> Result<Self, Vec<FieldError>> {
        let (at, _) = self.known(name)?;
        let mut errors = FieldErrors::default();
        let scheme = self.scheme();
        let owned = self.map.partitions().iter().filter(|p| p.placement.stores().contains(&at));
        let kinds: BTreeSet<_> = owned.map(|partition| partition.kind.as_ref()).collect();
        for kind in kinds {
            let what =
                kind.map_or_else(|| "keys of no configured Kind".to_owned(), |kind| scheme.name_of(kind));
            let what_to_do = format!("run kindred drain {name}, and wait for its moves");
            errors.add(store_path(name), format!("it still owns {what}"), what_to_do);
        }
        for config in self.configs.iter().filter(|config| names(config, name)) {
            let field = if config.ring.is_some() { "ring.stores" } else { "serviceGroupId" };
            let path = format!("{}.{field}", config_path(&config.metadata.name));
            errors.add(path, format!("it names store {:?}", name.0), "name another store");
        }
        if self.default == *name {
            errors.add("default", format!("it is store {:?}", name.0), "drain the store first");
        }
        if errors.is_empty() {
            // Other stores may know leases of a store that can no longer be asked.
            let lease_heir = self.heir_of_leases(at, Some(&self.default));
            Ok(self.with_store(at, |store| {
                store.state = StoreState::Removed;
                store.lease_heir = store.lease_heir.or(lease_heir);
            }))
        } else {
            Err(errors.into())
        }
    }

    /// Replaces a lost shard with a new, empty store of the same name, which takes its place throughout the map
    /// (R14). The new store gets a slot of its own and opens at `opens_at`, microseconds since the Unix epoch. The
    /// caller asserts that the process of the lost store is dead.
    ///
    /// # Errors
    /// When there is no such shard, no slot is left, or an endpoint is invalid.
    pub fn replace_store(
        &self,
        name: &StoreName,
        endpoints: Vec<String>,
        opens_at: u64,
    ) -> Result<(Self, StoreIdx), Vec<FieldError>> {
        let (lost, object) = self.known(name)?;
        if object.store_type == StoreType::Etcd {
            let message = "it is a stock etcd, which keeps its own data";
            return Err(refused(
                store_path(name),
                message,
                "change its endpoints when it is restored elsewhere",
            ));
        }
        // Standbys of the lost store are none of its replacement, which has another slot.
        let config = StoreConfig { slot: None, endpoints, standby: None, ..object.config() };
        let gone = self.with_store(lost, |store| store.state = StoreState::Removed);
        let (mut next, place) = gone.add_store(config)?;
        next.revision = gone.revision;
        if let Some(store) = next.stores.get_mut(usize::from(place.0)) {
            store.resource_version = next.revision;
            store.opens_at = Some(opens_at);
            store.state = object.state;
            // A draining store's leases go to its heir; so do those that its replacement inherits.
            store.lease_heir = object.lease_heir;
            store.lease_heirs_before.clone_from(&object.lease_heirs_before);
        }
        let slot = next.stores.get(usize::from(place.0)).and_then(|store| store.slot);
        if let Some(store) = next.stores.get_mut(usize::from(lost.0)) {
            store.leave_leases_to(slot);
        }
        let generation = self.generation.next();
        let map = transfers::in_place_of(&self.map, lost, place, generation).map_err(|error| {
            refused("map", error.to_string(), "report this: the map had the same ranges before")
        })?;
        if map != self.map {
            (next.map, next.generation) = (map, generation);
        }
        Ok((next, place))
    }

    /// Checks what a store is to become, beside all others.
    pub(super) fn check_store(&self, at: StoreIdx, config: StoreConfig, errors: &mut FieldErrors) {
        self.check_beside(at, config, true, errors);
    }

    fn check_beside(&self, at: StoreIdx, config: StoreConfig, apart: bool, errors: &mut FieldErrors) {
        let others = self
            .stores
            .iter()
            .enumerate()
            .filter(|(other, object)| *other != usize::from(at.0) && object.state != StoreState::Removed);
        let mut all: Vec<_> = others.map(|(_, object)| object.config()).collect();
        all.push(config);
        let path = |at: usize| store_path(&all[at].name);
        validate::stores(&all, path, errors);
        if apart {
            validate::members_apart(&all, path, errors);
        }
    }

    pub(super) fn known(&self, name: &StoreName) -> Result<(StoreIdx, &StoreObject), Vec<FieldError>> {
        self.store(name).ok_or_else(|| {
            let known: Vec<_> = self
                .stores
                .iter()
                .filter(|store| store.state != StoreState::Removed)
                .map(|store| store.name.0.as_str())
                .collect();
            let what_to_do = format!("name one of {}", known.join(", "));
            refused(store_path(name), format!("there is no store {:?}", name.0), what_to_do)
        })
    }

    pub(super) fn with_store(&self, at: StoreIdx, change: impl FnOnce(&mut StoreObject)) -> Self {
        let mut next = self.clone();
        next.revision += 1;
        if let Some(store) = next.stores.get_mut(usize::from(at.0)) {
            change(store);
            store.resource_version = next.revision;
        }
        next
    }
}

fn names(config: &DataPartitionConfig, store: &StoreName) -> bool {
    config.service_group_id.as_ref() == Some(store)
        || config.ring.as_ref().is_some_and(|ring| ring.stores.contains(store))
}

/// Removes the store from the config, in favour of `heir` where it was the only one. False if no store is left.
fn give_up(config: &mut DataPartitionConfig, store: &StoreName, heir: Option<&StoreName>) -> bool {
    match (&mut config.ring, heir) {
        (Some(ring), heir) => {
            ring.stores.retain(|of_ring| of_ring != store);
            if ring.stores.is_empty() {
                ring.stores.extend(heir.cloned());
            }
            !ring.stores.is_empty()
        }
        (None, Some(heir)) => {
            config.service_group_id = Some(heir.clone());
            true
        }
        (None, None) => false,
    }
}
