//! Turns flags and configuration file into settings. All errors are reported at once, each with its field.

use std::{fmt, net::SocketAddr, path::PathBuf, time::Duration};

use kindred_partition_config::{
    duration::parse_duration,
    errors::Errors,
    ids::{Slot, parse_cluster_id},
    kind::{DEFAULT_ETCD_PREFIX, KindScheme},
};
use kindred_transport::{
    address::{Endpoint, ListenAddr},
    admin::AdminArgs,
    logging::Format,
    network::Network,
    tls::{ServerTlsArgs, StandbyTlsArgs},
    who::{Routers, Secret},
};
use serde::Deserialize;

use crate::{
    clock::WallClock, core::history::HISTORY_AGE_MIN, identity::Identity, metrics::Label, starting::Starting,
};

pub mod durability;
mod file;

use self::{durability::DurabilitySettings, file::read_file};

/// The default age of history that no client compacts, in a cluster: six times what kube-apiserver leaves.
const HISTORY_AGE_MAX: Duration = Duration::from_secs(30 * 60);

/// Flags of a shard, etcd's names where etcd has one.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Args {
    /// Flags that a configuration file may hold too.
    #[command(flatten)]
    pub options: Options,
    /// TLS towards clients and routers.
    #[command(flatten)]
    pub tls: ServerTlsArgs,
    /// TLS towards the primary, at a standby.
    #[command(flatten)]
    pub standby_tls: StandbyTlsArgs,
    /// Who may ask the admin port.
    #[command(flatten)]
    pub admin: AdminArgs,
    /// Read further settings from this file: YAML or JSON, names as the flags'; a flag wins over the file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// The settings proper. Absent ones come from the file, then from the defaults.
#[derive(Debug, Clone, Default, clap::Args, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Options {
    /// Name of this store and member [default: default].
    #[arg(long)]
    pub name: Option<String>,
    /// Where clients and routers connect, comma-separated; port 0 = any, unix:///PATH = a Unix socket that only this user
    /// may open, without TLS [default: 127.0.0.1:2379].
    #[arg(long, alias = "listen-client-urls", value_name = "ADDRESS")]
    #[serde(alias = "listen-client-urls")]
    pub listen: Option<String>,
    /// What MemberList tells clients to connect to, comma-separated [default: the listen addresses].
    #[arg(long, value_name = "URL")]
    pub advertise_client_urls: Option<String>,
    /// Where /health, /metrics and so on are [default: 127.0.0.1:0].
    #[arg(long, value_name = "ADDRESS")]
    pub admin_listen: Option<String>,
    /// Where the identity and the data are kept; without it nothing is, and every start is a new store.
    #[arg(long, value_name = "DIRECTORY")]
    pub data_dir: Option<PathBuf>,
    /// What a write survives once it is acknowledged, for the Kinds that --durability-of does not name. none: nothing;
    /// buffered: a clean stop, and a crash but for the last --flush-interval; fsync: everything that the disk survives
    /// [default with --data-dir: fsync, and none for leases and events unless with --revisions dense].
    #[arg(long, value_name = "none|buffered|fsync")]
    pub durability: Option<String>,
    /// The same for single Kinds: `leases=none,secrets=fsync`; a DataPartitionConfig that says otherwise wins.
    #[arg(long, value_name = "KIND=MODE,…")]
    pub durability_of: Option<String>,
    /// How long a write of mode buffered waits to be written with others, at most 1s [default: 5ms].
    #[arg(long, value_name = "DURATION")]
    pub flush_interval: Option<String>,
    /// A checkpoint is begun after so many bytes of log, and what is older is dropped after it [default: 268435456].
    #[arg(long, value_name = "BYTES")]
    pub checkpoint_bytes: Option<u64>,
    /// For tests with many segments: a segment of a log that is so long is followed by the next one.
    #[arg(long, value_name = "BYTES", hide = true)]
    pub segment_bytes: Option<u64>,
    /// Start although the data is damaged: what cannot be read is lost, and clients that may have seen it are told so.
    #[arg(long)]
    pub accept_data_loss: bool,
    /// hlc: comparable between stores; dense: etcd's 1, 2, 3 for a shard alone [default: hlc].
    #[arg(long, value_name = "hlc|dense")]
    pub revisions: Option<String>,
    /// Low bits of every revision of this store, unique in a cluster, 0..=1023 [default: 1].
    #[arg(long)]
    pub slot: Option<u16>,
    /// Cluster id in headers, decimal or 0x…; routers of another cluster are refused [default: minted with the identity].
    #[arg(long, value_name = "ID")]
    pub cluster_id: Option<String>,
    /// Part of a cluster: serve only once a router has found this clock within 10 s of the others'; without it the store
    /// is alone and trusts its own clock.
    #[arg(long)]
    pub in_cluster: bool,
    /// File with the secret by which the routers of the cluster show who they are (their --cluster-secret-file):
    /// nobody else is served.
    #[arg(long, value_name = "FILE")]
    pub cluster_secret_file: Option<PathBuf>,
    /// Names (common name or SAN) of the routers' client certificates, comma-separated: nobody else is
    /// served. Needs --trusted-ca-file.
    #[arg(long, value_name = "NAME[,NAME]")]
    pub router_names: Option<String>,
    /// Names of the client certificates of this store's members, comma-separated: they may follow this store when they are
    /// standbys, and nothing else. Without it a standby shows what a router shows. Needs --trusted-ca-file.
    #[arg(long, value_name = "NAME[,NAME]")]
    pub member_names: Option<String>,
    /// Listen where other machines connect although nobody is asked for a client certificate: whoever reaches the port may read
    /// and write all.
    #[arg(long)]
    pub insecure_listen: bool,
    /// For tests of wrong clocks: set the wall clock wrong by this much (`1h`, `-30s`).
    #[arg(long, value_name = "DURATION", hide = true, allow_hyphen_values = true)]
    pub wall_clock_offset: Option<String>,
    /// Be a standby of the shard at this URL: take over all that it executes, serve nothing, and be ready to go on in its
    /// place. Needs a --data-dir of its own, and the --name, --slot and --cluster-secret-file of that shard. Without effect
    /// once it was promoted.
    #[arg(long, value_name = "URL")]
    pub standby_of: Option<String>,
    /// Make this member of a store start from its disk again, though it was to follow another one: the others are lost. It
    /// must not run. This ends at once; start the member as always then, and have it serve by `kindred store failover NAME
    /// --to URL --force`.
    #[arg(long)]
    #[serde(skip)]
    pub reclaim: bool,
    /// kube-apiserver's --etcd-prefix [default: /registry].
    #[arg(long, value_name = "PREFIX")]
    pub etcd_prefix: Option<String>,
    /// Largest request [default: 1572864].
    #[arg(long, value_name = "BYTES")]
    pub max_request_bytes: Option<u64>,
    /// Most operations of a txn [default: 128].
    #[arg(long, value_name = "N")]
    pub max_txn_ops: Option<u32>,
    /// Most streams of one connection [default: 1048576].
    #[arg(long, value_name = "N")]
    pub max_concurrent_streams: Option<u32>,
    /// How often idle watches that ask for it hear of progress, at least 100ms [default: 5s].
    #[arg(long, value_name = "DURATION")]
    pub watch_progress_notify_interval: Option<String>,
    /// History that is older is compacted although nobody asks for it, at least 10s; 0s = none is [default: 30m with
    /// --in-cluster, else 0s].
    #[arg(long, value_name = "DURATION")]
    pub history_max_age: Option<String>,
    /// Bytes of history above which the oldest is compacted although nobody asks for it, but for the last 10s; 0 = none is
    /// [default: half of the quota with --in-cluster, else 0].
    #[arg(long, value_name = "BYTES")]
    pub history_max_bytes: Option<u64>,
    /// Bytes above which NOSPACE is raised; 0 = no quota [default: 60 % of the memory of the cgroup, or of the machine,
    /// divided by --memory-shared-by].
    #[arg(long, value_name = "BYTES")]
    pub quota_backend_bytes: Option<u64>,
    /// How many shards share this machine's memory, for the quota that no flag gives [default: 1].
    #[arg(long, value_name = "N")]
    pub memory_shared_by: Option<u32>,
    /// The same for single Kinds, so that one cannot take the room of all: `events=1073741824`.
    #[arg(long, value_name = "KIND=BYTES,…")]
    pub quota: Option<String>,
    /// Threads that serve connections; 1 is the engine's own, which costs least for each request [default: 1].
    #[arg(long, value_name = "N")]
    pub threads: Option<u32>,
    /// error, warn, info, debug, trace, or a filter [default: info].
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Form of the log on standard error: json has an object a line [default: text].
    #[arg(long, value_enum, value_name = "text|json", hide_possible_values = true)]
    pub log_format: Option<Format>,
}

/// How revisions are assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Revisions {
    Hlc,
    Dense,
}

impl Revisions {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hlc => "hlc",
            Self::Dense => "dense",
        }
    }
}

#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the flags' names; see `Options`")]
pub struct Settings {
    pub name: String,
    pub listen: Vec<ListenAddr>,
    pub advertise_client_urls: Vec<String>,
    pub admin_listen: ListenAddr,
    pub data_dir: Option<PathBuf>,
    pub durability: DurabilitySettings,
    pub revisions: Revisions,
    pub slot: Slot,
    pub cluster_id: Option<u64>,
    pub in_cluster: bool,
    pub routers: Routers,
    /// Names of the certificates of standbys.
    pub member_names: Vec<String>,
    pub insecure_listen: bool,
    /// The primary to follow.
    pub standby_of: Option<Endpoint>,
    /// The member is only to be made to start from its disk.
    pub reclaim: bool,
    /// What a standby shows to its primary.
    pub secret: Option<Secret>,
    pub standby_tls: StandbyTlsArgs,
    pub wall_clock_offset_micros: i64,
    pub etcd_prefix: String,
    pub request_bytes_max: usize,
    pub txn_ops_max: usize,
    pub streams_max: u32,
    pub progress_interval: Duration,
    /// The age beyond which history is compacted automatically.
    pub history_age_max: Option<Duration>,
    /// The bytes of history above which the oldest is compacted automatically; 0 = none, `None` = by the quota.
    pub history_bytes_max: Option<u64>,
    /// `None` = derived from the available memory.
    pub quota_bytes: Option<u64>,
    pub memory_shared_by: u32,
    /// Shows the progress of the start.
    pub starting: Starting,
    /// The label of its gauges.
    pub label: Label,
    pub threads: usize,
    pub log_level: String,
    pub log_format: Format,
    pub tls: ServerTlsArgs,
    pub admin: AdminArgs,
    /// The store's identity, instead of the one in the data directory; set only by an embedding program.
    pub identity: Option<Identity>,
    /// Set only by an embedding program.
    pub network: Network,
    /// Set only by an embedding program.
    pub wall_clock: WallClock,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The flag's name without dashes.
    pub field: String,
    /// What is wrong and what to write instead.
    pub problem: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Errors<FieldError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the configuration cannot be used:{}", self.0)
    }
}

impl std::error::Error for ConfigErrors {}

fn wrong(field: &str, problem: impl fmt::Display) -> FieldError {
    FieldError { field: field.to_owned(), problem: problem.to_string() }
}

/// Adds the name of the field to the error of its value.
fn in_field<T>(field: &str, value: Result<T, impl fmt::Display>) -> Result<T, FieldError> {
    value.map_err(|problem| wrong(field, problem))
}

impl Settings {
    /// Combines flags, file and defaults.
    ///
    /// # Errors
    /// Lists everything that is wrong.
    pub fn resolve(args: Args) -> Result<Self, ConfigErrors> {
        let mut errors = Errors::default();
        let Args { options, mut tls, standby_tls, mut admin, config } = args;
        let options = match config.map(|path| read_file(path, &mut tls, &mut admin)) {
            None => options,
            Some(Ok(file)) => options.or(file),
            Some(Err(problem)) => {
                errors.push(wrong("config", problem));
                options
            }
        };
        match options.check(tls, standby_tls, admin, &mut errors) {
            Some(settings) if errors.is_empty() => Ok(settings),
            Some(_) | None => Err(ConfigErrors(errors)),
        }
    }
}

impl Options {
    /// Takes each setting from `self`, else from `file`.
    fn or(self, file: Self) -> Self {
        Self {
            name: self.name.or(file.name),
            listen: self.listen.or(file.listen),
            advertise_client_urls: self.advertise_client_urls.or(file.advertise_client_urls),
            admin_listen: self.admin_listen.or(file.admin_listen),
            data_dir: self.data_dir.or(file.data_dir),
            durability: self.durability.or(file.durability),
            durability_of: self.durability_of.or(file.durability_of),
            flush_interval: self.flush_interval.or(file.flush_interval),
            checkpoint_bytes: self.checkpoint_bytes.or(file.checkpoint_bytes),
            segment_bytes: self.segment_bytes.or(file.segment_bytes),
            accept_data_loss: self.accept_data_loss || file.accept_data_loss,
            revisions: self.revisions.or(file.revisions),
            slot: self.slot.or(file.slot),
            cluster_id: self.cluster_id.or(file.cluster_id),
            in_cluster: self.in_cluster || file.in_cluster,
            cluster_secret_file: self.cluster_secret_file.or(file.cluster_secret_file),
            router_names: self.router_names.or(file.router_names),
            member_names: self.member_names.or(file.member_names),
            insecure_listen: self.insecure_listen || file.insecure_listen,
            wall_clock_offset: self.wall_clock_offset.or(file.wall_clock_offset),
            standby_of: self.standby_of.or(file.standby_of),
            reclaim: self.reclaim,
            etcd_prefix: self.etcd_prefix.or(file.etcd_prefix),
            max_request_bytes: self.max_request_bytes.or(file.max_request_bytes),
            max_txn_ops: self.max_txn_ops.or(file.max_txn_ops),
            max_concurrent_streams: self.max_concurrent_streams.or(file.max_concurrent_streams),
            watch_progress_notify_interval: self
                .watch_progress_notify_interval
                .or(file.watch_progress_notify_interval),
            history_max_age: self.history_max_age.or(file.history_max_age),
            history_max_bytes: self.history_max_bytes.or(file.history_max_bytes),
            quota_backend_bytes: self.quota_backend_bytes.or(file.quota_backend_bytes),
            memory_shared_by: self.memory_shared_by.or(file.memory_shared_by),
            quota: self.quota.or(file.quota),
            threads: self.threads.or(file.threads),
            log_level: self.log_level.or(file.log_level),
            log_format: self.log_format.or(file.log_format),
        }
    }

    /// How the shard recognizes its routers.
    fn routers(&self, tls: &ServerTlsArgs, errors: &mut Errors<FieldError>) -> Routers {
        let read = |path: &PathBuf| Secret::read("--cluster-secret-file", path).map(Some);
        let secret = self.cluster_secret_file.as_ref().map_or(Ok(None), read);
        let names = shown_names("router-names", self.router_names.as_deref(), tls, errors);
        Routers::new(errors.or(in_field("cluster-secret-file", secret), None), names)
    }

    /// Checks and converts the settings. `None` is returned only together with an error.
    fn check(
        self,
        tls: ServerTlsArgs,
        standby_tls: StandbyTlsArgs,
        admin: AdminArgs,
        errors: &mut Errors<FieldError>,
    ) -> Option<Settings> {
        let slot = Slot::try_from(self.slot.unwrap_or(1))
            .map_err(|problem| errors.push(wrong("slot", problem)))
            .ok();
        let stand_in = || ListenAddr::tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
        let listen = list(self.listen.as_deref().unwrap_or("127.0.0.1:2379"))
            .map(|text| errors.or(in_field("listen", text.parse()), stand_in()))
            .collect();
        let advertise: Vec<String> = self
            .advertise_client_urls
            .as_deref()
            .map(list)
            .into_iter()
            .flatten()
            .map(str::to_owned)
            .collect();
        for url in &advertise {
            if !["http://", "https://", "unix:", "unixs:"].iter().any(|scheme| url.starts_with(scheme)) {
                errors.push(wrong(
                    "advertise-client-urls",
                    format!("{url:?} is not a URL; write http://HOST:PORT"),
                ));
            }
        }
        let secret = self
            .cluster_secret_file
            .as_ref()
            .and_then(|path| Secret::read("--cluster-secret-file", path).ok());
        let routers = self.routers(&tls, errors);
        let member_names = shown_names("member-names", self.member_names.as_deref(), &tls, errors);
        if !member_names.is_empty() && self.router_names.is_none() {
            errors.push(wrong(
                "member-names",
                "without --router-names whoever may follow may do everything; say how routers' certificates are named",
            ));
        }
        let standby_of = self.standby_of.as_deref().map(str::parse::<Endpoint>).transpose();
        let standby_of = errors.or(in_field("standby-of", standby_of), None);
        if standby_of.is_some() && self.data_dir.is_none() {
            errors.push(wrong(
                "standby-of",
                "a standby keeps what it takes over: give it a --data-dir of its own",
            ));
        }
        let admin_listen = self.admin_listen.as_deref().map_or_else(|| Ok(stand_in()), str::parse);
        let interval =
            self.watch_progress_notify_interval.as_deref().map_or(Ok(Duration::from_secs(5)), parse_duration);
        let interval =
            errors.or(in_field("watch-progress-notify-interval", interval), Duration::from_secs(5));
        let offset = self.wall_clock_offset.as_deref().map_or(Ok(0), signed_micros);
        let revisions =
            errors.or(in_field("revisions", revisions(self.revisions.as_deref())), Revisions::Hlc);
        if standby_of.is_some() && revisions == Revisions::Dense {
            errors.push(wrong(
                "standby-of",
                "dense revisions are for a shard alone; leave out --revisions dense",
            ));
        }
        if self.in_cluster && revisions == Revisions::Dense {
            errors.push(wrong(
                "in-cluster",
                "dense revisions are for a shard alone; leave out --revisions dense",
            ));
        }
        let history_age_max = history_age_max(self.history_max_age.as_deref(), self.in_cluster, revisions);
        let history_bytes_max = history_bytes_max(self.history_max_bytes, self.in_cluster, revisions);
        let bytes = self.max_request_bytes.unwrap_or(1_572_864);
        // The length of a gRPC message has 32 bits.
        if !(1024..=(1 << 31)).contains(&bytes) {
            errors.push(wrong("max-request-bytes", "write between 1024 and 2147483648"));
        }
        for (field, zero) in [
            ("max-txn-ops", self.max_txn_ops == Some(0)),
            ("max-concurrent-streams", self.max_concurrent_streams == Some(0)),
            ("threads", self.threads == Some(0)),
            ("memory-shared-by", self.memory_shared_by == Some(0)),
        ] {
            if zero {
                errors.push(wrong(field, "write 1 or more"));
            }
        }
        let prefix = self.etcd_prefix.clone().unwrap_or_else(|| DEFAULT_ETCD_PREFIX.to_owned());
        if !prefix.starts_with('/') {
            errors.push(wrong("etcd-prefix", format!("{prefix:?} does not begin with a slash")));
        }
        let durability = durability::check(&self, &KindScheme::new(&prefix), revisions, errors);
        Some(Settings {
            name: self.name.filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned()),
            listen,
            advertise_client_urls: advertise,
            admin_listen: errors.or(in_field("admin-listen", admin_listen), stand_in()),
            data_dir: self.data_dir,
            durability,
            revisions,
            cluster_id: errors.or(
                in_field("cluster-id", self.cluster_id.as_deref().map(parse_cluster_id).transpose()),
                None,
            ),
            in_cluster: self.in_cluster,
            routers,
            member_names,
            insecure_listen: self.insecure_listen,
            standby_of,
            reclaim: self.reclaim,
            secret,
            standby_tls,
            wall_clock_offset_micros: errors.or(in_field("wall-clock-offset", offset), 0),
            etcd_prefix: prefix,
            request_bytes_max: usize::try_from(bytes).unwrap_or(usize::MAX),
            txn_ops_max: self.max_txn_ops.unwrap_or(128) as usize,
            streams_max: self.max_concurrent_streams.unwrap_or(1 << 20),
            // etcd has the same minimum.
            progress_interval: interval.max(Duration::from_millis(100)),
            history_age_max: errors.or(in_field("history-max-age", history_age_max), None),
            history_bytes_max: errors.or(in_field("history-max-bytes", history_bytes_max), None),
            quota_bytes: self.quota_backend_bytes,
            memory_shared_by: self.memory_shared_by.unwrap_or(1),
            starting: Starting::default(),
            label: Label::default(),
            threads: self.threads.unwrap_or(1) as usize,
            log_level: self.log_level.unwrap_or_else(|| "info".to_owned()),
            log_format: self.log_format.unwrap_or_default(),
            tls,
            admin,
            identity: None,
            network: Network::System,
            wall_clock: WallClock::System,
            // Last, so that all other errors are noted before.
            slot: slot?,
        })
    }
}

/// The names of a flag, which are compared with those of certificates.
fn shown_names(
    field: &str,
    names: Option<&str>,
    tls: &ServerTlsArgs,
    errors: &mut Errors<FieldError>,
) -> Vec<String> {
    let names: Vec<_> = names.map(list).into_iter().flatten().map(str::to_owned).collect();
    if !names.is_empty() && tls.trusted_ca().is_none() {
        errors.push(wrong(
            field,
            "certificates are shown only with --cert-file, --key-file and --trusted-ca-file",
        ));
    }
    names
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

/// The maximum age of history; dense revisions tell no age.
fn history_age_max(
    text: Option<&str>,
    in_cluster: bool,
    revisions: Revisions,
) -> Result<Option<Duration>, String> {
    let Some(text) = text else {
        return Ok((in_cluster && revisions == Revisions::Hlc).then_some(HISTORY_AGE_MAX));
    };
    let age = parse_duration(text)?;
    if age.is_zero() {
        return Ok(None);
    }
    if revisions == Revisions::Dense {
        return Err("dense revisions tell no age: leave it out, or write 0s".to_owned());
    }
    if age < HISTORY_AGE_MIN {
        let min = HISTORY_AGE_MIN.as_secs();
        return Err(format!("{text:?} is less than {min}s, for which lists may be read"));
    }
    Ok(Some(age))
}

/// The maximum bytes of history; `None` = by the quota.
fn history_bytes_max(
    bytes: Option<u64>,
    in_cluster: bool,
    revisions: Revisions,
) -> Result<Option<u64>, String> {
    match bytes {
        None if in_cluster => Ok(None),
        None | Some(0) => Ok(Some(0)),
        Some(_) if revisions == Revisions::Dense => {
            Err("dense revisions tell no age, by which history goes: leave it out, or write 0".to_owned())
        }
        Some(bytes) => Ok(Some(bytes)),
    }
}

fn revisions(text: Option<&str>) -> Result<Revisions, String> {
    match text {
        None | Some("hlc") => Ok(Revisions::Hlc),
        Some("dense") => Ok(Revisions::Dense),
        Some(other) => Err(format!("{other:?} is neither hlc nor dense")),
    }
}

/// A duration with an optional minus sign, in microseconds.
fn signed_micros(text: &str) -> Result<i64, String> {
    let (sign, rest) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let micros = parse_duration(rest)?.as_micros();
    i64::try_from(micros).map(|micros| sign * micros).map_err(|_| format!("{text:?} is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Result<Settings, ConfigErrors> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("shard.yaml");
        std::fs::write(&path, text).unwrap();
        Settings::resolve(Args { config: Some(path), ..Args::default() })
    }

    #[test]
    fn all_errors_at_once_with_their_fields() {
        let text = "listen: nowhere\nwall-clock-offset: --1s\nrevisions: sparse\nslot: 5000\ncluster-id: x\nmax-txn-ops: 0\n\
                    watch-progress-notify-interval: soon\nadvertise-client-urls: host:1";
        let ConfigErrors(errors) = options(text).unwrap_err();
        let mut fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        fields.sort_unstable();
        let expected = [
            "advertise-client-urls",
            "cluster-id",
            "listen",
            "max-txn-ops",
            "revisions",
            "slot",
            "wall-clock-offset",
            "watch-progress-notify-interval",
        ];
        assert_eq!(fields, expected);
    }

    #[test]
    fn flags_win_over_the_file_and_unknown_names_are_refused() {
        let settings =
            options(r#"{"name": "pods", "slot": 7, "cert-file": "/c", "max-txn-ops": 5}"#).unwrap();
        assert_eq!((settings.name.as_str(), settings.slot.get(), settings.txn_ops_max), ("pods", 7, 5));
        assert_eq!(settings.tls.cert_file, Some("/c".into()));
        let ConfigErrors(errors) = options("{in-cluster: true, revisions: dense}").unwrap_err();
        assert_eq!(errors[0].field, "in-cluster", "{errors:?}");
        let ConfigErrors(errors) = options("nmae: x").unwrap_err();
        assert!(errors[0].field == "config" && errors[0].problem.contains("nmae"), "{errors:?}");
    }

    #[test]
    fn an_offset_may_be_negative() {
        assert_eq!((signed_micros("-30s"), signed_micros("1ms")), (Ok(-30_000_000), Ok(1000)));
        assert!(signed_micros("--30s").is_err());
    }
}
