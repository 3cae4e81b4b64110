//! Produces the next messages of a watch stream.

use kindred_partition_config::ids::Revision;

use super::{Stream, WatchKey, Watches, cursor};
use crate::{
    space::Space,
    types::{StreamId, WatchOut},
};

/// Events examined in one pull, so that a watch far behind among events of other keys does not hold up the loop.
pub(super) const SCAN_MAX: usize = 8192;

/// A pull in progress.
struct Pull {
    out: Vec<WatchOut>,
    bytes: usize,
    max_bytes: usize,
    scan: usize,
}

impl Pull {
    /// Whether a limit is reached; one revision is sent however large it is, unless no events are wanted.
    fn is_over(&self) -> bool {
        self.scan == 0 || (self.bytes >= self.max_bytes && (self.bytes > 0 || self.max_bytes == 0))
    }
}

impl Watches {
    /// See [`crate::engine::Engine::watch_pull`]. Control messages come first, so that `Created` precedes events. Then
    /// the pending watches deliver events in turn, up to the target of the progress that is due, if any; then that
    /// progress; then the rest.
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

    /// Gives the pending watches their turns, up to the target of the progress that is due, if any.
    fn deliver(&mut self, space: &mut Space, id: StreamId, pull: &mut Pull) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let last = stream.progress.target().unwrap_or(Revision(i64::MAX));
        // A watch with more events gets its next turn after the others.
        let mut turns = stream.pending.len();
        let mut stuck = 0;
        while turns > stuck && !pull.is_over() {
            let Some(stream) = self.streams.get_mut(&id) else { return };
            let Some(key) = stream.pending.pop_front() else { return };
            let Some(watch) = self.watches.get(&key) else {
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

    /// Delivers the next events of a watch, which is last in its stream's queue. Returns false when it is no longer
    /// pending.
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
            // It ends where it is; the new owner has the rest.
            let next = watch.next.prev();
            watch.end = Some(watch.end.map_or(next, |end| end.min(next)));
        }
        let last = watch.end.map_or(last, |end| end.min(last));
        let max_bytes = pull.max_bytes.saturating_sub(pull.bytes);
        let batch = cursor::read(space, &watch.want(), &cursor::Bounds { last, max_bytes, scan: pull.scan });
        pull.scan = batch.scan;
        pull.bytes += batch.bytes;
        let said = batch.events.last().map(|event| event.kv.mod_revision());
        // The watch is over when nothing is left at or below its end.
        let end = watch.end.filter(|end| batch.next.or(batch.unpublished).is_none_or(|next| next > *end));
        match (end, batch.unpublished, batch.next) {
            // It is over, and leaves the queue below.
            (Some(_), ..) => {}
            (None, Some(at), _) => {
                watch.next = watch.next.max(at);
                watch.pending = false;
                stream.pending.pop_back();
                if !std::mem::replace(&mut watch.blocked, true) {
                    self.blocked.push((at, key));
                }
            }
            (None, None, Some(next)) => watch.next = next,
            (None, None, None) => {
                watch.pending = false;
                stream.pending.pop_back();
            }
        }
        if let Some(said) = said {
            watch.quiet = false;
            watch.next = watch.next.max(said.next());
            stream.said(said);
            // With events still to come, the header must not pass the last one sent.
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
        !self.pending.is_empty() || (self.progress.target().is_some() && !self.waits)
    }
}
