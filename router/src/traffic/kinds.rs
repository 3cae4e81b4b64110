//! The traffic of each Kind.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use kindred_partition_config::kind::{ALL_ELSE, KindPrefix, KindScheme};
use kindred_partition_config::model::LimitsConfig;
use kindred_router_core::admission::rate::{Rate, RateByClient};
use kindred_router_core::admission::sizes::{Shape, Sizes};
use kindred_router_core::verb::{Counted, Verb, counted};
use kindred_transport::metrics::calls::{CODES, code_index};
use kindred_transport::metrics::histogram::Histogram;
use parking_lot::Mutex;
use tonic::Code;

/// The Kinds that are counted apart; Kubernetes has some 60, and each custom resource is one more.
pub const KINDS_MAX: usize = 512;
/// Ranges over keys of several Kinds.
pub const SEVERAL: &str = "<several>";
/// Kinds beyond [`KINDS_MAX`].
pub const OTHER: &str = "<other>";

/// Bounds of the time of a call, in seconds. At 3 s a kube-apiserver gives up its watch cache (R17).
pub const CALL_BOUNDS: [f64; 13] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0];
/// Bounds of the age of an event at its delivery, in seconds.
pub const AGE_BOUNDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 3.0, 10.0];

/// The calls of one verb.
#[derive(Debug, Default)]
pub struct VerbTraffic {
    codes: [AtomicU64; CODES.len()],
    pub seconds: Histogram<{ CALL_BOUNDS.len() }>,
    received: AtomicU64,
    sent: AtomicU64,
}

impl VerbTraffic {
    /// How many calls ended with each code, in the order of [`CODES`].
    #[must_use]
    pub fn codes(&self) -> [u64; CODES.len()] {
        self.codes.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Bytes that were received and sent.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (self.received.load(Ordering::Relaxed), self.sent.load(Ordering::Relaxed))
    }
}

/// The traffic of one Kind.
#[derive(Debug)]
pub struct KindTraffic {
    /// The Kind's name, such as `leases`, or one of the words above.
    pub name: Arc<str>,
    /// `None` for what is not one Kind.
    pub prefix: Option<KindPrefix>,
    verbs: [VerbTraffic; Verb::ALL.len()],
    watches: AtomicU64,
    messages: AtomicU64,
    message_bytes: AtomicU64,
    /// The lengths of former lists, with values and without.
    lists: Mutex<[Sizes; 2]>,
    /// How long lists waited for their turn.
    pub waited: Histogram<{ CALL_BOUNDS.len() }>,
    refused: AtomicU64,
    /// Reads and writes a second that clients may ask for; 0 for no limit.
    limits: [AtomicU32; 2],
    asked: [Rate; 2],
    /// The same of each client.
    client_limits: [AtomicU32; 2],
    asked_by: [Mutex<RateByClient>; 2],
    /// Calls beyond a limit.
    limited: AtomicU64,
    /// How old events were when they were delivered.
    pub age: Histogram<{ AGE_BOUNDS.len() }>,
}

impl KindTraffic {
    fn new(name: &str, prefix: Option<KindPrefix>) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            prefix,
            verbs: Default::default(),
            watches: AtomicU64::new(0),
            messages: AtomicU64::new(0),
            message_bytes: AtomicU64::new(0),
            lists: Mutex::default(),
            waited: Histogram::default(),
            refused: AtomicU64::new(0),
            limits: Default::default(),
            asked: Default::default(),
            client_limits: Default::default(),
            asked_by: Default::default(),
            limited: AtomicU64::new(0),
            age: Histogram::default(),
        })
    }

    /// Counts a call that ended; `bytes` were received and sent.
    pub fn ended(&self, verb: Verb, code: Code, took: Duration, (received, sent): (u64, u64)) {
        let of = &self.verbs[verb as usize];
        of.codes[code_index(code)].fetch_add(1, Ordering::Relaxed);
        of.seconds.record(took, &CALL_BOUNDS);
        of.received.fetch_add(received, Ordering::Relaxed);
        of.sent.fetch_add(sent, Ordering::Relaxed);
    }

    /// Notes the length of a list's answer.
    pub fn note_list(&self, shape: Shape, keys_only: bool, bytes: u64) {
        self.lists.lock()[usize::from(keys_only)].note(shape, bytes);
    }

    /// The expected length of a list's answer; `None` if nothing is known.
    #[must_use]
    pub fn expected(&self, shape: Shape, keys_only: bool) -> Option<u64> {
        self.lists.lock()[usize::from(keys_only)].expected(shape)
    }

    /// Notes how long a list waited for its turn.
    pub fn waited(&self, waited: Duration) {
        self.waited.record(waited, &CALL_BOUNDS);
    }

    /// Notes a list that was refused since too many waited.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Lists that were refused since too many waited.
    #[must_use]
    pub fn lists_refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether one more call of a client is within the limits of the Kind; `now` is in nanoseconds of any clock that goes
    /// on.
    pub fn is_within(&self, verb: Verb, client: &str, now: impl Fn() -> u64) -> bool {
        let side = usize::from(verb.writes());
        let limit = self.limits[side].load(Ordering::Relaxed);
        let of_client = self.client_limits[side].load(Ordering::Relaxed);
        // What a client may not ask takes nothing from the others.
        let within = (of_client == 0 || self.asked_by[side].lock().admits(client, now(), of_client))
            && (limit == 0 || self.asked[side].admits(now(), limit));
        if !within {
            self.limited.fetch_add(1, Ordering::Relaxed);
        }
        within
    }

    /// Calls that were beyond a limit.
    #[must_use]
    pub fn limited(&self) -> u64 {
        self.limited.load(Ordering::Relaxed)
    }

    fn set_limits(&self, limits: LimitsConfig) {
        let of = [
            limits.reads_per_second,
            limits.writes_per_second,
            limits.client_reads_per_second,
            limits.client_writes_per_second,
        ];
        for (limit, new) in self.limits.iter().chain(&self.client_limits).zip(of) {
            limit.store(new.unwrap_or_default(), Ordering::Relaxed);
        }
    }

    /// The calls of a verb.
    #[must_use]
    pub fn verb(&self, verb: Verb) -> &VerbTraffic {
        &self.verbs[verb as usize]
    }

    /// All verbs that somebody has used.
    pub fn verbs(&self) -> impl Iterator<Item = (Verb, &VerbTraffic)> {
        let used = |of: &VerbTraffic| of.codes().iter().any(|count| *count > 0);
        Verb::ALL.into_iter().zip(&self.verbs).filter(move |(_, of)| used(of))
    }

    /// A watch that begins, until what is returned is dropped.
    #[must_use]
    pub fn watched(self: &Arc<Self>) -> Watched {
        self.watches.fetch_add(1, Ordering::Relaxed);
        self.verbs[Verb::Watch as usize].codes[0].fetch_add(1, Ordering::Relaxed);
        Watched(self.clone())
    }

    /// Open watches.
    #[must_use]
    pub fn watches(&self) -> u64 {
        self.watches.load(Ordering::Relaxed)
    }

    /// Messages with events that watches were sent, and their bytes.
    #[must_use]
    pub fn delivered(&self) -> (u64, u64) {
        (self.messages.load(Ordering::Relaxed), self.message_bytes.load(Ordering::Relaxed))
    }
}

/// An open watch of a Kind.
#[derive(Debug)]
pub struct Watched(Arc<KindTraffic>);

impl Watched {
    /// The Kind's name.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.0.name
    }

    /// Counts a message with events; `age` is that of its first event, where it is known.
    pub fn delivered(&self, bytes: usize, age: Option<Duration>) {
        self.0.messages.fetch_add(1, Ordering::Relaxed);
        self.0.message_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if let Some(age) = age {
            self.0.age.record(age, &AGE_BOUNDS);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

/// By the Kind's stem.
type Table = HashMap<Box<[u8]>, Arc<KindTraffic>>;

/// All Kinds that somebody has asked for.
#[derive(Debug)]
pub struct Kinds {
    kinds: ArcSwap<Table>,
    /// Held by those who add a Kind.
    adding: Mutex<()>,
    rest: Arc<KindTraffic>,
    several: Arc<KindTraffic>,
    other: Arc<KindTraffic>,
}

impl Default for Kinds {
    fn default() -> Self {
        Self {
            kinds: ArcSwap::default(),
            adding: Mutex::new(()),
            rest: KindTraffic::new(ALL_ELSE, None),
            several: KindTraffic::new(SEVERAL, None),
            other: KindTraffic::new(OTHER, None),
        }
    }
}

impl Kinds {
    /// The Kind for which a request from this key to this end is counted.
    #[must_use]
    pub fn of(&self, scheme: &KindScheme, key: &[u8], range_end: &[u8]) -> Arc<KindTraffic> {
        match counted(scheme, key, range_end) {
            Counted::Rest => self.rest.clone(),
            Counted::Several => self.several.clone(),
            Counted::Kind(stem) => match self.kinds.load().get(stem) {
                Some(kind) => kind.clone(),
                None => self.add(scheme, stem),
            },
        }
    }

    #[cold]
    fn add(&self, scheme: &KindScheme, stem: &[u8]) -> Arc<KindTraffic> {
        let _adding = self.adding.lock();
        let mut kinds = Table::clone(&self.kinds.load());
        if let Some(kind) = kinds.get(stem) {
            return kind.clone();
        }
        let Some(prefix) = scheme.kind_of(stem).filter(|_| kinds.len() < KINDS_MAX) else {
            return self.other.clone();
        };
        let kind = KindTraffic::new(&scheme.name_of(&prefix), Some(prefix));
        kinds.insert(stem.into(), kind.clone());
        self.kinds.store(Arc::new(kinds));
        kind
    }

    /// Takes the limits of Kinds into use, in place of all former ones.
    pub fn set_limits(&self, scheme: &KindScheme, limits: &BTreeMap<KindPrefix, LimitsConfig>) {
        let _adding = self.adding.lock();
        let mut kinds = Table::clone(&self.kinds.load());
        for kind in kinds.values() {
            let of = kind.prefix.as_ref().and_then(|prefix| limits.get(prefix));
            kind.set_limits(of.copied().unwrap_or_default());
        }
        // A Kind with limits has a place of its own, however many others there are.
        for (prefix, limits) in limits {
            if !kinds.contains_key(prefix.stem()) {
                let kind = KindTraffic::new(&scheme.name_of(prefix), Some(prefix.clone()));
                kind.set_limits(*limits);
                kinds.insert(prefix.stem().into(), kind);
            }
        }
        self.kinds.store(Arc::new(kinds));
    }

    /// All Kinds, by name, and at the end what is not one Kind.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<KindTraffic>> {
        let mut all: Vec<_> = self.kinds.load().values().cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.extend([&self.rest, &self.several, &self.other].map(Arc::clone));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_found_again_and_the_table_is_bounded() {
        let (kinds, scheme) = (Kinds::default(), KindScheme::default());
        let of = |key: &str| kinds.of(&scheme, key.as_bytes(), b"");
        let pods = of("/registry/pods/a/b");
        assert!(Arc::ptr_eq(&pods, &of("/registry/pods/c/d")));
        assert_eq!(&*pods.name, "pods");
        assert_eq!(&*of("/registry/leases/a/b").name, "leases");
        assert_eq!(&*of("abc").name, ALL_ELSE);
        for n in 0..2 * KINDS_MAX {
            of(&format!("/registry/example.com/kind{n}s/x"));
        }
        assert_eq!(&*of("/registry/example.com/onemores/x").name, OTHER);
        assert_eq!(&*of("/registry/example.com/kind0s/x").name, "kind0s.example.com");
        assert_eq!(kinds.all().len(), KINDS_MAX + 3);
    }

    #[test]
    fn calls_and_watches_are_counted() {
        let (kinds, scheme) = (Kinds::default(), KindScheme::default());
        let pods = kinds.of(&scheme, b"/registry/pods/a/b", b"");
        pods.ended(Verb::Get, Code::Ok, Duration::from_millis(2), (10, 200));
        pods.ended(Verb::Get, Code::Unavailable, Duration::from_secs(20), (10, 0));
        let of = pods.verb(Verb::Get);
        assert_eq!((of.codes()[0], of.codes()[code_index(Code::Unavailable)], of.bytes()), (1, 1, (20, 200)));
        let watched = pods.watched();
        watched.delivered(100, Some(Duration::from_millis(2)));
        assert_eq!((pods.watches(), pods.delivered()), (1, (1, 100)));
        drop(watched);
        assert_eq!(pods.watches(), 0);
        let used: Vec<Verb> = pods.verbs().map(|(verb, _)| verb).collect();
        assert_eq!(used, [Verb::Get, Verb::Watch]);
    }

    #[test]
    fn limits_hold_for_their_kind_and_side_alone_and_go_with_their_config() {
        let (kinds, scheme) = (Kinds::default(), KindScheme::default());
        // They hold for a Kind that is not known yet, however many others there are.
        for at in 0..KINDS_MAX {
            let _ = kinds.of(&scheme, format!("/registry/example.com/junk{at}/x").as_bytes(), b"");
        }
        let pods = || kinds.of(&scheme, b"/registry/pods/a/b", b"");
        assert_eq!(&*pods().name, OTHER);
        let limits = |reads, writes| {
            let of = LimitsConfig {
                reads_per_second: reads,
                writes_per_second: writes,
                ..LimitsConfig::default()
            };
            BTreeMap::from([(scheme.resolve("pods").unwrap(), of)])
        };
        kinds.set_limits(&scheme, &limits(Some(3), None));
        let admitted = |verb| (0..50).filter(|_| pods().is_within(verb, "a", || 7)).count();
        assert_eq!((&*pods().name, admitted(Verb::Get), admitted(Verb::Update)), ("pods", 3, 50));
        assert_eq!(pods().limited(), 47);
        kinds.set_limits(&scheme, &limits(None, Some(2)));
        assert_eq!((admitted(Verb::List), admitted(Verb::Create)), (50, 2));
        kinds.set_limits(&scheme, &BTreeMap::new());
        assert_eq!((admitted(Verb::List), admitted(Verb::Delete)), (50, 50));
    }
}
