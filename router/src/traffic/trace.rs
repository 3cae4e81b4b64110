//! Traces of calls for whoever asks at the admin port, while the router works: each call that matches a filter is a line
//! of JSON when it ends.
//!
//! Without a tracer a call costs the look at one number. A tracer that does not read as fast as lines come loses some,
//! and the next line says how many.

mod line;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use kindred_router_core::verb;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::mpsc;
use tonic::Code;

pub use line::{Ended, LEASE, Method, TraceLine, TracedRange};

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
    /// `get`, `list`, `count`, `create`, `update`, `delete`, `put`, `txn`, `watch` or `lease`.
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
        let verbs: Vec<&str> = verb::Verb::ALL.map(verb::Verb::label).into_iter().chain([LEASE]).collect();
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
            && is(&self.verb, call.verb())
            && self.key.as_deref().is_none_or(|key| call.asked.key.starts_with(key.as_bytes()))
            && call.took >= Duration::from_millis(self.min_millis)
            && !(self.errors && call.code == Code::Ok)
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
    use kindred_router_core::plan::Call;
    use kindred_router_core::verb::Asked;
    use serde_json::{Value, json};

    use super::*;

    fn tell(tracers: &Tracers, key: &[u8], code: Code, millis: u64) {
        let request = Bytes::from_static(b"secret");
        let asked = Asked { verb: verb::Verb::Put, key, range_end: b"", limit: 0, keys_only: false };
        tracers.tell(&Ended {
            client: "apiserver",
            connection: Some(([10, 0, 0, 1], 4711).into()),
            kind: "pods",
            method: Method::Kv(Call::Put),
            asked,
            request: &request,
            code,
            message: if code == Code::Ok { "" } else { "broken" },
            took: Duration::from_millis(millis),
            answer_bytes: 30,
            answer_revision: 7,
            succeeded: None,
            lease: 0,
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
        assert_eq!(all[0]["connection"], json!("10.0.0.1:4711"));
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
        let filter = Filter { verb: Some("lease".to_owned()), ..Filter::default() };
        assert_eq!(filter.check(), Ok(()));
    }
}
