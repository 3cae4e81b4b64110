use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;

use futures_util::future::join_all;
use kindred_partition_config::ids::Epoch;
use kindred_partition_config::parse::parse_config;
use kindred_partition_config::state::ClusterState;
use kindred_router_core::consistent_read::RevisionScope;
use kindred_router_core::plan::Placement as _;
use kindred_router_core::routes::Routes;
use kindred_router_core::shown::ShownRevisions;
use kindred_router_core::standing::Standing;

use super::*;
use crate::meta::take;
use crate::routing::shown::Taken;

const CONFIG: &str = "default: a\nstores:\n\
    - {name: a, slot: 1, endpoints: ['127.0.0.1:1']}\n- {name: b, slot: 2, endpoints: ['127.0.0.1:1']}\n\
    - {name: c, slot: 3, endpoints: ['127.0.0.1:1']}\npartitions:\n\
    - {metadata: {name: a}, resource: pods, rangeEnd: h, isRangeEndValid: true, serviceGroupId: a}\n\
    - {metadata: {name: b}, resource: pods, rangeStart: h, isRangeStartValid: true, rangeEnd: s, isRangeEndValid: true, serviceGroupId: b}\n\
    - {metadata: {name: c}, resource: pods, rangeStart: s, isRangeStartValid: true, serviceGroupId: c}\n";
const A: StoreIx = StoreIx(0);
const B: StoreIx = StoreIx(1);
const C: StoreIx = StoreIx(2);

/// A router whose stores answer as they are told.
struct Fake {
    routes: Arc<Routes>,
    taken: Taken,
    shown: ShownRevisions,
    standing: Standing,
    stood: Notify,
    away: Mutex<Option<StoreIx>>,
    refuses: Option<StoreIx>,
    /// What each store was asked for.
    asked: Mutex<BTreeMap<StoreIx, Vec<Revision>>>,
    unordered: Mutex<Vec<StoreIx>>,
    /// Questions are answered when this is told.
    answers: Notify,
    waits: bool,
}

impl Fake {
    fn new() -> Self {
        let config = parse_config(CONFIG).unwrap();
        let routes = take::routes(&ClusterState::bootstrap(&config).unwrap());
        Self {
            taken: Taken::new(Epoch(1)),
            routes: Arc::new(routes),
            shown: ShownRevisions::new(RevisionScope::Kind),
            standing: Standing::default(),
            stood: Notify::new(),
            away: Mutex::default(),
            refuses: None,
            asked: Mutex::default(),
            unordered: Mutex::default(),
            answers: Notify::new(),
            waits: false,
        }
    }

    fn pods(&self) -> Vec<KindPrefix> {
        self.routes.spread_of(b"/registry/pods/x/y").into_iter().collect()
    }

    fn asked(&self) -> Vec<(StoreIx, Vec<i64>)> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.into_iter().map(|(store, asked)| (store, asked.iter().map(|to| to.get()).collect())).collect()
    }
}

impl Showing for Fake {
    fn routes(&self) -> Arc<Routes> {
        self.routes.clone()
    }

    fn set_routes(&self, _: Arc<Routes>) {}

    fn taken(&self) -> &Taken {
        &self.taken
    }

    fn shown(&self) -> &ShownRevisions {
        &self.shown
    }

    fn standing(&self) -> &Standing {
        &self.standing
    }

    fn shards(&self) -> Vec<StoreIx> {
        vec![A, B, C]
    }

    fn is_shard(&self, _: StoreIx) -> bool {
        true
    }

    fn begun(&self, _: StoreIx) -> Revision {
        Revision::ZERO
    }

    fn highest_shown(&self, _: StoreIx) -> Revision {
        Revision::ZERO
    }

    fn shows(&self, _: StoreIx, _: Revision) {}
}

impl Ordered for Fake {
    fn stood(&self, _: StoreIx) -> &Notify {
        &self.stood
    }

    fn is_away(&self, store: StoreIx) -> bool {
        *self.away.lock().unwrap() == Some(store)
    }

    async fn raise(&self, store: StoreIx, _: &KindPrefix, to: Revision) -> Result<Revision, Status> {
        self.asked.lock().unwrap().entry(store).or_default().push(to);
        if self.waits {
            self.answers.notified().await;
        }
        if self.refuses == Some(store) { Err(Status::unavailable("its clock is behind")) } else { Ok(to) }
    }

    fn unordered(&self, store: StoreIx, _: &KindPrefix, _: Revision) {
        self.unordered.lock().unwrap().push(store);
    }
}

#[tokio::test]
async fn r22_an_answer_waits_for_the_other_stores_of_its_kind_and_asks_each_once() {
    let router = Fake::new();
    keep(&router, &router.pods(), B, Revision(7)).await;
    assert_eq!(router.asked(), [(A, vec![7]), (C, vec![7])]);
    keep(&router, &router.pods(), B, Revision(6)).await;
    assert_eq!(router.asked(), [], "they have promised it");
    keep(&router, &router.pods(), A, Revision(7)).await;
    assert_eq!(router.asked(), [(B, vec![7])], "what a store shows is no promise for all of the Kind");
    keep(&router, &[], A, Revision(99)).await;
    assert_eq!((router.asked(), router.unordered.lock().unwrap().len()), (Vec::new(), 0));
}

#[tokio::test]
async fn r22_one_question_serves_many_answers() {
    let router = Fake { waits: true, ..Fake::new() };
    let pods = router.pods();
    let answers = (1..=50).map(|revision| keep(&router, &pods, A, Revision(revision)));
    let release = async {
        for _ in 0..8 {
            tokio::task::yield_now().await;
            router.answers.notify_waiters();
        }
    };
    tokio::join!(join_all(answers), release);
    assert_eq!(router.asked(), [(B, vec![1, 50]), (C, vec![1, 50])]);
}

#[tokio::test]
async fn r22_nobody_waits_for_a_store_that_is_away_or_refuses() {
    let router = Fake { away: Mutex::new(Some(B)), refuses: Some(C), ..Fake::new() };
    keep(&router, &router.pods(), A, Revision(7)).await;
    assert_eq!(router.asked(), [(C, vec![7])]);
    assert_eq!(*router.unordered.lock().unwrap(), [B, C]);
}

#[tokio::test]
async fn r22_a_question_whose_request_was_dropped_is_asked_by_another() {
    let router = Fake { waits: true, ..Fake::new() };
    let pods = router.pods();
    let mut first = Box::pin(keep(&router, &pods, A, Revision(7)));
    assert!(futures_util::poll!(&mut first).is_pending());
    let mut second = Box::pin(keep(&router, &pods, A, Revision(5)));
    assert!(futures_util::poll!(&mut second).is_pending());
    assert_eq!(router.asked(), [(B, vec![7]), (C, vec![7])]);
    drop(first);
    assert!(futures_util::poll!(&mut second).is_pending());
    router.answers.notify_waiters();
    second.await;
    assert_eq!(router.asked(), [(B, vec![7]), (C, vec![7])]);
    assert!(router.unordered.lock().unwrap().is_empty());
}

#[tokio::test]
async fn r22_who_waits_hears_of_a_question_that_ends_because_its_store_is_away() {
    let router = Fake { waits: true, ..Fake::new() };
    let pods = router.pods();
    let mut first = Box::pin(keep(&router, &pods, A, Revision(7)));
    assert!(futures_util::poll!(&mut first).is_pending());
    let mut second = Box::pin(keep(&router, &pods, A, Revision(7)));
    assert!(futures_util::poll!(&mut second).is_pending());
    *router.away.lock().unwrap() = Some(B);
    drop(first);
    assert!(futures_util::poll!(&mut second).is_pending(), "the other store is asked again");
    router.answers.notify_waiters();
    second.await;
    assert_eq!(*router.unordered.lock().unwrap(), [B]);
}

#[test]
fn a_read_of_a_whole_kind_asks_all_its_stores_about_it() {
    let router = Fake::new();
    let pods = router.pods();
    let whole = |key: &str, range_end: &str| {
        let (key, end) = (
            bytes::Bytes::copy_from_slice(key.as_bytes()),
            bytes::Bytes::copy_from_slice(range_end.as_bytes()),
        );
        let range = KeyRange::from_wire(key, end);
        let read = FanOut { parts: router.routes.parts_of(&range), spread: pods.clone() };
        is_whole(&read, &pods[0])
    };
    assert!(whole("/registry/pods/", "/registry/pods0"));
    assert!(whole("/registry/pods", ""), "the key that stands for it");
    assert!(!whole("/registry/pods/b", "/registry/pods0"));
    assert!(!whole("/registry/pods/", "/registry/pods/x"));
    assert!(
        !whole("/registry/pods/", "/registry/secrets/"),
        "a store may have been asked about the other Kind alone"
    );
}
