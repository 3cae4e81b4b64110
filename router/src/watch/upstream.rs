//! An upstream watch stream: a task that opens it and passes its messages to the session.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kindred_router_core::store::StoreIx;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

use crate::stores::Store;
use crate::stores::failure::Failure;

/// How long a session may leave a message unread before the stream is closed; it is opened again later.
pub const STALLED_MAX: Duration = Duration::from_secs(5);
/// Queue for requests, beside the creates that a stream begins with.
const REQUESTS_MAX: usize = 4096;

/// A message of a stream to its session. The number distinguishes the streams of one store.
#[derive(Debug)]
pub struct Inbound {
    pub store: StoreIx,
    /// The number of the stream among all streams of the session.
    pub number: u64,
    pub what: What,
}

#[derive(Debug)]
pub enum What {
    Message(Bytes),
    /// The stream is over; `Some` with the status for the client if it is not worth opening again.
    Broken(Option<Status>),
}

/// The session's handle of a stream. Dropping it cancels the stream at the store.
#[derive(Debug)]
pub struct Upstream {
    requests: mpsc::Sender<Bytes>,
    _task: AbortOnDropHandle<()>,
}

impl Upstream {
    /// Opens a stream that begins with these requests, after a delay.
    #[must_use]
    pub fn open(
        store: Arc<Store>,
        number: u64,
        delay: Duration,
        first: Vec<Bytes>,
        to: mpsc::Sender<Inbound>,
    ) -> Self {
        let (requests, queue) = mpsc::channel(first.len() + REQUESTS_MAX);
        for request in first {
            // The queue has room for all of them.
            let _ = requests.try_send(request);
        }
        let task = tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            let refused = run(&store, number, queue, &to).await;
            let broken = Inbound { store: store.index, number, what: What::Broken(refused) };
            // The session may be gone; then the message does not matter.
            let _ = to.send(broken).await;
        });
        Self { requests, _task: AbortOnDropHandle::new(task) }
    }

    /// Queues a request; `false` if the queue is full or the stream is over.
    #[must_use]
    pub fn send(&self, request: Bytes) -> bool {
        self.requests.try_send(request).is_ok()
    }
}

/// Runs the stream to its end; returns a status if the store's refusal is final.
async fn run(
    store: &Store,
    number: u64,
    queue: mpsc::Receiver<Bytes>,
    to: &mpsc::Sender<Inbound>,
) -> Option<Status> {
    store.state().wait_up().await;
    let mut messages = match store.watch().watch(ReceiverStream::new(queue)).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return judge(store, status),
    };
    loop {
        match messages.message().await {
            Ok(Some(message)) => {
                let inbound = Inbound { store: store.index, number, what: What::Message(message) };
                if to.send_timeout(inbound, STALLED_MAX).await.is_err() {
                    tracing::debug!(
                        store = store.name(),
                        "client does not read: closing its upstream watch stream"
                    );
                    return None;
                }
            }
            // A server that shuts down may end its streams without a status.
            Ok(None) => return None,
            Err(status) => return judge(store, status),
        }
    }
}

/// Decides whether the stream is worth opening again: `Some` if not. It is after every failure of the connection, and
/// after those answers on which etcd's clients resume a watch.
fn judge(store: &Store, status: Status) -> Option<Status> {
    match Failure::of(status) {
        Failure::Answered(status) => match status.code() {
            tonic::Code::Unimplemented
            | tonic::Code::PermissionDenied
            | tonic::Code::Unauthenticated
            | tonic::Code::InvalidArgument => Some(status),
            _ => None,
        },
        Failure::NotConnected(reason) => {
            store.state().lost(&reason);
            None
        }
        Failure::NotSent(_) | Failure::Lost(_) => {
            store.state().suspect();
            None
        }
    }
}
