//! Coordinates moves: one task for each move that this router has claimed. What to do is decided by
//! [`kindred_router_core::moves::machine`]; here it is done.
//!
//! Any router may coordinate. A move is claimed by a key under a lease of the router's in meta: when the router is gone,
//! so is the key, and another one takes the move over where the record says that it is. Claims only keep routers out of
//! each other's way; what keeps data safe is the term in the record, which fences whoever had the move before. While keys
//! are held up nobody waits for a claim to end: every router is the [`watchdog`] of the others' moves.

pub mod begin;
pub mod past;
pub mod rate;
pub mod reconcile;
mod record_steps;
pub mod runner;
mod units;
mod watchdog;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::ids::MoveId;
use kindred_proto::etcdserverpb as pb;
use kindred_router_core::moves::machine;
use kindred_router_core::moves::record::MoveRecord;
use kindred_router_core::moves::watchdog::Settings as Beside;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

use crate::app::App;
use crate::meta::client::{Entries, Expect, Write};
use crate::meta::{MOVES, Meta};
use rate::Rate;
use runner::Runner;

/// Who coordinates a move, and how far it is: under a lease.
pub const COORDINATORS: &str = "/kindred/coordinators/";
/// What operators ask of moves, and the answers.
pub const REQUESTS: &str = "/kindred/requests/";
/// How long a coordinator may be silent before another router takes over.
const LEASE_TTL_S: i64 = 3;
const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// How often claims are looked at when nothing changes in meta.
const LOOK: Duration = Duration::from_secs(1);

/// What may be chosen.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Of the coordinators.
    pub machine: machine::Settings,
    /// Bytes that this router copies in a second, over all moves; 0 = as fast as it goes.
    pub copy_bytes_per_second: u64,
}

/// How far a move is, by its coordinator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The router.
    pub router: String,
    /// Keys copied since it began.
    pub keys_copied: u64,
    /// Bytes of keys and values copied, events that followed included.
    pub bytes_copied: u64,
    /// How far the furthest follower is behind, in microseconds; absent while one does not follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag_micros: Option<u64>,
    /// Of the last switch: from the first freeze to the last unit opened, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_micros: Option<u64>,
    /// Steps that failed when they were last tried, and are tried again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failing: Vec<Failing>,
}

/// A step of a move that keeps failing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failing {
    /// Its name.
    pub step: String,
    /// How often since it last succeeded.
    pub times: u64,
    /// Why, the last time.
    pub reason: String,
}

/// The key of a record.
#[must_use]
pub fn record_key(id: MoveId) -> String {
    format!("{MOVES}{}", id.0)
}

fn coordinator_key(id: MoveId) -> String {
    format!("{COORDINATORS}{}", id.0)
}

/// The key of what is asked of a move.
#[must_use]
pub fn request_key(id: MoveId) -> String {
    format!("{REQUESTS}{}", id.0)
}

/// All moves that meta knows of, by their numbers, with the version of each record.
#[must_use]
pub fn records(entries: &Entries) -> BTreeMap<MoveId, (MoveRecord, i64)> {
    let below = entries.keys.range(MOVES.to_owned()..).take_while(|(key, _)| key.starts_with(MOVES));
    below
        .filter_map(|(key, stored)| match MoveRecord::from_json(&stored.value) {
            Ok(record) => Some((record.id, (record, stored.mod_revision))),
            Err(error) => {
                tracing::error!(key, %error, "a move cannot be read, and is left alone");
                None
            }
        })
        .collect()
}

/// One of them.
#[must_use]
pub fn record(entries: &Entries, id: MoveId) -> Option<MoveRecord> {
    MoveRecord::from_json(&entries.keys.get(&record_key(id))?.value).ok()
}

/// What the coordinator of a move last said of it.
#[must_use]
pub fn progress(entries: &Entries, id: MoveId) -> Option<Progress> {
    serde_json::from_slice(&entries.keys.get(&coordinator_key(id))?.value).ok()
}

struct Moves {
    app: Arc<App>,
    meta: Arc<Meta>,
    settings: Settings,
    me: String,
    rate: Arc<Rate>,
    lease: Option<Lease>,
    running: JoinSet<MoveId>,
    ids: BTreeSet<MoveId>,
}

/// The lease of this router's claims, kept alive while this is there.
struct Lease {
    id: i64,
    ended: tokio::task::JoinHandle<()>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.ended.abort();
    }
}

/// Coordinates the moves that no other router does, and looks after the others, for as long as the router runs.
pub async fn run(app: Arc<App>, meta: Arc<Meta>, settings: Settings) {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    app.copy_speed.limited(settings.copy_bytes_per_second);
    let moves = Moves {
        // Every start is another coordinator: it knows nothing of what the one before had under way.
        me: format!("{}-{:x}", app.identity.name, since_epoch.as_nanos()),
        rate: Arc::new(Rate::new(settings.copy_bytes_per_second)),
        app: app.clone(),
        settings,
        lease: None,
        running: JoinSet::new(),
        ids: BTreeSet::new(),
        meta: meta.clone(),
    };
    let beside = Beside::beside(&moves.settings.machine);
    let watchdogs = watchdog::run(app.clone(), meta, moves.me.clone(), beside);
    tokio::select! {
        () = moves.coordinate() => {}
        () = watchdogs => {}
        () = reconcile::watch(app) => {}
    }
}

impl Moves {
    async fn coordinate(mut self) {
        let mut entries = self.meta.entries();
        loop {
            let now = entries.borrow_and_update().clone();
            self.claim(&now).await;
            past::forget(&self.meta, &now).await;
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
            // Which one is not known; claims that are held still keep the others.
            Err(error) => tracing::error!(%error, "the coordinator of a move failed"),
        }
    }

    /// Takes up what nobody coordinates.
    async fn claim(&mut self, entries: &Entries) {
        for (id, (record, version)) in records(entries) {
            let taken = entries.keys.contains_key(&coordinator_key(id)) || self.ids.contains(&id);
            if record.phase.is_over() || taken {
                continue;
            }
            let Some(lease) = self.lease().await else { return };
            let progress = Progress { router: self.app.identity.name.clone(), ..Progress::default() };
            let value = serde_json::to_vec(&progress).unwrap_or_default();
            let expect = Expect { key: coordinator_key(id), mod_revision: 0 };
            let write = Write { lease, ..Write::put(coordinator_key(id), value) };
            match self.meta.client.commit(&[expect], vec![write]).await {
                Ok(Some(_)) => {
                    tracing::info!(move_id = id.0, phase = ?record.phase, "this router coordinates a move");
                    self.ids.insert(id);
                    let runner = Runner::new(self, record, version, lease);
                    self.running.spawn(runner.run());
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(move_id = id.0, %error, "a move could not be claimed");
                    self.lease = None;
                }
            }
        }
    }

    /// The lease of this router's claims, granted when there is none.
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

/// Until the lease is lost.
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
    // The queue is empty, and its other end is below.
    let _ = requests.try_send(pb::LeaseKeepAliveRequest { id });
    let answers = meta.client.lease().lease_keep_alive(ReceiverStream::new(queue)).await;
    answers.ok()?.into_inner().message().await.ok()?
}
