//! The operations that a router sends to a store on a stream of batches, and the matching of answers to them.
//!
//! Operations wait here in the order in which they came. When the stream can take more, all that wait leave as one
//! message, bounded in operations and bytes. Whether an operation has left decides about it when the stream ends (R11):
//! those still here were certainly not executed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// The id of an operation; ids increase.
pub type OpId = u64;

/// Operations `O` under way, and the waiter `W` of each.
#[derive(Debug)]
pub struct Outbox<O, W> {
    last: OpId,
    /// Not sent yet, in the order of their ids.
    queue: VecDeque<(OpId, O, W)>,
    /// Sent and not answered.
    sent: BTreeMap<OpId, W>,
    /// Sent operations without a waiter, whose cancellation the store is still to be told.
    cancelled: Vec<OpId>,
}

/// The content of a message.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch<O> {
    /// In the order of their ids.
    pub ops: Vec<(OpId, O)>,
    /// Operations of earlier messages that are cancelled.
    pub cancelled: Vec<OpId>,
}

/// The limits of a message; a single operation always fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimit {
    pub ops: usize,
    /// The total bytes of the requests.
    pub bytes: usize,
}

impl<O, W> Default for Outbox<O, W> {
    fn default() -> Self {
        Self { last: 0, queue: VecDeque::new(), sent: BTreeMap::new(), cancelled: Vec::new() }
    }
}

impl<O, W> Outbox<O, W> {
    /// Appends an operation; returns its id.
    pub fn push(&mut self, op: O, waiter: W) -> OpId {
        self.last += 1;
        self.queue.push_back((self.last, op, waiter));
        self.last
    }

    /// Whether there is something to send.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.queue.is_empty() || !self.cancelled.is_empty()
    }

    /// Takes the next message, if there is something to send. Its operations count as sent from here on.
    pub fn take(&mut self, limit: BatchLimit, bytes_of: impl Fn(&O) -> usize) -> Option<Batch<O>> {
        if !self.has_news() {
            return None;
        }
        let (mut ops, mut bytes) = (Vec::with_capacity(self.queue.len().min(limit.ops)), 0);
        while let Some((_, op, _)) = self.queue.front() {
            bytes += bytes_of(op);
            if !ops.is_empty() && (bytes > limit.bytes || ops.len() >= limit.ops) {
                break;
            }
            let Some((id, op, waiter)) = self.queue.pop_front() else { break };
            self.sent.insert(id, waiter);
            ops.push((id, op));
        }
        Some(Batch { ops, cancelled: std::mem::take(&mut self.cancelled) })
    }

    /// Takes the waiter of an operation that was answered; `None` if it was cancelled.
    pub fn answered(&mut self, id: OpId) -> Option<W> {
        self.sent.remove(&id)
    }

    /// Cancels an operation; returns whether the store must be told.
    pub fn cancel(&mut self, id: OpId) -> bool {
        if let Ok(at) = self.queue.binary_search_by_key(&id, |(id, ..)| *id) {
            self.queue.remove(at);
            return false;
        }
        let sent = self.sent.remove(&id).is_some();
        if sent {
            self.cancelled.push(id);
        }
        sent
    }

    /// Takes the waiters of sent operations with ids above `after` and up to `up_to`, in order. These will not be
    /// answered any more.
    pub fn unanswered(&mut self, after: OpId, up_to: OpId) -> Vec<W> {
        if after >= up_to {
            return Vec::new();
        }
        let ids = (Bound::Excluded(after), Bound::Included(up_to));
        self.sent.extract_if(ids, |_, _| true).map(|(_, waiter)| waiter).collect()
    }

    /// Takes the waiters of operations that were not sent, in order, and drops the operations.
    pub fn unsent(&mut self) -> Vec<W> {
        self.queue.drain(..).map(|(.., waiter)| waiter).collect()
    }

    /// Drops the cancellations that were still to be told, because the stream has ended.
    pub fn forget_cancelled(&mut self) {
        self.cancelled.clear();
    }
}

#[cfg(test)]
#[path = "outbox_test.rs"]
mod tests;
