//! The hosts of a simulation: shards and routers, each the real server in a runtime of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser as _;
use kindred_netsim::{Link, Plan, ROUTERS, SHARDS, Step};
use kindred_router::{config as router_config, run as router};
use kindred_shard::{clock::WallClock, config as shard_config, identity::Identity, server as shard};
use kindred_transport::Drain;
use turmoil::Sim;

use crate::network;

/// Every server listens at this port, on its own host.
const PORT: u16 = 2379;
/// The stores of `spread.yaml`.
const STORES: [&str; SHARDS] = ["a", "b", "c"];
const CONFIG: &str = include_str!("spread.yaml");
/// The host of all clients.
pub const CLIENTS: &str = "clients";
/// The time at which a simulation begins: 2030-01-01.
const EPOCH: Duration = Duration::from_secs(1_893_456_000);
const GRACE: Duration = Duration::from_secs(1);

#[derive(clap::Parser)]
struct RouterCli {
    #[command(flatten)]
    args: router_config::Args,
}

/// The simulated time since the start, in milliseconds. Only the loop of the simulation writes it.
#[derive(Debug, Default)]
pub struct SimClock(AtomicU64);

impl SimClock {
    /// The clock of the only simulation of this process.
    pub fn get() -> &'static Self {
        static CLOCK: SimClock = SimClock(AtomicU64::new(0));
        &CLOCK
    }

    pub fn set(&self, elapsed: Duration) {
        self.0.store(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Milliseconds since the start.
    pub fn millis(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn wall(&self, skew_ms: i64) -> SystemTime {
        let now = UNIX_EPOCH + EPOCH + Duration::from_millis(self.millis());
        let skew = Duration::from_millis(skew_ms.unsigned_abs());
        if skew_ms < 0 { now - skew } else { now + skew }
    }
}

pub fn router_host(router: usize) -> String {
    format!("router-{router}")
}

fn shard_host(shard: usize) -> String {
    format!("shard-{}", STORES[shard])
}

/// The addresses of the routers, for clients.
pub fn endpoints() -> Vec<String> {
    (0..ROUTERS).map(|router| format!("{}:{PORT}", router_host(router))).collect()
}

/// Adds all servers to the simulation. The routers' configuration is written to `dir`.
///
/// # Errors
/// If the file cannot be written.
pub fn build(sim: &mut Sim<'_>, plan: &Plan, dir: &Path) -> anyhow::Result<()> {
    for (index, skew_ms) in plan.skews_ms.into_iter().enumerate() {
        sim.host(shard_host(index), move || run_shard(index, skew_ms));
    }
    let config = dir.join("partitions.yaml");
    std::fs::write(&config, CONFIG)?;
    for index in 0..ROUTERS {
        let config = config.clone();
        sim.host(router_host(index), move || run_router(index, config.clone()));
    }
    Ok(())
}

/// The identity of a shard. A real shard draws it from the operating system, so it would not be the same in each run.
/// No shard has a disk, because a disk does not follow simulated time.
fn identity(index: usize) -> Identity {
    let number = index as u64 + 1;
    Identity {
        uuid: format!("00000000-0000-4000-8000-{number:012x}"),
        cluster_id: 1,
        member_id: number,
        incarnation: 2,
        name: None,
        slot: None,
        lineage: None,
    }
}

async fn run_shard(index: usize, skew_ms: i64) -> turmoil::Result {
    let options = shard_config::Options {
        name: Some(STORES[index].to_owned()),
        listen: Some(format!("0.0.0.0:{PORT}")),
        admin_listen: Some("0.0.0.0:0".to_owned()),
        slot: Some(u16::try_from(index + 1)?),
        watch_progress_notify_interval: Some("500ms".to_owned()),
        ..shard_config::Options::default()
    };
    let mut settings =
        shard_config::Settings::resolve(shard_config::Args { options, ..shard_config::Args::default() })?;
    settings.identity = Some(identity(index));
    settings.network = network::simulated();
    settings.wall_clock = WallClock::Other(Arc::new(move || SimClock::get().wall(skew_ms)));
    let running = shard::start(settings).await?;
    Ok(running.finish().await?)
}

async fn run_router(index: usize, config: PathBuf) -> turmoil::Result {
    let mut args = vec![
        "kindred-router".to_owned(),
        format!("--name={}", router_host(index)),
        format!("--listen=0.0.0.0:{PORT}"),
        "--admin=0.0.0.0:0".to_owned(),
        format!("--config={}", config.display()),
    ];
    for (store, name) in STORES.iter().enumerate() {
        args.push(format!("--store={name}={}:{PORT}", shard_host(store)));
    }
    let mut settings = RouterCli::try_parse_from(args)?.args.settings()?;
    settings.network = network::simulated();
    // With the real clock every shard would look years wrong to a router, by an amount that differs in each run.
    settings.wall_clock = WallClock::Other(Arc::new(|| SimClock::get().wall(0)));
    let drain = Drain::new(GRACE);
    let _bound = router::bind(settings, &drain, None).await?;
    drain.finish().await;
    Ok(())
}

/// Executes a step of the plan.
///
/// # Errors
/// If the simulation has no such host.
pub fn carry_out(sim: &mut Sim<'_>, step: Step) -> anyhow::Result<()> {
    match step {
        Step::Hold(link) => {
            let (one, other) = ends(link);
            sim.hold(one, other);
        }
        Step::Release(link) => {
            let (one, other) = ends(link);
            sim.release(one, other);
        }
        Step::Cut(link) => {
            let (one, other) = ends(link);
            network::Paths::get().cut(sim.lookup(one.as_str()), sim.lookup(other.as_str()), true);
            sim.partition(one, other);
        }
        Step::Mend(link) => {
            let (one, other) = ends(link);
            network::Paths::get().cut(sim.lookup(one.as_str()), sim.lookup(other.as_str()), false);
            sim.repair(one, other);
        }
        Step::Kill(router) => sim.crash(router_host(router)),
        Step::Start(router) => sim.bounce(router_host(router)),
        Step::Slow(link, latency) => {
            let (one, other) = ends(link);
            sim.set_link_max_message_latency(one, other, latency);
        }
    }
    Ok(())
}

fn ends(link: Link) -> (String, String) {
    match link {
        Link::Client { router } => (CLIENTS.to_owned(), router_host(router)),
        Link::Store { router, shard } => (router_host(router), shard_host(shard)),
    }
}
