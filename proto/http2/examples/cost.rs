//! What one small unary call costs, in and out, here and in the crate h2, without sockets.
//!
//! ```text
//! cargo run --release -p kindred-http2 --example cost [kindred|h2] [CALLS]
//! ```
//!
//! The calls are those of grpc-go: HEADERS of nine fields from the table and a timeout that is new each time, and DATA of
//! 200 bytes. The answer has a head, 100 bytes and trailers. The times include making the calls. For instructions of
//! nothing but one call:
//!
//! ```text
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*::kindred_call' PROGRAM kindred 10000
//! ```

use std::{
    collections::VecDeque,
    hint::black_box,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Instant,
};

use bytes::{Bytes, BytesMut};
use kindred_http2::{Connection, Event, Limits, RouteId, Routes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[path = "cost/calls.rs"]
mod calls;

use calls::Calls;

const PATH: &str = "/etcdserverpb.KV/Range";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let which = arguments.next().unwrap_or_default();
    let calls = arguments.next().and_then(|calls| calls.parse().ok()).unwrap_or(200_000);
    if which != "h2" {
        kindred(calls);
    }
    if which != "kindred" {
        h2(calls);
    }
}

#[expect(clippy::print_stdout, reason = "that is what the program is for")]
fn report(name: &str, calls: u32, begin: Instant, sent: usize) {
    let ns = begin.elapsed().as_nanos() / u128::from(calls);
    println!("{name}: {ns} ns a call, {sent} bytes sent");
}

fn kindred(calls: u32) {
    let routes: Routes = [(PATH, RouteId(1))].into_iter().collect();
    let mut connection = Connection::new(Limits::default(), Arc::new(routes));
    let mut source = Calls::new(PATH);
    let mut input = BytesMut::with_capacity(16 * 1024);
    let mut events = Vec::new();
    let answer = [Bytes::from(vec![7; 100])];
    let (mut sent, mut bytes) = (0, Vec::new());
    source.begin(&mut bytes);
    input.extend_from_slice(&bytes);
    let begin = Instant::now();
    for _ in 0..calls {
        source.next(&mut bytes);
        sent += kindred_call(&mut connection, &bytes, &mut input, &mut events, &answer);
    }
    report("kindred", calls, begin, sent);
}

#[inline(never)]
fn kindred_call(
    connection: &mut Connection,
    bytes: &[u8],
    input: &mut BytesMut,
    events: &mut Vec<Event>,
    answer: &[Bytes],
) -> usize {
    input.extend_from_slice(bytes);
    connection.receive(input, events).expect("the calls are right");
    for event in events.drain(..) {
        if let Event::Data { stream, bytes, end: true } = event {
            black_box(&bytes);
            connection.answer(stream, answer).expect("the stream is open");
        }
    }
    let mut slices = [IoSlice::new(&[]); 16];
    let filled = connection.gather(&mut slices);
    let length = slices[..filled].iter().map(|slice| black_box(slice).len()).sum();
    connection.advance(length, events);
    length
}

/// Both ends of a connection that is in memory.
#[derive(Default)]
struct Pipe {
    input: VecDeque<u8>,
    sent: usize,
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (bytes, _) = self.input.as_slices();
        if bytes.is_empty() {
            return Poll::Pending;
        }
        let length = bytes.len().min(buffer.remaining());
        buffer.put_slice(&bytes[..length]);
        self.input.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.sent += black_box(bytes).len();
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length: usize = slices.iter().map(|slice| black_box(slice).len()).sum();
        self.sent += length;
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

/// A pipe that h2 owns and the loop feeds.
#[derive(Clone, Default)]
struct Shared(Arc<std::sync::Mutex<Pipe>>);

impl Shared {
    fn with<T>(&self, act: impl FnOnce(Pin<&mut Pipe>) -> T) -> T {
        act(Pin::new(&mut *self.0.lock().expect("one thread")))
    }
}

impl AsyncRead for Shared {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.with(|pipe| pipe.poll_read(context, buffer))
    }
}

impl AsyncWrite for Shared {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.with(|pipe| pipe.poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|pipe| pipe.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|pipe| pipe.poll_shutdown(context))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.with(|pipe| pipe.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

fn h2(calls: u32) {
    let pipe = Shared::default();
    let mut source = Calls::new(PATH);
    let mut bytes = Vec::new();
    source.begin(&mut bytes);
    pipe.with(|mut pipe| pipe.input.extend(&bytes));
    let mut context = Context::from_waker(Waker::noop());
    let mut handshake = Box::pin(h2::server::handshake(pipe.clone()));
    let Poll::Ready(Ok(mut connection)) = handshake.as_mut().poll(&mut context) else {
        panic!("all bytes of the preface are there")
    };
    let answer = Bytes::from(vec![7; 105]);
    let begin = Instant::now();
    for _ in 0..calls {
        source.next(&mut bytes);
        h2_call(&mut connection, &pipe, &bytes, &answer);
    }
    report("h2", calls, begin, pipe.with(|pipe| pipe.sent));
}

#[inline(never)]
fn h2_call(
    connection: &mut h2::server::Connection<Shared, Bytes>,
    pipe: &Shared,
    bytes: &[u8],
    answer: &Bytes,
) {
    let mut context = Context::from_waker(Waker::noop());
    pipe.with(|mut pipe| pipe.input.extend(bytes));
    let Poll::Ready(Some(Ok((request, mut respond)))) = connection.poll_accept(&mut context) else {
        panic!("there is a request")
    };
    let mut body = request.into_body();
    // The body is read when the connection is polled.
    assert!(connection.poll_accept(&mut context).is_pending());
    let Poll::Ready(Some(Ok(message))) = body.poll_data(&mut context) else { panic!("there is a body") };
    body.flow_control().release_capacity(message.len()).expect("it has this much");
    black_box(message);
    let response = http::Response::builder().header("content-type", "application/grpc").body(());
    let mut stream = respond.send_response(response.expect("it is one"), false).expect("it is open");
    stream.send_data(answer.clone(), false).expect("it is open");
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    stream.send_trailers(trailers).expect("it is open");
    drop((stream, body, respond));
    assert!(connection.poll_accept(&mut context).is_pending());
}
