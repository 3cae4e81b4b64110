//! The listening socket, TCP or Unix.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream, lookup_host};

use super::ListenOptions;
use super::connection::Peer;
use crate::address::{Host, Target};
use crate::network::{Network, OtherListener};
use crate::stream::Stream;

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, #[allow(dead_code, reason = "removes the file when dropped")] SocketFile),
    Other(Box<dyn OtherListener>),
}

impl Socket {
    pub async fn bind(target: &Target, options: &ListenOptions) -> io::Result<Self> {
        if let (Network::Other(network), Target::Tcp { host, port }) = (&options.network, target) {
            return Ok(Self::Other(network.listen(&host.to_string(), *port)?));
        }
        match target {
            Target::Tcp { host: Host::Ip(ip), port } => tcp(SocketAddr::new(*ip, *port), options),
            Target::Tcp { host: Host::Name(name), port } => {
                let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
                for address in lookup_host((name.as_str(), *port)).await? {
                    match tcp(address, options) {
                        Ok(socket) => return Ok(socket),
                        Err(error) => failed = error,
                    }
                }
                Err(failed)
            }
            Target::Unix(path) => unix(path).await,
        }
    }

    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
            Self::Other(listener) => listener.local_addr().ok(),
        }
    }

    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, Peer)>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = ready!(listener.poll_accept(cx))?;
                Poll::Ready(Ok((Stream::Tcp(stream), Peer::Tcp(peer))))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = ready!(listener.poll_accept(cx))?;
                Poll::Ready(Ok((Stream::Unix(stream), Peer::Unix)))
            }
            Self::Other(listener) => {
                let (stream, peer) = ready!(listener.poll_accept(cx))?;
                Poll::Ready(Ok((Stream::Other(stream), Peer::Tcp(peer))))
            }
        }
    }
}

fn tcp(address: SocketAddr, options: &ListenOptions) -> io::Result<Socket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted process must get its port back while old connections linger in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() {
        // As in etcd, [::] means IPv4 too, whatever the system's default.
        socket2::SockRef::from(&socket).set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(address)?;
    Ok(Socket::Tcp(socket.listen(options.backlog)?))
}

async fn unix(path: &Path) -> io::Result<Socket> {
    let bound = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // A process that was killed leaves its file; a living one answers.
            match UnixStream::connect(path).await {
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path)?;
                    UnixListener::bind(path)?
                }
                Ok(_) | Err(_) => return Err(error),
            }
        }
        bound => bound?,
    };
    let inode = std::fs::symlink_metadata(path)?.ino();
    Ok(Socket::Unix(bound, SocketFile { path: path.to_owned(), inode }))
}

/// The file of a Unix socket, removed at the end unless another process took the path meanwhile.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode);
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
