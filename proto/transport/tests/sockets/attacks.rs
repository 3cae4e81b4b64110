//! Clients that break off, do not read, or take what they can, at the frames of HTTP/2.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kindred_transport::Endpoint;
use kindred_transport::serve::Drained;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::eventually;
use crate::unary::{Echo, start};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a call, as literal fields.
fn call(stream: u32, path: &str) -> Vec<u8> {
    let mut block = Vec::new();
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// A message, which ends the request.
fn message(stream: u32, text: &[u8]) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_be_bytes();
    frame(DATA, END_STREAM, stream, &[&[0], &length[..], text].concat())
}

/// A connection whose client has little room for what it does not read.
async fn connect(endpoint: &Endpoint) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(endpoint.authority().parse().unwrap()).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_closes_its_side_ends_its_calls() {
    let echo = Echo::default();
    let (endpoint, drain) = start(echo.clone(), Echo::default()).await;
    let mut stream = connect(&endpoint).await;
    for id in [1, 3] {
        stream.write_all(&[call(id, "/etcdserverpb.KV/Put"), message(id, b"never")].concat()).await.unwrap();
    }
    eventually("the calls run", || async { echo.running.load(Ordering::SeqCst) == 2 }).await;
    stream.shutdown().await.unwrap();
    eventually("the calls ended", || async { echo.running.load(Ordering::SeqCst) == 0 }).await;
    let mut rest = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut rest));
    end.await.expect("the connection stays open").unwrap();
    drain.kill();
}

/// Heads of answers are no part of any window, so a client could have the server collect them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_opens_and_resets_streams_and_reads_nothing_is_not_read_either() {
    const STREAMS: usize = 500;
    let echo = Echo::default();
    let (endpoint, drain) = start((), echo.clone()).await;
    let mut stream = connect(&endpoint).await;
    let (mut ids, mut begun) = ((1..).step_by(2), 0);
    // A reset takes back an answer that is not made yet. So they come after the answers were made, and fewer in a second
    // than end the connection.
    let attack = async {
        loop {
            let round: Vec<u32> = ids.by_ref().take(STREAMS).collect();
            let calls = round
                .iter()
                .map(|id| [call(*id, "/etcdserverpb.KV/RangeStream"), message(*id, b"x")].concat());
            stream.write_all(&calls.collect::<Vec<_>>().concat()).await.unwrap();
            begun += STREAMS;
            while echo.streams.load(Ordering::SeqCst) < begun {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let resets = round.iter().map(|id| frame(RST_STREAM, 0, *id, &8_u32.to_be_bytes()));
            stream.write_all(&resets.collect::<Vec<_>>().concat()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let watch = async {
        let mut before = usize::MAX;
        loop {
            let now = echo.streams.load(Ordering::SeqCst);
            assert!(now < 1_000_000, "the server answers everything");
            if now == before {
                return;
            }
            before = now;
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    };
    tokio::select! {
        () = attack => unreachable!("it has no end"),
        () = watch => {}
    }
    assert!(echo.streams.load(Ordering::SeqCst) > STREAMS, "the server answered nothing");
    // And it does not hold up a stop.
    drain.begin();
    drain.kill();
    let ended = tokio::time::timeout(Duration::from_secs(60), drain.finish()).await;
    assert!(matches!(ended.expect("a connection stays"), Drained::Cleanly | Drained::Forced(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_answered_beside_many_whose_messages_do_not_come() {
    let (endpoint, drain) = start((), Echo::default()).await;
    let mut stream = connect(&endpoint).await;
    for id in (1..200).step_by(2) {
        stream.write_all(&call(id, "/etcdserverpb.KV/RangeStream")).await.unwrap();
        stream.write_all(&frame(DATA, 0, id, &[0, 0, 0, 0x40, 0])).await.unwrap();
    }
    stream.write_all(&[call(201, "/etcdserverpb.KV/Range"), message(201, b"hello")].concat()).await.unwrap();
    let mut seen = Vec::new();
    let answered = async {
        let mut chunk = [0; 4096];
        while !seen.windows(5).any(|window| window == b"hello") {
            let read = stream.read(&mut chunk).await.unwrap();
            assert!(read > 0, "the connection ended");
            seen.extend_from_slice(&chunk[..read]);
        }
    };
    tokio::time::timeout(Duration::from_secs(60), answered).await.expect("it is answered");
    drain.kill();
}

/// The next frames that are answers to PINGs.
async fn pongs(stream: &mut TcpStream, count: usize) -> Vec<[u8; 8]> {
    let mut found = Vec::new();
    while found.len() < count {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await.unwrap();
        if (head[3], head[4]) == (PING, 1) {
            found.push(payload.try_into().unwrap());
        }
    }
    found
}

/// Clients of grpc-go send such a PING after every short answer.
#[tokio::test]
async fn a_ping_that_measures_bandwidth_is_answered_behind_others_but_soon() {
    const MEASURES: [u8; 8] = [2, 4, 16, 16, 9, 14, 7, 7];
    let (endpoint, drain) = start((), Echo::default()).await;
    let mut stream = connect(&endpoint).await;
    // At least one of two in a row is not just before the time at which all are answered.
    let mut order = Vec::new();
    for _ in 0..2 {
        let pings = [frame(PING, 0, 0, &MEASURES), frame(PING, 0, 0, b"is alive")];
        stream.write_all(&pings.concat()).await.unwrap();
        let pongs = tokio::time::timeout(Duration::from_secs(60), pongs(&mut stream, 2));
        order.push(pongs.await.expect("both are answered"));
    }
    assert!(order.contains(&vec![*b"is alive", MEASURES]), "{order:?}");
    drain.kill();
}
