//! Serves the most frequent unary calls of an etcd port without tonic.
//!
//! tonic wraps a call in a dozen boxes and copies its message twice. Here a request's message is a slice of the
//! bytes that were read, and an answer goes to HTTP/2 unchanged. Clients see no difference: tonic handles calls
//! that are out of the ordinary (an encoding, a verb other than POST), and refusals have tonic's status. [`ask`] is
//! the client side, whose answers stay in the pieces that arrived.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use tonic::{Code, Status};

pub mod answer;
pub mod ask;
pub mod long;
pub mod message;
pub(crate) mod piece;
pub mod pieces;

use self::answer::AnswerBody;
use self::long::Message;
use crate::grpc;
use crate::listener::ConnectionInfo;
use crate::metrics::calls::{Calls, Counting};

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// The methods that are served without tonic.
pub trait UnaryCalls: Clone + Send + Sync + 'static {
    type Method: Copy + Send + Sync + 'static;

    /// The method of a path; `None` passes the call to the other services.
    fn method(&self, path: &str) -> Option<Self::Method>;

    /// The server of one connection's calls.
    #[must_use]
    fn of_connection(&self, _from: &ConnectionInfo) -> Self {
        self.clone()
    }

    /// The paths of these methods.
    fn paths(&self) -> &'static [&'static str];

    /// The maximum length of a request's message.
    fn message_bytes_max(&self) -> usize;

    /// Answers a request. The future is dropped when the client goes away.
    fn call(
        &self,
        method: Self::Method,
        request: tonic::Request<Bytes>,
    ) -> impl Future<Output = Result<Message, Status>> + Send;

    /// The counters of a method.
    fn counted(&self, method: Self::Method) -> &'static Calls;
}

/// Serves no methods.
impl UnaryCalls for () {
    type Method = Infallible;

    fn method(&self, _path: &str) -> Option<Infallible> {
        None
    }

    fn paths(&self) -> &'static [&'static str] {
        &[]
    }

    fn message_bytes_max(&self) -> usize {
        0
    }

    async fn call(&self, method: Infallible, _request: tonic::Request<Bytes>) -> Result<Message, Status> {
        match method {}
    }

    fn counted(&self, method: Infallible) -> &'static Calls {
        match method {}
    }
}

/// A call that has begun to be counted.
pub(crate) struct Begun(Counting);

impl Begun {
    pub fn of<U: UnaryCalls>(calls: &U, method: U::Method) -> Self {
        Self(Counting::begin(calls.counted(method)))
    }

    /// Carries it out.
    pub async fn answer<U: UnaryCalls>(
        &self,
        calls: &U,
        method: U::Method,
        request: tonic::Request<Bytes>,
    ) -> Result<Message, Status> {
        self.0.calls.received(request.get_ref().len());
        let answer = calls.call(method, request).await?;
        self.0.calls.sent(answer.len());
        Ok(answer)
    }

    /// Ends it.
    pub fn end<T>(mut self, answered: &Result<T, Status>) {
        self.0.end(answered.as_ref().map_or_else(Status::code, |_| Code::Ok));
    }
}

/// The client's timeout, if it sent one.
pub(crate) fn time_limit(headers: &HeaderMap) -> Option<Duration> {
    grpc::parse_timeout(grpc::header(headers, "grpc-timeout")?.to_str().ok()?)
}

/// Runs the future within a time limit; at the limit, fails as tonic does.
pub(crate) async fn within<T>(
    limit: Option<Duration>,
    future: Pin<&mut impl Future<Output = Result<T, Status>>>,
) -> Result<T, Status> {
    match limit {
        None => future.await,
        Some(limit) => tokio::time::timeout(limit, future)
            .await
            .unwrap_or_else(|_| Err(Status::cancelled("Timeout expired"))),
    }
}

/// An answer that consists of headers only.
pub(crate) fn refused(status: Status) -> Response<AnswerBody> {
    status.into_http::<()>().map(|()| AnswerBody::none())
}
