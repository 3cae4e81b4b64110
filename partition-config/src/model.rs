//! The configuration as people write it, in JSON or YAML: `DataPartitionConfig` as in Arktos, and the file around it.
//!
//! Nothing here is checked beyond its type: [`crate::validate`] does that, and reports everything at once.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{ids::StoreName, kind::DEFAULT_ETCD_PREFIX};

/// The whole configuration: stores, and who serves what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KindredConfig {
    /// kube-apiserver's `--etcd-prefix`; `/registry` unless given.
    #[serde(default = "default_etcd_prefix")]
    pub etcd_prefix: String,
    /// Every store. Partitions name them by name; in the map a store is its place in this list.
    pub stores: Vec<StoreConfig>,
    /// The store of every key that no partition holds.
    pub default: StoreName,
    /// Kinds, or ranges of names of a Kind, and the stores that serve them.
    #[serde(default)]
    pub partitions: Vec<DataPartitionConfig>,
    /// Flags of the processes that `kindred up` starts; nobody else looks at them.
    #[serde(default, skip_serializing_if = "UpConfig::is_empty")]
    pub up: UpConfig,
}

/// Flags of a process by their names without dashes.
pub type Flags = BTreeMap<String, serde_json::Value>;

/// Flags of the processes that `kindred up` starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct UpConfig {
    /// Of every shard.
    pub shard: Flags,
    /// Of single shards, by their stores' names; they win over `shard`.
    pub stores: BTreeMap<String, Flags>,
    /// Of the meta store.
    pub meta: Flags,
    /// Of every router.
    pub router: Flags,
}

impl UpConfig {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn default_etcd_prefix() -> String {
    DEFAULT_ETCD_PREFIX.to_owned()
}

/// One store: a shard or a stock etcd cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoreConfig {
    /// Unique.
    pub name: StoreName,
    /// Of a shard: 1 to 1023, unique, the low bits of every revision that it assigns (R1). A stock etcd has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// Where it listens: one URL of a shard, one or more of a stock etcd. May be left out where another part of kindred
    /// starts the store and knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// What it is; a shard unless given.
    #[serde(default, rename = "type")]
    pub store_type: StoreType,
}

/// What serves a store's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreType {
    /// A kindred shard.
    #[default]
    Shard,
    /// Any etcd cluster.
    Etcd,
}

/// Who serves a Kind, or the names of a Kind from `range_start` to below `range_end`.
///
/// The range is over what follows the Kind prefix (`namespace/name`, or `name`). Fields have the names and meanings of
/// Arktos' object of this name, `resource` and what follows it are ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataPartitionConfig {
    /// As of any Kubernetes object; not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// As of any Kubernetes object: `DataPartitionConfig`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The object's own name.
    pub metadata: Metadata,
    /// Inclusive, when `is_range_start_valid`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub range_start: String,
    /// Without it, the range is open at its beginning.
    #[serde(default)]
    pub is_range_start_valid: bool,
    /// Exclusive, when `is_range_end_valid`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub range_end: String,
    /// Without it, the range is open at its end.
    #[serde(default)]
    pub is_range_end_valid: bool,
    /// The store that serves the range, unless a ring does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_group_id: Option<StoreName>,
    /// The Kind: `pods`, `leases.coordination.k8s.io`, `foos.example.com`, or the prefix of its keys.
    pub resource: String,
    /// Spread the range over several stores by hash, in place of `service_group_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring: Option<RingConfig>,
    /// How durable a write is when it is acknowledged: `none`, `buffered` or `fsync` (see [`Durability`]); one mode for a
    /// Kind. The shard's default unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<String>,
    /// In documents of earlier versions; nothing was ever done with it, and what is configured now is refused with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history_max: Option<String>,
}

/// What a `DataPartitionConfig` has of Kubernetes' object metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// Unique among all partitions.
    pub name: String,
    /// The version that an update replaces: an optimistic lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

/// A ring of stores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RingConfig {
    /// Over which stores the buckets are spread.
    pub stores: Vec<StoreName>,
}

/// How durable a write is when it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Never on disk.
    None,
    /// On disk some milliseconds later.
    Buffered,
    /// On disk before it is acknowledged.
    Fsync,
}

impl Durability {
    /// As people write it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Buffered => "buffered",
            Self::Fsync => "fsync",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::None, Self::Buffered, Self::Fsync];
        known.into_iter().find(|mode| mode.word() == text).ok_or_else(|| format!("{text:?} is no durability"))
    }
}
