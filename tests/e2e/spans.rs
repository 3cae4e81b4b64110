//! Distributed tracing: a collector gets spans of the calls of clients that trace theirs.

use std::time::Duration;

use anyhow::{Context, ensure};
use kindred_proto::etcdserverpb::{PutRequest, RangeRequest};
use kindred_tests::{
    scenario,
    servers::{Etcd, Up},
};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::any_value::Value,
    trace::v1::{Span, span::SpanKind},
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

/// A collector, its address, and the spans that it gets.
async fn collector() -> anyhow::Result<(String, mpsc::Receiver<(String, Span)>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let (to, spans) = mpsc::channel(16);
    let collector = Server::builder().add_service(TraceServiceServer::new(Collector(to)));
    // Until the runtime of the test ends.
    tokio::spawn(collector.serve_with_incoming(TcpListenerStream::new(listener)));
    Ok((address, spans))
}

fn router_flags(address: &str) -> String {
    format!(
        "up:\n  router: {{enable-distributed-tracing: true, distributed-tracing-address: '{address}', \
         distributed-tracing-service-name: tested}}\n"
    )
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn spans_of_calls_that_are_traced_reach_a_collector() {
    scenario::run("spans", LIMIT, |dir| async move {
        let (address, mut spans) = collector().await?;
        let config = dir.join("traced.yaml");
        let router = router_flags(&address);
        std::fs::write(&config, format!("default: main\nstores:\n- {{name: main, slot: 1}}\n{router}"))?;
        let up = Up::start(&dir, "kindred", &[format!("--config={}", config.display())]).await?;
        let mut kv = up.client().await?.kv;
        let pod = "/registry/pods/a/one";
        let put = || PutRequest { key: pod.into(), value: "1".into(), ..Default::default() };
        kv.put(put()).await.context("a call that nobody traces")?;
        kv.put(traced(put(), "00")).await.context("a call whose client does not sample it")?;
        kv.put(traced(put(), "01")).await?;
        let future = RangeRequest { key: pod.into(), revision: i64::MAX, ..Default::default() };
        ensure!(kv.range(traced(future, "01")).await.is_err(), "a revision to come");
        let (mut calls, mut below) = (Vec::new(), Vec::new());
        while calls.len() < 2 || below.is_empty() {
            let (service, span) = spans.recv().await.context("the collector is there")?;
            ensure!(service == "tested" && hex(&span.trace_id) == TRACE, "{service}: {span:?}");
            ensure!(span.end_time_unix_nano > span.start_time_unix_nano, "{span:?}");
            if span.kind == SpanKind::Server as i32 { calls.push(span) } else { below.push(span) }
        }
        for (span, method, verb, code) in [(&calls[0], "Put", "put", "0"), (&calls[1], "Range", "get", "11")]
        {
            ensure!(hex(&span.parent_span_id) == SPAN, "{span:?}");
            ensure!(span.name == format!("etcdserverpb.KV/{method}"), "{span:?}");
            ensure!(
                attribute(span, "kindred.kind") == "pods" && attribute(span, "kindred.verb") == verb,
                "{span:?}"
            );
            ensure!(
                attribute(span, "rpc.grpc.status_code").contains(&format!("IntValue({code})")),
                "{span:?}"
            );
        }
        ensure!(calls[0].span_id != calls[1].span_id, "each call has its own");
        let stored = &below[0];
        ensure!(stored.name == "store main" && stored.parent_span_id == calls[0].span_id, "{stored:?}");
        Ok(())
    });
}

#[test]
fn a_stock_etcd_goes_on_with_the_trace_of_the_client() {
    scenario::run("spans-etcd", LIMIT, |dir| async move {
        let (address, mut spans) = collector().await?;
        let tracing = [
            "--enable-distributed-tracing",
            &format!("--distributed-tracing-address={address}"),
            "--distributed-tracing-service-name=stock",
        ];
        let etcd = Etcd::start_with(&dir, "stock", &tracing).await?;
        let config = dir.join("traced.yaml");
        let router = router_flags(&address);
        std::fs::write(
            &config,
            format!(
                "default: stock\nstores:\n- {{name: stock, type: etcd, endpoints: ['http://{}']}}\n{router}",
                etcd.address
            ),
        )?;
        let up = Up::start(&dir, "kindred", &[format!("--config={}", config.display())]).await?;
        let put = PutRequest { key: "/registry/pods/a/one".into(), value: "1".into(), ..Default::default() };
        up.client().await?.kv.put(traced(put, "01")).await?;
        let (mut router, mut of_etcd) = (Vec::new(), None);
        while router.len() < 2 || of_etcd.is_none() {
            let (service, span) = spans.recv().await.context("the collector is there")?;
            // The router's own questions are not traced, and etcd samples none of them.
            ensure!(hex(&span.trace_id) == TRACE, "{service}: {span:?}");
            match service.as_str() {
                // A put is a transaction there, which compares the fence too.
                "stock" if span.name.starts_with("etcdserverpb.KV/") => of_etcd = Some(span),
                "stock" => {}
                _ => router.push(span),
            }
        }
        let asked = router.iter().find(|span| span.name == "store stock").context("the call of the store")?;
        let of_etcd = of_etcd.context("etcd's span")?;
        ensure!(of_etcd.parent_span_id == asked.span_id, "{of_etcd:?} is not below {asked:?}");
        Ok(())
    });
}
