//! Builds an engine from what the files hold; see [`crate::recover`].

use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::{Key, KeyRange},
};

use super::{Engine, EngineConfig, MonoMillis, RevisionMode, WallMicros};
use crate::{
    durability::{Imported, Logged},
    lease::LeaseTable,
    recover::{KindReplay, Lost, Recovered, by_kind},
    space::RestoredKind,
    types::{ClockOffset, Durability, Gap, KindGap, KindModes},
    units::table::{UnitId, Units},
};

/// A recovery whose Kinds are still to be replayed with [`KindReplay::run`].
pub struct Recovery {
    config: EngineConfig,
    recovered: Recovered,
    modes: KindModes,
    floor: Revision,
    compacted: Revision,
    highest: Revision,
    imports: u64,
    /// A copy's imports of units that are not opened.
    unopened: Vec<Imported>,
    /// One replay per Kind, the largest first.
    pub kinds: Vec<KindReplay>,
}

impl Recovery {
    /// Sorts the recovered records by Kind.
    #[must_use]
    pub fn new(config: EngineConfig, mut recovered: Recovered) -> Self {
        recovered.lost.none_is_whole |= recovered.copied;
        let highest = recovered.highest();
        let modes = recovered.modes.take().unwrap_or_else(|| KindModes::all(Durability::None));
        let imports = recovered.imported.iter().map(|imported| imported.unit).max().unwrap_or(0);
        let unopened = if recovered.copied { recovered.unopened() } else { Vec::new() };
        let began = began(&recovered.gaps);
        recovered.gaps.retain(|gap| Some(gap.gap.until) != began);
        let compacted = recovered.compacted.unwrap_or(Revision::ZERO);
        let floor = compacted.max(began.unwrap_or(compacted));
        let mut kinds = by_kind(&config.kinds, &mut recovered, &modes, (floor, compacted));
        kinds.sort_by_key(|kind| std::cmp::Reverse(kind.len()));
        Self { config, recovered, modes, floor, compacted, highest, imports, unopened, kinds }
    }

    /// Builds the engine from the replayed Kinds. Refused when a recovered revision is further ahead than a clock could
    /// have assigned it.
    pub fn finish(
        self,
        restored: Vec<RestoredKind>,
        now: WallMicros,
        mono: MonoMillis,
    ) -> Result<Engine, ClockOffset> {
        let Self { config, recovered, modes, floor, compacted, highest, imports, unopened, .. } = self;
        let dense = config.revisions == RevisionMode::Dense;
        let copied = recovered.copied;
        let mut engine = Engine::new(config, if copied { WallMicros(0) } else { now });
        let given = highest.max(recovered.start);
        engine.clock.recover(given)?;
        // The first revision shown must be readable, gaps end at it, and none that was lost may have been shown at or
        // above it. A clean stop leaves the very last revision, which the wall clock may still be behind.
        engine.found = highest;
        let present = if copied { given } else { engine.clock.promise(now) };
        let start = match present {
            // The other engine goes on from there.
            _ if copied || dense || present > given => present,
            _ => engine.clock.assign(now),
        };
        // Between the ceiling on disk and the present. Before the clock is confirmed, [`Engine::go_on`] looks at it.
        let skips = present > given && given > Revision::ZERO;
        engine.resumes = (!copied && !dense && !skips).then_some(start);
        let skipped = Gap { after: if skips { given } else { start }, until: start };
        let lost = durable_to(&recovered.lost, &modes, &restored);
        let fresh_gaps = new_gaps(&modes, &restored, &recovered.gaps, lost, skipped);
        let mut gaps = recovered.gaps;
        gaps.retain(|gap| gap.gap.until > compacted);
        let floors: Vec<KindGap> = gaps.extract_if(.., |gap| gap.is_floor()).collect();
        gaps.extend(fresh_gaps.iter().cloned());
        let table = recovered.units.unwrap_or_default();
        let mut units = Units::restore(table.clone());
        units.next_is_above(UnitId(imports));
        for record in units.records.iter_mut().filter(|record| record.is_visible()) {
            record.floor = record.floor.max(compacted);
            let taken_over = table.taken_over(&record.by.unit);
            record.gaps.extend(gap_of_unit(&record.by.unit.range, &modes, (lost, taken_over), skipped));
            record.gaps.retain(|gap| gap.until > compacted);
        }
        let space = &mut engine.space;
        let never = if dense { super::NEVER_COMPACTED } else { floor };
        space.floor = if floor > Revision::ZERO { floor } else { never };
        space.compacted = compacted.max(space.compacted);
        space.began = if dense { Revision::ZERO } else { floor };
        space.outbox.on = true;
        let leased: Vec<(LeaseId, Key)> =
            restored.iter().flat_map(|kind| kind.leased.iter().cloned()).collect();
        space.restore(restored, modes, units, gaps, start);
        for KindGap { kind, gap } in floors {
            let kind = space.kind_to_compact(&kind);
            space.restore_floor(kind, gap.until);
        }
        for gap in fresh_gaps {
            space.outbox.push(|| Logged::Gap(Box::new(gap)));
        }
        engine.log_units();
        engine.imports = unopened;
        engine.leases = LeaseTable::restore(mono, recovered.leases);
        for (lease, key) in leased {
            engine.leases.restore_key(lease, key);
        }
        Ok(engine)
    }
}

impl Engine {
    /// Builds the engine that the files describe. Its first [`Engine::take_applied`] must be on disk before anything is
    /// shown.
    pub fn recover(
        config: EngineConfig,
        now: WallMicros,
        mono: MonoMillis,
        recovered: Recovered,
    ) -> Result<Self, ClockOffset> {
        let mut recovery = Recovery::new(config, recovered);
        let kinds = std::mem::take(&mut recovery.kinds);
        let restored = kinds.into_iter().map(KindReplay::run).collect();
        recovery.finish(restored, now, mono)
    }
}

/// The store's beginning, before which nothing is known: the gap from zero that names no Kind and has an end of its
/// own.
fn began(gaps: &[KindGap]) -> Option<Revision> {
    let whole = gaps.iter().filter(|gap| gap.kind.is_empty() && gap.gap.after == Revision::ZERO);
    let mut alone = whole.filter(|gap| {
        let same = gaps.iter().filter(|other| other.gap.until == gap.gap.until);
        same.count() == 1
    });
    alone.next().map(|gap| gap.gap.until)
}

/// The last revision up to which the Kinds of each mode are complete: the logged promise, or a later version, before
/// which the log has everything.
fn durable_to(lost: &Lost, modes: &KindModes, restored: &[RestoredKind]) -> Lost {
    let highest = |mode: Durability| {
        let kinds = restored.iter().filter(|kind| modes.of(&kind.prefix) == mode);
        kinds.map(|kind| kind.highest).max().unwrap_or(Revision::ZERO)
    };
    Lost {
        buffered: lost.buffered.map(|at| at.max(highest(Durability::Buffered))),
        fsync: lost.fsync.map(|at| at.max(highest(Durability::Fsync))),
        none_is_whole: lost.none_is_whole,
    }
}

/// The gap that this start leaves in a Kind of this mode. A Kind that has lost nothing has the one that the clock has skipped:
/// the process that left this disk has shown nothing there, and a later one has if this is an older disk (R25).
fn gap(mode: Durability, lost: Lost, skipped: Gap) -> Gap {
    let after = match mode {
        Durability::None => (!lost.none_is_whole).then_some(Revision::ZERO),
        Durability::Buffered => lost.buffered,
        Durability::Fsync => lost.fsync,
    };
    Gap { after: after.unwrap_or(skipped.after), ..skipped }
}

/// The gaps of this start: one for each Kind that differs from the rest, and one without a name for all others. Empty
/// if nothing was lost.
fn new_gaps(
    modes: &KindModes,
    restored: &[RestoredKind],
    known: &[KindGap],
    lost: Lost,
    skipped: Gap,
) -> Vec<KindGap> {
    let others = gap(modes.default, lost, skipped);
    let restored = restored.iter().map(|kind| &kind.prefix);
    let mut kinds: Vec<&Key> =
        restored.chain(modes.kinds.keys()).chain(known.iter().map(|gap| &gap.kind)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let named = kinds.into_iter().filter(|kind| !kind.is_empty());
    let named = named.map(|kind| KindGap { kind: kind.clone(), gap: gap(modes.of(kind), lost, skipped) });
    let named: Vec<KindGap> = named.filter(|named| named.gap != others).collect();
    let others = KindGap { kind: Key::copy_from(b""), gap: others };
    let is_something = |gap: &KindGap| gap.gap.after.next() < gap.gap.until;
    if is_something(&others) || named.iter().any(is_something) {
        named.into_iter().chain([others]).collect()
    } else {
        Vec::new()
    }
}

/// The gap that this start leaves in a unit: the widest of those of its Kinds. A unit that was taken over has everything
/// up to the switch, unless its Kind is not kept at all or damage of the logs was accepted.
fn gap_of_unit(
    range: &KeyRange,
    modes: &KindModes,
    (lost, taken_over): (Lost, Option<Revision>),
    skipped: Gap,
) -> Option<Gap> {
    let taken_over = taken_over.filter(|_| lost.fsync.is_none());
    let lost = Lost { buffered: lost.buffered.map(|at| at.max(taken_over.unwrap_or(at))), ..lost };
    let whole = modes.kinds.iter().find(|(kind, _)| {
        range.start().starts_with(kind) && KeyRange::prefix((*kind).clone()).intersection(range) == *range
    });
    let modes: Vec<Durability> = match whole {
        Some((_, mode)) => vec![*mode],
        None => {
            let touched =
                modes.kinds.iter().filter(|(kind, _)| range.overlaps(&KeyRange::prefix((*kind).clone())));
            touched.map(|(_, mode)| *mode).chain([modes.default]).collect()
        }
    };
    let gaps = modes.into_iter().map(|mode| gap(mode, lost, skipped));
    gaps.min_by_key(|gap| gap.after).filter(|gap| gap.after.next() < gap.until)
}
