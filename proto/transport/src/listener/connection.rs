//! An accepted connection and what is known of its client.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::door::{GivenUp, Pass};
use crate::coalesce::Coalesce;
use crate::stream::{Stream, forward};
use crate::tls::ClientIdentity;

/// The remote end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Tcp(SocketAddr),
    /// A process of this machine, through a Unix socket.
    Unix,
}

impl Peer {
    #[must_use]
    pub fn is_this_machine(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix => true,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix => f.write_str("unix"),
        }
    }
}

/// Facts about a connection, available as an extension of each of its requests.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    pub peer: Peer,
    pub tls: bool,
    /// The client's verified certificate, if the server required one.
    pub client: Option<Arc<ClientIdentity>>,
}

impl ConnectionInfo {
    /// The connection of a request, from the request's extensions.
    #[must_use]
    pub fn of(extensions: &http::Extensions) -> Option<&Self> {
        extensions.get()
    }

    /// The common name of the client's certificate, if it has one.
    #[must_use]
    pub fn common_name(&self) -> Option<&str> {
        self.client.as_deref().map(|client| client.common_name.as_str()).filter(|name| !name.is_empty())
    }
}

#[derive(Debug)]
pub(super) enum Transport {
    Plain(Stream),
    Tls(Box<TlsStream<Stream>>),
}

/// An accepted connection, with coalesced writes.
pub struct Connection {
    io: Coalesce<Transport>,
    info: ConnectionInfo,
    /// Present until the beginning of HTTP has arrived.
    beginning: Option<Box<Beginning>>,
    /// What was read to see which HTTP it is, to be read again.
    again: Vec<u8>,
    /// Set by every read; the observer clears it.
    heard: Arc<AtomicBool>,
    closed: CancellationToken,
    killed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection {
    /// A connection that may hold a place at the door (`at_door`) until the beginning of HTTP arrives, within the
    /// given time.
    pub(super) fn new(
        transport: Transport,
        peer: Peer,
        killed: CancellationToken,
        at_door: Option<(Pass, Duration)>,
    ) -> Self {
        let (tls, client) = match &transport {
            Transport::Plain(_) => (false, None),
            Transport::Tls(stream) => {
                let chain = stream.get_ref().1.peer_certificates();
                (true, chain.and_then(ClientIdentity::of_chain).map(Arc::new))
            }
        };
        Self {
            io: Coalesce::new(transport),
            info: ConnectionInfo { peer, tls, client },
            beginning: at_door.map(|(pass, within)| {
                let late = Box::pin(tokio::time::sleep(within));
                Box::new(Beginning { bytes: [0; HTTP2_PREFACE.len()], filled: 0, late, pass })
            }),
            again: Vec::new(),
            heard: Arc::default(),
            closed: killed.clone(),
            killed: Box::pin(killed.cancelled_owned()),
        }
    }

    /// A flag that every read sets. The caller clears it.
    #[must_use]
    pub fn heard(&self) -> Arc<AtomicBool> {
        self.heard.clone()
    }

    /// A token that closes the connection, whatever it carries.
    #[must_use]
    pub fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    #[must_use]
    pub fn info(&self) -> ConnectionInfo {
        self.info.clone()
    }

    /// Ready when the server wants the connection to end at once. Reads that wait hear of it by themselves.
    pub(crate) fn poll_killed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.killed.as_mut().poll(cx)
    }

    /// As [`Coalesce::poll_write_now`].
    pub(crate) fn poll_write_now(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io.poll_write_now(cx, slices)
    }

    /// As [`Coalesce::poll_flush_now`].
    pub(crate) fn poll_flush_now(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_flush_now(cx)
    }

    /// Waits until it is clear which HTTP the client speaks: HTTP/2 begins with a preface that no request of HTTP/1 has.
    ///
    /// # Errors
    /// When the connection ends before, or its beginning is late.
    pub async fn speaks_http2(&mut self) -> io::Result<bool> {
        let mut read = [0; HTTP2_PREFACE.len()];
        let mut filled = 0;
        while filled < read.len() && HTTP2_PREFACE.starts_with(&read[..filled]) {
            match self.read(&mut read[filled..]).await? {
                0 => break,
                more => filled += more,
            }
        }
        self.again = read[..filled].to_vec();
        Ok(HTTP2_PREFACE == &read)
    }
}

const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The progress of the beginning of HTTP: as many bytes as HTTP/2's preface has, or a whole head of HTTP/1. A head that
/// is shorter than the preface is one without `Host`, as HTTP/1.0 allows.
struct Beginning {
    bytes: [u8; HTTP2_PREFACE.len()],
    filled: usize,
    late: Pin<Box<Sleep>>,
    pass: Pass,
}

impl Beginning {
    /// Called after a read of `bytes`: ready when the beginning is complete or late.
    fn poll(&mut self, cx: &mut Context<'_>, bytes: &[u8], waits: bool) -> Poll<io::Result<()>> {
        if self.is_complete_with(bytes) {
            return Poll::Ready(Ok(()));
        }
        if !bytes.is_empty() {
            self.pass.spoke();
        }
        if waits && self.late.as_mut().poll(cx).is_ready() {
            GivenUp::Late.counted();
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the beginning of HTTP did not come",
            )));
        }
        Poll::Pending
    }

    fn is_complete_with(&mut self, bytes: &[u8]) -> bool {
        let rest = &mut self.bytes[self.filled..];
        if bytes.len() >= rest.len() {
            return true;
        }
        rest[..bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        let beginning = &self.bytes[..self.filled];
        // HTTP/2's preface has an empty line in its middle.
        !HTTP2_PREFACE.starts_with(beginning) && has_empty_line(beginning)
    }
}

/// Whether a head of HTTP/1 ends here; lines may end without a carriage return.
fn has_empty_line(head: &[u8]) -> bool {
    head.windows(2).any(|end| end == b"\n\n") || head.windows(3).any(|end| end == b"\n\r\n")
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        self.info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.again.is_empty() && into.remaining() > 0 {
            let fits = this.again.len().min(into.remaining());
            into.put_slice(&this.again[..fits]);
            this.again.drain(..fits);
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        let read = Pin::new(&mut this.io).poll_read(cx, into);
        if let Some(beginning) = &mut this.beginning {
            match beginning.poll(cx, &into.filled()[before..], read.is_pending()) {
                Poll::Ready(Ok(())) => this.beginning = None,
                Poll::Ready(Err(late)) => return Poll::Ready(Err(late)),
                Poll::Pending => {}
            }
        }
        if read.is_ready() {
            this.heard.store(true, Ordering::Relaxed);
        }
        // Checked only when nothing can be read, which a busy connection soon reaches, to keep the token off the
        // hot path.
        if read.is_pending() && this.poll_killed(cx).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server stops")));
        }
        read
    }
}

impl AsyncWrite for Connection {
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

forward!(Transport, Transport::Plain, Transport::Tls);
