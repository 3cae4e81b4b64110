//! Messages that exceed one frame. HTTP/2 gets them piece by piece as the client makes room, and they may be
//! generated as they are taken.

use bytes::{Buf as _, Bytes, BytesMut};
use kindred_wire::rope::Rope;
use tonic::Status;

use super::message::PREFIX_BYTES;
use super::piece::Piece;

/// Messages up to this length go to HTTP/2 at once.
pub const FRAME_BYTES: usize = 256 << 10;

/// A message that is generated while it is taken.
pub trait Making: Send {
    /// The number of bytes still to come.
    fn left(&self) -> usize;

    /// The memory that it holds for them, in bytes.
    fn held(&self) -> usize;

    /// The next bytes: about this many, at least one if any are left, and none at the end.
    fn make(&mut self, about: usize) -> Bytes;
}

/// The message of an answer.
pub enum Message {
    Whole(Rope),
    /// A message that is generated as it is taken.
    Made(Box<dyn Making>),
}

impl From<Rope> for Message {
    fn from(whole: Rope) -> Self {
        Self::Whole(whole)
    }
}

impl From<Bytes> for Message {
    fn from(whole: Bytes) -> Self {
        Self::Whole(whole.into())
    }
}

impl Message {
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(rope) => rope.len(),
            Self::Made(making) => making.left(),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The complete message in one piece.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self {
            Self::Whole(rope) => rope.into_bytes(),
            Self::Made(mut making) => {
                let mut whole = BytesMut::with_capacity(making.left());
                loop {
                    let made = making.make(FRAME_BYTES);
                    if made.is_empty() {
                        return whole.freeze();
                    }
                    whole.extend_from_slice(&made);
                }
            }
        }
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The gRPC prefix of a message.
///
/// # Errors
/// When the length does not fit the prefix; the text is tonic's.
pub(super) fn prefix(length: usize) -> Result<[u8; PREFIX_BYTES], Status> {
    let Ok(length) = u32::try_from(length) else {
        return Err(Status::resource_exhausted(format!(
            "Cannot return body with more than 4GB of data but got {length} bytes"
        )));
    };
    let [a, b, c, d] = length.to_be_bytes();
    Ok([0, a, b, c, d])
}

/// The remaining part of a message and its prefix.
#[derive(Debug)]
pub(crate) struct LongMessage {
    prefix: Option<[u8; PREFIX_BYTES]>,
    message: Message,
}

impl LongMessage {
    /// The whole message.
    ///
    /// # Errors
    /// When it is too long for a prefix.
    pub fn of(message: Message) -> Result<Self, Status> {
        Ok(Self { prefix: Some(prefix(message.len())?), message })
    }

    /// The memory that it holds, in bytes.
    pub fn held(&self) -> usize {
        match &self.message {
            Message::Whole(rope) => rope.len(),
            Message::Made(making) => making.held(),
        }
    }

    /// The next bytes, the first ones behind the prefix; `None` at the end.
    pub fn next_piece(&mut self) -> Option<Piece> {
        let bytes = match &mut self.message {
            Message::Made(making) if making.left() > 0 => making.make(FRAME_BYTES).into(),
            Message::Made(_) => Rope::default(),
            Message::Whole(rope) => rope.split_to(FRAME_BYTES),
        };
        match self.prefix.take() {
            Some(prefix) => Some(Piece::new(prefix, bytes)),
            None => Some(Piece::plain(bytes)).filter(Piece::has_remaining),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Counting(usize, usize);

    impl Making for Counting {
        fn left(&self) -> usize {
            self.1 - self.0
        }
        fn held(&self) -> usize {
            1
        }
        fn make(&mut self, about: usize) -> Bytes {
            let end = self.1.min(self.0 + about.min(1000));
            let made = (self.0..end).map(|at| at as u8).collect();
            self.0 = end;
            made
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn a_long_message_is_its_prefix_and_its_bytes(
            pieces in prop::collection::vec(1..2 * FRAME_BYTES, 0..4),
            made in 0..5000_usize,
        ) {
            let mut rope = Rope::default();
            pieces.iter().for_each(|length| rope.push(vec![*length as u8; *length].into()));
            let whole = rope.clone().into_bytes();
            let counted = Message::Made(Box::new(Counting(0, made))).into_bytes();
            prop_assert_eq!(counted.len(), made);
            let messages = [(Message::Whole(rope), whole), (Message::Made(Box::new(Counting(0, made))), counted)];
            for (message, expected) in messages {
                let mut long = LongMessage::of(message).unwrap();
                let mut taken = Vec::new();
                while let Some(mut piece) = long.next_piece() {
                    prop_assert!((1..=PREFIX_BYTES + FRAME_BYTES).contains(&piece.remaining()));
                    taken.extend_from_slice(&piece.copy_to_bytes(piece.remaining()));
                }
                prop_assert_eq!(&taken[1..PREFIX_BYTES], &u32::try_from(expected.len()).unwrap().to_be_bytes());
                prop_assert_eq!(&taken[PREFIX_BYTES..], &expected[..]);
                prop_assert!(long.next_piece().is_none());
            }
        }
    }
}
