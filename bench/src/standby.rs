//! `standby`: what the standbys of a store cost. Each part is a module with options of its own and takes its stores from
//! [`members`].

mod cost;
mod members;
mod report;

#[derive(clap::Args, Debug, Clone)]
pub struct Options {
    #[command(flatten)]
    cost: cost::CostOptions,
}

pub async fn run(options: Options) -> anyhow::Result<()> {
    cost::run(&options.cost).await
}
