//! Connections between servers and clients of one process, which no kernel carries.
//!
//! A server that listens with [`Network::Inside`](crate::network::Network::Inside) is reached at its address by other processes as
//! always. Clients of its own process that have the same [`Inside`] reach it through a pipe in memory. Where both run on
//! one thread, a call and its answer need no system call and no sleep.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc;

use crate::address::Target;

/// What a pipe holds in each direction before its writer waits.
const PIPE_BYTES: usize = 256 << 10;
/// Connections that a server has not accepted yet.
const WAITING_MAX: usize = 256;

/// The servers of this process, by their addresses. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Inside(Arc<Mutex<HashMap<Target, mpsc::Sender<DuplexStream>>>>);

/// The place of a server, until it is dropped.
#[derive(Debug)]
pub(crate) struct Accepting {
    inside: Inside,
    at: Target,
    connections: Mutex<mpsc::Receiver<DuplexStream>>,
}

impl Inside {
    /// Lets clients of this process connect to a server at its address. It takes the place of one that was there.
    pub(crate) fn listen(&self, at: Target) -> Accepting {
        let (sender, connections) = mpsc::channel(WAITING_MAX);
        self.0.lock().insert(at.clone(), sender);
        Accepting { inside: self.clone(), at, connections: Mutex::new(connections) }
    }

    /// A connection to the server of this process at this address; `None` if there is none.
    pub(crate) async fn connect(&self, to: &Target) -> Option<DuplexStream> {
        let sender = self.0.lock().get(to)?.clone();
        let (client, server) = duplex(PIPE_BYTES);
        sender.send(server).await.ok()?;
        Some(client)
    }
}

impl Accepting {
    /// The next connection.
    pub(crate) fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<DuplexStream> {
        match self.connections.lock().poll_recv(cx) {
            Poll::Ready(Some(connection)) => Poll::Ready(connection),
            // Another server has taken the place.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.connections.lock().close();
        let mut servers = self.inside.0.lock();
        if servers.get(&self.at).is_some_and(mpsc::Sender::is_closed) {
            servers.remove(&self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::path::PathBuf;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_server_is_reached_while_it_is_there() {
        let (inside, at) = (Inside::default(), Target::Unix(PathBuf::from("/a")));
        assert!(inside.connect(&at).await.is_none());
        let first = inside.listen(at.clone());
        let second = inside.listen(at.clone());
        // What the first one leaves behind is not its own place any more.
        drop(first);
        let mut client = inside.connect(&at).await.unwrap();
        let mut server = poll_fn(|cx| second.poll_accept(cx)).await;
        client.write_all(b"hello").await.unwrap();
        let mut said = [0; 5];
        server.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"hello");
        drop(second);
        assert!(inside.connect(&at).await.is_none() && inside.0.lock().is_empty());
        drop(server);
        assert_eq!(client.read(&mut said).await.unwrap(), 0);
        assert!(client.write_all(b"more").await.is_err());
    }
}
