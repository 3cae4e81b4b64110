//! A replica: an engine that executes nothing itself. It takes over, in order, what another engine has applied
//! ([`Applied::shipped`](crate::durability::Applied::shipped)), logs it by its own modes, and can go on in the other's
//! place at any time, without a replay (R18).
//!
//! It begins as an engine recovered from a copy of the other one ([`Engine::copy_begin`]).

use std::sync::Arc;

use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::Key,
};

use super::{Engine, MonoMillis, WallMicros};
use crate::{
    durability::{DurableUnit, Imported, Logged, UnitTable},
    recover::KindReplay,
    space::{Displaced, DisplacedKind, Scope},
    types::{ClockOffset, Gap, KindGap, KindModes},
    units::table::UnitId,
    version::Version,
};

impl Engine {
    /// Takes over a record of the other engine. Returns modes that the caller sets when both logs are flushed, as it does
    /// with those that a router asks for. An empty import tells that imports of this unit do not count any more.
    ///
    /// # Errors
    /// When a revision is one that no clock could have assigned.
    pub fn replicate(&mut self, mono: MonoMillis, logged: Logged) -> Result<Option<KindModes>, ClockOffset> {
        match logged {
            Logged::Version(version) => self.replicate_version(version)?,
            Logged::Lease(record) => {
                self.space.outbox.push(|| Logged::Lease(record.clone()));
                self.leases.replicate(mono, *record);
            }
            Logged::Compaction(at) => self.replicate_compaction(at)?,
            Logged::Modes(modes) => return Ok(Some(*modes)),
            Logged::Gap(gap) if gap.is_floor() => self.replicate_kind_floor(*gap)?,
            Logged::Gap(gap) => {
                self.found = self.found.max(gap.gap.until);
                let mut gaps = self.space.kind_gaps().to_vec();
                gaps.push((*gap).clone());
                self.space.set_gaps(gaps);
                self.space.outbox.push(|| Logged::Gap(gap));
            }
            Logged::Units(table) => self.replicate_units(*table),
            Logged::Imported(imported) if imported.versions.is_empty() => {
                self.imports.retain(|known| known.unit != imported.unit);
            }
            Logged::Imported(imported) => self.replicate_import(*imported),
        }
        Ok(None)
    }

    fn replicate_version(&mut self, version: Version) -> Result<(), ClockOffset> {
        self.clock.recover(version.mod_revision())?;
        self.found = self.found.max(version.mod_revision());
        let key = Key::copy_from(version.key());
        let lease = version.lease_id();
        let before = self.space.write(version).and_then(|before| before.lease_id());
        if before != lease {
            self.relink(before.map(|id| (id, key.clone())), lease.map(|id| (id, key)));
        }
        Ok(())
    }

    /// Detaches keys from their leases, and attaches others.
    fn relink(
        &mut self,
        before: impl IntoIterator<Item = (LeaseId, Key)>,
        now: impl IntoIterator<Item = (LeaseId, Key)>,
    ) {
        for (id, key) in before {
            self.leases.unlink(id, &key);
        }
        for (id, key) in now {
            self.leases.restore_key(id, key);
        }
    }

    fn replicate_compaction(&mut self, at: Revision) -> Result<(), ClockOffset> {
        self.clock.recover(at)?;
        self.found = self.found.max(at);
        if at <= self.space.compacted {
            return Ok(());
        }
        let everything = self.space.everything();
        self.space.raise_applied(&everything, at);
        self.compacted_to(at);
        self.unpinned = true;
        Ok(())
    }

    fn replicate_kind_floor(&mut self, floor: KindGap) -> Result<(), ClockOffset> {
        let at = floor.gap.until;
        self.clock.recover(at)?;
        self.found = self.found.max(at);
        let kind = self.space.kind_to_compact(&floor.kind);
        self.space.raise_applied(&Scope::One(kind), at);
        self.space.compact_kind(kind, at);
        self.space.outbox.push(|| Logged::Gap(Box::new(floor)));
        self.unpinned = true;
        Ok(())
    }

    /// The clock stays as it is: the versions are of another store, whose clock may be ahead. What is sealed is below
    /// the ceiling.
    fn replicate_import(&mut self, imported: Imported) {
        let unit = imported.unit;
        self.space.outbox.imported(unit, imported.versions.clone());
        self.imports.push(imported);
        self.space.units.next_is_above(UnitId(unit));
        let table = self.space.units.durable();
        let is_sealed = |state| matches!(state, DurableUnit::Sealed { .. });
        if table.records.iter().any(|entry| entry.number == unit && is_sealed(entry.state)) {
            // It repeats an import that is sealed.
            self.place_again(table, Some(unit));
        }
    }

    fn replicate_units(&mut self, table: UnitTable) {
        self.space.outbox.push(|| Logged::Units(Box::new(table.clone())));
        self.place_again(table, None);
    }

    /// Takes over a table of units, and puts each key where it then belongs. `again` names a unit of which there is
    /// more than was placed.
    fn place_again(&mut self, table: UnitTable, again: Option<u64>) {
        let floors = (self.space.floor, self.space.compacted);
        let Displaced { kinds, leased } = self.space.place_again(&table, &mut self.imports, again);
        let units = Arc::new(table.clone());
        let mut now = Vec::new();
        for DisplacedKind { home, prefix, versions } in kinds {
            let floors = (floors.0.max(self.space.floor_of_kind(home)), floors.1);
            let restored = KindReplay::whole(prefix, versions, floors, units.clone()).run();
            now.extend(self.space.placed(home, restored));
        }
        self.relink(leased, now);
        // What is sealed can be taken back, so its imports are kept until the unit is opened or dropped.
        self.imports.retain(|imported| !table.has_opened(imported.unit));
    }

    /// Goes on in the place of the other engine, with revisions above its ceiling (R2). Everything taken over must be
    /// published. Leases have their whole time again.
    ///
    /// # Errors
    /// When the ceiling is one that no clock could have had; then nothing has changed.
    pub fn promote(&mut self, ceiling: Revision, mono: MonoMillis) -> Result<(), ClockOffset> {
        debug_assert!(self.space.first_unpublished().is_none(), "all that was taken over is published");
        // The other engine has shown nothing at its ceiling, so this one may begin there.
        let start = self.clock.last().max(ceiling);
        self.clock.recover(start)?;
        // Imports that were never sealed are copied again (R15).
        self.imports.clear();
        self.space.begin_shown(start);
        self.leases.renew(mono);
        Ok(())
    }

    /// All that was recovered and taken over is at or below this revision. The clock may be further: it begins at the
    /// ceiling of whoever assigned before (R2), which may have shown anything below that.
    #[must_use]
    pub fn found(&self) -> Revision {
        self.found
    }

    /// The same in the place of an engine that may have shown more than is here, up to below the ceiling: every Kind has a
    /// gap from `after`, the last revision up to which nothing is missing here (R10).
    ///
    /// # Errors
    /// As [`Engine::promote`].
    pub fn promote_behind(
        &mut self,
        after: Revision,
        ceiling: Revision,
        mono: MonoMillis,
    ) -> Result<(), ClockOffset> {
        self.promote(ceiling, mono)?;
        self.miss(Gap { after, until: self.clock.last() });
        Ok(())
    }

    /// Lets the clock go on from the wall clock, for the first time since a start at which it was not confirmed. The process that
    /// left this disk has shown nothing that lies between. If the disk is an older one, a later process has, and what it showed
    /// is not here: every Kind has a gap there (R25). To be called before anything is shown, under a ceiling that leaves
    /// room for the present. Without effect if the clock has gone on.
    pub fn go_on(&mut self, now: WallMicros) {
        let Some(after) = self.resumes.take() else { return };
        let until = self.clock.promise(now);
        let everything = self.space.everything();
        self.space.raise_visible(&everything, until);
        self.miss(Gap { after, until });
    }

    /// Gives every Kind and every unit this gap.
    fn miss(&mut self, gap: Gap) {
        if gap.is_nothing() {
            return;
        }
        let of_all = KindGap { kind: Key::copy_from(b""), gap };
        let mut gaps = self.space.kind_gaps().to_vec();
        gaps.push(of_all.clone());
        for record in self.space.units.records.iter_mut().filter(|record| record.is_visible()) {
            record.gaps.push(gap);
        }
        self.space.set_gaps(gaps);
        self.space.outbox.push(|| Logged::Gap(Box::new(of_all)));
        self.log_units();
    }
}
