//! Sizes and write volume of the Kinds, for planning a move.

use kindred_partition_config::key::{Key, KeyRange};

use super::{KindId, Space};
use crate::{types::KindLoad, units::table::View};

impl Space {
    /// The sizes of the Kinds whose objects lie in one of the ranges, in the order of their creation. They cover whole
    /// Kinds, also outside the ranges.
    pub(crate) fn loads(&self, ranges: &[KeyRange]) -> Vec<KindLoad> {
        let mut homes: Vec<KindId> = ranges.iter().flat_map(|range| self.homes(range)).collect();
        homes.sort_unstable();
        homes.dedup();
        homes.into_iter().map(|id| self.load(id)).collect()
    }

    fn load(&self, id: KindId) -> KindLoad {
        let kind = self.kind(id);
        let mut load = KindLoad {
            prefix: kind.prefix.clone(),
            keys: 0,
            live_bytes: 0,
            bytes: 0,
            held_bytes: self.kind_bytes(&kind.prefix),
            written_bytes: kind.written,
        };
        for (keys, _, live_bytes, bytes) in self.spaces(id, &View::Now).map(|keys| keys.sizes()) {
            load.keys += keys;
            load.live_bytes += live_bytes;
            load.bytes += bytes;
        }
        load
    }

    /// Each Kind's prefix and the bytes written to it since the start.
    pub(crate) fn written(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.kinds.iter().map(|kind| (&kind.prefix, kind.written))
    }
}
