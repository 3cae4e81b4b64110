//! `kindred up`: a router and one shard process per store, supervised.

mod child;
mod layout;
mod local;
mod supervise;

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use kindred_partition_config::{model::KindredConfig, parse};
use kindred_router::meta::{self, cache};
use kindred_transport::{ListenAddr, auto_tls, tls::ServerTlsArgs};

use layout::{InternalTls, Plan};

/// How long a child may take to stop before it is killed.
const STOP_GRACE: Duration = Duration::from_secs(15);

/// `kindred up`.
#[derive(Debug, Clone, Args)]
pub struct UpArgs {
    /// Where etcd clients connect; comma-separated.
    #[arg(long, visible_alias = "listen-client-urls", value_name = "ADDR", default_value = "127.0.0.1:2379")]
    pub listen: String,
    /// The admin port: health, readiness, metrics, stores.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:2381")]
    pub admin: String,
    /// Stores and partitions to begin with (YAML or JSON); the built-in default when not given. A store without endpoints
    /// is run here. Changes are made by the admin API from then on.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Routers, on consecutive ports; all of them serve the same.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub routers: u16,
    /// Threads of each router that serve clients (see `kindred router --help`).
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: u16,
    /// Where identities, certificates and the last state of the cluster are kept. That state wins over --config.
    #[arg(long, value_name = "DIR", default_value = "kindred.data")]
    pub data_dir: PathBuf,
    /// Routers reach the shards that run here by Unix sockets in DATA-DIR/sockets, which only this user may open, and by
    /// TCP where they cannot. Shards listen on both.
    #[arg(long)]
    pub unix: bool,
    /// Where those sockets are, as an absolute path.
    #[arg(skip)]
    pub sockets: Option<PathBuf>,
    /// URLs that member lists show to clients; by default those of --listen.
    #[arg(long, value_name = "URLS")]
    pub advertise_client_urls: Option<String>,
    /// Serve with TLS and demand client certificates, all made under DATA-DIR/auto-tls: for a quick try.
    #[arg(long, conflicts_with_all = ["cert_file", "key_file"])]
    pub auto_tls: bool,
    /// TLS towards clients. With any of it the connections between router and shards are mTLS too.
    #[command(flatten)]
    pub tls: ServerTlsArgs,
    /// What is logged: error, warn, info, debug, trace, or a filter as `info,h2=warn`.
    #[arg(long, default_value = "info")]
    pub log_level: String,
}

impl UpArgs {
    /// The flags that give the router its TLS towards clients.
    fn client_tls_flags(&self) -> Vec<String> {
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
        if let Some(version) = clap::ValueEnum::to_possible_value(&tls.tls_min_version) {
            words.extend(["--tls-min-version".to_owned(), version.get_name().to_owned()]);
        }
        words
    }
}

/// Runs until a signal.
pub fn run(mut args: UpArgs) -> anyhow::Result<()> {
    kindred_shard::init_logging(&args.log_level)?;
    let config = read_config(args.config.as_deref())?;
    fs::create_dir_all(&args.data_dir)
        .with_context(|| format!("--data-dir {}: cannot be made", args.data_dir.display()))?;
    let _lock = lock(&args.data_dir)?;
    let plan = plan(&args, &config)?;
    if args.unix {
        prepare_sockets(&mut args, &plan)?;
    }
    let internal = prepare_tls(&mut args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(supervise::run(args, plan, internal))
}

/// What to run: by the state that the routers had last, or by the configuration at the first start.
fn plan(args: &UpArgs, config: &KindredConfig) -> anyhow::Result<Plan> {
    let mut last = None;
    for router in 0..64 {
        let Some(state) = cache::read(&layout::state_file(&args.data_dir, router))? else { continue };
        // A router that was stopped before the others has an older one.
        if last.as_ref().is_none_or(|last| meta::order(last) < meta::order(&state)) {
            last = Some(state);
        }
    }
    Ok(match last {
        Some(state) => {
            layout::plan_of_state(&state, config, |name| args.data_dir.join("stores").join(name).is_dir())
        }
        None => layout::plan_of_config(config),
    })
}

fn read_config(path: Option<&Path>) -> anyhow::Result<KindredConfig> {
    let Some(path) = path else { return Ok(parse::parse_config(parse::DEFAULT_CONFIG)?) };
    let text = fs::read_to_string(path).with_context(|| format!("--config {}", path.display()))?;
    let config = parse::parse_config(&text).with_context(|| format!("--config {}", path.display()))?;
    // Only what `up` itself fills in may be missing: the endpoints of the shards that it runs.
    let none: SocketAddr = ([127, 0, 0, 1], 1).into();
    let listens: Vec<_> = layout::local_shards(&config).into_iter().map(|shard| (shard, none)).collect();
    if let Err(errors) =
        kindred_partition_config::validate::validate(&layout::with_endpoints(&config, &listens, false))
    {
        let lines: Vec<String> = errors.iter().map(|error| format!("  {error}")).collect();
        bail!("--config {}: {} error(s)\n{}", path.display(), lines.len(), lines.join("\n"));
    }
    Ok(config)
}

/// One supervisor a folder: two would start the same shards twice.
fn lock(dir: &Path) -> anyhow::Result<fs::File> {
    let path = dir.join("lock");
    let file = fs::File::create(&path).with_context(|| format!("{}: cannot be made", path.display()))?;
    if file.try_lock().is_err() {
        bail!(
            "--data-dir {}: another `kindred up` is running there; stop it or choose another folder",
            dir.display()
        );
    }
    Ok(file)
}

/// Certificates for the inner connections whenever clients are served with TLS, and for clients with `--auto-tls`.
fn prepare_tls(args: &mut UpArgs) -> anyhow::Result<Option<InternalTls>> {
    let outer = args.tls.settings()?.is_some();
    if !outer && !args.auto_tls {
        return Ok(None);
    }
    let made = auto_tls::create(&args.data_dir.join("auto-tls"), &[])
        .context("making certificates for --auto-tls")?;
    if args.auto_tls {
        args.tls.cert_file = Some(made.server_cert.clone());
        args.tls.key_file = Some(made.server_key.clone());
        args.tls.trusted_ca_file = Some(made.ca_cert.clone());
        args.tls.client_cert_auth = true;
    }
    Ok(Some(InternalTls {
        ca: made.ca_cert,
        server: (made.server_cert, made.server_key),
        client: (made.client_cert, made.client_key),
    }))
}

/// The folder of the shards' Unix sockets, and whether they fit there.
fn prepare_sockets(args: &mut UpArgs, plan: &Plan) -> anyhow::Result<()> {
    let dir = std::path::absolute(&args.data_dir)?.join("sockets");
    // They stand in lists of addresses.
    let listed = dir.to_str().is_some_and(|path| !path.contains(|c: char| c == ',' || c.is_whitespace()));
    if !listed {
        bail!("--unix: {}: a comma or space in the path; choose another --data-dir", dir.display());
    }
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(&dir);
    made.with_context(|| format!("--unix: {}: cannot be made", dir.display()))?;
    args.sockets = Some(dir);
    for shard in &plan.local {
        layout::socket(args, &shard.name).context("a shorter --data-dir is needed")?;
    }
    Ok(())
}

/// Every address of a comma-separated flag, checked before any process starts.
fn check_addresses(flag: &str, text: &str) -> anyhow::Result<()> {
    for word in text.split(',') {
        ListenAddr::parse_field(flag, word)?;
    }
    Ok(())
}
