//! A connection of HTTP/2: one task that reads, carries out the calls, and writes. The state of the protocol is
//! [`kindred_http2::Connection`]; nothing here knows of frames.
//!
//! In a turn the task takes all that has arrived, lets every call go on that was woken, and then writes what there is to
//! write, many frames at once. So what arrives together is answered together, and nothing waits without load.

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{Request, Response};
use hyper::body::Body as _;
use kindred_http2::{
    ContentType, ErrorCode, Event, Limits, Method, Path, RequestHead, RouteId, Routes, StreamId, Trailers,
};
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFuture;
use tonic::metadata::MetadataMap;
use tonic::{Code, Extensions, Status};

use super::answer::{self, Head};
use super::request::{self, BodyFiller, RequestBody};
use super::slots::Slots;
use crate::listener::Connection;
use crate::unary::answer::AnswerBody;
use crate::unary::long::{FRAME_BYTES, Message};
use crate::unary::message::MessageReader;
use crate::unary::{Begun, UnaryCalls, within};
use crate::unread::Unread;

/// The room that is made for a read.
const READ_BYTES: usize = 16 << 10;
/// Slices of one write.
const SLICES: usize = 64;
/// What waits on a stream before its body is asked for more.
const QUEUED_MAX: usize = 64 << 10;
/// Nothing more is read from a client that has so much to read itself.
const UNSENT_MAX: usize = 1 << 20;
/// The answer to a PING that measures bandwidth waits until so much was sent: a quarter of a window that is as small as windows are at first.
const PROBE_BYTES: usize = 16 << 10;
/// Requests that a client may give up in each [`FORGIVEN`] beyond those that were answered; a kube-apiserver that loses
/// its own clients cancels thousands of watches at once.
const RESETS_MAX: u32 = 50_000;
const FORGIVEN: Duration = Duration::from_secs(1);

/// The settings of an etcd port. A stream's window is a small part of the connection's, as a client that creates 100,000
/// watches on one stream waits for room, as with etcd.
pub(super) fn limits(streams_max: u32) -> Limits {
    Limits {
        streams_max,
        stream_window: 1 << 20,
        connection_window: 32 << 20,
        frame_bytes_max: 256 << 10,
        resets_max: RESETS_MAX,
        writable_bytes: QUEUED_MAX / 2,
        probe_bytes: PROBE_BYTES,
        ..Limits::default()
    }
}

/// The paths of calls by their ids.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    routes: Arc<Routes>,
    paths: &'static [&'static str],
}

impl Paths {
    pub fn of<U: UnaryCalls>(calls: &U) -> Self {
        let paths = calls.paths();
        let ids = paths.iter().zip(0..).map(|(path, id)| (*path, RouteId(id)));
        Self { routes: Arc::new(ids.collect()), paths }
    }

    fn get(&self, id: RouteId) -> &'static str {
        self.paths.get(usize::from(id.0)).copied().unwrap_or_default()
    }
}

/// Answers what is none of the unary calls.
pub(crate) trait Others {
    fn answer(
        &self,
        request: Request<RequestBody>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<AnswerBody>, Infallible>> + Send>>;
}

/// What became of a call.
enum Reply {
    Message(Message),
    Failed(Status),
    Http(Box<Response<AnswerBody>>),
}

/// What is done for a stream.
enum Doing {
    /// Its request is arriving.
    Nothing,
    Call(Pin<Box<dyn Future<Output = Reply> + Send>>),
    /// Its answer is sent piece by piece.
    Body(AnswerBody),
}

struct Running {
    stream: StreamId,
    doing: Doing,
    /// The service's body.
    filler: Option<BodyFiller>,
}

/// A request whose message has not arrived whole.
struct Arriving<M> {
    method: M,
    head: RequestHead,
    reader: MessageReader,
}

/// What is known of a stream.
enum Known<M> {
    Free,
    Arriving(StreamId, Arriving<M>),
    /// The place of what is done for it.
    Running(StreamId, usize),
    /// It was answered before its request had ended.
    Answered,
}

pub(crate) struct Driver<U: UnaryCalls, O> {
    io: Connection,
    http2: kindred_http2::Connection,
    input: BytesMut,
    events: Vec<Event>,
    paths: Paths,
    calls: U,
    others: O,
    unread: Unread,
    streams: Vec<Known<U::Method>>,
    running: Slots<Running>,
    woken: Vec<usize>,
    pieces: Vec<Bytes>,
    forgiven: Instant,
    /// When a PING that measures bandwidth is answered at the latest.
    probe: Option<Pin<Box<Sleep>>>,
    /// The client sends no more, or nothing that can be understood.
    closing: bool,
}

impl<U: UnaryCalls, O: Others> Driver<U, O> {
    pub fn new(io: Connection, streams_max: u32, paths: Paths, calls: U, others: O, unread: Unread) -> Self {
        Self {
            io,
            http2: kindred_http2::Connection::new(limits(streams_max), paths.routes.clone()),
            input: BytesMut::new(),
            events: Vec::new(),
            paths,
            calls,
            others,
            unread,
            streams: Vec::new(),
            running: Slots::default(),
            woken: Vec::new(),
            pieces: Vec::new(),
            forgiven: Instant::now(),
            probe: None,
            closing: false,
        }
    }

    /// Begins a graceful end.
    pub fn shutdown(&mut self) {
        self.http2.shutdown();
    }

    /// Whether streams are open.
    pub fn has_streams(&self) -> bool {
        self.http2.open_streams() > 0
    }

    /// Serves the connection until it ends.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read(cx)?;
        self.poll_probe(cx);
        let held_back = self.http2.unsent() >= UNSENT_MAX;
        loop {
            self.go_on(cx);
            // What was written may have made room for more of an answer.
            if !self.poll_write(cx)? {
                break;
            }
        }
        // A client that is gone, or has broken the protocol, is not waited for.
        if self.closing || self.http2.is_done() {
            return Poll::Ready(Ok(()));
        }
        if held_back {
            if self.http2.unsent() < UNSENT_MAX {
                cx.waker().wake_by_ref();
            } else if self.io.poll_killed(cx).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
        }
        Poll::Pending
    }

    /// Takes what has arrived.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while !self.closing && self.http2.unsent() < UNSENT_MAX {
            self.input.reserve(READ_BYTES);
            match tokio_util::io::poll_read_buf(Pin::new(&mut self.io), cx, &mut self.input) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => {
                    // Nobody is there to be answered.
                    self.end_all();
                    self.closing = true;
                    self.http2.close(ErrorCode::NO_ERROR, "");
                }
                Poll::Ready(Ok(_)) => {
                    let failed = self.http2.receive(&mut self.input, &mut self.events).err();
                    self.handle_events();
                    if let Some(error) = failed {
                        tracing::debug!(%error, "a client broke HTTP/2");
                        self.end_all();
                        self.closing = true;
                    }
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Answers a PING that measures bandwidth, when that is due.
    fn poll_probe(&mut self, cx: &mut Context<'_>) {
        if self.http2.has_probe()
            && self.probe.get_or_insert_with(|| Box::pin(probes_due())).as_mut().poll(cx).is_ready()
        {
            self.probe = None;
            self.http2.answer_probe();
        }
    }

    /// Lets everything go on that was woken.
    fn go_on(&mut self, cx: &Context<'_>) {
        let mut woken = std::mem::take(&mut self.woken);
        self.running.woken(cx, &mut woken);
        for place in &woken {
            self.released(*place);
            self.step(*place);
        }
        self.woken = woken;
    }

    /// Writes what there is; true if that made room for more.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let mut room = false;
        while self.http2.unsent() > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let filled = self.http2.gather(&mut slices);
            match self.io.poll_write_now(cx, &slices[..filled]) {
                Poll::Pending => return Ok(room),
                Poll::Ready(Ok(written)) => {
                    self.http2.advance(written, &mut self.events);
                    room |= !self.events.is_empty();
                    self.handle_events();
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        if let Poll::Ready(Err(error)) = self.io.poll_flush_now(cx) {
            return Err(error);
        }
        Ok(room)
    }

    fn handle_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            self.handle(event);
        }
        self.events = events;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Request { stream, head, end } => self.begin(stream, head, end),
            Event::Data { stream, bytes, end } => self.data(stream, bytes, end),
            Event::Trailers { stream } => self.end_of_request(stream),
            Event::Reset { stream, code } => self.reset(stream, code),
            Event::Writable { stream } => {
                if let Some(Known::Running(of, place)) = self.streams.get(stream.place())
                    && *of == stream
                {
                    self.step(*place);
                }
            }
            Event::Pong { .. } | Event::GoAway { .. } => {}
        }
    }

    fn known(&mut self, stream: StreamId) -> &mut Known<U::Method> {
        let place = stream.place();
        if self.streams.len() <= place {
            self.streams.resize_with(place + 1, || Known::Free);
        }
        &mut self.streams[place]
    }

    fn begin(&mut self, stream: StreamId, head: RequestHead, end: bool) {
        tracing::trace!(stream = stream.number(), path = ?head.path, "a request begins");
        let method = match head.path {
            // A web page may send any other content. The services behind `others` refuse it.
            Path::Known(id)
                if head.method == Method::Post
                    && head.encoding.is_none()
                    && head.content_type == ContentType::Grpc =>
            {
                self.calls.method(self.paths.get(id))
            }
            _ => None,
        };
        if let Some(method) = method {
            let reader = MessageReader::new(self.calls.message_bytes_max());
            let arriving = Arriving { method, head, reader };
            if end {
                self.call(stream, arriving);
            } else {
                *self.known(stream) = Known::Arriving(stream, arriving);
            }
            return;
        }
        let place = self.running.insert(Running { stream, doing: Doing::Nothing, filler: None });
        *self.known(stream) = Known::Running(stream, place);
        let (filler, body) = match self.running.waker(place) {
            Some(waker) if !end => {
                let (filler, body) = RequestBody::new(waker.clone());
                (Some(filler), body)
            }
            _ => (None, RequestBody::empty()),
        };
        let path = match &head.path {
            Path::Known(id) => Bytes::from_static(self.paths.get(*id).as_bytes()),
            Path::Unknown(path) => path.clone(),
        };
        let Some(request) = request::request(&head, &path, body) else {
            self.http2.reset(stream, ErrorCode::PROTOCOL_ERROR);
            self.forget(stream);
            return;
        };
        let answering = self.others.answer(request);
        let reply = Box::pin(async move {
            match answering.await {
                Ok(answer) => Reply::Http(Box::new(answer)),
                Err(never) => match never {},
            }
        });
        if let Some((running, _)) = self.running.get(place) {
            running.doing = Doing::Call(reply);
            running.filler = filler;
        }
        self.step(place);
    }

    fn data(&mut self, stream: StreamId, bytes: Bytes, end: bool) {
        let Some(known) = self.streams.get_mut(stream.place()) else { return };
        match known {
            Known::Arriving(of, arriving) if *of == stream => {
                self.http2.released(stream, bytes.len());
                if let Err(error) = arriving.reader.push(bytes) {
                    let refused = Err::<(), _>(Status::from(error));
                    Begun::of(&self.calls, arriving.method).end(&refused);
                    self.fail(stream, &Status::from(error));
                } else if end {
                    self.end_of_request(stream);
                }
            }
            Known::Running(of, place) if *of == stream => {
                let place = *place;
                if let Some((running, _)) = self.running.get(place)
                    && let Some(filler) = &running.filler
                {
                    filler.push(bytes);
                    if end {
                        filler.end(Ok(()));
                    }
                } else {
                    self.http2.released(stream, bytes.len());
                }
                self.released(place);
            }
            _ => self.http2.released(stream, bytes.len()),
        }
    }

    /// Gives the client back what a service has read.
    fn released(&mut self, place: usize) {
        if let Some((running, _)) = self.running.get(place)
            && let Some(filler) = &running.filler
        {
            let (stream, taken) = (running.stream, filler.taken());
            if taken > 0 {
                self.http2.released(stream, taken);
            }
        }
    }

    fn end_of_request(&mut self, stream: StreamId) {
        let known = self.known(stream);
        match std::mem::replace(known, Known::Free) {
            Known::Arriving(of, arriving) if of == stream => self.call(stream, arriving),
            other => {
                if let Known::Running(of, place) = &other
                    && *of == stream
                    && let Some((running, _)) = self.running.get(*place)
                    && let Some(filler) = &running.filler
                {
                    filler.end(Ok(()));
                }
                *self.known(stream) = other;
            }
        }
    }

    /// Begins a unary call.
    fn call(&mut self, stream: StreamId, arriving: Arriving<U::Method>) {
        let Arriving { method, head, reader } = arriving;
        let begun = Begun::of(&self.calls, method);
        let message = match reader.finish() {
            Ok(message) => message,
            Err(error) => {
                begun.end(&Err::<(), _>(Status::from(error)));
                self.fail(stream, &Status::from(error));
                return;
            }
        };
        let metadata = MetadataMap::from_headers(request::metadata(&head));
        let limit = head.timeout.duration();
        let request = tonic::Request::from_parts(metadata, Extensions::new(), message);
        let calls = self.calls.clone();
        let reply = Box::pin(async move {
            let answered = within(limit, pin!(begun.answer(&calls, method, request))).await;
            begun.end(&answered);
            match answered {
                Ok(message) => Reply::Message(message),
                Err(status) => Reply::Failed(status),
            }
        });
        let running = Running { stream, doing: Doing::Call(reply), filler: None };
        let place = self.running.insert(running);
        *self.known(stream) = Known::Running(stream, place);
        self.step(place);
    }

    /// Lets what is done for a stream go on.
    fn step(&mut self, place: usize) {
        let Some((running, waker)) = self.running.get(place) else { return };
        let mut cx = Context::from_waker(waker);
        let stream = running.stream;
        if let Doing::Call(call) = &mut running.doing {
            let Poll::Ready(reply) = call.as_mut().poll(&mut cx) else { return };
            match reply {
                Reply::Failed(status) => return self.fail(stream, &status),
                Reply::Message(Message::Whole(rope)) if rope.len() <= FRAME_BYTES => {
                    self.pieces.extend(rope.pieces().cloned());
                    // A stream that has ended was given up.
                    let _ = self.http2.answer(stream, &self.pieces);
                    self.pieces.clear();
                    return self.forget(stream);
                }
                Reply::Message(long) => match AnswerBody::long(long, &self.unread) {
                    Ok(body) => running.doing = Doing::Body(body),
                    Err(status) => return self.fail(stream, &status),
                },
                Reply::Http(answer) => {
                    let (head, body) = answer.into_parts();
                    let sent = match answer::head(head.status, &head.headers) {
                        // The status of a call that was refused is in its head.
                        Head::Grpc(_) if head.headers.contains_key(Status::GRPC_STATUS) => {
                            let _ = self.http2.finish(stream, answer::trailers_only(&head.headers));
                            return self.forget(stream);
                        }
                        Head::Grpc(block) => self.http2.head(stream, &block),
                        Head::Other(block) if body.is_end_stream() => {
                            let _ = self.http2.respond(stream, &block);
                            return self.forget(stream);
                        }
                        Head::Other(block) => self.http2.open(stream, &block),
                    };
                    if sent.is_err() {
                        return self.forget(stream);
                    }
                    running.doing = Doing::Body(body);
                }
            }
        }
        self.pump(place);
    }

    /// Gives HTTP/2 the next pieces of an answer, while there is room.
    fn pump(&mut self, place: usize) {
        let Some((running, waker)) = self.running.get(place) else { return };
        let mut cx = Context::from_waker(waker);
        let stream = running.stream;
        let Doing::Body(body) = &mut running.doing else { return };
        while self.http2.queued(stream) < QUEUED_MAX {
            let ended = match Pin::new(&mut *body).poll_frame(&mut cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(mut piece) => {
                        while piece.has_remaining() {
                            self.pieces.push(piece.take_chunk());
                        }
                        self.http2.data(stream, self.pieces.drain(..)).is_err()
                    }
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        let _ = self.http2.finish(stream, answer::trailers(&trailers));
                        true
                    }
                },
                Poll::Ready(Some(Err(_))) => {
                    self.http2.reset(stream, ErrorCode::INTERNAL_ERROR);
                    true
                }
                Poll::Ready(None) => {
                    let _ = self.http2.finish(stream, Trailers::None);
                    true
                }
            };
            if ended {
                return self.forget(stream);
            }
        }
    }

    /// Answers with a status alone.
    fn fail(&mut self, stream: StreamId, status: &Status) {
        let _ = self.http2.finish(stream, answer::refusal(status));
        self.forget(stream);
    }

    fn reset(&mut self, stream: StreamId, code: ErrorCode) {
        if self.forgiven.elapsed() >= FORGIVEN {
            self.forgiven = Instant::now();
            self.http2.forgive();
        }
        if let Some(Known::Running(of, place)) = self.streams.get(stream.place())
            && *of == stream
            && let Some((running, _)) = self.running.get(*place)
            && let Some(filler) = &running.filler
        {
            filler.end(Err(Status::new(Code::Cancelled, format!("the client gave the call up ({code})"))));
        }
        self.forget(stream);
    }

    /// Drops what is done for a stream. The rest of its request is given back as it comes.
    fn forget(&mut self, stream: StreamId) {
        let Some(known) = self.streams.get_mut(stream.place()) else { return };
        match known {
            Known::Arriving(of, _) if *of == stream => *known = Known::Answered,
            Known::Running(of, place) if *of == stream => {
                let place = *place;
                *known = Known::Answered;
                drop(self.running.remove(place));
            }
            _ => {}
        }
    }

    /// Ends everything, as the client is gone.
    fn end_all(&mut self) {
        for known in std::mem::take(&mut self.streams) {
            if let Known::Running(_, place) = known
                && let Some(running) = self.running.remove(place)
                && let Some(filler) = running.filler
            {
                filler.end(Err(Status::cancelled("the client is gone")));
            }
        }
    }
}

/// The next time at which such PINGs are answered: one each second, at which the process wakes for all connections.
fn probes_due() -> Sleep {
    static ORIGIN: OnceLock<tokio::time::Instant> = OnceLock::new();
    let (origin, now) = (*ORIGIN.get_or_init(tokio::time::Instant::now), tokio::time::Instant::now());
    let seconds = now.saturating_duration_since(origin).as_secs() + 1;
    tokio::time::sleep_until(origin + Duration::from_secs(seconds))
}

/// Serves a connection, and ends it gracefully when `leave` fires.
pub(crate) async fn drive<U: UnaryCalls, O: Others>(
    mut driver: Driver<U, O>,
    leave: WaitForCancellationFuture<'_>,
    mut turn: impl FnMut(bool),
) -> io::Result<()> {
    let mut leave = pin!(leave);
    let mut left = false;
    std::future::poll_fn(|cx| {
        if !left && leave.as_mut().poll(cx).is_ready() {
            left = true;
            driver.shutdown();
        }
        let ended = driver.poll(cx);
        turn(driver.has_streams());
        ended
    })
    .await
}
