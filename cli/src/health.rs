//! `kindred health`, for health checks in containers without curl.

use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;

use crate::admin::{args::Connect, client::Client, context, output};

/// `kindred health`.
#[derive(Debug, Args)]
pub struct HealthArgs {
    /// The router to ask.
    #[command(flatten)]
    pub connect: Connect,
    /// Checks that may fail, comma-separated. With `clock` a member of a store is healthy as a standby too, while it could take
    /// over.
    #[arg(long, value_name = "CHECK", value_delimiter = ',')]
    pub exclude: Vec<String>,
}

const TIMEOUT: Duration = Duration::from_secs(2);

/// Asks `/readyz` and prints the answer.
pub fn run(args: &HealthArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = Client::new(&context::address(&args.connect)?)?;
    let excluded: String = args.exclude.iter().map(|check| format!("&exclude={check}")).collect();
    let path = format!("/readyz?verbose{excluded}");
    let asked = async { tokio::time::timeout(TIMEOUT, client.text(&path)).await };
    let (status, body) = runtime.block_on(asked).context("no answer in time")??;
    if !status.is_success() {
        bail!("not ready: {status}\n{body}");
    }
    output::print(&format!("{}\n", body.trim())).map_err(Into::into)
}
