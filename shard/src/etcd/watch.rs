//! The Watch service, with one task per client stream.
//!
//! Events stay in the engine until the client can take more: the task first gets room in the outbound buffer, then
//! pulls. So a slow client costs only its own position in the history. A client that closes just its sending half keeps
//! its watches, as in etcd. If a client is gone, the receiver of the outbound buffer is dropped, which ends the task.

use std::{collections::VecDeque, pin::Pin};

use bytes::Bytes;
use kindred_engine::{
    engine::{WatchId, WatchSpec},
    error::EngineError,
};
use kindred_partition_config::{ids::Revision, key::KeyRange};
use kindred_proto::{
    etcdserverpb::{self as pb, watch_create_request::FilterType, watch_request::RequestUnion},
    raw::watch::watch_server::Watch,
};
use kindred_transport::ending::{self, GoodEnd};
use kindred_wire::error::WatchRefusal;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::{Member, front::transport_status};
use crate::{
    encode,
    etcd_status::{KvError, not_owned, status},
    handle::WatchStream,
};

/// Messages that may wait for the connection.
const OUTBOUND_MAX: usize = 4;
/// Encoded messages and refusals that may wait for the outbound buffer before the client's stream is read again.
const READY_MAX: usize = 256;
/// Approximate bytes of one pull from the engine.
const PULL_BYTES: usize = 256 << 10;

#[derive(Clone)]
pub struct WatchService(pub Member);

#[tonic::async_trait]
impl Watch for WatchService {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

    async fn watch(&self, request: Request<Streaming<Bytes>>) -> Result<Response<Self::WatchStream>, Status> {
        let stream = self.0.handle.watch().await?;
        let (sender, messages) = mpsc::channel(OUTBOUND_MAX);
        let (good_end, messages) = ending::produced(ReceiverStream::new(messages));
        let session = Session { member: self.0.clone(), stream, ready: VecDeque::new(), pull: false };
        tokio::spawn(session.run(request.into_inner(), sender, good_end));
        Ok(Response::new(Box::pin(messages)))
    }
}

struct Session {
    member: Member,
    stream: WatchStream,
    /// Encoded messages, in order, that are not in the outbound buffer yet.
    ready: VecDeque<Bytes>,
    /// Whether the engine may have something for this stream.
    pull: bool,
}

type Outbound = mpsc::Sender<Result<Bytes, Status>>;

impl Session {
    async fn run(mut self, requests: Streaming<Bytes>, to: Outbound, good_end: GoodEnd) {
        match self.serve(requests, &to).await {
            Ok(()) => good_end.reached(),
            Err(end) => drop(to.send(Err(end)).await),
        }
    }

    async fn serve(&mut self, mut requests: Streaming<Bytes>, to: &Outbound) -> Result<(), Status> {
        let stopping = self.member.stopping.clone();
        let woken = self.stream.woken();
        let mut half_closed = false;
        loop {
            let has_output = self.pull || !self.ready.is_empty();
            tokio::select! {
                () = stopping.cancelled() => return Err(status(&KvError::Stopped)),
                () = to.closed() => return Ok(()),
                () = woken.notified() => self.pull = true,
                request = requests.next(), if !half_closed && self.ready.len() < READY_MAX => match request {
                    Some(request) => self.request(request.map_err(transport_status)?).await?,
                    None => half_closed = true,
                },
                room = to.reserve(), if has_output => {
                    let Ok(room) = room else { return Ok(()) };
                    if self.ready.is_empty() {
                        self.fill(PULL_BYTES).await?;
                    }
                    if let Some(message) = self.ready.pop_front() {
                        room.send(Ok(message));
                    }
                }
            }
        }
    }

    /// Pulls and encodes what the engine has for this client: the answers to its requests, and events of about so many
    /// bytes.
    async fn fill(&mut self, bytes: usize) -> Result<(), KvError> {
        let items = self.stream.pull(bytes).await?;
        self.pull = !items.is_empty();
        let fragment_bytes = self.member.receive_bytes_max();
        for item in &items {
            encode::watch(&self.member.ids, item, fragment_bytes, |message| self.ready.push_back(message));
        }
        Ok(())
    }

    async fn request(&mut self, bytes: Bytes) -> Result<(), KvError> {
        match pb::WatchRequest::decode(bytes)?.request_union {
            Some(RequestUnion::CreateRequest(create)) => self.create(create).await?,
            Some(RequestUnion::CancelRequest(cancel)) => {
                // As in etcd, cancelling a watch that does not exist is not answered.
                self.stream.cancel(WatchId(cancel.watch_id)).await?;
            }
            Some(RequestUnion::ProgressRequest(_)) => self.stream.progress().await?,
            // As in etcd, unknown requests are ignored.
            None => {}
        }
        self.pull = true;
        Ok(())
    }

    async fn create(&mut self, create: pb::WatchCreateRequest) -> Result<(), KvError> {
        let spec = match spec(create) {
            Ok(spec) => spec,
            Err(refusal) => {
                let header = self.member.handle.current().await?;
                return self.refuse(header, None, refusal.reason()).await;
            }
        };
        let id = spec.id;
        match self.stream.create(spec).await? {
            Ok(_) => Ok(()),
            Err((KvError::Engine(EngineError::DuplicateWatchId), header)) => {
                self.refuse(header, None, WatchRefusal::DuplicateId.reason()).await
            }
            // The router creates several watches at once and must know which one to move to another store.
            Err((KvError::Engine(EngineError::NotOwned(refused)), header)) => {
                self.refuse(header, id, &not_owned(&refused).message()).await
            }
            Err((error, header)) => self.refuse(header, None, &error.to_string()).await,
        }
    }

    /// Refuses a create, behind what earlier requests of the client are answered. A client takes answers to its creates in
    /// their order.
    async fn refuse(&mut self, header: Revision, id: Option<WatchId>, reason: &str) -> Result<(), KvError> {
        self.fill(0).await?;
        self.ready.push_back(encode::watch_refused(&self.member.ids, header, id, reason));
        Ok(())
    }
}

fn spec(create: pb::WatchCreateRequest) -> Result<WatchSpec, WatchRefusal> {
    if create.start_revision < 0 {
        return Err(WatchRefusal::NegativeStart);
    }
    // As in etcd, an empty key means the smallest one.
    let key = if create.key.is_empty() { Bytes::from_static(&[0]) } else { create.key };
    let range = KeyRange::from_wire(key, create.range_end);
    if range.is_empty() {
        return Err(WatchRefusal::EmptyRange);
    }
    let has = |filter: FilterType| create.filters.contains(&(filter as i32));
    Ok(WatchSpec {
        range,
        start: Revision::from_wire(create.start_revision),
        id: (create.watch_id != 0).then_some(WatchId(create.watch_id)),
        prev_kv: create.prev_kv,
        no_put: has(FilterType::Noput),
        no_delete: has(FilterType::Nodelete),
        progress_notify: create.progress_notify,
        fragment: create.fragment,
    })
}
