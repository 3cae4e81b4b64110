//! Distributed tracing: a collector gets spans of the calls of clients that trace theirs.

use std::time::Duration;

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{PutRequest, RangeRequest};
use kindred_tests::{scenario, servers::Up};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::any_value::Value,
    trace::v1::Span,
};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, transport::Server};

const LIMIT: Duration = Duration::from_secs(60);
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

struct Collector(mpsc::Sender<(String, Span)>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for of_router in request.into_inner().resource_spans {
            let attributes = of_router.resource.unwrap_or_default().attributes;
            let service = attributes.iter().find(|said| said.key == "service.name");
            let service =
                service.map(|said| text(said.value.as_ref().and_then(|value| value.value.as_ref())));
            for span in of_router.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                let _ = self.0.send((service.clone().unwrap_or_default(), span)).await;
            }
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn text(value: Option<&Value>) -> String {
    match value {
        Some(Value::StringValue(text)) => text.clone(),
        other => format!("{other:?}"),
    }
}

fn attribute(span: &Span, key: &str) -> String {
    let said = span.attributes.iter().find(|said| said.key == key);
    text(said.and_then(|said| said.value.as_ref()?.value.as_ref()))
}

fn traced<T>(message: T, flags: &str) -> Request<T> {
    let mut request = Request::new(message);
    let parent = format!("00-{TRACE}-{SPAN}-{flags}").parse().expect("digits");
    request.metadata_mut().insert("traceparent", parent);
    request
}

#[test]
fn spans_of_calls_that_are_traced_reach_a_collector() {
    scenario::run("spans", LIMIT, |dir| async move {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (to, mut spans) = mpsc::channel(16);
        let collector = Server::builder().add_service(TraceServiceServer::new(Collector(to)));
        let serving = tokio::spawn(collector.serve_with_incoming(TcpListenerStream::new(listener)));
        let config = dir.join("traced.yaml");
        std::fs::write(
            &config,
            format!(
                "default: main\nstores:\n- {{name: main, slot: 1}}\nup:\n  router: {{enable-distributed-tracing: true, \
                 distributed-tracing-address: '{address}', distributed-tracing-service-name: tested}}\n"
            ),
        )?;
        let up = Up::start(&dir, "kindred", &[format!("--config={}", config.display())]).await?;
        let mut kv = up.client().await?.kv;
        let pod = "/registry/pods/a/one";
        let put = || PutRequest { key: pod.into(), value: "1".into(), ..Default::default() };
        kv.put(put()).await.context("a call that nobody traces")?;
        kv.put(traced(put(), "00")).await.context("a call whose client does not sample it")?;
        kv.put(traced(put(), "01")).await?;
        let future = RangeRequest { key: pod.into(), revision: i64::MAX, ..Default::default() };
        ensure!(kv.range(traced(future, "01")).await.is_err(), "a revision to come");
        let mut got = Vec::new();
        while got.len() < 2 {
            got.push(spans.recv().await.context("the collector is there")?);
        }
        let [(service, put), (_, range)] = &got[..] else { unreachable!("two were taken") };
        ensure!(service == "tested", "{service}");
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        for (span, method, verb, code) in [(put, "Put", "put", "0"), (range, "Range", "get", "11")] {
            ensure!(hex(&span.trace_id) == TRACE && hex(&span.parent_span_id) == SPAN, "{span:?}");
            ensure!(span.name == format!("etcdserverpb.KV/{method}") && span.kind == 2, "{span:?}");
            ensure!(
                attribute(span, "kindred.kind") == "pods" && attribute(span, "kindred.verb") == verb,
                "{span:?}"
            );
            ensure!(
                attribute(span, "rpc.grpc.status_code").contains(&format!("IntValue({code})")),
                "{span:?}"
            );
            ensure!(span.end_time_unix_nano > span.start_time_unix_nano, "{span:?}");
        }
        ensure!(put.span_id != range.span_id, "each call has its own");
        ensure!(spans.try_recv().is_err(), "the others were not sampled");
        serving.abort();
        Ok(())
    });
}
