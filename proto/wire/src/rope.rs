//! Messages in pieces. A message that arrived in several frames can be forwarded and extended without copying it.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

use crate::scan::{Fields, WireError, missing};

/// An appended field is copied into the first piece if that is at most this long, because a separate piece would
/// cost more.
const JOINED_MAX: usize = 4 << 10;

/// A byte sequence in pieces, none of which is empty.
#[derive(Debug, Clone, Default)]
pub struct Rope {
    /// The first piece; empty if there is none.
    front: Bytes,
    rest: VecDeque<Bytes>,
    /// The total length of `rest`.
    behind: usize,
}

impl Rope {
    #[must_use]
    pub fn len(&self) -> usize {
        self.front.len() + self.behind
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.front.is_empty()
    }

    /// The first piece; empty if there is none.
    #[must_use]
    pub fn front(&self) -> &Bytes {
        &self.front
    }

    #[must_use]
    pub fn is_in_pieces(&self) -> bool {
        !self.rest.is_empty()
    }

    pub fn push(&mut self, piece: Bytes) {
        if self.front.is_empty() {
            self.front = piece;
        } else if !piece.is_empty() {
            self.behind += piece.len();
            self.rest.push_back(piece);
        }
    }

    /// Appends a few bytes: to the only piece if it is small, in place if no other handle shares its memory.
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

    /// Takes off the first `count` bytes, or all if there are fewer.
    #[must_use]
    pub fn split_to(&mut self, mut count: usize) -> Self {
        let mut first = Self::default();
        while count > 0 && !self.front.is_empty() {
            let taken = self.front.split_to(count.min(self.front.len()));
            count -= taken.len();
            first.push(taken);
            // Nothing is skipped: the next piece comes to the front when the present one is used up.
            self.advance(0);
        }
        first
    }

    pub fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.front).filter(|front| !front.is_empty()).chain(&self.rest)
    }

    /// The same message with every piece made of whole fields. Copies only fields that were cut.
    ///
    /// # Errors
    /// When the bytes are not a message.
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

    /// The bytes in one piece; copied only if there are several.
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
