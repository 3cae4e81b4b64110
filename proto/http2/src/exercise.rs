//! Any bytes as a client and as the server's owner, for the fuzzer and for properties: nothing panics, and what is sent
//! obeys the rules, whatever comes in.

use std::{
    collections::{HashMap, HashSet},
    io::IoSlice,
    sync::Arc,
};

use bytes::{Bytes, BytesMut};

use crate::{
    Block, Connection, ErrorCode, Event, Limits, RouteId, Routes, StreamId, Trailers,
    frame::{HEAD_BYTES, Head, PAYLOAD_BYTES_MIN, PREFACE, WINDOW_DEFAULT, WINDOW_MAX, flag, kind, setting},
};

/// Interprets the input as what a client sends and what the owner does in between.
///
/// # Panics
/// When it finds a defect.
pub fn run(input: &[u8]) {
    let (&way, input) = input.split_first().unwrap_or((&0, &[]));
    if way & 1 == 0 {
        let whole = received(input, &[]);
        let cuts: Vec<usize> = input.iter().take(8).map(|byte| usize::from(*byte)).collect();
        assert!(whole == received(input, &cuts), "the cuts make a difference");
    } else {
        let mut world = World::new(way & 2 != 0);
        let mut script = Script(input);
        while !script.0.is_empty() {
            world.step(&mut script);
        }
        world.end();
    }
}

/// Takes the input, behind a preface, in pieces of these lengths, and then in one. Returns the events and what is sent,
/// when answers of several kinds wait.
#[must_use]
pub fn received(input: &[u8], cuts: &[usize]) -> (Vec<Event>, Vec<u8>) {
    let mut connection = connection();
    let mut events = Vec::new();
    let mut buffer = BytesMut::from(&PREFACE[..]);
    buffer.extend_from_slice(&Head { length: 0, kind: kind::SETTINGS, flags: 0, stream: 0 }.encode());
    for id in [1, 3, 5] {
        buffer.extend_from_slice(
            &Head { length: 3, kind: kind::HEADERS, flags: flag::END_HEADERS, stream: id }.encode(),
        );
        buffer.extend_from_slice(&[0x83, 0x86, 0x84]);
    }
    connection.receive(&mut buffer, &mut events).expect("these frames are right");
    for event in &events {
        if let Event::Request { stream, .. } = event {
            let _open = connection.message(*stream, &[Bytes::from(vec![5; 40_000])]);
        }
    }
    let mut rest = input;
    for cut in cuts {
        let (now, later) = rest.split_at(rest.len().min(*cut));
        buffer.extend_from_slice(now);
        let _failed = connection.receive(&mut buffer, &mut events);
        rest = later;
    }
    buffer.extend_from_slice(rest);
    let _failed = connection.receive(&mut buffer, &mut events);
    let mut sent = Vec::new();
    while let Some(bytes) = sent_by(&mut connection, usize::MAX, &mut events) {
        sent.extend(bytes);
    }
    (events, sent)
}

fn connection() -> Connection {
    let routes: Routes = [("/known", RouteId(1))].into_iter().collect();
    let limits = Limits {
        streams_max: 8,
        stream_window: 30_000,
        writable_bytes: 1000,
        probe_bytes: 500,
        ..Limits::default()
    };
    Connection::new(limits, Arc::new(routes))
}

fn sent_by(connection: &mut Connection, at_most: usize, events: &mut Vec<Event>) -> Option<Vec<u8>> {
    let mut slices = [IoSlice::new(&[]); 4];
    let filled = connection.gather(&mut slices);
    let mut bytes = Vec::new();
    for slice in &slices[..filled] {
        bytes.extend_from_slice(slice);
    }
    bytes.truncate(at_most);
    connection.advance(bytes.len(), events);
    (!bytes.is_empty()).then_some(bytes)
}

/// Bytes from which decisions are taken. Behind their end all are zeros.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> u32 {
        // Small numbers and large ones are both of interest.
        let shift = self.byte() % 32;
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()]) >> shift
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.byte()).collect()
    }
}

/// A connection, its owner, and a model of what the client has allowed.
struct World {
    connection: Connection,
    input: BytesMut,
    events: Vec<Event>,
    streams: Vec<StreamId>,
    /// Streams that are answered, of which something may still wait.
    answered: Vec<StreamId>,
    sent: Vec<u8>,
    /// The highest window that the connection may have used, and each stream.
    window: u64,
    windows: HashMap<u32, u64>,
    initial_window: u64,
    frame_bytes: u32,
    used: u64,
    used_by: HashMap<u32, u64>,
    ended: HashSet<u32>,
    /// The stream that the client begins next.
    next: u32,
}

impl World {
    fn new(acknowledged: bool) -> Self {
        let mut world = Self {
            connection: connection(),
            input: BytesMut::from(&PREFACE[..]),
            events: Vec::new(),
            streams: Vec::new(),
            answered: Vec::new(),
            sent: Vec::new(),
            window: u64::from(WINDOW_DEFAULT),
            windows: HashMap::new(),
            initial_window: u64::from(WINDOW_DEFAULT),
            frame_bytes: PAYLOAD_BYTES_MIN,
            used: 0,
            used_by: HashMap::new(),
            ended: HashSet::new(),
            next: 1,
        };
        world.frame(kind::SETTINGS, 0, 0, &[]);
        if acknowledged {
            world.frame(kind::SETTINGS, flag::ACK, 0, &[]);
        }
        world
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let head = Head { length: payload.len() as u32, kind, flags, stream };
        self.input.extend_from_slice(&head.encode());
        self.input.extend_from_slice(payload);
        let _failed = self.connection.receive(&mut self.input, &mut self.events);
        for event in self.events.drain(..) {
            if let Event::Request { stream, .. } = event {
                self.streams.push(stream);
            }
        }
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let choice = script.byte();
        // Mostly a stream that there was, because a wrong one ends the connection.
        let wild = choice >= 0xf0;
        let byte = u32::from(script.byte());
        let stream = if wild { byte % 24 } else { byte % (self.next / 2).max(1) * 2 + 1 };
        match choice % 16 {
            0 | 1 => {
                let flags = flag::END_HEADERS | script.byte() & flag::END_STREAM;
                let stream = if wild { stream } else { self.next };
                self.next = self.next.max(stream + 1) | 1;
                self.frame(kind::HEADERS, flags, stream, &[0x83, 0x86, 0x84]);
            }
            2 if wild => {
                let (kind, flags, length) = (script.byte() % 12, script.byte(), script.byte() % 40);
                let payload = script.bytes(usize::from(length));
                self.allow(kind, flags, stream, &payload);
                self.frame(kind, flags, stream, &payload);
            }
            3 => {
                let flags = script.byte() & (flag::END_STREAM | flag::PADDED);
                self.frame(kind::DATA, flags, stream, &vec![1; script.number() as usize % 16_384]);
            }
            4 | 5 => {
                let stream = if choice & 64 == 0 { 0 } else { stream };
                let by = (script.number() % if wild { u32::MAX } else { 1 << 20 } + u32::from(!wild))
                    .to_be_bytes();
                self.allow(kind::WINDOW_UPDATE, 0, stream, &by);
                self.frame(kind::WINDOW_UPDATE, 0, stream, &by);
            }
            6 => {
                let (name, value) = match script.byte() % 8 {
                    0 if wild => (u16::from(script.byte() % 7), script.number()),
                    0 => (setting::HEADER_TABLE_SIZE, script.number()),
                    1 => (setting::MAX_FRAME_SIZE, 16_384 + script.number() % 100_000),
                    _ => (setting::INITIAL_WINDOW_SIZE, script.number() % 200_000),
                };
                let payload = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
                self.allow(kind::SETTINGS, 0, 0, &payload);
                self.frame(kind::SETTINGS, 0, 0, &payload);
            }
            7 => self.frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8]),
            8 => self.send(script.number() as usize % 20_000),
            _ => self.act(choice, script),
        }
    }

    /// What the owner does.
    fn act(&mut self, choice: u8, script: &mut Script<'_>) {
        let which = usize::from(script.byte());
        let at = which % self.streams.len().max(1);
        let Some(stream) = self.streams.get(at).copied() else { return };
        let bytes = Bytes::from(vec![2; script.number() as usize % 100_000]);
        let block = Block::status(u32::from(script.byte()), "a message");
        let length = bytes.len();
        let done = match choice % 16 {
            9 => self.connection.answer(stream, &[bytes, Bytes::from_static(b"x")]),
            10 | 11 => self.connection.message(stream, &[bytes]),
            12 => self.connection.finish(stream, Trailers::Ok),
            13 => self.connection.finish(stream, block.into()),
            14 if which & 64 == 0 => self.connection.data(stream, [bytes]),
            14 => self.connection.respond(stream, &block),
            _ if which == 255 => {
                self.connection.shutdown();
                Ok(())
            }
            _ if which & 64 == 0 => {
                self.connection.released(stream, length);
                Ok(())
            }
            _ => {
                self.connection.reset(stream, ErrorCode::CANCEL);
                Ok(())
            }
        };
        if done.is_err() {
            // Others have their turn more often.
            self.answered.push(self.streams.swap_remove(at));
        } else if matches!(choice % 16, 9..=11) {
            assert!(self.connection.unsent() + self.connection.queued_in_all() > 0, "it is nowhere");
        }
    }

    /// Notes what a frame of the client allows, if the server takes it.
    fn allow(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        if kind == kind::WINDOW_UPDATE
            && let Some(by) = payload.first_chunk()
        {
            let by = u64::from(u32::from_be_bytes(*by) & WINDOW_MAX);
            if stream == 0 {
                self.window += by;
            } else {
                *self.windows.entry(stream).or_default() += by;
            }
        }
        if kind == kind::SETTINGS && flags & flag::ACK == 0 {
            for one in payload.chunks_exact(6) {
                let (name, value) = (u16::from_be_bytes([one[0], one[1]]), [one[2], one[3], one[4], one[5]]);
                let value = u32::from_be_bytes(value);
                if name == setting::INITIAL_WINDOW_SIZE {
                    self.initial_window = self.initial_window.max(u64::from(value));
                } else if name == setting::MAX_FRAME_SIZE {
                    self.frame_bytes = self.frame_bytes.max(value);
                }
            }
        }
    }

    /// Takes bytes from the output, and checks the frames in it.
    fn send(&mut self, at_most: usize) {
        let Some(bytes) = sent_by(&mut self.connection, at_most, &mut self.events) else { return };
        self.sent.extend(bytes);
        while let Some((head, rest)) = self.sent.split_first_chunk::<HEAD_BYTES>() {
            let head = Head::parse(head);
            if rest.len() < head.length as usize {
                break;
            }
            self.sent.drain(..HEAD_BYTES + head.length as usize);
            self.check(head);
        }
    }

    fn check(&mut self, head: Head) {
        let length = u64::from(head.length);
        assert!(head.length <= self.frame_bytes, "a frame is too long: {head:?}");
        if matches!(head.kind, kind::DATA | kind::HEADERS) {
            assert!(
                head.stream & 1 == 1 && !self.ended.contains(&head.stream),
                "a stream has ended: {head:?}"
            );
        }
        if head.kind == kind::DATA {
            self.used += length;
            assert!(self.used <= self.window, "the connection's window is exceeded");
            let used = self.used_by.entry(head.stream).or_default();
            *used += length;
            let window = self.initial_window + self.windows.get(&head.stream).copied().unwrap_or(0);
            assert!(*used <= window, "the window of stream {} is exceeded", head.stream);
        }
        if head.kind == kind::RST_STREAM || head.kind == kind::HEADERS && head.has(flag::END_STREAM) {
            self.ended.insert(head.stream);
        }
    }

    fn end(&mut self) {
        while self.connection.unsent() > 0 {
            self.send(usize::MAX);
        }
        assert!(self.sent.is_empty(), "the last frame is whole");
        for stream in self.streams.drain(..).chain(self.answered.drain(..)) {
            self.connection.reset(stream, ErrorCode::CANCEL);
        }
        assert_eq!((self.connection.queued_in_all(), self.connection.open_streams()), (0, 0));
    }
}

#[cfg(test)]
mod tests;
