//! Feeds: what a router watches. A feed is a cursor as a watch is, over one or several ranges, and it also tells how far
//! it is: a watermark promises that no event of its ranges at or below it is still to come (R6).
//!
//! **Invariants:** a feed that is not pending has been given every published event of its ranges from its start on, so
//! whatever the ranges show is a watermark. Watermarks are made in a pull only, behind the events that they cover.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use kindred_partition_config::{ids::Revision, key::KeyRange, unit::Unit};

use super::{
    cursor::{self, Bounds, Want},
    pull::SCAN_MAX,
};
use crate::{
    durability::Gap,
    engine::{FeedId, FeedOut},
    space::{KindId, Scope, Space},
    units::table::{UnitId, View},
    version::Version,
};

struct Feed {
    ranges: Vec<KeyRange>,
    /// See [`cursor::are_in_order`].
    in_order: bool,
    /// The Kinds that hold the ranges; `None` when a range spans several.
    kinds: Option<Vec<KindId>>,
    /// To be said first.
    opened: Option<Revision>,
    /// To be said with it.
    gaps: Vec<Gap>,
    /// Its start is in one of them, which ends here.
    lost_start: Option<Revision>,
    /// Everything below was delivered, or is not wanted.
    next: Revision,
    /// Something at or above `next` may be published for it.
    pending: bool,
    /// A watermark is due, not below this.
    owed: Option<Revision>,
    /// Had no events since the last tick.
    quiet: bool,
    /// Its end was said.
    over: bool,
    /// It ends behind this: keys of it are moving.
    end: Option<Revision>,
    /// Whose keys it sees.
    view: View,
    /// What it should see before its end is dropped.
    lost: bool,
    /// Only keys of this unit.
    unit: Option<Unit>,
    /// It stands in the list of those that wait.
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

    /// What the ranges show; it becomes readable in all of them.
    fn current(&self, space: &mut Space) -> Revision {
        let scopes = self.scopes(space);
        let shown = space.show_all(&scopes);
        // A cursor stops before what is unpublished in all that its ranges may hold keys in, which is more than they show
        // the revisions of: a pseudo-key that does not exist shows its Kind's.
        let unpublished = space.first_unpublished_in(&self.ranges);
        let current = unpublished.map_or(shown, |first| shown.min(first.prev()));
        match &self.unit {
            // Of a frozen unit nothing above its final revision is promised.
            Some(unit) => current.min(space.units.last_of(&unit.range).unwrap_or(current)),
            None => current,
        }
    }

    /// The same, when it is at or above what the feed owes, or will be only when more is published: what was unpublished when
    /// its ranges were raised to that may have become visible since, without the raise.
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

    /// The highest that one of its Kinds shows.
    fn current_somewhere(&self, space: &mut Space) -> Revision {
        let scopes = self.scopes(space);
        let shown = scopes.iter().map(|scope| space.visible_somewhere(scope));
        shown.max().unwrap_or(Revision::ZERO)
    }

    /// Something unpublished of its ranges at or below a revision.
    fn waits_for(&self, space: &Space, to: Revision) -> Option<Revision> {
        space.first_unpublished_in(&self.ranges).filter(|first| *first <= to)
    }

    /// Whether its events stand in the logs of several Kinds.
    fn is_wide(&self) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.len() > 1)
    }

    /// Nothing below can be given to it.
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

/// All feeds; see the module's text.
#[derive(Default)]
pub(crate) struct Feeds {
    feeds: BTreeMap<FeedId, Feed>,
    by_kind: HashMap<KindId, Vec<FeedId>>,
    wide: Vec<FeedId>,
    /// Feeds that owe a watermark which something unpublished holds back.
    waiting: Vec<FeedId>,
    /// Feeds that stopped before an event that was not published, with its revision: behind it something of another Kind
    /// may be.
    blocked: Vec<(Revision, FeedId)>,
    wakes: Vec<FeedId>,
    next_id: u64,
}

impl Feeds {
    pub(crate) fn len(&self) -> usize {
        self.feeds.len()
    }

    /// See [`crate::engine::Engine::feed_open`].
    pub(crate) fn open(
        &mut self,
        space: &mut Space,
        ranges: Vec<KeyRange>,
        start: Option<Revision>,
    ) -> FeedId {
        self.open_with(space, ranges, start, View::Now, None)
    }

    /// See [`crate::engine::Engine::unit_feed_open`].
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
        // Of several Kinds one may show more.
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

    /// Marks the feeds that these events concern, and those that waited for some to be published.
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
                // One that sees several Kinds has to look at what is published of another later, too.
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

    /// Goes on with feeds that stopped before what is published now.
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

    /// Wakes a feed, unless it has nothing to say before something is published: then that wakes it.
    fn wake_or_wait(&mut self, space: &Space, id: FeedId) {
        if !self.wait(space, id) {
            self.wake(id);
        }
    }

    /// Whether something unpublished is at or below what a feed owes, or its end: then it is woken when it is not.
    fn wait(&mut self, space: &Space, id: FeedId) -> bool {
        let Some(feed) = self.feeds.get_mut(&id) else { return false };
        let wanted = feed.end.or(feed.owed).unwrap_or(Revision::ZERO);
        let waits = feed.waits_for(space, wanted).is_some();
        if waits && !std::mem::replace(&mut feed.waits, true) {
            self.waiting.push(id);
        }
        waits
    }

    /// Raises a feed's ranges to `to`, which the clock has come to, and owes a watermark not below it.
    pub(crate) fn raise(&mut self, space: &mut Space, id: FeedId, to: Revision) {
        let Some(feed) = self.feeds.get_mut(&id) else { return };
        if feed.end.is_some() {
            // Nothing is promised above its end, and that is on its way.
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

    /// Periodic watermarks at `promised`, which nothing unpublished lies at or below, for feeds that had no events
    /// since the last.
    pub(crate) fn tick(&mut self, space: &mut Space, promised: Revision) {
        let mut ids: Vec<FeedId> = self.feeds.keys().copied().collect();
        // In an order of their own: what a feed is told must not hang on the hash map's.
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

    /// Feeds that touch `range` end behind `last`, which the clock has come to.
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

    /// Feeds that touch `range` end behind what they show.
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

    /// A unit is frozen: feeds of it alone say how far it is.
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

    /// A unit is hidden: feeds of it alone are over where they are.
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

    /// A unit that ending feeds go on to see is dropped: those that have not come to their end have lost it.
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

    /// See [`crate::engine::Engine::feed_pull`].
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
            // It ends where it is: the rest is with the new owner.
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
                    // It had to stop among events that are not for it.
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
            // What is owed and not visible yet comes after the publish.
            out.watermark = (!waits || !out.events.is_empty()).then_some(current);
            if waits {
                self.wait(space, id);
            }
        }
        out.says_something().then_some(out)
    }

    /// Panics when something is not as it must be. For tests.
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
