//! Writes on one store as `router/src/endpoint/kv.rs` makes them, and deletes over several stores by the product's
//! functions.

use std::cell::Cell;
use std::collections::VecDeque;

use bytes::Bytes;
use kindred_engine::ops::{Delete, Op, OpAnswer};
use kindred_partition_config::ids::{Epoch, LeaseId, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::KindPrefix;
use kindred_partition_config::unit::{Unit, UnitBuckets};
use kindred_proto::etcdserverpb as pb;
use kindred_router::execute::fan_out::delete::{Deleting, delete_over};
use kindred_router::execute::order;
use kindred_router::execute::routed::{Routed, Waits, route};
use kindred_router::leases::attach::with_leases;
use kindred_router::routing::shown::show;
use kindred_router_core::parts::Piece;
use kindred_router_core::plan::Placement as _;
use kindred_router_core::routes::Routes;
use kindred_router_core::store::StoreIx;
use kindred_shard::encode;
use kindred_transport::grpc;
use prost::Message as _;
use tonic::Status;

use super::reads::{SHARD_IDS, failed, refused};
use super::routes::Waiting;
use super::{Fail, Router};
use crate::messages::{Reply, Request};
use crate::world::{Micros, SECOND};

/// How long clients wait for a write.
const WRITE_LIMIT: Micros = 10 * SECOND;

impl Router {
    /// Makes a write or a txn of one key.
    ///
    /// # Errors
    /// As the client gets them.
    pub async fn write(
        &self,
        kind: usize,
        key: &[u8],
        op: Op,
        lease: Option<LeaseId>,
    ) -> Result<OpAnswer, Fail> {
        let _ = kind;
        let waiting = Waiting::new(self, WRITE_LIMIT);
        let mut write = Writing { router: self, key, op, lease, waiting };
        route(&mut write).await.map_err(|status| failed(&status))
    }

    /// Deletes a range: one atomic part for each store, in key order.
    ///
    /// # Errors
    /// The error of the first part that failed. Earlier parts stay deleted.
    pub async fn delete_over(&self, kind: usize, range: &KeyRange) -> Result<(Revision, u64), Fail> {
        let (key, range_end) = range.to_wire();
        let request = pb::DeleteRangeRequest { key, range_end, prev_kv: false };
        let body = request.encode_to_vec().into();
        let waiting = Waiting::new(self, WRITE_LIMIT);
        let mut deleting = Range { router: self, kind, body, executed: Cell::new(false), waiting };
        let answer = route(&mut deleting).await;
        let answer = answer.map_err(|status| match deleting.executed.get() {
            true => Fail::Unknown,
            false => failed(&status),
        })?;
        let answer = pb::DeleteRangeResponse::decode(answer).expect("an answer");
        let revision = Revision(answer.header.map_or(0, |header| header.revision));
        Ok((revision, u64::try_from(answer.deleted).expect("not negative")))
    }
}

/// A write of one key, as `endpoint/kv.rs` has it.
struct Writing<'r> {
    router: &'r Router,
    key: &'r [u8],
    op: Op,
    lease: Option<LeaseId>,
    waiting: Waiting<'r>,
}

impl Waits for Writing<'_> {
    fn known(&self) -> Epoch {
        self.waiting.known()
    }

    async fn wait(&mut self, known: Epoch) -> Result<(), Status> {
        self.waiting.wait(known).await
    }
}

impl Routed for Writing<'_> {
    type Plan = (StoreIx, Vec<KindPrefix>);
    type Answer = OpAnswer;

    fn plan(&self) -> Result<(Self::Plan, Epoch), Status> {
        let routes = self.router.routes();
        let spread = routes.spread_of(self.key).into_iter().collect();
        Ok(((routes.store_of(self.key), spread), routes.generation()))
    }

    async fn run(&self, (store, spread): Self::Plan, generation: Epoch) -> Result<OpAnswer, Status> {
        let router = self.router;
        let min_revision = Revision::from_wire(router.at_least(&spread).get());
        // A put has one key, so its shard knows whether it owns it.
        let by = if matches!(self.op, Op::Put(_)) { Epoch::NONE } else { generation };
        let request = Request::Apply { op: self.op.clone(), min_revision, generation: by };
        let send = || async { router.call(store, request.clone()).await.map_err(refused) };
        let reply = match self.lease {
            None => send().await?,
            Some(_) if !router.net.is_up(router.at, store) => return Err(Status::unavailable("down")),
            Some(lease) => with_leases(router, &[lease], store, send).await?,
        };
        let Reply::Applied(answer) = reply else { return Err(Status::unknown("another answer")) };
        let now = |routes: &Routes| routes.spread_of(self.key).into_iter().collect();
        show(router, store, &spread, header(&answer), generation, now);
        order::keep(router, &spread, store, header(&answer)).await;
        Ok(answer)
    }
}

/// A delete of a range.
struct Range<'r> {
    router: &'r Router,
    kind: usize,
    body: Bytes,
    /// Whether some part has deleted something.
    executed: Cell<bool>,
    waiting: Waiting<'r>,
}

impl Waits for Range<'_> {
    fn known(&self) -> Epoch {
        self.waiting.known()
    }

    async fn wait(&mut self, known: Epoch) -> Result<(), Status> {
        self.waiting.wait(known).await
    }
}

impl Routed for Range<'_> {
    type Plan = ();
    type Answer = Bytes;

    fn plan(&self) -> Result<((), Epoch), Status> {
        Ok(((), self.router.generation()))
    }

    async fn run(&self, (): (), _: Epoch) -> Result<Bytes, Status> {
        let waiting = Waiting::new(self.router, WRITE_LIMIT);
        let spread = self.router.spread(self.kind);
        let mut calls = Calls { router: self.router, spread, executed: &self.executed, waiting };
        delete_over(&mut calls, self.body.clone()).await
    }
}

/// The stores of a router, for one delete.
struct Calls<'a> {
    router: &'a Router,
    spread: Vec<KindPrefix>,
    executed: &'a Cell<bool>,
    waiting: Waiting<'a>,
}

impl Deleting for Calls<'_> {
    fn left_of(&self, range: &KeyRange, done: &[Unit]) -> (VecDeque<Piece>, Epoch) {
        let routes = self.router.routes();
        (routes.pieces_left(range, done).into(), routes.generation())
    }

    fn ready(&self, store: StoreIx) -> Result<(), Status> {
        let up = self.router.net.is_up(self.router.at, store);
        if up { Ok(()) } else { Err(Status::unavailable(self.name(store))) }
    }

    fn name(&self, store: StoreIx) -> String {
        format!("s{}", store.0)
    }

    fn min_revision(&self) -> Revision {
        self.router.at_least(&self.spread)
    }

    async fn delete(
        &self,
        store: StoreIx,
        request: Bytes,
        buckets: Option<&UnitBuckets>,
        min_revision: Revision,
        generation: Epoch,
    ) -> Result<Bytes, Status> {
        let request = pb::DeleteRangeRequest::decode(request).expect("a router sends requests");
        let delete = kindred_shard::convert::delete(request).map_err(grpc::status)?;
        let op = Op::Delete(Delete { buckets: buckets.cloned(), ..delete });
        let min_revision = Revision::from_wire(min_revision.get());
        let request = Request::Apply { op, min_revision, generation };
        match self.router.call(store, request).await.map_err(refused)? {
            Reply::Applied(answer) => {
                self.executed
                    .set(self.executed.get() || matches!(answer, OpAnswer::Delete { deleted: 1.., .. }));
                Ok(encode::answer(&SHARD_IDS, &answer))
            }
            _ => Err(Status::internal("another answer")),
        }
    }

    async fn wait(&mut self, generation: Epoch) -> Result<(), Status> {
        self.waiting.wait(generation).await
    }

    async fn show(&self, own: StoreIx, revision: Revision) {
        self.router.shown.show(&self.spread, revision);
        order::keep(self.router, &self.spread, own, revision).await;
    }
}

/// The revision in an answer's header.
#[must_use]
pub fn header(answer: &OpAnswer) -> Revision {
    match answer {
        OpAnswer::Range(answer) => answer.header,
        OpAnswer::Put { header, .. } | OpAnswer::Delete { header, .. } => *header,
        OpAnswer::Txn(answer) => answer.header,
    }
}
