//! Changes of partition configs: as API requests, and as the operations move, split and merge.

use super::{Change, ClusterState, Touched, config_path, refused};
use crate::{
    ids::StoreName,
    kind::KindPrefix,
    model::{DataPartitionConfig, Metadata},
    validate::{FieldError, FieldErrors, check_history_max},
};

/// A change of one config, or the replacement of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigChange {
    /// Adds a config, which must not have a resourceVersion.
    Create(DataPartitionConfig),
    /// Replaces the config of the same name. A given resourceVersion must match the existing object's.
    Update(DataPartitionConfig),
    /// Deletes a config. Its keys go to the default store unless another config of the same change covers them.
    Delete {
        name: String,
        /// If given, must match the existing object's.
        resource_version: Option<String>,
    },
    /// Replaces all configs. A given resourceVersion must match the existing object's; configs that are equal stay
    /// unchanged.
    Replace(Vec<DataPartitionConfig>),
}

impl ClusterState {
    /// Applies these changes of configs, all or none.
    ///
    /// # Errors
    /// Every error in the objects, in the changes, or in the resulting configuration.
    pub fn apply_configs(&self, changes: &[ConfigChange]) -> Result<Change, Vec<FieldError>> {
        let mut errors = FieldErrors::default();
        let mut next = self.clone();
        for change in changes {
            match change {
                ConfigChange::Create(config) => self.create(&mut next, config, &mut errors),
                ConfigChange::Update(config) => self.update(&mut next, config, &mut errors),
                ConfigChange::Delete { name, resource_version } => {
                    if self.found(&next, name, resource_version.as_deref(), &mut errors).is_some() {
                        next.configs.retain(|config| config.metadata.name != *name);
                    }
                }
                ConfigChange::Replace(configs) => {
                    let stays = |old: &DataPartitionConfig| {
                        configs.iter().any(|config| config.metadata.name == old.metadata.name)
                    };
                    next.configs.retain(stays);
                    for config in configs {
                        let exists = next.config(&config.metadata.name).is_some();
                        match exists {
                            true => self.update(&mut next, config, &mut errors),
                            false => self.create(&mut next, config, &mut errors),
                        }
                    }
                }
            }
        }
        match self.configured(next) {
            Ok(change) => errors.into_result(change),
            Err(more) => {
                errors.extend(more);
                Err(errors.into())
            }
        }
    }

    /// Moves a whole Kind to one store. Its ranges stay.
    ///
    /// # Errors
    /// When the Kind or the store is unknown, or the store cannot serve the Kind.
    pub fn move_kind(&self, kind: &str, to: &StoreName) -> Result<Change, Vec<FieldError>> {
        let prefix = self.resolve(kind)?;
        self.known(to)?;
        let mut next = self.with_kind(&prefix);
        for at in next.of_kind(&prefix) {
            serve(&mut next.configs[at], to);
        }
        // The Kind counts as touched even if the configs already name `to`, because the map may not.
        self.configured_with(next, Some(prefix))
    }

    /// Splits the range that contains `at`: another store serves it from `at` to its end. The part below `at` stays
    /// where it is.
    ///
    /// # Errors
    /// When the Kind or the store is unknown, or a range already begins at `at`.
    pub fn split(&self, kind: &str, at: &str, to: &StoreName) -> Result<Change, Vec<FieldError>> {
        let prefix = self.resolve(kind)?;
        self.known(to)?;
        if at.is_empty() || at.starts_with('/') {
            let what_to_do = "write namespace/name or name, without the prefix of the Kind";
            return Err(refused("at", format!("{at:?} is not a name between two others"), what_to_do));
        }
        let mut next = self.with_kind(&prefix);
        let indices = next.of_kind(&prefix);
        if indices.iter().any(|i| next.configs[*i].is_range_start_valid && next.configs[*i].range_start == at)
        {
            let message = format!("a range of {kind} begins at {at:?} already");
            return Err(refused("at", message, "move that range, or choose another name"));
        }
        let holds = |config: &DataPartitionConfig| {
            (!config.is_range_start_valid || config.range_start.as_str() < at)
                && (!config.is_range_end_valid || at < config.range_end.as_str())
        };
        let Some(left) = indices.into_iter().find(|i| holds(&next.configs[*i])) else {
            return Err(refused(
                "at",
                format!("no range of {kind} holds {at:?}"),
                "correct the configs of the Kind",
            ));
        };
        let mut right = next.configs[left].clone();
        right.metadata = Metadata { name: next.fresh_name(&right.metadata.name), resource_version: None };
        right.range_start = at.to_owned();
        right.is_range_start_valid = true;
        serve(&mut right, to);
        next.configs[left].range_end = at.to_owned();
        next.configs[left].is_range_end_valid = true;
        next.configs.insert(left + 1, right);
        self.configured(next)
    }

    /// Merges ranges of a Kind into one: the two that meet at `at`, or all. `to` serves the result; by default it
    /// is served as the first of them was.
    ///
    /// # Errors
    /// When the Kind or the store is unknown, no two ranges meet at `at`, or the Kind is one range already.
    pub fn merge(
        &self,
        kind: &str,
        at: Option<&str>,
        to: Option<&StoreName>,
    ) -> Result<Change, Vec<FieldError>> {
        let prefix = self.resolve(kind)?;
        if let Some(to) = to {
            self.known(to)?;
        }
        let mut next = self.clone();
        let mut indices = next.of_kind(&prefix);
        if let Some(at) = at {
            let meets = |i: usize| next.configs[i].is_range_start_valid && next.configs[i].range_start == at;
            let Some(right) = indices.iter().position(|i| meets(*i)).filter(|right| *right > 0) else {
                return Err(refused(
                    "at",
                    format!("no two ranges of {kind} meet at {at:?}"),
                    next.bounds_of(&prefix),
                ));
            };
            indices = indices[right - 1..=right].to_vec();
        }
        let (Some(first), Some(last)) = (indices.first().copied(), indices.last().copied()) else {
            return Err(refused("kind", format!("{kind} has no ranges"), "there is nothing to merge"));
        };
        if first == last {
            return Err(refused("kind", format!("{kind} is one range already"), "there is nothing to merge"));
        }
        let (end, valid) = (next.configs[last].range_end.clone(), next.configs[last].is_range_end_valid);
        let joint = &mut next.configs[first];
        (joint.range_end, joint.is_range_end_valid) = (end, valid);
        if let Some(to) = to {
            serve(joint, to);
        }
        let mut at = 0;
        next.configs.retain(|_| {
            at += 1;
            at - 1 == first || !indices.contains(&(at - 1))
        });
        self.configured(next)
    }

    /// The change that leads to the configs of `next`. Each config that differs gets a new resourceVersion.
    fn configured(&self, next: Self) -> Result<Change, Vec<FieldError>> {
        self.configured_with(next, None)
    }

    /// As [`Self::configured`], and also moves the Kind `also` to where the configs want it.
    fn configured_with(&self, mut next: Self, also: Option<KindPrefix>) -> Result<Change, Vec<FieldError>> {
        let scheme = self.scheme();
        let mut touched = Touched { kinds: also.into_iter().collect(), ..Touched::default() };
        let mut touch =
            |config: &DataPartitionConfig| touched.kinds.extend(scheme.resolve(&config.resource).ok());
        let version = (self.revision + 1).to_string();
        for config in &mut next.configs {
            let before = self.config(&config.metadata.name);
            config.metadata.resource_version =
                before.and_then(|before| before.metadata.resource_version.clone());
            if before != Some(&*config) {
                config.metadata.resource_version = Some(version.clone());
                touch(config);
                before.into_iter().for_each(&mut touch);
            }
        }
        self.configs.iter().filter(|old| next.config(&old.metadata.name).is_none()).for_each(&mut touch);
        self.change_to(next, &touched)
    }

    fn create(&self, next: &mut Self, config: &DataPartitionConfig, errors: &mut FieldErrors) {
        let path = config_path(&config.metadata.name);
        check_history_max(config, &path, errors);
        if next.config(&config.metadata.name).is_some() {
            errors.add(
                format!("{path}.metadata.name"),
                "there is one of this name",
                "update it, or choose another name",
            );
            return;
        }
        if config.metadata.resource_version.is_some() {
            let message = "there is no such object to have a resourceVersion";
            errors.add(
                format!("{path}.metadata.resourceVersion"),
                message,
                "leave it out to create the object",
            );
            return;
        }
        next.configs.push(config.clone());
    }

    fn update(&self, next: &mut Self, config: &DataPartitionConfig, errors: &mut FieldErrors) {
        let version = config.metadata.resource_version.as_deref();
        check_history_max(config, &config_path(&config.metadata.name), errors);
        if let Some(at) = self.found(next, &config.metadata.name, version, errors) {
            next.configs[at] = config.clone();
        }
    }

    /// The index of a config, if it exists and has the expected version; otherwise adds an error.
    fn found(
        &self,
        next: &Self,
        name: &str,
        version: Option<&str>,
        errors: &mut FieldErrors,
    ) -> Option<usize> {
        let path = config_path(name);
        let Some(at) = next.configs.iter().position(|config| config.metadata.name == name) else {
            errors.add(path, "there is no such object", "create it, or correct the name");
            return None;
        };
        let current = next.configs[at].metadata.resource_version.as_deref();
        if version.is_some() && version != current {
            let message = format!("the object has been changed: it is {}", current.unwrap_or("new"));
            let what_to_do = "get it again, and make the change to what is there now";
            errors.add(format!("{path}.metadata.resourceVersion"), message, what_to_do);
            return None;
        }
        Some(at)
    }

    fn resolve(&self, kind: &str) -> Result<KindPrefix, Vec<FieldError>> {
        self.scheme().resolve(kind).map_err(|error| {
            let what_to_do = "name a Kind as kubectl api-resources does, or write the prefix of its keys";
            refused("kind", error.to_string(), what_to_do)
        })
    }

    /// The indices of a Kind's configs, in the order of their ranges.
    fn of_kind(&self, kind: &KindPrefix) -> Vec<usize> {
        let scheme = self.scheme();
        let is_it = |i: &usize| scheme.resolve(&self.configs[*i].resource).as_ref() == Ok(kind);
        let mut found: Vec<_> = (0..self.configs.len()).filter(is_it).collect();
        found.sort_by_key(|i| self.configs[*i].is_range_start_valid.then(|| &self.configs[*i].range_start));
        found
    }

    fn bounds_of(&self, kind: &KindPrefix) -> String {
        let starts: Vec<_> = self
            .of_kind(kind)
            .iter()
            .skip(1)
            .map(|i| format!("{:?}", self.configs[*i].range_start))
            .collect();
        match starts.is_empty() {
            true => "it is one range".to_owned(),
            false => format!("they meet at {}", starts.join(", ")),
        }
    }

    /// The document with a config for the Kind. If it has none, one is added that leaves the Kind on the default
    /// store.
    fn with_kind(&self, kind: &KindPrefix) -> Self {
        let mut next = self.clone();
        if next.of_kind(kind).is_empty() {
            next.configs.push(self.on_store(kind, &self.default));
        }
        next
    }

    /// A config with an unused name by which `store` serves all of a Kind.
    pub(super) fn on_store(&self, kind: &KindPrefix, store: &StoreName) -> DataPartitionConfig {
        let resource = self.scheme().name_of(kind);
        let name = match self.config(&resource) {
            None => resource.clone(),
            Some(_) => self.fresh_name(&resource),
        };
        DataPartitionConfig {
            api_version: None,
            kind: None,
            metadata: Metadata { name, resource_version: None },
            range_start: String::new(),
            is_range_start_valid: false,
            range_end: String::new(),
            is_range_end_valid: false,
            service_group_id: Some(store.clone()),
            resource,
            ring: None,
            durability: None,
            limits: None,
            history_max: None,
        }
    }

    /// `base-2`, or the same with the next unused number.
    pub(super) fn fresh_name(&self, base: &str) -> String {
        let stem = match base.rsplit_once('-') {
            Some((stem, number)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => stem,
            _ => base,
        };
        let mut number = 2_usize;
        while self.config(&format!("{stem}-{number}")).is_some() {
            number += 1;
        }
        format!("{stem}-{number}")
    }
}

/// Lets one store serve the config's range, in place of any ring.
fn serve(config: &mut DataPartitionConfig, store: &StoreName) {
    config.ring = None;
    config.service_group_id = Some(store.clone());
}
