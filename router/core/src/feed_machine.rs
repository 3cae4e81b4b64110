//! One feed: which streams of its stores are open and from where, when they are read, what its readers find, and when
//! it begins anew or ends. A state machine around [`WatchMerge`]: what happens goes in as an [`Event`] with the time,
//! what is to be done comes out as [`Command`]s. `router/src/feeds/task.rs` carries them out, the simulation too.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use kindred_partition_config::ids::Revision;

use crate::asks::Asks;
use crate::feed_event::Events;
use crate::feed_pace::Pace;
use crate::feed_ring::FeedRing;
use crate::feed_state::FeedState;
use crate::gaps::Gap;
use crate::watch_merge::{self, Entry, SourceIx, WatchMerge};

/// The interval of [`Event::Tick`]. A store that has not answered an advance for this long is asked again.
pub const TICK: Duration = Duration::from_secs(1);
/// How long a store has to open a stream.
pub const OPEN_MAX: Duration = Duration::from_secs(5);
/// The pause before a stream that broke is opened again; it doubles with each time in a row.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// How long to wait before asking the stores again when a live feed could not be opened.
const REOPEN: Duration = Duration::from_millis(200);
/// How long a catch-up may wait for its readers before it ends; meanwhile it holds the windows of shared connections.
const STALLED_MAX: Duration = Duration::from_secs(5);

/// What a store sends.
#[derive(Debug)]
pub enum Message {
    /// The feed holds everything above this revision; with the gaps of the store in its ranges (R10).
    Opened(Revision, Vec<Gap>),
    /// Whole revisions in order, followed by a watermark if the store sent one.
    More(Vec<Entry<Events>>, Option<Revision>),
    /// The start is compacted; this is the first revision that the store can serve.
    Compacted(Revision),
    /// The start lies in this gap of the store; all its gaps come with it (R10).
    Lost(Gap, Vec<Gap>),
    /// The keys of the feed have moved, or are about to; the store sends no more.
    Moved,
    /// The stream is over, for this reason.
    Broken(String),
}

/// What happens to a feed. Stores are named by their places in the feed's key.
#[derive(Debug)]
pub enum Event {
    /// The feed begins. Comes once, before all others.
    Begin,
    /// A store sent this on the stream that was opened last.
    Message {
        /// The store.
        at: usize,
        /// What it sent.
        message: Message,
    },
    /// The answer to [`Command::Ask`]; `None` if a store could not be asked or could not follow.
    Answered(Option<Revision>),
    /// Callers wait for the common current revision of the stores.
    CallersWait,
    /// A reader wants a higher revision, has read, or is gone.
    Kick,
    /// The time of [`FeedMachine::due`] has come.
    Due,
    /// Comes each [`TICK`].
    Tick {
        /// Whether the feed has a reader.
        has_readers: bool,
    },
}

/// What is to be done, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Ask the stores after a delay for a revision that all of them promise. One question at a time.
    Ask {
        /// How long to wait before.
        delay: Duration,
    },
    /// Open a stream to a store in place of the one that it has.
    Open {
        /// The store.
        at: usize,
        /// The first revision.
        from: Revision,
        /// How long to wait before.
        delay: Duration,
    },
    /// Close the streams of all stores.
    CloseAll,
    /// Ask a store on its stream to promise this revision.
    Advance {
        /// The store.
        at: usize,
        /// The revision.
        to: Revision,
    },
    /// Readers find something new.
    WakeReaders,
    /// End the feed, if it has no readers.
    Retire,
    /// End the feed: its readers must look for another one.
    End,
    /// For operators: a stream broke.
    Broke {
        /// The store.
        at: usize,
        /// The reason.
        why: String,
    },
    /// For operators: a store restarted uncleanly.
    Lost {
        /// The store.
        at: usize,
        /// What it lost.
        gap: Gap,
    },
    /// For operators: a store broke its contract, or two stores assigned the same revision.
    Breach(String),
}

/// The limits of a feed.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of recent events that its ring keeps.
    pub ring_bytes: usize,
    /// Bytes of a catch-up that no reader has taken; from this size on, its stores are not read.
    pub unread_bytes: usize,
    /// How long a feed without readers is kept.
    pub idle: Duration,
}

/// A store of the feed, as a source of the merge.
#[derive(Debug)]
struct Slot {
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

/// See the text above.
#[derive(Debug)]
pub struct FeedMachine {
    limits: Limits,
    slots: Vec<Slot>,
    /// `None` while the feed is being opened.
    merge: Option<WatchMerge<Events>>,
    /// Advances that are put off, because events of the store may make them unnecessary.
    asks: Asks,
    /// Wakes that are put off, because readers are many and news frequent.
    pace: Pace,
    /// Whether a question is under way.
    asking: bool,
    /// Revisions of a catch-up that no reader has taken, with their bytes.
    unread: VecDeque<(Revision, usize)>,
    unread_bytes: usize,
    /// Since when the stores are not read because of that.
    stalled: Option<Instant>,
    /// Since when it has no readers.
    idle: Option<Instant>,
}

/// A step under way.
struct Step<'a> {
    now: Instant,
    state: &'a mut FeedState,
    commands: Vec<Command>,
}

impl FeedMachine {
    /// A feed over so many stores, before [`Event::Begin`].
    #[must_use]
    pub fn new(stores: usize, limits: Limits) -> Self {
        let slot = || Slot {
            live: false,
            after: Revision::ZERO,
            paused: false,
            failures: 0,
            asked: None,
            seen: Revision::ZERO,
        };
        Self {
            limits,
            slots: std::iter::repeat_with(slot).take(stores).collect(),
            merge: None,
            asks: Asks::new(stores),
            pace: Pace::default(),
            asking: false,
            unread: VecDeque::new(),
            unread_bytes: 0,
            stalled: None,
            idle: None,
        }
    }

    /// Whether the stream of a store may be read at present.
    #[must_use]
    pub fn reads(&self, at: usize) -> bool {
        self.unread_bytes < self.limits.unread_bytes && !self.slots[at].paused
    }

    /// When [`Event::Due`] is to come; `None` when nothing is put off.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.asks.due().into_iter().chain(self.pace.due()).min()
    }

    /// Takes one event.
    #[must_use]
    pub fn step(&mut self, now: Instant, state: &mut FeedState, event: Event) -> Vec<Command> {
        let mut step = Step { now, state, commands: Vec::new() };
        match event {
            Event::Begin => match step.state.start {
                Some(start) => self.open(&mut step, start.prev()),
                None => self.ask(&mut step, Duration::ZERO),
            },
            Event::Message { at, message } => self.on_message(&mut step, at, message),
            Event::Answered(revision) => self.on_answered(&mut step, revision),
            Event::CallersWait if self.merge.is_some() => self.ask(&mut step, Duration::ZERO),
            Event::CallersWait => {}
            Event::Kick => self.on_kick(&mut step),
            Event::Due => {
                self.ask_due(&mut step);
                if self.pace.take_due(now) {
                    step.commands.push(Command::WakeReaders);
                }
            }
            Event::Tick { has_readers } => self.on_tick(&mut step, has_readers),
        }
        step.commands
    }

    fn ask(&mut self, step: &mut Step<'_>, delay: Duration) {
        if !std::mem::replace(&mut self.asking, true) {
            step.commands.push(Command::Ask { delay });
        }
    }

    fn on_answered(&mut self, step: &mut Step<'_>, revision: Option<Revision>) {
        self.asking = false;
        if self.merge.is_none() {
            match revision {
                Some(revision) => self.open(step, revision),
                None => self.ask(step, REOPEN),
            }
        }
    }

    /// Begins the merge after this revision, and opens a stream to every store.
    fn open(&mut self, step: &mut Step<'_>, after: Revision) {
        let ring_bytes = self.limits.ring_bytes;
        self.merge = Some(WatchMerge::new(self.slots.len(), after, ring_bytes / 4));
        step.state.ring.get_or_insert_with(|| FeedRing::new(after, ring_bytes));
        for at in 0..self.slots.len() {
            // The merge assumes that its sources are open. They are not yet, so report them lost: the merge then says
            // where each begins.
            self.merge(step, watch_merge::Event::SourceLost { source: SourceIx(at) });
        }
        let to = step.state.wanted;
        self.merge(step, watch_merge::Event::Want { to });
        step.commands.push(Command::WakeReaders);
    }

    fn merge(&mut self, step: &mut Step<'_>, event: watch_merge::Event<Events>) {
        let Some(merge) = &mut self.merge else { return };
        match merge.step(event) {
            Ok(commands) => self.follow(step, commands),
            Err(error) => self.breach(step, &error),
        }
    }

    /// Cancels all readers as compacted, because a store broke its contract or two stores assigned the same revision.
    /// What was shown may be wrong, so readers must not go on as if nothing had happened (E6).
    fn breach(&mut self, step: &mut Step<'_>, error: &dyn std::error::Error) {
        step.commands.push(Command::Breach(error.to_string()));
        let floor = self.merge.as_ref().map_or(Revision::ZERO, |merge| merge.merged().next());
        self.begin_anew(step, floor.next());
    }

    fn follow(&mut self, step: &mut Step<'_>, commands: Vec<watch_merge::Command<Events>>) {
        let mut shown = Vec::new();
        for command in commands {
            match command {
                watch_merge::Command::Emit(_) | watch_merge::Command::Watermark(_) => shown.push(command),
                watch_merge::Command::Advance { source, to } => {
                    self.slots[source.0].asked = Some(step.now);
                    if self.asks.ask(source, to, step.now) {
                        step.commands.push(Command::Advance { at: source.0, to });
                    }
                }
                watch_merge::Command::Resume { source, from } => self.open_source(step, source.0, from),
                watch_merge::Command::Pause(source) => self.slots[source.0].paused = true,
                watch_merge::Command::Unpause(source) => self.slots[source.0].paused = false,
                // The next tick notes it.
                watch_merge::Command::Lagging(_) => {}
                watch_merge::Command::Compacted { floor } => return self.begin_anew(step, floor),
                // Readers are checked against the gap, which is recorded, so no floor is needed.
                watch_merge::Command::BeginAnew => return self.begin_anew(step, Revision::ZERO),
            }
        }
        if !shown.is_empty() {
            self.show(step, shown);
        }
    }

    /// Asks the stores for a watermark whose own events have not made that unnecessary in time.
    fn ask_due(&mut self, step: &mut Step<'_>) {
        let wanted = self.merge.as_ref().map_or(Revision::ZERO, WatchMerge::wanted);
        let due = self.asks.take_due(wanted, step.now);
        step.commands.extend(due.map(|(source, to)| Command::Advance { at: source.0, to }));
    }

    /// Writes events and watermarks to the ring, and wakes its readers.
    fn show(&mut self, step: &mut Step<'_>, shown: Vec<watch_merge::Command<Events>>) {
        let is_catch_up = step.state.start.is_some();
        // Bytes that a catch-up keeps for readers behind its fastest one.
        let kept_bytes = self.limits.ring_bytes.min(self.limits.unread_bytes);
        let FeedState { readers, wanted, .. } = *step.state;
        let Some(ring) = &mut step.state.ring else { return };
        let (before, mut bytes) = (ring.covered(), 0);
        for command in shown {
            let taken = match command {
                watch_merge::Command::Emit(entry) => {
                    bytes += entry.bytes;
                    if is_catch_up {
                        self.unread.push_back((entry.revision, entry.bytes));
                        self.unread_bytes += entry.bytes;
                        // The ring must not drop what no reader has taken. While that is too much, the stores are not
                        // read.
                        ring.shrink(self.unread_bytes.saturating_add(kept_bytes));
                    }
                    ring.push(entry)
                }
                watch_merge::Command::Watermark(revision) => ring.watermark(revision),
                _ => Ok(()),
            };
            if let Err(error) = taken {
                return self.breach(step, &error);
            }
        }
        // A reader waits for this revision, or reading decides how fast the stores are read.
        let is_urgent = is_catch_up || (before < wanted && ring.covered() >= wanted);
        if is_urgent {
            self.pace.woken();
        }
        if is_urgent || self.pace.news(step.now, readers, bytes) {
            step.commands.push(Command::WakeReaders);
        }
    }

    fn open_source(&mut self, step: &mut Step<'_>, at: usize, from: Revision) {
        self.asks.lost(SourceIx(at));
        let slot = &mut self.slots[at];
        slot.live = false;
        slot.paused = false;
        slot.asked = None;
        slot.after = from.prev();
        let delay = match slot.failures {
            0 => Duration::ZERO,
            n => (BACKOFF_MIN * 2_u32.saturating_pow(n.min(16) - 1)).min(BACKOFF_MAX),
        };
        step.commands.push(Command::Open { at, from, delay });
    }

    fn on_message(&mut self, step: &mut Step<'_>, at: usize, message: Message) {
        let source = SourceIx(at);
        match message {
            Message::Opened(after, gaps) => {
                Self::note(step, at, &gaps);
                self.on_opened(step, at, after);
            }
            Message::More(mut batch, watermark) => {
                let after = self.slots[at].after;
                batch.retain(|Entry { revision, .. }| *revision > after);
                if let Some(last) = batch.last() {
                    self.asks.heard(source, last.revision, step.now);
                    self.merge(step, watch_merge::Event::Events { source, batch });
                }
                // A store that has not reached the revision at which its stream was opened may send a lower watermark.
                if let Some(revision) = watermark.filter(|watermark| *watermark > after) {
                    self.merge(step, watch_merge::Event::Watermark { source, revision });
                }
            }
            Message::Compacted(floor) => {
                self.merge(step, watch_merge::Event::Compacted { source, floor });
            }
            Message::Lost(gap, all) => {
                Self::note(step, at, &all);
                // The store may refuse a start as lost only if the gap contains it.
                match gap.holds(self.slots[at].after.next()) {
                    true => self.merge(step, watch_merge::Event::RolledBack { source, gap }),
                    false => {
                        self.on_broken(step, at, "the store says that it lost what it was not asked for")
                    }
                }
            }
            // Readers keep their positions and find another feed by the next map (R16).
            Message::Moved => {
                step.state.moved = true;
                step.commands.push(Command::End);
            }
            Message::Broken(why) => self.on_broken(step, at, &why),
        }
    }

    fn on_opened(&mut self, step: &mut Step<'_>, at: usize, after: Revision) {
        let slot = &mut self.slots[at];
        if after > slot.after {
            return self.on_broken(step, at, "the feed was opened too late");
        }
        slot.live = true;
        slot.failures = 0;
        let from = slot.after.next();
        self.merge(step, watch_merge::Event::SourceResumed { source: SourceIx(at), from });
    }

    /// Records the gaps that a store reports, before readers get more, so that those who may have lost events are told.
    fn note(step: &mut Step<'_>, at: usize, gaps: &[Gap]) {
        let before = step.commands.len();
        let news = gaps.iter().copied().filter(|gap| step.state.gaps.note(*gap));
        step.commands.extend(news.map(|gap| Command::Lost { at, gap }));
        if step.commands.len() > before {
            step.commands.push(Command::WakeReaders);
        }
    }

    fn on_broken(&mut self, step: &mut Step<'_>, at: usize, why: &str) {
        step.commands.push(Command::Broke { at, why: why.to_owned() });
        let slot = &mut self.slots[at];
        slot.failures = slot.failures.saturating_add(1);
        if slot.live {
            self.merge(step, watch_merge::Event::SourceLost { source: SourceIx(at) });
        } else {
            let from = slot.after.next();
            self.open_source(step, at, from);
        }
    }

    /// Starts over because history is gone: positions below `floor` are compacted, and a live feed reopens at the
    /// present; readers further back that are not affected read a catch-up. A catch-up ends.
    fn begin_anew(&mut self, step: &mut Step<'_>, floor: Revision) {
        self.merge = None;
        step.commands.push(Command::CloseAll);
        step.state.compacted = step.state.compacted.max(floor);
        step.state.lagging.clear();
        if step.state.start.is_some() {
            step.commands.push(Command::End);
        } else {
            step.state.ring = None;
            step.state.last_encoded = None;
            self.ask(step, Duration::ZERO);
            step.commands.push(Command::WakeReaders);
        }
    }

    fn on_kick(&mut self, step: &mut Step<'_>) {
        let FeedState { wanted, read_to, .. } = *step.state;
        while let Some((_, bytes)) = self.unread.pop_front_if(|(revision, _)| *revision < read_to) {
            self.unread_bytes -= bytes;
        }
        self.stalled = None;
        self.merge(step, watch_merge::Event::Want { to: wanted });
        if step.state.start.is_some() {
            step.commands.push(Command::Retire);
        }
    }

    fn on_tick(&mut self, step: &mut Step<'_>, has_readers: bool) {
        let now = step.now;
        if has_readers {
            self.idle = None;
        } else if now.duration_since(*self.idle.get_or_insert(now)) >= self.limits.idle {
            step.commands.push(Command::Retire);
        }
        if self.unread_bytes < self.limits.unread_bytes {
            self.stalled = None;
        } else if now.duration_since(*self.stalled.get_or_insert(now)) >= STALLED_MAX {
            step.commands.push(Command::End);
        }
        self.ask_again(step);
        self.note_lags(step);
    }

    /// Repeats advances that stores have not answered for a tick.
    fn ask_again(&mut self, step: &mut Step<'_>) {
        for at in 0..self.slots.len() {
            let is_late = |asked: &mut Instant| step.now.duration_since(*asked) >= TICK;
            if self.slots[at].asked.take_if(is_late).is_some() {
                self.merge(step, watch_merge::Event::AdvanceFailed { source: SourceIx(at) });
                self.merge(step, watch_merge::Event::Retry { source: SourceIx(at) });
            }
        }
    }

    /// Records which stores hold others back and have not moved since the last tick.
    fn note_lags(&mut self, step: &mut Step<'_>) {
        let Some(merge) = &self.merge else { return };
        let holding: Vec<_> = merge.holding_back().collect();
        let mut lagging = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let position = merge.position(SourceIx(at)).unwrap_or(Revision::ZERO);
            let stands = std::mem::replace(&mut slot.seen, position) == position;
            if !slot.live || (stands && holding.contains(&SourceIx(at))) {
                let since = step.state.lagging.iter().find(|(lagging, _)| *lagging == at);
                lagging.push((at, since.map_or(step.now, |(_, since)| *since)));
            }
        }
        step.state.lagging = lagging;
    }
}

#[cfg(test)]
#[path = "feed_machine_test.rs"]
mod tests;
