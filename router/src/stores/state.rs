//! Whether a store can be reached: written by its monitor and by calls that failed, read by every request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kindred_partition_config::ids::Slot;
use kindred_proto::{FEATURE_BATCHED_CUTS, FEATURE_BATCHES};
use tokio::sync::{Notify, watch};

/// Who a store said it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The UUID of a shard.
    pub uuid: Option<String>,
    /// The slot of a shard.
    pub slot: Option<Slot>,
    /// Its version.
    pub version: String,
    /// The incarnation of a shard.
    pub incarnation: u64,
    /// Which optional parts of the protocol a shard speaks.
    pub features: u64,
}

/// What is known of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// Not reached yet.
    Connecting,
    /// Reached, and it is who it should be.
    Up(Identity),
    /// Not reachable, and why.
    Down(String),
    /// Reached, but of another cluster, slot or version: only the operator can help.
    Refused(String),
    /// Another store, or the same name with an emptied disk, stands where it was: only the operator can help.
    Foreign(String),
    /// Who it should be, with a clock too far from the others' (R3).
    Skewed(String),
}

impl Phase {
    /// All that [`Phase::word`] may say.
    pub const WORDS: [&str; 6] = ["connecting", "up", "down", "refused", "foreign", "skewed"];

    /// One word for people and metrics.
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

    /// Why requests may not be sent; `None` when they may, or nobody has asked yet.
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

/// The state of one store. Its monitor decides; a call that lost the connection may only mark it down.
#[derive(Debug)]
pub struct StateCell {
    up: AtomicBool,
    /// What it speaks, by its last handshake.
    features: AtomicU64,
    phase: watch::Sender<Arc<Phase>>,
    last_error: watch::Sender<Option<String>>,
    kick: Notify,
}

impl Default for StateCell {
    fn default() -> Self {
        Self {
            up: AtomicBool::new(false),
            features: AtomicU64::new(0),
            phase: watch::Sender::new(Arc::new(Phase::Connecting)),
            last_error: watch::Sender::new(None),
            kick: Notify::new(),
        }
    }
}

impl StateCell {
    /// Whether requests may be sent.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.up.load(Ordering::Acquire)
    }

    /// Whether it serves batches.
    #[must_use]
    pub fn has_batches(&self) -> bool {
        self.has(FEATURE_BATCHES)
    }

    /// Whether it serves in batches what a read over several stores asks.
    #[must_use]
    pub fn has_batched_cuts(&self) -> bool {
        self.has(FEATURE_BATCHES | FEATURE_BATCHED_CUTS)
    }

    fn has(&self, features: u64) -> bool {
        self.features.load(Ordering::Acquire) & features == features
    }

    /// It does not, whatever it said: the next handshake may say so again.
    pub fn no_batches(&self) {
        self.features.store(0, Ordering::Release);
        self.kick.notify_one();
    }

    /// What is known now.
    #[must_use]
    pub fn phase(&self) -> Arc<Phase> {
        self.phase.borrow().clone()
    }

    /// The last error, also when the store is up again.
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

    /// Waits until the store is up.
    pub async fn wait_up(&self) {
        let mut phase = self.phase.subscribe();
        // The sender lives as long as this borrow of it, so there is no error.
        let _ = phase.wait_for(|phase| matches!(**phase, Phase::Up(_))).await;
    }

    /// Waits until the first handshake has ended, well or not.
    pub async fn wait_known(&self) {
        let mut phase = self.phase.subscribe();
        // As above.
        let _ = phase.wait_for(|phase| !matches!(**phase, Phase::Connecting)).await;
    }

    /// Tells what is known; whether that is a change of kind.
    pub fn set(&self, phase: Phase) -> bool {
        if let Phase::Up(identity) = &phase {
            self.features.store(identity.features, Ordering::Release);
        }
        self.up.store(matches!(phase, Phase::Up(_)), Ordering::Release);
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

    /// A call could not reach the store: no request waits for the next handshake to find out.
    pub fn lost(&self, reason: &str) {
        if self.is_up() {
            self.set(Phase::Down(reason.to_owned()));
        }
        self.kick.notify_one();
    }

    /// A call failed in a way that may concern it alone: ask the store now.
    pub fn suspect(&self) {
        self.kick.notify_one();
    }

    /// Ends when somebody asks for a handshake now.
    pub async fn kicked(&self) {
        self.kick.notified().await;
    }
}
