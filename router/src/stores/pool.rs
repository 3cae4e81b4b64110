//! Connections that streams share without standing in each other's way.
//!
//! HTTP/2 has one window for a connection, beside one for each stream: what nobody reads of one stream is missing to all
//! others. So the window of a connection is larger than those of all streams that it carries, and beyond [`STREAMS_MAX`]
//! streams there is another connection. A stream that nobody reads then holds its own window and nothing else.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use kindred_transport::connect::{ConnectError, RouterChannel as Channel, STREAMS_MAX};
use kindred_transport::{Connector, Endpoint};
use tonic::body::Body;
use tower::Service;

/// Connections to one store for streams of one class. The first one is always there, others while they are needed.
#[derive(Debug)]
pub struct Pool {
    connector: Connector,
    endpoints: Vec<Endpoint>,
    open: Mutex<Vec<Shared>>,
}

/// A connection, and how many streams it has: as many as hold the place beside this one.
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
    /// Connections to whichever of these endpoints answers.
    ///
    /// # Errors
    /// When TLS is asked for and cannot be set up.
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

    /// A connection with room for one stream more, which has its place there until this and the answer to its call are
    /// dropped.
    pub fn take(&self) -> Pooled {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() > 1 {
            let mut first = true;
            open.retain(|shared| std::mem::take(&mut first) || shared.streams() > 0);
        }
        if open.iter().all(|shared| shared.streams() >= STREAMS_MAX) {
            match self.connect() {
                Ok(another) => open.push(another),
                // The stream is better off among too many than refused.
                Err(error) => tracing::warn!(%error, "cannot open one more connection to a store"),
            }
        }
        let with_room = open.iter().find(|shared| shared.streams() < STREAMS_MAX);
        let shared = with_room.or_else(|| open.iter().min_by_key(|shared| shared.streams()));
        let shared = shared.expect("the first connection is never dropped");
        Pooled { channel: shared.channel.clone(), place: shared.place.clone() }
    }

    /// How many connections there are.
    #[cfg(test)]
    fn connections(&self) -> usize {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// A place on a connection, for one call. The body of its answer keeps the place.
#[derive(Debug, Clone)]
pub struct Pooled {
    channel: Channel,
    place: Arc<()>,
}

impl Pooled {
    /// The connection, for a call whose whole answer is waited for while this is held.
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

/// The body of an answer, in its place.
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
        // A place that is free again is taken before another connection is.
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
