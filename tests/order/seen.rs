//! What the clients have seen of a Kind, and what is wrong with it.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::SeqCst},
    },
    time::Instant,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tonic::Status;

const EXAMPLES_MAX: usize = 8;

/// A write that was acknowledged.
#[derive(Debug, Clone)]
pub struct Write {
    pub called: Instant,
    pub revision: i64,
    pub key: Bytes,
}

/// A watch that began behind an acknowledgement.
#[derive(Debug)]
pub struct Watch {
    /// When the write was acknowledged that it begins behind.
    pub acknowledged: Instant,
    pub from: i64,
    pub router: usize,
    /// The revision and the key of each event.
    pub events: Mutex<Vec<(i64, Bytes)>>,
}

fn keep(examples: &Mutex<Vec<String>>, example: String) {
    let mut examples = examples.lock();
    if examples.len() < EXAMPLES_MAX {
        examples.push(example);
    }
}

/// What all clients have seen.
#[derive(Debug, Default)]
pub struct Seen {
    /// The highest revision that was shown to anybody.
    shown: AtomicI64,
    unknown: AtomicU64,
    reads: AtomicU64,
    below: AtomicU64,
    stale: AtomicU64,
    writes: Mutex<Vec<Write>>,
    examples: Mutex<Vec<String>>,
    failures: Mutex<Vec<String>>,
}

impl Seen {
    /// The revision that whatever is asked for from now on must cover.
    pub fn shown(&self) -> i64 {
        self.shown.load(SeqCst)
    }

    pub fn writes(&self) -> u64 {
        self.writes.lock().len() as u64
    }

    /// A write was acknowledged. `floor` was shown before it was called.
    pub fn wrote(&self, router: usize, write: Write, floor: i64) {
        if write.revision <= floor {
            self.below.fetch_add(1, SeqCst);
            keep(
                &self.examples,
                format!(
                    "router {router} acknowledged a write of {:?} at {}, {} after {floor} was shown",
                    write.key,
                    write.revision,
                    millis(floor, write.revision)
                ),
            );
        }
        self.shown.fetch_max(write.revision, SeqCst);
        self.writes.lock().push(write);
    }

    /// A request had no answer, or failed.
    pub fn failed(&self, status: &Status) {
        self.unknown.fetch_add(1, SeqCst);
        keep(&self.failures, format!("{:?}: {}", status.code(), status.message()));
    }

    /// A read was answered with this revision in its header.
    pub fn read(&self, router: usize, what: &str, revision: i64, floor: i64) {
        self.reads.fetch_add(1, SeqCst);
        if revision < floor {
            self.stale.fetch_add(1, SeqCst);
            let below = millis(floor, revision);
            keep(
                &self.examples,
                format!("router {router} answered {what} at {revision}, {below} after {floor} was shown"),
            );
        }
        self.shown.fetch_max(revision, SeqCst);
    }

    /// An event was received.
    pub fn received(&self, revision: i64) {
        self.shown.fetch_max(revision, SeqCst);
    }

    /// Judges the watches, of which each has received all that it will.
    pub fn counts(&self, watches: &[Arc<Watch>]) -> Counts {
        let writes = self.writes.lock();
        let (mut events, mut disordered, mut missing, mut under) = (0, 0, 0, 0);
        for watch in watches {
            let received = watch.events.lock();
            events += received.len() as u64;
            let revisions = || received.iter().map(|(revision, _)| *revision);
            let early = revisions().filter(|revision| *revision < watch.from).count();
            let turned = revisions().zip(revisions().skip(1)).filter(|(one, next)| next < one).count();
            disordered += (early + turned) as u64;
            let has: BTreeSet<_> = received.iter().map(|(revision, key)| (*revision, key)).collect();
            for write in writes.iter().filter(|write| write.called > watch.acknowledged) {
                if !has.contains(&(write.revision, &write.key)) {
                    let count = if write.revision < watch.from { &mut under } else { &mut missing };
                    *count += 1;
                    keep(
                        &self.examples,
                        format!(
                            "a watch from {} through router {} does not show the later write of {:?} at {}",
                            watch.from, watch.router, write.key, write.revision
                        ),
                    );
                }
            }
        }
        Counts {
            writes: writes.len() as u64,
            reads: self.reads.load(SeqCst),
            watches: watches.len() as u64,
            events,
            unknown: self.unknown.load(SeqCst),
            below: self.below.load(SeqCst),
            stale: self.stale.load(SeqCst),
            disordered,
            missing,
            under,
            examples: self.examples.lock().clone(),
            failures: self.failures.lock().clone(),
        }
    }
}

/// How far one revision is above another, if they are times.
fn millis(above: i64, below: i64) -> String {
    format!("{} ms below,", ((above >> 10) - (below >> 10)) / 1000)
}

/// What was seen, and how much of it is wrong.
#[derive(Debug)]
pub struct Counts {
    pub writes: u64,
    pub reads: u64,
    pub watches: u64,
    pub events: u64,
    /// Requests without an answer, or that failed.
    pub unknown: u64,
    /// Writes that were acknowledged at or below what was shown before.
    pub below: u64,
    /// Answers below what was shown before.
    pub stale: u64,
    /// Events that came to a watch below its beginning, or below an earlier one.
    pub disordered: u64,
    /// Events that did not come to a watch.
    pub missing: u64,
    /// The same of writes that were acknowledged later, and below the watch's beginning.
    pub under: u64,
    pub examples: Vec<String>,
    /// Why requests failed.
    pub failures: Vec<String>,
}

impl Counts {
    pub fn is_sound(&self) -> bool {
        self.below + self.stale + self.under == 0 && self.shows_all()
    }

    /// Whether each watch showed all from its beginning on, and in order.
    pub fn shows_all(&self) -> bool {
        self.disordered + self.missing == 0
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            writes, reads, watches, events, unknown, below, stale, under, disordered, missing, ..
        } = self;
        write!(
            f,
            "writes={writes} reads={reads} watches={watches} events={events} unknown={unknown} below={below} \
             stale={stale} under={under} disordered={disordered} missing={missing}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(called: Instant, revision: i64) -> Write {
        Write { called, revision, key: Bytes::from_static(b"k") }
    }

    #[test]
    fn each_thing_that_is_wrong_is_counted() {
        let (seen, key) = (Seen::default(), Bytes::from_static(b"k"));
        let acknowledged = Instant::now();
        let later = acknowledged + std::time::Duration::from_secs(1);
        seen.wrote(0, write(acknowledged, 10), seen.shown());
        seen.wrote(1, write(later, 9), 10);
        seen.read(1, "a get", 9, seen.shown());
        seen.wrote(0, write(later, 12), 10);
        seen.wrote(0, write(later, 13), 12);
        let events = Mutex::new(vec![(12, key.clone()), (11, key)]);
        let found = seen.counts(&[Arc::new(Watch { acknowledged, from: 11, router: 0, events })]);
        let counts = [found.below, found.stale, found.under, found.disordered, found.missing];
        assert_eq!(counts, [1, 1, 1, 1, 1], "{found:?}");
        assert!(!found.is_sound() && !found.shows_all());
    }
}
