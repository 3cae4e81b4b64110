//! Connections that carry streams which clients may leave unread.
//!
//! HTTP/2 has one flow-control window for a connection beside one for each stream: bytes of one stream that are not
//! read are missing to all others. So the window of a connection is larger than those of all its streams together, and
//! more than [`STREAMS_MAX`] streams get another connection. An unread stream then holds its own window only.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use kindred_transport::connect::{ConnectError, RouterChannel as Channel, STREAMS_MAX};
use kindred_transport::{Connector, Endpoint};
use tonic::body::Body;
use tower::Service;

/// The connections to one store for one class of streams. The first always exists, others while they are needed.
#[derive(Debug)]
pub struct Pool {
    connector: Connector,
    endpoints: Vec<Endpoint>,
    open: Mutex<Vec<Shared>>,
}

/// A connection. The number of its streams is that of the clones of `place`.
#[derive(Debug)]
struct Shared {
    channel: Channel,
    place: Arc<()>,
}

impl Shared {
    fn streams(&self) -> usize {
        Arc::strong_count(&self.place) - 1
    }
}

impl Pool {
    /// A pool of connections to whichever of these endpoints answers.
    ///
    /// # Errors
    /// When TLS is configured and cannot be set up.
    pub fn new(connector: &Connector, endpoints: &[Endpoint]) -> Result<Self, ConnectError> {
        let pool = Self {
            connector: connector.clone(),
            endpoints: endpoints.to_vec(),
            open: Mutex::new(Vec::with_capacity(1)),
        };
        let first = pool.connect()?;
        pool.open.lock().unwrap_or_else(PoisonError::into_inner).push(first);
        Ok(pool)
    }

    fn connect(&self) -> Result<Shared, ConnectError> {
        Ok(Shared { channel: self.connector.router_channel(&self.endpoints)?, place: Arc::default() })
    }

    /// A connection with room for a stream, which counts until this value and the body of the answer are dropped.
    pub fn take(&self) -> Pooled {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() > 1 {
            let mut first = true;
            open.retain(|shared| std::mem::take(&mut first) || shared.streams() > 0);
        }
        if open.iter().all(|shared| shared.streams() >= STREAMS_MAX) {
            match self.connect() {
                Ok(another) => open.push(another),
                // One stream too many is better than a refused one.
                Err(error) => tracing::warn!(%error, "cannot open one more connection to a store"),
            }
        }
        let with_room = open.iter().find(|shared| shared.streams() < STREAMS_MAX);
        let shared = with_room.or_else(|| open.iter().min_by_key(|shared| shared.streams()));
        let shared = shared.expect("the first connection is never dropped");
        Pooled { channel: shared.channel.clone(), place: shared.place.clone() }
    }

    #[cfg(test)]
    fn connections(&self) -> usize {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// A place on a connection for one call; the body of the answer keeps it.
#[derive(Debug, Clone)]
pub struct Pooled {
    channel: Channel,
    place: Arc<()>,
}

impl Pooled {
    /// The connection, for a call whose whole answer is awaited while this value is held.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<http::Response<Body>, tonic::transport::Error>> + Send>>;

impl Service<http::Request<Body>> for Pooled {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = Answering;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Answering {
        let (answering, place) = (self.channel.call(request), self.place.clone());
        Box::pin(async move { Ok(answering.await?.map(|body| Body::new(Placed { body, _place: place }))) })
    }
}

/// The body of an answer, which keeps its place on the connection.
struct Placed {
    body: Body,
    _place: Arc<()>,
}

impl hyper::body::Body for Placed {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn f13_no_connection_has_more_streams_than_it_has_window_for() {
        let endpoint: Endpoint = "127.0.0.1:1".parse().unwrap();
        let pool = Pool::new(&Connector::default(), &[endpoint]).unwrap();
        let mut held: Vec<Pooled> = (0..STREAMS_MAX).map(|_| pool.take()).collect();
        assert_eq!(pool.connections(), 1);
        let beyond = pool.take();
        assert_eq!(pool.connections(), 2);
        assert!(!Arc::ptr_eq(&beyond.place, &held[0].place));
        // A free place is taken before another connection is opened.
        held.pop();
        assert!(Arc::ptr_eq(&pool.take().place, &held[0].place));
        drop(beyond);
        drop(pool.take());
        assert_eq!(pool.connections(), 1);
    }

    #[test]
    fn f13_streams_that_nobody_reads_leave_window_to_others() {
        let options = kindred_transport::ConnectOptions::default();
        let held = options.stream_window as usize * STREAMS_MAX;
        // HTTP/2 gives window back when a third of what is not held was used.
        assert!(held <= options.connection_window as usize / 2);
    }
}
