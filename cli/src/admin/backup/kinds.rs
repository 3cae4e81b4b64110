//! The Kinds of keys, as backups name them.

use kindred_partition_config::kind::{KindScheme, Located};

/// The name for keys that belong to no Kind.
pub const OTHER: &str = "<other>";

/// The Kind prefix of a key as text; `None` for a key of no Kind, or if the prefix is not UTF-8.
pub fn prefix_of<'k>(scheme: &KindScheme, key: &'k [u8]) -> Option<&'k str> {
    match scheme.locate(key) {
        Located::Object { kind } => std::str::from_utf8(kind).ok(),
        Located::Pseudo { .. } | Located::Health | Located::Other => None,
    }
}
