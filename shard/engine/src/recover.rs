//! An engine as its files describe it: from the newest checkpoint and the logs behind it, in which some records stand twice.
//!
//! What a start does with the records: the last one of a lease, the last modes and the last table of units count, and the
//! highest compaction. Versions come in any order; a Kind is replayed by itself, in the order of its events. What the shard
//! gave away since, what it wrote of a unit before it took it over, imports that were never sealed, and Kinds of which
//! nothing is kept are left out.
//!
//! What was lost is a [`KindGap`] for each Kind (R10); the new ones are the first thing that the engine logs, and must be
//! on disk before anything is served.

use std::sync::Arc;

use hashbrown::HashMap;
use kindred_partition_config::{
    ids::Revision,
    key::Key,
    kind::{KindScheme, Located},
};

use crate::{
    durability::{Durability, Imported, KindGap, KindModes, LeaseRecord, Logged, UnitTable},
    space::RestoredKind,
    version::Version,
};

/// What the files hold.
#[derive(Debug)]
pub struct Recovered {
    /// In any order, also twice.
    pub versions: Vec<Version>,
    /// The same.
    pub imported: Vec<Imported>,
    /// All of the Kinds of mode none, each version with the number of the unit that it was imported for (0 = none), if
    /// [`Lost::none_is_whole`]: the logs may have something of them as well, of a time when they were kept, and that says
    /// nothing of what became of it.
    pub unkept: Vec<(u64, Version)>,
    /// Those of the checkpoint, then those of the log in its order.
    pub leases: Vec<LeaseRecord>,
    /// The last one.
    pub units: Option<UnitTable>,
    /// The highest.
    pub compacted: Option<Revision>,
    /// The last ones; without any, nothing is kept.
    pub modes: Option<KindModes>,
    /// In any order.
    pub gaps: Vec<KindGap>,
    /// What the logs do not hold.
    pub lost: Lost,
    /// Above everything that the shard may have assigned or promised: the ceiling of its clock (R2).
    pub start: Revision,
}

/// Up to where nothing is missing of the Kinds of a mode: the last promise in its log. `None` after a stop in good order,
/// and for the fsync log unless damage was accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lost {
    /// Of the Kinds of mode buffered.
    pub buffered: Option<Revision>,
    /// Of those of mode fsync.
    pub fsync: Option<Revision>,
    /// Of those of mode none nothing is missing: a stop in good order kept them, and all of it was found. Else they are
    /// lost as a whole.
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
            lost: Lost::default(),
            start: Revision::ZERO,
        }
    }
}

impl Recovered {
    /// Takes in a record: those of the checkpoint first, then those of the logs, each log in its order.
    pub fn push(&mut self, logged: Logged) {
        match logged {
            Logged::Version(version) => self.versions.push(version),
            Logged::Imported(imported) => self.imported.push(*imported),
            Logged::Lease(lease) => self.leases.push(*lease),
            Logged::Units(units) => self.units = Some(*units),
            Logged::Compaction(at) => self.compacted = self.compacted.max(Some(at)),
            Logged::Modes(modes) => self.modes = Some(*modes),
            Logged::Gap(gap) => {
                if !self.gaps.contains(&gap) {
                    self.gaps.push(*gap);
                }
            }
        }
    }

    /// The highest revision of a version that this shard may have written, or of a promise that is known.
    pub(crate) fn highest(&self) -> Revision {
        let unkept = self.unkept.iter().map(|(_, version)| version);
        let versions = self.versions.iter().chain(unkept).map(Version::mod_revision);
        let gaps = self.gaps.iter().map(|gap| gap.gap.until);
        let known = [self.compacted, self.lost.buffered, self.lost.fsync];
        let sealed = self.units.iter().flat_map(|units| &units.records).map(|record| record.floor);
        let layers = self.units.iter().flat_map(|units| &units.layers).map(|layer| layer.since);
        let known = known.into_iter().flatten().chain(sealed).chain(layers);
        versions.chain(gaps).chain(known).max().unwrap_or(Revision::ZERO)
    }
}

/// A version as it was found.
struct Found {
    /// The number under which it was found.
    number: u64,
    /// The Kind's versions are kept where it was found.
    kept: bool,
    version: Version,
}

/// The versions of one Kind, to be replayed: independent of those of others, so on any thread.
pub struct KindReplay {
    pub(crate) prefix: Key,
    versions: Vec<Found>,
    floor: Revision,
    units: Arc<UnitTable>,
}

impl KindReplay {
    /// How much work it is.
    #[must_use]
    pub fn len(&self) -> usize {
        self.versions.len()
    }

    /// Whether there is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Does the work.
    #[must_use]
    pub fn run(self) -> RestoredKind {
        let Self { prefix, versions, floor, units } = self;
        let mut highest = Revision::ZERO;
        let mut spaces: HashMap<Option<usize>, Vec<Version>> = HashMap::new();
        for Found { number, kept, version } in versions {
            let at = version.mod_revision();
            let Some(place) = units.place(number, version.key(), at, kept) else { continue };
            if number == 0 {
                highest = highest.max(at);
            }
            spaces.entry(place).or_default().push(version);
        }
        let mut restored = RestoredKind::new(prefix, highest);
        for (place, versions) in spaces {
            let record = place.and_then(|place| units.records.get(place));
            let floor = record.map_or(floor, |record| record.floor.max(floor));
            restored.add(record.map(|record| record.number), versions, floor);
        }
        restored
    }
}

/// Sorts versions by their Kinds.
pub(crate) fn by_kind(
    scheme: &KindScheme,
    recovered: &mut Recovered,
    modes: &KindModes,
    floor: Revision,
) -> Vec<KindReplay> {
    let units = Arc::new(recovered.units.clone().unwrap_or_default());
    let unkept = std::mem::take(&mut recovered.unkept);
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
            kinds.push(KindReplay { prefix, versions: Vec::new(), floor, units });
            kinds.len() - 1
        });
        if let Some(kind) = kinds.get_mut(at) {
            let kept = (modes.of(&kind.prefix) == Durability::None) == stopped;
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
