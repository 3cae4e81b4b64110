//! Decides what a log writes and when. No I/O, no clock: time is an argument, and what was decided is done by somebody else, who tells
//! how it went before asking again.
//!
//! ```text
//!            append                      next                       done(ok)
//!  caller ----------> frames (in order) ------> Commit / Create ---------------> durable up to the last of them
//!                        ^                             | done(error)
//!                        +-----------------------------+  the file is given up, all that is not durable stays, Failing
//! ```
//!
//! - At most one step is under way. That of the fsync log syncs what it writes, so at most one write of a file is not synced: what a torn
//!   tail can be.
//! - The buffered log is written at once and synced every few milliseconds, by somebody else ([`Core::next_sync`]) while writing goes on: what
//!   is written is the system's, and outlives the process; what is synced outlives the system.
//! - A frame leaves memory only when it is durable. After any failure the file is never written or synced again, as a sync that succeeds
//!   after one that failed proves nothing: the next segment begins with all frames that are not durable, and counts from the first of them.
//! - A segment is made whole under another name, so that it is there with its first frames or not at all.

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

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing until something is appended, or until this time.
    Wait(Option<Duration>),
    /// A new segment that begins with these frames, synced and then given its name.
    Create(Create),
    /// These frames at the end of the segment, synced or not.
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
    /// All before is synced.
    pub synced: u64,
    pub frames: Vec<Arc<Pending>>,
    /// Whether these are to be synced as well.
    pub sync: bool,
}

/// What is written of a segment is to be synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sync {
    pub number: FileNumber,
    /// The last frame that is written.
    upto: FrameSeq,
    /// The end of what is written.
    bytes: u64,
    since: Duration,
}

/// The segment that can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Open {
    number: FileNumber,
    /// Its length.
    bytes: u64,
    /// How much of it is synced: all when no step is under way, but of the buffered log.
    synced: u64,
}

#[derive(Debug)]
struct Failing {
    failure: Failure,
    retry_at: Duration,
    wait: Duration,
}

/// A step that was given out.
#[derive(Debug)]
struct UnderWay {
    create: Option<FileNumber>,
    /// The last frame.
    upto: Option<FrameSeq>,
    bytes: u64,
    since: Duration,
}

/// The state of a log's writer.
#[derive(Debug)]
pub(crate) struct Core {
    options: LogOptions,
    /// The next frame's number.
    next: FrameSeq,
    durable: FrameSeq,
    /// The last frame that the system has: the last durable one, or a later one of the buffered log.
    written: FrameSeq,
    /// All that is not durable, in order, without holes.
    frames: VecDeque<Arc<Pending>>,
    pending_bytes: u64,
    /// The highest promise asked for, when it was, and the highest one in a frame.
    promise: Option<(Revision, Duration)>,
    promised: Revision,
    /// Write what there is without waiting for more.
    hurry: bool,
    /// Sync up to here without waiting for more.
    hurry_to: FrameSeq,
    segment: Option<Open>,
    number: FileNumber,
    /// Where the segments of before end, if not where the first new frame begins.
    after: Option<FrameSeq>,
    failing: Option<Failing>,
    under_way: Option<UnderWay>,
    syncing: Option<Sync>,
    written_bytes: u64,
}

impl Core {
    /// Goes on where a log ends. The first step is a new segment.
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

    /// Takes a batch; answers its number.
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

    /// Everything at or below this revision has been appended.
    pub(crate) fn promise(&mut self, now: Duration, revision: Revision) {
        if revision > self.promised.max(self.promise.map_or(Revision::ZERO, |(revision, _)| revision)) {
            self.promise = Some((revision, self.promise.map_or(now, |(_, since)| since)));
        }
    }

    /// Does not wait for more to write at once.
    pub(crate) fn hurry(&mut self) {
        self.hurry = true;
        self.hurry_to = self.next.prev();
    }

    /// What is to be done now. What is given out must be done, and told with [`Core::done`], before asking again.
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

    /// When [`Core::next`] has something to do, if nothing else happens: the past for at once.
    pub(crate) fn acts_at(&self) -> Option<Duration> {
        match (&self.failing, self.segment) {
            (Some(failing), _) => Some(failing.retry_at),
            (None, None) => Some(Duration::ZERO),
            (None, Some(_)) => self.due(),
        }
    }

    /// When something is to be written: the past for at once.
    fn due(&self) -> Option<Duration> {
        let promise = self.promise.map(|(_, since)| since.saturating_add(self.options.promise_interval));
        let frame = (self.last() > self.written).then_some(Duration::ZERO);
        let due = [promise, frame].into_iter().flatten().min()?;
        Some(if self.hurry { Duration::ZERO } else { due })
    }

    /// The last frame that was appended.
    fn last(&self) -> FrameSeq {
        self.frames.back().map_or(self.durable, |frame| frame.seq)
    }

    /// When what is written is to be synced by somebody else, if nothing else happens: the past for at once.
    pub(crate) fn syncs_at(&self) -> Option<Duration> {
        let segment = self.segment?;
        // A segment that is being made takes all that is not durable with it.
        let made = self.under_way.as_ref().is_some_and(|step| step.create.is_some());
        if self.syncing.is_some() || made || self.failing.is_some() || self.written <= self.durable {
            return None;
        }
        let oldest = self.frames.front()?;
        let now = self.hurry_to > self.durable || segment.bytes - segment.synced >= self.options.flush_bytes;
        Some(if now { Duration::ZERO } else { oldest.since.saturating_add(self.options.flush_interval) })
    }

    /// What is to be synced now. What is given out must be done, and told with [`Core::synced`]; steps go on meanwhile.
    pub(crate) fn next_sync(&mut self, now: Duration) -> Option<Sync> {
        let segment = self.segment.filter(|_| self.syncs_at().is_some_and(|at| at <= now))?;
        let sync = Sync { number: segment.number, upto: self.written, bytes: segment.bytes, since: now };
        self.syncing = Some(sync);
        Some(sync)
    }

    /// How the sync went, nothing where it was not done as another segment was made meanwhile; answers what is to be told.
    pub(crate) fn synced(&mut self, now: Duration, outcome: Option<Result<(), Failure>>) -> Vec<Event> {
        let Some(sync) = self.syncing.take() else { return Vec::new() };
        let Some(segment) = self.segment.as_mut().filter(|segment| segment.number == sync.number) else {
            // All of it that was not durable is in the next segment, or will be.
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

    /// Everything up to a frame is on the disk.
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

    /// All behind a frame, and behind it the promise that it keeps.
    fn gather(&mut self, now: Duration, behind: FrameSeq) -> Vec<Arc<Pending>> {
        // While the disk does not take anything, promises must not pile up.
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

    /// How the step went; answers what is to be told.
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
            // A sync has failed meanwhile: what was written counts for nothing.
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
        // The next segment begins with all that is not durable.
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

    /// Whether everything is durable and no promise waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.frames.is_empty() && self.promise.is_none() && self.under_way.is_none() && self.segment.is_some()
    }

    /// Whether the caller may go on appending.
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
