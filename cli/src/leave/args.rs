//! The command line of `kindred leave`. The doc comments of arguments are the help texts.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `kindred leave`.
#[derive(Debug, Args)]
pub struct LeaveArgs {
    #[command(subcommand)]
    pub step: Step,
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
