//! Chooses the state that a router starts with: meta's, else the file's (`--meta-cache`), else the one of `--config`,
//! else the embedded default's. A router that finds meta empty creates the state there; if several do, one wins and all
//! use its state.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use kindred_partition_config::ids::StoreName;
use kindred_partition_config::model::{DataPartitionConfig, KindredConfig};
use kindred_partition_config::state::{ClusterState, Kinship};
use tokio::time::Instant;

use super::client::{Expect, MetaClient};
use super::{MetaError, MetaSettings, STATE, cache, order};

/// How long a start without a file waits for meta.
const WAIT: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_millis(200);

/// Finds the state to start with.
///
/// # Errors
/// When meta cannot be reached and there is no file, or what was found cannot be read.
pub async fn state(
    client: &MetaClient,
    settings: &MetaSettings,
    config: &KindredConfig,
) -> anyhow::Result<ClusterState> {
    let cached = cached(settings)?;
    let own = match &cached {
        Some(cached) => with_addresses(cached.clone(), &settings.addresses),
        None => settings.founding.found(
            ClusterState::bootstrap(config)
                .map_err(|errors| {
                    anyhow::anyhow!(errors.iter().map(|e| format!("\n  {e}")).collect::<String>())
                })
                .context("the first configuration of the cluster has errors")?,
        ),
    };
    let until = Instant::now() + WAIT;
    let (state, source) = loop {
        match found_or_created(client, &own, cached.is_some(), settings).await {
            Ok(found) => break found,
            Err(error @ (MetaError::Unavailable(_) | MetaError::Unknown(_))) if cached.is_some() => {
                tracing::warn!(%error, "starting with the last state of --meta-cache");
                break (own.clone(), "--meta-cache, as the meta store cannot be reached");
            }
            Err(MetaError::State(error)) => bail!("{STATE} in the meta store: {error}"),
            Err(error @ MetaError::Foreign(_)) => bail!("{error}"),
            Err(error) if Instant::now() >= until => bail!(
                "{error} (no answer for {} s, and no --meta-cache file of an earlier run to start with)",
                WAIT.as_secs()
            ),
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    };
    let source = match (source, cached.is_some()) {
        (CREATED, true) => "--meta-cache (the meta store was empty)",
        (CREATED, false) => "the configuration (the meta store was empty)",
        (other, _) => other,
    };
    tracing::info!(source, generation = state.generation.0, revision = state.revision, "cluster state");
    if let Some(path) = &settings.config {
        let differences = differences(&state, config);
        if !differences.is_empty() {
            tracing::warn!(
                config = %path.display(), in_use = source, differences = differences.join("; "),
                "--config is only the first configuration of a cluster: the state in use wins, as it may have been \
                 changed since; change it by the admin API"
            );
        }
    }
    Ok(state)
}

const CREATED: &str = "created";

/// The state in `--meta-cache`, unless the flags say that it belongs to another cluster.
fn cached(settings: &MetaSettings) -> anyhow::Result<Option<ClusterState>> {
    let Some(path) = settings.cache.as_deref() else { return Ok(None) };
    let Some(cached) = cache::read(path)? else { return Ok(None) };
    match settings.founding.contradicts(&cached) {
        None => Ok(Some(cached)),
        Some(why) => {
            leave_out(path, &why);
            Ok(None)
        }
    }
}

/// Renames a file that is not used, because it may be the last copy of another cluster's state.
fn leave_out(path: &Path, why: &str) {
    match cache::put_aside(path) {
        Ok(aside) => tracing::error!(
            file = %path.display(), why, aside = %aside.display(),
            "--meta-cache is of another cluster: it is not used, and was put aside"
        ),
        Err(error) => tracing::error!(why, %error, "--meta-cache is of another cluster: it is not used"),
    }
}

/// Meta's state, after `own` was written if meta had none. The addresses of `--store` win over those in the state.
async fn found_or_created(
    client: &MetaClient,
    own: &ClusterState,
    is_cached: bool,
    settings: &MetaSettings,
) -> Result<(ClusterState, &'static str), MetaError> {
    loop {
        if let Some(stored) = client.get(STATE).await? {
            let found = ClusterState::from_json(&stored.value)?;
            if let Some(why) = settings.founding.contradicts(&found) {
                return Err(MetaError::Foreign(why));
            }
            if is_cached {
                match chosen(&found, own) {
                    // It is written back once meta is followed.
                    Chosen::Own => {
                        return Ok((own.clone(), "--meta-cache (the meta store has an older one)"));
                    }
                    Chosen::Found => {}
                    Chosen::Alone(why) => settings.cache.iter().for_each(|path| leave_out(path, &why)),
                }
            }
            return Ok((with_addresses(found, &settings.addresses), "the meta store"));
        }
        let absent = [Expect { key: STATE.to_owned(), mod_revision: 0 }];
        let own = settings.founding.upgrade(own);
        match client.commit(&absent, vec![super::write(&own)?]).await {
            Ok(Some(_)) => return Ok((own, CREATED)),
            // Another router was faster, or the answer was lost: look again.
            Ok(None) | Err(MetaError::Unknown(_)) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Which of two states is used.
#[derive(Debug, PartialEq, Eq)]
enum Chosen {
    /// The file's, because meta has lost it.
    Own,
    /// Meta's.
    Found,
    /// Meta's; the file belongs to another cluster, for this reason.
    Alone(String),
}

fn chosen(found: &ClusterState, own: &ClusterState) -> Chosen {
    match own.kinship(found) {
        Kinship::Same if order(found) < order(own) => Chosen::Own,
        Kinship::Same => Chosen::Found,
        // The file of an earlier version; as far as one can tell, meta's state descends from it.
        Kinship::Unknown if own.lineage.is_none() && order(own) <= order(found) => Chosen::Found,
        Kinship::Unknown | Kinship::Foreign => Chosen::Alone(format!(
            "the meta store holds the state of {}, the file that of {}",
            found.cluster_in_words(),
            own.cluster_in_words()
        )),
    }
}

/// The state with these addresses, for those stores that it has.
#[must_use]
pub fn addressed(mut state: ClusterState, addresses: &[(StoreName, Vec<String>)]) -> ClusterState {
    for (name, endpoints) in addresses {
        match state.store(name).map(|(_, store)| store.endpoints == *endpoints) {
            Some(true) => {}
            Some(false) => match state.relocate_store(name, endpoints.clone()) {
                Ok(next) => state = next,
                Err(errors) => {
                    for error in errors {
                        tracing::warn!("--store {name}: {error}");
                    }
                }
            },
            None => tracing::warn!("--store {name}: the cluster has no such store; the flag is left out"),
        }
    }
    state
}

/// The state with these addresses, but with its old order, for use until they are written to meta. So a change that
/// others have made in meta meanwhile wins, and then gets the addresses.
#[must_use]
pub fn with_addresses(state: ClusterState, addresses: &[(StoreName, Vec<String>)]) -> ClusterState {
    let (generation, revision) = (state.generation, state.revision);
    let mut own = addressed(state, addresses);
    (own.generation, own.revision) = (generation, revision);
    own
}

/// The objects in which a configuration differs from the state in use, addresses aside.
#[must_use]
pub fn differences(state: &ClusterState, config: &KindredConfig) -> Vec<String> {
    let mut found = Vec::new();
    if state.etcd_prefix != config.etcd_prefix {
        found.push(format!("etcdPrefix {:?} in place of {:?}", state.etcd_prefix, config.etcd_prefix));
    }
    if state.default != config.default {
        found.push(format!("default {} in place of {}", state.default, config.default));
    }
    for store in &config.stores {
        match state.store(&store.name) {
            None => found.push(format!("no store {}", store.name)),
            Some((_, object)) if store.slot.is_some() && object.config().slot != store.slot => {
                found.push(format!("store {} has another slot", store.name));
            }
            Some(_) => {}
        }
    }
    let bare = |config: &DataPartitionConfig| {
        let mut config = config.clone();
        config.metadata.resource_version = None;
        config
    };
    for partition in &config.partitions {
        let name = &partition.metadata.name;
        match state.config(name) {
            None => found.push(format!("no config {name}")),
            Some(object) if bare(object) != bare(partition) => {
                found.push(format!("config {name} is another"))
            }
            Some(_) => {}
        }
    }
    let configured = |name: &str| config.partitions.iter().any(|partition| partition.metadata.name == name);
    let more = state.configs.iter().map(|config| &config.metadata.name).filter(|name| !configured(name));
    found.extend(more.map(|name| format!("config {name} as well")));
    found
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::parse::{DEFAULT_CONFIG, parse_config};

    use super::*;

    #[test]
    fn a_file_that_differs_is_told_by_object() {
        let config = parse_config(DEFAULT_CONFIG).unwrap();
        let state = ClusterState::bootstrap(&config).unwrap();
        assert!(differences(&state, &config).is_empty());
        let addresses = [(StoreName("pods".to_owned()), vec!["127.0.0.1:7".to_owned()])];
        let addressed = addressed(state, &addresses);
        assert!(differences(&addressed, &config).is_empty(), "addresses come and go");
        let mut other = config;
        other.partitions[0].resource = "secrets".to_owned();
        other.partitions.pop();
        let told = differences(&addressed, &other);
        assert_eq!(told, ["config leases is another", "config events as well"]);
    }

    #[test]
    fn a_cached_state_is_no_newer_for_the_addresses_that_it_is_started_with() {
        let cached = ClusterState::bootstrap(&parse_config(DEFAULT_CONFIG).unwrap()).unwrap();
        let addresses =
            ["pods", "nodes"].map(|name| (StoreName(name.to_owned()), vec!["127.0.0.1:7".to_owned()]));
        let own = with_addresses(cached.clone(), &addresses);
        assert_eq!(own.store(&addresses[0].0).unwrap().1.endpoints, addresses[0].1);
        assert!(order(&addressed(cached.clone(), &addresses)) > order(&cached));
        // Somebody else has made one change meanwhile, which must not be overwritten.
        assert_eq!(order(&own), order(&cached));
    }

    #[test]
    fn f03_the_file_of_another_cluster_is_never_gone_by() {
        use kindred_partition_config::ids::{ClusterId, Lineage};
        let bare = || ClusterState::bootstrap(&parse_config(DEFAULT_CONFIG).unwrap()).unwrap();
        let of = |lineage: &str| bare().founded(ClusterId(7), &Lineage(lineage.to_owned()));
        let newer = |state: &ClusterState| state.identify_store(&StoreName("pods".to_owned()), "u").unwrap();
        let (a, b) = (of("a"), of("b"));
        assert_eq!(chosen(&a, &newer(&a)), Chosen::Own);
        assert_eq!([chosen(&newer(&a), &a), chosen(&a, &a)], [Chosen::Found, Chosen::Found]);
        for (found, own) in
            [(&b, newer(&a)), (&newer(&b), a.clone()), (&bare(), newer(&a)), (&b, newer(&bare()))]
        {
            let Chosen::Alone(why) = chosen(found, &own) else { panic!("{found:?}") };
            assert!(why.contains("the file that of cluster"), "{why}");
        }
        assert_eq!(chosen(&newer(&b), &bare()), Chosen::Found, "an earlier version's file, upgraded since");
    }
}
