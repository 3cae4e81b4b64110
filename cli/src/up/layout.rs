//! Pure: which processes `kindred up` runs, with which arguments.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use kindred_partition_config::{
    ids::DEFAULT_CLUSTER_ID,
    model::{KindredConfig, StoreType},
};

use super::{UpArgs, child::Spec};

/// Certificates for the connections between the router and its own shards.
#[derive(Debug, Clone)]
pub struct InternalTls {
    /// The CA of all of them.
    pub ca: PathBuf,
    /// What shards show.
    pub server: (PathBuf, PathBuf),
    /// What the router shows.
    pub client: (PathBuf, PathBuf),
}

/// A store that `kindred up` runs itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalShard {
    /// Index in the configuration's list of stores.
    pub index: usize,
    /// Name in the configuration.
    pub name: String,
    /// Slot of its revisions; validated to be given.
    pub slot: u32,
}

/// The stores without endpoints: those are run here; the others run elsewhere already.
#[must_use]
pub fn local_shards(config: &KindredConfig) -> Vec<LocalShard> {
    config
        .stores
        .iter()
        .enumerate()
        .filter(|(_, store)| store.store_type == StoreType::Shard && store.endpoints.is_empty())
        .map(|(index, store)| LocalShard {
            index,
            name: store.name.to_string(),
            slot: store.slot.unwrap_or_default(),
        })
        .collect()
}

/// The process of one shard, listening on `listen` (port 0 at the first start, then the port that it got, so that a
/// restarted shard is where the router looks for it).
#[must_use]
pub fn shard(
    program: &Path,
    args: &UpArgs,
    prefix: &str,
    shard: &LocalShard,
    listen: SocketAddr,
    tls: Option<&InternalTls>,
) -> Spec {
    let mut words: Vec<String> = ["shard", "--exit-with-parent"].map(str::to_owned).to_vec();
    let mut flag = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    flag("name", shard.name.clone());
    flag("slot", shard.slot.to_string());
    flag("cluster-id", format!("{DEFAULT_CLUSTER_ID:#x}"));
    flag("listen", listen.to_string());
    flag("admin-listen", "127.0.0.1:0".to_owned());
    flag("data-dir", args.data_dir.join("stores").join(&shard.name).display().to_string());
    flag("etcd-prefix", prefix.to_owned());
    flag("log-level", args.log_level.clone());
    words.push("--in-cluster".to_owned());
    let mut flag = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    if let Some(tls) = tls {
        flag("cert-file", tls.server.0.display().to_string());
        flag("key-file", tls.server.1.display().to_string());
        flag("trusted-ca-file", tls.ca.display().to_string());
        words.push("--client-cert-auth".to_owned());
    }
    Spec {
        name: format!("shard {}", shard.name),
        program: program.to_owned(),
        args: words,
        ready_prefix: "kindred-shard ready",
    }
}

/// The configuration with the addresses of the shards that run here filled in, as the router reads it.
#[must_use]
pub fn with_endpoints(
    config: &KindredConfig,
    listens: &[(LocalShard, SocketAddr)],
    tls: bool,
) -> KindredConfig {
    let mut config = config.clone();
    let scheme = if tls { "https" } else { "http" };
    for (shard, listen) in listens {
        config.stores[shard.index].endpoints = vec![format!("{scheme}://{listen}")];
    }
    config
}

/// The router's process.
#[must_use]
pub fn router(
    program: &Path,
    args: &UpArgs,
    listen: &str,
    admin: &str,
    config: &Path,
    tls: Option<&InternalTls>,
) -> Spec {
    let mut words: Vec<String> = ["router", "--exit-with-parent"].map(str::to_owned).to_vec();
    let mut flag = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    flag("name", "router".to_owned());
    flag("listen", listen.to_owned());
    flag("admin", admin.to_owned());
    flag("config", config.display().to_string());
    flag("cluster-id", format!("{DEFAULT_CLUSTER_ID:#x}"));
    flag("log-level", args.log_level.clone());
    if let Some(urls) = &args.advertise_client_urls {
        flag("advertise-client-urls", urls.clone());
    }
    if let Some(tls) = tls {
        flag("store-cert-file", tls.client.0.display().to_string());
        flag("store-key-file", tls.client.1.display().to_string());
        flag("store-trusted-ca-file", tls.ca.display().to_string());
    }
    words.extend(args.client_tls_flags());
    Spec {
        name: "router".to_owned(),
        program: program.to_owned(),
        args: words,
        ready_prefix: "kindred-router ready",
    }
}
