//! Ends watches whose keys move to another store (R15a). They deliver everything up to a final revision.

use kindred_partition_config::{ids::Revision, key::KeyRange};

use super::{WatchKey, Watches};
use crate::{
    space::Space,
    units::table::{UnitId, View},
};

impl Watches {
    /// Ends the watches that touch `range` after `last`; they deliver every event up to it.
    pub(crate) fn end(
        &mut self,
        space: &mut Space,
        range: &KeyRange,
        last: Revision,
        see: impl Fn(&mut View),
    ) {
        self.end_at(space, range, |_, _| last, see);
    }

    /// Ends the watches that touch `range` after the current revision of their own ranges.
    pub(crate) fn end_now(&mut self, space: &mut Space, range: &KeyRange, see: impl Fn(&mut View)) {
        let current = |space: &mut Space, range: &KeyRange| {
            let scope = space.scope_to_raise(range);
            space.show(&scope)
        };
        self.end_at(space, range, current, see);
    }

    fn end_at(
        &mut self,
        space: &mut Space,
        range: &KeyRange,
        last: impl Fn(&mut Space, &KeyRange) -> Revision,
        see: impl Fn(&mut View),
    ) {
        let mut keys: Vec<WatchKey> = self.watches.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            let Some(watch) = self.watches.get_mut(&key) else { continue };
            if !watch.spec.range.overlaps(range) {
                continue;
            }
            see(&mut watch.view);
            if watch.end.is_some() {
                continue;
            }
            watch.end = Some(last(space, &watch.spec.range));
            if !std::mem::replace(&mut watch.pending, true) {
                if !watch.blocked {
                    // It has delivered all that is visible, which may hold nothing for it; so a compaction since its
                    // last event takes nothing from it.
                    let scope = space.scope(&watch.spec.range);
                    watch.next = watch.next.max(space.visible(&scope).next());
                }
                if let Some(stream) = self.streams.get_mut(&watch.stream) {
                    stream.pending.push_back(key);
                }
            }
            Self::wake(&mut self.streams, &mut self.wakes, watch.stream);
        }
    }

    /// A unit is dropped: the ending watches that still see it and have not reached their end cannot deliver the rest.
    pub(crate) fn lost(&mut self, id: UnitId) {
        for watch in self.watches.values_mut().filter(|watch| watch.view.keeps(id)) {
            watch.lost = true;
        }
    }
}
