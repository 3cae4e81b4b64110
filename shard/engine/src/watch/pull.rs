//! What a stream has to say next.

use kindred_partition_config::ids::Revision;

use super::{Stream, WatchKey, Watches, cursor};
use crate::{
    engine::{StreamId, WatchOut},
    space::Space,
};

/// Events looked at in one pull, so that a watch that is far behind among events of others does not hold up the loop.
pub(super) const SCAN_MAX: usize = 8192;

/// A pull in progress.
struct Pull {
    out: Vec<WatchOut>,
    bytes: usize,
    max_bytes: usize,
    scan: usize,
}

impl Pull {
    /// One revision is said however large; beyond that the limits hold.
    fn is_over(&self) -> bool {
        self.scan == 0 || (self.bytes > 0 && self.bytes >= self.max_bytes)
    }
}

impl Watches {
    /// See [`crate::engine::Engine::watch_pull`]. Control messages come first, so that `Created` stands before events;
    /// then events of the pending watches in turn, up to the progress that is due, if some is; then that; then the rest.
    pub(crate) fn pull(&mut self, space: &mut Space, id: StreamId, max_bytes: usize) -> Vec<WatchOut> {
        let Some(stream) = self.streams.get_mut(&id) else { return Vec::new() };
        let mut pull = Pull { out: stream.control.drain(..).collect(), bytes: 0, max_bytes, scan: SCAN_MAX };
        loop {
            self.deliver(space, id, &mut pull);
            if pull.is_over() {
                break;
            }
            match self.conclude_progress(space, id) {
                Some(said) => pull.out.extend(said),
                None => break,
            }
        }
        let unfinished = self.streams.get(&id).is_some_and(Stream::has_more);
        if pull.out.is_empty() && unfinished {
            Self::wake(&mut self.streams, &mut self.wakes, id);
        }
        pull.out
    }

    /// One turn over the pending watches, up to the progress that the client waits for, if it does.
    fn deliver(&mut self, space: &mut Space, id: StreamId, pull: &mut Pull) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let last = stream.wish.target().unwrap_or(Revision(i64::MAX));
        // A watch that has more gets its next turn after the others.
        let mut turns = stream.pending.len();
        let mut stuck = 0;
        while turns > stuck && !pull.is_over() {
            let Some(stream) = self.streams.get_mut(&id) else { return };
            let Some(key) = stream.pending.pop_front() else { return };
            let Some(watch) = self.watches.get(&key) else {
                // It was cancelled.
                turns -= 1;
                continue;
            };
            stream.pending.push_back(key);
            if watch.next > last {
                stuck += 1;
                continue;
            }
            stuck = 0;
            if !self.deliver_one(space, id, key, last, pull) {
                turns -= 1;
            }
        }
    }

    /// Gives a watch its next events; false when it is no longer pending. The watch stands last in its stream's queue.
    fn deliver_one(
        &mut self,
        space: &mut Space,
        id: StreamId,
        key: WatchKey,
        last: Revision,
        pull: &mut Pull,
    ) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return false };
        let Some(watch) = self.watches.get_mut(&key) else {
            stream.pending.pop_back();
            return false;
        };
        let scope = space.scope(&watch.spec.range);
        let floor = space.floor_of(&watch.spec.range);
        if watch.next < floor {
            pull.out.push(WatchOut::Compacted { id: watch.id, floor });
            stream.pending.pop_back();
            stream.watches.remove(&watch.id);
            stream.over.insert(watch.id);
            self.forget(key);
            return false;
        }
        if watch.lost {
            // It ends where it is: the rest is with the new owner.
            let next = watch.next.prev();
            watch.end = Some(watch.end.map_or(next, |end| end.min(next)));
        }
        let last = watch.end.map_or(last, |end| end.min(last));
        let max_bytes = pull.max_bytes.saturating_sub(pull.bytes);
        let batch = cursor::read(space, &watch.want(), &cursor::Bounds { last, max_bytes, scan: pull.scan });
        pull.scan = batch.scan;
        pull.bytes += batch.bytes;
        let said = batch.events.last().map(|event| event.kv.mod_revision());
        if let Some(at) = batch.unpublished {
            watch.next = watch.next.max(at);
            watch.pending = false;
            stream.pending.pop_back();
            if !std::mem::replace(&mut watch.blocked, true) {
                self.blocked.push((at, key));
            }
        } else if let Some(next) = batch.next {
            watch.next = next;
        } else if watch.end.is_none() {
            watch.pending = false;
            stream.pending.pop_back();
        }
        // With nothing left at or below its end, it is over.
        let end = watch.end.filter(|end| batch.next.or(batch.unpublished).is_none_or(|next| next > *end));
        if let Some(said) = said {
            watch.quiet = false;
            watch.next = watch.next.max(said.next());
            stream.said(said);
            // With more to come the header must not pass what was said.
            let header = if batch.next.is_some() || watch.end.is_some() { said } else { space.show(&scope) };
            pull.out.push(WatchOut::Events {
                id: watch.id,
                header,
                events: batch.events,
                prev_kv: watch.spec.prev_kv,
                fragment: watch.spec.fragment,
            });
        }
        let Some(end) = end else { return watch.pending };
        pull.out.push(WatchOut::Moved { id: watch.id, header: end });
        stream.pending.pop_back();
        stream.watches.remove(&watch.id);
        stream.over.insert(watch.id);
        self.forget(key);
        false
    }
}

impl Stream {
    fn has_more(&self) -> bool {
        !self.pending.is_empty() || (self.wish.target().is_some() && !self.waits)
    }
}
