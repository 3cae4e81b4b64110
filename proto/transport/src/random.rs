//! Randomness for ids, drawn at the edges: pure crates are given it.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// 64 bits of the keys that the standard library draws from the operating system for its hash maps.
#[must_use]
pub fn bits() -> u64 {
    RandomState::new().build_hasher().finish()
}
