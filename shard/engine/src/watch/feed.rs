//! Feeds, which routers watch. A feed is a cursor as a watch is, over one or several ranges. It also carries
//! watermarks: a watermark promises that no event of the feed's ranges at or below it is still to come (R6).
//!
//! **Invariants:** a feed that is not pending has delivered every published event of its ranges from its start on, so
//! the current revision of its ranges is a valid watermark. Watermarks are made only in a pull, behind the events that
//! they cover.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use kindred_partition_config::{ids::Revision, key::KeyRange, unit::Unit};

use super::{
    cursor::{self, Bounds, Want},
    pull::SCAN_MAX,
};
use crate::{
    space::{KindId, Scope, Space},
    types::{FeedId, FeedOut, Gap},
    units::table::{UnitId, View},
    version::Version,
};

struct Feed {
    ranges: Vec<KeyRange>,
    /// See [`cursor::are_in_order`].
    in_order: bool,
    /// The Kinds of the ranges; `None` when a range spans several.
    kinds: Option<Vec<KindId>>,
    /// The revision to announce in the first message.
    opened: Option<Revision>,
    /// The gaps to announce with it.
    gaps: Vec<Gap>,
    /// The end of the gap that the feed's start is in.
    lost_start: Option<Revision>,
    /// Every wanted event below this revision was delivered.
    next: Revision,
    /// Whether an event for it may be published at or above `next`.
    pending: bool,
    /// The revision that the next watermark must reach, if one is due.
    owed: Option<Revision>,
    /// Whether it had no events since the last tick.
    quiet: bool,
    /// Whether its end was sent.
    over: bool,
    /// The revision after which it ends, because keys of it move to another store.
    end: Option<Revision>,
    /// The units that it sees.
    view: View,
    /// Whether data that it needs to reach its end was dropped.
    lost: bool,
    /// If set, only keys of this unit.
    unit: Option<Unit>,
    /// Whether it is in the list `waiting`.
    waits: bool,
    woken: bool,
}

impl Feed {
    fn want(&self) -> Want<'_> {
        Want {
            ranges: &self.ranges,
            in_order: self.in_order,
            from: self.next,
            prev_kv: true,
            no_put: false,
            no_delete: false,
            view: &self.view,
            unit: self.unit.as_ref(),
        }
    }

    fn scopes(&self, space: &mut Space) -> Vec<Scope> {
        self.ranges.iter().map(|range| space.scope_to_raise(range)).collect()
    }

    /// The current revision of the ranges; all of them become readable at it.
    fn current(&self, space: &mut Space) -> Revision {
        let scopes = self.scopes(space);
        let shown = space.show_all(&scopes);
        // A cursor stops before the first unpublished event of every Kind in which its ranges may have keys. The
        // current revision may come from fewer Kinds: a pseudo-key that does not exist shows its Kind's.
        let unpublished = space.first_unpublished_in(&self.ranges);
        let current = unpublished.map_or(shown, |first| shown.min(first.prev()));
        match &self.unit {
            // Nothing above the final revision of a frozen unit is promised.
            Some(unit) => current.min(space.units.last_of(&unit.range).unwrap_or(current)),
            None => current,
        }
    }

    /// The current revision, raised to what the feed owes if no unpublished event is in the way. When the ranges were
    /// first raised to it, one may have been, and its publish does not repeat the raise.
    fn current_as_owed(&self, space: &mut Space) -> Revision {
        let current = self.current(space);
        match self.owed {
            Some(owed) if owed > current && self.waits_for(space, owed).is_none() => {
                let scopes = self.scopes(space);
                space.raise_all(&scopes, owed);
                self.current(space)
            }
            _ => current,
        }
    }

    /// The highest revision that one of its Kinds shows.
    fn current_somewhere(&self, space: &mut Space) -> Revision {
        let scopes = self.scopes(space);
        let shown = scopes.iter().map(|scope| space.visible_somewhere(scope));
        shown.max().unwrap_or(Revision::ZERO)
    }

    /// The first unpublished revision in its ranges, if it is at or below `to`.
    fn waits_for(&self, space: &Space, to: Revision) -> Option<Revision> {
        space.first_unpublished_in(&self.ranges).filter(|first| *first <= to)
    }

    /// Whether its events are in the logs of several Kinds.
    fn is_wide(&self) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.len() > 1)
    }

    /// The floor of the ranges: the feed can deliver nothing below.
    fn floor(&self, space: &Space) -> Revision {
        let floors = self.ranges.iter().map(|range| space.floor_of(range));
        floors.max().unwrap_or(Revision::ZERO)
    }

    fn gaps(&self, space: &Space) -> Vec<Gap> {
        let mut gaps: Vec<Gap> = match &self.unit {
            Some(unit) => space.units.of(unit).map(|record| record.gaps.clone()).unwrap_or_default(),
            None => self.ranges.iter().flat_map(|range| space.gaps_in(range)).collect(),
        };
        gaps.sort_unstable();
        gaps.dedup();
        gaps
    }

    fn owe(&mut self, watermark: Revision) {
        self.owed = self.owed.max(Some(watermark));
    }
}

/// All feeds; see the module's documentation.
#[derive(Default)]
pub(crate) struct Feeds {
    feeds: BTreeMap<FeedId, Feed>,
    by_kind: HashMap<KindId, Vec<FeedId>>,
    wide: Vec<FeedId>,
    /// Feeds whose owed watermark, or end, waits until something is published.
    waiting: Vec<FeedId>,
    /// Feeds that stopped at an unpublished event, with its revision. Later events of another Kind may be
    /// published.
    blocked: Vec<(Revision, FeedId)>,
    wakes: Vec<FeedId>,
    next_id: u64,
}

impl Feeds {
    pub(crate) fn len(&self) -> usize {
        self.feeds.len()
    }

    pub(crate) fn open(
        &mut self,
        space: &mut Space,
        ranges: Vec<KeyRange>,
        start: Option<Revision>,
    ) -> FeedId {
        self.open_with(space, ranges, start, View::Now, None)
    }

    pub(crate) fn open_unit(
        &mut self,
        space: &mut Space,
        id: UnitId,
        unit: Unit,
        start: Option<Revision>,
    ) -> FeedId {
        self.open_with(space, vec![unit.range.clone()], start, View::Only(id), Some(unit))
    }

    fn open_with(
        &mut self,
        space: &mut Space,
        mut ranges: Vec<KeyRange>,
        start: Option<Revision>,
        view: View,
        unit: Option<Unit>,
    ) -> FeedId {
        let id = FeedId(self.next_id);
        self.next_id += 1;
        let kinds: Option<Vec<KindId>> = ranges.iter().map(|range| space.kind_to_watch(range)).collect();
        let kinds = kinds.map(|mut kinds| {
            kinds.sort_unstable();
            kinds.dedup();
            kinds
        });
        match &kinds {
            Some(kinds) => kinds.iter().for_each(|kind| self.by_kind.entry(*kind).or_default().push(id)),
            None => self.wide.push(id),
        }
        let in_order = cursor::are_in_order(&mut ranges);
        let mut feed = Feed {
            ranges,
            in_order,
            kinds,
            opened: None,
            gaps: Vec::new(),
            lost_start: None,
            next: Revision::ZERO,
            pending: false,
            owed: None,
            quiet: true,
            over: false,
            end: None,
            view,
            lost: false,
            unit,
            waits: false,
            woken: false,
        };
        let current = feed.current(space);
        let start = start.unwrap_or(current.next());
        feed.opened = Some(start.prev());
        feed.gaps = feed.gaps(space);
        feed.gaps.retain(|gap| gap.until > start);
        let holding = feed.gaps.iter().filter(|gap| gap.holds_start(start));
        feed.lost_start = holding.map(|gap| gap.until).max();
        feed.next = start;
        // With several Kinds one may show more than the feed's current revision.
        feed.pending = start <= feed.current_somewhere(space);
        feed.owe(Revision::ZERO);
        self.feeds.insert(id, feed);
        self.wake(id);
        id
    }

    pub(crate) fn close(&mut self, id: FeedId) {
        self.unlist(id);
        self.feeds.remove(&id);
        self.wakes.retain(|woken| *woken != id);
        self.waiting.retain(|waits| *waits != id);
        self.blocked.retain(|(_, waits)| *waits != id);
    }

    fn unlist(&mut self, id: FeedId) {
        match self.feeds.get(&id).map(|feed| &feed.kinds) {
            Some(Some(kinds)) => {
                for kind in kinds {
                    if let Some(list) = self.by_kind.get_mut(kind) {
                        list.retain(|other| *other != id);
                    }
                }
            }
            Some(None) => self.wide.retain(|other| *other != id),
            None => {}
        }
    }

    fn wake(&mut self, id: FeedId) {
        if let Some(feed) = self.feeds.get_mut(&id)
            && !std::mem::replace(&mut feed.woken, true)
        {
            self.wakes.push(id);
        }
    }

    pub(crate) fn take_wakes(&mut self) -> Vec<FeedId> {
        let wakes = std::mem::take(&mut self.wakes);
        for id in &wakes {
            if let Some(feed) = self.feeds.get_mut(id) {
                feed.woken = false;
            }
        }
        wakes
    }

    /// Marks the feeds that these events concern as pending, and resumes those that waited for a publish.
    pub(crate) fn published(&mut self, space: &mut Space, events: &[(KindId, Version)]) {
        let unpublished = space.first_unpublished();
        self.unblock(unpublished);
        let Self { feeds, by_kind, wide, wakes, .. } = self;
        for (kind, version) in events {
            for id in by_kind.get(kind).into_iter().flatten().chain(&*wide) {
                let Some(feed) = feeds.get_mut(id) else { continue };
                if feed.pending || feed.over || !feed.want().takes(version) {
                    continue;
                }
                feed.pending = true;
                // A feed of several Kinds must also look at what another Kind publishes later, below this event.
                let from = version.mod_revision();
                let from = unpublished.filter(|_| feed.is_wide()).map_or(from, |first| first.min(from));
                feed.next = feed.next.max(from);
                if !std::mem::replace(&mut feed.woken, true) {
                    wakes.push(*id);
                }
            }
        }
        for id in std::mem::take(&mut self.waiting) {
            let Some(feed) = self.feeds.get_mut(&id) else { continue };
            feed.waits = false;
            self.wake_or_wait(space, id);
        }
    }

    /// Resumes the feeds whose blocking event is published.
    fn unblock(&mut self, unpublished: Option<Revision>) {
        if self.blocked.is_empty() {
            return;
        }
        let free = |at: Revision| unpublished.is_none_or(|first| at < first);
        let freed: Vec<FeedId> = self.blocked.extract_if(.., |(at, _)| free(*at)).map(|(_, id)| id).collect();
        for id in freed {
            let Some(feed) = self.feeds.get_mut(&id).filter(|feed| !feed.over) else { continue };
            feed.pending = true;
            self.wake(id);
        }
    }

    /// Wakes a feed, unless all that it has to send waits for a publish, which will wake it.
    fn wake_or_wait(&mut self, space: &Space, id: FeedId) {
        if !self.wait(space, id) {
            self.wake(id);
        }
    }

    /// Whether something unpublished at or below the feed's owed watermark or end holds it back. If so, the publish
    /// wakes the feed.
    fn wait(&mut self, space: &Space, id: FeedId) -> bool {
        let Some(feed) = self.feeds.get_mut(&id) else { return false };
        let wanted = feed.end.or(feed.owed).unwrap_or(Revision::ZERO);
        let waits = feed.waits_for(space, wanted).is_some();
        if waits && !std::mem::replace(&mut feed.waits, true) {
            self.waiting.push(id);
        }
        waits
    }

    /// Raises a feed's ranges to `to`, which the clock has reached; a watermark at or above it becomes due.
    pub(crate) fn raise(&mut self, space: &mut Space, id: FeedId, to: Revision) {
        let Some(feed) = self.feeds.get_mut(&id) else { return };
        if feed.end.is_some() {
            // Nothing is promised above its end, which is still to be sent.
            return;
        }
        if let Some(unit) = &feed.unit
            && space.units.last_of(&unit.range).is_some_and(|last| to > last)
        {
            feed.owe(Revision::ZERO);
            self.wake(id);
            return;
        }
        let scopes = feed.scopes(space);
        space.raise_all(&scopes, to);
        feed.owe(to);
        self.wake_or_wait(space, id);
    }

    /// Makes watermarks at `promised` due for feeds without events since the last tick. No unpublished event may be at
    /// or below `promised`.
    pub(crate) fn tick(&mut self, space: &mut Space, promised: Revision) {
        let mut ids: Vec<FeedId> = self.feeds.keys().copied().collect();
        // In a fixed order: messages must not depend on the order of a map.
        ids.sort_unstable();
        for id in ids {
            let due = self
                .feeds
                .get_mut(&id)
                .is_some_and(|feed| std::mem::replace(&mut feed.quiet, true) && !feed.pending && !feed.over);
            if due {
                self.raise(space, id, promised);
            }
        }
    }

    /// Ends the feeds that touch `range` after `last`, which the clock has reached.
    pub(crate) fn end(
        &mut self,
        space: &mut Space,
        range: &KeyRange,
        last: Revision,
        see: impl Fn(&mut View),
    ) {
        let touched = |feed: &&mut Feed| feed.unit.is_none() && feed.ranges.iter().any(|r| r.overlaps(range));
        let mut ended = Vec::new();
        for (id, feed) in self.feeds.iter_mut() {
            if !feed.over && touched(&feed) {
                see(&mut feed.view);
                if feed.end.is_none() {
                    let scopes = feed.scopes(space);
                    space.raise_all(&scopes, last);
                    feed.end = Some(last);
                    ended.push(*id);
                }
            }
        }
        ended.into_iter().for_each(|id| self.wake(id));
    }

    /// Ends the feeds that touch `range` after their current revision.
    pub(crate) fn end_now(&mut self, space: &mut Space, range: &KeyRange, see: impl Fn(&mut View)) {
        let mut ended = Vec::new();
        for (id, feed) in self.feeds.iter_mut() {
            let touched = feed.unit.is_none() && feed.ranges.iter().any(|r| r.overlaps(range));
            if !feed.over && touched {
                see(&mut feed.view);
                if feed.end.is_none() {
                    feed.end = Some(feed.current(space));
                    ended.push(*id);
                }
            }
        }
        ended.into_iter().for_each(|id| self.wake(id));
    }

    /// A unit is frozen: makes a watermark at its final revision due in the feeds of that unit alone.
    pub(crate) fn final_watermark(&mut self, id: UnitId, last: Revision) {
        let ids: Vec<FeedId> =
            self.feeds.iter().filter(|(_, f)| f.view == View::Only(id)).map(|(id, _)| *id).collect();
        for id in ids {
            if let Some(feed) = self.feeds.get_mut(&id) {
                feed.owe(last);
            }
            self.wake(id);
        }
    }

    /// A unit is released: ends the feeds of that unit alone at its final revision.
    pub(crate) fn over(&mut self, id: UnitId, last: Revision) {
        let mut ended = Vec::new();
        for (feed_id, feed) in self.feeds.iter_mut() {
            if feed.view == View::Only(id) && feed.end.is_none() {
                feed.end = Some(last);
                ended.push(*feed_id);
            }
        }
        ended.into_iter().for_each(|id| self.wake(id));
    }

    /// A unit is dropped: ends the feeds that still see it where they are.
    pub(crate) fn lost(&mut self, id: UnitId) {
        let mut ended = Vec::new();
        for (feed_id, feed) in self.feeds.iter_mut() {
            if !feed.over && (feed.view.keeps(id) || feed.view == View::Only(id)) {
                feed.lost = true;
                ended.push(*feed_id);
            }
        }
        ended.into_iter().for_each(|id| self.wake(id));
    }

    pub(crate) fn pull(&mut self, space: &mut Space, id: FeedId, max_bytes: usize) -> Option<FeedOut> {
        let feed = self.feeds.get_mut(&id)?;
        if feed.over {
            return None;
        }
        let floor = feed.floor(space);
        let gaps = std::mem::take(&mut feed.gaps);
        if (feed.pending && feed.next < floor) || feed.lost_start.is_some() {
            let floor = floor.max(feed.lost_start.unwrap_or(floor));
            feed.over = true;
            self.unlist(id);
            return Some(FeedOut { compacted: Some(floor), gaps, ..FeedOut::default() });
        }
        let mut out = FeedOut { opened: feed.opened.take(), gaps, ..FeedOut::default() };
        if feed.lost {
            // It ends where it is; the new owner has the rest.
            feed.end = Some(feed.end.map_or(feed.next.prev(), |end| end.min(feed.next.prev())));
            feed.pending = false;
        }
        if feed.pending {
            let bounds = Bounds { last: feed.end.unwrap_or(Revision(i64::MAX)), max_bytes, scan: SCAN_MAX };
            let batch = cursor::read(space, &feed.want(), &bounds);
            if let Some(last) = batch.events.last() {
                feed.next = last.kv.mod_revision().next();
            }
            out.events = batch.events;
            if let Some(at) = batch.unpublished {
                feed.next = feed.next.max(at);
                self.blocked.push((at, id));
            }
            let more = batch.next.filter(|next| feed.end.is_none_or(|end| *next <= end));
            if let Some(next) = more {
                feed.next = next;
                let silent = out.events.is_empty() && out.opened.is_none();
                if silent {
                    // The scan budget ended among events that are not for this feed.
                    self.wake(id);
                }
                return (!silent).then_some(out);
            }
            feed.pending = false;
        }
        if let Some(end) = feed.end {
            if self.wait(space, id) {
                return out.says_something().then_some(out);
            }
            out.watermark = Some(end);
            out.moved = Some(end);
            self.feeds.get_mut(&id)?.over = true;
            self.unlist(id);
            return Some(out);
        }
        if feed.owed.is_some() || !out.events.is_empty() {
            let current = feed.current_as_owed(space);
            let waits = feed.owed.is_some_and(|owed| owed > current);
            feed.next = feed.next.max(current.next());
            feed.quiet &= out.events.is_empty();
            if !waits {
                feed.owed = None;
            }
            // A watermark that is owed but not visible yet comes after the publish.
            out.watermark = (!waits || !out.events.is_empty()).then_some(current);
            if waits {
                self.wait(space, id);
            }
        }
        out.says_something().then_some(out)
    }

    /// Panics when an invariant is violated. For tests.
    pub(crate) fn validate(&self) {
        for (id, feed) in &self.feeds {
            assert!(!feed.woken || self.wakes.contains(id));
            let listed =
                self.by_kind.values().flatten().chain(&self.wide).filter(|other| *other == id).count();
            let places = if feed.over { 0 } else { feed.kinds.as_ref().map_or(1, Vec::len) };
            assert_eq!(listed, places, "{id:?}");
        }
    }
}
