//! Writes on one store, as `endpoint/kv.rs`; deletes over several, as `execute/fan_out/delete.rs`.

use kindred_engine::ops::{Delete, Op, OpAnswer};
use kindred_partition_config::ids::{LeaseId, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_router::leases::attach::{attach_again, attach_all};
use kindred_router_core::parts::Part;
use kindred_router_core::plan::Placement;
use kindred_router_core::store::StoreIx;

use super::reads::failed;
use super::{Fail, Router};
use crate::messages::{CallError, Reply, Request};
use kindred_engine::error::EngineError;

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
            None => self.call(store, request).await,
            Some(lease) => {
                if !self.net.is_up(self.at, store) {
                    return Err(Fail::Unavailable);
                }
                let leases = [lease];
                attach_all(self, &leases, store).await.map_err(|status| failed(&status))?;
                match self.call(store, request.clone()).await {
                    Err(CallError::Refused(EngineError::LeaseNotFound(id))) => {
                        let again = attach_again(self, &leases, store).await;
                        if !again.map_err(|status| failed(&status))? {
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
        let parts = self.topology.routes.parts_of(range);
        let of_part = |part: Part| part.stores.into_iter().map(move |store| (store, part.range.clone()));
        let sources: Vec<(StoreIx, KeyRange)> = parts.into_iter().flat_map(of_part).collect();
        if sources.iter().any(|(store, _)| !self.net.is_up(self.at, *store)) {
            return Err(Fail::Unavailable);
        }
        let (mut revision, mut deleted) = (Revision::ZERO, 0);
        for (store, range) in sources {
            let min_revision = Revision::from_wire(self.min_revision(kind).max(revision).get());
            let op = Op::Delete(Delete { range, buckets: None, prev_kv: false });
            let answered = self.call(store, Request::Apply { op, min_revision }).await;
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
