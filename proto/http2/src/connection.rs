//! A connection: what its owner calls. What arrives is taken in [`crate::receive`], what leaves is made in
//! [`crate::send`].

use std::{collections::VecDeque, io::IoSlice, sync::Arc};

use bytes::{Bytes, BytesMut};

use crate::{
    error::{ConnectionError, SendError},
    event::Event,
    frame::{ErrorCode, PAYLOAD_BYTES_MIN, WINDOW_DEFAULT, WINDOW_MAX, kind, setting},
    hpack::{
        decoder::Decoder,
        encoder::{Block, Trailers},
    },
    limits::{Budget, Limits},
    probe::Probe,
    receive::Continuing,
    request::Memory,
    routes::Routes,
    send::Sender,
    streams::{StreamId, Streams},
};

/// What the PING says that comes back when the client has surely seen the first GOAWAY.
pub(crate) const SHUTDOWN_PING: [u8; 8] = *b"goodbye\0";

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The client's preface is awaited.
    Preface,
    /// The client's first SETTINGS are awaited.
    Settings,
    Open,
    Failed(ConnectionError),
}

/// How far a graceful end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    No,
    /// The client was told to begin no more requests, but may not know it yet.
    Announced,
    /// Requests after this stream are not taken.
    Last(u32),
}

/// The server's side of one connection. Its first bytes are in the output from the begin.
#[derive(Debug)]
pub struct Connection {
    pub(crate) limits: Limits,
    pub(crate) phase: Phase,
    pub(crate) ending: Ending,
    pub(crate) decoder: Decoder,
    pub(crate) memory: Memory,
    pub(crate) streams: Streams,
    pub(crate) sender: Sender,
    /// The highest stream that the client has begun.
    pub(crate) last: u32,
    /// Streams that the client has passed over, as the first and the one behind the last.
    pub(crate) skipped: VecDeque<(u32, u32)>,
    pub(crate) continuing: Option<Continuing>,
    /// What the client may send on the connection.
    pub(crate) receive_window: i32,
    /// Received bytes that nobody holds any more, and that the client has not been told of.
    pub(crate) receive_credit: u32,
    /// Whether our SETTINGS were acknowledged.
    pub(crate) settings_acknowledged: bool,
    pub(crate) resets: Budget,
    pub(crate) empty_data: u32,
    pub(crate) probe: Probe,
}

impl Connection {
    /// A connection that was just accepted.
    #[must_use]
    pub fn new(limits: Limits, routes: Arc<Routes>) -> Self {
        let limits = limits.checked();
        let mut sender = Sender::new(limits.writable_bytes);
        let settings = [
            (setting::HEADER_TABLE_SIZE, limits.header_table_bytes, 4096),
            (setting::MAX_CONCURRENT_STREAMS, limits.streams_max, u32::MAX),
            (setting::INITIAL_WINDOW_SIZE, limits.stream_window, WINDOW_DEFAULT),
            (setting::MAX_FRAME_SIZE, limits.frame_bytes_max, PAYLOAD_BYTES_MIN),
            (setting::MAX_HEADER_LIST_SIZE, limits.header_list_bytes_max, u32::MAX),
        ];
        let mut payload = Vec::new();
        for (name, value, _) in settings.iter().filter(|(_, value, default)| value != default) {
            payload.extend_from_slice(&name.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        sender.frame(kind::SETTINGS, 0, 0, &payload);
        if limits.connection_window > WINDOW_DEFAULT {
            let by = limits.connection_window - WINDOW_DEFAULT;
            sender.frame(kind::WINDOW_UPDATE, 0, 0, &by.to_be_bytes());
        }
        Self {
            phase: Phase::Preface,
            ending: Ending::No,
            decoder: Decoder::new(limits.header_table_bytes as usize, routes),
            memory: Memory::default(),
            streams: Streams::new(),
            sender,
            last: 0,
            skipped: VecDeque::new(),
            continuing: None,
            receive_window: limits.connection_window as i32,
            receive_credit: 0,
            settings_acknowledged: false,
            resets: Budget::new(limits.resets_max),
            empty_data: 0,
            probe: Probe::default(),
            limits,
        }
    }

    /// Takes all whole frames of the input, and adds what they mean. What remains is the begin of a frame.
    ///
    /// # Errors
    /// When the connection has failed. What is to be sent ends with a GOAWAY then; all streams have ended without events.
    pub fn receive(&mut self, input: &mut BytesMut, events: &mut Vec<Event>) -> Result<(), ConnectionError> {
        let result = self.frames(input, events);
        if let Err(error) = result {
            input.clear();
            self.close(error.code, error.reason);
        }
        self.give_back();
        self.add_writable(events);
        result
    }

    /// Opens the connection's window by what nobody holds any more. What services have not read counts against it, so a
    /// client cannot have them hold more, however many streams it opens.
    pub(crate) fn give_back(&mut self) {
        self.receive_credit += self.streams.take_unheld();
        if self.receive_credit >= self.limits.connection_window / 2 && !matches!(self.phase, Phase::Failed(_))
        {
            let by = std::mem::take(&mut self.receive_credit);
            self.receive_window += by as i32;
            self.sender.frame(kind::WINDOW_UPDATE, 0, 0, &by.to_be_bytes());
            self.sender.output.mark_control();
        }
    }

    fn add_writable(&mut self, events: &mut Vec<Event>) {
        if !self.sender.writable.is_empty() {
            let open = |stream: &StreamId| self.streams.get(*stream).is_some();
            events
                .extend(self.sender.writable.drain(..).filter(open).map(|stream| Event::Writable { stream }));
        }
    }

    /// Sends a whole answer: head, one message, and trailers with status 0. The pieces are the message without its
    /// prefix.
    ///
    /// # Errors
    /// When the stream has ended.
    pub fn answer(&mut self, stream: StreamId, pieces: &[Bytes]) -> Result<(), SendError> {
        self.sender.answer(&mut self.streams, stream, pieces)?;
        self.earned();
        Ok(())
    }

    /// Sends the head of an answer, with metadata. Without this call the first message brings a head with none.
    ///
    /// # Errors
    /// When the stream has ended, or its head was sent.
    pub fn head(&mut self, stream: StreamId, metadata: &Block) -> Result<(), SendError> {
        self.sender.open(&mut self.streams, stream, metadata)
    }

    /// Sends the head of an answer that is not gRPC's, as [`Block::http`] begins it, and which a body follows.
    ///
    /// # Errors
    /// When the stream has ended, or its head was sent.
    pub fn open(&mut self, stream: StreamId, block: &Block) -> Result<(), SendError> {
        self.sender.open_other(&mut self.streams, stream, block)
    }

    /// Sends one message of an answer. The pieces are the message without its prefix.
    ///
    /// # Errors
    /// When the stream has ended.
    pub fn message(&mut self, stream: StreamId, pieces: &[Bytes]) -> Result<(), SendError> {
        self.sender.message(&mut self.streams, stream, pieces)
    }

    /// Sends bytes of an answer as they are, such as a part of a message whose prefix was among earlier ones. The pieces
    /// go into common frames.
    ///
    /// # Errors
    /// When the stream has ended.
    pub fn data(
        &mut self,
        stream: StreamId,
        pieces: impl IntoIterator<Item = Bytes>,
    ) -> Result<(), SendError> {
        self.sender.data(&mut self.streams, stream, pieces)
    }

    /// Ends an answer, behind the messages that wait. Without a head before, the trailers are an answer of their own: this
    /// is how a call fails.
    ///
    /// # Errors
    /// When the stream has ended, or was finished.
    pub fn finish(&mut self, stream: StreamId, trailers: Trailers) -> Result<(), SendError> {
        self.sender.finish(&mut self.streams, stream, trailers)?;
        self.earned();
        Ok(())
    }

    /// Answers with a head alone, as [`Block::http`] begins it: this is how what is no gRPC is refused.
    ///
    /// # Errors
    /// When the stream has ended, or its head was sent.
    pub fn respond(&mut self, stream: StreamId, block: &Block) -> Result<(), SendError> {
        self.sender.respond(&mut self.streams, stream, block)
    }

    /// Ends a stream at once, with what waits on it. A stream that has ended stays as it is.
    pub fn reset(&mut self, stream: StreamId, code: ErrorCode) {
        if self.streams.get(stream).is_some() {
            self.sender.reset(stream.id, code);
            self.sender.output.mark_control();
            self.sender.forget(&mut self.streams, stream);
        }
    }

    /// A client that has its requests answered may give some up.
    #[inline]
    fn earned(&mut self) {
        self.resets.earn();
    }

    /// Gives the client back a part of the windows, which [`Event::Data`] has taken. What a stream holds when it ends comes
    /// back by itself.
    pub fn released(&mut self, stream: StreamId, bytes: usize) {
        let Some(found) = self.streams.get_mut(stream) else { return };
        let bytes = found.unreleased.min(u32::try_from(bytes).unwrap_or(u32::MAX));
        found.unreleased -= bytes;
        if found.receiving {
            found.credit += bytes;
            if found.credit >= (self.limits.stream_window / 2).max(1) {
                let by = std::mem::take(&mut found.credit);
                found.receive_window += by as i32;
                self.sender.frame(kind::WINDOW_UPDATE, 0, stream.id, &by.to_be_bytes());
                self.sender.output.mark_control();
            }
        }
        self.receive_credit += bytes;
        self.give_back();
    }

    /// The bytes that wait on a stream. They are not yet in [`Connection::unsent`].
    #[must_use]
    pub fn queued(&self, stream: StreamId) -> usize {
        self.streams.get(stream).map_or(0, |stream| stream.queued)
    }

    /// The bytes that wait on all streams.
    #[must_use]
    pub fn queued_in_all(&self) -> usize {
        self.sender.queued
    }

    /// The bytes that wait for the socket.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.sender.output.len()
    }

    /// The number of open streams.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Fills slices with what is to be sent, and returns how many it filled. None means that there is nothing.
    pub fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.sender.output.gather(slices)
    }

    /// Forgets the bytes that were sent, and makes room for more of what waits.
    pub fn advance(&mut self, sent: usize, events: &mut Vec<Event>) {
        self.sender.output.advance(sent);
        self.sender.commit(&mut self.streams);
        self.measure();
        // Streams may have ended that held something.
        self.give_back();
        self.add_writable(events);
    }

    /// Asks the client for a sign of life, which is [`Event::Pong`].
    pub fn ping(&mut self, payload: [u8; 8]) {
        self.sender.frame(kind::PING, 0, 0, &payload);
    }

    /// Whether the client has acknowledged our settings. One that takes long may be closed with `SETTINGS_TIMEOUT`.
    #[must_use]
    pub fn settings_acknowledged(&self) -> bool {
        self.settings_acknowledged
    }

    /// Forgives the client its resets so far. The owner, who has a clock, calls it once in a while, so that a limit is one
    /// of a rate.
    pub fn forgive(&mut self) {
        self.resets.refill();
    }

    /// Begins a graceful end: open streams go on, requests that are under way are still taken, and the client is told to
    /// begin no more. A second call takes no more at once.
    pub fn shutdown(&mut self) {
        match self.ending {
            _ if matches!(self.phase, Phase::Failed(_)) => {}
            Ending::No => {
                self.ending = Ending::Announced;
                self.goaway(WINDOW_MAX, ErrorCode::NO_ERROR, "");
                self.ping(SHUTDOWN_PING);
            }
            Ending::Announced => self.take_no_more(),
            Ending::Last(_) => {}
        }
    }

    pub(crate) fn take_no_more(&mut self) {
        self.ending = Ending::Last(self.last);
        self.goaway(self.last, ErrorCode::NO_ERROR, "");
    }

    /// Ends the connection with an error. Open streams end without events.
    pub fn close(&mut self, code: ErrorCode, reason: &'static str) {
        if !matches!(self.phase, Phase::Failed(_)) {
            self.phase = Phase::Failed(ConnectionError { code, reason });
            let last = if let Ending::Last(last) = self.ending { last } else { self.last };
            self.goaway(last, code, reason);
            self.streams.clear();
            self.sender.clear();
            self.continuing = None;
        }
    }

    /// Whether the connection can be closed once all is sent: it has failed, or has ended gracefully.
    #[must_use]
    pub fn is_done(&self) -> bool {
        let ended = match self.phase {
            Phase::Failed(_) => true,
            _ => matches!(self.ending, Ending::Last(_)) && self.streams.len() == 0,
        };
        ended && self.sender.output.len() == 0
    }

    fn goaway(&mut self, last: u32, code: ErrorCode, reason: &str) {
        let mut payload = Vec::with_capacity(8 + reason.len());
        payload.extend_from_slice(&last.to_be_bytes());
        payload.extend_from_slice(&code.0.to_be_bytes());
        payload.extend_from_slice(reason.as_bytes());
        self.sender.frame(kind::GOAWAY, 0, 0, &payload);
    }
}

/// A connection may be moved to another thread.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Connection>();
};
