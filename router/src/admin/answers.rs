//! The forms of the admin API's answers. `/openapi/v3` shows their schemas, and a test compares real answers with them.

use kindred_partition_config::ids::StoreName;
use kindred_partition_config::model::{DataPartitionConfig, Metadata, StandbyConfig, StoreType};
use kindred_partition_config::state::{Members, StoreState};
use kindred_transport::build::Build;
use schemars::JsonSchema;
use serde::Serialize;

mod moves;
mod traffic;

pub use moves::*;
pub use traffic::*;

/// The versions that run.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Versions {
    pub router: RouterVersion,
    pub stores: Vec<StoreVersion>,
}

/// What this router was built from. What is not known is `unknown`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RouterVersion {
    pub name: String,
    pub version: String,
    /// The commit of the source.
    pub commit: String,
    /// The compiler.
    pub rustc: String,
    /// The platform.
    pub target: String,
}

impl RouterVersion {
    pub fn new(name: &str) -> Self {
        let Build { version, commit, rustc, target } = Build::get();
        let [name, version, commit, rustc, target] =
            [name, version, commit, rustc, target].map(str::to_owned);
        Self { name, version, commit, rustc, target }
    }
}

/// What a store runs.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreVersion {
    pub name: String,
    #[serde(rename = "type")]
    pub store_type: StoreType,
    /// As the store said at its last handshake; null while it is not up.
    pub version: Option<String>,
    pub state: String,
}

/// The types of objects, in the form of Kubernetes' discovery.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "APIResourceList")]
pub struct ResourceList {
    pub kind: &'static str,
    pub api_version: &'static str,
    pub group_version: &'static str,
    pub resources: Vec<ResourceShown>,
}

/// A type of objects.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "APIResource")]
pub struct ResourceShown {
    /// The name in paths.
    pub name: &'static str,
    pub singular_name: &'static str,
    /// Always false.
    pub namespaced: bool,
    /// The name in objects.
    pub kind: &'static str,
    pub verbs: &'static [&'static str],
    pub short_names: &'static [&'static str],
}

/// The stores.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StoreList {
    pub stores: Vec<StoreShown>,
}

/// A store as this router sees it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Store")]
pub struct StoreShown {
    pub name: String,
    #[serde(rename = "type")]
    pub store_type: StoreType,
    pub slot: Option<u16>,
    pub endpoints: Vec<String>,
    /// Whether it serves the keys that no config holds.
    pub default: bool,
    pub state: StorePhase,
    /// Its UUID, once it is known.
    pub uuid: Option<String>,
    /// What is wrong with it although it serves.
    pub trouble: Option<String>,
    pub last_error: Option<String>,
    /// How far its clock is ahead of the cluster's.
    pub clock_offset_seconds: Option<f64>,
    /// Its members, the primary first, if it has standbys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<MemberShown>>,
    /// What its standbys lack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standby_trouble: Option<String>,
    /// While it is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// While it is up: the number of its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// While a shard is up: what it says to the durability that its Kinds are to have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<ToldModes>,
}

/// Whether requests go to a store.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum StorePhase {
    Up,
    Connecting,
    Down,
    /// Its clock is too far off.
    Skewed,
    /// Another store answers in its place.
    Foreign,
    /// It belongs to another cluster.
    Refused,
}

/// A member of a store, as it said at the last look.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "StoreMember")]
pub struct MemberShown {
    pub endpoint: String,
    pub role: String,
    /// Why it did not answer; then nothing else is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// Whether another member may have been promoted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_doubt: Option<bool>,
    /// Whether it has a whole copy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub whole: Option<bool>,
    /// Whether the primary waits for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connected: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batches_behind: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_millis: Option<u64>,
}

/// A shard's answer to the durability modes.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ToldModes {
    /// The generation of the modes in force.
    pub generation: u64,
    pub unmet: Vec<UnmetMode>,
    /// Why it could not be told.
    pub problem: Option<String>,
}

/// A Kind that a shard cannot keep as durably as it is to be.
#[derive(Debug, Serialize, JsonSchema)]
pub struct UnmetMode {
    /// The prefix of its keys; empty for all that no config names.
    pub kind: String,
    /// Its name; null for all that no config names.
    pub resource: Option<String>,
    pub wanted: String,
    pub has: String,
    pub reason: String,
}

/// The cluster's state that this router uses, and what is wrong with it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ClusterStatus {
    /// The name of this router.
    pub router: String,
    pub generation: u64,
    pub revision: u64,
    /// Null for a router without a meta store.
    pub meta: Option<MetaStatus>,
    pub problems: Vec<String>,
}

/// The meta store, as this router sees it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct MetaStatus {
    pub problem: Option<String>,
}

/// The map in use.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PartitionList {
    pub generation: u64,
    pub partitions: Vec<PartitionShown>,
}

/// A range of keys with its stores. Bytes that are no text are escaped as `\xff`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Partition")]
pub struct PartitionShown {
    /// The first key.
    pub start: String,
    /// The first key behind the range; null if it is open.
    pub end: Option<String>,
    /// The prefix of the Kind's keys; null for keys of no configured Kind.
    pub kind: Option<String>,
    /// The name of the Kind.
    pub resource: Option<String>,
    pub stores: Vec<String>,
    /// Whether the stores share the range by a hash.
    pub ring: bool,
    pub epoch: u64,
}

/// Changes at etcds that are being adopted which this router did not make.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Adoption {
    pub router: String,
    pub stores: Vec<AdoptedStore>,
}

/// An etcd that is being adopted.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdoptedStore {
    pub store: String,
    /// How long changes have been seen; null while they are not.
    pub watched_seconds: Option<f64>,
    /// Changes that are younger are not shown yet: this router may be about to hear that it made them.
    pub unsettled_seconds: f64,
    pub writes_of_others: Vec<WriteOfOthers>,
}

/// A change that this router did not make.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WriteOfOthers {
    pub revision: i64,
    pub key: String,
    pub seconds_ago: f64,
}

/// How durable each Kind is, and what a crash would lose at this moment.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DurabilityList {
    pub stores: Vec<StoreDurability>,
}

/// The durability at one shard.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StoreDurability {
    pub store: String,
    /// Why the shard does not say more; the other fields are then absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<KindDurability>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<Vec<LogShown>>,
    /// The last checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointShown>,
}

/// The durability of a Kind.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KindDurability {
    /// The prefix of its keys; empty for all Kinds that no config names.
    pub kind: String,
    /// Its name; null for all Kinds that no config names.
    pub resource: Option<String>,
    pub mode: String,
    pub keys: u64,
    /// What is not on disk yet, in mode `buffered`.
    pub not_durable_bytes: Option<u64>,
    pub not_durable_millis: Option<u64>,
}

/// A write-ahead log.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Log")]
pub struct LogShown {
    pub mode: String,
    pub wal_bytes: u64,
    /// Why it cannot be written.
    pub failing: Option<String>,
}

/// A checkpoint.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Checkpoint")]
pub struct CheckpointShown {
    /// In seconds since the Unix epoch.
    pub finished_at: u64,
    pub took_millis: u64,
    pub bytes: u64,
}

/// The outcome of a failover.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failover {
    pub kind: String,
    pub api_version: String,
    pub store: StoreName,
    /// The address of the new primary.
    pub primary: String,
    pub millis: u64,
}

/// The configs.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataPartitionConfigList {
    pub kind: String,
    pub api_version: String,
    pub metadata: ListMetadata,
    pub items: Vec<DataPartitionConfig>,
}

/// The stores as they are configured.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceGroupList {
    pub kind: String,
    pub api_version: String,
    pub metadata: ListMetadata,
    pub items: Vec<ServiceGroupShown>,
}

/// The version of a list.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ListMetadata {
    /// The version at which a watch goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

/// A store as it is configured.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "ServiceGroup")]
pub struct ServiceGroupShown {
    pub kind: String,
    pub api_version: String,
    pub metadata: Metadata,
    #[serde(rename = "type")]
    pub store_type: StoreType,
    pub slot: Option<u16>,
    pub endpoints: Vec<String>,
    pub uuid: Option<String>,
    pub state: StoreState,
    /// Whether it serves the keys that no config holds.
    pub default: bool,
    /// Whether others still use a stock etcd directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adopting: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standby: Option<StandbyConfig>,
    /// The primary, and who may be promoted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<Members>,
}

/// The identity of the cluster, and how the key space lies on its stores.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterIdentity {
    pub cluster_id: String,
    pub etcd_prefix: String,
    pub client_urls: Vec<String>,
    pub ranges: Vec<SnapshotRangeShown>,
}

/// A range that is read at one revision. Keys are hexadecimal.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SnapshotRange")]
pub struct SnapshotRangeShown {
    pub start: String,
    pub end: Option<String>,
    pub revision: String,
    /// The stock etcd that has the range.
    pub etcd: Option<String>,
}

/// A snapshot of the whole key space, kept while it is renewed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Snapshot")]
pub struct SnapshotShown {
    pub kind: String,
    pub api_version: String,
    pub name: String,
    pub revision: String,
    pub ttl_seconds: u64,
    pub cluster_id: String,
    pub etcd_prefix: String,
    pub client_urls: Vec<String>,
    pub ranges: Vec<SnapshotRangeShown>,
    pub stores: Vec<StoreShown>,
    /// The cluster's state, for a restore.
    pub state: serde_json::Map<String, serde_json::Value>,
}

/// A snapshot that was renewed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotRenewal {
    pub kind: String,
    pub api_version: String,
    pub name: String,
    pub ttl_seconds: u64,
    /// Stores that were not told.
    pub problems: Vec<String>,
}

/// An event of a watch: one on each line.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchEvent {
    /// `ADDED`, `MODIFIED` or `DELETED`.
    #[serde(rename = "type")]
    pub event: String,
    pub object: serde_json::Map<String, serde_json::Value>,
}

/// Objects as rows, for `Accept: application/json;as=Table;v=v1;g=meta.k8s.io`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Table {
    pub kind: String,
    pub api_version: String,
    pub metadata: ListMetadata,
    pub column_definitions: Vec<Column>,
    pub rows: Vec<Row>,
}

/// A column of a table.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Column {
    pub name: String,
    #[serde(rename = "type")]
    pub of: String,
    pub format: String,
    pub description: String,
    pub priority: i64,
}

/// A row of a table.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Row {
    pub cells: Vec<serde_json::Value>,
    pub object: serde_json::Map<String, serde_json::Value>,
}

/// That a request was carried out, or why not, as Kubernetes says it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub kind: String,
    pub api_version: String,
    pub metadata: ListMetadata,
    /// `Success` or `Failure`.
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<StatusDetails>,
}

/// The fields that are wrong.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StatusDetails {
    pub causes: Vec<StatusCause>,
}

/// A field that is wrong.
#[derive(Debug, Serialize, JsonSchema)]
pub struct StatusCause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

/// etcd's answer to `/health`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Health {
    /// `true` or `false`, as text.
    pub health: String,
    pub reason: String,
}

/// etcd's answer to `/version`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EtcdVersion {
    pub etcdserver: String,
    pub etcdcluster: String,
    pub storage: String,
}
