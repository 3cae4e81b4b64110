//! The router's metrics: each is defined once, and its handles are made once.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kindred_transport::admin::ETCD_VERSION;
use kindred_transport::listener::GivenUp;
use kindred_transport::logging;
use kindred_transport::metrics::calls;
use kindred_transport::metrics::exposition::{self, Metric};
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
};
use metrics::{gauge, histogram};
use metrics_process::Collector;

use crate::execute::Effect;
use crate::feeds::Feeds;
use crate::stores::state::Phase;
use crate::stores::{Store, Stores};
use crate::traffic;

struct Definition {
    name: &'static str,
    unit: Unit,
    help: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

const CONNECTIONS_CLOSED: &str = "kindred_connections_closed_total";
const LOG_DROPPED: &str = "kindred_log_lines_dropped_total";
const STORE_UP: &str = "kindred_router_store_up";
const STORE_STATE: &str = "kindred_router_store_state";
const STORE_CLOCK: &str = "kindred_router_store_clock_offset_seconds";
const OWN_CLOCK: &str = "kindred_router_clock_offset_seconds";
/// etcd's own name.
const WATCH_STREAMS: &str = "etcd_debugging_mvcc_watch_stream_total";
/// etcd's own name.
const WATCHERS: &str = "etcd_debugging_mvcc_watcher_total";
const WATCH_REOPENED: &str = "kindred_router_watch_reopened_total";
const WATCH_MOVED: &str = "kindred_router_watch_moved_total";
const HELD_SECONDS: &str = "kindred_router_held_seconds";
const FEEDS: &str = "kindred_router_feeds";
const FEED_BYTES: &str = "kindred_router_feed_ring_bytes";
const FEED_LAG: &str = "kindred_router_feed_lag_seconds";
const FEED_STREAMS: &str = "kindred_router_feed_streams_opened_total";
const FEED_BROKEN: &str = "kindred_router_feed_streams_broken_total";
const FEED_ADVANCES: &str = "kindred_router_feed_advances_total";
const FEED_CATCH_UPS: &str = "kindred_router_feed_catch_ups_total";
const STANDBYS: &str = "kindred_router_store_standbys";
const IN_SYNC: &str = "kindred_router_store_standbys_in_sync";
const STANDBY_TROUBLE: &str = "kindred_router_store_standby_trouble";
const FAILOVERS: &str = "kindred_router_failovers_total";
const UNSOUND: &str = "kindred_router_cluster_state_problems";
const BYPASSED: &str = "kindred_router_bypassed_writes_total";
const UNORDERED: &str = "kindred_router_unordered_answers_total";
const ELSEWHERE: &str = "kindred_router_owners_elsewhere";
/// etcd's own name.
const SERVER_VERSION: &str = "etcd_server_version";
const BUILD_INFO: &str = "kindred_build_info";
/// etcd's own name; here it is 1 while any store can be reached.
const HAS_LEADER: &str = "etcd_server_has_leader";

const DEFINITIONS: &[Definition] = &[
    Definition {
        name: STORE_UP,
        unit: Unit::Count,
        help: "1 while the store can be reached.",
        kind: Kind::Gauge,
    },
    Definition {
        name: STORE_STATE,
        unit: Unit::Count,
        help: "1 for the state that a store is in (up, connecting, down, refused, foreign, skewed), 0 for all others.",
        kind: Kind::Gauge,
    },
    Definition {
        name: STORE_CLOCK,
        unit: Unit::Seconds,
        help: "How far the store's clock is ahead of the median of all stores' and the router's; NaN when not known.",
        kind: Kind::Gauge,
    },
    Definition {
        name: STANDBYS,
        unit: Unit::Count,
        help: "Standbys that the store is to have.",
        kind: Kind::Gauge,
    },
    Definition {
        name: IN_SYNC,
        unit: Unit::Count,
        help: "Standbys that have everything that was shown, so that routers may promote them.",
        kind: Kind::Gauge,
    },
    Definition {
        name: STANDBY_TROUBLE,
        unit: Unit::Count,
        help: "1 while the store has fewer good standbys than it is to have, or one takes over; readyz says why.",
        kind: Kind::Gauge,
    },
    Definition {
        name: FAILOVERS,
        unit: Unit::Count,
        help: "Standbys of the store that this router told to serve.",
        kind: Kind::Counter,
    },
    Definition {
        name: BYPASSED,
        unit: Unit::Count,
        help: "Writes of others to a stock etcd, of keys that have moved away from it; they are lost.",
        kind: Kind::Counter,
    },
    Definition {
        name: UNORDERED,
        unit: Unit::Count,
        help: "Answers about a Kind on several stores that did not wait for this one, which was away or could not follow: another router may show less of it.",
        kind: Kind::Counter,
    },
    Definition {
        name: UNSOUND,
        unit: Unit::Count,
        help: "What is wrong with the cluster state in use, which readyz names; 0 unless somebody wrote it past the routers.",
        kind: Kind::Gauge,
    },
    Definition {
        name: ELSEWHERE,
        unit: Unit::Count,
        help: "Ranges of keys that stores own otherwise than the map in use says, which readyz names; see kindred reconcile.",
        kind: Kind::Gauge,
    },
    Definition {
        name: OWN_CLOCK,
        unit: Unit::Seconds,
        help: "How far the router's clock is ahead of the median of all stores' and its own; NaN when not known.",
        kind: Kind::Gauge,
    },
    Definition {
        name: WATCH_STREAMS,
        unit: Unit::Count,
        help: "Watch streams of clients.",
        kind: Kind::Gauge,
    },
    Definition { name: WATCHERS, unit: Unit::Count, help: "Watches of clients.", kind: Kind::Gauge },
    Definition {
        name: WATCH_REOPENED,
        unit: Unit::Count,
        help: "Upstream watch streams opened again after they broke.",
        kind: Kind::Counter,
    },
    Definition {
        name: WATCH_MOVED,
        unit: Unit::Count,
        help: "Watches that went on at another place because their keys moved.",
        kind: Kind::Counter,
    },
    Definition {
        name: HELD_SECONDS,
        unit: Unit::Seconds,
        help: "How long requests waited because their keys were moving, by reads and writes.",
        kind: Kind::Histogram,
    },
    Definition {
        name: FEEDS,
        unit: Unit::Count,
        help: "Merged streams of events that exist, by whether they are live or catch up.",
        kind: Kind::Gauge,
    },
    Definition {
        name: FEED_BYTES,
        unit: Unit::Bytes,
        help: "Recent events that feeds hold.",
        kind: Kind::Gauge,
    },
    Definition {
        name: FEED_LAG,
        unit: Unit::Seconds,
        help: "How long the store has held back events of others; 0 while it does not.",
        kind: Kind::Gauge,
    },
    Definition {
        name: FEED_STREAMS,
        unit: Unit::Count,
        help: "Upstream streams of feeds opened, the ones opened again included.",
        kind: Kind::Counter,
    },
    Definition {
        name: FEED_BROKEN,
        unit: Unit::Count,
        help: "Upstream streams of feeds that broke.",
        kind: Kind::Counter,
    },
    Definition {
        name: FEED_ADVANCES,
        unit: Unit::Count,
        help: "Watermarks asked of stores.",
        kind: Kind::Counter,
    },
    Definition {
        name: FEED_CATCH_UPS,
        unit: Unit::Count,
        help: "Feeds begun further back, for watches that the live one does not reach.",
        kind: Kind::Counter,
    },
    Definition {
        name: CONNECTIONS_CLOSED,
        unit: Unit::Count,
        help: "Connections of clients that were given up, by why: their TLS handshake failed, they were late, they gave way to others at the door, or they were idle.",
        kind: Kind::Counter,
    },
    Definition {
        name: LOG_DROPPED,
        unit: Unit::Count,
        help: "Lines of the log that were dropped, because standard error was not read as fast as they came.",
        kind: Kind::Counter,
    },
    Definition {
        name: SERVER_VERSION,
        unit: Unit::Count,
        help: "1, with the version of etcd whose API this is.",
        kind: Kind::Gauge,
    },
    Definition {
        name: BUILD_INFO,
        unit: Unit::Count,
        help: "1, with the version of this program.",
        kind: Kind::Gauge,
    },
    Definition {
        name: HAS_LEADER,
        unit: Unit::Count,
        help: "1 while any store can be reached.",
        kind: Kind::Gauge,
    },
];

/// All metrics of a router, those of its process left out.
#[must_use]
pub fn all() -> Vec<Metric> {
    let own = DEFINITIONS.iter().map(|definition| {
        let kind = match definition.kind {
            Kind::Counter => exposition::Kind::Counter,
            Kind::Gauge => exposition::Kind::Gauge,
            Kind::Histogram => exposition::Kind::Histogram,
        };
        Metric { name: definition.name, kind, help: definition.help }
    });
    own.chain(calls::METRICS).chain(traffic::metrics::METRICS).collect()
}

/// Registers units and help texts. Call it once, after the recorder is installed.
pub fn describe() {
    for definition in DEFINITIONS {
        let Definition { name, unit, help, kind } = definition;
        match kind {
            Kind::Counter => describe_counter!(*name, *unit, *help),
            Kind::Gauge => describe_gauge!(*name, *unit, *help),
            Kind::Histogram => describe_histogram!(*name, *unit, *help),
        }
    }
}

/// The buckets of the histograms, in seconds. At 3 s a kube-apiserver gives up its watch cache (R17).
pub const BUCKETS: &[(&str, &[f64])] =
    &[(HELD_SECONDS, &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 3.0, 5.0])];

/// How long requests waited because their keys were moving.
#[derive(Debug)]
pub struct Held {
    reads: Histogram,
    writes: Histogram,
}

impl Default for Held {
    fn default() -> Self {
        Self {
            reads: histogram!(HELD_SECONDS, "effect" => "read"),
            writes: histogram!(HELD_SECONDS, "effect" => "write"),
        }
    }
}

impl Held {
    pub fn record(&self, effect: Effect, waited: Duration) {
        let held = match effect {
            Effect::Read => &self.reads,
            Effect::Write => &self.writes,
        };
        held.record(waited.as_secs_f64());
    }
}

/// The handles for what feeds report when metrics are read.
#[derive(Debug)]
struct FeedMetrics {
    live: Gauge,
    catching_up: Gauge,
    bytes: Gauge,
    opened: Counter,
    broken: Counter,
    advances: Counter,
    catch_ups: Counter,
}

impl FeedMetrics {
    fn new() -> Self {
        Self {
            live: gauge!(FEEDS, "state" => "live"),
            catching_up: gauge!(FEEDS, "state" => "catching-up"),
            bytes: gauge!(FEED_BYTES),
            opened: counter!(FEED_STREAMS),
            broken: counter!(FEED_BROKEN),
            advances: counter!(FEED_ADVANCES),
            catch_ups: counter!(FEED_CATCH_UPS),
        }
    }

    fn observe(&self, stores: &Stores, feeds: &Feeds) {
        let held = feeds.held();
        self.live.set(held.live as f64);
        self.catching_up.set(held.catch_ups as f64);
        self.bytes.set(held.bytes as f64);
        // These handles are made anew each time: stores come and go, and this runs only when metrics are read.
        let lags = feeds.lags();
        for store in stores.iter() {
            let lag =
                lags.iter().find(|(index, ..)| *index == store.index).map_or(0.0, |l| l.2.as_secs_f64());
            gauge!(FEED_LAG, "store" => store.name().to_owned()).set(lag);
        }
        let counts = feeds.counts();
        for (shown, counted) in [
            (&self.opened, &counts.opened),
            (&self.broken, &counts.broken),
            (&self.advances, &counts.advances),
            (&self.catch_ups, &counts.catch_ups),
        ] {
            shown.absolute(counted.load(Ordering::Relaxed));
        }
    }
}

/// The handles of one store.
#[derive(Debug)]
struct StoreMetrics {
    up: Gauge,
    clock: Gauge,
}

impl StoreMetrics {
    fn new(name: &str) -> Self {
        Self {
            up: gauge!(STORE_UP, "store" => name.to_owned()),
            clock: gauge!(STORE_CLOCK, "store" => name.to_owned()),
        }
    }
}

/// What the last look at the members of a store has shown, and how it answers.
fn observe_shard(store: &Store) {
    let (members, shown) = (store.members(), store.members().shown());
    let set = |name: &'static str, value: f64| gauge!(name, "store" => store.name().to_owned()).set(value);
    set(STANDBYS, shown.wanted as f64);
    set(IN_SYNC, shown.in_sync as f64);
    set(STANDBY_TROUBLE, f64::from(u8::from(shown.trouble.is_some())));
    counter!(FAILOVERS, "store" => store.name().to_owned()).absolute(members.failovers());
    counter!(UNORDERED, "store" => store.name().to_owned()).absolute(store.stands().unordered());
}

/// Counts a write that bypassed the routers.
pub fn bypassed(store: &Store) {
    counter!(BYPASSED, "store" => store.name().to_owned()).increment(1);
}

/// An offset in seconds; NaN if unknown.
fn seconds(micros: Option<i64>) -> f64 {
    micros.map_or(f64::NAN, |micros| micros as f64 / 1e6)
}

/// The buckets of a histogram of this router.
#[must_use]
pub fn buckets(name: &str) -> Option<&'static [f64]> {
    let own = BUCKETS.iter().find(|(of, _)| *of == name).map(|(_, bounds)| *bounds);
    own.or_else(|| traffic::metrics::buckets(name))
}

/// The handles of watches.
#[derive(Debug)]
pub struct WatchMetrics {
    /// Open watch streams of clients.
    pub streams: Gauge,
    /// Open watches of clients.
    pub watchers: Gauge,
    /// Upstream watch streams that were opened again.
    pub reopened: Counter,
    /// Watches that were placed elsewhere because of a move.
    pub moved: Counter,
}

impl Default for WatchMetrics {
    fn default() -> Self {
        Self {
            streams: gauge!(WATCH_STREAMS),
            watchers: gauge!(WATCHERS),
            reopened: counter!(WATCH_REOPENED),
            moved: counter!(WATCH_MOVED),
        }
    }
}

/// The handles for what is looked at when metrics are read.
pub struct Observing {
    own_clock: Gauge,
    feeds: FeedMetrics,
    has_leader: Gauge,
    /// The names of its metrics are those that Prometheus' own clients have, and etcd.
    process: Collector,
}

impl std::fmt::Debug for Observing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observing").finish_non_exhaustive()
    }
}

impl Default for Observing {
    fn default() -> Self {
        gauge!(SERVER_VERSION, "server_version" => ETCD_VERSION).set(1.0);
        gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        Self {
            own_clock: gauge!(OWN_CLOCK),
            feeds: FeedMetrics::new(),
            has_leader: gauge!(HAS_LEADER),
            process: Collector::default(),
        }
    }
}

impl Observing {
    /// Sets the numbers of problems of the cluster's state and of its map, before metrics are read.
    pub fn observe_state(&self, problems: usize, elsewhere: usize) {
        gauge!(UNSOUND).set(problems as f64);
        gauge!(ELSEWHERE).set(elsewhere as f64);
    }

    /// Updates the metrics of stores and feeds, before metrics are read.
    pub fn observe(&self, stores: &Stores, feeds: &Feeds) {
        self.feeds.observe(stores, feeds);
        self.process.collect();
        for why in GivenUp::ALL {
            counter!(CONNECTIONS_CLOSED, "why" => why.label()).absolute(why.count());
        }
        counter!(LOG_DROPPED).absolute(logging::dropped_lines());
        let mut any = false;
        for store in stores.iter() {
            let up = store.state().is_up();
            any |= up;
            let metrics = StoreMetrics::new(store.name());
            metrics.up.set(f64::from(u8::from(up)));
            let phase = store.state().phase();
            for word in Phase::WORDS {
                let state = gauge!(STORE_STATE, "store" => store.name().to_owned(), "state" => word);
                state.set(f64::from(u8::from(phase.word() == word)));
            }
            metrics.clock.set(seconds(stores.clocks().offset(store.index)));
            if store.is_shard() {
                observe_shard(store);
            }
        }
        self.own_clock.set(seconds(stores.clocks().own_offset()));
        self.has_leader.set(f64::from(u8::from(any)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_defined_once() {
        let mut names: Vec<_> = DEFINITIONS.iter().map(|definition| definition.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DEFINITIONS.len());
        for definition in DEFINITIONS {
            assert!(definition.help.ends_with('.'), "{}", definition.name);
            let counts = definition.kind == Kind::Counter;
            assert_eq!(definition.name.ends_with("_total") && counts, counts, "{}", definition.name);
        }
        for (name, _) in BUCKETS {
            assert!(DEFINITIONS.iter().any(|d| d.name == *name && d.kind == Kind::Histogram));
        }
    }
}
