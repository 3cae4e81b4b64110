//! `kindred router --with-shard`: a router and shards in one process and on one thread. A call goes from one to the other in
//! memory, and nobody has to be woken for it. That is the cheapest way for a cluster whose stores need less than one
//! processor.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use anyhow::Context as _;
use clap::Parser as _;
use kindred_partition_config::state::StoreState;
use kindred_router::{meta::Cluster, run};
use kindred_shard::{
    config::Settings,
    metrics::{self, Label, Recorded},
    server,
};
use kindred_transport::{inside::Inside, network::Network};
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{error, info, warn};

use crate::{
    cli::{RouterCommand, ShardCommand},
    up::child::Backoff,
};

/// The command line of a shard.
#[derive(Debug, clap::Parser)]
#[command(name = "--with-shard", no_binary_name = true)]
struct Flags {
    #[command(flatten)]
    shard: ShardCommand,
}

/// A shard of this process.
#[derive(Debug, Clone)]
struct Hosted {
    name: String,
    slot: u32,
    data_dir: Option<PathBuf>,
    args: kindred_shard::Args,
}

impl Hosted {
    /// Reads the flags of a shard, as a shell would.
    fn of(text: &str) -> anyhow::Result<Self> {
        let field = || format!("--with-shard {text:?}");
        let words = shlex::split(text).with_context(|| format!("{}: a quote is not closed", field()))?;
        let flags = Flags::try_parse_from(words).with_context(field)?;
        let args = flags.shard.args;
        let settings = Settings::resolve(args.clone()).with_context(field)?;
        anyhow::ensure!(!settings.reclaim, "{}: --reclaim ends the process: run it by itself", field());
        Ok(Self { name: settings.name, slot: settings.slot.get().into(), data_dir: settings.data_dir, args })
    }

    async fn start(&self, recorded: Recorded, network: Network) -> anyhow::Result<server::Running> {
        let settings = Settings::resolve(self.args.clone())?;
        server::start_recorded(Settings { network, ..settings }, recorded).await
    }
}

/// Runs a router with its shards until it is told to stop.
///
/// # Errors
/// When the flags are wrong, or an address cannot be bound. A shard that does not start is tried again, and the others are
/// served without it.
pub fn run(command: &RouterCommand) -> anyhow::Result<()> {
    let shards: Vec<Hosted> =
        command.with_shard.iter().map(|text| Hosted::of(text)).collect::<anyhow::Result<_>>()?;
    let mut settings = command.args.settings()?;
    let _logging = run::begin_logging(&command.args)?;
    kindred_transport::memory::set_up();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(async {
        let drain = run::begin_drain()?;
        let recorder = run::recorder(&metrics::buckets());
        metrics::describe();
        let network = Network::Inside(Inside::default());
        settings.network = network.clone();
        let recorded = Recorded { recorder: recorder.clone(), ..Recorded::default() };
        let host = Host { recorded, network, stop: CancellationToken::new() };
        let (tasks, mut all, mut first) = (TaskTracker::new(), Vec::new(), Vec::new());
        for shard in shards {
            let (tried, trying) = oneshot::channel();
            let stop = host.stop.child_token();
            let kept = tasks.spawn(host.clone().keep(shard.clone(), stop.clone(), tried));
            all.push(Kept { shard, stop, kept });
            first.push(trying);
        }
        for trying in first {
            // It says so by dropping the sender.
            let _ = trying.await;
        }
        let bound = run::bind(settings, &drain, recorder).await?;
        bound.announce()?;
        tasks.spawn(stop_removed(bound.app.keeper.cluster.clone(), all, host.stop.clone()));
        run::finish(&drain).await;
        // The router first, so that what clients are waiting for is still answered.
        host.stop.cancel();
        tasks.close();
        tasks.wait().await;
        Ok(())
    })
}

/// The shards of this process share this.
#[derive(Debug, Clone)]
struct Host {
    /// The process records its metrics so.
    recorded: Recorded,
    network: Network,
    stop: CancellationToken,
}

impl Host {
    /// Keeps a shard running, and says when it was first tried.
    async fn keep(self, shard: Hosted, stop: CancellationToken, tried: oneshot::Sender<()>) {
        let (mut backoff, mut tried) = (Backoff::new(Instant::now()), Some(tried));
        loop {
            let recorded = Recorded { label: Label::of(&shard.name), ..self.recorded.clone() };
            let started = stop.run_until_cancelled(shard.start(recorded, self.network.clone())).await;
            let Some(started) = started else { return };
            backoff.started(Instant::now());
            match started {
                Ok(running) => {
                    if let Err(error) = running.announce() {
                        warn!("store {}: standard output: {error}", shard.name);
                    }
                    drop(tried.take());
                    let drain = running.drain.clone();
                    let ending = stop.clone();
                    let stopping = tokio::spawn(async move {
                        ending.cancelled().await;
                        drain.begin();
                    });
                    let ended = running.finish().await;
                    stopping.abort();
                    match ended {
                        _ if stop.is_cancelled() => return,
                        Ok(()) => warn!("store {} ended; starting it again", shard.name),
                        Err(error) => error!("store {} ended: {error:#}; starting it again", shard.name),
                    }
                }
                Err(error) => {
                    error!(
                        "store {} is away, the others are served without it: {error:#}; it is tried again",
                        shard.name
                    );
                    drop(tried.take());
                }
            }
            let wait = tokio::time::sleep(backoff.after_end(Instant::now()));
            if stop.run_until_cancelled(wait).await.is_none() {
                return;
            }
        }
    }
}

/// A shard that is kept running, and how it is stopped.
struct Kept {
    shard: Hosted,
    stop: CancellationToken,
    kept: JoinHandle<()>,
}

/// Stops the shards whose stores are removed from the cluster.
async fn stop_removed(cluster: Arc<Cluster>, mut all: Vec<Kept>, stop: CancellationToken) {
    let mut states = cluster.states();
    loop {
        let state = states.borrow_and_update().clone();
        let removed = |kept: &mut Kept| {
            let store = state.stores.iter().find(|store| store.slot.map(u32::from) == Some(kept.shard.slot));
            store.is_some_and(|store| store.state == StoreState::Removed)
        };
        for Kept { shard, stop, kept } in all.extract_if(.., removed) {
            stop.cancel();
            // An error means that the task has ended.
            let _ = kept.await;
            info!("store {} was removed, and has stopped", shard.name);
            // A later store of this name is another one, and does not begin with this one's identity.
            if let Some(folder) = &shard.data_dir
                && let Err(error) = put_aside(folder, &shard)
            {
                warn!("{}: cannot be put aside: {error}", folder.display());
            }
        }
        // The sender lives as long as the router.
        if !matches!(stop.run_until_cancelled(states.changed()).await, Some(Ok(()))) {
            return;
        }
    }
}

fn put_aside(folder: &Path, shard: &Hosted) -> std::io::Result<()> {
    std::fs::rename(folder, folder.with_file_name(format!("{}.removed-{}", shard.name, shard.slot)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_a_shard_are_read_as_a_shell_reads_them() {
        let shard = Hosted::of("--name a --slot 3 --data-dir '/a b' --in-cluster").unwrap();
        assert_eq!((shard.name.as_str(), shard.slot), ("a", 3));
        assert_eq!(shard.data_dir.as_deref(), Some(Path::new("/a b")));
        for (wrong, problem) in [
            ("--name 'a", "a quote is not closed"),
            ("--nome a", "--nome"),
            ("--slot 2000", "slot"),
            ("--reclaim --data-dir d --slot 1", "--reclaim"),
        ] {
            let error = format!("{:#}", Hosted::of(wrong).unwrap_err());
            assert!(error.contains("--with-shard") && error.contains(problem), "{error}");
        }
    }
}
