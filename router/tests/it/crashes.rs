//! R10: watches of a feed after a store was killed and lost what it had shown.

use std::time::Duration;

use crate::support::fake::Fake;
use crate::support::{WatchStream, all_up, router_with, spread_config};
use kindred_proto::etcdserverpb as pb;
use kindred_router::run::Bound;
use tonic::transport::Channel;

/// A key on each store.
const KEYS: [&str; 2] = ["/registry/pods/a/1", "/registry/pods/k/1"];

struct World {
    stores: Vec<Fake>,
    bound: Bound,
    channel: Channel,
    _drain: kindred_transport::Drain,
}

async fn world() -> World {
    let stores = vec![Fake::start(1).await, Fake::start(2).await];
    let urls: Vec<_> = stores.iter().map(|store| store.url.clone()).collect();
    let (bound, drain, channel) = router_with(&spread_config(&urls, false), &[]).await;
    all_up(&bound).await;
    World { stores, bound, channel, _drain: drain }
}

impl World {
    async fn watch(&self, prefix: &str, start: i64) -> WatchStream {
        let mut watch = WatchStream::open(&self.channel).await;
        watch.create(prefix, start, 0).await;
        let created = watch.next().await;
        assert!(created.created && !created.canceled, "{created:?}");
        watch
    }

    async fn pods(&self, start: i64) -> WatchStream {
        self.watch("/registry/pods/", start).await
    }
}

/// The revision of the next event, which must come alone.
async fn event(watch: &mut WatchStream) -> i64 {
    let response = watch.next().await;
    let revisions: Vec<_> =
        response.events.iter().map(|event| event.kv.as_ref().unwrap().mod_revision).collect();
    assert_eq!(revisions.len(), 1, "{response:?}");
    revisions[0]
}

async fn compacted(watch: &mut WatchStream) -> i64 {
    let response: pb::WatchResponse = watch.next().await;
    assert!(response.canceled && response.events.is_empty(), "{response:?}");
    response.compact_revision
}

#[tokio::test]
async fn r10_a_watch_that_was_given_nothing_of_it_goes_on() {
    let world = world().await;
    let (mut all, mut narrow) = (world.pods(0).await, world.watch("/registry/pods/a/", 0).await);
    let first = world.stores[0].write(&[KEYS[0]]);
    assert_eq!((event(&mut all).await, event(&mut narrow).await), (first, first));
    world.stores[0].crash(world.stores[0].current());
    let second = world.stores[0].write(&[KEYS[0]]);
    assert_eq!((event(&mut all).await, event(&mut narrow).await), (second, second));
    let third = world.stores[1].write(&[KEYS[1]]);
    let fourth = world.stores[0].write(&[KEYS[0]]);
    let mut due = [third, fourth];
    due.sort_unstable();
    assert_eq!([event(&mut all).await, event(&mut all).await], due);
}

#[tokio::test]
async fn r10_a_watch_that_was_given_what_is_lost_is_told_and_no_other() {
    let world = world().await;
    let mut all = world.pods(0).await;
    let (mut narrow, mut other) =
        (world.watch("/registry/pods/a/", 0).await, world.watch("/registry/pods/k/", 0).await);
    let kept = world.stores[0].write(&[KEYS[0]]);
    assert_eq!((event(&mut all).await, event(&mut narrow).await), (kept, kept));
    let lost = world.stores[0].write(&[KEYS[0]]);
    assert_eq!((event(&mut all).await, event(&mut narrow).await), (lost, lost));
    let until = world.stores[0].crash(kept);
    assert_eq!((compacted(&mut all).await, compacted(&mut narrow).await), (until, until));
    // A client that resumes within what was kept goes on; one that resumes inside the gap must relist.
    let mut spared = world.pods(kept + 1).await;
    let mut behind = world.pods(lost + 1).await;
    assert_eq!(compacted(&mut behind).await, until);
    let second = world.stores[0].write(&[KEYS[0]]);
    assert_eq!(event(&mut spared).await, second);
    let third = world.stores[1].write(&[KEYS[1]]);
    assert_eq!((event(&mut other).await, event(&mut spared).await), (third, third));
    // The same after the shared feed has passed the gap.
    assert_eq!(compacted(&mut world.pods(lost + 1).await).await, until);
    let mut relisted = world.pods(third).await;
    assert_eq!(event(&mut relisted).await, third);
}

#[tokio::test]
async fn r10_what_was_not_shown_yet_is_forgotten_and_nobody_is_told() {
    let world = world().await;
    let mut all = world.pods(0).await;
    let kept = world.stores[0].write(&[KEYS[0]]);
    assert_eq!(event(&mut all).await, kept);
    world.stores[1].mute(true);
    let lost = world.stores[0].write(&[KEYS[0]]);
    // The router has the event, and holds it back for the other store.
    let held = async {
        while world.bound.app.feeds.lags().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), held).await.unwrap();
    // Another router has shown it to this client.
    let mut shown_elsewhere = world.pods(lost + 1).await;
    let until = world.stores[0].crash(kept);
    assert_eq!(compacted(&mut shown_elsewhere).await, until);
    world.stores[1].mute(false);
    let second = world.stores[0].write(&[KEYS[0]]);
    assert_eq!(event(&mut all).await, second, "not {lost}");
}

#[tokio::test]
async fn r10_crash_after_crash() {
    let world = world().await;
    let mut all = world.pods(0).await;
    let mut last = world.stores[0].write(&[KEYS[0]]);
    assert_eq!(event(&mut all).await, last);
    for round in 0..40 {
        // More gaps than a feed remembers.
        world.stores[round % 2].crash(world.stores[round % 2].current());
        last = world.stores[round % 2].write(&[KEYS[round % 2]]);
        assert_eq!(event(&mut all).await, last, "round {round}");
    }
    let mut early = world.pods(last).await;
    assert_eq!(event(&mut early).await, last);
}
