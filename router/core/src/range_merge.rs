//! Merges the chunks of several stores, read at one revision, into one answer of a Range; a state machine.
//!
//! Sources form **groups** that follow each other in key order: a name range is a group of one store; a ring is a group
//! of all its stores, whose keys interleave. Groups are read one after another (or some ahead, for latency), the
//! sources of a group together. A source is asked for its next chunk when its buffer is empty. So memory is bounded by
//! one chunk of each source of the groups being read, however long the range is. Any order other than by key needs all
//! sources at once; then all are one group, and `limit` bounds what each sends.
//!
//! `count` and `more` describe the whole, as in etcd: `count` ignores limit and filters; `more` says whether an item
//! that passes the filters lies behind the last one. A list ends by its data, never by a count: if the limit cut it and
//! no source is known to go on, one more item is asked for. A list that was read to the end counts its items.
//!
//! After an error the merge cannot be used; the read fails.

use std::collections::VecDeque;
use std::ops::Range;

use crate::range_split::{Item, Order, RangeSpec, SortTarget};
use crate::watch_merge::SourceIx;

/// An answer of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<I> {
    /// The answer to one [`Command::Fetch`].
    Chunk {
        source: SourceIx,
        /// The source's next items in the order of the range.
        items: Vec<I>,
        /// The number of the source's keys in the whole range, ignoring limit and filters; in any chunk that knows it.
        count: Option<u64>,
        /// Set in the last chunk.
        end: Option<End>,
    },
    /// The answer to a [`Command::Count`].
    Counted {
        source: SourceIx,
        /// The number of the source's keys in the whole range.
        count: u64,
    },
}

/// The end of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Whether the source has more items than it was asked for.
    pub more: bool,
}

/// What the caller must do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command<I> {
    /// Get the source's next chunk; the first one opens the source.
    Fetch {
        source: SourceIx,
        /// At most this many items are useful; never zero.
        limit: Option<u64>,
    },
    /// Get the source's count without items.
    Count {
        /// The source to count.
        source: SourceIx,
    },
    /// Nothing more is needed of the source; a chunk under way is ignored.
    Close {
        /// The source to close.
        source: SourceIx,
    },
    /// The next items of the answer.
    Emit(Vec<I>),
    /// The answer is complete.
    Done {
        /// The number of keys in the range.
        count: u64,
        /// Whether the limit cut the answer.
        more: bool,
    },
}

/// A source that breaks its contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    #[error("no source {0}")]
    UnknownSource(SourceIx),
    /// A chunk that was not asked for, which would break the bound on memory.
    #[error("source {0}: a chunk that was not asked for")]
    Unasked(SourceIx),
    /// A chunk with neither items nor end, which would be asked for endlessly.
    #[error("source {0}: an empty chunk")]
    EmptyChunk(SourceIx),
    /// Items that are not in the order of the range.
    #[error("source {0}: items out of order")]
    OutOfOrder(SourceIx),
    /// Two sources with the same key.
    #[error("sources {0} and {1} have the same key")]
    SharedKey(SourceIx, SourceIx),
    /// The source ended and kept items back that belong to the answer.
    #[error("source {0}: ended early")]
    Short(SourceIx),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Feed {
    Unopened,
    Idle,
    Asked,
    Ended { more: bool },
    Closed,
}

#[derive(Debug)]
struct Source<I> {
    feed: Feed,
    buffer: VecDeque<I>,
    count: Option<u64>,
    counting: bool,
}

enum Head {
    /// A source that may have the next item has not sent it yet.
    Wait,
    /// The group has no items left.
    Exhausted,
    At(usize),
}

/// The merge of one Range.
#[derive(Debug)]
pub struct RangeMerge<I> {
    spec: RangeSpec,
    sources: Vec<Source<I>>,
    /// In the order of reading.
    groups: Vec<Range<usize>>,
    current: usize,
    ahead: usize,
    emitted: u64,
    /// The last key emitted, if the order is by key.
    last_key: Option<Vec<u8>>,
    /// Set at the limit if there are more items.
    goes_on: bool,
    done: bool,
}

impl<I: Item> RangeMerge<I> {
    /// A merge over groups of these sizes, in key order; sources are numbered through the groups. `ahead` groups are
    /// read before their turn.
    #[must_use]
    pub fn new(spec: RangeSpec, group_sizes: &[usize], ahead: usize) -> Self {
        let total: usize = group_sizes.iter().sum();
        let mut groups = Vec::with_capacity(group_sizes.len());
        if spec.order.target == SortTarget::Key {
            let mut first = 0;
            for size in group_sizes {
                groups.push(first..first + size);
                first += size;
            }
            if spec.order.descending {
                groups.reverse();
            }
        } else {
            groups.push(0..total);
        }
        let source =
            |_| Source { feed: Feed::Unopened, buffer: VecDeque::new(), count: None, counting: false };
        Self {
            spec: RangeSpec { limit: spec.limit.filter(|limit| *limit > 0), ..spec },
            sources: (0..total).map(source).collect(),
            groups,
            current: 0,
            ahead,
            emitted: 0,
            last_key: None,
            goes_on: false,
            done: false,
        }
    }

    /// The first commands; call it once.
    ///
    /// # Errors
    /// As [`RangeMerge::step`]; none occur at the start.
    pub fn start(&mut self) -> Result<Vec<Command<I>>, RangeError> {
        self.settle()
    }

    /// The number of items that wait for other sources.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.sources.iter().map(|source| source.buffer.len()).sum()
    }

    /// Takes an answer.
    ///
    /// # Errors
    /// When a source breaks its contract; the read fails.
    pub fn step(&mut self, event: Event<I>) -> Result<Vec<Command<I>>, RangeError> {
        match event {
            Event::Chunk { source, items, count, end } => self.chunk(source, items, count, end)?,
            Event::Counted { source, count } => {
                self.source(source)?.count.get_or_insert(count);
            }
        }
        if self.done { Ok(Vec::new()) } else { self.settle() }
    }

    fn source(&mut self, source: SourceIx) -> Result<&mut Source<I>, RangeError> {
        self.sources.get_mut(source.0).ok_or(RangeError::UnknownSource(source))
    }

    fn chunk(
        &mut self,
        index: SourceIx,
        items: Vec<I>,
        count: Option<u64>,
        end: Option<End>,
    ) -> Result<(), RangeError> {
        let order = self.spec.order;
        let source = self.source(index)?;
        source.count = source.count.or(count);
        match source.feed {
            Feed::Closed => return Ok(()),
            Feed::Asked => {}
            Feed::Unopened | Feed::Idle | Feed::Ended { .. } => return Err(RangeError::Unasked(index)),
        }
        if items.is_empty() && end.is_none() {
            return Err(RangeError::EmptyChunk(index));
        }
        if !items.is_sorted_by(|a, b| order.compare(a, b).is_lt()) {
            return Err(RangeError::OutOfOrder(index));
        }
        source.feed = end.map_or(Feed::Idle, |end| Feed::Ended { more: end.more });
        source.buffer.extend(items);
        Ok(())
    }

    fn settle(&mut self) -> Result<Vec<Command<I>>, RangeError> {
        let mut commands = Vec::new();
        let run = if self.spec.count_only { Vec::new() } else { self.merge()? };
        if !run.is_empty() {
            commands.push(Command::Emit(run));
        }
        if self.spec.count_only || self.remaining() == Some(0) || self.current == self.groups.len() {
            self.finish(&mut commands);
        } else {
            let to = self.current.saturating_add(self.ahead).min(self.groups.len() - 1);
            let limit = self.remaining();
            for index in self.groups[self.current..=to].iter().flat_map(Clone::clone) {
                fetch(&mut self.sources[index], index, limit, &mut commands);
            }
        }
        Ok(commands)
    }

    fn remaining(&self) -> Option<u64> {
        self.spec.limit.map(|limit| limit - self.emitted)
    }

    /// All items that can be emitted now.
    fn merge(&mut self) -> Result<Vec<I>, RangeError> {
        let mut run = Vec::new();
        while let Some(group) = self.groups.get(self.current).filter(|_| self.remaining() != Some(0)) {
            match self.head(group.clone())? {
                Head::Wait => break,
                Head::Exhausted => self.current += 1,
                Head::At(index) => {
                    let item = self.sources[index].buffer.pop_front().expect("the head is in the buffer");
                    self.check_key(index, item.key())?;
                    self.emitted += 1;
                    run.push(item);
                }
            }
        }
        Ok(run)
    }

    fn head(&self, group: Range<usize>) -> Result<Head, RangeError> {
        let mut best: Option<(usize, &I)> = None;
        for index in group {
            let source = &self.sources[index];
            let Some(item) = source.buffer.front() else {
                match source.feed {
                    Feed::Ended { more: false } => continue,
                    // The source was limited to fewer items than the answer still needs.
                    Feed::Ended { more: true } => return Err(RangeError::Short(SourceIx(index))),
                    Feed::Unopened | Feed::Idle | Feed::Asked | Feed::Closed => return Ok(Head::Wait),
                }
            };
            let Some((first, lowest)) = best else {
                best = Some((index, item));
                continue;
            };
            let order = self.spec.order.compare(item, lowest);
            if order.is_eq() {
                return Err(RangeError::SharedKey(SourceIx(first), SourceIx(index)));
            }
            if order.is_lt() {
                best = Some((index, item));
            }
        }
        Ok(best.map_or(Head::Exhausted, |(index, _)| Head::At(index)))
    }

    /// Checks the order of keys across chunks, sources and groups, so that a list neither repeats a key nor goes back.
    fn check_key(&mut self, index: usize, key: &[u8]) -> Result<(), RangeError> {
        let Order { target: SortTarget::Key, descending } = self.spec.order else { return Ok(()) };
        match &mut self.last_key {
            None => self.last_key = Some(key.to_vec()),
            Some(last) => {
                let in_order = if descending { key < last.as_slice() } else { key > last.as_slice() };
                if !in_order {
                    return Err(RangeError::OutOfOrder(SourceIx(index)));
                }
                last.clear();
                last.extend_from_slice(key);
            }
        }
        Ok(())
    }

    /// Completes the answer: all items are emitted, only `count` and `more` may be missing.
    fn finish(&mut self, commands: &mut Vec<Command<I>>) {
        // A source that has not reported its end has more items, but a filter may let none of them pass.
        let idle_goes_on = !self.spec.filtered;
        let beyond = |source: &Source<I>| {
            !source.buffer.is_empty()
                || source.feed == Feed::Ended { more: true }
                || (idle_goes_on && source.feed == Feed::Idle)
        };
        let ended = |source: &Source<I>| matches!(source.feed, Feed::Ended { .. });
        let cut = self.remaining() == Some(0) && !self.spec.count_only;
        // Remember the answer, because sources that are closed cannot give it again.
        self.goes_on |= self.sources.iter().any(beyond);
        if cut && !self.goes_on && !self.sources.iter().all(ended) {
            for (index, source) in self.sources.iter_mut().enumerate() {
                fetch(source, index, Some(1), commands);
            }
            return;
        }
        let whole = !cut && !self.spec.filtered && !self.spec.count_only;
        for (index, source) in self.sources.iter_mut().enumerate() {
            let source_ix = SourceIx(index);
            if matches!(source.feed, Feed::Idle | Feed::Asked) {
                commands.push(Command::Close { source: source_ix });
                source.feed = Feed::Closed;
            }
            if source.count.is_none() && !source.counting && !whole {
                source.counting = true;
                commands.push(Command::Count { source: source_ix });
            }
        }
        let counted = || self.sources.iter().map(|source| source.count).sum::<Option<u64>>();
        let Some(count) = (if whole { Some(self.emitted) } else { counted() }) else { return };
        let more = cut && self.goes_on;
        self.done = true;
        self.sources.iter_mut().for_each(|source| source.buffer.clear());
        commands.push(Command::Done { count, more });
    }
}

fn fetch<I>(source: &mut Source<I>, index: usize, limit: Option<u64>, commands: &mut Vec<Command<I>>) {
    if matches!(source.feed, Feed::Unopened | Feed::Idle) && source.buffer.is_empty() {
        source.feed = Feed::Asked;
        commands.push(Command::Fetch { source: SourceIx(index), limit });
    }
}

#[cfg(test)]
#[path = "range_merge_test.rs"]
mod tests;
