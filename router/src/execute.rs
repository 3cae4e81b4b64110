//! Runs calls on stores. The only place that retries (R11): a read once after its connection was lost, a write only when
//! it definitely never left this process.

pub mod compact;
pub mod fan_out;
pub mod fenced;
pub mod one;

use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::unit::UnitBuckets;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use tokio::time::Instant;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Response, Status};

use crate::stores::Store;
use crate::stores::failure::Failure;
use crate::stores::lane::{Lane, LaneError, Op};

/// Whether a call may change something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It may be sent again.
    Read,
    /// It may not, once it may have been received.
    Write,
}

/// Time for a call whose client sets no deadline.
const READ_LIMIT: Duration = Duration::from_secs(60);
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// Metadata beside a KV request to a shard; its API says what they mean.
const AT_LEAST: &str = "kindred-at-least";
const PIN: &str = "kindred-pin";
const MAP: &str = "kindred-map";
const BUCKETS: &str = "kindred-buckets";

impl Effect {
    fn limit(self) -> Duration {
        match self {
            Self::Read => READ_LIMIT,
            Self::Write => WRITE_LIMIT,
        }
    }
}

/// Until when the client waits.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    at: Instant,
    from_client: bool,
}

impl Deadline {
    /// From the client's `grpc-timeout`, else the limit for the kind of call.
    #[must_use]
    pub fn of(metadata: &MetadataMap, effect: Effect) -> Self {
        let asked = grpc::header(metadata.as_ref(), "grpc-timeout");
        let asked = asked.and_then(|value| value.to_str().ok()).and_then(grpc::parse_timeout);
        Self { at: Instant::now() + asked.unwrap_or(effect.limit()), from_client: asked.is_some() }
    }

    /// A call of the router's own.
    #[must_use]
    pub fn within(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, from_client: false }
    }

    /// The request for a store with what is left of the time.
    #[must_use]
    pub fn request<T>(self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.left());
        request
    }

    /// Until when the client waits.
    #[must_use]
    pub fn at(self) -> Instant {
        self.at
    }

    /// The same for a read of a Kind on several stores: the store answers at or above `at_least` if it can, and what it
    /// shows stays readable while the others are asked (R5), until the pin is released; 0 = without one.
    #[must_use]
    pub fn pinned<T>(self, message: T, at_least: Revision, pin: u64) -> Request<T> {
        let mut request = self.at_least(message, at_least);
        if pin != 0 {
            request.metadata_mut().insert(PIN, MetadataValue::from(pin));
        }
        request
    }

    /// The same for one store of a Kind on several: a wish, which a store that cannot follow ignores (R8).
    #[must_use]
    pub fn at_least<T>(self, message: T, at_least: Revision) -> Request<T> {
        let mut request = self.request(message);
        if at_least > Revision::ZERO {
            request.metadata_mut().insert(AT_LEAST, MetadataValue::from(at_least.get()));
        }
        request
    }

    /// For one of many calls on behalf of one client: its own deadline where it gave one, else time for this call.
    #[must_use]
    pub fn renewed(self, effect: Effect) -> Self {
        if self.from_client { self } else { Self::within(effect.limit()) }
    }

    fn left(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    fn passed(self, effect: Effect) -> Status {
        grpc::status(match (self.from_client, effect) {
            (true, _) => EtcdError::DeadlineExceeded,
            (false, _) => EtcdError::Timeout,
        })
    }
}

/// The request of a span of keys, sent here by the map of this generation; 0 = by one that never changes. A store that
/// knows of a later change refuses it.
#[must_use]
pub fn by_map<T>(mut request: Request<T>, generation: u64) -> Request<T> {
    if generation > 0 {
        request.metadata_mut().insert(MAP, MetadataValue::from(generation));
    }
    request
}

/// The deletion of a range, of these buckets only. For shards; they refuse what they do not understand of it.
#[must_use]
pub fn of_buckets<T>(mut request: Request<T>, buckets: Option<&UnitBuckets>) -> Request<T> {
    // Digits and a blank are always metadata.
    if let Some(text) = buckets.and_then(|buckets| buckets.to_string().parse().ok()) {
        request.metadata_mut().insert(BUCKETS, text);
    }
    request
}

/// Sends one call to a store; `send` makes a new attempt. Dropping the future cancels the call at the store.
///
/// # Errors
/// The store's own error as it is, `Unavailable` naming the store when nothing was executed, and etcd's "possibly due to
/// connection lost" when a write may have been.
pub async fn call<T, F, Fut>(store: &Store, effect: Effect, deadline: Deadline, send: F) -> Result<T, Status>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<Response<T>, Status>>,
{
    let send = || async { send().await.map(Response::into_inner).map_err(Failure::of) };
    attempt(store, effect, deadline, send).await
}

/// The same for whatever tells by itself how it failed.
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
    let mut again = true;
    loop {
        store.ready()?;
        let failure = match tokio::time::timeout_at(deadline.at, send()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(failure)) => failure,
            Err(_) => return Err(deadline.passed(effect)),
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

/// The answer to an operation over a store's stream of batches; `None` when the store turns out not to have one, and
/// nothing was executed.
async fn over_lane(store: &Store, lane: &Lane, op: Op) -> Option<Result<Bytes, Failure>> {
    match lane.call(op).await {
        Ok(answer) => Some(Ok(answer)),
        Err(LaneError::Failed(failure)) => Some(Err(failure)),
        Err(LaneError::Unsupported) => {
            store.state().no_batches();
            None
        }
    }
}

/// Whether this is etcd's answer to a revision that is still to come.
fn is_future(status: &Status) -> bool {
    grpc::etcd_error(status) == Some(EtcdError::FutureRevision)
}
