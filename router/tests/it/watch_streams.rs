//! Client watch streams over a scripted store: cancels, and very many watches.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use crate::support::fake::Fake;
use crate::support::scripted::in_time;
use crate::support::{WatchStream, all_up, router_with};
use bytes::Bytes;
use kindred_proto::etcdserverpb as pb;
use kindred_proto::raw::watch::watch_server::{Watch, WatchServer};
use pb::watch_request::RequestUnion;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status, Streaming};

/// The store's side of a watch stream, controlled by a test.
struct Opened {
    requests: Streaming<Bytes>,
    responses: mpsc::Sender<Result<Bytes, Status>>,
}

impl Opened {
    async fn next(&mut self) -> RequestUnion {
        let request = in_time(self.requests.next()).await.unwrap().unwrap();
        pb::WatchRequest::decode(request).unwrap().request_union.unwrap()
    }

    async fn create(&mut self) -> pb::WatchCreateRequest {
        match self.next().await {
            RequestUnion::CreateRequest(create) => create,
            other => panic!("{other:?}"),
        }
    }

    async fn created(&self, watch_id: i64) {
        let header = Some(pb::ResponseHeader { revision: 5, ..Default::default() });
        let created = pb::WatchResponse { header, watch_id, created: true, ..Default::default() };
        self.responses.send(Ok(created.encode_to_vec().into())).await.unwrap();
    }
}

struct Scripted(mpsc::Sender<Opened>);

#[tonic::async_trait]
impl Watch for Scripted {
    type WatchStream = ReceiverStream<Result<Bytes, Status>>;

    async fn watch(&self, request: Request<Streaming<Bytes>>) -> Result<Response<Self::WatchStream>, Status> {
        let (responses, messages) = mpsc::channel(16);
        self.0.send(Opened { requests: request.into_inner(), responses }).await.unwrap();
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}

async fn watch_key(watch: &mut WatchStream, key: &'static str, watch_id: i64) {
    let create = pb::WatchCreateRequest { key: key.into(), watch_id, ..Default::default() };
    watch.send(RequestUnion::CreateRequest(create)).await;
}

#[tokio::test]
async fn f29_a_cancel_is_answered_though_the_stream_breaks_behind_it() {
    let (opened, mut streams) = mpsc::channel(4);
    let fake = Fake::with(1, 0, |server| server.add_service(WatchServer::new(Scripted(opened)))).await;
    let config = format!("default: s1\nstores:\n- {{name: s1, slot: 1, endpoints: ['{}']}}\n", fake.url);
    let (bound, _drain, channel) = router_with(&config, &[]).await;
    all_up(&bound).await;
    let mut watch = WatchStream::open(&channel).await;
    watch_key(&mut watch, "/registry/pods/a", 1).await;
    let mut first = in_time(streams.recv()).await.unwrap();
    let create = first.create().await;
    first.created(create.watch_id).await;
    watch_key(&mut watch, "/registry/pods/b", 2).await;
    let create = first.create().await;
    first.created(create.watch_id).await;
    for id in [1, 2] {
        let answer = watch.next().await;
        assert_eq!((answer.watch_id, answer.created), (id, true));
    }
    watch.send(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id: 1 })).await;
    assert!(matches!(first.next().await, RequestUnion::CancelRequest(_)));
    // The store has the cancel, and its answer is lost.
    first.responses.send(Err(Status::unavailable("gone"))).await.unwrap();
    drop(first);
    let answer = watch.next().await;
    assert_eq!((answer.watch_id, answer.canceled), (1, true), "{answer:?}");
    // Only the other watch is created again.
    let mut second = in_time(streams.recv()).await.unwrap();
    assert_eq!(second.create().await.key, "/registry/pods/b");
    // The client may use the id again.
    watch_key(&mut watch, "/registry/pods/c", 1).await;
    assert_eq!(second.create().await.key, "/registry/pods/c");
}

/// Sends creates as fast as the client may, and counts them.
struct Creates {
    left: usize,
    sent: Arc<AtomicUsize>,
}

impl Stream for Creates {
    type Item = pb::WatchRequest;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<pb::WatchRequest>> {
        if self.left == 0 {
            return Poll::Pending;
        }
        self.left -= 1;
        let at = self.sent.fetch_add(1, Ordering::SeqCst);
        let create =
            pb::WatchCreateRequest { key: format!("/registry/pods/a/{at}").into(), ..Default::default() };
        Poll::Ready(Some(pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }))
    }
}

#[tokio::test]
async fn f42_a_client_that_creates_very_many_watches_at_once_waits_for_room_and_is_not_cut_off() {
    const WATCHES: usize = 60_000;
    let (opened, mut streams) = mpsc::channel(4);
    let fake = Fake::with(1, 0, |server| server.add_service(WatchServer::new(Scripted(opened)))).await;
    let config = format!("default: s1\nstores:\n- {{name: s1, slot: 1, endpoints: ['{}']}}\n", fake.url);
    let (bound, _drain, channel) = router_with(&config, &[]).await;
    all_up(&bound).await;
    let sent = Arc::new(AtomicUsize::new(0));
    let creates = Creates { left: WATCHES, sent: sent.clone() };
    let mut client = pb::watch_client::WatchClient::new(channel);
    let mut answers = in_time(client.watch(creates)).await.unwrap().into_inner();
    let mut store = in_time(streams.recv()).await.unwrap();
    // The store answers nothing until the client has sent all that it may.
    let (mut seen, mut still) = (0, 0);
    while still < 2000 || seen == 0 {
        tokio::task::yield_now().await;
        let now = sent.load(Ordering::SeqCst);
        still = if now == seen { still + 1 } else { 0 };
        seen = now;
    }
    assert!(seen < WATCHES);
    tokio::spawn(async move {
        loop {
            let create = store.create().await;
            store.created(create.watch_id).await;
        }
    });
    for at in 0..WATCHES {
        let created = in_time(answers.message()).await.unwrap().unwrap();
        assert_eq!((created.created, created.canceled, created.watch_id), (true, false, at as i64));
    }
}
