//! A link between two processes that a test can cut and heal: a Unix socket in front of a server. Several processes can
//! get the same relative path of a socket. Each finds its own link there, in its own working directory.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use anyhow::Context;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixListener, UnixStream},
    runtime::{self, Runtime},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

const BUFFER_BYTES: usize = 64 << 10;

/// Links have a runtime of their own. Otherwise a scenario that blocks its threads, for example by reading a large
/// file, would look like a cut network.
static LINKS: LazyLock<Runtime> = LazyLock::new(|| {
    let links =
        runtime::Builder::new_multi_thread().worker_threads(2).thread_name("links").enable_all().build();
    links.expect("a runtime can be made")
});

/// How a link is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Nothing comes through in either direction, and neither side gets an error. Sent bytes arrive when the link is
    /// healed.
    Silent,
    /// The same, in the direction to the server only.
    ToServer,
    /// The same, in the direction to the client only.
    ToClient,
    /// Connections are lost, and new ones are refused.
    Refused,
}

/// A link. All its connections end when it is dropped.
#[derive(Debug)]
pub struct Link {
    /// How the link is cut; `None` if it is not.
    cut: watch::Sender<Option<Cut>>,
    task: JoinHandle<()>,
}

impl Link {
    /// Opens a link from `socket` to the server at `host:port`.
    ///
    /// # Errors
    /// If the socket cannot be opened.
    pub fn open(socket: &Path, server: &str) -> anyhow::Result<Self> {
        let _links = LINKS.enter();
        let listener =
            UnixListener::bind(socket).with_context(|| format!("listening on {}", socket.display()))?;
        let (cut, state) = watch::channel(None);
        let task = LINKS.spawn(run(listener, socket.to_owned(), server.to_owned(), state));
        Ok(Self { cut, task })
    }

    /// Cuts the link. A later cut replaces an earlier one.
    pub fn cut(&self, how: Cut) {
        self.cut.send_replace(Some(how));
    }

    /// Ends the cut.
    pub fn heal(&self) {
        self.cut.send_replace(None);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(first: UnixListener, socket: PathBuf, server: String, mut state: watch::Receiver<Option<Cut>>) {
    let mut listener = first;
    loop {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((client, _)) = accepted else { continue };
                    let (server, state) = (server.clone(), state.clone());
                    connections.spawn(async move {
                        // Whether it ends with an error or not, both sides see a closed connection.
                        let _ = forward(client, &server, state).await;
                    });
                }
                refused = until(&mut state, |cut| cut == Some(Cut::Refused)) => match refused {
                    Ok(()) => break,
                    Err(_) => return,
                },
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
            }
        }
        drop((connections, listener));
        if until(&mut state, |cut| cut != Some(Cut::Refused)).await.is_err() {
            return;
        }
        // The file of the closed listener would prevent the next bind.
        let _ = fs::remove_file(&socket);
        let Ok(again) = UnixListener::bind(&socket) else { return };
        listener = again;
    }
}

async fn until(
    state: &mut watch::Receiver<Option<Cut>>,
    wanted: impl Fn(Option<Cut>) -> bool,
) -> Result<(), watch::error::RecvError> {
    state.wait_for(|cut| wanted(*cut)).await.map(drop)
}

async fn forward(
    mut client: UnixStream,
    server: &str,
    mut state: watch::Receiver<Option<Cut>>,
) -> io::Result<()> {
    // While the link is cut, the server must not see the connection.
    until(&mut state, |cut| cut.is_none()).await.map_err(io::Error::other)?;
    let mut server = TcpStream::connect(server).await?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    // The connection ends when one direction does.
    tokio::select! {
        ended = pipe(from_client, to_server, state.clone(), Cut::ToClient) => ended,
        ended = pipe(from_server, to_client, state, Cut::ToServer) => ended,
    }
}

async fn pipe(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut state: watch::Receiver<Option<Cut>>,
    of_the_other: Cut,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await;
        // The end of the connection, too, passes only through a link that is not cut.
        until(&mut state, |cut| cut.is_none_or(|cut| cut == of_the_other)).await.map_err(io::Error::other)?;
        match read? {
            0 => return Ok(()),
            bytes => to.write_all(&buffer[..bytes]).await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{net::TcpListener, time::timeout};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// A server that echoes everything.
    async fn echo() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        address
    }

    async fn said(stream: &mut UnixStream) -> io::Result<[u8; 4]> {
        let mut said = [0; 4];
        timeout(LIMIT, stream.read_exact(&mut said)).await.map_err(io::Error::other)??;
        Ok(said)
    }

    #[tokio::test]
    async fn what_is_sent_into_a_silent_cut_arrives_when_it_is_healed() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let link = Link::open(&socket, &echo().await).unwrap();
        let mut old = UnixStream::connect(&socket).await.unwrap();
        old.write_all(b"one.").await.unwrap();
        assert_eq!(&said(&mut old).await.unwrap(), b"one.");
        link.cut(Cut::Silent);
        let mut new = UnixStream::connect(&socket).await.unwrap();
        for stream in [&mut old, &mut new] {
            stream.write_all(b"two.").await.unwrap();
            let mut byte = [0];
            assert!(timeout(Duration::from_millis(100), stream.read(&mut byte)).await.is_err());
        }
        link.heal();
        for stream in [&mut old, &mut new] {
            assert_eq!(&said(stream).await.unwrap(), b"two.");
        }
    }

    #[tokio::test]
    async fn a_refused_link_has_no_connections() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let link = Link::open(&socket, &echo().await).unwrap();
        let mut old = UnixStream::connect(&socket).await.unwrap();
        old.write_all(b"one.").await.unwrap();
        assert_eq!(&said(&mut old).await.unwrap(), b"one.");
        link.cut(Cut::Refused);
        assert!(said(&mut old).await.is_err(), "the connection is lost");
        let refused = UnixStream::connect(&socket).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        link.heal();
        let again = timeout(LIMIT, async {
            loop {
                match UnixStream::connect(&socket).await {
                    Ok(stream) => return stream,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        });
        let mut again = again.await.unwrap();
        again.write_all(b"two.").await.unwrap();
        assert_eq!(&said(&mut again).await.unwrap(), b"two.");
    }
}
