//! The clients: some write and read through all routers in turn, and watches begin behind what they write.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use kindred_proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, ResponseHeader, WatchCreateRequest, WatchRequest,
    watch_request::RequestUnion,
};
use kindred_tests::{client::Client, scenario::wait_for};
use parking_lot::Mutex;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::order::seen::{Counts, Seen, Watch, Write};

const WRITERS: u64 = 4;
/// Names in three ranges, and so on several stores.
const NAMESPACES: [&str; 3] = ["alpha", "mike", "zulu"];
const PREFIX: &str = "/registry/pods/";
const PREFIX_END: &str = "/registry/pods0";
/// A write of so many is followed by a watch.
const WATCHED: usize = 25;
/// Before a fault, and from its beginning on.
const WATCHES_MAX: usize = 6;
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
const SEEN_LIMIT: Duration = Duration::from_secs(10);
const BREATH: Duration = Duration::from_millis(20);

/// What all tasks share.
#[derive(Debug)]
struct Shared {
    routers: Vec<Client>,
    seen: Seen,
    watches: Mutex<Vec<Arc<Watch>>>,
    watches_max: AtomicUsize,
    stop_writing: CancellationToken,
    stop_watching: CancellationToken,
}

/// Clients that work.
#[derive(Debug)]
pub struct Clients {
    shared: Arc<Shared>,
    writers: JoinSet<()>,
}

impl Clients {
    /// Starts the clients of these routers.
    pub fn start(addresses: &[String], seed: u64) -> anyhow::Result<Self> {
        let routers = addresses.iter().map(|address| Client::lazy(address)).collect::<Result<_, _>>()?;
        let shared = Arc::new(Shared {
            routers,
            seen: Seen::default(),
            watches: Mutex::default(),
            watches_max: AtomicUsize::new(WATCHES_MAX),
            stop_writing: CancellationToken::new(),
            stop_watching: CancellationToken::new(),
        });
        let mut writers = JoinSet::new();
        for number in 0..WRITERS {
            let rng = StdRng::seed_from_u64(seed.wrapping_mul(WRITERS).wrapping_add(number));
            writers.spawn(write_and_read(Arc::clone(&shared), number, rng));
        }
        Ok(Self { shared, writers })
    }

    /// The number of watches so far.
    pub fn watches(&self) -> u64 {
        self.shared.watches.lock().len() as u64
    }

    /// Lets watches begin from now on, however many there are.
    pub fn may_watch_more(&self) {
        self.shared.watches_max.store(self.shared.watches.lock().len() + WATCHES_MAX, SeqCst);
    }

    /// Lets the clients work so long, and until they have acknowledgements of so many more writes.
    pub async fn work(&self, time: Duration, writes: u64) -> anyhow::Result<()> {
        let wanted = self.shared.seen.writes() + writes;
        tokio::time::sleep(time).await;
        let enough = || async { Ok((self.shared.seen.writes() >= wanted).then_some(())) };
        wait_for(&format!("{writes} writes"), SEEN_LIMIT, enough).await
    }

    /// Stops the clients, waits until each watch has shown what was written last, and judges all.
    pub async fn finish(mut self) -> anyhow::Result<Counts> {
        let shared = &self.shared;
        shared.stop_writing.cancel();
        while let Some(ended) = self.writers.join_next().await {
            ended?;
        }
        // One write for each store. What is missing behind them does not come any more.
        for namespace in NAMESPACES {
            let key = format!("{PREFIX}{namespace}/last").into();
            let write = |key| async { Ok(shared.put(0, key).await.ok().map(drop)) };
            wait_for("a last write", SEEN_LIMIT, || write(Bytes::clone(&key))).await?;
        }
        let last = |watch: &Watch| {
            let received = watch.events.lock();
            let has =
                |name: &str| received.iter().any(|(_, key)| key.ends_with(format!("{name}/last").as_bytes()));
            NAMESPACES.iter().all(|name| has(name))
        };
        let watches = shared.watches.lock().clone();
        ensure!(!watches.is_empty(), "no watch was opened");
        // A watch that never shows one of them is judged as it is.
        let all = wait_for("the last events", SEEN_LIMIT / 10, || async {
            Ok(watches.iter().all(|watch| last(watch)).then_some(()))
        });
        let _ = all.await;
        shared.stop_watching.cancel();
        Ok(shared.seen.counts(&watches))
    }
}

/// A read of which the header covers the whole Kind, or should.
const READS: [(&str, &str, &str); 4] = [
    ("the key without a slash", "/registry/pods", ""),
    ("the key with a slash", PREFIX, ""),
    ("a list", PREFIX, PREFIX_END),
    ("the list of a namespace", "/registry/pods/mike/", "/registry/pods/mike0"),
];

async fn write_and_read(shared: Arc<Shared>, number: u64, mut rng: StdRng) {
    let mut turn = usize::try_from(number).unwrap_or_default();
    while !shared.stop_writing.is_cancelled() {
        turn += 1;
        let router = turn % shared.routers.len();
        let namespace = NAMESPACES[rng.random_range(0..NAMESPACES.len())];
        let key = Bytes::from(format!("{PREFIX}{namespace}/w{number}-{}", rng.random_range(0..5)));
        let done = match rng.random_range(0..10) {
            0..5 => shared.put(router, key).await.map(Some),
            5 => shared.delete(router, key).await,
            6 => shared.read(router, "a key", key, Bytes::new()).await.map(|()| None),
            _ => {
                let (what, key, end) = READS[rng.random_range(0..READS.len())];
                shared.read(router, what, key.into(), end.into()).await.map(|()| None)
            }
        };
        match done {
            Ok(Some(revision)) if rng.random_range(0..WATCHED) == 0 => {
                let router = (router + 1) % shared.routers.len();
                if let Some(watch) = shared.begin(router, revision) {
                    tokio::spawn(follow(Arc::clone(&shared), watch));
                }
            }
            Ok(_) => {}
            Err(status) => {
                shared.seen.failed(&status);
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

impl Shared {
    async fn put(&self, router: usize, key: Bytes) -> Result<i64, Status> {
        let (floor, called) = (self.seen.shown(), Instant::now());
        let put = PutRequest { key: key.clone(), value: Bytes::from_static(b"v"), ..Default::default() };
        let mut kv = self.routers[router].kv.clone();
        let revision = revision(limited(kv.put(put)).await?.header)?;
        self.seen.wrote(router, Write { called, revision, key }, floor);
        Ok(revision)
    }

    /// Returns nothing if there was no such key.
    async fn delete(&self, router: usize, key: Bytes) -> Result<Option<i64>, Status> {
        let (floor, called) = (self.seen.shown(), Instant::now());
        let delete = DeleteRangeRequest { key: key.clone(), ..Default::default() };
        let mut kv = self.routers[router].kv.clone();
        let answer = limited(kv.delete_range(delete)).await?;
        let revision = revision(answer.header)?;
        if answer.deleted == 0 {
            self.seen.read(router, "a deletion of nothing", revision, floor);
            return Ok(None);
        }
        self.seen.wrote(router, Write { called, revision, key }, floor);
        Ok(Some(revision))
    }

    async fn read(&self, router: usize, what: &str, key: Bytes, range_end: Bytes) -> Result<(), Status> {
        let floor = self.seen.shown();
        let range = RangeRequest { key, range_end, limit: 1, ..Default::default() };
        let mut kv = self.routers[router].kv.clone();
        let revision = revision(limited(kv.range(range)).await?.header)?;
        self.seen.read(router, what, revision, floor);
        Ok(())
    }

    /// A watch behind an acknowledgement that has just come, unless there are enough.
    fn begin(&self, router: usize, revision: i64) -> Option<Arc<Watch>> {
        let mut watches = self.watches.lock();
        let watch =
            Watch { acknowledged: Instant::now(), from: revision + 1, router, events: Mutex::default() };
        let watch = Arc::new(watch);
        (watches.len() < self.watches_max.load(SeqCst)).then(|| watches.push(Arc::clone(&watch)))?;
        Some(watch)
    }
}

async fn limited<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Status> {
    let answered = tokio::time::timeout(REQUEST_LIMIT, call).await;
    answered.map_err(|_| Status::deadline_exceeded("no answer"))?.map(tonic::Response::into_inner)
}

fn revision(header: Option<ResponseHeader>) -> Result<i64, Status> {
    header.map(|header| header.revision).ok_or_else(|| Status::internal("an answer without a header"))
}

/// Follows a watch to the end of the run. When its stream ends, it goes on behind the last event.
async fn follow(shared: Arc<Shared>, watch: Arc<Watch>) {
    let follow = async {
        loop {
            // A stream ends with its router.
            let _ = stream(&shared, &watch).await;
            tokio::time::sleep(BREATH).await;
        }
    };
    shared.stop_watching.run_until_cancelled(follow).await;
}

async fn stream(shared: &Shared, watch: &Watch) -> anyhow::Result<()> {
    let last = watch.events.lock().last().map(|(revision, _)| revision + 1);
    let create = WatchCreateRequest {
        key: PREFIX.into(),
        range_end: PREFIX_END.into(),
        start_revision: last.unwrap_or(watch.from),
        ..Default::default()
    };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = tokio_stream::StreamExt::chain(tokio_stream::iter([create]), tokio_stream::pending());
    let mut answers = shared.routers[watch.router].watch.clone().watch(requests).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        ensure!(!answer.canceled, "canceled: {}", answer.cancel_reason);
        for event in answer.events {
            let kv = event.kv.context("an event has a key")?;
            shared.seen.received(kv.mod_revision);
            watch.events.lock().push((kv.mod_revision, kv.key));
        }
    }
    Ok(())
}
