//! The core of a shard for tests, without I/O and with a clock that the test moves.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kindred_engine::{
    engine::{Engine, EngineConfig, RevisionMode},
    trust::ClockTrust,
};
use kindred_partition_config::{ids::Slot, kind::KindScheme};

use super::{Core, CoreSettings, Sizes};
use crate::{
    clock::{Clock, WallClock},
    metrics::Label,
};

fn slot() -> Slot {
    Slot::new(5).expect("a slot")
}

/// A configuration of an engine.
pub(crate) fn config() -> EngineConfig {
    EngineConfig {
        revisions: RevisionMode::Hlc(slot()),
        kinds: KindScheme::default(),
        max_clock_offset_micros: 10_000_000,
        min_lease_ttl_s: 2,
    }
}

/// Settings that bound nothing.
pub(crate) fn settings() -> CoreSettings {
    CoreSettings {
        member_id: 1,
        slot: slot(),
        quota_bytes: 0,
        quotas: BTreeMap::new(),
        history_bytes_max: 0,
        kinds: KindScheme::default(),
        sizes: Sizes::default(),
        label: Label::default(),
    }
}

/// An empty core, both clocks of which show so many milliseconds since the test began.
pub(crate) fn core(settings: CoreSettings, millis: &Arc<AtomicU64>) -> Core {
    let (of_wall, of_mono) = (millis.clone(), millis.clone());
    let start: SystemTime = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let wall = WallClock::Other(Arc::new(move || start + Duration::from_millis(of_wall.load(Relaxed))));
    let mono = Arc::new(move || Duration::from_millis(of_mono.load(Relaxed)));
    let clock = Clock::simulated(wall, mono, ClockTrust::alone());
    Core::new(Engine::new(config(), clock.wall()), clock, settings)
}
