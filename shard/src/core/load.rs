//! The sizes and rates that planning a move needs (`Shard.Load`).

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use kindred_engine::engine::KindLoad;
use kindred_partition_config::key::{Key, KeyRange};
use kindred_proto::{etcdserverpb::AlarmType, shard_v1 as pb};
use kindred_wal::LogKind;
use tokio::time::Instant;

use super::Core;
use crate::durability::status::{LogStatus, on_wire};

/// Looks that are kept, about one per second: rates are averages over this many seconds.
const LOOKS: usize = 10;
/// The shortest time over which a rate is computed.
const SHORTEST: Duration = Duration::from_secs(1);

/// The bytes written to each Kind, as of the last looks.
#[derive(Debug)]
pub(super) struct Written {
    /// Oldest first; never empty.
    looks: VecDeque<(Instant, BTreeMap<Key, u64>)>,
}

impl Written {
    pub(super) fn new(now: Instant) -> Self {
        Self { looks: [(now, BTreeMap::new())].into() }
    }

    /// Notes the bytes written since the start, per Kind.
    fn look(&mut self, now: Instant, totals: BTreeMap<Key, u64>) {
        if self.looks.len() == LOOKS {
            self.looks.pop_front();
        }
        self.looks.push_back((now, totals));
    }

    /// The bytes per second written to a Kind, given its total since the start.
    fn per_second(&self, prefix: &Key, total: u64, now: Instant) -> u64 {
        let Some((since, totals)) = self.looks.front() else { return 0 };
        // The totals start at zero again when the engine begins anew.
        let bytes = total.saturating_sub(totals.get(prefix).copied().unwrap_or_default());
        let millis = now.duration_since(*since).max(SHORTEST).as_millis();
        u64::try_from(u128::from(bytes) * 1000 / millis).unwrap_or(u64::MAX)
    }
}

impl Core {
    /// Notes the written bytes for [`Core::load`]. Called about once a second.
    pub(crate) fn note_written(&mut self, now: Instant) {
        let totals = self.engine.written().map(|(prefix, bytes)| (prefix.clone(), bytes)).collect();
        self.written.look(now, totals);
    }

    /// The bytes of all versions above which no write is taken; 0 for no limit.
    #[must_use]
    pub fn quota_bytes(&self) -> u64 {
        self.quota_bytes
    }

    /// Answers `Shard.Load`.
    #[must_use]
    pub fn load(&self, ranges: &[KeyRange]) -> pb::LoadResponse {
        let now = self.clock.now();
        let mut kinds = self.engine.loads(ranges);
        let of_ranges = |kind: &Key| {
            let whole = KeyRange::Span { start: kind.clone(), end: kind.prefix_end() };
            ranges.iter().any(|range| range.overlaps(&whole))
        };
        for kind in self.quotas.keys().filter(|kind| of_ranges(kind)) {
            if kinds.iter().all(|load| load.prefix != *kind) {
                kinds.push(nothing_of(kind));
            }
        }
        let modes = self.engine.modes();
        let kinds = kinds.into_iter().map(|load| pb::KindLoad {
            quota_bytes: self.quotas.get(&load.prefix).copied().unwrap_or_default(),
            written_per_second: self.written.per_second(&load.prefix, load.written_bytes, now),
            keys: load.keys,
            live_bytes: load.live_bytes,
            bytes: load.bytes,
            held_bytes: load.held_bytes,
            written_bytes: load.written_bytes,
            mode: on_wire(modes.of(&load.prefix)).into(),
            prefix: load.prefix.0,
        });
        let logs = self.durability.iter().flat_map(|status| &status.logs);
        let fsync = logs.filter(|log| log.mode == LogKind::Fsync.name()).find_map(|log| log.sync_p99_micros);
        pb::LoadResponse {
            kinds: kinds.collect(),
            held_bytes: self.engine.stats().total_bytes,
            quota_bytes: self.quota_bytes,
            full: !self.alarms(AlarmType::Nospace as i32).is_empty(),
            fsync_p99_micros: fsync.unwrap_or_default(),
            logs: self.durability.iter().flat_map(|status| &status.logs).map(log_of).collect(),
            // The process is not this core's.
            cpu_micros: 0,
            checkpoint: self.durability.as_ref().and_then(|status| status.checkpoint.as_ref()).map(|last| {
                pb::CheckpointLoad {
                    finished_at: last.finished_at,
                    took_millis: last.took_ms,
                    bytes: last.bytes,
                }
            }),
        }
    }
}

fn log_of(log: &LogStatus) -> pb::LogLoad {
    let mode =
        if log.mode == LogKind::Fsync.name() { pb::Durability::Fsync } else { pb::Durability::Buffered };
    pb::LogLoad {
        mode: mode.into(),
        not_durable_bytes: log.not_durable_bytes,
        not_durable_millis: log.not_durable_ms,
        wal_bytes: log.wal_bytes,
        failing: log.failing.clone().unwrap_or_default(),
    }
}

/// The load of a Kind without keys.
fn nothing_of(kind: &Key) -> KindLoad {
    KindLoad { prefix: kind.clone(), keys: 0, live_bytes: 0, bytes: 0, held_bytes: 0, written_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_of_the_last_ten_seconds() {
        let (began, pods) = (Instant::now(), Key::from("/registry/pods/"));
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let mut written = Written::new(began);
        assert_eq!(written.per_second(&pods, 500, at(0)), 500, "what came at once is of one second");
        assert_eq!(written.per_second(&pods, 500, at(5)), 100);
        for second in 1..=30 {
            // A thousand in each of the first twenty, then nothing.
            written.look(at(second), [(pods.clone(), 1000 * second.min(20))].into());
        }
        assert_eq!(written.looks.len(), LOOKS);
        assert_eq!(written.per_second(&pods, 20_000, at(30)), 0);
        assert_eq!(written.per_second(&pods, 20_900, at(30)), 100);
        let leases = Key::from("/registry/leases/");
        assert_eq!(written.per_second(&leases, 900, at(30)), 100, "a Kind that came since");
        assert_eq!(written.per_second(&pods, 90, at(30)), 0, "a shard that began anew");
    }
}
