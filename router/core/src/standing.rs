//! The promises that stores of spread Kinds have given (R22). A store stands at a revision when it assigns nothing of the Kind
//! at or below it any more, and when each of its answers about the Kind covers it.
//!
//! A router shows a revision of a spread Kind when all stores of the Kind stand at or above it. It keeps what they have
//! promised, and asks only above that: one question at a time for each store and Kind, on behalf of all answers that wait.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::store::StoreIx;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::kind::KindPrefix;

/// The next step of an answer that shows a revision, with regard to one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The store stands there; nothing.
    Stands,
    /// It asks the store for this revision, and calls [`Standing::answered`] or [`Standing::abandoned`].
    Ask(Revision),
    /// It waits until the question that is under way has ended. If [`Standing::failures`] is another number then, the
    /// question failed.
    Wait(u64),
}

#[derive(Debug)]
struct Stand {
    at: Revision,
    /// The highest revision that an answer waits for.
    wanted: Revision,
    asking: bool,
    /// The answer to the question under way does not count.
    forgotten: bool,
    /// The number of questions that failed.
    failures: u64,
}

impl Default for Stand {
    fn default() -> Self {
        let (at, wanted) = (Revision::ZERO, Revision::ZERO);
        Self { at, wanted, asking: false, forgotten: false, failures: 0 }
    }
}

/// The promises by Kind and store. Requests read and raise them; never locked across an await.
#[derive(Debug, Default)]
pub struct Standing {
    kinds: Mutex<HashMap<KindPrefix, BTreeMap<StoreIx, Stand>>>,
}

impl Standing {
    /// Those of these stores of the Kind that are not known to stand at the revision.
    #[must_use]
    pub fn below(
        &self,
        kind: &KindPrefix,
        stores: impl Iterator<Item = StoreIx>,
        revision: Revision,
    ) -> Vec<StoreIx> {
        let kinds = self.lock();
        let known = kinds.get(kind);
        let stands = |store: &StoreIx| {
            known.and_then(|stores| stores.get(store)).is_some_and(|stand| stand.at >= revision)
        };
        stores.filter(|store| !stands(store)).collect()
    }

    /// The next step of an answer that shows the revision, with regard to this store.
    pub fn next(&self, kind: &KindPrefix, store: StoreIx, revision: Revision) -> Next {
        self.change(kind, store, |stand| {
            if stand.at >= revision {
                return Next::Stands;
            }
            stand.wanted = stand.wanted.max(revision);
            if stand.asking {
                return Next::Wait(stand.failures);
            }
            (stand.asking, stand.forgotten) = (true, false);
            Next::Ask(stand.wanted)
        })
    }

    /// Notes that a question was given up before there was an answer; whoever waits asks again.
    pub fn abandoned(&self, kind: &KindPrefix, store: StoreIx) {
        self.change(kind, store, |stand| stand.asking = false);
    }

    /// Notes the end of a question, and what the store has promised; `None` if it did not.
    pub fn answered(&self, kind: &KindPrefix, store: StoreIx, promised: Option<Revision>) {
        self.change(kind, store, |stand| {
            stand.asking = false;
            match promised {
                Some(promised) if !stand.forgotten => stand.at = stand.at.max(promised),
                _ => {
                    // Whoever still waits says so again.
                    stand.wanted = Revision::ZERO;
                    stand.failures += 1;
                }
            }
        });
    }

    /// The number of questions to the store about the Kind that failed.
    #[must_use]
    pub fn failures(&self, kind: &KindPrefix, store: StoreIx) -> u64 {
        self.change(kind, store, |stand| stand.failures)
    }

    /// Notes a promise that the store has given to somebody else's question.
    pub fn promised(&self, kind: &KindPrefix, store: StoreIx, revision: Revision) {
        self.change(kind, store, |stand| stand.at = stand.at.max(revision));
    }

    /// Forgets what a store has promised, because it may be another one now.
    pub fn forget(&self, store: StoreIx) {
        for stores in self.lock().values_mut() {
            if let Some(stand) = stores.get_mut(&store) {
                stand.at = Revision::ZERO;
                stand.forgotten = stand.asking;
            }
        }
    }

    fn change<T>(&self, kind: &KindPrefix, store: StoreIx, change: impl FnOnce(&mut Stand) -> T) -> T {
        let mut kinds = self.lock();
        if let Some(stores) = kinds.get_mut(kind) {
            return change(stores.entry(store).or_default());
        }
        change(kinds.entry(kind.clone()).or_default().entry(store).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KindPrefix, BTreeMap<StoreIx, Stand>>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use kindred_partition_config::kind::KindScheme;

    use super::*;

    const A: StoreIx = StoreIx(0);
    const B: StoreIx = StoreIx(1);

    fn pods() -> KindPrefix {
        KindScheme::default().resolve("pods").unwrap()
    }

    fn below(standing: &Standing, revision: i64) -> Vec<StoreIx> {
        standing.below(&pods(), [A, B].into_iter(), Revision(revision))
    }

    #[test]
    fn one_question_serves_all_that_wait() {
        let standing = Standing::default();
        standing.promised(&pods(), A, Revision(5));
        assert_eq!(below(&standing, 5), [B]);
        assert_eq!(standing.next(&pods(), B, Revision(5)), Next::Ask(Revision(5)));
        assert_eq!(standing.next(&pods(), B, Revision(9)), Next::Wait(0));
        assert_eq!(standing.next(&pods(), B, Revision(7)), Next::Wait(0));
        standing.answered(&pods(), B, Some(Revision(6)));
        assert_eq!((below(&standing, 5), standing.failures(&pods(), B)), (Vec::new(), 0));
        assert_eq!(standing.next(&pods(), B, Revision(5)), Next::Stands);
        assert_eq!(standing.next(&pods(), B, Revision(7)), Next::Ask(Revision(9)), "for the other one too");
        standing.answered(&pods(), B, Some(Revision(9)));
        assert_eq!(standing.next(&pods(), B, Revision(9)), Next::Stands);
    }

    #[test]
    fn a_failed_question_promises_nothing() {
        let standing = Standing::default();
        assert_eq!(standing.next(&pods(), B, Revision(9)), Next::Ask(Revision(9)));
        standing.answered(&pods(), B, None);
        assert_eq!(standing.failures(&pods(), B), 1);
        standing.next(&pods(), B, Revision(9));
        standing.abandoned(&pods(), B);
        assert_eq!(standing.failures(&pods(), B), 1, "nobody knows");
        assert_eq!(standing.next(&pods(), B, Revision(5)), Next::Ask(Revision(9)));
    }

    #[test]
    fn another_store_has_promised_nothing() {
        let standing = Standing::default();
        standing.promised(&pods(), A, Revision(5));
        standing.promised(&pods(), B, Revision(5));
        standing.forget(B);
        assert_eq!(below(&standing, 5), [B]);
        assert_eq!(standing.next(&pods(), B, Revision(5)), Next::Ask(Revision(5)));
        standing.forget(B);
        standing.answered(&pods(), B, Some(Revision(5)));
        assert_eq!(
            standing.next(&pods(), B, Revision(5)),
            Next::Ask(Revision(5)),
            "the other one has said that"
        );
        standing.answered(&pods(), B, Some(Revision(5)));
        assert_eq!(below(&standing, 5), []);
    }
}
