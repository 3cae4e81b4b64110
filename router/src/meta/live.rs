//! The meta store of a real router, and its own view of it, behind [`MetaStore`].

use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::state::ClusterState;

use super::client::{Entries, Expect, Stored, Write};
use super::store::MetaStore;
use super::take::StateKeeper;
use super::{Meta, MetaError};

/// The meta store of a real router.
#[derive(Debug, Clone)]
pub struct Live {
    pub keeper: Arc<StateKeeper>,
    pub meta: Arc<Meta>,
}

impl MetaStore for Live {
    async fn get(&self, key: &str) -> Result<Option<Stored>, MetaError> {
        self.meta.client.get(key).await
    }

    async fn list(&self) -> Result<Entries, MetaError> {
        self.meta.client.list().await
    }

    async fn commit(&self, expects: &[Expect], writes: Vec<Write>) -> Result<Option<i64>, MetaError> {
        self.meta.client.commit(expects, writes).await
    }

    async fn commit_under(&self, lease: i64, write: Write) -> Result<bool, MetaError> {
        self.meta.client.commit_under(lease, write).await
    }

    async fn grant(&self, ttl: Duration) -> Result<i64, MetaError> {
        self.meta.client.grant(ttl).await
    }

    async fn renew(&self, lease: i64) -> Result<bool, MetaError> {
        self.meta.client.renew(lease).await
    }

    fn entries(&self) -> Arc<Entries> {
        self.meta.entries().borrow().clone()
    }

    async fn heard(&self, revision: i64) -> bool {
        self.meta.heard(revision).await
    }

    fn state(&self) -> Arc<ClusterState> {
        self.keeper.cluster.state()
    }

    fn take(&self, state: Arc<ClusterState>) {
        self.keeper.take(state);
    }
}
