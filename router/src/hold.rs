//! Requests that a store refused because their keys are moving wait here, and go again by a newer map (R11: a refusal for
//! ownership is certain, nothing was executed).
//!
//! What waits is bounded in number and bytes, writes apart from reads, so that a probe never stands behind held writes;
//! a request waits no longer than its client, and never longer than [`HOLD_MAX`].

use std::time::Duration;

use kindred_transport::grpc;
use kindred_wire::peek;
use kindred_wire::refusal::KindredError;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;
use tonic::Status;
use tonic::metadata::{MetadataMap, MetadataValue};

use crate::app::App;
use crate::execute::Effect;

/// How long a request waits for its keys to have an owner.
pub const HOLD_MAX: Duration = Duration::from_secs(5);
/// Between two attempts while no newer map comes: a target opens, and an aborted switch ends, without one.
const AGAIN: Duration = Duration::from_millis(5);
/// Most bytes that wait, for reads and writes each.
const BYTES_MAX: usize = 64 << 20;
/// What a waiting request costs beside its bytes.
const REQUEST_BYTES: usize = 4 << 10;
/// The metadata of a refusal for ownership.
const NOT_OWNED: &str = "kindred-not-owned";

/// A shard's refusal: it does not own the keys now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotOwned {
    /// The generation of the map since which another store owns them; 0 while that is being decided.
    pub epoch: u64,
}

impl NotOwned {
    /// What the status says, if it is such a refusal.
    #[must_use]
    pub fn of(status: &Status) -> Option<Self> {
        Self::in_metadata(status.metadata())
    }

    /// The refusal of a request that was to be executed elsewhere than at a shard, whose own says the same.
    #[must_use]
    pub fn status(self, key: Vec<u8>) -> Status {
        let mut status = grpc::refusal(&KindredError::NotOwned { key, epoch: self.epoch });
        status.metadata_mut().insert(NOT_OWNED, MetadataValue::from(self.epoch));
        status
    }

    fn in_metadata(metadata: &MetadataMap) -> Option<Self> {
        let epoch = metadata.get(NOT_OWNED)?.to_str().ok()?.parse().ok()?;
        Some(Self { epoch })
    }
}

/// Where requests wait.
#[derive(Debug)]
pub struct Hold {
    reads: Semaphore,
    writes: Semaphore,
}

impl Default for Hold {
    fn default() -> Self {
        Self { reads: Semaphore::new(BYTES_MAX), writes: Semaphore::new(BYTES_MAX) }
    }
}

/// One request that was refused at least once. Its room is given back with it.
#[derive(Debug)]
pub struct Held<'h> {
    _room: SemaphorePermit<'h>,
    since: Instant,
    until: Instant,
    attempts: u32,
}

impl Hold {
    /// Room for a request of `bytes` that its client waits for until `deadline`.
    ///
    /// # Errors
    /// `ResourceExhausted` when too much waits already; nothing was executed.
    pub fn begin(&self, effect: Effect, bytes: usize, deadline: Instant) -> Result<Held<'_>, Status> {
        let (room, what) = match effect {
            Effect::Read => (&self.reads, "bytes of reads that wait for a move"),
            Effect::Write => (&self.writes, "bytes of writes that wait for a move"),
        };
        let needed = u32::try_from(bytes.saturating_add(REQUEST_BYTES)).unwrap_or(u32::MAX);
        let full = |_| grpc::refusal(&KindredError::LimitReached { what, limit: BYTES_MAX as u64 });
        let room = room.try_acquire_many(needed).map_err(full)?;
        let since = Instant::now();
        Ok(Held { _room: room, since, until: deadline.min(since + HOLD_MAX), attempts: 0 })
    }
}

impl Held<'_> {
    /// Waits for a map newer than `known`, or a little; false when the request has waited long enough.
    pub async fn wait(&mut self, known: u64, generation: &mut watch::Receiver<u64>) -> bool {
        self.attempts += 1;
        let now = Instant::now();
        if now >= self.until {
            return false;
        }
        // Spread by what differs between requests anyway, so that they do not all come back at once.
        let spread = now.duration_since(self.since).subsec_nanos() % 5_000_000;
        let pause = AGAIN * self.attempts.min(4) + Duration::from_nanos(u64::from(spread));
        let newer = generation.wait_for(|generation| *generation > known);
        // Without a newer map in time the same one is tried again; a sender that is gone never sends one.
        let _ = tokio::time::timeout_at(self.until.min(now + pause), async {
            if newer.await.is_err() {
                std::future::pending::<()>().await;
            }
        })
        .await;
        true
    }

    /// How long the request has waited.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.since.elapsed()
    }
}

/// A request that may have to wait: nothing until it does.
#[derive(Debug)]
pub struct Waiting<'a> {
    app: &'a App,
    effect: Effect,
    deadline: Instant,
    held: Option<Held<'a>>,
}

impl<'a> Waiting<'a> {
    /// Of a request whose client waits until `deadline`.
    #[must_use]
    pub fn new(app: &'a App, effect: Effect, deadline: Instant) -> Self {
        Self { app, effect, deadline, held: None }
    }

    /// Waits for a map newer than `known`, or a little, before the request goes again.
    ///
    /// # Errors
    /// [`KindredError::UnitMoving`] when it has waited long enough, `ResourceExhausted` when too much waits; nothing was
    /// executed.
    pub async fn wait(&mut self, known: u64, request: &[u8]) -> Result<(), Status> {
        let held = match &mut self.held {
            Some(held) => held,
            none => none.insert(self.app.hold.begin(self.effect, request.len(), self.deadline)?),
        };
        if held.wait(known, &mut self.app.generations()).await {
            return Ok(());
        }
        // Every request begins with its key, or with a compare that does.
        let key = peek::RangeRequest::parse(request).map(|range| range.key.to_vec()).unwrap_or_default();
        Err(grpc::refusal(&KindredError::UnitMoving { key }))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(held) = &self.held {
            self.app.metrics.held(self.effect, held.waited());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_ownership_is_known_by_its_metadata() {
        let mut status = Status::unavailable("kindred: …");
        assert_eq!(NotOwned::of(&status), None);
        status.metadata_mut().insert(NOT_OWNED, "17".parse().unwrap());
        assert_eq!(NotOwned::of(&status), Some(NotOwned { epoch: 17 }));
        let own = NotOwned { epoch: 3 }.status(b"/registry/pods/a".to_vec());
        assert_eq!(NotOwned::of(&own), Some(NotOwned { epoch: 3 }));
    }

    #[tokio::test(start_paused = true)]
    async fn waits_for_a_newer_map_or_a_little_and_not_longer_than_the_client() {
        let hold = Hold::default();
        let (maps, mut generation) = watch::channel(3);
        let until = Instant::now() + Duration::from_millis(80);
        let mut held = hold.begin(Effect::Write, 10, until).unwrap();
        maps.send(4).unwrap();
        assert!(held.wait(3, &mut generation).await, "there is one already");
        assert_eq!(held.attempts, 1);
        while held.wait(4, &mut generation).await {}
        assert!(Instant::now() >= until);
        assert!(held.attempts < 20, "it came back {} times", held.attempts);
    }

    #[tokio::test(start_paused = true)]
    async fn goes_on_without_maps_to_come() {
        let hold = Hold::default();
        let (maps, mut generation) = watch::channel(1);
        drop(maps);
        let until = Instant::now() + Duration::from_millis(30);
        let mut held = hold.begin(Effect::Read, 10, until).unwrap();
        while held.wait(1, &mut generation).await {}
        assert!(Instant::now() >= until && held.attempts < 10);
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let hold = Hold::default();
        let soon = Instant::now() + HOLD_MAX;
        let most = hold.begin(Effect::Write, BYTES_MAX - REQUEST_BYTES, soon).unwrap();
        let refused = hold.begin(Effect::Write, 1, soon).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        hold.begin(Effect::Read, 1, soon).expect("reads have room of their own");
        drop(most);
        hold.begin(Effect::Write, 1, soon).unwrap();
    }
}
