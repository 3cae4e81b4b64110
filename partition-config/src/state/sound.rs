//! Checks whether a document is sound, and salvages the usable parts of one that is not.
//!
//! A document that [`ClusterState::validated`] refuses is never written. A router that reads one anyway uses its
//! sound parts, because one misconfigured Kind must not stop the others.

use std::collections::BTreeMap;

use super::{ClusterState, StoreObject, StoreState, config_path, store_path};
use crate::{
    history::HistoryBounds,
    kind::KindPrefix,
    map::StoreIdx,
    model::{Durability, LimitsConfig},
    validate::{FieldError, FieldErrors, KindSettings, Validated},
};

impl ClusterState {
    /// What a router needs of the document: the map in use, every store (removed stores keep their index), and the
    /// settings of Kinds.
    ///
    /// # Errors
    /// Every error in the document. No change in this module leads to such a document.
    pub fn validated(&self) -> Result<Validated, Vec<FieldError>> {
        let mut errors = self.lost_owners();
        match self.placed() {
            Ok((default, kinds, _)) => errors.into_result(self.used(default, kinds)),
            Err(more) => {
                errors.extend(more);
                Err(errors.into())
            }
        }
    }

    /// The usable parts of any document, with its errors. The map is taken as it is, so keys of a removed store
    /// have no server until the map is repaired. Where the configs of a Kind disagree, the stronger durability
    /// counts.
    #[must_use]
    pub fn salvaged(&self) -> (Validated, Vec<FieldError>) {
        let errors = match self.validated() {
            Ok(validated) => return (validated, Vec::new()),
            Err(errors) => errors,
        };
        let there = || self.stores.iter().position(|store| store.state != StoreState::Removed);
        let default = self.store(&self.default).map(|(at, _)| at);
        let default = default.or_else(|| Some(StoreIdx(u16::try_from(there()?).ok()?)));
        (self.used(default.unwrap_or(StoreIdx(0)), self.said_settings()), errors)
    }

    /// The configured fields that have no effect: earlier versions accepted them, and they stay until their config
    /// is written again.
    #[must_use]
    pub fn without_effect(&self) -> Vec<String> {
        let with_it =
            self.configs.iter().filter(|config| config.history_max.is_some() && config.history().is_none());
        with_it.map(|config| format!("{}.historyMax", config_path(&config.metadata.name))).collect()
    }

    fn used(&self, default: StoreIdx, kinds: Vec<KindSettings>) -> Validated {
        Validated {
            scheme: self.scheme(),
            stores: self.stores.iter().map(StoreObject::config).collect(),
            default,
            map: self.map.clone(),
            kinds,
        }
    }

    /// An error for each removed store that still owns keys in the map.
    fn lost_owners(&self) -> FieldErrors {
        let mut errors = FieldErrors::default();
        for (at, store) in self.stores.iter().enumerate() {
            let owns = |store: &StoreIdx| usize::from(store.0) == at;
            let removed = store.state == StoreState::Removed;
            if removed
                && self.map.partitions().iter().any(|partition| partition.placement.stores().iter().any(owns))
            {
                let message = "it owns keys by the map, and was removed";
                let what_to_do = "see kindred reconcile, which compares the map with what the stores own";
                errors.add(store_path(&store.name), message, what_to_do);
            }
        }
        errors
    }

    /// The settings of each Kind, from the configs that can be parsed.
    fn said_settings(&self) -> Vec<KindSettings> {
        let scheme = self.scheme();
        let mut kinds: BTreeMap<KindPrefix, KindSettings> = BTreeMap::new();
        for config in &self.configs {
            let Ok(kind) = scheme.resolve(&config.resource) else { continue };
            let durability: Option<Durability> =
                config.durability.as_deref().and_then(|text| text.parse().ok());
            let said = config.limits.unwrap_or_default();
            let history = HistoryBounds::of(config.history());
            let first = !kinds.contains_key(&kind);
            let settings = kinds.entry(kind.clone()).or_insert(KindSettings {
                kind,
                durability: None,
                limits: LimitsConfig::default(),
                history: HistoryBounds::default(),
            });
            settings.durability = stronger(settings.durability, durability);
            // Where they disagree, nobody is kept out by a limit that may be wrong.
            settings.history.bytes = settings.history.bytes.max(history.bytes);
            settings.history.seconds = settings.history.seconds.max(history.seconds);
            settings.limits = if first { said } else { looser(settings.limits, said) };
        }
        kinds.into_values().collect()
    }
}

/// The limits that refuse less.
fn looser(one: LimitsConfig, other: LimitsConfig) -> LimitsConfig {
    let of = |one: Option<u32>, other: Option<u32>| one.zip(other).map(|(one, other)| one.max(other));
    LimitsConfig {
        reads_per_second: of(one.reads_per_second, other.reads_per_second),
        writes_per_second: of(one.writes_per_second, other.writes_per_second),
        client_reads_per_second: of(one.client_reads_per_second, other.client_reads_per_second),
        client_writes_per_second: of(one.client_writes_per_second, other.client_writes_per_second),
    }
}

/// The mode that loses less in a crash.
fn stronger(one: Option<Durability>, other: Option<Durability>) -> Option<Durability> {
    let rank = |mode: Option<Durability>| match mode {
        None => 0,
        Some(Durability::None) => 1,
        Some(Durability::Buffered) => 2,
        Some(Durability::Fsync) => 3,
    };
    if rank(other) > rank(one) { other } else { one }
}
