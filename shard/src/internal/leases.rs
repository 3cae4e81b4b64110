//! Service `Leases`: a home that goes away hands its leases to an heir (R12); see `kindred_engine::lease`.

use kindred_engine::lease::{AdoptedLease, HandedLease};
use kindred_partition_config::ids::{LeaseId, Slot};
use kindred_proto::shard_v1::{self as pb, leases_server::Leases};
use tonic::{Request, Response, Status};

use super::{lease, slot, slots};
use crate::{apply_loop::call, etcd::Member};

/// Leases in one answer.
const LEASES_MAX: u32 = 1024;

#[derive(Clone)]
pub struct LeasesService(pub Member);

fn number(slot: Slot) -> u32 {
    slot.get().into()
}

fn handed(lease: HandedLease) -> pb::KnownLease {
    let HandedLease { id, granted_ttl_s, attached } = lease;
    let attached_slots = attached.into_iter().map(number).collect();
    pb::KnownLease { id: id.get(), granted_ttl: granted_ttl_s, attached_slots, home_slot: 0 }
}

fn adopted(lease: AdoptedLease) -> pb::KnownLease {
    let AdoptedLease { id, granted_ttl_s, home } = lease;
    let home_slot = number(home);
    pb::KnownLease { id: id.get(), granted_ttl: granted_ttl_s, attached_slots: Vec::new(), home_slot }
}

fn max(asked: u32) -> usize {
    asked.min(LEASES_MAX) as usize
}

#[tonic::async_trait]
impl Leases for LeasesService {
    async fn hand_over(
        &self,
        request: Request<pb::HandOverRequest>,
    ) -> Result<Response<pb::HandOverResponse>, Status> {
        let request = request.into_inner();
        let hand_over = call::HandOver { max: max(request.max), begin: request.begin };
        let (leases, left) = self.0.handle.call(hand_over).await?;
        let leases = leases.into_iter().map(handed).collect();
        Ok(Response::new(pb::HandOverResponse { leases, left: left as u64 }))
    }

    async fn inherit(
        &self,
        request: Request<pb::InheritRequest>,
    ) -> Result<Response<pb::InheritResponse>, Status> {
        let known = |known: pb::KnownLease| {
            Ok::<_, Status>((lease(known.id)?, known.granted_ttl, slots(&known.attached_slots)?))
        };
        let leases: Vec<_> = request.into_inner().leases.into_iter().map(known).collect::<Result<_, _>>()?;
        self.0.handle.call(call::InheritLeases { leases }).await??;
        Ok(Response::new(pb::InheritResponse {}))
    }

    async fn handed(
        &self,
        request: Request<pb::HandedRequest>,
    ) -> Result<Response<pb::HandedResponse>, Status> {
        let request = request.into_inner();
        let heir = slot(request.heir_slot)?;
        let ids: Vec<LeaseId> = request.ids.into_iter().map(lease).collect::<Result<_, _>>()?;
        self.0.handle.call(call::LeasesHanded { ids, heir }).await?;
        Ok(Response::new(pb::HandedResponse {}))
    }

    async fn adopted(
        &self,
        request: Request<pb::AdoptedRequest>,
    ) -> Result<Response<pb::AdoptedResponse>, Status> {
        let request = request.into_inner();
        let homes = slots(&request.home_slots)?;
        let call = call::ListAdopted { homes, above: request.above.map(LeaseId), max: max(request.max) };
        let leases = self.0.handle.call(call).await?.into_iter().map(adopted).collect();
        Ok(Response::new(pb::AdoptedResponse { leases }))
    }
}
