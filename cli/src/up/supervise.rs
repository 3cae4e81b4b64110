//! The supervisor: starts every child, announces when all serve, restarts those that end, and stops all in order.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    io::{self, Write as _},
    net::SocketAddr,
    path::Path,
};

use anyhow::{Context, bail};
use futures_util::future::join_all;
use kindred_transport::private;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info};

use super::{
    args::UpArgs,
    begin::{begin, free_port},
    child::Ready,
    flags,
    keep::keep,
    layout::{self, Beside, InternalTls, Plan, Together},
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
        standbys: BTreeMap::new(),
        tasks: running.shards.clone(),
    };
    let (stores, together) = match args.together {
        true => place_shards(args, plan, tls)?,
        false => (start_shards(&mut local, plan, running).await?, Together::default()),
    };
    running.shards.spawn(local.run());
    let beside = Beside { meta, stores };
    let (mut listens, mut admins) = (Vec::new(), Vec::new());
    for router in 0..args.routers {
        let listen = layout::nth_address("--listen", &args.listen, router)?;
        let admin = layout::nth_address("--admin", &args.admin, router)?;
        let mut first = layout::router(&program, args, (router, &listen, &admin), &beside, tls);
        if router == 0 {
            together.join(&mut first, true);
        }
        let (child, ready) = first.start().await?;
        // A restarted router listens at the same address, even if the flags said port 0.
        let (listen, admin) = (resolved(&ready, "listen", &listen), resolved(&ready, "admin", &admin));
        let mut again = layout::router(&program, args, (router, &listen, &admin), &beside, tls);
        if router == 0 {
            together.join(&mut again, false);
        }
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
        private::make(&layout::folders(&local.args, &shard.name).0)?;
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

/// Chooses where the shards listen that run in the process of the first router.
fn place_shards(
    args: &UpArgs,
    plan: &Plan,
    tls: Option<&InternalTls>,
) -> anyhow::Result<(Vec<(String, SocketAddr)>, Together)> {
    let (mut stores, mut together, mut taken) = (Vec::new(), Together::default(), Vec::new());
    for shard in &plan.local {
        private::make(&layout::folders(args, &shard.name).0)?;
        let port = free_port().context("a port for a store")?;
        let listen = port.local_addr()?;
        taken.push(port);
        together.add(args, &plan.prefix, shard, listen, tls)?;
        stores.push((shard.name.clone(), listen));
    }
    Ok((stores, together))
}

fn resolved(ready: &Ready, key: &str, flag: &str) -> String {
    ready.get(key).unwrap_or(flag).to_owned()
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
