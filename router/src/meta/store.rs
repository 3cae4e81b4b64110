//! What changes of the state and moves use of the meta store, and of the router's own view of it.
//! [`Live`](super::live::Live) is a real router's; a simulation has its own.

use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::state::ClusterState;

use super::MetaError;
use super::client::{Entries, Expect, Stored, Write};

/// The meta store as a router uses it. Every call ends in bounded time.
pub trait MetaStore {
    /// Reads one key.
    fn get(&self, key: &str) -> impl Future<Output = Result<Option<Stored>, MetaError>>;
    /// Reads all keys of kindred.
    fn list(&self) -> impl Future<Output = Result<Entries, MetaError>>;
    /// Makes all writes in one transaction if all conditions hold; see [`super::client::MetaClient::commit`].
    fn commit(
        &self,
        expects: &[Expect],
        writes: Vec<Write>,
    ) -> impl Future<Output = Result<Option<i64>, MetaError>>;
    /// Writes a key only if it is still attached to this lease.
    fn commit_under(&self, lease: i64, write: Write) -> impl Future<Output = Result<bool, MetaError>>;
    /// Grants a lease of so long, in whole seconds.
    fn grant(&self, ttl: Duration) -> impl Future<Output = Result<i64, MetaError>>;
    /// Renews a lease; `false` if it is over.
    fn renew(&self, lease: i64) -> impl Future<Output = Result<bool, MetaError>>;
    /// All keys as this router has last seen them.
    fn entries(&self) -> Arc<Entries>;
    /// Waits a little until [`MetaStore::entries`] contains this revision; whether it does.
    fn heard(&self, revision: i64) -> impl Future<Output = bool>;
    /// The state that this router uses.
    fn state(&self) -> Arc<ClusterState>;
    /// Takes a state into use unless it is older than the present one.
    fn take(&self, state: Arc<ClusterState>);
}
