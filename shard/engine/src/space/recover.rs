//! Restores the keyspaces after a restart.

use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::Key,
};

use super::{Frontier, MISC, Space};
use crate::{
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
}
