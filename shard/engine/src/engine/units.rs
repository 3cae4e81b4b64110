//! The calls of live moves: tracking, freezing, copying, importing and opening units; see [`crate::units`].

use kindred_partition_config::{
    ids::{Epoch, LeaseId, MoveId, Revision},
    key::{Key, KeyRange},
    unit::Unit,
};
use xxhash_rust::xxh3::Xxh3;

use super::{Engine, FeedId, FeedOut, MonoMillis, OpenRange, WallMicros};
use crate::{
    durability::Logged,
    units::{
        CopyChunk, Import, NotOwned, Tracking, UnitDigest, UnitError, UnitMove, UnitRecord, UnitState,
        table::{Record, Room, Splitting, UnitId, View, Whose},
    },
    version::Version,
};

/// Keys in one digest.
const DIGEST_KEYS: u64 = 1024;
/// Leases that a refusal names at most.
const NAMED_MAX: usize = 100;
/// Keys and events that one call examines to make room for a unit.
const ROOM_STEPS: usize = 512;
/// Pulls after which [`Engine::unit_tail`] gives up finding an event of its unit.
const TAIL_PULLS: usize = 16;

impl Engine {
    /// Whether reads of these ranges may be executed here. For a single key the record that contains it decides; for a
    /// span every record that overlaps it, and its epoch if the request names its map's `generation`.
    pub fn owns(&self, ranges: &[KeyRange], generation: Option<Epoch>) -> Result<(), NotOwned> {
        ranges.iter().try_for_each(|range| self.space.check(range, generation))
    }

    /// As [`Engine::owns`], for writes and for the reads of a transaction. They differ for a Kind's pseudo-key, which
    /// is read at every store of the Kind but written only at its owner.
    pub fn owns_to_write(&self, range: &KeyRange, generation: Option<Epoch>) -> Result<(), NotOwned> {
        self.space.check_write(range, generation)
    }

    /// As [`Engine::owns`], for a read at a revision: up to its final revision a unit stays readable until it is
    /// dropped (see [`Engine::range_by_map`]).
    pub fn owns_at(
        &self,
        range: &KeyRange,
        generation: Option<Epoch>,
        at: Option<Revision>,
    ) -> Result<(), NotOwned> {
        self.space.sight(range, generation, at).map(drop)
    }

    /// All records, oldest first.
    #[must_use]
    pub fn unit_records(&self) -> Vec<UnitRecord> {
        self.space.units.records.iter().map(|record| record.view(self.unit_keys(record.id))).collect()
    }

    /// The newest record of this unit and move.
    #[must_use]
    pub fn unit_record(&self, by: &UnitMove) -> Option<UnitRecord> {
        let ours = |record: &&Record| record.by.id == by.id && record.by.unit == by.unit;
        let record = self.space.units.records.iter().rev().find(ours)?;
        Some(record.view(self.unit_keys(record.id)))
    }

    /// The highest move number in the records and remembered terms. No number up to it may be used again, even if the
    /// meta store lost its state.
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

    /// Refuses while applied writes of the unit's Kinds wait to be published.
    fn unit_published(&self, unit: &Unit) -> Result<(), UnitError> {
        let waits = self.space.has_unpublished_in(&self.space.scope(&unit.range));
        if waits { Err(UnitError::Unpublished) } else { Ok(()) }
    }

    // ---- source

    /// Moves about `budget` of the unit's keys and events into keyspaces of its own. The caller repeats it until
    /// `ready`; the unit is owned and served throughout.
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

    /// Refuses unless the unit is wholly owned and nothing of it is moving.
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

    /// Ends the tracking of a unit, which stays owned. A unit that is unknown or owned is left as it is.
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
                // Splitting off is finished first.
                UnitState::Tracked { ready: false } => Err(UnitError::NotReady(by.id)),
                _ => Err(record.refuse("Forget")),
            },
        };
        self.log_units();
        forgotten
    }

    /// The revision at which a copy begins. A feed of the unit from the next revision on has everything that the copy
    /// lacks.
    pub fn unit_copy_begin(&mut self, by: &UnitMove) -> Result<Revision, UnitError> {
        self.space.units.fence(by)?;
        self.unit_is_whole(&by.unit, by, "Copy")?;
        let scope = self.space.scope(&by.unit.range);
        Ok(self.space.show(&scope))
    }

    /// The unit's keys behind `after`, each with its published history since the floor. A key may have versions above
    /// the copy's beginning; an import skips the events that it already has.
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

    /// Tells that the next change of the unit's owner will have a map generation above this one. Called before the unit
    /// is frozen and before it is sealed. Reads by a map up to this generation can then be answered meanwhile (R13),
    /// and requests by a later one wait for the decision.
    pub fn unit_undecided(&mut self, by: &UnitMove, generation: Epoch) -> Result<(), UnitError> {
        self.space.units.by(by)?.undecided(generation);
        Ok(())
    }

    /// Freezes a tracked unit: nothing of it is executed, read or promised above the returned final revision (R13,
    /// R15a). Feeds and watches that touch it deliver everything up to that revision and end. To be called when all
    /// applied writes of its Kinds are published and the logs are flushed.
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

    /// Serves a frozen unit again, after a committed abort of the attempt (R15). A unit that is unknown or not frozen
    /// is left as it is, since a new coordinator repeats the call without knowing the state.
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

    /// Hides a frozen unit, which another store owns since map `epoch`. It may then follow its new owner.
    pub fn unit_release(&mut self, by: &UnitMove, epoch: Epoch) -> Result<(), UnitError> {
        let record = self.space.units.by(by)?;
        match record.state {
            UnitState::Frozen { last } => {
                record.state = UnitState::Following { through: last, sealed: None };
                record.turn(epoch, Some(last));
                record.newest = last;
                let id = record.id;
                self.space.units.hidden();
                self.feeds.over(id, last);
                self.log_units();
                Ok(())
            }
            // Epoch 0: it was released, lost in a crash what it had followed, and follows a new copy.
            UnitState::Following { .. } if record.epoch == epoch || record.epoch == Epoch::NONE => Ok(()),
            // It was released, and its drop has begun; a new coordinator does not know that.
            UnitState::Dropping | UnitState::Gone if record.epoch >= epoch => Ok(()),
            _ => Err(record.refuse("Release")),
        }
    }

    /// Opens a feed of one visible unit alone. While the unit is frozen it reaches the final revision; it ends at the
    /// release.
    pub fn unit_feed_open(&mut self, unit: &Unit, start: Option<Revision>) -> Result<FeedId, UnitError> {
        let record = self.space.units.of(unit);
        let record = record.filter(|record| record.is_visible() && record.is_whole());
        let Some(record) = record else { return Err(UnitError::BadUnit) };
        let id = record.id;
        Ok(self.feeds.open_unit(&mut self.space, id, unit.clone(), start))
    }

    /// The events of a unit from `start` on, about `max_bytes` of them, and a watermark if those are all. It opens a
    /// feed, pulls from it and closes it.
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

    /// Imports copied keys, or events that follow a copy, into a hidden unit. The first import creates it, and is
    /// refused until there is room ([`Self::unit_room`]). Returns the revision up to which everything is imported.
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
        let id = self.unit_follower(by)?;
        if !self.unit_make_room(by, id)? {
            return Err(UnitError::NotReady(by.id));
        }
        let Some(record) = self.space.units.get_mut(id) else { return Err(UnitError::Unknown(by.id)) };
        let UnitState::Following { through, sealed } = record.state else {
            return Err(record.refuse("Import"));
        };
        // A late call of the attempt that is sealed: the decision may have been made, and then it is to be opened.
        let (event, key) = (import.events.iter().map(|event| &event.version), import.keys.iter());
        let versions = event.chain(key.flat_map(|copied| &copied.versions)).map(Version::mod_revision);
        let is_late = sealed.is_some() && by.term == record.by.term;
        if is_late && versions.chain(import.through).all(|at| at <= through) {
            return Ok(through);
        }
        record.by.term = by.term;
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

    /// The hidden record into which this move imports the unit; it is added if there is none.
    fn unit_follower(&mut self, by: &UnitMove) -> Result<UnitId, UnitError> {
        match self.space.units.of(&by.unit) {
            Some(record) if matches!(record.state, UnitState::Following { .. }) && record.by.id == by.id => {
                Ok(record.id)
            }
            Some(record) if !matches!(record.state, UnitState::Gone | UnitState::Owned) => {
                Err(record.refuse("Import"))
            }
            _ => self.unit_begin(by),
        }
    }

    /// Does a part of what the first import of a unit needs: checks that no key of it is live here, and removes the
    /// history of deleted ones. True when an import can be executed.
    ///
    /// # Errors
    /// It refuses the units that [`Self::unit_import`] refuses.
    pub fn unit_room(&mut self, by: &UnitMove) -> Result<bool, UnitError> {
        self.space.units.fence(by)?;
        let id = self.unit_follower(by)?;
        self.unit_make_room(by, id)
    }

    /// Adds a hidden record for a unit of which nothing may be here but tombstones.
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

    /// Does a part of [`Self::unit_room`].
    fn unit_make_room(&mut self, by: &UnitMove, id: UnitId) -> Result<bool, UnitError> {
        let room = self.space.units.get_mut(id).and_then(|record| record.clearing.take());
        let left = match room {
            None => return Ok(true),
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
                    return Ok(true);
                }
                Room::Clear(at)
            }
            look => look,
        };
        if let Some(record) = self.space.units.get_mut(id) {
            record.clearing = Some(left);
        }
        Ok(false)
    }

    /// Moves a hidden key from its former lease to that of its new version.
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

    /// Prepares the switch (R15b): checks that everything up to the source's final revision is imported, and raises the
    /// clock to it. Requests that touch the unit wait until it is opened or another import comes.
    pub fn unit_seal(&mut self, now: WallMicros, by: &UnitMove, last: Revision) -> Result<(), UnitError> {
        self.unit_seal_through(now, by, last, last)
    }

    /// The same for a source whose revisions are its own and all lie below this shard's (a stock etcd): everything up
    /// to its revision `imported` must be imported. `last` is where the unit's history begins here. Keys keep their
    /// revisions, so that compares still hold, but nothing below `last` is readable.
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

    /// Unseals a unit after a committed abort of the attempt (R15): no decision will come, so requests stop waiting for
    /// it. A unit that is unknown or not sealed is left as it is. Refused for one that is owned: a decision has come.
    pub fn unit_unseal(&mut self, by: &UnitMove) -> Result<(), UnitError> {
        let record = match self.space.units.by(by) {
            Err(UnitError::Unknown(_)) => return Ok(()),
            found => found?,
        };
        match record.state {
            UnitState::Following { through, sealed: Some(_) } => {
                record.state = UnitState::Following { through, sealed: None };
                self.log_units();
                Ok(())
            }
            UnitState::Owned | UnitState::Tracked { .. } => Err(record.refuse("Unseal")),
            _ => Ok(()),
        }
    }

    /// Opens a sealed unit after the decision: it is owned since map `epoch`, and visible. Feeds and watches that touch
    /// it end behind what they can see without it.
    pub fn unit_open(&mut self, by: &UnitMove, epoch: Epoch) -> Result<(), UnitError> {
        self.unit_published(&by.unit)?;
        let record = self.space.units.by(by)?;
        let last = match record.state {
            UnitState::Following { sealed: Some(last), .. } => last,
            // It may be tracked again for the way back.
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
        let fresh = self.space.units.get(id).is_some_and(|record| record.epoch == Epoch::NONE);
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

    /// Defers logging the table of units to [`Engine::log_units_held`], so that calls about many units between two
    /// [`Engine::take_applied`] become one record.
    pub fn hold_units(&mut self) {
        self.space.units.held = true;
    }

    /// Ends what [`Engine::hold_units`] began, and logs the table.
    pub fn log_units_held(&mut self) {
        self.space.units.held = false;
        self.log_units();
    }

    /// Logs the table of units if its durable part has changed.
    pub(super) fn log_units(&mut self) {
        if self.space.outbox.on
            && !self.space.units.held
            && let Some(table) = self.space.units.changed()
        {
            self.space.outbox.push(|| Logged::Units(Box::new(table)));
        }
    }

    // ---- either side

    /// Drops the data of a hidden unit, a part at each [`Engine::gc`]. If another store owns it since map `epoch`,
    /// a tombstone remains that refuses requests by older maps; with [`Epoch::NONE`] nothing remains.
    pub fn unit_drop(&mut self, by: &UnitMove, epoch: Epoch) -> Result<(), UnitError> {
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
                self.space.outbox.dropped(id.0);
                Ok(())
            }
            UnitState::Dropping | UnitState::Gone => Ok(()),
            _ => Err(record.refuse("Drop")),
        }
    }

    /// Whether a long read still has keys of a unit to read.
    #[must_use]
    pub fn unit_is_read(&self, by: &UnitMove, open: &OpenRange) -> bool {
        let records = self.space.units.records.iter().rev();
        let ours = records.into_iter().find(|record| record.by.id == by.id && record.by.unit == by.unit);
        ours.is_some_and(|record| {
            open.view.sees(record) && !open.is_done() && record.by.unit.overlaps(&open.rest)
        })
    }

    /// Notes when the data of released units was last read, and expires pins. To be called about every second.
    pub fn unit_readers_look(&mut self, now: MonoMillis) {
        self.holds.expire(now);
        self.space.units.records.iter_mut().for_each(|record| record.readers.look(now));
    }

    /// As [`Engine::unit_drop`], but refused, to be retried, while reads still use the data of a released unit: `open`
    /// long reads ([`Engine::unit_is_read`]), paged lists by the former map, and pinned revisions up to the final one
    /// (R5). After a minute it is dropped anyway, and later chunks of these reads are refused. Feeds and watches do not
    /// delay it: they continue at the new owner from their own positions (R16).
    pub fn unit_drop_when_unread(
        &mut self,
        now: MonoMillis,
        by: &UnitMove,
        epoch: Epoch,
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

    /// Removes data of units that are being dropped; true when there is more.
    pub(super) fn unit_gc(&mut self, budget: &mut usize) -> bool {
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
                match record.filter(|record| record.epoch > Epoch::NONE) {
                    Some(record) => record.state = UnitState::Gone,
                    None => self.space.units.remove(id),
                }
            }
        }
        false
    }

    /// The digest of the next 1,024 keys behind `after`; `None` at the end. It covers the versions from `floor` up to
    /// `at` and those current at the floor. Source and target give the same digest when they hold the same, however far
    /// each is compacted below the floor.
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

    /// Refuses while the owner of one of these keys is being decided: no store deletes it then.
    pub(super) fn keys_wait(&self, keys: &[Key]) -> Result<(), NotOwned> {
        let undecided = |key: &&Key| self.space.units.whose(key) == Whose::Undecided;
        match keys.iter().find(undecided) {
            Some(key) => Err(NotOwned { key: key.clone(), epoch: Epoch::NONE }),
            None => Ok(()),
        }
    }

    /// The keys of an ended lease that this store deletes. Keys of an imported unit are left to their owner, which
    /// knows the lease too; its deletions will be imported. Until then they count as keys of an unknown lease, so that
    /// the unit cannot be sealed with them.
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
