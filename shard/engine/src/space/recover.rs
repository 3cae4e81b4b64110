//! Restores the keyspaces after a restart, and those of a replica when its units change.

use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::Key,
    kind::Located,
};

use super::{Frontier, KindId, MISC, Space, walk::Place};
use crate::{
    durability::{DurableUnit, Imported, Logged, UnitTable},
    keyspace::Keyspace,
    types::{Durability, KindGap, KindModes},
    units::table::{UnitId, Units},
    version::Version,
};

/// A replayed Kind.
pub struct RestoredKind {
    pub(crate) prefix: Key,
    /// The highest revision that this shard wrote in the Kind.
    pub(crate) highest: Revision,
    /// Keys with their leases.
    pub(crate) leased: Vec<(LeaseId, Key)>,
    keys: Keyspace,
    parts: Vec<(UnitId, Keyspace)>,
}

impl RestoredKind {
    pub(crate) fn new(prefix: Key, highest: Revision) -> Self {
        Self { prefix, highest, leased: Vec::new(), keys: Keyspace::new(), parts: Vec::new() }
    }

    /// Replays the keys that are in no unit, or those of the unit with this number.
    pub(crate) fn add(&mut self, unit: Option<u64>, versions: Vec<Version>, floor: Revision) {
        let mut keys = Keyspace::new();
        keys.restore(versions, floor);
        let live = keys.objects().filter_map(|object| object.live());
        let leased = live.filter_map(|version| Some((version.lease_id()?, Key::copy_from(version.key()))));
        self.leased.extend(leased);
        match unit {
            None => self.keys = keys,
            Some(number) => self.parts.push((UnitId(number), keys)),
        }
    }
}

/// Keys with their leases.
pub(crate) type Leased = Vec<(LeaseId, Key)>;

/// A Kind whose versions may belong to other keyspaces.
pub(crate) struct DisplacedKind {
    pub(crate) home: KindId,
    pub(crate) prefix: Key,
    /// All of them, each with the number under which a log has it.
    pub(crate) versions: Vec<(u64, Version)>,
}

/// What may belong to other keyspaces since the units changed.
pub(crate) struct Displaced {
    pub(crate) kinds: Vec<DisplacedKind>,
    /// Their keys with leases.
    pub(crate) leased: Leased,
}

impl Space {
    /// Installs the replayed Kinds, modes, units and gaps. Everything shows `start`.
    pub(crate) fn restore(
        &mut self,
        kinds: Vec<RestoredKind>,
        modes: KindModes,
        units: Units,
        gaps: Vec<KindGap>,
        start: Revision,
    ) {
        self.others = Frontier::at(start);
        self.kinds[MISC.0].frontier = Frontier::at(start);
        (self.mixed, self.some_wait) = (modes.differ(), modes.some_wait());
        self.modes_logged = Some(modes.clone());
        self.modes = modes;
        self.units = units;
        for RestoredKind { prefix, keys, parts, .. } in kinds {
            // A Kind in mode `none` was not replayed.
            let leftovers = self.modes.of(&prefix) == Durability::None;
            let home = if prefix.is_empty() { MISC } else { self.open_kind(&prefix) };
            let kind = self.kind_mut(home);
            kind.asked = !keys.is_empty();
            kind.leftovers = leftovers;
            (kind.keys, kind.parts) = (keys, parts);
        }
        self.kinds[MISC.0].mode = self.modes.of(b"");
        self.set_gaps(gaps);
    }

    // ---- replicas

    /// Shows this revision everywhere. Everything must be published.
    pub(crate) fn begin_shown(&mut self, start: Revision) {
        self.others = Frontier::at(start);
        for kind in &mut self.kinds {
            kind.frontier = Frontier::at(start);
            // As after a restart.
            kind.asked = !kind.keys.is_empty();
        }
        self.forget_raised();
    }

    /// Takes over a table of units. Adds to the imported versions what is in units that are given away: the other engine
    /// goes on from that if it takes such a unit back. Returns what may belong to another keyspace by this table, to be
    /// replayed and given to [`Space::placed`].
    pub(crate) fn place_again(
        &mut self,
        table: &UnitTable,
        imported: &mut Vec<Imported>,
        again: Option<u64>,
    ) -> Displaced {
        let homes = self.concerned(table, imported, again);
        imported.extend(self.given_away(table));
        let (mut leased, mut kinds) = (Vec::new(), Vec::new());
        for home in homes {
            let (prefix, versions) = (self.kind(home).prefix.clone(), self.numbered(home, imported));
            kinds.push(DisplacedKind { home, prefix, versions });
            leased.extend(self.leased(home));
        }
        let used = self.units.next_id();
        let mut units = Units::restore(table.clone());
        units.next_is_above(UnitId(used.0.saturating_sub(1)));
        for record in units.records.iter_mut().filter(|record| record.is_visible()) {
            record.floor = record.floor.max(self.compacted);
            record.gaps.retain(|gap| gap.until > self.compacted);
        }
        self.units = units;
        self.count_gaps();
        Displaced { kinds, leased }
    }

    /// Installs a Kind that was placed again. Returns its keys with their leases.
    pub(crate) fn placed(&mut self, home: KindId, restored: RestoredKind) -> Leased {
        let kind = self.kind_mut(home);
        (kind.keys, kind.parts) = (restored.keys, restored.parts);
        restored.leased
    }

    /// What is in units that by this table are given away, or not sealed any more.
    fn given_away(&self, table: &UnitTable) -> Vec<Imported> {
        let is_here = |number: u64| {
            table.records.iter().any(|entry| entry.number == number && entry.state != DurableUnit::Gone)
        };
        let records = self.units.records.iter().filter(|record| !is_here(record.id.0));
        let mut given = Vec::new();
        for unit in records.map(|record| record.id) {
            let mut give = |logged| match logged {
                Logged::Version(version) => given.push(Imported { unit: unit.0, versions: vec![version] }),
                Logged::Imported(some) => given.push(Imported { unit: unit.0, ..*some }),
                // A walk of a keyspace gives no others.
                _ => {}
            };
            for (home, _) in self.parts_of(unit) {
                self.walk_space(&mut Place::of(home, Some(unit)), &mut give, |_, _| true);
            }
        }
        given
    }

    /// The Kinds of which a key may belong to another keyspace by this table; creates those of imported keys.
    fn concerned(&mut self, table: &UnitTable, imported: &[Imported], again: Option<u64>) -> Vec<KindId> {
        let old = self.units.durable();
        let places = |table: &UnitTable| {
            let records = table.records.iter().map(|entry| {
                let gone = entry.state == DurableUnit::Gone;
                let sealed = matches!(entry.state, DurableUnit::Sealed { .. }).then_some(entry.state);
                (entry.number, entry.by.unit.clone(), gone, sealed)
            });
            let layers = table.layers.iter().map(|layer| (layer.number, layer.unit.clone(), layer.fresh));
            (records.collect::<Vec<_>>(), layers.collect::<Vec<_>>())
        };
        let ((records, layers), (old_records, old_layers)) = (places(table), places(&old));
        let changed = records.iter().filter(|record| !old_records.contains(record));
        let changed = changed.chain(old_records.iter().filter(|record| !records.contains(record)));
        let layer = layers.iter().filter(|layer| !old_layers.contains(layer));
        let layer = layer.chain(old_layers.iter().filter(|layer| !layers.contains(layer)));
        let repeated = table.records.iter().filter(|entry| Some(entry.number) == again);
        let units: Vec<_> = changed
            .map(|(_, unit, ..)| unit)
            .chain(layer.map(|(_, unit, _)| unit))
            .chain(repeated.map(|entry| &entry.by.unit))
            .cloned()
            .collect();
        if !units.is_empty() {
            for version in imported.iter().flat_map(|imported| &imported.versions) {
                if let Located::Object { kind } = self.scheme.locate(version.key()) {
                    let kind = Key::copy_from(kind);
                    self.open_kind(&kind);
                }
            }
        }
        let mut homes: Vec<KindId> = units.iter().flat_map(|unit| self.homes(&unit.range)).collect();
        homes.sort_unstable();
        homes.dedup();
        homes
    }

    /// All versions of a Kind and of these imports in it, each with the number under which a log has it.
    fn numbered(&self, home: KindId, imported: &[Imported]) -> Vec<(u64, Version)> {
        let mut versions: Vec<(u64, Version)> = Vec::new();
        let parts = self.kind(home).parts.iter().map(|(unit, _)| Some(*unit));
        for unit in std::iter::once(None).chain(parts) {
            let mut give = |logged| match logged {
                Logged::Version(version) => versions.push((0, version)),
                Logged::Imported(some) => {
                    versions.extend(some.versions.into_iter().map(|version| (some.unit, version)));
                }
                // A walk of a keyspace gives no others.
                _ => {}
            };
            self.walk_space(&mut Place::of(home, unit), &mut give, |_, _| true);
        }
        for Imported { unit, versions: some } in imported {
            let ours = some.iter().filter(|version| self.home_of(version.key()) == Some(home));
            versions.extend(ours.map(|version| (*unit, version.clone())));
        }
        versions
    }

    /// The live keys of a Kind that have a lease.
    fn leased(&self, home: KindId) -> Leased {
        let kind = self.kind(home);
        let spaces = std::iter::once(&kind.keys).chain(kind.parts.iter().map(|(_, keys)| keys));
        let live = spaces.flat_map(|keys| keys.objects().filter_map(|object| object.live()));
        live.filter_map(|version| Some((version.lease_id()?, Key::copy_from(version.key())))).collect()
    }
}
