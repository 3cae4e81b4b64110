//! Progress notifications (R7): promises that no event at or below a revision is still to come on a stream.
//!
//! A request for progress fixes a target revision: the current revision of everything that the stream watches, or the present for
//! periodic progress. Until it is answered, no event above the target is delivered. So the answer comes after a bounded
//! amount of work (B3), is never below an event that was sent (A7, B1), and every watch of the stream has reached it.

use std::collections::BTreeSet;

use kindred_partition_config::ids::Revision;

use super::Watches;
use crate::{
    space::{Scope, Space},
    types::{StreamId, WatchId, WatchOut},
};

/// The progress that a stream announces once its watches have reached the target.
#[derive(Debug, Default)]
pub(super) struct ProgressTarget {
    target: Option<Revision>,
    /// Whether the client asked for it.
    manual: bool,
    /// The watches whose periodic progress is due.
    periodic: BTreeSet<WatchId>,
    /// The client asked again when the current revision was above the target: another answer is due after this one.
    again: bool,
}

impl ProgressTarget {
    pub(super) fn target(&self) -> Option<Revision> {
        self.target
    }
}

impl Watches {
    pub(crate) fn request_progress(&mut self, space: &mut Space, id: StreamId) {
        let Some(current) = self.raise_all(space, id, None) else { return };
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let progress = &mut stream.progress;
        // The answer must cover what was current when this request came in; one in progress may not.
        if *progress.target.get_or_insert(current) >= current {
            progress.manual = true;
        } else {
            progress.again = true;
        }
        Self::wake(&mut self.streams, &mut self.wakes, id);
    }

    /// The answer to a request for progress whose target every watch has reached. `None` if there is no such request. The answer is empty
    /// if it was given up or moved to a new target.
    pub(super) fn conclude_progress(&mut self, space: &mut Space, id: StreamId) -> Option<Vec<WatchOut>> {
        let stream = self.streams.get(&id)?;
        let target = stream.progress.target?;
        let behind = |key| self.watches.get(key).is_some_and(|watch| watch.next <= target);
        if stream.pending.iter().any(behind) {
            return None;
        }
        if self.holds_back(space, id, target) {
            return None;
        }
        let stream = self.streams.get(&id)?;
        let started = |key| self.watches.get(key).is_some_and(|watch| watch.has_started(target));
        let all_started = !stream.watches.is_empty() && stream.watches.values().all(started);
        let due = stream.progress.periodic.iter().filter(|id| stream.watches.get(id).is_some_and(started));
        let mut said: Vec<WatchOut> =
            due.map(|id| WatchOut::Progress { id: Some(*id), header: target }).collect();
        if stream.progress.manual && all_started {
            said.push(WatchOut::Progress { id: None, header: target });
        }
        // A watch created meanwhile may start above the target, but hardly above what is current now.
        let again = stream.progress.again || (stream.progress.manual && !all_started);
        let current = if again { self.raise_all(space, id, None) } else { None };
        let next = current.filter(|current| *current > target);
        let stream = self.streams.get_mut(&id)?;
        stream.progress =
            ProgressTarget { target: next, manual: next.is_some(), ..ProgressTarget::default() };
        if !said.is_empty() {
            stream.said(target);
        }
        Some(said)
    }

    /// Raises what the stream's watches cover to the target, including watches created since the target was fixed.
    /// Returns whether an unpublished event at or below it is in the way; its publish then wakes the stream.
    fn holds_back(&mut self, space: &mut Space, id: StreamId, target: Revision) -> bool {
        let mut waits = false;
        for scope in self.scopes(space, id) {
            space.raise_visible(&scope, target);
            waits |= space.limit(&scope) <= target;
        }
        if let Some(stream) = self.streams.get_mut(&id)
            && waits
            && !std::mem::replace(&mut stream.waits, true)
        {
            self.waiting.push(id);
        }
        waits
    }

    /// Resumes the requests for progress that waited for what is now published.
    pub(super) fn end_waits(&mut self, space: &mut Space) {
        for id in std::mem::take(&mut self.waiting) {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            let Some(target) = stream.progress.target else { continue };
            stream.waits = false;
            if !self.holds_back(space, id, target) {
                Self::wake(&mut self.streams, &mut self.wakes, id);
            }
        }
    }

    /// The scopes that the stream's watches cover.
    fn scopes(&self, space: &mut Space, id: StreamId) -> Vec<Scope> {
        let keys = self.streams.get(&id).into_iter().flat_map(|stream| stream.watches.values());
        let ranges = keys.filter_map(|key| Some(&self.watches.get(key)?.spec.range));
        ranges.map(|range| space.scope_to_raise(range)).collect()
    }

    /// Raises the scopes of all the stream's watches to the highest revision that one of them or the stream has
    /// reached, and returns it. `None` without watches.
    fn raise_all(
        &mut self,
        space: &mut Space,
        id: StreamId,
        min_revision: Option<Revision>,
    ) -> Option<Revision> {
        let stream = self.streams.get(&id)?;
        let scopes = self.scopes(space, id);
        let current = scopes.iter().map(|scope| space.visible(scope)).max()?;
        let current = current.max(stream.high.unwrap_or(current)).max(min_revision.unwrap_or(current));
        for scope in &scopes {
            space.raise_visible(scope, current);
        }
        Some(current)
    }

    /// Makes periodic progress at `promised` due for watches without events since the last tick. No unpublished event
    /// may be at or below `promised`.
    pub(crate) fn tick(&mut self, space: &mut Space, promised: Revision) {
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in ids {
            let due = self.due(id);
            if due.is_empty() {
                continue;
            }
            let Some(present) = self.raise_all(space, id, Some(promised)) else { continue };
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.progress.target.get_or_insert(present);
            stream.progress.periodic.extend(due);
            Self::wake(&mut self.streams, &mut self.wakes, id);
        }
    }

    /// The watches of a stream that are due for periodic progress. Begins their next period.
    fn due(&mut self, id: StreamId) -> Vec<WatchId> {
        let Some(stream) = self.streams.get(&id) else { return Vec::new() };
        let mut due = Vec::new();
        for (watch_id, key) in &stream.watches {
            if let Some(watch) = self.watches.get_mut(key)
                && watch.spec.progress_notify
                && std::mem::replace(&mut watch.quiet, true)
                && !watch.pending
            {
                due.push(*watch_id);
            }
        }
        due
    }
}
