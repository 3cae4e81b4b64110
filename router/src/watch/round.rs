//! Carries out what the progress machine decides.

use std::time::Duration;

use kindred_partition_config::ids::Revision;
use kindred_proto::shard_v1::KeyRange;
use kindred_router_core::progress::Command;
use kindred_router_core::store::StoreIx;
use kindred_wire::kv::WatchHead;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::message::{self, NO_WATCH};
use super::session::Session;
use crate::execute::Deadline;
use crate::execute::compact::raise;

/// How long a round may take; the client asks again.
pub const ROUND_MAX: Duration = Duration::from_secs(1);
/// Most ranges named to a store; beyond, all its keys.
const RANGES_MAX: usize = 32;

/// How a call on a store ended.
#[derive(Debug)]
pub(super) enum Raised {
    /// Its current revision.
    Current(StoreIx, Revision),
    /// It was raised to this target.
    To(StoreIx, Revision),
    /// It could not be asked.
    Failed,
}

impl Session {
    /// The stores of the client's watches.
    fn watched_stores(&self) -> Vec<StoreIx> {
        let mut stores: Vec<_> =
            self.watches.values().filter(|watch| watch.announced).map(|watch| watch.store).collect();
        stores.sort_unstable();
        stores.dedup();
        stores
    }

    /// Whether something can be promised at all: every watch is confirmed on its present stream, and no stock etcd,
    /// which cannot be raised, is mixed with another store.
    fn can_promise(&self, stores: &[StoreIx]) -> bool {
        let live = self.watches.values().all(|watch| watch.live || !watch.announced);
        live && (stores.len() < 2 || stores.iter().all(|store| self.app.stores.get(*store).is_shard()))
    }

    pub(super) fn on_progress_request(&mut self) {
        let stores = self.watched_stores();
        if self.can_promise(&stores) {
            let commands = self.progress.request(&stores);
            self.follow(commands);
        }
    }

    pub(super) fn on_progressed(&mut self, store: StoreIx, at: Revision) {
        if !self.can_promise(&self.watched_stores()) {
            return;
        }
        let floor = self.watches.values().filter(|watch| watch.announced).map(|w| w.floor).max().unwrap_or(0);
        let commands = self.progress.progressed(store, at, |at| floor > at.get());
        self.follow(commands);
    }

    pub(super) fn on_raised(&mut self, raised: Raised) {
        let commands = match raised {
            Raised::Current(store, revision) => self.progress.current(store, revision),
            Raised::To(store, to) => self.progress.raised(store, to),
            Raised::Failed => return self.abort_round(),
        };
        self.follow(commands);
    }

    /// The watches of the stream, or their upstream streams, are others now.
    pub(super) fn watches_changed(&mut self) {
        let stores = self.watched_stores();
        if self.progress.in_round() && !self.can_promise(&stores) {
            return self.abort_round();
        }
        if self.progress.in_round() {
            // Answers of the round that ends must not count in the one that begins.
            self.calls = JoinSet::new();
        }
        let commands = self.progress.changed(&stores);
        self.follow(commands);
    }

    pub(super) fn abort_round(&mut self) {
        self.calls = JoinSet::new();
        let commands = self.progress.abort();
        self.follow(commands);
    }

    pub(super) fn expire_round(&mut self) {
        if self.round_since.is_some_and(|since| since.elapsed() >= ROUND_MAX) {
            self.abort_round();
        }
    }

    pub(super) fn follow(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Ask(store) => {
                    self.round_since = Some(Instant::now());
                    self.call(store, Revision::ZERO, false);
                }
                Command::Raise(store, to) => self.call(store, to, true),
                Command::Forward(store) => {
                    if let Some(upstream) = self.upstreams.get(&store) {
                        // A request that finds no room is one that the client repeats.
                        let _ = upstream.send(message::progress());
                    }
                }
                Command::Answer(at) => {
                    for watch in self.watches.values_mut().filter(|watch| watch.announced) {
                        watch.next = watch.next.max(at.get() + 1);
                    }
                    let header = self.app.identity.header(at.get());
                    self.outgoing.push_back(message::own(header, NO_WATCH, WatchHead::default()));
                }
                Command::Release => {
                    self.held_bytes = 0;
                    self.outgoing.extend(self.held.drain(..).map(|(_, message)| message));
                }
            }
        }
        if !self.progress.in_round() {
            self.round_since = None;
        }
    }

    fn call(&mut self, index: StoreIx, to: Revision, raising: bool) {
        let store = self.app.stores.get(index).clone();
        let mut ranges: Vec<KeyRange> = self
            .watches
            .values()
            .filter(|watch| watch.store == index)
            .take(RANGES_MAX + 1)
            .map(|watch| KeyRange {
                key: watch.create.key.clone(),
                range_end: watch.create.range_end.clone(),
            })
            .collect();
        if ranges.len() > RANGES_MAX {
            ranges = crate::execute::compact::everything();
        }
        self.calls.spawn(async move {
            match raise(&store, ranges, to, Deadline::within(ROUND_MAX)).await {
                Ok(_) if raising => Raised::To(index, to),
                Ok(current) => Raised::Current(index, current),
                Err(_) => Raised::Failed,
            }
        });
    }
}
