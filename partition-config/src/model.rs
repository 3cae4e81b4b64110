//! The configuration as people write it in JSON or YAML: Arktos' `DataPartitionConfig` and the file that contains
//! it.
//!
//! These types check only syntax. [`crate::validate`] checks the meaning and reports all errors at once.

use std::{collections::BTreeMap, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{history::HistoryMax, ids::StoreName, kind::DEFAULT_ETCD_PREFIX};

/// A whole configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KindredConfig {
    /// kube-apiserver's `--etcd-prefix`; `/registry` by default.
    #[serde(default = "default_etcd_prefix")]
    pub etcd_prefix: String,
    /// All stores. Partitions refer to them by name; the map refers to them by index in this list.
    pub stores: Vec<StoreConfig>,
    /// The store that serves every key outside all partitions.
    pub default: StoreName,
    /// Kinds, or name ranges of a Kind, and the stores that serve them.
    #[serde(default)]
    pub partitions: Vec<DataPartitionConfig>,
    /// Flags of the processes that `kindred up` starts. No other command reads them.
    #[serde(default, skip_serializing_if = "UpConfig::is_empty")]
    pub up: UpConfig,
}

/// Flags of a process, keyed by their names without dashes.
pub type Flags = BTreeMap<String, serde_json::Value>;

/// Flags of the processes that `kindred up` starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct UpConfig {
    /// Flags of every shard.
    pub shard: Flags,
    /// Flags of single shards, keyed by store name. They override `shard`.
    pub stores: BTreeMap<String, Flags>,
    /// Flags of the meta store.
    pub meta: Flags,
    /// Flags of every router.
    pub router: Flags,
}

impl UpConfig {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn default_etcd_prefix() -> String {
    DEFAULT_ETCD_PREFIX.to_owned()
}

/// One store: a shard or a stock etcd cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoreConfig {
    /// The store's unique name.
    pub name: StoreName,
    /// A shard's slot: 1 to 1023, unique, the low bits of every revision that it assigns (R1). A stock etcd's
    /// is only in records of leases (R12), and is given if it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// Where the store listens: one address for a shard, which may be a Unix socket, one or more client URLs for a stock
    /// etcd. May be empty if the part of kindred that starts the store already knows the address.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<String>,
    /// `shard` by default.
    #[serde(default, rename = "type")]
    pub store_type: StoreType,
    /// The standbys of a shard. Absent, the shard is the only copy of its Kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<StandbyConfig>,
    /// Whether others still use a stock etcd directly. Nothing moves away from it until `kindred adopt finish`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopting: bool,
}

/// The standbys of a shard (R18 to R20). Each is a shard that was started with `--standby-of`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StandbyConfig {
    /// Where the standbys listen: one address for each of one or two.
    pub endpoints: Vec<String>,
    /// `sync` by default.
    #[serde(default)]
    pub mode: StandbyMode,
    /// `alone` by default.
    #[serde(default)]
    pub on_loss: OnLoss,
}

/// Whether a primary waits for its standbys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StandbyMode {
    /// Nothing is acknowledged or shown before every standby has it. Routers promote one when the primary dies.
    #[default]
    Sync,
    /// The primary waits for nobody. A standby is promoted only by force, and then lacks the last changes.
    Async,
}

/// What happens when a standby in mode `sync` does not answer while its primary does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnLoss {
    /// Routers take it out of the set, and the primary continues without it.
    #[default]
    Alone,
    /// The primary acknowledges nothing until the standby is back or is removed.
    Wait,
}

/// What serves the keys of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StoreType {
    /// A kindred shard.
    #[default]
    Shard,
    /// An etcd cluster.
    Etcd,
}

/// Assigns a Kind, or the names of a Kind from `range_start` to below `range_end`, to a store or a ring of stores.
///
/// The range covers what follows the Kind prefix (`namespace/name`, or `name`). The fields up to `service_group_id`
/// have the names and meanings of Arktos' object; `resource` and the fields after it are kindred's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DataPartitionConfig {
    /// As on any Kubernetes object; ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    /// As on any Kubernetes object; must be `DataPartitionConfig` if given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The name of the object, and the version that an update replaces.
    pub metadata: Metadata,
    /// The inclusive lower bound, if `is_range_start_valid`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub range_start: String,
    /// If false, the range has no lower bound.
    #[serde(default)]
    pub is_range_start_valid: bool,
    /// The exclusive upper bound, if `is_range_end_valid`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub range_end: String,
    /// If false, the range has no upper bound.
    #[serde(default)]
    pub is_range_end_valid: bool,
    /// The store that serves the range; mutually exclusive with `ring`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_group_id: Option<StoreName>,
    /// The Kind: `pods`, `leases.coordination.k8s.io`, `foos.example.com`, or the prefix of its keys.
    pub resource: String,
    /// Spreads the range over several stores by hash; mutually exclusive with `service_group_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring: Option<RingConfig>,
    /// The durability of acknowledged writes: `none`, `buffered` or `fsync` (see [`Durability`]). All configs of a
    /// Kind must agree. The shard's default applies if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<String>,
    /// What each router lets clients ask of the Kind. All configs of a Kind must agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsConfig>,
    /// The most history that each shard keeps of the Kind: an age such as `10m` (at least 10s), or a size such as `512Mi`. What
    /// is older is compacted for this Kind alone. Where configs of a Kind differ, the largest counts. A stock etcd has one
    /// history for everything and keeps what compactions leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history_max: Option<String>,
}

impl DataPartitionConfig {
    /// The bound of history that it sets; none where an existing document says something else.
    #[must_use]
    pub fn history(&self) -> Option<HistoryMax> {
        self.history_max.as_deref().and_then(|text| text.parse().ok())
    }
}

/// What each router lets clients ask of a Kind. What is beyond is refused before it is read, with etcd's "too many
/// requests". A second's worth may come at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LimitsConfig {
    /// Gets, lists and counts in a second, at least 1; no limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads_per_second: Option<u32>,
    /// Writes in a second, at least 1; no limit if absent. A lease of Kubernetes is a Kind as any other: its renewals count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes_per_second: Option<u32>,
    /// Gets, lists and counts of one client in a second, at least 1; no limit if absent. A client is the name in its
    /// certificate, or its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_reads_per_second: Option<u32>,
    /// Writes of one client in a second, at least 1; no limit if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_writes_per_second: Option<u32>,
}

/// The supported subset of Kubernetes' object metadata.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Metadata {
    /// Unique among all partitions.
    pub name: String,
    /// The version that an update must replace: an optimistic lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RingConfig {
    /// The stores that share the buckets.
    pub stores: Vec<StoreName>,
}

/// What a Kind's writes survive, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Writes survive only a clean stop of the process.
    None,
    /// A crash of the machine loses at most the writes of the last few milliseconds.
    Buffered,
    /// A crash loses no write that was acknowledged or visible.
    Fsync,
}

impl Durability {
    /// The mode's name in a configuration.
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
