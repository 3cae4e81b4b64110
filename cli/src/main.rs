//! `kindred`: one command that starts a router with its shards, and the tools around it.

mod cli;
#[cfg(test)]
mod deploy_tests;
mod health;
mod parent;
mod up;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let Cli { command } = Cli::parse();
    let result = match command {
        Command::Up(args) => up::run(*args),
        Command::Shard(args) => {
            parent::follow(args.parent);
            kindred_shard::run(args.args)
        }
        Command::Router(args) => {
            parent::follow(args.parent);
            kindred_router::run::run(&args.args)
        }
        Command::Health(args) => health::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[allow(clippy::print_stderr)]
            {
                eprintln!("kindred: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}
