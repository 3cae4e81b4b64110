//! Combines small socket writes, so that many HTTP/2 frames leave in one system call.
//!
//! h2 flushes after every DATA frame, so each frame would cost a `writev`. [`Coalesce`] buffers writes,
//! acknowledges a flush at once, wakes its own task and drains on that task's next turn. Other ready tasks write in
//! the meantime, so batches grow under load, and without load nothing waits. It belongs *above* TLS, so that a TLS
//! record carries many frames as well.
//!
//! Acknowledging a flush early is a promise to drain without being asked. So this invariant holds after every call:
//!
//! **Flushed bytes in the buffer imply that the task will be polled again**: either it was woken (`poll_flush`
//! deferred), or the inner writer is pending and holds its waker (a drain got stuck).
//!
//! On that next turn the bytes move whatever the task calls. `poll_read` and `poll_shutdown` drain. `poll_flush`
//! drains from the third call after a write: h2 flushes at most twice in one turn, after its last frame and at its
//! end, so a third flush comes from a task that does not read. `poll_write` drains when the buffer is full. A long
//! write is not buffered, and takes the buffered bytes with it.
//!
//! The head of a request waits for its message: h2 accepts the message only after it has written the head, and on
//! the next turn it reads before it writes. So if the last thing written is the head of a stream that goes on, the
//! next `poll_read` leaves the drain to the flush after it, which then sends both. Otherwise each call would be two
//! segments, which the peer receives one by one.
//!
//! Limitation: one task must own the connection and come back to it, as the connection tasks of h2 and hyper do. A
//! task that flushes once and never calls again, or two tasks that share a split connection, would hold bytes back.
//!
//! An error of a drain on the read side is kept for the next write, flush or shutdown, because what the peer sent
//! before it closed must still be read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::rest::{Rest, Share};

/// The buffer size from which a write drains first. Backpressure on the socket leaves at most this and one write in
/// memory for a connection.
const FULL: usize = 128 << 10;
/// A buffer that grew beyond this is freed once batches are small again.
const KEEP: usize = 32 << 10;
/// A write of at least this length goes out at once with the buffered bytes, because buffering it would copy all of
/// it to save one system call. HTTP/2 frames are this long only if the peer allows it, as a router does for its
/// stores.
const DIRECT: usize = 64 << 10;
/// The maximum number of slices in such a write. h2 has two, or a few more for a message in pieces.
const DIRECT_SLICES: usize = 64;
/// The number of flushes after a write that are acknowledged without draining.
const DEFERRED_FLUSHES: u8 = 2;

/// A connection whose writes are coalesced; see the module's documentation.
#[derive(Debug)]
pub struct Coalesce<T> {
    inner: T,
    /// The accepted bytes; those before `sent` are written to `inner`.
    buffer: Vec<u8>,
    sent: usize,
    /// Whether `inner` has received bytes since its last complete flush.
    inner_dirty: bool,
    /// The number of flushes since the last write.
    flushes: u8,
    /// The last write ended with the head of a stream that goes on, and no read has come since.
    ends_with_head: bool,
    /// Such a head has let a read pass for its message, so the next read or flush drains.
    waited: bool,
    /// The error of a drain on the read side.
    error: Option<io::Error>,
    /// What was written and read in this turn.
    share: Share,
    rest: Rest,
}

impl<T> Coalesce<T> {
    pub fn new(inner: T) -> Self {
        Self {
            inner,
            buffer: Vec::new(),
            sent: 0,
            inner_dirty: false,
            flushes: 0,
            ends_with_head: false,
            waited: false,
            error: None,
            share: Share::default(),
            rest: Rest::default(),
        }
    }

    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// Pending when the share of this turn is used up, until the runtime has looked for what arrived meanwhile.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.rest.poll_over(cx));
        if !self.share.is_spent() {
            return Poll::Ready(());
        }
        self.rest.begin(cx);
        self.rest.poll_over(cx)
    }

    /// The number of bytes that are accepted and not yet written.
    pub fn buffered(&self) -> usize {
        self.buffer.len() - self.sent
    }
}

impl<T: AsyncWrite + Unpin> Coalesce<T> {
    fn poll_write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.buffer.len() {
            ready!(self.poll_turn(cx));
            match ready!(Pin::new(&mut self.inner).poll_write(cx, &self.buffer[self.sent..])) {
                Ok(0) => return Poll::Ready(Err(self.fail(io::ErrorKind::WriteZero.into()))),
                Ok(written) => {
                    self.sent += written;
                    self.inner_dirty = true;
                    self.share.pay(written);
                }
                Err(error) => return Poll::Ready(Err(self.fail(error))),
            }
        }
        let batch = self.buffer.len();
        self.sent = 0;
        self.buffer.clear();
        self.ends_with_head = false;
        self.waited = false;
        if self.buffer.capacity() > KEEP && batch < KEEP / 4 {
            self.buffer.shrink_to(KEEP / 2);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_out(cx))?;
        if self.inner_dirty {
            let flushed = ready!(Pin::new(&mut self.inner).poll_flush(cx));
            self.inner_dirty = false;
            flushed?;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes the buffered bytes and then as much of `slices` as possible; returns how much of `slices`. Pending if
    /// that is nothing.
    fn poll_write_direct(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_turn(cx));
            let gathered = self.buffer.len() - self.sent;
            let mut all = [IoSlice::new(&[]); DIRECT_SLICES];
            let parts = std::iter::once(&self.buffer[self.sent..]).chain(slices.iter().map(|slice| &**slice));
            // Bounded like the buffer, so that a turn stays short however much the peer takes at once.
            let (mut filled, mut left) = (0, 2 * FULL);
            for (slot, part) in all.iter_mut().zip(parts.filter(|part| !part.is_empty())) {
                *slot = IoSlice::new(&part[..part.len().min(left)]);
                left -= slot.len();
                filled += 1;
                if left == 0 {
                    break;
                }
            }
            let inner = Pin::new(&mut self.inner);
            let written = match &all[..filled] {
                [one] => inner.poll_write(cx, one),
                several => inner.poll_write_vectored(cx, several),
            };
            match ready!(written) {
                Ok(0) => return Poll::Ready(Err(self.fail(io::ErrorKind::WriteZero.into()))),
                Ok(written) => {
                    self.inner_dirty = true;
                    self.share.pay(written);
                    if written <= gathered {
                        self.sent += written;
                        continue;
                    }
                    self.sent = 0;
                    self.buffer.clear();
                    self.flushes = 0;
                    self.ends_with_head = false;
                    self.waited = false;
                    return Poll::Ready(Ok(written - gathered));
                }
                Err(error) => return Poll::Ready(Err(self.fail(error))),
            }
        }
    }

    /// Drops the buffer after an error, because nothing can be delivered and the task must not stay awake for it.
    fn fail(&mut self, error: io::Error) -> io::Error {
        self.buffer = Vec::new();
        self.sent = 0;
        self.inner_dirty = false;
        error
    }

    /// The room for a write; drains if there is none.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Some(error) = self.error.take() {
            return Poll::Ready(Err(error));
        }
        if self.buffered() >= FULL {
            // It suffices that a part of the buffer goes out. Otherwise the inner writer has the task's waker.
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

impl<T: AsyncWrite + Unpin> Coalesce<T> {
    /// Writes as much as possible now, behind the bytes that are buffered, for a task that combines its writes itself.
    /// Such a task flushes by [`Coalesce::poll_flush_now`].
    pub fn poll_write_now(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(error) = self.error.take() {
            return Poll::Ready(Err(error));
        }
        self.poll_write_direct(cx, slices)
    }

    /// Flushes what was written. Nothing is left to be done later when this is ready.
    pub fn poll_flush_now(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.inner_dirty && self.buffered() == 0 {
            return Poll::Ready(Ok(()));
        }
        self.poll_drain(cx)
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
            this.ends_with_head = matches!(slices, [only] if only.len() <= room && ends_with_head(only));
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
        if this.buffered() == 0 || this.waited || this.flushes >= DEFERRED_FLUSHES {
            return this.poll_drain(cx);
        }
        this.flushes += 1;
        // Both wake the task, the second one later.
        if this.poll_turn(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
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
        if std::mem::take(&mut this.ends_with_head) {
            this.waited = true;
            // The task may not flush in this turn; then it must come back.
            cx.waker().wake_by_ref();
        } else if this.buffered() > 0 || this.inner_dirty {
            // If pending, the inner writer has the task's waker, and reading continues meanwhile.
            if let Poll::Ready(Err(error)) = this.poll_drain(cx) {
                this.error = Some(error);
                cx.waker().wake_by_ref();
            }
        }
        ready!(this.poll_turn(cx));
        let before = into.filled().len();
        let read = Pin::new(&mut this.inner).poll_read(cx, into);
        this.share.pay(into.filled().len() - before);
        read
    }
}

/// Returns true if `bytes` are whole HTTP/2 frames and the last one is the HEADERS of a stream that goes on (RFC 9113, 4.1
/// and 6.2). Bytes of another protocol may look so too; they leave a turn later then.
fn ends_with_head(bytes: &[u8]) -> bool {
    const HEADERS: u8 = 1;
    const END_STREAM: u8 = 1;
    let (mut rest, mut head) = (bytes, false);
    while let [a, b, c, kind, flags, _, _, _, _, after @ ..] = rest {
        let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some(next) = after.get(length..) else { return false };
        head = *kind == HEADERS && flags & END_STREAM == 0;
        rest = next;
    }
    head && rest.is_empty()
}

#[cfg(test)]
mod tests;
