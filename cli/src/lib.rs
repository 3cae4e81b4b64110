//! `kindred`: one command that starts a router with its shards, and the commands to operate a cluster.

mod admin;
mod adopt;
mod cli;
#[cfg(test)]
mod deploy_tests;
#[cfg(test)]
mod docs_tests;
mod health;
mod import;
mod leave;
mod parent;
mod stock_etcd;
mod together;
mod up;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, error::ErrorKind};
use kindred_transport::logging;

use admin::{output, version};
use cli::{Cli, Command, words_of};
use leave::args::Step;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    version::BUILD.set();
    let Cli { connect, command } = Cli::parse_from(words_of(std::env::args_os()));
    if !connect.is_empty() && !matches!(command, Command::Admin(_)) {
        let message = "--admin and what belongs to it stand before commands that talk to a router; write it behind this one";
        Cli::command().error(ErrorKind::ArgumentConflict, message).exit();
    }
    let result = match command {
        Command::Up(args) => up::run(*args),
        Command::Shard(args) => {
            parent::follow(args.parent);
            kindred_shard::run(args.args)
        }
        Command::Router(args) => {
            parent::follow(args.parent);
            match args.with_shard.as_slice() {
                [] => kindred_router::run::run(&args.args),
                _ => together::run(&args),
            }
        }
        Command::Health(args) => return admin::run_to_end(health::run(&args)),
        Command::Import(args) => import::run(&args),
        Command::Adopt(args) => match args.step {
            Some(step) => return admin::adopt::run(&step, &connect),
            None => adopt::run(args.begin),
        },
        Command::Leave(args) => match args.step {
            Some(Step::Prepare(args)) => leave::prepare(&args),
            None => return admin::leave::run(&args.begin, &connect),
        },
        Command::Admin(command) => return admin::run(*command, &connect),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "kindred", &mut script);
            output::print(&String::from_utf8_lossy(&script)).map_err(Into::into)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::print_error(&logging::last_words("kindred", &format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}
