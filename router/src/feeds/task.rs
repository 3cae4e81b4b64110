//! The task of one feed: owns its upstream streams and its merge, and writes its ring.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use kindred_partition_config::ids::Revision;
use kindred_proto::shard_v1 as pb;
use kindred_router_core::asks::Asks;
use kindred_router_core::feed_event::Events;
use kindred_router_core::feed_ring::FeedRing;
use kindred_router_core::gaps::Gap;
use kindred_router_core::watch_merge::{Command, Entry, Event, SourceIx, WatchMerge};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Status;

use super::feed::Feed;
use super::source::{Message, Source};
use super::{Counts, Feeds, raise};
use crate::stores::Store;

/// The interval of checks for lag and idleness. A store that has not answered an advance for this long is asked again.
const TICK: Duration = Duration::from_secs(1);
/// How long to wait before asking the stores again when a live feed could not be opened.
const REOPEN: Duration = Duration::from_millis(200);
/// Bytes of a catch-up that no reader has taken; from this size on, its stores are not read.
const UNREAD_MAX: usize = 1 << 20;
/// How long a catch-up may wait for its readers before it ends; meanwhile it holds the windows of shared connections.
const STALLED_MAX: Duration = Duration::from_secs(5);

/// A store of the feed, as a source of the merge.
struct Slot {
    store: Arc<Store>,
    source: Option<Source>,
    /// The stream is open, and the merge takes its messages.
    live: bool,
    /// The revision after which the stream was opened; everything up to there is known already.
    after: Revision,
    paused: bool,
    /// How often in a row the stream broke before it opened.
    failures: u32,
    asked: Option<Instant>,
    /// Its position in the merge at the last tick.
    seen: Revision,
}

struct Task {
    feeds: Arc<Feeds>,
    feed: Arc<Feed>,
    slots: Vec<Slot>,
    /// `None` while the feed is being opened.
    merge: Option<WatchMerge<Events>>,
    /// Advances that are put off, because events of the store may make them unnecessary.
    asks: Asks,
    raising: JoinSet<Result<Revision, Status>>,
    /// Callers that get the answer of the question under way.
    asked: Vec<oneshot::Sender<Result<Revision, ()>>>,
    /// Revisions of a catch-up that no reader has taken, with their bytes.
    unread: VecDeque<(Revision, usize)>,
    unread_bytes: usize,
    /// Bytes that a catch-up keeps for readers behind its fastest one.
    kept_bytes: usize,
    stalled: Option<Instant>,
    idle: Option<Instant>,
    over: bool,
}

/// Runs a feed until it ends.
pub(super) async fn run(feeds: Arc<Feeds>, feed: Arc<Feed>) {
    // The session that made the feed asks for its revision at once; so one question answers both.
    tokio::task::yield_now().await;
    let mut task = Task::new(feeds, feed.clone());
    let mut tick = tokio::time::interval(TICK);
    match feed.start {
        Some(start) => task.open(start.prev()),
        None => task.ask(Duration::ZERO),
    }
    // The source to poll first; it rotates.
    let mut first = 0;
    // Reset only after it has elapsed: advances become due, and unnecessary, with every event.
    let mut asking = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
    while !task.over {
        if task.raising.is_empty() && task.merge.is_some() && !feed.lock().asking.is_empty() {
            task.ask(Duration::ZERO);
        }
        let reads = task.unread_bytes < UNREAD_MAX;
        let due = task.asks.due();
        if let Some(due) = due.filter(|_| asking.is_elapsed()) {
            asking.as_mut().reset(due.into());
        }
        tokio::select! {
            (at, message) = next_message(&mut task.slots, first), if reads => {
                task.on_message(at, message);
                first = at + 1;
                // A store that always has more must not starve the other branches.
                tokio::task::coop::consume_budget().await;
            }
            Some(revision) = task.raising.join_next(), if !task.raising.is_empty() => {
                task.on_snapshot(revision.unwrap_or_else(|_| Err(Status::internal("a call was given up"))));
            }
            () = feed.kick.notified() => task.on_kick(),
            () = &mut asking, if due.is_some() => task.ask_due(),
            _ = tick.tick() => task.on_tick(),
        }
    }
}

/// The next message of a source that is not paused, by round robin.
async fn next_message(slots: &mut [Slot], first: usize) -> (usize, Message) {
    let count = slots.len();
    std::future::poll_fn(|context| {
        for at in (first..first + count).map(|at| at % count) {
            let slot = &mut slots[at];
            if slot.paused {
                continue;
            }
            let Some(source) = &mut slot.source else { continue };
            if let Poll::Ready(message) = source.poll_message(context) {
                return Poll::Ready((at, message));
            }
        }
        Poll::Pending
    })
    .await
}

impl Task {
    fn new(feeds: Arc<Feeds>, feed: Arc<Feed>) -> Self {
        let slot = |store| Slot {
            store: feeds.stores.get(store).clone(),
            source: None,
            live: false,
            after: Revision::ZERO,
            paused: false,
            failures: 0,
            asked: None,
            seen: Revision::ZERO,
        };
        let slots: Vec<_> = feed.key.stores().map(slot).collect();
        let asks = Asks::new(slots.len());
        Self {
            slots,
            kept_bytes: feeds.options.ring_bytes.min(UNREAD_MAX),
            feeds,
            feed,
            merge: None,
            asks,
            raising: JoinSet::new(),
            asked: Vec::new(),
            unread: VecDeque::new(),
            unread_bytes: 0,
            stalled: None,
            idle: None,
            over: false,
        }
    }

    /// Asks the stores for their common current revision, on behalf of all callers that wait by then.
    fn ask(&mut self, delay: Duration) {
        self.asked = std::mem::take(&mut self.feed.lock().asking);
        let (stores, feed) = (self.feeds.stores.clone(), self.feed.clone());
        self.raising.spawn(async move {
            tokio::time::sleep(delay).await;
            raise::snapshot_revision(&stores, &feed.key, feed.generation()).await
        });
    }

    fn on_snapshot(&mut self, revision: Result<Revision, Status>) {
        match &revision {
            Ok(revision) if self.merge.is_none() => self.open(*revision),
            Ok(_) => {}
            Err(status) => {
                tracing::debug!(error = status.message(), "the stores of a feed could not be asked");
            }
        }
        for waiting in self.asked.drain(..) {
            // The caller may have given up.
            let _ = waiting.send(revision.as_ref().copied().map_err(|_| ()));
        }
        if self.merge.is_none() {
            self.ask(REOPEN);
        }
    }

    /// Begins the merge after this revision, and opens a stream to every store.
    fn open(&mut self, after: Revision) {
        let ring_bytes = self.feeds.options.ring_bytes;
        self.merge = Some(WatchMerge::new(self.slots.len(), after, ring_bytes / 4));
        let wanted = {
            let mut state = self.feed.lock();
            state.ring.get_or_insert_with(|| FeedRing::new(after, ring_bytes));
            state.wanted
        };
        for at in 0..self.slots.len() {
            // The merge assumes that its sources are open. They are not yet, so report them lost: the merge then says
            // where each begins.
            self.step(Event::SourceLost { source: SourceIx(at) });
        }
        self.step(Event::Want { to: wanted });
        self.feed.wake_readers();
    }

    fn step(&mut self, event: Event<Events>) {
        let Some(merge) = &mut self.merge else { return };
        match merge.step(event) {
            Ok(commands) => self.follow(commands),
            Err(error) => self.breach(&error),
        }
    }

    /// Cancels all readers as compacted, because a store broke its contract or two stores assigned the same revision.
    /// What was shown may be wrong, so readers must not go on as if nothing had happened (E6).
    fn breach(&mut self, error: &dyn std::error::Error) {
        tracing::error!(%error, "a feed broke its contract: its watches are cancelled as compacted");
        let floor = self.merge.as_ref().map_or(Revision::ZERO, |merge| merge.merged().next());
        self.begin_anew(floor.next());
    }

    fn follow(&mut self, commands: Vec<Command<Events>>) {
        let mut told = Vec::new();
        for command in commands {
            match command {
                Command::Emit(_) | Command::Watermark(_) => told.push(command),
                Command::Advance { source, to } => {
                    let now = Instant::now();
                    self.slots[source.0].asked = Some(now);
                    if self.asks.ask(source, to, now.into_std()) {
                        self.advance(source, to);
                    }
                }
                Command::Resume { source, from } => self.open_source(source.0, from),
                Command::Pause(source) => self.slots[source.0].paused = true,
                Command::Unpause(source) => self.slots[source.0].paused = false,
                // The next tick notes it.
                Command::Lagging(_) => {}
                Command::Compacted { floor } => return self.begin_anew(floor),
                // Readers are checked against the gap, which is recorded, so no floor is needed.
                Command::BeginAnew => return self.begin_anew(Revision::ZERO),
            }
        }
        if !told.is_empty() {
            self.tell(told);
        }
    }

    fn advance(&self, source: SourceIx, to: Revision) {
        if let Some(source) = &self.slots[source.0].source {
            Counts::one(&self.feeds.counts.advances);
            source.advance(to);
        }
    }

    /// Asks the stores for a watermark whose own events have not made that unnecessary in time.
    fn ask_due(&mut self) {
        let wanted = self.merge.as_ref().map_or(Revision::ZERO, WatchMerge::wanted);
        let due: Vec<_> = self.asks.take_due(wanted, Instant::now().into_std()).collect();
        due.into_iter().for_each(|(source, to)| self.advance(source, to));
    }

    /// Writes events and watermarks to the ring, and wakes its readers.
    fn tell(&mut self, told: Vec<Command<Events>>) {
        let mut state = self.feed.lock();
        let Some(ring) = &mut state.ring else { return };
        for command in told {
            let taken = match command {
                Command::Emit(entry) => {
                    if self.feed.start.is_some() {
                        self.unread.push_back((entry.revision, entry.bytes));
                        self.unread_bytes += entry.bytes;
                        // The ring must not drop what no reader has taken. While that is too much, the stores are not
                        // read.
                        ring.shrink(self.unread_bytes.saturating_add(self.kept_bytes));
                    }
                    ring.push(entry)
                }
                Command::Watermark(revision) => ring.watermark(revision),
                _ => Ok(()),
            };
            if let Err(error) = taken {
                drop(state);
                return self.breach(&error);
            }
        }
        drop(state);
        self.feed.wake_readers();
    }

    fn open_source(&mut self, at: usize, from: Revision) {
        let live = self.feed.start.is_none();
        self.asks.lost(SourceIx(at));
        let slot = &mut self.slots[at];
        slot.live = false;
        slot.paused = false;
        slot.asked = None;
        slot.after = from.prev();
        Counts::one(&self.feeds.counts.opened);
        let open = pb::FeedOpen {
            ranges: super::place::wire_ranges(&self.feed.key, at),
            start: from.get(),
            generation: self.feed.generation(),
            unit: None,
        };
        slot.source = Some(Source::open(slot.store.clone(), open, slot.failures, live));
    }

    fn on_message(&mut self, at: usize, message: Message) {
        let source = SourceIx(at);
        match message {
            Message::Opened(after, gaps) => {
                self.note(at, &gaps);
                self.on_opened(at, after);
            }
            Message::More(mut batch, watermark) => {
                let after = self.slots[at].after;
                batch.retain(|Entry { revision, .. }| *revision > after);
                if let Some(last) = batch.last() {
                    self.asks.heard(source, last.revision, Instant::now().into_std());
                    self.step(Event::Events { source, batch });
                }
                // A store that has not reached the revision at which its stream was opened may send a lower watermark.
                if let Some(revision) = watermark.filter(|watermark| *watermark > after) {
                    self.step(Event::Watermark { source, revision });
                }
            }
            Message::Compacted(floor) => self.step(Event::Compacted { source, floor }),
            Message::Lost(gap, all) => {
                self.note(at, &all);
                // The store may refuse a start as lost only if the gap contains it.
                match gap.holds(self.slots[at].after.next()) {
                    true => self.step(Event::RolledBack { source, gap }),
                    false => self.on_broken(at, "the store says that it lost what it was not asked for"),
                }
            }
            Message::Moved => self.end_moved(at),
            Message::Broken(why) => self.on_broken(at, &why),
        }
    }

    fn on_opened(&mut self, at: usize, after: Revision) {
        let slot = &mut self.slots[at];
        if after > slot.after {
            return self.on_broken(at, "the feed was opened too late");
        }
        slot.live = true;
        slot.failures = 0;
        let from = slot.after.next();
        self.step(Event::SourceResumed { source: SourceIx(at), from });
    }

    /// Records the gaps that a store reports, before readers get more, so that those who may have lost events are told.
    fn note(&mut self, at: usize, gaps: &[Gap]) {
        let mut state = self.feed.lock();
        let mut news = gaps.iter().copied().filter(|gap| state.gaps.note(*gap)).peekable();
        if news.peek().is_none() {
            return;
        }
        let store = self.slots[at].store.name();
        for Gap { after, until } in news {
            tracing::info!(store, %after, %until, "the store restarted uncleanly: watches in between are compacted");
        }
        drop(state);
        self.feed.wake_readers();
    }

    fn on_broken(&mut self, at: usize, why: &str) {
        let slot = &mut self.slots[at];
        tracing::debug!(store = slot.store.name(), reason = why, "an upstream feed broke");
        Counts::one(&self.feeds.counts.broken);
        slot.failures = slot.failures.saturating_add(1);
        if slot.live {
            self.step(Event::SourceLost { source: SourceIx(at) });
        } else {
            let from = slot.after.next();
            self.open_source(at, from);
        }
    }

    /// Starts over because history is gone: positions below `floor` are compacted, and a live feed reopens at the
    /// present; readers further back that are not affected read a catch-up. A catch-up ends.
    fn begin_anew(&mut self, floor: Revision) {
        self.merge = None;
        self.slots.iter_mut().for_each(|slot| slot.source = None);
        {
            let mut state = self.feed.lock();
            state.compacted = state.compacted.max(floor);
            state.ring = state.ring.take().filter(|_| self.feed.start.is_some());
            state.lagging.clear();
        }
        if self.feed.start.is_some() {
            self.feeds.retire_ended(&self.feed);
            self.over = true;
        } else {
            if self.raising.is_empty() {
                self.ask(Duration::ZERO);
            }
            self.feed.wake_readers();
        }
    }

    /// Ends the feed because keys of this store are moving. Readers keep their positions and find another feed by the
    /// next map (R16).
    fn end_moved(&mut self, at: usize) {
        tracing::debug!(store = self.slots[at].store.name(), "a feed ended: its keys are moving");
        self.feed.lock().moved = true;
        self.feeds.retire_ended(&self.feed);
        self.over = true;
    }

    fn on_kick(&mut self) {
        let (wanted, read_to) = {
            let state = self.feed.lock();
            (state.wanted, state.read_to)
        };
        while let Some((_, bytes)) = self.unread.pop_front_if(|(revision, _)| *revision < read_to) {
            self.unread_bytes -= bytes;
        }
        self.stalled = None;
        self.step(Event::Want { to: wanted });
        if self.feed.start.is_some() {
            self.retire_if_unread();
        }
    }

    fn retire_if_unread(&mut self) {
        self.over = self.over || self.feeds.retire(&self.feed);
    }

    fn on_tick(&mut self) {
        let now = Instant::now();
        if self.feed.has_readers() {
            self.idle = None;
        } else if now - *self.idle.get_or_insert(now) >= self.feeds.options.idle {
            self.retire_if_unread();
        }
        if self.unread_bytes < UNREAD_MAX {
            self.stalled = None;
        } else if now - *self.stalled.get_or_insert(now) >= STALLED_MAX {
            self.feeds.retire_ended(&self.feed);
            self.over = true;
        }
        self.ask_again(now);
        self.note_lags(now);
    }

    /// Repeats advances that stores have not answered for a tick.
    fn ask_again(&mut self, now: Instant) {
        for at in 0..self.slots.len() {
            if self.slots[at].asked.is_some_and(|asked| now - asked >= TICK) {
                self.slots[at].asked = None;
                self.step(Event::AdvanceFailed { source: SourceIx(at) });
                self.step(Event::Retry { source: SourceIx(at) });
            }
        }
    }

    /// Records which stores hold others back and have not moved since the last tick.
    fn note_lags(&mut self, now: Instant) {
        let Some(merge) = &self.merge else { return };
        let holding: Vec<_> = merge.holding_back().collect();
        let mut lagging = Vec::new();
        let mut state = self.feed.lock();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let position = merge.position(SourceIx(at)).unwrap_or(Revision::ZERO);
            let stands = std::mem::replace(&mut slot.seen, position) == position;
            if !slot.live || (stands && holding.contains(&SourceIx(at))) {
                let store = slot.store.index;
                let since = state.lagging.iter().find(|(lagging, _)| *lagging == store);
                lagging.push((store, since.map_or(now, |(_, since)| *since)));
            }
        }
        state.lagging = lagging;
    }
}
