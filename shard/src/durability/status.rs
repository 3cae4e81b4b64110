//! The durability status on the admin port: each Kind's mode, and what a crash would lose now.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kindred_engine::durability::{Durability, KindModes};
use kindred_proto::shard_v1 as pb;
use kindred_wal::LogKind;
use serde::Serialize;

/// The state of a log.
#[derive(Debug, Clone, Default)]
pub struct LogReport {
    /// Bytes that are not on disk yet.
    pub pending_bytes: u64,
    /// How long the oldest of them has waited.
    pub pending_ms: u64,
    /// Bytes written since the start.
    pub written_bytes: u64,
    /// Bytes of its segments.
    pub wal_bytes: u64,
    /// The 99th percentile of the last times to write and sync a batch.
    pub sync_p99_micros: Option<u64>,
    /// Why it cannot be written, if so.
    pub failing: Option<String>,
}

/// The whole status, as JSON shows it.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DurabilityStatus {
    /// The mode of Kinds that `kinds` does not name.
    pub default: String,
    /// The generation of the modes.
    pub generation: u64,
    pub kinds: Vec<KindStatus>,
    pub logs: Vec<LogStatus>,
    /// The last checkpoint since the start.
    pub checkpoint: Option<CheckpointStatus>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KindStatus {
    pub prefix: String,
    pub mode: String,
}

/// A log, and what a crash would lose at most of the Kinds in its mode.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LogStatus {
    /// `fsync` or `buffered`.
    pub mode: String,
    /// Bytes that are not on disk. In mode `fsync` they are not acknowledged either.
    pub not_durable_bytes: u64,
    /// How long the oldest of them has waited.
    pub not_durable_ms: u64,
    /// Bytes of its segments.
    pub wal_bytes: u64,
    /// The 99th percentile of the last times to write and sync a batch; absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_p99_micros: Option<u64>,
    /// Why it cannot be written, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// The time of its end, in seconds since the Unix epoch.
    pub finished_at: u64,
    pub took_ms: u64,
    pub bytes: u64,
}

impl CheckpointStatus {
    /// A checkpoint that ends now.
    #[must_use]
    pub fn now(took: Duration, bytes: u64) -> Self {
        Self {
            finished_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            bytes,
        }
    }
}

impl DurabilityStatus {
    /// The status of a shard that keeps nothing.
    #[must_use]
    pub fn of_memory() -> Self {
        Self { default: Durability::None.to_string(), ..Self::default() }
    }

    #[must_use]
    pub fn new(
        modes: &KindModes,
        logs: [(LogKind, LogReport); 2],
        checkpoint: Option<CheckpointStatus>,
    ) -> Self {
        let kind = |(prefix, mode): (&kindred_partition_config::key::Key, &Durability)| KindStatus {
            prefix: prefix.to_string(),
            mode: mode.to_string(),
        };
        let log = |(kind, report): (LogKind, LogReport)| LogStatus {
            mode: kind.name().to_owned(),
            not_durable_bytes: report.pending_bytes,
            not_durable_ms: report.pending_ms,
            wal_bytes: report.wal_bytes,
            sync_p99_micros: report.sync_p99_micros,
            failing: report.failing,
        };
        Self {
            default: modes.default.to_string(),
            generation: modes.generation,
            kinds: modes.kinds.iter().map(kind).collect(),
            logs: logs.map(log).into(),
            checkpoint,
        }
    }
}

/// The mode in the internal API.
#[must_use]
pub fn on_wire(mode: Durability) -> pb::Durability {
    match mode {
        Durability::None => pb::Durability::None,
        Durability::Buffered => pb::Durability::Buffered,
        Durability::Fsync => pb::Durability::Fsync,
    }
}
