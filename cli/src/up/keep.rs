//! Keeps a child running: starts it again when it ends.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::child::{self, Backoff, Ready, Spec};

/// How long a child may take to stop before it is killed. A shard needs 25 s at most for its clients, its logs and
/// its other files.
const STOP_GRACE: Duration = Duration::from_secs(30);

/// The TCP address in a shard's ready line.
pub fn listen_of(ready: &Ready) -> anyhow::Result<SocketAddr> {
    let listen = ready.get("listen").context("the shard's ready line names no listen address")?;
    let mut addresses = listen.split(',').filter_map(|address| address.parse().ok());
    addresses.next().with_context(|| format!("the shard's address {listen}"))
}

/// Waits for the child's end and restarts it, until it is told to stop.
pub async fn keep(spec: Spec, mut running: child::Running, stop: CancellationToken) {
    let mut backoff = Backoff::new(Instant::now());
    loop {
        let how = tokio::select! {
            () = stop.cancelled() => return running.stop(STOP_GRACE).await,
            how = running.ended() => how,
        };
        warn!("{} ended: {how}; starting it again", spec.name);
        let Some(again) = restart(&spec, &mut backoff, &stop).await else { return };
        running = again;
    }
}

/// Retries until the child runs; `None` if it is told to stop meanwhile.
async fn restart(spec: &Spec, backoff: &mut Backoff, stop: &CancellationToken) -> Option<child::Running> {
    loop {
        let wait: Duration = backoff.after_end(Instant::now());
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(wait) => {}
        }
        let attempt = tokio::select! {
            () = stop.cancelled() => return None,
            attempt = spec.start() => attempt,
        };
        backoff.started(Instant::now());
        match attempt {
            Ok((running, _)) => {
                info!("{} runs again, pid {}", spec.name, running.pid().unwrap_or(0));
                return Some(running);
            }
            Err(error) => warn!("{error}; trying again"),
        }
    }
}
