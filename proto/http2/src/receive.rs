//! The receiving half: frames of the client become events.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::{
    connection::{Connection, Ending, Phase, SHUTDOWN_PING},
    error::ConnectionError,
    event::Event,
    frame::{
        ErrorCode, HEAD_BYTES, Head, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MIN, PREFACE, WINDOW_DEFAULT,
        WINDOW_MAX, flag, kind, setting, without_padding,
    },
    output::COPY_BYTES_MAX,
    streams::StreamId,
};

mod headers;

pub(crate) use headers::Continuing;

/// Which stream a frame belongs to.
enum Of {
    Open(StreamId),
    /// It has ended, or this server takes no more of the client's streams.
    Ended,
    /// It has ended because of us, and the client may not have known that.
    Abandoned,
}

impl Connection {
    /// Takes all whole frames of the input.
    pub(crate) fn frames(
        &mut self,
        input: &mut BytesMut,
        events: &mut Vec<Event>,
    ) -> Result<(), ConnectionError> {
        match self.phase {
            Phase::Failed(error) => return Err(error),
            Phase::Preface => {
                let length = input.len().min(PREFACE.len());
                if input[..length] != PREFACE[..length] {
                    return Err(ConnectionError::protocol("the client does not speak HTTP/2"));
                }
                if length < PREFACE.len() {
                    return Ok(());
                }
                input.advance(PREFACE.len());
                self.phase = Phase::Settings;
            }
            Phase::Settings | Phase::Open => {}
        }
        let mut at = 0;
        while let Some(bytes) = input[at..].first_chunk() {
            let head = Head::parse(bytes);
            if head.length > self.limits.frame_bytes_max {
                return Err(ConnectionError::size("a frame is longer than was allowed"));
            }
            let begin = at + HEAD_BYTES;
            let end = begin + head.length as usize;
            if end > input.len() {
                break;
            }
            at = end;
            if self.phase != Phase::Open || self.continuing.is_some() {
                self.expected(head)?;
            }
            if head.kind == kind::DATA {
                let body = without_padding(head, &input[begin..end]);
                let body = body.map_err(|_| ConnectionError::protocol("padding is longer than its frame"))?;
                let length = body.len();
                let Some((stream, last)) = self.data_frame(head, length, events)? else { continue };
                let bytes = if length <= COPY_BYTES_MAX {
                    Bytes::copy_from_slice(body)
                } else {
                    // One byte says how long the padding is.
                    let from = begin + usize::from(head.has(flag::PADDED));
                    input.advance(from);
                    at -= from + length;
                    input.split_to(length).freeze()
                };
                events.push(Event::Data { stream, bytes, end: last });
            } else {
                self.frame(head, &input[begin..end], events)?;
            }
        }
        input.advance(at);
        Ok(())
    }

    /// Checks that a frame is one that may come now.
    #[cold]
    fn expected(&mut self, head: Head) -> Result<(), ConnectionError> {
        if let Some(continuing) = &self.continuing {
            return if head.kind == kind::CONTINUATION && head.stream == continuing.head.stream {
                Ok(())
            } else {
                Err(ConnectionError::protocol("a header block is interrupted"))
            };
        }
        if head.kind != kind::SETTINGS || head.has(flag::ACK) {
            return Err(ConnectionError::protocol("the first frame is not SETTINGS"));
        }
        self.phase = Phase::Open;
        Ok(())
    }

    #[inline]
    fn frame(&mut self, head: Head, payload: &[u8], events: &mut Vec<Event>) -> Result<(), ConnectionError> {
        match head.kind {
            kind::HEADERS => self.headers(head, payload, events),
            kind::CONTINUATION => self.continuation(head, payload, events),
            kind::WINDOW_UPDATE => self.window_update(head, payload, events),
            kind::RST_STREAM => self.rst_stream(head, payload, events),
            kind::SETTINGS => self.settings(head, payload),
            kind::PING => self.ping_frame(head, payload, events),
            kind::GOAWAY => goaway(head, payload, events),
            kind::PRIORITY => self.priority(head, payload, events),
            kind::PUSH_PROMISE => Err(ConnectionError::protocol("a client does not push")),
            _ => Ok(()),
        }
    }

    /// Finds the stream of a frame that does not begin one.
    #[inline]
    fn of(&self, id: u32) -> Result<Of, ConnectionError> {
        if let Some(stream) = self.streams.find(id) {
            return Ok(Of::Open(stream));
        }
        if id == 0 || id & 1 == 0 || id > self.last {
            return Err(ConnectionError::protocol("a frame belongs to no stream"));
        }
        let beyond = matches!(self.ending, Ending::Last(last) if id > last);
        Ok(if beyond || self.sender.is_own_reset(id) { Of::Abandoned } else { Of::Ended })
    }

    /// Counts what was written last, which the client has to read.
    fn control(&mut self) -> Result<(), ConnectionError> {
        self.sender.output.mark_control();
        self.controls_are_read()
    }

    #[inline]
    fn controls_are_read(&self) -> Result<(), ConnectionError> {
        if self.sender.output.controls() > self.limits.control_answers_max {
            return Err(ConnectionError::calm("what the client asks for is not read"));
        }
        Ok(())
    }

    /// Resets a stream that may not be open.
    #[cold]
    fn refuse(&mut self, id: u32, code: ErrorCode) -> Result<(), ConnectionError> {
        self.sender.reset(id, code);
        self.control()?;
        self.misdeed()
    }

    /// Counts what an attacker does to let the server work for nothing.
    #[cold]
    fn misdeed(&mut self) -> Result<(), ConnectionError> {
        if self.resets.spend() { Ok(()) } else { Err(ConnectionError::calm("too many streams were reset")) }
    }

    /// Ends a stream that breaks the protocol.
    #[cold]
    fn stream_error(
        &mut self,
        stream: StreamId,
        code: ErrorCode,
        events: &mut Vec<Event>,
    ) -> Result<(), ConnectionError> {
        self.sender.forget(&mut self.streams, stream);
        events.push(Event::Reset { stream, code });
        self.refuse(stream.id, code)
    }

    /// Decides what happens with the payload of a DATA frame. Returns the stream that it is for.
    #[inline]
    fn data_frame(
        &mut self,
        head: Head,
        body: usize,
        events: &mut Vec<Event>,
    ) -> Result<Option<(StreamId, bool)>, ConnectionError> {
        // The connection's window is used by every DATA frame.
        let length = head.length as i32;
        if length > self.receive_window {
            return Err(ConnectionError::flow("DATA exceeds the connection's window"));
        }
        self.receive_window -= length;
        // Unless a stream takes it.
        self.receive_credit += head.length;
        let stream = match self.of(head.stream)? {
            Of::Open(stream) => stream,
            Of::Abandoned => return Ok(None),
            Of::Ended => return self.refuse(head.stream, ErrorCode::STREAM_CLOSED).map(|()| None),
        };
        let Some(found) = self.streams.get_mut(stream) else { return Ok(None) };
        let end = head.has(flag::END_STREAM);
        let fault = if !found.receiving {
            Some(ErrorCode::STREAM_CLOSED)
        } else if length > found.receive_window {
            Some(ErrorCode::FLOW_CONTROL_ERROR)
        } else if !fits(&mut found.body_left, body as u64, end) {
            Some(ErrorCode::PROTOCOL_ERROR)
        } else {
            None
        };
        if let Some(code) = fault {
            return self.stream_error(stream, code, events).map(|()| None);
        }
        found.receive_window -= length;
        found.receiving = !end;
        // Nobody has to release padding.
        found.unreleased += head.length;
        self.receive_credit -= head.length;
        let padding = head.length as usize - body;
        if padding > 0 {
            self.released(stream, padding);
        }
        if body > 0 {
            self.empty_data = 0;
        } else if !end {
            self.empty_data += 1;
            if self.empty_data > self.limits.empty_data_max {
                return Err(ConnectionError::calm("too many empty DATA frames"));
            }
            return Ok(None);
        }
        Ok(Some((stream, end)))
    }

    fn rst_stream(
        &mut self,
        head: Head,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), ConnectionError> {
        let code = payload.try_into().map_err(|_| ConnectionError::size("RST_STREAM has not four bytes"))?;
        if let Of::Open(stream) = self.of(head.stream)? {
            self.sender.forget(&mut self.streams, stream);
            events.push(Event::Reset { stream, code: ErrorCode(u32::from_be_bytes(code)) });
            self.misdeed()?;
        }
        Ok(())
    }

    fn window_update(
        &mut self,
        head: Head,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), ConnectionError> {
        let by = payload.try_into().map_err(|_| ConnectionError::size("WINDOW_UPDATE has not four bytes"))?;
        let by = (u32::from_be_bytes(by) & WINDOW_MAX) as i32;
        if head.stream == 0 {
            if by == 0 {
                return Err(ConnectionError::protocol("a window opens by nothing"));
            }
            return self.sender.open_window(&mut self.streams, by);
        }
        let Of::Open(stream) = self.of(head.stream)? else { return Ok(()) };
        if by == 0 {
            return self.stream_error(stream, ErrorCode::PROTOCOL_ERROR, events);
        }
        if self.sender.open_stream_window(&mut self.streams, stream, by) {
            Ok(())
        } else {
            self.stream_error(stream, ErrorCode::FLOW_CONTROL_ERROR, events)
        }
    }

    fn settings(&mut self, head: Head, payload: &[u8]) -> Result<(), ConnectionError> {
        if head.stream != 0 {
            return Err(ConnectionError::protocol("SETTINGS belong to a stream"));
        }
        if head.has(flag::ACK) {
            if !payload.is_empty() {
                return Err(ConnectionError::size("an acknowledgement of SETTINGS has a payload"));
            }
            self.acknowledged();
            return Ok(());
        }
        if !payload.len().is_multiple_of(6) {
            return Err(ConnectionError::size("SETTINGS have half a setting"));
        }
        for setting in payload.chunks_exact(6) {
            let &[a, b, ref value @ ..] = setting else { continue };
            let Ok(value) = value.try_into().map(u32::from_be_bytes) else { continue };
            self.setting(u16::from_be_bytes([a, b]), value)?;
        }
        // The acknowledgement goes before frames that the settings allow.
        self.sender.frame(kind::SETTINGS, flag::ACK, 0, &[]);
        self.control()?;
        self.sender.commit(&mut self.streams);
        Ok(())
    }

    fn setting(&mut self, name: u16, value: u32) -> Result<(), ConnectionError> {
        match name {
            setting::HEADER_TABLE_SIZE => self.sender.encoder.table_size(value),
            setting::ENABLE_PUSH if value > 1 => {
                return Err(ConnectionError::protocol("ENABLE_PUSH is neither 0 nor 1"));
            }
            setting::INITIAL_WINDOW_SIZE if value > WINDOW_MAX => {
                return Err(ConnectionError::flow("INITIAL_WINDOW_SIZE is too large"));
            }
            setting::INITIAL_WINDOW_SIZE => self.sender.set_initial_window(&mut self.streams, value)?,
            setting::MAX_FRAME_SIZE => {
                if !(PAYLOAD_BYTES_MIN..=PAYLOAD_BYTES_MAX).contains(&value) {
                    return Err(ConnectionError::protocol("MAX_FRAME_SIZE is out of bounds"));
                }
                self.sender.set_frame_bytes(value);
            }
            _ => {}
        }
        Ok(())
    }

    /// Until the client says that it has our settings, the defaults hold as well, where they allow more.
    fn acknowledged(&mut self) {
        if std::mem::replace(&mut self.settings_acknowledged, true) {
            return;
        }
        self.decoder.acknowledged(self.limits.header_table_bytes as usize);
        let too_much = WINDOW_DEFAULT.saturating_sub(self.limits.stream_window) as i32;
        if too_much > 0 {
            for (_, stream) in self.streams.iter_mut() {
                stream.receive_window -= too_much;
            }
        }
    }

    /// The window of a new stream.
    fn stream_window(&self) -> i32 {
        let window = self.limits.stream_window;
        (if self.settings_acknowledged { window } else { window.max(WINDOW_DEFAULT) }) as i32
    }

    fn ping_frame(
        &mut self,
        head: Head,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), ConnectionError> {
        if head.stream != 0 {
            return Err(ConnectionError::protocol("PING belongs to a stream"));
        }
        let payload: [u8; 8] =
            payload.try_into().map_err(|_| ConnectionError::size("PING has not eight bytes"))?;
        if !head.has(flag::ACK) {
            if self.is_probe(payload) {
                return self.controls_are_read();
            }
            self.sender.frame(kind::PING, flag::ACK, 0, &payload);
            return self.control();
        }
        if payload != SHUTDOWN_PING {
            events.push(Event::Pong { payload });
        } else if self.ending == Ending::Announced {
            self.take_no_more();
        }
        Ok(())
    }

    /// Priorities are ignored, except that a stream that depends on itself is an error (RFC 7540, section 5.3.1).
    fn priority(
        &mut self,
        head: Head,
        payload: &[u8],
        events: &mut Vec<Event>,
    ) -> Result<(), ConnectionError> {
        if head.stream == 0 {
            return Err(ConnectionError::protocol("PRIORITY belongs to no stream"));
        }
        let code = match payload.first_chunk() {
            Some(on) if payload.len() == 5 && u32::from_be_bytes(*on) & WINDOW_MAX == head.stream => {
                ErrorCode::PROTOCOL_ERROR
            }
            Some(_) if payload.len() == 5 => return Ok(()),
            _ => ErrorCode::FRAME_SIZE_ERROR,
        };
        match self.streams.find(head.stream) {
            Some(stream) => self.stream_error(stream, code, events),
            None if head.stream > self.last => {
                Err(ConnectionError::new(code, "PRIORITY of an idle stream is wrong"))
            }
            None => self.refuse(head.stream, code),
        }
    }
}

fn goaway(head: Head, payload: &[u8], events: &mut Vec<Event>) -> Result<(), ConnectionError> {
    if head.stream != 0 {
        return Err(ConnectionError::protocol("GOAWAY belongs to a stream"));
    }
    let &[_, _, _, _, a, b, c, d, ..] = payload else {
        return Err(ConnectionError::size("GOAWAY is too short"));
    };
    events.push(Event::GoAway { code: ErrorCode(u32::from_be_bytes([a, b, c, d])) });
    Ok(())
}

/// Whether a part of a body, which may be its end, agrees with the length that the head has given.
#[inline]
fn fits(left: &mut Option<u64>, part: u64, end: bool) -> bool {
    let Some(total) = left else { return true };
    let Some(rest) = total.checked_sub(part) else { return false };
    *total = rest;
    !end || rest == 0
}

#[cfg(test)]
mod tests;
