//! The command line.

use clap::{Args, Parser, Subcommand};

use clap_complete::Shell;

use crate::{
    admin::{
        EXIT_STATUS,
        args::{AdminCommand, Connect},
    },
    health::HealthArgs,
    parent::ParentArgs,
    up::UpArgs,
};

/// One etcd endpoint for Kubernetes that is many stores behind.
#[derive(Debug, Parser)]
#[command(name = "kindred", version, propagate_version = true, after_help = EXIT_STATUS)]
pub struct Cli {
    /// Whom the commands that talk to a router ask; may stand behind the command, too.
    #[command(flatten)]
    pub connect: Connect,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a router and one shard process per store, and keep them running.
    Up(Box<UpArgs>),
    /// Run one shard in the foreground (the same as kindred-shard).
    Shard(Box<ShardCommand>),
    /// Run a router in the foreground (the same as kindred-router).
    Router(Box<RouterCommand>),
    /// Ask a router's admin port whether it serves; exit status 0 when it does.
    Health(HealthArgs),
    /// The commands that talk to a router.
    #[command(flatten)]
    Admin(Box<AdminCommand>),
    /// Print a completion script: `source <(kindred completion bash)`.
    Completion {
        /// Of which shell.
        #[arg(value_enum)]
        shell: Shell,
    },
}

/// `kindred shard`.
#[derive(Debug, Args)]
pub struct ShardCommand {
    /// The shard's own flags.
    #[command(flatten)]
    pub args: kindred_shard::Args,
    /// Whom to follow.
    #[command(flatten)]
    pub parent: ParentArgs,
}

/// `kindred router`.
#[derive(Debug, Args)]
pub struct RouterCommand {
    /// The router's own flags.
    #[command(flatten)]
    pub args: kindred_router::config::Args,
    /// Whom to follow.
    #[command(flatten)]
    pub parent: ParentArgs,
}
