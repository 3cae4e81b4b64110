//! A small correct MVCC store with clients and watches, driven by a seed. Its histories pass every check, and the tests
//! then break them on purpose.

pub mod store;

use kindred_checker::history::*;
use kindred_checker::{Check, Config, Key, Report, check};
use store::Store;

pub const PODS: &str = "/registry/pods/";
pub const NODES: &str = "/registry/minions/";

/// A small pseudo-random number generator.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// How revisions are assigned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// One counter counts 1, 2, 3 …
    Etcd,
    /// Revisions are sparse, and each Kind has its own.
    Kindred,
}

impl Flavour {
    pub fn config(self) -> Config {
        match self {
            Self::Etcd => Config::etcd(),
            Self::Kindred => Config::kindred([Key::from(PODS), Key::from(NODES)]),
        }
    }
}

/// A recorder over the store. Every call adds to the history what a correct server would have caused.
pub struct World {
    pub store: Store,
    pub history: History,
    pub now: u64,
    pub flavour: Flavour,
    sequences: std::collections::BTreeMap<StreamId, u64>,
}

impl World {
    pub fn new(flavour: Flavour) -> Self {
        let (store, history) = (Store::new(flavour), History::default());
        Self { store, history, now: 0, flavour, sequences: Default::default() }
    }

    fn tick(&mut self) -> Nanos {
        self.now += 10;
        Nanos(self.now)
    }

    /// Runs a request and records it. Returns the index of the operation.
    pub fn run(&mut self, client: u32, request: Request) -> usize {
        let call = self.tick();
        let outcome = self.store.run(&request);
        self.record(client, call, request, outcome)
    }

    /// Runs the request only if `runs`, and records an unknown outcome.
    pub fn run_unknown(&mut self, client: u32, request: Request, runs: bool) -> usize {
        let call = self.tick();
        if runs {
            self.store.run(&request);
        }
        self.record(client, call, request, Outcome::Unknown)
    }

    pub fn record(&mut self, client: u32, call: Nanos, request: Request, outcome: Outcome) -> usize {
        let returned = self.tick();
        let id = OperationId(self.history.operations.len() as u64);
        self.history.operations.push(Operation {
            id,
            client: ClientId(client),
            call,
            returned,
            request,
            outcome,
        });
        self.history.operations.len() - 1
    }

    pub fn put(&mut self, client: u32, key: &str, value: &str) -> Revision {
        let request = Request::Put { key: key.into(), value: value.into(), lease: LeaseId(0) };
        let index = self.run(client, request);
        self.header(index)
    }

    pub fn create(&mut self, client: u32, key: &str, value: &str) -> usize {
        self.run(client, Request::Create { key: key.into(), value: value.into(), lease: LeaseId(0) })
    }

    pub fn update(&mut self, client: u32, key: &str, expected: Revision, value: &str) -> usize {
        let lease = LeaseId(0);
        self.run(client, Request::Update { key: key.into(), expected, value: value.into(), lease })
    }

    pub fn delete(&mut self, client: u32, key: &str) -> Revision {
        let index = self.run(client, Request::Delete { key: key.into() });
        self.header(index)
    }

    pub fn get(&mut self, client: u32, key: &str) -> usize {
        self.run(client, Request::get(key.into()))
    }

    pub fn list(&mut self, client: u32, prefix: &str) -> usize {
        self.run(client, Request::List(List::current(KeyRange::prefix(prefix.into()))))
    }

    pub fn header(&self, index: usize) -> Revision {
        self.history.operations[index].outcome.header().expect("an answer")
    }

    /// Opens a watch that is created at once. Returns its index.
    pub fn watch(&mut self, client: u32, stream: u64, prefix: &str, options: WatchOptions) -> usize {
        let call = self.tick();
        let id = WatchId(self.history.watches.len() as u64);
        let range = KeyRange::prefix(prefix.into());
        let (client, stream) = (ClientId(client), StreamId(stream));
        let header = self.store.current(&range.key);
        self.store.cursors.push(options.start.unwrap_or(header.next()));
        let watch = Watch { id, client, stream, call, range, options, resumes: None, responses: Vec::new() };
        self.history.watches.push(watch);
        self.respond(id.0 as usize, header, WatchBody::Created);
        id.0 as usize
    }

    pub fn respond(&mut self, watch: usize, header: Revision, body: WatchBody) {
        let at = self.tick();
        let sequence = self.sequences.entry(self.history.watches[watch].stream).or_default();
        *sequence += 1;
        let response = WatchResponse { at, sequence: *sequence, header, body };
        self.history.watches[watch].responses.push(response);
    }

    /// Delivers everything new, with one response for each revision.
    pub fn deliver(&mut self, watch: usize) {
        let (range, options) =
            (self.history.watches[watch].range.clone(), self.history.watches[watch].options.clone());
        let current = self.store.current(&range.key);
        let from = self.store.cursors[watch];
        for (revision, events) in self.store.events(&range, from, &options) {
            self.respond(watch, revision, WatchBody::Events { events, fragment: false });
        }
        self.store.cursors[watch] = from.max(current.next());
    }

    /// Delivers everything new, then a progress notification for this watch alone.
    pub fn progress(&mut self, watch: usize) -> Revision {
        self.deliver(watch);
        let revision = self.store.current(&self.history.watches[watch].range.key);
        self.respond(watch, revision, WatchBody::Progress { manual: false, requested: None });
        revision
    }

    /// Answers a manual progress request on the watch's stream. All watches of that stream must be of one Kind.
    pub fn manual_progress(&mut self, watch: usize) -> Revision {
        let stream = self.history.watches[watch].stream;
        let requested = Some(self.tick());
        for other in 0..self.history.watches.len() {
            if self.history.watches[other].stream == stream {
                self.deliver(other);
            }
        }
        let revision = self.store.current(&self.history.watches[watch].range.key);
        self.respond(watch, revision, WatchBody::Progress { manual: true, requested });
        revision
    }

    /// Breaks a watch and continues it at `start` on a new stream.
    pub fn resume(&mut self, watch: usize, stream: u64, start: Revision) -> usize {
        self.respond(watch, Revision(0), WatchBody::Broken);
        let before = self.history.watches[watch].clone();
        let prefix = before.range.key.to_string();
        let options = WatchOptions { start: Some(start), ..before.options };
        let next = self.watch(before.client.0, stream, &prefix, options);
        self.history.watches[next].resumes = Some(before.id);
        next
    }

    pub fn check(&self) -> Report {
        check(&self.history, &self.flavour.config())
    }

    pub fn assert_clean(&self) {
        let report = self.check();
        assert!(report.is_clean(), "{report}");
    }

    /// The events of the response with this index.
    pub fn events(&mut self, watch: usize, response: usize) -> &mut Vec<Event> {
        match &mut self.history.watches[watch].responses[response].body {
            WatchBody::Events { events, .. } => events,
            other => panic!("no events: {other:?}"),
        }
    }

    /// The number of events in this response of the first watch.
    pub fn event_count(&self, response: usize) -> usize {
        match &self.history.watches[0].responses[response].body {
            WatchBody::Events { events, .. } => events.len(),
            _ => 0,
        }
    }

    /// The indexes of the responses that carry events.
    pub fn with_events(&self, watch: usize) -> Vec<usize> {
        let responses = self.history.watches[watch].responses.iter().enumerate();
        responses
            .filter(|(_, r)| matches!(r.body, WatchBody::Events { .. }))
            .map(|(index, _)| index)
            .collect()
    }

    /// Renumbers the responses of a watch after their order was changed. The watch must be the only one of its stream.
    pub fn renumber(&mut self, watch: usize) {
        let responses = &mut self.history.watches[watch].responses;
        let mut times: Vec<Nanos> = responses.iter().map(|response| response.at).collect();
        times.sort();
        for (index, (response, at)) in responses.iter_mut().zip(times).enumerate() {
            (response.sequence, response.at) = (index as u64 + 1, at);
        }
    }
}

/// A watch from revision `start`, with prev_kv.
pub fn from(start: i64) -> WatchOptions {
    WatchOptions { start: Some(Revision(start)), prev_kv: true, ..WatchOptions::default() }
}

/// Asserts that this check has a violation, and that no check outside `by` and `also` has one.
pub fn assert_caught(world: &World, by: Check, also: &[Check]) {
    let report = world.check();
    assert!(report.has(by), "{by:?} did not catch it:\n{report}");
    for check in report.checks() {
        assert!(check == by || also.contains(&check), "{check:?} was not expected:\n{report}");
    }
}

/// A history of many operations and watches, all correct.
pub fn busy(flavour: Flavour, seed: u64, steps: usize) -> World {
    let mut world = World::new(flavour);
    let mut rng = Rng(seed);
    let mut open: Vec<usize> = Vec::new();
    for (stream, prefix) in [PODS, PODS, NODES].into_iter().enumerate() {
        open.push(world.watch(stream as u32, stream as u64, prefix, from(1)));
    }
    open.push(world.watch(0, 10, PODS, WatchOptions::default()));
    open.push(world.watch(1, 11, PODS, WatchOptions { no_put: true, ..from(1) }));
    let mut streams = 100;
    for step in 0..steps {
        let client = rng.below(4) as u32;
        let prefix = if rng.below(3) == 0 { NODES } else { PODS };
        let key = format!("{prefix}{}", rng.below(6));
        let value = format!("v{step}");
        let lease = LeaseId(0);
        match rng.below(20) {
            0..4 => {
                world.put(client, &key, &value);
            }
            4..6 => {
                world.create(client, &key, &value);
            }
            6..9 => {
                let known = world.store.get(&key.as_str().into()).map_or(Revision(0), |kv| kv.modified);
                let stale = if rng.below(3) == 0 { known.previous() } else { known };
                world.update(client, &key, stale, &value);
            }
            9 => {
                world.delete(client, &key);
            }
            10 => {
                let expected = world.store.get(&key.as_str().into()).map_or(Revision(7), |kv| kv.modified);
                world.run(client, Request::DeleteIf { key: key.as_str().into(), expected });
            }
            11..13 => {
                world.get(client, &key);
            }
            13 => {
                let first = world.list(client, prefix);
                let revision = Some(world.header(first));
                let current = List::current(KeyRange::prefix(prefix.into()));
                world.run(client, Request::List(List { limit: 2, ..current.clone() }));
                world.put(client, &key, &value);
                world.run(client, Request::List(List { revision, limit: 3, ..current.clone() }));
                world.run(client, Request::List(List { revision, count_only: true, ..current }));
            }
            14 => {
                let request = Request::Put { key: key.as_str().into(), value: value.into(), lease };
                world.run_unknown(client, request, rng.below(2) == 0);
            }
            15 if rng.below(4) == 0 => {
                let request = Request::Delete { key: key.as_str().into() };
                world.run_unknown(client, request, rng.below(2) == 0);
            }
            15 => {
                let other = format!("{prefix}{}", 10 + rng.below(3));
                let put = |key: &str| TxnOp::Put { key: key.into(), value: value.as_str().into(), lease };
                let request = Request::Txn {
                    compares: vec![Compare::Version(key.as_str().into(), 0)],
                    success: vec![put(&key)],
                    failure: vec![
                        TxnOp::Range(List::current(KeyRange::prefix(prefix.into()))),
                        put(&key),
                        put(&other),
                    ],
                };
                world.run(client, request);
            }
            16 if rng.below(6) == 0 => {
                world.run(client, Request::DeleteRange { range: KeyRange::prefix(prefix.into()) });
            }
            16 => {
                let watch = open[rng.below(open.len() as u64) as usize];
                world.manual_progress(watch);
            }
            17 => {
                let slot = rng.below(open.len() as u64) as usize;
                let start = world.progress(open[slot]).next();
                streams += 1;
                open[slot] = world.resume(open[slot], streams, start);
            }
            _ => world.deliver(open[rng.below(open.len() as u64) as usize]),
        }
    }
    for watch in open {
        world.progress(watch);
    }
    world
}
