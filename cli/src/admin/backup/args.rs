//! The command lines of `kindred backup` and `kindred restore`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::rate;
use crate::admin::args::{Connect, Output};

/// `kindred backup`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct BackupArgs {
    /// Of a backup that there is.
    #[command(subcommand)]
    pub existing: Option<Existing>,
    /// The folder that is to be the backup: not there yet, or empty. Best on another disk than the stores'.
    #[arg(long, value_name = "DIR", required = true)]
    pub to: Option<PathBuf>,
    /// How.
    #[command(flatten)]
    pub through: Through,
}

/// How a backup or a restore is made.
#[derive(Debug, Args)]
pub struct Through {
    /// Bytes of keys and values a second at most, such as 50MiB [default: as fast as it goes].
    #[arg(long, value_name = "BYTES", value_parser = rate::parse)]
    pub rate: Option<u64>,
    /// The etcd API to read and write through [default: what the router advertises].
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',')]
    pub endpoints: Vec<String>,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Whom to ask.
    #[command(flatten)]
    pub connect: Connect,
}

/// `kindred backup verify`.
#[derive(Debug, Subcommand)]
pub enum Existing {
    /// Read all of a backup: every checksum, every count, the order of keys; and say what is in it. Asks no router.
    Verify(VerifyArgs),
}

/// `kindred backup verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The backup.
    pub dir: PathBuf,
    /// How to print.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

/// `kindred restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The backup.
    pub dir: PathBuf,
    /// Only this Kind: pods, leases.coordination.k8s.io, or the prefix of its keys.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only what lies in this namespace, and the Namespace object itself unless a Kind is named.
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Only say what would be created, changed and left.
    #[arg(long)]
    pub dry_run: bool,
    /// Change keys that differ from the backup's; without it a restore that would have to changes nothing.
    #[arg(long)]
    pub overwrite: bool,
    /// Delete keys of the restored range that the backup does not have, so that it is as it was.
    #[arg(long)]
    pub delete_extra: bool,
    /// The time that restored leases get.
    #[arg(long, value_enum, default_value_t)]
    pub lease_ttl: LeaseTtl,
    /// How.
    #[command(flatten)]
    pub through: Through,
}

/// How long a restored lease lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LeaseTtl {
    /// What was left of it in the backup.
    #[default]
    Remaining,
    /// All that it was granted once.
    Granted,
}
