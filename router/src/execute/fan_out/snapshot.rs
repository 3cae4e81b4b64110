//! Finds the revision of a read over several stores, together with the first pages: runs a [`ConsistentRead`].
//!
//! Each source is a participant of its own, even if several are at one store, because each range may or may not have
//! changed until T.

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use kindred_partition_config::ids::Revision;
use kindred_proto::etcdserverpb as pb;
use kindred_router_core::consistent_read::{Command, ConsistentRead, Event, Mode, ReadError};
use kindred_router_core::store::StoreIx;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use kindred_wire::rope::Rope;
use prost::Message as _;
use tonic::{Code, Status};

use super::ask::{Page, Source};

/// A store's answer to a raise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raised {
    /// Its current revision of the range; the store promises it.
    pub current: Revision,
    /// Whether the range has changed since the given revision; `true` if the store cannot tell.
    pub changed: bool,
}

/// How much is read of a source at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSizes {
    /// Items of a source's first page.
    pub first_items: u64,
    /// The intended size of a later page in bytes.
    pub bytes: usize,
    /// Minimum and maximum number of items of a later page.
    pub items: (u64, u64),
}

impl Default for PageSizes {
    fn default() -> Self {
        // As many items as kube-apiserver asks for at once.
        Self { first_items: 500, bytes: 1 << 20, items: (8, 10_000) }
    }
}

/// The stores as a read sees them; tests and the simulation have their own.
pub trait Shards {
    /// `KV/Range`, raised to `min_revision` before if the store can. With `pin`, what it shows stays readable for a while.
    fn range(
        &self,
        store: StoreIx,
        request: Bytes,
        min_revision: Revision,
        pin: bool,
    ) -> impl Future<Output = Result<Rope, Status>>;

    /// The current revision of the source's range, raised to `to`. With `since`, that revision is compared with and
    /// `to` stays readable for a while.
    fn raise(
        &self,
        source: &Source,
        to: Revision,
        since: Option<Revision>,
    ) -> impl Future<Output = Result<Raised, Status>>;

    /// The error for a store that cannot be raised to a revision.
    fn cannot_follow(&self, store: StoreIx, to: Revision) -> Status;

    /// How much is read of a source at a time.
    fn page_sizes(&self) -> PageSizes {
        PageSizes::default()
    }
}

/// The revision of a read, and its first pages.
#[derive(Debug)]
pub struct Snapshot {
    /// The revision of the data.
    pub at: Revision,
    /// The revision for the header; every store has promised it.
    pub header: Revision,
    /// What each source answered at `at`; `None` if it was not asked.
    pub firsts: Vec<Option<Page>>,
}

/// A read while its revision is sought.
struct Taking<'a, S, F> {
    shards: &'a S,
    sources: &'a [Source],
    shown: Revision,
    /// Makes the request for a source's data at a revision; `None` for the current one.
    ask: F,
}

/// Finds the revision of a read over `sources`. It is at least `shown`, the highest revision shown so far.
///
/// # Errors
/// etcd's for a future or compacted revision; `Unavailable` naming the store that is away or cannot follow.
pub async fn take<S: Shards, F: Fn(usize, Option<Revision>) -> pb::RangeRequest>(
    shards: &S,
    sources: &[Source],
    mode: Mode,
    shown: Revision,
    ask: F,
) -> Result<Snapshot, Status> {
    let participants: Vec<_> = (0..sources.len()).map(StoreIx).collect();
    let (mut read, commands) = ConsistentRead::start(mode, &participants, shown);
    let taking = Taking { shards, sources, shown, ask };
    let mut firsts: Vec<Option<Page>> = sources.iter().map(|_| None).collect();
    let mut pending: FuturesUnordered<_> = commands.into_iter().map(|command| taking.run(command)).collect();
    while let Some(answer) = pending.next().await {
        let (event, page) = answer?;
        if let (Event::Answered { store, .. }, Some(page)) = (event, page) {
            firsts[store.0] = Some(page);
        }
        for command in read.step(event).map_err(|error| taking.status(error))? {
            match command {
                Command::Done { at, header } => return Ok(Snapshot { at, header, firsts }),
                command => pending.push(taking.run(command)),
            }
        }
    }
    Err(Status::internal("kindred: a read ended without a revision"))
}

impl<S: Shards, F: Fn(usize, Option<Revision>) -> pb::RangeRequest> Taking<'_, S, F> {
    async fn run(&self, command: Command) -> Result<(Event, Option<Page>), Status> {
        match command {
            Command::Read { store, min_revision } => {
                let page = self.page(store, None, min_revision).await?;
                Ok((Event::Answered { store, header: page.header }, Some(page)))
            }
            Command::ReadAt { store, revision } => self.read_at(store, revision).await,
            Command::Current { store, min_revision } => {
                let raised = match self.raise(store, min_revision, None).await? {
                    Some(raised) => raised,
                    // `min_revision` is only a hint; the store cannot follow it.
                    None => self.shards.raise(&self.sources[store.0], Revision::ZERO, None).await?,
                };
                Ok((Event::Raised { store, current: raised.current }, None))
            }
            Command::Raise { store, to } => Ok(match self.raise(store, to, None).await? {
                Some(raised) => (Event::Raised { store, current: raised.current }, None),
                None => (Event::CannotFollow { store }, None),
            }),
            Command::Confirm { store, since, to } => Ok(match self.raise(store, to, Some(since)).await? {
                Some(raised) if raised.changed => (Event::Changed { store, to }, None),
                Some(_) => (Event::Unchanged { store, to }, None),
                None => (Event::CannotFollow { store }, None),
            }),
            // [`take`] returns at `Done`.
            Command::Done { .. } => Err(Status::internal("kindred: a read went on after its end")),
        }
    }

    async fn read_at(&self, store: StoreIx, revision: Revision) -> Result<(Event, Option<Page>), Status> {
        let min_revision = revision.max(self.shown);
        let answered = match self.page(store, Some(revision), min_revision).await {
            // The hint did not raise the store, so raise it explicitly.
            Err(status) if grpc::etcd_error(&status) == Some(EtcdError::FutureRevision) => {
                if self.raise(store, revision, None).await?.is_none() {
                    return Ok((Event::CannotFollow { store }, None));
                }
                self.page(store, Some(revision), min_revision).await
            }
            answered => answered,
        };
        match answered {
            Ok(page) => Ok((Event::Answered { store, header: page.header }, Some(page))),
            Err(status) if grpc::etcd_error(&status) == Some(EtcdError::Compacted) => {
                Ok((Event::Compacted { store }, None))
            }
            Err(status) => Err(status),
        }
    }

    async fn page(
        &self,
        store: StoreIx,
        at: Option<Revision>,
        min_revision: Revision,
    ) -> Result<Page, Status> {
        let request = Bytes::from((self.ask)(store.0, at).encode_to_vec());
        // A named revision needs no pin: the client chose it, or it is pinned already.
        let answer =
            self.shards.range(self.sources[store.0].store, request, min_revision, at.is_none()).await?;
        Page::parse(answer).map_err(malformed)
    }

    /// Raises a source's store; `None` if the store refuses because its clock may not go that far (R3).
    async fn raise(
        &self,
        store: StoreIx,
        to: Revision,
        since: Option<Revision>,
    ) -> Result<Option<Raised>, Status> {
        match self.shards.raise(&self.sources[store.0], to, since).await {
            Ok(raised) => Ok(Some(raised)),
            Err(status) if status.code() == Code::FailedPrecondition => Ok(None),
            Err(status) => Err(status),
        }
    }

    fn status(&self, error: ReadError) -> Status {
        match error {
            ReadError::Future { .. } => grpc::status(EtcdError::FutureRevision),
            ReadError::Compacted(_) => grpc::status(EtcdError::Compacted),
            ReadError::CannotFollow { store, to } => {
                self.shards.cannot_follow(self.sources[store.0].store, to)
            }
            ReadError::Unexpected(_) => Status::internal(format!("kindred: a read over stores: {error}")),
        }
    }
}

/// The error for a store's answer that does not parse.
pub fn malformed(error: kindred_wire::scan::WireError) -> Status {
    Status::internal(format!("kindred: a store's answer: {error}"))
}
