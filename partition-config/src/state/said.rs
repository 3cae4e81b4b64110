//! What the configuration says of where a Kind is: noted when a move begins, said again when it ends where it began.
//!
//! Only that. Whatever else was changed meanwhile, such as the Kind's durability, is no part of a move and stays.

use serde::{Deserialize, Serialize};

use super::{ClusterState, StoreState};
use crate::{
    ids::StoreName,
    kind::KindPrefix,
    model::{DataPartitionConfig, Metadata, RingConfig},
    validate::FieldError,
};

/// What a document said of a Kind before a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Said {
    /// The default store.
    pub default: StoreName,
    /// The Kind's configs.
    pub configs: Vec<DataPartitionConfig>,
}

/// A document that says of a Kind what it said before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaidOutcome {
    /// The document.
    pub state: ClusterState,
    /// Stores that were being drained, and are not any more: what was said names them.
    pub active_again: Vec<StoreName>,
}

/// The fields of a config that say where keys are.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place<'c> {
    start: Option<&'c str>,
    end: Option<&'c str>,
    store: Option<&'c StoreName>,
    ring: Option<Vec<&'c StoreName>>,
}

impl ClusterState {
    /// What the document says of a Kind, or of the keys of no Kind, to be said again when a move of them is given up.
    #[must_use]
    pub fn said_of(&self, kind: Option<&KindPrefix>) -> Said {
        let configs = self.configs.iter().filter(|config| self.is_of(config, kind)).cloned().collect();
        Said { default: self.default.clone(), configs }
    }

    /// Whether both documents want the keys of a Kind, or of no Kind, at the same places.
    #[must_use]
    pub fn wants_as(&self, other: &Self, kind: Option<&KindPrefix>) -> bool {
        self.wanted(kind) == other.wanted(kind)
    }

    /// The default counts where no config says otherwise.
    fn wanted(&self, kind: Option<&KindPrefix>) -> (Vec<Place<'_>>, Option<&StoreName>) {
        let mut places: Vec<_> =
            self.configs.iter().filter(|config| self.is_of(config, kind)).map(place).collect();
        places.sort();
        let default = (kind.is_none() || places.is_empty()).then_some(&self.default);
        (places, default)
    }

    /// The document that wants the keys of a Kind where this says, as the map does, or does again; all else that is said of
    /// the Kind stays. Stores that it names are not drained any more: they are to keep the keys. One revision on.
    ///
    /// # Errors
    /// Everything that is wrong with what it leads to, which is not to be written then.
    pub fn with_said_of(
        &self,
        kind: Option<&KindPrefix>,
        said: &Said,
    ) -> Result<SaidOutcome, Vec<FieldError>> {
        let mut next = Self { revision: self.revision + 1, ..self.clone() };
        if kind.is_none() {
            next.default = said.default.clone();
        }
        let now: Vec<_> = self.configs.iter().filter(|config| self.is_of(config, kind)).collect();
        next.configs.retain(|config| !self.is_of(config, kind));
        // Without configs it was the default's, which may be another store by now: then a config says which one it was.
        let of_default = kind.filter(|_| said.configs.is_empty() && said.default != next.default);
        let of_default = of_default.map(|kind| next.on_store(kind, &said.default));
        for before in said.configs.iter().chain(&of_default) {
            let of_name = now.iter().find(|config| config.metadata.name == before.metadata.name);
            let mut config = placed_as(before, of_name.or(now.first()).copied());
            let same = of_name.filter(|there| place(there) == place(before));
            if let Some(there) = same {
                // As it is, its version included.
                config = (*there).clone();
            } else {
                // Its name may be another config's by now.
                if next.config(&config.metadata.name).is_some() {
                    config.metadata.name = next.fresh_name(&config.metadata.name);
                }
                config.metadata.resource_version = Some(next.revision.to_string());
            }
            next.configs.push(config);
        }
        let active_again = next.activate_named(kind);
        let next = next.after(self);
        next.validated()?;
        Ok(SaidOutcome { state: next, active_again })
    }

    /// Ends the draining of what is named of a Kind.
    pub(super) fn activate_named(&mut self, kind: Option<&KindPrefix>) -> Vec<StoreName> {
        let of_kind: Vec<_> =
            self.configs.iter().filter(|config| self.is_of(config, kind)).cloned().collect();
        let (revision, default) = (self.revision, self.default.clone());
        let mut active = Vec::new();
        for store in self.stores.iter_mut().filter(|store| store.state == StoreState::Draining) {
            let of_default = store.name == default && (kind.is_none() || of_kind.is_empty());
            if of_default || of_kind.iter().any(|config| names(config, &store.name)) {
                store.state = StoreState::Active;
                store.resource_version = revision;
                active.push(store.name.clone());
            }
        }
        active
    }

    pub(super) fn is_of(&self, config: &DataPartitionConfig, kind: Option<&KindPrefix>) -> bool {
        self.scheme().resolve(&config.resource).ok().as_ref() == kind
    }
}

/// Where the config wants its keys. The order of a ring's stores says nothing.
fn place(config: &DataPartitionConfig) -> Place<'_> {
    let ring = config.ring.as_ref().map(|RingConfig { stores }| {
        let mut stores: Vec<_> = stores.iter().collect();
        stores.sort();
        stores
    });
    Place {
        start: config.is_range_start_valid.then_some(config.range_start.as_str()),
        end: config.is_range_end_valid.then_some(config.range_end.as_str()),
        store: config.service_group_id.as_ref(),
        ring,
    }
}

/// The config as it was as to where keys are, and as it is now in all else.
fn placed_as(before: &DataPartitionConfig, now: Option<&DataPartitionConfig>) -> DataPartitionConfig {
    let before = before.clone();
    let Some(now) = now else { return before };
    DataPartitionConfig {
        metadata: Metadata { name: before.metadata.name, resource_version: None },
        range_start: before.range_start,
        is_range_start_valid: before.is_range_start_valid,
        range_end: before.range_end,
        is_range_end_valid: before.is_range_end_valid,
        service_group_id: before.service_group_id,
        ring: before.ring,
        resource: before.resource,
        ..now.clone()
    }
}

fn names(config: &DataPartitionConfig, store: &StoreName) -> bool {
    config.service_group_id.as_ref() == Some(store)
        || config.ring.as_ref().is_some_and(|ring| ring.stores.contains(store))
}
