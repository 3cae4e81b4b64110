//! Units that this shard owns, gives away and takes in; see [`crate::units`].

use kindred_partition_config::{
    ids::{LeaseId, MoveId, Revision},
    key::{Key, KeyRange},
    unit::Unit,
};
use xxhash_rust::xxh3::Xxh3;

use super::{Engine, FeedId, FeedOut, MonoMillis, OpenRange, WallMicros};
use crate::{
    durability::Logged,
    read::LATEST,
    space::Splitting,
    units::{
        CopyChunk, Import, NotOwned, Tracking, UnitDigest, UnitError, UnitMove, UnitRecord, UnitState,
        table::{Record, Room, UnitId, View, Whose},
    },
    version::Version,
};

/// Keys of one digest.
const DIGEST_KEYS: u64 = 1024;
/// Leases that a refusal names.
const NAMED_MAX: usize = 100;
/// Keys and events that one import looks at to make room.
const ROOM_STEPS: usize = 8192;
/// How often a tail looks on where it found none but others' events.
const TAIL_PULLS: usize = 16;

impl Engine {
    /// Whether reads of these ranges may be executed here: single keys are decided by the record that holds them;
    /// spans by every record that they touch, and by its epoch where the generation of the request's map is named.
    pub fn owns(&self, ranges: &[KeyRange], generation: Option<u64>) -> Result<(), NotOwned> {
        ranges.iter().try_for_each(|range| self.space.check(range, generation))
    }

    /// As [`Engine::owns`], for a write, or for what a transaction looks at: a Kind's pseudo-key is read at every store of
    /// the Kind, and written at the one that owns it.
    pub fn owns_to_write(&self, range: &KeyRange, generation: Option<u64>) -> Result<(), NotOwned> {
        self.space.check_write(range, generation)
    }

    /// As [`Engine::owns`], for a read at a revision: what was settled when a unit was frozen is readable until it is dropped
    /// (see [`Engine::range_by_map`]).
    pub fn owns_at(
        &self,
        range: &KeyRange,
        generation: Option<u64>,
        at: Option<Revision>,
    ) -> Result<(), NotOwned> {
        self.space.sight(range, generation, at).map(drop)
    }

    /// All records, the oldest first.
    #[must_use]
    pub fn unit_records(&self) -> Vec<UnitRecord> {
        self.space.units.records.iter().map(|record| record.view(self.unit_keys(record.id))).collect()
    }

    /// The newest record of a unit by a move.
    #[must_use]
    pub fn unit_record(&self, by: &UnitMove) -> Option<UnitRecord> {
        let ours = |record: &&Record| record.by.id == by.id && record.by.unit == by.unit;
        let record = self.space.units.records.iter().rev().find(ours)?;
        Some(record.view(self.unit_keys(record.id)))
    }

    /// The highest number of a move that this shard has heard of: none of them is to be used again, whatever the meta store
    /// has lost.
    #[must_use]
    pub fn highest_move(&self) -> Option<MoveId> {
        self.space.units.highest_move()
    }

    fn unit_keys(&self, id: UnitId) -> u64 {
        self.space.parts_of(id).map(|(_, keys)| keys.live_keys()).sum()
    }

    fn unit_is_whole(&self, unit: &Unit, by: &UnitMove, call: &'static str) -> Result<&Record, UnitError> {
        let record = self.space.units.of(unit).ok_or(UnitError::Unknown(by.id))?;
        if record.is_whole() { Ok(record) } else { Err(record.refuse(call)) }
    }

    /// Whether nothing of the Kinds of a unit waits to be published.
    fn unit_published(&self, unit: &Unit) -> Result<(), UnitError> {
        let waits = self.space.has_unpublished_in(&self.space.scope(&unit.range));
        if waits { Err(UnitError::Unpublished) } else { Ok(()) }
    }

    // ---- source

    /// Brings the unit's keys and events into keyspaces of its own, about `budget` of them; to be called until `ready`.
    /// It stays owned and served throughout.
    pub fn unit_track(&mut self, by: &UnitMove, budget: usize) -> Result<Tracking, UnitError> {
        self.space.units.fence(by)?;
        let id = match self.space.units.of(&by.unit) {
            Some(record) if record.state == UnitState::Owned => record.id,
            Some(record) if record.by.id == by.id && matches!(record.state, UnitState::Tracked { .. }) => {
                record.id
            }
            Some(record) if record.state != UnitState::Gone => return Err(record.refuse("Track")),
            _ => {
                self.may_split(by)?;
                let floor = self.space.floor_of_unit(&by.unit, &View::Now);
                let gaps = self.space.gaps_of_unit(&by.unit, &View::Now);
                let past = self.space.units.past_of(&by.unit, true);
                let id = self.space.units.add(by.clone(), UnitState::Tracked { ready: false }, floor, true);
                if let Some(record) = self.space.units.get_mut(id) {
                    (record.gaps, record.past) = (gaps, past);
                }
                id
            }
        };
        if let Some(record) = self.space.units.get_mut(id) {
            record.by = by.clone();
            match record.state {
                UnitState::Owned => record.state = UnitState::Tracked { ready: true },
                UnitState::Tracked { ready: false } => {
                    let mut at = std::mem::take(&mut record.splitting);
                    let ready = self.space.split_off(id, &mut at, budget, true);
                    if let Some(record) = self.space.units.get_mut(id) {
                        record.splitting = at;
                        record.state = UnitState::Tracked { ready };
                    }
                    if ready {
                        let over = self.space.units.trim(id);
                        self.space.forget_parts(&over);
                        self.unpinned = true;
                    }
                }
                _ => {}
            }
        }
        let record = self.space.units.get(id).ok_or(UnitError::Unknown(by.id))?;
        let ready = record.state == UnitState::Tracked { ready: true };
        let record = record.view(0);
        self.log_units();
        let mut tracking = Tracking { ready, keys: 0, bytes: 0, events: 0, floor: record.floor };
        for (_, space) in self.space.parts_of(id) {
            let (keys, events, _, bytes) = space.sizes();
            tracking.keys += keys;
            tracking.events += events;
            tracking.bytes += bytes;
        }
        Ok(tracking)
    }

    /// Whether all of a unit is owned and none of it is moving.
    fn may_split(&self, by: &UnitMove) -> Result<(), UnitError> {
        let (records, _) = self.space.units.over(&by.unit);
        match records.into_iter().find(|record| record.state != UnitState::Owned) {
            Some(record) => {
                let state = record.state_name();
                Err(UnitError::Overlaps { id: by.id, other: record.by.id, state })
            }
            None => Ok(()),
        }
    }

    /// The unit is tracked no longer; it stays owned. Nothing happens where it is unknown or owned.
    pub fn unit_forget(&mut self, by: &UnitMove) -> Result<(), UnitError> {
        let forgotten = match self.space.units.by(by) {
            Err(UnitError::Unknown(_)) => Ok(()),
            Err(refused) => Err(refused),
            Ok(record) => match record.state {
                UnitState::Tracked { ready: true } => {
                    record.state = UnitState::Owned;
                    Ok(())
                }
                UnitState::Owned => Ok(()),
                // What is half done is finished first.
                UnitState::Tracked { ready: false } => Err(UnitError::NotReady(by.id)),
                _ => Err(record.refuse("Forget")),
            },
        };
        self.log_units();
        forgotten
    }

    /// Where a copy begins: a feed of the unit that starts behind this tells what the copy does not.
    pub fn unit_copy_begin(&mut self, by: &UnitMove) -> Result<Revision, UnitError> {
        self.space.units.fence(by)?;
        self.unit_is_whole(&by.unit, by, "Copy")?;
        let scope = self.space.scope(&by.unit.range);
        Ok(self.space.show(&scope))
    }

    /// Keys behind `after`, each with what it is now and was since the floor; nothing that is not published. A key may have
    /// versions above the copy's beginning: an import leaves out the events that it has already.
    pub fn unit_copy(
        &self,
        by: &UnitMove,
        after: Option<&Key>,
        max_keys: usize,
        max_bytes: usize,
    ) -> Result<CopyChunk, UnitError> {
        let record = self.unit_is_whole(&by.unit, by, "Copy")?;
        let unpublished = self.space.first_unpublished_of(&self.space.homes(&record.by.unit.range));
        let gaps = record.gaps.clone();
        let mut chunk = CopyChunk { keys: Vec::new(), floor: record.floor, gaps, after: None };
        let (mut bytes, mut looked, mut last) = (0, 0, None);
        self.space.walk_unit(record, after, |keys, object| {
            if looked == max_keys.max(1) || bytes >= max_bytes {
                chunk.after = last.take();
                return false;
            }
            looked += 1;
            last = Some(Key::copy_from(object.key()));
            if let Some(copied) = keys.copied(object, record.floor, unpublished) {
                bytes += copied.versions.iter().map(|version| version.encoded_len()).sum::<usize>();
                chunk.keys.push(copied);
            }
            true
        });
        Ok(chunk)
    }

    /// The map by which a unit changes hands will be a later one than that of this generation; to be told before the unit is
    /// frozen, and before it is sealed. So who goes by that one can be answered meanwhile (R13), and who may know of the
    /// decision is told to wait for it.
    pub fn unit_undecided(&mut self, by: &UnitMove, generation: u64) -> Result<(), UnitError> {
        self.space.units.by(by)?.undecided(generation);
        Ok(())
    }

    /// Nothing of the unit is executed, read or promised above the answer from now on (R13, R15a). Feeds and watches that
    /// touch it get everything up to there and end. To be called when everything applied of its Kinds is published, and
    /// the logs are flushed.
    pub fn unit_freeze(&mut self, now: WallMicros, by: &UnitMove) -> Result<Revision, UnitError> {
        self.unit_published(&by.unit)?;
        let last = self.clock.promise(now);
        let record = self.space.units.by(by)?;
        match record.state {
            UnitState::Frozen { last } => return Ok(last),
            UnitState::Tracked { ready: true } => record.state = UnitState::Frozen { last },
            _ => return Err(record.refuse("Freeze")),
        }
        let (id, range) = (record.id, by.unit.range.clone());
        self.log_units();
        let scope = self.space.scope_to_raise(&range);
        self.space.raise_all(&[scope], last);
        self.feeds.final_watermark(id, last);
        self.watches.end(&mut self.space, &range, last, |view| view.keep(id));
        self.feeds.end(&mut self.space, &range, last, |view| view.keep(id));
        Ok(last)
    }

    /// The unit is served again, after a committed abort of the attempt (R15). Nothing happens where it is not frozen: a
    /// coordinator that takes over cannot know, and asks for it whatever has happened since. Nor where it is unknown.
    pub fn unit_unfreeze(&mut self, by: &UnitMove) -> Result<(), UnitError> {
        let record = match self.space.units.by(by) {
            Err(UnitError::Unknown(_)) => return Ok(()),
            found => found?,
        };
        if matches!(record.state, UnitState::Frozen { .. }) {
            record.state = UnitState::Tracked { ready: true };
            self.log_units();
        }
        Ok(())
    }

    /// Another store owns the unit since map `epoch`. Here it is hidden, and may follow.
    pub fn unit_release(&mut self, by: &UnitMove, epoch: u64) -> Result<(), UnitError> {
        let record = self.space.units.by(by)?;
        match record.state {
            UnitState::Frozen { last } => {
                record.state = UnitState::Following { through: last, sealed: None };
                record.turn(epoch, Some(last));
                record.newest = last;
                let id = record.id;
                self.feeds.over(id, last);
                self.log_units();
                Ok(())
            }
            // Epoch 0: it was released, lost what it followed in a crash, and follows a new copy.
            UnitState::Following { .. } if record.epoch == epoch || record.epoch == 0 => Ok(()),
            // It was released, and the move is being completed: the coordinator that takes over then does not know.
            UnitState::Dropping | UnitState::Gone if record.epoch >= epoch => Ok(()),
            _ => Err(record.refuse("Release")),
        }
    }

    /// A feed of the unit alone, whoever owns it; up to the final revision while it is frozen. It ends at its release.
    pub fn unit_feed_open(&mut self, unit: &Unit, start: Option<Revision>) -> Result<FeedId, UnitError> {
        let record = self.space.units.of(unit);
        let record = record.filter(|record| record.is_visible() && record.is_whole());
        let Some(record) = record else { return Err(UnitError::BadUnit) };
        let id = record.id;
        Ok(self.feeds.open_unit(&mut self.space, id, unit.clone(), start))
    }

    /// What a feed of a unit that begins at `start` says at once: about `max_bytes` of events, and where those are all, how
    /// far that is. The feed is closed again.
    pub fn unit_tail(
        &mut self,
        unit: &Unit,
        start: Revision,
        max_bytes: usize,
    ) -> Result<FeedOut, UnitError> {
        let feed = self.unit_feed_open(unit, Some(start))?;
        let said = (0..TAIL_PULLS).find_map(|_| self.feed_pull(feed, max_bytes));
        self.feed_close(feed);
        Ok(said.unwrap_or_default())
    }

    // ---- target

    /// Takes copied keys, or events that follow a copy, into a hidden unit, which is made by the first import. Answers up
    /// to where everything is there.
    pub fn unit_import(&mut self, by: &UnitMove, import: Import) -> Result<Revision, UnitError> {
        self.space.units.fence(by)?;
        let stray = |key: &[u8]| UnitError::Key {
            id: by.id,
            key: Key::copy_from(key),
            what: "is not one of the unit",
        };
        let mut keys = import.keys.iter().flat_map(|copied| &copied.versions);
        let outside = keys.find(|version| !by.unit.contains(version.key()));
        let event = import.events.iter().map(|event| &event.version);
        if let Some(version) = outside.or(event.into_iter().find(|v| !by.unit.contains(v.key()))) {
            return Err(stray(version.key()));
        }
        let id = match self.space.units.of(&by.unit) {
            Some(record) if matches!(record.state, UnitState::Following { .. }) && record.by.id == by.id => {
                record.id
            }
            Some(record) if !matches!(record.state, UnitState::Gone | UnitState::Owned) => {
                return Err(record.refuse("Import"));
            }
            _ => self.unit_begin(by)?,
        };
        self.unit_make_room(by, id)?;
        let Some(record) = self.space.units.get_mut(id) else { return Err(UnitError::Unknown(by.id)) };
        record.by.term = by.term;
        let UnitState::Following { through, .. } = record.state else { return Err(record.refuse("Import")) };
        record.floor = record.floor.max(import.floor.unwrap_or(record.floor));
        record.gaps.extend(import.gaps.iter().filter(|gap| gap.until > record.floor));
        record.gaps.sort_unstable();
        record.gaps.dedup();
        let (unit, mut imported) = (record.id.0, Vec::new());
        let (floor, mut newest) = (record.floor, record.newest);
        self.space.imported_floor = self.space.imported_floor.max(floor);
        for copied in import.keys {
            let Some(head) = copied.versions.last().cloned() else { continue };
            newest = newest.max(head.mod_revision());
            if self.space.outbox.on {
                imported.extend(copied.versions.iter().cloned());
            }
            let keys = self.space.part_for(id, copied.key());
            let known = keys.object(copied.key()).map(|object| object.head().mod_revision());
            let before = keys.import_key(&copied, floor);
            if known < Some(head.mod_revision()) {
                self.unit_lease(id, before.as_ref(), &head);
            }
        }
        for event in import.events.iter().filter(|event| event.version.mod_revision() > through) {
            let version = &event.version;
            newest = newest.max(version.mod_revision());
            let keys = self.space.part_for(id, version.key());
            let before = keys.object(version.key()).and_then(|object| object.live()).cloned();
            if keys.import_event(event) {
                if self.space.outbox.on {
                    imported.extend(before.is_none().then(|| event.prev.clone()).flatten());
                    imported.push(version.clone());
                }
                self.unit_lease(id, before.as_ref(), version);
            }
        }
        let through = through.max(import.through.unwrap_or(through));
        if let Some(record) = self.space.units.get_mut(id) {
            record.newest = newest;
            record.state = UnitState::Following { through, sealed: None };
        }
        self.space.outbox.imported(unit, imported);
        self.log_units();
        Ok(through)
    }

    /// A record for a unit that is not here.
    fn unit_begin(&mut self, by: &UnitMove) -> Result<UnitId, UnitError> {
        let (records, _) = self.space.units.over(&by.unit);
        if let Some(record) = records.iter().find(|record| record.state != UnitState::Gone) {
            let state = record.state_name();
            return Err(UnitError::Overlaps { id: by.id, other: record.by.id, state });
        }
        let past = self.space.units.past_of(&by.unit, false);
        let state = UnitState::Following { through: Revision::ZERO, sealed: None };
        let id = self.space.units.add(by.clone(), state, self.space.compacted, false);
        if let Some(record) = self.space.units.get_mut(id) {
            record.past = past;
            record.clearing = Some(Room::Look(by.unit.range.clone()));
        }
        Ok(id)
    }

    /// Looks whether keys of the unit are here already, which must not be, and removes what is left of those that were, a
    /// little at each call.
    fn unit_make_room(&mut self, by: &UnitMove, id: UnitId) -> Result<(), UnitError> {
        let room = self.space.units.get_mut(id).and_then(|record| record.clearing.take());
        let left = match room {
            None => return Ok(()),
            Some(Room::Look(left)) => {
                let (found, left) = self.space.any_live(&by.unit, &left, ROOM_STEPS);
                if let Some(key) = found {
                    self.space.units.remove(id);
                    return Err(UnitError::Key { id: by.id, key, what: "is here already" });
                }
                if left.is_empty() { Room::Clear(Splitting::default()) } else { Room::Look(left) }
            }
            clear => clear.unwrap_or(Room::Clear(Splitting::default())),
        };
        let left = match left {
            Room::Clear(mut at) => {
                if self.space.split_off(id, &mut at, ROOM_STEPS, false) {
                    return Ok(());
                }
                Room::Clear(at)
            }
            look => look,
        };
        if let Some(record) = self.space.units.get_mut(id) {
            record.clearing = Some(left);
        }
        Err(UnitError::NotReady(by.id))
    }

    /// A hidden key has another lease now.
    fn unit_lease(&mut self, id: UnitId, before: Option<&Version>, now: &Version) {
        let key = Key::copy_from(now.key());
        let old = before.and_then(Version::lease_id);
        let new = now.lease_id().filter(|_| !now.is_tombstone());
        if old == new {
            return;
        }
        let Some(record) = self.space.units.get_mut(id) else { return };
        if let Some(old) = old
            && !self.leases.detach_key(old, &key)
            && let Some(keys) = record.unattached.get_mut(&old)
        {
            keys.remove(&key);
            if keys.is_empty() {
                record.unattached.remove(&old);
            }
        }
        if let Some(new) = new
            && self.leases.attach_key(new, &key).is_err()
        {
            record.unattached.entry(new).or_default().insert(key);
        }
    }

    /// A lease is known now: imported keys that carry it are attached.
    pub(super) fn unit_leases_known(&mut self, id: LeaseId) {
        for record in &mut self.space.units.records {
            for key in record.unattached.remove(&id).unwrap_or_default() {
                let attached = self.leases.attach_key(id, &key);
                debug_assert!(attached.is_ok(), "it is known");
            }
        }
    }

    /// Prepares the switch (R15b): everything up to the source's final revision is here, and the clock is there. Requests
    /// that touch the unit wait until it is opened, or imports go on.
    pub fn unit_seal(&mut self, now: WallMicros, by: &UnitMove, last: Revision) -> Result<(), UnitError> {
        self.unit_seal_through(now, by, last, last)
    }

    /// The same for a source that counts revisions of its own, all below those of this shard's clock: everything up to its
    /// `imported` is here. `last` is where the unit's history begins here: keys keep the revisions that they have, so that
    /// compares go on to hold, and nothing below is readable.
    pub fn unit_seal_renumbered(
        &mut self,
        now: WallMicros,
        by: &UnitMove,
        last: Revision,
        imported: Revision,
    ) -> Result<(), UnitError> {
        if imported >= last {
            return Err(UnitError::Behind { id: by.id, through: last, last: imported });
        }
        self.unit_seal_through(now, by, last, imported)?;
        let record = self.space.units.by(by)?;
        record.floor = record.floor.max(last);
        let floor = record.floor;
        self.space.imported_floor = self.space.imported_floor.max(floor);
        self.log_units();
        Ok(())
    }

    fn unit_seal_through(
        &mut self,
        now: WallMicros,
        by: &UnitMove,
        last: Revision,
        imported: Revision,
    ) -> Result<(), UnitError> {
        let offset = self.config.max_clock_offset_micros;
        let record = self.space.units.by(by)?;
        let UnitState::Following { through, .. } = record.state else { return Err(record.refuse("Seal")) };
        if through < imported {
            return Err(UnitError::Behind { id: by.id, through, last: imported });
        }
        if record.newest > imported {
            return Err(record.refuse("Seal at a revision below one that was imported"));
        }
        if !record.unattached.is_empty() {
            let leases = record.unattached.keys().copied().take(NAMED_MAX).collect();
            return Err(UnitError::Leases { id: by.id, leases });
        }
        self.clock.raise(now, last, offset)?;
        record.state = UnitState::Following { through, sealed: Some(last) };
        self.log_units();
        Ok(())
    }

    /// There was no decision, and after a committed abort of the attempt there will be none (R15): requests do not wait for it.
    /// Nothing happens where the unit is not sealed, or unknown.
    pub fn unit_unseal(&mut self, by: &UnitMove) -> Result<(), UnitError> {
        let record = match self.space.units.by(by) {
            Err(UnitError::Unknown(_)) => return Ok(()),
            found => found?,
        };
        if let UnitState::Following { through, sealed: Some(_) } = record.state {
            record.state = UnitState::Following { through, sealed: None };
            self.log_units();
        }
        Ok(())
    }

    /// After the decision: the unit is owned since map `epoch`, and visible. Feeds and watches that touch it end behind what
    /// they could see without it.
    pub fn unit_open(&mut self, by: &UnitMove, epoch: u64) -> Result<(), UnitError> {
        self.unit_published(&by.unit)?;
        let record = self.space.units.by(by)?;
        let last = match record.state {
            UnitState::Following { sealed: Some(last), .. } => last,
            // Also when it is tracked since, for the way back.
            UnitState::Owned | UnitState::Tracked { .. } if record.epoch == epoch => return Ok(()),
            _ => return Err(record.refuse("Open")),
        };
        let id = record.id;
        for home in self.space.parts_of(id).map(|(home, _)| home).collect::<Vec<_>>() {
            self.space.raise_kind(home, last);
        }
        let scope = self.space.scope_to_open(&by.unit.range);
        self.space.raise_all(&[scope], last);
        self.watches.end_now(&mut self.space, &by.unit.range, |view| view.leave_out(id, &by.unit));
        self.feeds.end_now(&mut self.space, &by.unit.range, |view| view.leave_out(id, &by.unit));
        self.space.units.turned(id, None);
        let fresh = self.space.units.get(id).is_some_and(|record| record.epoch == 0);
        self.space.units.layer(id, fresh, last);
        if let Some(record) = self.space.units.get_mut(id) {
            record.state = UnitState::Owned;
            record.turn(epoch, None);
        }
        let over = self.space.units.trim(id);
        self.space.forget_parts(&over);
        self.space.count_gaps();
        self.log_units();
        Ok(())
    }

    /// From now on changes of the table of units are logged by [`Engine::log_units_held`] alone: calls about many units that
    /// are made as one, between two [`Engine::take_applied`], are one record in the log.
    pub fn hold_units(&mut self) {
        self.space.units.held = true;
    }

    /// The end of what [`Engine::hold_units`] began.
    pub fn log_units_held(&mut self) {
        self.space.units.held = false;
        self.log_units();
    }

    /// Logs the table of units, if what is durable of it has changed.
    pub(super) fn log_units(&mut self) {
        if self.space.outbox.on
            && !self.space.units.held
            && let Some(table) = self.space.units.changed()
        {
            self.space.outbox.push(|| Logged::Units(Box::new(table)));
        }
    }

    // ---- either side

    /// The data of a hidden unit goes, a little at each [`Engine::scrub`]. With an epoch, that of the map by which another
    /// store owns it, the refusal of those who do not know stays.
    pub fn unit_drop(&mut self, by: &UnitMove, epoch: u64) -> Result<(), UnitError> {
        let record = match self.space.units.by(by) {
            Err(UnitError::Unknown(_)) => return Ok(()),
            found => found?,
        };
        match record.state {
            UnitState::Following { .. } => {
                record.state = UnitState::Dropping;
                record.epoch = record.epoch.max(epoch);
                record.unattached.clear();
                let (id, epoch) = (record.id, record.epoch);
                self.space.units.turned(id, Some(epoch));
                self.watches.lost(id);
                self.feeds.lost(id);
                self.log_units();
                Ok(())
            }
            UnitState::Dropping | UnitState::Gone => Ok(()),
            _ => Err(record.refuse("Drop")),
        }
    }

    /// Whether a long read has keys of a unit still to read.
    #[must_use]
    pub fn unit_is_read(&self, by: &UnitMove, open: &OpenRange) -> bool {
        let records = self.space.units.records.iter().rev();
        let ours = records.into_iter().find(|record| record.by.id == by.id && record.by.unit == by.unit);
        ours.is_some_and(|record| {
            open.view.sees(record) && !open.is_done() && record.by.unit.overlaps(&open.rest)
        })
    }

    /// To be called about every second: notes when units that other stores own were last read here.
    pub fn unit_readers_look(&mut self, now: MonoMillis) {
        self.holds.expire(now);
        self.space.units.records.iter_mut().for_each(|record| record.readers.look(now));
    }

    /// As [`Engine::unit_drop`], but the data of a unit that another store owns stays while somebody reads it here: `open`
    /// long reads ([`Engine::unit_is_read`]), lists that are read page by page by the map before, and what is pinned of
    /// revisions before the unit changed hands (R5). Then it is refused, to be asked again; after a minute it is dropped all
    /// the same, and who still reads it is told to begin again. Feeds and watches need not be waited for: they go on at the
    /// new owner from their own positions (R16).
    pub fn unit_drop_when_unread(
        &mut self,
        now: MonoMillis,
        by: &UnitMove,
        epoch: u64,
        open: usize,
    ) -> Result<(), UnitError> {
        let record = match self.space.units.by(by) {
            Err(UnitError::Unknown(_)) => return Ok(()),
            found => found?,
        };
        if let (UnitState::Following { .. }, Some(settled)) = (record.state, record.settled) {
            let pinned = self.holds.below(now, settled.next()).is_some();
            if let Some(left) = record.readers.hold_up(now, open > 0 || pinned) {
                let reads = match open {
                    0 => "lists".to_owned(),
                    1 => "a long read".to_owned(),
                    some => format!("{some} long reads"),
                };
                return Err(UnitError::Read { id: by.id, reads, left_s: left.div_ceil(1_000) });
            }
        }
        self.unit_drop(by, epoch)
    }

    /// Removes what is to be dropped; true when there is more.
    pub(super) fn unit_scrub(&mut self, budget: &mut usize) -> bool {
        let dropping = |record: &&Record| record.state == UnitState::Dropping;
        while let Some(id) = self.space.units.records.iter().find(dropping).map(|record| record.id) {
            if *budget == 0 {
                return true;
            }
            let (objects, gone) = self.space.drain(id, budget);
            for version in objects.iter().filter_map(|object| object.live()) {
                if let Some(lease) = version.lease_id() {
                    self.leases.detach_key(lease, &Key::copy_from(version.key()));
                }
            }
            if gone {
                let record = self.space.units.get_mut(id);
                match record.filter(|record| record.epoch > 0) {
                    Some(record) => record.state = UnitState::Gone,
                    None => self.space.units.remove(id),
                }
            }
        }
        false
    }

    /// The digest of the next 1,024 keys behind `after`: of their versions at or above `floor` and at or below `at`, and of
    /// what was current at the floor. `None` at the end. Both sides of a move say the same when they hold the same, be
    /// they compacted differently below the floor.
    pub fn unit_verify(
        &self,
        unit: &Unit,
        floor: Revision,
        at: Revision,
        after: Option<&Key>,
    ) -> Result<Option<UnitDigest>, UnitError> {
        let record =
            self.space.units.of(unit).filter(|record| record.is_whole()).ok_or(UnitError::BadUnit)?;
        let mut hash = Xxh3::new();
        let (mut keys, mut versions, mut last_key) = (0, 0, None);
        self.space.walk_unit(record, after, |_, object| {
            let current = object.at(floor).map(Version::order);
            let wanted = |v: &&Version| {
                v.mod_revision() <= at && (v.mod_revision() >= floor || Some(v.order()) == current)
            };
            let mut counted = false;
            for version in object.versions().filter(wanted) {
                counted = true;
                versions += 1;
                digest(&mut hash, version);
            }
            if counted {
                keys += 1;
                last_key = Some(Key::copy_from(object.key()));
            }
            keys < DIGEST_KEYS
        });
        Ok(last_key.map(|last_key| UnitDigest { last_key, keys, versions, hash: hash.digest() }))
    }

    /// Leases of live keys behind `after`, of which `max_keys` are looked at; and the key to go on behind.
    pub fn unit_leases(
        &self,
        unit: &Unit,
        after: Option<&Key>,
        max_keys: usize,
    ) -> Result<(Vec<LeaseId>, Option<Key>), UnitError> {
        let record =
            self.space.units.of(unit).filter(|record| record.is_whole()).ok_or(UnitError::BadUnit)?;
        let (mut leases, mut looked, mut last, mut next) = (Vec::new(), 0, None, None);
        self.space.walk_unit(record, after, |_, object| {
            if looked == max_keys.max(1) {
                next = last.take();
                return false;
            }
            looked += 1;
            last = Some(Key::copy_from(object.key()));
            leases.extend(object.at(LATEST).and_then(Version::lease_id));
            true
        });
        leases.sort_unstable();
        leases.dedup();
        Ok((leases, next))
    }

    /// Whether it is being decided whose one of these keys is: nobody deletes it now.
    pub(super) fn keys_wait(&self, keys: &[Key]) -> Result<(), NotOwned> {
        let undecided = |key: &&Key| self.space.units.whose(key) == Whose::Undecided;
        match keys.iter().find(undecided) {
            Some(key) => Err(NotOwned { key: key.clone(), epoch: 0 }),
            None => Ok(()),
        }
    }

    /// Of the keys of a lease that is over, those that this store is to delete. Those of copies are another store's, which
    /// knows the lease as well: its deletions come. Until then a copy counts them as keys of a lease that is unknown here,
    /// so that it cannot become this store's with them.
    pub(super) fn keys_to_end(&mut self, id: LeaseId, keys: Vec<Key>) -> Vec<Key> {
        if self.space.units.is_empty() {
            return keys;
        }
        let mut ours = Vec::with_capacity(keys.len());
        for key in keys {
            match self.space.units.whose(&key) {
                Whose::Ours | Whose::Undecided => ours.push(key),
                Whose::Copied(unit) => {
                    if let Some(record) = self.space.units.get_mut(unit) {
                        record.unattached.entry(id).or_default().insert(key);
                    }
                }
                Whose::Gone => {}
            }
        }
        ours
    }
}

fn digest(hash: &mut Xxh3, version: &Version) {
    for [part, rest] in [[version.key(), &[]], version.value_pieces()] {
        hash.update(&((part.len() + rest.len()) as u64).to_le_bytes());
        hash.update(part);
        hash.update(rest);
    }
    let (create, modified) = (version.create_revision().get(), version.mod_revision().get());
    for number in [create, modified, version.version(), version.lease(), i64::from(version.is_tombstone())] {
        hash.update(&number.to_le_bytes());
    }
}
