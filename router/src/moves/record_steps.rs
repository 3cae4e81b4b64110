//! The steps of a move that read and write its record in meta.

use std::sync::Arc;

use kindred_partition_config::ids::MoveId;
use kindred_partition_config::state::ClusterState;
use kindred_router_core::moves::record::MoveRecord;
use kindred_router_core::moves::step::Answer;

use super::record_key;
use crate::app::App;
use crate::meta::client::{Expect, Write};
use crate::meta::{Meta, MetaError, STATE};

/// How often a decision is tried while others change the state for other reasons.
const ATTEMPTS: usize = 16;

/// Reads the record.
pub(super) async fn read(meta: &Meta, id: MoveId) -> Answer {
    match meta.client.get(&record_key(id)).await {
        Ok(None) => Answer::NoRecord,
        Ok(Some(stored)) => match MoveRecord::from_json(&stored.value) {
            Ok(record) => Answer::Record { record: Box::new(record), version: stored.mod_revision },
            Err(error) => Answer::Failed { reason: error.to_string() },
        },
        Err(error) => failed(&error),
    }
}

/// Writes the record in place of the one of this version. With the last one of a move that was given up, the
/// configuration says again what it said before, in the same transaction.
pub(super) async fn swap(app: &Arc<App>, meta: &Meta, record: Box<MoveRecord>, version: i64) -> Answer {
    if record.to_put_back().is_some() {
        return put_back(app, meta, record, version).await;
    }
    let key = record_key(record.id);
    let expect = Expect { key: key.clone(), mod_revision: version };
    match meta.client.commit(&[expect], vec![Write::put(key, record.to_json())]).await {
        Ok(Some(version)) => Answer::Swapped { record, version },
        Ok(None) => Answer::Conflict,
        Err(error) => failed(&error),
    }
}

async fn put_back(app: &Arc<App>, meta: &Meta, record: Box<MoveRecord>, version: i64) -> Answer {
    let (state, stored) = match state(meta).await {
        Ok(state) => state,
        Err(error) => return failed(&error),
    };
    let kind = record.kind.as_ref().and_then(|kind| state.scheme().kind_prefix(kind.as_bytes()));
    let next = match record.to_put_back() {
        Some(said) => state.with_said_of(kind.as_ref(), said),
        None => state,
    };
    let key = record_key(record.id);
    let expects = [
        Expect { key: key.clone(), mod_revision: version },
        Expect { key: STATE.to_owned(), mod_revision: stored },
    ];
    let writes = vec![Write::put(key, record.to_json()), Write::put(STATE, next.to_json())];
    match meta.client.commit(&expects, writes).await {
        Ok(Some(version)) => {
            app.take(Arc::new(next));
            Answer::Swapped { record, version }
        }
        // The record is read again, which tells what has changed.
        Ok(None) => Answer::Conflict,
        Err(error) => failed(&error),
    }
}

/// The one commit point of a switch (R15c): the record and the map, in one transaction.
pub(super) async fn decide(
    app: &Arc<App>,
    meta: &Meta,
    record: &MoveRecord,
    version: i64,
    leg: usize,
) -> Answer {
    let key = record_key(record.id);
    for _ in 0..ATTEMPTS {
        let (state, stored) = match state(meta).await {
            Ok(state) => state,
            Err(error) => return failed(&error),
        };
        let Some(of_leg) = record.legs.get(leg) else {
            return Answer::Refused { reason: format!("the move has no leg {leg}") };
        };
        let next = match state.with_transfers(&of_leg.next_transfers()) {
            Ok(next) => next,
            Err(error) => return Answer::Refused { reason: error.to_string() },
        };
        let decided = record.decided(leg, next.generation);
        let expects = [
            Expect { key: key.clone(), mod_revision: version },
            Expect { key: STATE.to_owned(), mod_revision: stored },
        ];
        let writes = vec![Write::put(key.clone(), decided.to_json()), Write::put(STATE, next.to_json())];
        match meta.client.commit(&expects, writes).await {
            Ok(Some(version)) => {
                // Requests that wait here go on at once; other routers hear of it from meta.
                app.take(Arc::new(next));
                return Answer::Swapped { record: Box::new(decided), version };
            }
            Ok(None) => match meta.client.get(&key).await {
                // Only the state has changed: for another Kind, or another reason.
                Ok(Some(there)) if there.mod_revision == version => {}
                Ok(_) => return Answer::Conflict,
                Err(error) => return failed(&error),
            },
            Err(error) => return failed(&error),
        }
    }
    Answer::Refused { reason: "the cluster's state is being changed all the time".to_owned() }
}

async fn state(meta: &Meta) -> Result<(ClusterState, i64), MetaError> {
    let stored = meta.client.get(STATE).await?;
    let stored = stored.ok_or_else(|| MetaError::Unavailable("it has no state yet".to_owned()))?;
    Ok((ClusterState::from_json(&stored.value)?, stored.mod_revision))
}

fn failed(error: &MetaError) -> Answer {
    Answer::Failed { reason: error.to_string() }
}
