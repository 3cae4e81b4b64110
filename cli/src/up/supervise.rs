//! The supervisor: starts every child, says so once all serve, restarts what dies, stops all in order.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Context;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    STOP_GRACE, UpArgs, check_addresses,
    child::{Backoff, Ready, Running, Spec},
    layout::{self, Beside, InternalTls, LocalShard, Plan},
    local::{Local, Shard},
};

/// A shard that serves.
struct Started {
    shard: LocalShard,
    spec: Spec,
    running: Running,
    listen: SocketAddr,
}

/// Starts everything, then supervises it until SIGINT or SIGTERM.
pub async fn run(args: UpArgs, plan: Plan, tls: Option<InternalTls>) -> anyhow::Result<()> {
    check_addresses("--listen", &args.listen)?;
    check_addresses("--admin", &args.admin)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let program = std::env::current_exe().context("finding this program, to start its children")?;
    let stop_router = CancellationToken::new();
    let stop_shards = CancellationToken::new();

    let mut shards = JoinSet::new();
    let meta = start_meta(&program, &args, tls.as_ref(), &mut shards, &stop_shards).await?;
    let started = start_shards(&program, &args, &plan, tls.as_ref()).await?;
    let stores: Vec<_> = started.iter().map(|s| (s.shard.name.clone(), s.listen)).collect();
    let mut local = Local {
        program: program.clone(),
        args: args.clone(),
        tls: tls.clone(),
        meta,
        stop: stop_shards.clone(),
        running: BTreeMap::new(),
    };
    for Started { shard, spec, running, listen } in started {
        let stop = stop_shards.child_token();
        let kept = tokio::spawn(keep(spec, running, stop.clone()));
        local.running.insert(shard.slot, Shard { name: shard.name, listen, stop, kept });
    }
    shards.spawn(local.run());
    let beside = Beside { meta, stores };
    let mut routers = JoinSet::new();
    let (mut listens, mut admins) = (Vec::new(), Vec::new());
    for router in 0..args.routers {
        let listen = layout::nth_address("--listen", &args.listen, router)?;
        let admin = layout::nth_address("--admin", &args.admin, router)?;
        let first = layout::router(&program, &args, (router, &listen, &admin), &beside, tls.as_ref());
        let (running, ready) = first.start().await?;
        // A restarted router listens where the first one did, also when the flags said port 0.
        let (listen, admin) = (resolved(&ready, "listen", &listen), resolved(&ready, "admin", &admin));
        let again = layout::router(&program, &args, (router, &listen, &admin), &beside, tls.as_ref());
        routers.spawn(keep(again, running, stop_router.clone()));
        listens.push(listen);
        admins.push(admin);
    }

    announce(&args, &plan, &listens.join(","), &admins.join(","), &beside)?;
    tokio::select! {
        _ = terminate.recv() => info!("SIGTERM: stopping"),
        _ = interrupt.recv() => info!("interrupted: stopping"),
    }
    // The routers first, so that clients are told to go elsewhere while the shards still answer what is under way.
    stop_router.cancel();
    while routers.join_next().await.is_some() {}
    stop_shards.cancel();
    while shards.join_next().await.is_some() {}
    Ok(())
}

async fn start_meta(
    program: &Path,
    args: &UpArgs,
    tls: Option<&InternalTls>,
    into: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> anyhow::Result<SocketAddr> {
    fs::create_dir_all(args.data_dir.join("meta"))?;
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    let (running, ready) = layout::meta(program, args, any, tls).start().await?;
    let listen = listen_of(&ready)?;
    into.spawn(keep(layout::meta(program, args, listen, tls), running, stop.clone()));
    Ok(listen)
}

/// Where a shard says that it listens by TCP.
pub fn listen_of(ready: &Ready) -> anyhow::Result<SocketAddr> {
    let listen = ready.get("listen").context("the shard's ready line names no listen address")?;
    let mut addresses = listen.split(',').filter_map(|address| address.parse().ok());
    addresses.next().with_context(|| format!("the shard's address {listen}"))
}

async fn start_shards(
    program: &Path,
    args: &UpArgs,
    plan: &Plan,
    tls: Option<&InternalTls>,
) -> anyhow::Result<Vec<Started>> {
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    let mut starting = JoinSet::new();
    for shard in plan.local.clone() {
        fs::create_dir_all(args.data_dir.join("stores").join(&shard.name))?;
        let spec = layout::shard(program, args, &plan.prefix, &shard, any, tls);
        starting.spawn(async move {
            let (running, ready) = spec.start().await?;
            let listen = listen_of(&ready)?;
            anyhow::Ok((shard, running, listen))
        });
    }
    let mut started = Vec::new();
    while let Some(one) = starting.join_next().await {
        let (shard, running, listen) = one.context("starting a shard")??;
        let spec = layout::shard(program, args, &plan.prefix, &shard, listen, tls);
        started.push(Started { shard, spec, running, listen });
    }
    started.sort_by_key(|s| s.shard.index);
    Ok(started)
}

fn resolved(ready: &Ready, key: &str, flag: &str) -> String {
    ready.get(key).unwrap_or(flag).to_owned()
}

/// Waits for the child's end and starts it again, until told to stop.
pub async fn keep(spec: Spec, mut running: Running, stop: CancellationToken) {
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
fn announce(args: &UpArgs, plan: &Plan, listen: &str, admin: &str, beside: &Beside) -> anyhow::Result<()> {
    let mut stores: Vec<String> = beside.stores.iter().map(|(name, at)| format!("{name}={at}")).collect();
    stores.extend(plan.external.iter().map(|(name, urls)| format!("{name}={}", urls.join(","))));
    if args.auto_tls {
        let dir = args.data_dir.join("auto-tls");
        println!("certificates for clients: {}", dir.display());
    }
    let (stores, meta) = (stores.join(";"), beside.meta);
    println!("kindred ready listen={listen} admin={admin} stores={stores} meta={meta}");
    use std::io::Write;
    std::io::stdout().flush().context("standard output")
}
