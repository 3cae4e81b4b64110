//! Leases that are renewed all the time, and must never end, and one that is not, and must. Each has a key on every
//! store.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest,
    RangeRequest,
};
use kindred_tests::{client::Client, scenario::wait_for, workload::recorder::Recorder};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time::Instant};
use tonic::Status;

use crate::upgrade::{
    cluster::LIMIT,
    faults::{Fault, Faults},
    ledger::KINDS,
};

/// Longer than any step. A run lasts longer, so a lease that is not renewed ends within it.
const TTL_S: i64 = 15;
const SHORT_TTL_S: i64 = 2;
const RENEW_EVERY: Duration = Duration::from_millis(100);

struct Lease {
    id: i64,
    keys: Vec<String>,
}

/// The leases of a run.
pub struct Leases {
    clients: Vec<Client>,
    kept: Vec<Lease>,
    lost: Arc<Mutex<Vec<String>>>,
    tasks: JoinSet<()>,
    granted: usize,
    began: Instant,
}

impl Leases {
    /// Grants a lease at each router, and has that renew it.
    pub async fn start(
        clients: &[Client],
        recorder: &Arc<Recorder>,
        faults: &Arc<Faults>,
    ) -> anyhow::Result<Self> {
        let lost = Arc::default();
        let mut all = Self {
            clients: clients.to_vec(),
            kept: Vec::new(),
            lost,
            tasks: JoinSet::new(),
            granted: 0,
            began: Instant::now(),
        };
        for (router, client) in clients.iter().enumerate() {
            let lease = all.grant(router, TTL_S).await?;
            let (client, recorder, faults) = (client.clone(), recorder.clone(), faults.clone());
            let (id, lost) = (lease.id, all.lost.clone());
            all.kept.push(lease);
            all.tasks.spawn(async move {
                loop {
                    tokio::time::sleep(RENEW_EVERY).await;
                    let call = recorder.now();
                    match renew(&client, id).await {
                        Ok(ttl) if ttl > 0 => {}
                        Ok(ttl) => lost.lock().push(format!("lease {id:x} is renewed for {ttl} s")),
                        Err(status) => {
                            let what = format!("a renewal: {:?}: {}", status.code(), status.message());
                            faults.note(Fault { prefix: None, call, returned: recorder.now(), what });
                        }
                    }
                }
            });
        }
        Ok(all)
    }

    async fn grant(&mut self, router: usize, ttl: i64) -> anyhow::Result<Lease> {
        let client = &self.clients[router];
        let request = LeaseGrantRequest { ttl, id: 0 };
        let id = client.lease.clone().lease_grant(request).await.context("granting")?.into_inner().id;
        self.granted += 1;
        let keys: Vec<String> = KINDS.iter().map(|kind| format!("{kind}leased/{}", self.granted)).collect();
        for key in &keys {
            let put =
                PutRequest { key: key.clone().into(), value: "x".into(), lease: id, ..Default::default() };
            client.kv.clone().put(put).await.with_context(|| format!("{key} with a lease"))?;
        }
        Ok(Lease { id, keys })
    }

    /// Grants a lease that nobody renews, by a router. Returns what [`Leases::is_over`] waits for.
    pub async fn short(&mut self, router: usize) -> anyhow::Result<Vec<String>> {
        Ok(self.grant(router, SHORT_TTL_S).await?.keys)
    }

    /// Waits until these keys are gone with their lease, at every router.
    pub async fn is_over(&self, keys: &[String]) -> anyhow::Result<()> {
        for client in &self.clients {
            for key in keys {
                wait_for(&format!("the end of {key}"), LIMIT, || async {
                    Ok(lease_of(client, key).await?.is_none().then_some(()))
                })
                .await?;
            }
        }
        Ok(())
    }

    /// Every router says of every lease that it lives and has its keys, and the keys are there.
    pub async fn check(&self) -> anyhow::Result<()> {
        let lost = self.lost.lock().join("\n");
        ensure!(lost.is_empty(), "{lost}");
        for (router, client) in self.clients.iter().enumerate() {
            for Lease { id, keys } in &self.kept {
                let ask = LeaseTimeToLiveRequest { id: *id, keys: true };
                let mut said = client.lease.clone().lease_time_to_live(ask).await?.into_inner();
                said.keys.sort();
                let mut keys: Vec<_> = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
                keys.sort();
                ensure!(said.ttl > 0 && said.keys == keys, "lease {id:x} at router {router}: {said:?}");
            }
            for Lease { id, keys } in &self.kept {
                for key in keys {
                    let found = lease_of(client, key).await?;
                    ensure!(found == Some(*id), "{key} of lease {id:x} has {found:?} at router {router}");
                }
            }
        }
        Ok(())
    }

    /// Checks once more when all would have ended if nobody had renewed them, and revokes them. Their keys go.
    pub async fn finish(mut self) -> anyhow::Result<()> {
        let all_old = self.began + Duration::from_secs(TTL_S.unsigned_abs() + 1);
        tokio::time::sleep_until(all_old).await;
        self.check().await?;
        self.tasks.shutdown().await;
        for (router, lease) in self.kept.iter().enumerate() {
            let revoke = LeaseRevokeRequest { id: lease.id };
            self.clients[router].lease.clone().lease_revoke(revoke).await?;
            self.is_over(&lease.keys).await?;
        }
        Ok(())
    }
}

async fn renew(client: &Client, id: i64) -> Result<i64, Status> {
    let asks = tokio_stream::iter([LeaseKeepAliveRequest { id }]);
    let answer = client.lease.clone().lease_keep_alive(asks).await?.into_inner().message().await?;
    answer.map(|answer| answer.ttl).ok_or_else(|| Status::unavailable("the stream ended"))
}

/// The lease of a key; none if there is no such key.
async fn lease_of(client: &Client, key: &str) -> anyhow::Result<Option<i64>> {
    let get = RangeRequest { key: key.to_owned().into(), ..Default::default() };
    let found = client.kv.clone().range(get).await?.into_inner().kvs;
    Ok(found.first().map(|kv| kv.lease))
}
