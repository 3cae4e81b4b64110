//! turmoil's TCP as the network of routers, shards and clients.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use anyhow::Context as _;
use futures_util::FutureExt as _;
use kindred_tests::client::Client;
use kindred_transport::{
    ConnectOptions, Connector, Endpoint,
    network::{Connecting, Network, OtherListener, OtherNetwork, OtherStream},
};
use parking_lot::Mutex;
use turmoil::net::{TcpListener, TcpStream};

use crate::seconds;

/// The network of the simulation that this thread runs.
pub fn simulated() -> Network {
    Network::Other(Arc::new(Simulated))
}

/// A client over it. It notices a peer that is gone without a word, as a kube-apiserver's does, only sooner.
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
        // Only its signature waits.
        let bound = TcpListener::bind((host, port)).now_or_never();
        let listener = bound.unwrap_or_else(|| Err(io::Error::other("turmoil does not bind at once")))?;
        Ok(Box::new(Listening { listener: Arc::new(listener), accepting: Mutex::new(None) }))
    }

    fn connect(&self, host: &str, port: u16) -> Connecting {
        let host = host.to_owned();
        Box::pin(async move {
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            Ok(Box::new(stream) as Box<dyn OtherStream>)
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
        Poll::Ready(Ok((Box::new(stream), peer)))
    }
}
