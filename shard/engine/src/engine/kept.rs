//! Revisions kept readable for long (R5): a backup reads one snapshot for minutes or hours while clients compact.
//!
//! Keeping T retains the versions that were current at T, at most one extra per key, and delays no compaction. Below
//! the floor only T itself is readable; watches and other revisions there are compacted. Creates and deletes freed
//! below the floor are remembered for counts at T (`keyspace/folded.rs`). A revision stays kept only while its client
//! renews it in time.

use std::collections::BTreeMap;

use kindred_partition_config::ids::Revision;

use super::{Engine, MonoMillis, PinId};
use crate::error::EngineError;

/// Revisions that can be kept at once.
const KEPT_MAX: usize = 64;
/// The longest time between two renewals, in milliseconds.
const KEEP_MS_MAX: u64 = 600_000;

#[derive(Debug, Clone, Copy)]
struct Keep {
    at: Revision,
    until: MonoMillis,
}

/// The kept revisions, by the id their client chose.
#[derive(Debug, Default)]
pub(super) struct Kept(BTreeMap<PinId, Keep>);

impl Kept {
    /// Whether exactly this revision is kept.
    pub(super) fn holds(&self, at: Revision) -> bool {
        self.0.values().any(|keep| keep.at == at)
    }
}

impl Engine {
    /// Keeps `at` readable under `name` for `millis` from now on (at most `KEEP_MS_MAX`); called again, renews it.
    /// `Compacted` below the floor, which includes a revision that was let go; `Future` above the current revision;
    /// `TooManyKept` beyond the bound.
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

    /// Lets go the revision kept under a name, if any.
    pub fn unkeep(&mut self, name: PinId) {
        if let Some(keep) = self.kept.0.remove(&name) {
            self.unpin(keep.at);
        }
    }

    /// Lets go the revisions that were not renewed in time.
    pub fn unkeep_due(&mut self, now: MonoMillis) {
        let due = self.kept.0.extract_if(.., |_, keep| keep.until <= now);
        for (_, keep) in due.collect::<Vec<_>>() {
            self.unpin(keep.at);
        }
    }

    /// Whether exactly this revision is kept.
    #[must_use]
    pub fn is_kept(&self, at: Revision) -> bool {
        self.kept.holds(at)
    }

    /// Whether a revision is readable even below the floor: it is kept, and no unit imported since has a floor above
    /// it.
    pub(super) fn reads_kept(&self, asked: Option<Revision>) -> bool {
        asked.is_some_and(|at| at >= self.space.imported_floor && self.kept.holds(at))
    }
}
