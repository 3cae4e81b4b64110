//! The Lease service.

use std::{pin::Pin, time::Duration};

use kindred_engine::error::EngineError;
use kindred_partition_config::ids::LeaseId;
use kindred_proto::etcdserverpb::{self as pb, lease_server::Lease};
use kindred_transport::ending;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::{Member, front::transport_status};
use crate::{
    apply_loop::call,
    etcd_status::{KvError, status},
};

/// Answers that may wait for the connection. When they are full, the client's stream is not read.
const OUTBOUND_MAX: usize = 16;
/// How long an answer waits for the ends of leases to be on disk.
const ENDED_MAX: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct LeaseService(pub Member);

#[tonic::async_trait]
impl Lease for LeaseService {
    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let request = request.into_inner();
        let id = LeaseId::from_wire(request.id);
        let grant = call::GrantLease { id, ttl_s: request.ttl };
        let ((id, ttl), current) = self.0.handle.call(grant).await??;
        let header = Some(self.0.ids.header(current));
        Ok(Response::new(pb::LeaseGrantResponse { header, id: id.get(), ttl, error: String::new() }))
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let id = LeaseId(request.into_inner().id);
        let (revision, _) = self.0.handle.call_durable(call::RevokeLease { id }).await??;
        Ok(Response::new(pb::LeaseRevokeResponse { header: Some(self.0.ids.header(revision)) }))
    }

    type LeaseKeepAliveStream =
        Pin<Box<dyn Stream<Item = Result<pb::LeaseKeepAliveResponse, Status>> + Send>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let (to, answers) = mpsc::channel(OUTBOUND_MAX);
        let (good_end, answers) = ending::produced(ReceiverStream::new(answers));
        let (member, mut requests) = (self.0.clone(), request.into_inner());
        tokio::spawn(async move {
            let end = tokio::select! {
                () = member.stopping.cancelled() => Err(status(&KvError::Stopped)),
                () = to.closed() => Ok(()),
                end = keep_alive(&member, &mut requests, &to) => end,
            };
            match end {
                Ok(()) => good_end.reached(),
                Err(end) => drop(to.send(Err(end)).await),
            }
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let request = request.into_inner();
        let (id, keys) = (LeaseId(request.id), request.keys);
        let (view, current) = self.0.handle.call(call::ViewLease { id, keys }).await?;
        let header = Some(self.0.ids.header(current));
        let answer = match view {
            Ok(view) => pb::LeaseTimeToLiveResponse {
                header,
                id: request.id,
                ttl: view.ttl_s,
                granted_ttl: view.granted_ttl_s,
                keys: view.keys.into_iter().map(|key| key.0).collect(),
            },
            Err(EngineError::LeaseNotFound(_)) => {
                ends_are_durable(&self.0).await?;
                pb::LeaseTimeToLiveResponse { header, id: request.id, ttl: -1, granted_ttl: 0, keys: vec![] }
            }
            Err(error) => return Err(KvError::from(error).into()),
        };
        Ok(Response::new(answer))
    }

    async fn lease_leases(
        &self,
        _request: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let (leases, current) = self.0.handle.call(call::ListLeases {}).await?;
        // A lease that is not in the list is over.
        ends_are_durable(&self.0).await?;
        let leases = leases.into_iter().map(|id| pb::LeaseStatus { id: id.get() }).collect();
        Ok(Response::new(pb::LeaseLeasesResponse { header: Some(self.0.ids.header(current)), leases }))
    }
}

/// Waits until a restart would know of the leases that are over (R12).
async fn ends_are_durable(member: &Member) -> Result<(), KvError> {
    timeout(ENDED_MAX, member.handle.durable()).await.unwrap_or(Err(KvError::DiskWait))
}

pub(crate) async fn keep_alive(
    member: &Member,
    requests: &mut (impl Stream<Item = Result<pb::LeaseKeepAliveRequest, Status>> + Unpin),
    to: &mpsc::Sender<Result<pb::LeaseKeepAliveResponse, Status>>,
) -> Result<(), Status> {
    while let Some(request) = requests.next().await {
        let id = request.map_err(transport_status)?.id;
        let (renewed, current) = member.handle.call(call::KeepLeaseAlive { id: LeaseId(id) }).await?;
        let ttl = match renewed {
            Ok(ttl) => ttl,
            Err(EngineError::LeaseNotFound(_)) => {
                // Other leases are kept alive on this stream. It ends when the disk does nothing.
                ends_are_durable(member).await?;
                0
            }
            Err(error) => return Err(KvError::from(error).into()),
        };
        let header = Some(member.ids.header(current));
        if to.send(Ok(pb::LeaseKeepAliveResponse { header, id, ttl })).await.is_err() {
            break;
        }
    }
    Ok(())
}
