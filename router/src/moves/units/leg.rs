//! The steps that one call does for all units of a leg, with an answer for each unit. These are the steps during the
//! pause of writes and those repeated every few milliseconds, so a leg of many units needs as many calls as a leg of
//! one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join;
use kindred_partition_config::ids::{Epoch, LeaseId, MoveId, Revision, Term};
use kindred_proto::shard_v1::{self as pb, unit_answer::Answer as Made, unit_call::Call};
use kindred_router_core::clock_offset;
use kindred_router_core::moves::step::{Answer, StepName, UnitCall};
use kindred_router_core::parts::store_ix;
use kindred_router_core::store::StoreIx;

use super::{CALL_MAX, Failed, LEASES_AT_ONCE, UnitSteps, on_wire, stores::UnitStores};
use crate::moves::mover::Mover;
use crate::moves::rate::{Copied, Rate};
use crate::stores::Store;

/// How long one round of tailing may take before it reports.
const ROUND_MAX: Duration = Duration::from_secs(1);

/// The same step for several units of one leg of a move.
#[derive(Debug)]
pub struct LegSteps<S> {
    /// The router's stores.
    pub stores: S,
    /// The move.
    pub id: MoveId,
    /// At least one call; all have the same leg and term.
    pub calls: Vec<UnitCall>,
    /// Limits copies.
    pub rate: Arc<Rate>,
    /// Counts what is copied.
    pub copied: Arc<Copied>,
}

/// How far a unit was followed.
enum Followed {
    /// Everything up to this revision is imported.
    To(Revision),
    /// It has reached its goal; the owner reported that at this time.
    Done(Duration),
    Not(Failed),
}

/// A result for each unit.
pub type Each<T> = Vec<Result<T, Failed>>;

impl<S: UnitStores> LegSteps<S> {
    /// Runs a step; returns an answer for each call, in their order.
    pub async fn run(&self, name: StepName) -> Vec<Answer> {
        let ends = match name {
            StepName::Unfreeze | StepName::Open | StepName::Forget => Some(self.source()),
            StepName::Release | StepName::Drop | StepName::Unseal => Some(self.target()),
            _ => None,
        };
        if ends.is_some_and(|store| self.stores.is_removed(store)) {
            // The store was lost and replaced (R14), so nobody asks it for these keys any more.
            return vec![Answer::Done; self.calls.len()];
        }
        let done = match S::at_etcd(self, name).await {
            Some(done) => done,
            None => self.run_at_shards(name).await,
        };
        if name == StepName::Unfreeze && done.as_ref().is_ok_and(|each| each.iter().all(Result::is_ok)) {
            self.unseal().await;
        }
        match done {
            Ok(each) => each.into_iter().map(|answer| answer.unwrap_or_else(Answer::from)).collect(),
            Err(failed) => vec![Answer::from(failed); self.calls.len()],
        }
    }

    pub(super) async fn run_at_shards(&self, name: StepName) -> Result<Each<Answer>, Failed> {
        let (owner, follower) = (self.source(), self.target());
        match name {
            StepName::Copy | StepName::Verify => {
                let mut each = Vec::with_capacity(self.calls.len());
                for call in &self.calls {
                    let step = self.unit(call);
                    let done = if name == StepName::Copy { step.copy().await } else { step.verify().await };
                    each.push(done.map(|()| Answer::Done));
                }
                Ok(each)
            }
            StepName::Track => self.ask(owner, |by, _| Call::Track(pb::TrackRequest { r#move: by })).await,
            StepName::AttachLeases => self.attach_leases().await.map(|()| self.all_done()),
            StepName::Tail | StepName::ReverseTail => self.tail().await,
            StepName::Freeze => {
                let generation = self.undecided().0;
                self.ask(owner, |by, _| Call::Freeze(pb::FreezeRequest { r#move: by, generation })).await
            }
            StepName::ImportLast => self.import_last().await,
            StepName::Seal => self.seal(&vec![0; self.calls.len()]).await,
            StepName::Confirm => self.confirm().await,
            // After the decision the record names the new owner, so the former owner is the follower.
            StepName::Release => {
                let call = |by, call: &UnitCall| {
                    Call::Release(pb::ReleaseRequest { r#move: by, epoch: call.epoch.0 })
                };
                self.ask(follower, call).await
            }
            StepName::Open => {
                let call =
                    |by, call: &UnitCall| Call::Open(pb::OpenRequest { r#move: by, epoch: call.epoch.0 });
                self.ask(owner, call).await
            }
            StepName::Unfreeze => {
                self.ask(owner, |by, _| Call::Unfreeze(pb::UnfreezeRequest { r#move: by })).await
            }
            StepName::Unseal => {
                self.owner_has_not_released().await?;
                self.ask(follower, |by, _| Call::Unseal(pb::UnsealRequest { r#move: by })).await
            }
            StepName::Drop => {
                let call =
                    |by, call: &UnitCall| Call::Drop(pb::DropRequest { r#move: by, epoch: call.epoch.0 });
                self.ask(follower, call).await
            }
            StepName::Forget => self.ask(owner, |by, _| Call::Forget(pb::ForgetRequest { r#move: by })).await,
            other => Err(Failed::Other(format!("{} is no step of a store", other.as_str()))),
        }
    }

    /// The owner's place; all calls have the same two stores.
    pub(super) fn source(&self) -> StoreIx {
        store_ix(self.calls[0].owner)
    }

    /// The follower's place.
    pub(super) fn target(&self) -> StoreIx {
        store_ix(self.calls[0].follower)
    }

    fn names(&self) -> (String, String) {
        (self.stores.name(self.source()), self.stores.name(self.target()))
    }

    pub(super) fn unit<'s>(&'s self, call: &'s UnitCall) -> UnitSteps<'s, S> {
        UnitSteps { stores: &self.stores, id: self.id, call, rate: &self.rate, copied: &self.copied }
    }

    pub(super) fn all_done(&self) -> Each<Answer> {
        self.calls.iter().map(|_| Ok(Answer::Done)).collect()
    }

    /// The generation of a map that is older than the one that this attempt will decide.
    fn undecided(&self) -> Epoch {
        self.stores.generation()
    }

    /// Makes the same call about all units at a store.
    async fn ask(
        &self,
        store: StoreIx,
        call: impl Fn(Option<pb::UnitMove>, &UnitCall) -> Call,
    ) -> Result<Each<Answer>, Failed> {
        let calls = self.calls.iter().map(|of| call(self.unit(of).unit_move(), of)).collect();
        Ok(made(&self.stores, store, calls, false)
            .await?
            .0
            .into_iter()
            .map(|made| made.and_then(answer))
            .collect())
    }

    /// The records of the units at a store, and the store's incarnation.
    async fn look(&self, store: StoreIx) -> Result<(Each<Option<pb::UnitRecord>>, u64), Failed> {
        let look = |of: &UnitCall| Call::Look(pb::LookRequest { r#move: self.unit(of).unit_move() });
        let looks = self.calls.iter().map(look).collect();
        let (made, incarnation) = made(&self.stores, store, looks, false).await?;
        let record = |made| match made {
            Made::Look(look) => Ok(look.record),
            other => Err(another(&other)),
        };
        Ok((made.into_iter().map(|made| made.and_then(record)).collect(), incarnation))
    }

    /// Attaches the leases of the units' keys to the follower. A shard names those that it does not know, which are few
    /// in a pause; a stock etcd does not, so the owner looks through all keys. Of a lease that an etcd granted and no shard knows a
    /// shard becomes the home.
    pub(super) async fn attach_leases(&self) -> Result<(), Failed> {
        let missing = self.stores.is_shard(self.target());
        let store = if missing { self.target() } else { self.source() };
        for some in self.leases_by(store, missing).await?.chunks(LEASES_AT_ONCE) {
            match missing {
                true => self.stores.attach_again(some, self.target()).await.map(drop)?,
                false => self.stores.attach_all(some, self.target()).await?,
            }
        }
        Ok(())
    }

    /// The leases of the units' keys, as this store knows them, or those of them that it does not know (`missing`).
    async fn leases_by(&self, store: StoreIx, missing: bool) -> Result<Vec<LeaseId>, Failed> {
        let leases = |of: &UnitCall| {
            Call::Leases(pb::UnitLeasesRequest { r#move: self.unit(of).unit_move(), missing })
        };
        let mut ids = Vec::new();
        let asked = self.calls.iter().map(leases).collect();
        for made in made(&self.stores, store, asked, false).await?.0 {
            match made? {
                Made::Leases(leases) => ids.extend(leases.ids.into_iter().filter_map(LeaseId::from_wire)),
                other => return Err(another(&other)),
            }
        }
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// After an abandoned attempt, lets the follower serve again what it owns beside the units. If it does not answer,
    /// the next import has the same effect.
    async fn unseal(&self) {
        let follower = self.target();
        if self.stores.is_removed(follower) || !self.stores.is_shard(follower) {
            return;
        }
        let call = |by, _: &UnitCall| Call::Unseal(pb::UnsealRequest { r#move: by });
        let unsealed = async {
            self.owner_has_not_released().await?;
            self.ask(follower, call).await
        };
        if let Err(Failed::Other(reason)) = unsealed.await {
            tracing::debug!(move_id = self.id.0, reason, "units were not unsealed");
        }
    }

    /// Refuses where the owner has released a unit: an attempt of which the record does not know was decided, and the
    /// follower, sealed, may have the only copy. It is for `kindred reconcile` then. The coordinator has shown the owner
    /// its term before, so the owner releases nothing for an earlier one meanwhile.
    async fn owner_has_not_released(&self) -> Result<(), Failed> {
        let owner = self.source();
        if self.stores.is_removed(owner) || !self.stores.is_shard(owner) {
            return Ok(());
        }
        for record in self.look(owner).await?.0 {
            let state = record?.map(|record| record.state());
            if let Some(pb::UnitState::Following | pb::UnitState::Dropping | pb::UnitState::Gone) = state {
                let name = self.stores.name(owner);
                return Err(Failed::Other(format!(
                    "store {name:?} has released the unit by a decision that the meta store lost: run `kindred reconcile`"
                )));
            }
        }
        Ok(())
    }

    /// Imports the owner's news until there is no more, or the round is over.
    async fn tail(&self) -> Result<Each<Answer>, Failed> {
        self.clocks_meet()?;
        let began = self.stores.now();
        let each = self.follow(|_, _| true, began + ROUND_MAX).await?;
        let since = |then: Duration| self.stores.now().saturating_sub(then);
        let answer = |followed| match followed {
            Followed::Done(heard) => Ok(Answer::Followed { lag: since(heard) }),
            // The follower is at least this far behind; the next round goes on from there.
            Followed::To(_) => Ok(Answer::Followed { lag: since(began) }),
            Followed::Not(failed) => Err(failed),
        };
        Ok(each.into_iter().map(answer).collect())
    }

    /// Checks that the follower's clock may be raised to the owner's (R3). A switch needs that (R15b), so nothing
    /// should be frozen before it holds.
    fn clocks_meet(&self) -> Result<(), Failed> {
        match (self.stores.clock_offset(self.source()), self.stores.clock_offset(self.target())) {
            (Some(ahead), Some(at)) if clock_offset::is_too_far_behind(at, ahead) => {
                let (owner, follower) = self.names();
                Err(Failed::Other(format!(
                    "the clock of store {:?} is {:.1} s behind that of store {:?}, and may not be raised so far: set the time \
                     there (R3)",
                    follower,
                    (ahead - at) as f64 / 1e6,
                    owner
                )))
            }
            _ => Ok(()),
        }
    }

    async fn import_last(&self) -> Result<Each<Answer>, Failed> {
        let end = self.stores.now() + CALL_MAX;
        let each = self.follow(|call, watermark| watermark >= call.final_revision, end).await?;
        // Those of the last events; the others are attached.
        self.attach_leases().await?;
        let unfinished =
            || Failed::Other(format!("the tail of store {:?} did not come to its end", self.names().0));
        let answer = |followed| match followed {
            Followed::Done(_) => Ok(Answer::Done),
            Followed::To(_) => Err(unfinished()),
            Followed::Not(failed) => Err(failed),
        };
        Ok(each.into_iter().map(answer).collect())
    }

    /// Imports the owner's news, from where the follower is until `enough` accepts a unit's watermark, or until `end`.
    async fn follow(
        &self,
        enough: impl Fn(&UnitCall, Revision) -> bool,
        end: Duration,
    ) -> Result<Vec<Followed>, Failed> {
        let (owner, follower) = (self.source(), self.target());
        let mut each: Vec<Followed> = self
            .look(follower)
            .await?
            .0
            .into_iter()
            .map(|record| match record.map(|record| record.and_then(|record| copied_to(&record))) {
                Ok(Some(through)) => Followed::To(through),
                Ok(None) => {
                    Followed::Not(Failed::Lost(format!("store {:?} has no whole copy", self.names().1)))
                }
                Err(failed) => Followed::Not(failed),
            })
            .collect();
        loop {
            let going: Vec<(usize, Revision)> = each
                .iter()
                .enumerate()
                .filter_map(|(at, of)| match of {
                    Followed::To(through) => Some((at, *through)),
                    _ => None,
                })
                .collect();
            if going.is_empty() || self.stores.now() >= end {
                return Ok(each);
            }
            let tails = going
                .iter()
                .map(|(at, through)| pb::TailRequest {
                    unit: Some(on_wire(&self.calls[*at].unit)),
                    start: through.next().get(),
                })
                .collect();
            let request = pb::TailsRequest { tails };
            let said = self.stores.tails(owner, request).await?.tails;
            if said.len() != going.len() {
                return Err(Failed::Other(format!("store {:?} did not tell of all units", self.names().0)));
            }
            let heard = self.stores.now();
            let (mut imports, mut importing) = (Vec::new(), Vec::new());
            for ((at, _), tail) in going.into_iter().zip(said) {
                let call = &self.calls[at];
                let said = match (tail.said, tail.refused) {
                    (Some(said), None) => said,
                    (_, refused) => {
                        each[at] = Followed::Not(refused.unwrap_or_default().into());
                        continue;
                    }
                };
                if said.compacted > 0 {
                    self.unit(call).forget_copy().await?;
                    let reason = format!("its history at store {:?} is compacted", self.names().0);
                    each[at] = Followed::Not(Failed::Lost(reason));
                    continue;
                }
                let watermark = Revision::from_wire(said.watermark.max(said.moved));
                // Revisions come whole and in order, so the last event's revision is complete.
                let last = said.events.last().map(|event| Revision(event.revision));
                let Some(through) = watermark.or(last) else { continue };
                self.unit(call).count(0, said.events.iter().map(|event| event.event.len()).sum()).await;
                let (r#move, events) = (self.unit(call).unit_move(), said.events);
                let through_wire = through.get();
                imports.push(Call::Import(pb::ImportRequest {
                    r#move,
                    events,
                    through: through_wire,
                    ..Default::default()
                }));
                let is_done = watermark.is_some_and(|watermark| enough(call, watermark));
                importing.push((at, if is_done { Followed::Done(heard) } else { Followed::To(through) }));
            }
            if imports.is_empty() {
                continue;
            }
            for ((at, next), made) in
                importing.into_iter().zip(made(&self.stores, follower, imports, true).await?.0)
            {
                each[at] = made.map_or_else(Followed::Not, |_| next);
            }
        }
    }

    /// Seals the units at the follower. `imported` says for each unit up to which revision of the source everything is
    /// imported, if the source counts revisions of its own; else 0.
    pub(super) async fn seal(&self, imported: &[i64]) -> Result<Each<Answer>, Failed> {
        let generation = self.undecided().0;
        let seal = |(of, imported): (&UnitCall, &i64)| {
            let final_revision = of.final_revision.get();
            let r#move = self.unit(of).unit_move();
            Call::Seal(pb::SealRequest { r#move, final_revision, generation, imported: *imported })
        };
        let calls = self.calls.iter().zip(imported).map(seal).collect();
        Ok(made(&self.stores, self.target(), calls, false)
            .await?
            .0
            .into_iter()
            .map(|made| made.and_then(answer))
            .collect())
    }

    /// Checks that the freeze and the seal of the attempt still stand, in the incarnations that made them (R15c).
    async fn confirm(&self) -> Result<Each<Answer>, Failed> {
        let frozen = self.stand(self.source(), pb::UnitState::Frozen);
        let (frozen, sealed) = try_join(frozen, self.sealed_stand()).await?;
        Ok(frozen
            .into_iter()
            .zip(sealed)
            .map(|(frozen, sealed)| frozen.and(sealed).map(|()| Answer::Done))
            .collect())
    }

    pub(super) async fn sealed_stand(&self) -> Result<Each<()>, Failed> {
        self.stand(self.target(), pb::UnitState::Following).await
    }

    pub(super) async fn stand(&self, store: StoreIx, state: pb::UnitState) -> Result<Each<()>, Failed> {
        let (records, incarnation) = self.look(store).await?;
        let (frozen, name) = (state == pb::UnitState::Frozen, self.stores.name(store));
        let stands = |(of, record): (&UnitCall, Result<Option<pb::UnitRecord>, Failed>)| {
            let (frozen_in, sealed_in) = of.incarnations;
            if incarnation != if frozen { frozen_in } else { sealed_in } {
                let reason = format!("store {name:?} has restarted during the switch");
                return Err(Failed::Restarted(reason));
            }
            let last = of.final_revision.get();
            if record?.is_some_and(|record| record.state() == state && record.final_revision == last) {
                return Ok(());
            }
            let what = if frozen { "frozen" } else { "sealed" };
            Err(Failed::Restarted(format!("the unit is not {what} any more at store {name:?}")))
        };
        Ok(self.calls.iter().zip(records).map(stands).collect())
    }
}

/// The revision up to which a follower has everything; `None` if it has no whole copy.
pub(super) fn copied_to(record: &pb::UnitRecord) -> Option<Revision> {
    Revision::from_wire(record.through).filter(|_| record.state() == pb::UnitState::Following)
}

impl LegSteps<Arc<Mover>> {
    pub(super) fn owner(&self) -> &Store {
        self.stores.stores.get(self.source())
    }

    pub(super) fn follower(&self) -> &Store {
        self.stores.stores.get(self.target())
    }
}

/// Makes one call about a unit at a store.
pub(in crate::moves) async fn alone<S: UnitStores>(
    stores: &S,
    store: StoreIx,
    call: Call,
) -> Result<Made, Failed> {
    match made(stores, store, vec![call], false).await?.0.pop() {
        Some(made) => made,
        None => Err(Failed::Other("a call about a unit has no answer".to_owned())),
    }
}

/// Makes several calls about units at a store in one request. Returns each call's answer, and the store's incarnation.
pub(super) async fn made<S: UnitStores>(
    stores: &S,
    store: StoreIx,
    calls: Vec<Call>,
    in_bulk: bool,
) -> Result<(Each<Made>, u64), Failed> {
    let asked = calls.len();
    let request =
        pb::UnitCalls { calls: calls.into_iter().map(|call| pb::UnitCall { call: Some(call) }).collect() };
    let answers = stores.together(store, request, in_bulk).await?;
    if answers.answers.len() != asked {
        return Err(Failed::Other(format!("store {:?} did not answer for all units", stores.name(store))));
    }
    let each = answers.answers.into_iter().map(|answer| match answer.answer {
        Some(Made::Refused(refused)) => Err(refused.into()),
        Some(made) => Ok(made),
        None => Err(Failed::Other("an answer for a unit says nothing".to_owned())),
    });
    Ok((each.collect(), answers.incarnation))
}

/// Translates a store's answer for the coordinator.
pub(super) fn answer(made: Made) -> Result<Answer, Failed> {
    Ok(match made {
        Made::Track(tracked) if !tracked.ready => Answer::NotReady,
        Made::Freeze(frozen) => Answer::Frozen {
            final_revision: Revision(frozen.final_revision),
            incarnation: frozen.incarnation,
        },
        Made::Seal(sealed) => Answer::Sealed { incarnation: sealed.incarnation },
        Made::Track(_)
        | Made::Unfreeze(_)
        | Made::Unseal(_)
        | Made::Release(_)
        | Made::Open(_)
        | Made::Drop(_)
        | Made::Forget(_) => Answer::Done,
        other => return Err(another(&other)),
    })
}

pub(super) fn another(made: &Made) -> Failed {
    Failed::Other(format!("an answer for a unit is to another call: {made:?}"))
}

impl From<pb::UnitRefusal> for Failed {
    fn from(refused: pb::UnitRefusal) -> Self {
        refused.stale_term.map_or_else(|| Self::Other(refused.message), |seen| Self::Stale(Term(seen)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
mod tests;
