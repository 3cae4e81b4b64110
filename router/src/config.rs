//! Turns flags and the configuration file into [`Settings`], and reports all errors at once, each with its field.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::duration::parse_duration;
use kindred_partition_config::errors::Errors;
use kindred_partition_config::ids::{ClusterId, Lineage, Slot, StoreName, parse_cluster_id};
use kindred_partition_config::map::StoreIdx;
use kindred_partition_config::model::{KindredConfig, StoreType};
use kindred_partition_config::parse::DEFAULT_CONFIG;
use kindred_partition_config::shape;
use kindred_partition_config::validate::validate;
use kindred_router_core::admission::Limits;
use kindred_router_core::consistent_read::RevisionScope;
use kindred_router_core::moves::machine;
use kindred_router_core::store::{StoreIx, StoreKind};
use kindred_router_core::watch_session;
use kindred_transport::address::Scheme;
use kindred_transport::admin::AdminArgs;
use kindred_transport::clock::WallClock;
use kindred_transport::logging::Format;
use kindred_transport::memory::limit;
use kindred_transport::network::Network;
use kindred_transport::tls::{ClientTls, EtcdTlsArgs, MetaTlsArgs, ServerTls, ServerTlsArgs, StoreTlsArgs};
use kindred_transport::unread;
use kindred_transport::who::Secret;
use kindred_transport::{Endpoint, ListenAddr};

use crate::admission::{self, Admission};
use crate::feeds;
use crate::memory;
use crate::meta::MetaSettings;
use crate::meta::lineage::Founding;
use crate::moves;
use crate::spans::{self, SpanArgs};
use crate::stores::StoreSpec;
use kindred_router_core::routes::Routes;

/// Flags of a router.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    /// Where clients connect, comma-separated; port 0 = any, unix:///PATH = a Unix socket that only this user may open,
    /// without TLS.
    #[arg(long, alias = "listen-client-urls", value_name = "ADDRESS", default_value = "127.0.0.1:2379")]
    pub listen: String,
    /// Where /health, /metrics and the admin API are.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:2381")]
    pub admin: String,
    /// More addresses for /metrics, /health, /livez, /readyz and /version alone, comma-separated, as etcd's: http:// asks for no
    /// certificate, https:// as --listen does.
    #[arg(long, value_name = "URL[,URL]")]
    pub listen_metrics_urls: Option<String>,
    /// Stores and partitions, YAML or JSON [default: one store for each busy Kind, see `default.yaml`].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The meta store: any etcd v3 endpoints, comma-separated; the cluster's stores and partitions are kept there, and
    /// --config is only the first configuration of a cluster whose meta store is empty.
    #[arg(long, value_name = "URL[,URL]")]
    pub meta: Option<String>,
    /// Where the last state of the meta store is kept, for a start while it is away. It wins over --config.
    #[arg(long, value_name = "FILE", requires = "meta")]
    pub meta_cache: Option<PathBuf>,
    /// Bytes that this router copies in a second when Kinds move, in all; 0 = as fast as it goes.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub move_bytes_per_second: u64,
    /// How long the way back of a move stays open when nobody completes it, as 600, 90s, 10m or 1h.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    pub reverse_window: Duration,
    /// Where a store listens, Unix sockets of this machine (unix:///PATH) before all else; wins over the file, and is
    /// written to the meta store. May be given several times.
    #[arg(long = "store", value_name = "NAME=URL[,URL]")]
    pub stores: Vec<String>,
    /// What MemberList tells clients to connect to, comma-separated [default: the listen addresses].
    #[arg(long, value_name = "URL")]
    pub advertise_client_urls: Option<String>,
    /// Name of this router.
    #[arg(long, default_value = "kindred-router")]
    pub name: String,
    /// Id of the cluster, the same for its routers and shards, decimal or 0x…; kept in the meta store from the first start on
    /// [default: that of the meta store's state, minted with the first; without --meta: that of every cluster without one].
    #[arg(long, value_name = "ID", value_parser = parse_cluster_id)]
    pub cluster_id: Option<u64>,
    /// The lineage of the cluster, as `kindred status` and its shards' errors show it: for a cluster that goes on after its
    /// meta store and every --meta-cache were lost [default: that of the meta store's state, minted with the first].
    #[arg(long, value_name = "UUID", requires = "meta")]
    pub lineage: Option<String>,
    /// The cluster of --lineage is a new one, if no meta store knows it: `kindred up` mints the lineage.
    #[arg(long, requires = "lineage", hide = true)]
    pub minted: bool,
    /// kube-apiserver's --etcd-prefix; wins over the file.
    #[arg(long, value_name = "PREFIX")]
    pub etcd_prefix: Option<String>,
    /// What headers must never fall behind: `kind`, or `global` for clients that compare revisions across Kinds.
    #[arg(long, value_name = "SCOPE", value_enum, default_value_t = Scope::Kind)]
    pub revision_scope: Scope,
    /// Threads that serve clients, each with connections of its own to the stores. With more than one, feeds and all that
    /// is nobody's request run on a thread beside them. One costs least for each request: start more routers, or give
    /// more threads, when it is busy.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// Largest request, as etcd's.
    #[arg(long, value_name = "BYTES", default_value_t = 1_572_864)]
    pub max_request_bytes: usize,
    /// How often idle watches that ask for it hear of progress, at least 100ms.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub watch_progress_notify_interval: Duration,
    /// Recent events kept for each watched range; a watch that is further behind reads from the shards.
    #[arg(long, value_name = "BYTES", default_value_t = feeds::RING_BYTES)]
    pub feed_ring_bytes: usize,
    /// Whether long lists wait for their turn: `enforce`, `observe` (metrics tell which would wait) or `off`.
    #[arg(long, value_name = "MODE", value_enum, default_value_t = admission::Mode::Enforce)]
    pub admission: admission::Mode,
    #[command(flatten)]
    pub spans: SpanArgs,
    /// Long lists that run at once in this router; the others wait in order, taking turns between clients.
    #[arg(long, value_name = "N", default_value_t = Limits::default().lists)]
    pub long_lists: usize,
    /// Bytes that the answers of long lists that run may be expected to have together. One list always runs. [default: 256
    /// MiB, or an eighth of --memory-bytes if that is less]
    #[arg(long, value_name = "BYTES")]
    pub long_list_bytes: Option<u64>,
    /// Memory that this router may use. Answers that clients have not read yet may hold a quarter of it, and at most 1 GiB.
    /// [default: the limit of its cgroup, or the memory of the machine]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(1..))]
    pub memory_bytes: Option<u64>,
    /// File with the secret by which this router shows to its shards and its meta store that it is one (their
    /// --cluster-secret-file).
    #[arg(long, value_name = "FILE")]
    pub cluster_secret_file: Option<PathBuf>,
    /// Listen where other machines connect although clients are not asked for a certificate: whoever reaches the port may read
    /// and write all.
    #[arg(long)]
    pub insecure_listen: bool,
    /// error, warn, info, debug, trace, or a filter.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: String,
    /// Form of the log on standard error: json has an object a line.
    #[arg(long, value_enum, value_name = "text|json", hide_possible_values = true, default_value = "text")]
    pub log_format: Format,
    /// TLS towards clients.
    #[command(flatten)]
    pub tls: ServerTlsArgs,
    /// TLS towards stores.
    #[command(flatten)]
    pub store_tls: StoreTlsArgs,
    /// TLS towards stock etcds.
    #[command(flatten)]
    pub etcd_tls: EtcdTlsArgs,
    /// TLS towards the meta store.
    #[command(flatten)]
    pub meta_tls: MetaTlsArgs,
    /// Who may ask the admin port.
    #[command(flatten)]
    pub admin_port: AdminArgs,
}

/// `--revision-scope`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Scope {
    /// Revisions of each Kind.
    #[default]
    Kind,
    /// Revisions of all keys.
    Global,
}

/// All settings of a router, validated.
#[derive(Debug)]
pub struct Settings {
    /// The addresses at which clients connect.
    pub listen: Vec<ListenAddr>,
    /// The address of the admin server.
    pub admin: ListenAddr,
    /// The addresses for probes and metrics alone.
    pub probes: Vec<ListenAddr>,
    /// Who may use the admin port.
    pub admin_port: AdminArgs,
    /// Whether to listen at addresses that other machines reach although clients need no certificate.
    pub insecure_listen: bool,
    /// The secret that the router shows to the stores of its cluster.
    pub secret: Option<Secret>,
    /// The URLs that MemberList shows; empty for the listen addresses.
    pub advertise: Vec<String>,
    pub name: String,
    /// The cluster id given by flag; shards that report another one are refused (R1).
    pub cluster_id: Option<ClusterId>,
    /// Which shown revisions a read's header must not fall below.
    pub revision_scope: RevisionScope,
    /// The number of threads that serve clients; with 1, the same thread does everything else as well.
    pub threads: usize,
    /// The largest request in bytes.
    pub max_request_bytes: usize,
    pub tls: Option<ServerTls>,
    pub store_tls: Option<ClientTls>,
    /// TLS towards stock etcds, if it is not that towards stores.
    pub etcd_tls: Option<ClientTls>,
    /// TLS towards the meta store, if it is not that towards stores.
    pub meta_tls: Option<ClientTls>,
    /// The meta store; without one the configuration is fixed.
    pub meta: Option<MetaSettings>,
    pub moves: moves::Settings,
    /// The configuration, overridden by flags. With a meta store it is only the first one of its cluster.
    pub config: KindredConfig,
    /// The stores, in the order of the map's indices.
    pub stores: Vec<StoreSpec>,
    pub default: StoreIx,
    /// The routing table of the configuration.
    pub routes: Routes,
    pub feeds: feeds::Options,
    pub watches: watch_session::Settings,
    pub admission: Arc<Admission>,
    /// Where spans of calls go.
    pub spans: Option<spans::Settings>,
    /// Of answers that clients have not read yet.
    pub unread: unread::Limits,
    /// The router's wall clock, which counts in the reference time (R3). An embedding program may set its own.
    pub wall_clock: WallClock,
    /// The sockets to use; only an embedding program sets others.
    pub network: Network,
}

/// All errors in the flags and in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Errors<String>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration has {} error(s):{}", self.0.len(), self.0)
    }
}

impl std::error::Error for ConfigErrors {}

impl Args {
    /// Validates flags and file.
    ///
    /// # Errors
    /// All errors that were found.
    pub fn settings(&self) -> Result<Settings, ConfigErrors> {
        let mut errors = Errors::default();
        let listen: Vec<ListenAddr> = parts(&self.listen)
            .filter_map(|address| errors.keep(ListenAddr::parse_field("--listen", address)))
            .collect();
        if listen.is_empty() && errors.is_empty() {
            errors.push("--listen: no address; give one such as 127.0.0.1:2379");
        }
        let admin = errors.keep(ListenAddr::parse_field("--admin", &self.admin));
        let probes: Vec<ListenAddr> = self
            .listen_metrics_urls
            .iter()
            .flat_map(|urls| parts(urls))
            .filter_map(|address| errors.keep(ListenAddr::parse_field("--listen-metrics-urls", address)))
            .collect();
        if self.threads == 0 {
            errors.push("--threads: 0 threads cannot run; give 1 or more");
        }
        let tls = errors.keep(self.tls.load());
        let store_tls = errors.keep(self.store_tls.load());
        let meta_tls = errors.keep(self.meta_tls.load());
        let etcd_tls = errors.keep(self.etcd_tls.load());
        let asks = probes.iter().any(|address| address.scheme() == Scheme::Tls);
        if asks && matches!(tls, Some(None)) {
            errors.push("--listen-metrics-urls: https:// needs --cert-file and --key-file; write http://, or give them");
        }
        let secret = self.cluster_secret_file.as_deref();
        let secret = secret.and_then(|path| errors.keep(Secret::read("--cluster-secret-file", path)));
        let meta = self.meta_settings(&mut errors);
        let spans = errors.keep(self.spans.settings(&self.name));
        let stores = self
            .file(&mut errors)
            .and_then(|config| Some((placed(&config, meta.is_some(), &mut errors)?, config)));
        let tls = tls.zip(store_tls).zip(meta_tls).zip(etcd_tls).zip(spans);
        if let (
            true,
            Some(admin),
            Some(((((tls, store_tls), meta_tls), etcd_tls), spans)),
            Some((placed, config)),
        ) = (errors.is_empty(), admin, tls, stores)
        {
            let (stores, default, routes) = placed;
            let memory = self.memory_bytes.or_else(|| limit::available().map(|memory| memory.bytes));
            let bounds = memory::bounds(memory);
            let lists = self.long_list_bytes.unwrap_or(bounds.lists);
            return Ok(Settings {
                listen,
                admin,
                probes,
                admin_port: self.admin_port.clone(),
                insecure_listen: self.insecure_listen,
                secret,
                advertise: self
                    .advertise_client_urls
                    .iter()
                    .flat_map(|urls| parts(urls))
                    .map(str::to_owned)
                    .collect(),
                name: self.name.clone(),
                cluster_id: self.cluster_id.map(ClusterId),
                revision_scope: match self.revision_scope {
                    Scope::Kind => RevisionScope::Kind,
                    Scope::Global => RevisionScope::Global,
                },
                threads: self.threads,
                max_request_bytes: self.max_request_bytes,
                tls,
                store_tls,
                etcd_tls,
                meta_tls,
                meta,
                moves: moves::Settings {
                    copy_bytes_per_second: self.move_bytes_per_second,
                    machine: machine::Settings {
                        reverse_window: self.reverse_window,
                        ..machine::Settings::default()
                    },
                },
                config,
                stores,
                default,
                routes,
                wall_clock: WallClock::System,
                admission: Admission::new(
                    self.admission,
                    Limits { lists: self.long_lists, bytes: lists, ..Limits::default() },
                ),
                watches: watch_session::Settings {
                    notify: self.watch_progress_notify_interval.max(Duration::from_millis(100)),
                    ..watch_session::Settings::default()
                },
                feeds: feeds::Options { ring_bytes: self.feed_ring_bytes, ..feeds::Options::default() },
                spans,
                unread: unread::Limits { bytes: bounds.unread, ..unread::Limits::default() },
                network: Network::System,
            });
        }
        Err(ConfigErrors(errors))
    }

    fn meta_settings(&self, errors: &mut Errors<String>) -> Option<MetaSettings> {
        let urls = self.meta.as_deref()?;
        let endpoints: Vec<_> =
            parts(urls).filter_map(|url| errors.keep(Endpoint::parse_field("--meta", url))).collect();
        if endpoints.is_empty() {
            errors.push("--meta: no address; give one such as http://127.0.0.1:2390");
        }
        let addresses = self.stores.iter().filter_map(|flag| flag.split_once('='));
        let addresses = addresses
            .map(|(name, urls)| (StoreName(name.to_owned()), parts(urls).map(str::to_owned).collect()))
            .collect();
        Some(MetaSettings {
            endpoints,
            cache: self.meta_cache.clone(),
            addresses,
            config: self.config.clone(),
            founding: Founding {
                cluster_id: self.cluster_id.map(ClusterId),
                lineage: self.lineage.clone().map(Lineage),
                goes_on: self.lineage.is_some() && !self.minted,
            },
        })
    }

    /// The configuration from the file or the embedded default, overridden by flags.
    fn file(&self, errors: &mut Errors<String>) -> Option<KindredConfig> {
        let named = |error: &dyn fmt::Display| match &self.config {
            Some(path) => format!("--config {}: {error}", path.display()),
            None => format!("default configuration: {error}"),
        };
        let text = match &self.config {
            Some(path) => errors.keep(std::fs::read_to_string(path).map_err(|error| named(&error)))?,
            None => DEFAULT_CONFIG.to_owned(),
        };
        let mut reading = errors.keep(shape::read::<KindredConfig>(&text).map_err(|error| named(&error)))?;
        if !reading.errors.is_empty() {
            let meaning = reading.value.as_ref().and_then(|config| validate(config).err());
            reading.add(meaning.into_iter().flatten());
        }
        let mut config = match reading.whole() {
            Ok(config) => config,
            Err(wrong) => {
                errors.extend(wrong.iter().map(|error| named(&error)));
                return None;
            }
        };
        if let Some(prefix) = &self.etcd_prefix {
            config.etcd_prefix.clone_from(prefix);
        }
        for flag in &self.stores {
            let Some((name, urls)) = flag.split_once('=') else {
                errors.push(format!("--store {flag:?}: no `=`; write NAME=URL"));
                continue;
            };
            match config.stores.iter_mut().find(|store| store.name.0 == name) {
                Some(store) => store.endpoints = parts(urls).map(str::to_owned).collect(),
                // The store may be in the meta store's state.
                None if self.meta.is_some() => {}
                None => {
                    let known: Vec<_> = config.stores.iter().map(|store| store.name.0.as_str()).collect();
                    errors.push(format!(
                        "--store {flag:?}: no store {name:?} in the configuration; it has {}",
                        known.join(", ")
                    ));
                }
            }
        }
        Some(config)
    }
}

/// The trimmed, non-empty parts of a comma-separated list.
fn parts(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// The stores, the default store and the map of a configuration; `None` after errors were added. With a meta store, a
/// store may get its address later.
fn placed(
    config: &KindredConfig,
    meta: bool,
    errors: &mut Errors<String>,
) -> Option<(Vec<StoreSpec>, StoreIx, Routes)> {
    let validated = match validate(config) {
        Ok(validated) => validated,
        Err(wrong) => {
            errors.extend(wrong.iter().map(ToString::to_string));
            return None;
        }
    };
    let mut specs = Vec::new();
    for (i, store) in validated.stores.iter().enumerate() {
        let field = format!("stores[{i}].endpoints");
        if store.endpoints.is_empty() && !meta {
            let name = &store.name;
            errors.push(format!("{field}: store {name} has no address; add one, or give --store {name}=URL"));
        }
        let endpoints = store.endpoints.iter();
        let endpoints = endpoints.filter_map(|url| errors.keep(Endpoint::parse_field(&field, url))).collect();
        specs.push(StoreSpec {
            name: StoreName(store.name.0.clone()),
            kind: match store.store_type {
                StoreType::Shard => StoreKind::Shard,
                StoreType::Etcd => StoreKind::Etcd,
            },
            slot: store.slot.and_then(|slot| u16::try_from(slot).ok()).and_then(Slot::new),
            uuid: None,
            opens_at: None,
            endpoints,
            primary: None,
            has_standbys: false,
        });
    }
    let StoreIdx(default) = validated.default;
    let default = StoreIx(usize::from(default));
    let named = specs.iter().map(|spec| (spec.name.0.clone(), spec.kind)).collect();
    let routes = Routes::new(validated.map, validated.scheme, named, default);
    Some((specs, default, routes))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn settings(flags: &[&str]) -> Result<Settings, ConfigErrors> {
        Cli::parse_from(std::iter::once(&"x").chain(flags)).args.settings()
    }

    #[test]
    fn the_embedded_default_needs_only_addresses() {
        let stores = ["default", "leases", "nodes", "pods", "events"];
        let flags: Vec<String> = stores.iter().map(|s| format!("--store={s}=127.0.0.1:1")).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let settings = settings(&flags).unwrap();
        assert_eq!(settings.stores.len(), 5);
        assert_eq!(settings.stores[settings.default.0].name.0, "default");
    }

    #[test]
    fn idle_watches_hear_of_progress_as_often_as_the_flag_says() {
        let interval = |flags: &[&str]| {
            let stores = ["default", "leases", "nodes", "pods", "events"];
            let stores: Vec<String> = stores.iter().map(|s| format!("--store={s}=127.0.0.1:1")).collect();
            let flags = stores.iter().map(String::as_str).chain(flags.iter().copied()).collect::<Vec<_>>();
            settings(&flags).unwrap().watches.notify
        };
        assert_eq!(interval(&[]), Duration::from_secs(5));
        assert_eq!(interval(&["--watch-progress-notify-interval=200ms"]), Duration::from_millis(200));
        assert_eq!(interval(&["--watch-progress-notify-interval=1ms"]), Duration::from_millis(100));
    }

    #[test]
    fn all_errors_are_said_at_once_with_their_fields() {
        let ConfigErrors(errors) =
            settings(&["--listen", "nonsense:x:y", "--threads", "0", "--store", "podz=127.0.0.1:1"])
                .unwrap_err();
        for part in
            ["--listen", "--threads", "no store \"podz\"", "stores[0].endpoints", "stores[4].endpoints"]
        {
            assert!(errors.iter().any(|error| error.contains(part)), "{part}: {errors:#?}");
        }
    }

    #[test]
    fn towards_the_meta_store_flags_of_its_own_win_over_those_towards_stores() {
        let missing = ["--meta", "https://127.0.0.1:1", "--store-trusted-ca-file", "/no/store-ca"];
        let said = |more: &[&str]| settings(&[&missing[..], more].concat()).unwrap_err().to_string();
        assert!(!said(&[]).contains("--meta-"), "none was given");
        assert!(said(&["--meta-trusted-ca-file", "/no/ca"]).contains("--meta-trusted-ca-file /no/ca"));
        assert!(said(&["--meta-cert-file", "/no/cert"]).contains("--meta-cert-file needs --meta-key-file"));
        let alone = Cli::try_parse_from(["x", "--meta-cert-file=c", "--meta-key-file=k"]);
        assert!(alone.is_err(), "without --meta");
    }
}
