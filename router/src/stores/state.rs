//! Whether a store can be reached: written by its monitor and by failed calls, read by every request.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kindred_partition_config::ids::Slot;
use kindred_proto::{FEATURE_BATCHED_SNAPSHOTS, FEATURE_BATCHES};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// What a store reported of itself in its handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Shards only.
    pub uuid: Option<String>,
    /// Shards only.
    pub slot: Option<Slot>,
    pub version: String,
    /// The incarnation of a shard; 0 for a stock etcd.
    pub incarnation: u64,
    /// The feature bits of the protocol that a shard supports.
    pub features: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// No handshake has ended yet.
    Connecting,
    /// Reached, and it is the expected store.
    Up(Identity),
    /// Not reachable, with the reason.
    Down(String),
    /// Reached, but of another cluster, slot or version; only the operator can help.
    Refused(String),
    /// Another store, or an emptied disk, answers in its place; only the operator can help.
    Foreign(String),
    /// The expected store, but its clock is too far off, or does not agree with the reference (R3).
    Skewed(String),
}

impl Phase {
    /// All values of [`Phase::word`].
    pub const WORDS: [&str; 6] = ["connecting", "up", "down", "refused", "foreign", "skewed"];

    /// The phase as one word, for people and metrics.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Up(_) => "up",
            Self::Down(_) => "down",
            Self::Refused(_) => "refused",
            Self::Foreign(_) => "foreign",
            Self::Skewed(_) => "skewed",
        }
    }

    /// Why requests may not be sent; `None` when they may, or before the first handshake.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        match self {
            Self::Connecting | Self::Up(_) => None,
            Self::Down(reason) | Self::Refused(reason) | Self::Foreign(reason) | Self::Skewed(reason) => {
                Some(reason)
            }
        }
    }
}

/// The state of one store. Only its monitor sets it up again; a call that lost its connection may set it down.
#[derive(Debug)]
pub struct StateCell {
    up: AtomicBool,
    /// The feature bits of its last handshake.
    features: AtomicU64,
    phase: watch::Sender<Arc<Phase>>,
    last_error: watch::Sender<Option<String>>,
    kick: Notify,
    /// Since when it is not up; `None` while it is, and before it first was.
    down: Mutex<Option<Instant>>,
}

impl Default for StateCell {
    fn default() -> Self {
        Self {
            up: AtomicBool::new(false),
            features: AtomicU64::new(0),
            phase: watch::Sender::new(Arc::new(Phase::Connecting)),
            last_error: watch::Sender::new(None),
            kick: Notify::new(),
            down: Mutex::default(),
        }
    }
}

impl StateCell {
    /// Whether requests may be sent to it.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// How long it has been down; `None` while it is up, and before it first was.
    #[must_use]
    pub fn down_for(&self) -> Option<Duration> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner).map(|since| since.elapsed())
    }

    /// Whether it serves batches.
    #[must_use]
    pub fn has_batches(&self) -> bool {
        self.has(FEATURE_BATCHES)
    }

    /// Whether it takes in batches also the questions of a read over several stores.
    #[must_use]
    pub fn has_batched_snapshots(&self) -> bool {
        self.has(FEATURE_BATCHES | FEATURE_BATCHED_SNAPSHOTS)
    }

    fn has(&self, features: u64) -> bool {
        self.features.load(Ordering::Acquire) & features == features
    }

    /// Notes that it does not serve batches, contrary to its handshake; the next handshake may bring them back.
    pub fn no_batches(&self) {
        self.features.store(0, Ordering::Release);
        self.kick.notify_one();
    }

    #[must_use]
    pub fn phase(&self) -> Arc<Phase> {
        self.phase.borrow().clone()
    }

    /// The last error; kept when the store is up again.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.last_error.borrow().clone()
    }

    /// Why requests may not be sent.
    #[must_use]
    pub fn reason(&self) -> String {
        let phase = self.phase();
        let otherwise = match &*phase {
            Phase::Connecting => "not connected yet",
            _ => "the connection was lost",
        };
        phase.problem().unwrap_or(otherwise).to_owned()
    }

    pub async fn wait_up(&self) {
        let mut phase = self.phase.subscribe();
        // The sender lives as long as this borrow of it, so there is no error.
        let _ = phase.wait_for(|phase| matches!(**phase, Phase::Up(_))).await;
    }

    /// Waits until it is not up any more, or in another incarnation.
    pub async fn wait_other(&self, incarnation: u64) {
        let is_same = |phase: &Phase| matches!(phase, Phase::Up(of) if of.incarnation == incarnation);
        let mut phase = self.phase.subscribe();
        let _ = phase.wait_for(|phase| !is_same(phase)).await;
    }

    /// Waits until the first handshake has ended, well or not.
    pub async fn wait_known(&self) {
        let mut phase = self.phase.subscribe();
        let _ = phase.wait_for(|phase| !matches!(**phase, Phase::Connecting)).await;
    }

    /// Sets the phase; returns whether its kind has changed.
    pub fn set(&self, phase: Phase) -> bool {
        if let Phase::Up(identity) = &phase {
            self.features.store(identity.features, Ordering::Release);
        }
        let up = matches!(phase, Phase::Up(_));
        let was_up = self.up.swap(up, Ordering::AcqRel);
        if up != was_up {
            *self.down.lock().unwrap_or_else(PoisonError::into_inner) = was_up.then(Instant::now);
        }
        if let Some(reason) = phase.problem() {
            self.last_error.send_replace(Some(reason.to_owned()));
        }
        let changed = self.phase.borrow().word() != phase.word();
        self.phase.send_if_modified(|old| {
            let modified = **old != phase;
            *old = Arc::new(phase);
            modified
        });
        changed
    }

    /// Sets the store down because a call could not connect, so that no request waits for the next handshake.
    pub fn lost(&self, reason: &str) {
        if self.is_up() {
            self.set(Phase::Down(reason.to_owned()));
        }
        self.kick.notify_one();
    }

    /// Asks for a handshake at once, because a call failed in a way that may concern only itself.
    pub fn suspect(&self) {
        self.kick.notify_one();
    }

    /// Waits until a handshake is asked for.
    pub async fn kicked(&self) {
        self.kick.notified().await;
    }
}
