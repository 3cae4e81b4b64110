//! What may be assumed of the system whose history is checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::bytes::Key;
use crate::history::{KeyRange, Nanos, Revision};

/// Keys whose revisions are comparable: all keys of an etcd, the keys of one Kind in kindred.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Domain(pub Key);

/// From a key to its order domain.
pub type DomainOf = Arc<dyn Fn(&Key) -> Domain + Send + Sync>;

/// Revisions that a store may have shown and lost in an unclean restart (R10): the open interval between the two.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gap {
    /// Whose revisions.
    pub domain: Domain,
    /// D: the last durable revision.
    pub durable: Revision,
    /// s: the first revision after the restart.
    pub restart: Revision,
}

/// Which headers one client may compare (R8, `--revision-scope`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderScope {
    /// Reads of one domain never show less than this client was shown of it.
    Domain,
    /// Reads never show less than this client was shown of anything.
    Global,
    /// Not checked: the client changed endpoints.
    Off,
}

/// What to assume; start from `Config::etcd` or `Config::kindred` and change fields.
#[derive(Clone)]
pub struct Config {
    /// Order domain of a key.
    pub domain: DomainOf,
    /// One counter assigns all revisions of a domain, so *every* header in it is in real-time order. False in
    /// kindred, where headers of one-key reads and of writes to a spread Kind are not cuts (R8).
    pub one_counter: bool,
    /// Keys that exist only to be asked for a domain's current revision; their reads are cuts.
    pub probes: BTreeSet<Key>,
    /// See there.
    pub header_scope: HeaderScope,
    /// The store was empty when recording began.
    pub starts_empty: bool,
    /// All writers recorded: an event that no recorded write explains is a violation.
    pub closed_world: bool,
    /// A DeleteRange over several stores deletes at several revisions, at most its header.
    pub split_delete_ranges: bool,
    /// prev_kv may be absent once the version before it was compacted (etcd; kindred cancels the watch instead).
    pub prev_kv_compactable: bool,
    /// A manual progress may reach a watch whose start lies above it (etcd #20221; kindred says nothing, R7).
    pub progress_below_start: bool,
    /// Unclean restarts during the run.
    pub gaps: Vec<Gap>,
    /// No operation may take longer, and no event may come later than this after its write was acknowledged: the only
    /// way to see, in a history, writers waiting for slow watchers (B6), and Kinds that a fault elsewhere holds up (R17).
    pub latency_max: Option<Nanos>,
    /// Domains that may be slower: a store of theirs was struck.
    pub latency_exempt: BTreeSet<Domain>,
    /// Bound of the linearizability search, in states a key.
    pub search_states_max: usize,
    /// Violations kept per check.
    pub violations_per_check_max: usize,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("one_counter", &self.one_counter).finish_non_exhaustive()
    }
}

impl Config {
    /// One etcd: every key in one domain.
    pub fn etcd() -> Self {
        Self {
            domain: Arc::new(|_| Domain(Key::default())),
            one_counter: true,
            probes: BTreeSet::new(),
            header_scope: HeaderScope::Global,
            starts_empty: true,
            closed_world: true,
            split_delete_ranges: false,
            prev_kv_compactable: true,
            progress_below_start: true,
            gaps: Vec::new(),
            latency_max: None,
            latency_exempt: BTreeSet::new(),
            search_states_max: 500_000,
            violations_per_check_max: 10,
        }
    }

    /// kindred with these Kind prefixes (with their last slash). A key belongs to the longest prefix that it
    /// starts with, or whose probe (the prefix without the slash) it is; all other keys share a domain.
    pub fn kindred(prefixes: impl IntoIterator<Item = Key>) -> Self {
        let prefixes: BTreeMap<Key, Key> =
            prefixes.into_iter().map(|prefix| (probe_of(&prefix), prefix)).collect();
        let probes = prefixes.keys().cloned().collect();
        let domain = move |key: &Key| {
            let of = |(probe, prefix): (&Key, &Key)| {
                (key == probe || key.as_bytes().starts_with(prefix.as_bytes())).then(|| prefix.clone())
            };
            let longest = prefixes.iter().filter_map(of).max_by_key(|prefix| prefix.as_bytes().len());
            Domain(longest.unwrap_or_default())
        };
        Self {
            domain: Arc::new(domain),
            one_counter: false,
            probes,
            header_scope: HeaderScope::Domain,
            split_delete_ranges: true,
            prev_kv_compactable: false,
            progress_below_start: false,
            ..Self::etcd()
        }
    }

    /// The domain of a key.
    pub fn domain(&self, key: &Key) -> Domain {
        (self.domain)(key)
    }

    /// Whether a header of a read of this range speaks for the whole domain.
    pub(crate) fn is_domain_cut(&self, range: &KeyRange) -> bool {
        self.one_counter || (range.is_one() && self.probes.contains(&range.key))
    }

    /// The gap that swallowed this revision, if one did.
    pub(crate) fn gap(&self, domain: &Domain, revision: Revision) -> Option<&Gap> {
        self.gaps.iter().find(|g| g.domain == *domain && revision > g.durable && revision < g.restart)
    }
}

fn probe_of(prefix: &Key) -> Key {
    let bytes = prefix.as_bytes();
    Key::from(bytes.strip_suffix(b"/").unwrap_or(bytes))
}
