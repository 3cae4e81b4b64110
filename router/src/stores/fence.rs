//! What this router knows of a stock etcd's fence. May be outdated: the etcd itself compares it with each request.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use kindred_router_core::fence::{FenceDoc, FenceError};
use kindred_wire::fence::Fence;
use tokio::time::Instant;

/// How long a refusal by the known fence is trusted without reading it again.
const FRESH: Duration = Duration::from_millis(10);

/// The fence key as last read.
#[derive(Debug)]
pub struct Known {
    /// The key's mod revision; 0 if the key did not exist.
    pub mod_revision: i64,
    pub doc: FenceDoc,
    read_at: Option<Instant>,
}

impl Known {
    /// Whether the fence was read so recently that its refusals need no other read.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.read_at.is_some_and(|at| at.elapsed() < FRESH)
    }
}

/// The known fence of one etcd.
#[derive(Debug)]
pub struct FenceCell(ArcSwap<Known>);

impl Default for FenceCell {
    fn default() -> Self {
        // Most etcds have no fence. If there is one, the first request fails its comparison and brings it back.
        let known = Known { mod_revision: 0, doc: FenceDoc::default(), read_at: None };
        Self(ArcSwap::from_pointee(known))
    }
}

impl FenceCell {
    #[must_use]
    pub fn known(&self) -> Arc<Known> {
        self.0.load_full()
    }

    /// Stores a fence that was read. It may be older than the known one: then the next request fails its comparison.
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
