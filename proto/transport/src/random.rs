//! Random numbers for ids. Only edge crates draw them; pure crates receive them as arguments.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// 64 random bits, from the keys that the standard library draws for its hash maps.
#[must_use]
pub fn bits() -> u64 {
    RandomState::new().build_hasher().finish()
}
