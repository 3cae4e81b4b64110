//! Watches over several fake stores: order, sharing, catching up, promises, lost stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::fake::Fake;
use crate::support::{WatchStream, all_up, router_with, spread_config};
use kindred_proto::etcdserverpb as pb;
use kindred_router::auth::Credentials;
use kindred_router::run::Bound;
use kindred_router::watch::session;
use kindred_router_core::watch_session::Settings;
use pb::watch_request::RequestUnion;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

struct World {
    stores: Vec<Fake>,
    bound: Bound,
    channel: Channel,
    _drain: kindred_transport::Drain,
}

async fn world(flags: &[&str]) -> World {
    let mut stores = Vec::new();
    for slot in 1..=3 {
        stores.push(Fake::start(slot).await);
    }
    let urls: Vec<_> = stores.iter().map(|store| store.url.clone()).collect();
    let (bound, drain, channel) = router_with(&spread_config(&urls, false), flags).await;
    all_up(&bound).await;
    World { stores, bound, channel, _drain: drain }
}

/// A key on each store.
const KEYS: [&str; 3] = ["/registry/pods/a/1", "/registry/pods/k/1", "/registry/pods/z/1"];

fn revisions(response: &pb::WatchResponse) -> Vec<i64> {
    response.events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision).collect()
}

/// Reads `count` events, which must come without other messages and with headers that cover them.
async fn read(watch: &mut WatchStream, count: usize) -> Vec<i64> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let response = watch.next().await;
        assert!(!response.created && !response.canceled, "{response:?}");
        let revisions = revisions(&response);
        assert!(response.header.unwrap().revision >= *revisions.last().unwrap());
        seen.extend(revisions);
    }
    seen
}

async fn progress(watch: &mut WatchStream) -> i64 {
    watch.send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await;
    let answer = watch.next().await;
    assert_eq!((answer.watch_id, answer.events.len()), (-1, 0), "{answer:?}");
    answer.header.unwrap().revision
}

/// R7: while one feed has reached the target of a round and another has not, the session does not spin.
#[tokio::test]
async fn r7_a_round_that_waits_for_a_feed_does_nothing() {
    let world = world(&[]).await;
    world.stores[0].at(2000);
    let (requests, queue) = mpsc::channel(16);
    let (to, mut answers) = mpsc::channel(16);
    let polls = Arc::new(AtomicUsize::new(0));
    let mut session = Box::pin(session::serve(
        world.bound.app.watch_path(Settings::default()),
        Credentials::default(),
        world.bound.app.watch_path(Settings::default()).traffic.clients.internal(),
        ReceiverStream::new(queue),
        to,
    ));
    let polled = polls.clone();
    tokio::spawn(std::future::poll_fn(move |context| {
        polled.fetch_add(1, Ordering::Relaxed);
        session.as_mut().poll(context)
    }));
    let send = async |union| {
        let request = pb::WatchRequest { request_union: Some(union) };
        requests.send(Ok(request.encode_to_vec().into())).await.unwrap();
    };
    for (watch_id, name) in [(1, "a"), (2, "z")] {
        send(RequestUnion::CreateRequest(pb::WatchCreateRequest {
            key: format!("/registry/pods/{name}/").into(),
            range_end: format!("/registry/pods/{name}0").into(),
            watch_id,
            ..Default::default()
        }))
        .await;
        let created = pb::WatchResponse::decode(answers.recv().await.unwrap().unwrap()).unwrap();
        assert!(created.created && !created.canceled, "{created:?}");
    }
    let silent = &world.stores[2];
    silent.mute(true);
    send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await;
    let asked = async {
        while silent.asked().1 == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asked).await.unwrap();
    let before = polls.load(Ordering::Relaxed);
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    let during = polls.load(Ordering::Relaxed) - before;
    assert!(during < 100, "{during} turns of a session that waits");
    assert!(answers.try_recv().is_err(), "a promise that the silent store has not made");
}

/// R7: one request is enough even while a watch of the stream still catches up and nothing can be promised.
#[tokio::test]
async fn r7_a_request_while_a_watch_catches_up_is_answered_when_it_has() {
    let world = world(&[]).await;
    let written = world.stores[0].write(&[KEYS[0]]);
    let last = world.stores[1].write(&[KEYS[1]]);
    // The catch-up waits for this store; the live feed begins after both events.
    world.stores[2].mute(true);
    let mut watch = pods(&world, written).await;
    watch.send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await;
    watch.nothing(100).await;
    world.stores[2].mute(false);
    assert_eq!(read(&mut watch, 2).await, [written, last]);
    let answer = watch.next().await;
    assert_eq!((answer.watch_id, answer.events.len()), (-1, 0), "{answer:?}");
    assert!(answer.header.unwrap().revision >= last);
    watch.nothing(300).await;
}

/// R7: a request whose round timed out because of a slow store is answered once the store follows.
#[tokio::test]
async fn r7_a_request_outlives_a_round_that_is_given_up() {
    let world = world(&[]).await;
    let mut watch = pods(&world, 0).await;
    world.stores[2].mute(true);
    let written = world.stores[0].write(&[KEYS[0]]);
    watch.send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await;
    watch.nothing(1500).await;
    world.stores[2].mute(false);
    assert_eq!(read(&mut watch, 1).await, [written]);
    let answer = watch.next().await;
    assert_eq!((answer.watch_id, answer.events.len()), (-1, 0), "{answer:?}");
    assert!(answer.header.unwrap().revision >= written);
    watch.nothing(300).await;
}

async fn pods(world: &World, start: i64) -> WatchStream {
    let mut watch = WatchStream::open(&world.channel).await;
    watch.create("/registry/pods/", start, 0).await;
    let created = watch.next().await;
    assert!(created.created && !created.canceled, "{created:?}");
    watch
}

/// R6, R8: each event needs one advance of each quiet store, and nothing else.
#[tokio::test]
async fn a_quiet_store_costs_one_round_trip() {
    let world = world(&[]).await;
    world.stores[1].at(2000);
    let mut watch = WatchStream::open(&world.channel).await;
    watch.create("/registry/pods/", 0, 0).await;
    let created = watch.next().await;
    let begin = created.header.unwrap().revision;
    assert!(begin >= 2000 << 10, "the highest current revision");
    for round in 1..=5 {
        let before: Vec<_> = world.stores.iter().map(|store| store.asked().1).collect();
        let written = world.stores[0].write(&[KEYS[0]]);
        assert!(written > begin, "its store was raised before the watch began");
        assert_eq!(read(&mut watch, 1).await, [written], "round {round}");
        let asked: Vec<_> = world.stores.iter().zip(before).map(|(store, b)| store.asked().1 - b).collect();
        assert_eq!(asked, [0, 1, 1]);
    }
    assert_eq!(world.stores.iter().map(|store| store.asked().0).collect::<Vec<_>>(), [1, 1, 1]);
}

#[tokio::test]
async fn clients_share_one_stream_a_store() {
    let world = world(&[]).await;
    let mut watches = Vec::new();
    for _ in 0..20 {
        watches.push(pods(&world, 0).await);
    }
    let mut written = Vec::new();
    for round in 0..30 {
        written.push(world.stores[round % 3].write(&[KEYS[round % 3], "/registry/pods/both"]));
    }
    let mut expected: Vec<_> = written.iter().flat_map(|revision| [*revision, *revision]).collect();
    expected.sort_unstable();
    for watch in &mut watches {
        assert_eq!(read(watch, 60).await, expected);
    }
    for store in &world.stores {
        assert_eq!(store.asked().0, 1, "feeds");
    }
    assert_eq!(world.bound.app.feeds.held().live, 1);
    assert_eq!(world.bound.app.feeds.counts().opened.load(Ordering::Relaxed), 3);
}

/// A5, B2, E5
#[tokio::test]
async fn a_watch_that_starts_earlier_joins_without_loss_or_repetition() {
    let world = world(&[]).await;
    let mut written = Vec::new();
    for round in 0..40 {
        written.push(world.stores[round % 3].write(&[KEYS[round % 3]]));
    }
    written.sort_unstable();
    let mut live = pods(&world, 0).await;
    let mut early = Vec::new();
    for at in [0, 7, 20, 39] {
        early.push((at, pods(&world, written[at]).await));
    }
    for round in 0..20 {
        let store = &world.stores[round % 3];
        store.at(3000 + round as i64);
        written.push(store.write(&[KEYS[round % 3]]));
    }
    assert_eq!(read(&mut live, 20).await, written[40..]);
    for (at, watch) in &mut early {
        assert_eq!(read(watch, 60 - *at).await, written[*at..], "from {at}");
    }
    let last = world.stores[0].write(&[KEYS[0]]);
    for (_, watch) in &mut early {
        assert_eq!(read(watch, 1).await, [last]);
    }
    let counts = world.bound.app.feeds.counts();
    assert!(counts.catch_ups.load(Ordering::Relaxed) <= 2, "starts that are near share one");
    assert_eq!(world.bound.app.feeds.held().catch_ups, 0, "all have joined");
}

/// R7, A7, B1
#[tokio::test]
async fn progress_covers_what_every_store_shows() {
    let world = world(&[]).await;
    let mut watch = pods(&world, 0).await;
    watch.create("/registry/secrets/", 0, 0).await;
    assert!(watch.next().await.created);
    let mut last = 0;
    for round in 0..5 {
        world.stores[round % 3].at(5000 * (round as i64 + 1));
        let written = world.stores[(round + 1) % 3].write(&[KEYS[(round + 1) % 3]]);
        assert_eq!(read(&mut watch, 1).await, [written]);
        let at = progress(&mut watch).await;
        let shown = (5000 * (round as i64 + 1)) << 10;
        assert!(at >= shown && at >= written && at >= last);
        let later = world.stores[0].write(&[KEYS[0]]);
        assert!(later > at, "a promise holds");
        assert_eq!(read(&mut watch, 1).await, [later]);
        last = at;
    }
    watch.create("/registry/pods/", i64::MAX - 1, 0).await;
    assert!(watch.next().await.created);
    watch.send(RequestUnion::ProgressRequest(pb::WatchProgressRequest {})).await;
    watch.nothing(300).await;
}

/// R7: idle watches that asked for progress notifications get them, each under its own id; other watches do not.
#[tokio::test]
async fn periodic_progress_is_a_promise() {
    let world = world(&[]).await;
    let mut watch = pods(&world, 0).await;
    let create = pb::WatchCreateRequest {
        key: "/registry/pods/".into(),
        range_end: "/registry/pods0".into(),
        progress_notify: true,
        watch_id: 3,
        ..Default::default()
    };
    watch.send(RequestUnion::CreateRequest(create)).await;
    assert!(watch.next().await.created);
    world.stores[1].at(7000);
    let told = watch.next().await;
    assert_eq!((told.watch_id, told.events.len(), told.canceled), (3, 0, false), "{told:?}");
    let at = told.header.unwrap().revision;
    assert!(at >= 7000 << 10, "the present of all stores");
    for (store, key) in world.stores.iter().zip(KEYS) {
        assert!(store.write(&[key]) > at);
    }
    assert_eq!(read(&mut watch, 6).await.len(), 6);
}

#[tokio::test]
async fn a_store_that_hangs_delays_only_ranges_with_it_and_shows() {
    let world = world(&[]).await;
    let mut all = pods(&world, 0).await;
    let mut narrow = WatchStream::open(&world.channel).await;
    narrow.create("/registry/pods/a/", 0, 0).await;
    narrow.next().await;
    world.stores[1].hang(true);
    let mut written = Vec::new();
    for _ in 0..3 {
        written.push(world.stores[0].write(&[KEYS[0]]));
        assert_eq!(read(&mut narrow, 1).await, written[written.len() - 1..]);
        written.push(world.stores[2].write(&[KEYS[2]]));
    }
    all.nothing(2500).await;
    let lags = world.bound.app.feeds.lags();
    assert_eq!(lags.iter().map(|(store, feeds, _)| (store.0, *feeds)).collect::<Vec<_>>(), [(1, 1)]);
    world.stores[1].hang(false);
    written.push(world.stores[1].write(&[KEYS[1]]));
    written.sort_unstable();
    assert_eq!(read(&mut all, 7).await, written);
}

/// R10
#[tokio::test]
async fn a_store_that_lost_its_data_cancels_who_stood_below() {
    let world = world(&[]).await;
    let mut watch = pods(&world, 0).await;
    let mut narrow = WatchStream::open(&world.channel).await;
    narrow.create("/registry/pods/a/", 0, 0).await;
    narrow.next().await;
    watch.create("/registry/pods/", 9000 << 10, 0).await;
    assert!(watch.next().await.created);
    let first = world.stores[0].write(&[KEYS[0]]);
    assert_eq!(read(&mut watch, 1).await, [first]);
    let floor = world.stores[1].lose_everything(8000);
    let canceled = watch.next().await;
    assert!(canceled.canceled && canceled.watch_id == 0, "{canceled:?}");
    assert_eq!(canceled.compact_revision, floor);
    assert_eq!(read(&mut narrow, 1).await, [first], "without that store");
    world.stores[2].at(9000);
    let written = world.stores[2].write(&[KEYS[2]]);
    let event = watch.next().await;
    assert_eq!((event.watch_id, revisions(&event)), (1, vec![written]), "it starts above the floor");
    watch.create("/registry/pods/", first, 7).await;
    assert!(watch.next().await.created);
    let canceled = watch.next().await;
    assert!(
        canceled.canceled && canceled.watch_id == 7 && canceled.compact_revision == floor,
        "{canceled:?}"
    );
}

/// A9, B3, B6
#[tokio::test]
async fn a_slow_client_costs_its_position_and_loses_nothing() {
    const COUNT: usize = 20_000;
    let world = world(&["--feed-ring-bytes", "65536"]).await;
    let mut slow = pods(&world, 0).await;
    let mut fast = pods(&world, 0).await;
    let store = world.stores[0].clone();
    let writer = tokio::spawn(async move {
        let mut written = Vec::new();
        for at in 0..COUNT {
            written.push(store.write(&[KEYS[0]]));
            if at % 50 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        written
    });
    let seen = read(&mut fast, COUNT).await;
    let written = writer.await.unwrap();
    assert_eq!(seen, written);
    assert!(world.bound.app.feeds.held().bytes < 2 << 20, "{:?}", world.bound.app.feeds.held());
    assert_eq!(read(&mut slow, COUNT).await, written);
    slow.nothing(50).await;
}

#[tokio::test]
async fn filters_cancel_and_prev_kv() {
    let world = world(&[]).await;
    let mut watch = WatchStream::open(&world.channel).await;
    let create = pb::WatchCreateRequest {
        key: "/registry/pods/".into(),
        range_end: "/registry/pods0".into(),
        ..Default::default()
    };
    let deletes = pb::WatchCreateRequest { filters: vec![0], watch_id: 5, ..create.clone() };
    let with_prev = pb::WatchCreateRequest { prev_kv: true, watch_id: 6, ..create.clone() };
    for create in [deletes, with_prev, create] {
        watch.send(RequestUnion::CreateRequest(create)).await;
        assert!(watch.next().await.created);
    }
    world.stores[2].write(&[KEYS[2], "/registry/pods/z/2"]);
    let (mut first, mut second) = (watch.next().await, watch.next().await);
    if first.watch_id != 6 {
        std::mem::swap(&mut first, &mut second);
    }
    assert_eq!((first.watch_id, second.watch_id), (6, 0), "puts are filtered out of watch 5");
    assert!(first.events.len() == 2 && first.events.iter().all(|event| event.prev_kv.is_some()));
    assert!(second.events.len() == 2 && second.events.iter().all(|event| event.prev_kv.is_none()));
    for id in [5, 6, 0] {
        watch.send(RequestUnion::CancelRequest(pb::WatchCancelRequest { watch_id: id })).await;
        let canceled = watch.next().await;
        assert!(canceled.canceled && canceled.watch_id == id && canceled.compact_revision == 0);
    }
    world.stores[2].write(&[KEYS[2]]);
    watch.nothing(200).await;
}

/// F27: an event costs a session only the watches that it concerns, however many others the stream has.
#[tokio::test]
async fn f27_an_event_is_looked_at_by_the_watches_that_it_concerns() {
    const WATCHES: i64 = 2000;
    let world = world(&[]).await;
    let mut watch = WatchStream::open(&world.channel).await;
    for id in 1..=WATCHES {
        watch.create(&format!("/registry/pods/ns{id:05}/"), 0, id).await;
        let created = watch.next().await;
        assert_eq!((created.created, created.watch_id), (true, id));
    }
    watch.create("/registry/pods/", 0, WATCHES + 1).await;
    assert!(watch.next().await.created);
    // All watches are at the feed's position.
    progress(&mut watch).await;
    let turns = || world.bound.app.feeds.counts().turns.load(Ordering::Relaxed);
    let before = turns();
    for id in [777, 3, WATCHES] {
        world.stores[1].write(&[&format!("/registry/pods/ns{id:05}/a")]);
        world.stores.iter().for_each(|store| store.at(world.stores[1].current() >> 10));
        let mut told = [watch.next().await.watch_id, watch.next().await.watch_id];
        told.sort_unstable();
        assert_eq!(told, [id, WATCHES + 1]);
    }
    let during = turns() - before;
    assert!(during < 100, "{during} looks for 3 events");
    // An event that concerns none of these watches wakes none of them.
    world.stores[1].write(&["/registry/pods/other/a"]);
    assert_eq!(read(&mut watch, 1).await.len(), 1);
    // Each watch still gets everything exactly once: a promise covers it, and an event of its range comes once.
    let promised = progress(&mut watch).await;
    for id in [5, 777] {
        let revision = world.stores[1].write(&[&format!("/registry/pods/ns{id:05}/b")]);
        assert!(revision > promised);
        let mut told = [watch.next().await, watch.next().await].map(|said| (said.watch_id, revisions(&said)));
        told.sort_unstable();
        assert_eq!(told, [(id, vec![revision]), (WATCHES + 1, vec![revision])]);
    }
}
