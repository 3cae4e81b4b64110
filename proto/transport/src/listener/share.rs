//! Distributes accepted connections among several runtimes.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use tokio::sync::mpsc;

use super::Incoming;
use super::connection::Peer;
use super::source::Source;
use crate::network::OtherStream;
use crate::stream::Stream;

/// The maximum number of connections that wait for a busy runtime.
const WAITING_MAX: usize = 256;

/// A connection that is not registered with any runtime.
#[derive(Debug)]
pub(super) enum Loose {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
    Other(Box<dyn OtherStream>, Peer),
}

impl Loose {
    fn of(stream: Stream, peer: Peer) -> io::Result<Self> {
        Ok(match (stream, peer) {
            (Stream::Tcp(stream), Peer::Tcp(address)) => Self::Tcp(stream.into_std()?, address),
            (Stream::Unix(stream), _) => Self::Unix(stream.into_std()?),
            (Stream::Other(stream), peer) => Self::Other(stream, peer),
            (Stream::Tcp(_), Peer::Unix) => {
                return Err(io::Error::other("a TCP connection without an address"));
            }
        })
    }

    /// Registers the connection with the current runtime.
    pub(super) fn join(self) -> io::Result<(Stream, Peer)> {
        Ok(match self {
            Self::Tcp(stream, address) => {
                (Stream::Tcp(tokio::net::TcpStream::from_std(stream)?), Peer::Tcp(address))
            }
            Self::Unix(stream) => (Stream::Unix(tokio::net::UnixStream::from_std(stream)?), Peer::Unix),
            Self::Other(stream, peer) => (Stream::Other(stream), peer),
        })
    }
}

/// Accepts connections and hands them to the shares in turn.
#[derive(Debug)]
pub struct HandsOut {
    source: Source,
    to: Vec<mpsc::Sender<Loose>>,
}

impl HandsOut {
    /// Runs until it is dropped or no share is left.
    pub async fn run(mut self) {
        let mut turn = 0;
        while !self.to.is_empty() {
            let Some((stream, peer)) = std::future::poll_fn(|cx| self.source.poll_accept(cx)).await else {
                return;
            };
            let loose = match Loose::of(stream, peer) {
                Ok(loose) => loose,
                Err(error) => {
                    tracing::warn!(%peer, %error, "a connection was lost on its way to the thread that serves it");
                    continue;
                }
            };
            turn = (turn + 1) % self.to.len();
            if self.to[turn].send(loose).await.is_err() {
                self.to.remove(turn);
            }
        }
    }
}

impl Incoming {
    /// Splits the stream into an acceptor and `shares` streams, each for its own runtime. The shares perform the
    /// TLS handshakes.
    #[must_use]
    pub fn split(self, shares: usize) -> (HandsOut, Vec<Self>) {
        let (to, from): (Vec<_>, Vec<_>) = (0..shares).map(|_| mpsc::channel(WAITING_MAX)).unzip();
        let share = |from| Self {
            source: Source::Handed(from),
            options: self.options.clone(),
            door: self.door.clone(),
            full: None,
            handshakes: Default::default(),
            killed: self.killed.clone(),
        };
        (HandsOut { source: self.source, to }, from.into_iter().map(share).collect())
    }
}
