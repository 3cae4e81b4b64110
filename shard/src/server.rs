//! Runs a shard from its settings to its end: binds, starts the loop, serves and drains.

use std::{
    io::Write as _,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use kindred_engine::{
    engine::{Engine, EngineConfig, RevisionMode},
    trust::ClockTrust,
};
use kindred_partition_config::{
    ids::{Lineage, Term},
    kind::KindScheme,
    model::Durability,
};
use kindred_recipes::Recipes;
use kindred_transport::{
    address::Endpoint,
    admin::for_clients,
    connect::{ConnectOptions, Connector},
    listener::{ListenOptions, Listener},
    logging::{self, Format, Logging, Process},
    memory::limit,
    serve::{Drain, Drained},
    server::{self, Served},
    tls::ServerTls,
    unread::{self, Unread},
    who,
    workers::Workers,
};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    admin,
    apply_loop::call,
    clock::Clock,
    config::{Args, Revisions, Settings},
    core::{Core, CoreSettings, Sizes},
    durability::{
        Logs,
        start::{self, Directory, Origin},
    },
    encode::ServerIds,
    etcd::{Member, MemberInner, door::Door, front::Front},
    handle::{self, Handle},
    identity::Identity,
    internal::{
        Joined, ShardService,
        standbys::{self, StandbyService},
    },
    joining::Joining,
    memory,
    metrics::{Label, Recorded},
    standby::{
        following::{self, Copied, Incoming, Target},
        membership::{self, Following, Membership},
        reclaim,
        role::{Does, Role},
        shipping::Shipping,
    },
};

/// The time that clients have to finish when the process is asked to stop.
const GRACE: Duration = Duration::from_secs(10);
/// R3: how far a raise may be above the shard's present, and that from the cluster's.
const CLOCK_OFFSET_MAX: Duration = Duration::from_secs(10);
/// etcd's shortest TTL with its default election settings, in seconds.
const LEASE_TTL_MIN_S: i64 = 2;
/// The interval at which histogram samples are merged.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// Runs a shard until it is stopped.
///
/// # Errors
/// When it cannot start.
pub fn run(args: Args) -> anyhow::Result<()> {
    let settings = Settings::resolve(args)?;
    let process = Process { kind: "shard", name: Some(settings.name.clone()) };
    let _logging = begin_logging(&settings.log_level, settings.log_format, process)?;
    if settings.reclaim {
        return reclaim(&settings);
    }
    kindred_transport::memory::set_up();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        let telling = settings.starting.tell().context("cannot tell how far the start is")?;
        let running = start(settings).await?;
        drop(telling);
        running.drain.on_signals().context("cannot listen for signals")?;
        running.announce()?;
        running.finish().await
    })
}

fn reclaim(settings: &Settings) -> anyhow::Result<()> {
    let directory = settings.data_dir.as_deref().context("--reclaim: name the member's --data-dir")?;
    let kept = Directory::take(directory)?;
    let role =
        reclaim::reclaim(kept.path()).with_context(|| format!("--reclaim: {}", directory.display()))?;
    tracing::warn!(
        directory = %directory.display(),
        term = role.term.0,
        "started as always, this member has what its disk has, and serves nothing before kindred store failover --force names it"
    );
    Ok(())
}

/// Begins the log of this process, unless it has one already.
///
/// # Errors
/// When the level is not a valid filter.
pub fn begin_logging(level: &str, format: Format, process: Process) -> anyhow::Result<Logging> {
    logging::begin(level, format, process)
        .with_context(|| format!("log-level: {level:?} is not a level or filter"))
}

pub struct Running {
    /// Where clients connect.
    pub listen: Vec<Endpoint>,
    /// The admin port.
    pub admin: Endpoint,
    pub drain: Drain,
    pub handle: Handle,
    membership: Arc<Membership>,
    apply_loop: JoinHandle<()>,
    stop_loop: CancellationToken,
    label: Label,
}

/// Starts a shard. Returns when clients can connect.
///
/// # Errors
/// When an address cannot be bound, or the data directory not used.
pub async fn start(settings: Settings) -> anyhow::Result<Running> {
    start_recorded(settings, Recorded::alone()).await
}

/// The same in a process with others, whose metrics are recorded together.
///
/// # Errors
/// As [`start()`].
pub async fn start_recorded(mut settings: Settings, recorded: Recorded) -> anyhow::Result<Running> {
    settings.label = recorded.label.clone();
    let drain = Drain::new(GRACE);
    let tls = settings.tls.load()?;
    check_doors(&settings, tls.as_ref())?;
    let guard =
        settings.admin.load("--admin-listen", &settings.admin_listen, tls.as_ref(), &settings.network)?;
    let listen_options = ListenOptions::with_tls(tls.clone()).on(&settings.network);
    let mut listeners = Vec::new();
    for address in &settings.listen {
        listeners.push(Listener::bind(address, listen_options.clone()).await?);
    }
    let admin = Listener::bind(&settings.admin_listen, guard.listen_options(&settings.network)).await?;
    let listen: Vec<_> = listeners.iter().map(|listener| listener.local_endpoint().clone()).collect();
    settings.starting.bound(&listen.iter().map(bare).collect::<Vec<_>>());
    let quota_bytes = quota(&settings);
    if settings.data_dir.is_none() && settings.identity.is_none() {
        tracing::warn!("no --data-dir: nothing is kept, and every start of this shard is an empty store");
    }
    // Before anything in it is read or changed.
    let kept = settings.data_dir.as_deref().map(Directory::take).transpose()?;
    let role = kept.as_ref().map(|kept| Role::read(kept.path())).transpose()?.flatten();
    let primary = follows(&settings, kept.as_ref(), role.as_ref())?;
    let role = role.unwrap_or_else(Role::alone);
    let opened = match (kept, primary) {
        (Some(kept), Some(primary)) => open_standby(&settings, quota_bytes, kept, primary, &role).await?,
        (kept, _) => open_primary(&settings, quota_bytes, kept, role).await?,
    };
    let Opened { core, logs, shipping, identity, in_memory, membership, incoming } = opened;
    let ids = ServerIds {
        cluster_id: settings.cluster_id.unwrap_or(identity.cluster_id),
        member_id: identity.member_id,
        // etcd's first leader has term 2.
        raft_term: identity.incarnation.saturating_add(1),
    };
    let stop_loop = CancellationToken::new();
    let (handle, apply_loop) =
        handle::spawn(core, logs, shipping, settings.progress_interval, stop_loop.clone());
    let member = Member::new(MemberInner {
        handle: handle.clone(),
        serves: AtomicBool::new(!settings.in_cluster),
        ids,
        name: settings.name.clone(),
        client_urls: client_urls(&settings, &listen),
        request_bytes_max: settings.request_bytes_max,
        txn_ops_max: settings.txn_ops_max,
        quota_bytes,
        membership: membership.clone(),
        door: Door::new(settings.routers.clone(), settings.in_cluster)
            .with_members(settings.member_names.clone()),
        stopping: drain.stopping(),
    });
    let joining = Arc::new(Joining::new(identity.clone(), settings.data_dir.clone()));
    let joined = Joined {
        cluster_id: settings.cluster_id,
        identity,
        slot: settings.slot,
        revisions: settings.revisions.name(),
        modes: start::modes(&settings.durability),
        in_memory,
    };
    let store = standbys::Store {
        name: settings.name.clone(),
        slot: settings.slot,
        etcd_prefix: settings.etcd_prefix.clone(),
        dense: settings.revisions == Revisions::Dense,
        started_as: settings.standby_of.as_ref().map(ToString::to_string),
    };
    let of_standbys = StandbyService::new(member.clone(), membership.clone(), joining.clone(), store);
    let front = Front::new(
        member.clone(),
        settings.in_cluster,
        ShardService::new(member.clone(), joined, joining),
        of_standbys,
    );
    if let (Some(incoming), Some(following)) = (incoming, &membership.following) {
        let handing =
            following::hand_over(incoming, handle.clone(), following.clone(), settings.data_dir.clone());
        *following.handing.lock().await = Some(tokio::spawn(handing));
    }
    let workers = Workers::start(settings.threads, &drain.killed()).context("threads")?;
    let probes = admin::probes(member, &recorded, &drain);
    let calls = front.unary_calls();
    // Routers are the clients of a shard in a cluster and of a meta store, and ask for nothing else.
    let (services, web) = if settings.in_cluster || settings.routers.are_known() {
        (Recipes::without(front), axum::Router::new())
    } else {
        let services = Recipes::around(front);
        let gateway = kindred_gateway::routes(&services, settings.request_bytes_max);
        (services, probes.clone().routes().merge(gateway))
    };
    let served = Served { calls, services, web: for_clients(web) };
    let usual = unread::Limits::default();
    let bytes = memory::unread(limit::available().as_ref(), settings.memory_shared_by, usual.bytes);
    let unread = Unread::with(unread::Limits { bytes, ..usual });
    for listener in listeners {
        workers.serve(listener.incoming(&drain), &drain, |incoming| {
            server::serve(incoming, served.clone(), settings.streams_max, unread.clone(), drain.stopping())
        });
    }
    let admin_endpoint = admin.local_endpoint().clone();
    admin::spawn(admin, guard, probes, handle.clone(), &drain);
    if let Some(recorder) = recorded.recorder.clone().filter(|_| recorded.has_upkeep) {
        let stopping = drain.stopping();
        tokio::spawn(stopping.run_until_cancelled_owned(async move {
            loop {
                tokio::time::sleep(METRICS_UPKEEP).await;
                recorder.run_upkeep();
            }
        }));
    }
    if let Some(age) = settings.history_age_max {
        let (stopping, handle) = (drain.stopping(), handle.clone());
        tokio::spawn(stopping.run_until_cancelled_owned(async move {
            loop {
                tokio::time::sleep((age / 10).min(HISTORY_LOOKS_MAX)).await;
                if handle.call(call::CompactOlder { age }).await.is_err() {
                    break;
                }
            }
        }));
    }
    recorded.label.note_leader(true);
    let label = recorded.label;
    Ok(Running { listen, admin: admin_endpoint, drain, handle, membership, apply_loop, stop_loop, label })
}

/// A store that is open, and what this process is in it.
struct Opened {
    core: Core,
    logs: Logs,
    shipping: Shipping,
    identity: Identity,
    /// Whether a restart loses everything, whatever the modes.
    in_memory: bool,
    membership: Arc<Membership>,
    /// What comes from the primary of a standby.
    incoming: Option<mpsc::Receiver<Incoming>>,
}

/// The primary that this process is to follow, if it is to.
fn follows(
    settings: &Settings,
    kept: Option<&Directory>,
    role: Option<&Role>,
) -> anyhow::Result<Option<Endpoint>> {
    let wanted = settings.standby_of.clone();
    match role {
        Some(Role { does: Does::Primary, .. }) => Ok(None),
        Some(role) => {
            let flag = wanted.as_ref().map(ToString::to_string);
            let primary = role.follows(flag.as_deref());
            let primary =
                primary.context("this member is no primary any more: start it with --standby-of")?;
            let primary = primary
                .parse()
                .with_context(|| format!("the primary that this member learnt of, {primary}"))?;
            Ok(Some(primary))
        }
        None => {
            let used =
                kept.is_some_and(|kept| Identity::read(kept.path()).is_ok_and(|found| found.is_some()));
            anyhow::ensure!(
                wanted.is_none() || !used,
                "--standby-of: --data-dir has the data of a store that was no standby: give the standby an empty directory"
            );
            Ok(wanted)
        }
    }
}

/// Opens the store of a primary.
async fn open_primary(
    settings: &Settings,
    quota_bytes: u64,
    kept: Option<Directory>,
    role: Role,
) -> anyhow::Result<Opened> {
    let identity = match (&settings.identity, &kept) {
        (Some(identity), _) => identity.clone(),
        (None, Some(kept)) => {
            let role = (settings.name.as_str(), settings.slot);
            start::identity(kept, role, settings.revisions == Revisions::Dense, &settings.durability)?
        }
        (None, None) => Identity::of_process(),
    };
    // If the data is lost with the process, the next process is another store.
    let in_memory = kept.is_none() || keeps_nothing(settings);
    let identity = match in_memory && settings.identity.is_none() {
        true => identity.with_new_uuid(),
        false => identity,
    };
    if kept.is_none() {
        tracing::warn!(
            store = identity.uuid,
            "no --data-dir: everything is kept in memory alone, and after a restart this is another, empty store, which routers \
             refuse where it is to keep anything"
        );
    }
    if !role.counted.is_empty() {
        tracing::warn!(
            standbys = role.counted.len(),
            "one of the standbys may have been promoted: nothing is answered before a router says which member is the primary"
        );
    }
    let shipping = Shipping::counting(role.counted.iter().cloned());
    let directory = settings.data_dir.clone();
    let membership = Membership::new(identity.member_id, directory, role, identity.incarnation, None);
    let (core, logs) = open_core(settings, quota_bytes, identity.member_id, kept).await?;
    let membership = Arc::new(membership);
    Ok(Opened { core, logs, shipping, identity, in_memory, membership, incoming: None })
}

/// Opens a standby: waits until it has a copy of its primary.
async fn open_standby(
    settings: &Settings,
    quota_bytes: u64,
    kept: Directory,
    primary: Endpoint,
    role: &Role,
) -> anyhow::Result<Opened> {
    let identity = Identity::random();
    // What its former life has promised binds no other member: it follows whoever is the primary.
    let following = Arc::new(Following::new(Term(0)));
    let connector = Connector::new(ConnectOptions {
        tls: settings.standby_tls.load()?,
        secret: settings.secret.clone(),
        network: settings.network.clone(),
        ..ConnectOptions::default()
    });
    let former = match role.does {
        Does::Standby => Identity::read(kept.path())?.map(|former| membership::id_of(former.member_id)),
        Does::Primary | Does::Superseded => None,
    };
    let target = Target {
        primary: primary.clone(),
        connector,
        id: membership::id_of(identity.member_id),
        former,
        name: settings.name.clone(),
        slot: settings.slot,
    };
    let copied = following::start(target, following.clone()).context("standby")?;
    let Copied { primary, welcome, recovered, incoming } =
        copied.await.with_context(|| format!("--standby-of {primary}: {}", following.reason()))?;
    anyhow::ensure!(
        welcome.etcd_prefix == settings.etcd_prefix,
        "--etcd-prefix: the primary has {:?}",
        welcome.etcd_prefix
    );
    if let Some(former) = Identity::read(kept.path())?.and_then(|former| former.lineage) {
        anyhow::ensure!(
            welcome.lineage.is_empty() || former.0 == welcome.lineage,
            "--standby-of {primary}: this folder belongs to the cluster of lineage {former}, the primary to that of lineage {}: \
             correct the address, or give this process an empty --data-dir",
            welcome.lineage
        );
    }
    // Only now, with a copy at hand, what was here before goes.
    let term = Term(welcome.term).max(role.term);
    let started_as = settings.standby_of.as_ref().map(ToString::to_string);
    let role = Role::begin_anew(kept.path(), term, &primary.to_string(), started_as)?;
    let identity = Identity {
        uuid: welcome.store_uuid,
        cluster_id: welcome.cluster_id,
        incarnation: welcome.incarnation,
        lineage: (!welcome.lineage.is_empty()).then_some(Lineage(welcome.lineage)),
        ..identity
    };
    let identity = identity.named(&settings.name, settings.slot);
    identity.write(kept.path())?;
    let (config, clock, of_core) = engine_settings(settings, quota_bytes, identity.member_id);
    let directory = settings.data_dir.clone();
    let (core, logs) =
        start::open(kept, config, clock, of_core, &settings.durability, Origin::Copy(Box::new(recovered)))
            .await?;
    let membership =
        Membership::new(identity.member_id, directory, role, identity.incarnation, Some(following));
    let (shipping, membership) = (Shipping::alone(), Arc::new(membership));
    Ok(Opened { core, logs, shipping, identity, in_memory: false, membership, incoming: Some(incoming) })
}

/// Refuses listen addresses that would admit clients which must not be served.
fn check_doors(settings: &Settings, tls: Option<&ServerTls>) -> anyhow::Result<()> {
    if !settings.network.is_open() {
        return Ok(());
    }
    for address in &settings.listen {
        let checked = if settings.in_cluster || settings.routers.are_known() {
            who::check_cluster("--listen", address, tls, &settings.routers)
        } else if settings.insecure_listen {
            Ok(())
        } else {
            who::check_clients("--listen", address, tls)
        };
        checked.map_err(anyhow::Error::msg)?;
    }
    Ok(())
}

/// The quota in bytes, at which NOSPACE is raised. A store in memory always has one, unless a flag sets 0 or the memory
/// is unknown.
pub(crate) fn quota(settings: &Settings) -> u64 {
    if let Some(chosen) = settings.quota_bytes {
        return chosen;
    }
    let Some(memory) = limit::available() else {
        tracing::warn!("how much memory there is cannot be read: no quota; see --quota-backend-bytes");
        return 0;
    };
    let (bytes, shared_by) = (memory::quota(&memory, settings.memory_shared_by), settings.memory_shared_by);
    tracing::info!(
        bytes,
        of = memory.bytes,
        by = memory.says,
        shared_by,
        "above so many bytes writes are refused as NOSPACE; --quota-backend-bytes says otherwise"
    );
    bytes
}

/// The engine with the data directory's contents, and its logs.
async fn open_core(
    settings: &Settings,
    quota_bytes: u64,
    member_id: u64,
    kept: Option<Directory>,
) -> anyhow::Result<(Core, Logs)> {
    let (config, clock, of_core) = engine_settings(settings, quota_bytes, member_id);
    match kept.filter(|_| !keeps_nothing(settings)) {
        None => {
            let engine = Engine::new(config, clock.wall());
            Ok((Core::new(engine, clock, of_core), Logs::memory()))
        }
        Some(directory) => {
            let origin = Origin::Files(settings.starting.clone());
            start::open(directory, config, clock, of_core, &settings.durability, origin).await
        }
    }
}

/// The settings of the engine and the loop, and the clock.
pub(crate) fn engine_settings(
    settings: &Settings,
    quota_bytes: u64,
    member_id: u64,
) -> (EngineConfig, Clock, CoreSettings) {
    let offset_max_micros = u64::try_from(CLOCK_OFFSET_MAX.as_micros()).unwrap_or(u64::MAX);
    let trust = match settings.in_cluster {
        true => ClockTrust::in_cluster(offset_max_micros),
        false => ClockTrust::alone(),
    };
    let mut clock = Clock::start(settings.wall_clock.clone(), trust);
    if settings.wall_clock_offset_micros != 0 {
        tracing::warn!(micros = settings.wall_clock_offset_micros, "the wall clock is set wrong, for a test");
        clock.set_wall_offset(settings.wall_clock_offset_micros);
    }
    let kinds = KindScheme::new(&settings.etcd_prefix);
    let config = EngineConfig {
        revisions: match settings.revisions {
            Revisions::Hlc => RevisionMode::Hlc(settings.slot),
            Revisions::Dense => RevisionMode::Dense,
        },
        kinds: kinds.clone(),
        max_clock_offset_micros: offset_max_micros,
        min_lease_ttl_s: LEASE_TTL_MIN_S,
    };
    let quotas = settings.durability.quotas.iter().map(|(kind, bytes)| (kind.as_key().clone(), *bytes));
    let of_core = CoreSettings {
        member_id,
        slot: settings.slot,
        quota_bytes,
        quotas: quotas.collect(),
        history_bytes_max: settings.history_bytes_max.unwrap_or(quota_bytes / 2),
        kinds,
        sizes: Sizes::default(),
        label: settings.label.clone(),
    };
    (config, clock, of_core)
}

/// Whether nothing is kept: dense revisions that are not kept begin anew, as in a new etcd, and the directory holds
/// only the identity.
fn keeps_nothing(settings: &Settings) -> bool {
    settings.revisions == Revisions::Dense && settings.durability.default == Durability::None
}

fn client_urls(settings: &Settings, listen: &[Endpoint]) -> Vec<String> {
    match &settings.advertise_client_urls[..] {
        [] => Endpoint::advertised(listen),
        urls => urls.to_vec(),
    }
}

/// The longest interval between two searches for history that is too old.
const HISTORY_LOOKS_MAX: Duration = Duration::from_secs(60);

/// An address in the form of `--listen`: `host:port` without a scheme, or a Unix socket with it.
fn bare(endpoint: &Endpoint) -> String {
    if endpoint.is_unix() { endpoint.to_string() } else { endpoint.authority() }
}

impl Running {
    /// Writes one line to standard output, which tells that clients may connect.
    /// Prints that the shard serves, and where.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn announce(&self) -> std::io::Result<()> {
        let listen: Vec<_> = self.listen.iter().map(bare).collect();
        let (listen, admin, pid) = (listen.join(","), bare(&self.admin), std::process::id());
        let mut out = std::io::stdout().lock();
        writeln!(out, "kindred-shard ready listen={listen} admin={admin} pid={pid}")?;
        out.flush()
    }

    /// Waits until the shard is asked to stop, lets clients finish, and ends the loop last.
    ///
    /// # Errors
    /// When the apply loop ended without being asked to: nothing can be served without it.
    pub async fn finish(mut self) -> anyhow::Result<()> {
        let stopping = self.drain.stopping();
        let (failed, superseded) = (self.membership.failed(), self.membership.superseded.clone());
        let mut again = None;
        tokio::select! {
            () = stopping.cancelled() => {}
            () = failed.cancelled() => {
                self.drain.begin();
                let reason = self.membership.following.as_ref().map(|following| following.reason());
                again = Some(format!("this standby begins anew when it is started again: {}", reason.unwrap_or_default()));
            }
            () = superseded.cancelled() => {
                self.drain.begin();
                again = Some("another member is the primary: this one follows it when it is started again".to_owned());
            }
            ended = &mut self.apply_loop => {
                self.drain.begin();
                self.drain.finish().await;
                ended.context("the apply loop failed")?;
                anyhow::bail!("the apply loop ended");
            }
        }
        self.label.note_leader(false);
        let began = Instant::now();
        match self.drain.finish().await {
            Drained::Cleanly => tracing::info!(took = ?began.elapsed(), "stopped"),
            Drained::Forced(tasks) => tracing::warn!(tasks, "stopped before all clients were done"),
        }
        self.stop_loop.cancel();
        self.apply_loop.await.context("the apply loop failed")?;
        again.map_or(Ok(()), |again| Err(anyhow::Error::msg(again)))
    }
}
