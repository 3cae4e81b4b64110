//! Stores that come and go while `kindred up` runs (`kindred store add NAME --local`, `kindred store remove NAME`): a shard
//! without an address in the cluster's state is one to start here, and gets the address that it listens on; one that was
//! removed there is stopped.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, bail};
use kindred_partition_config::{
    model::StoreType,
    state::{ClusterState, StoreState},
};
use kindred_router::meta::{
    STATE,
    client::{Expect, MetaClient},
};
use kindred_transport::{
    ConnectOptions, Connector, Endpoint, private,
    tls::{ClientTls, ClientTlsSettings},
    who::Secret,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    UpArgs,
    layout::{self, InternalTls, LocalShard},
    supervise::{keep, listen_of},
};

/// How often the state is looked at.
const EVERY: Duration = Duration::from_millis(500);
/// How often an address is written again when others change the state, too.
const ATTEMPTS: usize = 16;

/// The shards that run here, by their slots: never given to another store.
pub struct Local {
    pub program: PathBuf,
    pub args: UpArgs,
    pub tls: Option<InternalTls>,
    pub meta: SocketAddr,
    pub stop: CancellationToken,
    pub running: BTreeMap<u32, Shard>,
}

/// One that runs.
pub struct Shard {
    pub name: String,
    pub listen: SocketAddr,
    pub stop: CancellationToken,
    pub kept: JoinHandle<()>,
}

impl Local {
    /// Until all are to stop; they have stopped when it returns.
    pub async fn run(mut self) {
        let client = match self.client() {
            Ok(client) => Some(client),
            Err(error) => {
                warn!("stores cannot be added here: {error:#}");
                None
            }
        };
        let mut said = String::new();
        while self.stop.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            let Some(client) = &client else { continue };
            // Meta may be away for a while; what stays wrong is said once.
            let problem = self.look(client).await.err().map(|error| format!("{error:#}")).unwrap_or_default();
            if problem != said && !problem.is_empty() {
                warn!("stores that were added or removed: {problem}");
            }
            said = problem;
        }
        for (_, shard) in std::mem::take(&mut self.running) {
            // Each was told by the token that all share; an error is a task that has ended before.
            let _ = shard.kept.await;
        }
    }

    fn client(&self) -> anyhow::Result<MetaClient> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let endpoint: Endpoint = format!("{scheme}://{}", self.meta).parse()?;
        let tls = self.tls.as_ref().map(|tls| {
            ClientTls::load(ClientTlsSettings {
                trusted_ca_file: Some(tls.ca.clone()),
                identity: Some(tls.router.clone()),
                ..ClientTlsSettings::default()
            })
        });
        let secret = Secret::read("the cluster's secret", &layout::secret_file(&self.args.data_dir))?;
        let (tls, secret) = (tls.transpose()?, Some(secret));
        let options = ConnectOptions { tls, secret, ..ConnectOptions::default() };
        Ok(MetaClient::new(&[endpoint], &Connector::new(options))?)
    }

    async fn look(&mut self, client: &MetaClient) -> anyhow::Result<()> {
        let Some(stored) = client.get(STATE).await? else { return Ok(()) };
        let state = ClusterState::from_json(&stored.value)?;
        for shard in self.to_stop(&state) {
            self.stop_one(shard).await;
        }
        for shard in to_start(&state) {
            // One that runs, and whose address was not written.
            let listen = match self.running.get(&shard.slot) {
                Some(running) => running.listen,
                None => self.start(&state, &shard).await.with_context(|| format!("store {}", shard.name))?,
            };
            self.announce(client, &shard, listen).await?;
        }
        Ok(())
    }

    /// The slots of those that were removed.
    fn to_stop(&self, state: &ClusterState) -> Vec<u32> {
        let removed = state.stores.iter().filter(|store| store.state == StoreState::Removed);
        let slots = removed.filter_map(|store| store.slot.map(u32::from));
        slots.filter(|slot| self.running.contains_key(slot)).collect()
    }

    async fn stop_one(&mut self, slot: u32) {
        let Some(shard) = self.running.remove(&slot) else { return };
        shard.stop.cancel();
        let _ = shard.kept.await;
        info!("store {} was removed, its process has stopped", shard.name);
        // A later store of this name is another one, and does not begin with its identity.
        let dir = self.args.data_dir.join("stores");
        let (from, to) = (dir.join(&shard.name), dir.join(format!("{}.removed-{slot}", shard.name)));
        if let Err(error) = std::fs::rename(&from, &to) {
            warn!("{}: cannot be put aside: {error}", from.display());
        }
    }

    async fn start(&mut self, state: &ClusterState, shard: &LocalShard) -> anyhow::Result<SocketAddr> {
        let dir = self.args.data_dir.join("stores").join(&shard.name);
        private::make(&dir).with_context(|| dir.display().to_string())?;
        let any: SocketAddr = ([127, 0, 0, 1], 0).into();
        if let Err(error) = layout::socket(&self.args, &shard.name) {
            warn!("store {} is reached by TCP alone: {error}", shard.name);
        }
        let spec = |listen| {
            let (program, prefix) = (&self.program, &state.etcd_prefix);
            layout::shard(program, &self.args, prefix, shard, listen, self.tls.as_ref())
        };
        let (running, ready) = spec(any).start().await?;
        let listen = listen_of(&ready)?;
        info!("store {} was added, and runs at {listen}, slot {}", shard.name, shard.slot);
        let stop = self.stop.child_token();
        let kept = tokio::spawn(keep(spec(listen), running, stop.clone()));
        self.running.insert(shard.slot, Shard { name: shard.name.clone(), listen, stop, kept });
        Ok(listen)
    }

    /// Writes where it listens, so that routers connect.
    async fn announce(
        &self,
        client: &MetaClient,
        shard: &LocalShard,
        listen: SocketAddr,
    ) -> anyhow::Result<()> {
        let urls = layout::urls(&self.args, &shard.name, listen, self.tls.is_some());
        for _ in 0..ATTEMPTS {
            let Some(stored) = client.get(STATE).await? else { return Ok(()) };
            let state = ClusterState::from_json(&stored.value)?;
            let Some(store) = to_start(&state).into_iter().find(|store| store.slot == shard.slot) else {
                return Ok(());
            };
            let name = state.stores[store.index].name.clone();
            let next = state.readdress_store(&name, urls.clone()).map_err(|errors| {
                anyhow::anyhow!(errors.iter().map(ToString::to_string).collect::<String>())
            })?;
            let expect = Expect { key: STATE.to_owned(), mod_revision: stored.mod_revision };
            if client.commit(&[expect], vec![kindred_router::meta::write(&next)?]).await?.is_some() {
                return Ok(());
            }
        }
        bail!("the state was changed by others all the time")
    }
}

/// Shards that have no address yet.
fn to_start(state: &ClusterState) -> Vec<LocalShard> {
    let stores = state.stores.iter().enumerate();
    let waiting = stores.filter(|(_, store)| {
        store.store_type == StoreType::Shard
            && store.state != StoreState::Removed
            && store.endpoints.is_empty()
    });
    waiting
        .filter_map(|(index, store)| {
            Some(LocalShard { index, name: store.name.0.clone(), slot: store.slot?.into() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::{ids::StoreName, model::StoreConfig, parse};

    use super::*;

    #[test]
    fn shards_without_an_address_are_started() {
        let file = "default: a\nstores: [{name: a, slot: 1, endpoints: ['http://h:1']}]\n";
        let state = ClusterState::bootstrap(&parse::parse_config(file).unwrap()).unwrap();
        assert_eq!(to_start(&state), []);
        let name = StoreName("b".to_owned());
        let added = StoreConfig {
            name: name.clone(),
            slot: None,
            endpoints: Vec::new(),
            store_type: StoreType::Shard,
        };
        let state = state.add_store(added).unwrap().0;
        assert_eq!(to_start(&state), [LocalShard { index: 1, name: "b".to_owned(), slot: 2 }]);
        let known = state.readdress_store(&name, vec!["http://h:2".to_owned()]).unwrap();
        assert_eq!(to_start(&known), []);
        assert_eq!(to_start(&state.remove_store(&name).unwrap()), []);
    }
}
