//! How much there is of each Kind, and how much is written to it: for those who plan a move.

use kindred_partition_config::key::{Key, KeyRange};

use super::{KindId, Space};
use crate::{engine::KindLoad, units::table::View};

impl Space {
    /// The Kinds that have keys of their own in some of the ranges, in the order in which they came; whole Kinds, also what of
    /// them lies outside of the ranges.
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

    /// Every Kind's prefix, and the bytes that were written to it since the start.
    pub(crate) fn written(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.kinds.iter().map(|kind| (&kind.prefix, kind.written))
    }
}
