//! Measures how long no write is acknowledged when a primary is lost, hands over, or loses its standby. One fault of each kind in
//! turn happens under load; in the end every acknowledged write must be there.

mod admin;
mod cluster;
mod report;
mod writers;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, ensure};

use self::{
    cluster::Cluster,
    report::{Fault, Report},
    writers::{Seen, Writers},
};
use crate::pinned_etcd;

#[derive(clap::Args, Debug, Clone)]
pub struct FailoverOptions {
    /// Faults of each kind: a primary is killed, is paused, hands over, or loses its standby. 0 leaves them out.
    #[arg(long, default_value_t = 20)]
    failover_rounds: u64,
    /// Writers meanwhile, each of which waits for its write before the next.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    failover_writers: u64,
    /// The file of the plot; by default one in bench/results, where there is such a folder.
    #[arg(long)]
    failover_plot: Option<PathBuf>,
}

/// The folder and the name of the plot unless an option says otherwise.
const RESULTS: &str = "bench/results";
const PLOT: &str = "standby-failover.svg";

/// Writes of each writer that are acknowledged before a fault, and before it is mended. One of each may be on its way to
/// the writer when the fault comes.
const WRITES: u64 = 5;
/// The shortest time without a fault before the next.
const CALM: Duration = Duration::from_millis(500);

/// The quiet time before a fault. The lengths are spread over a second, so that faults come at all moments
/// between two looks of a router; they are the same in each run.
fn calm(number: u64) -> Duration {
    // Multiples of the golden ratio are spread evenly from the first on.
    CALM + Duration::from_millis(number.wrapping_mul(618) % 1_000)
}

/// Faults under load, and what they do to writes.
struct Faults {
    cluster: Cluster,
    seen: Arc<Seen>,
    /// The writes that must be acknowledged before a fault, and before it is mended.
    writes: u64,
    report: Report,
}

impl Faults {
    /// One fault, until the store has its standby in sync again. Notes the longest time without an acknowledged write.
    async fn round(&mut self, fault: Fault, calm: Duration) -> anyhow::Result<()> {
        let Self { cluster, seen, writes, report } = self;
        let primary = cluster.in_sync().await?;
        let standby = 1 - primary;
        seen.begin();
        let before = async {
            tokio::time::sleep(calm).await;
            seen.more(*writes).await
        };
        cluster.beside("writes before a fault", before).await?;
        report.calm = report.calm.max(seen.longest());
        seen.begin();
        match fault {
            Fault::KillPrimary => cluster.members[primary].kill()?,
            Fault::PausePrimary => cluster.members[primary].signal("-STOP").await?,
            Fault::HandOver => cluster.hand_over().await?,
            Fault::KillStandby => cluster.members[standby].kill()?,
        }
        cluster.beside("writes after a fault", seen.more(*writes)).await?;
        if fault == Fault::PausePrimary {
            cluster.members[primary].signal("-CONT").await?;
        }
        cluster.members.iter_mut().for_each(|member| member.up());
        let now = cluster.in_sync().await?;
        let expected = if fault == Fault::KillStandby { primary } else { standby };
        ensure!(now == expected, "member {primary} was the primary, and {now} is");
        report.add(fault, seen.longest());
        Ok(())
    }
}

async fn measure(options: &FailoverOptions, disk: &Path) -> anyhow::Result<Report> {
    let (seen, report) = (Arc::<Seen>::default(), Report::default());
    let mut cluster = Cluster::start(disk, &pinned_etcd()?)?;
    cluster.in_sync().await?;
    let writers = usize::try_from(options.failover_writers)?;
    let writers = Writers::start(&cluster.router.endpoint, writers, &seen)?;
    let mut faults = Faults { cluster, seen, writes: WRITES * options.failover_writers, report };
    for number in 0..options.failover_rounds {
        for (fault, at) in Fault::ALL.into_iter().zip(4 * number..) {
            let done = faults.round(fault, calm(at)).await;
            let what = || format!("round {number}, {}; errors {:?}", fault.name(), faults.seen.errors());
            done.with_context(what)?;
        }
    }
    let Faults { mut cluster, seen, mut report, .. } = faults;
    cluster.beside("reading what was written", writers.stop()).await?;
    report.writes = seen.count();
    report.errors = seen.errors();
    Ok(report)
}

/// The file of the plot, if there is to be one.
fn plot_file(options: &FailoverOptions) -> Option<PathBuf> {
    let default = || Path::new(RESULTS).is_dir().then(|| Path::new(RESULTS).join(PLOT));
    options.failover_plot.clone().or_else(default)
}

#[allow(clippy::print_stdout, reason = "the result of the program")]
pub async fn run(options: &FailoverOptions, disk: &Path) -> anyhow::Result<()> {
    if options.failover_rounds == 0 {
        return Ok(());
    }
    println!(
        "\nFailovers: a store with a primary and a standby that counts, mode fsync, all data on one disk; one router, an etcd\n\
         as its meta store, and {} writers, each with one put at a time. In turn a primary is killed, is paused, hands over, or\n\
         loses its standby. What no write was acknowledged for is the longest such time from the fault until the store has its\n\
         standby in sync again.",
        options.failover_writers
    );
    let report = measure(options, disk).await.context("failovers")?;
    println!("\n{}", report.markdown());
    if let Some(file) = plot_file(options) {
        std::fs::write(&file, report.lines(cfg!(debug_assertions)).svg())
            .with_context(|| format!("writing {}", file.display()))?;
        println!("\nwritten: {}", file.display());
    }
    Ok(())
}
