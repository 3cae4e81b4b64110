//! A release build has no failpoints.

use super::{Names, Side};

/// None.
#[derive(Debug)]
pub struct Failpoints;

impl Failpoints {
    /// Forgets the names.
    #[must_use]
    pub const fn new(_: Names) -> Self {
        Self
    }

    /// Never.
    #[inline]
    pub fn are_armed(&self) -> bool {
        false
    }

    /// Goes on.
    #[inline]
    pub fn reach(&self, _: &str, _: Side) {}

    /// Goes on.
    #[inline]
    pub async fn reach_async(&self, _: &str, _: Side) {}
}
