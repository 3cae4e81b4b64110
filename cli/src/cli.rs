//! The command line.

use std::{ffi::OsString, path::Path};

use clap::{Args, Parser, Subcommand};

use clap_complete::Shell;

use crate::{
    admin::{
        args::{AdminCommand, Connect},
        failure::EXIT_STATUS,
        version::VERSION,
    },
    adopt::args::AdoptArgs,
    health::HealthArgs,
    import::args::ImportArgs,
    leave::args::LeaveArgs,
    parent::ParentArgs,
    up::args::UpArgs,
};

/// One etcd endpoint for Kubernetes in front of many stores.
#[derive(Debug, Parser)]
#[command(name = "kindred", version = VERSION, propagate_version = true, after_help = EXIT_STATUS)]
pub struct Cli {
    /// The router for the commands that talk to one. These options may also follow the command.
    #[command(flatten)]
    pub connect: Connect,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a router and a shard process for each store, and keep them running.
    Up(Box<UpArgs>),
    /// Run one shard in the foreground.
    Shard(Box<ShardCommand>),
    /// Run a router in the foreground.
    Router(Box<RouterCommand>),
    /// Ask a router's admin port whether the router is ready: exit status 0 if it is, 1 if it is not, 2 if the command line is
    /// wrong, 3 if nobody answers.
    Health(HealthArgs),
    /// Make the data folder of a new cluster from a snapshot of an etcd. Contacts nobody.
    Import(ImportArgs),
    /// Put kindred in front of an etcd that is in use: check it, and start a router with it as the only store. Apiservers are
    /// pointed here one by one.
    Adopt(Box<AdoptArgs>),
    /// Go back to a stock etcd: move everything there while it is in use. Apiservers are pointed there one by one.
    Leave(Box<LeaveArgs>),
    /// The commands that talk to a router.
    #[command(flatten)]
    Admin(Box<AdminCommand>),
    /// Print a completion script: `source <(kindred completion bash)`.
    Completion {
        /// The shell.
        #[arg(value_enum)]
        shell: Shell,
    },
}

/// The arguments of `kindred shard`.
#[derive(Debug, Args)]
pub struct ShardCommand {
    /// The shard's own flags.
    #[command(flatten)]
    pub args: kindred_shard::Args,
    /// Whether to end with the parent process.
    #[command(flatten)]
    pub parent: ParentArgs,
}

/// The arguments of `kindred router`.
#[derive(Debug, Args)]
pub struct RouterCommand {
    /// The router's own flags.
    #[command(flatten)]
    pub args: kindred_router::config::Args,
    /// Run a shard with these flags (see `kindred shard --help`) in this process too: a call goes to it in memory, and wakes
    /// nobody. For each shard once. All share one thread, and end together.
    #[arg(long, value_name = "FLAGS", allow_hyphen_values = true)]
    pub with_shard: Vec<String>,
    /// Whether to end with the parent process.
    #[command(flatten)]
    pub parent: ParentArgs,
}

/// The command line as the parser takes it. The program may be called by a link named `kindred-shard` or `kindred-router`,
/// which stands for that command.
pub fn words_of(given: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<_> = given.into_iter().collect();
    let called = words.first().and_then(|program| Path::new(program).file_name()?.to_str());
    let command = match called {
        Some("kindred-shard") => Some("shard"),
        Some("kindred-router") => Some("router"),
        _ => None,
    };
    if let Some(command) = command {
        words.insert(1, command.into());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Command {
        Cli::try_parse_from(words_of(words.iter().map(OsString::from))).unwrap().command
    }

    #[test]
    fn a_link_by_a_commands_name_is_that_command() {
        let shard = ["/usr/bin/kindred-shard", "--name", "pods", "--slot", "2"];
        assert!(matches!(parsed(&shard), Command::Shard(_)));
        assert!(matches!(parsed(&["kindred-router", "--config", "kindred.yaml"]), Command::Router(_)));
        assert!(matches!(parsed(&["/opt/kindred-shard/kindred", "up"]), Command::Up(_)));
        assert!(matches!(parsed(&["kindred", "shard"]), Command::Shard(_)));
    }
}
