//! The steps of a move that read or write its record in meta.

use std::sync::Arc;

use kindred_partition_config::ids::MoveId;
use kindred_partition_config::validate::FieldError;
use kindred_router_core::moves::conflict::kind_of;
use kindred_router_core::moves::record::MoveRecord;
use kindred_router_core::moves::step::Answer;

use super::keys::record_key;
use crate::meta::change::newest_state;
use crate::meta::client::{Expect, Write};
use crate::meta::store::MetaStore;
use crate::meta::{MetaError, STATE, write as write_state};

/// How often a decision is tried when other changes of the state collide with it.
const ATTEMPTS: usize = 16;

/// Reads the record of a move.
pub(super) async fn read(meta: &impl MetaStore, id: MoveId) -> Answer {
    match meta.get(&record_key(id)).await {
        Ok(None) => Answer::NoRecord,
        Ok(Some(stored)) => match MoveRecord::from_json(&stored.value) {
            Ok(record) => Answer::Record { record: Box::new(record), version: stored.mod_revision },
            Err(error) => Answer::Failed { reason: error.to_string() },
        },
        Err(error) => failed(&error),
    }
}

/// Replaces the version of the record that is given. The last record of a move that was aborted also restores the
/// earlier configuration of its Kind, in the same transaction.
pub(super) async fn swap(meta: &impl MetaStore, record: Box<MoveRecord>, version: i64) -> Answer {
    if record.to_put_back().is_some() {
        return put_back(meta, record, version).await;
    }
    let key = record_key(record.id);
    let expect = Expect { key: key.clone(), mod_revision: version };
    match meta.commit(&[expect], vec![Write::put(key, record.to_json())]).await {
        Ok(Some(version)) => Answer::Swapped { record, version },
        Ok(None) => Answer::Conflict,
        Err(error) => failed(&error),
    }
}

async fn put_back(meta: &impl MetaStore, mut record: Box<MoveRecord>, version: i64) -> Answer {
    let (state, stored) = match newest_state(meta).await {
        Ok(state) => state,
        Err(error) => return failed(&error),
    };
    let key = record_key(record.id);
    let mut expects = vec![Expect { key: key.clone(), mod_revision: version }];
    let mut writes = Vec::new();
    let mut next = None;
    if let Some(said) = record.to_put_back() {
        let back = state.with_said_of(kind_of(&state, &record).as_ref(), said);
        match back.map_err(said_of).and_then(|back| Ok((write_state(&back.state)?, back))) {
            Ok((write, back)) => {
                for store in &back.active_again {
                    tracing::info!(move_id = record.id.0, %store, "the store keeps its keys: it is not drained any more");
                }
                expects.push(Expect { key: STATE.to_owned(), mod_revision: stored });
                writes.push(write);
                next = Some(back.state);
            }
            Err(error) => {
                // The move ends anyway: nothing moves any more, and the operator can correct the configuration.
                let why = format!("the configuration was left as it is: {error}");
                tracing::error!(
                    move_id = record.id.0,
                    why,
                    "what was said before the move cannot be said again"
                );
                let before = record.reason.take().map_or_else(String::new, |before| format!("{before}; "));
                record.reason = Some(before + &why);
            }
        }
    }
    writes.push(Write::put(key, record.to_json()));
    match meta.commit(&expects, writes).await {
        Ok(Some(version)) => {
            if let Some(next) = next {
                meta.take(Arc::new(next));
            }
            Answer::Swapped { record, version }
        }
        // The coordinator reads the record again and sees what has changed.
        Ok(None) => Answer::Conflict,
        Err(error) => failed(&error),
    }
}

fn said_of(errors: Vec<FieldError>) -> MetaError {
    MetaError::Unsound(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

/// The commit point of a switch (R15c): writes record and map in one transaction.
pub(super) async fn decide(meta: &impl MetaStore, record: &MoveRecord, version: i64, leg: usize) -> Answer {
    let key = record_key(record.id);
    for _ in 0..ATTEMPTS {
        let (state, stored) = match newest_state(meta).await {
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
        // The state would not be valid, for instance because a store was removed meanwhile (finding 10).
        let write = match write_state(&next) {
            Ok(write) => write,
            Err(error) => return Answer::Refused { reason: error.to_string() },
        };
        let decided = record.decided(leg, next.generation);
        let expects = [
            Expect { key: key.clone(), mod_revision: version },
            Expect { key: STATE.to_owned(), mod_revision: stored },
        ];
        let writes = vec![Write::put(key.clone(), decided.to_json()), write];
        match meta.commit(&expects, writes).await {
            Ok(Some(version)) => {
                // Requests that are held in this router go on at once; other routers follow meta.
                meta.take(Arc::new(next));
                return Answer::Swapped { record: Box::new(decided), version };
            }
            Ok(None) => match meta.get(&key).await {
                // Only the state has changed, by a change that does not concern this move, so try again.
                Ok(Some(there)) if there.mod_revision == version => {}
                Ok(_) => return Answer::Conflict,
                Err(error) => return failed(&error),
            },
            Err(error) => return failed(&error),
        }
    }
    Answer::Refused { reason: "the cluster's state is being changed all the time".to_owned() }
}

fn failed(error: &MetaError) -> Answer {
    Answer::Failed { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::ids::StoreName;
    use kindred_partition_config::parse::{DEFAULT_CONFIG, parse_config};
    use kindred_partition_config::state::ClusterState;

    use super::*;
    use crate::meta::change::tests::Unheard;

    /// Seed 308 of the simulation: meta lost the decision of one move, and a router that knew of it decided another move
    /// on the state before, so a store served keys that the newest map gave to another.
    #[tokio::test]
    async fn no_move_is_decided_on_a_state_that_meta_was_restored_to() {
        let has = ClusterState::bootstrap(&parse_config(DEFAULT_CONFIG).unwrap()).unwrap();
        let to = |kind: &str, store: &str| has.move_kind(kind, &StoreName(store.to_owned())).unwrap();
        let lost = to("pods", "events");
        let known = Arc::new(has.with_transfers(&lost.transfers).unwrap());
        let record = MoveRecord::new(MoveId(7), &to("nodes", "events").transfers).unwrap();
        let meta = Unheard { has, known };
        let decided = decide(&meta, &record, 12, 0).await;
        assert!(matches!(&decided, Answer::Failed { reason } if reason.contains("lost")), "{decided:?}");
        let put_back = put_back(&meta, Box::new(record), 12).await;
        assert!(matches!(&put_back, Answer::Failed { reason } if reason.contains("lost")), "{put_back:?}");
    }
}
