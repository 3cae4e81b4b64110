//! A session's own rules, with an outside that only notes what is asked of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kindred_partition_config::ids::{Epoch, Revision};
use kindred_partition_config::kind::{KindPrefix, KindScheme};
use kindred_partition_config::map::{PartitionMap, StoreIdx};
use kindred_wire::answer::WatchResponse;
use kindred_wire::kv::WatchHead;
use kindred_wire::peek::{WatchCreateRequest, WatchRequest};
use kindred_wire::refusal::KindredError;
use kindred_wire::watch_request;

use super::message;
use super::*;
use crate::cursor::{Limit, Taken};
use crate::feed_event::Events;
use crate::feed_state::{Stand, Take};
use crate::gaps::Passed;
use crate::header_ids::HeaderIds;
use crate::place::FeedKey;
use crate::routes::Routes;
use crate::store::{StoreIx, StoreKind};

/// One shard, and what was sent to it.
#[derive(Debug)]
struct Around {
    routes: Arc<Routes>,
    sent: Vec<Bytes>,
}

/// Nobody reads a feed here.
#[derive(Debug)]
enum NoFeed {}

impl FeedReader for NoFeed {
    fn take(&self, _: Revision, _: &mut Passed, _: Limit) -> Take {
        match *self {}
    }

    fn look(&self, _: Stand, _: Limit) -> Option<Taken<Events>> {
        match *self {}
    }

    fn present(&self) -> Option<Stand> {
        match *self {}
    }

    fn covered(&self) -> Option<Revision> {
        match *self {}
    }

    fn want(&self, _: Revision) {
        match *self {}
    }

    fn generation(&self) -> Epoch {
        match *self {}
    }

    fn is_placed_by(&self, _: Epoch) {
        match *self {}
    }

    fn has_ended(&self) -> bool {
        match *self {}
    }

    fn has_moved(&self) -> bool {
        match *self {}
    }
}

impl Outside for Around {
    type Reader = NoFeed;

    fn routes(&self) -> Arc<Routes> {
        self.routes.clone()
    }

    fn is_shard(&self, _: StoreIx) -> bool {
        true
    }

    fn away(&self, _: StoreIx) -> Option<String> {
        None
    }

    fn compacted(&self) -> Revision {
        Revision::ZERO
    }

    fn live(&mut self, _: &FeedKey, _: Epoch, _: FeedNo) -> NoFeed {
        panic!("one key is not read from a feed")
    }

    fn catch_up(&mut self, _: &FeedKey, _: Epoch, _: Revision, _: i64) -> NoFeed {
        panic!("one key is not read from a feed")
    }

    fn rung(&mut self) -> Vec<Rung> {
        Vec::new()
    }

    fn open(&mut self, _: StoreIx, _: u64, _: Duration, first: Vec<Bytes>) {
        self.sent.extend(first);
    }

    fn send(&mut self, _: StoreIx, request: Bytes) -> bool {
        self.sent.push(request);
        true
    }

    fn close(&mut self, _: StoreIx) {}

    fn ask_store(&mut self, _: Ask, _: StoreIx, _: Vec<(Bytes, Bytes)>) {}

    fn ask_feed(&mut self, _: Ask, _: &NoFeed) {}

    fn give_up_asking(&mut self) {}

    fn ask_present(&mut self, _: i64, _: &NoFeed) {}

    fn show(&mut self, _: &[KindPrefix], _: Revision) {}

    fn show_of_store(&mut self, _: StoreIx, _: &[KindPrefix], _: Revision, _: Epoch, _: (&[u8], &[u8])) {}

    fn count(&mut self, _: Count) {}
}

fn create(key: &str, watch_id: i64) -> Bytes {
    watch_request::create(&WatchCreateRequest { key: key.as_bytes(), watch_id, ..Default::default() }).into()
}

/// The ids of the creates among these requests, as the store knows them.
fn creates(sent: &[Bytes]) -> Vec<i64> {
    let id = |request: &Bytes| match WatchRequest::parse(request) {
        Ok(WatchRequest::Create(create)) => Some(create.watch_id),
        _ => None,
    };
    sent.iter().filter_map(id).collect()
}

struct Run {
    session: Session<Around>,
    now: Instant,
}

impl Run {
    fn step(&mut self, event: Event<'_>) {
        self.session.step(self.now, event);
        assert_eq!(self.session.turn(self.now), None);
    }

    fn says(&mut self, head: WatchHead<'_>) {
        let header = HeaderIds { cluster_id: 1, member_id: 1 }.header(7);
        let said = Said::Message(message::own(header, head.watch_id, WatchHead { created: true, ..head }));
        let number = 1;
        self.step(Event::Upstream { store: StoreIx(0), number, said });
    }

    fn taken(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.session.outside.sent)
    }

    fn answered(&mut self) -> Vec<i64> {
        let mut ids = Vec::new();
        while let Some(message) = self.session.next_message() {
            let answer = WatchResponse::parse(&message).expect("a response");
            assert!(answer.created && !answer.canceled);
            ids.push(answer.watch_id);
        }
        ids
    }
}

#[test]
fn a_create_that_waits_for_a_move_is_answered_before_those_behind_it() {
    let map = PartitionMap::single(StoreIdx(0), Epoch(1));
    let stores = vec![("a".to_owned(), StoreKind::Shard)];
    let routes = Routes::new(map, KindScheme::new("/registry"), stores, StoreIx(0)).of_generation(Epoch(1));
    let around = Around { routes: Arc::new(routes), sent: Vec::new() };
    let now = Instant::now();
    let ids = HeaderIds { cluster_id: 1, member_id: 1 };
    let mut run = Run { session: Session::new(around, ids, Settings::default(), now), now };
    run.step(Event::Request(&create("/registry/pods/a", 1)));
    run.step(Event::Request(&create("/registry/pods/b", 2)));
    let [first, second] = creates(&run.taken())[..] else { panic!("both are sent") };
    // The key of the first is moving; that of the second is not.
    let moving = KindredError::NotOwned { key: b"/registry/pods/a".to_vec(), epoch: 0 }.message();
    run.says(WatchHead { canceled: true, cancel_reason: &moving, watch_id: first, ..WatchHead::default() });
    run.says(WatchHead { watch_id: second, ..WatchHead::default() });
    assert_eq!(run.answered(), [0; 0], "the first is not answered yet");
    run.taken();
    run.now += Duration::from_millis(50);
    run.step(Event::Timer);
    for id in creates(&run.taken()) {
        run.says(WatchHead { watch_id: id, ..WatchHead::default() });
    }
    for id in creates(&run.taken()) {
        run.says(WatchHead { watch_id: id, ..WatchHead::default() });
    }
    assert_eq!(run.answered(), [1, 2]);
}
