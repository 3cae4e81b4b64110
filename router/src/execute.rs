//! Runs calls on stores. Only this module retries (R11): a read once after its connection was lost, a write once if it
//! certainly never left this process.

pub mod compact;
pub mod fan_out;
pub mod fenced;
pub mod one;
pub mod order;
pub mod raise;
pub mod routed;

use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::unit::UnitBuckets;
use kindred_router_core::plan::Refusal;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use kindred_wire::protocol::{BUCKETS, MAP, MIN_REVISION, PIN};
use tokio::time::Instant;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Response, Status};

use crate::spans;
use crate::stores::Store;
use crate::stores::batch_stream::{BatchStream, BatchStreamError, Op};
use crate::stores::failure::Failure;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The call may be sent again.
    Read,
    /// The call must not be sent again once a store may have received it.
    Write,
}

/// Time limits of calls whose client sets no deadline.
const READ_LIMIT: Duration = Duration::from_secs(60);
const WRITE_LIMIT: Duration = Duration::from_secs(10);

impl Effect {
    fn limit(self) -> Duration {
        match self {
            Self::Read => READ_LIMIT,
            Self::Write => WRITE_LIMIT,
        }
    }
}

/// The time at which a call is given up.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    at: Instant,
    from_client: bool,
}

impl Deadline {
    /// The client's `grpc-timeout`, else the limit of the effect.
    #[must_use]
    pub fn of(metadata: &MetadataMap, effect: Effect) -> Self {
        let asked = grpc::header(metadata.as_ref(), "grpc-timeout");
        let asked = asked.and_then(|value| value.to_str().ok()).and_then(grpc::parse_timeout);
        Self { at: Instant::now() + asked.unwrap_or(effect.limit()), from_client: asked.is_some() }
    }

    /// For a call that the router makes on its own behalf.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, from_client: false }
    }

    /// A request to a store, with the remaining time as its timeout, and the context of its trace if it is recorded.
    #[must_use]
    pub fn request<T>(self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.left());
        if let Some((parent, state)) = spans::headers() {
            request.metadata_mut().insert("traceparent", parent);
            state.and_then(|state| request.metadata_mut().insert("tracestate", state));
        }
        request
    }

    #[must_use]
    pub fn at(self) -> Instant {
        self.at
    }

    /// A request like [`Deadline::min_revision`] that also pins what the store shows: it stays readable while the other
    /// stores are asked (R5), until the pin is released. `pin` 0 means no pin.
    #[must_use]
    pub fn pinned<T>(self, message: T, min_revision: Revision, pin: u64) -> Request<T> {
        let mut request = self.min_revision(message, min_revision);
        if pin != 0 {
            request.metadata_mut().insert(PIN, MetadataValue::from(pin));
        }
        request
    }

    /// A request that asks the store to answer at or above a revision; a store that cannot follow ignores that (R8).
    #[must_use]
    pub fn min_revision<T>(self, message: T, min_revision: Revision) -> Request<T> {
        let mut request = self.request(message);
        if min_revision > Revision::ZERO {
            request.metadata_mut().insert(MIN_REVISION, MetadataValue::from(min_revision.get()));
        }
        request
    }

    /// The deadline for one of many calls on behalf of one client: the client's own, or else the limit of the effect
    /// from this moment on.
    #[must_use]
    pub fn renewed(self, effect: Effect) -> Self {
        if self.from_client { self } else { Self::within(effect.limit()) }
    }

    fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// The error when it has passed: etcd's, which says nothing of what was done.
    #[must_use]
    pub fn passed(self) -> Status {
        grpc::status(if self.from_client { EtcdError::DeadlineExceeded } else { EtcdError::Timeout })
    }
}

/// Adds the generation of the map by which a request for a span of keys was routed. A store that knows of a later
/// change to these keys refuses it.
#[must_use]
pub fn by_map<T>(mut request: Request<T>, generation: Epoch) -> Request<T> {
    if generation > Epoch::NONE {
        request.metadata_mut().insert(MAP, MetadataValue::from(generation.0));
    }
    request
}

/// Restricts a delete to these hash buckets. Shards only; a shard refuses buckets that it does not understand.
#[must_use]
pub fn of_buckets<T>(mut request: Request<T>, buckets: Option<&UnitBuckets>) -> Request<T> {
    // The text has digits and blanks only, which are always valid metadata.
    if let Some(text) = buckets.and_then(|buckets| buckets.to_string().parse().ok()) {
        request.metadata_mut().insert(BUCKETS, text);
    }
    request
}

/// Sends one call to a store; each attempt calls `send`. Dropping the future cancels the call at the store.
///
/// # Errors
/// The store's own error unchanged; `Unavailable` naming the store if nothing was executed; etcd's "possibly due to
/// connection lost" if a write may have been; etcd's timeout when the deadline passes.
pub async fn call<T, F, Fut>(store: &Store, effect: Effect, deadline: Deadline, send: F) -> Result<T, Status>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<Response<T>, Status>>,
{
    let send = || async { send().await.map(Response::into_inner).map_err(Failure::of) };
    attempt(store, effect, deadline, send).await
}

/// Like [`call`], for a `send` that classifies its failures itself.
///
/// # Errors
/// As [`call`].
pub async fn attempt<T, F, Fut>(
    store: &Store,
    effect: Effect,
    deadline: Deadline,
    send: F,
) -> Result<T, Status>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, Failure>>,
{
    match spans::asking(store.name()) {
        None => attempts(store, effect, deadline, send).await,
        Some(asking) => Box::pin(asking.record(attempts(store, effect, deadline, send))).await,
    }
}

async fn attempts<T, F, Fut>(store: &Store, effect: Effect, deadline: Deadline, send: F) -> Result<T, Status>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<T, Failure>>,
{
    let mut again = true;
    loop {
        store.ready()?;
        let failure = match tokio::time::timeout_at(deadline.at, send()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(failure)) => failure,
            Err(_) => return Err(deadline.passed()),
        };
        match (&failure, effect) {
            (Failure::Answered(_), _) => {}
            (Failure::NotConnected(reason), _) => store.state().lost(reason),
            _ => store.state().suspect(),
        }
        match (failure, effect) {
            (Failure::Answered(status), _) => return Err(status),
            (Failure::NotConnected(reason), _) => return Err(store.unavailable(&reason)),
            (Failure::NotSent(_), _) | (Failure::Lost(_), Effect::Read) if again => again = false,
            (Failure::NotSent(reason), _) | (Failure::Lost(reason), Effect::Read) => {
                return Err(store.unavailable(&reason));
            }
            (Failure::Lost(reason), Effect::Write) => {
                tracing::warn!(store = store.name(), reason, "the connection was lost under a write");
                return Err(grpc::status(EtcdError::TimeoutDueToConnectionLost));
            }
        }
    }
}

/// Sends an operation over a store's stream of batches. `None` if the store turns out not to support batches; then
/// nothing was executed.
async fn over_batches(store: &Store, stream: &BatchStream, op: Op) -> Option<Result<Bytes, Failure>> {
    match stream.call(op).await {
        Ok(answer) => Some(Ok(answer)),
        Err(BatchStreamError::Failed(failure)) => Some(Err(failure)),
        Err(BatchStreamError::Unsupported) => {
            store.state().no_batches();
            None
        }
    }
}

/// The gRPC status of a refusal by the plan.
#[must_use]
pub fn refused(refusal: &Refusal) -> Status {
    grpc::refusal(&refusal.0)
}

/// Whether the status is etcd's answer to a revision in the future.
fn is_future(status: &Status) -> bool {
    grpc::etcd_error(status) == Some(EtcdError::FutureRevision)
}
