//! The assumptions that the checks make about the system that produced the history.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use crate::bytes::Key;
use crate::history::{KeyRange, Nanos, Revision};

/// Keys whose revisions are comparable: all keys of an etcd, the keys of one Kind in kindred.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Domain(pub Key);

/// Maps a key to its order domain.
pub type DomainOf = Arc<dyn Fn(&Key) -> Domain + Send + Sync>;

/// The open interval of revisions that a store may have shown and lost in an unclean restart (R10).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gap {
    pub domain: Domain,
    /// D, the last durable revision.
    pub durable: Revision,
    /// s, the first revision after the restart.
    pub restart: Revision,
}

/// Within which scope the headers that one client receives never go back (R8, `--revision-scope`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderScope {
    /// A read of a domain never has a lower header than what this client has already seen of that domain.
    Domain,
    /// A read never has a lower header than what this client has already seen of any domain.
    Global,
    /// Not checked, because clients change their endpoint.
    Off,
}

/// The assumptions of one check. Start from `Config::etcd` or `Config::kindred` and change fields.
#[derive(Clone)]
pub struct Config {
    pub domain: DomainOf,
    /// One counter assigns all revisions of a domain, so *every* header in it is in real-time order. False in
    /// kindred, where the header of a one-key read or of a write covers only one store of a spread Kind (R8).
    pub one_counter: bool,
    /// Pseudo-keys that clients read to learn the current revision of a domain. The header of such a read covers the
    /// whole domain.
    pub probes: BTreeSet<Key>,
    pub header_scope: HeaderScope,
    /// The store was empty when recording began.
    pub starts_empty: bool,
    /// Every writer was recorded, so an event that no recorded write explains is a violation.
    pub closed_world: bool,
    /// A DeleteRange over several stores deletes at several revisions, of which its header is the highest.
    pub split_delete_ranges: bool,
    /// prev_kv may be absent once the previous version was compacted. This is so in etcd; kindred cancels the watch
    /// instead.
    pub prev_kv_compactable: bool,
    /// The first events of a watch may lack prev_kv, and the last ones before the client's cancel is answered: etcd begins
    /// a watch, and only then notes that it wants them, and it forgets that before it has sent what waits
    /// (`server/etcdserver/api/v3rpc/watch.go`).
    pub prev_kv_late: bool,
    /// The header of `created` may be above where a watch without a start begins, which is above all that was known
    /// before: etcd reads the current revision only after it has begun the watch (same file).
    pub created_above_start: bool,
    /// A manual progress may reach a watch whose start lies above it (etcd #20221). kindred sends none to such a watch
    /// (R7).
    pub progress_below_start: bool,
    /// Unclean restarts during the run.
    pub gaps: Vec<Gap>,
    /// No operation may take longer than this, and no event may come later than this after its write was acknowledged.
    /// Only such a bound makes visible in a history that writers wait for slow watchers (B6), or that a fault of one
    /// Kind's store delays another Kind (R17).
    pub latency_max: Option<Nanos>,
    /// Domains to which `latency_max` does not apply, because a fault hit one of their stores.
    pub latency_exempt: BTreeSet<Domain>,
    /// Bound of the linearizability search, in states for each key.
    pub search_states_max: usize,
    /// The report contains at most this many violations of each check, and counts the others.
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
            prev_kv_late: true,
            created_above_start: true,
            progress_below_start: true,
            gaps: Vec::new(),
            latency_max: None,
            latency_exempt: BTreeSet::new(),
            search_states_max: 500_000,
            violations_per_check_max: 10,
        }
    }

    /// kindred with these Kind prefixes, each with its trailing slash. A key belongs to the longest prefix that it
    /// starts with. The prefix without the slash is the Kind's pseudo-key and belongs to the Kind. All other keys share
    /// one domain.
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
            prev_kv_late: false,
            created_above_start: false,
            progress_below_start: false,
            ..Self::etcd()
        }
    }

    pub fn domain(&self, key: &Key) -> Domain {
        (self.domain)(key)
    }

    /// Whether the header of a read of this range covers the whole domain.
    pub(crate) fn is_domain_cut(&self, range: &KeyRange) -> bool {
        self.one_counter || (range.is_one() && self.probes.contains(&range.key))
    }

    /// The gap in which this revision lies, if it lies in one.
    pub(crate) fn gap(&self, domain: &Domain, revision: Revision) -> Option<&Gap> {
        self.gaps.iter().find(|g| g.domain == *domain && revision > g.durable && revision < g.restart)
    }
}

fn probe_of(prefix: &Key) -> Key {
    let bytes = prefix.as_bytes();
    Key::from(bytes.strip_suffix(b"/").unwrap_or(bytes))
}
