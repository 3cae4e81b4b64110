//! When a merge's wish for a watermark ([`Command::Advance`](crate::watch_merge::Command::Advance)) is sent to the store.
//!
//! A quiet store is asked at once: nothing else tells how far it is. One that sends events proves the same by its next
//! event, and one that has just been asked would be asked for every single event of the others: both are given [`PATIENCE`]
//! first. An ask costs the router and the store about as much as an event does, so that without this a Kind on several stores
//! would cost a multiple of one on a single store. Time is an argument.

use std::time::{Duration, Instant};

use kindred_partition_config::ids::Revision;

use crate::watch_merge::SourceIx;

/// A source that was heard or asked within this time is asked again only so much later, if it has not proved it then.
pub const PATIENCE: Duration = Duration::from_micros(500);

#[derive(Debug, Clone, Copy, Default)]
struct Source {
    /// When its last event came, or it was last asked.
    lively: Option<Instant>,
    /// What is to be asked, unless an event says so before this.
    later: Option<(Instant, Revision)>,
}

/// The asks of one merge that wait. See the module's text.
#[derive(Debug)]
pub struct Asks {
    sources: Vec<Source>,
}

impl Asks {
    /// None yet, of so many sources.
    #[must_use]
    pub fn new(sources: usize) -> Self {
        Self { sources: vec![Source::default(); sources] }
    }

    /// Events of a source came, the last one at this revision: what that proves need not be asked.
    pub fn heard(&mut self, source: SourceIx, last: Revision, now: Instant) {
        let Some(source) = self.sources.get_mut(source.0) else { return };
        source.lively = Some(now);
        source.later.take_if(|(_, to)| *to <= last);
    }

    /// A source is to be asked for a watermark: whether at once. If not, [`Asks::take_due`] tells when.
    #[must_use]
    pub fn ask(&mut self, source: SourceIx, to: Revision, now: Instant) -> bool {
        let Some(source) = self.sources.get_mut(source.0) else { return true };
        let lively = source.lively.is_some_and(|lively| now.saturating_duration_since(lively) < PATIENCE);
        source.later = lively.then(|| (now + PATIENCE, to));
        if !lively {
            source.lively = Some(now);
        }
        !lively
    }

    /// The stream of a source ended: nothing is asked of it.
    pub fn lost(&mut self, source: SourceIx) {
        if let Some(source) = self.sources.get_mut(source.0) {
            *source = Source::default();
        }
    }

    /// When the first ask that waits is due.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.sources.iter().filter_map(|source| source.later).map(|(due, _)| due).min()
    }

    /// Takes out what is to be asked by now: at least for what was wished then, and at once for what is wished by now.
    pub fn take_due(&mut self, wished: Revision, now: Instant) -> impl Iterator<Item = (SourceIx, Revision)> {
        let take = move |(index, source): (usize, &mut Source)| {
            let (_, to) = source.later.take_if(|(due, _)| *due <= now)?;
            source.lively = Some(now);
            Some((SourceIx(index), to.max(wished)))
        };
        self.sources.iter_mut().enumerate().filter_map(take)
    }
}

#[cfg(test)]
mod tests;
