//! The stores of a real router behind [`UnitStores`].

use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kindred_partition_config::ids::{Epoch, LeaseId};
use kindred_proto::shard_v1 as pb;
use kindred_router_core::moves::step::{Answer, StepName};
use kindred_router_core::store::StoreIx;
use tokio::time::Instant;
use tonic::{Request, Status, Streaming};

use super::leg::Each;
use super::stores::UnitStores;
use super::{CALL_MAX, Failed, LegSteps};
use crate::execute::Deadline;
use crate::moves::mover::Mover;
use crate::stores::Store;

/// How long a stream of a copy, a tail or a comparison may be silent.
pub(super) const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Where times of steps begin.
static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Makes a call, or opens a stream, within [`CALL_MAX`].
pub(super) async fn bounded<'s, T, Fut>(
    store: &'s Store,
    call: impl FnOnce(&'s Store, Deadline) -> Fut,
) -> Result<T, Status>
where
    Fut: Future<Output = Result<tonic::Response<T>, Status>>,
{
    store.ready()?;
    let answer = tokio::time::timeout(CALL_MAX, call(store, Deadline::within(CALL_MAX))).await;
    match answer {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(store.unavailable("no answer in time")),
    }
}

/// The next message of a stream, within [`SILENCE_MAX`].
pub(super) async fn next<T>(store: &Store, stream: &mut Streaming<T>) -> Result<Option<T>, Status> {
    match tokio::time::timeout(SILENCE_MAX, stream.message()).await {
        Ok(message) => message,
        Err(_) => Err(store.unavailable("a stream of a move says nothing")),
    }
}

impl UnitStores for Arc<Mover> {
    type Copying = Streaming<pb::CopyResponse>;
    type Verifying = Streaming<pb::VerifyResponse>;

    fn knows(&self, store: StoreIx) -> bool {
        store.0 < self.stores.len()
    }

    fn name(&self, store: StoreIx) -> String {
        self.stores.get(store).name().to_owned()
    }

    fn is_removed(&self, store: StoreIx) -> bool {
        self.stores.get(store).is_removed()
    }

    fn is_shard(&self, store: StoreIx) -> bool {
        self.stores.get(store).is_shard()
    }

    fn clock_offset(&self, store: StoreIx) -> Option<i64> {
        self.stores.clocks().offset(store)
    }

    fn generation(&self) -> Epoch {
        self.routing.load().generation()
    }

    fn now(&self) -> Duration {
        BEGINNING.elapsed()
    }

    fn since_1970(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    async fn pause(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    async fn list(&self, store: StoreIx) -> Result<pb::UnitsListResponse, Status> {
        bounded(self.stores.get(store), |store, deadline| async move {
            store.units().list(deadline.request(pb::UnitsListRequest {})).await
        })
        .await
    }

    async fn together(
        &self,
        store: StoreIx,
        calls: pb::UnitCalls,
        in_bulk: bool,
    ) -> Result<pb::UnitAnswers, Status> {
        bounded(self.stores.get(store), |store, deadline| async move {
            match in_bulk {
                true => store.units_in_bulk().together(deadline.request(calls)).await,
                false => store.units().together(deadline.request(calls)).await,
            }
        })
        .await
    }

    async fn tails(&self, store: StoreIx, request: pb::TailsRequest) -> Result<pb::TailsResponse, Status> {
        bounded(self.stores.get(store), |store, deadline| async move {
            store.units_in_bulk().tails(deadline.request(request)).await
        })
        .await
    }

    async fn import(&self, store: StoreIx, request: pb::ImportRequest) -> Result<pb::ImportResponse, Status> {
        bounded(self.stores.get(store), |store, deadline| async move {
            store.units_in_bulk().import(deadline.request(request)).await
        })
        .await
    }

    async fn copy(&self, store: StoreIx, request: pb::CopyRequest) -> Result<Self::Copying, Status> {
        bounded(self.stores.get(store), |store, _| async move {
            store.units_in_bulk().copy(Request::new(request)).await
        })
        .await
    }

    async fn next_copied(
        &self,
        store: StoreIx,
        copying: &mut Self::Copying,
    ) -> Result<Option<pb::CopyResponse>, Status> {
        next(self.stores.get(store), copying).await
    }

    async fn verify(&self, store: StoreIx, request: pb::VerifyRequest) -> Result<Self::Verifying, Status> {
        bounded(self.stores.get(store), |store, _| async move {
            store.units_in_bulk().verify(Request::new(request)).await
        })
        .await
    }

    async fn next_digest(
        &self,
        store: StoreIx,
        verifying: &mut Self::Verifying,
    ) -> Result<Option<pb::VerifyResponse>, Status> {
        next(self.stores.get(store), verifying).await
    }

    async fn attach_all(&self, leases: &[LeaseId], store: StoreIx) -> Result<(), Status> {
        self.leases.attach_all(leases, self.stores.get(store), Deadline::within(CALL_MAX)).await
    }

    async fn attach_again(&self, leases: &[LeaseId], store: StoreIx) -> Result<bool, Status> {
        self.leases.attach_again(leases, self.stores.get(store), Deadline::within(CALL_MAX)).await
    }

    fn copied(&self, bytes: u64, took: Duration) {
        self.copy_speed.made(bytes, took);
    }

    async fn at_etcd(steps: &LegSteps<Self>, name: StepName) -> Option<Result<Each<Answer>, Failed>> {
        steps.run_at_etcd(name).await
    }
}
