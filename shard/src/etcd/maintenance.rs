//! The Maintenance service of a server with one member. [`super::front`] refuses MoveLeader and Downgrade.

use kindred_database::serve::{Sender, Stream};
use kindred_partition_config::ids::Revision;
use kindred_proto::etcdserverpb::{self as pb, AlarmType, maintenance_server::Maintenance};
use kindred_transport::admin::{DB_BYTES_MIN, ETCD_VERSION};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status, service::Routes};

use super::Member;
use crate::{apply_loop::call, etcd_status::KvError};

#[derive(Clone)]
pub struct MaintenanceService {
    member: Member,
    /// `None` in a cluster, where a shard has a part of the keys.
    snapshots: Option<Sender<Routes>>,
}

impl MaintenanceService {
    #[must_use]
    pub fn new(member: Member, snapshots: Option<Sender<Routes>>) -> Self {
        Self { member, snapshots }
    }
}

fn alarm_members(alarms: Vec<(i32, u64)>) -> Vec<pb::AlarmMember> {
    alarms.into_iter().map(|(alarm, member_id)| pb::AlarmMember { member_id, alarm }).collect()
}

/// An alarm as etcd prints it in the errors of Status.
fn alarm_text(alarm: &pb::AlarmMember) -> String {
    let kind = AlarmType::try_from(alarm.alarm).unwrap_or(AlarmType::None);
    format!("memberID:{} alarm:{}", alarm.member_id, kind.as_str_name())
}

#[tonic::async_trait]
impl Maintenance for MaintenanceService {
    type SnapshotStream = Stream;

    async fn snapshot(&self, _: Request<pb::SnapshotRequest>) -> Result<Response<Stream>, Status> {
        match &self.snapshots {
            Some(snapshots) => Ok(Response::new(snapshots.stream())),
            None => Err(KvError::Unsupported {
                what: "Maintenance/Snapshot",
                instead: "ask a router, which has all keys and not only those of a shard",
            }
            .into()),
        }
    }

    async fn alarm(&self, request: Request<pb::AlarmRequest>) -> Result<Response<pb::AlarmResponse>, Status> {
        let pb::AlarmRequest { action, member_id, alarm } = request.into_inner();
        let call = self.member.handle.call(call::Alarm { action, alarm, member: member_id });
        let (alarms, current) = call.await?;
        let header = Some(self.member.ids.header(current));
        Ok(Response::new(pb::AlarmResponse { header, alarms: alarm_members(alarms) }))
    }

    async fn status(
        &self,
        _request: Request<pb::StatusRequest>,
    ) -> Result<Response<pb::StatusResponse>, Status> {
        let (stats, applied, (alarms, current)) = self.member.handle.call(call::ShowStatus {}).await?;
        let live_bytes = i64::try_from(stats.live_bytes).unwrap_or(i64::MAX);
        let ids = &self.member.ids;
        Ok(Response::new(pb::StatusResponse {
            header: Some(ids.header(current)),
            version: ETCD_VERSION.to_owned(),
            db_size: live_bytes.max(DB_BYTES_MIN),
            leader: ids.member_id,
            raft_index: applied,
            raft_term: ids.raft_term,
            raft_applied_index: applied,
            errors: alarm_members(alarms).iter().map(alarm_text).collect(),
            db_size_in_use: live_bytes,
            is_learner: false,
            storage_version: ETCD_VERSION.to_owned(),
            db_size_quota: i64::try_from(self.member.quota_bytes).unwrap_or(i64::MAX),
            downgrade_info: Some(pb::DowngradeInfo { enabled: false, target_version: String::new() }),
        }))
    }

    /// Makes a checkpoint, after which old logs are removed; memory needs no defragmentation. As in etcd, the answer
    /// has no header.
    async fn defragment(
        &self,
        _request: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        let (waiter, done) = oneshot::channel();
        self.member.handle.call(call::AskCheckpoint { waiter }).await?;
        match done.await {
            Ok(Ok(())) => Ok(Response::new(pb::DefragmentResponse { header: None })),
            Ok(Err(why)) => Err(Status::unavailable(format!("kindred: no checkpoint: {why}"))),
            Err(_) => Err(KvError::Stopped.into()),
        }
    }

    async fn hash(&self, _request: Request<pb::HashRequest>) -> Result<Response<pb::HashResponse>, Status> {
        let (hashed, _) = self.member.handle.call(call::HashKv { at: None }).await?;
        let (hash, revision, _) = hashed.map_err(KvError::from)?;
        Ok(Response::new(pb::HashResponse { header: Some(self.member.ids.header(revision)), hash }))
    }

    async fn hash_kv(
        &self,
        request: Request<pb::HashKvRequest>,
    ) -> Result<Response<pb::HashKvResponse>, Status> {
        let revision = request.into_inner().revision;
        let at = (revision != 0).then_some(Revision(revision));
        let (hashed, current) = self.member.handle.call(call::HashKv { at }).await?;
        let (hash, hashed, compacted) = hashed.map_err(KvError::from)?;
        Ok(Response::new(pb::HashKvResponse {
            header: Some(self.member.ids.header(current)),
            hash,
            compact_revision: compacted.get(),
            hash_revision: hashed.get(),
        }))
    }
}
