//! `compact(R)` over all stores.
//!
//! Revisions are times, so "older than R" means the same at every store. A revision in the future of all stores is
//! refused before anything is touched; a store whose own clock is behind R is raised first. A store that cannot be
//! reached owes the compaction and applies it when it is back. The client gets the answer of the reference store: the
//! default store if it can be reached, else another. If other stores were compacted further already, that is no error.

use std::collections::BTreeMap;

use kindred_partition_config::ids::Revision;

use crate::store::StoreIx;

/// The steps of a compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps {
    /// Stores to raise to R and then compact.
    pub now: Vec<StoreIx>,
    /// Stores that cannot be reached and owe the compaction.
    pub later: Vec<StoreIx>,
    /// The store whose answer the client gets.
    pub reference: StoreIx,
}

/// Why the compaction is refused before anything is touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    Future,
    NoStore,
}

/// Decides by the current revisions of all stores, `None` for a store that could not be asked.
///
/// # Errors
/// When R is above the current revision of every reachable store, or no store can be reached.
pub fn decide(
    revision: Revision,
    currents: &[(StoreIx, Option<Revision>)],
    default: StoreIx,
) -> Result<Steps, Refusal> {
    let top = currents.iter().filter_map(|(_, current)| *current).max().ok_or(Refusal::NoStore)?;
    if revision > top {
        return Err(Refusal::Future);
    }
    let (now, later): (Vec<_>, Vec<_>) = currents.iter().partition(|(_, current)| current.is_some());
    let now: Vec<StoreIx> = now.into_iter().map(|(store, _)| store).collect();
    let later = later.into_iter().map(|(store, _)| store).collect();
    let reference = if now.contains(&default) { default } else { now[0] };
    Ok(Steps { now, later, reference })
}

/// The result of a compaction at one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Took<T, E> {
    /// It was compacted, with this answer.
    Done(T),
    /// It had been compacted at or above R before.
    Already(E),
    /// It refused for another reason.
    Refused(E),
    /// It could not be reached after all.
    Lost(E),
}

/// The answer to the client, and the stores that owe the compaction.
///
/// # Errors
/// The error of the reference store. If that was lost and no other store was compacted, the first error of another.
pub fn combine<T, E>(reference: StoreIx, took: Vec<(StoreIx, Took<T, E>)>) -> (Result<T, E>, Vec<StoreIx>) {
    let mut owing = Vec::new();
    let mut answer = None;
    let mut other = None;
    let mut done = None;
    for (store, took) in took {
        if matches!(took, Took::Lost(_) | Took::Refused(_)) {
            owing.push(store);
        }
        match took {
            Took::Done(value) if store == reference => answer = Some(Ok(value)),
            Took::Done(value) => done = done.or(Some(value)),
            Took::Already(error) | Took::Refused(error) if store == reference => answer = Some(Err(error)),
            Took::Already(_) => {}
            Took::Refused(error) | Took::Lost(error) => other = other.or(Some(error)),
        }
    }
    let answer = answer.or_else(|| done.map(Ok)).or_else(|| other.map(Err));
    // Unreachable: `decide` names at least one store, and the reference store always leaves an answer or an error.
    (answer.unwrap_or_else(|| unreachable!("a compaction with no store at all")), owing)
}

/// The highest compaction that each store owes.
#[derive(Debug, Default)]
pub struct Owed(BTreeMap<StoreIx, Revision>);

impl Owed {
    /// Notes that `store` owes a compaction at `revision`.
    pub fn note(&mut self, store: StoreIx, revision: Revision) {
        let owed = self.0.entry(store).or_insert(revision);
        *owed = revision.max(*owed);
    }

    #[must_use]
    pub fn of(&self, store: StoreIx) -> Option<Revision> {
        self.0.get(&store).copied()
    }

    /// Notes that `store` was compacted at `revision`, which settles everything at or below it.
    pub fn settle(&mut self, store: StoreIx, revision: Revision) {
        if self.of(store).is_some_and(|owed| owed <= revision) {
            self.0.remove(&store);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StoreIx = StoreIx(0);
    const B: StoreIx = StoreIx(1);
    const C: StoreIx = StoreIx(2);

    #[test]
    fn the_future_of_all_stores_touches_nothing() {
        let currents = [(A, Some(Revision(10))), (B, Some(Revision(20))), (C, None)];
        assert_eq!(decide(Revision(21), &currents, A), Err(Refusal::Future));
        assert_eq!(
            decide(Revision(20), &currents, A),
            Ok(Steps { now: vec![A, B], later: vec![C], reference: A })
        );
        assert_eq!(decide(Revision(20), &[(A, None)], A), Err(Refusal::NoStore));
    }

    #[test]
    fn the_reference_moves_when_the_default_store_is_away() {
        let steps = decide(Revision(5), &[(A, None), (B, Some(Revision(9)))], A).unwrap();
        assert_eq!((steps.reference, steps.later), (B, vec![A]));
    }

    #[test]
    fn compacted_counts_only_from_the_reference() {
        type T = Took<u8, &'static str>;
        assert_eq!(combine(A, vec![(A, T::Done(1)), (B, T::Already("compacted"))]), (Ok(1), vec![]));
        assert_eq!(
            combine(A, vec![(A, T::Already("compacted")), (B, T::Done(2))]),
            (Err("compacted"), vec![])
        );
        assert_eq!(combine(A, vec![(A, T::Lost("gone")), (B, T::Done(2))]), (Ok(2), vec![A]));
        assert_eq!(combine(A, vec![(A, T::Lost("gone")), (B, T::Already("c"))]), (Err("gone"), vec![A]));
    }

    #[test]
    fn stores_owe_their_highest_compaction() {
        let mut owed = Owed::default();
        owed.note(A, Revision(5));
        owed.note(A, Revision(3));
        assert_eq!(owed.of(A), Some(Revision(5)));
        owed.settle(A, Revision(4));
        assert_eq!(owed.of(A), Some(Revision(5)));
        owed.settle(A, Revision(5));
        assert_eq!(owed.of(A), None);
    }
}
