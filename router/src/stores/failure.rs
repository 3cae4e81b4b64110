//! Classifies failed calls: answered, never sent, or unknown (R11).

use std::error::Error;

use tonic::{ConnectError, Status};

#[derive(Debug)]
pub enum Failure {
    /// The store answered with this error.
    Answered(Status),
    /// No connection could be made, so nothing was sent.
    NotConnected(String),
    /// The connection ended before the request was sent on it.
    NotSent(String),
    /// The connection ended while the request was under way, so it may have been executed.
    Lost(String),
}

impl Failure {
    /// Classifies a status. A store's answer has no error source on this side; a failure of the connection has one.
    #[must_use]
    pub fn of(status: Status) -> Self {
        let Some(source) = status.source() else { return Self::Answered(status) };
        let mut innermost = source.to_string();
        let mut cause = Some(source);
        while let Some(error) = cause {
            innermost = error.to_string();
            if let Some(connect) = error.downcast_ref::<ConnectError>() {
                return Self::NotConnected(connect.to_string());
            }
            // hyper reports "canceled" only for requests that its connection had not taken up.
            if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
                return Self::NotSent(innermost);
            }
            cause = error.source();
        }
        Self::Lost(innermost)
    }

    /// The reason, for people.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Answered(status) => status.message(),
            Self::NotConnected(reason) | Self::NotSent(reason) | Self::Lost(reason) => reason,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_no_cause_on_this_side() {
        assert!(matches!(Failure::of(Status::unavailable("x")), Failure::Answered(_)));
        let refused = ConnectError(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into());
        assert!(matches!(Failure::of(Status::from_error(Box::new(refused))), Failure::NotConnected(_)));
        let lost = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(matches!(Failure::of(Status::from_error(Box::new(lost))), Failure::Lost(_)));
    }
}
