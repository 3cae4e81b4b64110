//! `kindred.shard.v1`: the calls of a router to a shard beside etcd's API.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use kindred_engine::{
    durability::KindModes,
    engine::{PinId, WallMicros},
    error::EngineError,
};
use kindred_partition_config::{
    ids::{LeaseId, Lineage, Revision, Slot},
    key::KeyRange,
};
use kindred_proto::shard_v1::{self as pb, shard_server::Shard};
use kindred_transport::clock::process_cpu;
use tokio::time::Instant;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

use crate::{
    apply_loop::{Raise, RaiseSince, call},
    core::{
        history,
        meet::{Handshake, Opening},
        modes,
    },
    etcd::Member,
    etcd_status::{KvError, status},
    identity::Identity,
    joining::Joining,
    read_hints::{checked, pin_id},
};

pub mod batch;
pub mod feed;
pub mod leases;
pub mod standbys;
pub mod units;

pub const PROTOCOL_VERSION: u32 = 1;
/// Optional parts of the protocol that this shard supports.
pub const FEATURES: u64 = kindred_proto::FEATURE_BATCHES | kindred_proto::FEATURE_BATCHED_SNAPSHOTS;
/// Pins that one call may release; each release searches all that are held.
pub(crate) const RELEASES_MAX: usize = 4096;
/// How long a handshake waits for the ceiling of a clock that it has confirmed, and how often it looks. Routers wait 1.8 s for
/// a handshake.
const CEILING_WAIT: Duration = Duration::from_millis(800);
const CEILING_LOOK: Duration = Duration::from_millis(5);
/// How long a handshake that opens the shard waits for the log.
const LOG_WAIT: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub struct ShardService {
    member: Member,
    joined: Joined,
    joining: Arc<Joining>,
}

/// This store among the others of a cluster.
#[derive(Debug, Clone)]
pub struct Joined {
    /// The configured cluster.
    pub cluster_id: Option<u64>,
    pub identity: Identity,
    /// The low bits of this store's revisions.
    pub slot: Slot,
    /// `hlc` or `dense`.
    pub revisions: &'static str,
    /// The modes for Kinds that routers do not mention.
    pub modes: KindModes,
    /// Whether a restart loses everything, whatever the modes.
    pub in_memory: bool,
}

impl ShardService {
    #[must_use]
    pub fn new(member: Member, joined: Joined, joining: Arc<Joining>) -> Self {
        Self { member, joined, joining }
    }

    /// Grows with every start; see [`Identity::incarnation`].
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.member.membership.incarnation()
    }

    /// The part of a handshake that runs on the loop, and what is wrong with the shard. A shard whose clock has just been
    /// confirmed has a moment for its ceiling.
    async fn meet(&self, mut handshake: Option<Handshake>) -> Result<(WallMicros, Opening, String), Status> {
        let until = Instant::now() + CEILING_WAIT;
        loop {
            if let Some(handshake) = &mut handshake {
                handshake.patient = Instant::now() < until;
            }
            let (met, trouble) = self.member.handle.call(call::Meet { handshake }).await?;
            let (now, opening) = met?;
            if opening != Opening::AtCeiling {
                return Ok((now, opening, trouble));
            }
            tokio::time::sleep(CEILING_LOOK).await;
        }
    }
}

fn slot(number: u32) -> Result<Slot, Status> {
    let slot = u16::try_from(number).ok().and_then(Slot::new);
    slot.ok_or_else(|| Status::invalid_argument(format!("kindred: slot {number} is not 0..={}", Slot::MAX)))
}

fn raise_since(request: pb::RaiseSinceRequest) -> RaiseSince {
    let pb::RaiseSinceRequest { ranges, to, since, pin, generation } = request;
    RaiseSince {
        ranges: key_ranges(ranges),
        to: Revision(to),
        since: Revision(since),
        pin: pin_id(pin),
        generation: checked(generation),
    }
}

/// The pins that a call releases.
fn pins(request: pb::ReleasePinsRequest) -> Result<Vec<PinId>, Status> {
    let pins = request.pins;
    if pins.len() > RELEASES_MAX {
        let text = format!("kindred: {} pins in one ReleasePins, at most {RELEASES_MAX}", pins.len());
        return Err(Status::invalid_argument(text));
    }
    Ok(pins.into_iter().filter_map(pin_id).collect())
}

/// Converts ranges.
fn key_ranges(ranges: Vec<pb::KeyRange>) -> Vec<KeyRange> {
    ranges.into_iter().map(|range| KeyRange::from_wire(range.key, range.range_end)).collect()
}

fn slots(numbers: &[u32]) -> Result<Vec<Slot>, Status> {
    numbers.iter().map(|number| slot(*number)).collect()
}

fn lease(id: i64) -> Result<LeaseId, Status> {
    LeaseId::from_wire(id).ok_or_else(|| KvError::from(EngineError::LeaseNotFound(LeaseId(0))).into())
}

#[tonic::async_trait]
impl Shard for ShardService {
    async fn hello(&self, request: Request<pb::HelloRequest>) -> Result<Response<pb::HelloResponse>, Status> {
        let request = request.into_inner();
        let pb::HelloRequest { cluster_id, reference_micros, opens_at_micros, lineage, store_uuid, .. } =
            request;
        if !self.member.membership.serves() {
            return Err(KvError::NotPrimary.into());
        }
        let Joined { cluster_id: own, identity, slot, revisions, in_memory, .. } = &self.joined;
        if let Some(own) = own.filter(|own| cluster_id != 0 && cluster_id != *own) {
            return Err(Status::failed_precondition(format!(
                "kindred: this store belongs to cluster {own:#x}, the caller to {cluster_id:#x}; see --cluster-id"
            )));
        }
        // A caller that means another store learns this one's identity, and changes nothing.
        let is_meant = store_uuid.is_empty() || store_uuid == identity.uuid;
        let caller = (!lineage.is_empty()).then_some(Lineage(lineage));
        let lineage = self.joining.admit(caller, is_meant).await?;
        let reference = (reference_micros != 0).then_some(WallMicros(reference_micros));
        let opens_at = WallMicros(opens_at_micros);
        let handshake = is_meant.then_some(Handshake { reference, opens_at, patient: true });
        let (now, opening, trouble) = self.meet(handshake).await?;
        let is_open = opening == Opening::Open;
        if is_meant && is_open && !self.member.serves.load(Ordering::Acquire) {
            // What its start means for readers (R25) is known to the next start before anything is shown, if the disk takes it.
            if let Ok(durable) = tokio::time::timeout(LOG_WAIT, self.member.handle.durable()).await {
                durable?;
            }
            self.member.serves.store(true, Ordering::Release);
        }
        Ok(Response::new(pb::HelloResponse {
            protocol_version: PROTOCOL_VERSION,
            features: FEATURES,
            cluster_id: own.unwrap_or_default(),
            store_uuid: identity.uuid.clone(),
            slot: u32::from(slot.get()),
            incarnation: self.incarnation(),
            now_micros: now.0,
            revisions: (*revisions).to_owned(),
            name: self.member.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            awaits_clock: !is_open,
            lineage: lineage.map(|lineage| lineage.0).unwrap_or_default(),
            in_memory: *in_memory,
            trouble,
        }))
    }

    async fn raise(&self, request: Request<pb::RaiseRequest>) -> Result<Response<pb::RaiseResponse>, Status> {
        let pb::RaiseRequest { ranges, to, generation } = request.into_inner();
        let ranges = key_ranges(ranges);
        let generation = checked(generation);
        let raise = Raise { ranges: ranges.clone(), to: Revision(to), generation };
        let call = call::Raised { ranges, to: Revision(to), generation };
        let current = self.member.handle.call_raised(raise, call).await??;
        Ok(Response::new(pb::RaiseResponse { current: current.get() }))
    }

    async fn raise_since(
        &self,
        request: Request<pb::RaiseSinceRequest>,
    ) -> Result<Response<pb::RaiseSinceResponse>, Status> {
        let raise = raise_since(request.into_inner());
        let (first, call) = (raise.first(), call::RaisedSince { asked: raise });
        let (current, changed) = self.member.handle.call_raised(first, call).await??;
        Ok(Response::new(pb::RaiseSinceResponse { current: current.get(), changed }))
    }

    async fn release_pins(
        &self,
        request: Request<pb::ReleasePinsRequest>,
    ) -> Result<Response<pb::ReleasePinsResponse>, Status> {
        let pins = pins(request.into_inner())?;
        self.member.handle.call(call::ReleasePins { pins }).await?;
        Ok(Response::new(pb::ReleasePinsResponse {}))
    }

    async fn retain(
        &self,
        request: Request<pb::RetainRequest>,
    ) -> Result<Response<pb::RetainResponse>, Status> {
        let pb::RetainRequest { pin, revision, millis } = request.into_inner();
        let name = pin_id(pin)
            .ok_or_else(|| Status::invalid_argument("kindred: Retain: pin is 0, which is none"))?;
        let retain = call::Retain { at: Revision(revision), name, millis };
        self.member.handle.call_visible(retain).await??;
        Ok(Response::new(pb::RetainResponse {}))
    }

    async fn lease_attach(
        &self,
        request: Request<pb::LeaseAttachRequest>,
    ) -> Result<Response<pb::LeaseAttachResponse>, Status> {
        let request = request.into_inner();
        let (id, store) = (lease(request.id)?, slot(request.store_slot)?);
        let handle = &self.member.handle;
        let granted_ttl = handle.find_lease(handle.call(call::AttachLease { id, store })).await?;
        Ok(Response::new(pb::LeaseAttachResponse { granted_ttl }))
    }

    async fn lease_adopt(
        &self,
        request: Request<pb::LeaseAdoptRequest>,
    ) -> Result<Response<pb::LeaseAdoptResponse>, Status> {
        let request = request.into_inner();
        let (id, home, ttl_s) = (lease(request.id)?, slot(request.home_slot)?, request.granted_ttl);
        let before = slots(&request.slots_before)?;
        let adopted = self.member.handle.call(call::AdoptLease { id, ttl_s, home, before }).await?;
        adopted.map_err(KvError::from)?;
        Ok(Response::new(pb::LeaseAdoptResponse {}))
    }

    async fn lease_end(
        &self,
        request: Request<pb::LeaseEndRequest>,
    ) -> Result<Response<pb::LeaseEndResponse>, Status> {
        let request = request.into_inner();
        let (id, denied) = (lease(request.id)?, slots(&request.denied_slots)?);
        // Another router may have asked for the same a moment ago.
        let revision = self.member.handle.call_durable(call::EndLease { id, denied }).await??;
        Ok(Response::new(pb::LeaseEndResponse { revision: revision.get() }))
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let id = lease(request.into_inner().id)?;
        let (revision, attached) = self.member.handle.call_durable(call::RevokeLease { id }).await??;
        let attached_slots = attached.into_iter().map(|slot| u32::from(slot.get())).collect();
        Ok(Response::new(pb::LeaseRevokeResponse { revision: revision.get(), attached_slots }))
    }

    async fn lease_forget(
        &self,
        request: Request<pb::LeaseForgetRequest>,
    ) -> Result<Response<pb::LeaseForgetResponse>, Status> {
        let id = lease(request.into_inner().id)?;
        self.member.handle.call(call::ForgetLease { id }).await?;
        Ok(Response::new(pb::LeaseForgetResponse {}))
    }

    type LeaseEndedStream = Pin<Box<dyn Stream<Item = Result<pb::LeaseEndedResponse, Status>> + Send>>;

    async fn lease_ended(
        &self,
        _request: Request<pb::LeaseEndedRequest>,
    ) -> Result<Response<Self::LeaseEndedStream>, Status> {
        let ended = self.member.handle.watch_ended().await?;
        let stopping = self.member.stopping.clone();
        let answers = ReceiverStream::new(ended).map(|(id, attached): (LeaseId, Vec<Slot>)| {
            let attached_slots = attached.into_iter().map(|slot| u32::from(slot.get())).collect();
            Ok(pb::LeaseEndedResponse { id: id.get(), attached_slots })
        });
        // The loop drops a listener that is too far behind: Unavailable tells it to ask again.
        let end = tokio_stream::once(Err(status(&KvError::Stopped)));
        let answers = futures_util::StreamExt::take_until(answers, stopping.cancelled_owned());
        Ok(Response::new(Box::pin(answers.chain(end))))
    }

    async fn lease_keys(
        &self,
        request: Request<pb::LeaseKeysRequest>,
    ) -> Result<Response<pb::LeaseKeysResponse>, Status> {
        let pb::LeaseKeysRequest { id, generation } = request.into_inner();
        let (id, generation) = (lease(id)?, checked(generation));
        let keys = self.member.handle.call(call::LeaseKeys { id, generation }).await?;
        let keys = keys.map_err(|refused| KvError::from(EngineError::from(refused)))?;
        let known = keys.is_some();
        let keys = keys.unwrap_or_default().into_iter().map(|key| key.0).collect();
        Ok(Response::new(pb::LeaseKeysResponse { known, keys }))
    }

    async fn set_modes(
        &self,
        request: Request<pb::SetModesRequest>,
    ) -> Result<Response<pb::SetModesResponse>, Status> {
        let request = request.into_inner();
        let asked = modes::asked(&request, &self.joined.modes)?;
        let kinds = history::asked(&request)?;
        let taken = match self.member.handle.call(call::CheckModes { asked: asked.clone() }).await?? {
            Some(taken) => taken,
            None => self.member.handle.set_modes(asked.clone()).await?,
        };
        self.member.handle.call(call::BoundHistory { generation: request.generation, kinds }).await?;
        Ok(Response::new(modes::answer(&request, &asked, &taken)))
    }

    async fn load(&self, request: Request<pb::LoadRequest>) -> Result<Response<pb::LoadResponse>, Status> {
        let ranges = key_ranges(request.into_inner().ranges);
        let load = self.member.handle.call(call::ShowLoad { ranges }).await?;
        let cpu_micros = u64::try_from(process_cpu().as_micros()).unwrap_or(u64::MAX);
        Ok(Response::new(pb::LoadResponse { cpu_micros, ..load }))
    }
}
