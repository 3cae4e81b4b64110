//! The one message of a unary request, out of DATA frames that are cut anywhere.
//!
//! What is refused, and in which words, is as tonic does it; a message that is too long is refused as grpc-go does it.

use bytes::{Buf, Bytes, BytesMut};
use tonic::Status;

/// Bytes before each message: whether it is compressed, and its length.
pub const PREFIX_BYTES: usize = 5;

/// Why the body of a request is not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The compressed flag is set, and no encoding was agreed on.
    #[error("protocol error: received message with compressed-flag but no grpc-encoding was specified")]
    Compressed,
    /// The compressed flag is neither 0 nor 1.
    #[error(
        "protocol error: received message with invalid compression flag: {0} (valid flags are 0 and 1), while sending request"
    )]
    Flag(u8),
    /// The message is longer than is taken. The text is grpc-go's.
    #[error("grpc: received message larger than max ({found} vs. {limit})")]
    TooLong {
        /// Its length.
        found: usize,
        /// The most that is taken.
        limit: usize,
    },
    /// The body ends within a message, or within the bytes before one.
    #[error("Unexpected EOF decoding stream.")]
    Truncated,
    /// The body has no message.
    #[error("Missing request message.")]
    Missing,
    /// The body of an answer has no message.
    #[error("Missing response message.")]
    NoAnswer,
    /// The body of an answer goes on behind its message.
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

/// Takes frames and gives the message. Further messages are read over, as tonic does: only what is wrong with them counts.
#[derive(Debug)]
pub struct MessageReader {
    limit: usize,
    message: Option<Bytes>,
    /// Of a message that has begun: the length, when its prefix is read.
    length: Option<usize>,
    rest: BytesMut,
}

impl MessageReader {
    /// For a message of at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, message: None, length: None, rest: BytesMut::new() }
    }

    /// The next frame.
    ///
    /// # Errors
    /// What is wrong with the bytes so far.
    pub fn push(&mut self, frame: Bytes) -> Result<(), MessageError> {
        // The whole message in one frame, as nearly always: nothing is copied.
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
                // Within the limit, and the client has begun to send it.
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
    /// When there is none, or a part of one more.
    pub fn finish(self) -> Result<Bytes, MessageError> {
        if !self.rest.is_empty() {
            return Err(MessageError::Truncated);
        }
        // As for tonic, a prefix and nothing behind it is no message rather than a part of one.
        self.message.ok_or(MessageError::Missing)
    }
}

#[cfg(test)]
mod tests;
