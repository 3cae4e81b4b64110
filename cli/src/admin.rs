//! Commands that talk to a router's admin port: objects, moves, stores. Each reports its outcome as an exit status ([`failure`]).

pub mod adopt;
mod advise;
pub mod args;
mod backup;
pub mod client;
pub mod context;
mod document;
mod edit;
pub mod failure;
#[cfg(test)]
mod fake;
pub mod leave;
pub mod login;
mod objects;
pub mod output;
mod overview;
mod reconcile;
mod show;
mod standby;
mod store;
pub mod top;
pub mod trace;
mod verbs;
pub mod version;
mod wait;

use std::process::ExitCode;

use args::{AdminCommand, Connect};
use client::Client;
use failure::Failure;

/// Runs a command and returns its exit status.
pub fn run(command: AdminCommand, outer: &Connect) -> ExitCode {
    run_to_end(dispatch(command, outer))
}

/// Runs what a command does, and returns its exit status.
pub fn run_to_end(does: impl Future<Output = Result<(), Failure>>) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return said(&Failure::Refused(format!("cannot start the runtime: {error}"))),
    };
    match runtime.block_on(does) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => said(&failure),
    }
}

fn said(failure: &Failure) -> ExitCode {
    output::print_error(&format!("kindred: {failure}"));
    ExitCode::from(failure.code())
}

async fn dispatch(command: AdminCommand, outer: &Connect) -> Result<(), Failure> {
    let client = |inner: &Connect| Client::new(&context::address(&inner.over(outer))?);
    match command {
        AdminCommand::Get(args) => objects::get(&client(&args.connect)?, &args).await,
        AdminCommand::Apply(args) => objects::apply(&client(&args.run.connect)?, &args).await,
        AdminCommand::Delete(args) => objects::delete(&client(&args.run.connect)?, &args).await,
        AdminCommand::Edit(args) => edit::edit(&client(&args.run.connect)?, &args).await,
        AdminCommand::Plan(args) => objects::plan(&client(&args.connect)?, &args).await,
        AdminCommand::Move(args) => match &args.existing {
            Some(existing) => verbs::existing(&client(existing.connect())?, existing).await,
            None => verbs::move_kind(&client(&args.run.connect)?, &args).await,
        },
        AdminCommand::Split(args) => verbs::split(&client(&args.run.connect)?, &args).await,
        AdminCommand::Merge(args) => verbs::merge(&client(&args.run.connect)?, &args).await,
        AdminCommand::Drain(args) => verbs::drain(&client(&args.run.connect)?, &args).await,
        AdminCommand::Version(args) => version::version(&args, outer).await,
        AdminCommand::Status(args) => overview::status(&client(&args.connect)?, &args).await,
        AdminCommand::Backup(args) => backup::take::run(&args, outer).await,
        AdminCommand::Restore(args) => backup::restore::run(&args, outer).await,
        AdminCommand::Verify(args) => backup::hashes::run(&args, outer).await,
        AdminCommand::Reconcile(args) => reconcile::reconcile(&client(&args.connect)?, &args).await,
        AdminCommand::Top(args) => top::top(&client(&args.connect)?, &args).await,
        AdminCommand::Advise(args) => advise::advise(&client(&args.connect)?, &args).await,
        AdminCommand::Trace(args) => trace::trace(&client(&args.connect)?, &args).await,
        AdminCommand::Store(args) => store::run(&client(args.command.connect())?, &args.command).await,
    }
}
