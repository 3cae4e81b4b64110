//! The steps of a move that call stores: one function each. All may be repeated, and all end in bounded time.

use std::sync::atomic::Ordering;
use std::time::Duration;

use kindred_partition_config::ids::{LeaseId, MoveId, Revision, Term};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::unit::Unit;
use kindred_proto::shard_v1 as pb;
use kindred_router_core::clock_offset;
use kindred_router_core::moves::step::{Answer, StepName, UnitCall};
use kindred_router_core::parts::store_ix;
use kindred_wire::refusal;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming};

use super::rate::Rate;
use super::runner::Copied;
use crate::app::App;
use crate::execute::Deadline;
use crate::feeds::place::wire;
use crate::stores::Store;

mod etcd;

/// How long a store has to answer a call that does little.
const CALL_MAX: Duration = Duration::from_secs(2);
/// How long a stream of a copy, a tail or a comparison may say nothing.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// What one round of a tail imports at most before it says how far it is.
const ROUND_MAX: Duration = Duration::from_secs(5);
/// How long the follower may take to clear away what it had of the unit in an earlier life, and how often it is asked.
const ROOM_MAX: Duration = Duration::from_secs(30);
const ROOM_AGAIN: Duration = Duration::from_millis(2);
/// What it says meanwhile.
const MAKING_ROOM: &str = "still making room";
/// Leases attached at a time.
const LEASES_AT_ONCE: usize = 64;

/// One unit of one move, and who has to do with it.
pub(super) struct UnitSteps<'a> {
    pub app: &'a App,
    pub id: MoveId,
    pub call: &'a UnitCall,
    pub rate: &'a Rate,
    pub copied: &'a Copied,
}

/// How a call failed, for the coordinator.
enum Failed {
    /// The store has seen a higher term, this one.
    Stale(Term),
    /// The follower does not have what it is to have.
    Lost(String),
    /// A store has restarted since the freeze or the seal, or it is undone.
    Restarted(String),
    /// It differs.
    Different(String),
    Other(String),
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        let text = status.message();
        let stale = refusal::stale_term(text).filter(|_| status.code() == Code::FailedPrecondition);
        stale.map_or_else(|| Self::Other(text.to_owned()), |seen| Self::Stale(Term(seen)))
    }
}

impl From<Failed> for Answer {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Stale(seen) => Self::Stale { seen },
            Failed::Lost(reason) => Self::Lost { reason },
            Failed::Restarted(reason) => Self::Restarted { reason },
            Failed::Different(reason) => Self::Different { reason },
            Failed::Other(reason) => Self::Failed { reason },
        }
    }
}

impl UnitSteps<'_> {
    /// Runs a step.
    pub(super) async fn run(&self, name: StepName) -> Answer {
        let done = |()| Answer::Done;
        let ends = match name {
            StepName::Unfreeze | StepName::Open | StepName::Forget => Some(self.owner()),
            StepName::Release | StepName::Drop => Some(self.follower()),
            _ => None,
        };
        if ends.is_some_and(|store| store.is_removed()) {
            // It was lost and another one is in its place (R14): nobody asks it for these keys any more.
            return Answer::Done;
        }
        if let Some(result) = self.run_at_etcd(name).await {
            return result.unwrap_or_else(Answer::from);
        }
        let result = match name {
            StepName::Track => self.track().await,
            StepName::Copy => self.copy().await.map(done),
            StepName::AttachLeases => self.attach_leases().await.map(done),
            StepName::Tail | StepName::ReverseTail => self.tail().await,
            StepName::Verify => self.verify().await.map(done),
            StepName::Freeze => self.freeze().await,
            StepName::ImportLast => self.import_last().await.map(done),
            StepName::Seal => self.seal().await,
            StepName::Confirm => self.confirm().await.map(done),
            StepName::Release => self.release().await.map(done),
            StepName::Open => self.open().await.map(done),
            StepName::Unfreeze => self.unfreeze().await.map(done),
            StepName::Drop => self.drop_data().await.map(done),
            StepName::Forget => self.forget().await.map(done),
            other => Err(Failed::Other(format!("{} is no step of a store", other.as_str()))),
        };
        result.unwrap_or_else(Answer::from)
    }

    /// Runs a step in which a stock etcd has to do with the unit; `None` where it is no other than a shard's.
    async fn run_at_etcd(&self, name: StepName) -> Option<Result<Answer, Failed>> {
        let done = |()| Answer::Done;
        if !self.follower().is_shard() {
            // It gave the unit away, and there is no way back.
            return match name {
                StepName::Release => Some(self.release_etcd().await.map(done)),
                StepName::Drop => Some(Ok(Answer::Done)),
                _ => None,
            };
        }
        if self.owner().is_shard() {
            return None;
        }
        Some(match name {
            StepName::Track => self.track_etcd().await,
            StepName::Copy => self.copy_etcd().await.map(done),
            // None of its keys has one.
            StepName::AttachLeases => Ok(Answer::Done),
            StepName::Tail => self.tail_etcd().await,
            StepName::Verify => self.verify_etcd().await.map(done),
            StepName::Freeze => self.freeze_etcd().await,
            StepName::ImportLast => self.import_last_etcd().await.map(done),
            StepName::Seal => self.seal_etcd().await,
            StepName::Confirm => self.confirm_etcd().await.map(done),
            StepName::Unfreeze => self.unfreeze_etcd().await.map(done),
            StepName::Forget => self.forget_etcd().await.map(done),
            // At the follower.
            _ => return None,
        })
    }

    fn owner(&self) -> &Store {
        self.app.stores.get(store_ix(self.call.owner))
    }

    fn follower(&self) -> &Store {
        self.app.stores.get(store_ix(self.call.follower))
    }

    fn unit_move(&self) -> Option<pb::UnitMove> {
        let unit = Some(on_wire(&self.call.unit));
        Some(pb::UnitMove { r#move: self.id.0, term: self.call.term.0, unit })
    }

    async fn track(&self) -> Result<Answer, Failed> {
        let request = pb::TrackRequest { r#move: self.unit_move() };
        let tracked = bounded(self.owner(), |store, deadline| async move {
            store.units().track(deadline.request(request)).await
        })
        .await?;
        Ok(if tracked.ready { Answer::Done } else { Answer::NotReady })
    }

    /// How far the follower has everything; `None` when it has no whole copy.
    async fn through(&self) -> Result<Option<Revision>, Failed> {
        Ok(self.copied_to().await?.flatten())
    }

    /// The same; `None` when it has nothing, `Some(None)` when it has a part of a copy.
    async fn copied_to(&self) -> Result<Option<Option<Revision>>, Failed> {
        Ok(self.following().await?.map(|record| Revision::from_wire(record.through)))
    }

    /// The follower's record of the unit.
    async fn following(&self) -> Result<Option<pb::UnitRecord>, Failed> {
        let records = bounded(self.follower(), |store, deadline| async move {
            store.units().list(deadline.request(pb::UnitsListRequest {})).await
        })
        .await?
        .records;
        let unit = Some(on_wire(&self.call.unit));
        Ok(records.into_iter().find(|record| {
            record.state == pb::UnitState::Following as i32
                && record.r#move.as_ref().is_some_and(|by| by.r#move == self.id.0 && by.unit == unit)
        }))
    }

    async fn copy(&self) -> Result<(), Failed> {
        match self.copied_to().await? {
            Some(Some(_)) => return Ok(()),
            // Whoever began it is gone. What was deleted since is not in a copy of now: it must not stay of the old one.
            Some(None) => {
                self.forget_copy().await?;
                return Err(Failed::Other("a part of a copy is dropped first".to_owned()));
            }
            None => {}
        }
        let request = pb::CopyRequest { r#move: self.unit_move(), ..Default::default() };
        let owner = self.owner();
        let mut copied =
            bounded(owner, |store, _| async move { store.units_in_bulk().copy(Request::new(request)).await })
                .await?;
        let (mut at, mut floor) = (0, 0);
        let (began, mut sent) = (Instant::now(), 0);
        while let Some(chunk) = next(owner, &mut copied).await? {
            if chunk.at > 0 {
                (at, floor) = (chunk.at, chunk.floor);
            }
            let bytes = chunk.keys.iter().map(weight).sum();
            self.count(chunk.keys.len(), bytes).await;
            sent += bytes as u64;
            let (keys, gaps) = (chunk.keys, chunk.gaps);
            self.import(pb::ImportRequest { keys, floor, gaps, ..Default::default() }).await?;
        }
        if at == 0 {
            return Err(Failed::Other(format!("store {:?} ended the copy at once", owner.name())));
        }
        self.app.copy_speed.made(sent, began.elapsed());
        // Only now is it whole: who takes over before begins again.
        self.import(pb::ImportRequest { floor, through: at, ..Default::default() }).await.map(drop)
    }

    /// Counts what is about to be imported, and waits for its turn.
    async fn count(&self, keys: usize, bytes: usize) {
        self.copied.keys.fetch_add(keys as u64, Ordering::Relaxed);
        self.copied.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.rate.take(bytes).await;
    }

    async fn import(&self, import: pb::ImportRequest) -> Result<Revision, Failed> {
        let request = pb::ImportRequest { r#move: self.unit_move(), ..import };
        let end = Instant::now() + ROOM_MAX;
        loop {
            let request = request.clone();
            let imported = bounded(self.follower(), |store, deadline| async move {
                store.units_in_bulk().import(deadline.request(request)).await
            });
            match imported.await {
                Ok(imported) => return Ok(Revision(imported.through)),
                Err(status) if status.message().contains(MAKING_ROOM) && Instant::now() < end => {
                    tokio::time::sleep(ROOM_AGAIN).await;
                }
                Err(status) => return Err(status.into()),
            }
        }
    }

    async fn attach_leases(&self) -> Result<(), Failed> {
        let request = pb::UnitLeasesRequest { r#move: self.unit_move() };
        let ids = bounded(self.owner(), |store, deadline| async move {
            store.units().leases(deadline.request(request)).await
        })
        .await?
        .ids;
        let ids: Vec<LeaseId> = ids.into_iter().filter_map(LeaseId::from_wire).collect();
        for some in ids.chunks(LEASES_AT_ONCE) {
            self.app.attach_all(some, self.follower(), Deadline::within(CALL_MAX)).await?;
        }
        Ok(())
    }

    /// Imports what the owner has said since, until it has nothing more to say.
    async fn tail(&self) -> Result<Answer, Failed> {
        self.clocks_meet()?;
        let began = Instant::now();
        let imported = self.follow(|watermark, _| watermark.is_some(), began + ROUND_MAX).await?;
        Ok(Answer::Followed { lag: imported.elapsed() })
    }

    /// Whether the follower's clock may come to where the owner's is (R3), which a switch needs (R15b): else nothing is to be
    /// frozen for one.
    fn clocks_meet(&self) -> Result<(), Failed> {
        let clocks = self.app.stores.clocks();
        let [owner, follower] = [self.owner(), self.follower()];
        match (clocks.offset(owner.index), clocks.offset(follower.index)) {
            (Some(ahead), Some(at)) if clock_offset::is_too_far_behind(at, ahead) => {
                Err(Failed::Other(format!(
                    "the clock of store {:?} is {:.1} s behind that of store {:?}, and may not be raised so far: set the time \
                     there (R3)",
                    follower.name(),
                    (ahead - at) as f64 / 1e6,
                    owner.name()
                )))
            }
            _ => Ok(()),
        }
    }

    async fn import_last(&self) -> Result<(), Failed> {
        let last = self.call.final_revision;
        let end = Instant::now() + CALL_MAX;
        self.follow(|watermark, _| watermark.is_some_and(|watermark| watermark >= last), end).await?;
        // Those of the last events; the others are known to be attached, and cost nothing.
        self.attach_leases().await
    }

    /// Follows the owner from where the follower is until `enough` of the last watermark, or until `end`. When the last
    /// message came.
    async fn follow(
        &self,
        enough: impl Fn(Option<Revision>, usize) -> bool,
        end: Instant,
    ) -> Result<Instant, Failed> {
        let Some(through) = self.through().await? else {
            return Err(Failed::Lost(format!("store {:?} has no whole copy", self.follower().name())));
        };
        let owner = self.owner();
        let open = pb::FeedOpen {
            ranges: vec![wire(&self.call.unit.range)],
            start: through.next().get(),
            generation: 0,
            unit: Some(on_wire(&self.call.unit)),
        };
        let (asks, requests) = mpsc::channel(1);
        let open = pb::feed_request::Request::Open(open);
        // The queue is empty.
        let _ = asks.try_send(pb::FeedRequest { request: Some(open) });
        let mut feed = bounded(owner, |store, _| async move {
            store.feed_in_bulk().feed(Request::new(ReceiverStream::new(requests))).await
        })
        .await?;
        loop {
            let Some(said) = next(owner, &mut feed).await? else {
                return Err(Failed::Other(format!("store {:?} ended the tail", owner.name())));
            };
            let came = Instant::now();
            if said.compacted > 0 {
                let reason = format!("its history at store {:?} is compacted", owner.name());
                self.forget_copy().await?;
                return Err(Failed::Lost(reason));
            }
            let watermark = Revision::from_wire(said.watermark.max(said.moved));
            let events = said.events.len();
            if events > 0 || watermark.is_some() {
                self.count(0, said.events.iter().map(|event| event.event.len()).sum()).await;
                let through = watermark.map_or(0, Revision::get);
                self.import(pb::ImportRequest { events: said.events, through, ..Default::default() }).await?;
            }
            if enough(watermark, events) {
                return Ok(came);
            }
            if Instant::now() >= end {
                return Err(Failed::Other(format!(
                    "the tail of store {:?} did not come to its end",
                    owner.name()
                )));
            }
        }
    }

    /// The follower's copy is too old to be followed further.
    async fn forget_copy(&self) -> Result<(), Failed> {
        let request = pb::DropRequest { r#move: self.unit_move(), epoch: self.call.epoch.0 };
        bounded(self.follower(), |store, deadline| async move {
            store.units().drop(deadline.request(request)).await
        })
        .await
        .map(drop)
        .map_err(Failed::from)
    }

    /// Compares both sides at a revision that the follower has, key by key, with their history.
    async fn verify(&self) -> Result<(), Failed> {
        let Some(at) = self.through().await? else {
            return Err(Failed::Lost(format!("store {:?} has no whole copy", self.follower().name())));
        };
        let request = |floor: i64| pb::VerifyRequest {
            r#move: self.unit_move(),
            floor,
            at: at.get(),
            after: bytes::Bytes::new(),
        };
        let floor = self.floors().await?;
        let (owner, follower) = (self.owner(), self.follower());
        let (left, right) = (request(floor), request(floor));
        let mut left =
            bounded(owner, |store, _| async move { store.units_in_bulk().verify(Request::new(left)).await })
                .await?;
        let mut right =
            bounded(
                follower,
                |store, _| async move { store.units_in_bulk().verify(Request::new(right)).await },
            )
            .await?;
        loop {
            match (next(owner, &mut left).await?, next(follower, &mut right).await?) {
                (None, None) => return Ok(()),
                (Some(left), Some(right)) if left == right => {}
                (left, right) => {
                    if self.floors().await? != floor {
                        // One side has compacted what the other had still to show.
                        return Err(Failed::Other("compacted while both sides were compared".to_owned()));
                    }
                    let key = [&left, &right].into_iter().flatten().map(|digest| &digest.last_key).min();
                    return Err(Failed::Different(format!(
                        "stores {:?} and {:?} differ at revision {at} at or before key {:?}",
                        owner.name(),
                        follower.name(),
                        key.map(|key| String::from_utf8_lossy(key).into_owned()).unwrap_or_default(),
                    )));
                }
            }
        }
    }

    /// The higher of both sides' floors of the unit: from there on both have everything. Compactions come to each in its
    /// own time.
    async fn floors(&self) -> Result<i64, Failed> {
        let request = pb::TrackRequest { r#move: self.unit_move() };
        let tracked = bounded(self.owner(), |store, deadline| async move {
            store.units().track(deadline.request(request)).await
        })
        .await?;
        Ok(self.following().await?.map_or(tracked.floor, |record| record.floor.max(tracked.floor)))
    }

    /// The generation of a map that is older than what this attempt will decide.
    fn undecided(&self) -> u64 {
        self.app.routes.load().generation()
    }

    async fn freeze(&self) -> Result<Answer, Failed> {
        let request = pb::FreezeRequest { r#move: self.unit_move(), generation: self.undecided() };
        let frozen = bounded(self.owner(), |store, deadline| async move {
            store.units().freeze(deadline.request(request)).await
        })
        .await?;
        Ok(Answer::Frozen { final_revision: Revision(frozen.final_revision), life: frozen.incarnation })
    }

    async fn seal(&self) -> Result<Answer, Failed> {
        let final_revision = self.call.final_revision.get();
        let generation = self.undecided();
        let request = pb::SealRequest { r#move: self.unit_move(), final_revision, generation, imported: 0 };
        let sealed = bounded(self.follower(), |store, deadline| async move {
            store.units().seal(deadline.request(request)).await
        })
        .await?;
        Ok(Answer::Sealed { life: sealed.incarnation })
    }

    /// Whether both stores still hold to what they did for the attempt, in the same life (R15c).
    async fn confirm(&self) -> Result<(), Failed> {
        let (frozen_in, sealed_in) = self.call.lives;
        let (owner, follower) = (self.owner(), self.follower());
        let frozen = self.stands(owner, pb::UnitState::Frozen, frozen_in);
        let sealed = self.stands(follower, pb::UnitState::Following, sealed_in);
        tokio::try_join!(frozen, sealed).map(drop)
    }

    async fn stands(&self, store: &Store, state: pb::UnitState, life: u64) -> Result<(), Failed> {
        let listed = bounded(store, |store, deadline| async move {
            store.units().list(deadline.request(pb::UnitsListRequest {})).await
        })
        .await?;
        if listed.incarnation != life {
            return Err(Failed::Restarted(format!(
                "store {:?} has restarted during the switch",
                store.name()
            )));
        }
        let (last, unit) = (self.call.final_revision.get(), Some(on_wire(&self.call.unit)));
        let stands = listed.records.iter().any(|record| {
            let ours = record.r#move.as_ref().is_some_and(|by| by.r#move == self.id.0 && by.unit == unit);
            ours && record.state() == state && record.final_revision == last
        });
        if !stands {
            let what = if state == pb::UnitState::Frozen { "frozen" } else { "sealed" };
            return Err(Failed::Restarted(format!(
                "the unit is not {what} any more at store {:?}",
                store.name()
            )));
        }
        Ok(())
    }

    /// After the decision the record names the new owner: the one that was is the follower.
    async fn release(&self) -> Result<(), Failed> {
        let request = pb::ReleaseRequest { r#move: self.unit_move(), epoch: self.call.epoch.0 };
        bounded(self.follower(), |store, deadline| async move {
            store.units().release(deadline.request(request)).await
        })
        .await?;
        Ok(())
    }

    async fn open(&self) -> Result<(), Failed> {
        let request = pb::OpenRequest { r#move: self.unit_move(), epoch: self.call.epoch.0 };
        bounded(self.owner(), |store, deadline| async move {
            store.units().open(deadline.request(request)).await
        })
        .await?;
        Ok(())
    }

    async fn unfreeze(&self) -> Result<(), Failed> {
        let request = pb::UnfreezeRequest { r#move: self.unit_move() };
        bounded(self.owner(), |store, deadline| async move {
            store.units().unfreeze(deadline.request(request)).await
        })
        .await?;
        Ok(())
    }

    async fn drop_data(&self) -> Result<(), Failed> {
        self.forget_copy().await
    }

    async fn forget(&self) -> Result<(), Failed> {
        let request = pb::ForgetRequest { r#move: self.unit_move() };
        bounded(self.owner(), |store, deadline| async move {
            store.units().forget(deadline.request(request)).await
        })
        .await?;
        Ok(())
    }
}

/// One call, or the opening of a stream, in bounded time.
pub(super) async fn bounded<'s, T, Fut>(
    store: &'s Store,
    call: impl FnOnce(&'s Store, Deadline) -> Fut,
) -> Result<T, Status>
where
    Fut: Future<Output = Result<tonic::Response<T>, Status>>,
{
    store.ready()?;
    let answer = tokio::time::timeout(CALL_MAX, call(store, Deadline::within(CALL_MAX))).await;
    match answer {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(store.unavailable("no answer in time")),
    }
}

/// The next message of a stream.
async fn next<T>(store: &Store, stream: &mut Streaming<T>) -> Result<Option<T>, Status> {
    match tokio::time::timeout(SILENCE_MAX, stream.message()).await {
        Ok(message) => message,
        Err(_) => Err(store.unavailable("a stream of a move says nothing")),
    }
}

fn weight(key: &pb::CopiedKey) -> usize {
    key.key.len() + key.versions.iter().map(|version| version.kv.len()).sum::<usize>()
}

/// A unit as stores read it.
pub(super) fn on_wire(unit: &Unit) -> pb::Unit {
    let (buckets, prefix_len) = unit.buckets_to_wire();
    let KeyRange::Span { .. } = &unit.range else {
        // Units are spans; a single key would be a span of one.
        let range =
            KeyRange::Span { start: unit.range.start().clone(), end: Some(unit.range.start().successor()) };
        return pb::Unit { range: Some(wire(&range)), buckets, prefix_len };
    };
    pb::Unit { range: Some(wire(&unit.range)), buckets, prefix_len }
}
