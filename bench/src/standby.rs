//! `standby`: what the standbys of a store cost, and how long writes stop when a member of it fails. Each part is a module
//! with options of its own.

mod cost;
mod failover;
mod members;
mod report;

use std::path::PathBuf;

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    /// A folder on the disk for all members, where writes wait for it.
    #[arg(long, default_value = "target")]
    dir: PathBuf,
    #[command(flatten)]
    cost: cost::CostOptions,
    #[command(flatten)]
    failover: failover::FailoverOptions,
}

pub async fn run(options: Options) -> anyhow::Result<()> {
    cost::run(&options.cost, &options.dir).await?;
    failover::run(&options.failover, &options.dir).await
}
