//! All metrics of a shard, defined in one place with name, unit, help and kind. Where etcd has a metric, its name is
//! used.

use std::{
    sync::{
        LazyLock, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kindred_engine::{
    engine::EngineStats,
    units::{UnitRecord, UnitState},
};
use kindred_transport::{
    admin::ETCD_VERSION,
    listener::GivenUp,
    logging,
    metrics::{calls, exposition},
};
use kindred_wal::LogKind;
use metrics::{Counter, Gauge, Histogram, SharedString, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;

use crate::durability::status::DurabilityStatus;

pub mod kinds;

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Debug)]
pub struct Metric {
    /// The name on `/metrics`.
    pub name: &'static str,
    pub kind: Kind,
    pub unit: Unit,
    pub help: &'static str,
}

macro_rules! metrics {
    ($($constant:ident = $kind:ident $unit:ident $name:literal, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Metric =
                Metric { name: $name, kind: Kind::$kind, unit: Unit::$unit, help: $help };
        )*
        /// All metrics.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    DB_BYTES = Gauge Bytes "etcd_mvcc_db_total_size_in_bytes", "Bytes of all versions held.";
    DB_LIVE_BYTES = Gauge Bytes "etcd_mvcc_db_total_size_in_use_in_bytes", "Bytes of the versions current now.";
    KEYS = Gauge Count "etcd_debugging_mvcc_keys_total", "Live keys.";
    WATCHERS = Gauge Count "etcd_debugging_mvcc_watcher_total", "Open watches.";
    WATCH_STREAMS = Gauge Count "etcd_debugging_mvcc_watch_stream_total", "Open watch streams.";
    IS_LEADER = Gauge Count "etcd_server_is_leader", "1 while this process is the primary of its store.";
    QUOTA = Gauge Bytes "etcd_server_quota_backend_bytes", "Bytes of all versions above which no write is taken; 0 for no limit.";
    ETCD_VERSION_INFO = Gauge Count "etcd_server_version", "1, with the version of etcd whose API this is.";
    BUILD_INFO = Gauge Count "kindred_build_info", "1, with the version of this program.";
    HAS_LEADER = Gauge Count "etcd_server_has_leader", "1 while this process serves.";
    APPLIED = Gauge Count "etcd_server_proposals_applied_total", "Writes executed.";
    EVENTS = Gauge Count "kindred_shard_events", "Events held as history.";
    LEASES = Gauge Count "kindred_shard_leases", "Leases.";
    LONG_READS = Gauge Count "kindred_shard_long_reads", "Reads that hold a pin.";
    BATCH_REQUESTS = Histogram Count "kindred_shard_batch_requests", "Requests applied in one batch.";
    BATCH_SECONDS = Histogram Seconds "kindred_shard_batch_seconds", "Time in which a batch was applied.";
    TURN_SECONDS_MAX = Gauge Seconds "kindred_shard_turn_max_seconds", "Longest turn of the apply loop, its slices of long work included, since this was last asked for.";
    UNITS = Gauge Count "kindred_shard_units", "Units that this shard has a record of, by state.";
    UNIT_KEYS_COPIED = Counter Count "kindred_shard_unit_keys_copied_total", "Keys given to copies of units.";
    UNIT_KEYS_IMPORTED = Counter Count "kindred_shard_unit_keys_imported_total", "Keys imported from copies of units.";
    UNIT_EVENTS_IMPORTED = Counter Count "kindred_shard_unit_events_imported_total", "Events imported that followed a copy.";
    NOT_OWNED = Counter Count "kindred_shard_not_owned_total", "Calls refused because the keys are another store's, or are moving.";
    WAL_FSYNC = Histogram Seconds "etcd_disk_wal_fsync_duration_seconds", "Time in which a log was written and synced, by log.";
    WAL_BYTES_WRITTEN = Counter Bytes "kindred_shard_wal_written_bytes_total", "Bytes written, by log.";
    WAL_BYTES = Gauge Bytes "kindred_shard_wal_bytes", "Bytes of the segments, by log.";
    WAL_PENDING_BYTES = Gauge Bytes "kindred_shard_wal_pending_bytes", "Bytes that are not on disk yet, by log.";
    WAL_PENDING_SECONDS = Gauge Seconds "kindred_shard_wal_pending_seconds", "For how long the oldest of them has waited, by log.";
    WAL_FAILING = Gauge Count "kindred_shard_wal_failing", "1 while the disk refuses, by log.";
    CHECKPOINT_SECONDS = Histogram Seconds "kindred_shard_checkpoint_seconds", "Time in which a checkpoint was written.";
    CHECKPOINT_BYTES = Gauge Bytes "kindred_shard_checkpoint_bytes", "Size of the last checkpoint.";
    STANDBY_SHIPPED = Counter Bytes "kindred_shard_standby_shipped_bytes_total", "Bytes of records and copies handed to the connections of standbys.";
    CONNECTIONS_CLOSED = Counter Count "kindred_connections_closed_total", "Connections of clients that were given up, by why: their TLS handshake failed, they were late, they gave way to others at the door, or they were idle.";
    LOG_DROPPED = Counter Count "kindred_log_lines_dropped_total", "Lines of the log that were dropped, because standard error was not read as fast as they came.";
}

/// All metrics of a shard, those of its process left out.
#[must_use]
pub fn all() -> Vec<exposition::Metric> {
    let own = ALL.iter().map(|metric| {
        let kind = match metric.kind {
            Kind::Counter => exposition::Kind::Counter,
            Kind::Gauge => exposition::Kind::Gauge,
            Kind::Histogram => exposition::Kind::Histogram,
        };
        exposition::Metric { name: metric.name, kind, help: metric.help }
    });
    own.chain(calls::METRICS).chain(kinds::METRICS).collect()
}

/// Which of the stores of this process a gauge is of.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Label(Option<SharedString>);

impl Label {
    /// Of a store that is not alone in its process. Its gauges have the label `store`; counters and histograms are of all
    /// stores of the process.
    #[must_use]
    pub fn of(store: &str) -> Self {
        Self(Some(SharedString::from(store.to_owned())))
    }

    fn gauge(&self, metric: &Metric) -> Gauge {
        match &self.0 {
            None => metrics::gauge!(metric.name),
            Some(store) => metrics::gauge!(metric.name, "store" => store.clone()),
        }
    }

    fn gauge_with(&self, metric: &Metric, label: &'static str, value: impl Into<SharedString>) -> Gauge {
        match &self.0 {
            None => metrics::gauge!(metric.name, label => value.into()),
            Some(store) => metrics::gauge!(metric.name, label => value.into(), "store" => store.clone()),
        }
    }

    /// 1 while the store is served, 0 when it stops.
    pub fn note_leader(&self, has: bool) {
        self.gauge(&HAS_LEADER).set(f64::from(u8::from(has)));
    }
}

/// How the metrics of a shard are recorded.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    /// `None` if the process has a recorder of others.
    pub recorder: Option<PrometheusHandle>,
    /// Whether the shard keeps the recorder's histograms short.
    pub has_upkeep: bool,
    pub label: Label,
}

impl Recorded {
    /// In a process of its own.
    #[must_use]
    pub fn alone() -> Self {
        Self { recorder: recorder().cloned(), has_upkeep: true, label: Label::default() }
    }
}

fn histogram(metric: &Metric) -> Histogram {
    metrics::histogram!(metric.name)
}

/// Installs the recorder, once per process; `None` if the process has another one.
pub fn recorder() -> Option<&'static PrometheusHandle> {
    static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    RECORDER.get_or_init(install).as_ref()
}

/// The buckets of the histograms.
#[must_use]
pub fn buckets() -> Vec<(&'static str, Vec<f64>)> {
    let requests = vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];
    let seconds = vec![5e-6, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 0.1];
    // etcd's own: 1 ms, doubled 13 times.
    let fsync: Vec<f64> = (0..14).map(|power| 0.001 * f64::from(1_u32 << power)).collect();
    let long = vec![0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0];
    vec![
        (BATCH_REQUESTS.name, requests),
        (BATCH_SECONDS.name, seconds),
        (WAL_FSYNC.name, fsync),
        (CHECKPOINT_SECONDS.name, long),
    ]
}

/// Tells the process's recorder what the metrics are.
pub fn describe() {
    for Metric { name, kind, unit, help } in ALL {
        match kind {
            Kind::Counter => metrics::describe_counter!(*name, *unit, *help),
            Kind::Gauge => metrics::describe_gauge!(*name, *unit, *help),
            Kind::Histogram => metrics::describe_histogram!(*name, *unit, *help),
        }
    }
}

fn install() -> Option<PrometheusHandle> {
    let recorder = buckets().into_iter().try_fold(PrometheusBuilder::new(), |builder, (name, buckets)| {
        builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), &buckets)
    });
    let recorder = recorder.unwrap_or_default().build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).ok()?;
    describe();
    Some(handle)
}

/// The longest turn of the loop since the last [`render`], in nanoseconds.
static TURN_NANOS_MAX: AtomicU64 = AtomicU64::new(0);

/// The metrics as text.
#[must_use]
pub fn render(recorder: &PrometheusHandle, label: &Label, is_leader: bool) -> String {
    static PROCESS: LazyLock<Collector> = LazyLock::new(Collector::default);
    PROCESS.collect();
    label.gauge(&IS_LEADER).set(f64::from(u8::from(is_leader)));
    metrics::gauge!(ETCD_VERSION_INFO.name, "server_version" => ETCD_VERSION).set(1.0);
    metrics::gauge!(BUILD_INFO.name, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    label.gauge(&TURN_SECONDS_MAX).set(TURN_NANOS_MAX.swap(0, Ordering::Relaxed) as f64 / 1e9);
    for why in GivenUp::ALL {
        metrics::counter!(CONNECTIONS_CLOSED.name, "why" => why.label()).absolute(why.count());
    }
    metrics::counter!(LOG_DROPPED.name).absolute(logging::dropped_lines());
    let mut text = recorder.render();
    calls::render(&mut text);
    kinds::render(&mut text, label);
    text
}

/// The metrics of the apply loop.
pub struct LoopMetrics {
    sizes: [Gauge; 10],
    units: [Gauge; UNIT_STATES.len()],
    batch_requests: Histogram,
    batch_seconds: Histogram,
}

/// The states of a unit's record, as labels.
const UNIT_STATES: [&str; 6] = ["tracked", "frozen", "following", "owned", "dropping", "gone"];

/// A state's index in [`UNIT_STATES`].
fn state_index(state: UnitState) -> usize {
    match state {
        UnitState::Tracked { .. } => 0,
        UnitState::Frozen { .. } => 1,
        UnitState::Following { .. } => 2,
        UnitState::Owned => 3,
        UnitState::Dropping => 4,
        UnitState::Gone => 5,
    }
}

impl LoopMetrics {
    /// Creates the handles; the recorder must be there before.
    #[must_use]
    pub fn new(label: &Label) -> Self {
        Self {
            sizes: [
                &DB_BYTES,
                &DB_LIVE_BYTES,
                &KEYS,
                &WATCHERS,
                &EVENTS,
                &LEASES,
                &APPLIED,
                &LONG_READS,
                &WATCH_STREAMS,
                &QUOTA,
            ]
            .map(|metric| label.gauge(metric)),
            units: UNIT_STATES.map(|state| label.gauge_with(&UNITS, "state", state)),
            batch_requests: histogram(&BATCH_REQUESTS),
            batch_seconds: histogram(&BATCH_SECONDS),
        }
    }

    /// Records an applied batch.
    pub fn batch(&self, requests: usize, took: Duration) {
        self.batch_requests.record(requests as f64);
        self.batch_seconds.record(took.as_secs_f64());
    }

    /// Records a turn of the loop.
    pub fn turn(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if nanos > TURN_NANOS_MAX.load(Ordering::Relaxed) {
            TURN_NANOS_MAX.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// Sets the number of unit records in each state.
    pub fn units(&self, records: &[UnitRecord]) {
        let mut counts = [0_u32; UNIT_STATES.len()];
        for record in records {
            counts[state_index(record.state)] += 1;
        }
        for (gauge, count) in self.units.iter().zip(counts) {
            gauge.set(f64::from(count));
        }
    }

    /// Sets the sizes, in the order of [`Self::new`].
    pub fn sizes(&self, stats: &EngineStats, applied: u64, long_reads: usize, streams: usize, quota: u64) {
        let numbers = [
            stats.total_bytes,
            stats.live_bytes,
            stats.keys,
            stats.watches,
            stats.events,
            stats.leases,
            applied,
            long_reads as u64,
            streams as u64,
            quota,
        ];
        for (gauge, number) in self.sizes.iter().zip(numbers) {
            gauge.set(number as f64);
        }
    }
}

/// The metrics of a log.
pub struct LogMetrics {
    fsync: Histogram,
    written: Counter,
    failing: Gauge,
}

impl LogMetrics {
    #[must_use]
    pub fn new(kind: LogKind, label: &Label) -> Self {
        let log = kind.name();
        Self {
            fsync: metrics::histogram!(WAL_FSYNC.name, "log" => log),
            written: metrics::counter!(WAL_BYTES_WRITTEN.name, "log" => log),
            failing: label.gauge_with(&WAL_FAILING, "log", log),
        }
    }

    /// Records a write and sync.
    pub fn synced(&self, bytes: u64, took: Duration) {
        self.fsync.record(took.as_secs_f64());
        self.written.increment(bytes);
    }

    /// Sets whether the disk refuses.
    pub fn failing(&self, failing: bool) {
        self.failing.set(f64::from(u8::from(failing)));
    }

    /// Sets the sizes of both logs and of what waits.
    pub fn report(status: &DurabilityStatus, label: &Label) {
        for log in &status.logs {
            let name = log.mode.clone();
            label.gauge_with(&WAL_BYTES, "log", name.clone()).set(log.wal_bytes as f64);
            label.gauge_with(&WAL_PENDING_BYTES, "log", name.clone()).set(log.not_durable_bytes as f64);
            label.gauge_with(&WAL_PENDING_SECONDS, "log", name).set(log.not_durable_ms as f64 / 1000.0);
        }
    }
}

/// Records a finished checkpoint.
pub fn checkpoint_done(took: Duration, bytes: u64, label: &Label) {
    histogram(&CHECKPOINT_SECONDS).record(took.as_secs_f64());
    label.gauge(&CHECKPOINT_BYTES).set(bytes as f64);
}

/// The metrics of service `Units`.
pub struct UnitMetrics {
    keys_copied: Counter,
    keys_imported: Counter,
    events_imported: Counter,
}

impl UnitMetrics {
    /// The metrics of the process; [`recorder`] must be called before.
    #[must_use]
    pub fn get() -> &'static Self {
        static METRICS: LazyLock<UnitMetrics> = LazyLock::new(|| UnitMetrics {
            keys_copied: metrics::counter!(UNIT_KEYS_COPIED.name),
            keys_imported: metrics::counter!(UNIT_KEYS_IMPORTED.name),
            events_imported: metrics::counter!(UNIT_EVENTS_IMPORTED.name),
        });
        &METRICS
    }

    pub fn copied(&self, keys: usize) {
        self.keys_copied.increment(keys as u64);
    }

    pub fn imported(&self, keys: usize, events: usize) {
        self.keys_imported.increment(keys as u64);
        self.events_imported.increment(events as u64);
    }
}

/// Counts a call that was refused because the shard does not own its keys.
pub fn not_owned() {
    static REFUSED: LazyLock<Counter> = LazyLock::new(|| metrics::counter!(NOT_OWNED.name));
    REFUSED.increment(1);
}

/// Counts what is sent to a standby.
pub fn shipped(bytes: usize) {
    static SHIPPED: LazyLock<Counter> = LazyLock::new(|| metrics::counter!(STANDBY_SHIPPED.name));
    SHIPPED.increment(bytes as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_described() {
        let names: std::collections::HashSet<_> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            assert!(metric.help.ends_with('.'), "{}", metric.name);
            assert!(metric.name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{}", metric.name);
            let counts = metric.name.ends_with("_total") && !metric.name.starts_with("etcd_");
            assert_eq!(metric.kind == Kind::Counter, counts, "{}", metric.name);
        }
    }
}
