//! Follows meta for as long as the router runs: list, watch from there, and again after every loss. Newer states are
//! taken and written to the file; a state older than the one in use is replaced by it.

use std::sync::Arc;
use std::time::Duration;

use kindred_partition_config::state::ClusterState;

use super::client::{Entries, Expect, Write};
use super::start::addressed;
use super::{Meta, MetaError, STATE, cache, compactions, order};
use crate::app::App;

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Meta keeps the history of this long, twice at most.
const HISTORY: Duration = Duration::from_secs(300);
/// Fewer changes than these are not worth a compaction.
const WORTH_IT: i64 = 100;

/// Runs for ever.
pub async fn run(app: Arc<App>, meta: Arc<Meta>) {
    let following = async {
        let mut backoff = BACKOFF_MIN;
        loop {
            let Err(error) = once(&app, &meta, &mut backoff).await;
            // Compacted: the watch fell behind, and the next list finds what it missed.
            if error != MetaError::Compacted {
                meta.set_problem(Some(error.to_string()));
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    };
    tokio::join!(following, keep(&app, &meta), compact(&meta), compactions::run(&app, &meta));
}

/// Until something is lost.
async fn once(
    app: &Arc<App>,
    meta: &Meta,
    backoff: &mut Duration,
) -> Result<std::convert::Infallible, MetaError> {
    let mut entries = listed(app, meta).await?;
    meta.set_problem(None);
    saw(app, meta, &entries).await?;
    let mut watch = meta.client.watch(entries.revision + 1).await?;
    loop {
        let answer = watch.next().await?;
        *backoff = BACKOFF_MIN;
        for event in &answer.events {
            entries.apply(event);
        }
        entries.revision = entries.revision.max(answer.header.map_or(0, |header| header.revision));
        if !answer.events.is_empty() {
            saw(app, meta, &entries).await?;
        }
    }
}

/// All keys, once meta has a state that is not older than the one in use, with the addresses of `--store`.
async fn listed(app: &Arc<App>, meta: &Meta) -> Result<Entries, MetaError> {
    loop {
        // Before meta is asked: what this router changes meanwhile is not in the answer.
        let own = app.cluster.state();
        let entries = meta.client.list().await?;
        let (found, mod_revision) = match entries.keys.get(STATE) {
            None => (None, 0),
            Some(stored) => (Some(ClusterState::from_json(&stored.value)?), stored.mod_revision),
        };
        let next = match found {
            Some(found) if order(&found) >= order(&own) => {
                let next = addressed(found.clone(), &meta.settings.addresses);
                if next == found {
                    return Ok(entries);
                }
                next
            }
            found => {
                let has = found.map(|found| order(&found));
                tracing::warn!(?has, own = ?order(&own), "the meta store has lost data: it gets this router's state");
                (*own).clone()
            }
        };
        // Whoever is faster: the next list tells.
        let expect = Expect { key: STATE.to_owned(), mod_revision };
        meta.client.commit(&[expect], vec![Write::put(STATE, next.to_json())]).await?;
    }
}

/// Takes the state and tells everybody what is there.
async fn saw(app: &Arc<App>, meta: &Meta, entries: &Entries) -> Result<(), MetaError> {
    let Some(stored) = entries.keys.get(STATE) else {
        return Err(MetaError::Refused(format!("{STATE} was deleted; it is written again")));
    };
    let changed = meta.entries.borrow().keys.get(STATE) != Some(stored);
    if changed {
        app.take(Arc::new(ClusterState::from_json(&stored.value)?));
    }
    meta.entries.send_replace(Arc::new(entries.clone()));
    Ok(())
}

/// Writes every state that is taken to the file, also one that this router has changed itself and whose event is lost
/// with meta.
async fn keep(app: &App, meta: &Meta) {
    let Some(path) = &meta.settings.cache else { return };
    let mut states = app.cluster.states();
    loop {
        let (path, state) = (path.clone(), states.borrow_and_update().clone());
        let written = tokio::task::spawn_blocking(move || cache::write(&path, &state)).await;
        if let Ok(Err(error)) = written {
            tracing::error!(%error, "the state was not written; a start without the meta store would use an older one");
        }
        if states.changed().await.is_err() {
            return;
        }
    }
}

/// Lets meta forget: its history is only for watches that resume. An etcd that kindred shares with others is compacted
/// with it, which kube-apiserver does in the same way.
async fn compact(meta: &Meta) {
    let (mut before, mut compacted) = (0, 0);
    loop {
        tokio::time::sleep(HISTORY).await;
        if before > compacted + WORTH_IT {
            match meta.client.compact(before).await {
                Ok(()) => compacted = before,
                Err(error) => tracing::debug!(%error, "the meta store was not compacted"),
            }
        }
        before = meta.entries.borrow().revision;
    }
}
