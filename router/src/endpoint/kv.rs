//! `etcdserverpb.KV` on raw bytes: plan, call, patch the header.

use std::pin::Pin;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use kindred_partition_config::ids::{Epoch, LeaseId, Revision};
use kindred_partition_config::kind::KindPrefix;
use kindred_proto::check;
use kindred_proto::etcdserverpb as pb;
use kindred_proto::nested::{self, NotATxn};
use kindred_proto::raw::kv::k_v_server::KV;
use kindred_router_core::auth::request::{self, Denied};
use kindred_router_core::header_ids::append;
use kindred_router_core::parsed::Parsed;
use kindred_router_core::plan::{Call, Plan, plan};
use kindred_router_core::routes::Routes;
use kindred_router_core::small::is_small;
use kindred_transport::ConnectionInfo;
use kindred_transport::metrics::calls::{self, Calls};
use kindred_transport::unary::UnaryCalls;
use kindred_transport::unary::long::Message;
use kindred_transport::unread::LongRead;
use kindred_transport::{ending, grpc};
use kindred_wire::answer;
use kindred_wire::error::EtcdError;
use kindred_wire::patch::RangePatch;
use kindred_wire::refusal::KindredError;
use kindred_wire::rope::Rope;
use prost::{DecodeError, Message as _};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::admission::{Admission, Holding, Permit};
use crate::auth::{Credentials, Entered, Gate};
use crate::execute::compact::Compactor;
use crate::execute::fan_out::delete::delete_at;
use crate::execute::fan_out::live::ReadPath;
use crate::execute::fan_out::shared::{self, SharedReads};
use crate::execute::one::{Opened, To};
use crate::execute::routed::{Routed, Waits, route};
use crate::execute::{Deadline, Effect, order, refused};
use crate::identity::{self, Identity};
use crate::leases::LeaseRouter;
use crate::routing::Routing;
use crate::spans;
use crate::stores::{Store, Stores};
use crate::traffic::clients::OpenConnection;
use crate::traffic::{self, Counting, Traffic};
use crate::waiting::Waiting;

/// How long one store has to answer the health probe; kube-apiserver gives up after 2 s.
const HEALTH_LIMIT: Duration = Duration::from_millis(600);

/// What a message may have beyond the largest request, as in etcd.
const REQUEST_SLACK: usize = 512 << 10;

/// etcd's default limit of operations in a transaction; checked here only for transactions that are refused anyway.
const TXN_OPS_MAX: usize = 128;

#[derive(Debug, Clone)]
pub struct Kv {
    with: Arc<Parts>,
    max_request_bytes: usize,
    /// Whom this serves; `None` for the router itself.
    gate: Option<Arc<Gate>>,
    /// Of the certificate of the connection that this serves.
    common_name: Option<Arc<str>>,
    /// The client of the connection that this serves; `None` where it serves several.
    client: Option<Arc<OpenConnection>>,
}

/// What calls of KV use of a router. A call shares it by one count.
#[derive(Debug)]
pub struct Parts {
    pub routing: Arc<Routing>,
    pub stores: Stores,
    pub reads: Arc<ReadPath>,
    pub shared_reads: Arc<SharedReads>,
    pub leases: Arc<LeaseRouter>,
    pub compactor: Arc<Compactor>,
    pub identity: Arc<Identity>,
    pub traffic: Arc<Traffic>,
    pub admission: Arc<Admission>,
}

impl Kv {
    #[must_use]
    pub fn new(with: Parts, max_request_bytes: usize, gate: Arc<Gate>) -> Self {
        Self { with: Arc::new(with), max_request_bytes, gate: Some(gate), common_name: None, client: None }
    }

    /// The same for the router's own calls, which nobody checks.
    #[must_use]
    pub fn for_router(&self) -> Self {
        Self { gate: None, common_name: None, client: None, ..self.clone() }
    }

    /// Checks that the client may make a request. `None` while clients need not say who they are.
    async fn permitted(&self, method: Call, asking: &Request<Bytes>) -> Result<Option<Permitted>, Status> {
        let Some(gate) = &self.gate else { return Ok(None) };
        let credentials = || Credentials::of(asking).or_of_connection(self.common_name.as_ref());
        let body = asking.get_ref();
        let entered = match gate.enter(credentials).await {
            Ok(Some(entered)) => entered,
            Ok(None) => return Ok(None),
            Err(status) => {
                refuse_invalid(method, body)?;
                return Err(status);
            }
        };
        let asked = match request::check(&entered.rules, entered.caller.as_ref(), method, body) {
            Ok(asked) => asked,
            Err(Denied::Malformed(error)) => {
                return Err(grpc::refusal(&KindredError::Malformed { reason: error.to_string() }));
            }
            Err(Denied::Etcd(error)) => {
                refuse_invalid(method, body)?;
                return Err(grpc::status(error));
            }
        };
        let deadline = Deadline::of(asking.metadata(), Effect::Read);
        for lease in &asked.leases {
            self.with.leases.may_write(&entered, *lease, deadline).await?;
        }
        Ok(Some(Permitted { gate: gate.clone(), entered, reads: !asked.writes }))
    }

    async fn unary(&self, method: Call, request: Request<Bytes>) -> Result<Rope, Status> {
        let body = request.get_ref().clone();
        let parsed = Parsed::new(method, &body);
        let mut counting = self.counting(&parsed, &request);
        let spans = &self.with.traffic.spans;
        let result = match counting.span.as_ref().zip(spans.get()) {
            None => self.checked(&parsed, &counting, request).await,
            Some((span, spans)) => {
                Box::pin(spans::within(spans, span, self.checked(&parsed, &counting, request))).await
            }
        };
        counting.answered(result.as_ref().map(|answered| &answered.answer));
        result.map(|Answered { answer, shown }| self.with.identity.patched(answer, shown))
    }

    /// Carries out a request that the client may make.
    async fn checked(
        &self,
        parsed: &Parsed<'_>,
        counting: &Counting,
        request: Request<Bytes>,
    ) -> Result<Answered, Status> {
        let permitted = self.permitted(parsed.call, &request).await?;
        let _place = self.place(counting, request.metadata()).await?;
        let answer = self.route(parsed, request).await?;
        match permitted {
            Some(Permitted { gate, entered, reads: true }) => gate.is_as_it_was(&entered).map(|()| answer),
            _ => Ok(answer),
        }
    }

    /// Refuses a call beyond its Kind's limits; waits until a long list may be read, and returns its place.
    async fn place(&self, counting: &Counting, metadata: &MetadataMap) -> Result<Option<Permit>, Status> {
        self.with.admission.check(&counting.kind, counting.verb, counting.client())?;
        let Some(list) = counting.list else { return Ok(None) };
        let deadline = Deadline::of(metadata, Effect::Read).at();
        self.with.admission.enter(&counting.kind, list, counting.client(), deadline).await
    }

    /// Notes that a call has begun.
    fn counting(&self, parsed: &Parsed<'_>, request: &Request<Bytes>) -> Counting {
        let clients = &self.with.traffic.clients;
        let client = self.client.clone().unwrap_or_else(|| clients.of_call(request.extensions()));
        let mut counting =
            self.with.traffic.begin(parsed, request.get_ref(), &self.with.routing.load(), &client);
        counting.span = self.with.traffic.spans.get().and_then(|spans| spans.begin(request.metadata()));
        counting
    }

    /// For tonic, which takes an answer in one piece.
    async fn whole(&self, method: Call, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.unary(method, request).await.map(|answer| Response::new(answer.into_bytes()))
    }

    async fn route(&self, parsed: &Parsed<'_>, request: Request<Bytes>) -> Result<Answered, Status> {
        let effect = if parsed.call == Call::Range { Effect::Read } else { Effect::Write };
        let deadline = Deadline::of(request.metadata(), effect);
        let body = self.sized(request)?;
        let waiting = Waiting::new(&self.with.routing, effect, deadline.at());
        route(&mut Asked { kv: self, parsed, body, deadline, waiting }).await
    }

    /// Carries out a plan that was made by the map of this generation.
    async fn run(
        &self,
        parsed: &Parsed<'_>,
        plan: Plan,
        generation: Epoch,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Answered, Status> {
        let (method, small) = (parsed.call, is_small(parsed));
        let effect = if method == Call::Range { Effect::Read } else { Effect::Write };
        match plan {
            Plan::Health => self.health(body, small).await.map(Answered::from),
            Plan::FanOut(fan_out) if method == Call::Range && body.len() <= shared::BYTES_MAX && small => {
                self.with
                    .shared_reads
                    .range_over(fan_out, generation, body, deadline)
                    .await
                    .map(Answered::from)
            }
            Plan::FanOut(fan_out) if method == Call::Range => {
                self.with.reads.range_over(&fan_out, generation, body, deadline).await.map(Answered::from)
            }
            Plan::FanOut(fan_out) => {
                delete_at((&self.with.stores, &self.with.routing), &fan_out.spread, body, deadline)
                    .await
                    .map(|answer| Rope::from(answer).into())
            }
            Plan::One { store, leases, spread } => {
                let store = self.with.stores.get(store);
                let min_revision = self.with.routing.min_revision(&spread);
                let to = To { store, min_revision, generation, small };
                let answer = match leases.as_slice() {
                    [] if method == Call::Range => {
                        self.with.reads.range_of_one(to, &spread, body, deadline).await
                    }
                    [] => to.send(method, effect, body, deadline).await,
                    leases => self.send_leased(to, method, body, leases, deadline).await,
                }?;
                let shown = identity::shown_by(&answer);
                let now = |routes: &Routes| spread_by(parsed, routes);
                self.with.routing.show_of_store(to.store, &spread, shown, generation, now);
                order::keep(&*self.with.routing, &spread, to.store.index, shown).await;
                Ok(Answered { answer, shown: Some(shown) })
            }
        }
    }

    /// Checks etcd's limit of a request; the decoder allows more, for the rest of the message.
    fn sized(&self, request: Request<Bytes>) -> Result<Bytes, Status> {
        let body = request.into_inner();
        if body.len() > self.max_request_bytes {
            return Err(grpc::status(EtcdError::RequestTooLarge));
        }
        Ok(body)
    }

    /// Sends a write that carries leases, which the store must know first.
    async fn send_leased(
        &self,
        to: To<'_>,
        method: Call,
        body: Bytes,
        leases: &[LeaseId],
        deadline: Deadline,
    ) -> Result<Rope, Status> {
        let store = to.store;
        store.ready()?;
        let send = || to.send(method, Effect::Write, body.clone(), deadline);
        self.with.leases.with_leases(leases, store, deadline, send).await
    }

    async fn open_range_stream(
        &self,
        parsed: &Parsed<'_>,
        request: Request<Bytes>,
    ) -> Result<Chunks, Status> {
        let deadline = Deadline::of(request.metadata(), Effect::Read);
        let body = self.sized(request)?;
        let waiting = Waiting::new(&self.with.routing, Effect::Read, deadline.at());
        route(&mut AskedStream(Asked { kv: self, parsed, body, deadline, waiting })).await
    }

    /// Opens a stream by a plan that was made by the map of this generation. Keys that move later are still read by
    /// that map: their former owner keeps what was current.
    async fn run_stream(
        &self,
        plan: Plan,
        generation: Epoch,
        body: Bytes,
        deadline: Deadline,
    ) -> Result<Chunks, Status> {
        let (index, spread) = match plan {
            Plan::One { store, spread, .. } => (store, spread),
            Plan::FanOut(fan_out) => {
                let first = fan_out.parts[0].stores[0];
                match self.with.reads.range_stream_over(fan_out, generation, body.clone(), deadline).await? {
                    Some(chunks) => return Ok(Box::pin(chunks)),
                    None => (first, Vec::new()),
                }
            }
            Plan::Health => (self.with.stores.default_store(), Vec::new()),
        };
        let store = self.with.stores.get(index).clone();
        let min_revision = self.with.routing.min_revision(&spread);
        let to = To { store: &store, min_revision, generation, small: false };
        let Opened { chunks, revision } =
            self.with.reads.range_stream_of_one(to, &spread, body.clone(), deadline).await?;
        let ids = self.with.identity.ids();
        let routing = self.with.routing.clone();
        // Only the last message has a header, so a stream that ends without one is incomplete, whatever its status.
        let (good_end, chunks) = ending::produced(chunks);
        let last =
            Arc::new(Last { good_end: Mutex::new(Some(good_end)), store, spread, body, generation, routing });
        let patched = chunks.then(move |chunk| {
            let last = last.clone();
            async move {
                let chunk = chunk.map_err(|status| broken(&last.store, status))?;
                let Some(said) = last_revision(&chunk) else { return Ok(chunk) };
                let revision = revision.map_or(said, Revision);
                last.shows(revision).await;
                let mut tail = Vec::new();
                let header = ids.patch(revision.get());
                RangePatch { header, more: None, count: None }.append_to_stream(&mut tail);
                Ok(append(chunk, &tail))
            }
        });
        Ok(Box::pin(patched))
    }

    /// Answers the health probe. Its key never exists, so any store gives the right answer: the default store, else the
    /// next that does.
    async fn health(&self, body: Bytes, small: bool) -> Result<Rope, Status> {
        let stores = &self.with.stores;
        let default = stores.get(stores.default_store());
        let others = stores.iter().filter(|store| store.index != default.index);
        let mut failed = default.unavailable(&default.state().reason());
        for store in std::iter::once(default).chain(others) {
            let deadline = Deadline::within(HEALTH_LIMIT);
            let to = To { store, min_revision: Revision::ZERO, generation: Epoch::NONE, small };
            match to.send(Call::Range, Effect::Read, body.clone(), deadline).await {
                Ok(answer) => return Ok(answer),
                Err(status) => failed = status,
            }
        }
        Err(failed)
    }
}

/// An answer without the ids of this router.
struct Answered {
    answer: Rope,
    /// The revision in its header, if that was read already.
    shown: Option<Revision>,
}

impl From<Rope> for Answered {
    fn from(answer: Rope) -> Self {
        Self { answer, shown: None }
    }
}

/// The last message of a stream, which alone has a header.
struct Last {
    good_end: Mutex<Option<ending::GoodEnd>>,
    store: Arc<Store>,
    spread: Vec<KindPrefix>,
    body: Bytes,
    generation: Epoch,
    routing: Arc<Routing>,
}

impl Last {
    async fn shows(&self, revision: Revision) {
        let now = |routes: &Routes| spread_by(&Parsed::new(Call::RangeStream, &self.body), routes);
        self.routing.show_of_store(&self.store, &self.spread, revision, self.generation, now);
        if !self.spread.is_empty() {
            let (routing, spread, own) = (self.routing.clone(), self.spread.clone(), self.store.index);
            // In a task of its own: a stream is not polled while its client does not read, and others wait for its questions.
            let kept = tokio::spawn(async move { order::keep(&*routing, &spread, own, revision).await });
            if let Err(error) = kept.await {
                tracing::error!(%error, "the order of a stream's revision was not kept");
            }
        }
        let good_end = self.good_end.lock().unwrap_or_else(PoisonError::into_inner).take();
        good_end.into_iter().for_each(ending::GoodEnd::reached);
    }
}

/// What a request was permitted by.
struct Permitted {
    gate: Arc<Gate>,
    entered: Entered,
    /// It only reads.
    reads: bool,
}

/// A request of a client.
struct Asked<'a> {
    kv: &'a Kv,
    parsed: &'a Parsed<'a>,
    body: Bytes,
    deadline: Deadline,
    waiting: Waiting<'a>,
}

impl Waits for Asked<'_> {
    fn known(&self) -> Epoch {
        *self.kv.with.routing.generations().borrow()
    }

    async fn wait(&mut self, known: Epoch) -> Result<(), Status> {
        self.waiting.wait(known, &self.body).await
    }
}

impl Routed for Asked<'_> {
    type Plan = Plan;
    type Answer = Answered;

    fn plan(&self) -> Result<(Plan, Epoch), Status> {
        let routes = self.kv.with.routing.load();
        let plan = plan(self.parsed, &**routes);
        // A store checks what it gets whole.
        if !matches!(plan, Ok(Plan::One { .. } | Plan::Health)) {
            refuse_invalid(self.parsed.call, &self.body)?;
        }
        Ok((plan.map_err(|refusal| refused(&refusal))?, routes.generation()))
    }

    async fn run(&self, plan: Plan, generation: Epoch) -> Result<Answered, Status> {
        self.kv.run(self.parsed, plan, generation, self.body.clone(), self.deadline).await
    }
}

/// A request of a client for a stream.
struct AskedStream<'a>(Asked<'a>);

impl Waits for AskedStream<'_> {
    fn known(&self) -> Epoch {
        self.0.known()
    }

    async fn wait(&mut self, known: Epoch) -> Result<(), Status> {
        self.0.wait(known).await
    }
}

impl Routed for AskedStream<'_> {
    type Plan = Plan;
    type Answer = Chunks;

    fn plan(&self) -> Result<(Plan, Epoch), Status> {
        self.0.plan()
    }

    async fn run(&self, plan: Plan, generation: Epoch) -> Result<Chunks, Status> {
        self.0.kv.run_stream(plan, generation, self.0.body.clone(), self.0.deadline).await
    }
}

/// The Kinds on several stores whose revision a request shows, by another map than the one that it was carried out by.
fn spread_by(request: &Parsed<'_>, routes: &Routes) -> Vec<KindPrefix> {
    plan(request, routes).map(Plan::into_spread).unwrap_or_default()
}

type Chunks = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

impl UnaryCalls for Kv {
    type Method = Call;

    fn method(&self, path: &str) -> Option<Call> {
        match path.strip_prefix("/etcdserverpb.KV/")? {
            "Range" => Some(Call::Range),
            "Put" => Some(Call::Put),
            "DeleteRange" => Some(Call::DeleteRange),
            "Txn" => Some(Call::Txn),
            _ => None,
        }
    }

    fn paths(&self) -> &'static [&'static str] {
        &[
            "/etcdserverpb.KV/Range",
            "/etcdserverpb.KV/Put",
            "/etcdserverpb.KV/DeleteRange",
            "/etcdserverpb.KV/Txn",
        ]
    }

    fn of_connection(&self, from: &ConnectionInfo) -> Self {
        let common_name = from.common_name().map(Arc::from);
        Self { client: Some(self.with.traffic.clients.connected(from)), common_name, ..self.clone() }
    }

    fn counted(&self, method: Call) -> &'static Calls {
        static COUNTED: LazyLock<[&'static Calls; 5]> =
            LazyLock::new(|| ["Range", "RangeStream", "Put", "DeleteRange", "Txn"].map(calls::of_kv));
        COUNTED[method as usize]
    }

    fn message_bytes_max(&self) -> usize {
        self.max_request_bytes.saturating_add(REQUEST_SLACK)
    }

    async fn call(&self, method: Call, request: Request<Bytes>) -> Result<Message, Status> {
        self.unary(method, request).await.map(Message::Whole)
    }
}

#[tonic::async_trait]
impl KV for Kv {
    async fn range(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.whole(Call::Range, request).await
    }

    type RangeStreamStream = Chunks;

    async fn range_stream(&self, request: Request<Bytes>) -> Result<Response<Chunks>, Status> {
        let body = request.get_ref().clone();
        let parsed = Parsed::new(Call::RangeStream, &body);
        let mut counting = self.counting(&parsed, &request);
        let opening = async {
            self.permitted(Call::RangeStream, &request).await?;
            let place = self.place(&counting, request.metadata()).await?;
            Ok((self.open_range_stream(&parsed, request).await?, Holding::new(place)))
        };
        let opened = opening.await;
        let (chunks, place) = match opened {
            Ok(opened) => opened,
            Err(status) => {
                counting.answered(Err(&status));
                return Err(status);
            }
        };
        let mut response = Response::new(Box::pin(traffic::of_stream(chunks, counting, place)) as Chunks);
        response.extensions_mut().insert(LongRead);
        Ok(response)
    }

    async fn put(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.whole(Call::Put, request).await
    }

    async fn delete_range(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.whole(Call::DeleteRange, request).await
    }

    async fn txn(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        self.whole(Call::Txn, request).await
    }

    async fn compact(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
        let deadline = Deadline::of(request.metadata(), Effect::Write);
        let answer = self.with.compactor.compact(request.into_inner(), deadline).await?;
        Ok(Response::new(self.with.identity.patched(answer.into(), None).into_bytes()))
    }
}

/// The header revision of a message; `None` for all but the last, which alone may be patched.
fn last_revision(chunk: &[u8]) -> Option<Revision> {
    let range = answer::range_of_stream(chunk).and_then(answer::RangeResponse::parse).ok()?;
    range.header.map(|header| Revision(header.revision))
}

/// The status for a stream that broke: the client has a part of the answer and must ask again.
fn broken(store: &Store, status: Status) -> Status {
    match crate::stores::failure::Failure::of(status) {
        crate::stores::failure::Failure::Answered(status) => status,
        other => {
            store.state().suspect();
            store.unavailable(other.reason())
        }
    }
}

/// Checks what etcd itself would refuse, so that its errors come before kindred's own and before those of the gate.
fn refuse_invalid(method: Call, body: &Bytes) -> Result<(), Status> {
    let malformed =
        |error: DecodeError| grpc::refusal(&KindredError::Malformed { reason: error.to_string() });
    match method {
        Call::Range | Call::RangeStream => {
            let range = pb::RangeRequest::decode(body.clone()).map_err(malformed)?;
            return check::range(&range).map_err(grpc::status);
        }
        Call::Put => {
            let put = pb::PutRequest::decode(body.clone()).map_err(malformed)?;
            return check::put(&put).map_err(grpc::status);
        }
        Call::DeleteRange => {
            let delete = pb::DeleteRangeRequest::decode(body.clone()).map_err(malformed)?;
            return check::delete(&delete).map_err(grpc::status);
        }
        Call::Txn => {}
    }
    let txn = nested::txn(body.clone()).map_err(|refused| match refused {
        NotATxn::TooDeep => grpc::status(EtcdError::TooManyOps),
        NotATxn::Malformed(reason) => grpc::refusal(&KindredError::Malformed { reason }),
    })?;
    check::txn(&txn, TXN_OPS_MAX).map_err(grpc::status)
}
