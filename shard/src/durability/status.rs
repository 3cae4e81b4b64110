//! What the admin port shows of durability: for each Kind its mode and what a crash would lose of it now.

use std::time::{SystemTime, UNIX_EPOCH};

use kindred_engine::durability::{Durability, KindModes};
use kindred_wal::LogKind;
use serde::Serialize;

use super::checkpoint::Checkpoints;

/// How a log stands.
#[derive(Debug, Clone, Default)]
pub struct LogReport {
    /// Bytes that are not on disk yet.
    pub pending_bytes: u64,
    /// For how long the oldest of them has waited.
    pub pending_ms: u64,
    /// Bytes written since the start.
    pub written_bytes: u64,
    /// In which 99 of 100 of the last batches were written and synced.
    pub sync_p99_micros: Option<u64>,
    /// Why it cannot be written, if it cannot.
    pub failing: Option<String>,
}

/// Everything, as JSON shows it.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DurabilityStatus {
    /// The mode of Kinds that are not named.
    pub default: String,
    /// Which edition of the modes this is.
    pub generation: u64,
    /// The Kinds that are named.
    pub kinds: Vec<KindStatus>,
    /// Both logs.
    pub logs: Vec<LogStatus>,
    /// The last checkpoint since the start.
    pub checkpoint: Option<CheckpointStatus>,
}

/// A Kind.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KindStatus {
    /// Its prefix.
    pub prefix: String,
    /// Its mode.
    pub mode: String,
}

/// A log: what a crash would lose of the Kinds of its mode, at most.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LogStatus {
    /// `fsync` or `buffered`.
    pub mode: String,
    /// Bytes that are not on disk; of mode fsync they are not acknowledged either.
    pub not_durable_bytes: u64,
    /// For how long the oldest of them has waited.
    pub not_durable_ms: u64,
    /// Bytes of its segments.
    pub wal_bytes: u64,
    /// In which 99 of 100 of the last batches were written and synced; absent before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync_p99_micros: Option<u64>,
    /// Why it cannot be written, if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failing: Option<String>,
}

/// The last checkpoint.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// When, seconds since the Unix epoch.
    pub finished_at: u64,
    /// How long it took.
    pub took_ms: u64,
    /// Its size.
    pub bytes: u64,
}

impl DurabilityStatus {
    /// Of a shard that keeps nothing.
    #[must_use]
    pub fn of_memory() -> Self {
        Self { default: Durability::None.to_string(), ..Self::default() }
    }

    /// Puts it together.
    #[must_use]
    pub fn new(modes: &KindModes, logs: [(LogKind, LogReport); 2], checkpoints: &Checkpoints) -> Self {
        let kind = |(prefix, mode): (&kindred_partition_config::key::Key, &Durability)| KindStatus {
            prefix: prefix.to_string(),
            mode: mode.to_string(),
        };
        let log = |(kind, report): (LogKind, LogReport)| LogStatus {
            mode: kind.name().to_owned(),
            not_durable_bytes: report.pending_bytes,
            not_durable_ms: report.pending_ms,
            wal_bytes: checkpoints.log_bytes(kind),
            sync_p99_micros: report.sync_p99_micros,
            failing: report.failing,
        };
        let checkpoint = checkpoints.last().map(|last| CheckpointStatus {
            finished_at: seconds(last.at),
            took_ms: u64::try_from(last.took.as_millis()).unwrap_or(u64::MAX),
            bytes: last.bytes,
        });
        Self {
            default: modes.default.to_string(),
            generation: modes.generation,
            kinds: modes.kinds.iter().map(kind).collect(),
            logs: logs.map(log).into(),
            checkpoint,
        }
    }
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
