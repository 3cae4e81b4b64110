//! Admits long lists, a few at a time, so that they do not delay everything else: the tasks and clocks around
//! [`Lane`].
//!
//! A list is long if former lists of its Kind were, or if nothing is known of them and it has no limit. It holds its
//! place while its answer is produced. What a slow client has not read of a finished answer is bounded elsewhere
//! (`kindred_transport::unread`), so that such a client cannot keep others out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kindred_router_core::admission::sizes::Shape;
use kindred_router_core::admission::{Begun, Entry, Lane, Limits, Ticket};
use kindred_router_core::verb::Verb;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::Status;

use crate::traffic::kinds::KindTraffic;

/// An answer that is expected to be as long is long: twenty seats of Kubernetes' priority and fairness.
pub const LONG_BYTES: u64 = 2 << 20;
/// A list of a Kind of which nothing is known is long if it may have more keys.
const UNKNOWN_KEYS: u64 = 1000;
/// How late the tasks of this router may be when a list begins.
const LATE: Duration = Duration::from_millis(20);
/// The longest time that a list waits for the router to have time.
const LATE_MAX: Duration = Duration::from_secs(2);
/// How long a stream of an answer holds its place at most; its client makes its pace.
const STREAM_HOLD: Duration = Duration::from_secs(5);

/// Whether lists are held back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Long lists wait for their turn, and what is beyond the limits of a Kind is refused.
    #[default]
    Enforce,
    /// Nothing waits or is refused; metrics tell what would have been.
    Observe,
    Off,
}

/// The lane of this router.
#[derive(Debug)]
pub struct Admission {
    lane: Mutex<Lane<oneshot::Sender<Permit>>>,
    mode: Mode,
    began: Instant,
    /// Lists that would have waited.
    observed: AtomicU64,
}

/// A list's place; the next one begins when it is dropped.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<Admission>,
    bytes: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let begun = self.admission.lane.lock().ended(self.bytes);
        self.admission.clone().begin(begun);
    }
}

/// A list that waits; it gives up when this is dropped.
struct Waiting<'a> {
    admission: &'a Arc<Admission>,
    client: &'a str,
    ticket: Ticket,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let begun = self.admission.lane.lock().gave_up(self.client, self.ticket);
        self.admission.clone().begin(begun);
    }
}

impl Admission {
    #[must_use]
    pub fn new(mode: Mode, limits: Limits) -> Arc<Self> {
        let limits = Limits { lists: limits.lists.max(1), ..limits };
        Arc::new(Self {
            lane: Mutex::new(Lane::new(limits)),
            mode,
            began: Instant::now(),
            observed: AtomicU64::new(0),
        })
    }

    /// Lists that run in the lane, that wait for it, and that would have waited.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, u64) {
        let (running, waiting) = self.lane.lock().counts();
        (running, waiting, self.observed.load(Ordering::Relaxed))
    }

    /// Hands places to lists that begin. A client may have gone meanwhile: its place goes to the next.
    fn begin(self: Arc<Self>, begun: Vec<Begun<oneshot::Sender<Permit>>>) {
        for (bytes, waiter) in begun {
            // Dropped outside of the lock, which a permit takes.
            drop(waiter.send(Permit { admission: self.clone(), bytes }));
        }
    }

    /// Refuses a call that is beyond the limits of its Kind, for all clients or for this one.
    ///
    /// # Errors
    /// etcd's "too many requests"; nothing was read.
    pub fn check(&self, kind: &KindTraffic, verb: Verb, client: &str) -> Result<(), Status> {
        let now = || u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if self.mode == Mode::Off || kind.is_within(verb, client, now) || self.mode == Mode::Observe {
            return Ok(());
        }
        Err(grpc::status(EtcdError::TooManyRequests))
    }

    /// Waits until a list of this Kind may run; nothing is returned for one that is short.
    ///
    /// # Errors
    /// etcd's "too many requests" when too many lists wait, or when the time of the client is over; nothing was read.
    pub async fn enter(
        self: &Arc<Self>,
        kind: &KindTraffic,
        shape: (Shape, bool),
        client: &str,
        deadline: Instant,
    ) -> Result<Option<Permit>, Status> {
        if self.mode == Mode::Off {
            return Ok(None);
        }
        let Some(bytes) = long(kind, shape) else { return Ok(None) };
        let began = Instant::now();
        let (to, place) = oneshot::channel();
        let entry = self.lane.lock().ask(client, bytes, to);
        let permit = match entry {
            Entry::Runs(_) => Permit { admission: self.clone(), bytes },
            Entry::Waits(ticket) if self.mode == Mode::Observe => {
                self.observed.fetch_add(1, Ordering::Relaxed);
                drop(Waiting { admission: self, client, ticket });
                return Ok(None);
            }
            Entry::Refused(_) if self.mode == Mode::Observe => {
                self.observed.fetch_add(1, Ordering::Relaxed);
                return Ok(None);
            }
            Entry::Waits(ticket) => {
                let waiting = Waiting { admission: self, client, ticket };
                let admitted = tokio::time::timeout_at(deadline, place).await;
                drop(waiting);
                match admitted {
                    Ok(Ok(permit)) => permit,
                    Ok(Err(_)) | Err(_) => return Err(refused(kind)),
                }
            }
            Entry::Refused(_) => return Err(refused(kind)),
        };
        if self.mode == Mode::Enforce {
            until_there_is_time(deadline).await;
        }
        kind.waited(began.elapsed());
        Ok(Some(permit))
    }
}

fn refused(kind: &KindTraffic) -> Status {
    kind.refused();
    grpc::status(EtcdError::TooManyRequests)
}

/// The expected bytes of a list, if it is long.
fn long(kind: &KindTraffic, (shape, keys_only): (Shape, bool)) -> Option<u64> {
    match kind.expected(shape, keys_only) {
        Some(bytes) => (bytes >= LONG_BYTES).then_some(bytes),
        None => (shape.limit == 0 || shape.limit > UNKNOWN_KEYS).then_some(LONG_BYTES),
    }
}

/// Waits while the tasks of this router run late, so that what is short goes first.
async fn until_there_is_time(deadline: Instant) {
    let until = deadline.min(Instant::now() + LATE_MAX);
    loop {
        let asked = Instant::now();
        tokio::task::yield_now().await;
        let late = asked.elapsed();
        if late < LATE || asked + late >= until {
            return;
        }
        tokio::time::sleep_until(until.min(Instant::now() + late)).await;
    }
}

/// Holds the place of a stream for a while.
#[derive(Debug)]
pub struct Holding {
    _place: Arc<Mutex<Option<Permit>>>,
}

impl Holding {
    /// The place is given up when this is dropped, or after five seconds.
    #[must_use]
    pub fn new(permit: Option<Permit>) -> Self {
        let held = Arc::new(Mutex::new(permit));
        if held.lock().is_some() {
            let weak = Arc::downgrade(&held);
            tokio::spawn(async move {
                tokio::time::sleep(STREAM_HOLD).await;
                let permit = weak.upgrade().and_then(|held| held.lock().take());
                drop(permit);
            });
        }
        Self { _place: held }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kindred_partition_config::kind::KindScheme;
    use kindred_partition_config::model::LimitsConfig;

    use super::*;
    use crate::traffic::kinds::Kinds;

    const WHOLE: (Shape, bool) = (Shape { whole: true, limit: 0 }, false);

    fn pods() -> Arc<KindTraffic> {
        Kinds::default().of(&KindScheme::default(), b"/registry/pods/", b"/registry/pods0")
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn one_at_a_time(mode: Mode) -> Arc<Admission> {
        Admission::new(mode, Limits { lists: 1, waiting: 2, ..Limits::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn lists_that_are_long_wait_for_their_turn_and_short_ones_do_not() {
        let (admission, kind) = (one_at_a_time(Mode::Enforce), pods());
        let first = admission.enter(&kind, WHOLE, "a", later()).await.unwrap().unwrap();
        let page = (Shape { whole: true, limit: 500 }, false);
        assert!(admission.enter(&kind, page, "a", later()).await.unwrap().is_none(), "a page of 500");
        let waiting = tokio::spawn({
            let (admission, kind) = (admission.clone(), kind.clone());
            async move { admission.enter(&kind, WHOLE, "b", later()).await.map(|permit| permit.is_some()) }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(admission.counts(), (1, 1, 0));
        drop(first);
        assert!(waiting.await.unwrap().unwrap());
        // Former lists were short.
        kind.note_list(WHOLE.0, false, 1000);
        let held = admission.enter(&kind, WHOLE, "a", later()).await.unwrap();
        assert!(held.is_none());
        assert_eq!(admission.counts(), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_goes_or_is_late_leaves_its_place_to_others() {
        let (admission, kind) = (one_at_a_time(Mode::Enforce), pods());
        let first = admission.enter(&kind, WHOLE, "a", later()).await.unwrap().unwrap();
        let soon = Instant::now() + Duration::from_secs(1);
        let late = admission.enter(&kind, WHOLE, "b", soon).await.unwrap_err();
        let expected = grpc::status(EtcdError::TooManyRequests);
        assert_eq!((late.code(), late.message()), (expected.code(), expected.message()));
        let waiting = |client: &'static str| {
            let (admission, kind) = (admission.clone(), kind.clone());
            tokio::spawn(async move { admission.enter(&kind, WHOLE, client, later()).await })
        };
        let (gone, last) = (waiting("b"), waiting("c"));
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(admission.enter(&kind, WHOLE, "d", later()).await.is_err(), "two wait already");
        gone.abort();
        let _ = gone.await;
        assert_eq!(admission.counts(), (1, 1, 0));
        drop(first);
        drop(last.await.unwrap().unwrap().unwrap());
        assert_eq!(admission.counts(), (0, 0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn observing_holds_nobody_back_and_a_stream_holds_its_place_for_a_while() {
        let (admission, kind) = (one_at_a_time(Mode::Observe), pods());
        let first = admission.enter(&kind, WHOLE, "a", later()).await.unwrap();
        assert!(first.is_some());
        assert!(admission.enter(&kind, WHOLE, "b", later()).await.unwrap().is_none());
        assert_eq!(admission.counts(), (1, 0, 1));
        let stream = Holding::new(first);
        tokio::time::sleep(STREAM_HOLD + Duration::from_millis(1)).await;
        assert_eq!(admission.counts(), (0, 0, 1), "a stalled reader keeps nobody out");
        drop(stream);
        let off = one_at_a_time(Mode::Off);
        assert!(off.enter(&kind, WHOLE, "a", later()).await.unwrap().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_beyond_a_limit_is_refused_or_only_counted() {
        let (scheme, kinds) = (KindScheme::default(), Kinds::default());
        let limits = LimitsConfig { writes_per_second: Some(2), ..LimitsConfig::default() };
        kinds.set_limits(&scheme, &BTreeMap::from([(scheme.resolve("pods").unwrap(), limits)]));
        let pods = kinds.of(&scheme, b"/registry/pods/a/b", b"");
        let passed = |mode| {
            let admission = one_at_a_time(mode);
            (0..10).filter(|_| admission.check(&pods, Verb::Update, "a").is_ok()).count()
        };
        assert_eq!((passed(Mode::Enforce), pods.limited()), (2, 8));
        assert_eq!((passed(Mode::Observe), pods.limited()), (10, 18));
        assert_eq!((passed(Mode::Off), pods.limited()), (10, 18));
        let refused = {
            let admission = one_at_a_time(Mode::Enforce);
            admission.check(&pods, Verb::Put, "a").unwrap_err()
        };
        let expected = grpc::status(EtcdError::TooManyRequests);
        assert_eq!((refused.code(), refused.message()), (expected.code(), expected.message()));
        let admission = one_at_a_time(Mode::Enforce);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(admission.check(&pods, Verb::Put, "a").is_ok(), "time brings more");
        assert!(admission.check(&pods, Verb::Get, "a").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_of_each_client_leaves_the_others_alone() {
        let (scheme, kinds) = (KindScheme::default(), Kinds::default());
        let limits = LimitsConfig {
            reads_per_second: Some(5),
            client_reads_per_second: Some(3),
            ..LimitsConfig::default()
        };
        kinds.set_limits(&scheme, &BTreeMap::from([(scheme.resolve("pods").unwrap(), limits)]));
        let pods = kinds.of(&scheme, b"/registry/pods/a/b", b"");
        let admission = one_at_a_time(Mode::Enforce);
        let passed = |client, verb| (0..10).filter(|_| admission.check(&pods, verb, client).is_ok()).count();
        assert_eq!(passed("greedy", Verb::List), 3);
        assert_eq!(passed("modest", Verb::Get), 2, "what all have together is 5");
        assert_eq!(passed("greedy", Verb::Put), 10, "writes have no limit");
        assert_eq!(pods.limited(), 15);
    }
}
