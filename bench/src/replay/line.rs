//! Reads a line of `kindred trace`.

use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use kindred_proto::etcdserverpb::{self as pb, watch_request::RequestUnion};
use kindred_proto::{nested, values};
use prost::Message;
use serde::Deserialize;

/// The longest value that is made for one that was left out; etcd takes requests of 1.5 MiB by default.
const VALUE_MAX: u64 = 256 << 20;

/// A line; what replay does not use is left out.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    at: f64,
    client: String,
    connection: Option<String>,
    kind: String,
    method: String,
    code: String,
    micros: u64,
    succeeded: Option<bool>,
    revision: Option<i64>,
    lease: Option<i64>,
    request: Option<String>,
    shape: Option<String>,
    #[serde(default)]
    value_bytes: Vec<u64>,
    #[serde(default)]
    lost: u64,
}

/// A request, as it was recorded or is to be sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    Range(pb::RangeRequest),
    RangeStream(pb::RangeRequest),
    Put(pb::PutRequest),
    DeleteRange(pb::DeleteRangeRequest),
    Txn(pb::TxnRequest),
    Watch(pb::WatchCreateRequest),
    LeaseGrant(pb::LeaseGrantRequest),
    LeaseRevoke(pb::LeaseRevokeRequest),
    LeaseKeepAlive(pb::LeaseKeepAliveRequest),
}

/// A call of the trace. Times are in microseconds since the Unix epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// The number of its line, from 1 on.
    pub line: usize,
    /// The connection of the client, or the client where the trace does not tell its connections apart.
    pub connection: String,
    pub kind: Arc<str>,
    pub method: Arc<str>,
    pub begins: u64,
    pub ends: u64,
    pub code: String,
    /// It tells whether the compares of a transaction held.
    pub succeeded: Option<bool>,
    /// The revision in the answer.
    pub revision: Option<i64>,
    /// The lease of a call of Lease.
    pub lease: Option<i64>,
    /// The request, or why it cannot be made again.
    pub request: Result<Request, &'static str>,
    /// The lines before this one that the trace lost.
    pub lost: u64,
}

impl Recorded {
    pub fn took(&self) -> u64 {
        self.ends - self.begins
    }
}

/// Reads a line with this number.
///
/// # Errors
/// The line's number, its mistake, and what to do.
pub fn read(text: &str, number: usize) -> anyhow::Result<Recorded> {
    let line: Line = serde_json::from_str(text).map_err(|wrong| {
        let what = match wrong.is_eof() {
            true => "the line is cut off, as the last one may be if the trace was interrupted; delete it",
            false => "this is no line of `kindred trace`; record with `kindred trace >FILE`",
        };
        anyhow::Error::new(wrong).context(what)
    })?;
    ensure!(line.at.is_finite() && line.at >= 0.0, "at: {} is no time since 1970", line.at);
    let ends = (line.at * 1e6).round() as u64;
    let request = match (&line.request, &line.shape) {
        (Some(request), _) => decoded(&line.method, &from_hex("request", request)?).context("request")?,
        (None, Some(shape)) => {
            let shape = decoded(&line.method, &from_hex("shape", shape)?).context("shape")?;
            shape.map(|shape| filled(shape, &line.value_bytes)).transpose().context("valueBytes")?
        }
        (None, None) => None,
    };
    let why = match line.request.is_some() || line.shape.is_some() {
        true => "a method that replay does not know",
        false => "the line has no request: it did not parse, or an older router recorded it",
    };
    Ok(Recorded {
        line: number,
        connection: line.connection.unwrap_or(line.client),
        kind: line.kind.into(),
        method: line.method.into(),
        begins: ends.saturating_sub(line.micros),
        ends,
        code: line.code,
        succeeded: line.succeeded,
        revision: line.revision,
        lease: line.lease,
        request: request.ok_or(why),
        lost: line.lost,
    })
}

fn from_hex(field: &str, text: &str) -> anyhow::Result<Bytes> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
    Ok(bytes.with_context(|| format!("{field} is not in hexadecimal; record the trace again"))?.into())
}

/// The request of a method; `None` for an unknown one.
fn decoded(method: &str, bytes: &Bytes) -> anyhow::Result<Option<Request>> {
    fn of<M: Message + Default>(bytes: &Bytes, of: fn(M) -> Request) -> anyhow::Result<Option<Request>> {
        let message = M::decode(bytes.clone()).context("this is no request of the method; record again")?;
        Ok(Some(of(message)))
    }
    match method {
        "Range" => of(bytes, Request::Range),
        "RangeStream" => of(bytes, Request::RangeStream),
        "Put" => of(bytes, Request::Put),
        "DeleteRange" => of(bytes, Request::DeleteRange),
        "Txn" => match nested::txn(bytes.clone()) {
            Ok(txn) => Ok(Some(Request::Txn(txn))),
            Err(wrong) => bail!("this is no transaction ({wrong:?}); record again"),
        },
        "Watch" => match pb::WatchRequest::decode(bytes.clone()).ok().and_then(|watch| watch.request_union) {
            Some(RequestUnion::CreateRequest(create)) => Ok(Some(Request::Watch(create))),
            _ => bail!("this creates no watch; record again"),
        },
        "LeaseGrant" => of(bytes, Request::LeaseGrant),
        "LeaseRevoke" => of(bytes, Request::LeaseRevoke),
        "LeaseKeepAlive" => of(bytes, Request::LeaseKeepAlive),
        _ => Ok(None),
    }
}

/// The request with values of these lengths.
fn filled(mut request: Request, lengths: &[u64]) -> anyhow::Result<Request> {
    let (mut lengths, mut wrong) = (lengths.iter(), None);
    let mut fill = |value: &mut Bytes| match lengths.next() {
        Some(length) if *length <= VALUE_MAX => *value = filler(*length),
        Some(length) => wrong = Some(format!("{length} bytes are more than a request may have")),
        None => wrong = Some("it has fewer lengths than the request has values".to_owned()),
    };
    match &mut request {
        Request::Put(put) => fill(&mut put.value),
        Request::Txn(txn) => values::each(txn, &mut fill),
        _ => {}
    }
    if lengths.next().is_some() {
        wrong = wrong.or_else(|| Some("it has more lengths than the request has values".to_owned()));
    }
    match wrong {
        Some(wrong) => bail!("{wrong}; record the trace again"),
        None => Ok(request),
    }
}

/// So many bytes. All values share them, so that a plan takes little memory.
fn filler(length: u64) -> Bytes {
    use std::sync::{LazyLock, Mutex, PoisonError};
    static LONGEST: LazyLock<Mutex<Bytes>> = LazyLock::new(Mutex::default);
    let mut longest = LONGEST.lock().unwrap_or_else(PoisonError::into_inner);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if longest.len() < length {
        let text = b"replayed ".iter().copied().cycle();
        *longest = text.take(length.next_power_of_two()).collect();
    }
    longest.slice(..length)
}

#[cfg(test)]
pub mod tests {
    use kindred_proto::etcdserverpb::request_op;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    pub fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub fn put(key: &str, value: &str) -> pb::PutRequest {
        pb::PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() }
    }

    fn line(method: &str, shape: &[u8], more: &[(&str, Value)]) -> String {
        let mut line = json!({
            "at": 1_700_000_000.5, "client": "10.0.0.1", "kind": "pods", "verb": "x", "method": method, "key": "/k",
            "code": "OK", "micros": 1500, "requestBytes": 3, "answerBytes": 4, "shape": hex(shape),
        });
        for (name, value) in more {
            line[*name] = value.clone();
        }
        line.to_string()
    }

    fn wrong(text: &str) -> String {
        format!("{:#}", read(text, 1).unwrap_err())
    }

    #[test]
    fn a_put_gets_a_value_of_the_recorded_length() {
        let shape = put("/registry/pods/a", "").encode_to_vec();
        let read =
            read(&line("Put", &shape, &[("valueBytes", json!([2000])), ("lost", json!(3))]), 7).unwrap();
        let Ok(Request::Put(made)) = &read.request else { panic!("{read:?}") };
        assert_eq!((&made.key[..], made.value.len()), (&b"/registry/pods/a"[..], 2000));
        assert_eq!((read.line, read.lost, &*read.connection), (7, 3, "10.0.0.1"));
        assert_eq!((read.ends, read.took()), (1_700_000_000_500_000, 1500));
    }

    #[test]
    fn a_whole_request_keeps_its_value() {
        let whole = hex(&put("k", "secret").encode_to_vec());
        let read = read(&line("Put", b"", &[("request", json!(whole)), ("shape", Value::Null)]), 1);
        assert_eq!(read.unwrap().request, Ok(Request::Put(put("k", "secret"))));
    }

    #[test]
    fn a_watch_and_a_lease_are_read() {
        let create = pb::WatchCreateRequest { key: "k".into(), start_revision: 4, ..Default::default() };
        let watch = pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create.clone())) };
        let read_of = |method: &str, shape: &[u8]| read(&line(method, shape, &[]), 1).unwrap().request;
        assert_eq!(read_of("Watch", &watch.encode_to_vec()), Ok(Request::Watch(create)));
        let grant = pb::LeaseGrantRequest { ttl: 60, id: 0 };
        assert_eq!(read_of("LeaseGrant", &grant.encode_to_vec()), Ok(Request::LeaseGrant(grant)));
        assert!(read_of("Defragment", b"").unwrap_err().contains("does not know"));
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(wrong("nonsense").contains("kindred trace"));
        assert!(wrong("{}").contains("missing field"));
        assert!(wrong("{\"at\": 1, \"cli").contains("delete it"));
        let put = put("k", "").encode_to_vec();
        assert!(wrong(&line("Put", &put, &[])).contains("fewer lengths"));
        assert!(wrong(&line("Put", &put, &[("valueBytes", json!([1, 2]))])).contains("more lengths"));
        assert!(wrong(&line("Put", &put, &[("valueBytes", json!([u64::MAX]))])).contains("more than"));
        assert!(wrong(&line("Put", &put, &[("shape", json!("0x"))])).contains("hexadecimal"));
        assert!(wrong(&line("Put", &put, &[("shape", json!("123"))])).contains("hexadecimal"));
        assert!(wrong(&line("Put", b"\xff", &[])).contains("no request of the method"));
        assert!(wrong(&line("Txn", b"\xff", &[])).contains("no transaction"));
        assert!(wrong(&line("Put", &put, &[("at", json!(-1.0))])).contains("at: "));
        let old = read(&line("Put", &put, &[("shape", Value::Null)]), 1).unwrap();
        assert!(old.request.unwrap_err().contains("older router"));
    }

    proptest! {
        /// Left out and filled in, a transaction has the same shape and the same lengths.
        #[test]
        fn values_come_back_with_their_lengths(values in prop::collection::vec(("[a-z]{1,8}", 0usize..100), 0..8)) {
            let ops = values.iter().map(|(key, length)| pb::RequestOp {
                request: Some(request_op::Request::RequestPut(put(key, &"v".repeat(*length)))),
            });
            let txn = pb::TxnRequest { success: ops.collect(), ..Default::default() };
            let (mut shape, mut lengths) = (txn.clone(), Vec::new());
            values::each(&mut shape, &mut |value| lengths.push(std::mem::take(value).len()));
            let text = line("Txn", &shape.encode_to_vec(), &[("valueBytes", json!(lengths))]);
            let Ok(Request::Txn(mut made)) = read(&text, 1).unwrap().request else { panic!() };
            let mut again = Vec::new();
            values::each(&mut made, &mut |value| again.push(std::mem::take(value).len()));
            prop_assert_eq!(lengths, again);
            prop_assert_eq!(shape, made);
        }

        #[test]
        fn no_line_panics(text in ".*") {
            let _ = read(&text, 1);
        }
    }
}
