//! Runs a task, polled only when woken, over a scripted inner connection. At rest every flushed byte must have
//! arrived.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::rest::TURN_BYTES;

use super::*;

/// The result of the inner connection's next call.
#[derive(Debug, Clone, Copy)]
enum Answer {
    /// Accepts at most this many bytes, or completes a flush.
    Take(usize),
    /// Is not ready, and keeps its waker until the test fires it.
    Wait,
}

#[derive(Debug, Default)]
struct Inner {
    script: VecDeque<Answer>,
    sink: Vec<u8>,
    flushed: usize,
    writes: usize,
    waiting: Option<Waker>,
    shut: bool,
    broken: bool,
}

impl Inner {
    fn answer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        match self.script.pop_front() {
            None => Poll::Ready(Ok(usize::MAX)),
            Some(Answer::Take(most)) => Poll::Ready(Ok(most)),
            Some(Answer::Wait) => {
                self.waiting = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl AsyncRead for Inner {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Inner {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let taken = ready!(this.answer(cx))?.min(bytes.len());
        this.sink.extend_from_slice(&bytes[..taken]);
        this.writes += 1;
        Poll::Ready(Ok(taken))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.poll_write(cx, &all)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.answer(cx))?;
        this.flushed = this.sink.len();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().shut = true;
        Poll::Ready(Ok(()))
    }
}

/// Reads what never comes.
fn read(io: &mut Coalesce<Inner>, cx: &mut Context<'_>) {
    let mut space = [0; 16];
    assert!(Pin::new(io).poll_read(cx, &mut ReadBuf::new(&mut space)).is_pending());
}

/// Whether the task was woken, and how often.
#[derive(Default)]
struct Woken(AtomicBool, AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// A turn of the task: the frames to write, each with an optional flush as in h2, and a flush at the end.
#[derive(Debug, Clone)]
struct Turn {
    reads_first: bool,
    frames: Vec<Frame>,
}

#[derive(Debug, Clone, Copy)]
struct Frame {
    length: usize,
    /// A flush follows the frame.
    flush: bool,
    /// The frame is the head of a request, and a message follows.
    head: bool,
}

/// A HEADERS frame of `length` bytes whose stream goes on.
fn head(length: usize) -> Vec<u8> {
    let payload = u32::try_from(length - 9).unwrap().to_be_bytes();
    let mut frame = vec![payload[1], payload[2], payload[3], 1, 4, 0, 0, 0, 1];
    frame.resize(length, 7);
    frame
}

/// The behaviour of the task when it has nothing left to write.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Idle {
    Reads,
    Flushes,
    ShutsDown,
}

#[derive(Debug)]
struct Task {
    io: Coalesce<Inner>,
    turns: VecDeque<Turn>,
    /// The remaining bytes of a frame; `None` if the turn's last flush is due.
    due: VecDeque<Option<(Vec<u8>, Frame)>>,
    flush_due: bool,
    written: Vec<u8>,
    idle: Idle,
}

impl Task {
    /// Behaves like a connection task: if a call is pending, the turn ends there and continues after a wake-up.
    fn poll(&mut self, cx: &mut Context<'_>) {
        if self.due.is_empty() && !self.flush_due {
            let Some(turn) = self.turns.pop_front() else {
                match self.idle {
                    Idle::Reads => read(&mut self.io, cx),
                    Idle::Flushes => drop(Pin::new(&mut self.io).poll_flush(cx)),
                    Idle::ShutsDown => drop(Pin::new(&mut self.io).poll_shutdown(cx)),
                }
                return;
            };
            if turn.reads_first {
                read(&mut self.io, cx);
            }
            for frame in turn.frames {
                let start = self.written.len();
                let bytes = if frame.head {
                    head(frame.length.max(9))
                } else {
                    (start..start + frame.length).map(|at| (at % 251) as u8).collect()
                };
                self.written.extend_from_slice(&bytes);
                self.due.push_back(Some((bytes, frame)));
            }
            self.due.push_back(None);
        }
        loop {
            if self.flush_due {
                match Pin::new(&mut self.io).poll_flush(cx) {
                    Poll::Ready(result) => result.unwrap(),
                    Poll::Pending => return,
                }
                self.flush_due = false;
            }
            match self.due.pop_front() {
                None => return,
                Some(None) => self.flush_due = true,
                Some(Some((mut bytes, frame))) => {
                    while !bytes.is_empty() {
                        let (first, last) = bytes.split_at(bytes.len() / 2);
                        let slices = [IoSlice::new(first), IoSlice::new(last)];
                        // h2 passes what it has encoded as one slice.
                        let whole = [IoSlice::new(&bytes)];
                        let slices = if frame.head { &whole[..] } else { &slices[..] };
                        match Pin::new(&mut self.io).poll_write_vectored(cx, slices) {
                            Poll::Ready(taken) => drop(bytes.drain(..taken.unwrap())),
                            Poll::Pending => {
                                self.due.push_front(Some((bytes, frame)));
                                return;
                            }
                        }
                        assert!(self.io.buffered() <= 2 * FULL);
                    }
                    self.flush_due = frame.flush;
                }
            }
        }
    }

    /// Polls until nothing wakes the task: neither itself, nor the inner connection, nor new work.
    fn run(&mut self) {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        loop {
            self.poll(&mut cx);
            for spin in 0.. {
                if !woken.0.swap(false, Ordering::SeqCst) {
                    break;
                }
                assert!(spin < 1000, "the task keeps itself awake");
                self.poll(&mut cx);
            }
            if let Some(ready) = self.io.inner.waiting.take() {
                ready.wake();
            } else if self.turns.is_empty() && (self.idle != Idle::ShutsDown || self.io.inner.shut) {
                return;
            }
        }
    }
}

fn answers() -> impl Strategy<Value = Vec<Answer>> {
    let answer = prop_oneof![
        2 => Just(Answer::Wait),
        2 => (1..40usize).prop_map(Answer::Take),
        1 => Just(Answer::Take(100_000)),
    ];
    prop::collection::vec(answer, 0..60)
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let length = prop_oneof![8 => 1..400usize, 1 => 50_000..300_000usize];
    let frame = (length, any::<bool>(), any::<bool>()).prop_map(|(length, flush, head)| Frame {
        length,
        flush,
        head,
    });
    let turn = (any::<bool>(), prop::collection::vec(frame, 0..6))
        .prop_map(|(reads_first, frames)| Turn { reads_first, frames });
    prop::collection::vec(turn, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn at_rest_every_flushed_byte_has_arrived(
        script in answers(),
        turns in turns(),
        idle in prop_oneof![Just(Idle::Reads), Just(Idle::Flushes), Just(Idle::ShutsDown)],
    ) {
        let inner = Inner { script: script.into(), ..Inner::default() };
        let mut task = Task {
            io: Coalesce::new(inner),
            turns: turns.into(),
            due: VecDeque::new(),
            flush_due: false,
            written: Vec::new(),
            idle,
        };
        task.run();
        prop_assert!(task.due.is_empty() && !task.flush_due, "the task is stuck");
        prop_assert_eq!(&task.io.inner.sink, &task.written);
        prop_assert_eq!(task.io.inner.flushed, task.written.len());
        prop_assert_eq!(task.io.buffered(), 0);
    }
}

#[test]
fn many_frames_are_one_write() {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut cx = Context::from_waker(&waker);
    let mut io = Coalesce::new(Inner::default());
    for frame in 0..50u8 {
        assert!(Pin::new(&mut io).poll_write(&mut cx, &[frame; 300]).is_ready());
        assert!(Pin::new(&mut io).poll_flush(&mut cx).is_ready());
    }
    assert_eq!((io.inner.writes, woken.1.load(Ordering::SeqCst)), (0, 50));
    read(&mut io, &mut cx);
    assert_eq!((io.inner.writes, io.inner.sink.len()), (1, 15_000));
}

/// The order of h2's and hyper's calls for a call of one message, as strace showed it.
#[test]
fn the_head_of_a_request_leaves_with_its_message() {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut cx = Context::from_waker(&waker);
    let mut io = Coalesce::new(Inner::default());
    let turn = |io: &mut Coalesce<Inner>, cx: &mut Context<'_>, bytes: &[u8]| {
        read(io, cx);
        if !bytes.is_empty() {
            assert!(Pin::new(&mut *io).poll_write(cx, bytes).is_ready());
        }
        assert!(Pin::new(&mut *io).poll_flush(cx).is_ready());
    };
    turn(&mut io, &mut cx, &[head(40), head(50)].concat());
    assert_eq!((io.inner.writes, io.buffered()), (0, 90));
    turn(&mut io, &mut cx, b"message");
    assert_eq!((io.inner.writes, io.inner.flushed), (1, 97));

    // A head whose message is not there yet leaves in its next turn, as everything else does.
    turn(&mut io, &mut cx, &head(40));
    turn(&mut io, &mut cx, b"");
    assert_eq!((io.inner.writes, io.inner.flushed), (2, 137));

    // A task that only reads is woken for another turn, in which the head leaves.
    turn(&mut io, &mut cx, &head(40));
    woken.0.store(false, Ordering::SeqCst);
    read(&mut io, &mut cx);
    assert!(woken.0.load(Ordering::SeqCst), "the task sleeps with bytes that it has flushed");
    read(&mut io, &mut cx);
    assert_eq!((io.inner.writes, io.inner.flushed), (3, 177));
}

#[test]
fn only_whole_heads_of_streams_that_go_on_wait() {
    assert!(ends_with_head(&head(9)) && ends_with_head(&head(70_000)));
    let ended: Vec<u8> = {
        let mut frame = head(40);
        frame[4] |= 1;
        frame
    };
    let message: Vec<u8> = {
        let mut frame = head(40);
        frame[3] = 0;
        frame
    };
    assert!(ends_with_head(&[ended.clone(), head(30)].concat()));
    for no in [
        &[][..],
        b"message",
        &ended,
        &message,
        &head(40)[..39],
        &[head(40), ended.clone()].concat(),
        &head(40)[..8],
    ] {
        assert!(!ends_with_head(no), "{no:?}");
    }
}

#[test]
fn a_long_write_is_not_gathered_and_takes_along_what_was() {
    let waker = Waker::noop();
    let mut cx = Context::from_waker(waker);
    // The first inner write accepts half of the buffer, the second one the rest and a part of the long write.
    let script = VecDeque::from([Answer::Take(50), Answer::Take(50 + DIRECT), Answer::Wait]);
    let mut io = Coalesce::new(Inner { script, ..Inner::default() });
    assert!(Pin::new(&mut io).poll_write(&mut cx, &[1; 100]).is_ready());
    let long = vec![2; 2 * DIRECT];
    let slices = [IoSlice::new(&long[..7]), IoSlice::new(&[]), IoSlice::new(&long[7..])];
    let Poll::Ready(Ok(taken)) = Pin::new(&mut io).poll_write_vectored(&mut cx, &slices) else {
        panic!("nothing was taken")
    };
    assert_eq!((taken, io.inner.writes, io.buffered()), (DIRECT, 2, 0));
    assert!(Pin::new(&mut io).poll_write(&mut cx, &long[taken..]).is_pending());
    assert!(Pin::new(&mut io).poll_write(&mut cx, &long[taken..]).is_ready());
    assert_eq!(io.inner.sink, [vec![1; 100], long].concat());
}

#[test]
fn an_error_on_the_read_side_comes_with_the_next_write() {
    let waker = Waker::noop();
    let mut cx = Context::from_waker(waker);
    let mut io = Coalesce::new(Inner::default());
    assert!(Pin::new(&mut io).poll_write(&mut cx, b"lost").is_ready());
    assert!(Pin::new(&mut io).poll_flush(&mut cx).is_ready());
    io.inner.broken = true;
    read(&mut io, &mut cx);
    let Poll::Ready(Err(error)) = Pin::new(&mut io).poll_flush(&mut cx) else { panic!("no error") };
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    assert_eq!(io.buffered(), 0);
}

#[tokio::test(start_paused = true)]
async fn arrives_without_timers_and_shutdown_drains() {
    let (left, mut right) = tokio::io::duplex(64);
    let task = tokio::spawn(async move {
        let mut io = Coalesce::new(left);
        io.write_all(&[7; 1000]).await.unwrap();
        io.flush().await.unwrap();
        let mut byte = [0];
        io.read_exact(&mut byte).await.unwrap();
        io.write_all(&[8; 500]).await.unwrap();
        io.shutdown().await.unwrap();
    });
    let mut bytes = vec![0; 1000];
    // Paused time advances when nothing can run, so a lost wake-up becomes a timeout and not a hang.
    tokio::time::timeout(Duration::from_secs(1), right.read_exact(&mut bytes)).await.unwrap().unwrap();
    right.write_all(&[1]).await.unwrap();
    let mut rest = Vec::new();
    tokio::time::timeout(Duration::from_secs(1), right.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert_eq!(rest, [8; 500]);
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_drop_loses_only_what_was_not_sent() {
    let (left, mut right) = tokio::io::duplex(1 << 20);
    let mut io = Coalesce::new(left);
    io.write_all(&[1; 100]).await.unwrap();
    for _ in 0..=DEFERRED_FLUSHES {
        io.flush().await.unwrap();
    }
    io.write_all(&[2; 100]).await.unwrap();
    drop(io);
    let mut bytes = Vec::new();
    right.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(bytes, [1; 100]);
}

#[tokio::test(start_paused = true)]
async fn a_full_socket_pushes_back() {
    let (left, mut right) = tokio::io::duplex(1024);
    let mut io = Coalesce::new(left);
    let mut accepted = 0;
    while let Ok(taken) = tokio::time::timeout(Duration::from_millis(1), io.write(&[3; 10_000])).await {
        accepted += taken.unwrap();
        assert!(accepted < 4 * FULL, "no backpressure");
    }
    let reader = tokio::spawn(async move {
        let mut bytes = Vec::new();
        right.read_to_end(&mut bytes).await.unwrap();
        bytes.len()
    });
    // The writer waits, and is woken when the other side reads.
    poll_fn(|cx| Pin::new(&mut io).poll_write(cx, &[3; 10])).await.unwrap();
    io.shutdown().await.unwrap();
    drop(io);
    assert_eq!(reader.await.unwrap(), accepted + 10);
}

/// A long answer to a client with room for all of it takes many turns, between which other tasks run.
#[tokio::test]
async fn a_turn_writes_so_much_and_no_more() {
    const BYTES: usize = 16 << 20;
    let (near, mut far) = tokio::io::duplex(BYTES);
    let mut io = Coalesce::new(near);
    let bytes = vec![7; BYTES];
    let (mut sent, mut turns) = (0, 0);
    while sent < BYTES {
        let turn = poll_fn(|cx| {
            let mut turn = 0;
            while sent + turn < BYTES
                && let Poll::Ready(taken) = Pin::new(&mut io).poll_write(cx, &bytes[sent + turn..])
            {
                turn += taken.unwrap();
            }
            Poll::Ready(turn)
        });
        let turn = turn.await;
        // The buffered part goes out in the next turn.
        assert!(turn <= TURN_BYTES + 2 * FULL, "{turn} bytes in a turn");
        (sent, turns) = (sent + turn, turns + 1);
        tokio::task::yield_now().await;
    }
    assert!(turns >= BYTES / (TURN_BYTES + 2 * FULL));
    io.shutdown().await.unwrap();
    let mut got = Vec::new();
    far.read_to_end(&mut got).await.unwrap();
    assert!(got == bytes, "{} bytes came", got.len());
}
