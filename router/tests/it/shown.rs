//! R4 across a change of maps: a Kind that is split never shows less than its former only store has shown.

use std::time::Duration;

use crate::support::{Shard, WatchStream, all_up, direct, kindred, put, router_with, routes_of};
use kindred_proto::etcdserverpb as pb;
use tonic::transport::Channel;

const LOW: &str = "/registry/pods/a/1";
const HIGH: &str = "/registry/pods/z/1";

fn config(urls: &[String; 2], high: &str) -> String {
    let [first, second] = urls;
    format!(
        "default: s1\nstores:\n- {{name: s1, slot: 1, endpoints: ['{first}']}}\n\
         - {{name: s2, slot: 2, endpoints: ['{second}']}}\npartitions:\n\
         - {{metadata: {{name: low}}, resource: pods, rangeEnd: m, isRangeEndValid: true, serviceGroupId: s1}}\n\
         - {{metadata: {{name: high}}, resource: pods, rangeStart: m, isRangeStartValid: true, serviceGroupId: {high}}}\n"
    )
}

async fn read(channel: &Channel, key: &str) -> i64 {
    let get = pb::RangeRequest { key: key.to_owned().into(), ..Default::default() };
    let answer = pb::kv_client::KvClient::new(channel.clone()).range(get).await.unwrap();
    answer.into_inner().header.unwrap().revision
}

#[tokio::test]
async fn r4_a_kind_that_is_split_shows_no_less_than_its_store_has_shown() {
    let binary = kindred();
    // Its clock is ahead as far as clocks may be, so that the other store has not reached what it shows.
    let first = Shard::start_with(&binary, 1, &["--wall-clock-offset=4s"]);
    let second = Shard::start(&binary, 2);
    let urls = [first.url(), second.url()];
    let (bound, _drain, channel) = router_with(&config(&urls, "s1"), &[]).await;
    all_up(&bound).await;
    let mut watch = WatchStream::open(&channel).await;
    // A watch of one key has a stream at its store, whatever happens to the Kind.
    let create = pb::WatchCreateRequest { key: LOW.into(), ..Default::default() };
    watch.send(pb::watch_request::RequestUnion::CreateRequest(create)).await;
    assert!(watch.next().await.created);

    put(&channel, LOW).await;
    assert_eq!(watch.next().await.events.len(), 1);
    let shown = read(&channel, LOW).await;
    bound.app.routing.swap(routes_of(&config(&urls, "s2"), 2));
    let header = read(&channel, HIGH).await;
    assert!(header >= shown, "{header} after {shown} was shown");

    // The watch stays in place, but what it shows counts for the whole Kind from here on.
    tokio::time::sleep(Duration::from_millis(5)).await;
    put(&direct(&first).await, LOW).await;
    let event = watch.next().await;
    let shown = event.header.unwrap().revision;
    assert_eq!(event.events.len(), 1);
    let header = read(&channel, HIGH).await;
    assert!(header >= shown, "{header} after the watch has shown {shown}");
}
