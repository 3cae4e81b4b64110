//! Maps a key to its Kind by kube-apiserver's key layout.
//!
//! The layout (`/registry` is the apiserver's `--etcd-prefix`):
//!
//! | key | Kind prefix |
//! | --- | --- |
//! | `/registry/pods/<namespace>/<name>` | `/registry/pods/` |
//! | `/registry/services/specs/…`, `/registry/services/endpoints/…` | two segments; nothing else is below `services/` |
//! | `/registry/example.com/foos/…` | `/registry/example.com/foos/`: a first segment with a dot is an API group |
//!
//! No two Kind prefixes overlap: the first segment alone decides how many segments a prefix has.

use std::fmt;

use crate::key::{Key, KeyRange};

mod names;

pub use names::{KindNameError, nearest, suggest};

/// kube-apiserver's default `--etcd-prefix`.
pub const DEFAULT_ETCD_PREFIX: &str = "/registry";

/// The name of the keys of no configured Kind where Kinds are listed: in tables, metrics, traces and moves.
pub const ALL_ELSE: &str = "<all else>";

/// The role of a key; see [`KindScheme::locate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Located<'k> {
    /// A key of a Kind, or the Kind prefix itself.
    Object {
        /// The Kind prefix, including its trailing slash.
        kind: &'k [u8],
    },
    /// The pseudo-key of a Kind: its prefix without the trailing slash. kube-apiserver reads it to learn the Kind's
    /// current revision. It never exists, and it belongs to the Kind's partitions although it sorts before them.
    Pseudo {
        /// The whole pseudo-key, equal to the Kind's stem.
        stem: &'k [u8],
    },
    /// `<etcd prefix>/health`, which kube-apiserver reads as etcd's health check.
    Health,
    /// A key that belongs to no Kind, such as `compact_rev_key` or a key of another application.
    Other,
}

impl<'k> Located<'k> {
    /// The Kind prefix without its trailing slash, which is the same for a Kind's objects and its pseudo-key.
    #[must_use]
    pub fn stem(self) -> Option<&'k [u8]> {
        match self {
            Self::Object { kind } => kind.strip_suffix(b"/"),
            Self::Pseudo { stem } => Some(stem),
            Self::Health | Self::Other => None,
        }
    }
}

/// A Kind prefix such as `/registry/pods/`, checked against a [`KindScheme`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindPrefix(Key);

impl KindPrefix {
    /// The prefix, including its trailing slash.
    #[must_use]
    pub fn as_key(&self) -> &Key {
        &self.0
    }

    /// The prefix without its trailing slash: the Kind's pseudo-key.
    #[must_use]
    pub fn stem(&self) -> &[u8] {
        self.0.strip_suffix(b"/").unwrap_or(&self.0)
    }

    /// Reads back a prefix that was validated by a scheme before it was stored as text. Checks its form only.
    pub(crate) fn from_stored(key: Key) -> Option<Self> {
        (key.starts_with(b"/") && key.ends_with(b"/") && key.len() > 2).then_some(Self(key))
    }

    /// Every key of the Kind except its pseudo-key.
    #[must_use]
    pub fn range(&self) -> KeyRange {
        KeyRange::prefix(self.0.clone())
    }

    /// The first key after the Kind: the stem followed by `0`, the byte after `/`.
    #[must_use]
    pub fn end(&self) -> Key {
        let mut end = self.stem().to_vec();
        end.push(b'/' + 1);
        Key(end.into())
    }
}

impl fmt::Debug for KindPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for KindPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The mapping of keys to Kinds under one `--etcd-prefix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindScheme {
    /// The cleaned prefix with a slash at both ends (`/registry/`), or just `/`.
    root: Vec<u8>,
}

impl Default for KindScheme {
    fn default() -> Self {
        Self::new(DEFAULT_ETCD_PREFIX)
    }
}

impl KindScheme {
    /// Builds the scheme for `etcd_prefix`, with or without slashes at its ends. The prefix is cleaned as
    /// kube-apiserver cleans its flag: empty segments and `.` are dropped, `..` removes the segment before it.
    #[must_use]
    pub fn new(etcd_prefix: &str) -> Self {
        let mut segments: Vec<&str> = Vec::new();
        for segment in etcd_prefix.split('/') {
            match segment {
                "" | "." => {}
                ".." => {
                    segments.pop();
                }
                _ => segments.push(segment),
            }
        }
        let mut root = b"/".to_vec();
        for segment in segments {
            root.extend_from_slice(segment.as_bytes());
            root.push(b'/');
        }
        Self { root }
    }

    /// The cleaned prefix with a slash at both ends, such as `/registry/`.
    #[must_use]
    pub fn root(&self) -> &[u8] {
        &self.root
    }

    /// Classifies `key`. Allocates nothing and looks at no more than two segments below the prefix.
    #[must_use]
    pub fn locate<'k>(&self, key: &'k [u8]) -> Located<'k> {
        let Some(rest) = key.strip_prefix(self.root.as_slice()) else { return Located::Other };
        let first = segment(rest);
        if first.is_empty() {
            return Located::Other;
        }
        if first == b"health" {
            // A Kind named `health` would have this key as its pseudo-key, so nothing else may live below it.
            return if rest.len() == first.len() { Located::Health } else { Located::Other };
        }
        let mut stem_len = first.len();
        if first == b"services" || first.contains(&b'.') {
            let Some(below) = rest.get(first.len() + 1..) else { return Located::Other };
            let second = segment(below);
            let known = if first == b"services" { matches!(second, b"specs" | b"endpoints") } else { true };
            if second.is_empty() || !known {
                return Located::Other;
            }
            stem_len += 1 + second.len();
        }
        let kind_len = self.root.len() + stem_len + 1;
        match key.get(..kind_len) {
            Some(kind) => Located::Object { kind },
            None => Located::Pseudo { stem: key },
        }
    }

    /// Parses a Kind prefix. `None` unless `bytes` is exactly one: not a longer key, a pseudo-key or a key of no
    /// Kind.
    #[must_use]
    pub fn kind_prefix(&self, bytes: &[u8]) -> Option<KindPrefix> {
        (self.locate(bytes) == Located::Object { kind: bytes }).then(|| KindPrefix(Key::copy_from(bytes)))
    }

    /// The Kind of `key`, which may be the Kind's pseudo-key.
    #[must_use]
    pub fn kind_of(&self, key: &[u8]) -> Option<KindPrefix> {
        let stem = self.locate(key).stem()?;
        let mut prefix = Vec::with_capacity(stem.len() + 1);
        prefix.extend_from_slice(stem);
        prefix.push(b'/');
        Some(KindPrefix(Key(prefix.into())))
    }

    /// The Kind whose path below the etcd prefix is `path`, such as `services/specs`.
    fn below(&self, path: &str) -> Option<KindPrefix> {
        let mut prefix = self.root.clone();
        prefix.extend_from_slice(path.as_bytes());
        prefix.push(b'/');
        self.kind_prefix(&prefix)
    }
}

/// The bytes before the first slash.
fn segment(bytes: &[u8]) -> &[u8] {
    bytes.split(|b| *b == b'/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
