//! What a coordinator does: legs one after the other, each copied, followed, frozen, sealed, decided, released, opened.

use kindred_engine::{
    engine::FeedId,
    units::{FollowedEvent, Import, UnitError, UnitMove, UnitState},
};
use kindred_partition_config::{
    ids::{Epoch, MoveId, Revision, StoreName, Term},
    kind::KindPrefix,
    model::DataPartitionConfig,
    state::ClusterState,
    transfers::Transfer,
};
use kindred_router_core::moves::record::{Leg, MoveRecord, Phase};

use crate::verbs::world::World;

pub struct Moving {
    id: MoveId,
    term: Term,
    kind: Option<KindPrefix>,
    legs: Vec<Leg>,
    /// What the configuration said of the Kind, to be put back when it is given up.
    before: ClusterState,
    new: bool,
}

impl Moving {
    pub fn is_of(&self, kind: Option<&KindPrefix>) -> bool {
        self.kind.as_ref() == kind
    }

    pub fn is_new(&self) -> bool {
        self.new
    }

    /// Whether keys go to this store, or back to it.
    pub fn has_leg_at(&self, store: &StoreName) -> bool {
        let idx = self.before.store(store).map(|(idx, _)| idx);
        self.legs.iter().any(|leg| Some(leg.from) == idx || Some(leg.to) == idx)
    }

    /// As meta has it while the move waits to be completed or reversed.
    pub fn record(&self) -> MoveRecord {
        let transfers: Vec<Transfer> = self.legs.iter().flat_map(|leg| leg.transfers.clone()).collect();
        let mut record = MoveRecord::new(self.id, &transfers).expect("it moves something");
        (record.legs, record.phase) = (self.legs.clone(), Phase::Switched);
        record
    }

    fn units(&self, leg: usize) -> Vec<UnitMove> {
        let by = |transfer: &Transfer| UnitMove { id: self.id, term: self.term, unit: transfer.unit.clone() };
        self.legs[leg].transfers.iter().map(by).collect()
    }

    fn ends(&self, leg: usize) -> (usize, usize) {
        (usize::from(self.legs[leg].owner().0), usize::from(self.legs[leg].follower().0))
    }
}

impl World {
    pub fn begin(&mut self, kind: Option<KindPrefix>, transfers: &[Transfer], before: &ClusterState) {
        let id = MoveId(self.next_move);
        let Some(record) = MoveRecord::new(id, transfers) else { return };
        self.next_move += 1;
        let before = before.clone();
        self.moves.push(Moving { id, term: Term(1), kind, legs: record.legs, before, new: true });
    }

    /// A new move: there, or back on the way, or to the end; what is left of it.
    pub fn run(&mut self, mut moving: Moving) -> Option<Moving> {
        moving.new = false;
        for leg in 0..moving.legs.len() {
            if self.random.one_in(12) {
                self.did(format!("  abort of move {} before leg {leg}", moving.id));
                self.back(&mut moving);
                self.end(moving, true);
                return None;
            }
            self.switch(&mut moving, leg);
            self.ask_some();
        }
        match self.random.below(6) {
            0 => {
                self.did(format!("  reverse of move {}", moving.id));
                self.back(&mut moving);
                if self.random.one_in(2) {
                    self.end(moving, true);
                    return None;
                }
                // There again after all.
                self.did("  and there again".to_owned());
                for leg in 0..moving.legs.len() {
                    self.switch(&mut moving, leg);
                }
                Some(moving)
            }
            1 | 2 => Some(moving),
            _ => {
                self.end(moving, false);
                None
            }
        }
    }

    /// Moves that wait to be completed or reversed.
    pub fn go_on_with_open_moves(&mut self) {
        for mut moving in std::mem::take(&mut self.moves) {
            match self.random.below(4) {
                0 => {
                    self.did(format!("  late reverse of move {}", moving.id));
                    self.back(&mut moving);
                    self.end(moving, true);
                }
                1 => self.moves.push(moving),
                _ => {
                    self.did(format!("  late end of move {}", moving.id));
                    self.end(moving, false);
                }
            }
        }
    }

    pub fn complete(&mut self, moving: Moving) {
        self.end(moving, false);
    }

    /// Followers of moves that are open come to the present, as they do all the time.
    pub fn follow_on(&mut self) {
        let moves = std::mem::take(&mut self.moves);
        for moving in &moves {
            for leg in 0..moving.legs.len() {
                let (from, to) = moving.ends(leg);
                for by in moving.units(leg) {
                    let tail = self.copy(from, to, &by);
                    self.engines[from].feed_close(tail);
                }
            }
        }
        self.moves = moves;
    }

    fn back(&mut self, moving: &mut Moving) {
        for leg in (0..moving.legs.len()).rev() {
            if moving.legs[leg].moved {
                self.switch(moving, leg);
                self.ask_some();
            }
        }
    }

    /// The followers' data goes; with `put_back` the configuration says again what it said.
    fn end(&mut self, moving: Moving, put_back: bool) {
        for leg in 0..moving.legs.len() {
            let (owner, follower) = moving.ends(leg);
            let epoch = moving.legs[leg].epoch.unwrap_or(Epoch::NONE);
            for by in moving.units(leg) {
                self.engines[follower].unit_drop(&by, epoch).expect("dropped");
                match self.engines[owner].unit_forget(&by) {
                    Ok(()) => {}
                    Err(UnitError::NotReady(_)) => {
                        while !self.engines[owner].unit_track(&by, 100).expect("tracked").ready {}
                        self.engines[owner].unit_forget(&by).expect("forgotten");
                    }
                    Err(refused) => self.fail(&format!("forget: {refused}")),
                }
            }
            while self.engines[follower].gc(1_000) {}
        }
        if put_back {
            let scheme = self.state.scheme();
            let of_kind = |config: &DataPartitionConfig| scheme.resolve(&config.resource).ok() == moving.kind;
            let mut next = self.state.clone();
            next.revision += 1;
            if moving.kind.is_none() {
                next.default = moving.before.default.clone();
            }
            next.configs.retain(|config| !of_kind(config));
            let said = moving.before.configs.iter().filter(|config| of_kind(config));
            next.configs.extend(said.cloned());
            // A store of it may be draining since, for this very move: then the operator says where else.
            match next.validated() {
                Ok(_) => self.take(next),
                Err(_) => self.did("  (its configuration cannot be put back)".to_owned()),
            }
        }
    }

    fn switch(&mut self, moving: &mut Moving, leg: usize) {
        let (from, to) = moving.ends(leg);
        if self.random.one_in(3) {
            moving.term = Term(moving.term.0 + 1);
        }
        let mut units = moving.units(leg);
        let mut tails = Vec::new();
        for by in &units {
            while !self.engines[from].unit_track(by, 5).expect("tracked").ready {
                self.write();
            }
            tails.push(self.copy(from, to, by));
        }
        self.write();
        if self.random.one_in(6) {
            // An attempt that is given up, by a new term.
            self.freeze_and_seal(moving, leg, &units, &mut tails);
            moving.term = Term(moving.term.0 + 1);
            units = moving.units(leg);
            for by in &units {
                self.engines[from].unit_unfreeze(by).expect("served again");
                self.engines[to].unit_import(by, Import::default()).expect("unsealed");
            }
            self.switching = None;
            self.write();
            self.ask_some();
        }
        self.freeze_and_seal(moving, leg, &units, &mut tails);
        let next = self.state.with_transfers(&moving.legs[leg].next_transfers()).expect("they apply");
        let epoch = next.generation;
        self.take(next);
        self.ask_some();
        for by in &units {
            self.engines[from].unit_release(by, epoch).expect("released");
        }
        self.ask_some();
        for by in &units {
            self.engines[to].unit_open(by, epoch).expect("opened");
        }
        for (by, tail) in units.iter().zip(tails) {
            self.engines[from].feed_close(tail);
            self.engines[to].unit_track(by, 1).expect("tracked");
        }
        moving.legs[leg].moved = !moving.legs[leg].moved;
        moving.legs[leg].epoch = Some(epoch);
        self.switching = None;
        self.did(format!("  leg {leg} of move {}: {from} -> {to}, map {epoch}", moving.id));
        for engine in &self.engines {
            engine.validate();
        }
    }

    fn freeze_and_seal(&mut self, moving: &Moving, leg: usize, units: &[UnitMove], tails: &mut [FeedId]) {
        let (from, to) = moving.ends(leg);
        // Of keys of no Kind requests for any may wait.
        self.switching = Some(moving.kind.clone().unwrap_or_else(|| self.kind("pods")));
        self.switching_rest = moving.kind.is_none();
        let generation = self.state.generation;
        for by in units {
            self.engines[from].unit_undecided(by, generation).expect("known");
        }
        let freeze = |by: &UnitMove| self.engines[from].unit_freeze(self.now, by).expect("frozen");
        let lasts: Vec<Revision> = units.iter().map(freeze).collect();
        self.ask_some();
        for ((by, last), tail) in units.iter().zip(lasts).zip(tails) {
            self.engines[from].feed_advance(self.now, *tail, last);
            assert!(self.follow(from, to, by, *tail), "it was followed until now");
            self.engines[to].unit_undecided(by, generation).expect("known");
            self.engines[to].unit_seal(self.now, by, last).expect("all is there");
        }
        self.ask_some();
    }

    /// A whole copy, and the feed behind it. One that followed has it, and needs the feed only.
    fn copy(&mut self, from: usize, to: usize, by: &UnitMove) -> FeedId {
        let records = self.engines[to].unit_records();
        let record = records.iter().rev().find(|record| record.by.id == by.id && record.by.unit == by.unit);
        if let Some(UnitState::Following { through, .. }) = record.map(|record| record.state)
            && through > Revision::ZERO
        {
            let epoch = record.map_or(Epoch::NONE, |record| record.epoch);
            let tail = self.engines[from].unit_feed_open(&by.unit, Some(through.next())).expect("tracked");
            if self.follow(from, to, by, tail) {
                return tail;
            }
            // What it follows is compacted there: it is copied anew.
            self.engines[from].feed_close(tail);
            self.engines[to].unit_drop(by, epoch).expect("dropped");
        }
        loop {
            match self.engines[to].unit_import(by, Import::default()) {
                Ok(_) => break,
                Err(UnitError::NotReady(_)) => {}
                Err(UnitError::State { state: "dropping", .. }) => {
                    self.engines[to].gc(100);
                }
                Err(refused) => self.fail(&format!("import into {to}: {refused}")),
            }
        }
        let at = self.engines[from].unit_copy_begin(by).expect("tracked");
        let tail = self.engines[from].unit_feed_open(&by.unit, Some(at.next())).expect("tracked");
        let mut after = None;
        loop {
            let chunk = self.engines[from].unit_copy(by, after.as_ref(), 3, 1 << 20).expect("a chunk");
            let floor = Some(chunk.floor);
            let import = Import { keys: chunk.keys, floor, gaps: chunk.gaps, ..Import::default() };
            self.engines[to].unit_import(by, import).expect("imported");
            after = chunk.after;
            if after.is_none() {
                break;
            }
            self.write();
        }
        assert!(self.follow(from, to, by, tail), "a tail from the present");
        tail
    }

    /// False when what comes next is compacted.
    fn follow(&mut self, from: usize, to: usize, by: &UnitMove, tail: FeedId) -> bool {
        while let Some(out) = self.engines[from].feed_pull(tail, 200) {
            if out.compacted.is_some() {
                return false;
            }
            let carried = out.events.into_iter();
            let events = carried.map(|event| FollowedEvent { version: event.kv, prev: event.prev }).collect();
            let import = Import { events, through: out.watermark, ..Import::default() };
            self.engines[to].unit_import(by, import).expect("followed");
        }
        true
    }
}
