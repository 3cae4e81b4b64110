//! Mode changes with a crash at the worst moment: a loss of what was acknowledged in the weaker mode must be announced
//! (R9, R10).

use crate::common::*;
use kindred_engine::{
    durability::{Applied, Durability, KindModes, Logged, ModesTaken},
    engine::*,
    error::EngineError,
    ops::*,
    recover::{Lost, Recovered},
};
use kindred_partition_config::{
    ids::{Revision, Slot},
    key::Key,
    kind::KindScheme,
};

const PODS: &str = "/registry/pods/";
const NODES: &str = "/registry/minions/";

fn config() -> EngineConfig {
    let revisions = RevisionMode::Hlc(Slot::new(3).expect("below 1024"));
    EngineConfig {
        revisions,
        kinds: KindScheme::default(),
        max_clock_offset_micros: 10_000_000,
        min_lease_ttl_s: 2,
    }
}

fn modes(generation: u64, pods: Durability) -> KindModes {
    KindModes { generation, default: Durability::Buffered, kinds: [(Key::from(PODS), pods)].into() }
}

/// A shard with two logs, of which a crash leaves what is on disk.
struct Shard {
    engine: Engine,
    fsync: Vec<Logged>,
    buffered: Vec<Logged>,
    /// How many records of each log are on disk, and the last promise there.
    on_disk: (usize, usize),
    promise: Revision,
    /// The promise that is not on disk yet.
    promised: Revision,
    /// The last checkpoint, and the lengths of the logs at its time.
    checkpoint: Option<(Vec<Logged>, usize, usize)>,
}

impl Shard {
    fn new(first: KindModes) -> Self {
        let mut engine = Engine::new(config(), NOW);
        engine.log_changes();
        let (fsync, buffered) = (Vec::new(), Vec::new());
        let (on_disk, promise, promised, checkpoint) = ((0, 0), Revision::ZERO, Revision::ZERO, None);
        let mut shard = Self { engine, fsync, buffered, on_disk, promise, promised, checkpoint };
        shard.set_modes(first);
        shard.flush();
        shard
    }

    /// Logs as the loop does.
    fn append(&mut self) {
        let Applied { fsync, buffered, mark, promise, .. } = self.engine.take_applied();
        self.fsync.extend(fsync);
        self.buffered.extend(buffered);
        self.promised = promise;
        self.engine.publish();
        if self.on_disk.0 == self.fsync.len() {
            self.engine.publish_fsync(mark);
        }
    }

    fn flush_buffered(&mut self) {
        self.append();
        (self.on_disk.1, self.promise) = (self.buffered.len(), self.promised);
    }

    fn flush(&mut self) {
        self.flush_buffered();
        self.on_disk.0 = self.fsync.len();
        let mark = self.engine.take_applied().mark;
        self.engine.publish_fsync(mark);
    }

    /// Sets modes when both logs are flushed, and again after logging if needed.
    fn set_modes(&mut self, modes: KindModes) -> ModesTaken {
        self.flush();
        let taken = self.engine.set_modes(modes.clone()).expect("flushed");
        self.append();
        if taken != ModesTaken::AfterLog {
            return taken;
        }
        self.flush();
        let taken = self.engine.set_modes(modes).expect("flushed");
        assert_ne!(taken, ModesTaken::AfterLog, "it is logged");
        self.append();
        taken
    }

    /// Makes a checkpoint of everything.
    fn checkpoint(&mut self) {
        self.flush();
        let (from, mut walk, mut records) = (self.on_disk, self.engine.checkpoint_begin(), Vec::new());
        while self.engine.checkpoint_next(&mut walk, 100, 1 << 20, |logged| records.push(logged)) {}
        self.checkpoint = Some((records, from.0, from.1));
    }

    fn put(&mut self, key: &str) -> Revision {
        let revision = header(&self.engine.apply(NOW, put(key, "v")).expect("accepted"));
        self.append();
        revision
    }

    fn crash(self) -> Self {
        let (checkpoint, from_fsync, from_buffered) = self.checkpoint.unwrap_or_default();
        let mut found = Recovered::default();
        let fsync: Vec<Logged> = self.fsync[..self.on_disk.0].to_vec();
        let buffered: Vec<Logged> = self.buffered[..self.on_disk.1].to_vec();
        let tail = fsync[from_fsync..].iter().chain(&buffered[from_buffered..]);
        checkpoint.iter().chain(tail).for_each(|logged| found.push(logged.clone()));
        found.lost = Lost { buffered: Some(self.promise), fsync: None, ..Lost::default() };
        found.start = Revision(self.engine.last_revision().get() + (10 << 10));
        let engine = Engine::recover(config(), NOW, MonoMillis(0), found).expect("no clock is off");
        let (on_disk, promise) = ((fsync.len(), buffered.len()), self.promise);
        let checkpoint = Some((checkpoint, from_fsync, from_buffered));
        let mut shard = Self { engine, fsync, buffered, on_disk, promise, promised: promise, checkpoint };
        shard.flush();
        shard
    }

    fn there(&mut self, key: &str) -> bool {
        self.engine.range(&query(single(key))).expect("the present").count == 1
    }

    fn is_told(&mut self, key: &str, at: Revision) -> bool {
        let query = RangeQuery { revision: Some(at), ..query(single(key)) };
        matches!(self.engine.range(&query), Err(EngineError::Compacted { .. }))
    }
}

#[test]
fn r9_what_is_lost_behind_a_change_to_a_weaker_mode_is_told_wherever_the_logs_end() {
    use Durability::{Buffered, Fsync, None};
    let key = &format!("{PODS}a");
    for (strong, weak) in [(Fsync, Buffered), (Fsync, None), (Buffered, None)] {
        // The buffered log is written on while the fsync log is not, or neither is.
        for buffered_is_written in [false, true] {
            let mut shard = Shard::new(modes(1, strong));
            shard.put(key);
            shard.set_modes(modes(2, weak));
            let lost = shard.put(key);
            shard.put(&format!("{NODES}a"));
            if buffered_is_written {
                // All but the write itself, which a crash may drop only together with what follows it.
                shard.promise = if weak == None { shard.promised } else { shard.promise };
                shard.on_disk.1 = if weak == None { shard.buffered.len() } else { shard.on_disk.1 };
            }
            let mut shard = shard.crash();
            assert!(shard.is_told(key, lost), "{strong} to {weak}, {buffered_is_written}");
            let again = shard.put(key);
            assert!(again > lost);
        }
    }
}

#[test]
fn r9_what_was_there_before_nothing_was_kept_of_a_kind_does_not_come_back() {
    use Durability::{Buffered, None};
    let (key, other) = (&format!("{PODS}a"), &format!("{PODS}b"));
    let mut shard = Shard::new(modes(1, Buffered));
    shard.put(key);
    shard.set_modes(modes(2, None));
    shard.flush();
    let mut shard = shard.crash();
    assert!(!shard.there(key));
    // The Kind has no keys, but the log has.
    let taken = shard.set_modes(modes(3, Buffered));
    if taken == ModesTaken::AfterCheckpoint {
        shard.checkpoint();
        shard.engine.modes_settled(3);
    }
    shard.put(other);
    shard.flush();
    let mut shard = shard.crash();
    assert!(shard.there(other), "it is kept again");
    assert!(!shard.there(key), "it was gone, and nobody was told that it is back");
}

/// The key was deleted while its Kind had mode `none`, and every trace of it was compacted.
#[test]
fn r9_what_was_deleted_while_nothing_was_kept_of_a_kind_does_not_come_back() {
    use Durability::{Buffered, None};
    let key = &format!("{PODS}a");
    let mut shard = Shard::new(modes(1, Buffered));
    shard.put(key);
    shard.set_modes(modes(2, None));
    shard.flush();
    let deleted = header(&shard.engine.apply(NOW, delete(key)).expect("accepted"));
    shard.put(&format!("{NODES}a"));
    shard.flush();
    shard.engine.compact(MonoMillis(0), deleted).expect("nothing holds it");
    while shard.engine.gc(100) {}
    let taken = shard.set_modes(modes(3, Buffered));
    if taken == ModesTaken::AfterCheckpoint {
        shard.checkpoint();
        shard.engine.modes_settled(3);
    }
    shard.flush();
    assert!(!shard.crash().there(key));
}

#[test]
fn r9_a_later_edition_of_the_same_modes_is_taken_while_writes_wait_for_the_log() {
    use Durability::{Buffered, Fsync, None};
    let key = &format!("{PODS}a");
    let mut shard = Shard::new(modes(1, Fsync));
    shard.put(key);
    assert!(!shard.there(key), "it is not on disk");
    assert!(shard.engine.renumber_modes(&modes(2, Fsync)));
    assert!(!shard.engine.renumber_modes(&modes(1, Fsync)), "an older one");
    assert!(!shard.engine.renumber_modes(&modes(3, Buffered)), "another mode");
    assert!(!shard.there(key));
    shard.append();
    shard.flush();
    assert!(shard.there(key));
    assert_eq!(*shard.crash().engine.modes(), modes(2, Fsync), "it is in the log");

    // Modes that wait for a checkpoint do so by their number.
    let mut shard = Shard::new(modes(1, Buffered));
    shard.put(key);
    shard.set_modes(modes(2, None));
    shard.flush();
    assert_eq!(shard.set_modes(modes(3, Buffered)), ModesTaken::AfterCheckpoint);
    assert!(!shard.engine.renumber_modes(&modes(4, Buffered)));
    shard.checkpoint();
    shard.engine.modes_settled(3);
    assert!(shard.engine.renumber_modes(&modes(4, Buffered)));
}

/// This holds even after a clean stop, whose last revision is known, with the wall clock behind it.
#[test]
fn r10_the_revision_that_a_start_shows_is_above_all_that_was_lost() {
    let key = &format!("{PODS}a");
    let mut shard = Shard::new(modes(1, Durability::None));
    shard.put(&format!("{NODES}a"));
    let last = shard.put(key);
    shard.flush();
    let mut found = Recovered { start: last, ..Recovered::default() };
    shard.fsync.iter().chain(&shard.buffered).for_each(|logged| found.push(logged.clone()));
    shard.engine = Engine::recover(config(), WallMicros(10), MonoMillis(0), found).expect("no clock is off");
    assert!(!shard.there(key) && shard.is_told(key, last));
    assert!(shard.engine.current_all() > last);
}

/// A feed is advanced while one write waits for the log, and another write comes before that is on disk.
#[test]
fn r6_an_asked_watermark_comes_when_all_before_it_is_on_disk() {
    for range in [prefix(PODS), single(PODS.trim_end_matches('/'))] {
        let mut shard = Shard::new(modes(1, Durability::Fsync));
        let engine = &mut shard.engine;
        let write = |engine: &mut Engine, key| header(&engine.apply(NOW, put(key, "v")).expect("accepted"));
        write(engine, "/registry/pods/a");
        let feed = engine.feed_open(vec![range], None);
        let to = write(engine, "/registry/minions/a");
        let mark = engine.take_applied().mark;
        engine.publish();
        let later = write(engine, "/registry/pods/b");
        engine.raise(NOW, &[], to).expect("the clock is there");
        engine.feed_advance(NOW, feed, to);
        engine.feed_pull(feed, 1 << 20);
        engine.take_feed_wakes();
        engine.publish_fsync(mark);
        assert_eq!(engine.take_feed_wakes(), [feed]);
        let said = engine.feed_pull(feed, 1 << 20).expect("it owes a watermark");
        let watermark = said.watermark.expect("all up to it is on disk");
        assert!(to <= watermark && watermark < later, "{to} {watermark} {later}");
    }
}
