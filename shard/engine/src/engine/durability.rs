//! What goes to the logs, and what becomes visible once it is logged (R9).

use crate::error::EngineError;
use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::{Key, KeyRange},
};

use super::Engine;
use crate::{
    durability::{AnswerWaits, Applied, LeaseRecord, Logged, Mark},
    space::{KindId, Scope},
    types::{Gap, KindGap, KindModes, ModesError, ModesTaken},
    version::Version,
};

impl Engine {
    /// Refuses a transaction over Kinds of different durability modes (R9).
    ///
    /// # Errors
    /// Names two of them.
    pub fn one_mode(&self, ranges: &[KeyRange]) -> Result<(), EngineError> {
        self.space.check_modes(ranges)
    }

    /// Turns logging on: from now on [`Engine::take_applied`] returns what belongs in the logs. For a new engine the
    /// first record is its beginning, before which nothing is known.
    pub fn log_changes(&mut self) {
        if !std::mem::replace(&mut self.space.outbox.on, true)
            && let Some(gap) = self.beginning()
        {
            self.space.outbox.push(|| Logged::Gap(Box::new(gap)));
        }
    }

    /// The store's beginning as a logged gap, if there is one: nothing before it is known.
    pub(crate) fn beginning(&self) -> Option<KindGap> {
        let gap = Gap { after: Revision::ZERO, until: self.space.began };
        let known = self.space.began > Revision::ZERO && self.space.began >= self.space.compacted;
        known.then(|| KindGap { kind: Key::copy_from(b""), gap })
    }

    #[must_use]
    pub fn modes(&self) -> &KindModes {
        &self.space.modes
    }

    /// Sets new modes. To be called between batches when both logs are flushed: then a crash always leaves a prefix of
    /// each Kind's history, although it is split over two logs.
    pub fn set_modes(&mut self, modes: KindModes) -> Result<ModesTaken, ModesError> {
        self.space.set_modes(modes)
    }

    /// Takes over the generation number of `modes` if they equal the modes in force, and logs it. Returns whether they
    /// do. Unlike [`Engine::set_modes`] it may be called at any time, since no write that waits for a log is affected.
    pub fn renumber_modes(&mut self, modes: &KindModes) -> bool {
        self.space.renumber_modes(modes)
    }

    /// Takes back modes that [`Engine::set_modes`] answered with [`ModesTaken::AfterLog`] and that are not in force
    /// yet.
    pub fn keep_modes(&mut self) {
        self.space.keep_modes();
    }

    /// Tells that the checkpoint for which the modes of this generation waited is on disk.
    pub fn modes_settled(&mut self, generation: u64) {
        self.space.modes_settled(generation);
    }

    /// The records applied since the last call, to be written to the logs. They cover whole requests, so the result of
    /// one call can be written as one batch. Without logs the call costs nothing.
    pub fn take_applied(&mut self) -> Applied {
        Applied { promise: self.clock.last(), ..self.space.take_applied() }
    }

    /// The number of records for the fsync log that [`Engine::take_applied`] would return now. A call that increased it
    /// is answered when that log has them.
    #[must_use]
    pub fn logged_fsync(&self) -> usize {
        self.space.outbox.fsync.len()
    }

    /// The number of records that [`Engine::take_applied`] would return as shipped now.
    #[must_use]
    pub fn logged_shipped(&self) -> usize {
        self.space.outbox.shipped.as_ref().map_or(0, Vec::len)
    }

    /// The same for the buffered log.
    #[must_use]
    pub fn logged_buffered(&self) -> usize {
        self.space.outbox.buffered.len()
    }

    /// Whether the answer to the last [`Engine::apply`], [`Engine::apply_above`], [`Engine::lease_revoke`] or
    /// [`Engine::lease_end`] depends on a read or write that is not visible yet. Such an answer is sent when the mark of
    /// the next [`Engine::take_applied`] is published.
    #[must_use]
    pub fn answer_waits(&self) -> AnswerWaits {
        self.answer_waits
    }

    /// Makes everything up to a mark visible once the fsync log has it on disk, and hands its events to the watches.
    pub fn publish_fsync(&mut self, upto: Mark) {
        let events = self.space.publish_fsync(upto);
        self.published(&events);
    }

    /// Makes everything up to a mark visible that no log keeps back, once the standbys have received it (R18), and hands
    /// its events to the watches.
    pub fn publish_received(&mut self, upto: Mark) {
        let events = self.space.publish_received(upto);
        self.published(&events);
    }

    /// Turns shipping to standbys on or off. From the next change on, [`Applied::shipped`] has every record, and nothing
    /// is visible before [`Engine::publish_received`] or [`Engine::publish_fsync`]. Everything applied must be
    /// published.
    pub fn ship(&mut self, on: bool) {
        self.space.ship(on);
    }

    /// Whether changes are shipped; see [`Engine::ship`].
    #[must_use]
    pub fn ships(&self) -> bool {
        self.space.ships()
    }

    pub(super) fn published(&mut self, events: &[(KindId, Version)]) {
        self.watches.published(&mut self.space, events);
        self.feeds.published(&mut self.space, events);
    }

    /// Whether any Kind of the ranges has applied writes that are not published.
    #[must_use]
    pub fn unpublished_in(&self, ranges: &[KeyRange]) -> bool {
        ranges.iter().any(|range| self.space.has_unpublished_in(&self.space.scope(range)))
    }

    /// Whether a read of the ranges would have to show less than `min_revision`, or less than one of their Kinds already
    /// shows, because another of them has something unpublished. A read of a single Kind waits only for `min_revision`.
    #[must_use]
    pub fn read_waits(&self, ranges: &[KeyRange], min_revision: Option<Revision>) -> bool {
        let scopes: Vec<Scope> = ranges.iter().map(|range| self.space.scope(range)).collect();
        if !scopes.iter().any(|scope| self.space.has_unpublished_in(scope)) {
            return false;
        }
        let highest = scopes.iter().map(|scope| self.space.visible_somewhere(scope)).max();
        let wanted = highest.max(min_revision);
        scopes.iter().any(|scope| self.space.limit(scope) < wanted.unwrap_or(Revision::ZERO))
    }

    /// Logs the current state of a lease.
    pub(super) fn log_lease(&mut self, id: LeaseId) {
        let leases = &self.leases;
        self.space.outbox.push(|| Logged::Lease(Box::new(LeaseRecord { id, state: leases.durable(id) })));
    }
}
