//! The part of etcd's API that meta is used by: get, list, compare-and-swap, watch. Every call has a deadline, within
//! which it is asked of several members if need be (see `super::members`).

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
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status, Streaming};

use super::members::{Answer, Members, Unanswered};
use super::written::{self, Standing};
use super::{MetaError, PREFIX};

/// The time limit of every call except a watch.
const DEADLINE: Duration = Duration::from_secs(3);
/// The time limit of grants and renewals of leases: a lease does not live much longer.
const SOON: Duration = Duration::from_secs(1);
/// How often a watch asks its member for a sign of life. HTTP/2's own pings would be too many for etcd, which closes a
/// connection that pings more often than every 5 s.
const SIGN: Duration = Duration::from_millis(200);
/// The same where there is no other member to go to: it only has to be known at some time.
const SIGN_OF_ONE: Duration = Duration::from_secs(1);
/// How many signs in a row may stay away.
const SIGNS_MAX: u32 = 3;

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

    pub(super) fn op(self) -> pb::RequestOp {
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
    members: Members,
}

impl MetaClient {
    /// A client of whichever members answer.
    ///
    /// # Errors
    /// When there is no endpoint, or TLS cannot be set up.
    pub fn new(endpoints: &[Endpoint], connector: &Connector) -> Result<Self, ConnectError> {
        Ok(Self { members: Members::new(endpoints, connector)? })
    }

    /// Reads one key.
    ///
    /// # Errors
    /// When meta cannot be asked.
    pub async fn get(&self, key: &str) -> Result<Option<Stored>, MetaError> {
        let request = pb::RangeRequest { key: key.to_owned().into(), ..Default::default() };
        let stored =
            |kv: kindred_proto::mvccpb::KeyValue| Stored { value: kv.value, mod_revision: kv.mod_revision };
        Ok(self.range(request).await?.kvs.into_iter().next().map(stored))
    }

    /// Reads all keys of kindred.
    ///
    /// # Errors
    /// When meta cannot be asked.
    pub async fn list(&self) -> Result<Entries, MetaError> {
        let request =
            pb::RangeRequest { key: PREFIX.into(), range_end: behind_prefix(), ..Default::default() };
        let answer = self.range(request).await?;
        let keys = answer.kvs.into_iter().map(|kv| {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            (key, Stored { value: kv.value, mod_revision: kv.mod_revision })
        });
        let keys = keys.collect();
        Ok(Entries { revision: answer.header.map_or(0, |header| header.revision), keys })
    }

    async fn range(&self, request: pb::RangeRequest) -> Result<pb::RangeResponse, MetaError> {
        let ask = |channel| {
            let request = timed(request.clone());
            async move { kv(channel).range(request).await }
        };
        let answer = self.members.ask(DEADLINE, ask).await;
        Ok(answer.map_err(Unanswered::of_read)?.message)
    }

    /// Makes all writes in one transaction if all conditions hold. Returns meta's revision of the transaction, `None`
    /// if a condition fails.
    ///
    /// One of the conditions should be on a key that is written. It keeps the transaction from being made twice when
    /// several members are asked.
    ///
    /// # Errors
    /// When meta refuses or cannot be asked; [`MetaError::Unknown`] when the transaction may have been made.
    pub async fn commit(&self, expects: &[Expect], writes: Vec<Write>) -> Result<Option<i64>, MetaError> {
        let condition = |expect: &Expect| {
            let union = TargetUnion::ModRevision(expect.mod_revision);
            compare(&expect.key, CompareTarget::Mod, union)
        };
        let conditions = expects.iter().map(condition).collect();
        let Answer { message: answer, is_repeated } = self.txn(conditions, &writes).await?;
        let revision = answer.header.as_ref().map_or(0, |header| header.revision);
        if answer.succeeded {
            return Ok(Some(revision));
        }
        if !is_repeated {
            return Ok(None);
        }
        // What was asked before may have been made, and be the reason why the condition fails now.
        match written::standing(expects, &writes, &answer.responses, revision) {
            Standing::Made(revision) => Ok(Some(revision)),
            Standing::NotMade => Ok(None),
            Standing::Replaced { key, expected, found } => {
                // If the key had its expected version until the one that is there, no other was in between.
                let before = self.version_before(&key, found).await;
                if before.is_ok_and(|before| before == expected) {
                    return Ok(None);
                }
                let why = format!("{key} was changed again meanwhile");
                Err(MetaError::Unknown(why))
            }
        }
    }

    /// The mod revision that a key had before this one; 0 if it did not exist.
    async fn version_before(&self, key: &str, mod_revision: i64) -> Result<i64, MetaError> {
        let revision = mod_revision - 1;
        let request = pb::RangeRequest { key: key.to_owned().into(), revision, ..Default::default() };
        Ok(self.range(request).await?.kvs.first().map_or(0, |kv| kv.mod_revision))
    }

    /// Writes a key only if it is still attached to this lease; returns whether it was. The condition holds whether or
    /// not earlier writes with unknown results were made.
    ///
    /// # Errors
    /// As [`MetaClient::commit`].
    pub async fn commit_under(&self, lease: i64, write: Write) -> Result<bool, MetaError> {
        let ours = compare(&write.key, CompareTarget::Lease, TargetUnion::Lease(lease));
        let writes = [write];
        let Answer { message: answer, is_repeated } = self.txn(vec![ours], &writes).await?;
        // A deletion that was made leaves nothing that is attached.
        let made = || matches!(written::standing(&[], &writes, &answer.responses, 0), Standing::Made(_));
        Ok(answer.succeeded || is_repeated && made())
    }

    async fn txn(
        &self,
        compare: Vec<pb::Compare>,
        writes: &[Write],
    ) -> Result<Answer<pb::TxnResponse>, MetaError> {
        let success = writes.iter().cloned().map(Write::op).collect();
        let failure = writes.iter().map(written::look).collect();
        let request = pb::TxnRequest { compare, success, failure };
        let ask = |channel| {
            let request = timed(request.clone());
            async move { kv(channel).txn(request).await }
        };
        self.members.ask(DEADLINE, ask).await.map_err(Unanswered::of_write)
    }

    /// Grants a lease of so long, in whole seconds. One that nobody has heard of ends by itself.
    ///
    /// # Errors
    /// When meta cannot be asked.
    pub async fn grant(&self, ttl: Duration) -> Result<i64, MetaError> {
        let request = pb::LeaseGrantRequest { ttl: i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX), id: 0 };
        let ask = |channel| async move { LeaseClient::new(channel).lease_grant(request).await };
        let granted = self.members.ask(SOON, ask).await.map_err(Unanswered::of_write)?;
        Ok(granted.message.id)
    }

    /// Renews a lease; `false` if it is over.
    ///
    /// # Errors
    /// When meta cannot be asked.
    pub async fn renew(&self, lease: i64) -> Result<bool, MetaError> {
        let ask = |channel| async move {
            let (requests, queue) = mpsc::channel(1);
            // The queue is empty and its receiver is used below, so this cannot fail.
            let _ = requests.try_send(pb::LeaseKeepAliveRequest { id: lease });
            let answers = LeaseClient::new(channel).lease_keep_alive(ReceiverStream::new(queue)).await?;
            let answer = answers.into_inner().message().await?;
            Ok(Response::new(answer.ok_or_else(|| Status::unavailable("no answer"))?))
        };
        let renewed = self.members.ask(SOON, ask).await.map_err(Unanswered::of_write)?;
        Ok(renewed.message.ttl > 0)
    }

    /// Watches all keys of kindred from a revision on, at the member that is asked first. The revision must not be in the
    /// future: etcd answers no request for progress of a stream with a watch that begins there (`progressIfSync` in
    /// `server/storage/mvcc/watchable_store.go`), so a member in which nothing happens would be taken for dead.
    ///
    /// The first sign of life is asked for at `signs_from`.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub async fn watch(&self, from: i64, signs_from: Instant) -> Result<Watch, MetaError> {
        let create = pb::WatchCreateRequest {
            key: PREFIX.into(),
            range_end: behind_prefix(),
            start_revision: from.max(1),
            progress_notify: true,
            ..Default::default()
        };
        let union = pb::watch_request::RequestUnion::CreateRequest(create);
        let (requests, queue) = mpsc::channel(1);
        // The queue is empty and its receiver lives in this function, so this cannot fail.
        let _ = requests.try_send(pb::WatchRequest { request_union: Some(union) });
        let (moved, (member, channel)) = (self.members.changes(), self.members.first());
        let mut request = Request::new(ReceiverStream::new(queue));
        // An etcd that is cut off from the others hears of nothing. With this it ends the watch.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
        let opened = tokio::time::timeout(SIGN * SIGNS_MAX, client.watch(request)).await;
        let opened = opened.unwrap_or_else(|_| Err(Status::deadline_exceeded("it does not open a watch")));
        let answers = opened.map_err(|status| {
            self.members.leave(member);
            watch_failed(&status)
        })?;
        // A router that was held up itself blames nobody.
        let (often, missed) = match self.members.is_one() {
            true => (SIGN_OF_ONE, MissedTickBehavior::Skip),
            false => (SIGN, MissedTickBehavior::Delay),
        };
        let mut signs = tokio::time::interval_at(signs_from, often);
        signs.set_missed_tick_behavior(missed);
        let members = self.members.clone();
        Ok(Watch { requests, answers: answers.into_inner(), members, member, moved, signs, asked: 0 })
    }

    /// Compacts meta at a revision.
    ///
    /// # Errors
    /// When meta cannot be asked. A revision that is already compacted is no error.
    pub async fn compact(&self, revision: i64) -> Result<(), MetaError> {
        let request = pb::CompactionRequest { revision, physical: false };
        let ask = |channel| async move { kv(channel).compact(timed(request)).await };
        match self.members.ask(DEADLINE, ask).await {
            Ok(_) => Ok(()),
            Err(Unanswered::Refused(status))
                if kindred_transport::grpc::etcd_error(&status) == Some(EtcdError::Compacted) =>
            {
                Ok(())
            }
            Err(error) => Err(error.of_read()),
        }
    }
}

/// A watch of all keys of kindred.
#[derive(Debug)]
pub struct Watch {
    requests: mpsc::Sender<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
    members: Members,
    /// The member that is watched.
    member: usize,
    moved: watch::Receiver<usize>,
    signs: Interval,
    /// How many signs of life were asked for since the last message.
    asked: u32,
}

impl Watch {
    /// The next response.
    ///
    /// # Errors
    /// When the watch has ended, its member says nothing, or another member is asked first; [`MetaError::Compacted`]
    /// when its position is compacted.
    pub async fn next(&mut self) -> Result<pb::WatchResponse, MetaError> {
        loop {
            tokio::select! {
                biased;
                answer = self.answers.message() => {
                    self.asked = 0;
                    let answer = answer.map_err(|status| watch_failed(&status))?;
                    let answer = answer.ok_or_else(|| MetaError::Unavailable("it has ended the watch".to_owned()))?;
                    if !is_sign(&answer) {
                        return judged(answer);
                    }
                }
                Ok(()) = self.moved.changed() => {
                    if *self.moved.borrow_and_update() != self.member {
                        return Err(MetaError::Unavailable("another member is asked first".to_owned()));
                    }
                }
                _ = self.signs.tick() => {
                    if self.asked == SIGNS_MAX {
                        self.members.leave(self.member);
                        return Err(MetaError::Unavailable("the member that is watched says nothing".to_owned()));
                    }
                    self.asked += 1;
                    let ask = pb::watch_request::RequestUnion::ProgressRequest(pb::WatchProgressRequest {});
                    // The queue is full only while nothing is read from it, which is silence too.
                    let _ = self.requests.try_send(pb::WatchRequest { request_union: Some(ask) });
                }
            }
        }
    }
}

/// Whether this only answers the request for a sign of life.
fn is_sign(answer: &pb::WatchResponse) -> bool {
    answer.watch_id < 0 && answer.events.is_empty() && !answer.canceled
}

fn judged(answer: pb::WatchResponse) -> Result<pb::WatchResponse, MetaError> {
    if answer.compact_revision > 0 {
        return Err(MetaError::Compacted);
    }
    if answer.canceled {
        return Err(MetaError::Unavailable(format!("it has cancelled the watch: {}", answer.cancel_reason)));
    }
    Ok(answer)
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

fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel).max_decoding_message_size(usize::MAX)
}

/// Whatever the reason is why a member has no watch for this router, another one may have one.
fn watch_failed(status: &Status) -> MetaError {
    MetaError::Unavailable(status.message().to_owned())
}
