//! Distinguishes the proper end of a stream from a producer that panicked. A task that produces a stream drops its
//! end of the channel when it is done, but also when it panics, and the reader cannot tell the two apart. So the
//! producer must declare the proper end. Without that declaration the stream ends as `Unavailable`, and no client
//! takes a part for the whole.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio_stream::Stream;
use tonic::Status;

/// The status of a stream whose producer disappeared before its end.
#[must_use]
pub fn broken_off() -> Status {
    Status::unavailable("kindred: the answer broke off in the middle and is not whole; ask again")
}

/// The producer's half, to be used after the last message and before its end of the channel is dropped.
#[derive(Debug)]
#[must_use = "without it the stream ends as broken off"]
pub struct GoodEnd(Arc<AtomicBool>);

impl GoodEnd {
    /// Declares that all messages were sent.
    pub fn reached(self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The reader's half: forwards the messages, and ends as the producer declared.
#[derive(Debug)]
pub struct Produced<S> {
    messages: S,
    good: Arc<AtomicBool>,
    is_over: bool,
}

/// Requires the end of `messages` to be declared.
pub fn produced<S>(messages: S) -> (GoodEnd, Produced<S>) {
    let good = Arc::new(AtomicBool::new(false));
    (GoodEnd(good.clone()), Produced { messages, good, is_over: false })
}

impl<S, T> Stream for Produced<S>
where
    S: Stream<Item = Result<T, Status>> + Unpin,
{
    type Item = Result<T, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(None);
        }
        let next = ready!(Pin::new(&mut this.messages).poll_next(cx));
        // Nothing follows a status. The declaration was stored before the channel closed, so it is visible here.
        this.is_over = !matches!(next, Some(Ok(_)));
        match next {
            None if !this.good.load(Ordering::Acquire) => Poll::Ready(Some(Err(broken_off()))),
            next => Poll::Ready(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
    use tonic::Code;

    use super::*;

    type Said = Vec<Result<u32, Code>>;

    async fn said(
        produce: impl AsyncFnOnce(tokio::sync::mpsc::Sender<Result<u32, Status>>, GoodEnd) + 'static,
    ) -> Said {
        let (to, messages) = tokio::sync::mpsc::channel(4);
        let (good, stream) = produced(ReceiverStream::new(messages));
        // The test makes the task panic, so the panic is not propagated.
        let tasks = tokio::task::LocalSet::new();
        let task = tasks.spawn_local(produce(to, good));
        let _ = tasks.run_until(task).await;
        stream.map(|message| message.map_err(|status| status.code())).collect().await
    }

    #[tokio::test]
    async fn f08_a_producer_that_panics_does_not_end_its_stream_well() {
        let whole = said(async |to, good| {
            to.send(Ok(1)).await.unwrap();
            good.reached();
        });
        assert_eq!(whole.await, [Ok(1)]);
        let cut = said(async |to, good| {
            to.send(Ok(1)).await.unwrap();
            assert!(to.is_closed(), "the task ends here");
            good.reached();
        });
        assert_eq!(cut.await, [Ok(1), Err(Code::Unavailable)]);
        let refused = said(async |to, _good| {
            to.send(Err(Status::not_found(""))).await.unwrap();
        });
        assert_eq!(refused.await, [Err(Code::NotFound)]);
    }
}
