//! Writes on one store, as `router/src/endpoint/kv.rs` makes them; deletes over several: the product's.

use std::cell::Cell;
use std::collections::VecDeque;

use bytes::Bytes;
use kindred_engine::ops::{Delete, Op, OpAnswer};
use kindred_partition_config::ids::{Epoch, LeaseId, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::unit::{Unit, UnitBuckets};
use kindred_proto::etcdserverpb as pb;
use kindred_router::execute::fan_out::delete::{Deleting, delete_over};
use kindred_router::leases::attach::with_leases;
use kindred_router_core::parts::Piece;
use kindred_router_core::plan::Placement as _;
use kindred_router_core::store::StoreIx;
use kindred_shard::encode;
use kindred_transport::grpc;
use prost::Message as _;
use tonic::Status;

use super::reads::{SHARD_IDS, failed, refused};
use super::{Fail, Router};
use crate::messages::{Reply, Request};

impl Router {
    /// A write of one key, or a txn on one.
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
        let store = self.topology.routes.store_of(key);
        let min_revision = Revision::from_wire(self.min_revision(kind).get());
        let request = Request::Apply { op, min_revision };
        let answered = match lease {
            None => self.call(store, request).await.map_err(Fail::from),
            Some(_) if !self.net.is_up(self.at, store) => return Err(Fail::Unavailable),
            Some(lease) => {
                let send = || async { self.call(store, request.clone()).await.map_err(refused) };
                with_leases(self, &[lease], store, send).await.map_err(|status| failed(&status))
            }
        };
        let Reply::Applied(answer) = answered? else { return Err(Fail::Unknown) };
        self.show(kind, header(&answer));
        Ok(answer)
    }

    /// A delete of a range: one atomic part for each store, in key order.
    ///
    /// # Errors
    /// Of the first part that failed; what was done before stays done.
    pub async fn delete_over(&self, kind: usize, range: &KeyRange) -> Result<(Revision, u64), Fail> {
        let (key, range_end) = range.to_wire();
        let request = pb::DeleteRangeRequest { key, range_end, prev_kv: false };
        let mut calls = Calls { router: self, kind, executed: Cell::new(false) };
        let answer = delete_over(&mut calls, request.encode_to_vec().into()).await;
        let answer = answer.map_err(|status| match calls.executed.get() {
            true => Fail::Unknown,
            false => failed(&status),
        })?;
        let answer = pb::DeleteRangeResponse::decode(answer).expect("an answer");
        let revision = Revision(answer.header.map_or(0, |header| header.revision));
        Ok((revision, u64::try_from(answer.deleted).expect("not negative")))
    }
}

/// The stores of a router, for one delete.
struct Calls<'a> {
    router: &'a Router,
    kind: usize,
    /// Some part has deleted something.
    executed: Cell<bool>,
}

impl Deleting for Calls<'_> {
    fn left_of(&self, range: &KeyRange, done: &[Unit]) -> (VecDeque<Piece>, Epoch) {
        (self.router.topology.routes.pieces_left(range, done).into(), Epoch::NONE)
    }

    fn ready(&self, store: StoreIx) -> Result<(), Status> {
        let up = self.router.net.is_up(self.router.at, store);
        if up { Ok(()) } else { Err(Status::unavailable(self.name(store))) }
    }

    fn name(&self, store: StoreIx) -> String {
        format!("s{}", store.0)
    }

    fn min_revision(&self) -> Revision {
        self.router.min_revision(self.kind)
    }

    async fn delete(
        &self,
        store: StoreIx,
        request: Bytes,
        buckets: Option<&UnitBuckets>,
        min_revision: Revision,
        _: Epoch,
    ) -> Result<Bytes, Status> {
        let request = pb::DeleteRangeRequest::decode(request).expect("a router sends requests");
        let delete = kindred_shard::convert::delete(request).map_err(grpc::status)?;
        let op = Op::Delete(Delete { buckets: buckets.cloned(), ..delete });
        let min_revision = Revision::from_wire(min_revision.get());
        let request = Request::Apply { op, min_revision };
        match self.router.call(store, request).await.map_err(refused)? {
            Reply::Applied(answer) => {
                self.executed
                    .set(self.executed.get() || matches!(answer, OpAnswer::Delete { deleted: 1.., .. }));
                Ok(encode::answer(&SHARD_IDS, &answer))
            }
            _ => Err(Status::internal("another answer")),
        }
    }

    async fn wait(&mut self, _: Epoch) -> Result<(), Status> {
        Err(Status::unavailable("no key moves"))
    }

    fn show(&self, revision: Revision) {
        self.router.show(self.kind, revision);
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
