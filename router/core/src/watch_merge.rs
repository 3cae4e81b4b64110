//! Merges the feeds of several stores into one ordered stream (R6); a state machine.
//!
//! Every store assigns its own revisions, so the feeds of a range over several stores arrive interleaved at random. An
//! event may be emitted once no other store can still have an earlier one: when every source has *proved* its feed up
//! to that revision, by a watermark or by an event of its own. Everything follows from one number, the **bound** = the
//! minimum over the sources of what each has proved:
//!
//! * Whatever is buffered at or below the bound is emitted in order, so every buffered event lies above it.
//! * So a source that stands *at* the bound has nothing buffered. It holds the others back, and reading it adds nothing
//!   to the buffer without raising the bound. It is therefore always read, whatever the budget, and back-pressure
//!   cannot deadlock.
//! * A source below the newest buffered event, or below a revision that a reader waits for ([`Event::Want`]), is asked
//!   for a watermark ([`Command::Advance`]). Only one request is under way per source; under load, the next one covers
//!   all that came meanwhile.
//!
//! A source is all that *one* store serves of the range, and a store never splits a revision. No two stores assign the
//! same revision (R1), but several may *report* one: a transaction may have written keys that later moved to different
//! stores. Their events form one revision of the merged stream, as they did at the store that assigned it ([`Group`]).
//! It is emitted whole, when every source has proved it.
//!
//! When the map changes, build a new merge at [`WatchMerge::merged`] and open every feed at the revision after it:
//! nothing above it was emitted.
//!
//! A wrong input is a typed error that changes nothing, and the caller ends the feed: an event below a published
//! watermark must be neither emitted nor dropped silently (pitfall E6).

use std::collections::BTreeMap;
use std::fmt;

use kindred_partition_config::ids::Revision;

use crate::gaps::Gap;

/// A source by its place in the merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceIx(pub usize);

impl fmt::Display for SourceIx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Events of one revision that can be joined with those of another store.
pub trait Group {
    /// Appends the events of another store; the order of stores is always the same.
    fn join(&mut self, more: Self);
}

/// All events of one revision, which are never split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<T> {
    pub revision: Revision,
    /// The bytes that the events count in a budget.
    pub bytes: usize,
    pub payload: T,
}

/// An input of the merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<T> {
    /// Whole revisions, in increasing order.
    Events {
        source: SourceIx,
        /// The revisions.
        batch: Vec<Entry<T>>,
    },
    /// No event at or below this revision is still to come from the source.
    Watermark {
        source: SourceIx,
        /// The promise.
        revision: Revision,
    },
    /// The feed broke: nothing more comes from it until it is resumed.
    SourceLost {
        /// The source whose feed broke.
        source: SourceIx,
    },
    /// The feed is open again.
    SourceResumed {
        source: SourceIx,
        /// Its first revision, as [`Command::Resume`] asked for.
        from: Revision,
    },
    /// The store restarted uncleanly, and the source's position lies in what it lost (R10).
    RolledBack {
        /// The source, which must be lost.
        source: SourceIx,
        /// What the store lost.
        gap: Gap,
    },
    /// The source has compacted history that is still needed.
    Compacted {
        source: SourceIx,
        /// The first revision that it can serve.
        floor: Revision,
    },
    /// The source refused the advance: its clock may not go that far (R3). Not asked again before an [`Event::Retry`].
    AdvanceFailed {
        /// The source that refused.
        source: SourceIx,
    },
    /// The caller's back-off after a failed advance is over.
    Retry {
        /// The source to ask again.
        source: SourceIx,
    },
    /// A reader waits for the merged stream to reach this revision (R7); sources below it are asked as for an event.
    Want {
        /// The revision to reach.
        to: Revision,
    },
}

/// What the caller must do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command<T> {
    /// The next revision of the merged stream.
    Emit(Entry<T>),
    /// No event at or below this is still to come in the merged stream. Omitted if an emitted event says as much.
    Watermark(Revision),
    /// Ask the source for a watermark; the only answer is the one in its feed.
    Advance {
        source: SourceIx,
        /// The watermark must be at least this.
        to: Revision,
    },
    /// Open the feed again, then pass [`Event::SourceResumed`].
    Resume {
        source: SourceIx,
        /// The revision after the last one that it proved.
        from: Revision,
    },
    /// Stop reading the source, because the buffer is full and others hold it back.
    Pause(SourceIx),
    /// Read the source again.
    Unpause(SourceIx),
    /// The source holds back a full buffer; for metrics.
    Lagging(SourceIx),
    /// The merged stream has ended because a part of its history is gone.
    Compacted {
        /// The first revision that can be served.
        floor: Revision,
    },
    /// The merged stream has ended because it emitted events that a store has lost since. The gap tells which readers
    /// got some.
    BeginAnew,
}

/// An input that breaks the contract of a feed; it changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// An event at or below what the source had proved.
    #[error("source {source_ix}: event at {revision}, though proved up to {proved}")]
    LateEvent {
        source_ix: SourceIx,
        /// The event's revision.
        revision: Revision,
        /// What the source had proved, by earlier events of the batch too.
        proved: Revision,
    },
    /// A watermark below what the source had proved.
    #[error("source {source_ix}: watermark goes back to {revision} from {proved}")]
    WatermarkBack {
        source_ix: SourceIx,
        /// The watermark.
        revision: Revision,
        /// What the source had proved.
        proved: Revision,
    },
    /// A message of a source that is lost, or a resume of one that is not.
    #[error("source {source_ix}: message in the wrong state")]
    WrongState {
        /// The source of the message.
        source_ix: SourceIx,
    },
    /// A feed that was opened at another revision than asked for, so that it would miss or repeat events.
    #[error("source {source_ix}: resumed at {from}, wanted {wanted}")]
    WrongResume {
        source_ix: SourceIx,
        /// The revision at which it was opened.
        from: Revision,
        /// The revision that was asked for.
        wanted: Revision,
    },
    #[error("no source {0}")]
    UnknownSource(SourceIx),
    /// The merged stream has ended already.
    #[error("the merged stream has ended")]
    Ended,
}

#[derive(Debug)]
struct Source {
    /// No event at or below this is still to come from the source.
    proved: Revision,
    live: bool,
    /// The advance under way.
    asked: Option<Revision>,
    /// An advance failed, and the back-off is not over.
    refused: bool,
    paused: bool,
}

/// The merge of one watched range.
#[derive(Debug)]
pub struct WatchMerge<T> {
    sources: Vec<Source>,
    /// Entries that wait; between steps all lie above the bound. Entries of one revision are ordered by source.
    buffer: BTreeMap<(Revision, SourceIx), Entry<T>>,
    buffered_bytes: usize,
    budget_bytes: usize,
    /// Set when the buffer exceeds the budget, and cleared at half of it, so that sources are not paused and unpaused
    /// in every step.
    full: bool,
    /// The highest revision that a reader waits for.
    wanted: Revision,
    /// The bound up to which the merged stream was emitted.
    merged: Revision,
    ended: bool,
}

impl<T: Group> WatchMerge<T> {
    /// A merge of `sources` feeds, each open at the revision after `after`. The buffer exceeds `budget_bytes` by at
    /// most one batch per source.
    #[must_use]
    pub fn new(sources: usize, after: Revision, budget_bytes: usize) -> Self {
        let source = |_| Source { proved: after, live: true, asked: None, refused: false, paused: false };
        Self {
            sources: (0..sources).map(source).collect(),
            buffer: BTreeMap::new(),
            buffered_bytes: 0,
            budget_bytes,
            full: false,
            wanted: after,
            merged: after,
            ended: false,
        }
    }

    /// No event at or below this is still to come in the merged stream.
    #[must_use]
    pub fn merged(&self) -> Revision {
        self.merged
    }

    /// What the source has proved; its feed resumes at the revision after it.
    #[must_use]
    pub fn position(&self, source: SourceIx) -> Option<Revision> {
        self.sources.get(source.0).map(|source| source.proved)
    }

    /// What every source must prove before all that is buffered can be emitted and all readers have what they wait for.
    #[must_use]
    pub fn wanted(&self) -> Revision {
        self.buffer.last_key_value().map_or(self.wanted, |((newest, _), _)| self.wanted.max(*newest))
    }

    /// Bytes of the buffered entries.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.buffered_bytes
    }

    /// The sources that hold buffered events back, for metrics.
    pub fn holding_back(&self) -> impl Iterator<Item = SourceIx> {
        let any = !self.buffer.is_empty();
        let at_bound = move |(_, source): &(usize, &Source)| any && source.proved == self.merged;
        self.sources.iter().enumerate().filter(at_bound).map(|(index, _)| SourceIx(index))
    }

    /// Takes an input.
    ///
    /// # Errors
    /// When a feed breaks its contract; the state is unchanged, and the feed should be ended.
    pub fn step(&mut self, event: Event<T>) -> Result<Vec<Command<T>>, MergeError> {
        if self.ended {
            return Err(MergeError::Ended);
        }
        let mut commands = Vec::new();
        match event {
            Event::Events { source, batch } => self.take(source, batch)?,
            Event::Watermark { source, revision } => self.prove(source, revision)?,
            Event::SourceLost { source } => {
                let from = self.lose(source)?;
                commands.push(Command::Resume { source, from });
            }
            Event::SourceResumed { source, from } => self.resume(source, from)?,
            Event::RolledBack { source, gap } => commands.push(self.roll_back(source, gap.after)?),
            Event::Compacted { source, floor } => {
                self.source(source)?;
                self.end();
                commands.push(Command::Compacted { floor });
            }
            Event::AdvanceFailed { source } => {
                let state = self.source(source)?;
                // If no request is under way, a loss or a watermark has settled it, and its failure means nothing.
                state.refused = state.asked.take().is_some() || state.refused;
            }
            Event::Retry { source } => self.source(source)?.refused = false,
            Event::Want { to } => self.wanted = self.wanted.max(to),
        }
        if !self.ended {
            self.settle(&mut commands);
        }
        Ok(commands)
    }

    fn source(&mut self, source: SourceIx) -> Result<&mut Source, MergeError> {
        self.sources.get_mut(source.0).ok_or(MergeError::UnknownSource(source))
    }

    fn in_state(&mut self, source_ix: SourceIx, live: bool) -> Result<&mut Source, MergeError> {
        let source = self.source(source_ix)?;
        if source.live == live { Ok(source) } else { Err(MergeError::WrongState { source_ix }) }
    }

    fn take(&mut self, source_ix: SourceIx, batch: Vec<Entry<T>>) -> Result<(), MergeError> {
        // All checks come first: half a batch must not be taken.
        let mut proved = self.in_state(source_ix, true)?.proved;
        for Entry { revision, .. } in &batch {
            if *revision <= proved {
                return Err(MergeError::LateEvent { source_ix, revision: *revision, proved });
            }
            proved = *revision;
        }
        for entry in batch {
            self.buffered_bytes += entry.bytes;
            self.buffer.insert((entry.revision, source_ix), entry);
        }
        self.prove(source_ix, proved)
    }

    fn prove(&mut self, source_ix: SourceIx, revision: Revision) -> Result<(), MergeError> {
        let source = self.in_state(source_ix, true)?;
        if revision < source.proved {
            return Err(MergeError::WatermarkBack { source_ix, revision, proved: source.proved });
        }
        source.proved = revision;
        if source.asked.is_some_and(|to| to <= revision) {
            source.asked = None;
        }
        Ok(())
    }

    fn lose(&mut self, source: SourceIx) -> Result<Revision, MergeError> {
        let source = self.in_state(source, true)?;
        source.live = false;
        source.asked = None;
        Ok(source.proved.next())
    }

    fn resume(&mut self, source_ix: SourceIx, from: Revision) -> Result<(), MergeError> {
        let source = self.in_state(source_ix, false)?;
        let wanted = source.proved.next();
        if from != wanted {
            return Err(MergeError::WrongResume { source_ix, from, wanted });
        }
        source.live = true;
        source.refused = false;
        source.paused = false;
        Ok(())
    }

    fn roll_back(&mut self, source_ix: SourceIx, last: Revision) -> Result<Command<T>, MergeError> {
        self.in_state(source_ix, false)?;
        if self.merged > last {
            self.end();
            return Ok(Command::BeginAnew);
        }
        let forgotten = self.buffer.extract_if(.., |(revision, of), _| *of == source_ix && *revision > last);
        let freed: usize = forgotten.map(|(_, entry)| entry.bytes).sum();
        self.buffered_bytes -= freed;
        let source = self.source(source_ix)?;
        source.proved = source.proved.min(last);
        Ok(Command::Resume { source: source_ix, from: source.proved.next() })
    }

    fn end(&mut self) {
        self.ended = true;
        self.buffer.clear();
        self.buffered_bytes = 0;
    }

    /// Emits what has become safe; then requests watermarks, pauses and unpauses.
    fn settle(&mut self, commands: &mut Vec<Command<T>>) {
        let Some(bound) = self.sources.iter().map(|source| source.proved).min() else { return };
        let mut said = self.merged;
        while let Some(first) = self.buffer.first_entry().filter(|first| first.key().0 <= bound) {
            let mut entry = first.remove();
            // Every source has proved this revision, so all its parts are here.
            while let Some(more) = self.buffer.first_entry().filter(|first| first.key().0 == entry.revision) {
                let more = more.remove();
                entry.bytes += more.bytes;
                entry.payload.join(more.payload);
            }
            self.buffered_bytes -= entry.bytes;
            said = entry.revision;
            commands.push(Command::Emit(entry));
        }
        if bound > said {
            commands.push(Command::Watermark(bound));
        }
        // A source's `proved` decreases only in a rollback, and never below `merged`.
        debug_assert!(bound >= self.merged, "the merged watermark went back");
        self.merged = bound;
        self.pause_or_read(bound, commands);
        self.ask(commands);
    }

    fn pause_or_read(&mut self, bound: Revision, commands: &mut Vec<Command<T>>) {
        let was_full = self.full;
        let low = if was_full { self.budget_bytes / 2 } else { self.budget_bytes };
        self.full = self.buffered_bytes > low;
        for (index, source) in self.sources.iter_mut().enumerate().filter(|(_, source)| source.live) {
            let holds_back = source.proved == bound;
            let pause = self.full && !holds_back;
            if pause != source.paused {
                source.paused = pause;
                let index = SourceIx(index);
                commands.push(if pause { Command::Pause(index) } else { Command::Unpause(index) });
            }
        }
        if self.full && !was_full {
            let lagging: Vec<_> = self.holding_back().map(Command::Lagging).collect();
            commands.extend(lagging);
        }
    }

    fn ask(&mut self, commands: &mut Vec<Command<T>>) {
        let to = self.wanted();
        for (index, source) in self.sources.iter_mut().enumerate() {
            // A paused source would not be read; it is asked once it holds the others back.
            let quiet = !source.live || source.paused || source.refused || source.asked.is_some();
            if !quiet && source.proved < to {
                source.asked = Some(to);
                commands.push(Command::Advance { source: SourceIx(index), to });
            }
        }
    }
}

#[cfg(test)]
#[path = "watch_merge_test.rs"]
mod tests;
