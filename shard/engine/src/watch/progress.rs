//! Progress (R7): promises that no event at or below a revision is still to come on a stream.
//!
//! A manual request fixes a target, the current revision of everything that the stream watches; until it is answered no
//! event above it is delivered, so the answer waits for finitely much (B1) and is never below an event that was said.

use kindred_partition_config::ids::Revision;

use super::{Stream, Watches};
use crate::{
    engine::StreamId,
    space::{Scope, Space},
};

/// A client's wish for a manual progress.
#[derive(Debug, Default)]
pub(super) struct Manual {
    target: Option<Revision>,
    /// Asked again when more than the target was current: one more answer is due after this one.
    again: bool,
}

impl Manual {
    pub(super) fn target(&self) -> Option<Revision> {
        self.target
    }
}

impl Watches {
    pub(crate) fn request_progress(&mut self, space: &mut Space, id: StreamId) {
        let Some(current) = self.raise_all(space, id, None) else { return };
        let Some(stream) = self.streams.get_mut(&id) else { return };
        match stream.manual.target {
            None => stream.manual.target = Some(current),
            // What was current when this request came in must be covered by an answer, and the one in flight may not.
            Some(target) => stream.manual.again |= current > target,
        }
        Self::wake(&mut self.streams, &mut self.wakes, id);
    }

    /// Answers a manual request whose target every watch has reached. `Some(Some(revision))` is the answer;
    /// `Some(None)` means that there is another target to deliver to, `None` that there is nothing to do.
    pub(super) fn conclude_progress(&mut self, space: &mut Space, id: StreamId) -> Option<Option<Revision>> {
        let stream = self.streams.get(&id)?;
        let target = stream.manual.target?;
        let behind = |key| self.watches.get(key).is_some_and(|watch| watch.next <= target);
        if stream.pending.iter().any(behind) {
            return None;
        }
        let said_above = stream.high.is_some_and(|high| high > target);
        let first_start = self.highest_start(stream);
        let again = stream.manual.again;
        if said_above || first_start.is_none_or(|start| start > target) {
            // A watch was created, or a periodic progress said, in the meantime.
            let current = self.raise_all(space, id, None);
            let reachable = current
                .filter(|current| *current > target && first_start.is_some_and(|start| start <= *current));
            let stream = self.streams.get_mut(&id)?;
            stream.manual = Manual { target: reachable, again: false };
            return reachable.map(|_| None);
        }
        let next = if again { self.raise_all(space, id, None) } else { None };
        let stream = self.streams.get_mut(&id)?;
        stream.manual = Manual { target: next, again: false };
        stream.said(target);
        Some(Some(target))
    }

    fn highest_start(&self, stream: &Stream) -> Option<Revision> {
        stream.watches.values().filter_map(|key| Some(self.watches.get(key)?.start)).max()
    }

    /// The highest revision that one of the stream's watches, or the stream, has come to; all are raised to it. `None`
    /// without watches.
    fn raise_all(&mut self, space: &mut Space, id: StreamId, at_least: Option<Revision>) -> Option<Revision> {
        let stream = self.streams.get(&id)?;
        let ranges = stream.watches.values().filter_map(|key| Some(&self.watches.get(key)?.spec.range));
        let scopes: Vec<Scope> = ranges.map(|range| space.scope_to_raise(range)).collect();
        let current = scopes.iter().map(|scope| space.visible(scope)).max()?;
        let current = current.max(stream.high.unwrap_or(current)).max(at_least.unwrap_or(current));
        for scope in &scopes {
            space.raise_visible(scope, current);
        }
        Some(current)
    }

    /// Periodic progress at `promised`, which nothing unpublished lies at or below, for watches that had no events since
    /// the last.
    pub(crate) fn tick(&mut self, space: &mut Space, promised: Revision) {
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in ids {
            let wanted = |watches: &Self, stream: &Stream| {
                stream
                    .watches
                    .values()
                    .any(|key| watches.watches.get(key).is_some_and(|w| w.spec.progress_notify))
            };
            if !self.streams.get(&id).is_some_and(|stream| wanted(self, stream)) {
                continue;
            }
            let Some(header) = self.raise_all(space, id, Some(promised)) else { continue };
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            let mut some = false;
            for (watch_id, key) in &stream.watches {
                let Some(watch) = self.watches.get_mut(key).filter(|w| w.spec.progress_notify) else {
                    continue;
                };
                if std::mem::replace(&mut watch.quiet, true) && !watch.pending && watch.start <= header {
                    stream.periodic.insert(*watch_id, header);
                    some = true;
                }
            }
            if some {
                stream.said(header);
                Self::wake(&mut self.streams, &mut self.wakes, id);
            }
        }
    }
}
