//! A simulated shard's files, and the test's knowledge of them, from one crash to the next.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use kindred_partition_config::ids::Revision;
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};

use crate::{
    Batch, CheckpointWriter, ClockFile, Event, Frame, FrameSeq, Layout, LogEnd, LogKind, LogOptions,
    LogPlaces, OnDamage, Record, Recovery, Source, VersionRecord, VisitError,
    disk::Disk as _,
    log::prepare,
    recover,
    sim::{Faults, SimDisk},
    sweep,
    writer::{
        core::{Core, Step},
        executor::{Executor, ToSync},
    },
};

/// Counts of what happened in a run.
#[derive(Debug, Default)]
pub struct Counts {
    pub crashes: u64,
    pub torn: u64,
    pub failures: u64,
    pub recovered: u64,
    pub checkpoints: u64,
    pub swept: u64,
    pub frames: u64,
    pub checked: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.crashes += other.crashes;
        self.torn += other.torn;
        self.failures += other.failures;
        self.recovered += other.recovered;
        self.checkpoints += other.checkpoints;
        self.swept += other.swept;
        self.frames += other.frames;
        self.checked += other.checked;
    }
}

/// What the test knows about a log.
#[derive(Debug, Default, Clone)]
pub struct Known {
    /// Every appended frame that may still exist, from 1 on without holes.
    pub frames: BTreeMap<FrameSeq, Vec<u8>>,
    /// The last frame that must survive any crash.
    pub durable: FrameSeq0,
    /// The last frame that must survive a crash of the process alone.
    pub written: FrameSeq0,
}

/// A sequence number, or 0 for none.
pub type FrameSeq0 = u64;

pub struct Shard {
    pub disk: SimDisk,
    pub layout: Layout,
    pub known: BTreeMap<LogKind, Known>,
    random: SmallRng,
    now: Duration,
    /// The acknowledged ceiling, and all ceilings requested since.
    ceiling: i64,
    asked: Vec<i64>,
    /// Whether the last life ended with the process and not with the machine.
    killed: bool,
    pub counts: Counts,
}

/// The frames that recovery returned from checkpoints and logs, by log and sequence number.
#[derive(Debug, Default, PartialEq, Eq, Clone)]
pub struct Given {
    pub frames: BTreeMap<LogKind, BTreeMap<FrameSeq, Vec<u8>>>,
}

impl Given {
    fn put(&mut self, kind: LogKind, seq: FrameSeq, payload: &[u8]) {
        let before = self.frames.entry(kind).or_default().insert(seq, payload.to_vec());
        assert!(
            before.is_none_or(|before| before == payload),
            "frame {seq} of {kind} came twice and differs"
        );
    }
}

impl Recovery for Given {
    fn reset(&mut self) {
        self.frames.clear();
    }

    fn frame(&mut self, source: Source, frame: &Frame<'_>) -> Result<(), VisitError> {
        match source {
            Source::Log(kind) => self.put(kind, frame.seq, frame.payload),
            Source::Checkpoint => {
                for record in frame.records() {
                    // The test's checkpoints hold the frames themselves: log kind, sequence number, payload.
                    let Record::Unit(content) = record else { panic!("not what was written: {record:?}") };
                    let kind = if content[0] == 0 { LogKind::Fsync } else { LogKind::Buffered };
                    let seq = u64::from_le_bytes(content[1..9].try_into().unwrap());
                    self.put(kind, FrameSeq(seq), &content[9..]);
                }
            }
        }
        Ok(())
    }
}

struct Open {
    kind: LogKind,
    core: Core,
    executor: Executor,
    to_sync: Option<ToSync>,
}

/// The log positions that the clock file records as durable.
pub fn durable(disk: &SimDisk, layout: &Layout) -> LogPlaces {
    let clock = ClockFile::open(disk, &layout.clock()).unwrap();
    clock.map_or(LogPlaces::NONE, |(clock, _)| clock.durable())
}

impl Shard {
    pub fn new(seed: u64) -> Self {
        Self {
            disk: SimDisk::new(seed),
            layout: Layout::new(Path::new("data")),
            known: LogKind::ALL.into_iter().map(|kind| (kind, Known::default())).collect(),
            random: SmallRng::seed_from_u64(seed),
            now: Duration::ZERO,
            ceiling: 0,
            asked: Vec::new(),
            killed: false,
            counts: Counts::default(),
        }
    }

    /// Runs the shard from a start to a crash.
    pub fn live(&mut self, at: &str) {
        self.disk.create_directory(Path::new("data")).unwrap();
        let soon = self.random.random_bool(0.4);
        let stop_in = self.random.random_range(0..if soon { 12 } else { 250 });
        self.disk.set_faults(Faults { stop_in: Some(stop_in), ..Faults::default() });
        let ends = self.recover(at);
        self.work(ends, at);
        self.counts.crashes += 1;
        self.killed = self.random.random_bool(0.3);
        if self.killed { self.disk.kill() } else { self.disk.crash() }
    }

    /// Recovers twice and checks the result.
    fn recover(&mut self, at: &str) -> [LogEnd; 2] {
        let known = durable(&self.disk, &self.layout);
        let mut given = Given::default();
        let found = recover(&self.disk, &self.layout, known, OnDamage::Refuse, &mut given);
        let found = found.unwrap_or_else(|error| panic!("{at}: {error}\n{:?}", self.disk));
        assert_eq!((found.passed_over.len(), found.losses.len()), (0, 0), "{at}");
        let mut again = Given::default();
        recover(&self.disk, &self.layout, known, OnDamage::Refuse, &mut again).unwrap();
        assert_eq!(given, again, "{at}: read twice");
        for (kind, end) in [(LogKind::Fsync, &found.fsync), (LogKind::Buffered, &found.buffered)] {
            self.counts.torn += u64::from(end.torn.is_some());
            let known = self.known.get_mut(&kind).unwrap();
            let given = given.frames.remove(&kind).unwrap_or_default();
            let last = given.len() as u64;
            assert_eq!(given.keys().next_back().map_or(0, |seq| seq.0), last, "{at}: {kind} has a hole");
            assert!(last >= known.durable, "{at}: {kind} ends at {last}, but {} was durable", known.durable);
            let written = if self.killed { known.written } else { 0 };
            assert!(last >= written, "{at}: {kind} ends at {last}, but the system had {written}");
            assert_eq!(end.next.0, last + 1, "{at}: {kind}");
            known.frames.retain(|seq, _| seq.0 <= last);
            // Frames that a crash took are not expected again.
            known.written = known.written.min(last);
            assert_eq!(given, known.frames, "{at}: {kind} is not what was appended");
            self.counts.checked += last;
        }
        [found.fsync, found.buffered]
    }

    /// Opens the recovered logs and works until the disk stops.
    fn work(&mut self, ends: [LogEnd; 2], at: &str) {
        let Some(mut clock) = self.open_clock(at) else { return };
        let mut logs = Vec::new();
        for (kind, end) in LogKind::ALL.into_iter().zip(ends) {
            let options = LogOptions {
                segment_bytes: self.random.random_range(500..20_000),
                fill_bytes: [0, 1_000, 8_000][self.random.random_range(0..3)],
                flush_bytes: 5_000,
                min_free_bytes: 1_000,
                ..LogOptions::new(kind, self.random.random())
            };
            let directory = self.layout.log(kind);
            if prepare(&self.disk, &directory, &end).is_err() {
                return;
            }
            let core = Core::new(options.clone(), end, self.now);
            let executor = Executor::new(Arc::new(self.disk.clone()), directory, options);
            let mut log = Open { kind, core, executor, to_sync: None };
            self.step(&mut log);
            if self.disk.stopped() {
                return;
            }
            // Frames that were recovered must survive from here on.
            let known = self.known.get_mut(&kind).unwrap();
            known.durable = log.core.next_seq().prev().0;
            known.written = known.durable;
            assert_eq!(
                log.core.durable(),
                log.core.next_seq().prev(),
                "{at}: the first segment holds what was not proven"
            );
            logs.push(log);
        }
        let mut promise = self.known.values().map(|known| known.frames.len()).max().unwrap_or(0) as i64;
        while !self.disk.stopped() {
            let which = self.random.random_range(0..logs.len());
            match self.random.random_range(0..100) {
                0..40 => self.append(&mut logs[which]),
                40..70 => self.step(&mut logs[which]),
                70..80 => self.sync(&mut logs[which]),
                80..85 => {
                    promise += 1;
                    logs[which].core.promise(self.now, Revision(promise));
                }
                85..92 => self.now += Duration::from_millis(self.random.random_range(1..3000)),
                92..95 => self.renew(&mut clock),
                95..98 => self.some_fault(),
                _ => self.checkpoint(&mut logs, at),
            }
        }
    }

    fn append(&mut self, log: &mut Open) {
        let mut batch = Batch::new();
        for sub in 0..self.random.random_range(1..4) {
            let length = match self.random.random_range(0..20) {
                0 => self.random.random_range(0..9_000),
                1 => 0,
                _ => self.random.random_range(0..200),
            };
            // Include values of zeros, which look like the end of a file.
            let fill = if self.random.random_bool(0.2) { 0 } else { self.random.random() };
            let key_value = vec![fill; length];
            let revision = Revision(self.random.random_range(1..1000));
            batch.push(&Record::Version(VersionRecord {
                revision,
                sub,
                deletion: fill == 1,
                key_value: &key_value,
            }));
        }
        let payload = batch.clone().into_payload().unwrap();
        let seq = log.core.append(self.now, batch).unwrap();
        self.known.get_mut(&log.kind).unwrap().frames.insert(seq, payload);
        self.counts.frames += 1;
    }

    /// Performs one step of a log's writer.
    fn step(&mut self, log: &mut Open) {
        let step = log.core.next(self.now);
        let frames = match &step {
            Step::Wait(_) => return,
            Step::Create(create) => &create.frames,
            Step::Commit(commit) => &commit.frames,
        };
        let known = self.known.get_mut(&log.kind).unwrap();
        for frame in frames {
            // The writer adds promise frames of its own.
            known.frames.entry(frame.seq).or_insert_with(|| frame.payload.clone());
        }
        let outcome = log.executor.perform(&step);
        drop(step);
        if let Some(made) = log.executor.take_to_sync() {
            log.to_sync = Some(made);
        }
        let events = log.core.done(self.now, outcome);
        self.take_in(log.kind, events);
    }

    /// Syncs the written frames of the buffered log.
    fn sync(&mut self, log: &mut Open) {
        let Some(sync) = log.core.next_sync(self.now) else { return };
        let segment = log.to_sync.as_mut().filter(|segment| segment.number == sync.number);
        let events = log.core.synced(self.now, segment.map(ToSync::sync));
        self.take_in(log.kind, events);
    }

    fn take_in(&mut self, kind: LogKind, events: Vec<Event>) {
        let known = self.known.get_mut(&kind).unwrap();
        for event in events {
            match event {
                Event::Written { seq } => known.written = seq.0,
                Event::Durable { seq, .. } => {
                    (known.durable, known.written) = (seq.0, known.written.max(seq.0));
                }
                Event::Failing(_) => self.counts.failures += 1,
                Event::Recovered => self.counts.recovered += 1,
            }
        }
    }

    /// Sets a random fault or clears all faults.
    fn some_fault(&mut self) {
        let mut faults = Faults { stop_in: self.disk.faults().stop_in, ..Faults::default() };
        match self.random.random_range(0..6) {
            0 => faults.fail_sync_in = Some(self.random.random_range(0..3)),
            1 => faults.space_left = Some(self.random.random_range(0..8_000)),
            2 => faults.read_only = true,
            _ => {}
        }
        self.disk.set_faults(faults);
    }

    fn checkpoint(&mut self, logs: &mut [Open], at: &str) {
        let places =
            |logs: &[Open]| LogPlaces { fsync: logs[0].core.next_seq(), buffered: logs[1].core.next_seq() };
        let from = places(logs);
        let disk = Arc::new(self.disk.clone());
        let Ok(mut writer) = CheckpointWriter::create(disk, &self.layout, from, self.random.random(), 500)
        else {
            return;
        };
        // The state changes during the walk, so the checkpoint includes some frames of the later log that come
        // after `from`.
        for index in [0, 1] {
            let kind = logs[index].kind;
            for (seq, payload) in &self.known[&kind].frames.clone() {
                let mut batch = Batch::new();
                let content = [&[index as u8][..], &seq.0.to_le_bytes(), payload].concat();
                batch.push(&Record::Unit(&content));
                if writer.write(batch).is_err() {
                    return;
                }
            }
            for _ in 0..self.random.random_range(0..3) {
                self.append(&mut logs[1]);
                self.step(&mut logs[1]);
            }
        }
        let until = places(logs);
        let until = LogPlaces { fsync: until.fsync.prev(), buffered: until.buffered.prev() };
        for log in &mut *logs {
            for _ in 0..20 {
                self.now += Duration::from_secs(1);
                self.step(log);
                self.sync(log);
            }
            if log.core.durable() < until.of(log.kind) {
                return;
            }
        }
        if writer.finish(until).is_ok() {
            self.counts.checkpoints += 1;
            let keep = self.random.random_range(1..3);
            if let Ok(swept) = sweep(&self.disk, &self.layout, keep) {
                self.counts.swept += swept.segments as u64;
            }
        }
        assert!(logs.iter().all(|log| log.core.durable() >= until.of(log.kind)), "{at}");
    }

    fn open_clock(&mut self, at: &str) -> Option<ClockFile> {
        let path = self.layout.clock();
        let opened = ClockFile::open(&self.disk, &path).unwrap_or_else(|error| panic!("{at}: {error}"));
        let Some((clock, ceiling)) = opened else {
            assert_eq!(self.ceiling, 0, "{at}: the clock's file is gone");
            let made = ClockFile::create(&self.disk, &path, Revision(1)).ok();
            self.asked = vec![1];
            self.ceiling = i64::from(made.is_some());
            return made;
        };
        let ceiling = ceiling.get();
        let fits = ceiling == self.ceiling || self.asked.contains(&ceiling);
        assert!(fits && ceiling >= self.ceiling, "{at}: ceiling {ceiling}, acknowledged {}", self.ceiling);
        // The ceiling that was read may not be durable; nothing relies on it before a higher one is stored.
        let mut clock = clock;
        self.renew(&mut clock);
        (self.ceiling > ceiling).then_some(clock)
    }

    fn renew(&mut self, clock: &mut ClockFile) {
        let next = self.asked.iter().copied().max().unwrap_or(0).max(self.ceiling) + 1;
        self.asked.push(next);
        let durable = |kind| FrameSeq(self.known[&kind].durable);
        let durable = LogPlaces { fsync: durable(LogKind::Fsync), buffered: durable(LogKind::Buffered) };
        if clock.store_with(Revision(next), durable).is_ok() {
            self.ceiling = next;
        }
    }
}
