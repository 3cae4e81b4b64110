//! The first map of a run: two to four stores, one Kind on one of them, one Kind in three ranges, and one on a ring.

use std::sync::{Arc, OnceLock};

use kindred_partition_config::ids::{ClusterId, Lineage, Slot};
use kindred_partition_config::key::{Key, KeyRange};
use kindred_partition_config::kind::{KindPrefix, KindScheme};
use kindred_partition_config::parse::parse_config;
use kindred_partition_config::state::ClusterState;
use kindred_router::meta::take;
use kindred_router_core::routes::Routes;

/// The number of Kinds: nodes, pods, leases.
pub const KINDS: usize = 3;
/// The Kind on one store.
pub const NODES: usize = 0;
/// The Kind in three ranges.
pub const PODS: usize = 1;
/// The Kind on a ring.
pub const LEASES: usize = 2;

/// The most keys of a Kind.
pub const KEYS_MAX: usize = 30;

const NAMES: [&str; KINDS] = ["minions", "pods", "leases"];

/// The first map and its stores.
pub struct Topology {
    /// The cluster's first state.
    pub state: Arc<ClusterState>,
    /// The first map as requests see it.
    pub routes: Arc<Routes>,
    /// The scheme that gives each key its Kind.
    pub scheme: KindScheme,
    /// The slot of each store, and the one that a store in place of a lost one will get.
    pub slots: Vec<Slot>,
    kinds: Vec<KindPrefix>,
}

struct Parsed {
    state: Arc<ClusterState>,
    scheme: KindScheme,
    slots: Vec<Slot>,
    kinds: Vec<KindPrefix>,
}

fn config(stores: usize) -> String {
    let mut text = String::from("etcdPrefix: /registry\ndefault: s0\nstores:\n");
    for store in 0..stores {
        text += &format!("- {{name: s{store}, slot: {}, type: shard}}\n", store + 1);
    }
    let on = |range: usize| format!("s{}", range % stores);
    text += "partitions:\n";
    text += &format!("- {{metadata: {{name: n}}, resource: nodes, serviceGroupId: {}}}\n", on(1));
    let (a, b, c) = (on(0), on(1), on(2));
    text += &format!(
        "- {{metadata: {{name: a}}, resource: pods, rangeEnd: h, isRangeEndValid: true, serviceGroupId: {a}}}\n"
    );
    text += &format!(
        "- {{metadata: {{name: b}}, resource: pods, rangeStart: h, isRangeStartValid: true, rangeEnd: s, isRangeEndValid: true, serviceGroupId: {b}}}\n"
    );
    text += &format!(
        "- {{metadata: {{name: c}}, resource: pods, rangeStart: s, isRangeStartValid: true, serviceGroupId: {c}}}\n"
    );
    let ring: Vec<String> = (0..stores).map(|store| format!("s{store}")).collect();
    text += &format!(
        "- {{metadata: {{name: l}}, resource: leases.coordination.k8s.io, ring: {{stores: [{}]}}}}\n",
        ring.join(", ")
    );
    text
}

fn parse(stores: usize) -> Parsed {
    let config = parse_config(&config(stores)).expect("the configuration above is YAML");
    let state = ClusterState::bootstrap(&config).expect("the configuration above is right");
    let state = state.founded(ClusterId(7), &Lineage("sim".to_owned()));
    let scheme = state.scheme();
    let slots = (1..=stores + 1).filter_map(|slot| Slot::new(u16::try_from(slot).ok()?)).collect();
    let kind = |name: &&str| {
        let prefix = format!("/registry/{name}/");
        scheme.kind_of(format!("{prefix}x").as_bytes()).expect("a Kind's prefix")
    };
    let kinds = NAMES.iter().map(kind).collect();
    Parsed { state: Arc::new(state), scheme, slots, kinds }
}

impl Topology {
    /// A map over so many stores, two to four.
    #[must_use]
    pub fn new(stores: usize) -> Self {
        static PARSED: [OnceLock<Parsed>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
        let parsed = PARSED[stores - 2].get_or_init(|| parse(stores));
        Self {
            state: parsed.state.clone(),
            routes: Arc::new(take::routes(&parsed.state)),
            scheme: parsed.scheme.clone(),
            slots: parsed.slots.clone(),
            kinds: parsed.kinds.clone(),
        }
    }

    /// The keys of a Kind.
    #[must_use]
    pub fn kind_range(&self, kind: usize) -> KeyRange {
        self.kinds[kind].range()
    }

    /// The prefix of a Kind.
    #[must_use]
    pub fn kind(&self, kind: usize) -> &KindPrefix {
        &self.kinds[kind]
    }

    /// The name of a Kind, as operators write it.
    #[must_use]
    pub fn kind_name(&self, kind: usize) -> &'static str {
        ["nodes", "pods", "leases.coordination.k8s.io"][kind]
    }

    #[must_use]
    pub fn kind_of(&self, key: &[u8]) -> usize {
        self.kinds.iter().position(|kind| key.starts_with(kind.as_key())).unwrap_or(NODES)
    }

    /// All keys that clients use, each with its Kind.
    #[must_use]
    pub fn keys(&self) -> Vec<(usize, Key)> {
        (0..KINDS).flat_map(|kind| (0..KEYS_MAX).map(move |number| (kind, self.key(kind, number)))).collect()
    }

    /// The key of a Kind with this number.
    #[must_use]
    pub fn key(&self, kind: usize, number: usize) -> Key {
        const NAMESPACES: [&str; 6] = ["a", "g", "k", "m", "t", "z"];
        let namespace = NAMESPACES[number % NAMESPACES.len()];
        let name = format!("{}{namespace}/{}", self.kinds[kind].as_key(), number / NAMESPACES.len());
        Key::from(name.as_str())
    }
}
