//! A `RangeResponse` that is encoded while its client takes it. Until then it holds a handle per key to the store's own
//! values, whether or not the answer is ever read.

use std::{collections::VecDeque, mem::size_of};

use bytes::Bytes;
use kindred_engine::{ops::Contents, version::Version};
use kindred_partition_config::ids::Revision;
use kindred_transport::unary::long::{FRAME_BYTES, Making, Message};
use kindred_wire::kv;

use super::{HEADER_BYTES_MAX, RangeTail, ServerIds, TAIL_BYTES_MAX, kvs_len, put_kvs, signed};

/// Chunks of handles that are dropped in one turn.
const DROPPED_MAX: usize = 16;

/// The keys of an answer, in order.
pub struct LongRange {
    contents: Contents,
    chunks: VecDeque<Vec<Version>>,
    /// Encoded length of the fields of the keys.
    bytes: usize,
}

impl LongRange {
    #[must_use]
    pub fn new(contents: Contents) -> Self {
        Self { contents, chunks: VecDeque::new(), bytes: 0 }
    }

    pub fn push(&mut self, chunk: Vec<Version>) {
        self.bytes += kvs_len(&chunk, self.contents);
        self.chunks.push_back(chunk);
    }

    /// The answer: encoded at once unless it is long.
    #[must_use]
    pub fn finish(self, ids: &ServerIds, header: Revision, tail: RangeTail) -> Message {
        // The length of keys without values is known only when they are encoded.
        let later = self.contents == Contents::Whole && self.bytes > FRAME_BYTES;
        let room = if later { 0 } else { self.bytes + TAIL_BYTES_MAX };
        let mut front = Vec::with_capacity(HEADER_BYTES_MAX + room);
        ids.put_header(&mut front, header);
        let mut end = Vec::new();
        kv::put_range_end(&mut end, tail.more, signed(tail.count));
        if later {
            let left = front.len() + self.bytes + end.len();
            let keys = self.chunks.iter().map(Vec::len).sum();
            let chunks = self.chunks.into_iter().map(Vec::into_iter).collect();
            return Message::Made(Box::new(Writing { front, chunks, keys, end, left }));
        }
        for chunk in &self.chunks {
            put_kvs(&mut front, chunk, self.contents);
        }
        front.extend_from_slice(&end);
        Message::from(Bytes::from(front))
    }
}

/// The part of an answer that is still to be encoded.
struct Writing {
    front: Vec<u8>,
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
        self.keys * size_of::<Version>() + FRAME_BYTES
    }

    fn make(&mut self, about: usize) -> Bytes {
        let mut out = std::mem::take(&mut self.front);
        out.reserve(about.min(self.left));
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
