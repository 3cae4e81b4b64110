//! The task of one feed: reads its upstream streams, and carries out what its machine ([`FeedMachine`]) commands.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use kindred_partition_config::ids::Revision;
use kindred_proto::shard_v1 as pb;
use kindred_router_core::feed_machine::{Command, Event, FeedMachine, Limits, Message, TICK};
use kindred_router_core::gaps::Gap;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Status;

use super::feed::Feed;
use super::source::Source;
use super::{Counts, Feeds, raise};
use crate::stores::Store;

/// Bytes of a catch-up that no reader has taken; from this size on, its stores are not read.
const UNREAD_MAX: usize = 1 << 20;

struct Slot {
    store: Arc<Store>,
    source: Option<Source>,
}

struct Task {
    feeds: Arc<Feeds>,
    feed: Arc<Feed>,
    machine: FeedMachine,
    slots: Vec<Slot>,
    raising: JoinSet<Result<Revision, Status>>,
    /// Callers that get the answer of the question under way.
    asked: Vec<oneshot::Sender<Result<Revision, ()>>>,
    /// Whether the feed's streams are for its live readers.
    live: bool,
    over: bool,
}

/// Runs a feed until it ends.
pub(super) async fn run(feeds: Arc<Feeds>, feed: Arc<Feed>) {
    // The session that made the feed asks for its revision at once; so one question answers both.
    tokio::task::yield_now().await;
    let mut tick = tokio::time::interval_at(feeds.stores.ticks().next(), TICK);
    let mut task = Task::new(feeds, feed.clone());
    task.step(Event::Begin);
    // The source to poll first; it rotates.
    let mut first = 0;
    // Set anew only when it has elapsed or comes too late: advances become due, and unnecessary, with every event.
    let mut asking = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
    while !task.over {
        if task.raising.is_empty() && !feed.lock().asking.is_empty() {
            task.step(Event::CallersWait);
        }
        let due = task.machine.due();
        if let Some(due) =
            due.map(Instant::from).filter(|due| asking.is_elapsed() || *due < asking.deadline())
        {
            asking.as_mut().reset(due);
        }
        tokio::select! {
            (at, message) = next_message(&task.machine, &mut task.slots, first) => {
                task.step(Event::Message { at, message });
                first = at + 1;
                // A store that always has more must not starve the other branches.
                tokio::task::coop::consume_budget().await;
            }
            Some(revision) = task.raising.join_next(), if !task.raising.is_empty() => {
                task.on_answer(revision.unwrap_or_else(|_| Err(Status::internal("a call was given up"))));
            }
            () = feed.kick.notified() => task.step(Event::Kick),
            () = &mut asking, if due.is_some() => task.step(Event::Due),
            _ = tick.tick() => task.step(Event::Tick { has_readers: feed.has_readers() }),
        }
    }
}

/// The next message of a source that may be read, by round robin.
async fn next_message(machine: &FeedMachine, slots: &mut [Slot], first: usize) -> (usize, Message) {
    let count = slots.len();
    std::future::poll_fn(|context| {
        for at in (first..first + count).map(|at| at % count) {
            let Some(source) = slots[at].source.as_mut().filter(|_| machine.reads(at)) else { continue };
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
        let slot = |store| Slot { store: feeds.stores.get(store).clone(), source: None };
        let slots: Vec<_> = feed.key.stores().map(slot).collect();
        let limits = Limits {
            ring_bytes: feeds.options.ring_bytes,
            unread_bytes: UNREAD_MAX,
            idle: feeds.options.idle,
        };
        let live = feed.lock().state.start.is_none();
        Self {
            machine: FeedMachine::new(slots.len(), limits),
            feeds,
            feed,
            slots,
            raising: JoinSet::new(),
            asked: Vec::new(),
            live,
            over: false,
        }
    }

    fn step(&mut self, event: Event) {
        let now = Instant::now().into_std();
        let commands = self.machine.step(now, &mut self.feed.lock().state, event);
        // The lock is free again: to end a feed, its registry is locked first.
        commands.into_iter().for_each(|command| self.carry_out(command));
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Ask { delay } => self.ask(delay),
            Command::Open { at, from, delay } => self.open(at, from, delay),
            Command::CloseAll => self.slots.iter_mut().for_each(|slot| slot.source = None),
            Command::Advance { at, to } => {
                if let Some(source) = &self.slots[at].source {
                    Counts::one(&self.feeds.counts.advances);
                    source.advance(to);
                }
            }
            Command::WakeReaders => self.feed.wake_readers(),
            Command::Retire => self.over = self.over || self.feeds.retire(&self.feed),
            Command::End => {
                self.feeds.retire_ended(&self.feed);
                self.over = true;
            }
            Command::Broke { at, why } => {
                tracing::debug!(store = self.name(at), reason = why, "an upstream feed broke");
                Counts::one(&self.feeds.counts.broken);
            }
            Command::Lost { at, gap: Gap { after, until } } => {
                let store = self.name(at);
                tracing::info!(store, %after, %until, "the store restarted uncleanly: watches in between are compacted");
            }
            Command::Breach(error) => {
                tracing::error!(%error, "a feed broke its contract: its watches are cancelled as compacted");
            }
        }
    }

    fn name(&self, at: usize) -> &str {
        self.slots[at].store.name()
    }

    /// Asks the stores for their common current revision, on behalf of all callers that wait by now.
    fn ask(&mut self, delay: Duration) {
        self.asked = std::mem::take(&mut self.feed.lock().asking);
        let (stores, feed) = (self.feeds.stores.clone(), self.feed.clone());
        self.raising.spawn(async move {
            tokio::time::sleep(delay).await;
            raise::snapshot_revision(&stores, &feed.key, feed.generation()).await
        });
    }

    fn on_answer(&mut self, revision: Result<Revision, Status>) {
        if let Err(status) = &revision {
            tracing::debug!(error = status.message(), "the stores of a feed could not be asked");
        }
        let (asked, revision) = (std::mem::take(&mut self.asked), revision.ok());
        self.step(Event::Answered(revision));
        for waiting in asked {
            // The caller may have given up.
            let _ = waiting.send(revision.ok_or(()));
        }
    }

    fn open(&mut self, at: usize, from: Revision, delay: Duration) {
        Counts::one(&self.feeds.counts.opened);
        let open = pb::FeedOpen {
            ranges: super::place::wire_ranges(&self.feed.key, at),
            start: from.get(),
            generation: self.feed.generation().0,
            unit: None,
        };
        let slot = &mut self.slots[at];
        slot.source = Some(Source::open(slot.store.clone(), open, delay, self.live));
    }
}
