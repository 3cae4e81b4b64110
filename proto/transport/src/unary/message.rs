//! Extracts the single message of a unary request from DATA frames, which may split it anywhere.
//!
//! The errors and their texts are tonic's; a message that is too long fails as in grpc-go.

use bytes::{Buf, Bytes, BytesMut};
use tonic::Status;

/// The length of a gRPC prefix: the compressed flag and the message's length.
pub const PREFIX_BYTES: usize = 5;

/// Why a body does not contain a valid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The compressed flag is set, but no encoding was agreed on.
    #[error("protocol error: received message with compressed-flag but no grpc-encoding was specified")]
    Compressed,
    /// The compressed flag is neither 0 nor 1.
    #[error(
        "protocol error: received message with invalid compression flag: {0} (valid flags are 0 and 1), while sending request"
    )]
    Flag(u8),
    /// The message exceeds the limit. The text is grpc-go's.
    #[error("grpc: received message larger than max ({found} vs. {limit})")]
    TooLong {
        /// The message's length.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The body ends within a message or a prefix.
    #[error("Unexpected EOF decoding stream.")]
    Truncated,
    /// The body has no message.
    #[error("Missing request message.")]
    Missing,
    /// The body of an answer has no message.
    #[error("Missing response message.")]
    NoAnswer,
    /// The body of an answer continues after its message.
    #[error("protocol error: more than one message in the answer to a unary call")]
    Surplus,
}

impl From<MessageError> for Status {
    fn from(error: MessageError) -> Self {
        match error {
            MessageError::TooLong { .. } => Self::resource_exhausted(error.to_string()),
            _ => Self::internal(error.to_string()),
        }
    }
}

/// Accepts frames and returns the first message. Like tonic, it skips further messages but reports their errors.
#[derive(Debug)]
pub struct MessageReader {
    limit: usize,
    message: Option<Bytes>,
    /// The length of the message that has begun, once its prefix is complete.
    length: Option<usize>,
    rest: BytesMut,
}

impl MessageReader {
    /// A reader for messages up to `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, message: None, length: None, rest: BytesMut::new() }
    }

    /// Adds the next frame.
    ///
    /// # Errors
    /// When the bytes so far are invalid.
    pub fn push(&mut self, frame: Bytes) -> Result<(), MessageError> {
        // Nearly always one frame has the whole message; then nothing is copied.
        if self.message.is_none()
            && self.rest.is_empty()
            && self.length.is_none()
            && let Some((prefix, message)) = frame.split_first_chunk::<PREFIX_BYTES>()
            && self.length_of(*prefix)? == message.len()
        {
            self.message = Some(frame.slice(PREFIX_BYTES..));
            return Ok(());
        }
        self.rest.extend_from_slice(&frame);
        loop {
            let length = match self.length {
                Some(length) => length,
                None => {
                    let Some(prefix) = self.rest.first_chunk::<PREFIX_BYTES>() else { return Ok(()) };
                    let length = self.length_of(*prefix)?;
                    self.rest.advance(PREFIX_BYTES);
                    self.length = Some(length);
                    length
                }
            };
            if self.rest.len() < length {
                // Safe to reserve: the length is within the limit, and the client has begun to send.
                self.rest.reserve(length - self.rest.len());
                return Ok(());
            }
            let message = self.rest.split_to(length).freeze();
            self.message.get_or_insert(message);
            self.length = None;
        }
    }

    fn length_of(&self, prefix: [u8; PREFIX_BYTES]) -> Result<usize, MessageError> {
        let [flag, length @ ..] = prefix;
        match flag {
            0 => {}
            1 => return Err(MessageError::Compressed),
            flag => return Err(MessageError::Flag(flag)),
        }
        let found = u32::from_be_bytes(length) as usize;
        if found > self.limit {
            return Err(MessageError::TooLong { found, limit: self.limit });
        }
        Ok(found)
    }

    /// The message, at the end of the body.
    ///
    /// # Errors
    /// When there is none, or another one is incomplete.
    pub fn finish(self) -> Result<Bytes, MessageError> {
        if !self.rest.is_empty() {
            return Err(MessageError::Truncated);
        }
        // Like tonic, a prefix with nothing after it counts as no message, not as a truncated one.
        self.message.ok_or(MessageError::Missing)
    }
}

#[cfg(test)]
mod tests;
