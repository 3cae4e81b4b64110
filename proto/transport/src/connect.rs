//! Connecting: tonic channels over our own sockets, TLS and coalesced writes.
//!
//! A channel connects at its first request and again after every loss. A peer that refuses makes the request fail at
//! once with `Unavailable`; a peer that vanished without closing is noticed by keepalive. Names are resolved at every
//! connect.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::transport::channel::ResponseFuture;
use tower::Service;

use crate::address::{Endpoint, Host, Scheme, Target};
use crate::coalesce::Coalesce;
use crate::network::Network;
use crate::stream::{Stream, forward};
use crate::tls::{ClientTls, ClientTlsSettings, TlsError};
use crate::who::{ROUTER_HEADER, Secret};

/// Streams that may be left unread on one connection with the default windows. Who opens streams for others, who may
/// not read them, spreads more of them over several connections.
pub const STREAMS_MAX: usize = 1000;

/// How to connect.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// TLS settings; endpoints without scheme use TLS if there are any, `https://` ones the system's roots if not.
    pub tls: Option<ClientTls>,
    /// Time for name, TCP and TLS together, for each endpoint.
    pub connect_timeout: Duration,
    /// Silence after which the peer is asked whether it lives.
    pub keepalive_interval: Duration,
    /// Time for its answer.
    pub keepalive_timeout: Duration,
    /// Bytes that the peer may send ahead on all streams together. What nobody reads of one stream is missing to all others,
    /// so this is to be well above [`STREAMS_MAX`] times the next.
    pub connection_window: u32,
    /// Bytes that the peer may send ahead on one stream.
    pub stream_window: u32,
    /// What a router shows to the stores of its cluster (see [`crate::who`]).
    pub secret: Option<Secret>,
    /// Whose sockets.
    pub network: Network,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            tls: None,
            connect_timeout: Duration::from_secs(3),
            // etcd closes connections that ask more often than every 5 s.
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
            // The largest that there is.
            connection_window: (1 << 31) - 1,
            stream_window: 1 << 20,
            secret: None,
            network: Network::System,
        }
    }
}

/// An endpoint to which no channel can be built.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No endpoint was given.
    #[error("no endpoint to connect to")]
    NoEndpoint,
    /// The TLS settings cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The endpoint is no valid authority.
    #[error("{endpoint}: {problem}")]
    Endpoint {
        /// The endpoint.
        endpoint: Endpoint,
        /// What is wrong with it.
        problem: String,
    },
}

/// Ends the connections of a [`Connector`] from aside, for instance when their peer is silent. Who waits for an answer over
/// them learns at once that the connection is lost; the next request makes a new one.
#[derive(Debug, Clone, Default)]
pub struct Cut(Arc<Mutex<CancellationToken>>);

impl Cut {
    /// Ends all that there are.
    pub fn now(&self) {
        let ended = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        ended.cancel();
    }

    fn next(&self) -> CancellationToken {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Builds channels and connections.
#[derive(Debug, Clone, Default)]
pub struct Connector {
    options: ConnectOptions,
    cut: Option<Cut>,
}

impl Connector {
    /// A connector with these options.
    #[must_use]
    pub fn new(options: ConnectOptions) -> Self {
        Self { options, cut: None }
    }

    /// The same, and what ends the connections that this one makes.
    #[must_use]
    pub fn with_cut(&self) -> (Self, Cut) {
        let cut = Cut::default();
        (Self { options: self.options.clone(), cut: Some(cut.clone()) }, cut)
    }

    /// A connector with default options and this TLS.
    #[must_use]
    pub fn with_tls(tls: Option<ClientTls>) -> Self {
        Self::new(ConnectOptions { tls, ..ConnectOptions::default() })
    }

    /// The same for peers that are not of the cluster, which are not to know its secret.
    #[must_use]
    pub fn without_secret(&self) -> Self {
        Self::new(ConnectOptions { secret: None, ..self.options.clone() })
    }

    /// A channel to one peer. It needs a tokio runtime, and connects at its first request.
    ///
    /// # Errors
    /// When TLS is asked for and cannot be set up.
    pub fn channel(&self, endpoint: &Endpoint) -> Result<Channel, ConnectError> {
        self.channel_any(std::slice::from_ref(endpoint))
    }

    /// A channel to whichever of these peers answers, for instance the members of one etcd, or one shard by its Unix socket
    /// and its TCP address. It stays with one peer until the connection is lost, then tries the Unix sockets, which
    /// are there or not at once, and then the others in turn.
    ///
    /// # Errors
    /// When there is no endpoint, or TLS is asked for and cannot be set up.
    pub fn channel_any(&self, endpoints: &[Endpoint]) -> Result<Channel, ConnectError> {
        let dialers = Arc::new(Dialers::new(self, endpoints)?);
        // A Unix socket has no name of its own, and no server looks at the one that it is given there.
        let named = dialers.others.first().or(dialers.unix.first()).ok_or(ConnectError::NoEndpoint)?;
        let (first, tls) = (named.endpoint.clone(), named.tls.is_some());
        let bad = |error: &dyn fmt::Display| ConnectError::Endpoint {
            endpoint: first.clone(),
            problem: error.to_string(),
        };
        let scheme = if tls { "https" } else { "http" };
        let origin = format!("{scheme}://{}", first.authority());
        let origin: http::Uri = origin.parse().map_err(|error| bad(&error))?;
        let settings = tonic::transport::Endpoint::from_shared(format!("http://{}", first.authority()))
            .map_err(|error| bad(&error))?
            .origin(origin)
            .initial_connection_window_size(self.options.connection_window)
            .initial_stream_window_size(self.options.stream_window)
            .http2_keep_alive_interval(self.options.keepalive_interval)
            .keep_alive_timeout(self.options.keepalive_timeout)
            .keep_alive_while_idle(true)
            .max_frame_size(1 << 20)
            // Counted over the life of a connection: a client that cancels many streams must not lose its watches.
            .http2_max_local_error_reset_streams(None);
        Ok(settings.connect_with_connector_lazy(tower::service_fn(move |_: http::Uri| {
            let dialers = dialers.clone();
            async move { dialers.dial_any().await.map(TokioIo::new) }
        })))
    }

    /// The same as a router of the cluster, which shows that it is one.
    ///
    /// # Errors
    /// As [`Connector::channel_any`].
    pub fn router_channel(&self, endpoints: &[Endpoint]) -> Result<RouterChannel, ConnectError> {
        let shows = Secret::shown(self.options.secret.as_ref());
        Ok(RouterChannel { channel: self.channel_any(endpoints)?, shows })
    }

    /// One connection, for protocols other than gRPC. Its writes are coalesced: what was flushed leaves at the next
    /// read or shutdown at the latest (see [`crate::coalesce`]), so one task must both write and read.
    ///
    /// # Errors
    /// When TLS cannot be set up, or the peer cannot be reached in time.
    pub async fn connect(&self, endpoint: &Endpoint) -> io::Result<ClientConnection> {
        self.dialer(endpoint).map_err(io::Error::other)?.dial().await
    }

    fn dialer(&self, endpoint: &Endpoint) -> Result<Dialer, ConnectError> {
        let tls = match (endpoint.scheme(), &self.options.tls) {
            (Scheme::Plain, _) | (Scheme::Unspecified, None) => None,
            (Scheme::Tls, None) => Some(ClientTls::load(ClientTlsSettings::default())?),
            (Scheme::Tls | Scheme::Unspecified, Some(tls)) => Some(tls.clone()),
        };
        let tls = match tls {
            None => None,
            Some(tls) => {
                let name = endpoint.server_name();
                let server = ServerName::try_from(name).map_err(|error| ConnectError::Endpoint {
                    endpoint: endpoint.clone(),
                    problem: error.to_string(),
                })?;
                Some((tls, server))
            }
        };
        let (network, cut) = (self.options.network.clone(), self.cut.clone());
        Ok(Dialer { endpoint: endpoint.clone(), tls, timeout: self.options.connect_timeout, network, cut })
    }
}

/// A channel of a router to a store: every request shows that it comes from a router (see [`crate::who`]).
#[derive(Debug, Clone)]
pub struct RouterChannel {
    channel: Channel,
    shows: HeaderValue,
}

impl Service<http::Request<Body>> for RouterChannel {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> ResponseFuture {
        request.headers_mut().insert(HeaderName::from_static(ROUTER_HEADER), self.shows.clone());
        self.channel.call(request)
    }
}

/// Everything that a connect to one endpoint needs.
#[derive(Debug)]
struct Dialer {
    endpoint: Endpoint,
    tls: Option<(ClientTls, ServerName<'static>)>,
    timeout: Duration,
    network: Network,
    cut: Option<Cut>,
}

/// The dialers of one channel.
#[derive(Debug)]
struct Dialers {
    /// Unix sockets, as they were written.
    unix: Vec<Dialer>,
    /// All others, as they were written.
    others: Vec<Dialer>,
    /// Which of the others worked last.
    next: AtomicUsize,
}

impl Dialers {
    fn new(connector: &Connector, endpoints: &[Endpoint]) -> Result<Self, ConnectError> {
        let dialers: Result<Vec<_>, _> = endpoints.iter().map(|one| connector.dialer(one)).collect();
        let (unix, others) = dialers?.into_iter().partition(|dialer| dialer.endpoint.is_unix());
        Ok(Self { unix, others, next: AtomicUsize::new(0) })
    }

    /// Tries every endpoint once: the Unix sockets, then the others, beginning with the one that worked last.
    async fn dial_any(&self) -> io::Result<ClientConnection> {
        let mut failed = io::Error::other("no endpoint");
        let mut note = |dialer: &Dialer, error| {
            tracing::debug!(endpoint = %dialer.endpoint, %error, "cannot connect");
            failed = error;
        };
        for dialer in &self.unix {
            match dialer.dial().await {
                Ok(connection) => return Ok(connection),
                Err(error) => note(dialer, error),
            }
        }
        let start = self.next.load(Ordering::Relaxed);
        for turn in 0..self.others.len() {
            let index = (start + turn) % self.others.len();
            match self.others[index].dial().await {
                Ok(connection) => {
                    self.next.store(index, Ordering::Relaxed);
                    return Ok(connection);
                }
                Err(error) => note(&self.others[index], error),
            }
        }
        Err(failed)
    }
}

impl Dialer {
    async fn dial(&self) -> io::Result<ClientConnection> {
        let dialed = tokio::time::timeout(self.timeout, self.dial_slowly()).await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {:?}", self.timeout)))
        });
        dialed.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.endpoint)))
    }

    async fn dial_slowly(&self) -> io::Result<ClientConnection> {
        let cut = self.cut.as_ref().map(|cut| Box::pin(cut.next().cancelled_owned()));
        let stream = match self.endpoint.target() {
            Target::Tcp { host, port } if let Network::Other(network) = &self.network => {
                Stream::Other(network.connect(&host.to_string(), *port).await?)
            }
            Target::Tcp { host: Host::Ip(ip), port } => Stream::Tcp(TcpStream::connect((*ip, *port)).await?),
            Target::Tcp { host: Host::Name(name), port } => Stream::Tcp(by_name(name, *port).await?),
            Target::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
        };
        stream.prepare(Some(Duration::from_secs(30)));
        let transport = match &self.tls {
            None => Transport::Plain(stream),
            Some((tls, server)) => {
                let tls = tls.clone();
                let config = tokio::task::spawn_blocking(move || tls.fresh()).await?;
                let stream = TlsConnector::from(config).connect(server.clone(), stream).await?;
                Transport::Tls(Box::new(stream))
            }
        };
        Ok(ClientConnection { io: Coalesce::new(transport), cut })
    }
}

/// Tries all addresses of a name, as they are now.
async fn by_name(name: &str, port: u16) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in lookup_host((name, port)).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

#[derive(Debug)]
enum Transport {
    Plain(Stream),
    Tls(Box<TlsStream<Stream>>),
}

forward!(Transport, Transport::Plain, Transport::Tls);

/// A connection to a peer, with coalesced writes.
pub struct ClientConnection {
    io: Coalesce<Transport>,
    cut: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
}

impl ClientConnection {
    fn is_cut(&mut self, cx: &mut Context<'_>) -> bool {
        self.cut.as_mut().is_some_and(|cut| cut.as_mut().poll(cx).is_ready())
    }
}

impl fmt::Debug for ClientConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConnection").field("io", &self.io).finish_non_exhaustive()
    }
}

impl AsyncRead for ClientConnection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = Pin::new(&mut this.io).poll_read(cx, into);
        // A connection that has more to say is not silent.
        if read.is_pending() && this.is_cut(cx) {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the peer says nothing",
            )));
        }
        read
    }
}

impl AsyncWrite for ClientConnection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
