//! The command line of `kindred adopt`. The doc comments of arguments are the help texts.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};
use kindred_partition_config::duration::parse_duration;
use kindred_transport::tls::EtcdTlsArgs;

use crate::{
    admin::args::{Connect, Output},
    up::args::UpArgs,
};

/// `kindred adopt`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct AdoptArgs {
    #[command(subcommand)]
    pub step: Option<Step>,
    #[command(flatten)]
    pub begin: Begin,
}

/// The beginning.
#[derive(Debug, Args)]
pub struct Begin {
    /// Client URLs of the etcd that is in use, best of all its members.
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',', required = true)]
    pub from: Vec<String>,
    /// The name of the etcd as a store.
    #[arg(long, value_name = "STORE", default_value = "etcd")]
    pub store: String,
    /// kube-apiserver's --etcd-prefix.
    #[arg(long, value_name = "PREFIX", default_value = "/registry")]
    pub etcd_prefix: String,
    /// Only check the etcd, and start nothing. Exit status 1 if something is in the way.
    #[arg(long)]
    pub check: bool,
    /// Write the configuration to this file, for `kindred up --config`, and start nothing.
    #[arg(long, value_name = "FILE", conflicts_with = "check")]
    pub write_config: Option<PathBuf>,
    #[command(flatten)]
    pub etcd_tls: EtcdTlsArgs,
    /// As of `kindred up`.
    #[command(flatten)]
    pub up: UpArgs,
}

/// The steps after the beginning.
#[derive(Debug, Subcommand)]
pub enum Step {
    /// Show what is still written to the etcd directly, and by which routers everything else is.
    Status(StatusArgs),
    /// Wait until nobody writes to the etcd directly any more, and let Kinds move away from it from then on.
    Finish(FinishArgs),
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// The routers to ask: all of the cluster, as each knows its own writes only.
    #[command(flatten)]
    pub connect: Connect,
}

#[derive(Debug, Args)]
pub struct FinishArgs {
    /// The time in which nothing may have been written directly. Each apiserver writes every ten seconds.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
    pub quiet: Duration,
    /// How long to wait for that, as 90s, 10m or 1h.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2m")]
    pub timeout: Duration,
    /// Keys that begin with one of these, comma-separated, may still be written to the etcd directly, such as /calico/. None of
    /// them may ever move away from it.
    #[arg(long, value_name = "PREFIX[,PREFIX]", value_delimiter = ',')]
    pub except: Vec<String>,
    /// Do not wait: others lose what they write to the etcd after Kinds have moved.
    #[arg(long)]
    pub force: bool,
    /// The routers to ask: all of the cluster, as each knows its own writes only.
    #[command(flatten)]
    pub connect: Connect,
}
