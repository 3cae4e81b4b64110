//! The steps of a move that brings a unit from a shard, or from another stock etcd, to a stock etcd.
//!
//! * **Fence**: while the unit is being taken, the etcd's fence refuses it. Every write of the copy compares the fence, so
//!   none of an earlier coordinator comes after the unit is opened, or after another term began.
//! * **Revisions**: the etcd assigns new ones. They must lie above all that shards have shown, or a client's position would
//!   be in the etcd's future, and it would hear of nothing. So the etcd must have begun with a revision above the clock
//!   (`kindred leave prepare`). Before the switch it is compacted: a watch or list at a revision of before is told so.
//! * **Copy**: the current version of each key, then what changes, as transactions of puts and deletes. Versions of keys begin
//!   anew; the order in which they were created stays, where clients may read it ([`super::in_order`]).
//! * **Leases** are adopted by the etcd (`crate::leases::etcd`).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::ids::{LeaseId, Revision};
use kindred_proto::etcdserverpb::{self as etcd, request_op};
use kindred_proto::mvccpb::KeyValue;
use kindred_proto::shard_v1 as pb;
use kindred_router_core::fence::{FenceDoc, FenceState, FencedUnit};
use kindred_router_core::moves::step::{Answer, StepName, UnitCall};
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use kindred_wire::fence::FENCE_KEY;
use kindred_wire::kv::{EventRef, EventType};
use prost::Message as _;
use tokio::time::Instant;
use tonic::Status;

use super::etcd::{INCARNATION, Pages, Sink, current_revision, has_fence};
use super::in_order::{Change, Later};
use super::leg::Each;
use super::live::bounded;
use super::{CALL_MAX, Failed, LegSteps, ROUND_MAX, UnitSteps, UnitStores as _, on_wire};
use crate::execute::{Deadline, fenced};
use crate::moves::mover::Mover;
use crate::moves::taken::Brought;
use crate::stores::Store;
use crate::stores::fence::Known;

/// The operations of a transaction, beside the comparison of the fence; etcd takes 128.
const OPS: usize = 100;
/// The approximate size of a transaction; etcd takes 1.5 MiB.
const TXN_BYTES: usize = 512 << 10;
/// How far above the clock of shards an etcd's revisions must be, microseconds: clocks differ, and time goes on.
const ABOVE_MICROS: u64 = 120_000_000;
/// The same for an etcd as the source, which counts writes.
const ABOVE_WRITES: i64 = 1_000_000_000;
/// How often the sides are compared before they count as different, as leases may end meanwhile.
const COMPARISONS: usize = 3;
const PAUSE: Duration = Duration::from_millis(200);

/// What becomes of keys, each of which is there once: its value and lease, or nothing.
pub(super) type Changes = Vec<(Bytes, Option<(Bytes, i64)>)>;

impl UnitSteps<'_, Arc<Mover>> {
    /// The keys of the unit at a store, but the fence.
    fn pages_at(&self, at: i64) -> Pages {
        let mut pages = self.pages(at);
        if &pages.start[..] <= FENCE_KEY {
            pages.start = [FENCE_KEY, &[0]].concat().into();
        }
        pages
    }

    /// Applies changes, in transactions that compare the fence.
    pub(super) async fn apply(&self, known: &Known, changes: Changes) -> Result<(), Failed> {
        let leases: Vec<LeaseId> =
            changes.iter().filter_map(|(_, now)| LeaseId::from_wire(now.as_ref()?.1)).collect();
        self.stores.attach_all(&leases, self.target()).await?;
        let (mut ops, mut bytes) = (Vec::new(), 0);
        for (key, change) in changes.into_iter().filter(|(key, _)| key != FENCE_KEY) {
            bytes += key.len() + change.as_ref().map_or(0, |(value, _)| value.len());
            if !ops.is_empty() && (ops.len() == OPS || bytes > TXN_BYTES) {
                self.send(known, std::mem::take(&mut ops)).await?;
                bytes = key.len() + change.as_ref().map_or(0, |(value, _)| value.len());
            }
            ops.push(match change {
                Some((value, lease)) => request_op::Request::RequestPut(etcd::PutRequest {
                    key,
                    value,
                    lease,
                    ..Default::default()
                }),
                None => request_op::Request::RequestDeleteRange(etcd::DeleteRangeRequest {
                    key,
                    ..Default::default()
                }),
            });
        }
        if ops.is_empty() { Ok(()) } else { self.send(known, ops).await }
    }

    async fn send(&self, known: &Known, ops: Vec<request_op::Request>) -> Result<(), Failed> {
        match self.send_once(known, ops.clone()).await {
            Err(status) if grpc::etcd_error(&status) == Some(EtcdError::LeaseNotFound) => {
                let leases: Vec<LeaseId> = ops.iter().filter_map(lease_of).collect();
                if self.stores.attach_again(&leases, self.target()).await?
                    && self.send_once(known, ops.clone()).await.is_ok()
                {
                    return Ok(());
                }
                // A lease has ended since. Its keys are deleted at the source, and that comes too.
                for op in ops {
                    let one = self.send_once(known, vec![op.clone()]).await;
                    match (one, op) {
                        (Err(status), request_op::Request::RequestPut(put))
                            if grpc::etcd_error(&status) == Some(EtcdError::LeaseNotFound) =>
                        {
                            let without =
                                request_op::Request::RequestPut(etcd::PutRequest { lease: 0, ..put });
                            self.send_once(known, vec![without]).await?;
                        }
                        (sent, _) => sent?,
                    }
                }
                Ok(())
            }
            sent => Ok(sent?),
        }
    }

    async fn send_once(&self, known: &Known, ops: Vec<request_op::Request>) -> Result<(), Status> {
        let success = ops.into_iter().map(|request| etcd::RequestOp { request: Some(request) }).collect();
        let txn =
            etcd::TxnRequest { compare: vec![has_fence(known.mod_revision)], success, failure: Vec::new() };
        let (store, body) = (self.follower(), Bytes::from(txn.encode_to_vec()));
        let answer =
            bounded(store, |store, deadline| async move { store.kv().txn(deadline.request(body)).await })
                .await?;
        let answer =
            etcd::TxnResponse::decode(answer).map_err(|error| store.unavailable(&error.to_string()))?;
        match answer.succeeded {
            true => Ok(()),
            false => Err(Status::unavailable("the etcd's fence has changed meanwhile; it is read again")),
        }
    }

    /// Copies the unit, unless that is done.
    async fn copy_in(&self) -> Result<(), Failed> {
        let brought = self.stores.taken.unit(self.id, &self.call.unit);
        let mut brought = brought.lock().await;
        let known = self.taking(&mut brought).await?;
        if brought.through.is_some() {
            return Ok(());
        }
        self.empty(&known).await?;
        if !self.owner().is_shard() {
            brought.through = Some(Revision(self.copy_from_etcd(&known).await?));
            return Ok(());
        }
        let request = pb::CopyRequest { r#move: self.unit_move(), ..Default::default() };
        let mut copied = self.stores.copy(self.source(), request).await?;
        let (mut at, began, mut sent, mut later) = (0, self.stores.now(), 0, Later::default());
        while let Some(chunk) = self.stores.next_copied(self.source(), &mut copied).await? {
            if chunk.at > 0 {
                at = chunk.at;
            }
            let bytes = chunk.keys.iter().map(super::weight).sum();
            self.count(chunk.keys.len(), bytes).await;
            sent += bytes as u64;
            let mut kvs = Vec::with_capacity(chunk.keys.len());
            for key in chunk.keys {
                if let Some(last) = key.versions.last().filter(|last| !last.deletion) {
                    let kv = KeyValue::decode(last.kv.clone())
                        .map_err(|error| Failed::Other(format!("a copied key does not parse: {error}")))?;
                    kvs.push(kv);
                }
            }
            self.apply_copied(&known, kvs, &mut later).await?;
        }
        if at == 0 {
            return Err(Failed::Other(format!("store {:?} ended the copy at once", self.names().0)));
        }
        self.apply_later(&known, later, at).await?;
        self.stores.copied(sent, self.stores.now().saturating_sub(began));
        brought.through = Some(Revision(at));
        Ok(())
    }

    /// Copies the unit from another etcd. Returns the revision there.
    async fn copy_from_etcd(&self, known: &Known) -> Result<i64, Failed> {
        let (mut pages, began, mut sent) = (self.pages_at(0), self.stores.now(), 0);
        let mut later = Later::default();
        while let Some(kvs) = pages.next(self.owner()).await? {
            let bytes = kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
            self.count(kvs.len(), bytes).await;
            sent += bytes as u64;
            self.apply_copied(known, kvs, &mut later).await?;
        }
        self.apply_later(known, later, pages.at).await?;
        self.stores.copied(sent, self.stores.now().saturating_sub(began));
        Ok(pages.at)
    }

    /// Applies what a shard, or another etcd, has told.
    pub(super) async fn apply_events(&self, known: &Known, events: &[pb::FeedEvent]) -> Result<(), Failed> {
        let mut changes = Vec::with_capacity(events.len());
        for event in events {
            let event = EventRef::parse(&event.event)?;
            let kv = KeyValue::decode(event.kv)
                .map_err(|error| Failed::Other(format!("an event does not parse: {error}")))?;
            let is_put = event.event_type == EventType::Put;
            let creates = is_put && kv.create_revision == kv.mod_revision;
            changes.push(Change { key: kv.key, now: is_put.then_some((kv.value, kv.lease)), creates });
        }
        self.apply_in_order(known, changes).await
    }

    /// Follows another etcd to its current revision, or to where the unit is frozen.
    async fn follow_from_etcd(
        &self,
        brought: &mut Brought,
        known: &Known,
        to_end: bool,
        within: Duration,
    ) -> Result<Duration, Failed> {
        let owner = self.owner();
        let Some(from) = brought.through else {
            return Err(Failed::Lost(format!("store {:?} has no whole copy", self.names().1)));
        };
        let to = match to_end {
            true => self.frozen_since(&*fenced::read(owner, Deadline::within(CALL_MAX)).await?)?,
            false => current_revision(owner).await?,
        };
        let heard = self.stores.now();
        if from.get() < to {
            let sink = Sink::Etcd { known, through: &mut brought.through };
            self.watch_etcd(from, to, Instant::now() + within, sink).await?;
        }
        Ok(heard)
    }

    /// Deletes what the etcd has of the unit: of a time when it owned it, or of an earlier copy.
    async fn empty(&self, known: &Known) -> Result<(), Failed> {
        let mut pages = self.pages_at(0);
        while let Some(kvs) = pages.next(self.follower()).await? {
            let (Some(first), Some(last)) = (kvs.first(), kvs.last()) else { continue };
            let range_end = [&last.key[..], &[0]].concat().into();
            let delete = etcd::DeleteRangeRequest { key: first.key.clone(), range_end, ..Default::default() };
            self.send(known, vec![request_op::Request::RequestDeleteRange(delete)]).await?;
        }
        Ok(())
    }

    /// Brings the source's news, until it has no more or `goal` is reached; `None` if neither was until `end`. Returns when
    /// the source told so.
    async fn follow_in(
        &self,
        brought: &mut Brought,
        goal: Option<Revision>,
        end: Duration,
    ) -> Result<Option<Duration>, Failed> {
        let known = self.taking(brought).await?;
        if !self.owner().is_shard() {
            let within = end.saturating_sub(self.stores.now());
            return self.follow_from_etcd(brought, &known, goal.is_some(), within).await.map(Some);
        }
        loop {
            let Some(from) = brought.through else {
                return Err(Failed::Lost(format!("store {:?} has no whole copy", self.names().1)));
            };
            let tail = pb::TailRequest { unit: Some(on_wire(&self.call.unit)), start: from.next().get() };
            let said = self.stores.tails(self.source(), pb::TailsRequest { tails: vec![tail] }).await?;
            let heard = self.stores.now();
            let said = match said.tails.into_iter().next().map(|tail| (tail.said, tail.refused)) {
                Some((Some(said), None)) => said,
                Some((_, Some(refused))) => return Err(refused.into()),
                _ => return Err(Failed::Other(format!("store {:?} said nothing", self.names().0))),
            };
            if said.compacted > 0 {
                brought.through = None;
                return Err(Failed::Lost(format!("its history at store {:?} is compacted", self.names().0)));
            }
            let watermark = Revision::from_wire(said.watermark.max(said.moved));
            let last = said.events.last().map(|event| Revision(event.revision));
            self.count(0, said.events.iter().map(|event| event.event.len()).sum()).await;
            self.apply_events(&known, &said.events).await?;
            brought.through = watermark.or(last).max(brought.through);
            if watermark.is_some_and(|watermark| goal.is_none_or(|goal| watermark >= goal)) {
                return Ok(Some(heard));
            }
            if self.stores.now() >= end {
                return Ok(None);
            }
        }
    }

    async fn tail_in(&self) -> Result<Answer, Failed> {
        let brought = self.stores.taken.unit(self.id, &self.call.unit);
        let mut brought = brought.lock().await;
        let began = self.stores.now();
        let heard = self.follow_in(&mut brought, None, began + ROUND_MAX).await?;
        Ok(Answer::Followed { lag: self.stores.now().saturating_sub(heard.unwrap_or(began)) })
    }

    async fn last_in(&self) -> Result<Answer, Failed> {
        let brought = self.stores.taken.unit(self.id, &self.call.unit);
        let mut brought = brought.lock().await;
        let end = self.stores.now() + CALL_MAX;
        match self.follow_in(&mut brought, Some(self.call.final_revision), end).await? {
            Some(_) => Ok(Answer::Done),
            None => {
                Err(Failed::Other(format!("the tail of store {:?} did not come to its end", self.names().0)))
            }
        }
    }

    /// Compares keys, values and leases of both sides. Nothing is brought meanwhile.
    async fn verify_in(&self) -> Result<(), Failed> {
        let brought = self.stores.taken.unit(self.id, &self.call.unit);
        let mut different = String::new();
        for _ in 0..COMPARISONS {
            let mut brought = brought.lock().await;
            self.follow_in(&mut brought, None, self.stores.now() + ROUND_MAX).await?;
            let at = brought.through.unwrap_or(Revision::ZERO);
            match self.difference(at).await? {
                None => return Ok(()),
                Some(key) => {
                    let (owner, follower) = self.names();
                    let key = String::from_utf8_lossy(&key).into_owned();
                    different =
                        format!("stores {owner:?} and {follower:?} differ at revision {at} at key {key:?}");
                }
            }
            drop(brought);
            self.stores.pause(PAUSE).await;
        }
        Err(Failed::Different(different))
    }

    /// The first key that differs, with the source read at a revision.
    async fn difference(&self, at: Revision) -> Result<Option<Bytes>, Failed> {
        let (mut left, mut right) = (self.pages_at(at.get()), self.pages_at(0));
        let (mut of_left, mut of_right) = (Vec::new().into_iter(), Vec::new().into_iter());
        loop {
            let one = next_key(&mut left, self.owner(), &mut of_left).await?;
            let other = next_key(&mut right, self.follower(), &mut of_right).await?;
            match (one, other) {
                (None, None) => return Ok(None),
                (Some(a), Some(b)) if (&a.key, &a.value, a.lease) == (&b.key, &b.value, b.lease) => {}
                (a, b) => return Ok([a, b].into_iter().flatten().map(|kv| kv.key).min()),
            }
        }
    }

    /// Checks that the etcd's revisions lie above all that the source shows, also for some time.
    async fn is_above(&self) -> Result<i64, Failed> {
        let (owner, follower) = (self.owner(), self.follower());
        let shown = match owner.is_shard() {
            true => {
                let micros = self.now_micros(owner).await?.saturating_add(ABOVE_MICROS);
                i64::try_from(micros).unwrap_or(i64::MAX >> 10) << 10
            }
            false => current_revision(owner).await?.saturating_add(ABOVE_WRITES),
        };
        let current = current_revision(follower).await?;
        if current > shown {
            return Ok(current);
        }
        Err(Failed::Different(format!(
            "store {:?} is at revision {current}, and store {:?} shows revisions up to {shown} soon: a client that has seen \
             those would hear of nothing there. Begin that etcd with a snapshot of kindred leave prepare",
            follower.name(),
            owner.name()
        )))
    }
}

/// The lease that an operation names.
fn lease_of(op: &request_op::Request) -> Option<LeaseId> {
    match op {
        request_op::Request::RequestPut(put) => LeaseId::from_wire(put.lease),
        _ => None,
    }
}

/// The next key of one side.
async fn next_key(
    pages: &mut Pages,
    store: &Store,
    page: &mut std::vec::IntoIter<KeyValue>,
) -> Result<Option<KeyValue>, Failed> {
    loop {
        if let Some(kv) = page.next() {
            return Ok(Some(kv));
        }
        match pages.next(store).await? {
            Some(kvs) => *page = kvs.into_iter(),
            None => return Ok(None),
        }
    }
}

impl LegSteps<Arc<Mover>> {
    /// Runs a step for units that a stock etcd takes from a shard, or has taken. `None` for steps that are the shard's
    /// alone.
    pub(super) async fn run_to_etcd(&self, name: StepName) -> Option<Result<Each<Answer>, Failed>> {
        let from_etcd = !self.owner().is_shard();
        Some(match name {
            StepName::Track => self.begin_to_etcd().await,
            // They were attached with the keys.
            StepName::AttachLeases if from_etcd => Ok(self.all_done()),
            StepName::Freeze if from_etcd => self.freeze_for_etcd().await,
            StepName::Unfreeze if from_etcd => {
                self.fence_done(self.owner(), |doc, by, _| doc.unfreeze(by)).await
            }
            StepName::Open if from_etcd => self.open_at_etcd().await,
            StepName::Forget if from_etcd => self.fence_done(self.owner(), |doc, by, _| doc.forget(by)).await,
            StepName::Copy | StepName::Tail | StepName::Verify | StepName::ImportLast => {
                if let Err(failed) = self.take_all().await {
                    return Some(Err(failed));
                }
                let each = self.calls.iter().map(|call| self.alone_to_etcd(name, call));
                let each = futures_util::future::join_all(each).await;
                if name == StepName::ImportLast
                    && !from_etcd
                    && let Err(failed) = self.attach_leases().await
                {
                    return Some(Err(failed));
                }
                Ok(each)
            }
            StepName::Seal => self.seal_to_etcd().await,
            StepName::Confirm => self.confirm_to_etcd().await,
            StepName::Unseal => Ok(self.all_done()),
            StepName::Drop => self.leave_etcd().await,
            _ => return None,
        })
    }

    async fn alone_to_etcd(&self, name: StepName, call: &UnitCall) -> Result<Answer, Failed> {
        let unit = self.unit(call);
        match name {
            StepName::Copy => unit.copy_in().await.map(|()| Answer::Done),
            StepName::Verify => unit.verify_in().await.map(|()| Answer::Done),
            StepName::ImportLast => unit.last_in().await,
            _ => unit.tail_in().await,
        }
    }

    async fn begin_to_etcd(&self) -> Result<Each<Answer>, Failed> {
        self.unit(&self.calls[0]).is_above().await?;
        for taken in self.fence(self.follower(), |doc, by, _| doc.take(by)).await? {
            taken?;
        }
        if self.owner().is_shard() {
            return self.run_at_shards(StepName::Track).await;
        }
        if self.stores.keeper.cluster.state().lease_home().is_none() {
            return Err(Failed::Different(
                "no shard is there to be the home of leases while they move: add one for the time of the move".to_owned(),
            ));
        }
        self.fence_done(self.owner(), |doc, by, _| doc.track(by)).await
    }

    /// Freezes the units at an etcd, for another one: its revision is what marks this freeze.
    async fn freeze_for_etcd(&self) -> Result<Each<Answer>, Failed> {
        let mark = Revision(current_revision(self.follower()).await?);
        let each = self.fence(self.owner(), |doc, by, _| doc.freeze(by, mark)).await?;
        let frozen = |final_revision| Answer::Frozen { final_revision, incarnation: INCARNATION };
        Ok(each.into_iter().map(|last| last.map(frozen)).collect())
    }

    async fn seal_to_etcd(&self) -> Result<Each<Answer>, Failed> {
        let follower = self.follower();
        let fence = match self.owner().is_shard() {
            true => None,
            false => Some(fenced::read(self.owner(), Deadline::within(CALL_MAX)).await?),
        };
        for call in &self.calls {
            // Another move may have changed an etcd's fence since the last import; then it is followed once more.
            if let Some(fence) = &fence {
                self.unit(call).frozen_since(fence)?;
                self.unit(call).last_in().await?;
                continue;
            }
            let brought = self.stores.taken.unit(self.id, &call.unit);
            let mut brought = brought.lock().await;
            self.unit(call).taking(&mut brought).await?;
            let has_all = brought.through.is_some_and(|through| through >= call.final_revision);
            if !has_all {
                return Err(Failed::Restarted("this router did not bring all of it".to_owned()));
            }
        }
        let seal = |doc: &mut FenceDoc, by: &FencedUnit, call: &UnitCall| doc.seal(by, call.final_revision);
        for sealed in self.fence(follower, seal).await? {
            sealed?;
        }
        // Above everything that clients know of the units, and below everything that they will be told.
        let revision = self.unit(&self.calls[0]).is_above().await?;
        let compaction = etcd::CompactionRequest { revision, physical: false };
        let body = Bytes::from(compaction.encode_to_vec());
        let compacted =
            bounded(
                follower,
                |store, deadline| async move { store.kv().compact(deadline.request(body)).await },
            );
        match compacted.await {
            Err(status) if grpc::etcd_error(&status) != Some(EtcdError::Compacted) => {
                return Err(status.into());
            }
            _ => {}
        }
        Ok(self.calls.iter().map(|_| Ok(Answer::Sealed { incarnation: INCARNATION })).collect())
    }

    async fn confirm_to_etcd(&self) -> Result<Each<Answer>, Failed> {
        let frozen = async {
            if self.owner().is_shard() {
                return self.stand(self.source(), pb::UnitState::Frozen).await;
            }
            let fence = fenced::read(self.owner(), Deadline::within(CALL_MAX)).await?;
            Ok(self.calls.iter().map(|call| self.unit(call).frozen_since(&fence).map(drop)).collect())
        };
        let fence = async { Ok(fenced::read(self.follower(), Deadline::within(CALL_MAX)).await?) };
        let (frozen, fence) = tokio::try_join!(frozen, fence)?;
        let stands = |(call, frozen): (&UnitCall, Result<(), Failed>)| {
            frozen?;
            match fence.doc.state(self.id, &call.unit) {
                Some(FenceState::Taking { sealed: Some(last) }) if last == call.final_revision => {
                    Ok(Answer::Done)
                }
                _ => Err(Failed::Restarted("the unit is not sealed any more at the etcd".to_owned())),
            }
        };
        Ok(self.calls.iter().zip(frozen).map(stands).collect())
    }

    /// Serves the units after the decision.
    pub(super) async fn open_at_etcd(&self) -> Result<Each<Answer>, Failed> {
        let opened = self.fence_done(self.owner(), |doc, by, _| doc.open(by)).await?;
        self.calls.iter().for_each(|call| self.stores.taken.forget(self.id, &call.unit));
        Ok(opened)
    }

    /// Gives up taking the units. What came of them is deleted, unless the etcd goes away first: a later copy deletes it too.
    async fn leave_etcd(&self) -> Result<Each<Answer>, Failed> {
        let follower = self.follower();
        for call in &self.calls {
            let unit = self.unit(call);
            let brought = self.stores.taken.unit(self.id, &call.unit);
            if let Ok(known) = unit.taking(&mut *brought.lock().await).await {
                unit.empty(&known).await?;
            }
            self.stores.taken.forget(self.id, &call.unit);
        }
        self.fence_done(follower, |doc, by, _| doc.leave(by)).await
    }
}
