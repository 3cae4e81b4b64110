//! The invariants of the simulation, one function each.

use std::{collections::BTreeMap, time::Duration};

use kindred_partition_config::{state::ClusterState, transfers};
use kindred_router_core::moves::record::MoveRecord;

use crate::shard::{Shard, State};

/// Longer than a lease, a takeover and two attempts of a new coordinator take together.
const FREEZE_MAX: Duration = Duration::from_secs(25);

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    pub invariant: &'static str,
    pub how: String,
}

fn broken(invariant: &'static str, how: String) -> Result<(), Broken> {
    Err(Broken { invariant, how })
}

/// A store's writes of a key, until another store writes the key.
#[derive(Debug, Clone, Copy)]
struct Tenure {
    store: usize,
    first: i64,
    last: i64,
}

/// An omniscient observer's record of what happened.
#[derive(Default)]
pub struct Watcher {
    accepted: BTreeMap<String, Vec<(i64, u64)>>,
    tenures: BTreeMap<String, Vec<Tenure>>,
    acknowledged: BTreeMap<String, i64>,
}

impl Watcher {
    pub fn acknowledged(&self, key: &str) -> i64 {
        self.acknowledged.get(key).copied().unwrap_or(0)
    }

    pub fn acknowledge(&mut self, key: &str, at: i64) {
        let known = self.acknowledged.entry(key.to_owned()).or_default();
        *known = (*known).max(at);
    }

    /// Records and checks a write that a store accepted.
    pub fn accepted(
        &mut self,
        key: &str,
        store: usize,
        at: i64,
        value: u64,
        state: &ClusterState,
    ) -> Result<(), Broken> {
        self.two_owners_never_accept_a_write_at_overlapping_revisions(key, store, at, state)?;
        let history = self.accepted.entry(key.to_owned()).or_default();
        history.push((at, value));
        revisions_of_a_key_only_rise(key, history)
    }

    fn two_owners_never_accept_a_write_at_overlapping_revisions(
        &mut self,
        key: &str,
        store: usize,
        at: i64,
        state: &ClusterState,
    ) -> Result<(), Broken> {
        const NAME: &str = "two owners never accept a write at overlapping revisions";
        let owner = usize::from(state.map.store_of(key.as_bytes()).0);
        if owner != store {
            return broken(
                NAME,
                format!("store {store} accepts {key} at {at}, but {owner} was decided to own it"),
            );
        }
        let tenures = self.tenures.entry(key.to_owned()).or_default();
        match tenures.last_mut() {
            Some(tenure) if tenure.store == store => tenure.last = tenure.last.max(at),
            Some(tenure) if at <= tenure.last => {
                return broken(NAME, format!("store {store} accepts {key} at {at}, within {tenure:?}"));
            }
            _ => tenures.push(Tenure { store, first: at, last: at }),
        }
        match tenures.iter().rev().skip(1).find(|tenure| tenure.first <= at && at <= tenure.last) {
            Some(tenure) => broken(NAME, format!("store {store} accepts {key} at {at}, within {tenure:?}")),
            None => Ok(()),
        }
    }

    pub fn a_read_sees_what_was_acknowledged(&self, key: &str, floor: i64, seen: i64) -> Result<(), Broken> {
        if seen < floor {
            return broken(
                "reads see every acknowledged write",
                format!("a read of {key} shows {seen}, but {floor} was acknowledged before it began"),
            );
        }
        Ok(())
    }

    pub fn no_lock_is_left(&self, shards: &[Shard], now: u64) -> Result<(), Broken> {
        for (at, shard) in shards.iter().enumerate() {
            if let Some(long) = shard.longest_freeze(now).filter(|long| *long > FREEZE_MAX) {
                return broken("no lock is left", format!("store {at} has had a unit frozen for {long:?}"));
            }
        }
        Ok(())
    }

    /// Checks what must hold when everything has come to rest.
    pub fn at_the_end(
        &self,
        shards: &[Shard],
        record: &MoveRecord,
        state: &ClusterState,
    ) -> Result<(), Broken> {
        a_move_ends(record)?;
        nothing_is_frozen(shards)?;
        map_and_records_agree(shards, record, state)?;
        self.no_acknowledged_write_is_lost(shards, state)
    }

    fn no_acknowledged_write_is_lost(&self, shards: &[Shard], state: &ClusterState) -> Result<(), Broken> {
        for (key, accepted) in &self.accepted {
            let owner = usize::from(state.map.store_of(key.as_bytes()).0);
            let there = shards[owner].data.get(key).cloned().unwrap_or_default();
            if there != *accepted {
                let lost = accepted.iter().find(|version| !there.contains(version));
                return broken(
                    "an acknowledged write is never lost",
                    format!(
                        "store {owner} has {} of {} versions of {key}, not {lost:?}",
                        there.len(),
                        accepted.len()
                    ),
                );
            }
        }
        Ok(())
    }
}

fn revisions_of_a_key_only_rise(key: &str, history: &[(i64, u64)]) -> Result<(), Broken> {
    match history {
        [.., (before, _), (at, _)] if at <= before => {
            broken("revisions of a key only rise", format!("{key} is written at {at} after {before}"))
        }
        _ => Ok(()),
    }
}

fn a_move_ends(record: &MoveRecord) -> Result<(), Broken> {
    match record.phase.is_over() {
        true => Ok(()),
        false => {
            broken("a move ends done or aborted", format!("it is {:?} ({:?})", record.phase, record.reason))
        }
    }
}

fn nothing_is_frozen(shards: &[Shard]) -> Result<(), Broken> {
    match shards.iter().position(|shard| shard.longest_freeze(u64::MAX).is_some()) {
        Some(at) => broken("no lock is left", format!("store {at} has a frozen unit at the end")),
        None => Ok(()),
    }
}

fn map_and_records_agree(shards: &[Shard], record: &MoveRecord, state: &ClusterState) -> Result<(), Broken> {
    const NAME: &str = "map and records agree at the end";
    for (store, shard) in shards.iter().enumerate() {
        for unit in &shard.records {
            let of_map = |key: &str| usize::from(state.map.store_of(key.as_bytes()).0);
            let keys = ["a", "c", "e", "m", "p", "x"].map(|name| format!("/registry/pods/{name}"));
            let owns =
                keys.iter().filter(|key| unit.unit.contains(key.as_bytes())).map(|key| of_map(key) == store);
            for owns in owns {
                let agrees = match unit.state {
                    State::Owned | State::Tracked => owns,
                    State::Gone => !owns,
                    State::Frozen { .. } | State::Following { .. } => false,
                };
                if !agrees {
                    return broken(
                        NAME,
                        format!("store {store} has {:?} of a unit, and owns: {owns}", unit.state),
                    );
                }
            }
        }
    }
    // The map agrees with the record about its legs.
    for leg in &record.legs {
        let back: Vec<_> = leg.next_transfers();
        if transfers::with_transfers(&state.map, &back, state.generation).is_err() {
            return broken(NAME, format!("the map does not have a leg with store {}", leg.owner()));
        }
    }
    Ok(())
}
