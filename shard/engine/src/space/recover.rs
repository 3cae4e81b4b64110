//! The keyspaces after a restart.

use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::Key,
};

use super::{Frontier, MISC, Space};
use crate::{
    durability::{Durability, KindGap, KindModes},
    keyspace::Keyspace,
    units::table::{UnitId, Units},
    version::Version,
};

/// A Kind that was replayed.
pub struct RestoredKind {
    pub(crate) prefix: Key,
    /// The highest revision of it that this shard wrote.
    pub(crate) highest: Revision,
    /// Keys that carry leases.
    pub(crate) leased: Vec<(LeaseId, Key)>,
    keys: Keyspace,
    parts: Vec<(UnitId, Keyspace)>,
}

impl RestoredKind {
    pub(crate) fn new(prefix: Key, highest: Revision) -> Self {
        Self { prefix, highest, leased: Vec::new(), keys: Keyspace::new(), parts: Vec::new() }
    }

    /// Replays what stands in no unit, or in the one of a number.
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

impl Space {
    /// Takes in what was replayed, and what else is known; everything is shown at `start`.
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
            // Whatever was found of it was left out.
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
}
