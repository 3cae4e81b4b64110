//! A message in pieces: what came in several frames goes on in several, and fields are put behind others, without a copy of
//! what is there.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

use crate::scan::{Fields, WireError, missing};

/// Up to here a piece is put behind another by a copy of both: a piece of its own would cost more.
const JOINED_MAX: usize = 4 << 10;

/// Bytes in pieces, none of them empty.
#[derive(Debug, Clone, Default)]
pub struct Rope {
    /// The first piece; empty when there is none.
    front: Bytes,
    rest: VecDeque<Bytes>,
    /// Bytes of the rest.
    behind: usize,
}

impl Rope {
    /// How many bytes it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.front.len() + self.behind
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.front.is_empty()
    }

    /// The first piece; empty when there is none.
    #[must_use]
    pub fn front(&self) -> &Bytes {
        &self.front
    }

    /// Whether it has more than one piece.
    #[must_use]
    pub fn is_in_pieces(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Puts a piece behind all others.
    pub fn push(&mut self, piece: Bytes) {
        if self.front.is_empty() {
            self.front = piece;
        } else if !piece.is_empty() {
            self.behind += piece.len();
            self.rest.push_back(piece);
        }
    }

    /// Puts a few bytes behind all others: in the same piece where that is small, without a copy where nobody else holds it.
    pub fn append(&mut self, tail: &Bytes) {
        if self.is_in_pieces() || self.front.len() > JOINED_MAX {
            self.push(tail.clone());
            return;
        }
        let mut joined = std::mem::take(&mut self.front).try_into_mut().unwrap_or_else(|shared| {
            let mut copy = BytesMut::with_capacity(shared.len() + tail.len());
            copy.extend_from_slice(&shared);
            copy
        });
        joined.extend_from_slice(tail);
        self.front = joined.freeze();
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.front).filter(|front| !front.is_empty()).chain(&self.rest)
    }

    /// The same message in pieces of whole fields: only a field that was cut is copied.
    ///
    /// # Errors
    /// When the bytes are no message.
    pub fn into_whole_fields(self) -> Result<Self, WireError> {
        if !self.is_in_pieces() {
            return Ok(self);
        }
        let mut whole = Self::default();
        let mut cut = BytesMut::new();
        for piece in self.pieces() {
            let mut piece = piece.clone();
            while !cut.is_empty() && !piece.is_empty() {
                let taken = missing(&cut)?.min(piece.len());
                cut.extend_from_slice(&piece.split_to(taken));
                if missing(&cut)? == 0 {
                    whole.push(cut.split().freeze());
                }
            }
            let mut fields = Fields::new(&piece);
            let mut end = 0;
            while let Some(field) = fields.next() {
                match field {
                    Ok(_) => end = fields.offset(),
                    Err(WireError::Truncated) => break,
                    Err(error) => return Err(error),
                }
            }
            cut.extend_from_slice(&piece[end..]);
            whole.push(piece.slice(..end));
        }
        if cut.is_empty() { Ok(whole) } else { Err(WireError::Truncated) }
    }

    /// All in one piece: copied unless it is in one.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        if self.rest.is_empty() {
            return self.front;
        }
        let mut whole = BytesMut::with_capacity(self.len());
        self.pieces().for_each(|piece| whole.extend_from_slice(piece));
        whole.freeze()
    }
}

impl From<Bytes> for Rope {
    fn from(front: Bytes) -> Self {
        Self { front, ..Self::default() }
    }
}

impl Buf for Rope {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.front
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        for (slot, piece) in into.iter_mut().zip(self.pieces()) {
            *slot = IoSlice::new(piece);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, mut count: usize) {
        while count >= self.front.len()
            && let Some(next) = self.rest.pop_front()
        {
            count -= self.front.len();
            self.behind -= next.len();
            self.front = next;
        }
        self.front.advance(count);
    }
}
