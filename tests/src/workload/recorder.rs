//! The record of all clients of a run, with times of one clock.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use kindred_checker::history::{
    ClientId, History, Nanos, Operation, OperationId, Outcome, Request, Revision, StreamId, Watch, WatchId,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::keys::{KINDS, kind_of};

/// How many revisions of each Kind are remembered, so that clients can read at them.
const SHOWN_MAX: usize = 4000;

/// A revision, and the time at which a client saw it.
pub type Shown = (Nanos, Revision);

/// All clients of a run share one recorder.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    operations: Mutex<Vec<Operation>>,
    watches: Mutex<Vec<Watch>>,
    /// The revisions that clients saw, for each Kind, oldest first.
    shown: Mutex<[Vec<Shown>; KINDS.len()]>,
    /// Answers that no server should give.
    oddities: Mutex<BTreeSet<String>>,
    /// The errors of the requests whose outcome is unknown.
    unknown: Mutex<BTreeSet<String>>,
    events: AtomicUsize,
    next_operation: AtomicU64,
    next_watch: AtomicU64,
    next_stream: AtomicU64,
    next_client: AtomicU32,
    next_value: AtomicU64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// A recorder whose clock begins now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            operations: Mutex::default(),
            watches: Mutex::default(),
            shown: Mutex::default(),
            oddities: Mutex::default(),
            unknown: Mutex::default(),
            events: AtomicUsize::new(0),
            next_operation: AtomicU64::new(1),
            next_watch: AtomicU64::new(1),
            next_stream: AtomicU64::new(1),
            next_client: AtomicU32::new(1),
            next_value: AtomicU64::new(1),
        }
    }

    pub fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub fn client(&self) -> ClientId {
        ClientId(self.next_client.fetch_add(1, Ordering::Relaxed))
    }

    pub fn watch_id(&self) -> WatchId {
        WatchId(self.next_watch.fetch_add(1, Ordering::Relaxed))
    }

    pub fn stream_id(&self) -> StreamId {
        StreamId(self.next_stream.fetch_add(1, Ordering::Relaxed))
    }

    /// A value that no other write has.
    pub fn value(&self) -> String {
        format!("v{}", self.next_value.fetch_add(1, Ordering::Relaxed))
    }

    /// Records an operation that has just returned.
    pub fn operation(&self, client: ClientId, call: Nanos, request: Request, outcome: Outcome) {
        let returned = self.now();
        let id = OperationId(self.next_operation.fetch_add(1, Ordering::Relaxed));
        if let (Some(kind), Some(header)) = (kind_of_request(&request), outcome.header()) {
            self.show(kind, header);
        }
        self.operations.lock().push(Operation { id, client, call, returned, request, outcome });
    }

    /// Counts events that a watch has received.
    pub fn received(&self, events: usize) {
        self.events.fetch_add(events, Ordering::Relaxed);
    }

    /// The number of recorded operations and of received events.
    pub fn amounts(&self) -> (usize, usize) {
        (self.operations.lock().len(), self.events.load(Ordering::Relaxed))
    }

    /// Records a watch that will receive nothing more.
    pub fn watch(&self, watch: Watch) {
        self.watches.lock().push(watch);
    }

    /// Remembers that a client saw this revision of the Kind, if it is the highest so far.
    pub fn show(&self, kind: usize, revision: Revision) {
        let now = self.now();
        let shown = &mut self.shown.lock()[kind];
        if shown.last().is_some_and(|(_, last)| *last >= revision) {
            return;
        }
        if shown.len() >= SHOWN_MAX {
            shown.drain(..SHOWN_MAX / 2);
        }
        shown.push((now, revision));
    }

    /// The revisions of the Kind that clients saw, oldest first.
    pub fn shown(&self, kind: usize) -> Vec<Shown> {
        self.shown.lock()[kind].clone()
    }

    /// Records a fault that a history cannot express. It makes the run fail.
    pub fn oddity(&self, what: String) {
        self.oddities.lock().insert(what);
    }

    /// Records the error of a request whose outcome is unknown.
    pub fn unknown(&self, why: String) {
        self.unknown.lock().insert(why);
    }

    pub fn why_unknown(&self) -> Vec<String> {
        self.unknown.lock().iter().cloned().collect()
    }

    pub fn oddities(&self) -> Vec<String> {
        self.oddities.lock().iter().cloned().collect()
    }

    /// The operations and watches recorded so far.
    pub fn history(&self) -> History {
        History { operations: self.operations.lock().clone(), watches: self.watches.lock().clone() }
    }
}

/// The index of the Kind of a request; none for requests without keys.
pub fn kind_of_request(request: &Request) -> Option<usize> {
    match request {
        Request::List(list) => kind_of(&list.range.key),
        Request::Put { key, .. }
        | Request::Create { key, .. }
        | Request::Update { key, .. }
        | Request::Delete { key }
        | Request::DeleteIf { key, .. } => kind_of(key),
        Request::DeleteRange { range } => kind_of(&range.key),
        Request::Txn { compares, .. } => kind_of(compares.first()?.key()),
        Request::Compact { .. } => None,
    }
}
