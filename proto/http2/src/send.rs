//! The sending half: answers become frames in the output as far as the client's windows allow.
//!
//! What cannot be sent at once waits on its stream, and the stream in one of two rings: `short` for streams with little to
//! send, `long` for others. Streams take turns by frames. Only a small amount is moved to the output beforehand, so a
//! short answer waits for no more than that. While more waits for the socket, answers stay on their streams, even ends of
//! answers: a client that does not read runs out of streams. The window of the connection is used when a frame is made: a stream whose own
//! window is closed holds none of it.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::{
    error::{ConnectionError, SendError},
    frame::{self, ErrorCode, HEAD_BYTES, Head, flag, kind},
    hpack::encoder::{Block, Encoder, Trailers},
    output::{COPY_BYTES_MAX, Output},
    stream::{PREFIX_BYTES, Piece, Stream, prefix},
    streams::{StreamId, Streams},
};

/// Frames are made until so much waits for the socket.
const READY_BYTES: usize = 64 * 1024;
/// Frames are no longer than this, whatever the client takes.
const FRAME_BYTES_MAX: usize = 64 * 1024;
/// A stream with less to send is short.
const SHORT_BYTES: usize = 4096;
/// After so many turns of short streams a long one has one.
const SHORT_TURNS: u32 = 16;
/// The blocks of an answer when the client's table has their fields.
const HEAD_BLOCK: [u8; 2] = Encoder::SETTLED_HEAD;
const TRAILERS_BLOCK: [u8; 1] = Encoder::SETTLED_TRAILERS;

/// How many of our resets are remembered. Frames that the client sent before it learned of them are no error.
const OWN_RESETS: usize = 256;

#[derive(Debug)]
pub(crate) struct Sender {
    pub(crate) output: Output,
    pub(crate) encoder: Encoder,
    window: i32,
    /// The window of new streams.
    initial_window: i32,
    frame_bytes: usize,
    short: VecDeque<StreamId>,
    long: VecDeque<StreamId>,
    /// Streams on which nothing waits but the end.
    ends: VecDeque<StreamId>,
    short_turns: u32,
    /// What waits on all streams.
    pub(crate) queued: usize,
    writable_bytes: usize,
    /// Streams whose queues have become short.
    pub(crate) writable: Vec<StreamId>,
    own_resets: VecDeque<u32>,
}

impl Sender {
    pub(crate) fn new(writable_bytes: usize) -> Self {
        Self {
            output: Output::default(),
            encoder: Encoder::new(),
            window: frame::WINDOW_DEFAULT as i32,
            initial_window: frame::WINDOW_DEFAULT as i32,
            frame_bytes: frame::PAYLOAD_BYTES_MIN as usize,
            short: VecDeque::new(),
            long: VecDeque::new(),
            ends: VecDeque::new(),
            short_turns: 0,
            queued: 0,
            writable_bytes,
            writable: Vec::new(),
            own_resets: VecDeque::new(),
        }
    }

    pub(crate) const fn initial_window(&self) -> i32 {
        self.initial_window
    }

    pub(crate) fn is_own_reset(&self, id: u32) -> bool {
        self.own_resets.contains(&id)
    }

    /// Writes a frame that is not subject to flow control.
    pub(crate) fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let head = Head { length: payload.len() as u32, kind, flags, stream };
        let out = self.output.bytes();
        out.extend_from_slice(&head.encode());
        out.extend_from_slice(payload);
    }

    /// Writes RST_STREAM.
    pub(crate) fn reset(&mut self, id: u32, code: ErrorCode) {
        self.frame(kind::RST_STREAM, 0, id, &code.0.to_be_bytes());
        if self.own_resets.len() == OWN_RESETS {
            self.own_resets.pop_front();
        }
        self.own_resets.push_back(id);
    }

    /// Writes a header block as HEADERS, and CONTINUATION where it is longer than the client's frames.
    #[inline]
    fn headers(&mut self, id: u32, end: bool, write: impl FnOnce(&mut Encoder, &mut Vec<u8>)) {
        let out = self.output.bytes();
        let at = out.len();
        out.extend_from_slice(&[0; HEAD_BYTES]);
        self.encoder.begin(out);
        write(&mut self.encoder, out);
        let length = out.len() - at - HEAD_BYTES;
        let flags = if end { flag::END_HEADERS | flag::END_STREAM } else { flag::END_HEADERS };
        let head = Head { length: length as u32, kind: kind::HEADERS, flags, stream: id };
        if length > self.frame_bytes {
            return self.continued(head, at);
        }
        out[at..at + HEAD_BYTES].copy_from_slice(&head.encode());
    }

    /// Cuts a block, which begins behind the place for its head, into frames.
    #[cold]
    fn continued(&mut self, head: Head, at: usize) {
        let out = self.output.bytes();
        let block = out.split_off(at + HEAD_BYTES);
        out.truncate(at);
        let count = block.len().div_ceil(self.frame_bytes);
        for (number, part) in block.chunks(self.frame_bytes).enumerate() {
            let first = number == 0;
            let mut flags = if first { head.flags & flag::END_STREAM } else { 0 };
            if number + 1 == count {
                flags |= flag::END_HEADERS;
            }
            self.frame(if first { kind::HEADERS } else { kind::CONTINUATION }, flags, head.stream, part);
        }
    }

    /// Writes the head of an answer, unless it was.
    fn head(&mut self, stream: &mut Stream, metadata: &[u8]) {
        if !stream.head_sent {
            stream.head_sent = true;
            self.headers(stream.id, false, |encoder, out| {
                encoder.head(out);
                out.extend_from_slice(metadata);
            });
        }
    }

    /// Writes the trailers, or a head that is trailers too. Nothing waits before it on the stream.
    fn end(&mut self, stream: &mut Stream, trailers: &Trailers) {
        if matches!(trailers, Trailers::None) {
            self.head(stream, &[]);
            return self.frame(kind::DATA, flag::END_STREAM, stream.id, &[]);
        }
        let with_head = !stream.head_sent;
        stream.head_sent = true;
        self.headers(stream.id, true, |encoder, out| {
            if with_head {
                encoder.head(out);
            }
            match trailers {
                Trailers::Ok => encoder.trailers_ok(out),
                Trailers::Block(block) => out.extend_from_slice(block),
                Trailers::None => {}
            }
        });
    }

    /// Removes a stream whose answer is complete. A client that still sends is told to stop.
    #[inline]
    fn close(&mut self, streams: &mut Streams, id: StreamId) {
        if streams.get(id).is_some_and(|stream| stream.receiving) {
            self.reset(id.id, ErrorCode::NO_ERROR);
        }
        self.forget(streams, id);
    }

    /// Removes a stream with what waits on it.
    #[inline]
    pub(crate) fn forget(&mut self, streams: &mut Streams, id: StreamId) {
        if let Some(stream) = streams.get(id) {
            self.queued -= stream.queued;
            streams.remove(id);
        }
    }

    /// Sends a whole answer.
    #[inline]
    pub(crate) fn answer(
        &mut self,
        streams: &mut Streams,
        id: StreamId,
        pieces: &[Bytes],
    ) -> Result<(), SendError> {
        let length: usize = pieces.iter().map(Bytes::len).sum();
        let stream = streams.get_mut(id).ok_or(SendError::Ended)?;
        if stream.trailers.is_some() {
            return Err(SendError::Ended);
        }
        let total = length + PREFIX_BYTES;
        let fits = !stream.head_sent
            && total <= self.frame_bytes
            && total as i64 <= i64::from(self.window.min(stream.send_window))
            && self.output.len() < READY_BYTES;
        if !fits {
            self.message(streams, id, pieces)?;
            return self.finish(streams, id, Trailers::Ok);
        }
        self.window -= total as i32;
        if length <= COPY_BYTES_MAX && self.encoder.is_settled() {
            settled(self.output.bytes(), id.id, length as u32, pieces);
        } else {
            self.head(stream, &[]);
            let head = Head { length: total as u32, kind: kind::DATA, flags: 0, stream: id.id };
            self.output.bytes().extend_from_slice(&head.encode());
            self.output.bytes().extend_from_slice(&prefix(length as u32));
            for piece in pieces {
                self.output.payload_ref(piece);
            }
            self.end(stream, &Trailers::Ok);
        }
        // Nothing waits on the stream.
        if stream.receiving {
            self.reset(id.id, ErrorCode::NO_ERROR);
        }
        streams.remove(id);
        Ok(())
    }

    /// Sends the head of an answer with further metadata.
    pub(crate) fn open(
        &mut self,
        streams: &mut Streams,
        id: StreamId,
        metadata: &Block,
    ) -> Result<(), SendError> {
        let stream = streams.get_mut(id).filter(|stream| !stream.head_sent && stream.trailers.is_none());
        self.head(stream.ok_or(SendError::Ended)?, metadata.bytes());
        Ok(())
    }

    /// Sends the head of an answer that is not gRPC's.
    pub(crate) fn open_other(
        &mut self,
        streams: &mut Streams,
        id: StreamId,
        block: &Block,
    ) -> Result<(), SendError> {
        let stream = streams.get_mut(id).filter(|stream| !stream.head_sent && stream.trailers.is_none());
        stream.ok_or(SendError::Ended)?.head_sent = true;
        self.headers(id.id, false, |_, out| out.extend_from_slice(block.bytes()));
        Ok(())
    }

    /// Sends a message of a stream.
    pub(crate) fn message(
        &mut self,
        streams: &mut Streams,
        id: StreamId,
        pieces: &[Bytes],
    ) -> Result<(), SendError> {
        let length: usize = pieces.iter().map(Bytes::len).sum();
        let length = u32::try_from(length).map_err(|_| SendError::TooLong)?;
        let stream = self.sendable(streams, id)?;
        stream.push(Piece::Prefix { bytes: prefix(length), gone: 0 });
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            stream.push(Piece::Data(piece.clone()));
        }
        self.queued += length as usize + PREFIX_BYTES;
        self.pushed(streams, id);
        Ok(())
    }

    /// Sends a part of a body as it is.
    pub(crate) fn data(
        &mut self,
        streams: &mut Streams,
        id: StreamId,
        pieces: impl IntoIterator<Item = Bytes>,
    ) -> Result<(), SendError> {
        let stream = self.sendable(streams, id)?;
        let before = stream.queued;
        pieces
            .into_iter()
            .filter(|piece| !piece.is_empty())
            .for_each(|piece| stream.push(Piece::Data(piece)));
        let length = stream.queued - before;
        if length > 0 {
            self.queued += length;
            self.pushed(streams, id);
        }
        Ok(())
    }

    /// A stream that can still be sent on, and whose head was.
    fn sendable<'a>(&mut self, streams: &'a mut Streams, id: StreamId) -> Result<&'a mut Stream, SendError> {
        let stream = streams.get_mut(id).filter(|stream| stream.trailers.is_none());
        let stream = stream.ok_or(SendError::Ended)?;
        self.head(stream, &[]);
        Ok(stream)
    }

    fn pushed(&mut self, streams: &mut Streams, id: StreamId) {
        if let Some(stream) = streams.get_mut(id) {
            self.schedule(stream, id);
        }
        self.commit(streams);
        if let Some(stream) = streams.get_mut(id) {
            stream.writable_wanted |= stream.queued > self.writable_bytes;
        }
    }

    /// Ends an answer behind what waits on its stream.
    pub(crate) fn finish(
        &mut self,
        streams: &mut Streams,
        id: StreamId,
        trailers: Trailers,
    ) -> Result<(), SendError> {
        let stream = streams.get_mut(id).filter(|stream| stream.trailers.is_none());
        let stream = stream.ok_or(SendError::Ended)?;
        stream.trailers = Some(trailers);
        if stream.queued == 0 {
            self.ends.push_back(id);
            self.commit(streams);
        }
        Ok(())
    }

    /// Sends an answer that is a head and nothing else.
    pub(crate) fn respond(
        &mut self,
        streams: &mut Streams,
        id: StreamId,
        block: &Block,
    ) -> Result<(), SendError> {
        let stream = streams.get_mut(id).filter(|stream| !stream.head_sent && stream.trailers.is_none());
        stream.ok_or(SendError::Ended)?.head_sent = true;
        self.finish(streams, id, block.clone().into())
    }

    /// Lets a stream wait for its turn if it can send.
    fn schedule(&mut self, stream: &mut Stream, id: StreamId) {
        if !stream.scheduled && stream.queued > 0 && stream.send_window > 0 {
            stream.scheduled = true;
            let ring = if stream.queued <= SHORT_BYTES { &mut self.short } else { &mut self.long };
            ring.push_back(id);
        }
    }

    fn next(&mut self) -> Option<StreamId> {
        if (self.short_turns < SHORT_TURNS || self.long.is_empty())
            && let Some(id) = self.short.pop_front()
        {
            self.short_turns += 1;
            return Some(id);
        }
        self.short_turns = 0;
        self.long.pop_front()
    }

    /// Makes frames of what waits, as far as the window of the connection goes and the socket needs them.
    #[inline]
    pub(crate) fn commit(&mut self, streams: &mut Streams) {
        if !(self.short.is_empty() && self.long.is_empty() && self.ends.is_empty()) {
            self.commit_some(streams);
        }
    }

    fn commit_some(&mut self, streams: &mut Streams) {
        while self.output.len() < READY_BYTES
            && let Some(id) = self.ends.pop_front()
        {
            self.end_now(streams, id);
        }
        while self.output.len() < READY_BYTES
            && self.window > 0
            && let Some(id) = self.next()
        {
            // A stream that has ended may still be in a ring.
            let Some(stream) = streams.get_mut(id) else { continue };
            stream.scheduled = false;
            // SETTINGS may have closed its window since it was scheduled.
            let Ok(window) = usize::try_from(stream.send_window.min(self.window)) else { continue };
            let length = stream.queued.min(window).min(self.frame_bytes);
            if length == 0 {
                continue;
            }
            let head = Head { length: length as u32, kind: kind::DATA, flags: 0, stream: stream.id };
            self.output.bytes().extend_from_slice(&head.encode());
            stream.take(length, &mut self.output);
            self.queued -= length;
            stream.send_window -= length as i32;
            self.window -= length as i32;
            if stream.writable_wanted && stream.queued <= self.writable_bytes {
                stream.writable_wanted = false;
                self.writable.push(id);
            }
            if stream.queued > 0 {
                self.schedule(stream, id);
            } else {
                self.end_now(streams, id);
            }
        }
    }

    /// Ends an answer of which everything else was sent.
    fn end_now(&mut self, streams: &mut Streams, id: StreamId) {
        if let Some(stream) = streams.get_mut(id)
            && let Some(trailers) = stream.trailers.take()
        {
            self.end(stream, &trailers);
            self.close(streams, id);
        }
    }

    /// The client takes more of the whole connection.
    pub(crate) fn open_window(&mut self, streams: &mut Streams, by: i32) -> Result<(), ConnectionError> {
        let window = self.window.checked_add(by);
        self.window = window.ok_or(ConnectionError::flow("the connection's window overflows"))?;
        self.commit(streams);
        Ok(())
    }

    /// The client takes more of a stream. Returns whether its window is a valid one.
    pub(crate) fn open_stream_window(&mut self, streams: &mut Streams, id: StreamId, by: i32) -> bool {
        let Some(stream) = streams.get_mut(id) else { return true };
        let Some(window) = stream.send_window.checked_add(by) else { return false };
        stream.send_window = window;
        self.schedule(stream, id);
        self.commit(streams);
        true
    }

    /// The client has changed the window of all streams. The caller commits when it has acknowledged that.
    pub(crate) fn set_initial_window(
        &mut self,
        streams: &mut Streams,
        to: u32,
    ) -> Result<(), ConnectionError> {
        let by = to as i32 - self.initial_window;
        self.initial_window = to as i32;
        for (id, stream) in streams.iter_mut() {
            let window = stream.send_window.checked_add(by);
            stream.send_window = window.ok_or(ConnectionError::flow("a stream's window overflows"))?;
            self.schedule(stream, id);
        }
        Ok(())
    }

    pub(crate) fn set_frame_bytes(&mut self, to: u32) {
        self.frame_bytes = (to as usize).min(FRAME_BYTES_MAX);
    }

    /// Forgets what waits on streams.
    pub(crate) fn clear(&mut self) {
        self.short.clear();
        self.long.clear();
        self.ends.clear();
        self.writable.clear();
        self.queued = 0;
    }
}

/// Writes a whole answer in three pieces, of which only the payload has no fixed length.
#[inline]
fn settled(out: &mut Vec<u8>, id: u32, length: u32, pieces: &[Bytes]) {
    const DATA_AT: usize = HEAD_BYTES + HEAD_BLOCK.len();
    let mut before = [0; DATA_AT + HEAD_BYTES + PREFIX_BYTES];
    let head =
        Head { length: HEAD_BLOCK.len() as u32, kind: kind::HEADERS, flags: flag::END_HEADERS, stream: id };
    before[..HEAD_BYTES].copy_from_slice(&head.encode());
    before[HEAD_BYTES..DATA_AT].copy_from_slice(&HEAD_BLOCK);
    let head = Head { length: length + PREFIX_BYTES as u32, kind: kind::DATA, flags: 0, stream: id };
    before[DATA_AT..DATA_AT + HEAD_BYTES].copy_from_slice(&head.encode());
    before[DATA_AT + HEAD_BYTES..].copy_from_slice(&prefix(length));
    let mut after = [0; HEAD_BYTES + TRAILERS_BLOCK.len()];
    let head = Head {
        length: TRAILERS_BLOCK.len() as u32,
        kind: kind::HEADERS,
        flags: flag::END_HEADERS | flag::END_STREAM,
        stream: id,
    };
    after[..HEAD_BYTES].copy_from_slice(&head.encode());
    after[HEAD_BYTES..].copy_from_slice(&TRAILERS_BLOCK);
    out.reserve(before.len() + length as usize + after.len());
    out.extend_from_slice(&before);
    for piece in pieces {
        out.extend_from_slice(piece);
    }
    out.extend_from_slice(&after);
}

#[cfg(test)]
mod tests;
