//! Watches that end because keys of theirs move to another store (R15a): they are given everything up to a final revision.

use kindred_partition_config::{ids::Revision, key::KeyRange};

use super::{WatchKey, Watches};
use crate::{
    space::Space,
    units::table::{UnitId, View},
};

impl Watches {
    /// Watches that touch `range` end behind `last`, to which nothing is missing.
    pub(crate) fn end(
        &mut self,
        space: &mut Space,
        range: &KeyRange,
        last: Revision,
        see: impl Fn(&mut View),
    ) {
        self.end_at(space, range, |_, _| last, see);
    }

    /// Watches that touch `range` end behind what it shows.
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
                    // It was given all that is visible, and nothing of that may have been for it: what was compacted since its
                    // last event is no loss to it.
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

    /// A unit that ending watches go on to see is dropped: those that have not come to their end have lost it.
    pub(crate) fn lost(&mut self, id: UnitId) {
        for watch in self.watches.values_mut().filter(|watch| watch.view.keeps(id)) {
            watch.lost = true;
        }
    }
}
