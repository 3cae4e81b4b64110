//! `kindred health`, for health checks in containers without curl.

use std::time::Duration;

use clap::Args;

use crate::admin::{args::Connect, client::Client, context, failure::Failure, output};

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
///
/// # Errors
/// When the router is not ready, does not answer, or the arguments are wrong: each has its exit status.
pub async fn run(args: &HealthArgs) -> Result<(), Failure> {
    let client = Client::new(&context::address(&args.connect)?)?;
    let excluded: String = args.exclude.iter().map(|check| format!("&exclude={check}")).collect();
    let path = format!("/readyz?verbose{excluded}");
    let asked = tokio::time::timeout(TIMEOUT, client.text(&path));
    let silent = |_| Failure::Unreachable(format!("no answer within {} s", TIMEOUT.as_secs()));
    let (status, body) = asked.await.map_err(silent)??;
    if !status.is_success() {
        return Err(Failure::Refused(format!("not ready: {status}\n{}", body.trim())));
    }
    output::print(&format!("{}\n", body.trim()))
}
