//! A queue in fixed-size chunks. Pushing never moves entries, so a log of millions grows without a pause.

use std::collections::VecDeque;

const CHUNK: usize = 1024;

pub(crate) struct ChunkedLog<T> {
    chunks: VecDeque<VecDeque<T>>,
    len: usize,
    /// Chunks removed from the front so far.
    popped: u64,
}

impl<T> Default for ChunkedLog<T> {
    fn default() -> Self {
        Self { chunks: VecDeque::new(), len: 0, popped: 0 }
    }
}

impl<T> ChunkedLog<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, entry: T) {
        self.len += 1;
        match self.chunks.back_mut() {
            Some(last) if last.len() < CHUNK => last.push_back(entry),
            // The first chunk grows on demand, since most Kinds are small.
            None => self.chunks.push_back(VecDeque::from([entry])),
            Some(_) => {
                let mut chunk = VecDeque::with_capacity(CHUNK);
                chunk.push_back(entry);
                self.chunks.push_back(chunk);
            }
        }
    }

    pub(crate) fn front(&self) -> Option<&T> {
        self.chunks.front()?.front()
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let first = self.chunks.front_mut()?;
        let entry = first.pop_front();
        if first.is_empty() {
            self.chunks.pop_front();
            self.popped += 1;
        }
        self.len -= usize::from(entry.is_some());
        entry
    }

    pub(crate) fn back(&self) -> Option<&T> {
        self.chunks.back()?.back()
    }

    /// Moves all chunks of another log behind those here.
    pub(crate) fn append(&mut self, other: &mut Self) {
        let Self { chunks, len, .. } = std::mem::take(other);
        self.chunks.extend(chunks);
        self.len += len;
    }

    /// The position behind all present entries, for [`ChunkedLog::extract`].
    pub(crate) fn end(&self) -> u64 {
        self.popped + self.chunks.len() as u64
    }

    /// Removes the wanted entries of the chunk before a position. Returns the position to continue at, and the entries
    /// in order. `None` at the beginning.
    pub(crate) fn extract(&mut self, before: u64, wanted: impl Fn(&T) -> bool) -> Option<(u64, Vec<T>)> {
        let place = before.checked_sub(1).filter(|place| *place >= self.popped)?;
        let index = usize::try_from(place - self.popped).ok()?;
        let Some(chunk) = self.chunks.get_mut(index) else { return Some((place, Vec::new())) };
        let mut taken = Vec::new();
        if chunk.iter().any(&wanted) {
            let (out, kept): (Vec<T>, Vec<T>) = std::mem::take(chunk).into_iter().partition(&wanted);
            taken = out;
            *chunk = kept.into();
            self.len -= taken.len();
        }
        if chunk.is_empty() {
            self.chunks.remove(index);
        }
        Some((place, taken))
    }

    /// The entries from the first one for which `before` is false. `before` must hold for a prefix of the log.
    pub(crate) fn iter_from(&self, before: impl Fn(&T) -> bool) -> impl Iterator<Item = &T> {
        let chunk = prefix(&self.chunks, |chunk| chunk.back().is_some_and(&before));
        let skip = self.chunks.get(chunk).map_or(0, |chunk| prefix(chunk, &before));
        self.chunks.range(chunk..).flatten().skip(skip)
    }

    pub(crate) fn iter_rev(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().rev().flat_map(|chunk| chunk.iter().rev())
    }
}

/// The length of the prefix for which `before` holds. The search goes backwards from the end in growing steps, since
/// most readers are near it.
fn prefix<T>(queue: &VecDeque<T>, before: impl Fn(&T) -> bool) -> usize {
    let (mut end, mut step) = (queue.len(), 1);
    while let Some(at) = end.checked_sub(step)
        && !before(&queue[at])
    {
        (end, step) = (at, 2 * step);
    }
    let mut from = end.checked_sub(step).map_or(0, |at| at + 1);
    while from < end {
        let middle = from.midpoint(end);
        if before(&queue[middle]) { from = middle + 1 } else { end = middle }
    }
    end
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_prefix_is_found_at_any_place_and_at_once_near_the_end() {
        for len in (0..40_u32).chain([1024]) {
            let queue: VecDeque<u32> = (0..len).collect();
            for want in 0..=len {
                let asked = Cell::new(0);
                let before = |entry: &u32| {
                    asked.set(asked.get() + 1);
                    *entry < want
                };
                assert_eq!(prefix(&queue, before), want as usize, "of {len}");
                let away = len - want;
                let most = 2 * (u32::BITS - away.leading_zeros()) + 1;
                assert!(asked.get() <= most, "{} asked of {len}, {away} from the end", asked.get());
            }
        }
    }

    #[test]
    fn some_are_taken_out_while_others_come_and_go() {
        let mut log = ChunkedLog::default();
        (0..5000_u32).for_each(|i| log.push(i));
        let (mut place, mut taken) = (log.end(), Vec::new());
        while let Some((next, mut out)) = log.extract(place, |i| i % 3 == 0 || (1024..2048).contains(i)) {
            place = next;
            out.append(&mut taken);
            taken = out;
            log.push(6001 + 3 * u32::try_from(place).unwrap());
            log.pop();
        }
        let rest: Vec<u32> = log.iter_from(|_| false).copied().collect();
        assert!(rest.windows(2).all(|pair| pair[0] < pair[1] || pair[1] > 6000), "in order");
        assert!(rest.iter().all(|i| i % 3 != 0 && !(1024..2048).contains(i)));
        assert!(taken.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(log.len(), rest.len());
        assert_eq!((taken.contains(&4998), taken.contains(&1025)), (true, true));
    }

    #[test]
    fn behaves_as_one_queue() {
        let mut log = ChunkedLog::default();
        for i in 0..5000_u32 {
            log.push(i);
        }
        for i in 0..1500 {
            assert_eq!(log.pop(), Some(i));
        }
        assert_eq!((log.len(), log.front()), (3500, Some(&1500)));
        for from in [0, 1499, 1500, 1501, 2047, 2048, 2049, 4999, 5000, 6000] {
            let got: Vec<u32> = log.iter_from(|e| *e < from).copied().collect();
            let want: Vec<u32> = (from.max(1500)..5000).collect();
            assert_eq!(got, want, "from {from}");
        }
        assert!(log.iter_rev().copied().eq((1500..5000).rev()));
        while log.pop().is_some() {}
        assert_eq!((log.len(), log.front()), (0, None));
        assert_eq!(log.iter_from(|_| true).count(), 0);
    }

    #[test]
    fn one_is_put_behind_another() {
        let (mut log, mut other) = (ChunkedLog::default(), ChunkedLog::default());
        (0..1500_u32).for_each(|i| log.push(i));
        (1500..4000).for_each(|i| other.push(i));
        log.append(&mut other);
        log.push(4000);
        assert_eq!((log.len(), other.len(), other.pop()), (4001, 0, None));
        assert!((0..4001).all(|i| log.pop() == Some(i)));
        assert_eq!(log.pop(), None);
    }
}
