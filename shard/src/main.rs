//! `kindred-shard`: one shard.

use std::process::ExitCode;

use clap::Parser;
use kindred_transport::logging;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// One in-memory etcd, alone or as a shard behind routers.
#[derive(Debug, Parser)]
#[command(name = "kindred-shard", version)]
struct Command {
    #[command(flatten)]
    args: kindred_shard::Args,
}

fn main() -> ExitCode {
    match kindred_shard::run(Command::parse().args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[allow(clippy::print_stderr)]
            {
                eprintln!("{}", logging::last_words("kindred-shard", &format!("{error:#}")));
            }
            ExitCode::FAILURE
        }
    }
}
