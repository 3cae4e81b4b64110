//! Header blocks: a request begins, or its body ends with trailers.

use crate::{
    connection::{Connection, Ending},
    error::ConnectionError,
    event::Event,
    frame::{ErrorCode, Head, WINDOW_MAX, flag, without_padding},
    hpack::decoder::{CompressionError, Sink, Taken},
    request::{HeadBuilder, TrailerCheck},
    stream::Begin,
    streams::StreamId,
};

use super::fits;

/// So many gaps in the numbers of streams are remembered, which no client in use makes.
const SKIPPED_MAX: usize = 16;

/// A header block of which the first frames have come.
#[derive(Debug)]
pub(crate) struct Continuing {
    /// The head of the HEADERS frame.
    pub(crate) head: Head,
    depends_on_itself: bool,
    block: Vec<u8>,
    frames: usize,
}

impl Connection {
    #[inline]
    pub(super) fn headers(
        &mut self,
        head: Head,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), ConnectionError> {
        if head.stream & 1 == 0 {
            return Err(ConnectionError::protocol("a client's streams have odd numbers"));
        }
        let payload = without_padding(head, payload);
        let mut block = payload.map_err(|_| ConnectionError::protocol("padding is longer than its frame"))?;
        let mut depends_on_itself = false;
        if head.has(flag::PRIORITY) {
            let Some((on, rest)) = block.split_first_chunk().filter(|(_, rest)| !rest.is_empty()) else {
                return Err(ConnectionError::size("HEADERS are shorter than their priority"));
            };
            depends_on_itself = u32::from_be_bytes(*on) & WINDOW_MAX == head.stream;
            block = &rest[1..];
        }
        if !head.has(flag::END_HEADERS) {
            return self.begin_block(head, depends_on_itself, block);
        }
        self.block(head, depends_on_itself, block, events)
    }

    #[cold]
    fn begin_block(
        &mut self,
        head: Head,
        depends_on_itself: bool,
        block: &[u8],
    ) -> Result<(), ConnectionError> {
        if block.len() > self.limits.header_block_bytes_max {
            return Err(ConnectionError::calm("a header block is too long"));
        }
        let continuing = Continuing { head, depends_on_itself, block: block.to_vec(), frames: 0 };
        self.continuing = Some(continuing);
        Ok(())
    }

    #[cold]
    pub(super) fn continuation(
        &mut self,
        head: Head,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), ConnectionError> {
        let Some(mut continuing) = self.continuing.take() else {
            return Err(ConnectionError::protocol("CONTINUATION continues nothing"));
        };
        continuing.frames += 1;
        if continuing.frames > self.limits.continuations_max
            || continuing.block.len() + payload.len() > self.limits.header_block_bytes_max
        {
            return Err(ConnectionError::calm("a header block is too long"));
        }
        continuing.block.extend_from_slice(payload);
        if !head.has(flag::END_HEADERS) {
            self.continuing = Some(continuing);
            return Ok(());
        }
        self.block(continuing.head, continuing.depends_on_itself, &continuing.block, events)
    }

    /// Takes a whole block.
    #[inline]
    fn block(
        &mut self,
        head: Head,
        depends_on_itself: bool,
        block: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), ConnectionError> {
        let id = head.stream;
        if id > self.last {
            return self.request(head, depends_on_itself, block, events);
        }
        if let Some(stream) = self.streams.find(id) {
            return self.trailers(head, stream, block, events);
        }
        if self.sender.is_own_reset(id) || matches!(self.ending, Ending::Last(last) if id > last) {
            let _taken = self.decode(block, &mut ())?;
            return Ok(());
        }
        if self.skipped.iter().any(|(first, end)| (*first..*end).contains(&id)) {
            return Err(ConnectionError::protocol("a stream has a lower number than one before"));
        }
        Err(ConnectionError::new(ErrorCode::STREAM_CLOSED, "HEADERS belong to a stream that has ended"))
    }

    #[inline]
    fn decode(&mut self, block: &[u8], sink: &mut impl Sink) -> Result<Taken, ConnectionError> {
        let list_max = self.limits.header_list_bytes_max as usize;
        self.decoder.decode(block, list_max, sink).map_err(compression)
    }

    #[inline]
    fn request(
        &mut self,
        head: Head,
        depends_on_itself: bool,
        block: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), ConnectionError> {
        self.controls_are_read()?;
        let id = head.stream;
        // The first stream is 1, and every other one follows the one before.
        if id - self.last > 2 {
            self.skip(id);
        }
        self.last = id;
        if matches!(self.ending, Ending::Last(_)) {
            let _taken = self.decode(block, &mut ())?;
            return Ok(());
        }
        if self.streams.len() >= self.limits.streams_max as usize {
            let _taken = self.decode(block, &mut ())?;
            return self.refuse(id, ErrorCode::REFUSED_STREAM);
        }
        let mut builder = HeadBuilder::new(&mut self.memory);
        let list_max = self.limits.header_list_bytes_max as usize;
        if self.decoder.decode(block, list_max, &mut builder).map_err(compression)? == Taken::TooLarge {
            return self.refuse(id, ErrorCode::ENHANCE_YOUR_CALM);
        }
        let Ok((request, body)) = builder.finish() else {
            return self.refuse(id, ErrorCode::PROTOCOL_ERROR);
        };
        let end = head.has(flag::END_STREAM);
        let mut stream = Begin {
            id,
            receiving: !end,
            send_window: self.sender.initial_window(),
            receive_window: self.stream_window(),
            body_left: body,
        };
        if depends_on_itself || !fits(&mut stream.body_left, 0, end) {
            return self.refuse(id, ErrorCode::PROTOCOL_ERROR);
        }
        self.empty_data = 0;
        let stream = self.streams.insert(stream);
        events.push(Event::Request { stream, head: request, end });
        Ok(())
    }

    /// Remembers the numbers between the last stream and a new one.
    #[cold]
    fn skip(&mut self, id: u32) {
        if self.skipped.len() == SKIPPED_MAX {
            self.skipped.pop_front();
        }
        self.skipped.push_back((self.last + 1, id));
    }

    #[cold]
    fn trailers(
        &mut self,
        head: Head,
        stream: StreamId,
        block: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), ConnectionError> {
        let mut check = TrailerCheck::default();
        let taken = self.decode(block, &mut check)?;
        let Some(found) = self.streams.get_mut(stream) else { return Ok(()) };
        let fault = if !found.receiving {
            Some(ErrorCode::STREAM_CLOSED)
        } else if taken == Taken::TooLarge {
            Some(ErrorCode::ENHANCE_YOUR_CALM)
        } else if check.malformed || !head.has(flag::END_STREAM) || !fits(&mut found.body_left, 0, true) {
            Some(ErrorCode::PROTOCOL_ERROR)
        } else {
            None
        };
        if let Some(code) = fault {
            return self.stream_error(stream, code, events);
        }
        found.receiving = false;
        events.push(Event::Trailers { stream });
        Ok(())
    }
}

#[cold]
fn compression(error: CompressionError) -> ConnectionError {
    let reason = match error {
        CompressionError::Truncated => "a header block ends in the middle of a field",
        CompressionError::Integer => "an integer in a header block is too large",
        CompressionError::Index => "a header block refers to a field that is not there",
        CompressionError::Huffman => "a string in a header block is no Huffman code",
        CompressionError::TableSize => "the header table may not be so large",
        CompressionError::LateUpdate => "the header table's size changes behind a field",
        CompressionError::MissingUpdate => "the header table's size had to change and did not",
    };
    ConnectionError::new(ErrorCode::COMPRESSION_ERROR, reason)
}
