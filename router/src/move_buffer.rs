//! Requests that a store refused because their keys are moving wait here, and are sent again by a newer map. That is
//! safe because a refusal for ownership is certain: nothing was executed (R11).
//!
//! Waiting requests are bounded in number and bytes, reads apart from writes, so that buffered writes leave no probe
//! without room. A request waits at most until its client's deadline, and never longer than [`WAIT_MAX`].

use std::time::Duration;

use kindred_partition_config::ids::Epoch;
use kindred_transport::grpc;
use kindred_wire::refusal::KindredError;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::Instant;
use tonic::Status;

use crate::execute::Effect;
use crate::metrics::Held;
use longest::{Longest, Waits};

pub mod longest;

/// The longest time that a request waits for its keys to get an owner.
pub const WAIT_MAX: Duration = Duration::from_secs(5);
/// The pause between two tries while no newer map comes: a target that opens, and an aborted switch, change no map.
const AGAIN: Duration = Duration::from_millis(5);
/// The most bytes that may wait, for reads and for writes each.
const BYTES_MAX: usize = 64 << 20;
/// The bytes that a waiting request counts beside its own.
const REQUEST_BYTES: usize = 4 << 10;

/// How long a request goes on waiting. Times are since some beginning.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    since: Duration,
    until: Duration,
    attempts: u32,
}

impl Patience {
    /// The patience of a request that begins to wait now, and whose client waits until `deadline`.
    #[must_use]
    pub fn new(now: Duration, deadline: Duration) -> Self {
        Self { since: now, until: deadline.min(now + WAIT_MAX), attempts: 0 }
    }

    /// How long to wait for a newer map before the present one is tried again; `None` when the request has waited long
    /// enough.
    pub fn pause(&mut self, now: Duration) -> Option<Duration> {
        self.attempts += 1;
        if now >= self.until {
            return None;
        }
        // The time of arrival spreads the requests, so that they do not all come back at once.
        let spread = (now - self.since).subsec_nanos() % 5_000_000;
        let pause = AGAIN * self.attempts.min(4) + Duration::from_nanos(u64::from(spread));
        Some(pause.min(self.until - now))
    }
}

/// The room for waiting requests.
#[derive(Debug)]
pub struct MoveBuffer {
    reads: Semaphore,
    writes: Semaphore,
    held: Held,
    longest: Longest,
}

impl Default for MoveBuffer {
    fn default() -> Self {
        Self {
            reads: Semaphore::new(BYTES_MAX),
            writes: Semaphore::new(BYTES_MAX),
            held: Held::default(),
            longest: Longest::default(),
        }
    }
}

/// A request that was refused at least once. Dropping it gives its room back, and records how long it waited.
#[derive(Debug)]
pub struct Buffered<'b> {
    _room: SemaphorePermit<'b>,
    buffer: &'b MoveBuffer,
    effect: Effect,
    since: Instant,
    /// Of a write.
    noted: Option<(Instant, u64)>,
    patience: Patience,
}

impl MoveBuffer {
    /// Takes room for a request of `bytes` whose client waits until `deadline`.
    ///
    /// # Errors
    /// `ResourceExhausted` when too much waits already; nothing was executed.
    pub fn begin(&self, effect: Effect, bytes: usize, deadline: Instant) -> Result<Buffered<'_>, Status> {
        let (room, what) = match effect {
            Effect::Read => (&self.reads, "bytes of reads that wait for a move"),
            Effect::Write => (&self.writes, "bytes of writes that wait for a move"),
        };
        let needed = u32::try_from(bytes.saturating_add(REQUEST_BYTES)).unwrap_or(u32::MAX);
        let full = |_| grpc::refusal(&KindredError::LimitReached { what, limit: BYTES_MAX as u64 });
        let room = room.try_acquire_many(needed).map_err(full)?;
        let since = Instant::now();
        let patience = Patience::new(Duration::ZERO, deadline.saturating_duration_since(since));
        let noted = matches!(effect, Effect::Write).then(|| self.longest.begin(since));
        Ok(Buffered { _room: room, buffer: self, effect, since, noted, patience })
    }

    /// The writes that wait.
    #[must_use]
    pub fn waiting_writes(&self) -> Waits {
        self.longest.shown(Instant::now())
    }
}

impl Buffered<'_> {
    /// Waits for a map newer than `known`, or for a short pause; false when the request has waited long enough.
    pub async fn wait(&mut self, known: Epoch, generation: &mut watch::Receiver<Epoch>) -> bool {
        let Some(pause) = self.patience.pause(self.since.elapsed()) else { return false };
        let newer = generation.wait_for(|generation| *generation > known);
        // Without a newer map the present one is tried again. If the sender is gone, only the pause ends the wait.
        let _ = tokio::time::timeout(pause, async {
            if newer.await.is_err() {
                std::future::pending::<()>().await;
            }
        })
        .await;
        true
    }
}

impl Drop for Buffered<'_> {
    fn drop(&mut self) {
        self.buffer.held.record(self.effect, self.since.elapsed());
        if let Some(noted) = self.noted {
            self.buffer.longest.end(noted, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_for_a_newer_map_or_a_little_and_not_longer_than_the_client() {
        let buffer = MoveBuffer::default();
        let (maps, mut generation) = watch::channel(Epoch(3));
        let until = Instant::now() + Duration::from_millis(80);
        let mut buffered = buffer.begin(Effect::Write, 10, until).unwrap();
        maps.send(Epoch(4)).unwrap();
        assert!(buffered.wait(Epoch(3), &mut generation).await, "there is one already");
        assert_eq!(buffered.patience.attempts, 1);
        while buffered.wait(Epoch(4), &mut generation).await {}
        assert!(Instant::now() >= until);
        assert!(buffered.patience.attempts < 20, "it came back {} times", buffered.patience.attempts);
    }

    #[tokio::test(start_paused = true)]
    async fn goes_on_without_maps_to_come() {
        let buffer = MoveBuffer::default();
        let (maps, mut generation) = watch::channel(Epoch(1));
        drop(maps);
        let until = Instant::now() + Duration::from_millis(30);
        let mut buffered = buffer.begin(Effect::Read, 10, until).unwrap();
        while buffered.wait(Epoch(1), &mut generation).await {}
        assert!(Instant::now() >= until && buffered.patience.attempts < 10);
    }

    #[test]
    fn room_is_bounded_and_comes_back() {
        let buffer = MoveBuffer::default();
        let soon = Instant::now() + WAIT_MAX;
        let most = buffer.begin(Effect::Write, BYTES_MAX - REQUEST_BYTES, soon).unwrap();
        let refused = buffer.begin(Effect::Write, 1, soon).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        buffer.begin(Effect::Read, 1, soon).expect("reads have room of their own");
        drop(most);
        buffer.begin(Effect::Write, 1, soon).unwrap();
    }
}
