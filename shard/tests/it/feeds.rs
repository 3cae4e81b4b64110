//! Feeds over real sockets: order, watermarks, advances, and what a slow or absent reader costs.

use crate::common::*;
use bytes::Bytes;
use kindred_proto::{
    etcdserverpb as pb,
    mvccpb::{Event, event::EventType},
    shard_v1::{self as shard, feed_request, feeds_client::FeedsClient},
};
use kindred_shard::config::Options;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

struct Feed {
    requests: mpsc::Sender<shard::FeedRequest>,
    answers: Streaming<shard::FeedResponse>,
}

fn prefix(prefix: &str) -> shard::KeyRange {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().unwrap() += 1;
    shard::KeyRange { key: Bytes::copy_from_slice(prefix.as_bytes()), range_end: end.into() }
}

fn open(prefixes: &[&str], start: i64) -> feed_request::Request {
    let ranges = prefixes.iter().map(|text| prefix(text)).collect();
    feed_request::Request::Open(shard::FeedOpen { ranges, start, ..Default::default() })
}

fn advance(to: i64) -> feed_request::Request {
    feed_request::Request::Advance(shard::FeedAdvance { to })
}

impl Feed {
    async fn begin(shard: &Shard, first: feed_request::Request) -> Self {
        let mut client = FeedsClient::new(shard.channel().await).max_decoding_message_size(usize::MAX);
        let (requests, outgoing) = mpsc::channel(100);
        requests.send(shard::FeedRequest { request: Some(first) }).await.unwrap();
        let answers = client.feed(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
        Self { requests, answers }
    }

    async fn send(&self, request: feed_request::Request) {
        self.requests.send(shard::FeedRequest { request: Some(request) }).await.unwrap();
    }

    async fn try_next(&mut self) -> Result<Option<shard::FeedResponse>, Status> {
        tokio::time::timeout(PATIENCE, self.answers.message()).await.expect("an answer in time")
    }

    async fn next(&mut self) -> shard::FeedResponse {
        self.try_next().await.unwrap().expect("the feed goes on")
    }

    /// Reads everything up to a watermark at or above `to`: the events and the watermark.
    async fn until(&mut self, to: i64) -> (Vec<Event>, i64) {
        let (mut events, mut last) = (Vec::new(), 0);
        loop {
            let message = self.next().await;
            for event in message.events {
                let decoded = Event::decode(event.event).unwrap();
                assert_eq!(decoded.kv.as_ref().unwrap().mod_revision, event.revision);
                assert!(event.revision >= last, "in order");
                last = event.revision;
                events.push(decoded);
            }
            if message.watermark >= to {
                assert!(message.watermark >= last);
                return (events, message.watermark);
            }
        }
    }
}

fn keys(events: &[Event]) -> Vec<String> {
    let key = |event: &Event| String::from_utf8(event.kv.as_ref().unwrap().key.to_vec()).unwrap();
    events.iter().map(key).collect()
}

#[tokio::test]
async fn a_feed_from_now_has_what_comes_and_says_how_far_it_is() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    let before = client.put("/registry/pods/a", "0").await;
    let mut feed = Feed::begin(&shard, open(&["/registry/pods/"], 0)).await;
    let opened = feed.next().await;
    assert_eq!((opened.opened, opened.watermark, opened.events.len()), (before, before, 0));

    client.put("/registry/minions/n", "not here").await;
    client.put("/registry/pods/a", "1").await;
    let deleted = client.delete("/registry/pods/a", "").await.unwrap().header.unwrap().revision;
    let (events, watermark) = feed.until(deleted).await;
    assert_eq!(watermark, deleted, "a Kind stands still between promises");
    assert_eq!(keys(&events), ["/registry/pods/a", "/registry/pods/a"]);
    assert_eq!(events[0].prev_kv.as_ref().unwrap().value, "0");
    assert_eq!(events[1].r#type(), EventType::Delete);
    assert_eq!(events[1].prev_kv.as_ref().unwrap().value, "1");

    drop(feed);
    eventually("the feed is freed", async || {
        shard.running.handle.inspect(|core| core.engine.stats().feeds).await.unwrap() == 0
    })
    .await;
}

#[tokio::test]
async fn a_feed_of_several_kinds_is_one_order_and_splits_no_revision() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    let first = client.put("/registry/pods/a", "0").await;
    let mut expected = vec!["/registry/pods/a".to_owned()];
    for i in 0..200 {
        let (kind, other) = if i % 3 == 0 { ("pods", "minions") } else { ("minions", "pods") };
        client.put(format!("/registry/{kind}/{i}"), vec![b'x'; 3000]).await;
        let success = vec![put_op(&format!("/registry/{other}/{i}"), "t"), put_op(&format!("/x/{i}"), "t")];
        client.txn(pb::TxnRequest { success, ..Default::default() }).await.unwrap();
        let written = [kind, other].map(|kind| format!("/registry/{kind}/{i}"));
        expected.extend(written);
        expected.push(format!("/x/{i}"));
    }
    let last = client.put("/registry/pods/z", "0").await;
    expected.push("/registry/pods/z".to_owned());
    let mut feed = Feed::begin(&shard, open(&["/registry/pods/", "/registry/minions/", "/x/"], first)).await;
    let mut got = Vec::new();
    loop {
        let message = feed.next().await;
        let revisions: Vec<i64> = message.events.iter().map(|event| event.revision).collect();
        got.extend(message.events.into_iter().map(|event| (event.revision, event.event)));
        if message.watermark > 0 {
            assert_eq!(message.watermark, last);
            break;
        }
        // The next message begins with another revision: the two events of a txn come together.
        let pair = revisions.iter().filter(|revision| Some(*revision) == revisions.last()).count();
        let txn = got.iter().filter(|(revision, _)| Some(revision) == revisions.last()).count();
        assert_eq!(pair, txn);
    }
    let events: Vec<Event> = got.into_iter().map(|(_, event)| Event::decode(event).unwrap()).collect();
    assert_eq!(keys(&events), expected);
}

#[tokio::test]
async fn r6_an_advance_is_answered_by_a_watermark_behind_its_events() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    let mut feed = Feed::begin(&shard, open(&["/registry/pods/"], 0)).await;
    let opened = feed.next().await.opened;
    // Another store is a little ahead.
    let to = opened + (1_000_000 << 10);
    for step in 0..50 {
        feed.send(advance(to + step)).await;
    }
    assert_eq!(feed.until(to + 49).await, (vec![], to + 49));
    let written = client.put("/registry/pods/a", "1").await;
    assert!(written > to + 49, "the promise holds");
    feed.send(advance(written + 5)).await;
    let (events, watermark) = feed.until(written + 5).await;
    assert_eq!((keys(&events), watermark), (vec!["/registry/pods/a".to_owned()], written + 5));

    // Asked to go further than clocks may be apart, the shard goes as far as it can, and continues.
    feed.send(advance(i64::MAX)).await;
    let answer = feed.next().await;
    assert!((written + 5..to + (10_000_000 << 10)).contains(&answer.watermark), "{answer:?}");
    let written = client.put("/registry/pods/b", "1").await;
    assert_eq!(keys(&feed.until(written).await.0), ["/registry/pods/b"]);
}

#[tokio::test]
async fn idle_feeds_are_promised_the_present() {
    let options = Options { watch_progress_notify_interval: Some("100ms".to_owned()), ..Options::default() };
    let shard = Shard::with(options).await;
    let mut feed = Feed::begin(&shard, open(&["/registry/pods/"], 0)).await;
    let mut last = feed.next().await.opened;
    for _ in 0..3 {
        let promised = feed.next().await.watermark;
        assert!(promised > last);
        last = promised;
    }
}

#[tokio::test]
async fn b6_a_slow_reader_slows_nobody_and_loses_nothing() {
    const WRITES: usize = 300;
    let shard = Shard::start().await;
    let client = shard.client().await;
    let mut slow = Feed::begin(&shard, open(&["/registry/pods/"], 0)).await;
    slow.next().await;
    let mut last = 0;
    for i in 0..WRITES {
        let put = client.put(format!("/registry/pods/{i:04}"), vec![b'x'; 100_000]);
        last = tokio::time::timeout(PATIENCE, put).await.expect("not held up");
    }
    // A feed that is opened later does not wait for the slow one.
    let mut quick = Feed::begin(&shard, open(&["/registry/pods/"], 0)).await;
    assert_eq!(quick.next().await.watermark, last);
    let (events, _) = slow.until(last).await;
    let expected: Vec<String> = (0..WRITES).map(|i| format!("/registry/pods/{i:04}")).collect();
    assert_eq!(keys(&events), expected);
}

#[tokio::test]
async fn a_feed_ends_where_the_history_does_and_refuses_what_makes_no_sense() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    let first = client.put("/registry/pods/a", "1").await;
    let second = client.put("/registry/pods/a", "2").await;
    client.compact(second, true).await.unwrap();
    let mut feed = Feed::begin(&shard, open(&["/registry/pods/"], first)).await;
    assert_eq!(feed.next().await.compacted, second);
    assert!(feed.try_next().await.unwrap().is_none(), "it ends");
    let mut feed = Feed::begin(&shard, open(&["/registry/pods/"], second)).await;
    assert_eq!(keys(&feed.until(second).await.0), ["/registry/pods/a"]);

    for refused in [advance(1), open(&[], 0), open(&["/registry/pods/"], -1)] {
        let mut feed = Feed::begin(&shard, refused).await;
        assert_eq!(feed.try_next().await.unwrap_err().code(), Code::InvalidArgument);
    }
    feed.send(open(&["/registry/pods/"], 0)).await;
    assert_eq!(feed.try_next().await.unwrap_err().code(), Code::InvalidArgument);
}

/// F29: a Kind that is split many times can be followed like one that is not.
#[tokio::test]
async fn f29_a_feed_of_very_many_ranges_is_served() {
    let shard = Shard::start().await;
    let mut kv = pb::kv_client::KvClient::new(shard.channel().await);
    let names: Vec<String> = (0..1000).map(|at| format!("/registry/pods/{at:04}/")).collect();
    // In another order than that of their keys.
    let every_third: Vec<&str> = names.iter().rev().step_by(3).map(String::as_str).collect();
    let mut feed = Feed::begin(&shard, open(&every_third, 0)).await;
    feed.next().await;
    for name in [&names[3], &names[4], &names[999]] {
        let put = pb::PutRequest { key: format!("{name}a").into(), ..Default::default() };
        kv.put(put).await.unwrap();
    }
    let mut keys = Vec::new();
    while keys.len() < 2 {
        let events = feed.next().await.events.into_iter();
        keys.extend(events.map(|event| Event::decode(event.event).unwrap().kv.unwrap().key));
    }
    let expected = [&names[3], &names[999]].map(|name| format!("{name}a"));
    assert_eq!(keys, expected);
}
