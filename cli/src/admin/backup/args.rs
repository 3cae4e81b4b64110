//! The command lines of `kindred backup` and `kindred restore`. The doc comments of arguments are the help texts.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::rate;
use crate::admin::args::{Connect, Output};
use crate::admin::login::Login;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct BackupArgs {
    /// Operations on an existing backup.
    #[command(subcommand)]
    pub existing: Option<Existing>,
    /// The folder for the backup, which must not exist or must be empty. Best on another disk than the stores'.
    #[arg(long, value_name = "DIR", required = true)]
    pub to: Option<PathBuf>,
    /// How the backup is made.
    #[command(flatten)]
    pub through: Through,
}

/// How a backup or a restore is made.
#[derive(Debug, Args)]
pub struct Through {
    /// Maximum bytes of keys and values per second, such as 50MiB [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = rate::parse)]
    pub rate: Option<u64>,
    /// Addresses of the etcd API for reads and writes [default: those that the router advertises].
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',')]
    pub endpoints: Vec<String>,
    /// The user who reads and writes keys.
    #[command(flatten)]
    pub login: Login,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
}

impl Through {
    /// The addresses of the etcd API: those given, or those that the router advertises.
    #[must_use]
    pub fn endpoints_or<'a>(&'a self, advertised: &'a [String]) -> &'a [String] {
        if self.endpoints.is_empty() { advertised } else { &self.endpoints }
    }
}

/// The operations on an existing backup.
#[derive(Debug, Subcommand)]
pub enum Existing {
    /// Read a whole backup, check its checksums, counts and the order of its keys, and show its contents. Contacts
    /// no router.
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// The backup's folder.
    pub dir: PathBuf,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The backup's folder.
    pub dir: PathBuf,
    /// Only this Kind: pods, leases.coordination.k8s.io, or the prefix of its keys.
    #[arg(long)]
    pub kind: Option<String>,
    /// Only the keys in this namespace, and also its Namespace object unless a Kind is given.
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Only show what would be created, changed and left.
    #[arg(long)]
    pub dry_run: bool,
    /// Change keys that differ from the backup. Without this, a restore that would have to change keys does
    /// nothing.
    #[arg(long)]
    pub overwrite: bool,
    /// Delete keys in the restored range that the backup does not have.
    #[arg(long)]
    pub delete_extra: bool,
    /// The TTL of restored leases.
    #[arg(long, value_enum, default_value_t)]
    pub lease_ttl: LeaseTtl,
    /// How the restore is made.
    #[command(flatten)]
    pub through: Through,
}

/// The TTL of a restored lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LeaseTtl {
    /// The remaining time at the moment of the backup.
    #[default]
    Remaining,
    /// The full TTL that was granted originally.
    Granted,
}
