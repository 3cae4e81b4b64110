//! Retained snapshots (R5): revisions that stay readable for long. A backup reads one snapshot for minutes or
//! hours while clients compact.
//!
//! Retaining T keeps the versions that were current at T, at most one extra per key, and delays no compaction. Below
//! the floor only T itself is readable; watches and other revisions there are compacted. Creates and deletes freed
//! below the floor are remembered for counts at T (`keyspace/folded.rs`). A revision stays retained only while its client
//! renews it in time.

use std::collections::BTreeMap;

use kindred_partition_config::ids::Revision;

use super::{Engine, MonoMillis, PinId};
use crate::error::EngineError;

/// Revisions that can be retained at once.
const RETAINED_MAX: usize = 64;
/// The longest time between two renewals, in milliseconds.
const RETAIN_MS_MAX: u64 = 600_000;

#[derive(Debug, Clone, Copy)]
struct Retention {
    at: Revision,
    until: MonoMillis,
}

/// The retained revisions, by the id their client chose.
#[derive(Debug, Default)]
pub(super) struct Retained(BTreeMap<PinId, Retention>);

impl Retained {
    /// Whether exactly this revision is retained.
    pub(super) fn holds(&self, at: Revision) -> bool {
        self.0.values().any(|retention| retention.at == at)
    }
}

impl Engine {
    /// Retains `at` under `name` for `millis` from now on (at most `RETAIN_MS_MAX`); called again, renews it.
    /// `Compacted` below the floor, which includes a revision that was let go; `Future` above the current revision;
    /// `TooManyRetained` beyond the bound.
    pub fn retain(
        &mut self,
        now: MonoMillis,
        at: Revision,
        name: PinId,
        millis: u64,
    ) -> Result<(), EngineError> {
        self.release_due(now);
        let until = MonoMillis(now.0.saturating_add(millis.min(RETAIN_MS_MAX)));
        if let Some(retention) = self.retained.0.get_mut(&name).filter(|retention| retention.at == at) {
            retention.until = until;
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
        if self.retained.0.len() >= RETAINED_MAX {
            return Err(EngineError::TooManyRetained);
        }
        if let Some(before) = self.retained.0.insert(name, Retention { at, until }) {
            self.unpin(before.at);
        }
        *self.pins.entry(at).or_insert(0) += 1;
        Ok(())
    }

    /// Lets go the revision retained under a name, if any.
    pub fn release_retained(&mut self, name: PinId) {
        if let Some(retention) = self.retained.0.remove(&name) {
            self.unpin(retention.at);
        }
    }

    /// Lets go the revisions that were not renewed in time.
    pub fn release_due(&mut self, now: MonoMillis) {
        let due = self.retained.0.extract_if(.., |_, retention| retention.until <= now);
        for (_, retention) in due.collect::<Vec<_>>() {
            self.unpin(retention.at);
        }
    }

    /// Whether exactly this revision is retained.
    #[must_use]
    pub fn is_retained(&self, at: Revision) -> bool {
        self.retained.holds(at)
    }

    /// Whether a revision is readable even below the floor: it is retained, and no unit imported since has a floor above
    /// it.
    pub(super) fn reads_retained(&self, asked: Option<Revision>) -> bool {
        asked.is_some_and(|at| at >= self.space.imported_floor && self.retained.holds(at))
    }
}
