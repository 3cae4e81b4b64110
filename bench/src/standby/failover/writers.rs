//! Writers that go on whatever happens. They note when writes are acknowledged, and in the end read what they wrote.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use kindred_proto::{
    etcdserverpb::{PutRequest, RangeRequest, kv_client::KvClient},
    mvccpb::KeyValue,
};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

/// Keys of each writer.
const KEYS: u64 = 8;
/// The time that a client gives a request.
const REQUEST_MAX: Duration = Duration::from_secs(8);
/// How long a writer waits after an error.
const AFTER_ERROR: Duration = Duration::from_millis(5);
const LOOK: Duration = Duration::from_millis(2);

/// When writes were acknowledged.
#[derive(Debug, Default)]
struct Pauses {
    count: u64,
    last: Option<Instant>,
    longest: Duration,
}

impl Pauses {
    fn acknowledged(&mut self, now: Instant) {
        self.longest = self.longest(now);
        self.last = Some(now);
        self.count += 1;
    }

    /// The longest time without an acknowledged write, including the one that lasts now.
    fn longest(&self, now: Instant) -> Duration {
        let lasting = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.longest.max(lasting)
    }
}

/// What writers saw.
#[derive(Default)]
pub struct Seen {
    pauses: Mutex<Pauses>,
    /// By text.
    errors: Mutex<BTreeMap<String, u64>>,
    stop: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seen {
    /// Forgets the pauses until now. One that lasts now counts from where it began.
    pub fn begin(&self) {
        lock(&self.pauses).longest = Duration::ZERO;
    }

    /// The longest time in which no write of any writer was acknowledged, since [`Seen::begin`].
    pub fn longest(&self) -> Duration {
        lock(&self.pauses).longest(Instant::now())
    }

    /// The number of acknowledged writes.
    pub fn count(&self) -> u64 {
        lock(&self.pauses).count
    }

    /// The errors that clients saw, by text.
    pub fn errors(&self) -> BTreeMap<String, u64> {
        lock(&self.errors).clone()
    }

    /// Waits until so many more writes are acknowledged.
    pub async fn more(&self, writes: u64) -> anyhow::Result<()> {
        let enough = self.count() + writes;
        while self.count() < enough {
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    fn failed(&self, why: &str) {
        *lock(&self.errors).entry(why.to_owned()).or_default() += 1;
    }
}

/// A key with a single writer, whose values are increasing numbers.
#[derive(Debug, Clone)]
struct Written {
    key: String,
    acknowledged: u64,
    /// Writes of which nobody knows whether they happened.
    failed: u64,
    /// The revision and the value of the last acknowledged write.
    last: (i64, u64),
}

impl Written {
    /// Fails if an acknowledged write is not in what was read. A failed write may be.
    fn check(&self, found: Option<&KeyValue>) -> anyhow::Result<()> {
        let (revision, value) = self.last;
        let there = found.map(|kv| (kv.mod_revision, kv.version, kv.value.clone()));
        let is_last = match &there {
            None => self.acknowledged == 0,
            Some((at, _, shown)) => *at > revision || (*at == revision && *shown == value.to_string()),
        };
        // Each write makes the next version, also those between the first and the last.
        let version = there.as_ref().map_or(0, |(_, version, _)| u64::try_from(*version).unwrap_or_default());
        if !is_last || !(self.acknowledged..=self.acknowledged + self.failed).contains(&version) {
            bail!("an acknowledged write is lost: {self:?}, and (revision, version, value) are {there:?}");
        }
        Ok(())
    }
}

/// Writes the keys in turn until it is told to stop, one after another.
async fn write(mut kv: KvClient<Channel>, writer: usize, seen: Arc<Seen>) -> Vec<Written> {
    let key = |number| format!("/registry/pods/bench/{writer}-{number}");
    let new = |number| Written { key: key(number), acknowledged: 0, failed: 0, last: (0, 0) };
    let mut keys: Vec<Written> = (0..KEYS).map(new).collect();
    let mut value = 0;
    loop {
        for written in &mut keys {
            if seen.stop.load(Ordering::Relaxed) {
                return keys;
            }
            value += 1;
            let put = PutRequest {
                key: written.key.clone().into(),
                value: value.to_string().into(),
                ..Default::default()
            };
            let why = match tokio::time::timeout(REQUEST_MAX, kv.put(put)).await {
                Ok(Ok(answer)) => {
                    lock(&seen.pauses).acknowledged(Instant::now());
                    let revision = answer.into_inner().header.map_or(0, |header| header.revision);
                    written.acknowledged += 1;
                    written.last = (revision, value);
                    continue;
                }
                Ok(Err(status)) => status.message().to_owned(),
                Err(_) => format!("no answer within {REQUEST_MAX:?}"),
            };
            seen.failed(&why);
            written.failed += 1;
            tokio::time::sleep(AFTER_ERROR).await;
        }
    }
}

pub struct Writers {
    tasks: JoinSet<Vec<Written>>,
    kv: KvClient<Channel>,
    seen: Arc<Seen>,
}

impl Writers {
    /// Starts so many writers, each on a connection of its own.
    pub fn start(endpoint: &str, writers: usize, seen: &Arc<Seen>) -> anyhow::Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?.tcp_nodelay(true);
        let mut tasks = JoinSet::new();
        for writer in 0..writers {
            tasks.spawn(write(KvClient::new(endpoint.connect_lazy()), writer, seen.clone()));
        }
        Ok(Self { tasks, kv: KvClient::new(endpoint.connect_lazy()), seen: seen.clone() })
    }

    /// Stops the writers. Fails unless everything acknowledged is there.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.seen.stop.store(true, Ordering::Relaxed);
        while let Some(keys) = self.tasks.join_next().await {
            for written in keys? {
                let range = RangeRequest { key: written.key.clone().into(), ..Default::default() };
                let read = self.kv.range(range).await.context("reading a key")?.into_inner();
                written.check(read.kvs.first())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_between_acknowledged_writes_or_lasts() {
        let (begin, mut pauses) = (Instant::now(), Pauses::default());
        let at = |millis| begin + Duration::from_millis(millis);
        assert_eq!(pauses.longest(at(9)), Duration::ZERO, "nothing was written yet");
        for millis in [10, 20, 50, 60] {
            pauses.acknowledged(at(millis));
        }
        assert_eq!((pauses.count, pauses.longest(at(70))), (4, Duration::from_millis(30)));
        assert_eq!(pauses.longest(at(100)), Duration::from_millis(40));
    }

    #[test]
    fn a_lost_write_is_found() {
        let kv = |mod_revision, version, value: &str| KeyValue {
            mod_revision,
            version,
            value: value.to_owned().into(),
            ..Default::default()
        };
        let written = Written { key: "a".to_owned(), acknowledged: 3, failed: 1, last: (30, 7) };
        for there in [kv(30, 3, "7"), kv(30, 4, "7"), kv(40, 4, "8")] {
            written.check(Some(&there)).unwrap();
        }
        // The last, one before it, the value, or everything.
        for lost in [kv(20, 3, "6"), kv(30, 2, "7"), kv(30, 3, "6")] {
            assert!(written.check(Some(&lost)).is_err(), "{lost:?}");
        }
        assert!(written.check(None).is_err());
        // More than was written.
        assert!(written.check(Some(&kv(40, 5, "8"))).is_err());
        let never = Written { acknowledged: 0, last: (0, 0), ..written };
        never.check(None).unwrap();
        never.check(Some(&kv(10, 1, "1"))).unwrap();
    }
}
