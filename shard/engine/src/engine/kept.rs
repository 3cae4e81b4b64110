//! Revisions that stay readable for long (R5): a backup reads one cut for minutes or hours, while clients compact.
//!
//! What is kept at T is what was current at T, at most one version a key more; no compaction waits for it. Below the floor
//! T itself is all that can be read: watches and other revisions there are compacted as ever. What came and went is
//! remembered for the counts at T when the rest of it is freed (`keyspace/folded.rs`). A revision is kept while it is
//! renewed: who asked for it and went away loses it when its time has passed.

use std::collections::BTreeMap;

use kindred_partition_config::ids::Revision;

use super::{Engine, MonoMillis, PinId};
use crate::error::EngineError;

/// Revisions that are kept at a time.
const KEPT_MAX: usize = 64;
/// The longest time between two renewals.
const KEEP_MS_MAX: u64 = 600_000;

#[derive(Debug, Clone, Copy)]
struct Keep {
    at: Revision,
    until: MonoMillis,
}

/// What is kept, by who asked.
#[derive(Debug, Default)]
pub(super) struct Kept(BTreeMap<PinId, Keep>);

impl Kept {
    /// Whether this very revision is kept.
    pub(super) fn holds(&self, at: Revision) -> bool {
        self.0.values().any(|keep| keep.at == at)
    }
}

impl Engine {
    /// Keeps `at` readable under a name for a time from now on, or, where it is kept already, for that time again.
    /// `Compacted` when it cannot be read any more, or was let go since; `Future` above the current revision;
    /// `TooManyKept` beyond a bound.
    pub fn keep(
        &mut self,
        now: MonoMillis,
        at: Revision,
        name: PinId,
        millis: u64,
    ) -> Result<(), EngineError> {
        self.unkeep_due(now);
        let until = MonoMillis(now.0.saturating_add(millis.min(KEEP_MS_MAX)));
        if let Some(keep) = self.kept.0.get_mut(&name).filter(|keep| keep.at == at) {
            keep.until = until;
            return Ok(());
        }
        let floor = self.space.floor_highest();
        if at < floor {
            return Err(EngineError::Compacted { floor });
        }
        let current = self.current_all();
        if at > current {
            return Err(EngineError::Future { current });
        }
        if self.kept.0.len() >= KEPT_MAX {
            return Err(EngineError::TooManyKept);
        }
        if let Some(before) = self.kept.0.insert(name, Keep { at, until }) {
            self.unpin(before.at);
        }
        *self.pins.entry(at).or_insert(0) += 1;
        Ok(())
    }

    /// Lets go what is kept under a name. Nothing happens where nothing is.
    pub fn unkeep(&mut self, name: PinId) {
        if let Some(keep) = self.kept.0.remove(&name) {
            self.unpin(keep.at);
        }
    }

    /// Lets go what was not renewed in time.
    pub fn unkeep_due(&mut self, now: MonoMillis) {
        let due = self.kept.0.extract_if(.., |_, keep| keep.until <= now);
        for (_, keep) in due.collect::<Vec<_>>() {
            self.unpin(keep.at);
        }
    }

    /// Whether this very revision is kept.
    #[must_use]
    pub fn is_kept(&self, at: Revision) -> bool {
        self.kept.holds(at)
    }

    /// Whether a revision below the floor can be read all the same: it is kept, and no keys have come since with a
    /// history that does not reach back to it.
    pub(super) fn reads_kept(&self, asked: Option<Revision>) -> bool {
        asked.is_some_and(|at| at >= self.space.imported_floor && self.kept.holds(at))
    }
}
