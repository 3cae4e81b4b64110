//! `etcdserverpb.Auth` of a server without users: serves the status, and answers every other call that auth is off. The
//! path of a call suffices, so messages are not decoded.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use kindred_proto::etcdserverpb::AuthStatusResponse;
use kindred_transport::grpc;
use kindred_wire::error::EtcdError;
use prost::Message;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

use crate::identity::Identity;

#[derive(Debug, Clone)]
pub struct Auth {
    identity: Arc<Identity>,
}

impl Auth {
    #[must_use]
    pub fn new(identity: Arc<Identity>) -> Self {
        Self { identity }
    }
}

impl NamedService for Auth {
    const NAME: &'static str = "etcdserverpb.Auth";
}

impl Service<http::Request<Body>> for Auth {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        ready(Ok(match request.uri().path().rsplit('/').next() {
            Some("AuthStatus") => status_response(&AuthStatusResponse {
                header: self.identity.typed_header(0),
                enabled: false,
                auth_revision: 1,
            }),
            _ => grpc::status(EtcdError::AuthNotEnabled).into_http(),
        }))
    }
}

/// An OK response with one message, framed by hand because there is no generated server here.
fn status_response(message: &impl Message) -> http::Response<Body> {
    let framed = grpc::framed(&message.encode_to_vec());
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    let body = tonic::body::Body::new(FramedBody { data: framed, trailers: Some(trailers) });
    let mut response = http::Response::new(body);
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"));
    response
}

struct FramedBody {
    data: Option<bytes::Bytes>,
    trailers: Option<http::HeaderMap>,
}

impl hyper::body::Body for FramedBody {
    type Data = bytes::Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<bytes::Bytes>, tonic::Status>>> {
        let this = self.get_mut();
        if let Some(data) = this.data.take() {
            return Poll::Ready(Some(Ok(hyper::body::Frame::data(data))));
        }
        Poll::Ready(this.trailers.take().map(|trailers| Ok(hyper::body::Frame::trailers(trailers))))
    }
}
