//! The calls that locks and elections are made of.

use std::convert::Infallible;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderValue;
use kindred_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, RangeResponse, RequestOp,
    ResponseHeader, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse, compare,
    kv_client::KvClient, lease_client::LeaseClient, range_request, request_op, response_op,
    watch_client::WatchClient, watch_request,
};
use kindred_proto::mvccpb::{KeyValue, event::EventType};
use kindred_transport::ConnectionInfo;
use kindred_transport::grpc::header;
use kindred_transport::server::Services;
use kindred_wire::error::EtcdError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::{Request, Status, Streaming};
use tower::Service;

/// The TTL of a lease that is granted for a caller without one, in seconds (`concurrency.defaultSessionTTL`).
const TTL_S: i64 = 60;

/// A key under a name, as one caller made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub key: Bytes,
    /// The revision in which it was created: the lowest of a name has the lock, or leads.
    pub created: i64,
    pub header: Option<ResponseHeader>,
}

/// The store, as one of its clients sees it.
#[derive(Debug, Clone)]
pub struct Store<S> {
    services: On<S>,
}

/// What calls on somebody's behalf say of the caller, and where they come from.
#[derive(Debug, Clone, Default)]
struct Behalf {
    headers: Vec<(&'static str, HeaderValue)>,
    connection: Option<ConnectionInfo>,
}

impl Behalf {
    fn of<T>(request: &Request<T>) -> Self {
        let of = |name| Some((name, header(request.metadata().as_ref(), name)?.clone()));
        let connection = ConnectionInfo::of(request.extensions()).cloned();
        Self { headers: CALLER.into_iter().filter_map(of).collect(), connection }
    }
}

/// The metadata that says who calls.
const CALLER: [&str; 2] = ["token", "authorization"];

/// Services on somebody's behalf.
#[derive(Debug, Clone)]
struct On<S> {
    services: S,
    behalf: Behalf,
}

impl<S: Services> Service<http::Request<Body>> for On<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.services.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> S::Future {
        for (name, value) in &self.behalf.headers {
            request.headers_mut().insert(*name, value.clone());
        }
        if let Some(connection) = &self.behalf.connection {
            request.extensions_mut().insert(connection.clone());
        }
        self.services.call(request)
    }
}

/// A watch, which ends when this is dropped.
pub struct Watching {
    _says: mpsc::Sender<WatchRequest>,
    stream: Streaming<WatchResponse>,
}

impl Watching {
    /// The next answer with events.
    ///
    /// # Errors
    /// When the watch cannot go on.
    pub async fn next(&mut self) -> Result<WatchResponse, Status> {
        loop {
            let answer = self.stream.message().await.map_err(told)?;
            let answer = answer.ok_or_else(|| Status::unavailable("the watch has ended"))?;
            if answer.compact_revision > 0 {
                return Err(Status::unknown(EtcdError::Compacted.message()));
            }
            if answer.canceled {
                return Err(Status::unknown(answer.cancel_reason));
            }
            if !answer.events.is_empty() {
                return Ok(answer);
            }
        }
    }
}

impl<S: Services> Store<S> {
    #[must_use]
    pub fn new(services: S) -> Self {
        Self { services: On { services, behalf: Behalf::default() } }
    }

    /// The same for the caller of a request: what is done for it may do what the caller may.
    #[must_use]
    pub fn for_caller<T>(&self, request: &Request<T>) -> Self {
        let services = self.services.services.clone();
        Self { services: On { services, behalf: Behalf::of(request) } }
    }

    /// The lease of a caller: one is granted for a caller that has none.
    ///
    /// # Errors
    /// When none can be granted.
    pub async fn lease(&self, lease: i64) -> Result<i64, Status> {
        if lease != 0 {
            return Ok(lease);
        }
        let grant = LeaseGrantRequest { ttl: TTL_S, id: 0 };
        Ok(LeaseClient::new(self.services.clone()).lease_grant(grant).await.map_err(told)?.into_inner().id)
    }

    /// Makes a caller's key under a name, unless it is there already. Returns it, and the value that it had before.
    ///
    /// # Errors
    /// When the lease is not known, or the store refuses.
    pub async fn enter(
        &self,
        name: &[u8],
        lease: i64,
        value: Bytes,
    ) -> Result<(Entry, Option<Bytes>), Status> {
        let key = Bytes::from([name, b"/", format!("{lease:x}").as_bytes()].concat());
        let get = || {
            op(request_op::Request::RequestRange(RangeRequest {
                key: key.clone(),
                ..RangeRequest::default()
            }))
        };
        let put = PutRequest { key: key.clone(), value, lease, ..PutRequest::default() };
        let answer = self
            .txn(TxnRequest {
                compare: vec![created(&key, 0)],
                success: vec![op(request_op::Request::RequestPut(put)), get()],
                failure: vec![get()],
            })
            .await?;
        let kv = kvs(&answer).pop().ok_or_else(|| Status::internal("a key that was written is not there"))?;
        let before = (!answer.succeeded).then(|| kv.value.clone());
        Ok((Entry { key, created: kv.create_revision, header: answer.header }, before))
    }

    /// Waits until no key under a name is older than one.
    ///
    /// # Errors
    /// When a watch cannot go on, or the store refuses.
    pub async fn wait_for_older(&self, name: &[u8], entry: &Entry) -> Result<(), Status> {
        loop {
            let range = RangeRequest {
                max_create_revision: entry.created - 1,
                sort_order: range_request::SortOrder::Descend as i32,
                sort_target: range_request::SortTarget::Create as i32,
                limit: 1,
                ..under(name)
            };
            let found = self.range(range).await?;
            let Some(older) = found.kvs.into_iter().next() else { return Ok(()) };
            let from = found.header.map_or(0, |header| header.revision);
            let mut watching = self.watch(older.key, Bytes::new(), from).await?;
            let is_end = |answer: WatchResponse| {
                answer.events.iter().any(|event| event.r#type == EventType::Delete as i32)
            };
            while !is_end(watching.next().await?) {}
        }
    }

    /// The oldest key under a name.
    ///
    /// # Errors
    /// When the store refuses.
    pub async fn oldest(&self, name: &[u8]) -> Result<RangeResponse, Status> {
        let range = RangeRequest {
            sort_order: range_request::SortOrder::Ascend as i32,
            sort_target: range_request::SortTarget::Create as i32,
            limit: 1,
            ..under(name)
        };
        self.range(range).await
    }

    /// Reads a range.
    ///
    /// # Errors
    /// When the store refuses.
    pub async fn range(&self, range: RangeRequest) -> Result<RangeResponse, Status> {
        Ok(KvClient::new(self.services.clone()).range(range).await.map_err(told)?.into_inner())
    }

    /// Executes a transaction.
    ///
    /// # Errors
    /// When the store refuses.
    pub async fn txn(&self, txn: TxnRequest) -> Result<TxnResponse, Status> {
        Ok(KvClient::new(self.services.clone()).txn(txn).await.map_err(told)?.into_inner())
    }

    /// Does something with a caller's key, if it still is the one that the caller made.
    ///
    /// # Errors
    /// When the store refuses.
    pub async fn if_own(
        &self,
        key: &Bytes,
        made: i64,
        then: request_op::Request,
    ) -> Result<TxnResponse, Status> {
        let txn =
            TxnRequest { compare: vec![created(key, made)], success: vec![op(then)], failure: Vec::new() };
        self.txn(txn).await
    }

    /// Deletes a caller's key, if it still is the one that the caller made.
    ///
    /// # Errors
    /// When the store refuses.
    pub async fn leave(&self, key: Bytes, made: i64) -> Result<TxnResponse, Status> {
        let delete = DeleteRangeRequest { key: key.clone(), ..DeleteRangeRequest::default() };
        self.if_own(&key, made, request_op::Request::RequestDeleteRange(delete)).await
    }

    /// Deletes a key, whoever made it.
    ///
    /// # Errors
    /// When the store refuses.
    pub async fn delete(&self, key: Bytes) -> Result<Option<ResponseHeader>, Status> {
        let delete = DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
        Ok(KvClient::new(self.services.clone()).delete_range(delete).await.map_err(told)?.into_inner().header)
    }

    /// Watches a range from a revision on.
    ///
    /// # Errors
    /// When the store refuses.
    pub async fn watch(&self, key: Bytes, range_end: Bytes, from: i64) -> Result<Watching, Status> {
        let create =
            WatchCreateRequest { key, range_end, start_revision: from, ..WatchCreateRequest::default() };
        let create = watch_request::RequestUnion::CreateRequest(create);
        let (says, said) = mpsc::channel(1);
        // There is room for the first message.
        let _ = says.send(WatchRequest { request_union: Some(create) }).await;
        let stream = WatchClient::new(self.services.clone())
            .watch(ReceiverStream::new(said))
            .await
            .map_err(told)?
            .into_inner();
        Ok(Watching { _says: says, stream })
    }
}

/// A refusal as the services pass it on: etcd's are clients themselves, whose errors have lost their codes.
fn told(status: Status) -> Status {
    Status::unknown(status.message())
}

/// An operation of a transaction.
fn op(request: request_op::Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// Compares when a key was created; 0 is never.
fn created(key: &Bytes, at: i64) -> Compare {
    Compare {
        key: key.clone(),
        result: compare::CompareResult::Equal as i32,
        target: compare::CompareTarget::Create as i32,
        target_union: Some(compare::TargetUnion::CreateRevision(at)),
        ..Compare::default()
    }
}

/// Everything under a name.
#[must_use]
pub fn under(name: &[u8]) -> RangeRequest {
    // '0' follows '/'.
    let (key, range_end) = ([name, b"/"].concat().into(), [name, b"0"].concat().into());
    RangeRequest { key, range_end, ..RangeRequest::default() }
}

/// The keys that the ranges of a transaction have found.
fn kvs(answer: &TxnResponse) -> Vec<KeyValue> {
    let found = answer.responses.iter().filter_map(|of| match &of.response {
        Some(response_op::Response::ResponseRange(range)) => Some(range.kvs.clone()),
        _ => None,
    });
    found.flatten().collect()
}
