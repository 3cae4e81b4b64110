//! turmoil's TCP as the network of routers, shards and clients.
//!
//! turmoil sends nothing again, so a connection that loses a message is dead, and neither side gets an error. A real
//! kernel reports an error to the side that connected after [`UNACKNOWLEDGED_MAX`] without an acknowledgement. Here
//! [`Paths`] does that.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::FutureExt as _;
use kindred_tests::client::Client;
use kindred_transport::{
    ConnectOptions, Connector, Endpoint,
    connect::UNACKNOWLEDGED_MAX,
    network::{Connecting, Network, OtherListener, OtherNetwork, OtherStream},
};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::{TcpListener, TcpStream};

use crate::cluster::SimClock;
use crate::seconds;

/// The network of the simulation that this thread runs.
pub fn simulated() -> Network {
    Network::Other(Arc::new(Simulated))
}

/// A client over the simulated network. Its keepalive notices a silent peer, like a kube-apiserver's, only sooner.
pub fn connect(address: &str) -> anyhow::Result<Client> {
    let options = ConnectOptions {
        network: simulated(),
        keepalive_interval: seconds(2),
        keepalive_timeout: seconds(2),
        ..ConnectOptions::default()
    };
    let endpoint: Endpoint = address.parse().context("an address of the simulation")?;
    Ok(Client::over(Connector::new(options).channel(&endpoint)?))
}

#[derive(Debug)]
struct Simulated;

impl OtherNetwork for Simulated {
    fn listen(&self, host: &str, port: u16) -> io::Result<Box<dyn OtherListener>> {
        // `bind` is an async function that never waits.
        let bound = TcpListener::bind((host, port)).now_or_never();
        let listener = bound.unwrap_or_else(|| Err(io::Error::other("turmoil does not bind at once")))?;
        Ok(Box::new(Listening { listener: Arc::new(listener), accepting: Mutex::new(None) }))
    }

    fn connect(&self, host: &str, port: u16) -> Connecting {
        let host = host.to_owned();
        Box::pin(async move {
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            let ends = (stream.local_addr()?, stream.peer_addr()?);
            let path = Paths::get().between(ends);
            Ok(Box::new(Connected { stream, path, ends, connected: true }) as Box<dyn OtherStream>)
        })
    }
}

type Accepting = Pin<Box<dyn Future<Output = io::Result<(TcpStream, SocketAddr)>> + Send>>;

struct Listening {
    listener: Arc<TcpListener>,
    /// The accept that is under way.
    accepting: Mutex<Option<Accepting>>,
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").finish_non_exhaustive()
    }
}

impl OtherListener for Listening {
    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Box<dyn OtherStream>, SocketAddr)>> {
        let mut accepting = self.accepting.lock();
        let accept = accepting.get_or_insert_with(|| {
            let listener = self.listener.clone();
            Box::pin(async move { listener.accept().await })
        });
        let accepted = ready!(accept.as_mut().poll(cx));
        *accepting = None;
        let (stream, peer) = accepted?;
        let ends = (peer, stream.local_addr()?);
        let path = Paths::get().between(ends);
        Poll::Ready(Ok((Box::new(Connected { stream, path, ends, connected: false }), peer)))
    }
}

/// Only the holder of this lock may simulate. The clock and [`Paths`] are the process', and tests run concurrently.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock();
    // Dropped after the lock is released, because a reader that it wakes may drop connections, which takes the
    // lock.
    let before = std::mem::take(&mut *Paths::get().0.lock());
    drop(before);
    alone
}

/// The links that are cut, and the connections that have lost messages.
#[derive(Debug, Default)]
pub struct Paths(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    cut: BTreeSet<(IpAddr, IpAddr)>,
    paths: BTreeMap<Ends, Arc<Mutex<Path>>>,
}

/// The address of the side that connected, and the other one's.
type Ends = (SocketAddr, SocketAddr);

/// The state of a connection, which both sides share.
#[derive(Debug, Default)]
struct Path {
    /// The time of the first lost message, since the start of the simulation.
    lost: Option<Duration>,
    /// The side that connected gets an error from now on.
    failed: bool,
    /// Wakes the reader of the side that connected.
    reader: Option<Waker>,
}

impl Paths {
    /// The paths of the only simulation of this process.
    pub fn get() -> &'static Self {
        static PATHS: LazyLock<Paths> = LazyLock::new(Paths::default);
        &PATHS
    }

    /// From now on messages between two hosts are lost, or with `cut` false no longer.
    pub fn cut(&self, one: IpAddr, other: IpAddr, cut: bool) {
        let mut state = self.0.lock();
        for pair in [(one, other), (other, one)] {
            if cut {
                state.cut.insert(pair);
            } else {
                state.cut.remove(&pair);
            }
        }
    }

    /// Fails the connections whose first lost message is [`UNACKNOWLEDGED_MAX`] old.
    pub fn pass(&self, now: Duration) {
        self.0.lock().paths.retain(|_, path| {
            let mut path = path.lock();
            if path.lost.is_some_and(|lost| now >= lost + UNACKNOWLEDGED_MAX) {
                path.failed = true;
                path.reader.take().into_iter().for_each(Waker::wake);
            }
            !path.failed
        });
    }

    fn between(&self, ends: Ends) -> Arc<Mutex<Path>> {
        self.0.lock().paths.entry(ends).or_default().clone()
    }

    fn are_cut(&self, (one, other): Ends) -> bool {
        self.0.lock().cut.contains(&(one.ip(), other.ip()))
    }
}

/// One side of a connection.
#[derive(Debug)]
struct Connected {
    stream: TcpStream,
    path: Arc<Mutex<Path>>,
    ends: Ends,
    /// Whether this is the side that connected.
    connected: bool,
}

/// Removes the path, because a host that starts again may use the same port for a new connection.
impl Drop for Connected {
    fn drop(&mut self) {
        if self.connected {
            Paths::get().0.lock().paths.remove(&self.ends);
        }
    }
}

impl Connected {
    fn sends(&self) {
        if Paths::get().are_cut(self.ends) {
            let now = Duration::from_millis(SimClock::get().millis());
            self.path.lock().lost.get_or_insert(now);
        }
    }
}

impl AsyncRead for Connected {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.connected {
            let mut path = this.path.lock();
            if path.failed {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            path.reader = Some(cx.waker().clone());
        }
        Pin::new(&mut this.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Connected {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.sends();
        Pin::new(&mut this.stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.sends();
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}
