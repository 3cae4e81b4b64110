//! The supervisor: starts every child, says so once all serve, restarts what dies, stops all in order.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context;
use kindred_partition_config::model::KindredConfig;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    STOP_GRACE, UpArgs, check_addresses,
    child::{Backoff, Ready, Running, Spec},
    layout::{self, InternalTls, LocalShard},
};

/// A shard that serves.
struct Started {
    shard: LocalShard,
    spec: Spec,
    running: Running,
    listen: SocketAddr,
}

/// Starts everything, then supervises it until SIGINT or SIGTERM.
pub async fn run(args: UpArgs, config: KindredConfig, tls: Option<InternalTls>) -> anyhow::Result<()> {
    check_addresses("--listen", &args.listen)?;
    check_addresses("--admin", &args.admin)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let program = std::env::current_exe().context("finding this program, to start its children")?;
    let stop_router = CancellationToken::new();
    let stop_shards = CancellationToken::new();

    let started = start_shards(&program, &args, &config, tls.as_ref()).await?;
    let listens: Vec<_> = started.iter().map(|s| (s.shard.clone(), s.listen)).collect();
    let mut shards = JoinSet::new();
    for one in started {
        shards.spawn(keep(one.spec, one.running, stop_shards.clone()));
    }
    let file = write_router_config(&args, &config, &listens, tls.is_some())?;
    let first = layout::router(&program, &args, &args.listen, &args.admin, &file, tls.as_ref());
    let (running, ready) = first.start().await?;
    // A restarted router listens where the first one did, also when the flags said port 0.
    let (listen, admin) = (resolved(&ready, "listen", &args.listen), resolved(&ready, "admin", &args.admin));
    let again = layout::router(&program, &args, &listen, &admin, &file, tls.as_ref());
    let router = tokio::spawn(keep(again, running, stop_router.clone()));

    announce(&args, &config, &listen, &admin, &listens)?;
    tokio::select! {
        _ = terminate.recv() => info!("SIGTERM: stopping"),
        _ = interrupt.recv() => info!("interrupted: stopping"),
    }
    // The router first, so that clients are told to go elsewhere while the shards still answer what is under way.
    stop_router.cancel();
    let _ = router.await;
    stop_shards.cancel();
    while shards.join_next().await.is_some() {}
    Ok(())
}

async fn start_shards(
    program: &Path,
    args: &UpArgs,
    config: &KindredConfig,
    tls: Option<&InternalTls>,
) -> anyhow::Result<Vec<Started>> {
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    let mut starting = JoinSet::new();
    for shard in layout::local_shards(config) {
        fs::create_dir_all(args.data_dir.join("stores").join(&shard.name))?;
        let spec = layout::shard(program, args, &config.etcd_prefix, &shard, any, tls);
        starting.spawn(async move {
            let (running, ready) = spec.start().await?;
            let listen = ready.get("listen").context("the shard's ready line names no listen address")?;
            let listen: SocketAddr =
                listen.parse().with_context(|| format!("the shard's address {listen}"))?;
            anyhow::Ok((shard, running, listen))
        });
    }
    let mut started = Vec::new();
    while let Some(one) = starting.join_next().await {
        let (shard, running, listen) = one.context("starting a shard")??;
        let spec = layout::shard(program, args, &config.etcd_prefix, &shard, listen, tls);
        started.push(Started { shard, spec, running, listen });
    }
    started.sort_by_key(|s| s.shard.index);
    Ok(started)
}

fn resolved(ready: &Ready, key: &str, flag: &str) -> String {
    ready.get(key).unwrap_or(flag).to_owned()
}

fn write_router_config(
    args: &UpArgs,
    config: &KindredConfig,
    listens: &[(LocalShard, SocketAddr)],
    tls: bool,
) -> anyhow::Result<PathBuf> {
    let full = layout::with_endpoints(config, listens, tls);
    let path = args.data_dir.join("router.json");
    let text = serde_json::to_string_pretty(&full).context("writing the router's configuration")?;
    fs::write(&path, text).with_context(|| format!("{}: cannot be written", path.display()))?;
    Ok(path)
}

/// Waits for the child's end and starts it again, until told to stop.
async fn keep(spec: Spec, mut running: Running, stop: CancellationToken) {
    let mut backoff = Backoff::new(Instant::now());
    loop {
        let how = tokio::select! {
            () = stop.cancelled() => return running.stop(STOP_GRACE).await,
            how = running.ended() => how,
        };
        warn!("{} ended: {how}; starting it again", spec.name);
        let Some(again) = restart(&spec, &mut backoff, &stop).await else { return };
        running = again;
    }
}

/// Tries until it runs; `None` when told to stop meanwhile.
async fn restart(spec: &Spec, backoff: &mut Backoff, stop: &CancellationToken) -> Option<Running> {
    loop {
        let wait: Duration = backoff.after_end(Instant::now());
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(wait) => {}
        }
        let attempt = tokio::select! {
            () = stop.cancelled() => return None,
            attempt = spec.start() => attempt,
        };
        backoff.started(Instant::now());
        match attempt {
            Ok((running, _)) => {
                info!("{} runs again, pid {}", spec.name, running.pid().unwrap_or(0));
                return Some(running);
            }
            Err(error) => warn!("{error}; trying again"),
        }
    }
}

/// The one line that says everything serves, after a few that say what.
#[allow(clippy::print_stdout)]
fn announce(
    args: &UpArgs,
    config: &KindredConfig,
    listen: &str,
    admin: &str,
    listens: &[(LocalShard, SocketAddr)],
) -> anyhow::Result<()> {
    let mut stores: Vec<String> = listens.iter().map(|(shard, at)| format!("{}={at}", shard.name)).collect();
    let external = config.stores.iter().filter(|store| !store.endpoints.is_empty());
    stores.extend(external.map(|store| format!("{}={}", store.name, store.endpoints.join(","))));
    if args.auto_tls {
        let dir = args.data_dir.join("auto-tls");
        println!("certificates for clients: {}", dir.display());
    }
    println!("kindred ready listen={listen} admin={admin} stores={}", stores.join(";"));
    use std::io::Write;
    std::io::stdout().flush().context("standard output")
}
