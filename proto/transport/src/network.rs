//! Whose sockets: this machine's, or those of another network that an embedding program brings.
//!
//! The other network is how the same servers run over a simulated one (`tests/netsim`). It is chosen once, in
//! [`ListenOptions`](crate::ListenOptions) and [`ConnectOptions`](crate::ConnectOptions); the rest of a server, TLS and
//! coalesced writes included, does not know which it is.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};

/// Whose sockets are used.
#[derive(Debug, Clone, Default)]
pub enum Network {
    /// This machine's.
    #[default]
    System,
    /// Another network's. It knows no Unix sockets.
    Other(Arc<dyn OtherNetwork>),
}

/// A network that is not the machine's: TCP without the operating system.
pub trait OtherNetwork: fmt::Debug + Send + Sync {
    /// Listens at `host:port`.
    ///
    /// # Errors
    /// As binding a TCP socket.
    fn listen(&self, host: &str, port: u16) -> io::Result<Box<dyn OtherListener>>;

    /// Connects to `host:port`; the caller limits the time.
    ///
    /// # Errors
    /// As connecting a TCP socket.
    fn connect(&self, host: &str, port: u16) -> Connecting;
}

/// A connection that is being made.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn OtherStream>>> + Send>>;

/// A listening socket of another network.
pub trait OtherListener: fmt::Debug + Send + Sync {
    /// The bound address.
    ///
    /// # Errors
    /// When the socket is gone.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// The next connection and who is at its other end.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Box<dyn OtherStream>, SocketAddr)>>;
}

/// A connection of another network.
pub trait OtherStream: AsyncRead + AsyncWrite + fmt::Debug + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Sync + Unpin> OtherStream for T {}
