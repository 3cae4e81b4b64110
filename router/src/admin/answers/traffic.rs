//! The forms of what clients ask: Kinds with their sizes, clients, slow calls.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

/// The Kinds that have keys or traffic.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KindList {
    /// The name of this router. Traffic is what it has served itself.
    pub router: String,
    /// The time, in seconds since the Unix epoch.
    pub at: f64,
    /// What the rates were measured over.
    pub step_seconds: u64,
    /// The time that this router has used of all cores since its start.
    pub cpu_seconds: f64,
    pub kinds: Vec<KindShown>,
    pub stores: Vec<StoreHolds>,
}

/// A Kind. What a stock etcd holds of it is not known, and then null.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Kind")]
pub struct KindShown {
    pub kind: String,
    /// The prefix of its keys; null for all keys that belong to no Kind.
    pub prefix: Option<String>,
    /// The stores that serve it.
    pub stores: Vec<String>,
    pub keys: Option<u64>,
    /// Of keys and present values.
    pub bytes: Option<u64>,
    /// Of former values.
    pub history_bytes: Option<u64>,
    /// In bytes.
    pub written_per_second: Option<u64>,
    pub by_store: Vec<KindAtStore>,
    /// What clients have asked of it since this router's start.
    pub traffic: Option<KindAsked>,
    /// What they asked of it in the last whole step.
    pub rate: Option<AmountAsked>,
}

/// What a store holds of a Kind.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KindAtStore {
    pub store: String,
    pub keys: u64,
    pub bytes: u64,
    pub history_bytes: u64,
    /// What counts for the quota.
    pub held_bytes: u64,
    /// 0 for none of its own.
    pub quota_bytes: u64,
    pub written_per_second: u64,
    pub durability: String,
}

/// What clients asked of a Kind.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KindAsked {
    /// The watches that are open.
    pub watches: u64,
    /// The messages with events that they were sent.
    pub messages: u64,
    pub message_bytes: u64,
    pub verbs: BTreeMap<String, VerbAsked>,
}

/// The calls of one verb.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VerbAsked {
    pub ok: u64,
    /// Those that failed, by their gRPC codes.
    pub failed: BTreeMap<String, u64>,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    pub seconds: f64,
    /// A bound below which half of the calls were; null if it is not known.
    pub p50_seconds: Option<f64>,
    pub p99_seconds: Option<f64>,
}

/// What was asked in a step.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AmountAsked {
    pub calls: u64,
    pub failed: u64,
    pub bytes: u64,
    /// The time of all calls together.
    pub micros: u64,
    /// Messages with events to watches.
    pub messages: u64,
}

/// What a shard holds.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoreHolds {
    pub store: String,
    /// Why it does not say; then nothing else is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_bytes: Option<u64>,
    /// Whether its quota is used up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fsync_p99_micros: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_durable_bytes: Option<u64>,
    /// The time that its process has used of all cores since its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_seconds: Option<f64>,
}

/// The digest of a Kind at one revision, as kube-apiserver's consistency checker computes it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct KindDigest {
    pub kind: String,
    pub prefix: String,
    pub revision: i64,
    pub keys: u64,
    /// Hexadecimal.
    pub digest: String,
}

/// What each client has asked.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ClientList {
    pub clients: Vec<ClientShown>,
}

/// A client: the common name of its certificate, or its address.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Client")]
pub struct ClientShown {
    pub client: String,
    /// Those that are open.
    pub connections: u64,
    pub calls: u64,
    pub failed: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    pub seconds: f64,
}

/// The last calls that took long.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SlowCallList {
    pub calls: Vec<SlowCallShown>,
}

/// A call that took long.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "SlowCall")]
pub struct SlowCallShown {
    /// In seconds since the Unix epoch.
    pub at: f64,
    pub client: String,
    pub kind: String,
    pub verb: &'static str,
    pub key: String,
    pub code: &'static str,
    pub seconds: f64,
    pub sent_bytes: u64,
}
