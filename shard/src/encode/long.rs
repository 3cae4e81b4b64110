//! A `RangeResponse` whose first keys are encoded at once, and the others while its client takes them. Until then it holds
//! a handle per key to the store's own values, whether or not the answer is ever read.

use std::{collections::VecDeque, mem::size_of};

use bytes::Bytes;
use kindred_engine::{ops::Contents, version::Version};
use kindred_partition_config::ids::Revision;
use kindred_transport::unary::long::{FRAME_BYTES, Making, Message};
use kindred_wire::{kv, rope::Rope};

use super::{HEADER_BYTES_MAX, RangeTail, ServerIds, TAIL_BYTES_MAX, kvs_len, kvs_room, put_kvs, signed};

/// Chunks of handles that are dropped in one turn.
const DROPPED_MAX: usize = 16;
/// So much is encoded at once, which is a page of most Kinds. To know the length of what is encoded later, each key must
/// be looked at twice.
const AT_ONCE_BYTES: usize = 512 << 10;
/// Pieces of so many bytes are joined, because a piece of its own would cost more.
const JOINED_BYTES: usize = 16 << 10;

/// The keys of an answer, in order.
pub struct LongRange {
    contents: Contents,
    /// The keys that are encoded.
    encoded: Vec<Vec<u8>>,
    encoded_bytes: usize,
    /// The keys behind them.
    chunks: VecDeque<Vec<Version>>,
    /// Their encoded length.
    bytes: usize,
}

impl LongRange {
    #[must_use]
    pub fn new(contents: Contents) -> Self {
        Self { contents, encoded: Vec::new(), encoded_bytes: 0, chunks: VecDeque::new(), bytes: 0 }
    }

    pub fn push(&mut self, chunk: Vec<Version>) {
        let room = if self.chunks.is_empty() { kvs_room(&chunk, self.contents) } else { usize::MAX };
        // The length of keys without values is known only when they are encoded.
        if self.contents != Contents::Whole || room <= AT_ONCE_BYTES.saturating_sub(self.encoded_bytes) {
            let mut encoded = match self.encoded.pop() {
                Some(last) if last.len() + room <= JOINED_BYTES => last,
                last => {
                    self.encoded.extend(last);
                    Vec::with_capacity(room)
                }
            };
            let before = encoded.len();
            put_kvs(&mut encoded, &chunk, self.contents);
            self.encoded_bytes += encoded.len() - before;
            self.encoded.push(encoded);
        } else {
            self.bytes += kvs_len(&chunk, self.contents);
            self.chunks.push_back(chunk);
        }
    }

    /// The answer.
    #[must_use]
    pub fn finish(self, ids: &ServerIds, header: Revision, tail: RangeTail) -> Message {
        let is_short = self.encoded_bytes <= JOINED_BYTES && self.chunks.is_empty();
        let joined = if is_short { self.encoded_bytes + TAIL_BYTES_MAX } else { 0 };
        let mut head = Vec::with_capacity(HEADER_BYTES_MAX + joined);
        ids.put_header(&mut head, header);
        let mut end = Vec::with_capacity(TAIL_BYTES_MAX);
        kv::put_range_end(&mut end, tail.more, signed(tail.count));
        if is_short {
            self.encoded.iter().for_each(|piece| head.extend_from_slice(piece));
            head.extend_from_slice(&end);
            return Message::from(Bytes::from(head));
        }
        let mut front = Rope::from(Bytes::from(head));
        self.encoded.into_iter().for_each(|piece| front.push(piece.into()));
        if self.chunks.is_empty() {
            front.push(end.into());
            return Message::from(front);
        }
        let left = front.len() + self.bytes + end.len();
        let keys = self.chunks.iter().map(Vec::len).sum();
        let chunks = self.chunks.into_iter().map(Vec::into_iter).collect();
        Message::Made(Box::new(Writing { front, chunks, keys, end, left }))
    }
}

/// An answer of which a part is still to be encoded.
struct Writing {
    /// What is encoded.
    front: Rope,
    chunks: VecDeque<std::vec::IntoIter<Version>>,
    keys: usize,
    end: Vec<u8>,
    left: usize,
}

impl Making for Writing {
    fn left(&self) -> usize {
        self.left
    }

    fn held(&self) -> usize {
        self.front.len() + self.keys * size_of::<Version>() + FRAME_BYTES
    }

    fn make(&mut self, about: usize) -> Bytes {
        if !self.front.is_empty() {
            let piece = self.front.split_to(self.front.front().len().min(about)).into_bytes();
            self.left -= piece.len();
            return piece;
        }
        let mut out = Vec::with_capacity(about.min(self.left));
        while out.len() < about
            && let Some(chunk) = self.chunks.front_mut()
        {
            match chunk.next() {
                Some(version) => {
                    kv::put_range_kv(&mut out, &version.encoded());
                    self.keys -= 1;
                }
                None => drop(self.chunks.pop_front()),
            }
        }
        if self.chunks.is_empty() {
            out.append(&mut self.end);
        }
        self.left = self.left.saturating_sub(out.len());
        out.into()
    }
}

/// Drops many handles over several turns.
impl Drop for Writing {
    fn drop(&mut self) {
        if self.chunks.len() > DROPPED_MAX
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let mut chunks = std::mem::take(&mut self.chunks);
            runtime.spawn(async move {
                while !chunks.is_empty() {
                    chunks.drain(..chunks.len().min(DROPPED_MAX));
                    tokio::task::yield_now().await;
                }
            });
        }
    }
}
