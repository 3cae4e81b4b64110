//! Runs calls on stores. The only place that retries (R11): a read once after its connection was lost, a write only when
//! it definitely never left this process.

pub mod compact;

use std::time::Duration;

use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::stores::Store;
use crate::stores::failure::Failure;

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
        let asked =
            metadata.get("grpc-timeout").and_then(|value| value.to_str().ok()).and_then(parse_timeout);
        let limit = match effect {
            Effect::Read => READ_LIMIT,
            Effect::Write => WRITE_LIMIT,
        };
        Self { at: Instant::now() + asked.unwrap_or(limit), from_client: asked.is_some() }
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

/// gRPC's `TimeoutValue TimeoutUnit`: at most eight digits and one of `HMSmun`.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(value * 3600)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
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
    let mut again = true;
    loop {
        store.ready()?;
        let status = match tokio::time::timeout_at(deadline.at, send()).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => status,
            Err(_) => return Err(deadline.passed(effect)),
        };
        let failure = Failure::of(status);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeouts() {
        for (text, millis) in
            [("5S", Some(5000)), ("2500m", Some(2500)), ("1M", Some(60_000)), ("0u", Some(0))]
        {
            assert_eq!(parse_timeout(text).map(|d| d.as_millis()), millis, "{text}");
        }
        for bad in ["", "S", "5", "5x", "-1S", "123456789S", "é"] {
            assert_eq!(parse_timeout(bad), None, "{bad}");
        }
    }
}
