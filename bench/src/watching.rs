//! Watch clients that use little CPU, on a separate thread. They count events and, if values contain the due times
//! of their writes, record the delay of each event. They decode nothing else.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::Context;
use bytes::Bytes;
use kindred_proto::etcdserverpb::{WatchCreateRequest, WatchRequest, watch_request::RequestUnion};
use kindred_wire::{
    answer::{WatchResponse, watch_events},
    kv::EventRef,
    scan::Fields,
};
use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
};

use crate::bare;

const PATH: &str = "/etcdserverpb.Watch/Watch";
/// The time limit for creating the watches, and for the last events.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The polling interval.
const LOOK: Duration = Duration::from_millis(5);

/// A watched key and the end of its range, which is empty for a single key.
pub type Watched = (Bytes, Bytes);

/// All keys with a prefix.
pub fn prefix(prefix: &str) -> anyhow::Result<Watched> {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().context("an empty prefix")? += 1;
    Ok((Bytes::from(prefix.to_owned()), end.into()))
}

pub struct Watching {
    /// The number of events that each stream has seen.
    seen: Arc<Vec<AtomicU64>>,
    stop: watch::Sender<bool>,
    thread: JoinHandle<anyhow::Result<Vec<Vec<u32>>>>,
}

/// The record of a stream.
struct Noted {
    index: usize,
    seen: Arc<Vec<AtomicU64>>,
    /// The origin of the due times in values; `None` if there are none.
    origin: Option<Instant>,
    late: Vec<u32>,
    created: usize,
}

impl Noted {
    fn message(&mut self, message: &[u8]) -> anyhow::Result<()> {
        let Some(origin) = self.origin else {
            let answer = WatchResponse::parse(message)?;
            anyhow::ensure!(!answer.canceled, "a watch was cancelled: {answer:?}");
            self.created += usize::from(answer.created);
            self.seen[self.index].fetch_add(answer.events as u64, Ordering::Relaxed);
            return Ok(());
        };
        let now = u64::try_from(origin.elapsed().as_micros())?;
        let mut events = 0;
        for event in watch_events(message) {
            let due = first_number(EventRef::parse(event?)?.kv)?;
            self.late.push(u32::try_from(now.saturating_sub(due)).unwrap_or(u32::MAX));
            events += 1;
        }
        if events == 0 {
            let answer = WatchResponse::parse(message)?;
            anyhow::ensure!(!answer.canceled, "a watch was cancelled: {answer:?}");
            self.created += usize::from(answer.created);
        }
        self.seen[self.index].fetch_add(events, Ordering::Relaxed);
        Ok(())
    }
}

/// The number at the beginning of a key-value's value, as [`crate::pace::value`] writes it.
fn first_number(kv: &[u8]) -> anyhow::Result<u64> {
    for field in Fields::new(kv) {
        let field = field?;
        if field.number == 5 {
            let first = field.bytes()?.first_chunk().context("a value that this bench did not write")?;
            return Ok(u64::from_be_bytes(*first));
        }
    }
    anyhow::bail!("an event without a value")
}

/// Runs one stream on its own connection until it is told to stop.
async fn one(
    endpoint: String,
    watched: Vec<Watched>,
    mut noted: Noted,
    mut stop: watch::Receiver<bool>,
    ready: Arc<AtomicU64>,
) -> anyhow::Result<(usize, Vec<u32>)> {
    let connection = bare::connect(&endpoint).await?;
    let mut call = bare::begin(&connection, &endpoint, PATH).await?;
    let wanted = watched.len();
    for (key, range_end) in watched {
        let create = WatchCreateRequest { key, range_end, ..Default::default() };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        call.requests.send_data(bare::framed(&request)?, false)?;
    }
    // The stream lives as long as its requests.
    let (_requests, mut answers) = call.answers().await?;
    let mut told = false;
    loop {
        let more = tokio::select! {
            biased;
            more = answers.next(|message| noted.message(message)) => more?,
            stopped = stop.changed() => {
                stopped?;
                return Ok((noted.index, noted.late));
            }
        };
        anyhow::ensure!(more, "a watch stream ended");
        if !told && noted.created == wanted {
            told = true;
            ready.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Opens streams, each on its own connection and with some watches. With an `origin`, values begin with the
/// microseconds from then until their writes were due.
pub async fn start(
    endpoint: &str,
    streams: Vec<Vec<Watched>>,
    origin: Option<Instant>,
) -> anyhow::Result<Watching> {
    let seen: Arc<Vec<AtomicU64>> = Arc::new(streams.iter().map(|_| AtomicU64::new(0)).collect());
    let (stop, stopped) = watch::channel(false);
    let (to, ready) = oneshot::channel();
    let (counted, endpoint) = (seen.clone(), endpoint.to_owned());
    let thread = std::thread::Builder::new().name("watching".to_owned()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(run(endpoint, streams, origin, counted, stopped, to))
    })?;
    let watching = Watching { seen, stop, thread };
    match tokio::time::timeout(WAIT_MAX, ready).await {
        Ok(Ok(())) => Ok(watching),
        // The result says why.
        Ok(Err(_)) => Err(watching.finish().await.err().context("watching ended without a reason")?),
        Err(_) => anyhow::bail!("the watches do not stand after {WAIT_MAX:?}"),
    }
}

async fn run(
    endpoint: String,
    streams: Vec<Vec<Watched>>,
    origin: Option<Instant>,
    seen: Arc<Vec<AtomicU64>>,
    stopped: watch::Receiver<bool>,
    ready: oneshot::Sender<()>,
) -> anyhow::Result<Vec<Vec<u32>>> {
    let (mut running, count) = (JoinSet::new(), streams.len());
    let stand = Arc::new(AtomicU64::new(0));
    for (index, watched) in streams.into_iter().enumerate() {
        let noted = Noted { index, seen: seen.clone(), origin, late: Vec::new(), created: 0 };
        running.spawn(one(endpoint.clone(), watched, noted, stopped.clone(), stand.clone()));
    }
    while stand.load(Ordering::Relaxed) < count as u64 {
        tokio::select! {
            Some(done) = running.join_next() => {
                done??;
                anyhow::bail!("a watch stream ended before it stood");
            }
            () = tokio::time::sleep(LOOK) => {}
        }
    }
    // If the receiver has gone, the streams are about to be stopped.
    let _ = ready.send(());
    let mut late = vec![Vec::new(); count];
    while let Some(done) = running.join_next().await {
        let (index, noted) = done??;
        late[index] = noted;
    }
    Ok(late)
}

impl Watching {
    /// The number of events that a stream has seen.
    pub fn seen(&self, stream: usize) -> u64 {
        self.seen[stream].load(Ordering::Relaxed)
    }

    /// Waits until every stream has seen this many events.
    pub async fn wait(&self, events: u64) -> anyhow::Result<()> {
        let began = Instant::now();
        while let Some(seen) =
            (0..self.seen.len()).map(|stream| self.seen(stream)).find(|seen| *seen < events)
        {
            anyhow::ensure!(
                began.elapsed() < WAIT_MAX && !self.thread.is_finished(),
                "{seen} of {events} events came"
            );
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Ends the watches; returns the delays of each stream's events in microseconds.
    pub async fn finish(self) -> anyhow::Result<Vec<Vec<u32>>> {
        self.stop.send_replace(true);
        let thread = self.thread;
        tokio::task::spawn_blocking(move || thread.join())
            .await?
            .map_err(|_| anyhow::anyhow!("the watching thread panicked"))?
    }
}

#[cfg(test)]
mod tests {
    use kindred_proto::{etcdserverpb as pb, mvccpb};
    use prost::Message as _;

    use super::*;
    use crate::pace;

    #[test]
    fn a_write_says_when_it_was_due() {
        let kv = mvccpb::KeyValue {
            key: "k".into(),
            value: pace::value(77, 100),
            mod_revision: 9,
            ..Default::default()
        };
        assert_eq!(first_number(&kv.encode_to_vec()).unwrap(), 77);
        assert!(first_number(&mvccpb::KeyValue::default().encode_to_vec()).is_err());

        let event = mvccpb::Event { kv: Some(kv), ..Default::default() };
        let answer = pb::WatchResponse { events: vec![event.clone(), event], ..Default::default() };
        let seen = Arc::new(vec![AtomicU64::new(0)]);
        let origin = Instant::now().checked_sub(Duration::from_secs(1));
        let mut noted = Noted { index: 0, seen: seen.clone(), origin, late: Vec::new(), created: 0 };
        noted.message(&answer.encode_to_vec()).unwrap();
        assert_eq!(seen[0].load(Ordering::Relaxed), 2);
        assert!(
            noted.late.len() == 2 && noted.late.iter().all(|late| *late >= 1_000_000 - 77),
            "{:?}",
            noted.late
        );
        let created = pb::WatchResponse { created: true, ..Default::default() };
        noted.message(&created.encode_to_vec()).unwrap();
        let cancelled = pb::WatchResponse { canceled: true, ..Default::default() };
        assert_eq!((noted.created, noted.message(&cancelled.encode_to_vec()).is_err()), (1, true));
    }
}
