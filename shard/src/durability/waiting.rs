//! A queue of what waits for a log.

use std::collections::VecDeque;

/// Entries that wait until a log is durable up to a position. Positions never decrease along the queue, so entries
/// leave in the order in which they came: an answer never overtakes an earlier one.
#[derive(Debug)]
pub struct Waiting<T> {
    queue: VecDeque<(u64, T)>,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { queue: VecDeque::new() }
    }
}

impl<T> Waiting<T> {
    /// Holds an entry until `position` is durable, or the position of the entry before it if that is higher.
    pub fn push(&mut self, position: u64, entry: T) {
        let last = self.queue.back().map_or(0, |(last, _)| *last);
        self.queue.push_back((position.max(last), entry));
    }

    /// The next entry whose position is at or below `durable`.
    pub fn pop(&mut self, durable: u64) -> Option<T> {
        let (_, entry) = self.queue.pop_front_if(|(position, _)| *position <= durable)?;
        Some(entry)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released(waiting: &mut Waiting<&'static str>, durable: u64) -> Vec<&'static str> {
        std::iter::from_fn(|| waiting.pop(durable)).collect()
    }

    #[test]
    fn entries_leave_in_their_order_and_not_before_their_position() {
        let mut waiting = Waiting::default();
        for (position, entry) in
            [(1, "put"), (1, "txn"), (3, "put 2"), (2, "read that came later"), (4, "last")]
        {
            waiting.push(position, entry);
        }
        assert_eq!(released(&mut waiting, 0), [""; 0]);
        assert_eq!(released(&mut waiting, 2), ["put", "txn"]);
        assert_eq!(waiting.len(), 3);
        assert_eq!(released(&mut waiting, 3), ["put 2", "read that came later"]);
        assert_eq!(released(&mut waiting, 9), ["last"]);
        assert!(waiting.is_empty());
    }

    #[test]
    fn what_waits_for_nothing_waits_for_those_before_it_only() {
        let mut waiting = Waiting::default();
        waiting.push(0, "at once");
        assert_eq!(waiting.pop(0), Some("at once"));
        waiting.push(7, "write");
        waiting.push(0, "behind it");
        assert_eq!(waiting.pop(6), None);
        assert_eq!(released(&mut waiting, 7), ["write", "behind it"]);
    }
}
