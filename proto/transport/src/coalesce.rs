//! Gathers small socket writes: many HTTP/2 frames, one system call.
//!
//! h2 flushes after every DATA frame, so each frame costs a `writev`. [`Coalesce`] keeps what is written in a buffer,
//! answers a flush at once, wakes its own task and drains on that task's next turn. Tasks that are ready meanwhile
//! write too, so that batches grow under load and nothing waits when there is none. It belongs *above* TLS: then also
//! a TLS record carries many frames.
//!
//! Answering a flush early is a promise to drain without being asked, so this holds after every call:
//!
//! **Flushed bytes in the buffer imply that the task will be polled again**: either it was woken (`poll_flush`
//! deferred), or the inner writer is pending and holds its waker (a drain got stuck).
//!
//! And on that turn the bytes move whatever the task calls: `poll_read` and `poll_shutdown` drain; `poll_flush`
//! drains from the third call on that follows a write (h2 flushes at most twice in one turn, after its last frame
//! and at its end, so a third flush comes from a task that does not read); `poll_write` drains when the buffer is full.
//! A long write is not gathered: it takes what was along.
//!
//! The limit: one task must own the connection and come back to it, as h2's and hyper's connection tasks do. A task that
//! flushes once and then never calls again, or halves of a split connection in two tasks, would keep bytes back.
//!
//! An error while draining on the read side is kept for the next write, flush or shutdown: what the peer sent before it
//! closed must still be read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop;

/// Above this a write drains first: what backpressure on the socket can leave in memory for a connection is at most
/// this and one write.
const FULL: usize = 128 << 10;
/// A buffer that grew beyond this is given back once batches are small again.
const KEEP: usize = 32 << 10;
/// A write of this much goes out at once, together with what was gathered before it: to gather it, too, would copy all of it
/// to save one system call. HTTP/2 frames are as long only where the peer takes such, as a router does from its stores.
const DIRECT: usize = 64 << 10;
/// Slices of such a write that go out together; h2 has two, or a few more of a message in pieces.
const DIRECT_SLICES: usize = 16;
/// Flushes after a write that are answered without draining.
const DEFERRED_FLUSHES: u8 = 2;

/// So many bytes take as much of what a task may do in a turn as one small write; tokio has 128 of these. A task with a long
/// answer for a client that takes megabytes at once would hold up all others on its thread for milliseconds.
const STEP: usize = 4 << 10;

/// Takes bytes that were written from what the task may do in this turn.
fn pay(cx: &mut Context<'_>, bytes: usize) {
    for _ in 0..bytes / STEP {
        // When nothing is left, the next write is pending, and wakes the task.
        if !coop::has_budget_remaining() {
            return;
        }
        if let Poll::Ready(step) = coop::poll_proceed(cx) {
            step.made_progress();
        }
    }
}

/// A connection whose writes are gathered; see the module.
#[derive(Debug)]
pub struct Coalesce<T> {
    inner: T,
    /// Bytes accepted; those before `sent` are written to `inner`.
    buffer: Vec<u8>,
    sent: usize,
    /// Bytes went to `inner` since its last complete flush.
    inner_dirty: bool,
    /// Flushes since the last write.
    flushes: u8,
    /// What a drain on the read side met.
    error: Option<io::Error>,
}

impl<T> Coalesce<T> {
    /// Wraps a connection.
    pub fn new(inner: T) -> Self {
        Self { inner, buffer: Vec::new(), sent: 0, inner_dirty: false, flushes: 0, error: None }
    }

    /// The connection inside.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// Bytes accepted and not yet written.
    pub fn buffered(&self) -> usize {
        self.buffer.len() - self.sent
    }
}

impl<T: AsyncWrite + Unpin> Coalesce<T> {
    /// Writes until the buffer is empty, without flushing.
    fn poll_write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.buffer.len() {
            match ready!(Pin::new(&mut self.inner).poll_write(cx, &self.buffer[self.sent..])) {
                Ok(0) => return Poll::Ready(Err(self.fail(io::ErrorKind::WriteZero.into()))),
                Ok(written) => {
                    self.sent += written;
                    self.inner_dirty = true;
                    pay(cx, written);
                }
                Err(error) => return Poll::Ready(Err(self.fail(error))),
            }
        }
        let batch = self.buffer.len();
        self.sent = 0;
        self.buffer.clear();
        if self.buffer.capacity() > KEEP && batch < KEEP / 4 {
            self.buffer.shrink_to(KEEP / 2);
        }
        Poll::Ready(Ok(()))
    }

    /// Writes and flushes everything.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_out(cx))?;
        if self.inner_dirty {
            let flushed = ready!(Pin::new(&mut self.inner).poll_flush(cx));
            self.inner_dirty = false;
            flushed?;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes what was gathered and as much of `slices` as goes out; how much of them that is. Pending if it is nothing.
    fn poll_write_direct(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            let gathered = self.buffer.len() - self.sent;
            let mut all = [IoSlice::new(&[]); DIRECT_SLICES];
            let parts = std::iter::once(&self.buffer[self.sent..]).chain(slices.iter().map(|slice| &**slice));
            // No more than what is gathered at most: a turn is not to be long, however much the peer takes at once.
            let (mut filled, mut left) = (0, 2 * FULL);
            for (slot, part) in all.iter_mut().zip(parts.filter(|part| !part.is_empty())) {
                *slot = IoSlice::new(&part[..part.len().min(left)]);
                left -= slot.len();
                filled += 1;
                if left == 0 {
                    break;
                }
            }
            match ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, &all[..filled])) {
                Ok(0) => return Poll::Ready(Err(self.fail(io::ErrorKind::WriteZero.into()))),
                Ok(written) => {
                    self.inner_dirty = true;
                    pay(cx, written);
                    if written <= gathered {
                        self.sent += written;
                        continue;
                    }
                    self.sent = 0;
                    self.buffer.clear();
                    self.flushes = 0;
                    return Poll::Ready(Ok(written - gathered));
                }
                Err(error) => return Poll::Ready(Err(self.fail(error))),
            }
        }
    }

    /// After an error nothing can be delivered: the buffer is dropped, so that no task is kept awake for it.
    fn fail(&mut self, error: io::Error) -> io::Error {
        self.buffer = Vec::new();
        self.sent = 0;
        self.inner_dirty = false;
        error
    }

    /// Room for a write; drains when there is none.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Some(error) = self.error.take() {
            return Poll::Ready(Err(error));
        }
        if self.buffered() >= FULL {
            // Part of the buffer going out is enough to go on; if it is not, the inner writer has our waker.
            match self.poll_write_out(cx) {
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending if self.buffered() >= FULL => return Poll::Pending,
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        if self.sent >= FULL {
            self.buffer.drain(..self.sent);
            self.sent = 0;
        }
        Poll::Ready(Ok(2 * FULL - self.buffered()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Coalesce<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if slices.iter().map(|slice| slice.len()).sum::<usize>() >= DIRECT {
            if let Some(error) = this.error.take() {
                return Poll::Ready(Err(error));
            }
            return this.poll_write_direct(cx, slices);
        }
        let room = ready!(this.poll_room(cx))?;
        let mut left = room;
        for slice in slices {
            let taken = slice.len().min(left);
            this.buffer.extend_from_slice(&slice[..taken]);
            left -= taken;
        }
        if left < room {
            this.flushes = 0;
        }
        Poll::Ready(Ok(room - left))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(error) = this.error.take() {
            return Poll::Ready(Err(error));
        }
        if this.buffered() == 0 || this.flushes >= DEFERRED_FLUSHES {
            return this.poll_drain(cx);
        }
        this.flushes += 1;
        cx.waker().wake_by_ref();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(error) = this.error.take() {
            return Poll::Ready(Err(error));
        }
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.inner).poll_shutdown(cx)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Coalesce<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.buffered() > 0 || this.inner_dirty {
            // Pending is fine: the inner writer holds our waker, and reading goes on meanwhile.
            if let Poll::Ready(Err(error)) = this.poll_drain(cx) {
                this.error = Some(error);
                cx.waker().wake_by_ref();
            }
        }
        Pin::new(&mut this.inner).poll_read(cx, into)
    }
}

#[cfg(test)]
mod tests;
