//! Starts a shard with a data directory: reads the files, recovers the engine, and serves nothing before the records of
//! this start are on disk.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use kindred_engine::{
    durability::{KindModes, ModesTaken},
    engine::{Engine, EngineConfig, RevisionMode},
    recover as engine_recover,
};
use kindred_partition_config::ids::{Revision, Slot};
use kindred_transport::{private, random::bits as random};
use kindred_wal::{
    ClockFile, DirectoryLock, Disk, FrameSeq, Layout, Log, LogEnd, LogKind, LogOptions, LogPlaces, OnDamage,
    RealDisk, Recovered, WalError, Workers, recover, segments,
};
use tokio::sync::Notify;

use super::{
    Logs,
    ceiling::{self, CeilingKeeper},
    checkpoint::Checkpoints,
    clock_file,
    disk_logs::{DiskLogs, OpenLog, durable, events},
    failpoint::{self, Point, Side, around, reach},
    recovery::{Gathered, Start},
    reserve::Reserve,
};
use crate::{
    clock::Clock,
    config::durability::DurabilitySettings,
    core::{Core, CoreSettings, Replica},
    identity::Identity,
    metrics::Label,
    starting::Starting,
};

/// How long the start waits for its records to be on disk. If the disk refuses them, only reads are served.
const FIRST_SYNC_MAX: Duration = Duration::from_secs(30);

/// A data directory, locked against other processes while this is held.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    lock: DirectoryLock,
}

impl Directory {
    /// Creates the directory if needed, and locks it.
    ///
    /// # Errors
    /// When it cannot be used, or another process uses it.
    pub fn take(path: &Path) -> anyhow::Result<Self> {
        // In an existing folder only the names that this and earlier versions create are expected.
        private::take(path, &["identity.json", "wal"])
            .with_context(|| format!("--data-dir: cannot make {}", path.display()))?;
        let lock = DirectoryLock::take(path).with_context(|| format!("--data-dir {}", path.display()))?;
        Ok(Self { path: path.to_owned(), lock })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The identity of the store in a directory, with this start counted; a new one for a new store.
///
/// # Errors
/// When the directory cannot be used, or its contents are damaged and that is not accepted.
pub fn identity(
    directory: &Directory,
    (name, slot): (&str, Slot),
    dense: bool,
    settings: &DurabilitySettings,
) -> anyhow::Result<Identity> {
    let path = directory.path();
    let known = Identity::read(path)?;
    // Before anything is changed: another store's directory is left as it is.
    known.as_ref().map_or(Ok(()), |known| known.check(path, name, slot))?;
    let beside = clock_file::Beside { dense, identity: known.is_some() };
    let layout = Layout::new(path);
    let disk = failpoint::watched(Arc::new(RealDisk), &layout);
    let incarnation = clock_file::begin(&*disk, &layout, beside, on_damage(settings), known.as_ref())
        .with_context(|| format!("--data-dir {}", path.display()))?;
    match known {
        // Only the clock's file is written, in place: a full disk prevents no start.
        Some(known) if known.is_named() => Ok(Identity { incarnation, ..known }),
        Some(known) => {
            let named = Identity { incarnation, ..known }.named(name, slot);
            if let Err(error) = named.write(path) {
                tracing::warn!(%error, "name and slot are not kept yet: tried again at the next start");
            }
            Ok(named)
        }
        None => {
            let new = Identity { incarnation, ..Identity::random() }.named(name, slot);
            new.write(path)?;
            Ok(new)
        }
    }
}

fn on_damage(settings: &DurabilitySettings) -> OnDamage {
    if settings.accept_data_loss { OnDamage::Accept } else { OnDamage::Refuse }
}

#[must_use]
pub fn modes(settings: &DurabilitySettings) -> KindModes {
    let kinds = settings.of.iter().map(|(kind, of)| (kind.as_key().clone(), *of));
    KindModes { generation: 0, default: settings.default, kinds: kinds.collect() }
}

/// The contents of a data directory.
struct Read {
    gathered: Gathered,
    recovered: Recovered,
    /// The clock's file, if it is whole, and its ceiling.
    clock: Option<(ClockFile, Revision)>,
}

fn read(
    disk: &dyn Disk,
    layout: &Layout,
    dense: bool,
    on_damage: OnDamage,
    mut gathered: Gathered,
) -> Result<Read, WalError> {
    let clock = clock_file::open(disk, layout, clock_file::Beside { dense, identity: false }, on_damage)?;
    let known = clock.as_ref().map_or(LogPlaces::NONE, |(file, _)| file.durable());
    let recovered = recover(disk, layout, known, on_damage, &mut gathered)?;
    Ok(Read { gathered, recovered, clock })
}

/// Logs what a crash or damage left out.
fn tell(recovered: &Recovered) {
    for end in [&recovered.fsync, &recovered.buffered] {
        if let Some(torn) = &end.torn {
            tracing::warn!("{torn}");
        }
    }
    for loss in &recovered.passed_over {
        tracing::warn!("a checkpoint was passed over, and not needed: {loss}");
    }
    for loss in &recovered.losses {
        tracing::error!("accepted: {loss}");
    }
}

/// Where the data of a start comes from.
#[derive(Debug)]
pub enum Origin {
    /// The files of the directory.
    Files(Starting),
    /// A primary has copied it to its standby. Nothing of it is on disk before the first checkpoint, which is due at once.
    Copy(Box<engine_recover::Recovered>),
    /// Another database, for a new store. Nothing of it is on disk before the first checkpoint.
    Import(Box<engine_recover::Recovered>),
}

/// Opens a data directory.
///
/// # Errors
/// When the directory cannot be used, or its contents are damaged and that is not accepted.
pub async fn open(
    directory: Directory,
    config: EngineConfig,
    clock: Clock,
    of_core: CoreSettings,
    settings: &DurabilitySettings,
    origin: Origin,
) -> anyhow::Result<(Core, Logs)> {
    let Directory { path, lock } = directory;
    let layout = Layout::new(&path);
    let disk = failpoint::watched(Arc::new(RealDisk), &layout);
    let opened = open_on(disk, layout, Some((lock, origin)), config, clock, of_core, settings).await;
    opened.with_context(|| format!("--data-dir {}", path.display()))
}

/// As [`open`], on any disk.
pub(super) async fn open_on(
    disk: Arc<dyn Disk>,
    layout: Layout,
    held: Option<(DirectoryLock, Origin)>,
    config: EngineConfig,
    clock: Clock,
    of_core: CoreSettings,
    settings: &DurabilitySettings,
) -> anyhow::Result<(Core, Logs)> {
    let on_damage = on_damage(settings);
    let workers = Workers::threads();
    let began = workers.elapsed();
    let (lock, origin) = held.unzip();
    let (starting, given) = match origin {
        Some(Origin::Files(starting)) => (starting, None),
        Some(given) => (Starting::default(), Some(given)),
        None => (Starting::default(), None),
    };
    let (of_read, at) = (disk.clone(), layout.clone());
    let dense = config.revisions == RevisionMode::Dense;
    let gathered = Gathered::telling(starting);
    let read = move || around(Point::StartRead, || read(&*of_read, &at, dense, on_damage, gathered));
    let mut found = tokio::task::spawn_blocking(read).await??;
    if given.is_some() {
        anyhow::ensure!(found.gathered.is_nothing(), "the directory of a new store is not empty");
    }
    match given {
        Some(Origin::Copy(copied)) => found.gathered.set_copied(*copied),
        Some(Origin::Import(imported)) => found.gathered.set_imported(*imported),
        _ => {}
    }
    let place = Place { disk, layout, lock, workers, began };
    let opening = Opening::begin(place, found, config, clock, of_core, settings)?;
    reach(Point::StartDurable, Side::Before);
    let on_disk = on_disk(&opening.logs).await;
    let opened = opening.finish(on_disk)?;
    reach(Point::StartDurable, Side::After);
    Ok(opened)
}

/// As [`open`], on any disk and with jobs that the caller takes through their steps, for simulations.
///
/// # Errors
/// As [`open`].
pub fn open_driven(
    disk: Arc<dyn Disk>,
    layout: Layout,
    workers: Workers,
    config: EngineConfig,
    clock: Clock,
    of_core: CoreSettings,
    settings: &DurabilitySettings,
) -> anyhow::Result<(Core, Logs)> {
    let dense = config.revisions == RevisionMode::Dense;
    let (began, gathered) = (workers.elapsed(), Gathered::telling(Starting::default()));
    let found = read(&*disk, &layout, dense, on_damage(settings), gathered)?;
    let place = Place { disk, layout, lock: None, workers, began };
    let opening = Opening::begin(place, found, config, clock, of_core, settings)?;
    loop {
        match opening.logs.has_first() {
            Some(on_disk) => return opening.finish(on_disk),
            None if opening.logs.workers.work() => {}
            None => return opening.finish(false),
        }
    }
}

/// The files of a shard, and the workers that write them.
struct Place {
    disk: Arc<dyn Disk>,
    layout: Layout,
    lock: Option<DirectoryLock>,
    workers: Workers,
    /// When the start began.
    began: Duration,
}

/// A shard whose files are read and whose logs are open; the records of this start may not be on disk yet.
struct Opening {
    engine: Engine,
    clock: Clock,
    of_core: CoreSettings,
    logs: DiskLogs,
    wanted: KindModes,
    taken: Option<ModesTaken>,
    found_nothing: bool,
    /// At a standby, the ceiling of its primary's clock.
    copied: Option<Revision>,
}

impl Opening {
    fn begin(
        place: Place,
        found: Read,
        config: EngineConfig,
        clock: Clock,
        of_core: CoreSettings,
        settings: &DurabilitySettings,
    ) -> anyhow::Result<Self> {
        let Place { disk, layout, lock, workers, began } = place;
        let Read { mut gathered, recovered, clock: clock_file } = found;
        let dense = config.revisions == RevisionMode::Dense;
        tell(&recovered);
        let ceiling = clock_file.as_ref().map_or(Revision::ZERO, |(_, ceiling)| *ceiling);
        let (wanted, copied) = (modes(settings), gathered.copied());
        let start = Start { ceiling: (!dense).then_some(ceiling), lost: !recovered.losses.is_empty() };
        if gathered.is_clean(&start) {
            gathered.take_unkept(&*disk, &layout.stopped());
        }
        let found_nothing = gathered.is_nothing();
        let (versions, clean) = (gathered.versions(), gathered.is_clean(&start));
        let mut engine = around(Point::StartEngine, || gathered.into_engine(config, &clock, &start))?;
        if !found_nothing {
            let took = workers.elapsed() - began;
            tracing::info!(versions, clean, ?took, "the data directory is read");
        }
        // A shard of a cluster that finds no data begins when its clock is confirmed (R3).
        let waits = found_nothing && !clock.is_confirmed();
        if !waits {
            engine.log_changes();
        }
        let first = || match dense {
            true => clock_file.map_or_else(
                || ClockFile::create(&*disk, &layout.clock(), Revision::ZERO),
                |(file, _)| Ok(file),
            ),
            false => first_ceiling(&*disk, &layout, clock_file, &mut engine, &clock),
        };
        let clock_file = around(Point::StartCeiling, first)?;
        // A standby has its primary's.
        let taken = if copied.is_some() { None } else { set_modes(&mut engine, &wanted)? };
        let changed = Arc::new(Notify::new());
        let tail = LogKind::ALL.into_iter().map(|kind| log_bytes(&*disk, &layout, kind)).sum();
        let open =
            |kind, end| open_log(&workers, &disk, &layout, (kind, &of_core.label), end, settings, &changed);
        let logs = || {
            anyhow::Ok((open(LogKind::Fsync, recovered.fsync)?, open(LogKind::Buffered, recovered.buffered)?))
        };
        let (fsync, buffered) = around(Point::StartLogs, logs)?;
        // After the logs, which need room first.
        let reserve = Reserve::open(disk.clone(), &layout, settings.reserve_bytes);
        let signals = (fsync.signals.clone(), buffered.signals.clone());
        let durable = move || durable(&signals.0, &signals.1);
        let mut logs = DiskLogs {
            fsync,
            buffered,
            disk,
            layout,
            marks: std::collections::VecDeque::new(),
            ceiling: CeilingKeeper::start(&workers, clock_file, changed.clone(), Box::new(durable))?,
            dense,
            changed,
            first: FrameSeq(0),
            promised: Revision::ZERO,
            reserve,
            checkpoints: Checkpoints::new(settings.checkpoint_bytes, tail, start.lost || copied.is_some()),
            workers,
            _lock: lock,
        };
        around(Point::StartAppend, || logs.begin(&mut engine));
        engine.publish();
        Ok(Self { engine, clock, of_core, logs, wanted, taken, found_nothing, copied })
    }

    /// Ends the start, with the records on disk or refused by it.
    fn finish(self, on_disk: bool) -> anyhow::Result<(Core, Logs)> {
        let Self { mut engine, clock, of_core, logs, wanted, mut taken, found_nothing, copied } = self;
        if on_disk {
            // It has been read. Should it stay, its revision tells the next start that it is of an earlier stop.
            let _ = logs.disk.remove(&logs.layout.stopped());
            if taken == Some(ModesTaken::AfterLog) {
                taken = set_modes(&mut engine, &wanted)?;
            }
        } else {
            tracing::error!("the disk does not take the log: only reads are served until it does");
            engine.keep_modes();
        }
        let modes_wait = (taken == Some(ModesTaken::AfterCheckpoint)).then_some(0);
        let mut core = Core::new(engine, clock, of_core);
        (core.found_nothing, core.keeps, core.modes_wait) = (found_nothing, true, modes_wait);
        core.replica = copied.map(|ceiling| Replica { ceiling, modes: None, behind: false, served_to: None });
        Ok((core, Logs::OnDisk(Box::new(logs))))
    }
}

/// Waits until the fsync log is on disk; `false` when the disk refuses or takes too long.
async fn on_disk(logs: &DiskLogs) -> bool {
    let deadline = tokio::time::Instant::now() + FIRST_SYNC_MAX;
    loop {
        if let Some(on_disk) = logs.has_first() {
            return on_disk;
        }
        if tokio::time::timeout_at(deadline, logs.changed.notified()).await.is_err() {
            return false;
        }
    }
}

/// Sets the modes of the flags, unless routers have chosen others since.
fn set_modes(engine: &mut Engine, wanted: &KindModes) -> anyhow::Result<Option<ModesTaken>> {
    let known = engine.modes();
    if known.generation > 0 {
        tracing::info!(
            generation = known.generation,
            "the modes of the Kinds are those that routers chose last"
        );
        return Ok(None);
    }
    Ok(Some(engine.set_modes(wanted.clone()).context("--durability")?))
}

/// Stores a ceiling above everything that will be assigned first (R2). It also marks the last stop as over, so that it
/// is not taken for a clean stop again.
fn first_ceiling(
    disk: &dyn Disk,
    layout: &Layout,
    file: Option<(ClockFile, Revision)>,
    engine: &mut Engine,
    clock: &Clock,
) -> Result<ClockFile, WalError> {
    let in_force = file.as_ref().map_or(Revision::ZERO, |(_, ceiling)| *ceiling);
    let next = match clock.is_confirmed() {
        true => ceiling::first(clock.wall(), engine.last_revision(), in_force),
        // An unconfirmed clock does not count; the ceiling is raised once the clock is confirmed.
        false => ceiling::above(in_force),
    };
    let file = match file {
        Some((mut file, _)) => {
            file.store(next)?;
            file
        }
        None => ClockFile::create(disk, &layout.clock(), next)?,
    };
    engine.set_ceiling(next);
    Ok(file)
}

fn log_bytes(disk: &dyn Disk, layout: &Layout, kind: LogKind) -> u64 {
    let segments = segments(disk, &layout.log(kind), kind).unwrap_or_default();
    segments.iter().map(|segment| segment.bytes).sum()
}

fn open_log(
    workers: &Workers,
    disk: &Arc<dyn Disk>,
    layout: &Layout,
    (kind, label): (LogKind, &Label),
    end: LogEnd,
    settings: &DurabilitySettings,
    changed: &Arc<Notify>,
) -> Result<OpenLog, WalError> {
    let usual = LogOptions::new(kind, random());
    let segment_bytes = settings.segment_bytes.unwrap_or(usual.segment_bytes);
    let options = LogOptions { flush_interval: settings.flush_interval, segment_bytes, ..usual };
    let (signals, events) = events(kind, label, changed.clone());
    let log = Log::open_with(workers, disk.clone(), layout.log(kind), options, end, events)?;
    Ok(OpenLog::new(log, signals))
}
