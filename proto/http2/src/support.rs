//! A client for tests: it writes frames and header blocks by hand, and reads what the server sends.

use std::{io::IoSlice, sync::Arc};

use bytes::BytesMut;

use crate::{
    Connection, ConnectionError, Event, Limits, RouteId, Routes, StreamId,
    frame::{HEAD_BYTES, Head, PREFACE, flag, kind},
    hpack::integer,
};

/// A frame as it is on the wire.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = Head { length: payload.len() as u32, kind, flags, stream };
    [&head.encode(), payload].concat()
}

/// Settings as a frame.
pub(crate) fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (name, value) in settings {
        payload.extend_from_slice(&name.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame(kind::SETTINGS, 0, 0, &payload)
}

pub(crate) fn window_update(stream: u32, by: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

pub(crate) fn reset(stream: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])
}

/// A literal field that does not enter the table.
pub(crate) fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = vec![0];
    for text in [name, value] {
        integer::write(&mut out, 0, 7, text.len());
        out.extend_from_slice(text);
    }
    out
}

/// The pseudo-header fields of a request: POST, http, `/`.
pub(crate) const PSEUDO: [u8; 3] = [0x83, 0x86, 0x84];

/// A request of a path, as HEADERS.
pub(crate) fn request(stream: u32, end: bool) -> Vec<u8> {
    request_with(stream, end, &[])
}

pub(crate) fn request_with(stream: u32, end: bool, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = PSEUDO.to_vec();
    for (name, value) in fields {
        block.extend(literal(name.as_bytes(), value.as_bytes()));
    }
    headers(stream, end, &block)
}

pub(crate) fn headers(stream: u32, end: bool, block: &[u8]) -> Vec<u8> {
    let flags = if end { flag::END_HEADERS | flag::END_STREAM } else { flag::END_HEADERS };
    frame(kind::HEADERS, flags, stream, block)
}

pub(crate) fn data(stream: u32, end: bool, payload: &[u8]) -> Vec<u8> {
    frame(kind::DATA, u8::from(end), stream, payload)
}

/// A connection with its events.
pub(crate) struct Peer {
    pub(crate) connection: Connection,
    pub(crate) events: Vec<Event>,
    input: BytesMut,
}

impl Peer {
    /// A connection before its preface.
    pub(crate) fn unopened(limits: Limits) -> Self {
        let routes: Routes = [("/known", RouteId(1))].into_iter().collect();
        let connection = Connection::new(limits, Arc::new(routes));
        Self { connection, events: Vec::new(), input: BytesMut::new() }
    }

    /// A connection whose settings are exchanged.
    pub(crate) fn new(limits: Limits, client: &[(u16, u32)]) -> Self {
        let mut peer = Self::unopened(limits);
        let acknowledge = frame(kind::SETTINGS, flag::ACK, 0, &[]);
        peer.take(&[PREFACE, &settings(client)[..], &acknowledge].concat()).unwrap();
        assert!(peer.connection.settings_acknowledged());
        peer.sent();
        peer
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(), ConnectionError> {
        self.input.extend_from_slice(bytes);
        self.connection.receive(&mut self.input, &mut self.events)
    }

    /// Takes a request, and returns its stream.
    pub(crate) fn request(&mut self, stream: u32, end: bool) -> StreamId {
        self.take(&request(stream, end)).unwrap();
        match self.events.pop() {
            Some(Event::Request { stream, .. }) => stream,
            other => panic!("no request but {other:?}"),
        }
    }

    /// The next bytes to be sent, at most so many.
    pub(crate) fn bytes(&mut self, at_most: usize) -> Vec<u8> {
        let mut slices = [IoSlice::new(&[]); 16];
        let filled = self.connection.gather(&mut slices);
        let mut bytes: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
        bytes.truncate(at_most);
        self.connection.advance(bytes.len(), &mut self.events);
        bytes
    }

    /// All frames that can be sent now.
    pub(crate) fn sent(&mut self) -> Vec<(Head, Vec<u8>)> {
        let mut bytes = Vec::new();
        loop {
            let next = self.bytes(usize::MAX);
            if next.is_empty() {
                return parsed(&bytes);
            }
            bytes.extend(next);
        }
    }

    /// By how much the frames that can be sent now open the window of a stream, or with zero that of the connection.
    pub(crate) fn sent_updates(&mut self, stream: u32) -> Vec<u32> {
        let updates = self.sent().into_iter();
        let updates = updates.filter(|(head, _)| (head.kind, head.stream) == (kind::WINDOW_UPDATE, stream));
        updates.map(|(_, by)| u32::from_be_bytes(by.try_into().unwrap())).collect()
    }

    /// The kind and the stream of all frames that can be sent now.
    pub(crate) fn kinds(&mut self) -> Vec<(u8, u32)> {
        self.sent().into_iter().map(|(head, _)| (head.kind, head.stream)).collect()
    }
}

/// Whole frames.
pub(crate) fn parsed(mut bytes: &[u8]) -> Vec<(Head, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() {
        let head = Head::parse(head);
        let (payload, rest) = rest.split_at(head.length as usize);
        frames.push((head, payload.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty(), "the last frame is cut");
    frames
}
