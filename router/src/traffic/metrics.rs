//! The metrics of Kinds and of clients.

use kindred_transport::metrics::calls::CODES;
use kindred_transport::metrics::exposition::{Kind, Metric};

use super::Traffic;
use super::kinds::{AGE_BOUNDS, CALL_BOUNDS};
use crate::admission::Admission;

const REQUESTS: Metric = Metric {
    name: "kindred_kind_requests_total",
    kind: Kind::Counter,
    help: "Calls of clients that ended, by Kind, verb and code.",
};
const SECONDS: Metric = Metric {
    name: "kindred_kind_request_duration_seconds",
    kind: Kind::Histogram,
    help: "Time of these calls, from the request to the answer, waiting included, by Kind and verb.",
};
const RECEIVED: Metric = Metric {
    name: "kindred_kind_received_bytes_total",
    kind: Kind::Counter,
    help: "Bytes of their requests, by Kind and verb.",
};
const SENT: Metric = Metric {
    name: "kindred_kind_sent_bytes_total",
    kind: Kind::Counter,
    help: "Bytes of their answers, by Kind and verb.",
};
const WATCHES: Metric =
    Metric { name: "kindred_kind_watches", kind: Kind::Gauge, help: "Open watches of clients, by Kind." };
const MESSAGES: Metric = Metric {
    name: "kindred_kind_watch_messages_total",
    kind: Kind::Counter,
    help: "Messages with events that watches were sent, by Kind.",
};
const MESSAGE_BYTES: Metric = Metric {
    name: "kindred_kind_watch_bytes_total",
    kind: Kind::Counter,
    help: "Bytes of these messages, by Kind.",
};
const AGE: Metric = Metric {
    name: "kindred_kind_event_age_seconds",
    kind: Kind::Histogram,
    help: "Age of the first event of such a message when it was handed to the connection, by the clocks of its shard and of the router, by Kind.",
};
const CLIENT_CONNECTIONS: Metric = Metric {
    name: "kindred_client_connections",
    kind: Kind::Gauge,
    help: "Open connections, by client: the common name of its certificate, or else its address.",
};
const CLIENT_REQUESTS: Metric = Metric {
    name: "kindred_client_requests_total",
    kind: Kind::Counter,
    help: "Calls of KV that ended, by client.",
};
const CLIENT_FAILED: Metric = Metric {
    name: "kindred_client_requests_failed_total",
    kind: Kind::Counter,
    help: "Those of them that did not end with OK, by client.",
};
const CLIENT_SECONDS: Metric = Metric {
    name: "kindred_client_request_seconds_total",
    kind: Kind::Counter,
    help: "Time of all these calls together, by client.",
};
const CLIENT_RECEIVED: Metric = Metric {
    name: "kindred_client_received_bytes_total",
    kind: Kind::Counter,
    help: "Bytes of their requests, by client.",
};
const CLIENT_SENT: Metric = Metric {
    name: "kindred_client_sent_bytes_total",
    kind: Kind::Counter,
    help: "Bytes of their answers, by client.",
};

const LISTS_RUNNING: Metric = Metric {
    name: "kindred_router_long_lists",
    kind: Kind::Gauge,
    help: "Long lists, by whether they run or wait for their turn.",
};
const LISTS_OBSERVED: Metric = Metric {
    name: "kindred_router_long_lists_observed_total",
    kind: Kind::Counter,
    help: "Long lists that would have waited if --admission were not observe.",
};
const LISTS_WAITED: Metric = Metric {
    name: "kindred_kind_list_wait_seconds",
    kind: Kind::Histogram,
    help: "How long long lists waited for their turn, by Kind.",
};
const LIMITED: Metric = Metric {
    name: "kindred_kind_limited_total",
    kind: Kind::Counter,
    help: "Calls beyond the limits of their Kind, by Kind. They are refused, with --admission observe only counted.",
};
const LISTS_REFUSED: Metric = Metric {
    name: "kindred_kind_lists_refused_total",
    kind: Kind::Counter,
    help: "Long lists that were refused because too many waited, or they for too long, by Kind.",
};

/// All metrics of this module.
pub const METRICS: [Metric; 19] = [
    LISTS_RUNNING,
    LISTS_OBSERVED,
    LISTS_WAITED,
    LISTS_REFUSED,
    LIMITED,
    REQUESTS,
    SECONDS,
    RECEIVED,
    SENT,
    WATCHES,
    MESSAGES,
    MESSAGE_BYTES,
    AGE,
    CLIENT_CONNECTIONS,
    CLIENT_REQUESTS,
    CLIENT_FAILED,
    CLIENT_SECONDS,
    CLIENT_RECEIVED,
    CLIENT_SENT,
];

/// The buckets of a histogram of this module.
#[must_use]
pub fn buckets(name: &str) -> Option<&'static [f64]> {
    match name {
        name if name == SECONDS.name => Some(&CALL_BOUNDS),
        name if name == LISTS_WAITED.name => Some(&CALL_BOUNDS),
        name if name == AGE.name => Some(&AGE_BOUNDS),
        _ => None,
    }
}

/// The clients with series of their own. The others are together in `<other>`.
const CLIENTS_SHOWN: usize = 50;

/// Appends them.
pub fn render(traffic: &Traffic, admission: &Admission, out: &mut String) {
    of_kinds(traffic, out);
    of_lists(traffic, admission, out);
    of_clients(traffic, out);
}

fn of_kinds(traffic: &Traffic, out: &mut String) {
    let kinds = traffic.kinds.all();
    let calls = || {
        kinds.iter().flat_map(|kind| {
            kind.verbs().map(move |(verb, of)| (of, [("kind", &*kind.name), ("verb", verb.label())]))
        })
    };
    REQUESTS.begin(out);
    for (of, [kind, verb]) in calls() {
        for (code, count) in CODES.iter().zip(of.codes()) {
            if count > 0 {
                REQUESTS.sample(out, &[kind, verb, ("code", code)], count);
            }
        }
    }
    SECONDS.begin(out);
    for (of, labels) in calls().filter(|(of, _)| of.seconds.read().count > 0) {
        SECONDS.histogram(out, &labels, &of.seconds, &CALL_BOUNDS);
    }
    for (metric, bytes) in [(RECEIVED, 0), (SENT, 1)] {
        metric.begin(out);
        for (of, labels) in calls() {
            metric.sample(out, &labels, <[u64; 2]>::from(of.bytes())[bytes]);
        }
    }
    // A Kind that nobody has watched has nothing to show.
    let watched: Vec<_> = kinds.iter().filter(|kind| kind.watches() > 0 || kind.delivered().0 > 0).collect();
    WATCHES.begin(out);
    for kind in &watched {
        WATCHES.sample(out, &[("kind", &kind.name)], kind.watches());
    }
    for (metric, number) in [(MESSAGES, 0), (MESSAGE_BYTES, 1)] {
        metric.begin(out);
        for kind in &watched {
            metric.sample(out, &[("kind", &kind.name)], <[u64; 2]>::from(kind.delivered())[number]);
        }
    }
    AGE.begin(out);
    for kind in watched.iter().filter(|kind| kind.age.read().count > 0) {
        AGE.histogram(out, &[("kind", &kind.name)], &kind.age, &AGE_BOUNDS);
    }
}

fn of_lists(traffic: &Traffic, admission: &Admission, out: &mut String) {
    let (running, waiting, observed) = admission.counts();
    LISTS_RUNNING.begin(out);
    LISTS_RUNNING.sample(out, &[("state", "running")], running);
    LISTS_RUNNING.sample(out, &[("state", "waiting")], waiting);
    LISTS_OBSERVED.begin(out);
    LISTS_OBSERVED.sample(out, &[], observed);
    let kinds = traffic.kinds.all();
    LISTS_WAITED.begin(out);
    for kind in kinds.iter().filter(|kind| kind.waited.read().count > 0) {
        LISTS_WAITED.histogram(out, &[("kind", &kind.name)], &kind.waited, &CALL_BOUNDS);
    }
    LIMITED.begin(out);
    for kind in kinds.iter().filter(|kind| kind.limited() > 0) {
        LIMITED.sample(out, &[("kind", &kind.name)], kind.limited());
    }
    LISTS_REFUSED.begin(out);
    for kind in kinds.iter().filter(|kind| kind.lists_refused() > 0) {
        LISTS_REFUSED.sample(out, &[("kind", &kind.name)], kind.lists_refused());
    }
}

fn of_clients(traffic: &Traffic, out: &mut String) {
    let mut clients = traffic.clients.all();
    let rest = clients.split_off(clients.len().min(CLIENTS_SHOWN));
    if !rest.is_empty() {
        let sum = rest.iter().fold(super::clients::Shown::default(), |sum, (_, one)| sum.plus(one));
        clients.push((super::kinds::OTHER.into(), sum));
    }
    let mut show = |metric: Metric, of: fn(&super::clients::Shown) -> f64| {
        metric.begin(out);
        for (name, shown) in &clients {
            metric.sample(out, &[("client", name)], of(shown));
        }
    };
    show(CLIENT_CONNECTIONS, |shown| shown.connections as f64);
    show(CLIENT_REQUESTS, |shown| shown.calls as f64);
    show(CLIENT_FAILED, |shown| shown.failed as f64);
    show(CLIENT_SECONDS, |shown| shown.micros as f64 / 1e6);
    show(CLIENT_RECEIVED, |shown| shown.received as f64);
    show(CLIENT_SENT, |shown| shown.sent as f64);
}
