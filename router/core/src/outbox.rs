//! What a router has to say to a store on a stream of batches, and which answer is whose.
//!
//! Operations wait here in the order in which they came, and leave together when the stream can take more: what there is
//! then is one message, bounded in operations and bytes, so one writer never stands behind another's many. Whether an
//! operation has left is what decides about it when the stream ends (R11): what is still here was certainly not executed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// Names an operation; grows.
pub type OpId = u64;

/// Operations `O` on their way, and who waits for each.
#[derive(Debug)]
pub struct Outbox<O, W> {
    last: OpId,
    /// Not sent yet, in the order of their ids.
    queue: VecDeque<(OpId, O, W)>,
    /// Sent, and not answered.
    sent: BTreeMap<OpId, W>,
    /// Sent operations that nobody waits for any more, to be told.
    cancelled: Vec<OpId>,
}

/// What one message carries.
#[derive(Debug, PartialEq, Eq)]
pub struct Batch<O> {
    /// In the order of their ids.
    pub ops: Vec<(OpId, O)>,
    /// Of earlier messages.
    pub cancelled: Vec<OpId>,
}

/// How much one message carries at most; one operation always fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimit {
    /// Operations.
    pub ops: usize,
    /// Bytes of their requests.
    pub bytes: usize,
}

impl<O, W> Default for Outbox<O, W> {
    fn default() -> Self {
        Self { last: 0, queue: VecDeque::new(), sent: BTreeMap::new(), cancelled: Vec::new() }
    }
}

impl<O, W> Outbox<O, W> {
    /// Adds an operation behind all others.
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

    /// The next message, if there is something to say. What it carries counts as sent from now on.
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

    /// Who waits for an answer that has come; `None` when nobody does any more.
    pub fn answered(&mut self, id: OpId) -> Option<W> {
        self.sent.remove(&id)
    }

    /// Nobody waits for an operation any more; whether the store is to be told.
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

    /// Who waits for sent operations behind `after`, up to `up_to`, which will not be answered any more; in their order.
    pub fn unanswered(&mut self, after: OpId, up_to: OpId) -> Vec<W> {
        if after >= up_to {
            return Vec::new();
        }
        let ids = (Bound::Excluded(after), Bound::Included(up_to));
        self.sent.extract_if(ids, |_, _| true).map(|(_, waiter)| waiter).collect()
    }

    /// Who waits for operations that were not sent, in their order; they are not to be sent any more.
    pub fn unsent(&mut self) -> Vec<W> {
        self.queue.drain(..).map(|(.., waiter)| waiter).collect()
    }

    /// The stream is over: nothing that was to be told of it is.
    pub fn forget_cancelled(&mut self) {
        self.cancelled.clear();
    }
}

#[cfg(test)]
#[path = "outbox_test.rs"]
mod tests;
