//! A test in the role of a move's coordinator: the calls of service `Units` in their order, and the tail between two
//! shards.

use bytes::Bytes;
use kindred_partition_config::ids::Epoch;
use kindred_proto::shard_v1::{
    self as shard, feed_request, feeds_client::FeedsClient, units_client::UnitsClient,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::Channel;

use super::{PATIENCE, Shard, eventually};

pub type Units = UnitsClient<Channel>;

pub async fn units(shard: &Shard) -> Units {
    UnitsClient::new(shard.channel().await).max_decoding_message_size(usize::MAX)
}

/// All keys with this prefix.
pub fn prefix(prefix: &str) -> shard::KeyRange {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut().unwrap() += 1;
    shard::KeyRange { key: Bytes::copy_from_slice(prefix.as_bytes()), range_end: end.into() }
}

pub fn moved(id: u64, term: u64, of: &str) -> shard::UnitMove {
    let unit = shard::Unit { range: Some(prefix(of)), ..Default::default() };
    shard::UnitMove { r#move: id, term, unit: Some(unit) }
}

pub async fn track(source: &mut Units, by: &shard::UnitMove) -> shard::TrackResponse {
    loop {
        let answer =
            source.track(shard::TrackRequest { r#move: Some(by.clone()) }).await.unwrap().into_inner();
        if answer.ready {
            return answer;
        }
    }
}

/// Copies everything. Answers the revision behind which a tail starts, and how many keys came.
pub async fn copy(source: &mut Units, target: &mut Units, by: &shard::UnitMove) -> (i64, usize) {
    let request = shard::CopyRequest { r#move: Some(by.clone()), after: Bytes::new(), at: 0 };
    let mut copied = source.copy(request).await.unwrap().into_inner();
    let (mut began, mut keys) = (0, 0);
    while let Some(chunk) = copied.message().await.unwrap() {
        began = chunk.at;
        keys += chunk.keys.len();
        let import = shard::ImportRequest {
            r#move: Some(by.clone()),
            keys: chunk.keys,
            floor: chunk.floor,
            gaps: chunk.gaps,
            ..Default::default()
        };
        target.import(import).await.unwrap();
    }
    let whole = shard::ImportRequest { r#move: Some(by.clone()), through: began, ..Default::default() };
    assert_eq!(target.import(whole).await.unwrap().into_inner().through, began);
    (began, keys)
}

/// The tail that follows a copy.
pub struct Tail {
    _requests: mpsc::Sender<shard::FeedRequest>,
    answers: Streaming<shard::FeedResponse>,
    target: Units,
    by: shard::UnitMove,
    /// Everything up to this revision is imported.
    pub through: i64,
}

impl Tail {
    pub async fn begin(source: &Shard, target: Units, by: &shard::UnitMove, behind: i64) -> Self {
        let mut feeds = FeedsClient::new(source.channel().await).max_decoding_message_size(usize::MAX);
        let (requests, outgoing) = mpsc::channel(4);
        let open = shard::FeedOpen { start: behind + 1, unit: by.unit.clone(), ..Default::default() };
        let open = shard::FeedRequest { request: Some(feed_request::Request::Open(open)) };
        requests.send(open).await.unwrap();
        let answers = feeds.feed(ReceiverStream::new(outgoing)).await.unwrap().into_inner();
        Self { _requests: requests, answers, target, by: by.clone(), through: 0 }
    }

    /// Imports what the next message brings.
    pub async fn step(&mut self) {
        let next = tokio::time::timeout(PATIENCE, self.answers.message()).await.expect("a message in time");
        let message = next.unwrap().expect("the tail goes on");
        assert_eq!(message.compacted, 0);
        let through = message.watermark.max(message.moved);
        let import = shard::ImportRequest {
            r#move: Some(self.by.clone()),
            events: message.events,
            through,
            ..Default::default()
        };
        let imported = self.target.import(import).await.unwrap().into_inner().through;
        self.through = self.through.max(through);
        assert_eq!(imported, self.through);
    }

    pub async fn until(&mut self, revision: i64) {
        while self.through < revision {
            self.step().await;
        }
    }
}

pub async fn freeze(source: &mut Units, by: &shard::UnitMove) -> i64 {
    let answer =
        source.freeze(shard::FreezeRequest { r#move: Some(by.clone()), ..Default::default() }).await.unwrap();
    answer.into_inner().final_revision
}

pub async fn unfreeze(source: &mut Units, by: &shard::UnitMove) {
    source.unfreeze(shard::UnfreezeRequest { r#move: Some(by.clone()) }).await.unwrap();
}

pub async fn seal(target: &mut Units, by: &shard::UnitMove, final_revision: i64) -> Result<u64, Status> {
    let answer = target
        .seal(shard::SealRequest { r#move: Some(by.clone()), final_revision, ..Default::default() })
        .await?;
    Ok(answer.into_inner().incarnation)
}

pub async fn release(source: &mut Units, by: &shard::UnitMove, epoch: Epoch) {
    source.release(shard::ReleaseRequest { r#move: Some(by.clone()), epoch: epoch.0 }).await.unwrap();
}

pub async fn open(target: &mut Units, by: &shard::UnitMove, epoch: Epoch) {
    target.open(shard::OpenRequest { r#move: Some(by.clone()), epoch: epoch.0 }).await.unwrap();
}

/// Drops the unit, and waits until everything of it is gone.
pub async fn drop_unit(shard: &mut Units, by: &shard::UnitMove, epoch: Epoch) {
    shard.drop(shard::DropRequest { r#move: Some(by.clone()), epoch: epoch.0 }).await.unwrap();
    let asked = shard.clone();
    eventually("the unit is gone", async || {
        let records = records(&mut asked.clone()).await;
        !records.iter().any(|record| record.0 == shard::UnitState::Dropping)
    })
    .await;
}

/// Makes the whole switch: freezes, imports the rest, seals, decides and opens. Answers the final revision.
pub async fn switch(
    source: &mut Units,
    target: &mut Units,
    mut tail: Tail,
    by: &shard::UnitMove,
    epoch: Epoch,
) -> i64 {
    let last = freeze(source, by).await;
    tail.until(last).await;
    assert_eq!(tail.through, last, "nothing is promised above it");
    seal(target, by, last).await.unwrap();
    release(source, by, epoch).await;
    open(target, by, epoch).await;
    last
}

/// The states, epochs and key counts of all records.
pub async fn records(shard: &mut Units) -> Vec<(shard::UnitState, Epoch, u64)> {
    let answer = shard.list(shard::UnitsListRequest {}).await.unwrap().into_inner();
    answer.records.iter().map(|record| (record.state(), Epoch(record.epoch), record.keys)).collect()
}

/// All digests of the unit, in their order.
pub async fn digests(
    shard: &mut Units,
    by: &shard::UnitMove,
    floor: i64,
    at: i64,
) -> Vec<shard::VerifyResponse> {
    let request = shard::VerifyRequest { r#move: Some(by.clone()), floor, at, after: Bytes::new() };
    let mut answers = shard.verify(request).await.unwrap().into_inner();
    let mut digests = Vec::new();
    while let Some(digest) = answers.message().await.unwrap() {
        digests.push(digest);
    }
    digests
}

pub async fn leases(shard: &mut Units, by: &shard::UnitMove, missing: bool) -> Vec<i64> {
    shard
        .leases(shard::UnitLeasesRequest { r#move: Some(by.clone()), missing })
        .await
        .unwrap()
        .into_inner()
        .ids
}
