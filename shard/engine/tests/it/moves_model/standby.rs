//! Standbys of the engines: each begins as a copy that is made while its engine works, takes over all that is shipped,
//! and is compared at random points with what a new copy would be.

use kindred_engine::{checkpoint::Walk, durability::Logged, engine::*, ops::RangeQuery, recover::Recovered};
use kindred_partition_config::{
    ids::{LeaseId, Revision, Slot},
    key::{Key, KeyRange},
    kind::KindScheme,
};

use crate::{common, moves_model::world::World};

/// The last stage of a standby.
pub enum Stage {
    Copying(Walk, Box<Recovered>),
    Follows(Box<Engine>),
}

pub struct Standby {
    of: usize,
    stage: Stage,
}

fn config(e: usize) -> EngineConfig {
    let slot = Slot::new(3 + u16::try_from(e).expect("few")).expect("below 1024");
    let (revisions, kinds) = (RevisionMode::Hlc(slot), KindScheme::default());
    EngineConfig { revisions, kinds, max_clock_offset_micros: 10_000_000, min_lease_ttl_s: 2 }
}

fn recover(e: usize, recovered: Recovered) -> Engine {
    Engine::recover(config(e), WallMicros(0), MonoMillis(0), recovered).expect("no clock is off")
}

/// Publishes what a standby has taken over, as if it were on its disk.
fn publish(replica: &mut Engine) {
    let applied = replica.take_applied();
    replica.publish();
    replica.publish_fsync(applied.mark);
    replica.validate();
}

/// Everything that a client or another store could ask.
fn shown(engine: &mut Engine, revisions: &[Revision], leases: &[LeaseId]) -> Vec<String> {
    let mut reads = Vec::new();
    for range in
        [KeyRange::everything(), common::prefix("/registry/pods/"), common::prefix("/registry/minions/")]
    {
        for at in revisions.iter().map(|at| Some(*at)).chain([None]) {
            let answer = engine.range(&RangeQuery { revision: at, ..common::query(range.clone()) });
            reads.push(format!("{at:?} {answer:?}"));
        }
        for from in revisions {
            let stream = engine.watch_open();
            let created = engine.watch_create(stream, common::watch(range.clone(), Some(*from)));
            reads.push(format!("{:?}", created.err()));
            let mut out = Vec::new();
            loop {
                match engine.watch_pull(stream, 1 << 20) {
                    more if more.is_empty() => break,
                    more => out.extend(more),
                }
            }
            engine.watch_close(stream);
            // The floor that is told may differ by what is known of empty Kinds.
            let out = out.iter().map(|out| match out {
                WatchOut::Compacted { id, .. } => format!("{id:?} is compacted"),
                // Changes of one revision that met here from several engines are in no order.
                WatchOut::Events { events, .. } => {
                    let mut events: Vec<String> = events.iter().map(|event| format!("{event:?}")).collect();
                    events.sort_unstable();
                    format!("{events:?}")
                }
                out => format!("{out:?}"),
            });
            reads.push(format!("{from} {:?}", out.collect::<Vec<_>>()));
        }
    }
    let (mut walk, mut copied) = (engine.copy_begin(), Vec::new());
    let floor = engine.floor();
    let mut give = |logged| match logged {
        // A start takes the last compaction for the beginning too.
        Logged::Gap(gap) if gap.gap.until <= floor => {}
        logged => copied.push(format!("{logged:?}")),
    };
    while engine.checkpoint_next(&mut walk, 100, 1 << 20, &mut give) {}
    copied.sort();
    reads.push(format!("{:?} {}", engine.hash_kv(None), engine.floor()));
    reads.extend(engine.unit_records().iter().map(|record| format!("{record:?}")));
    reads.extend(leases.iter().map(|id| format!("{id} {:?}", engine.lease_view(MonoMillis(500), *id, true))));
    reads.extend(copied);
    reads
}

impl World {
    /// Ships what an engine has applied, and publishes it.
    pub fn publish(&mut self, e: usize) {
        // Terms of calls that were refused are logged with the next change of the table.
        self.engines[e].log_units_held();
        let applied = self.engines[e].take_applied();
        for standby in self.standbys.iter_mut().filter(|standby| standby.of == e) {
            for (_, logged) in &applied.shipped {
                standby.take(logged.clone());
            }
        }
        self.engines[e].publish();
        self.engines[e].publish_received(applied.mark);
    }

    pub fn standby_steps(&mut self) {
        let e = self.random.below(self.engines.len());
        self.publish(e);
        let Some(at) = self.standbys.iter().position(|standby| standby.of == e) else {
            let walk = self.engines[e].copy_begin();
            let recovered = Box::new(Recovered { copied: true, ..Recovered::default() });
            return self.standbys.push(Standby { of: e, stage: Stage::Copying(walk, recovered) });
        };
        let keys = 1 + self.random.below(6);
        let compares = self.random.one_in(4);
        match &mut self.standbys[at].stage {
            Stage::Copying(walk, recovered) => {
                if !self.engines[e].checkpoint_next(walk, keys, 1 << 20, |logged| recovered.push(logged)) {
                    let replica = recover(e, std::mem::take(recovered));
                    self.standbys[at].stage = Stage::Follows(Box::new(replica));
                }
            }
            Stage::Follows(_) if compares => {
                let standby = self.standbys.swap_remove(at);
                self.take_over(standby);
            }
            Stage::Follows(replica) => {
                publish(replica);
                replica.gc(keys);
            }
        }
    }

    pub fn standbys_take_over(&mut self) {
        for e in 0..self.engines.len() {
            self.publish(e);
        }
        for standby in std::mem::take(&mut self.standbys) {
            self.take_over(standby);
        }
    }

    /// The standby takes over; so does a new copy of the engine, and both show the same.
    fn take_over(&mut self, standby: Standby) {
        let Standby { of: e, stage: Stage::Follows(mut replica) } = standby else { return };
        let mut recovered = Recovered { copied: true, ..Recovered::default() };
        let mut walk = self.engines[e].copy_begin();
        while self.engines[e].checkpoint_next(&mut walk, 100, 1 << 20, |logged| recovered.push(logged)) {}
        let mut fresh = recover(e, recovered);
        let present = |engine: &mut Engine| {
            let keys = self.keys.iter().map(|key| common::query(KeyRange::Single(Key::from(key.as_str()))));
            let answers =
                keys.map(|query| engine.range(&query).map(|answer| format!("{:?}", answer.kvs)).ok());
            answers.collect::<Vec<_>>()
        };
        let there = present(&mut self.engines[e]);
        for (here, there) in present(&mut fresh).into_iter().zip(there) {
            // A copy that was never sealed does not count at the standby.
            assert!(there.is_none() || here == there, "a copy of engine {e}: {here:?}, {there:?}");
        }
        let ceiling = Revision(self.engines[e].last_revision().get() + 4_096);
        for engine in [&mut *replica, &mut fresh] {
            publish(engine);
            while engine.gc(100) {}
            engine.promote(ceiling, MonoMillis(500)).expect("no clock is off");
            publish(engine);
            while engine.gc(100) {}
            engine.validate();
        }
        let floor = self.engines[e].floor();
        let events = self.reference.events.iter().map(|event| event.at);
        let revisions: Vec<Revision> =
            events.flat_map(|at| [at.prev(), at]).chain([floor]).filter(|at| *at > Revision::ZERO).collect();
        let leases: Vec<LeaseId> = self.leases.iter().map(|lease| lease.id).collect();
        assert_eq!(replica.leases(), fresh.leases());
        let (here, there) =
            (shown(&mut replica, &revisions, &leases), shown(&mut fresh, &revisions, &leases));
        for (at, (here, there)) in here.iter().zip(&there).enumerate() {
            // The engine itself may know an empty Kind that a copy does not have.
            let mut as_itself = || shown(&mut self.engines[e], &revisions, &leases).get(at) == Some(here);
            assert!(here == there || as_itself(), "the standby of engine {e}: {here}, not {there}");
        }
        assert_eq!(here.len(), there.len());
    }
}

impl Standby {
    fn take(&mut self, logged: Logged) {
        match &mut self.stage {
            Stage::Copying(_, recovered) => recovered.push(logged),
            Stage::Follows(replica) => {
                replica.replicate(MonoMillis(0), logged).expect("no clock is off");
            }
        }
    }
}
