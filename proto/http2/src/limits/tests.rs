//! What an attacker does, and where it ends.

use bytes::Bytes;

use super::*;
use crate::{
    ErrorCode, Event, Trailers,
    frame::{flag, kind, setting},
    support::{
        PSEUDO, Peer, data, frame, headers, literal, request, request_with, reset, settings, window_update,
    },
};

fn limits() -> Limits {
    Limits { resets_max: 10, control_answers_max: 10, streams_max: 8, ..Limits::default() }
}

/// How often something can be done before the connection ends, which is with `ENHANCE_YOUR_CALM`.
fn until_calm(peer: &mut Peer, mut act: impl FnMut(u32) -> Vec<u8>) -> usize {
    for round in 0..10_000 {
        if let Err(error) = peer.take(&act(round)) {
            assert_eq!(error.code, ErrorCode::ENHANCE_YOUR_CALM, "{error}");
            return round as usize;
        }
    }
    panic!("there is no limit");
}

fn stream(round: u32) -> u32 {
    round * 2 + 1
}

/// CVE-2023-44487.
#[test]
fn rapid_resets_end_the_connection() {
    let mut peer = Peer::new(limits(), &[]);
    let act = |round| [request(stream(round), true), reset(stream(round))].concat();
    assert_eq!(until_calm(&mut peer, act), 10);
}

#[test]
fn resets_of_a_client_that_gets_answers_are_forgiven() {
    let mut peer = Peer::new(limits(), &[]);
    for round in 0..1000 {
        let answered = peer.request(stream(round * 2), true);
        peer.connection.answer(answered, &[]).unwrap();
        peer.take(&[request(stream(round * 2 + 1), true), reset(stream(round * 2 + 1))].concat()).unwrap();
        peer.sent();
    }
    for round in 2000..2100 {
        peer.connection.forgive();
        peer.take(&[request(stream(round), true), reset(stream(round))].concat()).unwrap();
    }
}

/// CVE-2025-8671: the client makes the server reset.
#[test]
fn provoked_resets_end_the_connection() {
    let mut peer = Peer::new(limits(), &[]);
    let act = |round| [request(stream(round), true), window_update(stream(round), 0)].concat();
    assert_eq!(until_calm(&mut peer, act), 10);
    let mut peer = Peer::new(Limits { control_answers_max: 1000, ..limits() }, &[]);
    assert_eq!(until_calm(&mut peer, |round| headers(stream(round), true, &[0x83])), 10);
    let mut peer = Peer::new(Limits { control_answers_max: 1000, streams_max: 0, ..limits() }, &[]);
    assert_eq!(until_calm(&mut peer, |round| request(stream(round), true)), 10, "refused requests");
}

#[test]
fn more_streams_than_allowed_are_refused() {
    let mut peer = Peer::new(limits(), &[]);
    for round in 0..9 {
        peer.take(&request(stream(round), true)).unwrap();
    }
    assert_eq!((peer.events.len(), peer.connection.open_streams()), (8, 8));
    let sent = peer.sent();
    assert_eq!((sent[0].0.kind, sent[0].0.stream, &sent[0].1[..]), (kind::RST_STREAM, 17, &[0, 0, 0, 7][..]));
}

#[test]
fn a_header_list_that_is_too_large_is_an_error_of_its_stream() {
    let mut peer = Peer::new(Limits { header_list_bytes_max: 1000, ..limits() }, &[]);
    let value = "v".repeat(1000);
    peer.take(&request_with(1, true, &[("x", &value)])).unwrap();
    assert_eq!(peer.events, []);
    assert_eq!(peer.sent()[0].1, [0, 0, 0, 11]);
    // A small block can refer many times to a large entry.
    let mut block = PSEUDO.to_vec();
    block.extend(literal(b"x", &[b'v'; 500]));
    block[3] = 0x40;
    block.extend([0x80 | 62; 10_000]);
    peer.take(&headers(3, true, &block)).unwrap();
    assert_eq!(peer.events, []);
    peer.take(&request_with(5, true, &[("x", "y")])).unwrap();
    assert_eq!(peer.events.len(), 1);
}

/// CVE-2024-27316.
#[test]
fn continuations_without_end_end_the_connection() {
    let small = Limits { header_block_bytes_max: 20_000, ..limits() };
    for (payload, limits, rounds) in [(0, limits(), 17), (1, limits(), 17), (5000, small, 4)] {
        let mut peer = Peer::new(limits, &[]);
        let act = |round| match round {
            0 => frame(kind::HEADERS, 0, 1, &[0; 100]),
            _ => frame(kind::CONTINUATION, 0, 1, &vec![0; payload]),
        };
        assert_eq!(until_calm(&mut peer, act), rounds, "{payload}");
    }
}

#[test]
fn pings_and_settings_whose_answers_are_not_read_end_the_connection() {
    for bytes in [frame(kind::PING, 0, 0, &[0; 8]), settings(&[])] {
        let mut peer = Peer::new(limits(), &[]);
        assert_eq!(until_calm(&mut peer, |_| bytes.clone()), 10);
        let mut reader = Peer::new(limits(), &[]);
        for _ in 0..1000 {
            reader.take(&bytes).unwrap();
            reader.sent();
        }
    }
}

#[test]
fn empty_data_without_end_ends_the_connection() {
    let mut peer = Peer::new(limits(), &[]);
    peer.request(1, false);
    assert_eq!(until_calm(&mut peer, |_| data(1, false, b"")), 100);
    let mut padded = Peer::new(limits(), &[]);
    padded.request(1, false);
    assert_eq!(until_calm(&mut padded, |_| frame(kind::DATA, flag::PADDED, 1, &[1, 0])), 100);
    let mut honest = Peer::new(limits(), &[]);
    honest.request(1, false);
    for _ in 0..1000 {
        honest.take(&[data(1, false, b""), data(1, false, b"x")].concat()).unwrap();
    }
}

/// A client that opens no window, or one of a byte at a time, makes the server keep what is queued and nothing more, and
/// the owner sees it.
#[test]
fn closed_and_tiny_windows_keep_only_what_is_queued() {
    let mut peer = Peer::new(limits(), &[(setting::INITIAL_WINDOW_SIZE, 0)]);
    let stream = peer.request(1, true);
    peer.connection.message(stream, &[Bytes::from(vec![1; 100_000])]).unwrap();
    assert_eq!(peer.kinds(), [(kind::HEADERS, 1)]);
    assert_eq!((peer.connection.queued(stream), peer.connection.queued_in_all()), (100_005, 100_005));
    for left in (100_000..100_005).rev() {
        peer.take(&window_update(1, 1)).unwrap();
        assert_eq!(peer.kinds(), [(kind::DATA, 1)]);
        assert_eq!(peer.connection.queued_in_all(), left);
    }
    peer.take(&reset(1)).unwrap();
    assert_eq!(peer.connection.queued_in_all(), 0);
}

/// What a client does not read stays on its streams, of which it has so many.
#[test]
fn a_client_that_does_not_read_runs_out_of_streams() {
    type Answer = fn(&mut Peer, crate::StreamId);
    let whole: Answer = |peer, stream| {
        peer.connection.answer(stream, &[Bytes::from(vec![0; 900])]).unwrap();
    };
    let failure: Answer = |peer, stream| {
        peer.connection.finish(stream, crate::Block::status(13, &"m".repeat(900)).into()).unwrap();
    };
    let refusal: Answer = |peer, stream| {
        let block = crate::Block::http(415).field("x", &[b'm'; 900]).unwrap();
        peer.connection.respond(stream, &block).unwrap();
    };
    let reset: Answer = |peer, stream| peer.connection.reset(stream, ErrorCode::CANCEL);
    for answer in [whole, failure, refusal, reset] {
        let mut peer = Peer::new(limits(), &[(setting::INITIAL_WINDOW_SIZE, 1 << 30)]);
        peer.take(&window_update(0, 1 << 30)).unwrap();
        let error = (0..1000).find_map(|round| {
            let error = peer.take(&request(stream(round), true)).err();
            if let Some(Event::Request { stream, .. }) = peer.events.pop() {
                answer(&mut peer, stream);
            }
            error
        });
        assert_eq!(error.map(|error| error.code), Some(ErrorCode::ENHANCE_YOUR_CALM));
        assert!(peer.connection.unsent() < 80_000);
    }
    // One who reads late gets everything.
    let mut peer = Peer::new(Limits { streams_max: 200, ..limits() }, &[]);
    peer.take(&window_update(0, 1 << 30)).unwrap();
    let mut open = 0;
    for round in 0..150 {
        let stream = peer.request(stream(round), true);
        if round % 2 == 0 {
            whole(&mut peer, stream)
        } else {
            failure(&mut peer, stream)
        }
        open = open.max(peer.connection.open_streams());
    }
    assert!(open > 50 && peer.connection.unsent() < 70_000);
    let ends = peer
        .sent()
        .iter()
        .filter(|(head, _)| head.kind == kind::HEADERS && head.has(flag::END_STREAM))
        .count();
    assert_eq!((ends, peer.connection.open_streams()), (150, 0));
}

/// A body that nobody reads closes the window of its own stream only.
#[test]
fn a_body_that_is_not_read_does_not_block_other_streams() {
    let limits = Limits { stream_window: 65_535, connection_window: 131_070, ..limits() };
    let mut peer = Peer::new(limits, &[]);
    let slow = peer.request(1, false);
    for _ in 0..5 {
        peer.take(&data(1, false, &[0; 13_107])).unwrap();
    }
    let other = peer.request(3, false);
    for _ in 0..20 {
        peer.take(&data(3, false, &[0; 13_107])).unwrap();
        peer.connection.released(other, 13_107);
        assert!(peer.kinds().iter().all(|kind| *kind != (kind::WINDOW_UPDATE, 1)));
    }
    peer.events.clear();
    peer.take(&data(1, false, b"x")).unwrap();
    assert_eq!(peer.events, [Event::Reset { stream: slow, code: ErrorCode::FLOW_CONTROL_ERROR }]);
}

/// However many streams a client opens, what it sends on them and nobody reads is bounded.
#[test]
fn what_services_have_not_read_closes_the_window_of_the_connection() {
    let limits = Limits { stream_window: 65_535, connection_window: 131_070, ..limits() };
    let mut peer = Peer::new(limits, &[]);
    let held: Vec<_> = [1, 3].into_iter().map(|id| peer.request(id, false)).collect();
    for id in [1, 3] {
        for _ in 0..5 {
            peer.take(&data(id, false, &[0; 13_107])).unwrap();
        }
    }
    assert!(!peer.kinds().contains(&(kind::WINDOW_UPDATE, 0)));
    // A stream that ends gives back what it held: by an answer, by the client, and by a reset of the server.
    peer.connection.finish(held[0], Trailers::Ok).unwrap();
    assert_eq!(peer.sent_updates(0), [65_535]);
    peer.take(&reset(3)).unwrap();
    assert_eq!(peer.sent_updates(0), [65_535]);
    let third = peer.request(5, false);
    for _ in 0..5 {
        peer.take(&data(5, false, &[0; 13_107])).unwrap();
    }
    peer.connection.reset(third, ErrorCode::CANCEL);
    assert_eq!(peer.sent_updates(0), [65_535]);
    // What comes for a stream that was reset is given back as it comes.
    for _ in 0..5 {
        peer.take(&data(5, false, &[0; 13_107])).unwrap();
    }
    assert_eq!(peer.sent_updates(0), [65_535]);
}

#[test]
fn more_than_the_connection_window_ends_the_connection() {
    let limits = Limits { stream_window: 1 << 20, connection_window: 65_535, ..limits() };
    let mut peer = Peer::new(limits, &[]);
    peer.request(1, false);
    // The frames arrive before any of the connection's window can be given back, so it is the server that is wrong here.
    peer.connection.receive_window = 10;
    let error = peer.take(&data(1, false, &[0; 11])).unwrap_err();
    assert_eq!(error.code, ErrorCode::FLOW_CONTROL_ERROR);
}
