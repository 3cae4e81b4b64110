//! Starts a router, serves, and drains it.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use kindred_partition_config::ids::Slot;
use kindred_partition_config::ids::fnv;
use kindred_partition_config::state::ClusterState;
use kindred_recipes::Recipes;
use kindred_transport::admin::AdminGuard;
use kindred_transport::logging::{Logging, Process};
use kindred_transport::serve::Drained;
use kindred_transport::server::Served;
use kindred_transport::unread::Unread;
use kindred_transport::{
    ConnectOptions, Connector, Drain, Endpoint, ListenOptions, Listener, Workers, admin, logging, server, who,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::admin as admin_routes;
use crate::app::App;
use crate::config::{Args, ConfigErrors, Settings};
use crate::identity::Identity;
use crate::meta::auth::Users;
use crate::meta::client::MetaClient;
use crate::meta::lineage::Founding;
use crate::meta::routers::{self, Member};
use crate::meta::{self, Cluster, Meta};
use crate::metrics as own_metrics;
use crate::routing::Routing;
use crate::spans::Spans;
use crate::stores::Stores;
use crate::ticks::Ticks;

/// How long clients get to go elsewhere when the router stops.
const GRACE: Duration = Duration::from_secs(10);
/// How long the start waits for the first handshakes with the stores; an unreachable store usually fails at once.
const FIRST_HANDSHAKES: Duration = Duration::from_secs(3);

/// Runs a router until it is told to stop, in a runtime of its own.
///
/// # Errors
/// When the configuration is wrong, or an address cannot be bound.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let settings = args.settings()?;
    let _logging = begin_logging(args)?;
    kindred_transport::memory::set_up();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        let drain = begin_drain()?;
        let bound = bind(settings, &drain, recorder(&[])).await?;
        bound.announce()?;
        finish(&drain).await;
        Ok(())
    })
}

/// Begins the log of a router's process.
///
/// # Errors
/// When the level is not a valid filter.
pub fn begin_logging(args: &Args) -> anyhow::Result<Logging> {
    let process = Process { kind: "router", name: Some(args.name.clone()) };
    logging::begin(&args.log_level, args.log_format, process).context("--log-level")
}

/// The stop of a router, which begins with a signal.
///
/// # Errors
/// When there cannot be signals.
pub fn begin_drain() -> anyhow::Result<Drain> {
    let drain = Drain::new(GRACE);
    drain.on_signals().context("cannot listen for signals")?;
    Ok(drain)
}

/// Waits for the stop and its end.
pub async fn finish(drain: &Drain) {
    if let Drained::Forced(left) = drain.finish().await {
        tracing::warn!(left, "connections were closed at the end of the grace period");
    }
}

/// Installs the metrics recorder of this process; `None` if there is one already. Others in the process have the histograms
/// with these buckets.
pub fn recorder(others: &[(&'static str, Vec<f64>)]) -> Option<PrometheusHandle> {
    let mut builder = PrometheusBuilder::new();
    let own = own_metrics::BUCKETS.iter().map(|(name, buckets)| (*name, *buckets));
    for (name, buckets) in own.chain(others.iter().map(|(name, buckets)| (*name, &buckets[..]))) {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), buckets).ok()?;
    }
    let handle = builder.install_recorder().ok()?;
    own_metrics::describe();
    Some(handle)
}

/// A router that accepts connections.
pub struct Bound {
    /// The addresses at which clients connect.
    pub listen: Vec<String>,
    /// The address of the admin server.
    pub admin: String,
    /// The addresses for probes and metrics alone.
    pub probes: Vec<String>,
    pub app: App,
}

impl Bound {
    /// Prints that the router serves, and where.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn announce(&self) -> std::io::Result<()> {
        let probes = match self.probes.as_slice() {
            [] => String::new(),
            at => format!(" metrics={}", at.join(",")),
        };
        let mut out = std::io::stdout();
        writeln!(out, "kindred-router ready listen={} admin={}{probes}", self.listen.join(","), self.admin)?;
        out.flush()
    }
}

/// Binds the addresses and starts all tasks in the background; [`Drain`] ends them.
///
/// # Errors
/// When an address cannot be bound or a store's TLS cannot be set up.
pub async fn bind(
    settings: Settings,
    drain: &Drain,
    recorder: Option<PrometheusHandle>,
) -> anyhow::Result<Bound> {
    let guard = check_doors(&settings)?.with_shell(admin_routes::page::is_shell);
    let mut listeners = Vec::new();
    let listen_options = ListenOptions::with_tls(settings.tls.clone()).on(&settings.network);
    for address in &settings.listen {
        listeners.push(Listener::bind(address, listen_options.clone()).await?);
    }
    let admin_listener = Listener::bind(&settings.admin, guard.listen_options(&settings.network)).await?;
    let listening: Vec<Endpoint> = listeners.iter().map(|l| l.local_endpoint().clone()).collect();
    let listen: Vec<String> = listening.iter().map(ToString::to_string).collect();
    let admin = admin_listener.local_endpoint().to_string();
    let mut probe_listeners = Vec::new();
    for address in &settings.probes {
        let options = ListenOptions::of_admin(address, settings.tls.clone()).on(&settings.network);
        probe_listeners.push(Listener::bind(address, options).await?);
    }
    let probes_at = probe_listeners.iter().map(|listener| listener.local_endpoint().to_string()).collect();

    let options = ConnectOptions {
        tls: settings.store_tls,
        tls_outside: settings.etcd_tls,
        secret: settings.secret,
        network: settings.network,
        ..ConnectOptions::default()
    };
    let connector = Connector::new(options.clone());
    let (cluster, routes) = match settings.meta {
        None => {
            let state = ClusterState::bootstrap(&settings.config)
                .map_err(|errors| ConfigErrors(errors.iter().map(ToString::to_string).collect()))?;
            (Cluster::new(state, None), settings.routes)
        }
        Some(at) => {
            let tls = settings.meta_tls.or_else(|| options.tls.clone());
            let client = MetaClient::new(&at.endpoints, &Connector::new(ConnectOptions { tls, ..options }))?;
            let state = meta::start::state(&client, &at, &settings.config).await?;
            let routes = meta::take::routes(&state);
            meta::take::tell_without_effect(&state, None);
            (Cluster::new(state, Some(Meta::new(client, at))), routes)
        }
    };
    let workers = Workers::start(settings.threads, &drain.killed()).context("--threads")?;
    let stores = Stores::new(connector, workers.clone(), settings.default, settings.wall_clock);
    if cluster.meta.is_none() {
        stores.set_modes(meta::take::modes(&cluster.state()));
        for mut spec in settings.stores {
            // A stock etcd's slot is not in the configuration.
            spec.slot =
                cluster.state().store(&spec.name).and_then(|(_, known)| known.slot).and_then(Slot::new);
            stores.add(spec)?;
        }
    }
    let client_urls = match settings.advertise {
        urls if urls.is_empty() => Endpoint::advertised(&listening),
        urls => urls,
    };
    let founding = Founding { cluster_id: settings.cluster_id, lineage: None, goes_on: false };
    let cluster_id = founding.cluster_id_of(&cluster.state()).0;
    let member_id = fnv(format!("{}\n{}", settings.name, client_urls.join(",")).as_bytes());
    let identity = Identity::new(cluster_id, member_id, settings.name, client_urls);
    let routing = Routing::new(routes, stores.clone(), settings.revision_scope);
    let cluster = Arc::new(cluster);
    let users = Users::start(cluster).await?;
    let app = App::new(routing, stores, users, identity, drain.clone(), settings.feeds, settings.admission);
    if app.keeper.cluster.meta.is_some() {
        app.keeper.take(app.keeper.cluster.state());
    }
    let mover = app.mover();
    app.start(&mover, settings.moves);
    if let Some(recorder) = recorder.clone() {
        let killed = drain.killed();
        let ticks = app.stores.ticks();
        tokio::spawn(async move { killed.run_until_cancelled(upkeep(recorder, ticks)).await });
    }
    // Clients wait in the listen queue until then, so that no store that is there is reported unavailable at the start.
    let known = async {
        for store in app.stores.iter() {
            store.state().wait_known().await;
        }
    };
    let _ = tokio::time::timeout(FIRST_HANDSHAKES, known).await;
    if let Some(spans) = settings.spans {
        // This is the first call, so there are none yet.
        let _ = app.traffic.spans.set(Spans::start(spans));
    }
    if let Some(meta) = app.keeper.cluster.meta.clone() {
        let (me, stopping) = (Member::of(&app.identity), drain.stopping());
        drain.spawn(async move { routers::announce(meta, me, stopping.cancelled_owned()).await });
    }
    let kv = app.kv(settings.max_request_bytes);
    let services = Recipes::around(app.services(&kv, settings.watches));
    let parts = app.admin(mover, &kv);
    let probes = parts.probes(recorder);
    let web = probes.clone().routes().merge(kindred_gateway::routes(&services, settings.max_request_bytes));
    let served = Served { calls: kv, services, web: admin::for_clients(web) };
    let unread = Unread::with(settings.unread);
    for listener in listeners {
        // A stop sends GOAWAY; watch sessions end themselves with Unavailable.
        workers.serve(listener.incoming(drain), drain, |incoming| {
            server::serve(incoming, served.clone(), server::STREAMS_MAX, unread.clone(), drain.stopping())
        });
    }
    for listener in probe_listeners {
        let (routes, drained) = (probes.clone().routes(), drain.clone());
        drain.spawn(async move { admin::serve(listener, routes, &AdminGuard::default(), &drained).await });
    }
    let (routes, admin_drain) = (admin_routes::routes(parts, probes), drain.clone());
    drain.spawn(async move { admin::serve(admin_listener, routes, &guard, &admin_drain).await });
    Ok(Bound { listen, admin, probes: probes_at, app })
}

/// Refuses addresses that would be open to strangers; returns who may use the admin port.
fn check_doors(settings: &Settings) -> anyhow::Result<AdminGuard> {
    let tls = settings.tls.as_ref();
    if settings.network.is_open() && !settings.insecure_listen {
        for address in &settings.listen {
            who::check_clients("--listen", address, tls).map_err(anyhow::Error::msg)?;
        }
    }
    Ok(settings.admin_port.load("--admin", &settings.admin, tls, &settings.network)?)
}

async fn upkeep(recorder: PrometheusHandle, ticks: Ticks) {
    loop {
        ticks.sleep(Duration::from_secs(5)).await;
        recorder.run_upkeep();
    }
}
