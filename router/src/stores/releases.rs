//! Releases the pins that reads over several stores left at a store (R5). Without a release, a client's compaction
//! would wait until the pin is too old to count; that is also what ends a pin whose release is lost.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kindred_partition_config::ids::{Epoch, Revision};
use kindred_proto::shard_v1::ReleasePinsRequest;
use kindred_wire::batch::Method;
use prost::Message as _;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Store;
use super::batch_stream::{BatchStreamError, Op};

/// Releases that wait for a call: as many as a shard takes in one. Further pins are left to expire.
const WAITING_MAX: usize = 4096;
/// The pause between two calls, so that under load one call releases the pins of many reads.
const PAUSE: Duration = Duration::from_millis(10);
const TIMEOUT: Duration = Duration::from_secs(3);

/// Makes ids for pins that no other read of any router has.
#[derive(Debug)]
pub struct PinNames(AtomicU64);

impl Default for PinNames {
    fn default() -> Self {
        // Each router counts from a random number.
        Self(AtomicU64::new(RandomState::new().build_hasher().finish()))
    }
}

impl PinNames {
    /// The next id; never 0, which means no pin.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed).max(1)
    }
}

/// The pins to be released at one store.
#[derive(Debug, Default)]
pub struct Releases {
    pins: Mutex<Vec<u64>>,
    ready: Notify,
}

impl Releases {
    /// Queues the release of a pin, because its read is done with the store.
    pub fn push(&self, pin: u64) {
        let mut pins = self.pins.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if pins.len() < WAITING_MAX {
            pins.push(pin);
            self.ready.notify_one();
        }
    }

    fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.pins.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// Releases the pins of a store, for ever.
pub async fn run(store: Arc<Store>) {
    loop {
        store.releases().ready.notified().await;
        let pins = store.releases().take();
        if !pins.is_empty() && store.state().is_up() {
            // An error needs no handling: the pin expires.
            let _ = tokio::time::timeout(TIMEOUT, release(&store, pins)).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Sends the release over the stream that carried the pin, if there is one, so that it comes after it.
async fn release(store: &Store, pins: Vec<u64>) {
    let request = ReleasePinsRequest { pins };
    if let Some(stream) = store.snapshot_batches() {
        let op = Op {
            method: Method::ReleasePins,
            request: request.encode_to_vec().into(),
            min_revision: Revision::ZERO,
            generation: Epoch::NONE,
            pin: 0,
            until: Instant::now() + TIMEOUT,
        };
        match stream.call(op).await {
            Err(BatchStreamError::Unsupported) => store.state().no_batches(),
            Ok(_) | Err(BatchStreamError::Failed(_)) => return,
        }
    }
    let _ = store.shard().release_pins(request).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_never_none() {
        let names = PinNames(AtomicU64::new(u64::MAX));
        assert_eq!([names.next(), names.next(), names.next()], [u64::MAX, 1, 1]);
    }

    #[test]
    fn what_waits_is_bounded() {
        let releases = Releases::default();
        (0..10_000).for_each(|pin| releases.push(pin));
        assert_eq!(releases.take().len(), WAITING_MAX);
        assert!(releases.take().is_empty());
    }
}
