//! The logs of a shard with a data directory, while it runs.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use kindred_engine::{
    durability::{FsyncMark, KindGap, Logged},
    engine::Engine,
};
use kindred_partition_config::ids::Revision;
use kindred_wal::{
    Batch, DirectoryLock, Disk, Event, FrameSeq, GapRecord, Layout, Log, LogKind, LogPlaces, Record, TooLarge,
};
use tokio::{sync::Notify, time::Instant};

use super::{
    ceiling::{self, CeilingKeeper},
    checkpoint::Checkpoints,
    failpoint::{Point, Side, around, reach},
    record,
    status::{DurabilityStatus, LogReport},
    times::SyncTimes,
};
use crate::{
    core::{Core, Disk as DiskState, LogState},
    metrics::LogMetrics,
};

/// A clean stop waits so long for the disk.
const CLOSE_MAX: Duration = Duration::from_secs(10);
/// The ceiling is looked at so often at least.
const CEILING_INTERVAL: Duration = Duration::from_millis(500);

/// What the thread of a log tells the loop.
#[derive(Debug, Default)]
pub struct Signals {
    durable: AtomicU64,
    failing: AtomicBool,
    times: SyncTimes,
}

/// Makes the callback of a log.
pub(super) fn events(kind: LogKind, changed: Arc<Notify>) -> (Arc<Signals>, impl FnMut(Event) + Send) {
    let signals = Arc::new(Signals::default());
    let (told, metrics) = (signals.clone(), LogMetrics::new(kind));
    let tell = move |event| {
        match event {
            Event::Durable { seq, bytes, took } => {
                told.durable.store(seq.0, Ordering::Release);
                told.times.note(took);
                metrics.synced(bytes, took);
            }
            Event::Failing(failure) => {
                told.failing.store(true, Ordering::Release);
                metrics.failing(true);
                tracing::error!(log = %kind, reason = failure.reason.name(), %failure, "the log cannot be written; writes are refused until it can");
            }
            Event::Recovered => {
                told.failing.store(false, Ordering::Release);
                metrics.failing(false);
                tracing::info!(log = %kind, "the log can be written again");
            }
        }
        changed.notify_one();
    };
    (signals, tell)
}

/// An open log and how far it is.
#[derive(Debug)]
pub(super) struct OpenLog {
    pub(super) log: Log,
    pub(super) signals: Arc<Signals>,
    /// The last frame of ours.
    pub(super) position: FrameSeq,
    /// A batch was too large to be written: what it holds is never on disk.
    broken: bool,
}

impl OpenLog {
    pub(super) fn new(log: Log, signals: Arc<Signals>) -> Self {
        let position = log.next().prev();
        signals.durable.fetch_max(log.durable().0, Ordering::AcqRel);
        signals.failing.store(log.status().failing.is_some(), Ordering::Release);
        Self { log, signals, position, broken: false }
    }

    pub(super) fn durable(&self) -> u64 {
        self.signals.durable.load(Ordering::Acquire)
    }

    pub(super) fn append(&mut self, batch: Batch) {
        match self.log.append(batch) {
            Ok(seq) => self.position = seq,
            Err(error) => self.too_large(&error),
        }
    }

    /// Nothing that follows may be acknowledged either.
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
            sync_p99_micros: self.signals.times.p99_micros(),
            failing: status.failing.map(|failure| failure.to_string()),
        }
    }
}

/// Records as one batch: one frame.
pub(super) fn batch(records: &[Logged]) -> Batch {
    let mut batch = Batch::with_capacity(records.iter().map(room).sum());
    records.iter().for_each(|logged| push(&mut batch, logged));
    batch
}

/// About how many bytes a record takes, at least where there are many or long ones.
fn room(logged: &Logged) -> usize {
    const BESIDES: usize = 32;
    match logged {
        Logged::Version(version) => BESIDES + version.encoded().iter().map(|part| part.len()).sum::<usize>(),
        _ => BESIDES,
    }
}

/// Adds what the engine logs.
pub(super) fn push(batch: &mut Batch, logged: &Logged) {
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

/// The logs of a shard with a data directory.
#[derive(Debug)]
pub struct Kept {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) layout: Layout,
    pub(super) fsync: OpenLog,
    pub(super) buffered: OpenLog,
    pub(super) changed: Arc<Notify>,
    /// Positions that are not on disk yet, and what becomes visible with each.
    pub(super) marks: VecDeque<(u64, FsyncMark)>,
    /// Where the log of mode fsync has what the start found missing (R10). Before that is on disk nothing may be in the
    /// other log that says, or seems to say, that all before it is there.
    pub(super) first: FrameSeq,
    /// Dense revisions need none: all that was shown is on disk.
    pub(super) ceiling: Option<CeilingKeeper>,
    pub(super) promised: Revision,
    pub(super) checkpoints: Checkpoints,
    /// Held as long as anything is written.
    pub(super) _lock: Option<DirectoryLock>,
}

impl Kept {
    pub(super) fn changed(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// Hands over what the start found: the first thing that the logs get.
    pub(super) fn begin(&mut self, engine: &mut Engine) {
        self.first = self.fsync.log.next();
        self.append(engine);
        self.first = self.fsync.position;
    }

    fn has_begun(&self) -> bool {
        self.fsync.durable() >= self.first.0
    }

    pub(super) fn append(&mut self, engine: &mut Engine) {
        let applied = engine.take_applied();
        let something = !(applied.fsync.is_empty() && applied.buffered.is_empty());
        if something {
            reach(Point::LoopAppend, Side::Before);
        }
        if !applied.fsync.is_empty() {
            self.fsync.append(batch(&applied.fsync));
            self.marks.push_back((self.fsync.position.0, applied.mark));
        }
        if !applied.buffered.is_empty() {
            around(Point::LoopAppendBuffered, || self.buffered.append(batch(&applied.buffered)));
        }
        if something {
            reach(Point::LoopAppend, Side::After);
        }
        if applied.promise > self.promised && !self.buffered.broken && self.has_begun() {
            // What is shown is in the log, or never was: so a crash loses the fewest revisions (R10).
            self.promised = applied.promise;
            self.buffered.log.promise(applied.promise);
        }
    }

    pub(super) fn position(&self) -> u64 {
        // What could not even be appended is never durable.
        if self.fsync.broken { u64::MAX } else { self.fsync.position.0 }
    }

    pub(super) fn durable(&self) -> u64 {
        self.marks
            .front()
            .map_or_else(|| self.fsync.durable(), |(waits, _)| self.fsync.durable().min(waits - 1))
    }

    pub(super) fn is_flushed(&self) -> bool {
        // Both, so that both hurry.
        self.fsync.is_flushed() & self.buffered.is_flushed() && self.marks.is_empty()
    }

    pub(super) fn settle(&mut self, core: &mut Core) {
        let durable = self.fsync.durable();
        let mut published = None;
        while let Some((_, mark)) = self.marks.pop_front_if(|(position, _)| *position <= durable) {
            published = Some(mark);
        }
        if let Some(mark) = published {
            around(Point::LoopPublish, || core.engine.publish_fsync(mark));
        }
        let buffered = if self.has_begun() { self.buffered.state() } else { LogState::Failing };
        core.disk = DiskState { buffered, fsync: self.fsync.state() };
        if let Some(keeper) = &mut self.ceiling {
            let ceiling = keeper.ceiling();
            core.engine.set_ceiling(ceiling);
            let (now, last) = (core.clock.wall(), core.engine.last_revision());
            if core.clock.is_confirmed()
                && let Some(wanted) = ceiling::wanted(now, last, ceiling, keeper.last_took())
            {
                keeper.ask(wanted);
            }
        }
    }

    pub(super) fn ask_ceiling(&mut self, to: Option<Revision>) {
        if let (Some(keeper), Some(to)) = (&mut self.ceiling, to) {
            keeper.ask(ceiling::above(to));
        }
    }

    /// Where both logs stand now.
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

    pub(super) fn next_timer(&self) -> Option<Instant> {
        let ceiling = self.ceiling.as_ref().map(|_| Instant::now() + CEILING_INTERVAL);
        [ceiling, self.checkpoints.next_timer()].into_iter().flatten().min()
    }

    pub(super) fn report(&mut self, core: &Core) -> DurabilityStatus {
        let logs = [(LogKind::Fsync, self.fsync.report()), (LogKind::Buffered, self.buffered.report())];
        self.checkpoints.measure(
            &*self.disk,
            &self.layout,
            logs.iter().map(|(_, log)| log.written_bytes).sum(),
        );
        let status = DurabilityStatus::new(core.engine.modes(), logs, &self.checkpoints);
        LogMetrics::report(&status);
        status
    }

    /// Everything is written, then that nothing is missing; then the ceiling is lowered to what was promised last.
    pub(super) async fn close(mut self: Box<Self>, core: &mut Core) {
        self.append(&mut core.engine);
        let last = core.engine.last_revision();
        around(Point::StopMark, || {
            for log in [&mut self.fsync, &mut self.buffered] {
                let mut clean = Batch::new();
                clean.push(&Record::Clean(last));
                log.append(clean);
            }
        });
        let closed = tokio::task::spawn_blocking(move || self.close_files(last)).await;
        if closed.is_err() {
            tracing::error!("the logs were not closed; the next start is one after a crash");
        }
    }

    fn close_files(self: Box<Self>, last: Revision) {
        let Self { fsync, buffered, ceiling, _lock, .. } = *self;
        let mut clean = true;
        for (kind, open) in [(LogKind::Buffered, buffered), (LogKind::Fsync, fsync)] {
            clean &= !open.broken;
            if let Err(error) = around(Point::StopClose, || open.log.close(CLOSE_MAX)) {
                tracing::error!(log = %kind, %error, "not everything was written; the next start is one after a crash");
                clean = false;
            }
        }
        if let Some(keeper) = ceiling
            && let Err(error) = around(Point::StopCeiling, || keeper.stop(clean.then_some(last)))
        {
            tracing::warn!(%error, "the clock's ceiling was not lowered; the next start is one after a crash");
        }
    }
}
