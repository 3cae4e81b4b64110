//! Requests for services that speak `http`'s types: what they are told, and the bodies that they read.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, Version};
use hyper::body::{Body, Frame};
use kindred_http2::{RequestHead, TimeUnit, Timeout};
use parking_lot::Mutex;
use tonic::Status;

/// A reader tells of what it has taken in steps of so many bytes, a quarter of the window of a stream.
const TOLD_BYTES: usize = 256 << 10;

const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// The metadata of a call: what the client says beyond the protocol, and its timeout.
pub(super) fn metadata(head: &RequestHead) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(head.metadata.len() + 2);
    if let Some(timeout) = timeout(head.timeout) {
        headers.insert(GRPC_TIMEOUT, timeout);
    }
    if let Some(agent) = head.user_agent.as_ref().and_then(value) {
        headers.insert(USER_AGENT, agent);
    }
    for (name, said) in &head.metadata {
        if let (Ok(name), Some(said)) = (HeaderName::from_bytes(name), value(said)) {
            headers.append(name, said);
        }
    }
    headers
}

/// A value; the machine has looked at its bytes already.
fn value(bytes: &Bytes) -> Option<HeaderValue> {
    HeaderValue::from_maybe_shared(bytes.clone()).ok()
}

fn timeout(timeout: Timeout) -> Option<HeaderValue> {
    let Timeout::After { amount, unit } = timeout else { return None };
    let unit = match unit {
        TimeUnit::Hour => 'H',
        TimeUnit::Minute => 'M',
        TimeUnit::Second => 'S',
        TimeUnit::Millisecond => 'm',
        TimeUnit::Microsecond => 'u',
        TimeUnit::Nanosecond => 'n',
    };
    HeaderValue::try_from(format!("{amount}{unit}")).ok()
}

/// The whole request. `None` where its path or its method is nothing that `http` can say.
pub(super) fn request<B>(head: &RequestHead, path: &[u8], body: B) -> Option<Request<B>> {
    let mut uri = Uri::builder().path_and_query(path);
    if let Some(authority) = &head.authority {
        uri = uri.scheme("http").authority(&authority[..]);
    }
    let mut request = Request::new(body);
    *request.uri_mut() = uri.build().ok()?;
    *request.method_mut() = http::Method::from_bytes(head.method.name()).ok()?;
    *request.version_mut() = Version::HTTP_2;
    let mut headers = metadata(head);
    if let Some(content) = head.content_type.text().and_then(|text| value(&text)) {
        headers.insert(CONTENT_TYPE, content);
    }
    if head.te_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(encoding) = head.encoding.as_ref().and_then(value) {
        headers.insert(GRPC_ENCODING, encoding);
    }
    *request.headers_mut() = headers;
    Some(request)
}

/// The part of a body that has arrived.
#[derive(Debug, Default)]
struct Arrived {
    parts: VecDeque<Bytes>,
    end: Option<Result<(), Status>>,
    /// Bytes that the reader has taken and the connection has not been told of.
    taken: usize,
    reader: Option<Waker>,
}

#[derive(Debug)]
struct Shared {
    arrived: Mutex<Arrived>,
    /// Wakes the connection.
    connection: Waker,
}

/// The body that a service reads.
#[derive(Debug)]
pub(crate) struct RequestBody(Option<Arc<Shared>>);

/// Fills the body of a request.
#[derive(Debug)]
pub(crate) struct BodyFiller(Arc<Shared>);

impl RequestBody {
    pub fn empty() -> Self {
        Self(None)
    }

    /// A body, of which the connection is told by this waker what was taken.
    pub fn new(connection: Waker) -> (BodyFiller, Self) {
        let shared = Arc::new(Shared { arrived: Mutex::default(), connection });
        (BodyFiller(shared.clone()), Self(Some(shared)))
    }
}

impl BodyFiller {
    /// Adds what has arrived.
    pub fn push(&self, bytes: Bytes) {
        let reader = {
            let mut arrived = self.0.arrived.lock();
            if bytes.is_empty() {
                return;
            }
            // Nobody reads any more; the client may go on.
            if Arc::strong_count(&self.0) == 1 {
                arrived.taken += bytes.len();
                return;
            }
            arrived.parts.push_back(bytes);
            arrived.reader.take()
        };
        reader.into_iter().for_each(Waker::wake);
    }

    /// Ends the body, or says why no more comes.
    pub fn end(&self, end: Result<(), Status>) {
        let reader = {
            let mut arrived = self.0.arrived.lock();
            arrived.end.get_or_insert(end);
            arrived.reader.take()
        };
        reader.into_iter().for_each(Waker::wake);
    }

    /// The bytes that were taken since the last time.
    pub fn taken(&self) -> usize {
        let mut arrived = self.0.arrived.lock();
        if Arc::strong_count(&self.0) == 1 {
            let left: usize = arrived.parts.drain(..).map(|part| part.len()).sum();
            arrived.taken += left;
        }
        std::mem::take(&mut arrived.taken)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        // What was not read is given back to the client.
        if let Some(shared) = self.0.take() {
            let waker = shared.connection.clone();
            drop(shared);
            waker.wake();
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(shared) = &self.0 else { return Poll::Ready(None) };
        let mut arrived = shared.arrived.lock();
        if let Some(part) = arrived.parts.pop_front() {
            let before = arrived.taken;
            arrived.taken += part.len();
            let tell = before / TOLD_BYTES != arrived.taken / TOLD_BYTES;
            drop(arrived);
            if tell {
                shared.connection.wake_by_ref();
            }
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        match &arrived.end {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(status)) => {
                let status = status.clone();
                arrived.end = Some(Ok(()));
                Poll::Ready(Some(Err(status)))
            }
            None => {
                arrived.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let Some(shared) = &self.0 else { return true };
        let arrived = shared.arrived.lock();
        arrived.parts.is_empty() && matches!(arrived.end, Some(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn a_body_has_what_arrived_and_tells_what_was_taken() {
        let (filler, mut body) = RequestBody::new(Waker::noop().clone());
        filler.push(Bytes::from_static(b"ab"));
        filler.push(Bytes::new());
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "ab");
        assert_eq!((filler.taken(), filler.taken(), body.is_end_stream()), (2, 0, false));
        let late = tokio::spawn(async move {
            let last = body.frame().await.unwrap().unwrap().into_data().unwrap();
            (last, body.frame().await.is_none(), body.is_end_stream())
        });
        tokio::task::yield_now().await;
        filler.push(Bytes::from_static(b"c"));
        filler.end(Ok(()));
        assert_eq!(late.await.unwrap(), (Bytes::from_static(b"c"), true, true));
        filler.push(Bytes::from_static(b"nobody reads this"));
        assert_eq!(filler.taken(), 18);
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_says_so_once() {
        let (filler, mut body) = RequestBody::new(Waker::noop().clone());
        filler.push(Bytes::from_static(b"a"));
        filler.end(Err(Status::cancelled("gone")));
        filler.end(Ok(()));
        assert!(body.frame().await.unwrap().unwrap().is_data());
        assert_eq!(body.frame().await.unwrap().unwrap_err().message(), "gone");
        assert!(body.frame().await.is_none());
        assert!(RequestBody::empty().frame().await.is_none());
    }
}
