//! Decides what a log writes and when. It has no I/O and no clock: time is an argument. The caller performs each
//! step and reports its outcome before it asks for the next.
//!
//! ```text
//!            append                      next                       done(ok)
//!  caller ----------> frames (in order) ------> Commit / Create ---------------> durable up to the last of them
//!                        ^                             | done(error)
//!                        +-----------------------------+  file abandoned, frames that are not durable stay, Failing
//! ```
//!
//! - At most one step is in progress. A step of the fsync log syncs what it writes, so at most one write of a file
//!   is unsynced, and only that can become a torn tail.
//! - The buffered log writes at once. Another thread syncs it every few milliseconds ([`Core::next_sync`]) while
//!   writing continues. Written frames survive the process, synced frames survive the machine.
//! - A frame leaves memory only when it is durable. After any failure the file is never written or synced again,
//!   because a successful sync after a failed one proves nothing. The next segment begins with all frames that are
//!   not durable.
//! - A segment is completed under a temporary name, so that it exists either with its first frames or not at all.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use kindred_partition_config::ids::Revision;

use super::{Event, Failure, LogStatus};
use crate::{
    format::{FILE_HEADER_BYTES, FRAME_HEADER_BYTES},
    layout::LogKind,
    number::{FileNumber, FrameSeq},
    options::LogOptions,
    record::{Batch, Record, TooLarge},
    scan::LogEnd,
};

/// A frame that is not yet durable.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pending {
    pub seq: FrameSeq,
    pub payload: Vec<u8>,
    since: Duration,
}

impl Pending {
    pub(crate) fn bytes(&self) -> u64 {
        (FRAME_HEADER_BYTES + self.payload.len()) as u64
    }
}

/// The next step of the writer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait until something is appended, or until this time.
    Wait(Option<Duration>),
    /// Create a segment that begins with these frames, sync it, then give it its name.
    Create(Create),
    /// Write these frames to the end of the segment, and sync them if asked.
    Commit(Commit),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Create {
    pub number: FileNumber,
    pub first: FrameSeq,
    pub after: FrameSeq,
    pub frames: Vec<Arc<Pending>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    /// The end of the segment.
    pub offset: u64,
    /// All bytes before this offset are synced.
    pub synced: u64,
    pub frames: Vec<Arc<Pending>>,
    /// Whether to sync these frames.
    pub sync: bool,
}

/// A sync of the written part of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sync {
    pub number: FileNumber,
    /// The last written frame.
    upto: FrameSeq,
    /// The end of the written part.
    bytes: u64,
    since: Duration,
}

/// The segment that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Open {
    number: FileNumber,
    /// The length of the segment.
    bytes: u64,
    /// The synced part. In the fsync log this is the whole segment unless a step is in progress.
    synced: u64,
}

#[derive(Debug)]
struct Failing {
    failure: Failure,
    retry_at: Duration,
    wait: Duration,
}

/// A step in progress.
#[derive(Debug)]
struct UnderWay {
    create: Option<FileNumber>,
    upto: Option<FrameSeq>,
    bytes: u64,
    since: Duration,
}

/// The state of a log's writer.
#[derive(Debug)]
pub(crate) struct Core {
    options: LogOptions,
    /// The sequence number of the next frame.
    next: FrameSeq,
    durable: FrameSeq,
    /// The last frame that the operating system has: the last durable one, or a later one of the buffered log.
    written: FrameSeq,
    /// The frames that are not durable, in order and without holes.
    frames: VecDeque<Arc<Pending>>,
    pending_bytes: u64,
    /// The highest requested promise with the time of the request, and the highest written promise.
    promise: Option<(Revision, Duration)>,
    promised: Revision,
    /// Write pending data at once.
    hurry: bool,
    /// Sync up to this frame at once.
    hurry_to: FrameSeq,
    segment: Option<Open>,
    number: FileNumber,
    /// Where the earlier segments end, if not where the first new frame begins.
    after: Option<FrameSeq>,
    failing: Option<Failing>,
    under_way: Option<UnderWay>,
    syncing: Option<Sync>,
    written_bytes: u64,
}

impl Core {
    /// Continues a log at its end. The first step creates a new segment.
    pub(crate) fn new(options: LogOptions, end: LogEnd, now: Duration) -> Self {
        let frames: VecDeque<_> = end
            .unproven
            .into_iter()
            .map(|(seq, payload)| Arc::new(Pending { seq, payload, since: now }))
            .collect();
        let durable = frames.front().map_or(end.next, |frame| frame.seq).prev();
        Self {
            options,
            next: end.next,
            durable,
            written: durable,
            pending_bytes: frames.iter().map(|frame| frame.bytes()).sum(),
            frames,
            promise: None,
            promised: Revision::ZERO,
            hurry: false,
            hurry_to: FrameSeq(0),
            segment: None,
            number: end.number,
            after: Some(end.after),
            failing: None,
            under_way: None,
            syncing: None,
            written_bytes: 0,
        }
    }

    /// Accepts a batch and returns its sequence number.
    pub(crate) fn append(&mut self, now: Duration, batch: Batch) -> Result<FrameSeq, TooLarge> {
        let payload = batch.into_payload()?;
        Ok(self.push(now, payload))
    }

    fn push(&mut self, now: Duration, payload: Vec<u8>) -> FrameSeq {
        let seq = self.next;
        self.next = seq.next();
        let frame = Pending { seq, payload, since: now };
        self.pending_bytes += frame.bytes();
        self.frames.push_back(Arc::new(frame));
        seq
    }

    /// Declares that every change at or below this revision has been appended.
    pub(crate) fn promise(&mut self, now: Duration, revision: Revision) {
        if revision > self.promised.max(self.promise.map_or(Revision::ZERO, |(revision, _)| revision)) {
            self.promise = Some((revision, self.promise.map_or(now, |(_, since)| since)));
        }
    }

    /// Makes the next write and sync happen at once.
    pub(crate) fn hurry(&mut self) {
        self.hurry = true;
        self.hurry_to = self.next.prev();
    }

    /// The step to perform now. The caller must perform it and call [`Core::done`] before it asks again.
    pub(crate) fn next(&mut self, now: Duration) -> Step {
        debug_assert!(self.under_way.is_none(), "one step at a time");
        let at = self.acts_at();
        if at.is_none_or(|at| now < at) {
            return Step::Wait(at);
        }
        match self.segment {
            Some(segment) if segment.bytes < self.options.segment_bytes => {
                let frames = self.gather(now, self.written);
                self.begin(now, None, &frames, 0);
                let Open { bytes: offset, synced, .. } = segment;
                Step::Commit(Commit { offset, synced, frames, sync: self.options.kind == LogKind::Fsync })
            }
            _ => self.create(now),
        }
    }

    /// When [`Core::next`] will have a step, if nothing else happens. A time in the past means at once.
    pub(crate) fn acts_at(&self) -> Option<Duration> {
        match (&self.failing, self.segment) {
            (Some(failing), _) => Some(failing.retry_at),
            (None, None) => Some(Duration::ZERO),
            (None, Some(_)) => self.due(),
        }
    }

    /// When something is due to be written. A time in the past means at once.
    fn due(&self) -> Option<Duration> {
        let promise = self.promise.map(|(_, since)| since.saturating_add(self.options.promise_interval));
        let frame = (self.last() > self.written).then_some(Duration::ZERO);
        let due = [promise, frame].into_iter().flatten().min()?;
        Some(if self.hurry { Duration::ZERO } else { due })
    }

    /// The last appended frame.
    fn last(&self) -> FrameSeq {
        self.frames.back().map_or(self.durable, |frame| frame.seq)
    }

    /// When the written frames are due to be synced, if nothing else happens. A time in the past means at once.
    pub(crate) fn syncs_at(&self) -> Option<Duration> {
        let segment = self.segment?;
        // A segment that is being created includes all frames that are not durable.
        let made = self.under_way.as_ref().is_some_and(|step| step.create.is_some());
        if self.syncing.is_some() || made || self.failing.is_some() || self.written <= self.durable {
            return None;
        }
        let oldest = self.frames.front()?;
        let now = self.hurry_to > self.durable || segment.bytes - segment.synced >= self.options.flush_bytes;
        Some(if now { Duration::ZERO } else { oldest.since.saturating_add(self.options.flush_interval) })
    }

    /// The sync to perform now. The caller must perform it and call [`Core::synced`]; steps continue meanwhile.
    pub(crate) fn next_sync(&mut self, now: Duration) -> Option<Sync> {
        let segment = self.segment.filter(|_| self.syncs_at().is_some_and(|at| at <= now))?;
        let sync = Sync { number: segment.number, upto: self.written, bytes: segment.bytes, since: now };
        self.syncing = Some(sync);
        Some(sync)
    }

    /// Applies the outcome of a sync, `None` if it was skipped because another segment was created; returns the
    /// events.
    pub(crate) fn synced(&mut self, now: Duration, outcome: Option<Result<(), Failure>>) -> Vec<Event> {
        let Some(sync) = self.syncing.take() else { return Vec::new() };
        let Some(segment) = self.segment.as_mut().filter(|segment| segment.number == sync.number) else {
            // The next segment includes all frames of this one that were not durable.
            return Vec::new();
        };
        match outcome {
            None => Vec::new(),
            Some(Ok(())) => {
                let bytes = sync.bytes - std::mem::replace(&mut segment.synced, sync.bytes);
                self.settle(sync.upto, bytes, now.saturating_sub(sync.since))
            }
            Some(Err(failure)) => self.failed(now, failure),
        }
    }

    /// Marks every frame up to `upto` as durable.
    fn settle(&mut self, upto: FrameSeq, bytes: u64, took: Duration) -> Vec<Event> {
        while let Some(frame) = self.frames.pop_front_if(|frame| frame.seq <= upto) {
            self.pending_bytes -= frame.bytes();
        }
        if upto <= self.durable {
            return Vec::new();
        }
        (self.durable, self.written) = (upto, self.written.max(upto));
        vec![Event::Durable { seq: upto, bytes, took }]
    }

    fn create(&mut self, now: Duration) -> Step {
        let frames = self.gather(now, self.durable);
        self.begin(now, Some(self.number), &frames, FILE_HEADER_BYTES as u64);
        let first = frames.first().map_or(self.next, |frame| frame.seq);
        Step::Create(Create { number: self.number, first, after: self.after.unwrap_or(first), frames })
    }

    /// The frames after `behind`, followed by the pending promise.
    fn gather(&mut self, now: Duration, behind: FrameSeq) -> Vec<Arc<Pending>> {
        // Do not add promises while the disk fails, or they would pile up.
        if self.failing.is_none()
            && let Some((revision, _)) = self.promise.take()
        {
            let mut batch = Batch::new();
            batch.push(&Record::Promise(revision));
            if let Ok(seq) = self.append(now, batch) {
                self.promised = revision;
                if self.hurry {
                    self.hurry_to = seq;
                }
            }
        }
        self.hurry = false;
        let there = self.frames.partition_point(|frame| frame.seq <= behind);
        self.frames.range(there..).cloned().collect()
    }

    fn begin(&mut self, now: Duration, create: Option<FileNumber>, frames: &[Arc<Pending>], more: u64) {
        let bytes = frames.iter().map(|frame| frame.bytes()).sum::<u64>() + more;
        let upto = frames.last().map(|frame| frame.seq);
        self.under_way = Some(UnderWay { create, upto, bytes, since: now });
    }

    /// Applies the outcome of the step in progress; returns the events.
    pub(crate) fn done(&mut self, now: Duration, outcome: Result<(), Failure>) -> Vec<Event> {
        let Some(step) = self.under_way.take() else { return Vec::new() };
        match outcome {
            Ok(()) => self.succeeded(now, &step),
            Err(failure) => self.failed(now, failure),
        }
    }

    fn succeeded(&mut self, now: Duration, step: &UnderWay) -> Vec<Event> {
        let syncs = step.create.is_some() || self.options.kind == LogKind::Fsync;
        match (step.create, &mut self.segment) {
            (Some(number), segment) => {
                *segment = Some(Open { number, bytes: step.bytes, synced: step.bytes });
                self.number = number.next();
                self.after = None;
            }
            (None, Some(segment)) => {
                segment.bytes += step.bytes;
                segment.synced = if syncs { segment.bytes } else { segment.synced };
            }
            // A sync has failed meanwhile, so the written frames do not count.
            (None, None) => return Vec::new(),
        }
        self.written_bytes += step.bytes;
        let mut events = Vec::new();
        if self.failing.take().is_some() {
            events.push(Event::Recovered);
        }
        let Some(upto) = step.upto else { return events };
        if syncs {
            events.extend(self.settle(upto, step.bytes, now.saturating_sub(step.since)));
        } else {
            self.written = upto;
            events.push(Event::Written { seq: upto });
        }
        events
    }

    fn failed(&mut self, now: Duration, failure: Failure) -> Vec<Event> {
        self.segment = None;
        // The next segment begins with all frames that are not durable.
        self.written = self.durable;
        let before = self.failing.take();
        let wait = before.as_ref().map_or(self.options.retry_first, |failing| {
            failing.wait.saturating_mul(2).min(self.options.retry_last)
        });
        let told = before.is_some_and(|failing| failing.failure.reason == failure.reason);
        let events = if told { Vec::new() } else { vec![Event::Failing(failure.clone())] };
        self.failing = Some(Failing { failure, retry_at: now.saturating_add(wait), wait });
        events
    }

    /// Whether all frames are durable and no promise is pending.
    pub(crate) fn is_idle(&self) -> bool {
        self.frames.is_empty() && self.promise.is_none() && self.under_way.is_none() && self.segment.is_some()
    }

    /// Whether the caller may keep appending.
    pub(crate) const fn has_room(&self) -> bool {
        self.pending_bytes < self.options.max_pending_bytes
    }

    pub(crate) const fn durable(&self) -> FrameSeq {
        self.durable
    }

    pub(crate) const fn written(&self) -> FrameSeq {
        self.written
    }

    pub(crate) const fn next_seq(&self) -> FrameSeq {
        self.next
    }

    pub(crate) fn failing(&self) -> Option<&Failure> {
        self.failing.as_ref().map(|failing| &failing.failure)
    }

    pub(crate) fn status(&self, now: Duration) -> LogStatus {
        LogStatus {
            durable: self.durable,
            next: self.next,
            pending_bytes: self.pending_bytes,
            pending_for: self
                .frames
                .front()
                .map_or(Duration::ZERO, |oldest| now.saturating_sub(oldest.since)),
            segment: self.segment.map(|segment| segment.number),
            written_bytes: self.written_bytes,
            failing: self.failing().cloned(),
        }
    }
}

#[cfg(test)]
mod tests;
