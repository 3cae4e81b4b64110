//! Durability modes of Kinds.

use std::collections::BTreeMap;

use kindred_partition_config::key::Key;
pub use kindred_partition_config::model::Durability;

/// The durability mode of every Kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindModes {
    /// The version of these modes, which is the revision of the cluster's state and no map's generation. Modes of a
    /// lower generation than those in force are refused.
    pub generation: u64,
    /// The mode of Kinds that `kinds` does not name, and of keys of no Kind.
    pub default: Durability,
    /// Modes by Kind prefix.
    pub kinds: BTreeMap<Key, Durability>,
}

impl KindModes {
    #[must_use]
    pub fn all(mode: Durability) -> Self {
        Self { generation: 0, default: mode, kinds: BTreeMap::new() }
    }

    /// The mode of the Kind with this prefix; the empty prefix means the keys of no Kind.
    #[must_use]
    pub fn of(&self, prefix: &[u8]) -> Durability {
        self.kinds.get(prefix).copied().unwrap_or(self.default)
    }

    /// Whether some Kind's mode differs from the default.
    #[must_use]
    pub fn differ(&self) -> bool {
        self.kinds.values().any(|mode| *mode != self.default)
    }

    /// The weaker of both modes for each Kind; `None` if none is weaker than in `self`.
    pub(crate) fn weakened(&self, other: &Self) -> Option<Self> {
        let prefixes = self.kinds.keys().chain(other.kinds.keys());
        let weaker = |prefix: &Key| (prefix.clone(), self.of(prefix).min(other.of(prefix)));
        let kinds: BTreeMap<Key, Durability> = prefixes.map(weaker).collect();
        let default = self.default.min(other.default);
        let is_weaker = default < self.default || kinds.iter().any(|(prefix, mode)| *mode < self.of(prefix));
        is_weaker.then_some(Self { generation: self.generation, default, kinds })
    }

    /// Whether writes of some Kind wait for the fsync log.
    pub(crate) fn some_wait(&self) -> bool {
        self.default == Durability::Fsync || self.kinds.values().any(|mode| *mode == Durability::Fsync)
    }
}

/// The outcome of setting new modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModesTaken {
    /// They are in force, and are logged as [`Logged::Modes`](crate::durability::Logged::Modes).
    InForce,
    /// Some Kind is to become less durable. After a crash the logged modes tell what may be lost (R10), so weaker modes
    /// are logged first, and none is in force yet. The caller sets them again when both logs are flushed and nothing
    /// was executed in between, or takes them back with [`crate::engine::Engine::keep_modes`].
    AfterLog,
    /// A Kind in mode `none` is to be kept from now on. Its writes are logged at once. The modes are logged when
    /// [`crate::engine::Engine::modes_settled`] tells that a checkpoint begun after this call is on disk; after an
    /// earlier crash the old mode counts.
    AfterCheckpoint,
}

/// Why modes were refused. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModesError {
    /// Newer modes are in force.
    #[error("modes of generation {asked} are older than those in force ({known})")]
    Stale {
        /// The generation of the refused modes.
        asked: u64,
        known: u64,
    },
    /// Dense revisions count all Kinds together, so all Kinds are kept or lost together.
    #[error(
        "a shard with dense revisions has one durability for all keys, none or fsync, but {prefix} is to be {mode}"
    )]
    Dense {
        /// The Kind's prefix, or empty for the default.
        prefix: Key,
        /// The refused mode.
        mode: Durability,
    },
    /// A Kind whose mode changes has unpublished writes. The caller calls between batches, when both logs are flushed.
    #[error("{prefix} has changes that are not published; flush the logs first")]
    Unpublished {
        /// The Kind's prefix, or empty for the keys of no Kind.
        prefix: Key,
    },
}
