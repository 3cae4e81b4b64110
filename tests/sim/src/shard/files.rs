//! The files of a shard on a simulated disk, and what the end of a process, a machine or a disk leaves of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kindred_engine::engine::EngineConfig;
use kindred_partition_config::model::Durability;
use kindred_shard::clock::Clock;
use kindred_shard::config::durability::DurabilitySettings;
use kindred_shard::core::{Core, CoreSettings};
use kindred_shard::durability::Logs;
use kindred_shard::durability::start::open_driven;
use kindred_wal::sim::{Faults, SimDisk};
use kindred_wal::{Disk as _, Driven, Layout, Workers};

use crate::sabotage::Sabotage;
use crate::topology::{KINDS, Topology};
use crate::world::{MS, Micros, SECOND, World};

/// The mode of each Kind, the same at every store with files.
pub type Modes = [Durability; KINDS];

/// How a process ends. Later variants lose more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// By request: it writes everything.
    Clean,
    /// By a kill: the kernel has what was written.
    Killed,
    /// By a power loss: what was not synced is lost.
    PowerLoss,
    /// With its disk: an empty one takes its place.
    DiskLost,
}

pub struct Files {
    disk: RefCell<SimDisk>,
    /// The mode of each Kind.
    pub modes: Modes,
    /// The longest time that a step of the disk takes.
    slow: Micros,
    /// The time until which the disk fails, or its logs wait after an error.
    sick_until: Cell<Micros>,
}

/// The longest time after which a log tries again.
const TRIES_AGAIN: Micros = 2 * SECOND;

fn new_disk(world: &World) -> SimDisk {
    let disk = SimDisk::new(world.below(u64::MAX));
    disk.create_directory(Path::new("data")).expect("an empty disk has no faults");
    disk
}

impl Files {
    /// An empty disk of random speed.
    pub fn new(world: &World, modes: Modes) -> Self {
        let slow = *world.pick(&[MS / 5, 2 * MS, 2 * MS, 50 * MS]);
        Self { disk: RefCell::new(new_disk(world)), modes, slow, sick_until: Cell::new(0) }
    }

    /// How long the next step of the disk takes.
    pub fn delay(&self, world: &World) -> Micros {
        world.between(20, self.slow)
    }

    /// Starts a shard on what the disk has.
    pub fn open(
        &self,
        topology: &Topology,
        jobs: &Driven,
        config: EngineConfig,
        clock: Clock,
        settings: CoreSettings,
        sabotage: Option<Sabotage>,
    ) -> (Core, Logs) {
        let weak = sabotage == Some(Sabotage::WeakModes);
        let mode = |mode| if weak && mode == Durability::Fsync { Durability::Buffered } else { mode };
        let of = (0..KINDS).map(|kind| (topology.kind(kind).clone(), mode(self.modes[kind])));
        let durability = DurabilitySettings {
            default: Durability::Fsync,
            of: of.collect(),
            flush_interval: Duration::from_millis(5),
            checkpoint_bytes: 4_000,
            segment_bytes: Some(2_000),
            accept_data_loss: false,
            reserve_bytes: 1_000,
            quotas: BTreeMap::new(),
        };
        let disk = Arc::new(self.disk.borrow().clone());
        let workers = Workers::Driven(jobs.clone());
        let opened =
            open_driven(disk, Layout::new(Path::new("data")), workers, config, clock, settings, &durability);
        opened.expect("a shard starts on what its last incarnation left")
    }

    /// Breaks the disk until it is healed: a sync fails, it is full, or nothing can be changed.
    pub fn some_fault(&self, world: &World, how_long: Micros) -> Faults {
        self.sick_until.set(self.sick_until.get().max(world.now() + how_long + TRIES_AGAIN));
        let mut faults = Faults::default();
        match world.below(6) {
            0..=2 => faults.fail_sync_in = Some(world.below(3)),
            3..=4 => faults.space_left = Some(world.below(8_000)),
            _ => faults.read_only = true,
        }
        self.disk.borrow().set_faults(faults);
        faults
    }

    /// Makes the disk stop in the middle of a change soon.
    pub fn stop_soon(&self, world: &World) {
        self.sick_until.set(self.sick_until.get().max(world.now() + TRIES_AGAIN));
        let stop_in = Some(world.below(12));
        self.disk.borrow().set_faults(Faults { stop_in, ..Faults::default() });
    }

    /// Heals the disk. A disk that has stopped stays so until its machine starts again.
    pub fn heal(&self) {
        self.disk.borrow().set_faults(Faults::default());
    }

    /// Whether the disk fails, or failed a moment ago.
    pub fn is_sick(&self, now: Micros) -> bool {
        self.disk.borrow().stopped() || self.sick_until.get() > now
    }

    /// Leaves on the disk what outlives this end.
    pub fn end(&self, world: &World, how: End) {
        self.sick_until.set(0);
        match how {
            End::Clean | End::Killed => self.disk.borrow().kill(),
            End::PowerLoss => self.disk.borrow().crash(),
            End::DiskLost => drop(self.disk.replace(new_disk(world))),
        }
    }
}
