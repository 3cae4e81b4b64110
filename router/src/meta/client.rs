//! The part of etcd's API that meta is used by: get, list, compare-and-swap, watch. Every call has a deadline; none is
//! retried here.

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

/// The time limit of every call except a watch.
const DEADLINE: Duration = Duration::from_secs(3);
/// The time limit of grants and renewals of leases.
const SOON: Duration = Duration::from_secs(1);

/// A value with its mod revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub value: Bytes,
    /// Meta's revision of the last change, which compare-and-swap compares.
    pub mod_revision: i64,
}

/// All keys of kindred at one revision of meta.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entries {
    /// Meta's revision of this snapshot.
    pub revision: i64,
    pub keys: BTreeMap<String, Stored>,
}

impl Entries {
    /// The value of a key, if it is text.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        std::str::from_utf8(&self.keys.get(key)?.value).ok()
    }

    /// Applies an event of the watch.
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

/// A condition on a key: its mod revision, 0 if it must not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expect {
    pub key: String,
    pub mod_revision: i64,
}

/// A write in a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub key: String,
    /// `None` deletes the key.
    pub value: Option<Bytes>,
    /// The lease to attach the key to; 0 for none.
    pub lease: i64,
}

impl Write {
    /// A put without a lease.
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

    fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    /// Reads one key.
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

    /// Reads all keys of kindred.
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

    /// Makes all writes in one transaction if all conditions hold. Returns meta's revision of the transaction, `None`
    /// if a condition fails.
    ///
    /// # Errors
    /// When meta refuses or cannot be asked; [`MetaError::Unknown`] when the transaction may have been made.
    pub async fn commit(&self, expects: &[Expect], writes: Vec<Write>) -> Result<Option<i64>, MetaError> {
        let compare = |expect: &Expect| {
            let union = TargetUnion::ModRevision(expect.mod_revision);
            compare(&expect.key, CompareTarget::Mod, union)
        };
        self.txn(expects.iter().map(compare).collect(), writes).await
    }

    /// Writes a key only if it is still attached to this lease; returns whether it was. The condition holds whether or
    /// not earlier writes with unknown results were made.
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

    /// Grants a lease of so long, in whole seconds.
    ///
    /// # Errors
    /// When meta cannot be asked.
    pub async fn grant(&self, ttl: Duration) -> Result<i64, MetaError> {
        let request = pb::LeaseGrantRequest { ttl: i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX), id: 0 };
        let granted = soon(self.lease().lease_grant(request)).await?;
        Ok(granted.id)
    }

    /// Renews a lease; `false` if it is over.
    ///
    /// # Errors
    /// When meta cannot be asked.
    pub async fn renew(&self, lease: i64) -> Result<bool, MetaError> {
        let (requests, queue) = mpsc::channel(1);
        // The queue is empty and its receiver is used below, so this cannot fail.
        let _ = requests.try_send(pb::LeaseKeepAliveRequest { id: lease });
        let mut client = self.lease();
        let asked = async {
            let answers = client.lease_keep_alive(ReceiverStream::new(queue)).await?;
            let answer = answers.into_inner().message().await?;
            Ok(tonic::Response::new(answer.ok_or_else(|| Status::unavailable("no answer"))?))
        };
        Ok(soon(asked).await?.ttl > 0)
    }

    /// Watches all keys of kindred from a revision on.
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
        // The queue is empty and its receiver lives in this function, so this cannot fail.
        let _ = requests.try_send(pb::WatchRequest { request_union: Some(union) });
        let mut client = WatchClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        let answers = within(client.watch(ReceiverStream::new(queue))).await.map_err(read_failed)?;
        Ok(Watch { _requests: requests, answers })
    }

    /// Compacts meta at a revision.
    ///
    /// # Errors
    /// When meta cannot be asked. A revision that is already compacted is no error.
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

/// A watch of all keys of kindred.
#[derive(Debug)]
pub struct Watch {
    /// Dropping it would end the watch.
    _requests: mpsc::Sender<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
}

impl Watch {
    /// The next response. A dead peer is detected by the connection's keepalive.
    ///
    /// # Errors
    /// When the watch has ended; [`MetaError::Compacted`] when its position is compacted.
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

/// A compare for equality.
fn compare(key: &str, target: CompareTarget, union: TargetUnion) -> pb::Compare {
    pb::Compare {
        result: CompareResult::Equal.into(),
        target: target.into(),
        key: key.to_owned().into(),
        target_union: Some(union),
        ..Default::default()
    }
}

/// The first key after the prefix.
fn behind_prefix() -> Bytes {
    // `0` is the successor of `/`.
    Bytes::from_static(b"/kindred0")
}

fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}

/// Applies [`SOON`]: a lease does not live much longer.
async fn soon<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, MetaError> {
    let answer = tokio::time::timeout(SOON, call).await;
    let answer = answer
        .unwrap_or_else(|_| Err(Status::deadline_exceeded(format!("no answer within {} s", SOON.as_secs()))));
    Ok(answer.map_err(write_failed)?.into_inner())
}

/// Applies [`DEADLINE`] also on this side, because a dead peer does not honour the timeout in the request.
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

/// Whether the status leaves open what became of the request: no answer in time, or an etcd that lost its leader.
fn is_silence(status: &Status) -> bool {
    matches!(
        status.code(),
        tonic::Code::DeadlineExceeded
            | tonic::Code::Unavailable
            | tonic::Code::Cancelled
            | tonic::Code::Unknown
    )
}
