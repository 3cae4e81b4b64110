//! Requests on one store, as `router/src/execute/one.rs` and `endpoint/kv.rs`; deletes over several, as
//! `fan_out/delete.rs`.

use kindred_engine::ops::{Delete, Op, OpAnswer, RangeAnswer};
use kindred_partition_config::ids::{LeaseId, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_router_core::plan::Placement;
use kindred_router_core::store::StoreIx;

use super::range::{Ask, sources};
use super::snapshot::query;
use super::{Fail, Router};
use crate::messages::{CallError, Reply, Request};
use crate::sabotage::Sabotage;
use kindred_engine::error::EngineError;
use kindred_engine::ops::{Sort, SortTarget};

impl Router {
    /// A read on one store, followed by it to what another router may have shown (R4).
    pub(super) async fn range_of_one(&self, store: StoreIx, ask: &Ask) -> Result<RangeAnswer, Fail> {
        let sort = Sort { target: SortTarget::Key, descending: true, late: false };
        let mut query = query(ask.range.clone(), ask.revision, ask.limit);
        query.sort = ask.descending.then_some(sort);
        let min_revision = Revision::from_wire(self.min_revision(ask.kind).get());
        let request = Request::Read { query, min_revision, pin: false };
        let mut answered = self.call(store, request.clone()).await;
        if let (Err(CallError::Refused(EngineError::Future { .. })), Some(wanted)) = (&answered, ask.revision)
        {
            let spread = !self.spread(ask.kind).is_empty();
            let follow =
                self.is(Sabotage::NoFutureCheck) || (spread && self.current_over(ask.kind).await? >= wanted);
            if follow {
                let ranges = vec![self.topology.kind_range(ask.kind)];
                self.call(store, Request::Raise { ranges, to: wanted }).await?;
                answered = self.call(store, request).await;
            }
        }
        match answered? {
            Reply::Read(answer) => {
                self.show(ask.kind, answer.header);
                Ok(answer)
            }
            _ => Err(Fail::Unavailable),
        }
    }

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
            None => self.call(store, request).await,
            Some(lease) => {
                if !self.net.is_up(self.at, store) {
                    return Err(Fail::Unavailable);
                }
                self.attach_all(lease, store).await?;
                match self.call(store, request.clone()).await {
                    Err(CallError::Refused(EngineError::LeaseNotFound(id))) => {
                        if !self.attach_again(lease, store).await? {
                            return Err(CallError::Refused(EngineError::LeaseNotFound(id)).into());
                        }
                        self.call(store, request).await
                    }
                    answered => answered,
                }
            }
        };
        let Reply::Applied(answer) = answered? else { return Err(Fail::Unknown) };
        self.show(kind, header(&answer));
        Ok(answer)
    }

    /// A delete of a range: one atomic part for each store, in key order.
    ///
    /// # Errors
    /// Of the first part that failed.
    pub async fn delete_over(&self, kind: usize, range: &KeyRange) -> Result<(Revision, u64), Fail> {
        let (sources, _) = sources(&self.topology.routes.parts_of(range));
        if sources.iter().any(|source| !self.net.is_up(self.at, source.store)) {
            return Err(Fail::Unavailable);
        }
        let (mut revision, mut deleted) = (Revision::ZERO, 0);
        for source in sources {
            let min_revision = Revision::from_wire(self.min_revision(kind).max(revision).get());
            let op = Op::Delete(Delete { range: source.range, buckets: None, prev_kv: false });
            let answered = self.call(source.store, Request::Apply { op, min_revision }).await;
            match answered {
                Ok(Reply::Applied(OpAnswer::Delete { header, deleted: count, .. })) => {
                    revision = revision.max(header);
                    deleted += count;
                }
                // What was done stays done.
                Err(_) if deleted > 0 => return Err(Fail::Unknown),
                Err(error) => return Err(error.into()),
                Ok(_) => return Err(Fail::Unknown),
            }
        }
        self.show(kind, revision);
        Ok((revision, deleted))
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
