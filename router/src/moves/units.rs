//! The steps of a move that call stores. Each may be repeated, and each ends in bounded time. This file has the steps
//! that carry the data of a single unit; `leg` has those for many units at once.
//!
//! In a step the *owner* is the store that owns the unit at that time, and the *follower* is the other one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kindred_partition_config::ids::{MoveId, Revision, Term};
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::unit::Unit;
use kindred_proto::shard_v1::{self as pb, unit_answer::Answer as Made, unit_call::Call};
use kindred_router_core::moves::step::{Answer, UnitCall};
use kindred_router_core::parts::store_ix;
use kindred_router_core::store::StoreIx;
use kindred_wire::protocol::STALE_TERM;
use tonic::Status;

use super::rate::{Copied, Rate};
use crate::feeds::place::wire;
use crate::moves::mover::Mover;
use crate::stores::Store;

mod etcd;
mod in_order;
mod leg;
mod live;
mod stores;
mod taking;
mod to_etcd;

pub(super) use self::leg::alone;
pub use self::leg::{Each, LegSteps};
pub use self::stores::UnitStores;

/// How long a store has to answer a short call.
pub const CALL_MAX: Duration = Duration::from_secs(2);
/// How long one round of tailing a stock etcd imports before it reports.
const ROUND_MAX: Duration = Duration::from_secs(5);
/// How long the follower may take to remove what it had of the unit before, and how often it is asked.
const ROOM_MAX: Duration = Duration::from_secs(30);
const ROOM_AGAIN: Duration = Duration::from_millis(2);
/// Part of the follower's error while it removes that.
const MAKING_ROOM: &str = "still making room";
/// The number of leases attached at a time.
const LEASES_AT_ONCE: usize = 64;

/// A step of one unit of a move, with what it needs.
struct UnitSteps<'a, S> {
    pub stores: &'a S,
    pub id: MoveId,
    pub call: &'a UnitCall,
    pub rate: &'a Rate,
    pub copied: &'a Copied,
}

/// How a step failed, as the coordinator sees it.
#[derive(Debug)]
pub enum Failed {
    /// The store has seen this higher term.
    Stale(Term),
    /// The follower has lost data that it must have.
    Lost(String),
    /// A store has restarted since the freeze or the seal, or that was undone.
    Restarted(String),
    /// The two sides differ.
    Different(String),
    /// Anything else.
    Other(String),
}

impl Failed {
    /// In words.
    #[must_use]
    pub fn reason(self) -> String {
        match self {
            Self::Stale(seen) => format!("it has seen term {} of the move", seen.0),
            Self::Lost(reason) | Self::Restarted(reason) | Self::Different(reason) | Self::Other(reason) => {
                reason
            }
        }
    }
}

impl From<Status> for Failed {
    fn from(status: Status) -> Self {
        let seen = status.metadata().get(STALE_TERM).and_then(|seen| seen.to_str().ok()?.parse().ok());
        seen.map_or_else(|| Self::Other(status.message().to_owned()), |seen| Self::Stale(Term(seen)))
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

impl UnitSteps<'_, Arc<Mover>> {
    fn owner(&self) -> &Store {
        self.stores.stores.get(self.source())
    }

    fn follower(&self) -> &Store {
        self.stores.stores.get(self.target())
    }
}

impl<S: UnitStores> UnitSteps<'_, S> {
    /// The owner's place.
    fn source(&self) -> StoreIx {
        store_ix(self.call.owner)
    }

    /// The follower's place.
    fn target(&self) -> StoreIx {
        store_ix(self.call.follower)
    }

    /// The owner's name, and the follower's.
    fn names(&self) -> (String, String) {
        (self.stores.name(self.source()), self.stores.name(self.target()))
    }

    fn unit_move(&self) -> Option<pb::UnitMove> {
        let unit = Some(on_wire(&self.call.unit));
        Some(pb::UnitMove { r#move: self.id.0, term: self.call.term.0, unit })
    }

    /// The revision up to which the follower has everything; `None` if it has no whole copy.
    async fn through(&self) -> Result<Option<Revision>, Failed> {
        Ok(self.copied_to().await?.flatten())
    }

    /// Like [`Self::through`], but `None` if it has nothing and `Some(None)` if it has a part of a copy.
    async fn copied_to(&self) -> Result<Option<Option<Revision>>, Failed> {
        Ok(self.following().await?.map(|record| Revision::from_wire(record.through)))
    }

    /// The follower's record of the unit, if it follows.
    async fn following(&self) -> Result<Option<pb::UnitRecord>, Failed> {
        let look = Call::Look(pb::LookRequest { r#move: self.unit_move() });
        let record = match leg::made(self.stores, self.target(), vec![look], false).await?.0.pop() {
            Some(Ok(Made::Look(look))) => look.record,
            Some(Err(failed)) => return Err(failed),
            _ => None,
        };
        Ok(record.filter(|record| record.state() == pb::UnitState::Following))
    }

    async fn copy(&self) -> Result<(), Failed> {
        match self.copied_to().await? {
            Some(Some(_)) => return Ok(()),
            // The coordinator that began the copy is gone. Keys deleted since would not be in a new copy, so the old
            // part must go.
            Some(None) => {
                self.forget_copy().await?;
                return Err(Failed::Other("a part of a copy is dropped first".to_owned()));
            }
            None => {}
        }
        let request = pb::CopyRequest { r#move: self.unit_move(), ..Default::default() };
        let mut copied = self.stores.copy(self.source(), request).await?;
        let (mut at, mut floor) = (0, 0);
        let (began, mut sent) = (self.stores.now(), 0);
        while let Some(chunk) = self.stores.next_copied(self.source(), &mut copied).await? {
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
            return Err(Failed::Other(format!("store {:?} ended the copy at once", self.names().0)));
        }
        self.stores.copied(sent, self.stores.now().saturating_sub(began));
        // The copy counts as whole only from here on; until then another coordinator starts over.
        self.import(pb::ImportRequest { floor, through: at, ..Default::default() }).await.map(drop)
    }

    /// Counts data that is about to be imported, and waits for its share of the copy rate.
    async fn count(&self, keys: usize, bytes: usize) {
        self.copied.keys.fetch_add(keys as u64, Ordering::Relaxed);
        self.copied.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.rate.take(bytes).await;
    }

    async fn import(&self, import: pb::ImportRequest) -> Result<Revision, Failed> {
        let request = pb::ImportRequest { r#move: self.unit_move(), ..import };
        let end = self.stores.now() + ROOM_MAX;
        loop {
            match self.stores.import(self.target(), request.clone()).await {
                Ok(imported) => return Ok(Revision(imported.through)),
                Err(status) if status.message().contains(MAKING_ROOM) && self.stores.now() < end => {
                    self.stores.pause(ROOM_AGAIN).await;
                }
                Err(status) => return Err(status.into()),
            }
        }
    }

    /// Drops the follower's copy, which cannot be followed further.
    async fn forget_copy(&self) -> Result<(), Failed> {
        let request = pb::DropRequest { r#move: self.unit_move(), epoch: self.call.epoch.0 };
        leg::alone(self.stores, self.target(), Call::Drop(request)).await.map(drop)
    }

    /// Compares the unit at both stores at a revision that the follower has, key by key and with history.
    async fn verify(&self) -> Result<(), Failed> {
        let Some(at) = self.through().await? else {
            return Err(Failed::Lost(format!("store {:?} has no whole copy", self.names().1)));
        };
        let request = |floor: i64| pb::VerifyRequest {
            r#move: self.unit_move(),
            floor,
            at: at.get(),
            after: bytes::Bytes::new(),
        };
        let floor = self.floors().await?;
        let (owner, follower) = (self.source(), self.target());
        let mut left = self.stores.verify(owner, request(floor)).await?;
        let mut right = self.stores.verify(follower, request(floor)).await?;
        loop {
            let left = self.stores.next_digest(owner, &mut left).await?;
            match (left, self.stores.next_digest(follower, &mut right).await?) {
                (None, None) => return Ok(()),
                (Some(left), Some(right)) if left == right => {}
                (left, right) => {
                    if self.floors().await? != floor {
                        // One side has compacted history that the other still reported.
                        return Err(Failed::Other("compacted while both sides were compared".to_owned()));
                    }
                    let key = [&left, &right].into_iter().flatten().map(|digest| &digest.last_key).min();
                    let (owner, follower) = self.names();
                    return Err(Failed::Different(format!(
                        "stores {owner:?} and {follower:?} differ at revision {at} at or before key {:?}",
                        key.map(|key| String::from_utf8_lossy(key).into_owned()).unwrap_or_default(),
                    )));
                }
            }
        }
    }

    /// The higher of the two stores' floors of the unit; above it both have the whole history. Each store compacts in
    /// its own time.
    async fn floors(&self) -> Result<i64, Failed> {
        let request = pb::TrackRequest { r#move: self.unit_move() };
        let tracked = match leg::alone(self.stores, self.source(), Call::Track(request)).await? {
            Made::Track(tracked) => tracked,
            other => return Err(leg::another(&other)),
        };
        Ok(self.following().await?.map_or(tracked.floor, |record| record.floor.max(tracked.floor)))
    }
}

fn weight(key: &pb::CopiedKey) -> usize {
    key.key.len() + key.versions.iter().map(|version| version.kv.len()).sum::<usize>()
}

/// A unit in the wire format.
#[must_use]
pub fn on_wire(unit: &Unit) -> pb::Unit {
    let (buckets, prefix_len) = unit.buckets_to_wire();
    let KeyRange::Span { .. } = &unit.range else {
        // Units are spans, so a single key becomes a span of one key.
        let range =
            KeyRange::Span { start: unit.range.start().clone(), end: Some(unit.range.start().successor()) };
        return pb::Unit { range: Some(wire(&range)), buckets, prefix_len };
    };
    pb::Unit { range: Some(wire(&unit.range)), buckets, prefix_len }
}
