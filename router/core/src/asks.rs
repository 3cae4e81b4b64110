//! Decides when a merge's request for a watermark ([`Command::Advance`](crate::watch_merge::Command::Advance)) is sent
//! to the store.
//!
//! A quiet store is asked at once, because nothing else tells how far it is. A store that sends events will prove as
//! much by its next event, and a store that was just asked would be asked again for every single event of the others.
//! Both are asked only after [`PATIENCE`], if still needed. A request costs the router and the store about as much as
//! an event does, so without this delay a Kind on several stores would cost a multiple of a Kind on one. Time is an
//! argument.

use std::time::{Duration, Instant};

use kindred_partition_config::ids::Revision;

use crate::watch_merge::SourceIx;

/// How long a source that sent an event or was asked may take to prove a revision before it is asked for it.
pub const PATIENCE: Duration = Duration::from_micros(500);

#[derive(Debug, Clone, Copy, Default)]
struct Source {
    /// When its last event came, or when it was last asked.
    lively: Option<Instant>,
    /// The request that is put off: when it is due, and the revision. An event may make it unnecessary.
    later: Option<(Instant, Revision)>,
}

/// The requests of one merge that are put off.
#[derive(Debug)]
pub struct Asks {
    sources: Vec<Source>,
}

impl Asks {
    /// For this many sources; nothing is put off yet.
    #[must_use]
    pub fn new(sources: usize) -> Self {
        Self { sources: vec![Source::default(); sources] }
    }

    /// Notes that events of a source came, the last one at this revision; drops a request that they make unnecessary.
    pub fn heard(&mut self, source: SourceIx, last: Revision, now: Instant) {
        let Some(source) = self.sources.get_mut(source.0) else { return };
        source.lively = Some(now);
        source.later.take_if(|(_, to)| *to <= last);
    }

    /// Whether to ask a source for a watermark at once. If not, [`Asks::take_due`] returns the request later.
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

    /// Forgets a source's requests, because its stream ended.
    pub fn lost(&mut self, source: SourceIx) {
        if let Some(source) = self.sources.get_mut(source.0) {
            *source = Source::default();
        }
    }

    /// When the first request that was put off is due.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.sources.iter().filter_map(|source| source.later).map(|(due, _)| due).min()
    }

    /// Takes the requests that are due. Each asks for the higher of its own revision and `wanted`, the one needed at
    /// this time.
    pub fn take_due(&mut self, wanted: Revision, now: Instant) -> impl Iterator<Item = (SourceIx, Revision)> {
        let take = move |(index, source): (usize, &mut Source)| {
            let (_, to) = source.later.take_if(|(due, _)| *due <= now)?;
            source.lively = Some(now);
            Some((SourceIx(index), to.max(wanted)))
        };
        self.sources.iter_mut().enumerate().filter_map(take)
    }
}

#[cfg(test)]
mod tests;
