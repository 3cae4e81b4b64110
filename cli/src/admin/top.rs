//! `kindred top`: Kinds by load, latency, size and watches, and stores, as they change.

mod model;
mod screen;

use std::io::IsTerminal as _;
use std::time::Duration;

use super::args::TopArgs;
use super::client::{Client, Form};
use super::failure::Failure;
use super::output;
use model::{Sample, View};

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
