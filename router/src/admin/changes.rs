//! Changes of single objects, as functions from one state to the next. Pure except for the types of its errors.

use std::collections::BTreeSet;

use kindred_partition_config::ids::StoreName;
use kindred_partition_config::model::{DataPartitionConfig, StandbyConfig};
use kindred_partition_config::state::{Change, ClusterState, ConfigChange, StoreObject, StoreState};

use super::objects::{Resource, ServiceGroup};
use super::status::ApiError;

/// A parsed request to change one object.
#[derive(Debug, Clone)]
pub enum Edit {
    CreateConfig(DataPartitionConfig),
    /// Replaces the config with the same name.
    UpdateConfig(DataPartitionConfig),
    /// Adds a store.
    CreateGroup(Box<ServiceGroup>),
    /// Changes the endpoints or the state of a store.
    UpdateGroup(Box<ServiceGroup>),
    /// Deletes the object with this name, if it still has this version.
    Delete(Resource, String, Option<String>),
}

impl Edit {
    /// The resource and the name of the object.
    #[must_use]
    pub fn object(&self) -> (Resource, String) {
        match self {
            Self::CreateConfig(config) | Self::UpdateConfig(config) => {
                (Resource::Configs, config.metadata.name.clone())
            }
            Self::CreateGroup(group) | Self::UpdateGroup(group) => {
                (Resource::Groups, group.metadata.name.clone())
            }
            Self::Delete(resource, name, _) => (*resource, name.clone()),
        }
    }

    /// The change of the state.
    ///
    /// # Errors
    /// Why the change is refused.
    pub fn change(&self, state: &ClusterState) -> Result<Change, ApiError> {
        let (resource, name) = self.object();
        let there = resource.one(state, &name);
        let what = format!("{} {name:?}", resource.plural());
        match (self, &there) {
            (Self::CreateConfig(_) | Self::CreateGroup(_), Some(_)) => {
                return Err(ApiError::AlreadyExists(format!("{what} already exists")));
            }
            (Self::CreateConfig(_) | Self::CreateGroup(_), None) => {}
            (_, None) => return Err(ApiError::NotFound(format!("{what} not found"))),
            (_, Some(object)) => {
                if let Some(version) = self.version().filter(|version| *version != object.version) {
                    return Err(ApiError::Conflict(format!(
                        "{what}: the object has been modified (it is {}, the request is for {version}); \
                         get it again and make the change to what is there now",
                        object.version
                    )));
                }
            }
        }
        match self {
            Self::CreateConfig(config) => Ok(state.apply_configs(&[ConfigChange::Create(config.clone())])?),
            Self::UpdateConfig(config) => Ok(state.apply_configs(&[ConfigChange::Update(config.clone())])?),
            Self::Delete(Resource::Configs, name, version) => {
                let delete = ConfigChange::Delete { name: name.clone(), resource_version: version.clone() };
                Ok(state.apply_configs(&[delete])?)
            }
            Self::CreateGroup(group) => Ok(still(state, state.add_store(group.config())?.0)),
            Self::UpdateGroup(group) => update_group(state, group),
            Self::Delete(Resource::Groups, name, _) => {
                Ok(still(state, state.remove_store(&StoreName(name.clone()))?))
            }
        }
    }

    fn version(&self) -> Option<&str> {
        match self {
            Self::CreateConfig(config) | Self::UpdateConfig(config) => {
                config.metadata.resource_version.as_deref()
            }
            Self::CreateGroup(group) | Self::UpdateGroup(group) => group.metadata.resource_version.as_deref(),
            Self::Delete(_, _, version) => version.as_deref(),
        }
    }
}

/// A change of the state that moves no keys.
fn still(state: &ClusterState, next: ClusterState) -> Change {
    Change { state: next, desired: state.map.clone(), transfers: Vec::new() }
}

/// The group with the addresses of the members in their present roles. A file from before a failover has them in others,
/// and which member serves is the record's to say (R19).
fn in_their_roles(group: &ServiceGroup, object: &StoreObject) -> ServiceGroup {
    let all = |endpoints: &[String], standby: Option<&StandbyConfig>| {
        let standbys = standby.iter().flat_map(|standby| &standby.endpoints);
        endpoints.iter().chain(standbys).cloned().collect::<BTreeSet<_>>()
    };
    let mut group = group.clone();
    let same =
        all(&group.endpoints, group.standby.as_ref()) == all(&object.endpoints, object.standby.as_ref());
    if let (true, true, Some(standby), Some(known)) =
        (same, object.members.is_some(), &mut group.standby, &object.standby)
    {
        group.endpoints.clone_from(&object.endpoints);
        standby.endpoints.clone_from(&known.endpoints);
    }
    group
}

/// The change that makes a store what `group` says.
///
/// # Errors
/// When it changes a field that never changes, or is otherwise invalid.
pub fn update_group(state: &ClusterState, group: &ServiceGroup) -> Result<Change, ApiError> {
    let name = group.name();
    let Some((_, object)) = state.store(&name) else {
        return Err(ApiError::NotFound(format!("servicegroups {:?} not found", name.0)));
    };
    let fixed =
        |field: &str| ApiError::BadRequest(format!("servicegroups {:?}: {field} never changes", name.0));
    if group.store_type != object.store_type {
        return Err(fixed("type"));
    }
    if group.slot.is_some() && group.slot != object.slot.map(u32::from) {
        return Err(fixed("slot"));
    }
    let mut next = state.clone();
    let group = &in_their_roles(group, object);
    if group.endpoints != object.endpoints {
        next = next.readdress_store(&name, group.endpoints.clone())?;
    }
    if group.standby != object.standby {
        next = next.set_standby(&name, group.standby.clone())?;
    }
    match group.adopting {
        Some(false) if object.adopting => next = next.finish_adoption(&name)?,
        Some(true) if !object.adopting => {
            let message = "a store that kindred has to itself is not adopted again; leave the field out";
            return Err(ApiError::BadRequest(format!("servicegroups {:?}: adopting: {message}", name.0)));
        }
        _ => {}
    }
    match group.state.unwrap_or(object.state) {
        wanted if wanted == object.state => Ok(still(state, next)),
        StoreState::Active => Ok(still(state, next.activate_store(&name)?)),
        StoreState::Draining => Ok(next.drain_store(&name, None)?),
        StoreState::Removed => Err(ApiError::BadRequest("state: delete the object to remove it".to_owned())),
    }
}
