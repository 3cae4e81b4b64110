//! Service `Standbys`: a standby follows here, and those who keep the record of who is the primary say what it says.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kindred_partition_config::ids::{Revision, SLOT_BITS, Slot, Term};
use kindred_proto::shard_v1::{
    self as pb, follow_request, follow_response, member_response, shipment, standbys_server::Standbys,
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    apply_loop::Control,
    etcd::Member,
    etcd_status::KvError,
    identity::Identity,
    standby::{
        MemberId, Position,
        follower::NotDone,
        membership::{Following, Membership},
        role::{Does, Role, RoleError},
        shipping::{CopyPart, MESSAGES_MAX, Outlet, Said, Shipment, cost},
    },
};

/// Who the store is, for its standbys.
#[derive(Debug, Clone)]
pub struct Store {
    pub identity: Identity,
    pub name: String,
    pub slot: Slot,
    pub etcd_prefix: String,
    /// Whether revisions are dense: then it is alone.
    pub dense: bool,
    /// The `--standby-of` of this process.
    pub started_as: Option<String>,
}

#[derive(Clone)]
pub struct StandbyService {
    member: Member,
    membership: Arc<Membership>,
    store: Arc<Store>,
}

fn precondition(error: impl std::fmt::Display) -> Status {
    Status::failed_precondition(format!("kindred: {error}"))
}

fn on_disk(error: RoleError) -> Status {
    Status::unavailable(format!("kindred: the role cannot be kept: {error}"))
}

/// Refuses a term that is over.
fn check_term(role: &Role, asked: u64) -> Result<Term, Status> {
    if asked < role.term.0 {
        return Err(precondition(NotDone::Over { asked: Term(asked), seen: role.term }));
    }
    Ok(Term(asked))
}

impl StandbyService {
    #[must_use]
    pub fn new(member: Member, membership: Arc<Membership>, store: Store) -> Self {
        Self { member, membership, store: Arc::new(store) }
    }

    async fn control<T, C: Into<Control>>(
        &self,
        control: impl FnOnce(oneshot::Sender<T>) -> C,
    ) -> Result<T, Status> {
        let (answer, answered) = oneshot::channel();
        let stopped = || Status::from(KvError::Stopped);
        if !self.member.handle.control(control(answer)).await {
            return Err(stopped());
        }
        answered.await.map_err(|_| stopped())
    }

    fn following(&self) -> Result<&Arc<Following>, Status> {
        self.membership.following.as_ref().ok_or_else(|| precondition("this member is no standby"))
    }

    /// Refuses whom this member cannot be the primary of.
    fn check_follower(&self, begin: &pb::FollowBegin, role: &Role) -> Result<(), Status> {
        let Store { name, slot, dense, .. } = &*self.store;
        if role.does != Does::Primary || self.membership.in_doubt() {
            return Err(Status::unavailable("kindred: this member does not serve: follow its primary"));
        }
        if self.membership.directory().is_none() || *dense {
            return Err(precondition(
                "a store without --data-dir, or with --revisions dense, has no standbys",
            ));
        }
        if begin.name != *name || begin.slot != u32::from(slot.get()) {
            return Err(precondition(format!(
                "this is store {name:?} with slot {slot}, and the standby is started as {:?} with slot {}: give it the same \
                 --name and --slot",
                begin.name, begin.slot
            )));
        }
        Ok(())
    }
}

fn message(shipment: Shipment) -> pb::FollowResponse {
    let copy = match shipment.copy {
        None => shipment::Copy::None,
        Some(CopyPart::Slice) => shipment::Copy::Slice,
        Some(CopyPart::Last) => shipment::Copy::Last,
    };
    let shipment = pb::Shipment {
        position: shipment.position.0,
        records: shipment.records,
        ceiling: shipment.ceiling.get(),
        copy: copy as i32,
    };
    pb::FollowResponse { says: Some(follow_response::Says::Shipment(shipment)) }
}

/// Tells the loop what a standby says, until it says nothing any more.
async fn acknowledge(
    mut says: Streaming<pb::FollowRequest>,
    member: Member,
    id: MemberId,
    waiting: Arc<AtomicU64>,
) {
    let heard = async {
        while let Ok(Some(request)) = says.message().await {
            let Some(follow_request::Says::Received(received)) = request.says else { continue };
            let position = Position(received.position);
            let received = Said::Received { id: id.clone(), position, whole: received.whole };
            if !member.handle.control(received).await {
                break;
            }
        }
    };
    let _ = member.stopping.clone().run_until_cancelled_owned(heard).await;
    member.handle.control(Said::Gone { id, waiting }).await;
}

#[tonic::async_trait]
impl Standbys for StandbyService {
    type FollowStream = Pin<Box<dyn Stream<Item = Result<pb::FollowResponse, Status>> + Send>>;

    async fn follow(
        &self,
        request: Request<Streaming<pb::FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let mut says = request.into_inner();
        let Some(pb::FollowRequest { says: Some(follow_request::Says::Begin(begin)) }) =
            says.message().await?
        else {
            return Err(Status::invalid_argument("kindred: Follow: the first message is not begin"));
        };
        let term = {
            let role = self.membership.role.lock().await;
            self.check_follower(&begin, &role)?;
            role.term
        };
        // Nothing is in between: from the next change on everything is shipped.
        self.member.handle.ship().await?;
        let id = MemberId(begin.member);
        let has = (begin.run == self.membership.run).then_some(Position(begin.position));
        let (to, mut shipments) = mpsc::channel(MESSAGES_MAX);
        let waiting = Arc::new(AtomicU64::new(0));
        if begin.run != 0 && has.is_none() {
            return Err(Status::out_of_range("kindred: the primary is another process: begin anew"));
        }
        let outlet = Outlet { to, waiting: waiting.clone() };
        let asked = id.clone();
        if !self.control(|answer| Said::Follow { id: asked, has, outlet, answer }).await? {
            return Err(Status::out_of_range(
                "kindred: the primary does not have what is missing: begin anew",
            ));
        }
        tokio::spawn(acknowledge(says, self.member.clone(), id, waiting.clone()));
        let Store { identity, etcd_prefix, .. } = &*self.store;
        let welcome = pb::Welcome {
            store_uuid: identity.uuid.clone(),
            cluster_id: identity.cluster_id,
            lineage: identity.lineage.as_ref().map(|lineage| lineage.0.clone()).unwrap_or_default(),
            incarnation: self.membership.incarnation(),
            run: self.membership.run,
            term: term.0,
            etcd_prefix: etcd_prefix.clone(),
        };
        let welcome = pb::FollowResponse { says: Some(follow_response::Says::Welcome(welcome)) };
        let stopping = self.member.stopping.clone();
        let stream = futures_util::stream::poll_fn(move |cx| shipments.poll_recv(cx));
        let stream = futures_util::StreamExt::map(stream, move |shipment: Shipment| {
            waiting.fetch_sub(cost(&shipment), Ordering::AcqRel);
            Ok(message(shipment))
        });
        let stream = futures_util::StreamExt::chain(tokio_stream::once(Ok(welcome)), stream);
        let stream = futures_util::StreamExt::take_until(stream, stopping.cancelled_owned());
        Ok(Response::new(Box::pin(stream)))
    }

    async fn count(&self, request: Request<pb::CountRequest>) -> Result<Response<pb::CountResponse>, Status> {
        let pb::CountRequest { term, members, recorded } = request.into_inner();
        let members: Vec<MemberId> = members.into_iter().map(MemberId).collect();
        let mut role = self.membership.role.lock().await;
        let term = check_term(&role, term)?;
        if role.does != Does::Primary {
            return Err(precondition("this member is not the primary"));
        }
        // On disk are at any time at least those that may be promoted: after a restart it waits for them (R20).
        let counted_before = role.counted.clone();
        let all: Vec<MemberId> = members.iter().chain(&counted_before).cloned().collect();
        let all = sorted(all);
        let before = Role { term, counted: all, ..role.clone() };
        self.membership.keep(&mut role, before).await.map_err(on_disk)?;
        let ids = members.clone();
        if let Err(refused) = self.control(|answer| Said::Count { ids, recorded, answer }).await? {
            let unchanged = Role { counted: counted_before, ..role.clone() };
            self.membership.keep(&mut role, unchanged).await.map_err(on_disk)?;
            return Err(precondition(refused));
        }
        if recorded {
            self.membership.confirmed();
        }
        if recorded {
            let after = Role { named: term, counted: sorted(members), ..role.clone() };
            self.membership.keep(&mut role, after).await.map_err(on_disk)?;
        }
        Ok(Response::new(pb::CountResponse {}))
    }

    async fn r#yield(
        &self,
        request: Request<pb::YieldRequest>,
    ) -> Result<Response<pb::YieldResponse>, Status> {
        let mut role = self.membership.role.lock().await;
        let term = check_term(&role, request.into_inner().term)?;
        if role.does != Does::Primary {
            return Err(precondition("this member is not the primary"));
        }
        // A restart forgets that it has yielded, and is in doubt instead: that needs a standby that counts.
        if role.counted.is_empty() {
            return Err(precondition("no standby of this primary counts"));
        }
        let yielded = Role { term, ..role.clone() };
        self.membership.keep(&mut role, yielded).await.map_err(on_disk)?;
        self.control(|answer| Said::Yield { answer }).await?;
        self.membership.yields();
        Ok(Response::new(pb::YieldResponse {}))
    }

    async fn prepare(
        &self,
        request: Request<pb::PrepareRequest>,
    ) -> Result<Response<pb::PrepareResponse>, Status> {
        let pb::PrepareRequest { term, member } = request.into_inner();
        let mut role = self.membership.role.lock().await;
        let term = check_term(&role, term)?;
        let following = self.following()?;
        if !member.is_empty() && member != self.membership.id.0 {
            return Err(precondition(format!("this is member {}, not {member}", self.membership.id)));
        }
        if role.does != Does::Standby {
            return Err(precondition("this member is no standby"));
        }
        if !following.is_whole() {
            return Err(precondition("this standby has no whole copy on its disk yet"));
        }
        if following.term() < term {
            let promised = Role { term, ..role.clone() };
            self.membership.keep(&mut role, promised).await.map_err(on_disk)?;
        }
        following.prepare(term).map_err(precondition)?;
        Ok(Response::new(pb::PrepareResponse { wait_millis: wait_millis(following) }))
    }

    async fn promote(
        &self,
        request: Request<pb::PromoteRequest>,
    ) -> Result<Response<pb::PromoteResponse>, Status> {
        let pb::PromoteRequest { term, incarnation_above, yielded, forced_opens_at_micros } =
            request.into_inner();
        let mut role = self.membership.role.lock().await;
        let term = check_term(&role, term)?;
        if role.does == Does::Primary && role.term == term {
            // It repeats the call.
            return Ok(Response::new(pb::PromoteResponse { incarnation: self.membership.incarnation() }));
        }
        let following = self.following()?;
        match yielded {
            true => following.is_prepared_for(term).map_err(precondition)?,
            false => following.may_be_promoted(term).map_err(precondition)?,
        }
        let behind = opens_at(forced_opens_at_micros)?;
        following.stop.cancel();
        if let Some(handing) = following.handing.lock().await.take() {
            // A panic there has ended the process.
            let _ = handing.await;
        }
        self.control(|answer| Control::Promote { behind, answer }).await??;
        let incarnation = self.membership.incarnation().max(incarnation_above).saturating_add(1);
        if let Some(directory) = self.membership.directory() {
            let identity = Identity { incarnation, ..self.store.identity.clone() };
            identity.write(directory).map_err(|error| Status::unavailable(format!("kindred: {error}")))?;
        }
        let primary = Role { term, named: term, ..Role::alone() };
        self.membership.promoted(incarnation);
        self.membership.keep(&mut role, primary).await.map_err(on_disk)?;
        tracing::info!(term = term.0, incarnation, "this standby is the primary now");
        Ok(Response::new(pb::PromoteResponse { incarnation }))
    }

    async fn supersede(
        &self,
        request: Request<pb::SupersedeRequest>,
    ) -> Result<Response<pb::SupersedeResponse>, Status> {
        let pb::SupersedeRequest { term, primary_url } = request.into_inner();
        let mut role = self.membership.role.lock().await;
        let term = check_term(&role, term)?;
        if role.does == Does::Primary && role.term == term && !self.membership.in_doubt() {
            return Err(precondition(format!("this member is the primary of term {term}")));
        }
        if !self.member.handle.control(Said::Superseded).await {
            return Err(KvError::Stopped.into());
        }
        let does = if role.does == Does::Primary { Does::Superseded } else { role.does };
        let started_as = self.store.started_as.clone();
        let superseded = Role { does, term, primary: Some(primary_url), started_as, ..Role::alone() };
        self.membership.keep(&mut role, superseded).await.map_err(on_disk)?;
        self.membership.superseded.cancel();
        Ok(Response::new(pb::SupersedeResponse {}))
    }

    async fn member(
        &self,
        _request: Request<pb::MemberRequest>,
    ) -> Result<Response<pb::MemberResponse>, Status> {
        let role = self.membership.role.lock().await.clone();
        let shown = self.control(|answer| Said::Show { answer }).await?;
        let standbys = shown.into_iter().map(|shown| pb::StandbyShown {
            member: shown.id.0,
            counts: shown.counts,
            follows: shown.follows,
            whole: shown.whole,
            batches_behind: shown.behind,
            waiting_bytes: shown.waiting_bytes,
            has_shown: shown.has_shown,
            silent_millis: millis(shown.silent),
        });
        let following = self.membership.following.as_ref().filter(|_| role.does == Does::Standby);
        let does = match role.does {
            Does::Primary => member_response::Role::Primary,
            Does::Standby => member_response::Role::Standby,
            Does::Superseded => member_response::Role::Superseded,
        };
        Ok(Response::new(pb::MemberResponse {
            member: self.membership.id.0.clone(),
            role: does as i32,
            term: role.term.0.max(following.map_or(0, |following| following.term().0)),
            counted: role.counted.into_iter().map(|id| id.0).collect(),
            standbys: standbys.collect(),
            in_doubt: self.membership.in_doubt(),
            incarnation: self.membership.incarnation(),
            whole: following.is_some_and(|following| following.is_whole()),
            position: following.map_or(0, |following| following.position().0),
            connected: following.is_some_and(|following| following.is_connected()),
            prepared: following.is_some_and(|following| following.is_prepared()),
            wait_millis: following.map_or(0, |following| wait_millis(following)),
            silent_millis: following.map_or(0, |following| millis(following.silent())),
            primary_url: role.primary.unwrap_or_default(),
            yielded: self.membership.has_yielded(),
            named_term: role.named.0,
        }))
    }
}

/// The whole milliseconds after which a prepared standby may be promoted.
fn wait_millis(following: &Following) -> u32 {
    match following.may_be_promoted(following.term()) {
        Err(NotDone::Waits { left }) => millis(left).saturating_add(1),
        _ => 0,
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

/// The revision above which a standby begins that takes the place of a primary by force; `None` without force.
///
/// # Errors
/// Before the clock is there (R14).
fn opens_at(micros: u64) -> Result<Option<Revision>, Status> {
    if micros == 0 {
        return Ok(None);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros());
    if let Some(left) = u128::from(micros).checked_sub(now).filter(|left| *left > 0) {
        return Err(precondition(format!("it opens in {:.1} s (R14)", left as f64 / 1e6)));
    }
    Ok(i64::try_from(micros).ok().and_then(|micros| micros.checked_shl(SLOT_BITS)).map(Revision))
}

fn sorted(mut ids: Vec<MemberId>) -> Vec<MemberId> {
    ids.sort_unstable();
    ids.dedup();
    ids
}
