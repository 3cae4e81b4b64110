//! Counts the calls of gRPC that a process serves, as etcd's gRPC library does for etcd: the names, labels and codes are
//! those of go-grpc-middleware's `prometheus` provider, which etcd's dashboards and alerts query.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use super::exposition::{Kind, Metric};
use super::histogram::Histogram;

pub const STARTED: Metric = Metric {
    name: "grpc_server_started_total",
    kind: Kind::Counter,
    help: "Calls begun, by type, service and method.",
};
pub const HANDLED: Metric = Metric {
    name: "grpc_server_handled_total",
    kind: Kind::Counter,
    help: "Calls that ended, by type, service, method and code.",
};
pub const SECONDS: Metric = Metric {
    name: "grpc_server_handling_seconds",
    kind: Kind::Histogram,
    help: "Time from the beginning of a call to its end, by type, service and method.",
};
pub const RECEIVED: Metric = Metric {
    name: "etcd_network_client_grpc_received_bytes_total",
    kind: Kind::Counter,
    help: "Bytes of the messages that clients sent.",
};
pub const SENT: Metric = Metric {
    name: "etcd_network_client_grpc_sent_bytes_total",
    kind: Kind::Counter,
    help: "Bytes of the messages that clients were sent.",
};

/// All metrics of this module.
pub const METRICS: [Metric; 5] = [STARTED, HANDLED, SECONDS, RECEIVED, SENT];

/// The bounds of [`SECONDS`], those of the Prometheus client for Go.
const BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// gRPC's codes, 0 to 16, in the words of gRPC for Go.
pub const CODES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

/// The position of a code in [`CODES`].
#[must_use]
pub fn code_index(code: Code) -> usize {
    code as usize
}

/// Which sides of a call are streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Unary,
    ServerStream,
    BidiStream,
}

impl Type {
    /// In the words of the label `grpc_type`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::ServerStream => "server_stream",
            Self::BidiStream => "bidi_stream",
        }
    }
}

use Type::{BidiStream, ServerStream, Unary};

/// The methods of all services. Calls of others are refused and not counted, so that a client cannot grow the table.
const METHODS: &[(&str, &[(&str, Type)])] = &[
    (
        "etcdserverpb.KV",
        &[
            ("Range", Unary),
            ("RangeStream", ServerStream),
            ("Put", Unary),
            ("DeleteRange", Unary),
            ("Txn", Unary),
            ("Compact", Unary),
        ],
    ),
    ("etcdserverpb.Watch", &[("Watch", BidiStream)]),
    (
        "etcdserverpb.Lease",
        &[
            ("LeaseGrant", Unary),
            ("LeaseRevoke", Unary),
            ("LeaseKeepAlive", BidiStream),
            ("LeaseTimeToLive", Unary),
            ("LeaseLeases", Unary),
        ],
    ),
    (
        "etcdserverpb.Cluster",
        &[
            ("MemberAdd", Unary),
            ("MemberRemove", Unary),
            ("MemberUpdate", Unary),
            ("MemberList", Unary),
            ("MemberPromote", Unary),
        ],
    ),
    (
        "etcdserverpb.Maintenance",
        &[
            ("Alarm", Unary),
            ("Status", Unary),
            ("Defragment", Unary),
            ("Hash", Unary),
            ("HashKV", Unary),
            ("Snapshot", ServerStream),
            ("MoveLeader", Unary),
            ("Downgrade", Unary),
        ],
    ),
    (
        "etcdserverpb.Auth",
        &[
            ("AuthEnable", Unary),
            ("AuthDisable", Unary),
            ("AuthStatus", Unary),
            ("Authenticate", Unary),
            ("UserAdd", Unary),
            ("UserGet", Unary),
            ("UserList", Unary),
            ("UserDelete", Unary),
            ("UserChangePassword", Unary),
            ("UserGrantRole", Unary),
            ("UserRevokeRole", Unary),
            ("RoleAdd", Unary),
            ("RoleGet", Unary),
            ("RoleList", Unary),
            ("RoleDelete", Unary),
            ("RoleGrantPermission", Unary),
            ("RoleRevokePermission", Unary),
        ],
    ),
    ("v3lockpb.Lock", &[("Lock", Unary), ("Unlock", Unary)]),
    (
        "v3electionpb.Election",
        &[
            ("Campaign", Unary),
            ("Proclaim", Unary),
            ("Leader", Unary),
            ("Observe", ServerStream),
            ("Resign", Unary),
        ],
    ),
    ("grpc.health.v1.Health", &[("Check", Unary), ("Watch", ServerStream)]),
    (
        "kindred.shard.v1.Shard",
        &[
            ("Hello", Unary),
            ("Raise", Unary),
            ("RaiseSince", Unary),
            ("ReleasePins", Unary),
            ("Retain", Unary),
            ("LeaseAttach", Unary),
            ("LeaseAdopt", Unary),
            ("LeaseEnd", Unary),
            ("LeaseRevoke", Unary),
            ("LeaseForget", Unary),
            ("LeaseEnded", ServerStream),
            ("LeaseKeys", Unary),
            ("SetModes", Unary),
            ("Load", Unary),
        ],
    ),
    ("kindred.shard.v1.Feeds", &[("Feed", BidiStream)]),
    (
        "kindred.shard.v1.Units",
        &[
            ("List", Unary),
            ("Track", Unary),
            ("Copy", ServerStream),
            ("Freeze", Unary),
            ("Unfreeze", Unary),
            ("Release", Unary),
            ("Import", Unary),
            ("Seal", Unary),
            ("Open", Unary),
            ("Drop", Unary),
            ("Forget", Unary),
            ("Verify", ServerStream),
            ("Leases", Unary),
            ("Together", Unary),
            ("Tails", Unary),
        ],
    ),
    (
        "kindred.shard.v1.Leases",
        &[("HandOver", Unary), ("Inherit", Unary), ("Handed", Unary), ("Adopted", Unary)],
    ),
    ("kindred.shard.v1.Batches", &[("Run", BidiStream)]),
    (
        "kindred.shard.v1.Standbys",
        &[
            ("Follow", BidiStream),
            ("Count", Unary),
            ("Yield", Unary),
            ("Prepare", Unary),
            ("Promote", Unary),
            ("Supersede", Unary),
            ("Member", Unary),
        ],
    ),
];

/// The counts of one method.
#[derive(Debug)]
pub struct Calls {
    service: &'static str,
    method: &'static str,
    kind: Type,
    started: AtomicU64,
    handled: [AtomicU64; CODES.len()],
    seconds: Histogram<{ BOUNDS.len() }>,
}

/// One call, which is counted as ended exactly once: as canceled, if nobody says how.
#[derive(Debug)]
pub struct Counting {
    pub calls: &'static Calls,
    began: Instant,
    ended: bool,
}

impl Counting {
    #[must_use]
    pub fn begin(calls: &'static Calls) -> Self {
        calls.started();
        Self { calls, began: Instant::now(), ended: false }
    }

    pub fn end(&mut self, code: Code) {
        if !std::mem::replace(&mut self.ended, true) {
            self.calls.handled(code, Some(self.began.elapsed()));
        }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

/// Bytes of messages of clients, over all methods of etcd's services.
static BYTES: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

impl Calls {
    /// Counts a call that began.
    pub fn started(&self) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that ended, and its time where that is known.
    pub fn handled(&self, code: Code, took: Option<Duration>) {
        if let Some(took) = took {
            self.seconds.record(took, &BOUNDS);
        }
        self.handled[code_index(code)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes of messages that a client sent.
    pub fn received(&self, bytes: usize) {
        BYTES[0].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes of messages that a client was sent.
    pub fn sent(&self, bytes: usize) {
        BYTES[1].fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

static CALLS: LazyLock<Vec<Calls>> = LazyLock::new(|| {
    let each =
        METHODS.iter().flat_map(|(service, methods)| methods.iter().map(move |method| (*service, method)));
    each.map(|(service, (method, kind))| Calls {
        service,
        method,
        kind: *kind,
        started: AtomicU64::new(0),
        handled: [const { AtomicU64::new(0) }; CODES.len()],
        seconds: Histogram::default(),
    })
    .collect()
});

static BY_PATH: LazyLock<HashMap<String, &'static Calls>> = LazyLock::new(|| {
    CALLS.iter().map(|calls| (format!("/{}/{}", calls.service, calls.method), calls)).collect()
});

/// The counts of the method with this path, such as `/etcdserverpb.KV/Range`; `None` for a method that no service has.
#[must_use]
pub fn of(path: &str) -> Option<&'static Calls> {
    BY_PATH.get(path).copied()
}

/// The counts of a method of `etcdserverpb.KV`.
///
/// # Panics
/// When there is no such method.
#[must_use]
pub fn of_kv(method: &str) -> &'static Calls {
    of(&format!("/etcdserverpb.KV/{method}")).expect("KV has this method")
}

/// Appends all of these metrics. Like etcd, every method that is served has its series from the start on, so that a
/// rate is right from the first call on; codes and internal services appear when they are first seen.
pub fn render(out: &mut String) {
    let seen = |calls: &&Calls| {
        calls.started.load(Ordering::Relaxed) > 0 || calls.service.starts_with("etcdserverpb.")
    };
    let shown: Vec<(&Calls, [(&str, &str); 3])> = CALLS
        .iter()
        .filter(seen)
        .map(|calls| {
            let labels = [
                ("grpc_type", calls.kind.label()),
                ("grpc_service", calls.service),
                ("grpc_method", calls.method),
            ];
            (calls, labels)
        })
        .collect();
    STARTED.begin(out);
    for (calls, labels) in &shown {
        STARTED.sample(out, labels, calls.started.load(Ordering::Relaxed));
    }
    HANDLED.begin(out);
    for (calls, [kind, service, method]) in &shown {
        for (code, count) in CODES.iter().zip(&calls.handled) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 || *code == "OK" {
                HANDLED.sample(out, &[*kind, *service, *method, ("grpc_code", code)], count);
            }
        }
    }
    SECONDS.begin(out);
    for (calls, labels) in shown.iter().filter(|(calls, _)| calls.seconds.read().count > 0) {
        SECONDS.histogram(out, labels, &calls.seconds, &BOUNDS);
    }
    for (metric, bytes) in [RECEIVED, SENT].iter().zip(&BYTES) {
        metric.begin(out);
        metric.sample(out, &[], bytes.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The methods in the text of a `.proto` file, with their types.
    fn declared(text: &str) -> Vec<(String, Type)> {
        let named = |line: &str, word: &str| {
            let rest = line.trim().strip_prefix(word)?;
            Some(rest.split(|c: char| !c.is_alphanumeric() && c != '.' && c != '_').next()?.to_owned())
        };
        let (mut package, mut service, mut found) = (String::new(), String::new(), Vec::new());
        for line in text.lines() {
            if let Some(name) = named(line, "package ") {
                package = name;
            } else if let Some(name) = named(line, "service ") {
                service = name;
            } else if let Some(name) = named(line, "rpc ") {
                let (asks, answers) = line.split_once("returns").unwrap();
                let kind = match (asks.contains("(stream "), answers.contains("(stream ")) {
                    (false, false) => Unary,
                    (false, true) => ServerStream,
                    (true, true) => BidiStream,
                    (true, false) => panic!("{line}: a type of call that is not in use yet"),
                };
                found.push((format!("/{package}.{service}/{name}"), kind));
            }
        }
        found
    }

    #[test]
    fn every_method_of_every_service_is_counted_with_its_type() {
        let files = [
            include_str!("../../../etcd/rpc.proto"),
            include_str!("../../../etcd/lock.proto"),
            include_str!("../../../etcd/election.proto"),
            include_str!("../../../kindred/shard.v1.proto"),
        ];
        let declared: Vec<_> = files.into_iter().flat_map(declared).collect();
        assert!(declared.len() > 50, "{declared:?}");
        for (path, kind) in &declared {
            assert_eq!(of(path).map(|calls| calls.kind), Some(*kind), "{path}");
        }
        assert!(of("/etcdserverpb.KV/Nothing").is_none());
    }

    #[test]
    fn a_call_is_shown_with_its_type_and_code() {
        let calls = of("/v3lockpb.Lock/Lock").unwrap();
        let mut before = String::new();
        render(&mut before);
        assert!(!before.contains("v3lockpb"), "nobody has locked yet");
        calls.started();
        calls.handled(Code::DeadlineExceeded, Some(Duration::from_millis(7)));
        let mut out = String::new();
        render(&mut out);
        let labels = "grpc_type=\"unary\",grpc_service=\"v3lockpb.Lock\",grpc_method=\"Lock\"";
        for line in [
            format!("grpc_server_started_total{{{labels}}} 1"),
            format!("grpc_server_handled_total{{{labels},grpc_code=\"DeadlineExceeded\"}} 1"),
            format!("grpc_server_handling_seconds_bucket{{{labels},le=\"0.005\"}} 0"),
            format!("grpc_server_handling_seconds_bucket{{{labels},le=\"0.01\"}} 1"),
            "grpc_server_started_total{grpc_type=\"bidi_stream\",grpc_service=\"etcdserverpb.Watch\",\
             grpc_method=\"Watch\"} 0"
                .to_owned(),
        ] {
            assert!(out.lines().any(|found| found == line), "{line}\n{out}");
        }
    }
}
