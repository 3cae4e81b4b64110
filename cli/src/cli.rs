//! The command line.

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
    /// Run one shard in the foreground (the same as kindred-shard).
    Shard(Box<ShardCommand>),
    /// Run a router in the foreground (the same as kindred-router).
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
