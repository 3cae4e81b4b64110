//! Partition configs and stores in the form of the admin API: objects with `apiVersion`, `kind` and `metadata`.

use kindred_partition_config::ids::StoreName;
use kindred_partition_config::model::{DataPartitionConfig, StandbyConfig, StoreConfig, StoreType};
use kindred_partition_config::state::{ClusterState, Members, StoreObject, StoreState};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

/// A type of object, as named in paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    Configs,
    /// The stores.
    Groups,
}

/// An object with what a watch compares.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    pub name: String,
    /// The revision of the state at its last change.
    pub version: String,
    /// The object in JSON.
    pub value: Value,
}

impl Resource {
    /// The name in paths.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::Configs => "datapartitionconfigs",
            Self::Groups => "servicegroups",
        }
    }

    /// The name in objects.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Self::Configs => "DataPartitionConfig",
            Self::Groups => "ServiceGroup",
        }
    }

    /// All objects of this type, in the order of the state.
    #[must_use]
    pub fn all(self, state: &ClusterState) -> Vec<Object> {
        match self {
            Self::Configs => state.configs.iter().map(config).collect(),
            Self::Groups => {
                let there = state.stores.iter().filter(|store| store.state != StoreState::Removed);
                there.map(|store| group(store, store.name == state.default)).collect()
            }
        }
    }

    #[must_use]
    pub fn one(self, state: &ClusterState, name: &str) -> Option<Object> {
        self.all(state).into_iter().find(|object| object.name == name)
    }

    /// The list in the API's form.
    #[must_use]
    pub fn list(self, state: &ClusterState) -> Value {
        let items: Vec<Value> = self.all(state).into_iter().map(|object| object.value).collect();
        json!({
            "apiVersion": "v1", "kind": format!("{}List", self.kind()),
            "metadata": { "resourceVersion": state.revision.to_string() }, "items": items,
        })
    }

    /// The objects as a table for `kubectl`.
    #[must_use]
    pub fn table(self, state: &ClusterState, objects: &[Object]) -> Value {
        let columns: &[&str] = match self {
            Self::Configs => &["Name", "Resource", "Start", "End", "Stores", "Durability"],
            Self::Groups => &["Name", "Type", "Slot", "State", "Default", "Endpoints"],
        };
        let columns: Vec<Value> = columns
            .iter()
            .map(|name| json!({ "name": name, "type": "string", "format": "", "description": "", "priority": 0 }))
            .collect();
        let rows: Vec<Value> = objects
            .iter()
            .map(|object| {
                let meta = json!({ "metadata": object.value["metadata"] });
                json!({ "cells": self.cells(state, &object.value), "object": meta })
            })
            .collect();
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1",
            "metadata": { "resourceVersion": state.revision.to_string() },
            "columnDefinitions": columns, "rows": rows,
        })
    }

    fn cells(self, state: &ClusterState, object: &Value) -> Vec<Value> {
        let joined = |list: &Value| {
            let names = list.as_array().into_iter().flatten().filter_map(Value::as_str);
            Value::from(names.collect::<Vec<_>>().join(","))
        };
        let bound = |valid: &str, key: &str| match object[valid].as_bool() {
            Some(true) => object[key].clone(),
            _ => Value::from("<open>"),
        };
        let name = object["metadata"]["name"].clone();
        match self {
            Self::Configs => {
                let stores = match object.get("ring") {
                    Some(ring) => joined(&ring["stores"]),
                    None => object["serviceGroupId"].clone(),
                };
                let (start, end) =
                    (bound("isRangeStartValid", "rangeStart"), bound("isRangeEndValid", "rangeEnd"));
                let durability = object["durability"].as_str().unwrap_or("<default>");
                // A Kind has several names, and every table shows the same one.
                let scheme = state.scheme();
                let kind = object["resource"].as_str().and_then(|resource| scheme.resolve(resource).ok());
                let resource =
                    kind.map_or_else(|| object["resource"].clone(), |kind| scheme.name_of(&kind).into());
                vec![name, resource, start, end, stores, Value::from(durability)]
            }
            Self::Groups => vec![
                name,
                object["type"].clone(),
                Value::from(object["slot"].as_u64().map_or("<none>".to_owned(), |slot| slot.to_string())),
                object["state"].clone(),
                Value::from(object["default"].to_string()),
                joined(&object["endpoints"]),
            ],
        }
    }
}

fn config(config: &DataPartitionConfig) -> Object {
    // A struct of strings and flags always serialises.
    let mut value = serde_json::to_value(config).unwrap_or_default();
    value["apiVersion"] = json!("v1");
    value["kind"] = json!("DataPartitionConfig");
    Object {
        name: config.metadata.name.clone(),
        version: config.metadata.resource_version.clone().unwrap_or_default(),
        value,
    }
}

fn group(store: &StoreObject, default: bool) -> Object {
    let version = store.resource_version.to_string();
    let value = json!({
        "apiVersion": "v1", "kind": "ServiceGroup",
        "metadata": { "name": store.name, "resourceVersion": version },
        "type": store.store_type, "slot": store.slot, "endpoints": store.endpoints, "uuid": store.uuid,
        "state": store.state, "default": default,
    });
    let mut value = value;
    if store.adopting {
        value["adopting"] = json!(true);
    }
    if let Some(standby) = &store.standby {
        value["standby"] = json!(standby);
    }
    if let Some(members) = &store.members {
        value["members"] = json!(members);
    }
    Object { name: store.name.0.clone(), version, value }
}

/// A service group as clients write it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceGroup {
    /// Ignored.
    #[serde(default)]
    pub api_version: Option<String>,
    /// Ignored.
    #[serde(default)]
    pub kind: Option<String>,
    pub metadata: kindred_partition_config::model::Metadata,
    /// A shard if absent; never changes.
    #[serde(default, rename = "type")]
    pub store_type: StoreType,
    /// Allotted if absent; never changes.
    #[serde(default)]
    pub slot: Option<u32>,
    #[serde(default)]
    pub endpoints: Vec<String>,
    /// The standbys that it is to have.
    #[serde(default)]
    pub standby: Option<StandbyConfig>,
    /// Whether others still use a stock etcd directly; `false` ends that.
    #[serde(default)]
    pub adopting: Option<bool>,
    /// Ignored; present only in answers.
    #[serde(default)]
    pub members: Option<Members>,
    /// Ignored; present only in answers.
    #[serde(default)]
    pub uuid: Option<String>,
    /// `draining` moves all keys away, `active` lets configs name the store again.
    #[serde(default)]
    pub state: Option<StoreState>,
    /// Ignored; present only in answers.
    #[serde(default)]
    pub default: Option<bool>,
}

impl ServiceGroup {
    #[must_use]
    pub fn name(&self) -> StoreName {
        StoreName(self.metadata.name.clone())
    }

    /// The configuration of a new store.
    #[must_use]
    pub fn config(&self) -> StoreConfig {
        StoreConfig {
            name: self.name(),
            slot: self.slot,
            endpoints: self.endpoints.clone(),
            store_type: self.store_type,
            standby: self.standby.clone(),
            adopting: self.adopting.unwrap_or_default(),
        }
    }
}
