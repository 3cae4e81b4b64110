//! `kindred-router`: one etcd endpoint over many stores.

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One etcd endpoint over many stores, routed by Kind.
#[derive(Debug, Parser)]
#[command(name = "kindred-router", version)]
struct Cli {
    #[command(flatten)]
    args: kindred_router::config::Args,
}

fn main() -> anyhow::Result<()> {
    kindred_router::run::run(&Cli::parse().args)
}
