//! Accepts TCP and Unix connections, plain or TLS, as a stream that tonic and axum can serve.
//!
//! TLS handshakes run in their own tasks. Handshakes, and connections that have not sent the beginning of HTTP, are
//! limited in time and number, so that silent clients delay no others (`door`). [`Incoming`] owns the socket.
//! Dropping it closes the port at once; accepted connections live on until their server ends them or
//! [`Drain::killed`] closes them.

mod connection;
mod door;
mod share;
mod socket;
mod source;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsAcceptor;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;

use crate::address::{Endpoint, ListenAddr, Scheme, Target};
use crate::network::Network;
use crate::serve::Drain;
use crate::stream::{self, TLS_HANDSHAKE};
use crate::tls::ServerTls;

use connection::Transport;
pub use connection::{Connection, ConnectionInfo, Peer};
pub use door::GivenUp;
use door::{Door, Pass};
pub use share::HandsOut;
use socket::Socket;
use source::Source;

/// The options of a listener.
#[derive(Debug, Clone)]
pub struct ListenOptions {
    /// The TLS settings; `None` accepts only plain connections.
    pub tls: Option<ServerTls>,
    /// The length of the kernel's queue of connections to accept.
    pub backlog: u32,
    /// The time limit for a TLS handshake, and again for the beginning of HTTP.
    pub handshake_timeout: Duration,
    /// The maximum number of connections before the beginning of HTTP. Beyond it, a silent one is closed for each
    /// new one.
    pub handshakes_max: usize,
    /// The idle time before the first TCP keepalive probe.
    pub keepalive: Option<Duration>,
    pub network: Network,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            tls: None,
            backlog: 4096,
            handshake_timeout: Duration::from_secs(10),
            handshakes_max: 1024,
            keepalive: Some(Duration::from_secs(30)),
            network: Network::System,
        }
    }
}

impl ListenOptions {
    /// The defaults with these TLS settings.
    #[must_use]
    pub fn with_tls(tls: Option<ServerTls>) -> Self {
        Self { tls, ..Self::default() }
    }

    /// The same options on this network.
    #[must_use]
    pub fn on(self, network: &Network) -> Self {
        Self { network: network.clone(), ..self }
    }

    /// The defaults for an admin port: plain HTTP, or the clients' TLS if its address begins with `https://`.
    #[must_use]
    pub fn of_admin(address: &ListenAddr, tls: Option<ServerTls>) -> Self {
        Self::with_tls(tls.filter(|_| address.scheme() == Scheme::Tls))
    }
}

/// Why listening failed. The text names the address and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("cannot listen on {address}: {source}{}", hint(.source))]
    Bind {
        /// The address to listen on.
        address: ListenAddr,
        source: io::Error,
    },
    /// The address requires TLS, which is not configured.
    #[error(
        "{address} asks for TLS, but there is no certificate: give --cert-file and --key-file, or write http://"
    )]
    NoCertificate {
        /// The address to listen on.
        address: ListenAddr,
    },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "; another process listens there, stop it or choose another address",
        io::ErrorKind::AlreadyExists => "; choose another path, or remove it if nobody needs it",
        io::ErrorKind::PermissionDenied => "; choose a port above 1023 or a directory that may be written",
        io::ErrorKind::AddrNotAvailable => "; no interface of this machine has that address",
        _ => "",
    }
}

#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    options: ListenOptions,
    local: Endpoint,
}

impl Listener {
    /// Binds the address.
    ///
    /// # Errors
    /// When it cannot be bound, or requires TLS without a certificate.
    pub async fn bind(address: &ListenAddr, mut options: ListenOptions) -> Result<Self, ListenError> {
        match address.scheme() {
            Scheme::Tls if options.tls.is_none() => {
                return Err(ListenError::NoCertificate { address: address.clone() });
            }
            Scheme::Plain
                if options.tls.take().is_some() && matches!(address.target(), Target::Tcp { .. }) =>
            {
                tracing::warn!(%address, "listening without TLS as the address says; the certificate is not used");
            }
            Scheme::Plain | Scheme::Tls | Scheme::Unspecified => {}
        }
        let bound = Socket::bind(address.target(), &options).await;
        let socket = bound.map_err(|source| ListenError::Bind { address: address.clone(), source })?;
        let scheme = if options.tls.is_some() { Scheme::Tls } else { Scheme::Plain };
        let local = match socket.local_addr() {
            Some(local) => Endpoint::tcp(local),
            None => Endpoint::unix(match address.target() {
                Target::Unix(path) => path.clone(),
                Target::Tcp { .. } => Default::default(),
            }),
        };
        if let Some(tls) = &options.tls {
            tls.follow();
        }
        Ok(Self { socket, options, local: local.with_scheme(scheme) })
    }

    /// The address for clients, with the port that was bound.
    #[must_use]
    pub fn local_endpoint(&self) -> &Endpoint {
        &self.local
    }

    /// The TCP address that was bound; `None` for a Unix socket.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.socket.local_addr()
    }

    /// Starts to accept connections. [`Drain::killed`] closes them.
    #[must_use]
    pub fn incoming(self, drain: &Drain) -> Incoming {
        Incoming {
            source: Source::of(self.socket),
            door: Door::new(self.options.handshakes_max),
            full: None,
            options: self.options,
            handshakes: JoinSet::new(),
            killed: drain.killed(),
        }
    }
}

/// An address that is kept free: no other process can listen there while this value lives, and no connection is
/// accepted.
#[derive(Debug)]
pub struct Reserved(#[allow(dead_code, reason = "frees the address when dropped")] Socket);

impl Reserved {
    /// Reserves the address.
    ///
    /// # Errors
    /// When it cannot be bound.
    pub async fn of(address: &ListenAddr) -> Result<Self, ListenError> {
        let bound = Socket::bind(address.target(), &ListenOptions::default()).await;
        bound.map(Self).map_err(|source| ListenError::Bind { address: address.clone(), source })
    }
}

/// The stream of accepted connections. It yields no errors, and ends only if it is a share of another one
/// ([`Incoming::split`]).
#[derive(Debug)]
pub struct Incoming {
    source: Source,
    options: ListenOptions,
    door: Door,
    /// Fires when there may be a place at the door.
    full: Option<Pin<Box<Sleep>>>,
    handshakes: JoinSet<Option<Connection>>,
    killed: CancellationToken,
}

impl Incoming {
    /// Accepts until a connection can be served. Starts TLS handshakes, whose connections come from `handshakes`.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Option<Connection>> {
        loop {
            std::task::ready!(self.poll_room(cx));
            let Some((stream, peer)) = std::task::ready!(self.source.poll_accept(cx)) else {
                return Poll::Ready(None);
            };
            stream.prepare(self.options.keepalive, None);
            let killed = self.killed.child_token();
            let pass = self.door.enter(peer, Instant::now(), killed.clone());
            let timeout = self.options.handshake_timeout;
            let begins = Begins { peer, killed, pass, timeout };
            match &self.options.tls {
                None => return Poll::Ready(Some(begins.plain(stream))),
                Some(tls) => {
                    self.handshakes.spawn(begins.tls(stream, tls.clone()));
                }
            }
        }
    }

    /// Ready when there is a place at the door for another connection. Until then, connections wait in the kernel.
    /// A finished handshake wakes the task through `poll_join_next`.
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some(full) = &mut self.full {
                let over = full.as_mut().poll(cx).is_ready();
                if !over && self.door.room(Instant::now()).is_err() {
                    return Poll::Pending;
                }
                self.full = None;
            }
            match self.door.room(Instant::now()) {
                Ok(()) => return Poll::Ready(()),
                Err(until) => self.full = Some(Box::pin(tokio::time::sleep_until(until))),
            }
        }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            // Finished handshakes first, because they free places.
            match this.handshakes.poll_join_next(cx) {
                Poll::Ready(Some(Ok(Some(connection)))) => return Poll::Ready(Some(Ok(connection))),
                Poll::Ready(Some(Ok(None))) => continue,
                Poll::Ready(Some(Err(error))) => {
                    tracing::error!(%error, "a TLS handshake panicked");
                    continue;
                }
                Poll::Ready(None) | Poll::Pending => {}
            }
            let before = this.handshakes.len();
            match this.poll_accept(cx) {
                Poll::Ready(Some(connection)) => return Poll::Ready(Some(Ok(connection))),
                Poll::Ready(None) if this.handshakes.is_empty() => return Poll::Ready(None),
                Poll::Ready(None) | Poll::Pending => {}
            }
            if this.handshakes.len() == before {
                return Poll::Pending;
            }
            // A handshake that was just started does not have the task's waker yet, so poll again.
        }
    }
}

/// A connection that was accepted and has sent nothing yet.
struct Begins {
    peer: Peer,
    killed: CancellationToken,
    pass: Pass,
    timeout: Duration,
}

impl Begins {
    fn plain(self, stream: stream::Stream) -> Connection {
        let Self { peer, killed, pass, timeout } = self;
        Connection::new(Transport::Plain(stream), peer, killed, Some((pass, timeout)))
    }

    async fn tls(self, stream: stream::Stream, tls: ServerTls) -> Option<Connection> {
        let (peer, timeout, killed) = (self.peer, self.timeout, self.killed.clone());
        let handshake = tokio::time::timeout(timeout, self.handshake(stream, tls));
        match killed.run_until_cancelled(handshake).await {
            Some(Ok(connection)) => connection,
            Some(Err(_)) => {
                GivenUp::Late.counted();
                tracing::debug!(%peer, ?timeout, "TLS handshake took too long");
                None
            }
            None => {
                tracing::debug!(%peer, "another connection got the place of one in its TLS handshake");
                None
            }
        }
    }

    async fn handshake(self, stream: stream::Stream, tls: ServerTls) -> Option<Connection> {
        match stream.first_byte().await {
            Ok(Some(TLS_HANDSHAKE)) => {}
            Ok(Some(_)) if tls.settings().allow_plaintext => return Some(self.plain(stream)),
            // Not TLS; rustls reports the error.
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return None,
        }
        self.pass.spoke();
        let Self { peer, killed, pass, timeout } = self;
        match TlsAcceptor::from(tls.current()).accept(stream).await {
            Ok(stream) => {
                Some(Connection::new(Transport::Tls(Box::new(stream)), peer, killed, Some((pass, timeout))))
            }
            Err(error) => {
                GivenUp::Failed.counted();
                tracing::debug!(%peer, %error, "TLS handshake failed");
                None
            }
        }
    }
}
