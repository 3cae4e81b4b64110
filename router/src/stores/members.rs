//! What a router knows of the members of a store that has standbys, and what operators wish of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kindred_router_core::standbys::{Said, Wish};
use tokio::sync::{Notify, watch};

/// What a router knows of the members of a store, and what operators wish.
#[derive(Debug, Default)]
pub struct StoreMembers {
    wish: Mutex<Option<Wish>>,
    /// Something was wished.
    wished: Notify,
    shown: watch::Sender<Arc<Shown>>,
    failovers: AtomicU64,
}

/// The last look at the members of a store.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Why the store has less than it is to have; `None` if all is well, or it is to have no standbys.
    pub trouble: Option<String>,
    /// What each member says, by its address, the primary's first; `Err` says why it does not answer.
    pub members: Vec<(String, Result<Said, String>)>,
    /// How many standbys the store is to have.
    pub wanted: usize,
    /// How many are in sync by the record.
    pub in_sync: usize,
}

impl StoreMembers {
    /// The last look.
    #[must_use]
    pub fn shown(&self) -> Arc<Shown> {
        self.shown.borrow().clone()
    }

    /// Shows a look.
    pub fn show(&self, shown: Shown) {
        self.shown.send_replace(Arc::new(shown));
    }

    /// What an operator wishes.
    #[must_use]
    pub fn wish(&self) -> Option<Wish> {
        self.wish.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes what an operator wishes, or that the wish has ended.
    pub fn set_wish(&self, wish: Option<Wish>) {
        *self.wish.lock().unwrap_or_else(PoisonError::into_inner) = wish;
        self.wished.notify_one();
    }

    /// Waits until an operator wishes something.
    pub async fn wished(&self) {
        self.wished.notified().await;
    }

    /// Counts that this router told a standby to serve.
    pub fn count_failover(&self) {
        self.failovers.fetch_add(1, Ordering::Relaxed);
    }

    /// How often this router told a standby to serve.
    #[must_use]
    pub fn failovers(&self) -> u64 {
        self.failovers.load(Ordering::Relaxed)
    }
}
