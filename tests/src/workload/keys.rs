//! The keys of a run: a few Kinds over a few namespaces, few enough keys that clients meet on them.

use kindred_checker::{Key, history::KeyRange};
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};

/// A Kind with its place in the default configuration.
#[derive(Debug)]
pub struct Kind {
    /// With its last slash.
    pub prefix: &'static str,
    /// The store that has it alone in the default configuration.
    pub default_store: &'static str,
}

pub const KINDS: [Kind; 5] = [
    Kind { prefix: "/registry/pods/", default_store: "pods" },
    Kind { prefix: "/registry/leases/", default_store: "leases" },
    Kind { prefix: "/registry/minions/", default_store: "nodes" },
    Kind { prefix: "/registry/events/", default_store: "events" },
    Kind { prefix: "/registry/configmaps/", default_store: "default" },
];

/// The first of them are chosen more often than the others.
const BUSY: usize = 2;

/// In the first, second and last third of the alphabet: the name ranges of the split configurations.
const NAMESPACES: [&str; 3] = ["alpha", "mike", "zulu"];
const NAMES: usize = 5;

/// The Kind of a key, by number.
pub fn kind_of(key: &Key) -> Option<usize> {
    KINDS.iter().position(|kind| key.as_bytes().starts_with(kind.prefix.trim_end_matches('/').as_bytes()))
}

/// A Kind.
pub fn kind(rng: &mut StdRng) -> usize {
    if rng.random_bool(0.5) { rng.random_range(0..BUSY) } else { rng.random_range(0..KINDS.len()) }
}

/// All keys of a Kind.
pub fn whole(kind: usize) -> KeyRange {
    KeyRange::prefix(KINDS[kind].prefix.into())
}

/// The key that kube-apiserver asks for the Kind's current revision, and that never exists.
pub fn probe(kind: usize) -> Key {
    KINDS[kind].prefix.trim_end_matches('/').into()
}

/// A key of the Kind.
pub fn key(rng: &mut StdRng, kind: usize) -> Key {
    let namespace = NAMESPACES[rng.random_range(0..NAMESPACES.len())];
    Key::from(format!("{}{namespace}/n{}", KINDS[kind].prefix, rng.random_range(0..NAMES)))
}

/// Another key in the namespace of this one.
pub fn neighbour(rng: &mut StdRng, key: &Key) -> Key {
    let text = key.to_string();
    let namespace = text.rsplit_once('/').map_or(text.as_str(), |(namespace, _)| namespace);
    Key::from(format!("{namespace}/n{}", rng.random_range(0..NAMES)))
}

/// A namespace of the Kind.
pub fn namespace(rng: &mut StdRng, kind: usize) -> KeyRange {
    let namespace = NAMESPACES.choose(rng).copied().unwrap_or_default();
    KeyRange::prefix(Key::from(format!("{}{namespace}/", KINDS[kind].prefix)))
}

/// A range of a Kind: all of it, a namespace, one key, or from one key to another.
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
