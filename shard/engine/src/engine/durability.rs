//! The logs under an engine: what they get, and what becomes visible when they have it (R9).

use kindred_partition_config::{
    ids::{LeaseId, Revision},
    key::{Key, KeyRange},
};

use super::Engine;
use crate::{
    durability::{Applied, FsyncMark, Gap, KindGap, KindModes, LeaseRecord, Logged, ModesError, ModesTaken},
    space::{KindId, Scope},
    version::Version,
};

impl Engine {
    /// There are logs under the shard: from now on [`Engine::take_applied`] tells what belongs into them. Of an engine that
    /// is new, that is its beginning first: nothing before is known here.
    pub fn log_changes(&mut self) {
        if !std::mem::replace(&mut self.space.outbox.on, true)
            && let Some(gap) = self.beginning()
        {
            self.space.outbox.push(|| Logged::Gap(Box::new(gap)));
        }
    }

    /// The store's beginning, as it is kept: everything before it is unknown.
    pub(crate) fn beginning(&self) -> Option<KindGap> {
        let gap = Gap { after: Revision::ZERO, until: self.space.began };
        let known = self.space.began > Revision::ZERO && self.space.began >= self.space.compacted;
        known.then(|| KindGap { kind: Key::copy_from(b""), gap })
    }

    /// The modes in force.
    #[must_use]
    pub fn modes(&self) -> &KindModes {
        &self.space.modes
    }

    /// Other modes, from now on. To be called between batches when both logs are flushed: then whatever a crash leaves of
    /// a Kind is a beginning of what happened, though it stands in two logs.
    pub fn set_modes(&mut self, modes: KindModes) -> Result<ModesTaken, ModesError> {
        self.space.set_modes(modes)
    }

    /// Takes the number of a later edition of the modes in force that changes none of them, and logs it; whether it is one. At
    /// any time, unlike [`Engine::set_modes`]: nothing that waits for a log is concerned.
    pub fn renumber_modes(&mut self, modes: &KindModes) -> bool {
        self.space.renumber_modes(modes)
    }

    /// Takes back modes of which [`Engine::set_modes`] answered that they are logged first, and which are not in force.
    pub fn keep_modes(&mut self) {
        self.space.keep_modes();
    }

    /// The checkpoint that the modes of this generation waited for is on disk.
    pub fn modes_settled(&mut self, generation: u64) {
        self.space.modes_settled(generation);
    }

    /// What was applied since the last call and is to be written to the logs. Costs nothing where there are none. Between
    /// two calls stands whole requests only, so what one call answers can be written as one batch.
    pub fn take_applied(&mut self) -> Applied {
        Applied { promise: self.clock.last(), ..self.space.take_applied() }
    }

    /// How many records for the fsync log [`Engine::take_applied`] would answer now. A call that made it more is to be
    /// answered when that log has them.
    #[must_use]
    pub fn logged_fsync(&self) -> usize {
        self.space.outbox.fsync.len()
    }

    /// The same of the log of mode buffered.
    #[must_use]
    pub fn logged_buffered(&self) -> usize {
        self.space.outbox.buffered.len()
    }

    /// Whether the answer to the last [`Engine::apply`], [`Engine::apply_above`], [`Engine::lease_revoke`] or
    /// [`Engine::lease_end`] tells of something, read or written, that waits for the fsync log: it is to be given when
    /// the mark of the next [`Engine::take_applied`] is published.
    #[must_use]
    pub fn answer_waits(&self) -> bool {
        self.answer_waits
    }

    /// The fsync log has everything up to a mark on disk: it becomes visible, and its events go to the watches.
    pub fn publish_fsync(&mut self, upto: FsyncMark) {
        let events = self.space.publish_fsync(upto);
        self.published(&events);
    }

    pub(super) fn published(&mut self, events: &[(KindId, Version)]) {
        self.watches.published(&mut self.space, events);
        self.feeds.published(&mut self.space, events);
    }

    /// Whether something of the ranges is applied and not published.
    #[must_use]
    pub fn unpublished_in(&self, ranges: &[KeyRange]) -> bool {
        ranges.iter().any(|range| self.space.has_unpublished_in(&self.space.scope(range)))
    }

    /// Whether an answer about the ranges has to show less now than `at_least`, or than one of their Kinds shows already,
    /// because something of another is not published yet. Reads of one Kind never wait for what nobody has seen.
    #[must_use]
    pub fn read_waits(&self, ranges: &[KeyRange], at_least: Option<Revision>) -> bool {
        let scopes: Vec<Scope> = ranges.iter().map(|range| self.space.scope(range)).collect();
        if !scopes.iter().any(|scope| self.space.has_unpublished_in(scope)) {
            return false;
        }
        let highest = scopes.iter().map(|scope| self.space.visible_somewhere(scope)).max();
        let wanted = highest.max(at_least);
        scopes.iter().any(|scope| self.space.limit(scope) < wanted.unwrap_or(Revision::ZERO))
    }

    /// Logs what is known of a lease now.
    pub(super) fn log_lease(&mut self, id: LeaseId) {
        let leases = &self.leases;
        self.space.outbox.push(|| Logged::Lease(Box::new(LeaseRecord { id, state: leases.durable(id) })));
    }
}
