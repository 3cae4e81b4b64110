//! What a client may take of the server. Each limit is a defence, and has its test in `limits/tests.rs`.

use crate::frame;

/// Limits of one connection.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Streams that may be open at once. More are refused with `REFUSED_STREAM`, which lets the client try again.
    pub streams_max: u32,
    /// So many bytes of one stream may be under way or in the caller's hands. Make it a small part of `connection_window`: then
    /// a stream that is not read holds little that others need.
    pub stream_window: u32,
    /// So many bytes of all streams may be under way or in the caller's hands.
    pub connection_window: u32,
    /// The longest payload of a frame that is taken. A frame is taken whole, so this much of the input is kept.
    pub frame_bytes_max: u32,
    /// The size of the header table that the client may use. A client of grpc-go adds an entry for each new timeout, and
    /// sends its other fields in full again each time that they have been pushed out.
    pub header_table_bytes: u32,
    /// The size of the list of a request's header fields. A larger one is an error of its stream.
    pub header_list_bytes_max: u32,
    /// The encoded header block that is collected from CONTINUATION frames, and their number. More end the connection.
    pub header_block_bytes_max: usize,
    pub continuations_max: usize,
    /// Requests that the client gave up or that broke the protocol, in excess of those that were answered. More end the
    /// connection. [`crate::Connection::forgive`] begins anew.
    pub resets_max: u32,
    /// Answers to PING and SETTINGS, resets and updates of windows which the client has not read. More end the connection.
    pub control_answers_max: usize,
    /// Empty DATA frames in a row. More end the connection.
    pub empty_data_max: u32,
    /// The answer to a PING that measures bandwidth is put off until so many bytes were sent since the last one; see
    /// [`crate::Connection::answer_probe`]. Zero answers all PINGs at once.
    pub probe_bytes: usize,
    /// A stream whose queue falls to this is [`crate::Event::Writable`].
    pub writable_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams_max: 1000,
            stream_window: 256 * 1024,
            connection_window: 1024 * 1024,
            frame_bytes_max: frame::PAYLOAD_BYTES_MIN,
            header_table_bytes: 4096,
            header_list_bytes_max: 64 * 1024,
            header_block_bytes_max: 64 * 1024,
            continuations_max: 16,
            resets_max: 500,
            control_answers_max: 1000,
            empty_data_max: 100,
            probe_bytes: 0,
            writable_bytes: 32 * 1024,
        }
    }
}

impl Limits {
    /// The limits with values that the protocol allows.
    pub(crate) fn checked(mut self) -> Self {
        self.stream_window = self.stream_window.min(frame::WINDOW_MAX);
        self.connection_window = self.connection_window.clamp(frame::WINDOW_DEFAULT, frame::WINDOW_MAX);
        self.frame_bytes_max = self.frame_bytes_max.clamp(frame::PAYLOAD_BYTES_MIN, frame::PAYLOAD_BYTES_MAX);
        self
    }
}

/// A number of misdeeds. What is spent comes back as the client behaves.
#[derive(Debug)]
pub(crate) struct Budget {
    left: u32,
    max: u32,
}

impl Budget {
    pub(crate) const fn new(max: u32) -> Self {
        Self { left: max, max }
    }

    /// Whether there was something left.
    #[must_use]
    pub(crate) fn spend(&mut self) -> bool {
        let left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        left
    }

    #[inline]
    pub(crate) fn earn(&mut self) {
        self.left = self.max.min(self.left + 1);
    }

    pub(crate) const fn refill(&mut self) {
        self.left = self.max;
    }
}

#[cfg(test)]
mod tests;
