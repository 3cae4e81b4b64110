//! Converts errors to gRPC statuses, and parses gRPC timeouts.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use kindred_wire::error::{Code, EtcdError};
use kindred_wire::refusal::KindredError;
use tonic::Status;

use crate::unary::message::PREFIX_BYTES;

/// The status that an etcd client must see for this error, byte for byte.
#[must_use]
pub fn status(error: EtcdError) -> Status {
    Status::new(code(error.grpc_code()), error.message())
}

/// The status for an error of kindred's own.
#[must_use]
pub fn refusal(error: &KindredError) -> Status {
    Status::new(code(error.grpc_code()), error.message())
}

#[must_use]
pub fn code(code: Code) -> tonic::Code {
    tonic::Code::from_i32(i32::from(code.number()))
}

/// A message as it stands in the body of a call; `None` for one of more than 4 GiB.
#[must_use]
pub fn framed(message: &[u8]) -> Option<Bytes> {
    let length = u32::try_from(message.len()).ok()?;
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    framed.put_u8(0);
    framed.put_u32(length);
    framed.put_slice(message);
    Some(framed.freeze())
}

/// The etcd error in a status, identified by its text as in etcd's own clients; `None` for any other status.
#[must_use]
pub fn etcd_error(status: &Status) -> Option<EtcdError> {
    EtcdError::from_message(status.message())
}

/// The possible effect of a call whose answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// No connection could be made: the request was never on the wire, and may be resent (R11).
    NeverSent,
    /// The connection broke: the request may have been executed.
    MayHaveRun,
}

/// Whether this side made the status because the connection failed, rather than the peer having sent it.
///
/// The code cannot tell: a broken connection gives `Unknown`, `Internal`, `Cancelled` or `Unavailable`, depending
/// on where in HTTP/2 it broke, and a peer may send any of these.
#[must_use]
pub fn lost(status: &Status) -> Option<Lost> {
    // Only statuses that tonic makes from its own errors have a source; those of a peer come from trailers.
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

/// Finds a header by its lower-case name. For the few headers of a request, comparing names is cheaper than
/// hashing.
#[must_use]
pub fn header<'h>(headers: &'h http::HeaderMap, name: &str) -> Option<&'h http::HeaderValue> {
    headers.iter().find_map(|(key, value)| (key.as_str() == name).then_some(value))
}

/// Parses a `grpc-timeout`: at most eight digits and one of `HMSmun`.
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
