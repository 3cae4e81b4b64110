//! Coordinates moves: one task for each move that this router has claimed. [`kindred_router_core::moves::machine`]
//! decides what to do; this module does it.
//!
//! Any router may coordinate a move. It claims the move by a key in meta under its lease. When the router dies the key
//! expires, and another router continues the move from its record. Claims only keep routers from duplicating work. Data
//! is kept safe by the term in the record, which fences earlier coordinators. While keys are held, nobody waits for a
//! claim to expire: every router is the `watchdog` of the other routers' moves.

pub mod begin;
pub mod desk;
pub mod keys;
pub mod mover;
pub mod past;
pub mod rate;
pub mod reconcile;
mod record_steps;
mod runner;
pub mod steps;
pub mod units;
pub mod watchdog;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::ids::MoveId;
use kindred_proto::etcdserverpb as pb;
use kindred_router_core::moves::machine;
use kindred_router_core::moves::record::MoveRecord;
use kindred_router_core::moves::watchdog::Settings as Beside;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use crate::meta::client::{Entries, Expect, Write};
use crate::meta::live::Live;
use crate::meta::store::MetaStore;
use crate::meta::{Meta, MetaError};
use keys::coordinator_key;
pub use keys::{
    COORDINATORS, Failing, Progress, REQUESTS, progress, record, record_key, records, request_key,
};
use mover::Mover;
use rate::Rate;
use runner::Runner;

/// How long a coordinator may be silent before its claims expire.
const LEASE_TTL_S: i64 = 3;
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How often moves are looked for when nothing changes in meta.
const LOOK: Duration = Duration::from_secs(1);

/// Settings of moves.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Settings of the coordinators.
    pub machine: machine::Settings,
    /// Bytes per second that this router copies, over all moves; 0 for no limit.
    pub copy_bytes_per_second: u64,
}

/// The moves that are not over and that no router has claimed, each with its record's mod revision.
pub fn unclaimed(entries: &Entries) -> impl Iterator<Item = (MoveRecord, i64)> + use<> {
    let claimed = |id: MoveId| entries.keys.contains_key(&coordinator_key(id));
    let open: Vec<_> = records(entries)
        .into_values()
        .filter(|(record, _)| !record.phase.is_over() && !claimed(record.id))
        .collect();
    open.into_iter()
}

/// Claims a move for this router under a lease; `false` if another one has it.
///
/// # Errors
/// When meta cannot be asked.
pub async fn claim(meta: &impl MetaStore, id: MoveId, router: &str, lease: i64) -> Result<bool, MetaError> {
    let progress = Progress { router: router.to_owned(), ..Progress::default() };
    let value = serde_json::to_vec(&progress).unwrap_or_default();
    let expect = Expect { key: coordinator_key(id), mod_revision: 0 };
    let write = Write { lease, ..Write::put(coordinator_key(id), value) };
    Ok(meta.commit(&[expect], vec![write]).await?.is_some())
}

struct Moves {
    mover: Arc<Mover>,
    meta: Arc<Meta>,
    settings: Settings,
    me: String,
    rate: Arc<Rate>,
    lease: Option<Lease>,
    running: JoinSet<MoveId>,
    ids: BTreeSet<MoveId>,
}

/// The lease of this router's claims; kept alive until this is dropped.
struct Lease {
    id: i64,
    ended: tokio::task::JoinHandle<()>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.ended.abort();
    }
}

/// Runs for ever: coordinates the moves that no other router has claimed, and watches over the others.
pub async fn run(mover: Arc<Mover>, meta: Arc<Meta>, settings: Settings) {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    mover.copy_speed.limited(settings.copy_bytes_per_second);
    let moves = Moves {
        // Each start is a coordinator of its own, because it knows nothing of steps that an earlier one had under way.
        me: format!("{}-{:x}", mover.identity.name, since_epoch.as_nanos()),
        rate: Arc::new(Rate::new(settings.copy_bytes_per_second)),
        mover: mover.clone(),
        settings,
        lease: None,
        running: JoinSet::new(),
        ids: BTreeSet::new(),
        meta: meta.clone(),
    };
    let beside = Beside::beside(&moves.settings.machine);
    let watchdogs = watchdog::run(mover.clone(), meta.clone(), moves.me.clone(), beside);
    tokio::select! {
        () = moves.coordinate() => {}
        () = watchdogs => {}
        () = reconcile::watch(mover, meta) => {}
    }
}

impl Moves {
    fn live(&self) -> Live {
        Live { keeper: self.mover.keeper.clone(), meta: self.meta.clone() }
    }

    async fn coordinate(mut self) {
        let mut entries = self.meta.entries();
        loop {
            let now = entries.borrow_and_update().clone();
            self.claim(&now).await;
            past::forget(&self.live(), &now).await;
            tokio::select! {
                changed = entries.changed() => if changed.is_err() { return },
                Some(ended) = self.running.join_next(), if !self.running.is_empty() => self.ended(ended),
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    fn ended(&mut self, ended: Result<MoveId, tokio::task::JoinError>) {
        match ended {
            Ok(id) => drop(self.ids.remove(&id)),
            // The id is lost with the task. The move stays in `ids`, and its claim keeps other routers away while the
            // lease lives.
            Err(error) => tracing::error!(%error, "the coordinator of a move failed"),
        }
    }

    /// Claims the moves that nobody coordinates, and starts their runners.
    async fn claim(&mut self, entries: &Entries) {
        let running = self.ids.clone();
        for (record, version) in unclaimed(entries).filter(|(record, _)| !running.contains(&record.id)) {
            let Some(lease) = self.lease().await else { return };
            let (id, live) = (record.id, self.live());
            match claim(&live, id, &self.mover.identity.name, lease).await {
                Ok(true) => {
                    tracing::info!(move_id = id.0, phase = ?record.phase, "this router coordinates a move");
                    self.ids.insert(id);
                    let runner = Runner::new(self, record, version, lease);
                    self.running.spawn(runner.run());
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(move_id = id.0, %error, "a move could not be claimed");
                    self.lease = None;
                }
            }
        }
    }

    /// The lease of this router's claims; grants one if there is none or it was lost.
    async fn lease(&mut self) -> Option<i64> {
        if let Some(lease) = self.lease.as_ref().filter(|lease| !lease.ended.is_finished()) {
            return Some(lease.id);
        }
        let request = pb::LeaseGrantRequest { ttl: LEASE_TTL_S, id: 0 };
        let granted = tokio::time::timeout(KEEP_ALIVE, self.meta.client.lease().lease_grant(request)).await;
        let id = granted.ok()?.ok()?.into_inner().id;
        let meta = self.meta.clone();
        let ended = tokio::spawn(async move { keep_alive(&meta, id).await });
        self.lease = Some(Lease { id, ended });
        Some(id)
    }
}

/// Keeps a lease alive; returns when it is lost.
async fn keep_alive(meta: &Meta, id: i64) {
    let mut last = tokio::time::Instant::now();
    while last.elapsed() < Duration::from_secs(LEASE_TTL_S.unsigned_abs()) {
        if let Ok(Some(answer)) = tokio::time::timeout(KEEP_ALIVE, renewed(meta, id)).await {
            if answer.ttl <= 0 {
                return;
            }
            last = tokio::time::Instant::now();
        }
        tokio::time::sleep(KEEP_ALIVE).await;
    }
}

async fn renewed(meta: &Meta, id: i64) -> Option<pb::LeaseKeepAliveResponse> {
    let (requests, queue) = mpsc::channel(1);
    // The queue is empty and its receiver is used below, so this cannot fail.
    let _ = requests.try_send(pb::LeaseKeepAliveRequest { id });
    let answers = meta.client.lease().lease_keep_alive(ReceiverStream::new(queue)).await;
    answers.ok()?.into_inner().message().await.ok()?
}
