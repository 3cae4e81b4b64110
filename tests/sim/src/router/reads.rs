//! Reads, by the product's plan and functions over simulated calls.

use std::sync::Arc;

use bytes::Bytes;
use kindred_engine::ops::{Contents, RangeQuery, RevisionFilter};
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::KindPrefix;
use kindred_proto::etcdserverpb as pb;
use kindred_router::execute::fan_out::read::{Reading, at_future, range_over};
use kindred_router::execute::fan_out::{PageSizes, Raised, Shards, Source};
use kindred_router::execute::order;
use kindred_router::execute::routed::{Routed, Waits, route};
use kindred_router::routing::shown::show;
use kindred_router_core::parsed::Parsed;
use kindred_router_core::plan::{Call, FanOut, Plan, plan};
use kindred_router_core::routes::Routes;
use kindred_router_core::store::StoreIx;
use kindred_shard::encode::{self, ServerIds};
use kindred_shard::etcd_status::{KvError, status};
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use kindred_wire::rope::Rope;
use prost::Message as _;
use tonic::{Code, Status};

use super::routes::Waiting;
use super::{Fail, Router};
use crate::messages::{CallError, Reply, Request};
use crate::sabotage::Sabotage;
use crate::world::{Micros, SECOND};

/// How long clients wait for a read.
const READ_LIMIT: Micros = 20 * SECOND;

/// Limits of pages. They are small, so that answers have many pages.
const PAGES: PageSizes = PageSizes { first_items: 3, bytes: 0, items: (3, 3) };
/// The ids in every shard's headers. Routers replace them.
pub const SHARD_IDS: ServerIds = ServerIds { cluster_id: 7, member_id: 7, raft_term: 7 };

/// What a client asks of a range.
#[derive(Debug, Clone)]
pub struct Ask {
    pub kind: usize,
    pub range: KeyRange,
    pub revision: Option<Revision>,
    /// At most this many keys; zero for all.
    pub limit: usize,
    /// From the last key down.
    pub descending: bool,
}

impl Ask {
    fn request(&self) -> Bytes {
        let (key, range_end) = self.range.to_wire();
        let request = pb::RangeRequest {
            key,
            range_end,
            limit: i64::try_from(self.limit).unwrap_or(i64::MAX),
            revision: self.revision.map_or(0, Revision::get),
            sort_order: if self.descending { pb::range_request::SortOrder::Descend.into() } else { 0 },
            ..pb::RangeRequest::default()
        };
        request.encode_to_vec().into()
    }
}

/// An ask for all keys of a range at a revision.
#[must_use]
pub fn query(range: KeyRange, revision: Option<Revision>, limit: usize) -> RangeQuery {
    RangeQuery {
        range,
        revision,
        limit,
        sort: None,
        contents: Contents::Whole,
        count_only: false,
        filter: RevisionFilter::default(),
    }
}

impl Router {
    /// Reads a range, wherever its keys are.
    ///
    /// # Errors
    /// As the client gets them.
    pub async fn range(&self, ask: &Ask) -> Result<pb::RangeResponse, Fail> {
        let waiting = Waiting::new(self, READ_LIMIT);
        let mut asked = Asked { router: self, ask, body: ask.request(), waiting };
        let answer = route(&mut asked).await.map_err(|status| failed(&status))?;
        Ok(pb::RangeResponse::decode(answer.into_bytes()).expect("an answer"))
    }
}

/// A range of a client, as `endpoint/kv.rs` has it.
struct Asked<'r> {
    router: &'r Router,
    ask: &'r Ask,
    body: Bytes,
    waiting: Waiting<'r>,
}

impl Waits for Asked<'_> {
    fn known(&self) -> Epoch {
        self.waiting.known()
    }

    async fn wait(&mut self, known: Epoch) -> Result<(), Status> {
        self.waiting.wait(known).await
    }
}

impl Routed for Asked<'_> {
    type Plan = Plan;
    type Answer = Rope;

    fn plan(&self) -> Result<(Plan, Epoch), Status> {
        let routes = self.router.routes();
        let plan = plan(&Parsed::new(Call::Range, &self.body), &*routes);
        Ok((plan.map_err(|_| Status::unavailable("no place"))?, routes.generation()))
    }

    async fn run(&self, plan: Plan, generation: Epoch) -> Result<Rope, Status> {
        let reads = Reads { router: self.router, generation, credulous: false };
        match plan {
            Plan::One { store, spread, .. } => {
                reads.range_of_one(store, &spread, self.ask, self.body.clone()).await
            }
            Plan::FanOut(fan_out) => range_over(&reads, &fan_out, self.body.clone()).await,
            Plan::Health => Err(Status::unavailable("nobody asks for it")),
        }
    }
}

/// The stores of a router for one read, which was planned by the map of this generation.
struct Reads<'r> {
    router: &'r Router,
    generation: Epoch,
    /// Whether every revision counts as one that some store has reached.
    credulous: bool,
}

impl Reads<'_> {
    async fn range_of_one(
        &self,
        store: StoreIx,
        spread: &[KindPrefix],
        ask: &Ask,
        body: Bytes,
    ) -> Result<Rope, Status> {
        let asked = body.clone();
        let min_revision = Reading::min_revision(self, spread);
        let checks = || Reads { credulous: self.router.is(Sabotage::NoFutureCheck), ..*self };
        let raise = async |kind, to| {
            let request = Request::Raise { ranges: vec![kind], to, generation: self.generation };
            self.router.call(store, request).await.map(drop).map_err(refused)
        };
        let ask_store = || Shards::range(self, store, body.clone(), min_revision, false);
        let answered = at_future(checks, spread, || ask.revision, ask_store, raise).await;
        let header = pb::RangeResponse::decode(answered.as_ref().map_or_else(|_| Bytes::new(), rope_bytes));
        if let Some(header) = header.ok().and_then(|answer| answer.header) {
            let now = |routes: &Routes| {
                plan(&Parsed::new(Call::Range, &asked), routes).map(Plan::into_spread).unwrap_or_default()
            };
            show(self.router, store, spread, Revision(header.revision), self.generation, now);
            order::keep(self.router, spread, store, Revision(header.revision)).await;
        }
        answered
    }
}

impl Shards for Reads<'_> {
    async fn range(
        &self,
        store: StoreIx,
        request: Bytes,
        min_revision: Revision,
        pin: bool,
    ) -> Result<Rope, Status> {
        let request = pb::RangeRequest::decode(request).expect("a router sends requests");
        let query = kindred_shard::convert::range(request).map_err(grpc::status)?;
        let min_revision = Revision::from_wire(min_revision.get());
        let request = Request::Read { query, min_revision, pin, generation: self.generation };
        match self.router.call(store, request).await.map_err(refused)? {
            Reply::Read(answer) => Ok(encode::range(&SHARD_IDS, &answer).into()),
            _ => Err(Status::internal("another answer")),
        }
    }

    async fn raise(&self, source: &Source, to: Revision, since: Option<Revision>) -> Result<Raised, Status> {
        if self.credulous {
            return Ok(Raised { current: Revision(i64::MAX), changed: false });
        }
        if self.router.is(Sabotage::NoSnapshot) && since.is_some() {
            return Ok(Raised { current: to, changed: false });
        }
        let since = since.unwrap_or(Revision::ZERO);
        let (ranges, generation) = (vec![source.range.clone()], self.generation);
        let request = Request::RaiseSince { ranges, to, since, generation };
        match self.router.call(source.store, request).await.map_err(refused)? {
            Reply::Raised { current, changed } => Ok(Raised { current, changed }),
            _ => Err(Status::internal("another answer")),
        }
    }

    fn cannot_follow(&self, store: StoreIx, to: Revision) -> Status {
        Status::unavailable(format!("store s{} cannot follow to {to}", store.0))
    }

    fn page_sizes(&self) -> PageSizes {
        PAGES
    }
}

impl Reading for Reads<'_> {
    fn routes(&self) -> Arc<Routes> {
        self.router.routes()
    }

    fn min_revision(&self, spread: &[KindPrefix]) -> Revision {
        self.router.at_least(spread)
    }

    async fn show(&self, read: &FanOut, revision: Revision) {
        self.router.shown.show(&read.spread, revision);
        order::keep_of_read(self.router, read, revision).await;
    }
}

fn rope_bytes(rope: &Rope) -> Bytes {
    rope.clone().into_bytes()
}

/// The gRPC status of a failed call.
pub(super) fn refused(error: CallError) -> Status {
    match error {
        CallError::Refused(error) => status(&KvError::Engine(error)),
        CallError::Lost => Status::unknown("it may have been executed"),
        CallError::Down | CallError::Other(_) => Status::unavailable(format!("{error:?}")),
    }
}

/// A client's view of a status.
pub(super) fn failed(status: &Status) -> Fail {
    match grpc::etcd_error(status) {
        Some(EtcdError::Compacted) => Fail::Compacted,
        Some(EtcdError::FutureRevision) => Fail::Future,
        Some(EtcdError::LeaseNotFound) => Fail::NoLease,
        _ if status.code() == Code::Unknown => Fail::Unknown,
        _ => {
            debug_assert_ne!(status.code(), Code::Internal, "{status}");
            Fail::Unavailable
        }
    }
}
