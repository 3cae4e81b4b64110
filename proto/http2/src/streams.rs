//! The open streams of a connection, by place and by number.

use crate::stream::{Begin, Stream};

/// A stream in the hands of the caller. It stays what it is when the stream has ended: no other stream is ever equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamId {
    pub(crate) id: u32,
    pub(crate) place: u32,
}

impl StreamId {
    /// The place of the stream among those that are open: a small number, which is given to another stream later.
    #[must_use]
    pub const fn place(self) -> usize {
        self.place as usize
    }

    /// The number of the stream in the protocol.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.id
    }
}

/// An index of places by numbers: open addressing with linear probing, at most half full. Numbers of streams are odd and
/// count up, so half of a number is as good as a hash.
#[derive(Debug)]
pub(crate) struct Streams {
    places: Vec<Stream>,
    free: Vec<u32>,
    /// The number of a stream, or zero, and its place.
    index: Vec<(u32, u32)>,
    len: usize,
    /// Bytes that streams held when they ended.
    unheld: u32,
}

const INDEX_LEN_MIN: usize = 16;

impl Streams {
    pub(crate) fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new(), index: vec![(0, 0); INDEX_LEN_MIN], len: 0, unheld: 0 }
    }

    /// The bytes that streams held which have ended since the last time.
    pub(crate) const fn take_unheld(&mut self) -> u32 {
        std::mem::replace(&mut self.unheld, 0)
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn home(&self, id: u32) -> usize {
        (id >> 1) as usize & (self.index.len() - 1)
    }

    /// The slot of a number in the index, or the empty one where it would be.
    #[inline]
    fn slot(&self, id: u32) -> usize {
        let mut slot = self.home(id);
        while self.index[slot].0 != id && self.index[slot].0 != 0 {
            slot = (slot + 1) & (self.index.len() - 1);
        }
        slot
    }

    /// The stream with a number.
    #[inline]
    pub(crate) fn find(&self, id: u32) -> Option<StreamId> {
        let (found, place) = self.index[self.slot(id)];
        (found != 0).then_some(StreamId { id, place })
    }

    /// Adds a stream, whose number is new.
    #[inline]
    pub(crate) fn insert(&mut self, stream: Begin) -> StreamId {
        if (self.len + 1) * 2 > self.index.len() {
            self.grow();
        }
        let id = stream.id;
        let place = match self.free.pop() {
            Some(place) => {
                // What has ended left nothing behind, so there is nothing to drop.
                self.places[place as usize].begin(stream);
                place
            }
            None => {
                self.places.push(stream.into());
                (self.places.len() - 1) as u32
            }
        };
        let slot = self.slot(id);
        self.index[slot] = (id, place);
        self.len += 1;
        StreamId { id, place }
    }

    #[cold]
    fn grow(&mut self) {
        let old = std::mem::take(&mut self.index);
        self.index = vec![(0, 0); old.len() * 2];
        for (id, place) in old.into_iter().filter(|(id, _)| *id != 0) {
            let slot = self.slot(id);
            self.index[slot] = (id, place);
        }
    }

    #[inline]
    pub(crate) fn get(&self, stream: StreamId) -> Option<&Stream> {
        self.places.get(stream.place as usize).filter(|found| found.id == stream.id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, stream: StreamId) -> Option<&mut Stream> {
        self.places.get_mut(stream.place as usize).filter(|found| found.id == stream.id)
    }

    /// Removes a stream that is there.
    #[inline]
    pub(crate) fn remove(&mut self, stream: StreamId) {
        let Some(found) = self.get_mut(stream) else { return };
        found.id = 0;
        let unheld = found.unreleased;
        if found.queued > 0 || found.trailers.is_some() {
            // Nothing waits on most streams that end; what waits is let go now.
            *found = Begin::default().into();
        }
        self.unheld += unheld;
        self.free.push(stream.place);
        self.len -= 1;
        let mask = self.index.len() - 1;
        let mut hole = self.slot(stream.id);
        let mut next = hole;
        loop {
            self.index[hole].0 = 0;
            // The next one that may go into the hole is one whose home is not between the hole and itself.
            loop {
                next = (next + 1) & mask;
                let id = self.index[next].0;
                if id == 0 {
                    return;
                }
                let home = self.home(id);
                if next.wrapping_sub(home) & mask >= next.wrapping_sub(hole) & mask {
                    break;
                }
            }
            self.index[hole] = self.index[next];
            hole = next;
        }
    }

    /// All open streams.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (StreamId, &mut Stream)> {
        self.places.iter_mut().enumerate().filter(|(_, stream)| stream.id != 0).map(|(place, stream)| {
            let id = StreamId { id: stream.id, place: place as u32 };
            (id, stream)
        })
    }

    /// Removes all.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests;
