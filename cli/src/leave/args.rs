//! The command line of `kindred leave`. The doc comments of arguments are the help texts.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use kindred_partition_config::duration::parse_duration;
use kindred_transport::tls::EtcdTlsArgs;

use crate::admin::{args::Connect, login::Login};

/// `kindred leave`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct LeaveArgs {
    #[command(subcommand)]
    pub step: Option<Step>,
    #[command(flatten)]
    pub begin: Begin,
}

/// The moves.
#[derive(Debug, Args)]
pub struct Begin {
    /// Client URLs of the etcd that is to take everything. It must have begun with a snapshot of `kindred leave prepare`.
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',', required = true)]
    pub to: Vec<String>,
    /// The name of the etcd as a store. It is added unless a store with these URLs is there.
    #[arg(long, value_name = "STORE", default_value = "home")]
    pub store: String,
    /// Do everything but the switches: copy each Kind, follow its changes, compare both sides, and give the move up.
    #[arg(long)]
    pub rehearse: bool,
    /// Take an etcd that has keys, and delete them when the Kinds that they lie in move to it.
    #[arg(long)]
    pub delete_its_keys: bool,
    /// How long to wait for each move, as 90s, 10m or 1h; then exit with 5, and the move goes on [default: as long as it takes].
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub timeout: Option<Duration>,
    /// The user who reads kindred's keys for the comparison.
    #[command(flatten)]
    pub login: Login,
    /// TLS towards the etcd, for the check. The routers have their own flags for it.
    #[command(flatten)]
    pub etcd_tls: EtcdTlsArgs,
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Subcommand)]
pub enum Step {
    /// Write an empty snapshot for the etcd that is to take the keys. Its revision lies above those that shards show for
    /// some days, so that no client's resourceVersion lies in that etcd's future. Contacts nobody.
    Prepare(PrepareArgs),
}

#[derive(Debug, Args)]
pub struct PrepareArgs {
    /// The file to write, for `etcdutl snapshot restore`. It must not exist.
    pub file: PathBuf,
    /// The days within which all Kinds are to be on the etcd. The etcd counts writes, and the shards' revisions reach its
    /// own after so many days. A Kind can come back to a shard only then.
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=3650))]
    pub days: u32,
}
