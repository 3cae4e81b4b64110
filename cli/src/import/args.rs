//! The command line of `kindred import`. The doc comments of arguments are the help texts.

use std::path::PathBuf;

use clap::Args;

/// `kindred import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The snapshot: what `etcdctl snapshot save` wrote, or the file `member/snap/db` of an etcd that is stopped.
    pub file: PathBuf,
    /// The data folder to make, for `kindred up --data-dir`. It must not exist.
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// The configuration of the new cluster [default: the built-in one].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}
