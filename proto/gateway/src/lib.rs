//! etcd's JSON gateway: `POST /v3/...` with a message as JSON calls a method of the gRPC API, as etcd's does with
//! grpc-gateway (`server/embed/serve.go`). Clients that speak no gRPC use it: Patroni, APISIX, OpenStack's etcd3gw, curl.
//!
//! | module | what |
//! | --- | --- |
//! | [`methods`] | which path calls which method |
//! | [`json`] | messages as JSON, as etcd writes them |
//! | [`frames`] | messages in the body of a gRPC call |
//! | [`answer`] | statuses and streams as HTTP answers |
//!
//! A call goes to the services of the process itself, so it does what the same call over gRPC does.

use axum::body::Body as HttpBody;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{any, post};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue, Method as Verb, Request, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use kindred_transport::grpc::framed;
use kindred_transport::server::Services;
use prost_reflect::{DescriptorPool, MessageDescriptor, MethodDescriptor};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tower::ServiceExt as _;

pub mod answer;
pub mod frames;
pub mod json;
pub mod methods;

use methods::{METHODS, Method, Streams};

/// The beginnings of paths. Clients of etcd 3.3 use the second, which etcd still serves.
const VERSIONS: [&str; 2] = ["v3", "v3beta"];

/// A method with the descriptors of its messages. The services refuse a method whose messages are not known, whatever
/// they are.
#[derive(Clone)]
struct Bound<S> {
    services: S,
    method: &'static Method,
    input: Option<MessageDescriptor>,
    output: Option<MessageDescriptor>,
    bytes_max: usize,
}

/// The routes of the gateway. A request of more than `bytes_max` bytes is refused.
///
/// # Panics
/// Never: the descriptors are part of the program.
pub fn routes<S: Services>(services: &S, bytes_max: usize) -> axum::Router {
    let pool = DescriptorPool::decode(kindred_proto::DESCRIPTORS).expect("the descriptors are generated");
    let mut routes = axum::Router::new();
    for version in VERSIONS {
        routes = routes.route(&format!("/{version}/{{*path}}"), any(nowhere));
    }
    for method in METHODS {
        let of = pool.services().find(|service| service.full_name() == method.service);
        let of = of.and_then(|service| service.methods().find(|of| of.name() == method.name));
        // Services that are written by hand are not described, but their messages may be.
        let answer = || pool.get_message_by_name(&format!("etcdserverpb.{}Response", method.name));
        let output = of.as_ref().map(MethodDescriptor::output).or_else(answer);
        let input = of.map(|of| of.input());
        let bound = Bound { services: services.clone(), method, input, output, bytes_max };
        for path in method.paths.iter().flat_map(|path| VERSIONS.map(|version| format!("/{version}{path}"))) {
            routes = routes.route(&path, post(call::<S>).fallback(not_allowed).with_state(bound.clone()));
        }
    }
    routes
}

async fn nowhere() -> Response {
    answer::refused(&Status::not_found("Not Found"))
}

/// Every method is called by POST.
async fn not_allowed() -> Response {
    answer::refused(&Status::unimplemented("Method Not Allowed"))
}

async fn call<S: Services>(State(bound): State<Bound<S>>, request: Request<HttpBody>) -> Response {
    let (parts, body) = request.into_parts();
    let callers = Token::of(&parts.headers);
    match bound.method.streams {
        Streams::No | Streams::Server => {
            let message = match whole(body, bound.bytes_max).await.and_then(|json| bound.message(&json)) {
                Ok(message) => message,
                Err(status) => return answer::refused(&status),
            };
            let Some(frame) = framed(&message) else {
                return answer::refused(&Status::invalid_argument("the message is too large"));
            };
            bound.answer(callers, Body::new(Full::new(frame))).await
        }
        Streams::Both => {
            let ((says, said), gone) = (mpsc::channel(1), CancellationToken::new());
            let (first, rest) = match bound.first(body).await {
                Ok(first) => first,
                Err(status) => return answer::refused(&status),
            };
            tokio::spawn(bound.clone().reads(first, rest, says, gone.clone()));
            let frames =
                ReceiverStream::new(said).map(|frame| Ok::<_, Status>(http_body::Frame::data(frame)));
            let answer = bound.answer(callers, Body::new(StreamBody::new(frames))).await;
            answer
                .map(|body| HttpBody::from_stream(body.into_data_stream().take_until(gone.cancelled_owned())))
        }
    }
}

/// What a request says of its caller. The certificate of its connection says nothing here, as with etcd.
#[derive(Debug, Clone, Default)]
struct Token {
    /// `Authorization`, by which clients of the gateway log in.
    authorization: Option<HeaderValue>,
    /// The metadata of clients of gRPC, as grpc-gateway takes it over.
    token: Option<HeaderValue>,
}

impl Token {
    fn of(headers: &HeaderMap) -> Self {
        let of = |name: &str| headers.get(name).cloned();
        Self { authorization: of("authorization"), token: of("grpc-metadata-token") }
    }

    fn put(self, to: &mut HeaderMap) {
        if let Some(value) = self.authorization {
            to.insert(header::AUTHORIZATION, value);
        }
        if let Some(value) = self.token {
            to.insert("token", value);
        }
    }
}

async fn whole(body: HttpBody, bytes_max: usize) -> Result<Bytes, Status> {
    let limited = Limited::new(body, bytes_max.saturating_mul(json::GROWTH_MAX)).collect().await;
    limited
        .map(http_body_util::Collected::to_bytes)
        .map_err(|error| Status::invalid_argument(error.to_string()))
}

impl<S: Services> Bound<S> {
    /// The message of a request as protobuf bytes.
    fn message(&self, json: &[u8]) -> Result<Bytes, Status> {
        match &self.input {
            Some(input) => json::read(input.clone(), json),
            None => Ok(Bytes::new()),
        }
    }

    /// The first message of a stream: its errors are the answer's. And what follows it.
    async fn first(&self, body: HttpBody) -> Result<(Option<Bytes>, json::Values), Status> {
        let mut values = json::Values::new(body, self.bytes_max.saturating_mul(json::GROWTH_MAX));
        let first = match values.next().await {
            None => None,
            Some(value) => Some(self.message(&value?)?),
        };
        Ok((first, values))
    }

    /// Sends the messages of a stream to the method. A watch goes on after the last one, as etcd's does. A body that
    /// breaks off is of a client that is gone: nobody reads the answer, which ends then.
    async fn reads(
        self,
        first: Option<Bytes>,
        mut rest: json::Values,
        says: mpsc::Sender<Bytes>,
        gone: CancellationToken,
    ) {
        let mut next = first;
        while let Some(message) = next.take() {
            let Some(frame) = framed(&message) else { break };
            if says.send(frame).await.is_err() {
                return;
            }
            next = match rest.next().await {
                // What is no message ends what the client says.
                Some(value) => value.and_then(|value| self.message(&value)).ok(),
                None => None,
            };
        }
        if rest.broke_off() {
            gone.cancel();
        } else if self.method.stays {
            says.closed().await;
        }
    }

    async fn answer(&self, callers: Token, body: Body) -> Response {
        let mut request = Request::new(body);
        *request.method_mut() = Verb::POST;
        *request.uri_mut() = self.method.uri();
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        request.headers_mut().insert(header::TE, HeaderValue::from_static("trailers"));
        callers.put(request.headers_mut());
        let answered = match self.services.clone().oneshot(request).await {
            Ok(answered) => answered,
            Err(never) => match never {},
        };
        match (self.method.streams, self.output.clone()) {
            (Streams::No, Some(output)) => answer::one(answered, output).await,
            (_, Some(output)) => answer::many(answered, output).await,
            (_, None) => {
                let refused = frames::status_of(answered).await.err();
                answer::refused(
                    &refused.unwrap_or_else(|| Status::internal("the answer is of an unknown kind")),
                )
            }
        }
    }
}

impl Method {
    fn uri(&self) -> Uri {
        let path = format!("/{}/{}", self.service, self.name);
        path.parse().unwrap_or_default()
    }
}
