//! A piece of an answer, as a body gives it to HTTP/2.

use std::io::IoSlice;

use bytes::{Buf, Bytes};
use kindred_wire::rope::Rope;

use super::message::PREFIX_BYTES;

/// A part of an answer: the gRPC prefix and the pieces of the message, without joining them.
#[derive(Debug)]
pub struct Piece {
    prefix: [u8; PREFIX_BYTES],
    /// The number of prefix bytes already consumed.
    taken: u8,
    bytes: Rope,
}

impl Piece {
    /// The first bytes of a message, behind its prefix.
    pub(super) fn new(prefix: [u8; PREFIX_BYTES], bytes: Rope) -> Self {
        Self { prefix, taken: 0, bytes }
    }

    /// Bytes without a prefix.
    pub(super) fn plain(bytes: Rope) -> Self {
        Self { prefix: [0; PREFIX_BYTES], taken: PREFIX_BYTES as u8, bytes }
    }

    /// Takes the next bytes that lie together; empty at the end.
    pub(crate) fn take_chunk(&mut self) -> Bytes {
        let head = self.head();
        if !head.is_empty() {
            let head = Bytes::copy_from_slice(head);
            self.taken = PREFIX_BYTES as u8;
            return head;
        }
        let length = self.bytes.front().len();
        self.bytes.split_to(length).front().clone()
    }

    fn head(&self) -> &[u8] {
        &self.prefix[usize::from(self.taken)..]
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.head().len() + self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        let head = self.head();
        if head.is_empty() { self.bytes.chunk() } else { head }
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let head = self.head();
        match into {
            [] => 0,
            into if head.is_empty() => self.bytes.chunks_vectored(into),
            [first, rest @ ..] => {
                *first = IoSlice::new(head);
                1 + self.bytes.chunks_vectored(rest)
            }
        }
    }

    fn advance(&mut self, count: usize) {
        let of_prefix = count.min(self.head().len());
        self.taken += of_prefix as u8;
        self.bytes.advance(count - of_prefix);
    }
}

impl From<Bytes> for Piece {
    fn from(bytes: Bytes) -> Self {
        Self::plain(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut as _;
    use proptest::prelude::*;

    use super::super::long::prefix;
    use super::*;

    proptest! {
        #[test]
        fn a_piece_is_its_prefix_and_its_bytes_however_it_is_taken(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..4),
            steps in prop::collection::vec(1usize..9, 1..9),
        ) {
            let message = pieces.concat();
            let mut rope = Rope::default();
            pieces.into_iter().for_each(|piece| rope.push(piece.into()));
            let mut piece = Piece::new(prefix(rope.len()).unwrap(), rope);
            let mut expected = vec![0];
            expected.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
            expected.extend_from_slice(&message);
            let (mut taken, mut turn) = (Vec::new(), 0);
            while piece.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 5];
                let filled = piece.chunks_vectored(&mut slices);
                let left: Vec<u8> = slices[..filled].iter().flat_map(|slice| slice.to_vec()).collect();
                prop_assert_eq!(&left[..], &expected[taken.len()..]);
                prop_assert_eq!(piece.remaining(), left.len());
                let step = steps[turn % steps.len()].min(piece.remaining());
                taken.put(piece.copy_to_bytes(step));
                turn += 1;
            }
            prop_assert_eq!(taken, expected);
        }
    }
}
