//! Errors to gRPC status: the one place where this happens. And how long a client waits.

use std::time::Duration;

use kindred_wire::error::{Code, EtcdError};
use kindred_wire::refusal::KindredError;
use tonic::Status;

/// The status that an etcd client must get for this error, text to the byte.
#[must_use]
pub fn status(error: EtcdError) -> Status {
    Status::new(code(error.grpc_code()), error.message())
}

/// The status of a refusal of our own.
#[must_use]
pub fn refusal(error: &KindredError) -> Status {
    Status::new(code(error.grpc_code()), error.message())
}

/// tonic's name of a code.
#[must_use]
pub fn code(code: Code) -> tonic::Code {
    tonic::Code::from_i32(i32::from(code.number()))
}

/// Which of etcd's errors a status is, by its text as etcd's own clients decide; `None` for any other.
#[must_use]
pub fn etcd_error(status: &Status) -> Option<EtcdError> {
    EtcdError::from_message(status.message())
}

/// What a call may have done whose answer never came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// No connection could be made: the request was never on the wire and may be sent again (R11).
    NeverSent,
    /// The connection broke: the request may have been executed.
    MayHaveRun,
}

/// Whether a status was made on this side because the connection failed, rather than sent by the peer.
///
/// Its code does not tell: a broken connection is `Unknown`, `Internal`, `Cancelled` or `Unavailable`, depending on
/// where in HTTP/2 it broke, and a peer may send each of them too.
#[must_use]
pub fn lost(status: &Status) -> Option<Lost> {
    // Only statuses that tonic makes of an error of its own have a source; those of a peer come from trailers.
    let mut source = std::error::Error::source(status)?;
    loop {
        if source.is::<tonic::ConnectError>() {
            return Some(Lost::NeverSent);
        }
        match source.source() {
            Some(next) => source = next,
            None => return Some(Lost::MayHaveRun),
        }
    }
}

/// A header by its name in lower case. A request has a handful of them: to look at each is cheaper than to hash the name.
#[must_use]
pub fn header<'h>(headers: &'h http::HeaderMap, name: &str) -> Option<&'h http::HeaderValue> {
    headers.iter().find_map(|(key, value)| (key.as_str() == name).then_some(value))
}

/// The value of `grpc-timeout`: at most eight digits and one of `HMSmun`.
#[must_use]
pub fn parse_timeout(text: &str) -> Option<Duration> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_texts_survive() {
        for &error in EtcdError::ALL {
            let status = status(error);
            assert_eq!(status.message(), error.message());
            assert_eq!(status.code() as i32, i32::from(error.grpc_code().number()));
            assert_eq!(etcd_error(&status).map(EtcdError::message), Some(error.message()));
        }
    }

    #[test]
    fn timeouts() {
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
