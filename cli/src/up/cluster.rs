//! The identity of the cluster of a `kindred up` folder: an id and a lineage, minted at the first start. It
//! survives the loss of the meta store and of the routers' files, so that the shards still recognise their routers.

use std::{fs, io, path::Path};

use anyhow::{Context, bail};
use kindred_partition_config::{
    ids::{ClusterId, DEFAULT_CLUSTER_ID, Lineage, uuid_of},
    state::ClusterState,
};
use kindred_transport::{private, random};
use serde::{Deserialize, Serialize};

/// The name of the file in the folder.
const FILE: &str = "cluster.json";

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cluster {
    /// The id in headers and handshakes.
    pub cluster_id: ClusterId,
    /// Absent in a folder of an earlier version, until its routers have minted one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lineage: Option<Lineage>,
}

impl Cluster {
    /// Reads the folder's file, if there is one.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn kept(folder: &Path) -> anyhow::Result<Option<Self>> {
        let path = folder.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .with_context(|| format!("{}: is not what was written there", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    /// Whether a state in the folder may belong to this cluster.
    #[must_use]
    pub fn may_have(&self, state: &ClusterState) -> bool {
        self.lineage.is_none() || state.lineage.is_none() || self.lineage == state.lineage
    }

    /// The cluster of a folder. `last` is the newest state that its routers kept; `used` says whether an `up` has
    /// run there.
    ///
    /// # Errors
    /// When the file cannot be read or written, or `--cluster-id` differs from the folder's id.
    pub fn of(
        folder: &Path,
        flag: Option<u64>,
        last: Option<&ClusterState>,
        used: bool,
    ) -> anyhow::Result<Self> {
        let (path, kept) = (folder.join(FILE), Self::kept(folder)?);
        let cluster = Self::chosen(kept.as_ref(), flag, last, used);
        if let Some(flag) = flag.map(ClusterId).filter(|flag| *flag != cluster.cluster_id) {
            let (folder, id) = (folder.display(), cluster.cluster_id);
            bail!(
                "--cluster-id {flag}: --data-dir {folder} is that of cluster {id}; leave the flag out, or choose another folder"
            );
        }
        if kept.as_ref() != Some(&cluster) {
            cluster.write(&path).with_context(|| format!("{}: cannot be written", path.display()))?;
        }
        Ok(cluster)
    }

    fn chosen(kept: Option<&Self>, flag: Option<u64>, last: Option<&ClusterState>, used: bool) -> Self {
        let of_state = last.and_then(|state| state.cluster_id);
        let lineage = kept.and_then(|kept| kept.lineage.clone());
        let lineage = lineage.or_else(|| last.and_then(|state| state.lineage.clone()));
        match kept.map(|kept| kept.cluster_id).or(of_state) {
            Some(cluster_id) => Self { cluster_id, lineage },
            // A folder of an earlier version, whose shards were started with the default id.
            None if used => Self { cluster_id: ClusterId(flag.unwrap_or(DEFAULT_CLUSTER_ID)), lineage },
            None => Self {
                cluster_id: ClusterId(flag.unwrap_or_else(|| random::bits().max(1))),
                lineage: Some(Lineage(uuid_of(random::bits(), random::bits()))),
            },
        }
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        private::write(path, &serde_json::to_vec_pretty(self)?)
    }
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::parse;

    use super::*;

    #[test]
    fn f36_each_folder_is_a_cluster_of_its_own_and_stays_it() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let of = |at: usize, flag| Cluster::of(folders[at].path(), flag, None, false);
        let (first, other) = (of(0, None).unwrap(), of(1, Some(7)).unwrap());
        assert!(first.lineage.is_some() && first.lineage != other.lineage);
        assert!(first.cluster_id != other.cluster_id && other.cluster_id == ClusterId(7));
        assert_eq!((of(0, None).unwrap(), of(1, None).unwrap()), (first, other));
        let refused = of(1, Some(8)).unwrap_err().to_string();
        assert!(refused.contains("--cluster-id 0x8") && refused.contains("cluster 0x7"), "{refused}");
    }

    #[test]
    fn a_folder_of_an_earlier_version_stays_the_cluster_that_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let old = Cluster::of(folder.path(), None, None, true).unwrap();
        assert_eq!(old, Cluster { cluster_id: ClusterId(DEFAULT_CLUSTER_ID), lineage: None });
        let state = ClusterState::bootstrap(&parse::parse_config(parse::DEFAULT_CONFIG).unwrap()).unwrap();
        let state = state.with_lineage(old.cluster_id, &Lineage("l".to_owned()));
        let upgraded = Cluster::of(folder.path(), None, Some(&state), true).unwrap();
        assert_eq!(upgraded, Cluster { lineage: state.lineage.clone(), ..old });
        let mut foreign = state.clone();
        foreign.lineage = Some(Lineage("m".to_owned()));
        assert!(upgraded.may_have(&state) && !upgraded.may_have(&foreign));
        assert_eq!(Cluster::of(folder.path(), None, None, true).unwrap(), upgraded);
    }
}
