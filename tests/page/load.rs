//! Clients that keep the cluster busy while somebody looks at it.

use std::time::Duration;

use kindred_proto::etcdserverpb::{PutRequest, RangeRequest};
use kindred_tests::client::Client;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The Kinds, with the pauses between two calls.
const KINDS: [(&str, u64); 4] = [("pods", 8), ("events", 13), ("secrets", 40), ("services/specs", 170)];
/// Each client writes this many keys again and again.
const KEYS: usize = 50;

/// Puts `count` keys of `bytes` bytes.
pub async fn fill(client: &Client, prefix: &str, count: usize, bytes: usize) -> anyhow::Result<()> {
    let mut kv = client.kv.clone();
    for at in 0..count {
        let key = format!("{prefix}{at}");
        kv.put(PutRequest { key: key.into(), value: vec![b'v'; bytes].into(), ..Default::default() }).await?;
    }
    Ok(())
}

/// Clients at work.
pub struct Load {
    stop: CancellationToken,
    clients: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Load {
    pub fn start(client: &Client) -> Self {
        let stop = CancellationToken::new();
        let works = KINDS.map(|(kind, pause)| {
            let work = work(client.clone(), kind, Duration::from_millis(pause));
            let stop = stop.clone();
            tokio::spawn(async move { stop.run_until_cancelled(work).await.unwrap_or(Ok(())) })
        });
        Self { stop, clients: works.into() }
    }

    /// Ends them; none may have failed.
    pub async fn finish(self) -> anyhow::Result<()> {
        self.stop.cancel();
        for client in self.clients {
            client.await??;
        }
        Ok(())
    }
}

async fn work(client: Client, kind: &str, pause: Duration) -> anyhow::Result<()> {
    let mut kv = client.kv.clone();
    for round in 0_usize.. {
        let key = format!("/registry/{kind}/ns/{}", round % KEYS);
        if round % 3 == 0 {
            kv.range(RangeRequest { key: key.into(), ..Default::default() }).await?;
        } else {
            let value = vec![b'v'; 100 + round % 400];
            kv.put(PutRequest { key: key.into(), value: value.into(), ..Default::default() }).await?;
        }
        // Every client rests from time to time, so that there is something to see over time.
        let long = if (round / 400) % 3 == 2 { 6 } else { 1 };
        tokio::time::sleep(pause * long).await;
    }
    Ok(())
}
