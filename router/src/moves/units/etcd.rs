//! The steps of a move that takes a unit from a stock etcd. A shard that is a source does these things itself; for an
//! etcd they are done here with etcd's own API.
//!
//! * **Fence**: the etcd's fence key (`kindred_router_core::fence`) holds what a shard's table of units would hold. A
//!   freeze is a write of that key; from its revision on, the etcd executes no request for the unit.
//! * **Revisions**: keys keep the revisions that they have. An etcd counts from 1 and a shard from a clock, so they all
//!   lie below what the shard will assign: a client's compare on a mod revision that it read at the etcd still holds,
//!   and no header goes back. But history cannot be continued: the unit's history begins anew at the switch, at a
//!   revision of the shard's clock, and watches and reads below that are told that it is compacted.
//! * **Copy**: the current version of each key at one revision, then the events after it. Until the switch the
//!   follower's `through` is a revision of the etcd.
//! * **Leases** of its keys get a shard as their home (`crate::leases::etcd`). The follower knows which ones they are.
//! * The moved keys stay in the etcd, where no router serves them. Clients that watch the etcd directly see no
//!   deletion.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::transfers::Transfer;
use kindred_proto::etcdserverpb as etcd;
use kindred_proto::mvccpb::KeyValue;
use kindred_proto::shard_v1 as pb;
use kindred_router_core::fence::{FenceDoc, FenceError, FenceState, FencedUnit};
use kindred_router_core::moves::step::{Answer, StepName, UnitCall};
use kindred_wire::answer::{WatchResponse, watch_events};
use kindred_wire::fence::FENCE_KEY;
use kindred_wire::kv::{EventRef, KeyValueRef};
use kindred_wire::peek::WatchCreateRequest;
use kindred_wire::scan::WireError;
use kindred_wire::watch_request;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};
use xxhash_rust::xxh3::Xxh3;

use super::leg::Each;
use super::live::{SILENCE_MAX, bounded, next};
use super::{CALL_MAX, Failed, LegSteps, ROUND_MAX, UnitSteps};
use crate::execute::{Deadline, fenced};
use crate::feeds::place::wire;
use crate::moves::mover::Mover;
use crate::stores::Store;
use crate::stores::fence::Known;

/// How often a change of the fence is tried while others change it.
pub(super) const TRIES: usize = 8;
/// The approximate size of a page of a copy or a comparison, and the first and the largest number of its keys.
const PAGE_BYTES: usize = 1 << 20;
const PAGE_KEYS: i64 = 128;
const PAGE_KEYS_MAX: i64 = 4096;
/// The number of keys in one digest, as in shards.
const DIGEST_KEYS: u64 = 1024;
/// How often the sides are compared before they count as different. Between the two reads, a compaction of the follower
/// may have dropped versions that were current.
const COMPARISONS: usize = 3;
/// How often a watch is asked for its progress.
const ASK_EVERY: Duration = Duration::from_millis(10);
/// How often the follower is asked how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The incarnation of an etcd. It has only one, because a cluster keeps what it has acknowledged.
pub(super) const INCARNATION: u64 = 1;

impl From<FenceError> for Failed {
    fn from(error: FenceError) -> Self {
        match error {
            FenceError::Stale { seen, .. } => Self::Stale(seen),
            FenceError::Unknown(_) => Self::Restarted(error.to_string()),
            FenceError::State { .. } | FenceError::Malformed(_) => Self::Other(error.to_string()),
        }
    }
}

impl From<WireError> for Failed {
    fn from(error: WireError) -> Self {
        Self::Other(format!("the etcd's answer does not parse: {error}"))
    }
}

/// Where the events of an etcd go.
pub(super) enum Sink<'a> {
    /// The follower is a shard, which knows how far it is.
    Shard,
    /// The follower is an etcd, with this fence, and everything up to this revision.
    Etcd { known: &'a Known, through: &'a mut Option<Revision> },
}

/// Reads the keys of a unit page by page at one revision.
pub(super) struct Pages {
    pub start: Bytes,
    end: Bytes,
    limit: i64,
    /// The revision; 0 before the first page fixes it.
    pub at: i64,
    more: bool,
}

impl UnitSteps<'_, Arc<Mover>> {
    pub(super) fn fenced_unit(&self) -> FencedUnit {
        let transfer = Transfer {
            unit: self.call.unit.clone(),
            from: self.call.owner,
            to: self.call.follower,
            kind: None,
        };
        FencedUnit { id: self.id, term: self.call.term, transfer }
    }

    /// The present time of the follower's clock as a revision. No shard assigns it, because its slot is 0.
    async fn clock(&self) -> Result<Revision, Failed> {
        let micros = i64::try_from(self.now_micros(self.follower()).await?).unwrap_or(i64::MAX >> 10);
        Ok(Revision(micros << 10))
    }

    /// The present time of a shard's clock, in microseconds.
    pub(super) async fn now_micros(&self, store: &Store) -> Result<u64, Failed> {
        let request = crate::stores::monitor::hello_of(
            &self.stores.keeper.cluster,
            self.stores.identity.cluster_id,
            store,
            &store.spec(),
        );
        let hello =
            bounded(
                store,
                |store, deadline| async move { store.shard().hello(deadline.request(request)).await },
            )
            .await?;
        if hello.revisions != "hlc" {
            return Err(Failed::Different(format!(
                "store {:?} counts its revisions, and those of an etcd may be above: it is to be a shard of the cluster",
                store.name()
            )));
        }
        Ok(hello.now_micros)
    }

    pub(super) async fn copy_etcd(&self) -> Result<(), Failed> {
        let store = self.owner();
        match self.copied_to().await? {
            Some(Some(through)) => return self.is_of_the_etcd(through).await,
            Some(None) => {
                self.forget_copy().await?;
                return Err(Failed::Other("a part of a copy is dropped first".to_owned()));
            }
            None => {}
        }
        // Everything in the etcd lies below this revision, so only the current version of each key counts.
        let floor = self.clock().await?.get();
        let mut pages = self.pages(0);
        let (began, mut sent) = (Instant::now(), 0);
        while let Some(kvs) = pages.next(store).await? {
            let mut keys = Vec::with_capacity(kvs.len());
            for kv in kvs {
                let version = pb::CopiedVersion { kv: kv.encode_to_vec().into(), deletion: false, sub: 0 };
                keys.push(pb::CopiedKey { key: kv.key, versions: vec![version] });
            }
            let bytes = keys.iter().map(super::weight).sum();
            self.count(keys.len(), bytes).await;
            sent += bytes as u64;
            self.import(pb::ImportRequest { keys, floor, ..Default::default() }).await?;
        }
        self.stores.copy_speed.made(sent, began.elapsed());
        // The copy counts as whole only from here on; until then another coordinator starts over.
        self.import(pb::ImportRequest { floor, through: pages.at, ..Default::default() }).await.map(drop)
    }

    /// Checks that the follower's `through` is a revision of the etcd, as it must be before a switch. A follower that
    /// restarted after it sealed for an abandoned attempt reports a revision of its own; how far it followed the etcd
    /// is then unknown, and its copy is dropped.
    async fn is_of_the_etcd(&self, through: Revision) -> Result<(), Failed> {
        if through.get() <= current_revision(self.owner()).await? {
            return Ok(());
        }
        self.forget_copy().await?;
        Err(Failed::Lost(format!(
            "store {:?} has restarted and does not know how far it followed",
            self.follower().name()
        )))
    }

    pub(super) async fn tail_etcd(&self) -> Result<Answer, Failed> {
        let current = current_revision(self.owner()).await?;
        let imported = self.follow_etcd(current, Instant::now() + ROUND_MAX).await?;
        Ok(Answer::Followed { lag: imported.elapsed() })
    }

    /// Imports the etcd's events up to revision `to`, which the etcd has reached. Returns when the last of them came.
    async fn follow_etcd(&self, to: i64, end: Instant) -> Result<Instant, Failed> {
        let Some(through) = self.through().await? else {
            return Err(Failed::Lost(format!("store {:?} has no whole copy", self.follower().name())));
        };
        if through.get() >= to {
            self.is_of_the_etcd(through).await?;
            return Ok(Instant::now());
        }
        self.watch_etcd(through, to, end, Sink::Shard).await
    }

    /// Brings the etcd's events behind `through` and up to `to` to the follower.
    pub(super) async fn watch_etcd(
        &self,
        through: Revision,
        to: i64,
        end: Instant,
        mut sink: Sink<'_>,
    ) -> Result<Instant, Failed> {
        let store = self.owner();
        let range = wire(&self.call.unit.range);
        let create = WatchCreateRequest {
            key: &range.key,
            range_end: &range.range_end,
            start_revision: through.get() + 1,
            watch_id: 1,
            ..Default::default()
        };
        let (asks, requests) = mpsc::channel(4);
        // The queue has room for both.
        let _ = asks.try_send(watch_request::create_behind_fence(&create).into());
        let _ = asks.try_send(watch_request::progress().into());
        let mut watch = bounded(store, |store, _| async move {
            store.watch().watch(Request::new(ReceiverStream::new(requests))).await
        })
        .await?;
        let mut heard = Instant::now();
        loop {
            let now = Instant::now();
            if now >= end || heard.elapsed() >= SILENCE_MAX {
                let reason = format!("a watch of store {:?} did not come to revision {to}", store.name());
                return Err(Failed::Other(reason));
            }
            let Ok(said) = tokio::time::timeout(ASK_EVERY, watch.message()).await else {
                // The watch answers only when it has sent everything, so one waiting question is enough.
                let _ = asks.try_send(watch_request::progress().into());
                continue;
            };
            let Some(said) = said? else {
                return Err(Failed::Other(format!("store {:?} ended the watch", store.name())));
            };
            heard = Instant::now();
            let head = WatchResponse::parse(&said)?;
            if head.canceled && head.compact_revision > 0 {
                match &mut sink {
                    Sink::Shard => self.forget_copy().await?,
                    Sink::Etcd { through, .. } => **through = None,
                }
                let reason = format!("its history at store {:?} is compacted", store.name());
                return Err(Failed::Lost(reason));
            }
            if head.canceled {
                let why = String::from_utf8_lossy(head.cancel_reason);
                return Err(Failed::Other(format!("store {:?} ended the watch: {why}", store.name())));
            }
            let (events, bytes) = feed_events(&said)?;
            let reached = match events.last() {
                Some(last) => last.revision,
                None if head.is_progress() => head.header.map_or(0, |header| header.revision),
                None => continue,
            };
            self.count(0, bytes).await;
            match &mut sink {
                Sink::Shard => {
                    self.import(pb::ImportRequest { events, through: reached, ..Default::default() }).await?;
                }
                Sink::Etcd { known, through } => {
                    self.apply_events(known, &events).await?;
                    **through = Some(Revision(reached)).max(**through);
                }
            }
            if reached >= to {
                return Ok(heard);
            }
            let _ = asks.try_send(watch_request::progress().into());
        }
    }

    pub(super) async fn verify_etcd(&self) -> Result<(), Failed> {
        let mut different = String::new();
        for _ in 0..COMPARISONS {
            match self.compare().await? {
                None => return Ok(()),
                Some(reason) => different = reason,
            }
        }
        Err(Failed::Different(different))
    }

    /// Compares both sides key by key at a revision at which the unit did not change. Returns a difference, if any.
    async fn compare(&self) -> Result<Option<String>, Failed> {
        let (owner, follower) = (self.owner(), self.follower());
        let at = self.touch_fence().await?;
        let end = Instant::now() + ROUND_MAX;
        while self.through().await?.is_none_or(|through| through.get() < at) {
            if Instant::now() >= end {
                return Err(Failed::Other(format!("store {:?} has not come to {at} yet", follower.name())));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let request = pb::VerifyRequest { r#move: self.unit_move(), floor: at, at, after: Bytes::new() };
        let mut right =
            bounded(
                follower,
                |store, _| async move { store.units_in_bulk().verify(Request::new(request)).await },
            )
            .await?;
        let (mut pages, mut digest) = (self.pages(at), Digest::default());
        loop {
            let kvs = pages.next(owner).await?;
            let is_last = kvs.is_none();
            for kv in kvs.into_iter().flatten() {
                digest.add(kv);
                if digest.keys == DIGEST_KEYS {
                    let left = std::mem::take(&mut digest).said();
                    if let Some(reason) = self.same(Some(left), next(follower, &mut right).await?, at) {
                        return Ok(Some(reason));
                    }
                }
            }
            if is_last {
                break;
            }
        }
        if digest.keys > 0 {
            let left = digest.said();
            if let Some(reason) = self.same(Some(left), next(follower, &mut right).await?, at) {
                return Ok(Some(reason));
            }
        }
        Ok(self.same(None, next(follower, &mut right).await?, at))
    }

    fn same(
        &self,
        left: Option<pb::VerifyResponse>,
        right: Option<pb::VerifyResponse>,
        at: i64,
    ) -> Option<String> {
        if left == right {
            return None;
        }
        let key = [&left, &right].into_iter().flatten().map(|digest| &digest.last_key).min();
        Some(format!(
            "stores {:?} and {:?} differ at revision {at} at or before key {:?}",
            self.owner().name(),
            self.follower().name(),
            key.map(|key| String::from_utf8_lossy(key).into_owned()).unwrap_or_default(),
        ))
    }

    /// Writes the fence unchanged; returns the revision of the write.
    async fn touch_fence(&self) -> Result<i64, Failed> {
        for _ in 0..TRIES {
            let known = fenced::read(self.owner(), Deadline::within(CALL_MAX)).await?;
            if let Some(at) = write_fence(self.owner(), known.mod_revision, &known.doc).await? {
                return Ok(at);
            }
        }
        Err(Failed::Other("the fence is being changed all the time".to_owned()))
    }

    pub(super) async fn import_last_etcd(&self, fence: &Known) -> Result<i64, Failed> {
        let since = self.frozen_since(fence)?;
        self.follow_etcd(since, Instant::now() + CALL_MAX).await.map(|_| since)
    }

    /// A revision of the etcd at or after the one since which the unit is frozen.
    pub(super) fn frozen_since(&self, fence: &Known) -> Result<i64, Failed> {
        match fence.doc.state(self.id, &self.call.unit) {
            Some(FenceState::Frozen { last }) if last == self.call.final_revision => Ok(fence.mod_revision),
            _ => Err(Failed::Restarted(format!(
                "the unit is not frozen any more at store {:?}",
                self.owner().name()
            ))),
        }
    }

    pub(super) fn pages(&self, at: i64) -> Pages {
        let range = wire(&self.call.unit.range);
        Pages { start: range.key, end: range.range_end, limit: PAGE_KEYS, at, more: true }
    }
}

impl LegSteps<Arc<Mover>> {
    /// Runs a step for units of which a stock etcd is owner or follower. `None` for steps that are a shard's alone.
    pub(super) async fn run_at_etcd(&self, name: StepName) -> Option<Result<Each<Answer>, Failed>> {
        let (owner, follower) = (self.owner(), self.follower());
        if !follower.is_shard() {
            // The etcd gave the units away, or it is to take them.
            return match name {
                StepName::Release => {
                    let release =
                        |doc: &mut FenceDoc, by: &FencedUnit, call: &UnitCall| doc.release(by, call.epoch);
                    Some(self.fence_done(follower, release).await)
                }
                _ => self.run_to_etcd(name).await,
            };
        }
        if owner.is_shard() {
            return None;
        }
        Some(match name {
            StepName::Track => self.track_etcd().await,
            StepName::Copy | StepName::Tail | StepName::Verify => {
                Ok(join_all(self.calls.iter().map(|call| self.alone_etcd(name, call))).await)
            }
            StepName::AttachLeases => self.attach_leases().await.map(|()| self.all_done()),
            StepName::Freeze => self.freeze_etcd().await,
            StepName::ImportLast => self.import_and_attach_last().await,
            StepName::Seal => self.seal_etcd().await,
            StepName::Confirm => self.confirm_etcd().await,
            StepName::Unfreeze => self.fence_done(owner, |doc, by, _| doc.unfreeze(by)).await,
            StepName::Forget => self.fence_done(owner, |doc, by, _| doc.forget(by)).await,
            StepName::Open => self.open_at_etcd().await,
            // The remaining steps are for the follower.
            _ => return None,
        })
    }

    /// Runs a step of a single unit.
    async fn alone_etcd(&self, name: StepName, call: &UnitCall) -> Result<Answer, Failed> {
        let unit = self.unit(call);
        match name {
            StepName::Copy => unit.copy_etcd().await.map(|()| Answer::Done),
            StepName::Verify => unit.verify_etcd().await.map(|()| Answer::Done),
            _ => unit.tail_etcd().await,
        }
    }

    async fn unit_import_last_etcd(&self, call: &UnitCall, fence: &Known) -> Result<i64, Failed> {
        self.unit(call).import_last_etcd(fence).await
    }

    /// Changes the etcd's fence for all units in one write. Writes nothing if the fence says so already.
    pub(super) async fn fence<T>(
        &self,
        store: &Store,
        change: impl Fn(&mut FenceDoc, &FencedUnit, &UnitCall) -> Result<T, FenceError>,
    ) -> Result<Each<T>, Failed> {
        for _ in 0..TRIES {
            let known = fenced::read(store, Deadline::within(CALL_MAX)).await?;
            let mut doc = known.doc.clone();
            let changed = self.calls.iter().map(|call| {
                // A refused change leaves the document as it was.
                let mut next = doc.clone();
                let changed = change(&mut next, &self.unit(call).fenced_unit(), call)?;
                doc = next;
                Ok(changed)
            });
            let changed: Each<T> = changed.collect();
            if doc == known.doc || write_fence(store, known.mod_revision, &doc).await?.is_some() {
                return Ok(changed);
            }
        }
        Err(Failed::Other(format!("the fence of store {:?} is being changed all the time", store.name())))
    }

    pub(super) async fn fence_done(
        &self,
        store: &Store,
        change: impl Fn(&mut FenceDoc, &FencedUnit, &UnitCall) -> Result<(), FenceError>,
    ) -> Result<Each<Answer>, Failed> {
        let each = self.fence(store, change).await?;
        Ok(each.into_iter().map(|done| done.map(|()| Answer::Done)).collect())
    }

    async fn track_etcd(&self) -> Result<Each<Answer>, Failed> {
        let (store, now) = (self.owner(), self.unit(&self.calls[0]).clock().await?);
        let current = current_revision(store).await?;
        if current >= now.get() {
            return Err(Failed::Different(format!(
                "store {:?} is at revision {current}, above what store {:?} would assign",
                store.name(),
                self.follower().name()
            )));
        }
        self.fence_done(store, |doc, by, _| doc.track(by)).await
    }

    async fn freeze_etcd(&self) -> Result<Each<Answer>, Failed> {
        let now = self.unit(&self.calls[0]).clock().await?;
        let each = self.fence(self.owner(), |doc, by, _| doc.freeze(by, now)).await?;
        let frozen = |final_revision| Answer::Frozen { final_revision, incarnation: INCARNATION };
        Ok(each.into_iter().map(|last| last.map(frozen)).collect())
    }

    async fn import_and_attach_last(&self) -> Result<Each<Answer>, Failed> {
        let each = self.import_last_etcd().await?;
        // Those of the last events.
        self.attach_leases().await?;
        Ok(each.into_iter().map(|imported| imported.map(|_| Answer::Done)).collect())
    }

    /// Imports the rest of all units; for each, returns the etcd's revision up to which everything is imported.
    async fn import_last_etcd(&self) -> Result<Each<i64>, Failed> {
        let fence = fenced::read(self.owner(), Deadline::within(CALL_MAX)).await?;
        let imported = self.calls.iter().map(|call| self.unit_import_last_etcd(call, &fence));
        Ok(join_all(imported).await)
    }

    async fn seal_etcd(&self) -> Result<Each<Answer>, Failed> {
        // Another move may have changed the fence meanwhile; these units are frozen, so importing again only confirms
        // their ends.
        let imported: Vec<i64> = self.import_last_etcd().await?.into_iter().collect::<Result<_, _>>()?;
        self.seal(&imported).await
    }

    async fn confirm_etcd(&self) -> Result<Each<Answer>, Failed> {
        let fence = async { Ok(fenced::read(self.owner(), Deadline::within(CALL_MAX)).await?) };
        let (fence, sealed) = tokio::try_join!(fence, self.sealed_stand())?;
        let stands = |(call, sealed): (&UnitCall, Result<(), Failed>)| {
            self.unit(call).frozen_since(&fence)?;
            sealed.map(|()| Answer::Done)
        };
        Ok(self.calls.iter().zip(sealed).map(stands).collect())
    }
}

impl Pages {
    /// The next page; `None` after the last.
    pub(super) async fn next(&mut self, store: &Store) -> Result<Option<Vec<KeyValue>>, Failed> {
        if !self.more {
            return Ok(None);
        }
        let request = etcd::RangeRequest {
            key: self.start.clone(),
            range_end: self.end.clone(),
            limit: self.limit,
            revision: self.at,
            ..Default::default()
        };
        let page = range(store, &request).await?;
        if self.at == 0 {
            self.at = page.header.map_or(0, |header| header.revision);
        }
        let bytes = page.kvs.iter().map(|kv| kv.key.len() + kv.value.len()).sum::<usize>();
        match bytes {
            few if few < PAGE_BYTES / 2 => self.limit = (self.limit * 2).min(PAGE_KEYS_MAX),
            many if many > PAGE_BYTES * 2 => self.limit = (self.limit / 2).max(1),
            _ => {}
        }
        self.more = page.more;
        if let Some(last) = page.kvs.last() {
            self.start = [&last.key[..], &[0]].concat().into();
        }
        Ok(Some(page.kvs))
    }
}

/// A digest of keys, computed as shards do.
#[derive(Default)]
struct Digest {
    hash: Xxh3,
    keys: u64,
    last_key: Bytes,
}

impl Digest {
    fn add(&mut self, kv: KeyValue) {
        for part in [&kv.key, &kv.value] {
            self.hash.update(&(part.len() as u64).to_le_bytes());
            self.hash.update(part);
        }
        // The last number says that the version is no deletion.
        for number in [kv.create_revision, kv.mod_revision, kv.version, kv.lease, 0] {
            self.hash.update(&number.to_le_bytes());
        }
        self.keys += 1;
        self.last_key = kv.key;
    }

    fn said(self) -> pb::VerifyResponse {
        let Self { hash, keys, last_key } = self;
        pb::VerifyResponse { last_key, keys, versions: keys, hash: hash.digest() }
    }
}

/// The events of a watch message, and their size in bytes.
fn feed_events(said: &Bytes) -> Result<(Vec<pb::FeedEvent>, usize), Failed> {
    let (mut events, mut bytes) = (Vec::new(), 0);
    for event in watch_events(said) {
        let event = event?;
        let kv = KeyValueRef::parse(EventRef::parse(event)?.kv)?;
        bytes += event.len();
        events.push(pb::FeedEvent { revision: kv.mod_revision, event: said.slice_ref(event) });
    }
    Ok((events, bytes))
}

async fn range(store: &Store, request: &etcd::RangeRequest) -> Result<etcd::RangeResponse, Status> {
    let body = Bytes::from(request.encode_to_vec());
    let answer =
        bounded(store, |store, deadline| async move { store.kv().range(deadline.request(body)).await })
            .await?;
    etcd::RangeResponse::decode(answer).map_err(|error| store.unavailable(&error.to_string()))
}

pub(super) async fn current_revision(store: &Store) -> Result<i64, Status> {
    let request =
        etcd::RangeRequest { key: Bytes::from_static(FENCE_KEY), count_only: true, ..Default::default() };
    Ok(range(store, &request).await?.header.map_or(0, |header| header.revision))
}

/// Compares the fence's mod revision.
pub(super) fn has_fence(mod_revision: i64) -> etcd::Compare {
    use etcd::compare;
    etcd::Compare {
        result: compare::CompareResult::Equal.into(),
        target: compare::CompareTarget::Mod.into(),
        key: Bytes::from_static(FENCE_KEY),
        target_union: Some(compare::TargetUnion::ModRevision(mod_revision)),
        ..Default::default()
    }
}

/// Replaces the fence if it still has this mod revision. Returns the new one, or `None` if another fence is there.
pub(super) async fn write_fence(
    store: &Store,
    mod_revision: i64,
    doc: &FenceDoc,
) -> Result<Option<i64>, Status> {
    use etcd::request_op;
    let put = etcd::PutRequest {
        key: Bytes::from_static(FENCE_KEY),
        value: doc.to_json().into(),
        ..Default::default()
    };
    let put = etcd::RequestOp { request: Some(request_op::Request::RequestPut(put)) };
    let txn =
        etcd::TxnRequest { compare: vec![has_fence(mod_revision)], success: vec![put], failure: Vec::new() };
    let body = Bytes::from(txn.encode_to_vec());
    let answer =
        bounded(store, |store, deadline| async move { store.kv().txn(deadline.request(body)).await }).await?;
    let answer = etcd::TxnResponse::decode(answer).map_err(|error| store.unavailable(&error.to_string()))?;
    Ok(answer.succeeded.then(|| answer.header.map_or(0, |header| header.revision)))
}
