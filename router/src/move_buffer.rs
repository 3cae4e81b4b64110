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
/// The pause between two tries while no newer map comes, as after an aborted switch.
const AGAIN: Duration = Duration::from_millis(5);
/// The first pause after a newer map came: a new owner opens about a millisecond after its map.
const AGAIN_BY_MAP: Duration = Duration::from_millis(1);
/// The most bytes that may wait, for reads and for writes each.
const BYTES_MAX: usize = 64 << 20;
/// The bytes that a waiting request counts beside its own.
const REQUEST_BYTES: usize = 4 << 10;

/// How long a request goes on waiting. Times are since some beginning.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    since: Duration,
    until: Duration,
    /// Tries by the present map, or by none that is newer than the first.
    attempts: u32,
    has_map: bool,
}

impl Patience {
    /// The patience of a request that begins to wait now, and whose client waits until `deadline`.
    #[must_use]
    pub fn new(now: Duration, deadline: Duration) -> Self {
        Self { since: now, until: deadline.min(now + WAIT_MAX), attempts: 0, has_map: false }
    }

    /// How long to wait for a newer map before the present one is tried again; `None` when the request has waited long
    /// enough.
    pub fn pause(&mut self, now: Duration) -> Option<Duration> {
        self.attempts += 1;
        if now >= self.until {
            return None;
        }
        let (pause, spread) = match self.has_map {
            // 1, 2, 4, 8, 16 milliseconds.
            true => (AGAIN_BY_MAP * (1 << (self.attempts - 1).min(4)), AGAIN_BY_MAP),
            false => (AGAIN * self.attempts.min(4), AGAIN),
        };
        // The time of arrival spreads the requests, so that they do not all come back at once.
        let spread = (now - self.since).as_nanos() % spread.as_nanos();
        let pause = pause + Duration::from_nanos(u64::try_from(spread).unwrap_or(0));
        Some(pause.min(self.until - now))
    }

    /// A newer map came, by which the request is sent at once.
    pub fn map_came(&mut self) {
        (self.attempts, self.has_map) = (0, true);
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
        let came = tokio::time::timeout(pause, async {
            if newer.await.is_err() {
                std::future::pending::<()>().await;
            }
        });
        if came.await.is_ok() {
            self.patience.map_came();
        }
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
        assert_eq!(Instant::now(), until - Duration::from_millis(80));
        // The new owner may still be about to open.
        assert!(buffered.wait(Epoch(4), &mut generation).await);
        assert!(Instant::now() < until - Duration::from_millis(77));
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
