//! One upstream watch stream: a task that opens it and hands its messages to the session.

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

/// How long a session may leave a message lying before the stream is closed (and opened again later).
pub const STALLED_MAX: Duration = Duration::from_secs(5);
/// Requests that may wait beside the creates that a stream begins with.
const REQUESTS_MAX: usize = 4096;
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

/// What a stream tells its session. The generation tells streams of one store apart.
#[derive(Debug)]
pub struct Inbound {
    /// The store.
    pub store: StoreIx,
    /// Which of its streams.
    pub generation: u64,
    /// What.
    pub what: What,
}

/// A message, or the end.
#[derive(Debug)]
pub enum What {
    /// A watch response.
    Message(Bytes),
    /// The stream is over; `Some` when the store refuses for good.
    Broken(Option<Status>),
}

/// The session's end of a stream. Dropping it cancels the stream at the store.
#[derive(Debug)]
pub struct Upstream {
    /// Which of the store's streams this is.
    pub generation: u64,
    /// How often in a row a stream broke before it gave a message.
    pub failures: u32,
    requests: mpsc::Sender<Bytes>,
    _task: AbortOnDropHandle<()>,
}

impl Upstream {
    /// Opens a stream that begins with these requests, after a delay that grows with the failures before.
    #[must_use]
    pub fn open(
        store: Arc<Store>,
        generation: u64,
        failures: u32,
        first: Vec<Bytes>,
        to: mpsc::Sender<Inbound>,
    ) -> Self {
        let (requests, queue) = mpsc::channel(first.len() + REQUESTS_MAX);
        for request in first {
            // The queue was made large enough for them.
            let _ = requests.try_send(request);
        }
        let delay = match failures {
            0 => Duration::ZERO,
            n => (BACKOFF_MIN * 2_u32.saturating_pow(n.min(16) - 1)).min(BACKOFF_MAX),
        };
        let task = tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            let refused = run(&store, generation, queue, &to).await;
            let broken = Inbound { store: store.index, generation, what: What::Broken(refused) };
            // The session may be gone: then nobody cares.
            let _ = to.send(broken).await;
        });
        Self { generation, failures, requests, _task: AbortOnDropHandle::new(task) }
    }

    /// Queues a request; `false` when the store takes none any more.
    #[must_use]
    pub fn send(&self, request: Bytes) -> bool {
        self.requests.try_send(request).is_ok()
    }
}

/// Runs the stream to its end; the status of a store that refuses for good.
async fn run(
    store: &Store,
    generation: u64,
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
                let inbound = Inbound { store: store.index, generation, what: What::Message(message) };
                if to.send_timeout(inbound, STALLED_MAX).await.is_err() {
                    tracing::debug!(
                        store = store.name(),
                        "client does not read: closing its upstream watch stream"
                    );
                    return None;
                }
            }
            // A server that stops may end its streams without a word.
            Ok(None) => return None,
            Err(status) => return judge(store, status),
        }
    }
}

/// Whether the stream is worth opening again: after every failure of the connection, and where etcd's clients resume.
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
