//! The supervisor: starts every child, announces when all serve, restarts those that end, and stops all in order.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io::{self, Write as _},
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use futures_util::future::join_all;
use kindred_transport::private;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info, warn};

use super::{
    STOP_GRACE, UpArgs,
    begin::begin,
    child::{self, Backoff, Ready, Spec},
    flags,
    layout::{self, Beside, InternalTls, Plan},
    local::{Local, Shard},
};

/// All processes and the means to stop them.
#[derive(Default)]
struct Processes {
    routers: TaskTracker,
    stop_routers: CancellationToken,
    shards: TaskTracker,
    stop_shards: CancellationToken,
}

impl Processes {
    /// Stops the routers first, so that clients reconnect elsewhere while the shards still answer pending requests.
    async fn stop(self) {
        self.routers.close();
        self.stop_routers.cancel();
        self.routers.wait().await;
        self.shards.close();
        self.stop_shards.cancel();
        self.shards.wait().await;
    }
}

/// Starts everything, then supervises it until SIGINT or SIGTERM.
pub async fn run(args: UpArgs, plan: Plan, tls: Option<InternalTls>) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let running = Processes::default();
    // A slow start can be interrupted as well.
    let ended = tokio::select! {
        failed = serve(&args, &plan, tls.as_ref(), &running) => failed.map(|never| match never {}),
        _ = terminate.recv() => {
            info!("SIGTERM: stopping");
            Ok(())
        }
        _ = interrupt.recv() => {
            info!("interrupted: stopping");
            Ok(())
        }
    };
    running.stop().await;
    ended
}

/// Starts everything, then waits for ever.
async fn serve(
    args: &UpArgs,
    plan: &Plan,
    tls: Option<&InternalTls>,
    running: &Processes,
) -> anyhow::Result<Infallible> {
    let program = std::env::current_exe().context("finding this program, to start its children")?;
    let meta = start_meta(&program, args, tls, running).await?;
    let mut local = Local {
        program: program.clone(),
        args: args.clone(),
        tls: tls.cloned(),
        meta,
        stop: running.stop_shards.clone(),
        running: BTreeMap::new(),
    };
    let stores = start_shards(&mut local, plan, running).await?;
    running.shards.spawn(local.run());
    let beside = Beside { meta, stores };
    let (mut listens, mut admins) = (Vec::new(), Vec::new());
    for router in 0..args.routers {
        let listen = layout::nth_address("--listen", &args.listen, router)?;
        let admin = layout::nth_address("--admin", &args.admin, router)?;
        let first = layout::router(&program, args, (router, &listen, &admin), &beside, tls);
        let (child, ready) = first.start().await?;
        // A restarted router listens at the same address, even if the flags said port 0.
        let (listen, admin) = (resolved(&ready, "listen", &listen), resolved(&ready, "admin", &admin));
        let again = layout::router(&program, args, (router, &listen, &admin), &beside, tls);
        running.routers.spawn(keep(again, child, running.stop_routers.clone()));
        listens.push(listen);
        admins.push(admin);
    }
    announce(args, plan, &listens.join(","), &admins.join(","), &beside)?;
    std::future::pending().await
}

async fn start_meta(
    program: &Path,
    args: &UpArgs,
    tls: Option<&InternalTls>,
    running: &Processes,
) -> anyhow::Result<SocketAddr> {
    private::make(&args.data_dir.join("meta"))?;
    let (program, args, tls) = (program.to_owned(), args.clone(), tls.cloned());
    let spec = move |listen| layout::meta(&program, &args, listen, tls.as_ref());
    let mut meta = begin(spec, running.stop_shards.child_token(), &running.shards);
    meta.ready()
        .await
        .with_context(|| format!("nothing is served without the meta store; {}", accept(flags::META)))
}

/// The hint for a message about damaged data.
fn accept(store: &str) -> String {
    format!(
        "if it says that data is damaged, and the loss is to be accepted: `kindred up --accept-data-loss {store}`, with the \
         other flags as they are"
    )
}

/// Starts the shards and returns their addresses. A shard that does not start delays no other.
async fn start_shards(
    local: &mut Local,
    plan: &Plan,
    running: &Processes,
) -> anyhow::Result<Vec<(String, SocketAddr)>> {
    let mut begun = Vec::new();
    for shard in &plan.local {
        private::make(&local.args.data_dir.join("stores").join(&shard.name))?;
        let (program, args, tls) = (local.program.clone(), local.args.clone(), local.tls.clone());
        let (prefix, one) = (plan.prefix.clone(), shard.clone());
        let spec = move |listen| layout::shard(&program, &args, &prefix, &one, listen, tls.as_ref());
        let stop = running.stop_shards.child_token();
        begun.push((shard, stop.clone(), begin(spec, stop, &running.shards)));
    }
    let (mut stores, mut first_failure, mut failures) = (Vec::new(), None, 0);
    let settled = join_all(begun.into_iter().map(async |(shard, stop, mut begun)| {
        let settled = begun.settled().await;
        (shard, stop, begun, settled)
    }));
    for (shard, stop, begun, settled) in settled.await {
        let (listen, failed) = settled.with_context(|| format!("store {}: told to stop", shard.name))?;
        if let Some(failed) = failed {
            error!(
                "store {} is away, the others are served without it: {failed}; {}",
                shard.name,
                accept(&shard.name)
            );
            first_failure.get_or_insert(failed);
            failures += 1;
        }
        let one = Shard { name: shard.name.clone(), listen, stop, kept: begun.kept };
        local.running.insert(shard.slot, one);
        stores.push((shard.name.clone(), listen));
    }
    match first_failure {
        Some(failure) if failures == plan.local.len() => bail!("no store starts: {failure}"),
        _ => Ok(stores),
    }
}

/// The TCP address in a shard's ready line.
pub fn listen_of(ready: &Ready) -> anyhow::Result<SocketAddr> {
    let listen = ready.get("listen").context("the shard's ready line names no listen address")?;
    let mut addresses = listen.split(',').filter_map(|address| address.parse().ok());
    addresses.next().with_context(|| format!("the shard's address {listen}"))
}

fn resolved(ready: &Ready, key: &str, flag: &str) -> String {
    ready.get(key).unwrap_or(flag).to_owned()
}

/// Waits for the child's end and restarts it, until it is told to stop.
pub async fn keep(spec: Spec, mut running: child::Running, stop: CancellationToken) {
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

/// Retries until the child runs; `None` if it is told to stop meanwhile.
async fn restart(spec: &Spec, backoff: &mut Backoff, stop: &CancellationToken) -> Option<child::Running> {
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

/// Prints what is served, and as the last line that everything serves.
fn announce(args: &UpArgs, plan: &Plan, listen: &str, admin: &str, beside: &Beside) -> anyhow::Result<()> {
    let mut stores: Vec<String> = beside.stores.iter().map(|(name, at)| format!("{name}={at}")).collect();
    stores.extend(plan.external.iter().map(|(name, urls)| format!("{name}={}", urls.join(","))));
    let mut lines = String::new();
    if args.auto_tls {
        let dir = args.data_dir.join("auto-tls");
        lines += &format!("certificates for clients: {}\n", dir.display());
    }
    if args.own_admin {
        let dir = args.data_dir.join("auto-tls");
        let dir = std::path::absolute(&dir).unwrap_or(dir);
        let file = |name: &str| dir.join(name).display().to_string();
        lines += &format!(
            "for kindred's own commands: export KINDRED_ADMIN={admin} KINDRED_CACERT={} KINDRED_CERT={} KINDRED_KEY={}\n",
            file("ca.crt"),
            file("admin.crt"),
            file("admin.key")
        );
    }
    let (stores, meta) = (stores.join(";"), beside.meta);
    lines += &format!("kindred ready listen={listen} admin={admin} stores={stores} meta={meta}\n");
    let mut out = std::io::stdout().lock();
    match out.write_all(lines.as_bytes()).and_then(|()| out.flush()) {
        // It serves even if the reader has gone.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("standard output"),
    }
}
