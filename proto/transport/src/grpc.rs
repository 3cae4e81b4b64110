//! Errors to gRPC status: the one place where this happens.

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
}
