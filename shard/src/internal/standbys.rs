//! Service `Standbys`: a standby follows here, and those who keep the record of who is the primary say what it says.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use kindred_partition_config::ids::{Lineage, Slot, Term};
use kindred_proto::shard_v1::{
    self as pb, follow_request, follow_response, member_response, shipment, standbys_server::Standbys,
};
use kindred_transport::address::Endpoint;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    apply_loop::Control,
    etcd::Member,
    etcd_status::KvError,
    identity::Identity,
    joining::Joining,
    standby::{
        MemberId, Position,
        follower::NotDone,
        following::PRIMARY,
        member::{Act, Call, Done, MemberMachine},
        membership::{Following, Membership},
        role::{Does, RoleError},
        shipping::{CopyPart, MESSAGES_MAX, Outlet, Said, Shipment, cost},
    },
};

/// Who the store is, for its standbys.
#[derive(Debug, Clone)]
pub struct Store {
    pub name: String,
    pub slot: Slot,
    pub etcd_prefix: String,
    /// Whether revisions are dense: then it is alone.
    pub dense: bool,
    /// The `--standby-of` of this process.
    pub started_as: Option<String>,
}

type FollowStream = Pin<Box<dyn Stream<Item = Result<pb::FollowResponse, Status>> + Send>>;

#[derive(Clone)]
pub struct StandbyService {
    member: Member,
    membership: Arc<Membership>,
    joining: Arc<Joining>,
    store: Arc<Store>,
}

fn precondition(error: impl std::fmt::Display) -> Status {
    Status::failed_precondition(format!("kindred: {error}"))
}

fn on_disk(error: RoleError) -> Status {
    Status::unavailable(format!("kindred: the role cannot be kept: {error}"))
}

impl StandbyService {
    #[must_use]
    pub fn new(member: Member, membership: Arc<Membership>, joining: Arc<Joining>, store: Store) -> Self {
        Self { member, membership, joining, store: Arc::new(store) }
    }

    /// Refuses a call that means a member of another store, by a mistyped address or by another cluster's router (R21).
    /// A slot is one store's in a cluster. The UUID alone refuses only for a store that serves by itself: a member that has lost
    /// its disk has another one until it follows.
    async fn is_meant(&self, meant: Option<pb::Meant>) -> Result<(), Status> {
        // Callers of earlier versions do not say it.
        let Some(pb::Meant { store_uuid, lineage, slot: meant, store }) = meant else { return Ok(()) };
        let Store { name, slot, .. } = &*self.store;
        let Identity { uuid, lineage: own, .. } = self.joining.identity().await;
        if let Some(meant) = meant.filter(|meant| *meant != u32::from(slot.get())) {
            return Err(precondition(format!(
                "this is store {name:?} with slot {slot} (UUID {uuid}), and a member of store {store:?} with slot {meant} (UUID \
                 {store_uuid}) is meant: correct the address"
            )));
        }
        // Slots tell stores of one cluster apart. A member of a cluster that has lost its disk serves nothing (`--in-cluster`).
        if own.is_none() && self.member.is_serving() && !store_uuid.is_empty() && store_uuid != uuid {
            return Err(precondition(format!(
                "this store (UUID {uuid}) serves and belongs to no cluster, and a member of store {store:?} (UUID {store_uuid}) is \
                 meant: correct the address, or start this process with --standby-of"
            )));
        }
        if !lineage.is_empty() {
            self.joining.admit(Some(Lineage(lineage)), store_uuid == uuid).await?;
        }
        Ok(())
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

    /// Carries a call out, and brings the machine to what is to be answered. It comes to its end also when the caller has
    /// gone: otherwise what the disk is still writing could replace what a later call keeps.
    async fn carry_out<T: Send + 'static>(
        &self,
        call: Call,
        answer: impl FnOnce(&MemberMachine) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let service = self.clone();
        let done = tokio::spawn(async move { service.to_its_end(call, answer).await }).await;
        done.unwrap_or_else(|lost| match lost.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(KvError::Stopped.into()),
        })
    }

    async fn to_its_end<T>(&self, call: Call, answer: impl FnOnce(&MemberMachine) -> T) -> Result<T, Status> {
        let membership = &*self.membership;
        let mut machine = membership.machine.lock().await;
        let machine = &mut *machine;
        let begun = membership.decide(machine, |machine, at| machine.begin(call, at));
        let mut doing = begun.map_err(precondition)?;
        while let Some(act) = doing.act().cloned() {
            let done = self.act(act).await?;
            let next = membership.decide(machine, |machine, at| machine.done(&mut doing, done, at));
            next.map_err(precondition)?;
        }
        Ok(answer(machine))
    }

    async fn act(&self, act: Act) -> Result<Done, Status> {
        match act {
            Act::Keep(role) => self.membership.keep(role).await.map_err(on_disk)?,
            Act::KeepIncarnation(incarnation) => {
                let kept = self.joining.keep_incarnation(incarnation).await;
                kept.map_err(|error| Status::unavailable(format!("kindred: {error}")))?;
            }
            Act::Count { ids, recorded } => {
                if let Err(why) = self.control(|answer| Said::Count { ids, recorded, answer }).await? {
                    return Ok(Done::NotCounted(why));
                }
            }
            Act::Yield => self.control(|answer| Said::Yield { answer }).await?,
            Act::TakeOver { behind } => {
                if let Some(following) = &self.membership.following {
                    following.stop.cancel();
                    if let Some(handing) = following.handing.lock().await.take() {
                        // A panic there has ended the process.
                        let _ = handing.await;
                    }
                }
                self.control(|answer| Control::Promote { behind, answer }).await??;
            }
            Act::Reopen { behind, in_doubt } => {
                self.control(|answer| Control::Reopen { behind, in_doubt, answer }).await??;
            }
            Act::Refuse => {
                if !self.member.handle.control(Said::Superseded).await {
                    return Err(KvError::Stopped.into());
                }
            }
            Act::End => self.membership.superseded.cancel(),
        }
        Ok(Done::Done)
    }

    /// Refuses whom this member cannot be the primary of.
    async fn check_follower(&self, begin: &pb::FollowBegin) -> Result<Term, Status> {
        let Store { name, slot, dense, .. } = &*self.store;
        let mut machine = self.membership.machine.lock().await;
        if begin.name == *name && begin.slot == u32::from(slot.get()) && !begin.former.is_empty() {
            machine.note_never_promoted(MemberId(begin.former.clone()));
        }
        let term = machine.may_be_followed();
        drop(machine);
        let term = term.map_err(|primary| {
            let mut status = Status::unavailable("kindred: this member does not serve: follow its primary");
            if let Some(primary) = primary.and_then(|primary| primary.parse().ok()) {
                status.metadata_mut().insert(PRIMARY, primary);
            }
            status
        })?;
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
        Ok(term)
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

/// Tells a standby to begin anew, behind who says so: only a primary of its store in its own term or a later one may.
fn anew(welcome: pb::FollowResponse, why: &str) -> Response<FollowStream> {
    Response::new(Box::pin(tokio_stream::iter([Ok(welcome), Err(Status::out_of_range(why))])))
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
    type FollowStream = FollowStream;

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
        let term = self.check_follower(&begin).await?;
        let etcd_prefix = &self.store.etcd_prefix;
        let identity = self.joining.identity().await;
        let welcome = pb::Welcome {
            store_uuid: identity.uuid,
            cluster_id: identity.cluster_id,
            lineage: identity.lineage.map(|lineage| lineage.0).unwrap_or_default(),
            incarnation: self.membership.incarnation(),
            run: self.membership.run,
            term: term.0,
            etcd_prefix: etcd_prefix.clone(),
        };
        let welcome = pb::FollowResponse { says: Some(follow_response::Says::Welcome(welcome)) };
        // Nothing is in between: from the next change on everything is shipped.
        self.member.handle.ship().await?;
        let id = MemberId(begin.member);
        let has = (begin.run == self.membership.run).then_some(Position(begin.position));
        let (to, mut shipments) = mpsc::channel(MESSAGES_MAX);
        let waiting = Arc::new(AtomicU64::new(0));
        if begin.run != 0 && has.is_none() {
            return Ok(anew(welcome, "kindred: the primary is another process: begin anew"));
        }
        let outlet = Outlet { to, waiting: waiting.clone() };
        let asked = id.clone();
        if !self.control(|answer| Said::Follow { id: asked, has, outlet, answer }).await? {
            return Ok(anew(welcome, "kindred: the primary does not have what is missing: begin anew"));
        }
        tokio::spawn(acknowledge(says, self.member.clone(), id, waiting.clone()));
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
        let pb::CountRequest { term, members, recorded, meant } = request.into_inner();
        self.is_meant(meant).await?;
        let members = members.into_iter().map(MemberId).collect();
        let call = Call::Count { term: Term(term), members, recorded };
        self.carry_out(call, |_| Response::new(pb::CountResponse {})).await
    }

    async fn r#yield(
        &self,
        request: Request<pb::YieldRequest>,
    ) -> Result<Response<pb::YieldResponse>, Status> {
        let pb::YieldRequest { term, meant } = request.into_inner();
        self.is_meant(meant).await?;
        let call = Call::Yield { term: Term(term) };
        self.carry_out(call, |_| Response::new(pb::YieldResponse {})).await
    }

    async fn prepare(
        &self,
        request: Request<pb::PrepareRequest>,
    ) -> Result<Response<pb::PrepareResponse>, Status> {
        let pb::PrepareRequest { term, member, meant } = request.into_inner();
        self.is_meant(meant).await?;
        let member = Some(MemberId(member)).filter(|member| !member.0.is_empty());
        let call = Call::Prepare { term: Term(term), member };
        self.carry_out(call, |_| ()).await?;
        let wait_millis = self.membership.following.as_deref().map_or(0, wait_millis);
        Ok(Response::new(pb::PrepareResponse { wait_millis }))
    }

    async fn promote(
        &self,
        request: Request<pb::PromoteRequest>,
    ) -> Result<Response<pb::PromoteResponse>, Status> {
        let pb::PromoteRequest { term, incarnation_above, yielded, forced_opens_at_micros, meant } =
            request.into_inner();
        self.is_meant(meant).await?;
        let forced_opens_at_micros = Some(forced_opens_at_micros).filter(|micros| *micros > 0);
        let call = Call::Promote { term: Term(term), incarnation_above, yielded, forced_opens_at_micros };
        let answer = move |machine: &MemberMachine| {
            let incarnation = machine.incarnation();
            tracing::info!(term, incarnation, "this standby is the primary now");
            Response::new(pb::PromoteResponse { incarnation })
        };
        self.carry_out(call, answer).await
    }

    async fn supersede(
        &self,
        request: Request<pb::SupersedeRequest>,
    ) -> Result<Response<pb::SupersedeResponse>, Status> {
        let pb::SupersedeRequest { term, primary_url, meant } = request.into_inner();
        self.is_meant(meant).await?;
        let started_as = self.store.started_as.clone();
        // As it is kept when a standby begins.
        let primary_url = primary_url.parse::<Endpoint>().map_or(primary_url, |primary| primary.to_string());
        let call = Call::Supersede { term: Term(term), primary: primary_url, started_as };
        self.carry_out(call, |_| Response::new(pb::SupersedeResponse {})).await
    }

    async fn member(
        &self,
        request: Request<pb::MemberRequest>,
    ) -> Result<Response<pb::MemberResponse>, Status> {
        self.is_meant(request.into_inner().meant).await?;
        let machine = self.membership.machine.lock().await.clone();
        let role = machine.role().clone();
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
            counted: machine.counted().iter().map(|id| id.0.clone()).collect(),
            standbys: standbys.collect(),
            in_doubt: machine.in_doubt(),
            incarnation: machine.incarnation(),
            whole: following.is_some_and(|following| following.is_whole()),
            position: following.map_or(0, |following| following.position().0),
            connected: following.is_some_and(|following| following.is_connected()),
            prepared: following.is_some_and(|following| following.is_prepared()),
            wait_millis: following.map_or(0, |following| wait_millis(following)),
            silent_millis: following.map_or(0, |following| millis(following.silent())),
            primary_url: role.primary.unwrap_or_default(),
            yielded: machine.yielded(),
            named_term: role.named.0,
            never_promoted: machine.never_promoted().map(|id| id.0.clone()).collect(),
            trouble: following.and_then(|following| following.trouble()).unwrap_or_default(),
            lineage: Some(self.joining.kept_lineage().await.map(|lineage| lineage.0).unwrap_or_default()),
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
