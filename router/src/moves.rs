//! Coordinates moves: one task for each move that this router has claimed. [`kindred_router_core::moves::machine`]
//! decides what to do; this module does it.
//!
//! Any router may coordinate a move. It claims the move by a key in meta under its lease. When the router dies the key
//! expires, and another router continues the move from its record. Claims only keep routers from duplicating work. Data
//! is kept safe by the term in the record, which fences earlier coordinators. While keys are held, nobody waits for a
//! claim to expire: every router is the `watchdog` of the other routers' moves.

pub mod begin;
pub mod claims;
pub mod desk;
pub mod keys;
pub mod mover;
pub mod past;
pub mod rate;
pub mod reconcile;
mod record_steps;
mod runner;
pub mod steps;
pub mod taken;
pub mod units;
pub mod watchdog;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::ids::MoveId;
use kindred_router_core::moves::machine;
use kindred_router_core::moves::watchdog::Settings as Beside;
use tokio::task::JoinSet;

use crate::meta::Meta;
use crate::meta::client::Entries;
use crate::meta::live::Live;
use crate::meta::store::MetaStore;
use claims::{Claims, LEASE_TTL, keep_alive};
pub use keys::{
    COORDINATORS, Failing, Progress, REQUESTS, progress, record, record_key, records, request_key,
};
use mover::Mover;
use rate::Rate;
use runner::Runner;

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

struct Moves {
    mover: Arc<Mover>,
    meta: Arc<Meta>,
    settings: Settings,
    me: String,
    rate: Arc<Rate>,
    lease: Option<Lease>,
    running: JoinSet<()>,
    /// The moves of the running tasks.
    tasks: HashMap<tokio::task::Id, MoveId>,
    claims: Claims,
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
        claims: Claims::new(mover.identity.name.clone()),
        mover: mover.clone(),
        settings,
        lease: None,
        running: JoinSet::new(),
        tasks: HashMap::new(),
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
        let ticks = self.mover.keeper.stores.ticks();
        loop {
            let now = entries.borrow_and_update().clone();
            self.claim(&now).await;
            past::forget(&self.live(), &now).await;
            tokio::select! {
                changed = entries.changed() => if changed.is_err() { return },
                Some(ended) = self.running.join_next_with_id(), if !self.running.is_empty() => self.ended(ended),
                () = ticks.sleep(LOOK) => {}
            }
        }
    }

    fn ended(&mut self, ended: Result<(tokio::task::Id, ()), tokio::task::JoinError>) {
        let task = match ended {
            Ok((task, ())) => task,
            Err(error) => {
                tracing::error!(%error, "the coordinator of a move failed, and begins again");
                error.id()
            }
        };
        if let Some(id) = self.tasks.remove(&task) {
            self.claims.ended(id);
        }
    }

    /// Claims the moves that nobody coordinates, and starts their runners.
    async fn claim(&mut self, entries: &Entries) {
        for due in self.claims.due(entries) {
            let Some(lease) = self.lease().await else { return };
            let (id, live) = (due.record.id, self.live());
            match Claims::claim(&live, &self.mover.identity.name, &due, lease).await {
                Ok(true) => {
                    let (kind, phase) = (&due.record.kind, due.record.phase);
                    tracing::info!(move_id = id.0, kind, ?phase, "this router coordinates a move");
                    self.claims.began(id);
                    let runner = Runner::new(self, due.record, due.version, lease);
                    let task = self.running.spawn(runner.run()).id();
                    self.tasks.insert(task, id);
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
        let (mover, live) = (self.mover.clone(), self.live());
        let id = live.grant(LEASE_TTL).await.ok()?;
        let ended = tokio::spawn(async move { keep_alive(&mover, &live, id).await });
        self.lease = Some(Lease { id, ended });
        Some(id)
    }
}
