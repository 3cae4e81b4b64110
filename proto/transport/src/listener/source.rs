//! The source of connections: a listening socket, or another runtime that accepts.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Sleep;

use super::connection::Peer;
use super::share::Loose;
use super::socket::Socket;
use crate::stream::Stream;

/// The delay after a failed accept for lack of files or memory. An immediate retry would only burn CPU.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) enum Source {
    Listening {
        socket: Socket,
        pause: Option<Pin<Box<Sleep>>>,
    },
    /// Another runtime accepts and hands connections over.
    Handed(mpsc::Receiver<Loose>),
}

impl Source {
    pub fn of(socket: Socket) -> Self {
        Self::Listening { socket, pause: None }
    }

    /// The next connection; `None` at the end.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Option<(Stream, Peer)>> {
        loop {
            let accepted = match self {
                Self::Listening { socket, pause } => {
                    if let Some(pausing) = pause {
                        ready!(pausing.as_mut().poll(cx));
                        *pause = None;
                    }
                    ready!(socket.poll_accept(cx))
                }
                Self::Handed(from) => match ready!(from.poll_recv(cx)) {
                    Some(loose) => loose.join(),
                    None => return Poll::Ready(None),
                },
            };
            match accepted {
                Ok(accepted) => return Poll::Ready(Some(accepted)),
                Err(error) => self.refused(&error),
            }
        }
    }

    fn refused(&mut self, error: &io::Error) {
        // These errors concern one connection that its client gave up. All others would recur at once.
        let one_connection = matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::Interrupted
        );
        match self {
            Self::Listening { pause, .. } if !one_connection => {
                tracing::error!(%error, "cannot accept connections; trying again (limit of open files?)");
                *pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
            }
            Self::Listening { .. } => {}
            Self::Handed(_) => {
                tracing::warn!(%error, "a connection was lost on its way to the thread that serves it");
            }
        }
    }
}
