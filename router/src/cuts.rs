//! Cuts of the whole key space (R5), for backups: one revision T to which every shard has come, and at which what was
//! current stays readable for as long as somebody renews it. A stock etcd cannot follow to T; it is read at a revision of
//! its own, which it keeps only until it compacts.
//!
//! Nothing of a cut is in the router: any router renews or ends what another one took.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::Key;
use kindred_proto::etcdserverpb as pb;
use kindred_proto::shard_v1 as shard;
use kindred_router_core::parts::store_ix;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use kindred_wire::peek;
use prost::Message as _;
use tonic::{Code, Status};

use crate::app::App;
use crate::execute::compact::{everything, raise};
use crate::execute::{Deadline, Effect, call};
use crate::stores::Store;

/// How long a cut is kept without being renewed.
pub const KEPT: Duration = Duration::from_secs(120);
/// For each round over the stores.
const LIMIT: Duration = Duration::from_secs(5);
/// How often a cut is begun whose revision is compacted before it is kept, or which a shard does not show yet: what it
/// has to write to disk first is not on disk.
const ATTEMPTS: usize = 40;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(50);

/// A cut's name at the shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CutName(pub u64);

/// A cut.
#[derive(Debug)]
pub struct Cut {
    /// To renew it and to end it.
    pub name: CutName,
    /// T; zero where there is no shard.
    pub revision: Revision,
    /// The key space in key order: what is read at which revision.
    pub ranges: Vec<CutRange>,
}

/// Keys that are read at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutRange {
    /// The first key.
    pub start: Key,
    /// The first one beyond.
    pub end: Option<Key>,
    /// Where to read: T, or that of the stock etcd which serves it.
    pub revision: Revision,
    /// That etcd; `None` for shards.
    pub etcd: Option<String>,
}

impl App {
    fn shards(&self) -> impl Iterator<Item = &Arc<Store>> {
        self.stores.iter().filter(|store| store.is_shard() && !store.is_removed())
    }

    /// Takes a cut of everything.
    ///
    /// # Errors
    /// `Unavailable` naming a store that serves keys and is away.
    pub async fn take_cut(&self) -> Result<Cut, Status> {
        let name = CutName(self.pins.next());
        let mut attempts = 1;
        let revision = loop {
            match self.keep_everything(name).await {
                Err(status) if may_pass(&status) && attempts < ATTEMPTS => {
                    attempts += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(status) => {
                    self.end_cut(name).await;
                    return Err(status);
                }
                Ok(revision) => break revision,
            }
        };
        match self.cut_ranges(revision).await {
            Ok(ranges) => Ok(Cut { name, revision, ranges }),
            Err(status) => {
                self.end_cut(name).await;
                Err(status)
            }
        }
    }

    /// Brings every shard to one revision, and keeps it there. A shard that serves nothing may be away.
    async fn keep_everything(&self, name: CutName) -> Result<Revision, Status> {
        let routes = self.routes.load_full();
        let serves = |store: &Store| {
            let mut of_any = routes.map().partitions().iter().flat_map(|part| part.placement.stores());
            of_any.any(|placed| store_ix(placed) == store.index)
        };
        let shards: Vec<_> =
            self.shards().filter(|store| store.state().is_up() || serves(store)).cloned().collect();
        let all_to = async |to: Revision| {
            let raised =
                shards.iter().map(|store| raise(store, everything(), to, 0, Deadline::within(LIMIT)));
            try_join_all(raised).await
        };
        let top = all_to(Revision::ZERO).await?.into_iter().max().unwrap_or(Revision::ZERO);
        for (store, current) in shards.iter().zip(all_to(top).await?) {
            // A frozen unit shows less, and is read where it goes.
            if current < top {
                tracing::debug!(store = store.name(), %current, %top, "a unit of it is frozen below the cut");
            }
        }
        try_join_all(shards.iter().map(|store| keep(store, name, top, KEPT))).await?;
        Ok(top)
    }

    /// What is read at which revision, by the map in use.
    async fn cut_ranges(&self, revision: Revision) -> Result<Vec<CutRange>, Status> {
        let mut ranges: Vec<CutRange> = Vec::new();
        for mut range in self.runs() {
            range.revision = revision;
            if let Some(name) = &range.etcd {
                let known =
                    ranges.iter().find(|known| known.etcd.as_ref() == Some(name)).map(|known| known.revision);
                let store = self.stores.iter().find(|store| store.name() == name);
                range.revision = match (known, store) {
                    (Some(revision), _) => revision,
                    (None, Some(store)) => etcd_revision(store).await?,
                    (None, None) => return Err(Status::internal(format!("kindred: no store {name}"))),
                };
            }
            ranges.push(range);
        }
        Ok(ranges)
    }

    /// The key space as one read can go across it: what shards serve, and what each stock etcd does. The revisions are zero.
    #[must_use]
    pub fn runs(&self) -> Vec<CutRange> {
        let routes = self.routes.load_full();
        let mut runs: Vec<CutRange> = Vec::new();
        for partition in routes.map().partitions() {
            let stores =
                partition.placement.stores().into_iter().map(|store| self.stores.get(store_ix(store)));
            let etcd = { stores }.find(|store| !store.is_shard()).map(|store| store.name().to_owned());
            match runs.last_mut() {
                Some(last) if last.etcd == etcd => last.end = partition.end().cloned(),
                _ => runs.push(CutRange {
                    start: partition.start().clone(),
                    end: partition.end().cloned(),
                    revision: Revision::ZERO,
                    etcd,
                }),
            }
        }
        runs
    }

    /// Keeps a cut for its time again. A shard that has begun since the cut was taken, or has lost it, cannot: what is read
    /// there says so. Names those.
    pub async fn renew_cut(&self, name: CutName, revision: Revision) -> Vec<String> {
        let kept = self.shards().map(|store| async move {
            let kept = keep(store, name, revision, KEPT).await;
            kept.err().map(|status| format!("{}: {}", store.name(), status.message()))
        });
        join_all(kept).await.into_iter().flatten().collect()
    }

    /// Ends a cut. What cannot be reached lets it go by itself.
    pub async fn end_cut(&self, name: CutName) {
        let ended = self.shards().filter(|store| store.state().is_up());
        let ended = ended.map(|store| keep(store, name, Revision::ZERO, Duration::ZERO));
        // An end that is lost is made up for by time.
        let _ = join_all(ended).await;
    }
}

async fn keep(store: &Store, name: CutName, revision: Revision, time: Duration) -> Result<(), Status> {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let request = shard::KeepRequest { pin: name.0, revision: revision.get(), millis };
    let deadline = Deadline::within(LIMIT);
    let kept =
        call(store, Effect::Read, deadline, || async { store.shard().keep(deadline.request(request)).await });
    match kept.await {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::Unimplemented => Err(Status::unimplemented(format!(
            "kindred: store {} is of a version that keeps no revision for a backup: update it",
            store.name()
        ))),
        Err(status) => Err(status),
    }
}

/// The current revision of a stock etcd.
pub(crate) async fn etcd_revision(store: &Store) -> Result<Revision, Status> {
    let request = pb::RangeRequest { key: Bytes::from_static(&[0]), count_only: true, ..Default::default() };
    let body = Bytes::from(request.encode_to_vec());
    let deadline = Deadline::within(LIMIT);
    let answer = call(store, Effect::Read, deadline, || async {
        store.kv().range(deadline.request(body.clone())).await
    });
    Ok(Revision(peek::header_revision(&answer.await?).unwrap_or_default()))
}

fn may_pass(status: &Status) -> bool {
    matches!(grpc::etcd_error(status), Some(EtcdError::Compacted | EtcdError::FutureRevision))
}
