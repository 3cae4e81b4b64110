//! A call of a client as a line of a trace. A line has what `kindred-bench replay` needs to make the call again.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use kindred_proto::etcdserverpb as pb;
use kindred_proto::{nested, values};
use kindred_router_core::plan::Call;
use kindred_router_core::verb::Asked;
use kindred_transport::metrics::calls::{CODES, code_index};
use prost::Message as _;
use schemars::JsonSchema;
use serde::Serialize;
use tonic::Code;

/// The verb of calls of etcd's service Lease.
pub const LEASE: &str = "lease";

/// What was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    Kv(Call),
    /// A watch, which ends when it is canceled or its stream ends.
    Watch,
    LeaseGrant,
    LeaseRevoke,
    LeaseKeepAlive,
}

impl Method {
    fn label(self) -> &'static str {
        match self {
            Self::Kv(Call::Range) => "Range",
            Self::Kv(Call::RangeStream) => "RangeStream",
            Self::Kv(Call::Put) => "Put",
            Self::Kv(Call::DeleteRange) => "DeleteRange",
            Self::Kv(Call::Txn) => "Txn",
            Self::Watch => "Watch",
            Self::LeaseGrant => "LeaseGrant",
            Self::LeaseRevoke => "LeaseRevoke",
            Self::LeaseKeepAlive => "LeaseKeepAlive",
        }
    }

    fn is_of_lease(self) -> bool {
        matches!(self, Self::LeaseGrant | Self::LeaseRevoke | Self::LeaseKeepAlive)
    }

    /// The request without its values, and their lengths; `None` for one that does not parse.
    fn shape(self, request: &Bytes) -> Option<(Vec<u8>, Vec<u64>)> {
        let mut lengths = Vec::new();
        let mut leave_out = |value: &mut Bytes| lengths.push(std::mem::take(value).len() as u64);
        let shape = match self {
            Self::Kv(Call::Put) => {
                let mut put = pb::PutRequest::decode(request.clone()).ok()?;
                leave_out(&mut put.value);
                put.encode_to_vec()
            }
            Self::Kv(Call::Txn) => {
                let mut txn = nested::txn(request.clone()).ok()?;
                values::each(&mut txn, &mut leave_out);
                txn.encode_to_vec()
            }
            // Decoded as well: what etcd's API does not know in a request may be anything.
            Self::Kv(Call::Range | Call::RangeStream) => {
                pb::RangeRequest::decode(request.clone()).ok()?.encode_to_vec()
            }
            Self::Kv(Call::DeleteRange) => {
                pb::DeleteRangeRequest::decode(request.clone()).ok()?.encode_to_vec()
            }
            // The router made these itself.
            Self::Watch | Self::LeaseGrant | Self::LeaseRevoke | Self::LeaseKeepAlive => request.to_vec(),
        };
        Some((shape, lengths))
    }
}

/// A call that has ended.
#[derive(Debug)]
pub struct Ended<'a> {
    pub client: &'a str,
    /// The client's end of its connection.
    pub connection: Option<SocketAddr>,
    pub kind: &'a str,
    pub method: Method,
    pub asked: Asked<'a>,
    pub request: &'a Bytes,
    pub code: Code,
    /// What went wrong.
    pub message: &'a str,
    pub took: Duration,
    pub answer_bytes: u64,
    /// The revision in the answer's header; 0 if it is not known.
    pub answer_revision: i64,
    /// Whether the compares of a transaction held; `None` if that is not known.
    pub succeeded: Option<bool>,
    /// The lease of a call of Lease, or 0.
    pub lease: i64,
}

impl Ended<'_> {
    /// In the words of an operator.
    pub(super) fn verb(&self) -> &'static str {
        if self.method.is_of_lease() { LEASE } else { self.asked.verb.label() }
    }

    /// As JSON. Without `whole` no value is in it, only lengths.
    pub(super) fn line(&self, at: SystemTime, whole: bool, lost: u64) -> TraceLine {
        let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => format!("0x{}", to_hex(bytes)),
        };
        let Asked { key, range_end, limit, keys_only, .. } = self.asked;
        let shape = if whole { None } else { self.method.shape(self.request) };
        let (shape, value_bytes) = shape.map(|(shape, lengths)| (to_hex(&shape), lengths)).unzip();
        TraceLine {
            at: at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            client: self.client.to_owned(),
            connection: self.connection.map(|connection| connection.to_string()),
            kind: self.kind.to_owned(),
            verb: self.verb(),
            method: self.method.label(),
            key: text(key),
            code: CODES[code_index(self.code)],
            micros: u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX),
            request_bytes: self.request.len() as u64,
            answer_bytes: self.answer_bytes,
            range: (!range_end.is_empty()).then(|| TracedRange {
                range_end: text(range_end),
                limit,
                keys_only,
            }),
            message: (!self.message.is_empty()).then(|| self.message.to_owned()),
            revision: (self.answer_revision > 0).then_some(self.answer_revision),
            succeeded: self.succeeded,
            lease: (self.lease != 0).then_some(self.lease),
            request: whole.then(|| to_hex(self.request)),
            shape,
            value_bytes: value_bytes.filter(|lengths: &Vec<u64>| !lengths.is_empty()),
            lost: (lost > 0).then_some(lost),
        }
    }
}

/// A call, in a line of a trace.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TraceLine {
    /// When it ended, in seconds since the Unix epoch.
    pub at: f64,
    pub client: String,
    /// The address and port of the client's end of the connection, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    pub kind: String,
    /// In the words of an operator; `lease` for calls of etcd's service Lease.
    pub verb: &'static str,
    /// The method of etcd's services KV and Lease, or `Watch` for a watch that ended.
    pub method: &'static str,
    /// Bytes that are no text follow `0x`.
    pub key: String,
    pub code: &'static str,
    /// How long it took. A watch was open as long, and a call on a stream was answered after it.
    pub micros: u64,
    pub request_bytes: u64,
    /// Of a watch: the bytes of its messages with events.
    pub answer_bytes: u64,
    /// Of a range.
    #[serde(flatten)]
    pub range: Option<TracedRange>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The revision in the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// It tells whether the compares of a transaction held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<bool>,
    /// The lease that was granted, revoked or renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease: Option<i64>,
    /// The encoded request in hexadecimal, for those who may see values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The encoded request in hexadecimal, without its values. With the lengths of the values one can make one like it
    /// (`kindred-bench replay`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    /// The lengths of the values that `shape` leaves out: of the compares, then of the puts, in their order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_bytes: Option<Vec<u64>>,
    /// The lines before this one for which there was no room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
}

/// What a traced call asked of a range.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TracedRange {
    pub range_end: String,
    pub limit: i64,
    pub keys_only: bool,
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use kindred_proto::etcdserverpb::compare::TargetUnion;
    use kindred_proto::etcdserverpb::request_op::Request;

    use super::*;

    const SECRET: &[u8] = b"topsecret";

    fn has_secret(bytes: &[u8]) -> bool {
        bytes.windows(SECRET.len()).any(|window| window == SECRET)
    }

    #[test]
    fn a_shape_has_no_value_and_all_else() {
        let put = pb::PutRequest { key: "k".into(), value: SECRET.into(), lease: 7, ..Default::default() };
        let (shape, lengths) = Method::Kv(Call::Put).shape(&put.encode_to_vec().into()).unwrap();
        assert!(!has_secret(&shape));
        assert_eq!(lengths, [9]);
        let read = pb::PutRequest::decode(&shape[..]).unwrap();
        assert_eq!(read, pb::PutRequest { value: Bytes::new(), ..put.clone() });

        let compare = pb::Compare {
            key: "k".into(),
            target_union: Some(TargetUnion::Value(SECRET.into())),
            ..Default::default()
        };
        let op = pb::RequestOp { request: Some(Request::RequestPut(put)) };
        let txn = pb::TxnRequest { compare: vec![compare], success: vec![op.clone()], failure: vec![op] };
        let (shape, lengths) = Method::Kv(Call::Txn).shape(&txn.encode_to_vec().into()).unwrap();
        assert!(!has_secret(&shape));
        assert_eq!(lengths, [9, 9, 9]);
        let mut again = pb::TxnRequest::decode(&shape[..]).unwrap();
        values::each(&mut again, &mut |value| *value = SECRET.into());
        assert_eq!(again, txn);
    }

    #[test]
    fn what_etcd_does_not_know_in_a_request_is_not_shown() {
        let mut range = pb::RangeRequest { key: "k".into(), ..Default::default() }.encode_to_vec();
        let known = range.clone();
        // Field 99, of so many bytes.
        range.extend([0x9a, 0x06, SECRET.len() as u8]);
        range.extend(SECRET);
        assert_eq!(Method::Kv(Call::Range).shape(&range.into()), Some((known, Vec::new())));
        assert_eq!(Method::Kv(Call::Put).shape(&Bytes::from_static(b"\xff\xff")), None);
    }
}
