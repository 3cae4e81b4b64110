//! Starts and stops stores while `kindred up` runs (`kindred store add NAME --local`, `kindred store remove NAME`).
//! A shard without an address in the cluster's state is started here, and its address is written there. A shard
//! that is removed from the state is stopped.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::{Context, bail};
use kindred_partition_config::{
    ids::StoreName,
    model::{StandbyConfig, StoreType},
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
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

use super::{
    args::UpArgs,
    begin::{Begun, begin},
    keep::{keep, listen_of},
    layout::{self, InternalTls, LocalShard},
};

/// The interval between checks of the state.
const EVERY: Duration = Duration::from_secs(1);
/// How often writing an address is retried when others change the state as well.
const ATTEMPTS: usize = 16;

/// The local shards, keyed by their slots, which are never reused.
pub struct Local {
    pub program: PathBuf,
    pub args: UpArgs,
    pub tls: Option<InternalTls>,
    pub meta: SocketAddr,
    pub stop: CancellationToken,
    pub running: BTreeMap<u32, Shard>,
    /// The standbys, by the slots of their stores.
    pub standbys: BTreeMap<u32, Standby>,
    /// The tasks that keep them running.
    pub tasks: TaskTracker,
}

/// The standby of a store.
pub struct Standby {
    begun: Begun,
    stop: CancellationToken,
    /// Whether the cluster's state has its address.
    told: bool,
}

/// A running shard.
pub struct Shard {
    pub name: String,
    pub listen: SocketAddr,
    pub stop: CancellationToken,
    pub kept: JoinHandle<()>,
}

impl Local {
    /// Runs until all shards should stop, and returns when they have stopped.
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
            // Meta may be unavailable for a while, so a lasting problem is logged only once.
            let problem = self.look(client).await.err().map(|error| format!("{error:#}")).unwrap_or_default();
            if problem != said && !problem.is_empty() {
                warn!("stores that were added or removed: {problem}");
            }
            said = problem;
        }
        for (_, shard) in std::mem::take(&mut self.running) {
            // The common token stops them. An error means that the task has already ended.
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
            // A shard that runs already needs only its address written.
            let listen = match self.running.get(&shard.slot) {
                Some(running) => running.listen,
                None => self.start(&state, &shard).await.with_context(|| format!("store {}", shard.name))?,
            };
            self.announce(client, &shard, listen).await?;
        }
        if self.args.standbys {
            self.look_at_standbys(client, &state).await?;
        }
        Ok(())
    }

    /// Starts the standbys that are missing, and writes where they are.
    async fn look_at_standbys(&mut self, client: &MetaClient, state: &ClusterState) -> anyhow::Result<()> {
        let mut failed = Ok(());
        for (index, store) in state.stores.iter().enumerate() {
            let Some(slot) = store.slot.map(u32::from).filter(|_| store.state != StoreState::Removed) else {
                continue;
            };
            let Some(primary) = self.running.get(&slot).map(|shard| shard.listen) else { continue };
            let shard = LocalShard { index, name: store.name.0.clone(), slot };
            if !self.standbys.contains_key(&slot) {
                let (_, folder) = layout::folders(&self.args, &shard.name);
                private::make(&folder).with_context(|| folder.display().to_string())?;
                let (program, args, tls) = (self.program.clone(), self.args.clone(), self.tls.clone());
                let (prefix, one) = (state.etcd_prefix.clone(), shard.clone());
                let spec = move |listen| {
                    layout::standby(&program, &args, &prefix, &one, (primary, listen), tls.as_ref())
                };
                let stop = self.stop.child_token();
                let begun = begin(spec, stop.clone(), &self.tasks);
                self.standbys.insert(slot, Standby { begun, stop, told: false });
            }
            let Some(standby) = self.standbys.get_mut(&slot).filter(|standby| !standby.told) else {
                continue;
            };
            let Some(listen) = standby.begun.is_ready_at() else { continue };
            let scheme = if self.tls.is_some() { "https" } else { "http" };
            let urls = [primary, listen].map(|at| format!("{scheme}://{at}"));
            match tell_standby(client, &store.name, urls).await {
                Ok(told) => standby.told = told,
                // The address may be one that a later store had in a former run, which is told next.
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed
    }

    /// The slots of running shards that were removed.
    fn to_stop(&self, state: &ClusterState) -> Vec<u32> {
        let removed = state.stores.iter().filter(|store| store.state == StoreState::Removed);
        let slots = removed.filter_map(|store| store.slot.map(u32::from));
        slots.filter(|slot| self.running.contains_key(slot)).collect()
    }

    async fn stop_one(&mut self, slot: u32) {
        if let Some(standby) = self.standbys.remove(&slot) {
            standby.stop.cancel();
            let _ = standby.begun.kept.await;
        }
        let Some(shard) = self.running.remove(&slot) else { return };
        shard.stop.cancel();
        let _ = shard.kept.await;
        info!("store {} was removed, its process has stopped", shard.name);
        // A later store of this name is another store and must not reuse this one's identity.
        let (from, standby) = layout::folders(&self.args, &shard.name);
        for from in [from, standby].into_iter().filter(|folder| folder.is_dir()) {
            let to = from.with_file_name(format!("{}.removed-{slot}", shard.name));
            if let Err(error) = std::fs::rename(&from, &to) {
                warn!("{}: cannot be put aside: {error}", from.display());
            }
        }
        self.args.swapped.remove(&shard.name);
    }

    async fn start(&mut self, state: &ClusterState, shard: &LocalShard) -> anyhow::Result<SocketAddr> {
        let (dir, _) = layout::folders(&self.args, &shard.name);
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

    /// Writes a shard's address to the state, so that routers connect.
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
            let next = state.relocate_store(&name, urls.clone()).map_err(|errors| {
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

/// Writes where the members of a store are. False if others changed the state all the time.
async fn tell_standby(
    client: &MetaClient,
    name: &StoreName,
    [primary, standby]: [String; 2],
) -> anyhow::Result<bool> {
    for _ in 0..ATTEMPTS {
        let Some(stored) = client.get(STATE).await? else { return Ok(false) };
        let state = ClusterState::from_json(&stored.value)?;
        let Some((_, object)) = state.store(name) else { return Ok(true) };
        let known = object.standby.clone();
        let (mode, on_loss) = known.map_or_else(Default::default, |known| (known.mode, known.on_loss));
        // In which role each is by now, the record says; these are the addresses.
        let endpoints = if object.endpoints.first() == Some(&standby) {
            vec![primary.clone()]
        } else {
            vec![standby.clone()]
        };
        let said = StandbyConfig { endpoints, mode, on_loss };
        let next = state
            .set_standby(name, Some(said))
            .map_err(|errors| anyhow::anyhow!(errors.iter().map(ToString::to_string).collect::<String>()))?;
        let expect = Expect { key: STATE.to_owned(), mod_revision: stored.mod_revision };
        if client.commit(&[expect], vec![kindred_router::meta::write(&next)?]).await?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The shards that have no address yet.
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
    use kindred_partition_config::{model::StoreConfig, parse};

    use super::*;

    #[test]
    fn shards_without_an_address_are_started() {
        let file = "default: a\nstores: [{name: a, slot: 1, endpoints: ['http://h:1']}]\n";
        let state = ClusterState::bootstrap(&parse::parse_config(file).unwrap()).unwrap();
        assert_eq!(to_start(&state), []);
        let name = StoreName("b".to_owned());
        let added = StoreConfig {
            standby: None,
            adopting: false,
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
