//! The queue of the loop.

use std::mem;

use tokio::{
    runtime,
    sync::mpsc::{self, error::TryRecvError},
};

use super::request::Request;

/// The requests that the loop has not read yet.
///
/// Every request is dropped at the latest when the queue is, so that its client learns that there is no answer. Tokio's
/// receiver alone does not ensure that: a request that a sender is just putting there stays until the last sender is
/// dropped, and the client that waits for its answer holds one.
#[derive(Debug)]
pub(super) struct Requests(mpsc::Receiver<Request>);

impl Requests {
    pub(super) fn new(receiver: mpsc::Receiver<Request>) -> Self {
        Self(receiver)
    }

    /// The next request, also after [`Requests::close`]; `None` when there will be none.
    pub(super) async fn recv(&mut self) -> Option<Request> {
        self.0.recv().await
    }

    pub(super) fn try_recv(&mut self) -> Result<Request, TryRecvError> {
        self.0.try_recv()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Senders are refused from now on.
    pub(super) fn close(&mut self) {
        self.0.close();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        let (_, none) = mpsc::channel(1);
        let mut receiver = mem::replace(&mut self.0, none);
        receiver.close();
        // Without a runtime nobody waits for an answer any more.
        if !matches!(receiver.try_recv(), Err(TryRecvError::Disconnected))
            && let Ok(runtime) = runtime::Handle::try_current()
        {
            runtime.spawn(async move { while receiver.recv().await.is_some() {} });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::super::call::Call;
    use super::*;

    #[tokio::test]
    async fn a_request_that_comes_while_the_queue_is_dropped_is_dropped_too() {
        let (sender, receiver) = mpsc::channel(8);
        let (answer, answered) = oneshot::channel::<()>();
        let request = Request::Call(Call::Inspect(Box::new(move |_| Box::new(move || _ = answer.send(())))));
        // A sender that has a place, and has not put its request there.
        let place = sender.reserve().await.unwrap();
        drop(Requests::new(receiver));
        assert!(sender.try_reserve().is_err(), "it is closed");
        place.send(request);
        let told = tokio::time::timeout(Duration::from_secs(60), answered).await;
        assert!(told.expect("it is dropped").is_err());
    }
}
