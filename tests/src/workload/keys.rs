//! The keys of a run: a few Kinds in a few namespaces. There are so few that clients often use the same key.

use kindred_checker::{Key, history::KeyRange};
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};

use crate::layouts;

/// A Kind with its store in the default configuration.
#[derive(Debug)]
pub struct Kind {
    /// With its trailing slash.
    pub prefix: &'static str,
    /// Its name in the configuration.
    resource: &'static str,
    /// The store that has the whole Kind in the default configuration.
    pub default_store: &'static str,
}

pub const KINDS: [Kind; 5] = [
    Kind { prefix: "/registry/pods/", resource: "pods", default_store: "pods" },
    Kind { prefix: "/registry/leases/", resource: "leases.coordination.k8s.io", default_store: "leases" },
    Kind { prefix: "/registry/minions/", resource: "nodes", default_store: "nodes" },
    Kind { prefix: "/registry/events/", resource: "events", default_store: "events" },
    Kind { prefix: "/registry/configmaps/", resource: "configmaps", default_store: "default" },
];

/// So many of the first Kinds are chosen more often than the others.
const BUSY: usize = 2;

/// One namespace in each range of a Kind that is split.
const NAMESPACES: [&str; 3] = ["alpha", "mike", "zulu"];
const NAMES: usize = 5;

/// The Kinds as a layout places them.
#[must_use]
pub fn placed() -> Vec<layouts::Kind> {
    KINDS.iter().map(|kind| layouts::Kind { resource: kind.resource, cuts: ["h", "s"] }).collect()
}

/// The index of a key's Kind.
pub fn kind_of(key: &Key) -> Option<usize> {
    KINDS.iter().position(|kind| key.as_bytes().starts_with(kind.prefix.trim_end_matches('/').as_bytes()))
}

/// The index of a random Kind.
pub fn kind(rng: &mut StdRng) -> usize {
    if rng.random_bool(0.5) { rng.random_range(0..BUSY) } else { rng.random_range(0..KINDS.len()) }
}

/// All keys of a Kind.
pub fn whole(kind: usize) -> KeyRange {
    KeyRange::prefix(KINDS[kind].prefix.into())
}

/// The pseudo-key of a Kind, which kube-apiserver reads to learn the Kind's current revision. It never exists.
pub fn probe(kind: usize) -> Key {
    KINDS[kind].prefix.trim_end_matches('/').into()
}

/// A random key of the Kind.
pub fn key(rng: &mut StdRng, kind: usize) -> Key {
    let namespace = NAMESPACES[rng.random_range(0..NAMESPACES.len())];
    Key::from(format!("{}{namespace}/n{}", KINDS[kind].prefix, rng.random_range(0..NAMES)))
}

/// A random key in the namespace of this one. It may be the same key.
pub fn neighbour(rng: &mut StdRng, key: &Key) -> Key {
    let text = key.to_string();
    let namespace = text.rsplit_once('/').map_or(text.as_str(), |(namespace, _)| namespace);
    Key::from(format!("{namespace}/n{}", rng.random_range(0..NAMES)))
}

/// All keys of the Kind in a random namespace.
pub fn namespace(rng: &mut StdRng, kind: usize) -> KeyRange {
    let namespace = NAMESPACES.choose(rng).copied().unwrap_or_default();
    KeyRange::prefix(Key::from(format!("{}{namespace}/", KINDS[kind].prefix)))
}

/// A random range of a Kind: all of it, a namespace, one key, or the keys from one to another.
pub fn range(rng: &mut StdRng, kind: usize) -> KeyRange {
    match rng.random_range(0..20) {
        0..10 => whole(kind),
        10..14 => namespace(rng, kind),
        14..18 => KeyRange::one(key(rng, kind)),
        _ => {
            let (one, other) = (key(rng, kind), key(rng, kind));
            let (first, last) = if one <= other { (one, other) } else { (other, one) };
            KeyRange { end: last.successor(), key: first }
        }
    }
}
