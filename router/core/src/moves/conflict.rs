//! Changes of the configuration while moves are under way. A change that contradicts a move is refused, with the way
//! out; a transfer that a move already makes is not begun again.

use kindred_partition_config::{
    kind::KindPrefix,
    state::{Change, ClusterState, StoreState},
};

use super::record::{Goal, MoveRecord, Phase};

/// Why a change cannot be made while a move is under way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {}", way_out(*.phase, *.goal, *.id))]
pub struct Conflict {
    /// How the change and the move collide.
    what: String,
    id: u64,
    phase: Phase,
    goal: Goal,
}

/// What ends a move, for people.
fn way_out(phase: Phase, goal: Goal, id: u64) -> String {
    match (phase, goal) {
        (Phase::Switched, _) => format!(
            "it has switched and its way back is open; close that (kindred move complete {id}) or switch back (kindred move \
             reverse {id}) first"
        ),
        (Phase::Completing | Phase::Aborting, _) => "wait until it is over".to_owned(),
        (_, Goal::There) => format!("wait until it is over, or abort it first (kindred move abort {id})"),
        (_, Goal::Back) => {
            format!("it is on its way back: wait, or let it stay at the new store (kindred move abort {id})")
        }
        (_, Goal::Abort) => format!("it is being aborted: wait, or let it go on (kindred move reverse {id})"),
    }
}

impl Conflict {
    fn new(record: &MoveRecord, what: String) -> Self {
        Self { what, id: record.id.0, phase: record.phase, goal: record.goal }
    }

    /// The conflict of a request for something that an unfinished move is already doing.
    #[must_use]
    pub fn said_already(state: &ClusterState, record: &MoveRecord) -> Self {
        let named = named(state, kind_of(state, record).as_ref());
        let what =
            format!("the configuration says so already, and move {} of {named} is not over", record.id.0);
        Self::new(record, what)
    }
}

/// Which transfers a change begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// Those of the Kinds whose placement in the configuration it changes.
    WhatItChanges,
    /// All that bring the map to the configuration, because the request asks for exactly that.
    WhatIsNotThere,
}

/// The Kind of a move; `None` for the keys of no Kind.
#[must_use]
pub fn kind_of(state: &ClusterState, record: &MoveRecord) -> Option<KindPrefix> {
    record.kind.as_ref().and_then(|kind| state.scheme().kind_prefix(kind.as_bytes()))
}

/// The change of `before`, with the transfers that it begins beside the moves of these records.
///
/// # Errors
/// When it contradicts an unfinished move.
pub fn beside<'r>(
    before: &ClusterState,
    mut change: Change,
    records: impl IntoIterator<Item = &'r MoveRecord>,
    begins: Begins,
) -> Result<Change, Conflict> {
    let open: Vec<_> = records.into_iter().filter(|record| !record.phase.is_over()).collect();
    for record in &open {
        contradicts(before, &change.state, record)?;
    }
    let kinds: Vec<_> = open.iter().map(|record| kind_of(before, record)).collect();
    let state = &change.state;
    change.transfers.retain(|transfer| {
        let of_change = begins == Begins::WhatIsNotThere || !before.wants_as(state, transfer.kind.as_ref());
        // The remaining transfers of the Kind belong to its move.
        of_change && !kinds.contains(&transfer.kind)
    });
    for transfer in &change.transfers {
        if let Some(record) = open.iter().find(|record| record.concerns(&transfer.unit.range)) {
            let named = named(before, transfer.kind.as_ref());
            return Err(Conflict::new(
                record,
                format!("keys of {named} are being moved by move {}", record.id.0),
            ));
        }
    }
    Ok(change)
}

fn contradicts(before: &ClusterState, after: &ClusterState, record: &MoveRecord) -> Result<(), Conflict> {
    let kind = kind_of(before, record);
    if !before.wants_as(after, kind.as_ref()) {
        let (named, id) = (named(before, kind.as_ref()), record.id.0);
        let what = format!("{named} is being moved by move {id}, and the change wants it at other stores");
        return Err(Conflict::new(record, what));
    }
    for leg in &record.legs {
        let wanted = if record.goal == Goal::There { leg.to } else { leg.from };
        for store in [leg.from, leg.to] {
            let at = usize::from(store.0);
            let (Some(was), Some(is)) = (before.stores.get(at), after.stores.get(at)) else { continue };
            let (name, id) = (&was.name, record.id.0);
            let removed = was.state != StoreState::Removed && is.state == StoreState::Removed;
            // If a store of the same name takes its place, the store was lost, and this is how the move can end.
            if removed && after.store(name).is_none() {
                let what = format!("store {:?} is an end of move {id}", name.0);
                return Err(Conflict::new(record, what));
            }
            let drained = was.state == StoreState::Active && is.state == StoreState::Draining;
            if drained && store == wanted && !leg.lost {
                let what = format!("move {id} brings {} to store {:?}", named(before, kind.as_ref()), name.0);
                return Err(Conflict::new(record, what));
            }
        }
    }
    Ok(())
}

fn named(state: &ClusterState, kind: Option<&KindPrefix>) -> String {
    kind.map_or_else(|| "the rest of the keys".to_owned(), |kind| state.scheme().name_of(kind))
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::{
        ids::{Epoch, MoveId, StoreName},
        parse::parse_config,
        state::ConfigChange,
    };

    use super::*;

    fn name(text: &str) -> StoreName {
        StoreName(text.to_owned())
    }

    fn state() -> ClusterState {
        let config = "default: a\nstores: [{name: a, slot: 1}, {name: b, slot: 2}, {name: c, slot: 3}]\npartitions:\n\
            - {metadata: {name: pods}, resource: pods, serviceGroupId: b}\n\
            - {metadata: {name: secrets}, resource: secrets, serviceGroupId: b}\n";
        ClusterState::bootstrap(&parse_config(config).unwrap()).unwrap()
    }

    /// The state in which the pods move from b to c, and the record of that move.
    fn moving() -> (ClusterState, MoveRecord) {
        let change = state().move_kind("pods", &name("c")).unwrap();
        let record = MoveRecord::new(MoveId(7), &change.transfers).unwrap();
        (change.state, MoveRecord { coordinator: "r1".to_owned(), ..record })
    }

    fn refused(state: &ClusterState, change: Change, record: &MoveRecord) -> String {
        beside(state, change, [record], Begins::WhatItChanges).unwrap_err().to_string()
    }

    #[test]
    fn f20_a_change_that_contradicts_a_move_is_refused_with_the_way_out() {
        let (state, record) = moving();
        // The change moves no key, but a later edit would begin a move.
        let back = state.move_kind("pods", &name("b")).unwrap();
        assert_eq!(back.transfers, []);
        let why = refused(&state, back.clone(), &record);
        assert!(
            why.contains("pods is being moved by move 7") && why.contains("kindred move abort 7"),
            "{why}"
        );
        for change in [
            state.move_kind("pods", &name("a")).unwrap(),
            state.split("pods", "m", &name("c")).unwrap(),
            state
                .apply_configs(&[ConfigChange::Delete { name: "pods".into(), resource_version: None }])
                .unwrap(),
            state.drain_store(&name("c"), None).unwrap(),
        ] {
            assert!(refused(&state, change, &record).contains("move 7"));
        }
        let switched = MoveRecord { phase: Phase::Switched, ..record.clone() };
        let why = refused(&state, back.clone(), &switched);
        assert!(why.contains("kindred move complete 7") && why.contains("kindred move reverse 7"), "{why}");
        let over = MoveRecord { phase: Phase::Done, ..record };
        assert!(beside(&state, back, [&over], Begins::WhatItChanges).is_ok());
    }

    #[test]
    fn f20_a_store_that_a_move_needs_is_neither_drained_nor_removed() {
        let (state, record) = moving();
        // The move is on its way back to b, which the configs do not say yet.
        let back = MoveRecord { goal: Goal::Back, ..record.clone() };
        let drain_b = state.drain_store(&name("b"), Some(&name("c"))).unwrap();
        let why = refused(&state, drain_b.clone(), &back);
        assert!(why.contains("brings pods to store \"b\"") && why.contains("kindred move abort 7"), "{why}");
        // A drain of the store that the move leaves is compatible with it; only the other keys begin to move.
        let change = beside(&state, drain_b, [&record], Begins::WhatIsNotThere).unwrap();
        let kinds: Vec<_> = change.by_kind().into_keys().flatten().map(|kind| kind.to_string()).collect();
        assert_eq!(kinds, ["/registry/secrets/"]);
        // The store owns nothing, but it is the way back.
        let mut empty = state.clone();
        empty.configs.retain(|config| config.metadata.name == "pods");
        empty.map = state.move_kind("pods", &name("c")).unwrap().desired;
        let mut removed = empty.clone();
        removed.stores[1].state = StoreState::Removed;
        let change = Change { desired: removed.map.clone(), state: removed, transfers: Vec::new() };
        let switched = MoveRecord { phase: Phase::Switched, ..record.clone() };
        let why = refused(&empty, change, &switched);
        assert!(why.contains("store \"b\" is an end of move 7"), "{why}");
        // A lost store is replaced, whatever moves are under way.
        let (replaced, _) = state.replace_store(&name("c"), Vec::new(), 1).unwrap();
        let change = Change { desired: replaced.map.clone(), state: replaced, transfers: Vec::new() };
        assert!(beside(&state, change, [&record], Begins::WhatItChanges).is_ok());
    }

    #[test]
    fn f51_a_drain_goes_beside_the_open_way_back_of_another_kind() {
        let (state, record) = moving();
        let state = state.with_transfers(&record.legs[0].transfers).unwrap();
        let switched = record.decided(0, Epoch(2));
        assert_eq!(switched.phase, Phase::Switched);
        // The pods have left b and may come back; the secrets are there.
        let drain = state.drain_store(&name("b"), None).unwrap();
        let change = beside(&state, drain, [&switched], Begins::WhatIsNotThere).unwrap();
        let kinds: Vec<_> = change.by_kind().into_keys().flatten().map(|kind| kind.to_string()).collect();
        assert_eq!(kinds, ["/registry/secrets/"]);
        // The default store has neither.
        let drain = state.drain_store(&name("a"), Some(&name("b"))).unwrap();
        let change = beside(&state, drain.clone(), [&switched], Begins::WhatIsNotThere).unwrap();
        assert_eq!((change.transfers, change.state), (drain.transfers, drain.state));
        // The pods themselves would have to move on.
        let why =
            beside(&state, state.drain_store(&name("c"), None).unwrap(), [&switched], Begins::WhatIsNotThere);
        let why = why.unwrap_err().to_string();
        assert!(
            why.contains("pods is being moved by move 7") && why.contains("kindred move complete 7"),
            "{why}"
        );
    }

    #[test]
    fn f20_an_edit_of_something_else_goes_beside_the_move_and_begins_none() {
        let (state, record) = moving();
        let mut edited = state.config("pods").unwrap().clone();
        edited.durability = Some("fsync".to_owned());
        let change = state.apply_configs(&[ConfigChange::Update(edited)]).unwrap();
        assert_ne!(change.transfers, [], "what the move has still to do");
        let change = beside(&state, change, [&record], Begins::WhatItChanges).unwrap();
        assert_eq!(
            (change.transfers.len(), change.state.config("pods").unwrap().durability.as_deref()),
            (0, Some("fsync"))
        );
        // The same holds if the map differs from the configs and no move is under way.
        let mut edited = state.config("pods").unwrap().clone();
        edited.durability = Some("none".to_owned());
        let change = state.apply_configs(&[ConfigChange::Update(edited)]).unwrap();
        let begun = |begins| beside(&state, change.clone(), [], begins).unwrap().transfers.len();
        assert_eq!(
            (begun(Begins::WhatItChanges), begun(Begins::WhatIsNotThere)),
            (0, change.transfers.len())
        );
    }

    #[test]
    fn f20_a_kind_moves_once_at_a_time() {
        let (state, record) = moving();
        let decided = record.decided(0, Epoch(2));
        let secrets = state.move_kind("secrets", &name("c")).unwrap();
        assert_eq!(beside(&state, secrets.clone(), [&decided], Begins::WhatItChanges), Ok(secrets));
    }
}
