//! The answers of gRPC calls as HTTP: one message, messages one in a line, or a status.

use axum::body::Body as HttpBody;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, StatusCode, header};
use prost_reflect::MessageDescriptor;
use serde_json::{Value, json};
use tonic::body::Body;
use tonic::{Code, Status};

use crate::frames::Frames;
use crate::json;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The HTTP status of a gRPC status (grpc-gateway, `runtime/errors.go`).
#[must_use]
pub fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn described(status: &Status) -> Value {
    json!({ "code": status.code() as i32, "message": status.message() })
}

/// The last line of a stream that failed.
fn error_line(status: &Status) -> String {
    format!("{{\"error\":{}}}\n", described(status))
}

fn with(status: StatusCode, body: HttpBody) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// A refusal.
#[must_use]
pub fn refused(status: &Status) -> Response {
    with(http_status(status.code()), described(status).to_string().into())
}

/// The answer of a call with one message.
pub async fn one(answer: http::Response<Body>, of: MessageDescriptor) -> Response {
    let mut frames = Frames::of(answer);
    let message = async {
        let message = frames.next().await?.ok_or_else(|| Status::internal("the call has no answer"))?;
        let text = json::write(of, &message)?;
        // The status comes behind the message.
        while frames.next().await?.is_some() {}
        Ok::<_, Status>(text)
    };
    match message.await {
        Ok(text) => with(StatusCode::OK, text.into()),
        Err(status) => refused(&status),
    }
}

/// The answer of a call with a stream of messages, each in a line. If the first is a refusal, so is the answer, which is
/// a line too (grpc-gateway, `runtime/handler.go`, `handleForwardResponseStreamError`).
pub async fn many(answer: http::Response<Body>, of: MessageDescriptor) -> Response {
    let mut frames = Frames::of(answer);
    let first = match frames.next().await {
        Ok(first) => first,
        Err(status) => {
            return with(http_status(status.code()), error_line(&status).into());
        }
    };
    let is_over = first.is_none();
    let lines = stream::unfold(Lines { frames, of, first, is_over }, |mut lines| async move {
        let line = lines.next().await?;
        Some((Ok::<_, Status>(line), lines))
    });
    with(StatusCode::OK, HttpBody::from_stream(lines))
}

/// The lines of a stream.
struct Lines {
    frames: Frames,
    of: MessageDescriptor,
    /// The message that came first.
    first: Option<Bytes>,
    is_over: bool,
}

impl Lines {
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let next = match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.frames.next().await,
        };
        let text = match next {
            Ok(None) => return None,
            Ok(Some(message)) => json::write(self.of.clone(), &message),
            Err(status) => Err(status),
        };
        let line = text.map(|text| format!("{{\"result\":{text}}}\n"));
        self.is_over = line.is_err();
        Some(line.unwrap_or_else(|status| error_line(&status)).into())
    }
}
