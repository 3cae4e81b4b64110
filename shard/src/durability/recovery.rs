//! Gathers what a start finds in the files, for the engine.

use std::{path::Path, sync::Mutex};

use kindred_engine::{
    durability::{Gap, KindGap, Logged},
    engine::{self, Engine, EngineConfig, WallMicros},
    recover::{KindReplay, Lost, Recovered},
};
use kindred_partition_config::{ids::Revision, key::Key};
use kindred_wal::{Disk, Frame, GapRecord, LogKind, Progress, Record, Records, Recovery, Source, VisitError};

use super::{
    record::{self, RecordError},
    stopped,
};
use crate::{clock::Clock, starting::Starting};

/// Other facts known at a start.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// The clock's ceiling (R2); `None` with dense revisions.
    pub ceiling: Option<Revision>,
    /// Whether damage was accepted.
    pub lost: bool,
}

/// All records for the engine, and how the logs ended.
#[derive(Debug, Default)]
pub struct Gathered {
    found: Recovered,
    /// The last promise in the buffered log: it is complete up to there.
    promised: Option<Revision>,
    something: bool,
    /// For each log, the revision of its last record if that marks a clean stop.
    clean: [Option<Revision>; 2],
    shown_percent: u64,
    /// Whether the Kinds of mode `none` that a clean stop kept are included.
    unkept: bool,
    /// Whether all comes from another database, and nothing is missing.
    imported: bool,
    /// Gets the number of records read, to show progress.
    starting: Starting,
}

impl Gathered {
    /// An empty state that counts the records that it is given in `starting`.
    #[must_use]
    pub fn telling(starting: Starting) -> Self {
        Self { starting, ..Self::default() }
    }

    /// Takes what a primary has copied to its standby.
    pub fn set_copied(&mut self, copied: Recovered) {
        (self.found, self.something) = (copied, true);
    }

    /// Takes what another database has.
    pub fn set_imported(&mut self, imported: Recovered) {
        (self.found, self.something, self.imported) = (imported, true, true);
    }

    /// If this is a copy, the ceiling of the primary's clock.
    #[must_use]
    pub fn copied(&self) -> Option<Revision> {
        self.found.copied.then_some(self.found.start)
    }

    #[must_use]
    pub fn is_nothing(&self) -> bool {
        !self.something
    }

    #[must_use]
    pub fn versions(&self) -> usize {
        self.found.versions.len()
    }

    /// Reads the Kinds of mode `none` that a clean stop kept, if the stop was the last thing that the shard did.
    pub fn take_unkept(&mut self, disk: &dyn Disk, path: &Path) {
        let Some(last) = self.clean() else { return };
        let payloads = match stopped::read(disk, path, last) {
            Ok(Some(payloads)) => payloads,
            Ok(None) => return,
            Err(error) => {
                let file = path.display();
                tracing::warn!(%error, "{file}: the Kinds of mode none begin empty, as after a crash");
                return;
            }
        };
        let found = payloads.iter().flat_map(|payload| stopped::records(payload));
        let mut unkept = Vec::new();
        for record in found {
            match meaning(&record) {
                Ok(Some(Logged::Version(version))) => unkept.push((0, version)),
                Ok(Some(Logged::Imported(imported))) => {
                    unkept.extend(imported.versions.into_iter().map(|version| (imported.unit, version)));
                }
                // A clean stop writes no other records to this file.
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "{}: a record is not understood; the Kinds of mode none begin empty", path.display());
                    return;
                }
            }
        }
        self.something |= !unkept.is_empty();
        self.found.unkept = unkept;
        self.unkept = true;
    }

    /// The last revision of a clean stop, if both logs end with the same one.
    fn clean(&self) -> Option<Revision> {
        let [fsync, buffered] = self.clean;
        fsync.filter(|_| fsync == buffered)
    }

    /// Whether nothing is missing, because the shard last stopped cleanly. The ceiling tells whether it started again
    /// since and died before it logged anything.
    #[must_use]
    pub fn is_clean(&self, start: &Start) -> bool {
        !start.lost && self.clean().is_some_and(|last| start.ceiling.is_none_or(|ceiling| last == ceiling))
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), RecordError> {
        self.starting.read_one();
        if let Record::Promise(at) = record {
            self.promised = self.promised.max(Some(*at));
        }
        let Some(logged) = meaning(record)? else { return Ok(()) };
        // Modes alone come from a start whose clock was never confirmed.
        self.something |= !matches!(logged, Logged::Modes(_));
        self.found.push(logged);
        Ok(())
    }

    /// The recovered engine; a new one if nothing was found.
    ///
    /// # Errors
    /// When a revision is one that no clock could have assigned.
    pub(super) fn into_engine(
        self,
        config: EngineConfig,
        clock: &Clock,
        start: &Start,
    ) -> anyhow::Result<Engine> {
        if self.is_nothing() {
            return Ok(Engine::new(config, clock.wall()));
        }
        let clean = self.is_clean(start);
        let known = [self.clean(), self.promised, start.ceiling].into_iter().flatten();
        let highest = known.max().unwrap_or(Revision::ZERO);
        let promised = self.promised.unwrap_or(Revision::ZERO);
        let lost = Lost {
            buffered: (!clean).then_some(promised),
            // Where the fsync log was damaged, it is complete only up to the last version in it.
            fsync: start.lost.then_some(Revision::ZERO),
            none_is_whole: clean && self.unkept,
        };
        let lost = if self.imported { Lost { none_is_whole: true, ..Lost::default() } } else { lost };
        let found = match self.found.copied {
            // The primary's ceiling counts when the standby is promoted.
            true => Recovered { start: Revision::ZERO, ..self.found },
            false => Recovered { lost, start: highest, ..self.found },
        };
        // An unconfirmed wall clock assigns nothing (R3).
        let now = if clock.is_confirmed() { clock.wall() } else { WallMicros(0) };
        let mut recovery = engine::Recovery::new(config, found);
        let restored = on_all_cores(std::mem::take(&mut recovery.kinds), KindReplay::run);
        Ok(recovery.finish(restored, now, clock.mono())?)
    }
}

/// The records that a primary has shipped in one message.
///
/// # Errors
/// When this version does not understand one.
pub fn shipped(payload: &[u8]) -> Result<Vec<Logged>, RecordError> {
    let mut found = Vec::new();
    for record in Records::new(payload) {
        let record =
            record.map_err(|damage| RecordError::Value { what: "shipment", value: damage.to_string() })?;
        found.extend(meaning(&record)?);
    }
    Ok(found)
}

/// The engine's record for a record; `None` for those that concern only the logs.
fn meaning(record: &Record<'_>) -> Result<Option<Logged>, RecordError> {
    Ok(Some(match record {
        Record::Version(version) => Logged::Version(record::version_of(version)?),
        Record::Lease(content) => Logged::Lease(Box::new(record::lease_of(content)?)),
        Record::Unit(content) => Logged::Units(Box::new(record::units_of(content)?)),
        Record::Import(content) => Logged::Imported(Box::new(record::import_of(content)?)),
        Record::Compaction(at) => Logged::Compaction(*at),
        Record::Modes(content) => Logged::Modes(Box::new(record::modes_of(content)?)),
        Record::Gap(GapRecord { after, until, kind }) => {
            let gap = Gap { after: *after, until: *until };
            Logged::Gap(Box::new(KindGap { kind: Key::copy_from(kind), gap }))
        }
        // The frame's reader handles the record of a clean stop.
        Record::Promise(_) | Record::Clean(_) | Record::Needs(_) | Record::Began(_) => return Ok(None),
    }))
}

/// Runs the work on all cores, first items first. The results are in no order.
fn on_all_cores<T: Send, R: Send>(work: Vec<T>, run: impl Fn(T) -> R + Sync) -> Vec<R> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get()).min(work.len());
    let done = Mutex::new(Vec::with_capacity(work.len()));
    let work = Mutex::new(work.into_iter());
    let one = || {
        // No thread panics while it holds these locks.
        while let Some(next) = work.lock().ok().and_then(|mut work| work.next()) {
            let result = run(next);
            if let Ok(mut done) = done.lock() {
                done.push(result);
            }
        }
    };
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(one))));
    done.into_inner().unwrap_or_default()
}

impl Recovery for Gathered {
    fn reset(&mut self) {
        *self = Self::telling(std::mem::take(&mut self.starting));
    }

    fn frame(&mut self, source: Source, frame: &Frame<'_>) -> Result<(), VisitError> {
        let mut clean = match source {
            Source::Log(kind) => self.clean[usize::from(kind == LogKind::Buffered)],
            _ => None,
        };
        for record in frame.records() {
            self.take(&record)?;
            clean = match record {
                Record::Clean(at) => Some(at),
                // A promise may be written with the flush, behind the stop that covers it.
                Record::Promise(at) => clean.filter(|clean| at <= *clean),
                _ => None,
            };
        }
        if let Source::Log(kind) = source {
            self.clean[usize::from(kind == LogKind::Buffered)] = clean;
        }
        Ok(())
    }

    fn progress(&mut self, Progress { done, total }: Progress) {
        let percent = done.saturating_mul(100) / total.max(1);
        if percent >= self.shown_percent + 10 || (percent == 100 && self.shown_percent < 100) {
            self.shown_percent = percent;
            tracing::info!(percent, megabytes = done >> 20, of = total >> 20, "reading the data directory");
        }
    }
}

#[cfg(test)]
mod tests {
    use kindred_wal::{Batch, FrameSeq, VersionRecord};
    use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};

    use super::*;

    /// The clean stop that logs with these frames end in.
    fn clean(frames: &[&[Record<'_>]]) -> Option<Revision> {
        let mut gathered = Gathered::default();
        for (at, records) in frames.iter().enumerate() {
            for kind in [LogKind::Fsync, LogKind::Buffered] {
                let mut batch = Batch::new();
                records.iter().for_each(|record| batch.push(record));
                let frame = Frame { seq: FrameSeq(at as u64 + 1), payload: batch.payload() };
                gathered.frame(Source::Log(kind), &frame).unwrap();
            }
        }
        gathered.clean()
    }

    #[test]
    fn a_stop_is_clean_although_a_promise_that_it_covers_is_written_behind_it() {
        let [stop, promise, later] =
            [Record::Clean(Revision(7)), Record::Promise(Revision(7)), Record::Promise(Revision(8))];
        let write = Record::Compaction(Revision(3));
        assert_eq!(clean(&[&[write], &[stop]]), Some(Revision(7)));
        assert_eq!(clean(&[&[stop], &[promise]]), Some(Revision(7)));
        assert_eq!(clean(&[&[promise], &[stop, promise]]), Some(Revision(7)));
        // The shard has started again since.
        assert_eq!(clean(&[&[stop], &[later]]), None);
        assert_eq!(clean(&[&[stop], &[later], &[promise]]), None);
        assert_eq!(clean(&[&[stop], &[write]]), None);
        assert_eq!(clean(&[&[promise]]), None);
    }

    /// Mutates the contents of records as the fuzzer mutates the log's bytes: each is accepted or refused.
    #[test]
    fn any_content_of_any_record_is_taken_or_refused() {
        let unit = br#"{"next":7,"records":[{"number":1,"move":5,"term":2,"unit":{"start":"2f722f","end":"2f7230","buckets":"","prefix":0},"state":{"frozen":{"last":9}},"epoch":3,"floor":4,"split":true,"gaps":[[6,8]]}],"terms":[[5,2]],"layers":[]}"#;
        let version = b"\x0a\x01k\x10\xac\x02\x18\xac\x02\x20\x01\x2a\x01v";
        let mut versions = Batch::new();
        let revision = Revision(300);
        let record = VersionRecord { revision, sub: 0, deletion: false, key_value: version };
        versions.push(&Record::Version(record));
        let import = [&7_u64.to_le_bytes()[..], versions.payload()].concat();
        let whole: [&[u8]; 5] = [
            br#"{"id":7,"state":{"home":{"ttl":60,"attached":[2,1023]}}}"#,
            br#"{"generation":3,"default":"buffered","kinds":{"2f7265":"fsync","ff00":"none"}}"#,
            unit,
            &import,
            version,
        ];
        let mut random = SmallRng::seed_from_u64(1);
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..4_000 {
            let mut content = whole[random.random_range(0..whole.len())].to_vec();
            for _ in 0..random.random_range(0..4) {
                let at = random.random_range(0..content.len().max(1)).min(content.len());
                match random.random_range(0..4) {
                    0 => content.truncate(at),
                    1 => content.insert(at, random.random()),
                    2 => content.extend_from_within(at..),
                    _ => content
                        .iter_mut()
                        .skip(at)
                        .take(1)
                        .for_each(|byte| *byte ^= 1 << random.random_range(0..8)),
                }
            }
            let of_version =
                VersionRecord { revision, sub: 1, deletion: random.random(), key_value: &content };
            let records = [
                Record::Lease(&content),
                Record::Modes(&content),
                Record::Unit(&content),
                Record::Import(&content),
                Record::Version(of_version),
            ];
            for record in records {
                match Gathered::default().take(&record) {
                    Ok(()) => taken += 1,
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(taken > 500 && refused > 500, "{taken} and {refused}");
    }
}
