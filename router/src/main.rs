//! `kindred-router`: one etcd endpoint over many stores.

use std::process::ExitCode;

use clap::Parser;
use kindred_transport::logging;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One etcd endpoint over many stores, routed by Kind.
#[derive(Debug, Parser)]
#[command(name = "kindred-router", version)]
struct Cli {
    #[command(flatten)]
    args: kindred_router::config::Args,
}

fn main() -> ExitCode {
    match kindred_router::run::run(&Cli::parse().args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[allow(clippy::print_stderr)]
            {
                eprintln!("{}", logging::last_words("kindred-router", &format!("{error:#}")));
            }
            ExitCode::FAILURE
        }
    }
}
