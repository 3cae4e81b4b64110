//! Sockets of all kinds, and a macro that forwards reads and writes to the variants of an enum.

use std::io;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};

use crate::network::OtherStream;

/// The first byte of a TLS connection: a handshake record. No HTTP request begins with it.
pub(crate) const TLS_HANDSHAKE: u8 = 0x16;

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// A stream of another network, or a pipe to a server of this process.
    Other(Box<dyn OtherStream>),
}

impl Stream {
    /// Configures a new connection. If it is closed already, its first read will fail. With `unacknowledged`, the
    /// connection fails when the peer's kernel has not acknowledged data for so long (`TCP_USER_TIMEOUT`, RFC 5482).
    pub fn prepare(&self, keepalive: Option<Duration>, unacknowledged: Option<Duration>) {
        if let Self::Tcp(stream) = self {
            let _ = stream.set_nodelay(true);
            if let Some(idle) = keepalive {
                let probes = socket2::TcpKeepalive::new().with_time(idle).with_interval(idle);
                let _ = socket2::SockRef::from(stream).set_tcp_keepalive(&probes);
            }
            #[cfg(target_os = "linux")]
            if unacknowledged.is_some() {
                let _ = socket2::SockRef::from(stream).set_tcp_user_timeout(unacknowledged);
            }
            #[cfg(not(target_os = "linux"))]
            let _ = unacknowledged;
        }
    }

    /// Peeks at the first byte; `None` at the end. Sockets without peek count as TLS.
    pub async fn first_byte(&self) -> io::Result<Option<u8>> {
        match self {
            Self::Tcp(stream) => {
                let mut byte = [0];
                Ok((stream.peek(&mut byte).await? > 0).then_some(byte[0]))
            }
            Self::Unix(_) | Self::Other(_) => Ok(Some(TLS_HANDSHAKE)),
        }
    }
}

/// Implements reading and writing for an enum by its variants.
macro_rules! forward {
    ($type:ty, $($variant:path),+) => {
        impl tokio::io::AsyncRead for $type {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                into: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                match self.get_mut() {
                    $($variant(io) => std::pin::Pin::new(io).poll_read(cx, into),)+
                }
            }
        }

        impl tokio::io::AsyncWrite for $type {
            fn poll_write(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                bytes: &[u8],
            ) -> std::task::Poll<std::io::Result<usize>> {
                match self.get_mut() {
                    $($variant(io) => std::pin::Pin::new(io).poll_write(cx, bytes),)+
                }
            }

            fn poll_write_vectored(
                self: std::pin::Pin<&mut Self>,
                cx: &mut std::task::Context<'_>,
                slices: &[std::io::IoSlice<'_>],
            ) -> std::task::Poll<std::io::Result<usize>> {
                match self.get_mut() {
                    $($variant(io) => std::pin::Pin::new(io).poll_write_vectored(cx, slices),)+
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    $($variant(io) => io.is_write_vectored(),)+
                }
            }

            fn poll_flush(self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<std::io::Result<()>> {
                match self.get_mut() {
                    $($variant(io) => std::pin::Pin::new(io).poll_flush(cx),)+
                }
            }

            fn poll_shutdown(self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<std::io::Result<()>> {
                match self.get_mut() {
                    $($variant(io) => std::pin::Pin::new(io).poll_shutdown(cx),)+
                }
            }
        }
    };
}

forward!(Stream, Stream::Tcp, Stream::Unix, Stream::Other);

pub(crate) use forward;
