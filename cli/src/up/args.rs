//! The command line of `kindred up`. The doc comments of arguments are the help texts.

use std::{collections::BTreeSet, path::PathBuf};

use clap::Args;
use kindred_partition_config::{ids::parse_cluster_id, model::UpConfig};
use kindred_transport::{admin::AdminArgs, logging::Format, tls::ServerTlsArgs};

use super::cluster::Cluster;

/// `kindred up`.
#[derive(Debug, Clone, Args)]
pub struct UpArgs {
    /// Addresses for etcd clients, comma-separated.
    #[arg(long, visible_alias = "listen-client-urls", value_name = "ADDR", default_value = "127.0.0.1:2379")]
    pub listen: String,
    /// Address of the admin port: health, readiness, metrics, stores.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:2381")]
    pub admin: String,
    /// More addresses for probes and metrics alone, comma-separated, as etcd's.
    #[arg(long, value_name = "URL[,URL]")]
    pub listen_metrics_urls: Option<String>,
    /// Initial stores and partitions (YAML or JSON) [default: built in]. Stores without endpoints run here. Later
    /// changes are made through the admin API.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Number of routers, on consecutive ports; all of them serve the same.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub routers: u16,
    /// Number of threads of each router that serve clients (see `kindred router --help`).
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Folder for identities, certificates, data and the last state of the cluster. That state takes precedence
    /// over --config.
    #[arg(long, value_name = "DIR", default_value = "kindred.data")]
    pub data_dir: PathBuf,
    /// Let routers reach the local shards through Unix sockets in DATA-DIR/sockets, which only this user can open,
    /// and through TCP otherwise. Shards listen on both.
    #[arg(long)]
    pub unix: bool,
    /// Run a standby of each local store beside it, in DATA-DIR/standbys: it has everything of the store, and takes over
    /// when the store's process is lost. On one machine this is for trying it out.
    #[arg(long, conflicts_with = "unix")]
    pub standbys: bool,
    /// Run the local stores in the process of the first router: a request costs least so, and takes the least time. They
    /// share one thread, and end together. For clusters of some thousand nodes.
    #[arg(long, conflicts_with_all = ["unix", "standbys"])]
    pub together: bool,
    /// The stores whose primary was a standby when it was last promoted, so that its data is in DATA-DIR/standbys.
    #[arg(skip)]
    pub swapped: BTreeSet<String>,
    /// The absolute path of the sockets' folder, with `--unix`.
    #[arg(skip)]
    pub sockets: Option<PathBuf>,
    /// Whether the admin ports use certificates that this command created.
    #[arg(skip)]
    pub own_admin: bool,
    /// Start these stores (`meta` = the meta store) although their data is damaged: unreadable data is lost, and
    /// clients that may have seen it are told so. Applies to one start; automatic restarts do not accept damage
    /// again.
    #[arg(long, value_name = "STORE[,STORE]", value_delimiter = ',')]
    pub accept_data_loss: Vec<String>,
    /// The flags that the configuration sets for the processes.
    #[arg(skip)]
    pub section: UpConfig,
    /// The number of stores that share this machine's memory.
    #[arg(skip)]
    pub local_stores: usize,
    /// Id of the cluster in headers and handshakes, decimal or 0x… [default: the folder's own, minted at its first
    /// start].
    #[arg(long, value_name = "ID", value_parser = parse_cluster_id)]
    pub cluster_id: Option<u64>,
    /// The cluster of the data folder.
    #[arg(skip)]
    pub cluster: Option<Cluster>,
    /// URLs for clients in member lists [default: those of --listen].
    #[arg(long, value_name = "URLS")]
    pub advertise_client_urls: Option<String>,
    /// Serve with TLS and require client certificates, all created under DATA-DIR/auto-tls; for trying kindred out.
    #[arg(long, conflicts_with_all = ["cert_file", "key_file"])]
    pub auto_tls: bool,
    /// TLS for clients. If it is used, connections between routers and shards use mTLS as well.
    #[command(flatten)]
    pub tls: ServerTlsArgs,
    /// Serve clients of other machines without client certificates: any client that reaches the port can read and
    /// write everything.
    #[arg(long)]
    pub insecure_listen: bool,
    /// Authentication at the routers' admin ports. With TLS for clients and none of these flags, the certificate
    /// DATA-DIR/auto-tls/admin.crt is required.
    #[command(flatten)]
    pub admin_port: AdminArgs,
    /// Log level: error, warn, info, debug, trace, or a filter such as `info,h2=warn`.
    #[arg(long, default_value = "info")]
    pub log_level: String,
    /// Form of the log on standard error, also that of the processes: json has an object a line.
    #[arg(long, value_enum, value_name = "text|json", hide_possible_values = true, default_value = "text")]
    pub log_format: Format,
}

impl UpArgs {
    /// The router's flags for its TLS towards clients.
    pub fn client_tls_flags(&self) -> Vec<String> {
        let mut words = Vec::new();
        let tls = &self.tls;
        for (flag, file) in [
            ("--cert-file", &tls.cert_file),
            ("--key-file", &tls.key_file),
            ("--trusted-ca-file", &tls.trusted_ca_file),
        ] {
            words.extend(file.iter().flat_map(|file| [flag.to_owned(), file.display().to_string()]));
        }
        for (flag, names) in [
            ("--client-cert-allowed-cn", &tls.client_cert_allowed_cn),
            ("--client-cert-allowed-hostname", &tls.client_cert_allowed_hostname),
        ] {
            if !names.is_empty() {
                words.extend([flag.to_owned(), names.join(",")]);
            }
        }
        for (flag, on) in
            [("--client-cert-auth", tls.client_cert_auth), ("--allow-plaintext", tls.allow_plaintext)]
        {
            if on {
                words.push(flag.to_owned());
            }
        }
        if self.insecure_listen {
            words.push("--insecure-listen".to_owned());
        }
        if let Some(version) = clap::ValueEnum::to_possible_value(&tls.tls_min_version) {
            words.extend(["--tls-min-version".to_owned(), version.get_name().to_owned()]);
        }
        words
    }
}
