//! The contents of a shard's files: the newest checkpoint and the logs behind it. Some records appear twice.
//!
//! A start uses the last record of each lease, the last modes, the last table of units and the highest compaction.
//! Versions come in any order; each Kind is replayed separately in the order of its events. It leaves out versions of
//! units that were given away since or were overwritten by a later import, imports that were never sealed, and Kinds in
//! mode `none`.
//!
//! Losses are expressed as a [`KindGap`] per Kind (R10). New gaps are the first thing that the engine logs, and must be
//! on disk before anything is served.

use std::sync::Arc;

use hashbrown::HashMap;
use kindred_partition_config::{
    ids::Revision,
    key::Key,
    kind::{KindScheme, Located},
};

use crate::{
    durability::{DurableUnit, Imported, LeaseRecord, Logged, UnitTable},
    space::RestoredKind,
    types::{Durability, KindGap, KindModes, floor_among},
    version::Version,
};

/// The contents of the files.
#[derive(Debug)]
pub struct Recovered {
    /// In any order, possibly repeated.
    pub versions: Vec<Version>,
    /// In any order, possibly repeated.
    pub imported: Vec<Imported>,
    /// All versions of Kinds in mode `none`, each with the number of the unit that it was imported for (0 = none). They
    /// count only with [`Lost::none_is_whole`]. Versions of such Kinds in the logs are from a time when they were kept,
    /// and tell nothing of the present.
    pub unkept: Vec<(u64, Version)>,
    /// The records of the checkpoint, then those of the log in order.
    pub leases: Vec<LeaseRecord>,
    pub units: Option<UnitTable>,
    /// The highest compaction.
    pub compacted: Option<Revision>,
    /// The last modes; `None` = all Kinds are in mode `none`.
    pub modes: Option<KindModes>,
    pub gaps: Vec<KindGap>,
    /// Whether it is a copy of a running engine, which has all of every Kind, rather than what logs have.
    pub copied: bool,
    /// Records that the logs may lack.
    pub lost: Lost,
    /// A revision that no assigned or promised one reached: the ceiling of the clock (R2).
    pub start: Revision,
}

/// The revision up to which the Kinds of each mode are complete: the last promise in their log. `None` after a clean
/// stop, and for the fsync log unless damage was accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lost {
    pub buffered: Option<Revision>,
    pub fsync: Option<Revision>,
    /// Whether Kinds in mode `none` are complete: a clean stop kept them and all of it was found. Otherwise they are
    /// lost entirely.
    pub none_is_whole: bool,
}

impl Default for Recovered {
    fn default() -> Self {
        Self {
            versions: Vec::new(),
            imported: Vec::new(),
            unkept: Vec::new(),
            leases: Vec::new(),
            units: None,
            compacted: None,
            modes: None,
            gaps: Vec::new(),
            copied: false,
            lost: Lost::default(),
            start: Revision::ZERO,
        }
    }
}

impl Recovered {
    /// Adds a record: first those of the checkpoint, then those of the logs, each log in order.
    pub fn push(&mut self, logged: Logged) {
        match logged {
            Logged::Version(version) => self.versions.push(version),
            Logged::Imported(imported) if imported.versions.is_empty() => self.dropped(imported.unit),
            Logged::Imported(imported) => self.imported.push(*imported),
            Logged::Lease(lease) => self.leases.push(*lease),
            Logged::Units(units) => self.units = Some(*units),
            Logged::Compaction(at) => self.compacted = self.compacted.max(Some(at)),
            Logged::Modes(modes) => self.modes = Some(*modes),
            Logged::Gap(gap) => {
                if gap.is_floor() {
                    // Every compaction of a Kind logs one.
                    self.gaps.retain(|known| {
                        known.kind != gap.kind || !known.is_floor() || known.gap.until > gap.gap.until
                    });
                }
                if !self.gaps.contains(&gap) {
                    self.gaps.push(*gap);
                }
            }
        }
    }

    /// The other engine has dropped what it had of a unit.
    fn dropped(&mut self, unit: u64) {
        self.imported.retain(|known| known.unit != unit);
        let Some(table) = &self.units else { return };
        let stays = |version: &Version| table.given_away(version.key()) != Some(unit);
        self.versions.retain(stays);
        self.imported.iter_mut().for_each(|imported| imported.versions.retain(stays));
    }

    /// What a copy has of units that are not open: the other engine goes on from that if it takes such a unit over.
    pub(crate) fn unopened(&self) -> Vec<Imported> {
        let table = self.units.clone().unwrap_or_default();
        let imported = self.imported.iter().filter(|imported| !table.has_opened(imported.unit));
        let mut unopened: Vec<Imported> = imported.cloned().collect();
        let all = self.versions.iter().chain(self.imported.iter().flat_map(|imported| &imported.versions));
        for version in all {
            if let Some(unit) = table.given_away(version.key()) {
                unopened.push(Imported { unit, versions: vec![version.clone()] });
            }
        }
        unopened
    }

    /// The highest revision that this shard may have written or is known to have promised.
    pub(crate) fn highest(&self) -> Revision {
        let unkept = self.unkept.iter().map(|(_, version)| version);
        // Those of a start are below its ceiling.
        let opened = |imported: &&Imported| {
            self.copied && self.units.as_ref().is_some_and(|units| units.has_opened(imported.unit))
        };
        let imported = self.imported.iter().filter(opened).flat_map(|imported| &imported.versions);
        let versions = self.versions.iter().chain(unkept).chain(imported).map(Version::mod_revision);
        let gaps = self.gaps.iter().map(|gap| gap.gap.until);
        let known = [self.compacted, self.lost.buffered, self.lost.fsync];
        // What was given away, or never taken over, may have the floor of a store whose clock is ahead (R3).
        let records = self.units.iter().flat_map(|units| &units.records);
        let sealed = records.filter(|record| record.state != DurableUnit::Gone).map(|record| record.floor);
        let layers = self.units.iter().flat_map(|units| &units.layers).map(|layer| layer.since);
        let known = known.into_iter().flatten().chain(sealed).chain(layers);
        versions.chain(gaps).chain(known).max().unwrap_or(Revision::ZERO)
    }
}

struct Found {
    /// The number of the unit under which it was found, 0 for none.
    number: u64,
    /// Whether it was found where its Kind's mode keeps versions.
    kept: bool,
    version: Version,
}

/// The versions of one Kind, to be replayed. Kinds are independent, so each may be replayed on any thread.
pub struct KindReplay {
    pub(crate) prefix: Key,
    versions: Vec<Found>,
    floor: Revision,
    compacted: Revision,
    units: Arc<UnitTable>,
}

impl KindReplay {
    /// The replay of a Kind of which these are all versions, each with the number of its unit.
    pub(crate) fn whole(
        prefix: Key,
        versions: Vec<(u64, Version)>,
        (floor, compacted): (Revision, Revision),
        units: Arc<UnitTable>,
    ) -> Self {
        let found = |(number, version)| Found { number, kept: true, version };
        Self { prefix, versions: versions.into_iter().map(found).collect(), floor, compacted, units }
    }

    /// The number of versions, as a measure of the work.
    #[must_use]
    pub fn len(&self) -> usize {
        self.versions.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Replays the versions that count.
    #[must_use]
    pub fn run(self) -> RestoredKind {
        let Self { prefix, versions, floor, compacted, units } = self;
        let mut highest = Revision::ZERO;
        let mut spaces: HashMap<Option<usize>, Vec<Version>> = HashMap::new();
        for Found { number, kept, version } in versions {
            let at = version.mod_revision();
            let Some(place) = units.place(number, version.key(), at, kept) else { continue };
            if units.is_own(number, version.key(), at) {
                highest = highest.max(at);
            }
            spaces.entry(place).or_default().push(version);
        }
        let mut restored = RestoredKind::new(prefix, highest);
        for (place, versions) in spaces {
            let record = place.and_then(|place| units.records.get(place));
            // A unit may have history from before this store began.
            let floor = record.map_or(floor, |record| record.floor.max(compacted));
            restored.add(record.map(|record| record.number), versions, floor);
        }
        restored
    }
}

/// Groups the recovered versions by Kind.
pub(crate) fn by_kind(
    scheme: &KindScheme,
    recovered: &mut Recovered,
    modes: &KindModes,
    (floor, compacted): (Revision, Revision),
) -> Vec<KindReplay> {
    let units = Arc::new(recovered.units.clone().unwrap_or_default());
    let (unkept, copied) = (std::mem::take(&mut recovered.unkept), recovered.copied);
    let mut kinds: Vec<KindReplay> = Vec::new();
    let mut known: HashMap<Key, usize> = HashMap::new();
    let mut add = |number: u64, version: Version, stopped: bool| {
        let prefix = match scheme.locate(version.key()) {
            Located::Object { kind } => kind,
            Located::Pseudo { .. } | Located::Health | Located::Other => b"",
        };
        let at = known.get(prefix).copied().unwrap_or_else(|| {
            let (prefix, units) = (Key::copy_from(prefix), units.clone());
            known.insert(prefix.clone(), kinds.len());
            let floor = floor.max(floor_among(&recovered.gaps, &prefix));
            kinds.push(KindReplay { prefix, versions: Vec::new(), floor, compacted, units });
            kinds.len() - 1
        });
        if let Some(kind) = kinds.get_mut(at) {
            let kept = copied || (modes.of(&kind.prefix) == Durability::None) == stopped;
            kind.versions.push(Found { number, kept, version });
        }
    };
    std::mem::take(&mut recovered.versions).into_iter().for_each(|version| add(0, version, false));
    for Imported { unit, versions } in std::mem::take(&mut recovered.imported) {
        versions.into_iter().for_each(|version| add(unit, version, false));
    }
    if recovered.lost.none_is_whole {
        unkept.into_iter().for_each(|(number, version)| add(number, version, true));
    }
    kinds
}
