//! What is to be sent: encoded frames, between which stand payloads that are not copied.

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Buf as _, Bytes};

/// Payloads up to this length are copied among the frame heads, which costs less than a slice of their own.
pub(crate) const COPY_BYTES_MAX: usize = 1024;

/// The buffer of heads keeps this capacity when it is empty.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// A queue of bytes.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Frame heads, control frames, header blocks and small payloads.
    bytes: Vec<u8>,
    /// How much of `bytes` was sent.
    start: usize,
    payloads: VecDeque<Payload>,
    payload_bytes: usize,
    /// All bytes that were ever sent, which the marks of control frames refer to.
    sent: u64,
    /// Where each frame ends that was caused by the client and is not a part of an answer.
    control_ends: VecDeque<u64>,
}

#[derive(Debug)]
struct Payload {
    /// It goes before this place in `bytes`.
    at: usize,
    bytes: Bytes,
}

impl Output {
    /// The number of bytes that wait.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start + self.payload_bytes
    }

    /// All bytes so far, sent or not.
    #[inline]
    pub(crate) fn total(&self) -> u64 {
        self.sent + self.len() as u64
    }

    /// The buffer that frames are appended to.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a payload.
    #[inline]
    pub(crate) fn payload(&mut self, payload: Bytes) {
        if payload.len() <= COPY_BYTES_MAX {
            self.bytes.extend_from_slice(&payload);
        } else {
            self.payload_bytes += payload.len();
            self.payloads.push_back(Payload { at: self.bytes.len(), bytes: payload });
        }
    }

    /// Appends a payload of which the caller keeps a handle.
    #[inline]
    pub(crate) fn payload_ref(&mut self, payload: &Bytes) {
        if payload.len() <= COPY_BYTES_MAX {
            self.bytes.extend_from_slice(payload);
        } else {
            self.payload(payload.clone());
        }
    }

    /// Notes that what was appended last is a frame whose number only the client's reading limits.
    pub(crate) fn mark_control(&mut self) {
        self.control_ends.push_back(self.total());
    }

    /// The number of such frames that wait.
    pub(crate) fn controls(&self) -> usize {
        self.control_ends.len()
    }

    /// Fills slices with what is to be sent next, and returns how many it filled.
    pub(crate) fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut filled = 0;
        let mut put = |bytes: &'a [u8]| {
            if bytes.is_empty() {
                return true;
            }
            let Some(slice) = slices.get_mut(filled) else { return false };
            *slice = IoSlice::new(bytes);
            filled += 1;
            true
        };
        let mut start = self.start;
        for payload in &self.payloads {
            if !put(&self.bytes[start..payload.at]) || !put(&payload.bytes) {
                return filled;
            }
            start = payload.at;
        }
        put(&self.bytes[start..]);
        filled
    }

    /// Forgets what was sent.
    pub(crate) fn advance(&mut self, sent: usize) {
        debug_assert!(sent <= self.len(), "more was sent than there was");
        self.sent += sent as u64;
        let mut left = sent;
        while left > 0 {
            let until = self.payloads.front().map_or(self.bytes.len(), |payload| payload.at);
            let taken = left.min(until - self.start);
            self.start += taken;
            left -= taken;
            let Some(payload) = self.payloads.front_mut() else { break };
            let taken = left.min(payload.bytes.len());
            payload.bytes.advance(taken);
            left -= taken;
            self.payload_bytes -= taken;
            if payload.bytes.is_empty() {
                self.payloads.pop_front();
            }
        }
        while self.control_ends.front().is_some_and(|end| *end <= self.sent) {
            self.control_ends.pop_front();
        }
        if self.start == self.bytes.len() && self.payloads.is_empty() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES_MAX);
            self.start = 0;
        } else if self.start > KEPT_BYTES_MAX {
            self.bytes.drain(..self.start);
            for payload in &mut self.payloads {
                payload.at -= self.start;
            }
            self.start = 0;
        }
    }
}

#[cfg(test)]
mod tests;
