//! One order of a spread Kind through any router (R22): before an answer shows a revision, all stores of the Kind stand at or
//! above it. Then whatever is written or read there later, through whichever router, has at least this revision.
//!
//! They are asked when the revision is known. To ask beside a write for more than it gets would spare a round trip, but the
//! stores would show that, and each cache of a client that has the last event would count as behind (R4).
//!
//! Nobody waits for a store that is away. A router raises it to what it has shown when it is back.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use kindred_partition_config::ids::Revision;
use kindred_partition_config::key::KeyRange;
use kindred_partition_config::kind::KindPrefix;
use kindred_router_core::plan::FanOut;
use kindred_router_core::standing::Next;
use kindred_router_core::store::StoreIx;
use tokio::sync::Notify;
use tonic::Status;

use crate::routing::shown::Showing;

/// How long a store has to answer a question. An answer may wait for one that was asked before, and then for its own.
pub const ORDER_MAX: Duration = Duration::from_secs(2);

/// What this uses of a router: [`Routing`](crate::routing::Routing), or a simulated one.
pub trait Ordered: Showing {
    /// Told when a question to the store has ended.
    fn stood(&self, store: StoreIx) -> &Notify;
    /// Whether nobody waits for the store.
    fn is_away(&self, store: StoreIx) -> bool;
    /// Raises the Kind at a store, whatever it owns of it; takes at most [`ORDER_MAX`].
    fn raise(
        &self,
        store: StoreIx,
        kind: &KindPrefix,
        to: Revision,
    ) -> impl Future<Output = Result<Revision, Status>>;
    /// Notes that an answer shows a revision at which the store may not stand.
    fn unordered(&self, store: StoreIx, kind: &KindPrefix, revision: Revision);
}

/// Waits until all stores of these Kinds stand at or above a revision that an answer of `own` is about to show.
pub async fn keep(router: &impl Ordered, spread: &[KindPrefix], own: StoreIx, revision: Revision) {
    // With several Kinds the store need not have reached it in each of them.
    let own = (spread.len() == 1).then_some(own);
    all_stand(router, spread, own, revision).await;
}

/// As [`keep`], for a revision that all stores of a read have promised.
pub async fn keep_of_read(router: &impl Ordered, read: &FanOut, revision: Revision) {
    if let [kind] = &read.spread[..]
        && is_whole(read, kind)
    {
        let stores = read.parts.iter().flat_map(|part| &part.stores);
        stores.for_each(|store| router.standing().promised(kind, *store, revision));
    }
    all_stand(router, &read.spread, None, revision).await;
}

async fn all_stand(router: &impl Ordered, spread: &[KindPrefix], own: Option<StoreIx>, revision: Revision) {
    let below = spread.iter().flat_map(|kind| {
        let stores = below(router, kind, own, revision);
        stores.into_iter().map(move |store| stands(router, kind, store, revision))
    });
    let below: Vec<_> = below.collect();
    if !below.is_empty() {
        join_all(below).await;
    }
}

/// Whether a read is of the whole Kind and of nothing else, or of the key that stands for it: then all its stores have been
/// asked about the Kind.
fn is_whole(read: &FanOut, kind: &KindPrefix) -> bool {
    let whole = kind.range();
    let end = |range: &KeyRange| match range {
        KeyRange::Span { end, .. } => end.clone(),
        KeyRange::Single(_) => None,
    };
    match &read.parts[..] {
        [part] => matches!(part.range, KeyRange::Single(_)) || part.range == whole,
        [first, .., last] => first.range.start() == whole.start() && end(&last.range) == end(&whole),
        [] => false,
    }
}

/// The stores of the Kind but `own` that are not known to stand there, by the newest map.
fn below(router: &impl Ordered, kind: &KindPrefix, own: Option<StoreIx>, revision: Revision) -> Vec<StoreIx> {
    let routes = router.routes();
    let stores = routes.shards_of_spread(kind).filter(|store| Some(*store) != own);
    router.standing().below(kind, stores, revision)
}

async fn stands(router: &impl Ordered, kind: &KindPrefix, store: StoreIx, revision: Revision) {
    loop {
        let mut stood = pin!(router.stood(store).notified());
        stood.as_mut().enable();
        let failed = match router.standing().next(kind, store, revision) {
            Next::Stands => return,
            Next::Wait(_) if router.is_away(store) => true,
            Next::Wait(failures) => {
                stood.await;
                router.standing().failures(kind, store) != failures
            }
            Next::Ask(_) if router.is_away(store) => {
                drop(Asking { router, kind, store, answer: None });
                true
            }
            Next::Ask(to) => !ask(router, kind, store, to).await,
        };
        if failed {
            return router.unordered(store, kind, revision);
        }
    }
}

/// Asks the store to stand at a revision, on behalf of all that wait; returns whether it does.
async fn ask(router: &impl Ordered, kind: &KindPrefix, store: StoreIx, to: Revision) -> bool {
    let mut asking = Asking { router, kind, store, answer: None };
    // A frozen unit shows less, and nobody reads there until the clock that was raised goes on.
    let promised = router.raise(store, kind, to).await.ok().map(|current| current.max(to));
    asking.answer = Some(promised);
    promised.is_some()
}

/// A question under way. Whoever waits for it hears of its end, also when its request is dropped.
struct Asking<'a, R: Ordered> {
    router: &'a R,
    kind: &'a KindPrefix,
    store: StoreIx,
    /// What the store has promised, if it has; `None` before there is an answer.
    answer: Option<Option<Revision>>,
}

impl<R: Ordered> Drop for Asking<'_, R> {
    fn drop(&mut self) {
        match self.answer {
            Some(promised) => self.router.standing().answered(self.kind, self.store, promised),
            None => self.router.standing().abandoned(self.kind, self.store),
        }
        self.router.stood(self.store).notify_waiters();
    }
}

#[cfg(test)]
mod tests;
