//! What clients ask of this router, by Kind and by client: counted for metrics, pages and admission.
//!
//! A call costs a look-up of its Kind and a dozen additions. The tables are bounded: Kinds and clients beyond their
//! limits are counted together, as `<other>`, so that no client can make them grow.

pub mod clients;
pub mod kinds;
pub mod leases;
pub mod metrics;
pub mod samples;
pub mod slow;
pub mod trace;
pub mod watches;

use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use kindred_router_core::admission::sizes::Shape;
use kindred_router_core::parsed::Parsed;
use kindred_router_core::plan::Call;
use kindred_router_core::routes::Routes;
use kindred_router_core::verb::{self, Asked, Verb};
use kindred_wire::peek;
use kindred_wire::rope::Rope;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::admission::Holding;
use crate::spans::{self, Spans};
use clients::{Clients, OpenConnection};
use kinds::{KindTraffic, Kinds};
use samples::Samples;
use slow::{SlowCall, SlowCalls};
use trace::{Ended, Method, Tracers};

/// What clients have asked since the start.
#[derive(Debug, Default)]
pub struct Traffic {
    pub kinds: Kinds,
    pub clients: Clients,
    pub samples: Samples,
    pub slow: SlowCalls,
    pub tracers: Tracers,
    /// Where spans go, if they are asked for.
    pub spans: OnceLock<Spans>,
}

impl Traffic {
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Notes that a call of KV has begun, whose request was parsed from `body`.
    #[must_use]
    pub fn begin(
        self: &Arc<Self>,
        request: &Parsed<'_>,
        body: &Bytes,
        routes: &Routes,
        client: &Arc<OpenConnection>,
    ) -> Counting {
        let asked = verb::asked(request);
        let kind = self.kinds.of(routes.scheme(), asked.key, asked.range_end);
        let list = (asked.verb == Verb::List).then(|| {
            let limit = u64::try_from(asked.limit).unwrap_or_default();
            (Shape { whole: is_whole(&kind, asked), limit }, asked.keys_only)
        });
        Counting {
            traffic: self.clone(),
            kind,
            verb: asked.verb,
            list,
            call: request.call,
            body: body.clone(),
            client: client.clone(),
            began: Instant::now(),
            sent: 0,
            ended: false,
            span: None,
        }
    }
}

/// Whether a list goes over all keys of its Kind.
fn is_whole(kind: &KindTraffic, asked: Asked<'_>) -> bool {
    kind.prefix
        .as_ref()
        .is_none_or(|prefix| asked.key.len() <= prefix.as_key().len() && *asked.range_end == *prefix.end())
}

/// One call of KV, which is counted as ended exactly once: as canceled, if nobody says how.
#[derive(Debug)]
pub struct Counting {
    traffic: Arc<Traffic>,
    pub kind: Arc<KindTraffic>,
    pub verb: Verb,
    /// What a list asks for, and whether it asks for keys alone.
    pub list: Option<(Shape, bool)>,
    call: Call,
    body: Bytes,
    client: Arc<OpenConnection>,
    began: Instant,
    /// Bytes of the answer.
    sent: u64,
    ended: bool,
    /// If the call is recorded for distributed tracing.
    pub span: Option<spans::Begun>,
}

impl Counting {
    /// The client's name.
    #[must_use]
    pub fn client(&self) -> &str {
        &self.client.client.name
    }

    /// Notes bytes of the answer.
    pub fn sends(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }

    /// The end of a call that is answered whole.
    pub fn answered(&mut self, answer: Result<&Rope, &Status>) {
        match answer {
            Ok(answer) => {
                self.sends(answer.len());
                self.end_with(Code::Ok, "", Some(answer));
            }
            Err(status) => self.end_with(status.code(), status.message(), None),
        }
    }

    /// The end of the call; later ends do not count.
    pub fn end(&mut self, code: Code) {
        self.end_with(code, "", None);
    }

    fn end_with(&mut self, code: Code, message: &str, answer: Option<&Rope>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let took = self.began.elapsed();
        let (received, sent) = (self.body.len() as u64, self.sent);
        self.kind.ended(self.verb, code, took, (received, sent));
        self.client.client.ended(code, took, (received, sent));
        if let (Some((shape, keys_only)), Code::Ok) = (self.list, code) {
            self.kind.note_list(shape, keys_only, sent);
        }
        if took >= slow::SLOW {
            self.note_slow(code, took);
        }
        if let (Some(span), Some(spans)) = (self.span.take(), self.traffic.spans.get()) {
            self.record(spans, span, (code, message), took);
        }
        if self.traffic.tracers.any() {
            self.trace(code, took, message, answer);
        }
    }

    #[cold]
    fn record(&self, spans: &Spans, span: spans::Begun, (code, message): (Code, &str), took: Duration) {
        let ended = spans::Ended {
            method: self.call.name(),
            kind: &self.kind.name,
            verb: self.verb.label(),
            client: self.client(),
            code,
            message,
            took,
            answer_bytes: self.sent,
        };
        spans.end(span, &ended);
    }

    #[cold]
    fn trace(&self, code: Code, took: Duration, message: &str, answer: Option<&Rope>) {
        let revision = answer.and_then(|answer| peek::leading_revision(answer.front()));
        let txn = answer.filter(|_| self.call == Call::Txn).map(|answer| answer.clone().into_bytes());
        self.traffic.tracers.tell(&Ended {
            client: self.client(),
            connection: self.client.peer,
            kind: &self.kind.name,
            method: Method::Kv(self.call),
            asked: verb::asked(&Parsed::new(self.call, &self.body)),
            request: &self.body,
            code,
            message,
            took,
            answer_bytes: self.sent,
            answer_revision: revision.unwrap_or_default(),
            succeeded: txn.and_then(|answer| peek::leading_succeeded(&answer)),
            lease: 0,
        });
    }

    #[cold]
    fn note_slow(&self, code: Code, took: Duration) {
        let asked = verb::asked(&Parsed::new(self.call, &self.body));
        self.traffic.slow.note(SlowCall::new(
            self.client.client.name.clone(),
            self.kind.name.clone(),
            asked,
            code,
            took,
            self.sent,
        ));
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.end(Code::Cancelled);
    }
}

/// Counts a stream of an answer with the call that it belongs to, which ends with it, as does its place among lists.
pub fn of_stream<S>(
    chunks: S,
    mut counting: Counting,
    place: Holding,
) -> impl Stream<Item = Result<Bytes, Status>>
where
    S: Stream<Item = Result<Bytes, Status>>,
{
    let mut chunks = Box::pin(chunks);
    futures_util::stream::poll_fn(move |cx| {
        let _place = &place;
        let next = chunks.as_mut().poll_next(cx);
        match &next {
            Poll::Ready(Some(Ok(chunk))) => counting.sends(chunk.len()),
            Poll::Ready(Some(Err(status))) => counting.end(status.code()),
            Poll::Ready(None) => counting.end(Code::Ok),
            Poll::Pending => {}
        }
        next
    })
}
