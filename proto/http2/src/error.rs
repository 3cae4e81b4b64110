//! Why a connection ends, and why an answer is not taken.

use thiserror::Error;

use crate::frame::ErrorCode;

/// The client broke the protocol or took too much. The GOAWAY that says so waits in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{reason} ({code})")]
pub struct ConnectionError {
    pub code: ErrorCode,
    pub reason: &'static str,
}

impl ConnectionError {
    pub(crate) const fn new(code: ErrorCode, reason: &'static str) -> Self {
        Self { code, reason }
    }

    pub(crate) const fn protocol(reason: &'static str) -> Self {
        Self::new(ErrorCode::PROTOCOL_ERROR, reason)
    }

    pub(crate) const fn size(reason: &'static str) -> Self {
        Self::new(ErrorCode::FRAME_SIZE_ERROR, reason)
    }

    pub(crate) const fn flow(reason: &'static str) -> Self {
        Self::new(ErrorCode::FLOW_CONTROL_ERROR, reason)
    }

    pub(crate) const fn calm(reason: &'static str) -> Self {
        Self::new(ErrorCode::ENHANCE_YOUR_CALM, reason)
    }
}

/// An answer cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SendError {
    /// The stream has ended: by its answer, by a reset, or with its connection.
    #[error("the stream has ended")]
    Ended,
    /// The length does not fit into the prefix.
    #[error("a message has more than 4 GiB")]
    TooLong,
}
