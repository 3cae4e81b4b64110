//! `kindred up` supervises routers, a meta store, and a shard process for each store.

pub mod args;
mod begin;
pub mod child;
mod child_log;
mod cluster;
mod doors;
mod flags;
mod keep;
mod layout;
mod local;
mod supervise;

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use kindred_partition_config::{
    errors::Errors, ids::Term, model::KindredConfig, parse, shape, state::ClusterState, validate::FieldError,
};
use kindred_router::meta::{self, cache};
use kindred_shard::identity::Identity;
use kindred_shard::standby::{
    membership,
    role::{Does, Role},
};
use kindred_transport::{admin::AdminArgs, auto_tls, logging::Process, private, who};

use args::UpArgs;
use layout::{InternalTls, Plan};

/// Runs until a signal arrives.
pub fn run(mut args: UpArgs) -> anyhow::Result<()> {
    let process = Process { kind: "up", name: None };
    let _logging = kindred_shard::begin_logging(&args.log_level, args.log_format, process)?;
    let config = read_config(args.config.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Checks that fail leave no files behind. If another `up` uses the folder, that is the error to report.
    let early = layout::lock_file(&args.data_dir).exists().then(|| lock(&args.data_dir)).transpose()?;
    runtime.block_on(doors::check_free(&args))?;
    take_folder(&args.data_dir)?;
    let _lock = match early {
        Some(lock) => lock,
        None => lock(&args.data_dir)?,
    };
    let last = last_state(&args)?;
    let used = last.is_some() || args.data_dir.join("stores").is_dir();
    args.cluster = Some(cluster::Cluster::of(&args.data_dir, args.cluster_id, last.as_ref(), used)?);
    let plan = plan(&args, &config, last.as_ref());
    let copies = if args.standbys { 2 } else { 1 };
    (args.section, args.local_stores) = (config.up.clone(), copies * plan.local.len());
    args.swapped = swapped(&args, &plan)?;
    if args.unix {
        prepare_sockets(&mut args, &plan)?;
    }
    let internal = prepare_tls(&mut args)?;
    doors::check(&args)?;
    let secret = layout::secret_file(&args.data_dir);
    who::Secret::make(&secret).with_context(|| format!("{}: cannot be made", secret.display()))?;
    check_flags(&args, &config, &plan)?;
    runtime.block_on(supervise::run(args, plan, internal))
}

/// The stores whose primary was a standby before it was promoted: its data is in the standby's folder.
fn swapped(args: &UpArgs, plan: &Plan) -> anyhow::Result<BTreeSet<String>> {
    let primary_in = |folder: &Path| -> anyhow::Result<Option<Term>> {
        let role = Role::read(folder)?;
        Ok(role.filter(|role| role.does == Does::Primary).map(|role| role.term))
    };
    let mut swapped = BTreeSet::new();
    for shard in &plan.local {
        let (of_store, of_standby) = layout::folders(args, &shard.name);
        // Of two that take themselves for it, the later one is.
        let (first, second) = (primary_in(&of_store)?, primary_in(&of_standby)?);
        let is_swapped = second.is_some_and(|second| first.is_none_or(|first| first < second));
        if is_swapped {
            swapped.insert(shard.name.clone());
        }
        let (primary, standby) = if is_swapped { (of_standby, of_store) } else { (of_store, of_standby) };
        confirm(&primary, &standby)?;
    }
    Ok(swapped)
}

/// Confirms the primary in a folder: nobody can have promoted its standby, whose folder is locked as well. Standbys that
/// run elsewhere may have been promoted, so then a router must confirm it.
fn confirm(primary: &Path, standby: &Path) -> anyhow::Result<()> {
    let Some(role) = Role::read(primary)?.filter(|role| role.does == Does::Primary) else { return Ok(()) };
    let own = Identity::read(standby)?.map(|identity| membership::id_of(identity.member_id));
    if !role.counted.is_empty() && role.counted.iter().all(|id| Some(id) == own.as_ref()) {
        Role { counted: Vec::new(), ..role }.write(primary)?;
    }
    Ok(())
}

/// Whether a cluster has run in a folder.
#[must_use]
pub fn is_used(folder: &Path) -> bool {
    layout::state_file(folder, 0).exists()
}

/// The newest state that the routers of this folder had.
fn last_state(args: &UpArgs) -> anyhow::Result<Option<ClusterState>> {
    let (mut last, kept) = (None, cluster::Cluster::kept(&args.data_dir)?);
    for router in 0..64 {
        let Some(state) = cache::read(&layout::state_file(&args.data_dir, router))? else { continue };
        // The state is of another cluster. The router reports that and puts the file aside.
        if kept.as_ref().is_some_and(|kept| !kept.may_have(&state)) {
            continue;
        }
        // A router that stopped earlier may have an older state.
        if last.as_ref().is_none_or(|last| meta::order(last) < meta::order(&state)) {
            last = Some(state);
        }
    }
    Ok(last)
}

/// The processes to run: by the routers' last state or, at the first start, by the configuration.
fn plan(args: &UpArgs, config: &KindredConfig, last: Option<&ClusterState>) -> Plan {
    match last {
        Some(state) => {
            layout::plan_of_state(state, config, |name| args.data_dir.join("stores").join(name).is_dir())
        }
        None => layout::plan_of_config(config),
    }
}

/// Checks the flags of all processes before any of them starts.
fn check_flags(args: &UpArgs, config: &KindredConfig, plan: &Plan) -> anyhow::Result<()> {
    let local = plan.local.iter().map(|shard| shard.name.clone());
    let mut stores: Vec<String> =
        local.chain(layout::local_shards(config).into_iter().map(|shard| shard.name)).collect();
    stores.sort_unstable();
    stores.dedup();
    let mut errors = flags::check(&args.section, &stores);
    for name in &args.accept_data_loss {
        if name != flags::META && !stores.contains(name) {
            let there = stores.join(", ");
            errors
                .push(format!("--accept-data-loss {name}: no such store runs here; there are meta, {there}"));
        }
    }
    if errors.is_empty() {
        let (any, program): (SocketAddr, _) = (([127, 0, 0, 1], 0).into(), Path::new("kindred"));
        let meta = layout::meta(program, args, any, None);
        errors.extend(flags::try_shard(&meta.args).err().map(|error| format!("up.meta: {error}")));
        for shard in &plan.local {
            let spec = layout::shard(program, args, &plan.prefix, shard, any, None);
            let error = flags::try_shard(&spec.args).err();
            let error =
                error.map(|error| format!("{}: {error}", flags::field_of(&args.section, &shard.name)));
            // A flag of all shards is wrong in each of them.
            errors.extend(error.filter(|error| !errors.contains(error)));
        }
        // Its port is not known yet, and 0 is no port of a server.
        let beside = layout::Beside { meta: ([127, 0, 0, 1], 1).into(), stores: Vec::new() };
        let router = layout::router(program, args, (0, "127.0.0.1:0", "127.0.0.1:0"), &beside, None);
        errors.extend(flags::try_router(&router.args).err().map(|error| format!("up.router: {error}")));
    }
    if errors.is_empty() {
        return Ok(());
    }
    bail!("{} error(s) in the flags of the processes{errors}", errors.len())
}

fn read_config(path: Option<&Path>) -> anyhow::Result<KindredConfig> {
    let Some(path) = path else { return Ok(parse::parse_config(parse::DEFAULT_CONFIG)?) };
    let text = fs::read_to_string(path).with_context(|| format!("--config {}", path.display()))?;
    let mut reading =
        shape::read::<KindredConfig>(&text).with_context(|| format!("--config {}", path.display()))?;
    reading.add(reading.value.as_ref().map(meaning).unwrap_or_default());
    let wrong = |errors: Errors<FieldError>| {
        anyhow::anyhow!("--config {}: {} error(s){errors}", path.display(), errors.len())
    };
    reading.whole().map_err(wrong)
}

/// What is wrong with the meaning of a configuration. Only the endpoints of the local shards may be missing; `up` fills them
/// in.
fn meaning(config: &KindredConfig) -> Vec<FieldError> {
    let none: SocketAddr = ([127, 0, 0, 1], 1).into();
    let listens: Vec<_> = layout::local_shards(config).into_iter().map(|shard| (shard, none)).collect();
    let checked =
        kindred_partition_config::validate::validate(&layout::with_endpoints(config, &listens, false));
    checked.err().unwrap_or_default()
}

/// Checks a configuration. Only the endpoints of the local shards may be missing; `up` fills them in.
///
/// # Errors
/// Everything that is wrong.
pub fn check_config(config: &KindredConfig) -> Result<(), Errors<String>> {
    let errors: Errors<String> = meaning(config).iter().map(ToString::to_string).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// The first state of a cluster with this configuration.
///
/// # Errors
/// When the configuration cannot be read, or is wrong.
pub fn first_state(path: Option<&Path>) -> anyhow::Result<ClusterState> {
    let config = read_config(path)?;
    let none: SocketAddr = ([127, 0, 0, 1], 1).into();
    let listens: Vec<_> = layout::local_shards(&config).into_iter().map(|shard| (shard, none)).collect();
    let state = ClusterState::bootstrap(&layout::with_endpoints(&config, &listens, false));
    state.map_err(|errors| anyhow::anyhow!("{}", Errors::from_iter(errors)))
}

/// Takes the data folder of a cluster, which may be new.
///
/// # Errors
/// When it cannot be made, or others may read it.
pub fn take_folder(folder: &Path) -> anyhow::Result<()> {
    private::take(folder, &["stores", "meta", "router.state.json"])
        .with_context(|| format!("--data-dir {}: cannot be made", folder.display()))
}

/// Makes the folder of a new cluster.
///
/// # Errors
/// When it cannot be made.
pub fn found(folder: &Path) -> anyhow::Result<()> {
    private::take(folder, &[]).with_context(|| format!("{}: cannot be made", folder.display()))?;
    cluster::Cluster::of(folder, None, None, false).map(drop)
}

/// The folder of a store that `kindred up` runs.
#[must_use]
pub fn folder_of_store(folder: &Path, name: &str) -> PathBuf {
    folder.join("stores").join(name)
}

/// Locks the folder, because two supervisors would start the same shards twice.
fn lock(dir: &Path) -> anyhow::Result<fs::File> {
    let path = layout::lock_file(dir);
    let file = private::create(&path).with_context(|| format!("{}: cannot be made", path.display()))?;
    if file.try_lock().is_err() {
        bail!(
            "--data-dir {}: another `kindred up` is running there; stop it or choose another folder",
            dir.display()
        );
    }
    Ok(file)
}

/// Creates certificates for the internal connections if clients are served with TLS, and for clients with
/// `--auto-tls`.
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
    let internal = InternalTls {
        ca: made.ca_cert,
        server: (made.server_cert, made.server_key),
        router: (made.router_cert, made.router_key),
    };
    if args.admin_port == AdminArgs::default() {
        args.admin_port = internal.admin_port();
        args.own_admin = true;
    }
    Ok(Some(internal))
}

/// Creates the folder of the shards' Unix sockets, and checks that their paths fit.
fn prepare_sockets(args: &mut UpArgs, plan: &Plan) -> anyhow::Result<()> {
    let dir = std::path::absolute(&args.data_dir)?.join("sockets");
    // The paths are written in comma-separated lists of addresses.
    let listed = dir.to_str().is_some_and(|path| !path.contains(|c: char| c == ',' || c.is_whitespace()));
    if !listed {
        bail!("--unix: {}: a comma or space in the path; choose another --data-dir", dir.display());
    }
    private::make(&dir).with_context(|| format!("--unix: {}: cannot be made", dir.display()))?;
    args.sockets = Some(dir);
    for shard in &plan.local {
        layout::socket(args, &shard.name).context("a shorter --data-dir is needed")?;
    }
    Ok(())
}
