//! The network that a server uses: the machine's, or one of an embedding program.
//!
//! With another network the same servers run in a simulation (`tests/netsim`). It is set once in
//! [`ListenOptions`](crate::ListenOptions) and [`ConnectOptions`](crate::ConnectOptions). The other code, including
//! TLS and coalesced writes, does not depend on it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite};

use crate::inside::Inside;

#[derive(Debug, Clone, Default)]
pub enum Network {
    /// The machine's network.
    #[default]
    System,
    /// The machine's network, and pipes to servers of this process.
    Inside(Inside),
    /// Another network, without Unix sockets.
    Other(Arc<dyn OtherNetwork>),
}

impl Network {
    /// Whether other processes reach a server on it. A program that brings its own network knows who is on it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !matches!(self, Self::Other(_))
    }
}

/// A network outside the operating system, with the semantics of TCP.
pub trait OtherNetwork: fmt::Debug + Send + Sync {
    /// Listens at `host:port`.
    ///
    /// # Errors
    /// Those of binding a TCP socket.
    fn listen(&self, host: &str, port: u16) -> io::Result<Box<dyn OtherListener>>;

    /// Connects to `host:port`. The caller limits the time.
    ///
    /// # Errors
    /// Those of connecting a TCP socket.
    fn connect(&self, host: &str, port: u16) -> Connecting;
}

pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Box<dyn OtherStream>>> + Send>>;

/// A listening socket of another network.
pub trait OtherListener: fmt::Debug + Send + Sync {
    /// The bound address.
    ///
    /// # Errors
    /// When the socket is gone.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// The next connection with its remote address.
    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Box<dyn OtherStream>, SocketAddr)>>;
}

/// A connection of another network.
pub trait OtherStream: AsyncRead + AsyncWrite + fmt::Debug + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Sync + Unpin> OtherStream for T {}
