//! Finds clients that still write to a stock etcd what has moved away from it. Such a write is lost: nobody reads it there.
//! No router makes one, as the fence refuses it, so whoever does bypasses the routers, such as an apiserver whose
//! `--etcd-servers` still names the etcd.
//!
//! The units that the fence says have moved are watched from its last change on. Deletions are left out: an etcd also ends
//! the leases of keys that it gave away.

use std::sync::Arc;
use std::time::Duration;

use kindred_wire::answer::{WatchResponse, watch_events};
use kindred_wire::kv::{EventRef, KeyValueRef};
use kindred_wire::peek::WatchCreateRequest;
use kindred_wire::watch_request;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use crate::execute::{Deadline, fenced};
use crate::metrics;
use crate::stores::Store;

/// The time limit of a read of the fence.
const LIMIT: Duration = Duration::from_secs(2);
/// How often the fence is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// The pause before the next line of the log about an etcd.
const TELL_EVERY: Duration = Duration::from_secs(30);
/// The number of units that one watch stream is asked for at a time.
const CREATES: usize = 8;

/// What was found at an etcd.
#[derive(Debug, Default)]
struct Found {
    writes: u64,
    told: Option<tokio::time::Instant>,
}

/// Watches an etcd, for ever.
pub async fn watch(store: Arc<Store>) {
    let (mut found, mut from) = (Found::default(), 0);
    loop {
        store.state().wait_up().await;
        if let Err(error) = watch_once(&store, &mut from, &mut found).await {
            tracing::debug!(store = store.name(), %error, "writes that bypass the routers are not watched for");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Watches until the fence changes or the stream ends. `from` is the revision from which it has not looked yet.
async fn watch_once(store: &Store, from: &mut i64, found: &mut Found) -> Result<(), Status> {
    let fence = fenced::read(store, Deadline::within(LIMIT)).await?;
    let moved = fence.doc.moved();
    if moved.is_empty() {
        *from = 0;
        return Ok(());
    }
    *from = (*from).max(fence.mod_revision + 1);
    let (asks, requests) = mpsc::channel(CREATES);
    // An etcd answers only to the first request.
    let mut opened = store.watch();
    let opening = opened.watch(Request::new(ReceiverStream::new(requests)));
    let creating = async {
        for (at, range) in moved.iter().enumerate() {
            let (key, range_end) = range.to_wire();
            let create = WatchCreateRequest {
                key: &key,
                range_end: &range_end,
                start_revision: *from,
                no_delete: true,
                watch_id: i64::try_from(at).unwrap_or(i64::MAX - 1) + 1,
                ..Default::default()
            };
            if asks.send(watch_request::create_behind_fence(&create).into()).await.is_err() {
                return;
            }
        }
    };
    let mut next = *from;
    let reading = async {
        let mut watch = opening.await?.into_inner();
        loop {
            let Ok(said) = tokio::time::timeout(LOOK, watch.message()).await else {
                let now = fenced::read(store, Deadline::within(LIMIT)).await?;
                if now.mod_revision != fence.mod_revision {
                    return Ok(());
                }
                continue;
            };
            let Some(said) = said? else { return Ok(()) };
            let head = WatchResponse::parse(&said).map_err(|error| store.unavailable(&error.to_string()))?;
            if head.canceled {
                // What is compacted cannot be looked at any more.
                next = next.max(head.compact_revision);
                return Ok(());
            }
            let events = watch_events(&said).collect::<Vec<_>>();
            // The writes of a move that brings a unit back come after its change of the fence.
            if !events.is_empty()
                && fenced::read(store, Deadline::within(LIMIT)).await?.mod_revision != fence.mod_revision
            {
                return Ok(());
            }
            for event in events {
                let parsed = event.and_then(EventRef::parse).and_then(|event| KeyValueRef::parse(event.kv));
                let kv = parsed.map_err(|error| store.unavailable(&error.to_string()))?;
                next = next.max(kv.mod_revision + 1);
                note(store, found, kv.key, kv.mod_revision);
            }
        }
    };
    let ended: Result<(), Status> = tokio::join!(creating, reading).1;
    *from = next;
    ended
}

fn note(store: &Store, found: &mut Found, key: &[u8], revision: i64) {
    found.writes += 1;
    metrics::bypassed(store);
    let trouble = format!(
        "{} writes of others to keys that have moved away from it are lost, the last one to \"{}\" at revision {revision}: \
         point whoever makes them at kindred",
        found.writes,
        key.escape_ascii()
    );
    if found.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
        found.told = Some(tokio::time::Instant::now());
        tracing::error!(store = store.name(), "{trouble}");
    }
    store.set_trouble(&trouble);
}
