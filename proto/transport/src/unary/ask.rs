//! Calls unary methods of a store without tonic's codec, which copies an answer twice: to join its frames, and to
//! make room for the complete message. Here the answer stays in the pieces that were read.
//!
//! An answer is returned only when it is complete and its status is known. So a read that fails in the middle can
//! be resent (R11), and a client that reads slowly blocks nothing on the connection, which all clients share.

use std::future::poll_fn;
use std::pin::Pin;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, Version, header};
use http_body_util::Full;
use hyper::body::Body as _;
use kindred_wire::rope::Rope;
use tonic::body::Body;
use tonic::transport::Error;
use tonic::{Code, Status};
use tower::Service;

use super::GRPC;
use super::message::MessageError;
use super::pieces::PieceReader;
use crate::grpc;
use crate::rest::{Share, rest};

/// Sends a request to the method at this path and returns its answer.
///
/// # Errors
/// The peer's status, or a status with a source if the connection failed.
pub async fn ask<C>(
    mut channel: C,
    path: &'static str,
    request: tonic::Request<Bytes>,
) -> Result<Rope, Status>
where
    C: Service<Request<Body>, Response = http::Response<Body>, Error = Error>,
{
    let request = on_wire(path, request)?;
    let ready = poll_fn(|cx| channel.poll_ready(cx)).await;
    ready.map_err(|error| Status::unknown(format!("Service was not ready: {error}")))?;
    let answer = channel.call(request).await.map_err(|error| Status::from_error(Box::new(error)))?;
    let (head, mut body) = answer.into_parts();
    match Status::from_header_map(&head.headers) {
        None => {}
        // The status OK came without a message.
        Some(status) if status.code() == Code::Ok => return Err(MessageError::NoAnswer.into()),
        Some(status) => return Err(status),
    }
    let mut reader = PieceReader::default();
    let (mut status, mut share) = (None, Share::default());
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame?.into_data() {
            Ok(data) => {
                share.pay(data.len());
                reader.push(data)?;
                // What was taken makes room for more, and the connection's task reads on at once.
                if share.is_spent() {
                    rest().await;
                }
            }
            Err(frame) => status = frame.trailers_ref().and_then(Status::from_header_map),
        }
    }
    match status {
        Some(status) if status.code() == Code::Ok => Ok(reader.finish()?),
        Some(status) => Err(status),
        None => Err(without_status(head.status)),
    }
}

fn on_wire(path: &'static str, request: tonic::Request<Bytes>) -> Result<Request<Body>, Status> {
    let (metadata, _, message) = request.into_parts();
    let framed = grpc::framed(&message);
    let framed = framed.ok_or_else(|| Status::resource_exhausted("a request of more than 4 GB"))?;
    let mut request = Request::new(Body::new(Full::new(framed)));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static(path);
    *request.version_mut() = Version::HTTP_2;
    let headers = request.headers_mut();
    *headers = metadata.into_headers();
    headers.insert(header::TE, HeaderValue::from_static("trailers"));
    headers.insert(header::CONTENT_TYPE, GRPC);
    Ok(request)
}

/// The status for an answer without one, by gRPC's mapping: an error of a proxy, or an answer that was cut off.
fn without_status(status: StatusCode) -> Status {
    let code = match status {
        StatusCode::BAD_REQUEST => Code::Internal,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::Unimplemented,
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Code::Unavailable,
        _ => Code::Unknown,
    };
    Status::new(code, format!("an answer without grpc-status, with HTTP status {}", status.as_u16()))
}
