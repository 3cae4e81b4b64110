//! Spans of clients' calls for distributed tracing, sent to an OpenTelemetry collector by OTLP over gRPC, with the flags
//! that etcd has for it.
//!
//! A span of a call has one below it for each call of a store that it makes. A store that is a stock etcd is told the
//! context, so that its own spans go on from there.
//!
//! A call that is not sampled costs the look at one header, and nothing without `--enable-distributed-tracing`. Spans
//! wait in a bounded queue; when the collector is too slow or gone, they are dropped and counted in the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kindred_router_core::span::{Parent, is_sampled};
use kindred_transport::random;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status as SpanStatus};
use tokio::sync::mpsc;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// Spans that may wait for the collector.
const WAITING_MAX: usize = 4096;
/// Spans in one message.
const BATCH_MAX: usize = 512;
/// How long a span waits for others.
const BATCH_WAIT: Duration = Duration::from_secs(1);
/// How long the collector may take for a message.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// etcd's flags of distributed tracing.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct SpanArgs {
    /// Send spans of clients' calls to an OpenTelemetry collector.
    #[arg(long, default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set, value_name = "BOOL")]
    pub enable_distributed_tracing: bool,
    /// The collector's address for OTLP over gRPC, without TLS.
    #[arg(long, value_name = "HOST:PORT", default_value = "localhost:4317")]
    pub distributed_tracing_address: String,
    /// The name of the service in spans; the same for all routers of a cluster.
    #[arg(long, value_name = "NAME", default_value = "kindred")]
    pub distributed_tracing_service_name: String,
    /// What tells this router's spans from those of others [default: --name].
    #[arg(long, value_name = "ID")]
    pub distributed_tracing_instance_id: Option<String>,
    /// Calls of a million whose clients do not trace them that are traced all the same. Calls of clients that do are traced as
    /// their clients say.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub distributed_tracing_sampling_rate: u32,
}

/// Where spans go.
#[derive(Debug, Clone)]
pub struct Settings {
    pub collector: Endpoint,
    pub service: String,
    pub instance: String,
    pub per_million: u32,
}

impl SpanArgs {
    /// The settings; `None` if it is not enabled.
    ///
    /// # Errors
    /// When the address is none; the text names the flag.
    pub fn settings(&self, name: &str) -> Result<Option<Settings>, String> {
        if !self.enable_distributed_tracing {
            return Ok(None);
        }
        let address = &self.distributed_tracing_address;
        let valid = address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        let collector = Endpoint::from_shared(format!("http://{address}")).ok().filter(|_| valid);
        let collector = collector.ok_or_else(|| {
            format!("--distributed-tracing-address: {address:?} is not of the form localhost:4317")
        })?;
        Ok(Some(Settings {
            collector: collector.timeout(SEND_LIMIT).connect_timeout(SEND_LIMIT),
            service: self.distributed_tracing_service_name.clone(),
            instance: self.distributed_tracing_instance_id.clone().unwrap_or_else(|| name.to_owned()),
            per_million: self.distributed_tracing_sampling_rate,
        }))
    }
}

/// Takes the spans of this router.
#[derive(Debug)]
pub struct Spans {
    to: mpsc::Sender<Span>,
    per_million: u32,
    /// Spans that found no room, or that the collector did not take.
    lost: Arc<AtomicU64>,
}

/// A call that is recorded.
#[derive(Debug)]
pub struct Begun {
    trace: [u8; 16],
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    state: String,
    at: SystemTime,
}

/// How a call ended.
#[derive(Debug)]
pub struct Ended<'c> {
    pub method: &'static str,
    pub kind: &'c str,
    pub verb: &'static str,
    pub client: &'c str,
    pub code: Code,
    pub message: &'c str,
    pub took: Duration,
    pub answer_bytes: u64,
}

impl Spans {
    /// Begins to send spans, on this runtime.
    #[must_use]
    pub fn start(settings: Settings) -> Self {
        let (to, spans) = mpsc::channel(WAITING_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let (per_million, counted) = (settings.per_million, lost.clone());
        tokio::spawn(send(settings, spans, counted));
        Self { to, per_million, lost }
    }

    /// Whether a call with these headers is recorded, and as what.
    #[must_use]
    pub fn begin(&self, headers: &MetadataMap) -> Option<Begun> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let parent = text("traceparent").and_then(Parent::parse);
        if !is_sampled(parent.as_ref(), self.per_million, random::bits) {
            return None;
        }
        let trace = parent.map_or_else(
            || (u128::from(random::bits()) << 64 | u128::from(random::bits().max(1))).to_be_bytes(),
            |parent| parent.trace,
        );
        Some(Begun {
            trace,
            id: random::bits().max(1).to_be_bytes(),
            parent: parent.map(|parent| parent.span),
            state: text("tracestate").filter(|_| parent.is_some()).unwrap_or_default().to_owned(),
            at: SystemTime::now(),
        })
    }

    /// Records a call.
    pub fn end(&self, begun: Begun, ended: &Ended<'_>) {
        if self.to.try_send(span(begun, ended)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

tokio::task_local! {
    /// The span to which this task's calls of stores belong.
    static HERE: Context;
}

#[derive(Debug, Clone)]
struct Context {
    to: mpsc::Sender<Span>,
    lost: Arc<AtomicU64>,
    trace: [u8; 16],
    id: [u8; 8],
    state: Arc<str>,
}

/// Runs a client's call so that its calls of stores belong to its span.
pub async fn within<F: Future>(spans: &Spans, begun: &Begun, call: F) -> F::Output {
    let here = Context {
        to: spans.to.clone(),
        lost: spans.lost.clone(),
        trace: begun.trace,
        id: begun.id,
        state: begun.state.as_str().into(),
    };
    HERE.scope(here, call).await
}

/// The headers `traceparent` and `tracestate` for a call that this task makes; `None` if it is not recorded.
#[must_use]
pub fn headers() -> Option<(MetadataValue<Ascii>, Option<MetadataValue<Ascii>>)> {
    let headers = |here: &Context| {
        let parent = Parent { trace: here.trace, span: here.id, sampled: true };
        let state = (!here.state.is_empty()).then(|| here.state.parse().ok()).flatten();
        Some((parent.to_string().parse().ok()?, state))
    };
    HERE.try_with(headers).ok().flatten()
}

/// A call of a store that is recorded.
pub struct Asking {
    store: String,
    parent: [u8; 8],
    own: Context,
}

/// Begins a span below that of this task; `None` if that is not recorded.
#[must_use]
pub fn asking(store: &str) -> Option<Asking> {
    let below = |here: &Context| Asking {
        store: store.to_owned(),
        parent: here.id,
        own: Context { id: random::bits().max(1).to_be_bytes(), ..here.clone() },
    };
    HERE.try_with(below).ok()
}

impl Asking {
    /// Makes the call, and records it when it ends.
    pub async fn record<T>(self, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        let at = SystemTime::now();
        let answer = HERE.scope(self.own.clone(), call).await;
        let (code, message) = match &answer {
            Ok(_) => (Code::Ok, ""),
            Err(status) => (status.code(), status.message()),
        };
        let Context { to, lost, trace, id, state } = self.own;
        let span = Span {
            trace_id: trace.to_vec(),
            span_id: id.to_vec(),
            parent_span_id: self.parent.to_vec(),
            trace_state: state.to_string(),
            name: format!("store {}", self.store),
            kind: SpanKind::Client as i32,
            start_time_unix_nano: nanos(at),
            end_time_unix_nano: nanos(SystemTime::now().max(at)),
            attributes: vec![
                text("kindred.store", &self.store),
                attribute("rpc.grpc.status_code", Value::IntValue(i64::from(code as i32))),
            ],
            status: is_failure(code)
                .then(|| SpanStatus { message: message.to_owned(), code: StatusCode::Error as i32 }),
            ..Span::default()
        };
        if to.try_send(span).is_err() {
            lost.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }
}

fn nanos(at: SystemTime) -> u64 {
    u64::try_from(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or_default()
}

/// Whether a code is a failure of the server, by OpenTelemetry's conventions.
fn is_failure(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// A span by OpenTelemetry's conventions for servers of gRPC.
fn span(begun: Begun, ended: &Ended<'_>) -> Span {
    let Begun { trace, id, parent, state, at } = begun;
    let bytes = i64::try_from(ended.answer_bytes).unwrap_or(i64::MAX);
    Span {
        trace_id: trace.to_vec(),
        span_id: id.to_vec(),
        parent_span_id: parent.map(|parent| parent.to_vec()).unwrap_or_default(),
        trace_state: state,
        name: format!("etcdserverpb.KV/{}", ended.method),
        kind: SpanKind::Server as i32,
        start_time_unix_nano: nanos(at),
        end_time_unix_nano: nanos(at + ended.took),
        attributes: vec![
            text("rpc.system", "grpc"),
            text("rpc.service", "etcdserverpb.KV"),
            text("rpc.method", ended.method),
            attribute("rpc.grpc.status_code", Value::IntValue(i64::from(ended.code as i32))),
            text("client.address", ended.client),
            text("kindred.kind", ended.kind),
            text("kindred.verb", ended.verb),
            attribute("kindred.answer_bytes", Value::IntValue(bytes)),
        ],
        status: is_failure(ended.code)
            .then(|| SpanStatus { message: ended.message.to_owned(), code: StatusCode::Error as i32 }),
        ..Span::default()
    }
}

/// Sends spans until their router ends.
async fn send(settings: Settings, mut spans: mpsc::Receiver<Span>, lost: Arc<AtomicU64>) {
    let mut collector = TraceServiceClient::new(settings.collector.connect_lazy());
    let resource = Resource {
        attributes: vec![
            text("service.name", &settings.service),
            text("service.instance.id", &settings.instance),
            text("service.version", env!("CARGO_PKG_VERSION")),
        ],
        ..Resource::default()
    };
    let mut told = None;
    loop {
        let mut batch = Vec::new();
        if spans.recv_many(&mut batch, BATCH_MAX).await == 0 {
            return;
        }
        tokio::time::sleep(BATCH_WAIT).await;
        while batch.len() < BATCH_MAX
            && let Ok(span) = spans.try_recv()
        {
            batch.push(span);
        }
        let count = batch.len() as u64;
        let problem = export(&mut collector, resource.clone(), batch).await.err();
        if problem.is_some() {
            lost.fetch_add(count, Ordering::Relaxed);
        }
        if problem != told {
            let lost = lost.load(Ordering::Relaxed);
            match &problem {
                Some(problem) => {
                    tracing::warn!(problem, lost, "the collector takes no spans: they are dropped")
                }
                None => tracing::info!(lost, "the collector takes spans again"),
            }
            told = problem;
        }
    }
}

async fn export(
    collector: &mut TraceServiceClient<Channel>,
    resource: Resource,
    spans: Vec<Span>,
) -> Result<(), String> {
    let scope = InstrumentationScope { name: "kindred-router".to_owned(), ..InstrumentationScope::default() };
    let of_scope = ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() };
    let of_router =
        ResourceSpans { resource: Some(resource), scope_spans: vec![of_scope], ..ResourceSpans::default() };
    let request = ExportTraceServiceRequest { resource_spans: vec![of_router] };
    match tokio::time::timeout(SEND_LIMIT, collector.export(request)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(status.message().to_owned()),
        Err(_) => Err(format!("no answer within {SEND_LIMIT:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(address: &str) -> SpanArgs {
        SpanArgs {
            enable_distributed_tracing: true,
            distributed_tracing_address: address.to_owned(),
            distributed_tracing_service_name: "kindred".to_owned(),
            distributed_tracing_instance_id: None,
            distributed_tracing_sampling_rate: 0,
        }
    }

    #[test]
    fn an_address_that_is_none_is_named() {
        assert_eq!(args("localhost:4317").settings("r1").unwrap().unwrap().instance, "r1");
        for wrong in ["", "localhost", ":4317", "localhost:port", "local host:1"] {
            let refused = args(wrong).settings("r1").unwrap_err();
            assert!(refused.starts_with("--distributed-tracing-address: "), "{refused}");
        }
        let off = SpanArgs { enable_distributed_tracing: false, ..args("") };
        assert!(off.settings("r1").unwrap().is_none());
    }

    #[tokio::test]
    async fn what_finds_no_room_is_counted_and_nobody_waits() {
        let (to, mut kept) = mpsc::channel(1);
        let spans = Spans { to, per_million: 1_000_000, lost: Arc::default() };
        let ended = Ended {
            method: "Range",
            kind: "pods",
            verb: "get",
            client: "10.0.0.1",
            code: Code::Unavailable,
            message: "gone",
            took: Duration::from_millis(2),
            answer_bytes: 7,
        };
        for _ in 0..3 {
            spans.end(spans.begin(&MetadataMap::new()).unwrap(), &ended);
        }
        assert_eq!(spans.lost.load(Ordering::Relaxed), 2);
        let span = kept.try_recv().unwrap();
        assert_eq!(span.name, "etcdserverpb.KV/Range");
        assert_eq!(span.end_time_unix_nano - span.start_time_unix_nano, 2_000_000);
        assert_eq!(span.status.unwrap().message, "gone");
        assert!(span.parent_span_id.is_empty() && span.trace_id != [0; 16] && span.span_id != [0; 8]);
    }

    #[tokio::test]
    async fn calls_of_stores_belong_to_the_call_that_makes_them() {
        let (to, mut kept) = mpsc::channel(8);
        let spans = Spans { to, per_million: 1_000_000, lost: Arc::default() };
        assert!(headers().is_none() && asking("pods").is_none(), "nothing is recorded here");
        let begun = spans.begin(&MetadataMap::new()).unwrap();
        let said = within(&spans, &begun, async {
            let refused = asking("pods").unwrap().record(async {
                let (parent, state) = headers().unwrap();
                assert!(state.is_none());
                Err::<(), _>(Status::unavailable(parent.to_str().unwrap().to_owned()))
            });
            refused.await.unwrap_err().message().to_owned()
        });
        let said = Parent::parse(&said.await).unwrap();
        let span = kept.try_recv().unwrap();
        assert_eq!((span.name.as_str(), span.kind), ("store pods", SpanKind::Client as i32));
        assert_eq!((span.trace_id.as_slice(), span.span_id.as_slice()), (&said.trace[..], &said.span[..]));
        assert_eq!(
            (span.trace_id, span.parent_span_id, said.sampled),
            (begun.trace.to_vec(), begun.id.to_vec(), true)
        );
        assert!(span.status.is_some() && headers().is_none());
    }
}
