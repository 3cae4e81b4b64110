//! Streams of messages whose bytes go to HTTP/2 as they are: tonic's encoder would copy each message into a buffer of its
//! own, and messages that are the same for many clients should not be copied for each of them.
//!
//! A service answers with a [`Direct`] among its extensions. A server of this crate takes the messages from there. All
//! others, such as a service that is called within the process, get the stream itself.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use kindred_wire::rope::Rope;
use tokio_stream::Stream;
use tonic::{Response, Status};

pub(crate) type Source = Pin<Box<dyn Stream<Item = Result<Rope, Status>> + Send>>;

/// The messages of a stream, for one who takes them.
#[derive(Clone)]
pub struct Direct(Arc<Mutex<Option<Source>>>);

/// The same stream for tonic, which copies messages that are in pieces.
#[derive(Debug)]
pub struct Joined(Direct);

/// An answer of these messages.
#[must_use]
pub fn response(messages: impl Stream<Item = Result<Rope, Status>> + Send + 'static) -> Response<Joined> {
    let direct = Direct(Arc::new(Mutex::new(Some(Box::pin(messages)))));
    let mut response = Response::new(Joined(direct.clone()));
    response.extensions_mut().insert(direct);
    response
}

impl Direct {
    /// Takes the stream; `None` if it was taken.
    pub(crate) fn take(&self) -> Option<Source> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Stream for Joined {
    type Item = Result<Bytes, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut source = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        match source.as_mut() {
            Some(source) => {
                source.as_mut().poll_next(cx).map(|next| next.map(|next| next.map(Rope::into_bytes)))
            }
            None => Poll::Ready(None),
        }
    }
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Direct").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;

    use super::*;

    fn rope(pieces: &[&'static str]) -> Rope {
        let mut rope = Rope::default();
        pieces.iter().for_each(|piece| rope.push(Bytes::from_static(piece.as_bytes())));
        rope
    }

    #[tokio::test]
    async fn who_does_not_take_the_messages_gets_them_joined() {
        let said = || [Ok(rope(&["he", "ad"])), Ok(rope(&["x"])), Err(Status::aborted("over"))];
        let joined = response(tokio_stream::iter(said())).into_inner();
        let got: Vec<_> = joined.map(|next| next.map_err(|status| status.code())).collect().await;
        assert_eq!(got, [Ok("head".into()), Ok("x".into()), Err(tonic::Code::Aborted)]);

        let answer = response(tokio_stream::iter(said()));
        let taken = answer.extensions().get::<Direct>().and_then(Direct::take).expect("the messages");
        assert_eq!(taken.map(|next| next.is_ok()).collect::<Vec<_>>().await, [true, true, false]);
        assert!(answer.into_inner().next().await.is_none());
    }
}
