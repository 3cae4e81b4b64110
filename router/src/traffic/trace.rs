//! Traces of calls for whoever asks at the admin port, while the router works: each call that matches a filter is a line
//! of JSON when it ends.
//!
//! Without a tracer a call costs the look at one number. A tracer that does not read as fast as lines come loses some,
//! and the next line says how many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use kindred_router_core::plan::Call;
use kindred_router_core::verb::{self, Asked};
use kindred_transport::metrics::calls::{CODES, code_index};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tonic::Code;

/// Tracers at a time.
pub const TRACERS_MAX: usize = 16;
/// Lines that may wait for a tracer.
const WAITING: usize = 1024;

/// Which calls are traced. All given conditions must hold.
#[derive(Debug, Clone, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Filter {
    /// The Kind's name.
    pub kind: Option<String>,
    /// The client: the common name of its certificate, or its address.
    pub client: Option<String>,
    /// `get`, `list`, `count`, `create`, `update`, `delete`, `put` or `txn`.
    pub verb: Option<String>,
    /// What the key begins with.
    pub key: Option<String>,
    /// The least time of the call, in milliseconds.
    pub min_millis: u64,
    /// Only calls that did not end with OK.
    pub errors: bool,
    /// One of so many matching calls; 0 and 1 for all.
    pub sample: u64,
    /// The end of the trace, in seconds; 0 for none.
    pub seconds: u64,
}

impl Filter {
    /// What is wrong with it.
    ///
    /// # Errors
    /// The field, and what to write.
    pub fn check(&self) -> Result<(), String> {
        let verbs = verb::Verb::ALL.map(verb::Verb::label);
        match &self.verb {
            Some(verb) if !verbs.contains(&verb.as_str()) => {
                Err(format!("verb: {verb:?} is not known; write one of {}", verbs.join(", ")))
            }
            _ => Ok(()),
        }
    }

    fn wants(&self, call: &Ended<'_>) -> bool {
        let is =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        is(&self.kind, call.kind)
            && is(&self.client, call.client)
            && is(&self.verb, call.asked.verb.label())
            && self.key.as_deref().is_none_or(|key| call.asked.key.starts_with(key.as_bytes()))
            && call.took >= Duration::from_millis(self.min_millis)
            && !(self.errors && call.code == Code::Ok)
    }
}

/// A call that has ended.
#[derive(Debug)]
pub struct Ended<'a> {
    pub client: &'a str,
    pub kind: &'a str,
    pub call: Call,
    pub asked: Asked<'a>,
    pub request: &'a Bytes,
    pub code: Code,
    /// What went wrong.
    pub message: &'a str,
    pub took: Duration,
    pub answer_bytes: u64,
    /// The revision in the answer's header; 0 if it is not known.
    pub answer_revision: i64,
}

impl Ended<'_> {
    /// As JSON. Without `whole` no value is in it, only lengths.
    fn line(&self, at: SystemTime, whole: bool, lost: u64) -> TraceLine {
        let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => format!("0x{}", to_hex(bytes)),
        };
        let Asked { verb, key, range_end, limit, keys_only } = self.asked;
        TraceLine {
            at: at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            client: self.client.to_owned(),
            kind: self.kind.to_owned(),
            verb: verb.label(),
            method: method(self.call),
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
            request: whole.then(|| to_hex(self.request)),
            lost: (lost > 0).then_some(lost),
        }
    }
}

/// A call, in a line of a trace.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TraceLine {
    /// In seconds since the Unix epoch.
    pub at: f64,
    pub client: String,
    pub kind: String,
    pub verb: &'static str,
    /// The method of etcd's service KV.
    pub method: &'static str,
    /// Bytes that are no text follow `0x`.
    pub key: String,
    pub code: &'static str,
    pub micros: u64,
    pub request_bytes: u64,
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
    /// The encoded request in hexadecimal, for those who may see values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
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

fn method(call: Call) -> &'static str {
    match call {
        Call::Range => "Range",
        Call::RangeStream => "RangeStream",
        Call::Put => "Put",
        Call::DeleteRange => "DeleteRange",
        Call::Txn => "Txn",
    }
}

#[derive(Debug)]
struct Tracer {
    filter: Filter,
    whole: bool,
    to: mpsc::Sender<Bytes>,
    seen: AtomicU64,
    lost: AtomicU64,
}

/// Those who trace.
#[derive(Debug, Default)]
pub struct Tracers {
    count: AtomicUsize,
    tracers: Mutex<Vec<Arc<Tracer>>>,
}

impl Tracers {
    /// Whether anybody traces.
    #[must_use]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Begins a trace; `whole` puts each request into its line. It ends when the receiver is dropped.
    ///
    /// # Errors
    /// When too many trace already.
    pub fn begin(&self, filter: Filter, whole: bool) -> Result<mpsc::Receiver<Bytes>, String> {
        let (to, lines) = mpsc::channel(WAITING);
        let mut tracers = self.tracers.lock();
        tracers.retain(|tracer| !tracer.to.is_closed());
        if tracers.len() >= TRACERS_MAX {
            return Err(format!("{TRACERS_MAX} traces run already; end one of them"));
        }
        let (seen, lost) = (AtomicU64::new(0), AtomicU64::new(0));
        tracers.push(Arc::new(Tracer { filter, whole, to, seen, lost }));
        self.count.store(tracers.len(), Ordering::Relaxed);
        Ok(lines)
    }

    /// Gives a call to all who want it.
    pub fn tell(&self, call: &Ended<'_>) {
        let mut tracers = self.tracers.lock();
        tracers.retain(|tracer| !tracer.to.is_closed());
        self.count.store(tracers.len(), Ordering::Relaxed);
        for tracer in tracers.iter().filter(|tracer| tracer.filter.wants(call)) {
            let nth = tracer.seen.fetch_add(1, Ordering::Relaxed);
            if nth % tracer.filter.sample.max(1) != 0 {
                continue;
            }
            // A line that nobody takes is not even made.
            let Ok(room) = tracer.to.try_reserve() else {
                tracer.lost.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let lost = tracer.lost.swap(0, Ordering::Relaxed);
            let line = call.line(SystemTime::now(), tracer.whole, lost);
            let mut line = serde_json::to_vec(&line).expect("a line has no keys but names");
            line.push(b'\n');
            room.send(line.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn tell(tracers: &Tracers, key: &[u8], code: Code, millis: u64) {
        let request = Bytes::from_static(b"secret");
        let asked = Asked { verb: verb::Verb::Put, key, range_end: b"", limit: 0, keys_only: false };
        tracers.tell(&Ended {
            client: "apiserver",
            kind: "pods",
            call: Call::Put,
            asked,
            request: &request,
            code,
            message: if code == Code::Ok { "" } else { "broken" },
            took: Duration::from_millis(millis),
            answer_bytes: 30,
            answer_revision: 7,
        });
    }

    fn lines(from: &mut mpsc::Receiver<Bytes>) -> Vec<Value> {
        std::iter::from_fn(|| from.try_recv().ok())
            .map(|line| serde_json::from_slice(&line).unwrap())
            .collect()
    }

    #[test]
    fn a_trace_has_the_calls_that_its_filter_wants_and_no_values_unless_asked() {
        let tracers = Tracers::default();
        assert!(!tracers.any());
        let filter = |text: &str| serde_json::from_str::<Filter>(text).unwrap();
        let mut all = tracers.begin(Filter::default(), false).unwrap();
        let mut slow = tracers.begin(filter(r#"{"minMillis": 5, "kind": "pods"}"#), true).unwrap();
        let mut failed =
            tracers.begin(filter(r#"{"errors": true, "verb": "put", "key": "/registry/"}"#), false).unwrap();
        let mut others = tracers.begin(filter(r#"{"client": "kubelet"}"#), false).unwrap();
        tell(&tracers, b"/registry/pods/a/b", Code::Ok, 1);
        tell(&tracers, b"/registry/pods/a/\xff", Code::Unavailable, 9);
        let all = lines(&mut all);
        assert_eq!(all.len(), 2);
        assert!(all.iter().all(|line| line.get("request").is_none()), "{all:?}");
        assert_eq!((&all[0]["key"], &all[0]["revision"]), (&json!("/registry/pods/a/b"), &json!(7)));
        assert_eq!(all[1]["key"], json!("0x2f72656769737472792f706f64732f612fff"));
        let slow = lines(&mut slow);
        assert_eq!((slow.len(), &slow[0]["request"]), (1, &json!("736563726574")));
        let failed = lines(&mut failed);
        assert_eq!((failed.len(), &failed[0]["message"]), (1, &json!("broken")));
        assert_eq!(lines(&mut others), Vec::<Value>::new());
    }

    #[test]
    fn a_slow_reader_loses_lines_and_hears_how_many() {
        let tracers = Tracers::default();
        let sampled = Filter { sample: 3, ..Filter::default() };
        let mut one_of_three = tracers.begin(sampled, false).unwrap();
        let mut slow = tracers.begin(Filter::default(), false).unwrap();
        (0..WAITING + 5).for_each(|_| tell(&tracers, b"k", Code::Ok, 1));
        assert_eq!(lines(&mut one_of_three).len(), (WAITING + 5).div_ceil(3));
        assert_eq!(lines(&mut slow).len(), WAITING);
        tell(&tracers, b"k", Code::Ok, 1);
        assert_eq!(lines(&mut slow)[0]["lost"], json!(5));
        drop((slow, one_of_three));
        tell(&tracers, b"k", Code::Ok, 1);
        assert!(!tracers.any());
        let held: Vec<_> =
            (0..TRACERS_MAX).map(|_| tracers.begin(Filter::default(), false).unwrap()).collect();
        assert!(tracers.begin(Filter::default(), false).is_err());
        drop(held);
        assert!(tracers.begin(Filter::default(), false).is_ok());
    }

    #[test]
    fn an_unknown_verb_is_refused() {
        let filter = Filter { verb: Some("gut".to_owned()), ..Filter::default() };
        assert!(filter.check().unwrap_err().contains("get, list"));
    }
}
