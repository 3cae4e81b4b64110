//! Decides which cluster this router, its cache file and its meta store belong to. Data of two clusters is never mixed:
//! a state is neither taken nor written over another unless both have the same beginning.

use kindred_partition_config::ids::{ClusterId, DEFAULT_CLUSTER_ID, Lineage, uuid_of};
use kindred_partition_config::state::{ClusterState, Kinship};
use kindred_transport::random;

/// The cluster as the flags name it. What they leave open is minted for a new cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Founding {
    pub cluster_id: Option<ClusterId>,
    pub lineage: Option<Lineage>,
    /// A state that is founded is that of a cluster that was there before, and whose state was lost.
    pub goes_on: bool,
}

impl Founding {
    /// The first state of a new cluster, or of one that goes on under its lineage after the state was lost.
    #[must_use]
    pub fn found(&self, state: ClusterState) -> ClusterState {
        let id = self.cluster_id.unwrap_or_else(|| ClusterId(random::bits().max(1)));
        let state = if self.goes_on { state.with_lost_members() } else { state };
        state.founded(id, &self.lineage())
    }

    /// Adds a lineage to a state of an earlier version; the cluster keeps its id.
    #[must_use]
    pub fn upgrade(&self, state: &ClusterState) -> ClusterState {
        match state.lineage {
            Some(_) if state.cluster_id.is_some() => state.clone(),
            _ => state.with_lineage(self.cluster_id_of(state), &self.lineage()),
        }
    }

    /// The cluster id for headers and handshakes: from the state, else the flag, else the constant of earlier versions.
    #[must_use]
    pub fn cluster_id_of(&self, state: &ClusterState) -> ClusterId {
        state.cluster_id.or(self.cluster_id).unwrap_or(ClusterId(DEFAULT_CLUSTER_ID))
    }

    fn lineage(&self) -> Lineage {
        self.lineage.clone().unwrap_or_else(|| Lineage(uuid_of(random::bits(), random::bits())))
    }

    /// Why a state does not belong to the cluster that the flags name; `None` if it may.
    #[must_use]
    pub fn contradicts(&self, state: &ClusterState) -> Option<String> {
        let id = self.cluster_id.filter(|id| state.cluster_id.is_some_and(|of_state| of_state != *id));
        let lineage = self
            .lineage
            .as_ref()
            .filter(|own| state.lineage.as_ref().is_some_and(|of_state| of_state != *own));
        let flag = match (id, lineage) {
            (Some(id), _) => format!("--cluster-id {id}"),
            (None, Some(lineage)) => format!("--lineage {lineage}"),
            (None, None) => return None,
        };
        Some(format!("it is of {}, not of {flag}", state.cluster_in_words()))
    }
}

/// Why a router that uses the state `own` must not touch the state that meta holds; `None` if it may.
#[must_use]
pub fn foreign(own: &ClusterState, found: &ClusterState) -> Option<String> {
    let was_known = own.lineage.is_some() && found.lineage.is_none();
    (own.kinship(found) == Kinship::Foreign || was_known).then(|| {
        format!(
            "it holds the state of {}, and this router goes by that of {}: does --meta name another cluster's meta store? Nothing \
             is read from it or written to it",
            found.cluster_in_words(),
            own.cluster_in_words()
        )
    })
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::parse::{DEFAULT_CONFIG, parse_config};

    use super::*;

    fn bare() -> ClusterState {
        ClusterState::bootstrap(&parse_config(DEFAULT_CONFIG).unwrap()).unwrap()
    }

    fn founding(id: u64, lineage: &str) -> Founding {
        let lineage = Some(Lineage(lineage.to_owned()));
        Founding { cluster_id: Some(ClusterId(id)), lineage, goes_on: false }
    }

    #[test]
    fn f36_each_new_cluster_is_another_one_and_an_old_one_stays_what_it_was() {
        let [one, other] = [(); 2].map(|()| Founding::default().found(bare()));
        assert!(one.cluster_id != other.cluster_id && one.kinship(&other) == Kinship::Foreign);
        let named = founding(7, "a").found(bare());
        assert_eq!((named.cluster_id, named.revision), (Some(ClusterId(7)), bare().revision));
        let pair = "default: a\nstores: [{name: a, slot: 1, endpoints: [\"http://a:1\"], standby: {endpoints: [\"http://b:1\"]}}]\n";
        let pair = ClusterState::bootstrap(&parse_config(pair).unwrap()).unwrap();
        assert_eq!(Founding::default().found(pair.clone()).stores[0].members, None);
        assert_eq!(founding(7, "a").found(pair.clone()).stores[0].members, None);
        let lost = Founding { goes_on: true, ..founding(7, "a") };
        let members = lost.found(pair).stores[0].members.clone().unwrap();
        assert!(members.primary.is_unknown(), "somebody was the primary when the state was lost");
        let upgraded = Founding::default().upgrade(&bare());
        assert_eq!(upgraded.cluster_id, Some(ClusterId(DEFAULT_CLUSTER_ID)), "its shards were told this one");
        assert_eq!(Founding::default().upgrade(&upgraded), upgraded);
        assert_eq!(founding(9, "b").upgrade(&named), named);
    }

    #[test]
    fn f03_a_state_of_another_cluster_is_told_by_flags_and_by_what_is_in_use() {
        let (a, b) = (founding(7, "a").found(bare()), founding(7, "b").found(bare()));
        assert_eq!(founding(7, "a").contradicts(&a), None);
        assert_eq!(founding(7, "a").contradicts(&bare()), None, "it does not say");
        assert!(founding(8, "a").contradicts(&a).unwrap().contains("not of --cluster-id 0x8"));
        assert!(founding(7, "c").contradicts(&a).unwrap().contains("not of --lineage c"));
        assert!(foreign(&a, &b).is_some_and(|why| why.contains("lineage a") && why.contains("lineage b")));
        assert!(foreign(&a, &bare()).is_some(), "older than its cluster's lineage, or another's");
        assert_eq!([foreign(&a, &a), foreign(&bare(), &a), foreign(&bare(), &bare())], [None, None, None]);
    }
}
