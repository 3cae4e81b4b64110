//! How a stream that a task produces ends. The task's end of the channel is dropped when it has said all, and just as well
//! when it panics in the middle: to the reader both look like the end. So the good end is said: a stream whose producer
//! goes away without saying it ends as `Unavailable`, and nobody takes the part that came for the whole.

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

/// What a stream is told whose producer went away in the middle.
#[must_use]
pub fn broken_off() -> Status {
    Status::unavailable("kindred: the answer broke off in the middle and is not whole; ask again")
}

/// The producer's: to be said behind the last message, before its end of the channel is dropped.
#[derive(Debug)]
#[must_use = "without it the stream ends as broken off"]
pub struct GoodEnd(Arc<AtomicBool>);

impl GoodEnd {
    /// All was said that there is to say.
    pub fn reached(self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The reader's: passes messages on, and ends as the producer did.
#[derive(Debug)]
pub struct Produced<S> {
    messages: S,
    good: Arc<AtomicBool>,
    is_over: bool,
}

/// Makes the end of `messages` one that has to be said.
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
        // Behind a status nothing comes. It was stored before the channel was closed, so it is seen here.
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
        // A panic in the task is what is tested, so it is not passed on.
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
