//! etcd's API as meta is used: get, list, compare-and-swap, watch. Every call has a deadline; none is repeated here.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use kindred_proto::etcdserverpb as pb;
use kindred_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use kindred_proto::etcdserverpb::{
    kv_client::KvClient, lease_client::LeaseClient, watch_client::WatchClient,
};
use kindred_transport::connect::{ConnectError, RouterChannel as Channel};
use kindred_transport::{Connector, Endpoint};
use kindred_wire::error::EtcdError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

use super::{MetaError, PREFIX};
use crate::stores::failure::Failure;

/// For every call but a watch.
const DEADLINE: Duration = Duration::from_secs(3);

/// A value and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The value.
    pub value: Bytes,
    /// Meta's revision of its last change: what a compare-and-swap names.
    pub mod_revision: i64,
}

/// All keys at one revision of meta.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entries {
    /// Meta's revision.
    pub revision: i64,
    /// By key.
    pub keys: BTreeMap<String, Stored>,
}

impl Entries {
    /// The text of a key.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        std::str::from_utf8(&self.keys.get(key)?.value).ok()
    }

    /// Takes one event in.
    pub fn apply(&mut self, event: &kindred_proto::mvccpb::Event) {
        let Some(kv) = &event.kv else { return };
        let key = String::from_utf8_lossy(&kv.key).into_owned();
        if event.r#type() == kindred_proto::mvccpb::event::EventType::Delete {
            self.keys.remove(&key);
        } else {
            self.keys.insert(key, Stored { value: kv.value.clone(), mod_revision: kv.mod_revision });
        }
        self.revision = self.revision.max(kv.mod_revision);
    }
}

/// What a key must be: of this mod_revision, 0 for not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expect {
    /// The key.
    pub key: String,
    /// Its mod_revision.
    pub mod_revision: i64,
}

/// One write of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: String,
    /// `None` deletes it.
    pub value: Option<Bytes>,
    /// The lease that the key lives by, 0 for none.
    pub lease: i64,
}

impl Write {
    /// Puts a value.
    #[must_use]
    pub fn put(key: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Self { key: key.into(), value: Some(value.into()), lease: 0 }
    }

    fn op(self) -> pb::RequestOp {
        let key = Bytes::from(self.key.into_bytes());
        let request = match self.value {
            Some(value) => pb::request_op::Request::RequestPut(pb::PutRequest {
                key,
                value,
                lease: self.lease,
                ..Default::default()
            }),
            None => pb::request_op::Request::RequestDeleteRange(pb::DeleteRangeRequest {
                key,
                ..Default::default()
            }),
        };
        pb::RequestOp { request: Some(request) }
    }
}

/// A connection to meta.
#[derive(Debug, Clone)]
pub struct MetaClient {
    channel: Channel,
}

impl MetaClient {
    /// A client of whichever endpoint answers.
    ///
    /// # Errors
    /// When there is no endpoint, or TLS cannot be set up.
    pub fn new(endpoints: &[Endpoint], connector: &Connector) -> Result<Self, ConnectError> {
        Ok(Self { channel: connector.router_channel(endpoints)? })
    }

    fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Leases, for keys that must not outlive their writer.
    #[must_use]
    pub fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    /// One key.
    ///
    /// # Errors
    /// When meta cannot be asked.
    pub async fn get(&self, key: &str) -> Result<Option<Stored>, MetaError> {
        let request = pb::RangeRequest { key: key.to_owned().into(), ..Default::default() };
        let answer = within(self.kv().range(timed(request))).await.map_err(read_failed)?;
        let stored =
            |kv: kindred_proto::mvccpb::KeyValue| Stored { value: kv.value, mod_revision: kv.mod_revision };
        Ok(answer.kvs.into_iter().next().map(stored))
    }

    /// Every key of kindred's.
    ///
    /// # Errors
    /// When meta cannot be asked.
    pub async fn list(&self) -> Result<Entries, MetaError> {
        let request =
            pb::RangeRequest { key: PREFIX.into(), range_end: behind_prefix(), ..Default::default() };
        let answer = within(self.kv().range(timed(request))).await.map_err(read_failed)?;
        let keys = answer.kvs.into_iter().map(|kv| {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            (key, Stored { value: kv.value, mod_revision: kv.mod_revision })
        });
        let keys = keys.collect();
        Ok(Entries { revision: answer.header.map_or(0, |header| header.revision), keys })
    }

    /// Makes all writes in one transaction if every key is as expected; meta's revision then, `None` if one is not.
    ///
    /// # Errors
    /// When meta refuses or cannot be asked; [`MetaError::Unknown`] when it may have been made.
    pub async fn commit(&self, expects: &[Expect], writes: Vec<Write>) -> Result<Option<i64>, MetaError> {
        let compare = |expect: &Expect| {
            let union = TargetUnion::ModRevision(expect.mod_revision);
            compare(&expect.key, CompareTarget::Mod, union)
        };
        self.txn(expects.iter().map(compare).collect(), writes).await
    }

    /// Makes a write of a key that lives by this lease, if it still does; whether it was made. Writes before it of which
    /// nobody knows whether they were made are in nobody's way.
    ///
    /// # Errors
    /// As [`MetaClient::commit`].
    pub async fn commit_under(&self, lease: i64, write: Write) -> Result<bool, MetaError> {
        let ours = compare(&write.key, CompareTarget::Lease, TargetUnion::Lease(lease));
        Ok(self.txn(vec![ours], vec![write]).await?.is_some())
    }

    async fn txn(&self, compare: Vec<pb::Compare>, writes: Vec<Write>) -> Result<Option<i64>, MetaError> {
        let success = writes.into_iter().map(Write::op).collect();
        let request = pb::TxnRequest { compare, success, failure: Vec::new() };
        let answer = within(self.kv().txn(timed(request))).await.map_err(write_failed)?;
        Ok(answer.succeeded.then_some(answer.header.map_or(0, |header| header.revision)))
    }

    /// Everything that changes from a revision on.
    ///
    /// # Errors
    /// When meta cannot be asked.
    pub async fn watch(&self, from: i64) -> Result<Watch, MetaError> {
        let create = pb::WatchCreateRequest {
            key: PREFIX.into(),
            range_end: behind_prefix(),
            start_revision: from,
            progress_notify: true,
            ..Default::default()
        };
        let union = pb::watch_request::RequestUnion::CreateRequest(create);
        let (requests, queue) = mpsc::channel(1);
        // The queue is empty, and its other end is in this function.
        let _ = requests.try_send(pb::WatchRequest { request_union: Some(union) });
        let mut client = WatchClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let answers = within(client.watch(ReceiverStream::new(queue))).await.map_err(read_failed)?;
        Ok(Watch { _requests: requests, answers })
    }

    /// Lets meta forget what was before a revision.
    ///
    /// # Errors
    /// When meta cannot be asked. That another router was faster is none.
    pub async fn compact(&self, revision: i64) -> Result<(), MetaError> {
        let request = pb::CompactionRequest { revision, physical: false };
        match within(self.kv().compact(timed(request))).await {
            Ok(_) => Ok(()),
            Err(status) if kindred_transport::grpc::etcd_error(&status) == Some(EtcdError::Compacted) => {
                Ok(())
            }
            Err(status) => Err(read_failed(status)),
        }
    }
}

/// A watch of all keys.
#[derive(Debug)]
pub struct Watch {
    /// Its end would end the watch.
    _requests: mpsc::Sender<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
}

impl Watch {
    /// The next answer. A dead peer is noticed by the connection's keepalive.
    ///
    /// # Errors
    /// When the watch has ended; [`MetaError::Compacted`] when its start is gone.
    pub async fn next(&mut self) -> Result<pb::WatchResponse, MetaError> {
        let answer = self.answers.message().await.map_err(read_failed)?;
        let answer = answer.ok_or_else(|| MetaError::Unavailable("it has ended the watch".to_owned()))?;
        if answer.compact_revision > 0 {
            return Err(MetaError::Compacted);
        }
        if answer.canceled {
            return Err(MetaError::Unavailable(format!(
                "it has cancelled the watch: {}",
                answer.cancel_reason
            )));
        }
        Ok(answer)
    }
}

/// What a key must be.
fn compare(key: &str, target: CompareTarget, union: TargetUnion) -> pb::Compare {
    pb::Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: key.to_owned().into(),
        target_union: Some(union),
        ..Default::default()
    }
}

/// The first key behind all of kindred's.
fn behind_prefix() -> Bytes {
    // `/` and its successor.
    Bytes::from_static(b"/kindred0")
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}

/// A peer that has gone without a word does not answer the timeout that it was sent.
async fn within<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Status> {
    match tokio::time::timeout(DEADLINE, call).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Status::deadline_exceeded(format!("no answer within {} s", DEADLINE.as_secs()))),
    }
}

fn read_failed(status: Status) -> MetaError {
    match Failure::of(status) {
        Failure::Answered(status) if !is_silence(&status) => MetaError::Refused(status.message().to_owned()),
        failure => MetaError::Unavailable(failure.reason().to_owned()),
    }
}

fn write_failed(status: Status) -> MetaError {
    match Failure::of(status) {
        Failure::Answered(status) if is_silence(&status) => MetaError::Unknown(status.message().to_owned()),
        Failure::Answered(status) => MetaError::Refused(status.message().to_owned()),
        Failure::NotConnected(why) | Failure::NotSent(why) => MetaError::Unavailable(why),
        Failure::Lost(why) => MetaError::Unknown(why),
    }
}

/// Nobody knows what became of the request: no answer in time, or an etcd that lost its leader meanwhile.
fn is_silence(status: &Status) -> bool {
    matches!(
        status.code(),
        tonic::Code::DeadlineExceeded
            | tonic::Code::Unavailable
            | tonic::Code::Cancelled
            | tonic::Code::Unknown
    )
}
