//! `kindred top`: Kinds by load, latency, size and watches, and stores, as they change.

mod model;
mod screen;

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;

use super::args::Connect;
use super::client::{Client, Form};
use super::failure::Failure;
use super::output;
use model::{Order, Sample, View};

#[derive(Debug, Clone, Args)]
pub struct TopArgs {
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,
    /// What Kinds are sorted by.
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = Order::Calls)]
    pub sort: Order,
    /// Print one table and end, as without a terminal.
    #[arg(long)]
    pub once: bool,
    /// The router to ask; numbers of calls are of its own clients.
    #[command(flatten)]
    pub connect: Connect,
}

/// Shows the load until `q` is pressed.
pub async fn top(client: &Client, args: &TopArgs) -> Result<(), Failure> {
    let look = async || {
        let kinds = client.get("/api/v1/kinds", Form::Objects).await?;
        let stores = client.get("/api/v1/stores", Form::Objects).await?;
        Ok::<_, Failure>(Sample::of(&kinds, &stores))
    };
    let (first, every) = (look().await?, Duration::from_secs(args.every));
    if args.once || !std::io::stdout().is_terminal() {
        tokio::time::sleep(every).await;
        let view = View::between(&first, &look().await?, args.sort);
        return output::print(&view.plain());
    }
    screen::run(first, look, every, args.sort).await
}
