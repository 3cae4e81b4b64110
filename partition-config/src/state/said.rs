//! Remembers where the configuration placed a Kind when a move began, and restores that when the move is undone.
//!
//! Other settings that were changed meanwhile, such as the Kind's durability, are not part of a move and stay.

use serde::{Deserialize, Serialize};

use super::{ClusterState, StoreState};
use crate::{
    ids::StoreName,
    kind::KindPrefix,
    model::{DataPartitionConfig, Metadata, RingConfig},
    validate::FieldError,
};

/// The placement of a Kind in a document before a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Said {
    pub default: StoreName,
    pub configs: Vec<DataPartitionConfig>,
}

/// The result of restoring a Kind's placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaidOutcome {
    pub state: ClusterState,
    /// Draining stores that became active again because the restored placement names them.
    pub active_again: Vec<StoreName>,
}

/// The fields of a config that place keys.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Place<'c> {
    start: Option<&'c str>,
    end: Option<&'c str>,
    store: Option<&'c StoreName>,
    ring: Option<Vec<&'c StoreName>>,
}

impl ClusterState {
    /// Records the placement of a Kind, or of the keys of no Kind, for [`ClusterState::with_said_of`].
    #[must_use]
    pub fn said_of(&self, kind: Option<&KindPrefix>) -> Said {
        let configs = self.configs.iter().filter(|config| self.is_of(config, kind)).cloned().collect();
        Said { default: self.default.clone(), configs }
    }

    /// Whether both documents place the keys of a Kind, or of no Kind, the same way.
    #[must_use]
    pub fn wants_as(&self, other: &Self, kind: Option<&KindPrefix>) -> bool {
        self.wanted(kind) == other.wanted(kind)
    }

    /// The places that configs ask for; and the default store if it matters, that is if no config says otherwise.
    fn wanted(&self, kind: Option<&KindPrefix>) -> (Vec<Place<'_>>, Option<&StoreName>) {
        let mut places: Vec<_> =
            self.configs.iter().filter(|config| self.is_of(config, kind)).map(place).collect();
        places.sort();
        let default = (kind.is_none() || places.is_empty()).then_some(&self.default);
        (places, default)
    }

    /// Restores the placement `said` of a Kind and keeps all its other settings. Draining stores that it names
    /// become active, because they are to keep the keys. Increments the revision.
    ///
    /// # Errors
    /// Every error in the resulting document, which must not be written then.
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
        // A Kind without configs was on the default store of that time. If that is another store now, the Kind
        // needs a config.
        let of_default = kind.filter(|_| said.configs.is_empty() && said.default != next.default);
        let of_default = of_default.map(|kind| next.on_store(kind, &said.default));
        for before in said.configs.iter().chain(&of_default) {
            let of_name = now.iter().find(|config| config.metadata.name == before.metadata.name);
            let mut config = placed_as(before, of_name.or(now.first()).copied());
            let same = of_name.filter(|there| place(there) == place(before));
            if let Some(there) = same {
                // The config did not change its place, so it stays as it is, including its resourceVersion.
                config = (*there).clone();
            } else {
                // Another config may have taken the name.
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

    /// Makes every draining store active that the configs of a Kind name, and returns those stores.
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

/// The place that a config asks for. The order of a ring's stores does not matter.
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

/// The place of `before` with the other settings of `now`.
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
