//! What the loop of a primary ships, and what it may show (R18, R20). It sits beside the logs: every batch that goes to
//! them goes to the standbys too, in the same order, and also the changes of Kinds that no log keeps.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use kindred_engine::{
    durability::{Applied, Mark},
    engine::{Engine, checkpoint::Walk},
};
use kindred_partition_config::ids::Revision;
use kindred_wal::Batch;
use tokio::sync::{mpsc, oneshot};

use super::{MemberId, Position, primary::Primary};
use crate::{
    durability::disk_logs::{push, room},
    metrics,
};

/// Shipments that are kept for a standby whose connection broke, in bytes.
const RECENT_BYTES: u64 = 64 << 20;
/// Bytes that may wait for a standby. Beyond, requests wait for one that counts, and one that does not begins anew.
const WAITING_BYTES: u64 = 64 << 20;
/// Bytes of a copy that may wait for a standby, so that what is written meanwhile soon follows.
const COPY_WAITING_BYTES: u64 = 4 << 20;
/// A message counts for at least so many bytes.
const LEAST_BYTES: u64 = 1 << 10;
/// The messages that may wait for a standby: those that are kept for it when it connects, and those of later.
pub const MESSAGES_MAX: usize = (RECENT_BYTES as usize + 2 * WAITING_BYTES as usize) / LEAST_BYTES as usize;
/// Keys and approximate bytes of one slice of a copy.
const SLICE_KEYS: usize = 256;
const SLICE_BYTES: usize = 256 << 10;

/// A message to a standby.
#[derive(Debug, Clone)]
pub struct Shipment {
    /// Everything up to there has been sent with this message.
    pub position: Position,
    /// Records as in the logs.
    pub records: Bytes,
    /// The ceiling of the clock on the primary's disk (R2).
    pub ceiling: Revision,
    /// Which part of a copy it is, if it is one.
    pub copy: Option<CopyPart>,
}

/// A part of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyPart {
    Slice,
    /// The copy is whole with this message.
    Last,
}

/// Where a standby's messages go. What waits there is bounded by `WAITING_BYTES`.
#[derive(Debug)]
pub struct Outlet {
    /// With room for [`MESSAGES_MAX`].
    pub to: mpsc::Sender<Shipment>,
    /// Bytes that were handed over and are not written to the connection yet; its task subtracts.
    pub waiting: Arc<AtomicU64>,
}

impl Outlet {
    fn send(&self, shipment: Shipment) {
        self.waiting.fetch_add(cost(&shipment), Ordering::AcqRel);
        metrics::shipped(shipment.records.len());
        // A connection that is gone is removed when its task says so. There is room: each message counts for so many bytes
        // that there are less.
        let _ = self.to.try_send(shipment);
    }

    fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Acquire)
    }
}

/// The bytes that a shipment counts for.
#[must_use]
pub fn cost(shipment: &Shipment) -> u64 {
    (shipment.records.len() as u64).max(LEAST_BYTES)
}

/// What the connections of standbys, and those who keep the record, tell a primary.
pub enum Said {
    /// A standby begins to follow.
    Follow {
        id: MemberId,
        /// The last batch that it has of this process; `None` asks for a copy.
        has: Option<Position>,
        outlet: Outlet,
        /// Whether it was accepted: not when what it lacks is not kept any more.
        answer: oneshot::Sender<bool>,
    },
    /// A standby has received everything up to there. `whole`: its own disk has a copy.
    Received { id: MemberId, position: Position, whole: bool },
    /// A standby's connection is gone.
    Gone { id: MemberId, waiting: Arc<AtomicU64> },
    /// Everything waits for these standbys from now on, too. `recorded`: the record says so, and that this member is the
    /// primary; then nothing waits for others.
    Count { ids: Vec<MemberId>, recorded: bool, answer: oneshot::Sender<Result<(), NotCounted>> },
    /// No request is executed any more, until the record says that this member is the primary. Told once that is so.
    Yield { answer: oneshot::Sender<()> },
    /// Another member is the primary: nothing is answered any more.
    Superseded,
    /// What is known of the standbys.
    Show { answer: oneshot::Sender<Vec<Shown>> },
}

/// Why a standby cannot be counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("standby {} is not there, or has no whole copy on its disk yet", .0.0)]
pub struct NotCounted(pub MemberId);

/// A standby as its primary sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    pub id: MemberId,
    /// Whether everything waits for it.
    pub counts: bool,
    /// Whether it follows at present.
    pub follows: bool,
    /// Whether it has a whole copy on its disk.
    pub whole: bool,
    /// Whether it has all that was shown when it began to count.
    pub has_shown: bool,
    /// How long ago the newest batch was sent that it has acknowledged.
    pub silent: Duration,
    /// Batches that it has not received.
    pub behind: u64,
    /// Bytes that wait to be sent to it.
    pub waiting_bytes: u64,
}

struct Standby {
    id: MemberId,
    outlet: Option<Outlet>,
    /// The copy that is being sent.
    walk: Option<Walk>,
    whole: bool,
}

/// The standbys of a primary, on its loop.
pub struct Shipping {
    primary: Primary,
    standbys: Vec<Standby>,
    recent: VecDeque<Shipment>,
    recent_bytes: u64,
    /// Marks that the standbys have not received.
    marks: VecDeque<(Position, Mark)>,
    /// Ceilings that the standbys have not received.
    ceilings: VecDeque<(Position, Revision)>,
    /// The ceiling that was shipped last, and the one in force.
    ceiling: Revision,
    in_force: Revision,
    /// The ceiling on disk, which is to be shipped.
    on_disk: Revision,
    shipped_at: Option<Duration>,
    /// It executes nothing so that a standby can take its place.
    yielded: bool,
    superseded: bool,
    /// Whether the engine ships.
    on: bool,
}

impl Shipping {
    /// A primary that must hear from these standbys before it answers, because meta's record may name them.
    #[must_use]
    pub fn counting(set: impl IntoIterator<Item = MemberId>) -> Self {
        Self {
            primary: Primary::new(set),
            standbys: Vec::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            marks: VecDeque::new(),
            ceilings: VecDeque::new(),
            ceiling: Revision::ZERO,
            in_force: Revision::ZERO,
            on_disk: Revision::ZERO,
            shipped_at: None,
            yielded: false,
            superseded: false,
            on: false,
        }
    }

    /// A primary without standbys, to which nobody can be promoted.
    #[must_use]
    pub fn alone() -> Self {
        Self::counting([])
    }

    /// The last batch.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.primary.shipped().0
    }

    /// Everything up to there may be shown.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.primary.received().0
    }

    /// Whether requests may be executed now (R20).
    #[must_use]
    pub fn answers(&self, now: Duration) -> bool {
        !self.superseded && !self.yielded && self.primary.answers(now) && !self.is_full()
    }

    /// Waits for no standby any more, and executes nothing: whoever took its place is dead, and it is to go on by force.
    pub fn stands_alone(&mut self) {
        (self.yielded, self.superseded) = (true, false);
        // Nobody is to be added, so nobody is missing.
        let _ = self.count(&[], true);
    }

    /// Whether too much waits for a standby that counts.
    fn is_full(&self) -> bool {
        let full = |standby: &Standby| {
            self.primary.counts(&standby.id)
                && standby.outlet.as_ref().is_some_and(|outlet| outlet.waiting() > WAITING_BYTES)
        };
        self.standbys.iter().any(full)
    }

    /// Whether there is anything to do besides: a copy that may go on.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.standbys.iter().any(Standby::may_copy)
    }

    /// When something is to be sent, if only that the primary is there.
    #[must_use]
    pub fn next_beat(&self) -> Option<Duration> {
        let follows = self.on && self.standbys.iter().any(|standby| standby.outlet.is_some());
        follows.then(|| self.shipped_at.map_or(Duration::ZERO, Primary::beats_at))
    }

    /// The clock's ceiling on disk; returns the one in force, which all standbys that count have received.
    pub fn ceiling(&mut self, on_disk: Revision) -> Revision {
        self.on_disk = on_disk;
        if !self.on {
            self.in_force = self.in_force.max(on_disk);
        }
        self.in_force
    }

    /// Ships what was applied since the last call, and tells the engine what all standbys have.
    pub fn ship(&mut self, engine: &mut Engine, applied: &Applied, now: Duration) {
        self.on = engine.ships();
        if !self.on {
            return;
        }
        let ceiling = self.on_disk > self.ceiling;
        let beats = self.next_beat().is_some_and(|at| at <= now);
        if !applied.shipped.is_empty() || ceiling || beats {
            let mut batch = Batch::new();
            // Without standbys the records are for nobody: a later one gets a copy.
            if !self.standbys.is_empty() {
                batch = Batch::with_capacity(applied.shipped.iter().map(|(_, logged)| room(logged)).sum());
                applied.shipped.iter().for_each(|(_, logged)| push(&mut batch, logged));
            }
            let position = self.primary.ship();
            self.marks.push_back((position, applied.mark));
            if ceiling {
                self.ceiling = self.on_disk;
                self.ceilings.push_back((position, self.on_disk));
            }
            let records = Bytes::from(batch.into_records());
            self.send(Shipment { position, records, ceiling: self.ceiling, copy: None }, now);
        }
        self.publish(engine);
    }

    fn send(&mut self, shipment: Shipment, now: Duration) {
        self.shipped_at = Some(now);
        for standby in &mut self.standbys {
            let Some(outlet) = &standby.outlet else { continue };
            if outlet.waiting() > WAITING_BYTES && !self.primary.counts(&standby.id) {
                // It begins anew.
                (standby.outlet, standby.walk) = (None, None);
                continue;
            }
            self.primary.sent(&standby.id, shipment.position, now);
            outlet.send(shipment.clone());
        }
        if self.standbys.is_empty() {
            self.recent.clear();
            self.recent_bytes = 0;
            return;
        }
        self.recent_bytes += cost(&shipment);
        self.recent.push_back(shipment);
        while self.recent_bytes > RECENT_BYTES
            && let Some(oldest) = self.recent.pop_front()
        {
            self.recent_bytes -= cost(&oldest);
        }
    }

    /// Makes visible what all standbys that count have received.
    fn publish(&mut self, engine: &mut Engine) {
        let received = self.primary.received();
        let mut published = None;
        while let Some((_, mark)) = self.marks.pop_front_if(|(position, _)| *position <= received) {
            published = Some(mark);
        }
        if let Some(mark) = published {
            engine.publish_received(mark);
        }
        while let Some((_, ceiling)) = self.ceilings.pop_front_if(|(position, _)| *position <= received) {
            self.in_force = self.in_force.max(ceiling);
        }
    }

    /// Whether a standby takes its place, so that what waits is to be refused.
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        self.superseded
    }

    /// Sends the next slices of copies.
    pub fn copy(&mut self, engine: &mut Engine) {
        let (position, ceiling) = (self.primary.shipped(), self.ceiling);
        for standby in &mut self.standbys {
            if !standby.may_copy() {
                continue;
            }
            let (Some(outlet), Some(walk)) = (&standby.outlet, &mut standby.walk) else { continue };
            let mut batch = Batch::new();
            let goes_on =
                engine.checkpoint_next(walk, SLICE_KEYS, SLICE_BYTES, |logged| push(&mut batch, &logged));
            let copy = Some(if goes_on { CopyPart::Slice } else { CopyPart::Last });
            outlet.send(Shipment { position, records: Bytes::from(batch.into_records()), ceiling, copy });
            if !goes_on {
                standby.walk = None;
            }
        }
    }

    /// Does what it is told. The engine ships.
    pub fn hear(&mut self, engine: &mut Engine, said: Said, now: Duration) {
        match said {
            Said::Follow { id, has, outlet, answer } => {
                let accepted = !self.superseded && self.follow(engine, &id, has, outlet, now);
                // If the caller is gone, it says so.
                let _ = answer.send(accepted);
            }
            Said::Received { id, position, whole } => {
                self.primary.acknowledged(&id, position);
                if let Some(standby) = self.standbys.iter_mut().find(|standby| standby.id == id) {
                    standby.whole |= whole;
                }
            }
            Said::Gone { id, waiting } => {
                let same = |outlet: &Outlet| Arc::ptr_eq(&outlet.waiting, &waiting);
                for standby in self.standbys.iter_mut().filter(|standby| standby.id == id) {
                    if standby.outlet.as_ref().is_some_and(same) {
                        standby.outlet = None;
                        // What was copied is not known.
                        standby.walk = None;
                    }
                }
                let primary = &mut self.primary;
                self.standbys.retain(|standby| {
                    let stays = standby.outlet.is_some() || standby.whole || primary.counts(&standby.id);
                    if !stays {
                        primary.forget(&standby.id);
                    }
                    stays
                });
            }
            Said::Count { ids, recorded, answer } => {
                let counted = self.count(&ids, recorded);
                self.yielded &= !(recorded && counted.is_ok());
                // The caller may have given up.
                let _ = answer.send(counted);
            }
            Said::Yield { answer } => {
                self.yielded = true;
                let _ = answer.send(());
            }
            Said::Superseded => {
                self.superseded = true;
                self.standbys.clear();
            }
            Said::Show { answer } => {
                let _ = answer.send(self.show(now));
            }
        }
    }

    fn follow(
        &mut self,
        engine: &mut Engine,
        id: &MemberId,
        has: Option<Position>,
        outlet: Outlet,
        now: Duration,
    ) -> bool {
        let known = self.standbys.iter().position(|standby| standby.id == *id);
        let walk = match has {
            None => Some(engine.copy_begin()),
            Some(has) => {
                let kept = self
                    .recent
                    .front()
                    .map_or(self.primary.shipped(), |first| Position(first.position.0 - 1));
                let was_here =
                    known.is_some_and(|at| self.standbys.get(at).is_some_and(|s| s.walk.is_none()));
                if !was_here || has < kept || has > self.primary.shipped() {
                    return false;
                }
                None
            }
        };
        let from = has.unwrap_or(self.primary.shipped());
        self.primary.follows(id, from);
        for shipment in self.recent.iter().filter(|shipment| shipment.position > from) {
            self.primary.sent(id, shipment.position, now);
            outlet.send(shipment.clone());
        }
        let standby = Standby { id: id.clone(), outlet: Some(outlet), whole: has.is_some(), walk };
        match known.and_then(|at| self.standbys.get_mut(at)) {
            Some(known) => {
                let whole = known.whole && has.is_some();
                *known = Standby { whole, ..standby };
            }
            None => self.standbys.push(standby),
        }
        true
    }

    fn count(&mut self, ids: &[MemberId], no_others: bool) -> Result<(), NotCounted> {
        let ready = |id: &MemberId| {
            self.primary.counts(id)
                || self.standbys.iter().any(|standby| {
                    standby.id == *id && standby.whole && standby.outlet.is_some() && standby.walk.is_none()
                })
        };
        if let Some(missing) = ids.iter().find(|id| !ready(id)) {
            return Err(NotCounted(missing.clone()));
        }
        let others: Vec<MemberId> = self.primary.counted().filter(|id| !ids.contains(id)).cloned().collect();
        for id in others.iter().filter(|_| no_others) {
            match self.standbys.iter().any(|standby| standby.id == *id) {
                true => self.primary.discount(id),
                false => self.primary.forget(id),
            }
        }
        ids.iter().for_each(|id| self.primary.count(id));
        Ok(())
    }

    fn show(&self, now: Duration) -> Vec<Shown> {
        let shown = |standby: &Standby| Shown {
            id: standby.id.clone(),
            counts: self.primary.counts(&standby.id),
            follows: standby.outlet.is_some(),
            whole: standby.whole,
            has_shown: self.primary.has_shown(&standby.id),
            silent: self.primary.silent(&standby.id, now),
            behind: self.primary.behind(&standby.id).unwrap_or(0),
            waiting_bytes: standby.outlet.as_ref().map_or(0, Outlet::waiting),
        };
        self.standbys.iter().map(shown).collect()
    }
}

impl Standby {
    fn may_copy(&self) -> bool {
        self.walk.is_some()
            && self.outlet.as_ref().is_some_and(|outlet| outlet.waiting() < COPY_WAITING_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use kindred_engine::{
        engine::{EngineConfig, RevisionMode, WallMicros},
        ops::{Contents, Op, Put, RangeQuery, RevisionFilter},
    };
    use kindred_partition_config::{ids::Slot, key::KeyRange, kind::KindScheme};

    use super::*;

    const KEY: &str = "/registry/pods/a/1";
    const NOW: WallMicros = WallMicros(1_000);

    /// An engine that ships, and its standbys.
    struct World {
        engine: Engine,
        shipping: Shipping,
        now: Duration,
    }

    fn id(name: &str) -> MemberId {
        MemberId(name.to_owned())
    }

    impl World {
        fn new() -> Self {
            let config = EngineConfig {
                revisions: RevisionMode::Hlc(Slot::new(3).unwrap()),
                kinds: KindScheme::default(),
                max_clock_offset_micros: 1,
                min_lease_ttl_s: 2,
            };
            let mut engine = Engine::new(config, NOW);
            engine.log_changes();
            engine.ship(true);
            Self { engine, shipping: Shipping::alone(), now: Duration::ZERO }
        }

        fn hand_over(&mut self) {
            self.now += Duration::from_millis(1);
            let applied = self.engine.take_applied();
            self.shipping.ship(&mut self.engine, &applied, self.now);
            self.engine.publish_fsync(applied.mark);
        }

        fn put(&mut self, value: usize) {
            let put = Put {
                key: KEY.into(),
                value: Bytes::from(vec![0; value]),
                lease: None,
                ignore_value: false,
                ignore_lease: false,
                prev_kv: false,
            };
            self.engine.apply(NOW, Op::Put(put)).unwrap();
            self.hand_over();
        }

        /// The version of the key that readers see.
        fn shown(&mut self) -> i64 {
            let query = RangeQuery {
                range: KeyRange::Single(KEY.into()),
                revision: None,
                limit: 0,
                sort: None,
                contents: Contents::Whole,
                count_only: false,
                filter: RevisionFilter::default(),
            };
            self.engine.range(&query).unwrap().kvs.first().map_or(0, |kv| kv.version())
        }

        fn control(&mut self, said: Said) {
            self.shipping.hear(&mut self.engine, said, self.now);
        }

        /// A standby follows; what it gets, and whether it was accepted.
        fn follow(&mut self, name: &str, has: Option<Position>) -> (mpsc::Receiver<Shipment>, bool) {
            let (to, shipments) = mpsc::channel(MESSAGES_MAX);
            let (answer, mut accepted) = oneshot::channel();
            let outlet = Outlet { to, waiting: Arc::default() };
            self.control(Said::Follow { id: id(name), has, outlet, answer });
            (shipments, accepted.try_recv().unwrap())
        }

        fn received(&mut self, name: &str, position: u64) {
            self.control(Said::Received { id: id(name), position: Position(position), whole: true });
            self.hand_over();
        }

        fn count(&mut self, names: &[&str]) -> oneshot::Receiver<Result<(), NotCounted>> {
            let (answer, counted) = oneshot::channel();
            let ids = names.iter().map(|name| id(name)).collect();
            self.control(Said::Count { ids, recorded: true, answer });
            counted
        }

        /// A standby that counts.
        fn counted(&mut self, name: &str) -> mpsc::Receiver<Shipment> {
            let (shipments, accepted) = self.follow(name, None);
            assert!(accepted);
            while self.shipping.has_work() {
                self.shipping.copy(&mut self.engine);
            }
            self.received(name, self.shipping.position());
            let mut counted = self.count(&[name]);
            self.received(name, self.shipping.position());
            assert_eq!(counted.try_recv(), Ok(Ok(())));
            shipments
        }
    }

    #[test]
    fn r18_nothing_is_shown_and_no_ceiling_in_force_before_the_standby_has_it() {
        let mut world = World::new();
        let ceiling = Revision(9 << 40);
        world.put(1);
        assert_eq!((world.shown(), world.shipping.ceiling(ceiling)), (1, Revision::ZERO));
        world.hand_over();
        assert_eq!(world.shipping.ceiling(ceiling), ceiling, "nobody is waited for");
        let mut shipments = world.counted("a");
        let higher = ceiling.next();
        world.shipping.ceiling(higher);
        world.put(1);
        assert_eq!((world.shown(), world.shipping.ceiling(higher)), (1, ceiling));
        let mut last = None;
        while let Ok(shipment) = shipments.try_recv() {
            last = Some(shipment);
        }
        let last = last.unwrap();
        assert_eq!((last.ceiling, last.position.0), (higher, world.shipping.position()));
        world.received("a", last.position.0);
        assert_eq!((world.shown(), world.shipping.ceiling(higher)), (2, higher));
    }

    #[test]
    fn r19_who_is_not_whole_or_not_there_is_not_counted() {
        let mut world = World::new();
        let refused = Ok(Err(NotCounted(id("a"))));
        assert_eq!(world.count(&["a"]).try_recv(), refused);
        let (_shipments, _) = world.follow("a", None);
        assert_eq!(world.count(&["a"]).try_recv(), refused, "the copy is under way");
        let mut shipments = world.counted("b");
        world.put(1);
        assert_eq!(world.shown(), 0);
        // Taken out of the set, it is not waited for.
        assert!(world.count(&[]).try_recv().is_ok());
        world.hand_over();
        assert_eq!(world.shown(), 1);
        assert!(shipments.try_recv().is_ok());
    }

    #[test]
    fn r20_a_primary_that_has_yielded_answers_only_when_the_record_says_so() {
        let mut world = World::new();
        let _shipments = world.counted("a");
        let heard = |world: &mut World| world.received("a", world.shipping.position());
        heard(&mut world);
        assert!(world.shipping.answers(world.now));
        let (answer, mut yielded) = oneshot::channel();
        world.control(Said::Yield { answer });
        assert_eq!(yielded.try_recv(), Ok(()));
        heard(&mut world);
        assert!(!world.shipping.answers(world.now));
        // Somebody adds a standby meanwhile, which the record does not say yet.
        let (answer, _counted) = oneshot::channel();
        world.control(Said::Count { ids: vec![id("a")], recorded: false, answer });
        heard(&mut world);
        assert!(!world.shipping.answers(world.now), "the other one may be the primary by now");
        assert!(world.count(&["a"]).try_recv().is_ok());
        heard(&mut world);
        assert!(world.shipping.answers(world.now));
    }

    #[test]
    fn r14_a_former_primary_that_is_to_go_on_by_force_waits_for_nobody() {
        let mut world = World::new();
        let _shipments = world.counted("a");
        world.put(1);
        // It was to end, and its disk did not take that.
        world.control(Said::Superseded);
        world.shipping.stands_alone();
        world.hand_over();
        assert_eq!(world.shown(), 1, "what waited for the standby is published");
        assert!(!world.shipping.answers(world.now) && !world.shipping.is_superseded());
        assert!(world.count(&[]).try_recv().is_ok());
        assert!(world.shipping.answers(world.now));
    }

    #[test]
    fn a_standby_whose_connection_broke_goes_on_where_it_was() {
        let mut world = World::new();
        let shipments = world.counted("a");
        let has = world.shipping.position();
        let waiting = world.shipping.standbys[0].outlet.as_ref().unwrap().waiting.clone();
        drop(shipments);
        world.control(Said::Gone { id: id("a"), waiting });
        world.put(1);
        world.put(1);
        assert_eq!(world.shown(), 0, "it counts although it is away");
        let (mut again, accepted) = world.follow("a", Some(Position(has)));
        assert!(accepted);
        let mut positions = Vec::new();
        while let Ok(shipment) = again.try_recv() {
            positions.push(shipment.position.0);
        }
        assert!(positions.iter().eq(&[has + 1, has + 2]), "{positions:?}");
        world.received("a", has + 2);
        assert_eq!(world.shown(), 2);
        // What it lacks is kept up to a size.
        for _ in 0..3 {
            world.put(RECENT_BYTES as usize / 2);
        }
        assert!(!world.follow("a", Some(Position(has))).1);
        assert!(!world.follow("b", Some(Position(has))).1, "it never had a copy");
    }

    #[test]
    fn a_standby_that_is_taken_out_while_it_follows_can_count_again() {
        let mut world = World::new();
        let mut shipments = world.counted("a");
        assert!(world.count(&[]).try_recv().is_ok());
        world.put(1);
        world.received("a", world.shipping.position());
        let shown = world.shipping.show(world.now);
        assert!(
            shown[0].follows && !shown[0].counts && shown[0].silent < Duration::from_millis(9),
            "{shown:?}"
        );
        assert_eq!(world.count(&["a"]).try_recv(), Ok(Ok(())));
        assert!(shipments.try_recv().is_ok() && world.shipping.answers(world.now));
    }

    #[test]
    fn a_standby_that_does_not_read_holds_up_requests_only_if_it_counts() {
        let mut world = World::new();
        let _reads = world.counted("a");
        let (mut slow, _) = world.follow("slow", None);
        while world.shipping.has_work() {
            world.shipping.copy(&mut world.engine);
        }
        let heard = |world: &mut World| {
            world.received("a", world.shipping.position());
            world.shipping.answers(world.now)
        };
        assert!(heard(&mut world));
        for _ in 0..3 {
            world.put(WAITING_BYTES as usize / 2);
        }
        assert!(!heard(&mut world), "too much waits for it");
        world.put(1);
        let closed = loop {
            match slow.try_recv() {
                Ok(_) => {}
                Err(closed) => break closed,
            }
        };
        assert_eq!(closed, mpsc::error::TryRecvError::Disconnected, "it begins anew");
    }

    #[test]
    fn r20_a_primary_that_restarts_waits_for_those_that_may_have_been_promoted() {
        let mut shipping = Shipping::counting([id("a")]);
        assert!(!shipping.answers(Duration::from_secs(9)));
        let mut world = World::new();
        let (answer, mut counted) = oneshot::channel();
        let alone = Said::Count { ids: Vec::new(), recorded: true, answer };
        shipping.hear(&mut world.engine, alone, world.now);
        assert_eq!(counted.try_recv(), Ok(Ok(())));
        assert!(shipping.answers(Duration::from_secs(9)));
        shipping.hear(&mut world.engine, Said::Superseded, world.now);
        assert!(!shipping.answers(Duration::from_secs(9)));
    }
}
