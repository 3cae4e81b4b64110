//! What a coordinator does, in small steps.

use kindred_engine::{engine::*, units::*, version::Version};
use kindred_partition_config::{
    ids::{Epoch, MoveId, Revision, Term},
    key::Key,
};

use crate::moves_model::world::World;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Tracking,
    /// The target drops what it still has of the unit.
    Clearing,
    Copying,
    Following,
    Frozen {
        last: Revision,
    },
    Sealed {
        last: Revision,
    },
    Released {
        last: Revision,
    },
    /// The target (or old source) drops what it has; then the move has ended.
    Dropping,
}

pub struct Move {
    pub by: UnitMove,
    pub from: usize,
    pub to: usize,
    pub phase: Phase,
    /// How far the copy is, and where its tail begins.
    after: Option<Key>,
    begin: Revision,
    tail: Option<FeedId>,
    through: Revision,
    /// The generation of the last switch of this move; 0 before the first.
    epoch: Epoch,
}

impl Move {
    /// Whether requests that touch the unit wait at engine `e`.
    pub fn makes_wait(&self, e: usize) -> bool {
        match self.phase {
            Phase::Frozen { .. } => e == self.from,
            Phase::Sealed { .. } => e == self.from || e == self.to,
            Phase::Released { .. } => e == self.to,
            _ => false,
        }
    }

    /// Whether this move hides the unit at engine `e`.
    pub fn hides_at(&self, e: usize) -> bool {
        let copied = matches!(self.phase, Phase::Following | Phase::Frozen { .. } | Phase::Sealed { .. });
        (copied || matches!(self.phase, Phase::Released { .. })) && e == self.to
            || matches!(self.phase, Phase::Released { .. }) && e == self.from
    }
}

/// The version as it arrives over the network.
fn encoded(version: &Version, sub: u32) -> Version {
    Version::from_wire(&version.encoded().to_vec(), version.is_tombstone(), sub).expect("an encoded version")
}

impl World {
    pub fn move_steps(&mut self) {
        if self.moves.len() < 2 && self.random.one_in(3) {
            self.begin_move();
        }
        for _ in 0..1 + self.random.below(4) {
            if self.moves.is_empty() {
                return;
            }
            let i = self.random.below(self.moves.len());
            let mut m = self.moves.swap_remove(i);
            if self.advance(&mut m) {
                self.moves.push(m);
            }
        }
    }

    fn begin_move(&mut self) {
        let Some((unit, from)) = self.pick_unit() else { return };
        let to = self.random.below(self.engines.len());
        if to == from {
            return;
        }
        let by = UnitMove { id: MoveId(self.next_move), term: Term(1), unit };
        self.next_move += 1;
        self.moves.push(Move {
            by,
            from,
            to,
            phase: Phase::Tracking,
            after: None,
            begin: Revision::ZERO,
            tail: None,
            through: Revision::ZERO,
            epoch: Epoch::NONE,
        });
    }

    /// Ends all moves without beginning others.
    pub fn conclude_moves(&mut self) {
        for mut m in std::mem::take(&mut self.moves) {
            let over = match m.phase {
                Phase::Tracking | Phase::Clearing | Phase::Copying | Phase::Following => {
                    self.give_up(&mut m);
                    false
                }
                _ => !self.advance(&mut m),
            };
            if !over {
                self.moves.push(m);
            }
        }
    }

    /// Gives the move up: the unit stays where it is by the map.
    fn give_up(&mut self, m: &mut Move) {
        self.close_tail(m);
        match self.engines[m.from].unit_forget(&m.by) {
            Ok(()) => {}
            Err(UnitError::NotReady(_)) => {
                self.engines[m.from].unit_track(&m.by, 4).expect("tracked");
                return;
            }
            Err(other) => panic!("{other}"),
        }
        self.engines[m.to].unit_drop(&m.by, m.epoch).expect("dropped");
        m.phase = Phase::Dropping;
    }

    fn close_tail(&mut self, m: &mut Move) {
        if let Some(tail) = m.tail.take() {
            self.engines[m.from].feed_close(tail);
        }
    }

    /// Makes one step; answers false when it was the last.
    fn advance(&mut self, m: &mut Move) -> bool {
        if m.phase != Phase::Dropping && self.random.one_in(20) {
            // Another coordinator takes over.
            let old = m.by.clone();
            m.by.term = Term(m.by.term.0 + 1);
            let _ = self.engines[m.from].unit_track(&m.by, 1);
            if matches!(m.phase, Phase::Following) {
                assert!(matches!(
                    self.engines[m.from].unit_freeze(self.now, &old),
                    Err(UnitError::StaleTerm { .. })
                ));
            }
        }
        match m.phase {
            Phase::Tracking | Phase::Clearing | Phase::Copying if self.random.one_in(25) => self.give_up(m),
            Phase::Following if self.random.one_in(if m.epoch > Epoch::NONE { 8 } else { 25 }) => {
                self.give_up(m)
            }
            Phase::Tracking => {
                let budget = 1 + self.random.below(10);
                let tracking = self.engines[m.from].unit_track(&m.by, budget).expect("tracked");
                self.unit_floor(m, tracking.floor);
                if tracking.ready {
                    m.phase = Phase::Clearing;
                }
            }
            Phase::Clearing => match self.engines[m.to].unit_import(&m.by, Import::default()) {
                Ok(_) => {
                    m.begin = self.engines[m.from].unit_copy_begin(&m.by).expect("tracked");
                    (m.after, m.phase) = (None, Phase::Copying);
                }
                Err(UnitError::NotReady(_)) => {}
                Err(UnitError::State { state: "dropping", .. }) => {
                    self.engines[m.to].gc(7);
                }
                Err(other) => panic!("{other}"),
            },
            Phase::Copying => self.copy(m),
            Phase::Following => {
                self.follow(m);
                if m.phase == Phase::Following {
                    self.verify(m);
                    if self.random.one_in(3) {
                        let last = self.engines[m.from].unit_freeze(self.now, &m.by).expect("frozen");
                        m.phase = Phase::Frozen { last };
                    }
                }
            }
            Phase::Frozen { last } => self.seal(m, last),
            Phase::Sealed { last } => self.decide(m, last),
            Phase::Released { last } => self.open(m, last),
            Phase::Dropping => {
                let budget = 1 + self.random.below(8);
                self.engines[m.to].gc(budget);
                let dropping = |r: &UnitRecord| r.state == UnitState::Dropping && r.by.unit == m.by.unit;
                return self.engines[m.to].unit_records().iter().any(dropping);
            }
        }
        true
    }

    /// A unit has one floor: the highest of its parts.
    fn unit_floor(&mut self, m: &Move, floor: Revision) {
        let (_, high) = self.floors(m.from, &m.by.unit.range);
        let cells = Self::cells_of(&m.by.unit);
        let low = cells.iter().map(|(piece, group)| self.cells[*piece][*group].low).max().expect("some");
        assert!(low <= floor && floor <= high, "{low} {floor} {high}");
        for (piece, group) in cells {
            let cell = &mut self.cells[piece][group];
            (cell.low, cell.floor) = (floor, floor);
        }
    }

    fn copy(&mut self, m: &mut Move) {
        let max = 1 + self.random.below(6);
        let chunk = self.engines[m.from].unit_copy(&m.by, m.after.as_ref(), max, 1 << 20).expect("a chunk");
        let carry = |key: &CopiedKey| CopiedKey {
            versions: key.versions.iter().map(|version| encoded(version, version.sub())).collect(),
        };
        let through = chunk.after.is_none().then_some(m.begin);
        let keys = chunk.keys.iter().map(carry).collect();
        let import = Import { keys, floor: Some(chunk.floor), through, ..Import::default() };
        if self.random.one_in(5) {
            // The answer was lost, so the same is imported twice.
            self.engines[m.to]
                .unit_import(&m.by, Import { through: None, ..import.clone() })
                .expect("imported");
        }
        self.engines[m.to].unit_import(&m.by, import).expect("imported");
        m.after = chunk.after;
        if let Some(through) = through {
            (m.phase, m.through) = (Phase::Following, through);
        }
    }

    /// Imports some of what the source's tail has sent since.
    fn follow(&mut self, m: &mut Move) {
        if m.tail.is_some() && self.random.one_in(6) {
            self.close_tail(m);
        }
        let tail = match m.tail {
            Some(tail) => tail,
            None => {
                let opened = self.engines[m.from].unit_feed_open(&m.by.unit, Some(m.through.next()));
                *m.tail.insert(opened.expect("tracked"))
            }
        };
        if self.random.one_in(3) {
            let now = self.engines[m.from].current_all();
            self.engines[m.from].feed_advance(self.now, tail, now);
        }
        for _ in 0..12 {
            let bytes = 1 + self.random.below(300);
            let Some(out) = self.engines[m.from].feed_pull(tail, bytes) else { break };
            if out.compacted.is_some() {
                self.close_tail(m);
                self.engines[m.to].unit_drop(&m.by, m.epoch).expect("dropped");
                if m.makes_wait(m.from) {
                    self.engines[m.from].unit_unfreeze(&m.by).expect("served again");
                }
                m.phase = Phase::Clearing;
                return;
            }
            assert!(out.moved.is_none(), "before its release");
            let (mut sub, mut last) = (0, Revision::ZERO);
            let carry = |event: &Event| {
                sub = if event.kv.mod_revision() == last { sub + 1 } else { 0 };
                last = event.kv.mod_revision();
                let prev = event.prev.as_ref().map(|prev| encoded(prev, 0));
                FollowedEvent { version: encoded(&event.kv, sub), prev }
            };
            let events: Vec<FollowedEvent> = out.events.iter().map(carry).collect();
            if let Phase::Frozen { last } = m.phase {
                assert!(events.iter().all(|event| event.version.mod_revision() <= last));
                assert!(out.watermark.is_none_or(|watermark| watermark <= last), "R15a");
            }
            let import = Import { events, through: out.watermark, ..Import::default() };
            if self.random.one_in(5) {
                let import = Import { through: None, ..import.clone() };
                self.engines[m.to].unit_import(&m.by, import).expect("imported");
            }
            m.through = self.engines[m.to].unit_import(&m.by, import).expect("followed");
        }
    }

    fn verify(&mut self, m: &Move) {
        let floor = [m.from, m.to].into_iter().flat_map(|e| self.engines[e].unit_records());
        let floor = floor.filter(|record| record.by.unit == m.by.unit && record.state != UnitState::Gone);
        let floor = floor.map(|record| record.floor).max().expect("two records");
        if m.through < floor {
            return;
        }
        let digests = |e: usize| {
            let (mut after, mut all) = (None, Vec::new());
            while let Some(digest) =
                self.engines[e].unit_verify(&m.by.unit, floor, m.through, after.as_ref()).expect("whole")
            {
                after = Some(digest.last_key.clone());
                all.push(digest);
            }
            all
        };
        assert_eq!(digests(m.from), digests(m.to), "from {floor} to {}", m.through);
    }

    fn seal(&mut self, m: &mut Move, last: Revision) {
        if self.random.one_in(6) {
            self.engines[m.from].unit_unfreeze(&m.by).expect("served again");
            m.phase = Phase::Following;
            return;
        }
        self.follow(m);
        if m.phase != (Phase::Frozen { last }) {
            return;
        }
        if m.through < last {
            assert!(matches!(
                self.engines[m.to].unit_seal(self.now, &m.by, last),
                Err(UnitError::Behind { .. })
            ));
            if let Some(tail) = m.tail {
                self.engines[m.from].feed_advance(self.now, tail, last);
            }
            return;
        }
        self.verify(m);
        let mut after = None;
        let mut leases = Vec::new();
        loop {
            let (mut some, next) =
                self.engines[m.from].unit_leases(&m.by.unit, after.as_ref(), 3).expect("whole");
            leases.append(&mut some);
            after = next;
            if after.is_none() {
                break;
            }
        }
        if leases.into_iter().filter(|id| !self.adopt(*id, m.to)).count() > 0 {
            // A lease has ended, and its keys must be deleted first.
            self.engines[m.from].unit_unfreeze(&m.by).expect("served again");
            m.phase = Phase::Following;
            return;
        }
        self.engines[m.to].unit_seal(self.now, &m.by, last).expect("all is there");
        m.phase = Phase::Sealed { last };
    }

    fn decide(&mut self, m: &mut Move, last: Revision) {
        if self.random.one_in(6) {
            // The attempt is given up with a new term; the target continues to follow.
            m.by.term = Term(m.by.term.0 + 1);
            self.engines[m.from].unit_unfreeze(&m.by).expect("served again");
            if self.random.one_in(2) {
                self.engines[m.to].unit_unseal(&m.by).expect("not opened");
            } else {
                self.engines[m.to].unit_import(&m.by, Import::default()).expect("unsealed");
            }
            m.phase = Phase::Following;
            return;
        }
        self.generation = self.generation.next();
        m.epoch = self.generation;
        self.engines[m.from].unit_release(&m.by, m.epoch).expect("released");
        self.close_tail(m);
        for (piece, group) in Self::cells_of(&m.by.unit) {
            let cell = &mut self.cells[piece][group];
            cell.past.insert(m.from);
            cell.owner = None;
        }
        m.phase = Phase::Released { last };
    }

    fn open(&mut self, m: &mut Move, last: Revision) {
        if self.random.one_in(3) {
            // Of the coordinator that sealed it.
            let by = self.engines[m.to].unit_record(&m.by).expect("sealed").by;
            let late = Import { through: Some(last), ..Import::default() };
            self.engines[m.to].unit_import(&by, late).expect("it changes nothing");
        }
        self.engines[m.to].unit_open(&m.by, m.epoch).expect("opened");
        assert_eq!(self.engines[m.to].unit_open(&m.by, m.epoch), Ok(()), "again is the same");
        for (piece, group) in Self::cells_of(&m.by.unit) {
            let cell = &mut self.cells[piece][group];
            cell.past.remove(&m.to);
            cell.owner = Some(m.to);
        }
        for e in [m.from, m.to] {
            let behind =
                self.engines[e].owns(std::slice::from_ref(&m.by.unit.range), Some(Epoch(m.epoch.0 - 1)));
            assert_eq!(behind.map_err(|refused| refused.epoch), Err(m.epoch), "a map that is behind");
        }
        assert!(self.engines[m.to].current(std::slice::from_ref(&m.by.unit.range)) >= last, "R15b");
        // From now on the unit moves in the other direction.
        std::mem::swap(&mut m.from, &mut m.to);
        m.by.term = Term(m.by.term.0 + 1);
        assert!(self.engines[m.from].unit_track(&m.by, 1).expect("tracked").ready, "at once");
        (m.phase, m.through) = (Phase::Following, last);
    }
}
