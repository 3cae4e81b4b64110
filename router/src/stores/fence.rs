//! What this router knows of a stock etcd's fence: as old as may be, as the etcd itself compares it with each request.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use kindred_router_core::fence::{FenceDoc, FenceError};
use kindred_wire::fence::Fence;
use tokio::time::Instant;

/// How long a refusal is believed without asking the etcd again.
const FRESH: Duration = Duration::from_millis(10);

/// The fence key as it was read last.
#[derive(Debug)]
pub struct Known {
    /// Its mod revision; 0 where it did not exist.
    pub mod_revision: i64,
    /// What it said.
    pub doc: FenceDoc,
    read_at: Option<Instant>,
}

impl Known {
    /// Whether what it refuses can be refused without asking.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.read_at.is_some_and(|at| at.elapsed() < FRESH)
    }
}

/// Of one etcd.
#[derive(Debug)]
pub struct FenceCell(ArcSwap<Known>);

impl Default for FenceCell {
    fn default() -> Self {
        // Most have none. Where there is one, the first request is told.
        let known = Known { mod_revision: 0, doc: FenceDoc::default(), read_at: None };
        Self(ArcSwap::from_pointee(known))
    }
}

impl FenceCell {
    /// What is known.
    #[must_use]
    pub fn known(&self) -> Arc<Known> {
        self.0.load_full()
    }

    /// Takes what was read. If that is older than what is known, the next request is told.
    ///
    /// # Errors
    /// When this version cannot read the value.
    pub fn learn(&self, fence: Fence<'_>) -> Result<Arc<Known>, FenceError> {
        let doc = FenceDoc::read(fence.value)?;
        let known = Arc::new(Known { mod_revision: fence.mod_revision, doc, read_at: Some(Instant::now()) });
        self.0.store(known.clone());
        Ok(known)
    }
}
