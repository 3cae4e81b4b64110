//! Keys in the form of Kubernetes' keys. There are so few of them that operations often meet at the same key.

use bytes::Bytes;
use kindred_tests::layouts;
use rand::{Rng, rngs::StdRng};

use crate::differential::revision::Kinds;

/// The keys of a kind are `prefix` followed by one of `names`.
#[derive(Debug)]
pub struct Kind {
    pub prefix: &'static str,
    /// Its name in the configuration; none for keys of no Kind, which the default store has.
    resource: Option<&'static str>,
    names: &'static [&'static str],
}

const NAMESPACED: &[&str] = &[
    "ns-a/p1",
    "ns-a/p10",
    "ns-a/p2",
    "ns-a/web-0",
    "ns-b/p1",
    "ns-b/p2",
    "ns-b/web-0",
    "ns-b/web-1",
    "ns-c/p1",
    "ns-c/p2",
];
const PLAIN: &[&str] = &["node-1", "node-10", "node-2", "node-3", "node-4", "z"];

/// Each entry is either a Kind with a placement of its own, or keys of no Kind.
pub const KINDS: &[Kind] = &[
    Kind { prefix: "/registry/pods/", resource: Some("pods"), names: NAMESPACED },
    Kind { prefix: "/registry/leases/", resource: Some("leases.coordination.k8s.io"), names: NAMESPACED },
    Kind { prefix: "/registry/minions/", resource: Some("nodes"), names: PLAIN },
    Kind { prefix: "/registry/events/", resource: Some("events"), names: NAMESPACED },
    Kind { prefix: "/registry/services/specs/", resource: Some("services"), names: NAMESPACED },
    Kind { prefix: "/registry/services/endpoints/", resource: Some("endpoints"), names: NAMESPACED },
    Kind { prefix: "/registry/podtemplates/", resource: Some("podtemplates"), names: PLAIN },
    Kind {
        prefix: "/registry/example.com/widgets/",
        resource: Some("widgets.example.com"),
        names: NAMESPACED,
    },
    Kind { prefix: "compact_rev_key", resource: None, names: &[""] },
    Kind { prefix: "other/", resource: None, names: PLAIN },
];

/// The Kinds as a layout places them. Some of their ranges end in the middle of a namespace.
pub fn placed() -> Vec<layouts::Kind> {
    let cuts = |names| if names == PLAIN { ["node-2", "node-4"] } else { ["ns-a/p2", "ns-b/web-0"] };
    let placed = KINDS
        .iter()
        .filter_map(|kind| Some(layouts::Kind { resource: kind.resource?, cuts: cuts(kind.names) }));
    placed.collect()
}

/// Keys outside all kinds. Only dense mode uses them.
const ODD: &[&[u8]] = &[
    b"\0",
    b"\0\0",
    b"a",
    b"/registry",
    b"/registry/",
    b"/registry/pods",
    b"/registry/pods0",
    b"\xff",
    b"\xff\xff",
    b"\xff\xfe\x00",
    b"k\x00v",
    "schl\u{fc}ssel".as_bytes(),
];

/// A random key of the kind.
pub fn key(rng: &mut StdRng, kind: usize) -> Bytes {
    let Kind { prefix, names, .. } = &KINDS[kind];
    Bytes::from(format!("{prefix}{}", names[rng.random_range(0..names.len())]))
}

/// All keys of the kind.
pub fn names(kind: usize) -> Vec<Bytes> {
    let Kind { prefix, names, .. } = &KINDS[kind];
    names.iter().map(|name| Bytes::from(format!("{prefix}{name}"))).collect()
}

/// A range (key, range_end) over several kinds, and which kinds have keys in it.
pub fn several(rng: &mut StdRng) -> (Bytes, Bytes, Kinds) {
    let (key, end): (&[u8], &[u8]) = match rng.random_range(0..6) {
        0 => (b"/registry/", b"/registry0"),
        1 => (b"/registry/pod", b"/registry/poe"),
        2 => (b"/registry/services/", b"/registry/services0"),
        // From the middle of one kind into the middle of another.
        3 => (b"/registry/leases/ns-b/p2", b"/registry/pods/ns-b/p2"),
        4 => (b"/registry/events/ns-c", b"\0"),
        _ => (b"\0", b"\0"),
    };
    let has_some = |kind: &usize| {
        names(*kind).iter().any(|name| name.as_ref() >= key && (end == b"\0" || name.as_ref() < end))
    };
    let kinds = Kinds::of((0..KINDS.len()).filter(has_some));
    (Bytes::from_static(key), Bytes::from_static(end), kinds)
}

pub fn odd(rng: &mut StdRng) -> Bytes {
    Bytes::from_static(ODD[rng.random_range(0..ODD.len())])
}

/// The range (key, range_end) of all keys of a kind.
pub fn whole(kind: usize) -> (Bytes, Bytes) {
    let prefix = Bytes::from_static(KINDS[kind].prefix.as_bytes());
    let end = prefix_end(&prefix);
    (prefix, end)
}

/// The range (key, range_end) of a part of a kind: a namespace, or the keys from one to another.
pub fn part(rng: &mut StdRng, kind: usize) -> (Bytes, Bytes) {
    let first = key(rng, kind);
    match rng.random_range(0..4) {
        0 | 1 => match first.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (first.slice(..=slash), prefix_end(&first[..=slash])),
            None => (first.clone(), prefix_end(&first)),
        },
        2 => {
            let second = key(rng, kind);
            // The range may be empty or reversed, as clients may send such ranges too.
            (first, second)
        }
        _ => {
            let mut next = first.to_vec();
            next.push(0);
            (Bytes::from(next), whole(kind).1)
        }
    }
}

/// The end of the range of all keys with this prefix, as Kubernetes and etcdctl compute it.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return Bytes::from(end);
        }
    }
    Bytes::from_static(b"\0")
}

const VALUES: &[&[u8]] = &[b"", b"1", b"2", b"value", b"\0", b"\xff\x00\xff", b"k8s\x00\n\x0c\n\x02v1"];

/// A value, mostly from a small pool, so that compares can match.
pub fn value(rng: &mut StdRng) -> Bytes {
    match rng.random_range(0..20) {
        0 => Bytes::from(vec![rng.random::<u8>(); rng.random_range(0..4096)]),
        _ => Bytes::from_static(VALUES[rng.random_range(0..VALUES.len())]),
    }
}
