//! The logs of a shard with a data directory, while it runs.

use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use kindred_engine::{
    durability::{Applied, KindGap, Logged, Mark},
    engine::Engine,
};
use kindred_partition_config::ids::Revision;
use kindred_wal::{
    Batch, DirectoryLock, Disk, Event, FailureReason, FrameSeq, GapRecord, Layout, Log, LogKind, LogPlaces,
    Record, TooLarge, Workers,
};
use tokio::{sync::Notify, time::Instant};

use super::{
    ceiling::{self, CeilingKeeper},
    checkpoint::Checkpoints,
    failpoint::{Point, Side, around, reach},
    record,
    reserve::Reserve,
    status::{DurabilityStatus, LogReport},
    stopped,
    times::SyncTimes,
};
use crate::{
    core::{Core, Disk as DiskState, LogState},
    metrics::{Label, LogMetrics},
    standby::shipping::Shipping,
};

/// How long a clean stop waits for the disk.
const CLOSE_MAX: Duration = Duration::from_secs(10);
/// The time in which a clean stop must have written the Kinds of mode `none`; after it they are not kept, so that a
/// stop does not take too long.
const UNKEPT_MAX: Duration = Duration::from_secs(5);
/// Approximate keys and bytes of one batch of these.
const UNKEPT_KEYS: usize = 1024;
const UNKEPT_BYTES: usize = 1 << 20;
/// The interval of looks at a released reserve, which is restored by a job that tells nobody.
const RESERVE_INTERVAL: Duration = Duration::from_millis(500);

/// State that a log's thread reports to the loop.
#[derive(Debug, Default)]
pub struct Signals {
    /// The position up to which the kernel has the log, so that it outlives this process.
    written: AtomicU64,
    durable: AtomicU64,
    failing: AtomicBool,
    /// Whether it fails for lack of room.
    full: AtomicBool,
    times: SyncTimes,
}

/// The callback for a log's events, and the signals that it sets.
pub(super) fn events(
    kind: LogKind,
    label: &Label,
    changed: Arc<Notify>,
) -> (Arc<Signals>, impl FnMut(Event) + Send + use<>) {
    let signals = Arc::new(Signals::default());
    let (told, metrics) = (signals.clone(), LogMetrics::new(kind, label));
    let tell = move |event| {
        match event {
            Event::Written { seq } => {
                told.written.fetch_max(seq.0, Ordering::AcqRel);
            }
            Event::Durable { seq, bytes, took } => {
                told.written.fetch_max(seq.0, Ordering::AcqRel);
                told.durable.fetch_max(seq.0, Ordering::AcqRel);
                told.times.note(took);
                metrics.synced(bytes, took);
            }
            Event::Failing(failure) => {
                told.full.store(failure.reason == FailureReason::NoSpace, Ordering::Release);
                told.failing.store(true, Ordering::Release);
                metrics.failing(true);
                tracing::error!(log = %kind, reason = failure.reason.name(), %failure, "the log cannot be written; writes are refused until it can");
            }
            Event::Recovered => {
                told.full.store(false, Ordering::Release);
                told.failing.store(false, Ordering::Release);
                metrics.failing(false);
                tracing::info!(log = %kind, "the log can be written again");
            }
        }
        changed.notify_one();
    };
    (signals, tell)
}

/// An open log and its progress.
#[derive(Debug)]
pub(super) struct OpenLog {
    pub(super) log: Log,
    pub(super) signals: Arc<Signals>,
    /// The last frame appended.
    pub(super) position: FrameSeq,
    /// A batch was too large to be written, and will never be on disk.
    broken: bool,
}

impl OpenLog {
    pub(super) fn new(log: Log, signals: Arc<Signals>) -> Self {
        let position = log.next().prev();
        signals.written.fetch_max(log.written().0, Ordering::AcqRel);
        signals.durable.fetch_max(log.durable().0, Ordering::AcqRel);
        let failing = log.status().failing;
        let full = failing.as_ref().is_some_and(|failure| failure.reason == FailureReason::NoSpace);
        signals.full.store(full, Ordering::Release);
        signals.failing.store(failing.is_some(), Ordering::Release);
        Self { log, signals, position, broken: false }
    }

    pub(super) fn durable(&self) -> u64 {
        self.signals.durable.load(Ordering::Acquire)
    }

    fn written(&self) -> u64 {
        self.signals.written.load(Ordering::Acquire)
    }

    /// The position after the last append.
    fn position(&self) -> u64 {
        // A batch that could not be appended is never written.
        if self.broken { u64::MAX } else { self.position.0 }
    }

    pub(super) fn append(&mut self, batch: Batch) {
        match self.log.append(batch) {
            Ok(seq) => self.position = seq,
            Err(error) => self.too_large(&error),
        }
    }

    /// Marks the log as broken: nothing that follows may be acknowledged either.
    fn too_large(&mut self, error: &TooLarge) {
        tracing::error!(%error, "writes are refused from now on; restart with a smaller --max-request-bytes");
        self.broken = true;
    }

    fn state(&self) -> LogState {
        if self.broken || self.signals.failing.load(Ordering::Acquire) {
            LogState::Failing
        } else if self.log.has_room() {
            LogState::Takes
        } else {
            LogState::Full
        }
    }

    fn is_flushed(&self) -> bool {
        let flushed = !self.broken && self.durable() >= self.position.0;
        if !flushed {
            self.log.flush();
        }
        flushed
    }

    fn report(&self) -> LogReport {
        let status = self.log.status();
        LogReport {
            pending_bytes: status.pending_bytes,
            pending_ms: u64::try_from(status.pending_for.as_millis()).unwrap_or(u64::MAX),
            written_bytes: status.written_bytes,
            wal_bytes: 0,
            sync_p99_micros: self.signals.times.p99_micros(),
            failing: status.failing.map(|failure| failure.to_string()),
        }
    }
}

/// The positions up to which both logs are on disk.
pub(super) fn durable(fsync: &Signals, buffered: &Signals) -> LogPlaces {
    let [fsync, buffered] =
        [fsync, buffered].map(|signals| FrameSeq(signals.durable.load(Ordering::Acquire)));
    LogPlaces { fsync, buffered }
}

/// Tells whether a log cannot be written because the disk is full.
pub(super) fn full(fsync: Arc<Signals>, buffered: Arc<Signals>) -> impl Fn() -> bool + Send {
    move || [&fsync, &buffered].iter().any(|signals| signals.full.load(Ordering::Acquire))
}

/// Encodes records as one batch, which is one frame.
pub(super) fn batch(records: &[Logged]) -> Batch {
    let mut batch = Batch::with_capacity(records.iter().map(room).sum());
    records.iter().for_each(|logged| push(&mut batch, logged));
    batch
}

/// The approximate encoded size of a record, close where records are many or long.
pub(crate) fn room(logged: &Logged) -> usize {
    const BESIDES: usize = 32;
    match logged {
        Logged::Version(version) => BESIDES + version.encoded_len(),
        _ => BESIDES,
    }
}

/// Encodes a record of the engine.
pub(crate) fn push(batch: &mut Batch, logged: &Logged) {
    match logged {
        Logged::Version(version) => record::push_version(batch, version),
        Logged::Lease(lease) => batch.push(&Record::Lease(&record::lease(lease))),
        Logged::Compaction(at) => batch.push(&Record::Compaction(*at)),
        Logged::Modes(modes) => batch.push(&Record::Modes(&record::modes(modes))),
        Logged::Gap(found) => {
            let KindGap { kind, gap } = &**found;
            batch.push(&Record::Gap(GapRecord { after: gap.after, until: gap.until, kind }));
        }
        Logged::Units(units) => batch.push(&Record::Unit(&record::units(units))),
        Logged::Imported(imported) => batch.push(&Record::Import(&record::import(imported))),
    }
}

/// A batch of the fsync log whose changes are not visible yet.
#[derive(Debug)]
pub(super) struct Unpublished {
    /// Its position in the log.
    position: u64,
    /// Its position among what is shipped to standbys.
    shipped: u64,
    /// What becomes visible.
    mark: Mark,
}

/// The logs of a shard with a data directory.
#[derive(Debug)]
pub struct DiskLogs {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) layout: Layout,
    pub(super) fsync: OpenLog,
    pub(super) buffered: OpenLog,
    pub(super) changed: Arc<Notify>,
    /// What of the fsync log is not published yet.
    pub(super) marks: VecDeque<Unpublished>,
    /// The position at which the fsync log has the gaps that the start found (R10). Until that is on disk, the buffered
    /// log must hold nothing that claims, or seems to claim, that everything before is there.
    pub(super) first: FrameSeq,
    /// Keeps the clock's file.
    pub(super) ceiling: CeilingKeeper,
    /// Dense revisions need no ceiling: whatever was shown is on disk.
    pub(super) dense: bool,
    pub(super) promised: Revision,
    pub(super) checkpoints: Checkpoints,
    pub(super) reserve: Arc<Reserve>,
    pub(super) workers: Workers,
    /// Held as long as anything is written.
    pub(super) _lock: Option<DirectoryLock>,
}

impl DiskLogs {
    pub(super) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Hands over the records of the start, the first that the logs get.
    pub(super) fn begin(&mut self, engine: &mut Engine) {
        self.first = self.fsync.log.next();
        self.append(engine.take_applied(), 0);
        self.first = self.fsync.position;
    }

    /// Whether the fsync log is on disk, or the disk refuses it; `None` while neither is known.
    pub(super) fn has_first(&self) -> Option<bool> {
        if self.fsync.durable() >= self.fsync.position.0 {
            return Some(true);
        }
        self.fsync.log.status().failing.map(|_| false)
    }

    fn has_begun(&self) -> bool {
        self.fsync.durable() >= self.first.0
    }

    pub(super) fn append(&mut self, applied: Applied, shipped: u64) {
        let something = !(applied.fsync.is_empty() && applied.buffered.is_empty());
        if something {
            reach(Point::LoopAppend, Side::Before);
        }
        if !applied.fsync.is_empty() {
            self.fsync.append(batch(&applied.fsync));
            // A batch that could not be appended is never published.
            let position = self.fsync.position();
            self.marks.push_back(Unpublished { position, shipped, mark: applied.mark });
        }
        let promises = applied.promise > self.promised && !self.buffered.broken && self.has_begun();
        if promises {
            // What is shown up to this revision is in the logs or not kept at all, so a promise leaves the smallest gap
            // (R10).
            self.promised = applied.promise;
        }
        if !applied.buffered.is_empty() {
            let mut records = batch(&applied.buffered);
            if promises {
                // In the same frame as what it covers: acknowledged writes are then also known to be complete.
                records.push(&Record::Promise(applied.promise));
            }
            around(Point::LoopAppendBuffered, || self.buffered.append(records));
        } else if promises {
            self.buffered.log.promise(applied.promise);
        }
        if something {
            reach(Point::LoopAppend, Side::After);
        }
    }

    pub(super) fn position_buffered(&self) -> u64 {
        self.buffered.position()
    }

    pub(super) fn written(&self) -> u64 {
        self.buffered.written()
    }

    pub(super) fn position(&self) -> u64 {
        self.fsync.position()
    }

    pub(super) fn durable(&self) -> u64 {
        self.marks
            .front()
            .map_or_else(|| self.fsync.durable(), |waits| self.fsync.durable().min(waits.position - 1))
    }

    pub(super) fn is_flushed(&self) -> bool {
        // Without short circuit, so that both logs hurry.
        self.fsync.is_flushed() & self.buffered.is_flushed() && self.marks.is_empty()
    }

    pub(super) fn settle(&mut self, core: &mut Core, shipping: &mut Shipping) {
        let (durable, received) = (self.fsync.durable(), shipping.received());
        let mut published = None;
        let done = |waits: &mut Unpublished| waits.position <= durable && waits.shipped <= received;
        while let Some(Unpublished { mark, .. }) = self.marks.pop_front_if(done) {
            published = Some(mark);
        }
        if let Some(mark) = published {
            around(Point::LoopPublish, || core.engine.publish_fsync(mark));
        }
        let covered = !self.checkpoints.is_damaged();
        let buffered = if self.has_begun() { self.buffered.state() } else { LogState::Failing };
        core.disk = match self.reserve.is_released() {
            // Clients' writes would only use up the room that is left for a checkpoint.
            true => DiskState { buffered: LogState::Failing, fsync: LogState::Failing, covered },
            false => DiskState { buffered, fsync: self.fsync.state(), covered },
        };
        if !self.dense {
            let keeper = &mut self.ceiling;
            let ceiling = keeper.ceiling();
            core.engine.set_ceiling(shipping.ceiling(ceiling));
            let (now, last) = (core.clock.wall(), core.engine.last_revision());
            if let Some(replica) = &core.replica {
                keeper.ask(replica.ceiling);
            } else if core.clock.is_confirmed()
                && let Some(wanted) = ceiling::wanted(now, last, ceiling, keeper.last_took())
            {
                keeper.ask(wanted);
            }
        }
    }

    /// Whether everything is on disk and published, and the ceiling on disk is above this one; if not, hurries that.
    pub(super) fn is_whole_above(&mut self, ceiling: Revision) -> bool {
        self.ask_ceiling(Some(ceiling));
        self.is_flushed() && self.ceiling.ceiling() > ceiling
    }

    /// Tells whether a log cannot be written because the disk is full.
    pub(super) fn full(&self) -> impl Fn() -> bool + Send + use<> {
        full(self.fsync.signals.clone(), self.buffered.signals.clone())
    }

    pub(super) fn ask_ceiling(&mut self, to: Option<Revision>) {
        if let Some(to) = to.filter(|_| !self.dense) {
            self.ceiling.ask(ceiling::above(to));
        }
    }

    pub(super) fn is_failing(&self) -> bool {
        [&self.fsync, &self.buffered].iter().any(|log| log.state() == LogState::Failing)
    }

    /// The next positions of both logs.
    pub(super) fn next(&self) -> LogPlaces {
        LogPlaces { fsync: self.fsync.log.next(), buffered: self.buffered.log.next() }
    }

    pub(super) fn checkpoint_slice(&mut self, core: &mut Core) {
        let mut checkpoints = std::mem::take(&mut self.checkpoints);
        checkpoints.slice(self, core);
        self.checkpoints = checkpoints;
    }

    pub(super) fn has_checkpoint_work(&self) -> bool {
        self.checkpoints.has_work()
    }

    pub(super) fn checkpoint_is_urgent(&self) -> bool {
        self.checkpoints.is_urgent()
    }

    pub(super) fn next_timer(&self, core: &Core) -> Option<Instant> {
        let now = core.clock.now();
        // A standby follows its primary's ceiling, and hears of each.
        let ceiling = (!self.dense && core.replica.is_none()).then(|| {
            now + ceiling::look_in(core.clock.wall(), self.ceiling.ceiling(), self.ceiling.last_took())
        });
        let reserve = self.reserve.is_released().then(|| now + RESERVE_INTERVAL);
        [ceiling, reserve, self.checkpoints.next_timer()].into_iter().flatten().min()
    }

    pub(super) fn report(&mut self, core: &Core) -> DurabilityStatus {
        self.ceiling.note(durable(&self.fsync.signals, &self.buffered.signals));
        if !self.checkpoints.is_running() {
            self.reserve.restore_soon(&self.workers);
        }
        let mut logs = [(LogKind::Fsync, self.fsync.report()), (LogKind::Buffered, self.buffered.report())];
        self.checkpoints.measure(
            &*self.disk,
            &self.layout,
            logs.iter().map(|(_, log)| log.written_bytes).sum(),
        );
        for (kind, log) in &mut logs {
            log.wal_bytes = self.checkpoints.log_bytes(*kind);
        }
        let status = DurabilityStatus::new(core.engine.modes(), logs, self.checkpoints.last());
        LogMetrics::report(&status, &core.label);
        status
    }

    /// Stops cleanly: writes everything, then the marks that nothing is missing, then lowers the ceiling to the last
    /// promise.
    pub(super) async fn close(mut self: Box<Self>, core: &mut Core) {
        let last = self.mark_clean(core);
        let (disk, path) = (self.disk.clone(), self.layout.stopped());
        match tokio::task::spawn_blocking(move || self.close_files(last)).await {
            // After the logs, so that they are closed whatever becomes of it.
            Ok((true, _lock)) => around(Point::StopUnkept, || keep_unkept(&*disk, &path, last, core)),
            Ok((false, _lock)) => {}
            Err(_) => tracing::error!("the logs were not closed; the next start is one after a crash"),
        }
    }

    /// As [`Self::close`], with driven jobs.
    pub(super) fn close_driven(mut self: Box<Self>, core: &mut Core) {
        let last = self.mark_clean(core);
        let (disk, path) = (self.disk.clone(), self.layout.stopped());
        if self.close_files(last).0 {
            keep_unkept(&*disk, &path, last, core);
        }
    }

    /// Appends what is left, and to each log the mark that nothing is missing. Returns the last revision.
    fn mark_clean(&mut self, core: &mut Core) -> Revision {
        self.append(core.engine.take_applied(), 0);
        let last = core.engine.last_revision();
        around(Point::StopMark, || {
            for log in [&mut self.fsync, &mut self.buffered] {
                let mut clean = Batch::new();
                clean.push(&Record::Clean(last));
                log.append(clean);
            }
        });
        last
    }

    /// Closes the files. Returns whether the next start will find a clean stop, and the lock, which the rest of the
    /// stop needs.
    fn close_files(self: Box<Self>, last: Revision) -> (bool, Option<DirectoryLock>) {
        let Self { fsync, buffered, ceiling, dense, _lock: lock, .. } = *self;
        let mut clean = true;
        for (kind, open) in [(LogKind::Buffered, buffered), (LogKind::Fsync, fsync)] {
            clean &= !open.broken;
            if let Err(error) = around(Point::StopClose, || open.log.close(CLOSE_MAX)) {
                tracing::error!(log = %kind, %error, "not everything was written; the next start is one after a crash");
                clean = false;
            }
        }
        let last = if dense { Revision::ZERO } else { last };
        if let Err(error) = around(Point::StopCeiling, || ceiling.stop(clean.then_some(last))) {
            tracing::warn!(%error, "the clock's ceiling was not lowered; the next start is one after a crash");
            clean = false;
        }
        (clean, lock)
    }
}

/// Writes the Kinds that no log keeps, so that a clean stop loses nothing.
fn keep_unkept(disk: &dyn Disk, path: &Path, last: Revision, core: &mut Core) {
    let clock = core.clock.clone();
    let began = clock.now();
    let took = move || clock.now().duration_since(began);
    let (mut walk, mut more) = (core.engine.unkept_begin(), true);
    let engine = &mut core.engine;
    let mut next = || {
        while more {
            let mut slice = Batch::new();
            more = engine
                .checkpoint_next(&mut walk, UNKEPT_KEYS, UNKEPT_BYTES, |logged| push(&mut slice, &logged));
            if !slice.is_empty() {
                return Some(slice);
            }
        }
        None
    };
    let mut first = next();
    let empty = first.is_none();
    let written =
        stopped::write(disk, path, last, || first.take().or_else(&mut next), || took() < UNKEPT_MAX);
    match written {
        Ok(Some(bytes)) if !empty => {
            tracing::info!(bytes, took = ?took(), "the Kinds of mode none are kept over this stop");
        }
        Ok(Some(_)) => {}
        Ok(None) => {
            tracing::warn!(
                "the Kinds of mode none are not kept: writing them takes longer than {UNKEPT_MAX:?}"
            );
        }
        Err(error) => tracing::warn!(%error, "the Kinds of mode none are not kept"),
    }
}
