//! Answers, and the differences between them that are allowed.
//!
//! Everything in an answer is compared, except:
//!
//! | what | why |
//! | --- | --- |
//! | header cluster_id, member_id, raft_term | They name the server. |
//! | LeaseTimeToLive TTL | Seconds pass between the two sides. A difference up to [`TTL_SLACK_SECONDS`] is allowed. |
//! | LeaseTimeToLive keys | etcd lists them in the order of a Go map, so they are compared as a set. |
//! | HashKV at the revision of a compaction: hash and compact_revision, and whether the revision is compacted by now | etcd answers with the hash that it stored at the compaction, over the state of that time. It also stores the hashes of its last few compactions. |
//! | prev_kv of an event exactly at the revision of a compaction | etcd has lost it by then. kindred still has it, so a client does not lose its watch. |
//! | prev_kv of events from before a watch that started in the past: etcd may send none | etcd's loop that brings watches up to date may see the new watch before its flag for prev_kv is set (`api/v3rpc/watch.go`, `recvLoop` after `watchStream.Watch`). |
//! | RangeStream sorted by a target without an order (not generated) | etcd sorts each chunk by itself and continues after the last key of the sorted chunk, so it loses keys. kindred answers in the order of keys. |
//! | where the chunks of a RangeStream end | It is not part of the contract. The merged answer is compared. |
//! | mapped mode: header revision of lease and compaction answers, and of a txn without operations | These have no kind, and the stores have no common counter. |
//! | several stores: a DeleteRange or the end of a lease has one revision, and one response on a watch, for each store | Each store executes its part at once. The events of all parts are compared in the order of keys. |
//! | several stores: the keys of a txn | A txn over several stores is refused, so each txn here is confined to one (`layout.rs`). |
//! | mapped mode: header revision of `created` of a watch with a start may be below etcd's | It is the watermark of the router's feed, so that such a watch costs no request to the stores. A watch without a start is compared. |

use bytes::Bytes;
use kindred_proto::{
    etcdserverpb::{
        CompactionResponse, DeleteRangeResponse, HashKvResponse, LeaseGrantResponse, LeaseKeepAliveResponse,
        LeaseLeasesResponse, LeaseRevokeResponse, LeaseTimeToLiveResponse, PutResponse, RangeResponse,
        ResponseHeader, TxnResponse, WatchResponse, response_op::Response,
    },
    mvccpb::KeyValue,
};

use crate::differential::revision::{History, Mode, Scope, Who};

pub const TTL_SLACK_SECONDS: i64 = 600;

#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    Range(RangeResponse),
    Put(PutResponse),
    DeleteRange(DeleteRangeResponse),
    Txn(TxnResponse),
    Compact(CompactionResponse),
    LeaseGrant(LeaseGrantResponse),
    LeaseRevoke(LeaseRevokeResponse),
    LeaseKeepAlive(Option<LeaseKeepAliveResponse>),
    LeaseTimeToLive(LeaseTimeToLiveResponse),
    LeaseLeases(LeaseLeasesResponse),
    HashKv(HashKvResponse),
    /// The watch was created, or refused at once. A drain compares its events.
    Watch(Vec<WatchResponse>),
    Nothing,
    Error {
        code: i32,
        message: String,
    },
}

impl Answer {
    pub fn error(status: &tonic::Status) -> Self {
        Self::Error { code: status.code() as i32, message: status.message().to_owned() }
    }

    /// The revision of the header, if the answer has one.
    pub fn revision(&self) -> Option<i64> {
        let header = match self {
            Self::Range(answer) => &answer.header,
            Self::Put(answer) => &answer.header,
            Self::DeleteRange(answer) => &answer.header,
            Self::Txn(answer) => &answer.header,
            Self::Compact(answer) => &answer.header,
            Self::LeaseGrant(answer) => &answer.header,
            Self::LeaseRevoke(answer) => &answer.header,
            Self::LeaseKeepAlive(Some(answer)) => &answer.header,
            Self::LeaseTimeToLive(answer) => &answer.header,
            Self::LeaseLeases(answer) => &answer.header,
            Self::HashKv(answer) => &answer.header,
            Self::LeaseKeepAlive(None) | Self::Watch(_) | Self::Nothing | Self::Error { .. } => return None,
        };
        header.as_ref().map(|header| header.revision)
    }
}

/// Brings the answers of one side to a form in which they can be compared with the other side's.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub history: &'a History,
    pub scope: Scope,
    pub who: Who,
}

impl View<'_> {
    pub fn normalise(&self, answer: &mut Answer) {
        match answer {
            Answer::Range(answer) => self.range(answer),
            Answer::Put(answer) => self.put(answer),
            Answer::DeleteRange(answer) => self.delete_range(answer),
            Answer::Txn(answer) if answer.responses.is_empty() && answer.succeeded => {
                self.unscoped(&mut answer.header)
            }
            Answer::Txn(answer) => self.txn(answer),
            Answer::Compact(answer) => self.unscoped(&mut answer.header),
            Answer::LeaseGrant(answer) => self.unscoped(&mut answer.header),
            Answer::LeaseRevoke(answer) => self.unscoped(&mut answer.header),
            Answer::LeaseKeepAlive(Some(answer)) => self.unscoped(&mut answer.header),
            Answer::LeaseTimeToLive(answer) => {
                self.unscoped(&mut answer.header);
                answer.keys.sort();
                if answer.ttl > 0 && (answer.granted_ttl - answer.ttl).abs() <= TTL_SLACK_SECONDS {
                    answer.ttl = answer.granted_ttl;
                }
            }
            Answer::LeaseLeases(answer) => self.unscoped(&mut answer.header),
            Answer::HashKv(answer) => self.header(&mut answer.header),
            Answer::Watch(answers) => answers.iter_mut().for_each(|answer| self.watch(answer)),
            Answer::LeaseKeepAlive(None) | Answer::Nothing | Answer::Error { .. } => {}
        }
    }

    fn header(&self, header: &mut Option<ResponseHeader>) {
        if let Some(header) = header {
            header.cluster_id = 0;
            header.member_id = 0;
            header.raft_term = 0;
            header.revision = self.history.header(self.scope, self.who, header.revision);
        }
    }

    fn unscoped(&self, header: &mut Option<ResponseHeader>) {
        self.header(header);
        if let (Mode::Mapped, Some(header)) = (self.history.mode, header) {
            header.revision = 0;
        }
    }

    pub fn key_value(&self, kv: &mut KeyValue) {
        kv.mod_revision = self.history.exact(self.who, kv.mod_revision);
        kv.create_revision = self.history.exact(self.who, kv.create_revision);
    }

    fn range(&self, answer: &mut RangeResponse) {
        self.header(&mut answer.header);
        answer.kvs.iter_mut().for_each(|kv| self.key_value(kv));
    }

    fn put(&self, answer: &mut PutResponse) {
        self.header(&mut answer.header);
        answer.prev_kv.iter_mut().for_each(|kv| self.key_value(kv));
    }

    fn delete_range(&self, answer: &mut DeleteRangeResponse) {
        self.header(&mut answer.header);
        answer.prev_kvs.iter_mut().for_each(|kv| self.key_value(kv));
    }

    fn txn(&self, answer: &mut TxnResponse) {
        self.header(&mut answer.header);
        for op in &mut answer.responses {
            match &mut op.response {
                Some(Response::ResponseRange(answer)) => self.range(answer),
                Some(Response::ResponsePut(answer)) => self.put(answer),
                Some(Response::ResponseDeleteRange(answer)) => self.delete_range(answer),
                Some(Response::ResponseTxn(answer)) => self.txn(answer),
                None => {}
            }
        }
    }

    /// Normalises `created` and `canceled` responses. Events are normalised one by one elsewhere.
    pub fn watch(&self, answer: &mut WatchResponse) {
        if answer.canceled && self.history.mode == Mode::Mapped {
            // etcd promises nothing here: it sends 0 itself when a watch is canceled as compacted.
            answer.header = None;
        }
        self.header(&mut answer.header);
        answer.compact_revision = self.history.exact(self.who, answer.compact_revision);
    }
}

/// Merges the chunks of a RangeStream into one answer. The error says which chunk breaks etcd's format.
pub fn merge(chunks: Vec<RangeResponse>) -> Result<RangeResponse, String> {
    let mut merged = RangeResponse::default();
    let last = chunks.len().saturating_sub(1);
    let mut previous: Option<Bytes> = None;
    for (index, chunk) in chunks.into_iter().enumerate() {
        if index < last && (chunk.header.is_some() || chunk.more || chunk.count != 0) {
            return Err(format!("chunk {index} of {} has a header, more or count", last + 1));
        }
        for kv in chunk.kvs {
            // An answer in a single chunk may be sorted by something other than the key.
            if last > 0 && previous.as_ref().is_some_and(|previous| *previous >= kv.key) {
                return Err(format!("key {:?} out of order in chunk {index}", kv.key));
            }
            previous = Some(kv.key.clone());
            merged.kvs.push(kv);
        }
        merged.header = chunk.header;
        merged.more = chunk.more;
        merged.count = chunk.count;
    }
    Ok(merged)
}
