//! Listening sockets: TCP and Unix.

use std::fs::{self, Permissions};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixSocket, UnixStream, lookup_host};

use super::ListenOptions;
use super::connection::Peer;
use crate::address::{Host, Target};
use crate::inside::Accepting;
use crate::network::{Network, OtherListener};
use crate::stream::Stream;

/// The mode of a Unix socket. Only the owner may connect, because clients show no certificates there.
const OWNER_ONLY: u32 = 0o600;
/// The assumed maximum time between the bind and the listen of a Unix socket, when it refuses connections like a
/// dead one.
const STARTING: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpListener),
    /// The file is dropped first: while the socket is open, no other file can have its inode.
    Unix(#[allow(dead_code, reason = "removes the file when dropped")] SocketFile, UnixListener),
    Other(Box<dyn OtherListener>),
    /// A socket, and the place for clients of this process.
    Inside(Box<Self>, Accepting),
}

impl Socket {
    pub async fn bind(target: &Target, options: &ListenOptions) -> io::Result<Self> {
        if let (Network::Other(network), Target::Tcp { host, port }) = (&options.network, target) {
            return Ok(Self::Other(network.listen(&host.to_string(), *port)?));
        }
        let socket = Self::of_system(target, options).await?;
        if let Network::Inside(inside) = &options.network {
            let at = match socket.local_addr() {
                Some(address) => Target::Tcp { host: Host::Ip(address.ip()), port: address.port() },
                None => target.clone(),
            };
            return Ok(Self::Inside(Box::new(socket), inside.listen(at)));
        }
        Ok(socket)
    }

    async fn of_system(target: &Target, options: &ListenOptions) -> io::Result<Self> {
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
            Target::Unix(path) => unix(path, options.backlog).await,
        }
    }

    pub fn local_addr(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
            Self::Other(listener) => listener.local_addr().ok(),
            Self::Inside(socket, _) => socket.local_addr(),
        }
    }

    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, Peer)>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = ready!(listener.poll_accept(cx))?;
                Poll::Ready(Ok((Stream::Tcp(stream), Peer::Tcp(peer))))
            }
            Self::Unix(_, listener) => {
                let (stream, _) = ready!(listener.poll_accept(cx))?;
                Poll::Ready(Ok((Stream::Unix(stream), Peer::Unix)))
            }
            Self::Other(listener) => {
                let (stream, peer) = ready!(listener.poll_accept(cx))?;
                Poll::Ready(Ok((Stream::Other(stream), Peer::Tcp(peer))))
            }
            Self::Inside(socket, place) => match place.poll_accept(cx) {
                // As a client of this machine, which it is.
                Poll::Ready(pipe) => Poll::Ready(Ok((Stream::Other(Box::new(pipe)), Peer::Unix))),
                Poll::Pending => socket.poll_accept(cx),
            },
        }
    }
}

fn tcp(address: SocketAddr, options: &ListenOptions) -> io::Result<Socket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted process must get its port back while old connections linger in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() {
        // As in etcd, [::] includes IPv4, whatever the system's default.
        socket2::SockRef::from(&socket).set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(address)?;
    Ok(Socket::Tcp(socket.listen(options.backlog)?))
}

async fn unix(path: &Path, backlog: u32) -> io::Result<Socket> {
    let bind = || {
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        io::Result::Ok(socket)
    };
    let bound = match bind() {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path).await?;
            bind()
        }
        bound => bound,
    };
    let socket = bound.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), "its directory does not exist"),
        _ => error,
    })?;
    let file = SocketFile { path: path.to_owned(), inode: fs::symlink_metadata(path)?.ino() };
    // Before it listens, so that no other user can connect.
    fs::set_permissions(path, Permissions::from_mode(OWNER_ONLY))?;
    Ok(Socket::Unix(file, socket.listen(backlog)?))
}

/// Removes the socket file of a killed process. Keeps the socket of a running one, and any other file.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let Some(dead) = dead_socket(path).await? else { return Ok(()) };
    // The socket may just be starting up.
    tokio::time::sleep(STARTING).await;
    match dead_socket(path).await? {
        None => Ok(()),
        Some(still) if still == dead => fs::remove_file(path),
        Some(_) => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// The inode of a socket on which no process listens; `None` if the path is free.
async fn dead_socket(path: &Path) -> io::Result<Option<u64>> {
    let file = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    // Connecting to another kind of file is refused as well, so check the type first.
    if !file.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket is there"));
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(Some(file.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "another user's socket is there"))
        }
        Ok(_) | Err(_) => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// The file of a Unix socket. It is removed on drop, unless another process has taken the path.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}
