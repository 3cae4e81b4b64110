//! Drives a shard from one crash to the next, and checks what must have survived.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, UNIX_EPOCH},
};

use bytes::Bytes;
use kindred_engine::{
    error::EngineError,
    ops::{Contents, Op, OpAnswer, Put, RangeQuery, RevisionFilter, Txn},
    trust::ClockTrust,
    version::Version,
};
use kindred_partition_config::{
    ids::Revision,
    key::{Key, KeyRange},
    kind::KindScheme,
    model::Durability,
};
use kindred_wal::{
    Disk as _, Layout,
    sim::{Faults, SimDisk},
};
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::disk::LifeDisk;
use crate::{
    apply_loop::call,
    clock::{Clock, WallClock},
    config::durability::DurabilitySettings,
    core::{Core, sample},
    durability::{Logs, start::open_on},
    etcd_status::KvError,
    handle::{self, Handle},
    read_hints::ReadHints,
    standby::shipping::Shipping,
};

const T0: u64 = 1_767_225_600_000_000;
const SECOND: i64 = 1_000_000;
/// Resource, prefix, mode.
const KINDS: [(&str, &str, Durability); 3] = [
    ("configmaps", "/registry/configmaps/", Durability::Buffered),
    ("secrets", "/registry/secrets/", Durability::Fsync),
    ("events", "/registry/events/", Durability::None),
];
const WRITERS: u64 = 2;
/// How many of the last writes of each Kind are checked one by one.
const LAST_MAX: usize = 60;
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts of what has happened.
#[derive(Debug, Default)]
pub struct Counts {
    pub crashes: u64,
    kills: u64,
    stops: u64,
    cut_short: u64,
    pub acknowledged: u64,
    pub checked: u64,
    lost_of_buffered: u64,
    lost_of_none: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.crashes += other.crashes;
        self.kills += other.kills;
        self.stops += other.stops;
        self.cut_short += other.cut_short;
        self.acknowledged += other.acknowledged;
        self.checked += other.checked;
        self.lost_of_buffered += other.lost_of_buffered;
        self.lost_of_none += other.lost_of_none;
    }
}

/// An acknowledged transaction, which wrote the number to both keys of a pair.
#[derive(Debug, Clone)]
struct Written {
    kind: usize,
    pair: String,
    number: u64,
    revision: Revision,
    lost: bool,
}

type Acknowledged = Arc<Mutex<Vec<Written>>>;

pub struct Shard {
    disk: SimDisk,
    random: SmallRng,
    wall: Arc<AtomicU64>,
    written: Vec<Written>,
    /// How many of them are from lives before the last.
    of_before: usize,
    /// Whether the last life was stopped cleanly.
    clean: bool,
    /// Whether only processes died since the last check, not the machine: what the kernel was given is there.
    killed: bool,
    /// Whether the last life was told to stop cleanly; its disk may have stopped during that, or after it.
    told: bool,
    /// Whether a fault was injected in this life.
    broken: bool,
    /// All assigned revisions, and the highest that was assigned or shown.
    given: HashSet<Revision>,
    shown: Revision,
    number: u64,
    pub counts: Counts,
}

fn layout() -> Layout {
    Layout::new(Path::new("data"))
}

/// Opens the shard of the tests on a disk.
pub async fn open(disk: LifeDisk, wall: &Arc<AtomicU64>) -> anyhow::Result<(Core, Logs)> {
    open_with(disk, wall, 16 << 10).await
}

/// The same with a reserve of this size.
pub async fn open_with(
    disk: LifeDisk,
    wall: &Arc<AtomicU64>,
    reserve_bytes: u64,
) -> anyhow::Result<(Core, Logs)> {
    let kinds = KindScheme::default();
    let of = KINDS.iter().map(|(resource, _, mode)| (kinds.resolve(resource).unwrap(), *mode));
    let settings = DurabilitySettings {
        default: Durability::Buffered,
        of: of.collect(),
        flush_interval: Duration::from_millis(2),
        checkpoint_bytes: 30_000,
        segment_bytes: Some(10_000),
        accept_data_loss: false,
        reserve_bytes,
        quotas: BTreeMap::new(),
    };
    let (config, of_core) = (sample::config(), sample::settings());
    let wall = wall.clone();
    let wall =
        WallClock::Other(Arc::new(move || UNIX_EPOCH + Duration::from_micros(wall.load(Ordering::Relaxed))));
    let clock = Clock::start(wall, ClockTrust::alone());
    open_on(Arc::new(disk), layout(), None, config, clock, of_core, &settings).await
}

pub fn new_disk(seed: u64) -> (SimDisk, Arc<AtomicU64>) {
    let disk = SimDisk::new(seed);
    disk.create_directory(Path::new("data")).unwrap();
    (disk, Arc::new(AtomicU64::new(T0)))
}

pub fn put(key: &str, value: &str) -> Op {
    Op::Put(Put {
        key: key.into(),
        value: Bytes::copy_from_slice(value.as_bytes()),
        lease: None,
        ignore_value: false,
        ignore_lease: false,
        prev_kv: false,
    })
}

/// A transaction that writes both keys of a pair.
pub fn both(pair: &str, value: &str) -> Op {
    let success = ["left", "right"].map(|side| put(&format!("{pair}-{side}"), value)).into();
    Op::Txn(Box::new(Txn { compares: Vec::new(), success, failure: Vec::new() }))
}

pub fn query(range: KeyRange, revision: Option<Revision>) -> RangeQuery {
    RangeQuery {
        range,
        revision,
        limit: 0,
        sort: None,
        contents: Contents::Whole,
        count_only: false,
        filter: RevisionFilter::default(),
    }
}

fn header(answer: &OpAnswer) -> Revision {
    match answer {
        OpAnswer::Txn(txn) => txn.header,
        other => panic!("not a txn: {other:?}"),
    }
}

impl Shard {
    pub fn new(seed: u64) -> Self {
        let (disk, wall) = new_disk(seed);
        Self {
            disk,
            random: SmallRng::seed_from_u64(seed),
            wall,
            written: Vec::new(),
            of_before: 0,
            clean: false,
            killed: true,
            told: false,
            broken: false,
            given: HashSet::new(),
            shown: Revision::ZERO,
            number: 0,
            counts: Counts::default(),
        }
    }

    /// Runs the shard from a start to a crash or a clean stop.
    pub async fn live(&mut self, at: &str) {
        let disk = LifeDisk::new(&self.disk);
        self.broken = false;
        let soon = self.random.random_bool(0.3);
        let stop_in = self.random.random_range(0..if soon { 40 } else { 600 });
        self.disk.set_faults(Faults { stop_in: Some(stop_in), ..Faults::default() });
        if self.random.random_bool(0.3) {
            self.step_wall(3600 * SECOND);
        }
        match open(disk.clone(), &self.wall).await {
            // A start whose disk has stopped serves nothing.
            Ok(_) | Err(_) if self.disk.stopped() => self.counts.cut_short += 1,
            Err(error) => panic!("{at}: {error:#}\n{:?}", self.disk),
            Ok((core, logs)) => {
                let stop = CancellationToken::new();
                let (handle, looping) =
                    handle::spawn(core, logs, Shipping::alone(), Duration::from_millis(20), stop.clone());
                self.check(&handle, at).await;
                self.killed = true;
                let (acknowledged, mut writers) = (Acknowledged::default(), JoinSet::new());
                self.write(&handle, &acknowledged, &mut writers);
                self.work(&handle, at).await;
                // A log that fails when it is closed leaves what it could not write.
                let clean = self.random.random_bool(0.4) && !self.broken;
                if clean {
                    stop.cancel();
                } else {
                    self.disk.set_faults(Faults { stop_in: Some(0), ..Faults::default() });
                    looping.abort();
                }
                // It was told to end, or was aborted.
                let _ =
                    tokio::time::timeout(PATIENCE, looping).await.unwrap_or_else(|_| panic!("{at}: no end"));
                drop(handle);
                while writers.join_next().await.is_some() {}
                (self.told, self.clean) = (clean, clean && !self.disk.stopped());
                self.counts.stops += u64::from(self.clean);
                self.take_in(std::mem::take(&mut *acknowledged.lock().unwrap()), at);
            }
        }
        disk.end();
        self.counts.crashes += 1;
        let killed = self.random.random_bool(0.3);
        if killed {
            self.disk.kill()
        } else {
            self.disk.crash()
        }
        self.killed &= killed;
        self.counts.kills += u64::from(killed);
    }

    fn step_wall(&mut self, most: i64) {
        let by = self.random.random_range(-most..most);
        let wall = self.wall.load(Ordering::Relaxed).saturating_add_signed(by).max(T0 / 2);
        self.wall.store(wall, Ordering::Relaxed);
    }

    /// Starts writers of each Kind, which run until the loop has ended.
    fn write(&mut self, handle: &Handle, acknowledged: &Acknowledged, writers: &mut JoinSet<()>) {
        for (kind, (_, prefix, _)) in KINDS.iter().enumerate() {
            for writer in 0..WRITERS {
                let (handle, acknowledged) = (handle.clone(), acknowledged.clone());
                // Numbers grow from life to life.
                self.number += 1_000_000;
                let first = self.number;
                writers.spawn(async move {
                    for number in first.. {
                        let pair = format!("{prefix}w{writer}-{}", number % 3);
                        match handle.apply(both(&pair, &value(number)), ReadHints::default()).await {
                            Ok(answer) => {
                                let revision = header(&answer);
                                let written = Written { kind, pair, number, revision, lost: false };
                                acknowledged.lock().unwrap().push(written);
                            }
                            Err(KvError::Stopped) => return,
                            // The disk refuses for now.
                            Err(_) => {}
                        }
                        tokio::time::sleep(Duration::from_micros(300)).await;
                    }
                });
            }
        }
    }

    /// Works until the disk has stopped, or for a while.
    async fn work(&mut self, handle: &Handle, at: &str) {
        let lasts = Duration::from_millis(self.random.random_range(5..120));
        let began = Instant::now();
        while began.elapsed() < lasts && !self.disk.stopped() {
            match self.random.random_range(0..20) {
                0 => self.step_wall(20 * SECOND),
                1 => self.some_fault(),
                2 | 3 => {
                    let (waiter, _) = tokio::sync::oneshot::channel();
                    let asked = handle.call(call::AskCheckpoint { waiter }).await;
                    assert!(asked.is_ok(), "{at}: the loop has ended");
                }
                4..8 => {
                    let current = handle.current().await.unwrap_or_else(|error| panic!("{at}: {error}"));
                    self.shown = self.shown.max(current);
                }
                _ => drop(self.wall.fetch_add(self.random.random_range(0..4_000), Ordering::Relaxed)),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Injects a fault, or removes all.
    fn some_fault(&mut self) {
        let mut faults = Faults { stop_in: self.disk.faults().stop_in, ..Faults::default() };
        match self.random.random_range(0..8) {
            0 | 1 => faults.fail_sync_in = Some(self.random.random_range(0..3)),
            2 => faults.space_left = Some(self.random.random_range(0..8_000)),
            3 => faults.read_only = true,
            _ => {}
        }
        self.broken = true;
        self.disk.set_faults(faults);
    }

    /// Records this life's writes. Their revisions are above those of earlier lives, and none occurs twice.
    fn take_in(&mut self, acknowledged: Vec<Written>, at: &str) {
        self.of_before = self.written.len();
        for written in acknowledged {
            assert!(
                self.given.insert(written.revision),
                "{at}: {written:?} is of a revision that was given before"
            );
            self.shown = self.shown.max(written.revision);
            self.counts.acknowledged += 1;
            self.written.push(written);
        }
    }

    /// Checks that each acknowledged write that is not known to be lost is there, as far as its mode promises.
    async fn check(&mut self, handle: &Handle, at: &str) {
        let current = handle.current().await.unwrap();
        assert!(
            current > self.shown || self.written.is_empty(),
            "{at}: {current} is shown behind {}",
            self.shown
        );
        self.shown = current;
        for (kind, (_, prefix, mode)) in KINDS.iter().enumerate() {
            let mut written: Vec<&mut Written> =
                self.written.iter_mut().filter(|written| written.kind == kind && !written.lost).collect();
            written.sort_by_key(|written| written.revision);
            let from = written.len().saturating_sub(LAST_MAX);
            let mut gone = false;
            for written in &mut written[from..] {
                let there = is_there(handle, written)
                    .await
                    .unwrap_or_else(|what| panic!("{at}: {written:?}: {what}"));
                self.counts.checked += 1;
                if there {
                    assert!(
                        *mode != Durability::None || self.told,
                        "{at}: {written:?} outlived its shard, which keeps nothing"
                    );
                    assert!(!gone, "{at}: {written:?} is there, but not what was written before it");
                    continue;
                }
                assert!(*mode != Durability::Fsync, "{at}: {written:?} was acknowledged, and is lost");
                assert!(
                    *mode == Durability::None || !self.clean,
                    "{at}: {written:?} is lost in a clean stop"
                );
                assert!(
                    *mode == Durability::None || !self.killed,
                    "{at}: {written:?} was acknowledged and is lost, and only the process died"
                );
                (gone, written.lost) = (true, true);
                match mode {
                    Durability::None => self.counts.lost_of_none += 1,
                    _ => self.counts.lost_of_buffered += 1,
                }
            }
            // On a slow machine more is lost than is checked: older writes are lost too, back to the first that is
            // there.
            if written.get(from).is_some_and(|oldest| oldest.lost) {
                for older in written[..from].iter_mut().rev() {
                    if is_there(handle, older).await.unwrap_or_else(|what| panic!("{at}: {older:?}: {what}"))
                    {
                        break;
                    }
                    older.lost = true;
                }
            }
            if *mode == Durability::None {
                written.iter_mut().for_each(|written| written.lost = true);
            }
            whole(handle, prefix, at).await;
        }
    }
}

fn value(number: u64) -> String {
    format!("{number:0>120}")
}

fn contains(encoded: &[u8], value: &str) -> bool {
    encoded.windows(value.len()).any(|part| part == value.as_bytes())
}

/// Whether a write is there at its revision. The revision of one that is not must read as compacted.
async fn is_there(handle: &Handle, written: &Written) -> Result<bool, String> {
    let value = value(written.number);
    for side in ["left", "right"] {
        let key = KeyRange::Single(format!("{}-{side}", written.pair).as_str().into());
        match handle.range(query(key, Some(written.revision)), ReadHints::default()).await {
            Ok(answer) => {
                let found = answer.kvs.first();
                let same = |kv: &&Version| {
                    kv.mod_revision() == written.revision && contains(&kv.encoded().to_vec(), &value)
                };
                if found.filter(same).is_none() {
                    return Err(format!("its revision is not compacted but shows {found:?}"));
                }
            }
            Err(KvError::Engine(EngineError::Compacted { .. })) => return Ok(false),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(true)
}

/// Checks that what was written together is there together.
pub async fn whole(handle: &Handle, prefix: &str, at: &str) {
    let all = handle.range(query(KeyRange::prefix(Key::from(prefix)), None), ReadHints::default()).await;
    let all = all.unwrap_or_else(|error| panic!("{at}: {error}"));
    let revisions: BTreeMap<String, Revision> = all
        .kvs
        .iter()
        .map(|kv| (String::from_utf8_lossy(kv.key()).into_owned(), kv.mod_revision()))
        .collect();
    for (key, revision) in &revisions {
        let other = match key.strip_suffix("-left") {
            Some(pair) => format!("{pair}-right"),
            None => format!("{}-left", key.trim_end_matches("-right")),
        };
        assert_eq!(revisions.get(&other), Some(revision), "{at}: half a txn of {key}");
    }
}
