//! What the steps of a move use of a router and its stores: [`live`](super::live) has the real ones, a simulation has
//! its own.

use std::time::Duration;

use kindred_partition_config::ids::{Epoch, LeaseId};
use kindred_proto::shard_v1 as pb;
use kindred_router_core::moves::step::{Answer, StepName};
use kindred_router_core::store::StoreIx;
use tonic::Status;

use super::leg::Each;
use super::{Failed, LegSteps};

/// The stores of a router, for moves. Every call ends in bounded time.
pub trait UnitStores: Clone {
    /// A copy that a store is sending.
    type Copying;
    /// Digests that a store is sending.
    type Verifying;

    /// Whether this router has the store, which a record or a state may name before.
    fn knows(&self, store: StoreIx) -> bool;
    /// The store's name, for people.
    fn name(&self, store: StoreIx) -> String;
    /// Whether the store was removed, or was lost and replaced.
    fn is_removed(&self, store: StoreIx) -> bool;
    /// Whether the store is a shard, not a stock etcd.
    fn is_shard(&self, store: StoreIx) -> bool;
    /// How far the store's clock is ahead of this router's, microseconds.
    fn clock_offset(&self, store: StoreIx) -> Option<i64>;
    /// The generation of the newest map.
    fn generation(&self) -> Epoch;
    /// The time since some beginning.
    fn now(&self) -> Duration;
    /// The wall clock.
    fn since_1970(&self) -> Duration;
    /// Waits.
    fn pause(&self, time: Duration) -> impl Future<Output = ()>;

    /// All units of a store.
    fn list(&self, store: StoreIx) -> impl Future<Output = Result<pb::UnitsListResponse, Status>>;
    /// Several calls about units, over the connection for bulk data if they carry some.
    fn together(
        &self,
        store: StoreIx,
        calls: pb::UnitCalls,
        in_bulk: bool,
    ) -> impl Future<Output = Result<pb::UnitAnswers, Status>>;
    /// The news of several units.
    fn tails(
        &self,
        store: StoreIx,
        request: pb::TailsRequest,
    ) -> impl Future<Output = Result<pb::TailsResponse, Status>>;
    /// Imports into a unit.
    fn import(
        &self,
        store: StoreIx,
        request: pb::ImportRequest,
    ) -> impl Future<Output = Result<pb::ImportResponse, Status>>;
    /// Begins a copy.
    fn copy(
        &self,
        store: StoreIx,
        request: pb::CopyRequest,
    ) -> impl Future<Output = Result<Self::Copying, Status>>;
    /// The next part of a copy; `None` at its end.
    fn next_copied(
        &self,
        store: StoreIx,
        copying: &mut Self::Copying,
    ) -> impl Future<Output = Result<Option<pb::CopyResponse>, Status>>;
    /// Asks for the digests of a unit.
    fn verify(
        &self,
        store: StoreIx,
        request: pb::VerifyRequest,
    ) -> impl Future<Output = Result<Self::Verifying, Status>>;
    /// The next digest; `None` at the end.
    fn next_digest(
        &self,
        store: StoreIx,
        verifying: &mut Self::Verifying,
    ) -> impl Future<Output = Result<Option<pb::VerifyResponse>, Status>>;
    /// Attaches these leases to the store (R12).
    fn attach_all(&self, leases: &[LeaseId], store: StoreIx) -> impl Future<Output = Result<(), Status>>;
    /// Attaches leases that the store does not know. Returns whether it knows one now.
    fn attach_again(&self, leases: &[LeaseId], store: StoreIx) -> impl Future<Output = Result<bool, Status>>;
    /// Notes that a copy of so many bytes took so long.
    fn copied(&self, bytes: u64, took: Duration);

    /// Runs a step for units of which a stock etcd is owner or follower. `None` for steps that are a shard's alone.
    fn at_etcd(
        steps: &LegSteps<Self>,
        name: StepName,
    ) -> impl Future<Output = Option<Result<Each<Answer>, Failed>>>;
}
