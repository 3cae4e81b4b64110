//! Outgoing connections: tonic channels over kindred's own sockets, TLS and coalesced writes.
//!
//! A channel connects at its first request, and again after every loss. If the peer refuses, the request fails at
//! once with `Unavailable`; keepalive detects a peer that vanished. Names are resolved at every connect.
//!
//! A process has several connections to a peer, and a network may lose one of them alone, for instance where it takes
//! one of several paths that is broken. Nobody hears of that on the others, so each connection finds out itself: it
//! fails when its peer's kernel has not acknowledged what was sent for [`UNACKNOWLEDGED_MAX`].

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use hyper_util::rt::TokioIo;
use kindred_wire::protocol::ROUTER;
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
use crate::who::Secret;

/// The maximum number of unread streams on a connection with the default windows. A process that opens more for
/// clients which may not read them needs several connections.
pub const STREAMS_MAX: usize = 1000;

/// How long sent data may stay unacknowledged by the peer's kernel before the connection fails (R17). A peer that is
/// busy or stopped is not affected: its kernel acknowledges for it.
pub const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(3);

/// The options of outgoing connections.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// The TLS settings. If there are any, endpoints without scheme use TLS; if there are none, `https://`
    /// endpoints use the system's roots.
    pub tls: Option<ClientTls>,
    /// The TLS settings for peers outside the cluster, if they are others.
    pub tls_outside: Option<ClientTls>,
    /// The time limit for DNS, TCP and TLS together, for each endpoint.
    pub connect_timeout: Duration,
    /// The silence after which a keepalive ping is sent.
    pub keepalive_interval: Duration,
    /// The time limit for the answer to a ping.
    pub keepalive_timeout: Duration,
    /// The flow-control window of a connection. Bytes that one stream leaves unread are missing to all others, so
    /// this must be well above [`STREAMS_MAX`] times `stream_window`.
    pub connection_window: u32,
    /// The flow-control window of a stream.
    pub stream_window: u32,
    /// The secret that a router shows to the stores of its cluster (see [`crate::who`]).
    pub secret: Option<Secret>,
    pub network: Network,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            tls: None,
            tls_outside: None,
            connect_timeout: Duration::from_secs(3),
            // etcd closes connections that ping more often than every 5 s.
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
            // The maximum that HTTP/2 allows.
            connection_window: (1 << 31) - 1,
            stream_window: 1 << 20,
            secret: None,
            network: Network::System,
        }
    }
}

/// Why no channel can be built.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("no endpoint to connect to")]
    NoEndpoint,
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The endpoint is not a valid authority.
    #[error("{endpoint}: {problem}")]
    Endpoint {
        /// As it was given.
        endpoint: Endpoint,
        problem: String,
    },
}

/// Closes all connections of a [`Connector`], for instance when the peer is silent. Pending calls fail at once as
/// on a lost connection, and the next request opens a new one.
#[derive(Debug, Clone, Default)]
pub struct Cut(Arc<Mutex<CancellationToken>>);

impl Cut {
    pub fn now(&self) {
        let ended = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        ended.cancel();
    }

    fn next(&self) -> CancellationToken {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug, Clone, Default)]
pub struct Connector {
    options: ConnectOptions,
    cut: Option<Cut>,
}

impl Connector {
    #[must_use]
    pub fn new(options: ConnectOptions) -> Self {
        Self { options, cut: None }
    }

    /// A connector with the same options, and the [`Cut`] that closes its connections.
    #[must_use]
    pub fn with_cut(&self) -> (Self, Cut) {
        let cut = Cut::default();
        (Self { options: self.options.clone(), cut: Some(cut.clone()) }, cut)
    }

    /// A connector with default options except for TLS.
    #[must_use]
    pub fn with_tls(tls: Option<ClientTls>) -> Self {
        Self::new(ConnectOptions { tls, ..ConnectOptions::default() })
    }

    /// A connector for peers outside the cluster: with their TLS, and without the secret.
    #[must_use]
    pub fn outside(&self) -> Self {
        let tls = self.options.tls_outside.clone().or_else(|| self.options.tls.clone());
        Self::new(ConnectOptions { tls, secret: None, ..self.options.clone() })
    }

    /// A channel to one peer. It connects at its first request, and needs a tokio runtime.
    ///
    /// # Errors
    /// When TLS is required and cannot be set up.
    pub fn channel(&self, endpoint: &Endpoint) -> Result<Channel, ConnectError> {
        self.channel_any(std::slice::from_ref(endpoint))
    }

    /// A channel to any of several endpoints, such as the members of an etcd, or the Unix socket and the TCP
    /// address of one shard. It keeps a connection until that is lost. Then it tries the Unix sockets first,
    /// because they succeed or fail at once, and the other endpoints in turn.
    ///
    /// # Errors
    /// When there is no endpoint, or TLS is required and cannot be set up.
    pub fn channel_any(&self, endpoints: &[Endpoint]) -> Result<Channel, ConnectError> {
        let dialers = Arc::new(Dialers::new(self, endpoints)?);
        // A TCP endpoint names the channel if there is one: a Unix socket has no name, and servers there ignore the
        // one they are given.
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
            // The limit counts over the life of a connection, and a client that cancels many streams must not lose
            // its watches.
            .http2_max_local_error_reset_streams(None);
        Ok(settings.connect_with_connector_lazy(tower::service_fn(move |_: http::Uri| {
            let dialers = dialers.clone();
            async move { dialers.dial_any().await.map(TokioIo::new) }
        })))
    }

    /// As [`Connector::channel_any`], for a router, which identifies itself as one.
    ///
    /// # Errors
    /// As [`Connector::channel_any`].
    pub fn router_channel(&self, endpoints: &[Endpoint]) -> Result<RouterChannel, ConnectError> {
        let shows = Secret::shown(self.options.secret.as_ref());
        Ok(RouterChannel { channel: self.channel_any(endpoints)?, shows })
    }

    /// A single connection for protocols other than gRPC. Writes are coalesced: flushed bytes leave at the next
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

/// A router's channel to a store. Every request identifies the router (see [`crate::who`]).
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
        request.headers_mut().insert(HeaderName::from_static(ROUTER), self.shows.clone());
        self.channel.call(request)
    }
}

/// The settings for connecting to one endpoint.
#[derive(Debug)]
struct Dialer {
    endpoint: Endpoint,
    tls: Option<(ClientTls, ServerName<'static>)>,
    timeout: Duration,
    network: Network,
    cut: Option<Cut>,
}

/// The dialers of a channel.
#[derive(Debug)]
struct Dialers {
    /// Unix sockets, in the given order.
    unix: Vec<Dialer>,
    /// Other endpoints, in the given order.
    others: Vec<Dialer>,
    /// The index of the endpoint in `others` that worked last.
    next: AtomicUsize,
}

impl Dialers {
    fn new(connector: &Connector, endpoints: &[Endpoint]) -> Result<Self, ConnectError> {
        let dialers: Result<Vec<_>, _> = endpoints.iter().map(|one| connector.dialer(one)).collect();
        let (unix, others) = dialers?.into_iter().partition(|dialer| dialer.endpoint.is_unix());
        Ok(Self { unix, others, next: AtomicUsize::new(0) })
    }

    /// Tries every endpoint once: the Unix sockets, then the others from the one that worked last.
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
        let inside = match &self.network {
            Network::Inside(inside) => inside.connect(self.endpoint.target()).await,
            Network::System | Network::Other(_) => None,
        };
        let stream = match self.endpoint.target() {
            _ if let Some(pipe) = inside => Stream::Other(Box::new(pipe)),
            Target::Tcp { host, port } if let Network::Other(network) = &self.network => {
                Stream::Other(network.connect(&host.to_string(), *port).await?)
            }
            Target::Tcp { host: Host::Ip(ip), port } => Stream::Tcp(by_address((*ip, *port).into()).await?),
            Target::Tcp { host: Host::Name(name), port } => Stream::Tcp(by_name(name, *port).await?),
            Target::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
        };
        stream.prepare(Some(Duration::from_secs(30)), Some(UNACKNOWLEDGED_MAX));
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

/// Resolves a name and tries all of its addresses.
async fn by_name(name: &str, port: u16) -> io::Result<TcpStream> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in lookup_host((name, port)).await? {
        match by_address(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

async fn by_address(address: SocketAddr) -> io::Result<TcpStream> {
    not_to_itself(TcpStream::connect(address).await?)
}

/// Refuses a connection of a socket to itself. If nothing listens on a port of this host, the kernel may choose
/// that very port as the source of a connection to it. The socket is then connected to itself, and the returning
/// server finds its port taken. Go's dialer refuses this as well (`net/tcpsock_posix.go`, `selfConnect`).
fn not_to_itself(stream: TcpStream) -> io::Result<TcpStream> {
    if stream.local_addr()? == stream.peer_addr()? {
        // Without this the kernel would keep the port for another minute.
        stream.set_zero_linger()?;
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

#[derive(Debug)]
enum Transport {
    Plain(Stream),
    Tls(Box<TlsStream<Stream>>),
}

forward!(Transport, Transport::Plain, Transport::Tls);

/// A client's connection, with coalesced writes.
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
        // Checked only when nothing can be read: a connection with pending data is not silent.
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

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_connection_whose_data_nobody_acknowledges_fails_in_time() {
        let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let endpoint = server.local_addr().unwrap().to_string().parse().unwrap();
        let connection = Connector::default().connect(&endpoint).await.unwrap();
        let Transport::Plain(Stream::Tcp(stream)) = connection.io.get_ref() else { panic!("{connection:?}") };
        let limit = socket2::SockRef::from(stream).tcp_user_timeout().unwrap();
        assert_eq!(limit, Some(UNACKNOWLEDGED_MAX));
        assert!(UNACKNOWLEDGED_MAX <= Duration::from_secs(3), "R17");
    }

    #[tokio::test]
    async fn a_socket_that_is_connected_to_itself_is_no_server() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let itself = socket.local_addr().unwrap();
        let stream = socket.connect(itself).await.expect("so does the kernel");
        assert_eq!(not_to_itself(stream).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let server = TcpListener::bind(itself).await.expect("its port is free again");
        assert!(by_address(server.local_addr().unwrap()).await.is_ok());
    }
}
