//! Tells which cluster a document belongs to, so that no cluster's document replaces another's.

use super::ClusterState;
use crate::ids::{ClusterId, Lineage};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kinship {
    /// Both documents belong to one cluster, and the newer one counts.
    Same,
    /// At least one document has no lineage, because an earlier version wrote it.
    Unknown,
    /// The documents belong to two different clusters.
    Foreign,
}

impl ClusterState {
    /// The document with a cluster id and a lineage if it had none. Its revision does not change.
    #[must_use]
    pub fn founded(mut self, cluster_id: ClusterId, lineage: &Lineage) -> Self {
        self.cluster_id.get_or_insert(cluster_id);
        self.lineage.get_or_insert_with(|| lineage.clone());
        self
    }

    /// Like [`ClusterState::founded`], for a shared document: increments the revision if anything was added.
    #[must_use]
    pub fn with_lineage(&self, cluster_id: ClusterId, lineage: &Lineage) -> Self {
        let next = self.clone().founded(cluster_id, lineage);
        if next == *self { next } else { Self { revision: self.revision + 1, ..next } }
    }

    #[must_use]
    pub fn kinship(&self, other: &Self) -> Kinship {
        match (&self.lineage, &other.lineage) {
            (Some(own), Some(other)) if own == other => Kinship::Same,
            (Some(_), Some(_)) => Kinship::Foreign,
            _ => Kinship::Unknown,
        }
    }

    /// Describes the cluster for logs and errors.
    #[must_use]
    pub fn cluster_in_words(&self) -> String {
        let id = self.cluster_id.map_or_else(|| "without an id".to_owned(), |id| id.to_string());
        match &self.lineage {
            Some(lineage) => format!("cluster {id}, lineage {lineage}"),
            None => format!("cluster {id}, of no lineage"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{DEFAULT_CONFIG, parse_config};

    fn of(lineage: &str) -> ClusterState {
        let state = ClusterState::bootstrap(&parse_config(DEFAULT_CONFIG).unwrap()).unwrap();
        state.founded(ClusterId(7), &Lineage(lineage.to_owned()))
    }

    #[test]
    fn f03_documents_of_two_clusters_are_told_apart_and_those_of_earlier_versions_are_read() {
        let bare = ClusterState::bootstrap(&parse_config(DEFAULT_CONFIG).unwrap()).unwrap();
        let text = String::from_utf8(bare.to_json()).unwrap();
        assert!(!text.contains("lineage") && !text.contains("clusterId"), "as earlier versions wrote it");
        assert_eq!(ClusterState::from_json(text.as_bytes()).as_ref(), Ok(&bare));

        let (a, b) = (of("a"), of("b"));
        assert_eq!(ClusterState::from_json(&a.to_json()).as_ref(), Ok(&a));
        assert_eq!([a.kinship(&b), a.kinship(&of("a"))], [Kinship::Foreign, Kinship::Same]);
        assert_eq!([a.kinship(&bare), bare.kinship(&a)], [Kinship::Unknown; 2]);
        assert_eq!(bare.kinship(&bare), Kinship::Unknown);
        assert_eq!(a.clone().founded(ClusterId(9), &Lineage("z".to_owned())), a, "it is founded once");
        assert_eq!(a.with_lineage(ClusterId(9), &Lineage("z".to_owned())), a);
        let upgraded = bare.with_lineage(ClusterId(7), &Lineage("a".to_owned()));
        assert_eq!((upgraded.revision, upgraded.lineage), (bare.revision + 1, a.lineage.clone()));
        assert!(a.cluster_in_words().contains("0x7") && a.cluster_in_words().contains("lineage a"));
    }
}
