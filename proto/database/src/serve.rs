//! `Maintenance.Snapshot`: sends etcd's database file with everything that was current at one revision.
//!
//! 1. The process takes a snapshot, a revision that stays readable while it is renewed.
//! 2. The keys are read at it, as a client reads them, into a [`Spool`]. Then the snapshot ends.
//! 3. The file is laid out, and sent page by page.
//!
//! Leases are read last: a lease that a key has and that has ended since gets the least time there is, and the etcd that
//! takes the file ends it.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use kindred_partition_config::ids::Revision;
use kindred_proto::etcdserverpb::{
    LeaseLeasesRequest, LeaseTimeToLiveRequest, SnapshotResponse, kv_client::KvClient,
    lease_client::LeaseClient,
};
use kindred_proto::mvccpb::KeyValue;
use kindred_transport::server::Services;
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use crate::etcd::{self, Lease};
use crate::reading::{Interval, Reading};
use crate::spool::{Spool, Spooled};

/// The size of a message of the stream.
const CHUNK_BYTES: usize = 1 << 16;
/// The number of messages, and of pages of keys, that wait for who takes them.
const AHEAD: usize = 4;
/// The number of leases that are asked for at a time.
const LEASES_AT_ONCE: usize = 32;
/// Renewals during the lifetime of a snapshot, so that several may fail.
const RENEWALS: u32 = 6;
/// The time that a client may take to read a message. One that reads nothing keeps others from their turn.
const PATIENCE: Duration = Duration::from_secs(60);
/// The TTL of a lease that has ended since, in seconds.
const ENDED_TTL_S: i64 = 1;

/// A revision that stays readable while it is renewed.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The id by which it is renewed and ended.
    pub name: u64,
    /// The revision that is retained; zero if none is.
    pub revision: Revision,
    /// The key space in key order, each part with the revision to read it at.
    pub ranges: Vec<(Interval, Revision)>,
    /// The time until it ends, unless it is renewed.
    pub retained: Duration,
}

impl Snapshot {
    /// The revision that the file has as its current one.
    fn highest(&self) -> Revision {
        self.ranges.iter().map(|(_, revision)| *revision).fold(self.revision, Revision::max)
    }
}

/// Takes snapshots of the process's keys.
#[tonic::async_trait]
pub trait TakesSnapshots: Send + Sync + 'static {
    /// # Errors
    /// When not all keys can be read at one revision now.
    async fn take(&self) -> Result<Snapshot, Status>;
    async fn renew(&self, snapshot: &Snapshot);
    async fn end(&self, snapshot: &Snapshot);
}

/// Sends snapshots of a process.
#[derive(Clone)]
pub struct Sender<S> {
    /// KV and Lease of the process.
    services: S,
    snapshots: Arc<dyn TakesSnapshots>,
    /// One snapshot at a time, as each takes room for all keys.
    turn: Arc<Semaphore>,
}

impl<S> std::fmt::Debug for Sender<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("turn", &self.turn).finish_non_exhaustive()
    }
}

type Answers = mpsc::Sender<Result<SnapshotResponse, Status>>;
/// The answers to `Maintenance.Snapshot`.
pub type Stream = ReceiverStream<Result<SnapshotResponse, Status>>;

impl<S: Services> Sender<S> {
    #[must_use]
    pub fn new(services: S, snapshots: Arc<dyn TakesSnapshots>) -> Self {
        Self { services, snapshots, turn: Arc::new(Semaphore::new(1)) }
    }

    /// Begins a snapshot, which ends when the stream is dropped.
    #[must_use]
    pub fn stream(&self) -> Stream {
        let (answers, stream) = mpsc::channel(AHEAD);
        let sender = self.clone();
        tokio::spawn(async move {
            let gone = answers.clone();
            tokio::select! {
                sent = sender.send(&answers) => if let Err(status) = sent {
                    // A client that is gone needs no reason.
                    let _ = answers.send(Err(status)).await;
                },
                () = gone.closed() => {}
            }
        });
        ReceiverStream::new(stream)
    }

    async fn send(&self, answers: &Answers) -> Result<(), Status> {
        let _turn = self.turn.acquire().await.map_err(|error| Status::internal(error.to_string()))?;
        let taken = Taken { snapshot: self.snapshots.take().await?, snapshots: self.snapshots.clone() };
        let renewing = async {
            loop {
                tokio::time::sleep(taken.snapshot.retained / RENEWALS).await;
                taken.snapshots.renew(&taken.snapshot).await;
            }
        };
        let spooled = tokio::select! {
            spooled = self.spool(&taken.snapshot) => spooled?,
            () = renewing => return Err(Status::internal("kindred: Snapshot: no renewal ends")),
        };
        let revision = taken.snapshot.highest();
        drop(taken);
        let leases = self.leases(&spooled.leases).await?;
        let answers = answers.clone();
        let written = tokio::task::spawn_blocking(move || {
            etcd::write(&spooled, &leases, revision, |left| Chunks {
                answers,
                chunk: BytesMut::new(),
                left,
                patience: PATIENCE,
            })
        });
        written.await.map_err(|error| Status::internal(error.to_string()))?.map_err(|error| no_room(&error))
    }

    /// Reads all keys.
    async fn spool(&self, snapshot: &Snapshot) -> Result<Spooled, Status> {
        let (pages, mut taken) = mpsc::channel::<Vec<KeyValue>>(AHEAD);
        let spooling = tokio::task::spawn_blocking(move || {
            let mut spool = Spool::new()?;
            while let Some(page) = taken.blocking_recv() {
                page.iter().try_for_each(|kv| spool.add(kv))?;
            }
            spool.finish()
        });
        let kv = KvClient::new(self.services.clone()).max_decoding_message_size(usize::MAX);
        'all: for (interval, revision) in &snapshot.ranges {
            let mut reading = Reading::new(kv.clone(), interval.clone(), Some(revision.get()));
            loop {
                let page = reading.next().await?;
                if page.is_empty() {
                    break;
                }
                // It has failed if it takes no more, and says why.
                if pages.send(page).await.is_err() {
                    break 'all;
                }
            }
        }
        drop(pages);
        let spooled = spooling.await.map_err(|error| Status::internal(error.to_string()))?;
        spooled.map_err(|error| no_room(&error))
    }

    /// All leases, and those of keys that have ended since.
    async fn leases(&self, of_keys: &BTreeSet<i64>) -> Result<Vec<Lease>, Status> {
        let client = LeaseClient::new(self.services.clone()).max_decoding_message_size(usize::MAX);
        let listed = client.clone().lease_leases(LeaseLeasesRequest {}).await?.into_inner().leases;
        let mut ids: BTreeSet<i64> = listed.into_iter().map(|lease| lease.id).collect();
        ids.extend(of_keys);
        let asked = ids.into_iter().map(|id| {
            let mut client = client.clone();
            async move {
                let request = LeaseTimeToLiveRequest { id, keys: false };
                (id, client.lease_time_to_live(request).await)
            }
        });
        let mut told = futures_util::stream::iter(asked).buffer_unordered(LEASES_AT_ONCE);
        let mut leases = Vec::new();
        while let Some((id, told)) = told.next().await {
            match told.map(tonic::Response::into_inner) {
                Ok(told) if told.ttl > 0 => {
                    leases.push(Lease { id, ttl: told.granted_ttl, remaining: told.ttl });
                }
                Err(status) if status.code() != Code::NotFound => return Err(status),
                _ if of_keys.contains(&id) => {
                    leases.push(Lease { id, ttl: ENDED_TTL_S, remaining: ENDED_TTL_S });
                }
                _ => {}
            }
        }
        Ok(leases)
    }
}

/// A snapshot that ends when this is dropped.
struct Taken {
    snapshots: Arc<dyn TakesSnapshots>,
    snapshot: Snapshot,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let (snapshots, snapshot) = (self.snapshots.clone(), self.snapshot.clone());
        tokio::spawn(async move { snapshots.end(&snapshot).await });
    }
}

fn no_room(error: &io::Error) -> Status {
    let folder = std::env::temp_dir();
    Status::resource_exhausted(format!(
        "kindred: Snapshot: {error}: the keys wait in {} before they are sent; make room there, or set TMPDIR to another folder",
        folder.display()
    ))
}

/// Sends what is written as messages.
struct Chunks {
    answers: Answers,
    chunk: BytesMut,
    /// The bytes of the whole that are not sent yet.
    left: u64,
    patience: Duration,
}

impl Chunks {
    fn send(&mut self, blob: Bytes) -> io::Result<()> {
        self.left = self.left.saturating_sub(blob.len() as u64);
        // The version is that of the storage, which has none before etcd 3.6.
        let answer = SnapshotResponse { remaining_bytes: self.left, blob, ..SnapshotResponse::default() };
        // A thread for blocking work may wait for the runtime.
        let sent = Handle::current().block_on(self.answers.send_timeout(Ok(answer), self.patience));
        sent.map_err(|error| match error {
            SendTimeoutError::Timeout(_) => io::ErrorKind::TimedOut.into(),
            SendTimeoutError::Closed(_) => io::ErrorKind::BrokenPipe.into(),
        })
    }
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.chunk.extend_from_slice(bytes);
        while self.chunk.len() >= CHUNK_BYTES {
            let blob = self.chunk.split_to(CHUNK_BYTES).freeze();
            self.send(blob)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.chunk).freeze();
        if rest.is_empty() { Ok(()) } else { self.send(rest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_given_up() {
        let (answers, mut read) = mpsc::channel(1);
        let chunks = Chunks { answers, chunk: BytesMut::new(), left: 9, patience: Duration::from_millis(20) };
        let writing = tokio::task::spawn_blocking(move || {
            let mut chunks = chunks;
            (0..3).try_for_each(|_| chunks.write_all(b"abc").and_then(|()| chunks.flush()))
        });
        assert_eq!(writing.await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        let first = read.recv().await.unwrap().unwrap();
        assert_eq!((&first.blob[..], first.remaining_bytes), (&b"abc"[..], 6));
    }
}
