use bytes::Bytes;

use super::*;
use crate::{
    Connection, Event, Limits,
    frame::setting,
    support::{Peer, parsed, request, reset, settings, window_update},
};

fn large(length: usize) -> Bytes {
    Bytes::from(vec![9; length])
}

fn peer(client: &[(u16, u32)]) -> Peer {
    Peer::new(Limits::default(), client)
}

/// The lengths of DATA frames by stream, and the ends of streams as zeros.
fn data_frames(peer: &mut Peer) -> Vec<(u32, u32)> {
    let frames = peer.sent().into_iter().filter_map(|(head, _)| match head.kind {
        kind::DATA => Some((head.stream, head.length)),
        kind::HEADERS if head.has(flag::END_STREAM) => Some((head.stream, 0)),
        _ => None,
    });
    frames.collect()
}

#[test]
fn an_answer_is_one_piece_of_output() {
    let mut peer = peer(&[]);
    let stream = peer.request(1, true);
    peer.connection.answer(stream, &[Bytes::from_static(b"ab"), Bytes::from_static(b"c")]).unwrap();
    let mut slices = [std::io::IoSlice::new(&[]); 4];
    assert_eq!(peer.connection.gather(&mut slices), 1);
    let sent = peer.sent();
    let seen: Vec<_> = sent.iter().map(|(head, _)| (head.kind, head.flags, head.stream)).collect();
    assert_eq!(seen, [(kind::HEADERS, 4, 1), (kind::DATA, 0, 1), (kind::HEADERS, 5, 1)]);
    assert_eq!(sent[1].1, b"\0\0\0\0\x03abc");
    assert_eq!(peer.connection.open_streams(), 0);
    assert_eq!(peer.connection.answer(stream, &[]), Err(SendError::Ended));
}

#[test]
fn large_payloads_are_not_copied() {
    let mut peer = peer(&[(setting::MAX_FRAME_SIZE, 1 << 20), (setting::INITIAL_WINDOW_SIZE, 1 << 20)]);
    peer.take(&window_update(0, 1 << 20)).unwrap();
    let stream = peer.request(1, true);
    let payload = large(50_000);
    peer.connection.answer(stream, &[payload.clone(), Bytes::from_static(b"x")]).unwrap();
    let mut slices = [std::io::IoSlice::new(&[]); 4];
    assert_eq!(peer.connection.gather(&mut slices), 3);
    assert_eq!(slices[1].as_ptr(), payload.as_ptr());
    assert_eq!(data_frames(&mut peer), [(1, 50_006), (1, 0)]);
}

#[test]
fn messages_and_trailers_come_in_order() {
    let mut peer = peer(&[(setting::INITIAL_WINDOW_SIZE, 8)]);
    let stream = peer.request(1, true);
    let metadata = Block::new().field("x", b"y").unwrap();
    peer.connection.head(stream, &metadata).unwrap();
    assert_eq!(peer.connection.head(stream, &metadata), Err(SendError::Ended));
    peer.connection.message(stream, &[Bytes::from_static(b"abc")]).unwrap();
    peer.connection.message(stream, &[]).unwrap();
    peer.connection.data(stream, [b"r", b"aw".as_slice()].map(Bytes::from_static)).unwrap();
    peer.connection.data(stream, [Bytes::new()]).unwrap();
    peer.connection.finish(stream, Block::status(3, "no").into()).unwrap();
    for over in [
        peer.connection.finish(stream, Trailers::Ok),
        peer.connection.message(stream, &[]),
        peer.connection.answer(stream, &[]),
        peer.connection.data(stream, [Bytes::from_static(b"x")]),
    ] {
        assert_eq!(over, Err(SendError::Ended), "the answer has its end");
    }
    peer.take(&window_update(1, 100)).unwrap();
    let sent = peer.sent();
    let kinds: Vec<_> = sent.iter().map(|(head, _)| (head.kind, head.flags)).collect();
    assert_eq!(kinds, [(1, 4), (0, 0), (0, 0), (1, 5)]);
    assert_eq!([&sent[1].1[..], &sent[2].1].concat(), b"\0\0\0\0\x03abc\0\0\0\0\0raw");
    assert!(sent[3].1.ends_with(b"\x02no"));
}

#[test]
fn a_failure_is_one_frame() {
    let mut peer = peer(&[]);
    let stream = peer.request(1, true);
    peer.connection.finish(stream, Block::status(12, "").into()).unwrap();
    let other = peer.request(3, true);
    peer.connection.respond(other, &Block::http(415)).unwrap();
    let sent = peer.sent();
    assert_eq!((sent.len(), sent[0].0.flags, sent[1].0.flags), (2, 5, 5));
    assert_eq!(sent[0].1[0], 0x88);
    assert_eq!(peer.connection.open_streams(), 0);
}

#[test]
fn a_client_that_still_sends_is_told_to_stop() {
    let mut peer = peer(&[]);
    let stream = peer.request(1, false);
    peer.connection.answer(stream, &[]).unwrap();
    let (head, code) = peer.sent().pop().unwrap();
    assert_eq!((head.kind, &code[..]), (kind::RST_STREAM, &[0; 4][..]));
    peer.take(&crate::support::data(1, true, b"late")).unwrap();
    assert_eq!(peer.kinds(), [], "the client did not know");
    assert_eq!(peer.events, []);
}

#[test]
fn frames_are_no_longer_than_the_client_takes() {
    for (setting, longest) in [(16_384, 16_384), (20_000, 20_000), (1 << 20, 65_536)] {
        let mut peer = peer(&[(setting::MAX_FRAME_SIZE, setting), (setting::INITIAL_WINDOW_SIZE, 1 << 20)]);
        peer.take(&window_update(0, 1 << 20)).unwrap();
        let stream = peer.request(1, true);
        peer.connection.answer(stream, &[large(200_000)]).unwrap();
        let frames = data_frames(&mut peer);
        assert_eq!(frames.iter().map(|(_, length)| *length).max(), Some(longest));
        assert_eq!(frames.iter().map(|(_, length)| length).sum::<u32>(), 200_005);
    }
    // The header block of trailers is cut as well.
    let mut peer = peer(&[]);
    let stream = peer.request(1, true);
    peer.connection.finish(stream, Block::status(1, &"m".repeat(40_000)).into()).unwrap();
    let seen: Vec<_> = peer.sent().iter().map(|(head, _)| (head.kind, head.flags)).collect();
    assert_eq!(seen, [(kind::HEADERS, 1), (kind::CONTINUATION, 0), (kind::CONTINUATION, 4)]);
}

#[test]
fn windows_of_stream_and_connection_are_kept() {
    let mut peer = peer(&[(setting::INITIAL_WINDOW_SIZE, 40_000)]);
    let (first, second) = (peer.request(1, true), peer.request(3, true));
    peer.connection.answer(first, &[large(50_000)]).unwrap();
    peer.connection.answer(second, &[large(50_000)]).unwrap();
    let sum = |frames: Vec<(u32, u32)>, stream| {
        frames.iter().filter(|frame| frame.0 == stream).map(|frame| frame.1).sum::<u32>()
    };
    let frames = data_frames(&mut peer);
    assert_eq!(frames.iter().map(|frame| frame.1).sum::<u32>(), 65_535, "the connection's window");
    assert_eq!(sum(frames, 1), 40_000, "the stream's window");
    peer.take(&window_update(0, 100_000)).unwrap();
    assert_eq!(sum(data_frames(&mut peer), 3), 40_000 - 25_535);
    peer.take(&window_update(1, 10_004)).unwrap();
    assert_eq!(data_frames(&mut peer), [(1, 10_004)]);
    peer.take(&window_update(1, 1)).unwrap();
    assert_eq!(data_frames(&mut peer), [(1, 1), (1, 0)]);
}

#[test]
fn settings_can_make_windows_negative() {
    let mut peer = peer(&[(setting::INITIAL_WINDOW_SIZE, 1000)]);
    let stream = peer.request(1, true);
    peer.connection.message(stream, &[large(3000)]).unwrap();
    assert_eq!(data_frames(&mut peer), [(1, 1000)]);
    peer.take(&settings(&[(setting::INITIAL_WINDOW_SIZE, 0)])).unwrap();
    peer.take(&window_update(1, 1000)).unwrap();
    assert_eq!(data_frames(&mut peer), [], "the window is at zero");
    peer.take(&window_update(1, 1)).unwrap();
    assert_eq!(data_frames(&mut peer), [(1, 1)]);
    peer.take(&settings(&[(setting::INITIAL_WINDOW_SIZE, 1000)])).unwrap();
    assert_eq!(data_frames(&mut peer), [(1, 1000)]);
}

#[test]
fn an_answer_of_a_message_waits_for_its_window() {
    let mut peer = peer(&[(setting::INITIAL_WINDOW_SIZE, 0)]);
    let stream = peer.request(1, true);
    peer.connection.message(stream, &[Bytes::new()]).unwrap();
    peer.connection.finish(stream, Trailers::Ok).unwrap();
    peer.sent();
    peer.take(&settings(&[(setting::INITIAL_WINDOW_SIZE, 1)])).unwrap();
    assert_eq!(data_frames(&mut peer), [(1, 1)]);
    peer.take(&settings(&[(setting::INITIAL_WINDOW_SIZE, 5)])).unwrap();
    assert_eq!(data_frames(&mut peer), [(1, 4), (1, 0)]);
}

#[test]
fn a_window_may_not_overflow_by_settings() {
    let mut peer = peer(&[]);
    peer.request(1, true);
    peer.take(&window_update(1, 1)).unwrap();
    let error = peer.take(&settings(&[(setting::INITIAL_WINDOW_SIZE, 0x7fff_ffff)])).unwrap_err();
    assert_eq!(error.code, ErrorCode::FLOW_CONTROL_ERROR);
}

#[test]
fn a_stream_whose_window_is_closed_holds_nothing() {
    let mut peer = peer(&[(setting::INITIAL_WINDOW_SIZE, 0)]);
    let stalled = peer.request(1, true);
    peer.connection.answer(stalled, &[large(1 << 20)]).unwrap();
    let other = peer.request(3, true);
    peer.connection.answer(other, &[large(60_000)]).unwrap();
    peer.take(&window_update(3, 60_005)).unwrap();
    let frames = data_frames(&mut peer);
    assert_eq!(frames.iter().map(|frame| frame.1).sum::<u32>(), 60_005);
    assert_eq!(frames.last(), Some(&(3, 0)));
}

/// Streams take turns by frames, and a short answer passes all of them.
#[test]
fn streams_take_turns() {
    let mut peer = peer(&[(setting::INITIAL_WINDOW_SIZE, 1 << 24)]);
    peer.take(&window_update(0, 1 << 24)).unwrap();
    let streams = [1, 3, 5].map(|id| peer.request(id, true));
    for stream in streams {
        peer.connection.answer(stream, &[large(300_000)]).unwrap();
    }
    let frames = parsed_data(&mut peer.connection, READY_BYTES);
    assert!(peer.connection.unsent() <= READY_BYTES + 20_000, "only a little is made beforehand");
    let short = peer.request(7, true);
    peer.connection.answer(short, &[large(900)]).unwrap();
    let rest = data_frames(&mut peer);
    let before = rest.iter().position(|frame| *frame == (7, 905)).unwrap();
    assert!(before <= 1 + READY_BYTES / 16_384, "{before} frames came before the short answer");
    let turns: Vec<_> = rest.iter().filter(|frame| frame.1 == 16_384).map(|frame| frame.0).collect();
    for three in turns[..turns.len() - 9].windows(3) {
        assert!(three[0] != three[1] && three[1] != three[2] && three[0] != three[2], "{turns:?}");
    }
    assert!(frames > 0);
}

/// Sends so many bytes, and returns how many frames of DATA they begin.
fn parsed_data(connection: &mut Connection, bytes: usize) -> usize {
    let mut out = Vec::new();
    while out.len() < bytes {
        let mut slices = [std::io::IoSlice::new(&[]); 2];
        let filled = connection.gather(&mut slices);
        let first: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
        // A head and its payload are two slices here.
        connection.advance(first.len(), &mut Vec::new());
        out.extend(first);
    }
    parsed(&out).iter().filter(|(head, _)| head.kind == kind::DATA).count()
}

#[test]
fn short_answers_pass_long_ones_when_the_window_opens_but_do_not_starve_them() {
    let mut peer = peer(&[]);
    let long = peer.request(1, true);
    peer.connection.answer(long, &[large(1 << 20)]).unwrap();
    data_frames(&mut peer);
    for round in 1..100 {
        let short = peer.request(round * 2 + 1, true);
        peer.connection.answer(short, &[large(10)]).unwrap();
    }
    peer.take(&window_update(1, 1 << 20)).unwrap();
    assert_eq!(data_frames(&mut peer), [], "the connection's window is closed");
    peer.take(&window_update(0, 1 << 20)).unwrap();
    let frames = data_frames(&mut peer);
    let firsts = frames.iter().position(|frame| frame.0 == 1).unwrap();
    assert_eq!(firsts, 2 * SHORT_TURNS as usize, "each short one has DATA and trailers");
}

#[test]
fn a_stream_can_be_written_to_when_its_queue_is_short() {
    let limits = Limits { writable_bytes: 1000, ..Limits::default() };
    let mut peer = Peer::new(limits, &[(setting::INITIAL_WINDOW_SIZE, 100)]);
    let stream = peer.request(1, true);
    peer.connection.message(stream, &[large(500)]).unwrap();
    peer.connection.message(stream, &[large(1000)]).unwrap();
    peer.take(&window_update(1, 400)).unwrap();
    assert_eq!(peer.events, []);
    peer.take(&window_update(1, 10)).unwrap();
    assert_eq!(peer.events, [Event::Writable { stream }]);
    peer.take(&window_update(1, 10_000)).unwrap();
    assert_eq!(peer.events.len(), 1, "once is enough");
}

#[test]
fn nothing_follows_a_reset() {
    let mut peer = peer(&[(setting::INITIAL_WINDOW_SIZE, 0)]);
    let (first, second) = (peer.request(1, true), peer.request(3, true));
    for stream in [first, second] {
        peer.connection.answer(stream, &[large(100_000)]).unwrap();
    }
    peer.sent();
    peer.connection.reset(first, ErrorCode::CANCEL);
    peer.connection.reset(first, ErrorCode::CANCEL);
    assert_eq!(peer.kinds(), [(kind::RST_STREAM, 1)]);
    peer.take(&reset(3)).unwrap();
    peer.take(&settings(&[(setting::INITIAL_WINDOW_SIZE, 1 << 20)])).unwrap();
    peer.take(&[window_update(1, 10), window_update(3, 10)].concat()).unwrap();
    assert_eq!(peer.kinds(), [(kind::SETTINGS, 0)]);
    assert_eq!((peer.connection.queued_in_all(), peer.connection.open_streams()), (0, 0));
    // The next stream has the place of an old one.
    peer.take(&request(5, true)).unwrap();
    assert_eq!(peer.connection.queued(first), 0);
    assert!(peer.connection.answer(first, &[]).is_err());
}
