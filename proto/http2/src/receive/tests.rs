use bytes::Bytes;

use crate::{
    ConnectionError, ErrorCode, Event, Limits, Path, RouteId,
    frame::{PREFACE, flag, kind, setting},
    support::{
        PSEUDO, Peer, data, frame, headers, literal, request, request_with, reset, settings, window_update,
    },
};

fn peer() -> Peer {
    Peer::new(Limits::default(), &[])
}

fn failure(bytes: &[u8]) -> ErrorCode {
    failure_of(&mut peer(), bytes)
}

/// The code of the connection error, of which GOAWAY tells the client.
fn failure_of(peer: &mut Peer, bytes: &[u8]) -> ErrorCode {
    let Err(ConnectionError { code, .. }) = peer.take(bytes) else { panic!("no error: {:?}", peer.events) };
    let last = peer.sent().pop().expect("a GOAWAY");
    assert_eq!(last.0.kind, kind::GOAWAY);
    assert_eq!(last.1[4..8], code.0.to_be_bytes());
    assert!(peer.connection.is_done());
    assert!(peer.take(b"more").is_err());
    code
}

/// The codes of the resets that the server sends, by stream.
fn resets(peer: &mut Peer) -> Vec<(u32, ErrorCode)> {
    let frames = peer.sent().into_iter().filter(|(head, _)| head.kind == kind::RST_STREAM);
    frames
        .map(|(head, code)| (head.stream, ErrorCode(u32::from_be_bytes(code.try_into().unwrap()))))
        .collect()
}

/// The code with which the server resets stream 1.
fn stream_failure(bytes: &[u8]) -> ErrorCode {
    let mut peer = peer();
    peer.take(bytes).unwrap();
    let code = match resets(&mut peer)[..] {
        [(1, code)] => code,
        ref other => panic!("{other:?}"),
    };
    let seen = peer.events.iter().any(|event| matches!(event, Event::Request { .. }));
    let told =
        peer.events.iter().any(|event| matches!(event, Event::Reset { code: said, .. } if *said == code));
    assert_eq!(seen, told, "who has seen the request learns that it ended");
    code
}

#[test]
fn settings_are_the_first_that_both_sides_send() {
    let limits = Limits { frame_bytes_max: 20_000, connection_window: 100_000, ..Limits::default() };
    let mut peer = Peer::unopened(limits);
    let sent = peer.sent();
    assert_eq!(sent[0].0.kind, kind::SETTINGS);
    let has = |name: u16, value: u32| {
        let wanted = [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
        sent[0].1.chunks(6).any(|setting| setting == wanted)
    };
    assert!(has(setting::MAX_FRAME_SIZE, 20_000) && has(setting::MAX_CONCURRENT_STREAMS, 1000));
    assert_eq!((sent[1].0.kind, &sent[1].1[..]), (kind::WINDOW_UPDATE, &34_465_u32.to_be_bytes()[..]));
    for cut in 0..PREFACE.len() {
        let mut peer = Peer::unopened(Limits::default());
        peer.take(&PREFACE[..cut]).unwrap();
        peer.take(&PREFACE[cut..]).unwrap();
        peer.take(&settings(&[])).unwrap();
    }
}

#[test]
fn what_is_no_preface_ends_the_connection() {
    assert_eq!(
        failure_of(&mut Peer::unopened(Limits::default()), b"GET / HTTP/1.1\r\n"),
        ErrorCode::PROTOCOL_ERROR
    );
    for first in
        [frame(kind::PING, 0, 0, &[0; 8]), frame(kind::SETTINGS, flag::ACK, 0, &[]), request(1, true)]
    {
        let mut peer = Peer::unopened(Limits::default());
        assert_eq!(failure_of(&mut peer, &[&PREFACE[..], &first].concat()), ErrorCode::PROTOCOL_ERROR);
    }
}

#[test]
fn a_request_has_its_head() {
    let mut peer = peer();
    let mut block = vec![0x83, 0x86];
    let fields = [
        (":path", "/known"),
        (":authority", "a:1"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("user-agent", "u"),
        ("grpc-timeout", "5S"),
        ("x-b", "2"),
        ("x-a-bin", "AAA"),
        ("x-b", "3"),
    ];
    for (name, value) in fields {
        block.extend(literal(name.as_bytes(), value.as_bytes()));
    }
    peer.take(&headers(1, true, &block)).unwrap();
    let [Event::Request { head, end: true, stream }] = &peer.events[..] else { panic!("{:?}", peer.events) };
    assert_eq!(stream.number(), 1);
    assert_eq!(head.path, Path::Known(RouteId(1)));
    assert!(head.is_grpc() && head.te_trailers);
    assert_eq!(head.authority.as_deref(), Some(&b"a:1"[..]));
    assert_eq!(head.timeout.duration(), Some(std::time::Duration::from_secs(5)));
    let metadata: Vec<_> = head.metadata.iter().map(|(name, value)| (&name[..], &value[..])).collect();
    assert_eq!(metadata, [(&b"x-b"[..], &b"2"[..]), (b"x-a-bin", b"AAA"), (b"x-b", b"3")]);
    assert_eq!(head.metadata("x-b").map(|value| &value[..]), Some(&b"2"[..]));
}

#[test]
fn a_body_comes_without_its_padding() {
    let mut peer = peer();
    peer.take(&request(1, false)).unwrap();
    let long = vec![7; 5000];
    peer.take(&frame(kind::DATA, flag::PADDED, 1, &[&[3], &long[..], &[0; 3]].concat())).unwrap();
    peer.take(&frame(kind::DATA, flag::PADDED | flag::END_STREAM, 1, &[1, b'x', 0])).unwrap();
    let bodies: Vec<_> = peer
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Data { bytes, end, .. } => Some((bytes.clone(), *end)),
            _ => None,
        })
        .collect();
    assert_eq!(bodies, [(Bytes::from(long), false), (Bytes::from_static(b"x"), true)]);
}

#[test]
fn trailers_end_a_body() {
    let mut peer = peer();
    peer.take(&request(1, false)).unwrap();
    peer.take(&headers(1, true, &literal(b"x", b"y"))).unwrap();
    assert!(matches!(&peer.events[1..], [Event::Trailers { .. }]));
}

#[test]
fn malformed_requests_are_errors_of_their_stream() {
    for block in [
        vec![],
        vec![0x83, 0x86],
        vec![0x83, 0x84],
        vec![0x86, 0x84],
        [&PSEUDO[..], &[0x83]].concat(),
        [&[0x83, 0x86], &literal(b"x", b"y")[..], &[0x84]].concat(),
        [&PSEUDO, &literal(b"X", b"y")[..]].concat(),
        [&PSEUDO, &literal(b"connection", b"close")[..]].concat(),
        [&PSEUDO, &literal(b"te", b"gzip")[..]].concat(),
        [&PSEUDO, &literal(b":x", b"y")[..]].concat(),
        [&PSEUDO[..], &[0x88]].concat(),
        [&PSEUDO, &literal(b"content-length", b"x")[..]].concat(),
        [&PSEUDO, &literal(b"content-length", b"1")[..], &literal(b"content-length", b"2")].concat(),
        [&PSEUDO, &literal(b":authority", b"a")[..], &literal(b"host", b"b")].concat(),
    ] {
        assert_eq!(stream_failure(&headers(1, true, &block)), ErrorCode::PROTOCOL_ERROR, "{block:x?}");
    }
    // What follows is of no interest, and the next request is served.
    let mut peer = peer();
    peer.take(&headers(1, false, &[0x83])).unwrap();
    peer.take(&[data(1, true, b"x"), headers(1, true, &[0x83]), request(3, true)].concat()).unwrap();
    assert!(matches!(peer.events[..], [Event::Request { .. }]));
}

#[test]
fn a_host_stands_in_for_the_authority() {
    let mut peer = peer();
    peer.take(&request_with(1, true, &[("host", "h")])).unwrap();
    peer.take(&request_with(3, true, &[("host", "h"), ("host", "h")])).unwrap();
    for event in &peer.events {
        let Event::Request { head, .. } = event else { panic!("{event:?}") };
        assert_eq!(head.authority.as_deref(), Some(&b"h"[..]));
    }
}

#[test]
fn a_body_is_as_long_as_it_says() {
    let with = |length: &str, end| request_with(1, end, &[("content-length", length)]);
    for wrong in [
        with("1", true),
        [with("1", false), data(1, true, b"")].concat(),
        [with("1", false), data(1, false, b"ab")].concat(),
        [with("1", false), headers(1, true, &[])].concat(),
    ] {
        assert_eq!(stream_failure(&wrong), ErrorCode::PROTOCOL_ERROR);
    }
    for right in [with("0", true), [with("2", false), data(1, false, b"a"), data(1, true, b"b")].concat()] {
        let mut peer = peer();
        peer.take(&right).unwrap();
        assert_eq!(resets(&mut peer), []);
    }
}

#[test]
fn errors_of_a_stream_leave_the_connection() {
    for (frames, code) in [
        ([request(1, true), data(1, false, b"x")].concat(), ErrorCode::STREAM_CLOSED),
        ([request(1, true), headers(1, true, &[])].concat(), ErrorCode::STREAM_CLOSED),
        ([request(1, false), headers(1, false, &[])].concat(), ErrorCode::PROTOCOL_ERROR),
        ([request(1, false), headers(1, true, &[0x83])].concat(), ErrorCode::PROTOCOL_ERROR),
        ([request(1, true), window_update(1, 0)].concat(), ErrorCode::PROTOCOL_ERROR),
        ([request(1, true), window_update(1, 0x7fff_ffff)].concat(), ErrorCode::FLOW_CONTROL_ERROR),
        ([request(1, true), frame(kind::PRIORITY, 0, 1, &[0; 4])].concat(), ErrorCode::FRAME_SIZE_ERROR),
        (
            [request(1, true), frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 0])].concat(),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (frame(kind::HEADERS, 0x25, 1, &[&[0, 0, 0, 1, 0], &PSEUDO[..]].concat()), ErrorCode::PROTOCOL_ERROR),
    ] {
        assert_eq!(stream_failure(&frames), code, "{frames:x?}");
    }
}

#[test]
fn errors_of_the_connection_end_it() {
    use ErrorCode as C;
    let long = frame(kind::DATA, 0, 1, &[0; 16_385]);
    for (frames, code) in [
        (long[..9].to_vec(), C::FRAME_SIZE_ERROR),
        (data(0, true, b"x"), C::PROTOCOL_ERROR),
        (data(1, true, b"x"), C::PROTOCOL_ERROR),
        (data(2, true, b"x"), C::PROTOCOL_ERROR),
        ([request(1, false), frame(kind::DATA, flag::PADDED, 1, &[1])].concat(), C::PROTOCOL_ERROR),
        (request(0, true), C::PROTOCOL_ERROR),
        (request(2, true), C::PROTOCOL_ERROR),
        ([request(5, true), request(3, true)].concat(), C::PROTOCOL_ERROR),
        ([request(1, true), reset(1), request(1, true)].concat(), C::STREAM_CLOSED),
        (headers(1, true, &[0x80]), C::COMPRESSION_ERROR),
        (frame(kind::HEADERS, 0x24, 1, &[0; 4]), C::FRAME_SIZE_ERROR),
        (frame(kind::PRIORITY, 0, 0, &[0; 5]), C::PROTOCOL_ERROR),
        (reset(0), C::PROTOCOL_ERROR),
        (reset(1), C::PROTOCOL_ERROR),
        ([request(1, true), frame(kind::RST_STREAM, 0, 1, &[0; 5])].concat(), C::FRAME_SIZE_ERROR),
        (frame(kind::SETTINGS, 0, 1, &[]), C::PROTOCOL_ERROR),
        (frame(kind::SETTINGS, 0, 0, &[0; 5]), C::FRAME_SIZE_ERROR),
        (frame(kind::SETTINGS, flag::ACK, 0, &[0; 6]), C::FRAME_SIZE_ERROR),
        (settings(&[(setting::ENABLE_PUSH, 2)]), C::PROTOCOL_ERROR),
        (settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 31)]), C::FLOW_CONTROL_ERROR),
        (settings(&[(setting::MAX_FRAME_SIZE, 16_383)]), C::PROTOCOL_ERROR),
        (settings(&[(setting::MAX_FRAME_SIZE, 1 << 24)]), C::PROTOCOL_ERROR),
        (frame(kind::PUSH_PROMISE, 4, 1, &[0; 4]), C::PROTOCOL_ERROR),
        (frame(kind::PING, 0, 1, &[0; 8]), C::PROTOCOL_ERROR),
        (frame(kind::PING, 0, 0, &[0; 7]), C::FRAME_SIZE_ERROR),
        (frame(kind::GOAWAY, 0, 1, &[0; 8]), C::PROTOCOL_ERROR),
        (frame(kind::GOAWAY, 0, 0, &[0; 7]), C::FRAME_SIZE_ERROR),
        (window_update(0, 0), C::PROTOCOL_ERROR),
        (window_update(1, 1), C::PROTOCOL_ERROR),
        (window_update(0, 0x7fff_ffff), C::FLOW_CONTROL_ERROR),
        (frame(kind::WINDOW_UPDATE, 0, 0, &[0; 3]), C::FRAME_SIZE_ERROR),
        (frame(kind::CONTINUATION, 4, 1, &[]), C::PROTOCOL_ERROR),
        ([frame(kind::HEADERS, 0, 1, &PSEUDO), data(1, true, b"")].concat(), C::PROTOCOL_ERROR),
        ([frame(kind::HEADERS, 0, 1, &PSEUDO), frame(0x77, 0, 1, b"")].concat(), C::PROTOCOL_ERROR),
        (
            [frame(kind::HEADERS, 0, 1, &PSEUDO), frame(kind::CONTINUATION, 4, 3, &[])].concat(),
            C::PROTOCOL_ERROR,
        ),
    ] {
        assert_eq!(failure(&frames), code, "{:x?}", &frames[..frames.len().min(60)]);
    }
}

#[test]
fn what_has_no_meaning_is_ignored() {
    let mut peer = peer();
    peer.take(&request(1, true)).unwrap();
    for ignored in [
        frame(0xfa, 0xff, 9, b"anything"),
        frame(kind::PRIORITY, 0, 99, &[0; 5]),
        frame(kind::PING, flag::ACK, 0, b"unasked."),
        frame(kind::SETTINGS, flag::ACK, 0, &[]),
        [request(3, true), reset(3), reset(3), window_update(3, 1)].concat(),
    ] {
        peer.take(&ignored).unwrap();
    }
    peer.take(&settings(&[(0xfafa, 7), (setting::ENABLE_PUSH, 0)])).unwrap();
    assert_eq!(peer.kinds(), [(kind::SETTINGS, 0)], "an acknowledgement");
}

#[test]
fn a_block_may_come_in_many_frames() {
    let mut peer = peer();
    peer.take(&frame(kind::HEADERS, flag::END_STREAM, 1, &PSEUDO[..1])).unwrap();
    peer.take(&frame(kind::CONTINUATION, 0, 1, &PSEUDO[1..2])).unwrap();
    peer.take(&frame(kind::CONTINUATION, 0, 1, &[])).unwrap();
    peer.take(&frame(kind::CONTINUATION, flag::END_HEADERS, 1, &PSEUDO[2..])).unwrap();
    assert!(matches!(peer.events[..], [Event::Request { end: true, .. }]));
}

#[test]
fn pings_are_answered_and_answers_are_seen() {
    let mut peer = peer();
    peer.take(&frame(kind::PING, 0, 0, b"12345678")).unwrap();
    let sent = peer.sent();
    assert_eq!((sent[0].0.kind, sent[0].0.flags, &sent[0].1[..]), (kind::PING, flag::ACK, &b"12345678"[..]));
    peer.connection.ping(*b"abcdefgh");
    let (_, payload) = peer.sent().pop().unwrap();
    peer.take(&frame(kind::PING, flag::ACK, 0, &payload)).unwrap();
    assert_eq!(peer.events, [Event::Pong { payload: *b"abcdefgh" }]);
}

#[test]
fn a_client_that_resets_or_leaves_is_seen() {
    let mut peer = peer();
    let stream = peer.request(1, false);
    peer.take(&reset(1)).unwrap();
    peer.take(&frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2, b'x'])).unwrap();
    let code = ErrorCode::INTERNAL_ERROR;
    assert_eq!(peer.events, [Event::Reset { stream, code: ErrorCode::CANCEL }, Event::GoAway { code }]);
    assert!(peer.connection.answer(stream, &[]).is_err());
    assert_eq!(peer.kinds(), [], "nothing is sent on a stream that was reset");
    peer.take(&data(1, false, b"late")).unwrap();
    assert_eq!(resets(&mut peer), [(1, ErrorCode::STREAM_CLOSED)]);
}

#[test]
fn an_orderly_end_takes_what_is_under_way() {
    let mut peer = peer();
    let first = peer.request(1, true);
    peer.connection.shutdown();
    let sent = peer.sent();
    assert_eq!((sent[0].0.kind, &sent[0].1[..4]), (kind::GOAWAY, &0x7fff_ffff_u32.to_be_bytes()[..]));
    assert_eq!(sent[1].0.kind, kind::PING);
    let second = peer.request(3, true);
    peer.take(&frame(kind::PING, flag::ACK, 0, &sent[1].1)).unwrap();
    let sent = peer.sent();
    assert_eq!((sent[0].0.kind, &sent[0].1[..4]), (kind::GOAWAY, &3_u32.to_be_bytes()[..]));
    peer.take(&[request(5, false), data(5, true, b"x"), reset(5)].concat()).unwrap();
    assert_eq!(peer.events, [], "requests after the last are not taken");
    assert_eq!(peer.kinds(), []);
    peer.connection.answer(first, &[]).unwrap();
    peer.connection.answer(second, &[]).unwrap();
    assert!(!peer.connection.is_done(), "something is to be sent");
    assert_eq!(peer.sent().len(), 6);
    assert!(peer.connection.is_done());
}

#[test]
fn settings_hold_when_they_are_acknowledged() {
    let limits = Limits { stream_window: 100, ..Limits::default() };
    let mut peer = Peer::unopened(limits.clone());
    peer.take(&[&PREFACE[..], &settings(&[])].concat()).unwrap();
    peer.request(1, false);
    peer.take(&data(1, false, &[0; 1000])).expect("the client may not know our window");
    peer.take(&frame(kind::SETTINGS, flag::ACK, 0, &[])).unwrap();
    peer.sent();
    peer.take(&data(1, false, &[0; 1])).unwrap();
    assert_eq!(resets(&mut peer), [(1, ErrorCode::FLOW_CONTROL_ERROR)]);
    peer.request(3, false);
    peer.take(&data(3, false, &[0; 101])).unwrap();
    assert_eq!(resets(&mut peer), [(3, ErrorCode::FLOW_CONTROL_ERROR)]);
}

#[test]
fn a_window_opens_when_its_bytes_are_released() {
    let limits = Limits { stream_window: 1000, ..Limits::default() };
    let mut peer = Peer::new(limits, &[]);
    let stream = peer.request(1, false);
    peer.take(&data(1, false, &[0; 900])).unwrap();
    peer.connection.released(stream, 400);
    assert_eq!(peer.kinds(), [], "not for so little");
    peer.connection.released(stream, 10_000);
    let sent = peer.sent();
    assert_eq!((sent[0].0.kind, &sent[0].1[..]), (kind::WINDOW_UPDATE, &900_u32.to_be_bytes()[..]));
    peer.take(&data(1, true, &[0; 1000])).unwrap();
    peer.connection.released(stream, 1000);
    assert_eq!(peer.kinds(), [], "the body has ended");
}

#[test]
fn padding_needs_no_release() {
    let limits = Limits { stream_window: 1000, ..Limits::default() };
    let mut peer = Peer::new(limits, &[]);
    peer.request(1, false);
    for _ in 0..20 {
        peer.take(&frame(kind::DATA, flag::PADDED, 1, &[&[199], &[0; 199][..]].concat())).unwrap();
    }
    assert!(peer.kinds().iter().all(|kind| *kind == (kind::WINDOW_UPDATE, 1)));
}
