//! The machine against the client of the crate h2, over a pipe in memory: many streams at once, with windows, frame sizes,
//! resets and sizes of messages that come from a seed. Every message and every status is compared.

use std::{future::poll_fn, time::Duration};

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream, SendStream, client::SendRequest};
use http::{HeaderMap, Request};
use kindred_http2::Limits;
use tokio::task::JoinSet;

const CALLS_AT_ONCE: u32 = 40;

/// Small numbers that look random.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn bytes(&mut self, length: usize) -> Bytes {
        let begin = self.below(256) as usize;
        (begin..begin + length).map(|byte| (byte * 7) as u8).collect()
    }

    fn length(&mut self) -> usize {
        let bound = self.one(&[1, 10, 300, 3000, 30_000, 300_000]);
        self.below(bound) as usize
    }
}

fn message(bytes: &[u8]) -> Bytes {
    let mut framed = BytesMut::from(&[0][..]);
    framed.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    framed.extend_from_slice(bytes);
    framed.freeze()
}

/// Sends a body as the windows allow, and ends it, with trailers or without.
async fn send(stream: &mut SendStream<Bytes>, mut body: Bytes, trailers: bool) -> Result<(), h2::Error> {
    while !body.is_empty() {
        stream.reserve_capacity(body.len().min(20_000));
        let Some(capacity) = poll_fn(|context| stream.poll_capacity(context)).await else { return Ok(()) };
        let length = capacity?.min(body.len());
        stream.send_data(body.split_to(length), false)?;
    }
    if trailers {
        let mut fields = HeaderMap::new();
        fields.insert("x-checksum", http::HeaderValue::from_static("1"));
        return stream.send_trailers(fields);
    }
    stream.send_data(Bytes::new(), true)
}

/// Receives a body in pieces, and gives the windows back as late as it likes.
async fn receive(body: &mut RecvStream, random: &mut Random) -> Result<(Bytes, HeaderMap), h2::Error> {
    let (mut all, mut kept) = (BytesMut::new(), 0);
    while let Some(part) = body.data().await {
        let part = part?;
        all.extend_from_slice(&part);
        kept += part.len();
        if random.below(3) > 0 {
            body.flow_control().release_capacity(kept)?;
            kept = 0;
        } else {
            // What is kept for long would close the window for good.
            tokio::task::yield_now().await;
            body.flow_control().release_capacity(std::mem::take(&mut kept))?;
        }
    }
    Ok((all.freeze(), body.trailers().await?.unwrap_or_default()))
}

fn status(fields: &HeaderMap) -> Option<&str> {
    fields.get("grpc-status").and_then(|status| status.to_str().ok())
}

async fn call(mut client: SendRequest<Bytes>, mut random: Random) {
    let path =
        random.one(&[crate::echo::UNARY.0, crate::echo::UNARY.0, crate::echo::STREAM.0, crate::echo::FAIL.0]);
    let mut request = Request::post(format!("http://server{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", format!("{}m", random.below(1_000_000)));
    if random.below(3) == 0 {
        request = request.header("x-more", "y".repeat(random.below(200) as usize));
    }
    poll_fn(|context| client.poll_ready(context)).await.expect("the connection is open");
    let request = request.body(()).expect("it is a request");
    let (response, mut stream) = client.send_request(request, false).expect("the connection is open");
    let body = random.bytes(random.clone().length());
    let framed = message(&body);
    if random.below(8) == 0 {
        // It gives up in the middle of its body or of the answer. h2 has no more data than the windows allow by then: a
        // reset behind data for which there is no window would never be sent.
        let patience = async {
            for _ in 0..random.below(30) {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = patience => {}
            sent = send(&mut stream, framed, false) => sent.expect("the body is sent"),
        }
        stream.send_reset(Reason::CANCEL);
        return;
    }
    let trailers = random.below(4) == 0;
    let mut answering = random.clone();
    let answer = async {
        let response = response.await?;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/grpc");
        assert_eq!(response.headers().len(), 1);
        receive(&mut response.into_body(), &mut answering).await
    };
    let (sent, answer) = tokio::join!(send(&mut stream, framed.clone(), trailers), answer);
    sent.expect("the body is sent");
    let (answer, fields) = answer.expect("there is an answer");
    if path == crate::echo::FAIL.0 {
        let mut rest = &answer[..];
        let mut joined = Vec::new();
        while let Some((length, more)) = rest.split_first_chunk::<5>() {
            let (part, more) =
                more.split_at(u32::from_be_bytes([length[1], length[2], length[3], length[4]]) as usize);
            joined.extend_from_slice(part);
            rest = more;
        }
        assert_eq!(joined, framed, "the messages together");
        assert_eq!(status(&fields), Some("5"));
        assert_eq!(fields["grpc-message"], "as%0Aasked");
    } else {
        assert!(answer == framed, "{path}: {} bytes became {}", framed.len(), answer.len());
        assert_eq!(status(&fields), Some("0"));
    }
}

async fn run(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (ours, theirs) = tokio::io::duplex(random.one(&[64, 1000, 16_384, 1 << 20]));
    let streams_max = random.one(&[10, 100]);
    let limits = Limits {
        streams_max,
        stream_window: random.one(&[100, 1000, 65_535, 1 << 20]),
        connection_window: random.one(&[65_535, 1 << 20]),
        frame_bytes_max: random.one(&[16_384, 100_000]),
        header_table_bytes: random.one(&[0, 100, 4096, 65_536]),
        resets_max: 10_000,
        writable_bytes: random.one(&[100, 32_768]),
        ..Limits::default()
    };
    let server = tokio::spawn(crate::echo::serve(ours, limits));
    let mut builder = h2::client::Builder::new();
    builder
        .initial_window_size(random.one(&[10, 1000, 65_535, 1 << 20]))
        .initial_connection_window_size(random.one(&[65_535, 1 << 20]))
        .max_frame_size(random.one(&[16_384, 50_000, 1 << 20]))
        .header_table_size(random.one(&[0, 60, 4096]))
        // Windows of ten bytes make many small frames.
        .data_frame_budget(1 << 30);
    let (client, mut connection) = builder.handshake(theirs).await.expect("the preface is accepted");
    let mut pings = connection.ping_pong().expect("nobody has it yet");
    let connection = tokio::spawn(connection);
    let mut calls = JoinSet::new();
    for number in 0..120 {
        if calls.len() >= CALLS_AT_ONCE as usize {
            calls.join_next().await.expect("there are calls").expect("the call is right");
        }
        if number % 40 == 0 {
            pings.ping(h2::Ping::opaque()).await.expect("the server is there");
        }
        calls.spawn(call(client.clone(), Random(random.below(u64::MAX) | 1)));
    }
    while let Some(call) = calls.join_next().await {
        call.expect("the call is right");
    }
    drop((client, pings));
    connection.await.expect("no panic").expect("the connection ends well");
    server.await.expect("no panic").expect("the pipe is whole");
}

/// Says which seed failed.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("again: KINDRED_SOAK_SEED={} make test ONLY=every_message_comes_back", self.0);
        }
    }
}

/// The first seed is `KINDRED_SOAK_SEED`, or always the same.
#[test]
fn every_message_comes_back() {
    let first = std::env::var("KINDRED_SOAK_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    for seed in first..first + 12 {
        let _replay = Replay(seed);
        // Long, because it gives way to every server of the tests beside it.
        let run = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(600), run(seed)).await });
        run.expect("it ends in time");
    }
}
