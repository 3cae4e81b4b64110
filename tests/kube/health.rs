//! Checks the apiserver's own metrics about its store.
//!
//! | metric | expected |
//! | --- | --- |
//! | `etcd_request_errors_total` | none; after a shard was killed, only errors of the Kinds on that shard |
//! | `apiserver_watch_cache_initializations_total` | the same as at the start: no watch cache was filled again |
//! | `apiserver_storage_consistency_checks_total` | no failed check; they are five minutes apart or more |

use std::collections::BTreeMap;

use kindred_tests::kube::Metrics;

use crate::kube::cluster::Cluster;

const ERRORS: &str = "etcd_request_errors_total";
const INITIALIZATIONS: &str = "apiserver_watch_cache_initializations_total";
pub const CONSISTENCY: &str = "apiserver_storage_consistency_checks_total";

/// The counters of the first apiserver at the beginning of an interval.
pub struct Baseline {
    errors: BTreeMap<String, f64>,
    initializations: BTreeMap<String, f64>,
}

fn samples(metrics: &Metrics, metric: &str) -> BTreeMap<String, f64> {
    metrics.samples(metric).map(|(labels, value)| (labels.to_owned(), value)).collect()
}

impl Baseline {
    pub async fn take(cluster: &Cluster) -> anyhow::Result<Self> {
        let metrics = cluster.first.metrics().await?;
        let baseline =
            Self { errors: samples(&metrics, ERRORS), initializations: samples(&metrics, INITIALIZATIONS) };
        let caches = baseline.initializations.len();
        cluster.tally.check(caches > 40, format_args!("{caches} watch caches are initialised"))?;
        Ok(baseline)
    }

    /// Asserts that there was no error since, in a cluster without faults.
    pub async fn no_errors(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let metrics = cluster.first.metrics().await?;
        cluster.tally.equal(&samples(&metrics, ERRORS), &self.errors, ERRORS)?;
        cluster.tally.check(self.errors.is_empty(), format_args!("at the start: {:?}", self.errors))?;
        self.same_caches(cluster, &metrics)
    }

    /// Asserts that there was no error since, except for requests to the shard that was killed.
    pub async fn undisturbed(&self, cluster: &Cluster, killed: Option<&str>) -> anyhow::Result<()> {
        let metrics = cluster.first.metrics().await?;
        for (labels, value) in samples(&metrics, ERRORS) {
            let before = self.errors.get(&labels).copied().unwrap_or(0.0);
            let excused = match (killed, cluster.kindred()) {
                (Some(killed), Some(kindred)) => serves(kindred, killed, &labels),
                _ => false,
            };
            cluster
                .tally
                .check(value == before || excused, format_args!("{ERRORS}{labels}: {before} -> {value}"))?;
        }
        let caches = match (killed, cluster.kindred()) {
            (Some(killed), Some(kindred)) => only_events(kindred, killed),
            _ => true,
        };
        if caches {
            self.same_caches(cluster, &metrics)?;
        }
        Ok(())
    }

    /// Asserts that no watch cache was filled again since.
    pub async fn same_caches_now(&self, cluster: &Cluster) -> anyhow::Result<()> {
        self.same_caches(cluster, &cluster.first.metrics().await?)
    }

    fn same_caches(&self, cluster: &Cluster, metrics: &Metrics) -> anyhow::Result<()> {
        let now = samples(metrics, INITIALIZATIONS);
        for (labels, before) in &self.initializations {
            let value = now.get(labels).copied().unwrap_or(0.0);
            cluster.tally.equal(&value, before, format_args!("{INITIALIZATIONS}{labels}"))?;
        }
        let failures = metrics.sum(CONSISTENCY, "status=\"failure\"");
        cluster.tally.equal(&failures, &0.0, format_args!("{CONSISTENCY} that failed"))
    }
}

/// Whether the labels of a metric name a Kind that this store serves.
fn serves(kindred: &crate::kube::cluster::Kindred, store: &str, labels: &str) -> bool {
    kinds(kindred, store).iter().any(|kind| {
        let resource = if kind == "minions" { "nodes" } else { kind };
        labels.contains(&format!("\"{resource}\"")) || labels.contains(&format!("\"{resource}."))
    })
}

fn only_events(kindred: &crate::kube::cluster::Kindred, store: &str) -> bool {
    kinds(kindred, store) == ["events"]
}

/// The last parts of the prefixes of the Kinds that a store serves, such as `pods` or `minions`.
fn kinds(kindred: &crate::kube::cluster::Kindred, store: &str) -> Vec<String> {
    let config = &kindred.config;
    let mut kinds = Vec::new();
    for partition in config.map.partitions() {
        let Some(kind) = &partition.kind else { continue };
        let stores = partition.placement.stores();
        if stores.iter().any(|index| config.stores[usize::from(index.0)].name.0 == store) {
            let prefix = String::from_utf8_lossy(kind.stem()).into_owned();
            kinds.extend(prefix.rsplit('/').next().map(str::to_owned));
        }
    }
    kinds.sort();
    kinds.dedup();
    kinds
}
