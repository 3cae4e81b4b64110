//! Service `Batches` of a shard: every operation is answered as if it were a call of its own.

use std::collections::BTreeMap;

use crate::common::{PATIENCE, Shard, mod_is, put_op, put_request, range_request};
use bytes::Bytes;
use kindred_proto::etcdserverpb as pb;
use kindred_proto::raw::batches::batches_client::BatchesClient;
use kindred_proto::shard_v1::{self as shard, BatchMethod};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};

struct Batches {
    requests: mpsc::Sender<Bytes>,
    responses: Streaming<Bytes>,
    next_id: u64,
}

impl Batches {
    async fn open(shard: &Shard) -> Self {
        let (requests, messages) = mpsc::channel(16);
        let mut client = BatchesClient::new(shard.channel().await);
        let responses = client.run(ReceiverStream::new(messages)).await.unwrap().into_inner();
        Self { requests, responses, next_id: 1 }
    }

    /// Sends operations in one message.
    async fn send(&mut self, ops: &[(BatchMethod, Vec<u8>)]) {
        self.send_pinning(ops, 0).await;
    }

    /// Sends operations in one message, all with the same pin.
    async fn send_pinning(&mut self, ops: &[(BatchMethod, Vec<u8>)], pin: u64) {
        let ops = ops.iter().map(|(method, request)| {
            let id = self.next_id;
            self.next_id += 1;
            let (method, request) = (*method as i32, request.clone().into());
            shard::BatchOp { id, method, request, pin, ..Default::default() }
        });
        let message = shard::BatchRequest { ops: ops.collect(), cancelled: vec![] };
        self.requests.send(message.encode_to_vec().into()).await.unwrap();
    }

    async fn message(&mut self) -> Option<shard::BatchResponse> {
        let message = tokio::time::timeout(PATIENCE, self.responses.message()).await.expect("in time");
        message.unwrap().map(|message| shard::BatchResponse::decode(message).unwrap())
    }

    /// Waits for this many answers, and returns them by the ids of their operations.
    async fn answers(&mut self, count: usize) -> BTreeMap<u64, shard::BatchAnswer> {
        let mut answers = BTreeMap::new();
        while answers.len() < count {
            let message = self.message().await.expect("not the end");
            answers.extend(message.answers.into_iter().map(|answer| (answer.id, answer)));
        }
        answers
    }

    async fn one(&mut self, method: BatchMethod, request: &impl Message) -> shard::BatchAnswer {
        let id = self.next_id;
        self.send(&[(method, request.encode_to_vec())]).await;
        self.answers(1).await.remove(&id).unwrap()
    }
}

#[tokio::test]
async fn the_operations_of_a_message_are_executed_in_their_order() {
    let shard = Shard::start().await;
    let mut batches = Batches::open(&shard).await;
    let txn =
        pb::TxnRequest { compare: vec![mod_is("k", 0)], success: vec![put_op("k", "no")], failure: vec![] };
    batches
        .send(&[
            (BatchMethod::Put, put_request("k", "v").encode_to_vec()),
            (BatchMethod::Txn, txn.encode_to_vec()),
            (BatchMethod::DeleteRange, crate::common::delete_request("k", "").encode_to_vec()),
            (BatchMethod::Put, put_request("l", "w").encode_to_vec()),
        ])
        .await;
    let mut answers = batches.answers(4).await;
    let mut response = |id| answers.remove(&id).unwrap().response;
    let put = pb::PutResponse::decode(response(1)).unwrap().header.unwrap();
    assert!(!pb::TxnResponse::decode(response(2)).unwrap().succeeded);
    let deleted = pb::DeleteRangeResponse::decode(response(3)).unwrap();
    assert_eq!(deleted.deleted, 1);
    let read = batches.one(BatchMethod::Range, &range_request("l", "")).await;
    let read = pb::RangeResponse::decode(read.response).unwrap();
    assert_eq!(read.kvs[0].value, "w");
    assert!(put.revision < deleted.header.unwrap().revision);
    assert!(deleted.header.unwrap().revision < read.kvs[0].mod_revision);
    assert_eq!(put.cluster_id, deleted.header.unwrap().cluster_id);
}

/// It is made in slices, so not by the loop as one of its batch.
#[tokio::test]
async fn a_long_transaction_of_reads_is_answered_as_a_call_of_its_own() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    for key in ["a", "b", "c"] {
        client.put(key, key).await;
    }
    let range = pb::RangeRequest { sort_order: 2, sort_target: 3, ..range_request("a", "z") };
    let read = pb::request_op::Request::RequestRange(range);
    let success = vec![pb::RequestOp { request: Some(read) }; 3];
    let txn = pb::TxnRequest { compare: vec![mod_is("d", 0)], success, failure: vec![] };
    let mut batches = Batches::open(&shard).await;
    let answer = batches.one(BatchMethod::Txn, &txn).await;
    let answer = pb::TxnResponse::decode(answer.response).unwrap();
    assert_eq!((answer.succeeded, answer.responses.len()), (true, 3));
    assert_eq!(answer, client.txn(txn).await.unwrap());
}

#[tokio::test]
async fn answers_and_refusals_are_those_of_calls_of_their_own() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    client.put("a", "1").await;
    client.put("b", "2").await;
    let mut batches = Batches::open(&shard).await;
    for range in [
        range_request("a", ""),
        pb::RangeRequest { limit: 1, ..range_request("a", "z") },
        pb::RangeRequest { count_only: true, ..range_request("a", "z") },
        pb::RangeRequest { keys_only: true, ..range_request("b", "") },
    ] {
        let answer = batches.one(BatchMethod::Range, &range).await;
        let alone = client.range(range).await.unwrap();
        assert_eq!(pb::RangeResponse::decode(answer.response).unwrap(), alone);
    }
    let future = i64::MAX - 1;
    for range in [range_request("", ""), pb::RangeRequest { revision: future, ..range_request("a", "") }] {
        let refused = batches.one(BatchMethod::Range, &range).await.refused.unwrap();
        let alone = client.range(range).await.unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (alone.code() as i32, alone.message()));
    }
    let long = vec![b'v'; 1_600_000];
    for put in
        [put_request("", "v"), pb::PutRequest { lease: 7, ..put_request("a", "v") }, put_request("a", long)]
    {
        let refused = batches.one(BatchMethod::Put, &put).await.refused.unwrap();
        let alone = client.put_request(put).await.unwrap_err();
        assert_eq!((refused.code, refused.message.as_str()), (alone.code() as i32, alone.message()));
    }
    let refused = batches.one(BatchMethod::Range, &range_request("a", "z")).await.refused.unwrap();
    assert_eq!(refused.code, Code::InvalidArgument as i32, "{}", refused.message);
    let refused = batches.one(BatchMethod::Unspecified, &range_request("a", "")).await.refused.unwrap();
    assert_eq!(refused.code, Code::Unimplemented as i32, "{}", refused.message);
}

#[tokio::test]
async fn many_messages_are_answered_whatever_their_size() {
    let shard = Shard::start().await;
    let mut batches = Batches::open(&shard).await;
    let puts: Vec<_> = (0..300)
        .map(|n| (BatchMethod::Put, put_request(format!("k{n}"), vec![b'v'; 1000]).encode_to_vec()))
        .collect();
    for _ in 0..5 {
        batches.send(&puts).await;
        let answers = batches.answers(300).await;
        let revisions: Vec<_> = answers
            .into_values()
            .map(|answer| pb::PutResponse::decode(answer.response).unwrap().header.unwrap().revision)
            .collect();
        assert!(revisions.is_sorted_by(|a, b| a < b), "executed in the order in which they came");
    }
}

#[tokio::test]
async fn who_half_closes_gets_the_answers_and_the_end() {
    let shard = Shard::start().await;
    let mut batches = Batches::open(&shard).await;
    batches.send(&[(BatchMethod::Put, put_request("k", "v").encode_to_vec())]).await;
    let (requests, _) = mpsc::channel(1);
    drop(std::mem::replace(&mut batches.requests, requests));
    assert_eq!(batches.answers(1).await.len(), 1);
    assert_eq!(batches.message().await, None);
}

#[tokio::test]
async fn a_shard_that_stops_says_what_it_has_read_and_waits_for_no_router() {
    let shard = Shard::start().await;
    let mut batches = Batches::open(&shard).await;
    batches.one(BatchMethod::Put, &put_request("k", "v")).await;
    shard.running.drain.begin();
    assert_eq!(batches.message().await.unwrap().last, Some(1));
    let end = tokio::time::timeout(PATIENCE, batches.responses.message()).await.expect("in time");
    assert_eq!(end.unwrap_err().code(), Code::Unavailable);
    tokio::time::timeout(PATIENCE, shard.running.finish()).await.expect("in time").unwrap();
}

/// The calls that a read over several shards makes to each of them (R5).
#[tokio::test]
async fn r5_pins_raises_and_releases_come_in_batches_too() {
    let shard = Shard::start().await;
    let client = shard.client().await;
    let mut batches = Batches::open(&shard).await;
    let first = client.put("/registry/pods/a", "1").await;
    let probe = pb::RangeRequest { limit: 1, ..range_request("/registry/pods/", "/registry/pods0") };
    batches.send_pinning(&[(BatchMethod::Range, probe.encode_to_vec())], 7).await;
    let answer = batches.answers(1).await.remove(&1).unwrap();
    let shown = pb::RangeResponse::decode(answer.response).unwrap().header.unwrap().revision;
    assert_eq!(shown, first);
    let second = client.put("/registry/pods/a", "2").await;

    let pods = shard::KeyRange { key: "/registry/pods/".into(), range_end: "/registry/pods0".into() };
    let raise = |since: i64, to: i64, pin| shard::RaiseSinceRequest {
        ranges: vec![pods.clone()],
        to,
        since,
        pin,
        generation: 0,
    };
    let mut raised = Vec::new();
    for request in [raise(first, 0, 0), raise(second, 0, 0), raise(second, second + 5, 8)] {
        let answer = batches.one(BatchMethod::RaiseSince, &request).await;
        assert_eq!(answer.refused, None);
        let answer = shard::RaiseSinceResponse::decode(answer.response).unwrap();
        raised.push((answer.current, answer.changed));
    }
    assert_eq!(raised, [(second, true), (second, false), (second + 5, false)]);
    let too_far = batches.one(BatchMethod::RaiseSince, &raise(0, second + (1 << 40), 0)).await;
    assert_eq!(too_far.refused.unwrap().code, Code::FailedPrecondition as i32, "R3");

    // A compaction waits for what the read has pinned, until that is released.
    let third = client.put("/registry/pods/a", "3").await;
    let compacting = tokio::spawn({
        let client = shard.client().await;
        async move { client.compact(third, false).await }
    });
    let handle = &shard.running.handle;
    let waits = || async { handle.inspect(|core| core.compact_deadline().is_some()).await.unwrap() };
    crate::common::eventually("the compaction waits", waits).await;
    for (pins, waits_still) in [(vec![7], true), (vec![8], false)] {
        let released = batches.one(BatchMethod::ReleasePins, &shard::ReleasePinsRequest { pins }).await;
        assert_eq!((released.refused, released.response.len()), (None, 0));
        assert_eq!(waits().await, waits_still);
    }
    compacting.await.unwrap().unwrap();
    let at_first = pb::RangeRequest { revision: first, ..range_request("/registry/pods/a", "") };
    assert!(client.range(at_first).await.unwrap_err().message().contains("compacted"));

    let many = shard::ReleasePinsRequest { pins: vec![1; 5000] };
    let refused = batches.one(BatchMethod::ReleasePins, &many).await.refused.unwrap();
    assert_eq!(refused.code, Code::InvalidArgument as i32);
    batches.send(&[(BatchMethod::RaiseSince, vec![0xff])]).await;
    assert!(batches.answers(1).await.into_values().all(|answer| answer.refused.is_some()), "malformed");
}
