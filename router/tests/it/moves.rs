//! Watches of fake stores whose keys move while the watches are open (R16).

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::fake::Fake;
use crate::support::{WatchStream, all_up, router_with, routes_of};
use kindred_router::run::Bound;
use tonic::transport::Channel;

const A: &str = "/registry/pods/a/1";
const Z: &str = "/registry/pods/z/1";

struct World {
    stores: [Fake; 3],
    urls: Vec<String>,
    bound: Bound,
    channel: Channel,
    _drain: kindred_transport::Drain,
}

/// A configuration of three stores: pods below `m` are on the store `low`, the others on `high`.
fn config(urls: &[String], low: &str, high: &str) -> String {
    let mut text = "default: s1\nstores:\n".to_owned();
    for (at, url) in urls.iter().enumerate() {
        text += &format!("- {{name: s{}, slot: {}, endpoints: ['{url}']}}\n", at + 1, at + 1);
    }
    text += "partitions:\n";
    text += &format!(
        "- {{metadata: {{name: low}}, resource: pods, rangeEnd: m, isRangeEndValid: true, serviceGroupId: {low}}}\n\
         - {{metadata: {{name: high}}, resource: pods, rangeStart: m, isRangeStartValid: true, serviceGroupId: {high}}}\n"
    );
    text
}

impl World {
    async fn start(low: &str, high: &str) -> Self {
        let stores = [Fake::start(1).await, Fake::start(2).await, Fake::start(3).await];
        let urls: Vec<_> = stores.iter().map(|store| store.url.clone()).collect();
        let (bound, drain, channel) = router_with(&config(&urls, low, high), &[]).await;
        all_up(&bound).await;
        Self { stores, urls, bound, channel, _drain: drain }
    }

    fn swap(&self, generation: u64, low: &str, high: &str) {
        self.bound.app.routing.swap(routes_of(&config(&self.urls, low, high), generation));
    }

    async fn pods(&self, start: i64) -> WatchStream {
        let mut watch = WatchStream::open(&self.channel).await;
        watch.create("/registry/pods/", start, 0).await;
        let created = watch.next().await;
        assert!(created.created && !created.canceled, "{created:?}");
        watch
    }
}

/// Reads this many events; no other messages may come between.
async fn read(watch: &mut WatchStream, count: usize) -> Vec<i64> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let response = watch.next().await;
        assert!(!response.created && !response.canceled, "{response:?}");
        seen.extend(response.events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision));
    }
    seen
}

/// D1, E5: each event once and in order across a move of a whole Kind; the client's stream stays open.
#[tokio::test]
async fn a_watch_goes_on_at_the_new_store_at_its_own_position() {
    let world = World::start("s2", "s2").await;
    let [_, old, new] = &world.stores;
    let mut watch = world.pods(0).await;
    let mut expected: Vec<i64> = (0..20).map(|_| old.write(&[A])).collect();
    // None of these events was read when the keys move.
    old.freeze(true);
    new.take_over(old);
    expected.extend((0..20).map(|_| new.write(&[Z])));
    world.swap(1, "s3", "s3");
    assert_eq!(read(&mut watch, 40).await, expected);
    expected = (0..3).map(|_| new.write(&[A])).collect();
    assert_eq!(read(&mut watch, 3).await, expected);
    watch.nothing(100).await;
}

/// One of two ranges moves; a watch of both goes on in order, even while nothing is decided.
#[tokio::test]
async fn a_merged_watch_goes_on_when_a_part_of_it_moves() {
    let world = World::start("s1", "s2").await;
    let [low, high, new] = &world.stores;
    let mut watch = world.pods(0).await;
    let mut expected = vec![low.write(&[A]), high.write(&[Z]), low.write(&[A])];
    expected.sort_unstable();
    assert_eq!(read(&mut watch, 3).await, expected);
    high.freeze(true);
    let held = low.write(&[A]);
    watch.nothing(100).await;
    new.take_over(high);
    world.swap(1, "s1", "s3");
    assert_eq!(read(&mut watch, 1).await, [held]);
    let (one, two) = (new.write(&[Z]), low.write(&[A]));
    let mut expected = [one, two];
    expected.sort_unstable();
    assert_eq!(read(&mut watch, 2).await, expected);
}

/// A feed that ended at the old place is not opened again for a map that places no watch there. A store trusts the
/// router that it has all of the range, so such a feed would miss writes elsewhere, and later watches would find it.
#[tokio::test]
async fn nothing_is_opened_by_a_map_that_places_no_watch_there() {
    let world = World::start("s1", "s2").await;
    let [low, high, new] = &world.stores;
    let mut watch = world.pods(0).await;
    let before = high.write(&[Z]);
    assert_eq!(read(&mut watch, 1).await, [before]);
    let opened = high.asked().0;
    high.freeze(true);
    while world.bound.app.feeds.held().live > 0 {
        tokio::task::yield_now().await;
    }
    new.take_over(high);
    world.swap(1, "s1", "s3");
    high.freeze(false);
    let mut expected = [new.write(&[Z]), low.write(&[A])];
    expected.sort_unstable();
    assert_eq!(read(&mut watch, 2).await, expected);
    assert_eq!(world.bound.app.feeds.held().live, 1);
    assert_eq!(high.asked().0, opened, "no other feed at the store that is left");
}

/// A watch has an unread turn when its keys move to a place that other watches already read, and gets a second turn
/// there. Later events must not be missed.
#[tokio::test]
async fn a_watch_that_is_called_twice_by_a_move_hears_what_comes() {
    let world = World::start("s1", "s1").await;
    let [low, ..] = &world.stores;
    let _others = world.pods(0).await;
    let routes = routes_of(&config(&world.urls, "s1", "s2"), 1);
    world.bound.app.routing.swap(routes);
    let mut watch = world.pods(0).await;
    let expected: Vec<i64> = (0..80).map(|_| low.write_sized(&[A], 100 << 10)).collect();
    // The session reads until it has made as much as it may for a client that reads nothing.
    let turns = || world.bound.app.feeds.counts().turns.load(Ordering::Relaxed);
    let mut before = 0;
    while before == 0 || before != turns() {
        before = turns();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    world.swap(2, "s1", "s1");
    assert_eq!(read(&mut watch, 80).await, expected);
    watch.nothing(50).await;
    let after = low.write(&[A]);
    assert_eq!(read(&mut watch, 1).await, [after]);
}

/// R15: an attempt that is given up leaves every watch in place.
#[tokio::test]
async fn an_aborted_switch_loses_nothing() {
    let world = World::start("s1", "s2").await;
    let [low, high, _] = &world.stores;
    let mut watch = world.pods(0).await;
    let before = high.write(&[Z]);
    assert_eq!(read(&mut watch, 1).await, [before]);
    high.freeze(true);
    let during = low.write(&[A]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    high.freeze(false);
    let after = high.write(&[Z]);
    let mut expected = [during, after];
    expected.sort_unstable();
    assert_eq!(read(&mut watch, 2).await, expected);
}

/// A create during a move is answered by the new owner.
#[tokio::test]
async fn a_create_waits_for_the_new_owner() {
    let world = World::start("s2", "s2").await;
    let [_, old, new] = &world.stores;
    let first = old.write(&[A]);
    old.freeze(true);
    let mut watch = WatchStream::open(&world.channel).await;
    watch.create("/registry/pods/", first, 7).await;
    watch.nothing(100).await;
    new.take_over(old);
    world.swap(1, "s3", "s3");
    let created = watch.next().await;
    assert!(created.created && !created.canceled && created.watch_id == 7, "{created:?}");
    assert_eq!(read(&mut watch, 1).await, [first]);
}

/// An older map, or one that changes nothing for a watch, leaves the watch alone.
#[tokio::test]
async fn an_unrelated_change_touches_no_watch() {
    let world = World::start("s1", "s2").await;
    let mut watch = world.pods(0).await;
    // An event proves that the streams are open.
    let first = world.stores[0].write(&[A]);
    assert_eq!(read(&mut watch, 1).await, [first]);
    let opened = world.stores[0].asked().0;
    world.swap(5, "s1", "s2");
    world.swap(4, "s3", "s3");
    let written = world.stores[0].write(&[A]);
    assert_eq!(read(&mut watch, 1).await, [written]);
    assert_eq!(world.stores[0].asked().0, opened, "the same upstream streams");
    assert_eq!(world.bound.app.routing.load().generation().0, 5);
}
