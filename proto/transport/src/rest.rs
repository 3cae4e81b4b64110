//! Lets a runtime look for what has arrived before a task goes on with something long.
//!
//! Tokio's runtimes run up to 61 turns of tasks between two looks at sockets and timers. Where a few tasks wake each
//! other, such as those that move a long answer from a store to a client, that is 15 MB, and milliseconds, during which
//! nothing that came in is noticed. A task that yields is continued after the next look, but any other task may wake it
//! before. [`Rest`] is over only after that look.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Whether a task rests, and until when.
#[derive(Debug, Default)]
pub(crate) struct Rest(Option<Arc<Look>>);

#[derive(Debug)]
struct Look {
    happened: AtomicBool,
    /// That of the last poll.
    task: AtomicWaker,
}

impl Wake for Look {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.happened.store(true, Ordering::Release);
        self.task.wake();
    }
}

impl Rest {
    /// Begins a rest. The task of this context is woken at its end.
    pub(crate) fn begin(&mut self, cx: &mut Context<'_>) {
        let look = Arc::new(Look { happened: AtomicBool::new(false), task: AtomicWaker::new() });
        look.task.register(cx.waker());
        let waker = Waker::from(look.clone());
        // The first poll hands the waker over, so the future need not be kept.
        let yields = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker));
        debug_assert!(yields.is_pending(), "a first poll yields");
        self.0 = Some(look);
    }

    /// Pending during a rest.
    pub(crate) fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(look) = &self.0 {
            look.task.register(cx.waker());
            if !look.happened.load(Ordering::Acquire) {
                return Poll::Pending;
            }
            self.0 = None;
        }
        Poll::Ready(())
    }
}

/// Rests once.
pub(crate) async fn rest() {
    let mut rest = Rest::default();
    poll_fn(|cx| {
        rest.begin(cx);
        Poll::Ready(())
    })
    .await;
    poll_fn(|cx| rest.poll_over(cx)).await;
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::Write as _;
    use std::rc::Rc;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// Two tasks wake each other for ever. What arrives at a socket is noticed at the next rest all the same.
    #[tokio::test]
    async fn f37_what_arrives_is_noticed_within_one_rest_however_busy_others_are() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        let mut server = tokio::net::TcpStream::from_std(server).unwrap();
        let (turns, arrived) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(None)));
        let local = tokio::task::LocalSet::new();
        let (counted, noted) = (turns.clone(), arrived.clone());
        local.spawn_local(async move {
            let mut byte = [0];
            server.read_exact(&mut byte).await.unwrap();
            noted.set(Some(counted.get()));
        });
        local
            .run_until(async {
                let mut rest = Rest::default();
                let noted = arrived.clone();
                poll_fn(|cx| {
                    // As another task would.
                    cx.waker().wake_by_ref();
                    if rest.poll_over(cx).is_pending() {
                        return Poll::Pending;
                    }
                    turns.set(turns.get() + 1);
                    if turns.get() == 100 {
                        client.write_all(b"x").unwrap();
                    }
                    rest.begin(cx);
                    if noted.get().is_some() { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
            })
            .await;
        // The loopback network may take a moment; a runtime that does not look would need 61 turns.
        assert!(arrived.get().unwrap() < 100 + 30, "{:?}", arrived.get());
    }

    #[tokio::test]
    async fn a_rest_ends_and_wakes_whoever_polled_last() {
        poll_fn(|cx| {
            assert!(Rest::default().poll_over(cx).is_ready(), "none has begun");
            Poll::Ready(())
        })
        .await;
        let mut rest = Rest::default();
        // Another task begins it than the one that waits for its end.
        rest.begin(&mut Context::from_waker(Waker::noop()));
        assert!(rest.poll_over(&mut Context::from_waker(Waker::noop())).is_pending());
        poll_fn(|cx| rest.poll_over(cx)).await;
        super::rest().await;
    }
}
