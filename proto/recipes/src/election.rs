//! `v3electionpb.Election`, as `server/etcdserver/api/v3election/election.go` and `client/v3/concurrency/election.go`.

use bytes::Bytes;
use kindred_proto::etcdserverpb::{PutRequest, ResponseHeader, request_op};
use kindred_proto::mvccpb::{KeyValue, event::EventType};
use kindred_proto::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse, election_server,
};
use kindred_transport::server::Services;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::lock::Leaves;
use crate::store::{Store, under};

/// Elections.
#[derive(Debug, Clone)]
pub struct Election<S> {
    store: Store<S>,
}

impl<S: Services> Election<S> {
    #[must_use]
    pub fn new(store: Store<S>) -> Self {
        Self { store }
    }

    /// The same for the caller of a request.
    fn for_caller<T>(&self, request: &Request<T>) -> Self {
        Self { store: self.store.for_caller(request) }
    }

    async fn announce(&self, leader: &LeaderKey, value: Bytes) -> Result<Option<ResponseHeader>, Status> {
        let put = PutRequest { key: leader.key.clone(), value, lease: leader.lease, ..PutRequest::default() };
        let answer = self.store.if_own(&leader.key, leader.rev, request_op::Request::RequestPut(put)).await?;
        if answer.succeeded { Ok(answer.header) } else { Err(Status::unknown("election: not leader")) }
    }

    /// Sends each leader, and what it announces, until the client goes.
    async fn observe_all(
        &self,
        name: &[u8],
        to: &mpsc::Sender<Result<LeaderResponse, Status>>,
    ) -> Result<(), Status> {
        loop {
            let found = self.store.oldest(name).await?;
            let shown = found.header.map_or(0, |header| header.revision);
            let (kv, header) = match found.kvs.into_iter().next() {
                Some(kv) => (kv, found.header),
                None => self.first(name, shown).await?,
            };
            let (key, from) =
                (kv.key.clone(), kv.mod_revision.max(header.map_or(0, |header| header.revision)) + 1);
            if to.send(Ok(LeaderResponse { header, kv: Some(kv) })).await.is_err() {
                return Ok(());
            }
            let mut watching = self.store.watch(key, Bytes::new(), from).await?;
            'leads: loop {
                let answer = tokio::select! {
                    () = to.closed() => return Ok(()),
                    answer = watching.next() => answer?,
                };
                for event in answer.events {
                    if event.r#type == EventType::Delete as i32 {
                        break 'leads;
                    }
                    let response = LeaderResponse { header: answer.header, kv: event.kv };
                    if to.send(Ok(response)).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Waits for the first key under a name.
    async fn first(&self, name: &[u8], from: i64) -> Result<(KeyValue, Option<ResponseHeader>), Status> {
        let all = under(name);
        let mut watching = self.store.watch(all.key, all.range_end, from).await?;
        loop {
            let answer = watching.next().await?;
            let put = answer.events.into_iter().find(|event| event.r#type == EventType::Put as i32);
            if let Some(kv) = put.and_then(|event| event.kv) {
                let header =
                    answer.header.map(|header| ResponseHeader { revision: kv.mod_revision, ..header });
                return Ok((kv, header));
            }
        }
    }
}

fn led(leader: Option<LeaderKey>) -> Result<LeaderKey, Status> {
    leader.ok_or_else(|| Status::unknown("\"leader\" field must be provided"))
}

#[tonic::async_trait]
impl<S: Services> election_server::Election for Election<S> {
    async fn campaign(
        &self,
        request: Request<CampaignRequest>,
    ) -> Result<Response<CampaignResponse>, Status> {
        let this = self.for_caller(&request);
        let CampaignRequest { name, lease, value } = request.into_inner();
        let lease = this.store.lease(lease).await?;
        let (entry, before) = this.store.enter(&name, lease, value.clone()).await?;
        let leader = LeaderKey { name: name.clone(), key: entry.key.clone(), rev: entry.created, lease };
        let leaves = Leaves::unless_done(&this.store, &entry);
        if before.is_some_and(|before| before != value) {
            this.announce(&leader, value).await?;
        }
        this.store.wait_for_older(&name, &entry).await?;
        leaves.done();
        Ok(Response::new(CampaignResponse { header: entry.header, leader: Some(leader) }))
    }

    async fn proclaim(
        &self,
        request: Request<ProclaimRequest>,
    ) -> Result<Response<ProclaimResponse>, Status> {
        let this = self.for_caller(&request);
        let ProclaimRequest { leader, value } = request.into_inner();
        let header = this.announce(&led(leader)?, value).await?;
        Ok(Response::new(ProclaimResponse { header }))
    }

    async fn leader(&self, request: Request<LeaderRequest>) -> Result<Response<LeaderResponse>, Status> {
        let this = self.for_caller(&request);
        let found = this.store.oldest(&request.into_inner().name).await?;
        let kv = found.kvs.into_iter().next().ok_or_else(|| Status::unknown("election: no leader"))?;
        Ok(Response::new(LeaderResponse { header: found.header, kv: Some(kv) }))
    }

    type ObserveStream = ReceiverStream<Result<LeaderResponse, Status>>;

    async fn observe(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        let this = self.for_caller(&request);
        let name = request.into_inner().name;
        let (to, answers) = mpsc::channel(16);
        tokio::spawn(async move {
            let ended = tokio::select! {
                () = to.closed() => return,
                ended = this.observe_all(&name, &to) => ended,
            };
            if let Err(status) = ended {
                let _ = to.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn resign(&self, request: Request<ResignRequest>) -> Result<Response<ResignResponse>, Status> {
        let this = self.for_caller(&request);
        let LeaderKey { key, rev, .. } = led(request.into_inner().leader)?;
        let answer = this.store.leave(key, rev).await?;
        Ok(Response::new(ResignResponse { header: answer.header }))
    }
}
