//! `v3lockpb.Lock`, as `server/etcdserver/api/v3lock/lock.go` and `client/v3/concurrency/mutex.go`.

use bytes::Bytes;
use kindred_proto::etcdserverpb::RangeRequest;
use kindred_proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse, lock_server};
use kindred_transport::server::Services;
use tonic::{Request, Response, Status};

use crate::store::{Entry, Store};

/// Locks.
#[derive(Debug, Clone)]
pub struct Lock<S> {
    store: Store<S>,
}

impl<S> Lock<S> {
    #[must_use]
    pub fn new(store: Store<S>) -> Self {
        Self { store }
    }
}

/// Deletes the key of a caller that gives up before it has what it waits for.
pub(crate) struct Leaves<S: Services> {
    store: Store<S>,
    entry: Option<Entry>,
}

impl<S: Services> Leaves<S> {
    pub fn unless_done(store: &Store<S>, entry: &Entry) -> Self {
        Self { store: store.clone(), entry: Some(entry.clone()) }
    }

    pub fn done(mut self) {
        self.entry = None;
    }
}

impl<S: Services> Drop for Leaves<S> {
    fn drop(&mut self) {
        let Some(Entry { key, created, .. }) = self.entry.take() else { return };
        let store = self.store.clone();
        // If it fails, the lease ends the key. A later caller with the same lease may have made it anew.
        tokio::spawn(async move { store.leave(key, created).await });
    }
}

#[tonic::async_trait]
impl<S: Services> lock_server::Lock for Lock<S> {
    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        let store = self.store.for_caller(&request);
        let LockRequest { name, lease } = request.into_inner();
        let lease = store.lease(lease).await?;
        let (entry, _) = store.enter(&name, lease, Bytes::new()).await?;
        let leaves = Leaves::unless_done(&store, &entry);
        store.wait_for_older(&name, &entry).await?;
        let own = RangeRequest { key: entry.key.clone(), ..RangeRequest::default() };
        let found = store.range(own).await?;
        leaves.done();
        if found.kvs.first().is_none_or(|kv| kv.create_revision != entry.created) {
            return Err(Status::unknown("mutex: session is expired"));
        }
        Ok(Response::new(LockResponse { header: found.header, key: entry.key }))
    }

    async fn unlock(&self, request: Request<UnlockRequest>) -> Result<Response<UnlockResponse>, Status> {
        let store = self.store.for_caller(&request);
        let header = store.delete(request.into_inner().key).await?;
        Ok(Response::new(UnlockResponse { header }))
    }
}
