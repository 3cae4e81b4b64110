//! Everything that can be asked of a port: the methods of the protocols and the paths of HTTP, in classes of what they are good for.

use std::collections::BTreeSet;

use anyhow::{Context, ensure};
use kindred_router_core::auth::methods::METHODS;
use serde_json::Value;

/// What a call is good for. Whoever may make one call of a class at a port may make all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Whether the process is there, by `grpc.health.v1`.
    Health,
    /// `/livez` and `/readyz`.
    Probes,
    /// `/metrics`, `/health` and `/version`.
    Metrics,
    /// The files of a router's page.
    Page,
    /// Reading at an admin port. A page of somebody else may send that, and does not get the answer to see.
    Look,
    /// Looking on at an admin port, for which there are few places.
    Live,
    /// Changes at an admin port.
    Change,
    /// etcd's API by gRPC: keys, watches, leases, maintenance.
    Keys,
    /// The same by JSON.
    Gateway,
    /// Following a store as its standby.
    Follow,
    /// What only routers call.
    Stores,
}

impl Class {
    /// The word in the table.
    pub fn word(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Probes => "probes",
            Self::Metrics => "metrics",
            Self::Page => "page",
            Self::Look => "look",
            Self::Live => "live",
            Self::Change => "change",
            Self::Keys => "keys",
            Self::Gateway => "JSON",
            Self::Follow => "follow",
            Self::Stores => "inner",
        }
    }
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// The path of a method of gRPC.
    Grpc(String),
    /// Method and path.
    Http(&'static str, String),
}

const FOLLOW: &str = "/kindred.shard.v1.Standbys/Follow";
const PROTOS: [&str; 4] = [
    include_str!("../../proto/etcd/rpc.proto"),
    include_str!("../../proto/etcd/lock.proto"),
    include_str!("../../proto/etcd/election.proto"),
    include_str!("../../proto/kindred/shard.v1.proto"),
];

/// All methods of gRPC.
///
/// # Errors
/// If a method of the protocols has no row in the table of methods, which says who may call it.
pub fn methods() -> anyhow::Result<Vec<(Class, Call)>> {
    let mut declared = BTreeSet::new();
    for proto in PROTOS {
        let package = proto.lines().find_map(|line| line.strip_prefix("package ")?.strip_suffix(';'));
        let (package, mut service) = (package.context("a package")?, "");
        for line in proto.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("service ") {
                service = rest.trim_end_matches(" {");
            } else if let Some(rest) = line.strip_prefix("rpc ") {
                let method = rest.split('(').next().unwrap_or_default();
                declared.insert(format!("/{package}.{service}/{method}"));
            }
        }
    }
    ensure!(declared.len() > 70, "{declared:?}");
    let of_etcd: BTreeSet<String> = METHODS
        .iter()
        .flat_map(|(service, methods)| methods.iter().map(move |(method, _)| format!("/{service}/{method}")))
        .collect();
    let class = |path: &String| match path.as_str() {
        path if path.starts_with("/grpc.health.v1.Health/") => Some(Class::Health),
        FOLLOW => Some(Class::Follow),
        path if path.starts_with("/kindred.shard.v1.") => Some(Class::Stores),
        _ => of_etcd.contains(path).then_some(Class::Keys),
    };
    let all = declared.union(&of_etcd).map(|path| {
        let class =
            class(path).with_context(|| format!("{path} has no row in router/core/src/auth/methods.rs"))?;
        Ok((class, Call::Grpc(path.clone())))
    });
    all.collect()
}

/// What a clients' port answers to plain HTTP.
pub fn of_clients() -> Vec<(Class, Call)> {
    let mut calls = of_every_port();
    calls.push((Class::Gateway, Call::Http("POST", "/v3/kv/range".to_owned())));
    calls
}

fn of_every_port() -> Vec<(Class, Call)> {
    let probes = ["/livez", "/readyz"].map(|path| (Class::Probes, path));
    let metrics = ["/metrics", "/health", "/version"].map(|path| (Class::Metrics, path));
    let all = probes.into_iter().chain(metrics);
    all.map(|(class, path)| (class, Call::Http("GET", path.to_owned()))).collect()
}

/// The paths of a shard's admin port.
pub fn of_shard_admin() -> Vec<(Class, Call)> {
    let mut calls = of_every_port();
    calls.push((Class::Look, Call::Http("GET", "/api/v1/durability".to_owned())));
    calls
}

/// The paths of a router's admin port, as its document has them.
///
/// # Errors
/// If it is another document.
pub fn of_router_admin(document: &Value) -> anyhow::Result<Vec<(Class, Call)>> {
    let mut calls = of_every_port();
    for page in ["/", "/page/page.css"] {
        calls.push((Class::Page, Call::Http("GET", page.to_owned())));
    }
    for (path, operations) in document["paths"].as_object().context("paths")? {
        for method in operations.as_object().context("operations")?.keys() {
            let (class, method) = match method.as_str() {
                "get" if path == "/api/v1/live" => (Class::Live, "GET"),
                "get" => (Class::Look, "GET"),
                "post" => (Class::Change, "POST"),
                "put" => (Class::Change, "PUT"),
                "delete" => (Class::Change, "DELETE"),
                other => anyhow::bail!("{path}: {other}"),
            };
            // Nothing has these names.
            let path = path.replace("{id}", "999").replace("{verb}", "abort").replace("{name}", "nobody");
            let path = path.replace("{check}", "nothing");
            ensure!(!path.contains('{'), "{path}: what stands for it?");
            if !calls.iter().any(|(_, call)| *call == Call::Http(method, path.clone())) {
                calls.push((class, Call::Http(method, path)));
            }
        }
    }
    ensure!(calls.len() > 40, "{calls:?}");
    Ok(calls)
}
