//! Readers of a feed over stores that crash: each one has all that is left, or is cancelled.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::feed_ring::{FeedRing, Read, Start};
use crate::watch_merge::{Command, Entry, Event, Group, SourceIx, WatchMerge};

impl Group for u64 {
    fn join(&mut self, _: Self) {
        unreachable!("no two stores tell of one revision here")
    }
}

fn rev(revision: i64) -> Revision {
    Revision(revision)
}

fn gap(after: i64, until: i64) -> Gap {
    Gap { after: rev(after), until: rev(until) }
}

#[test]
fn r10_a_position_decides() {
    let mut gaps = Gaps::default();
    assert!(gaps.note(gap(10, 20)) && !gaps.note(gap(10, 20)), "told again");
    assert!(!gaps.note(gap(20, 21)), "nothing lies between");
    let told = |next: i64| gaps.pass(rev(next), &mut Passed::default()).err().map(Revision::get);
    assert_eq!([11, 12, 19, 20].map(told), [None, Some(20), Some(20), None]);
}

#[test]
fn r10_who_was_spared_goes_through_the_numbers_and_who_joins_there_does_not() {
    let mut gaps = Gaps::default();
    let mut spared = Passed::default();
    gaps.note(gap(10, 20));
    assert_eq!(gaps.pass(rev(8), &mut spared), Ok(()));
    assert_eq!(gaps.pass(rev(15), &mut spared), Ok(()), "another store's events");
    assert_eq!(gaps.pass(rev(15), &mut Passed::default()), Err(rev(20)));
    gaps.note(gap(12, 30));
    assert_eq!(gaps.pass(rev(15), &mut spared), Err(rev(30)), "the next one is put to it, too");
}

#[test]
fn r10_forgotten_gaps_cancel_whoever_has_not_passed_them() {
    let mut gaps = Gaps::default();
    let mut early = Passed::default();
    gaps.note(gap(0, 5));
    assert_eq!(gaps.pass(rev(1), &mut early), Ok(()));
    for i in 1..=GAPS_MAX as i64 {
        assert_eq!(gaps.pass(rev(3), &mut Passed::default()), Err(rev(5)), "{i}");
        assert_eq!(gaps.pass(rev(1), &mut Passed::default()), Ok(()), "before {i}");
        gaps.note(gap(i * 10, i * 10 + 5));
    }
    assert_eq!(gaps.pass(rev(1), &mut Passed::default()), Err(rev(5)), "nobody knows where the first began");
    assert_eq!(gaps.pass(rev(3), &mut Passed::default()), Err(rev(5)));
    assert_eq!(gaps.pass(rev(6), &mut Passed::default()), Ok(()));
    assert_eq!(gaps.pass(rev(3), &mut early), Ok(()), "it passed the one that was forgotten");
}

/// Seventeen crashes without loss and two of another store, between two reads of a reader that was given nothing lost.
#[test]
fn f53_many_restarts_cancel_nobody_without_need() {
    let mut gaps = Gaps::default();
    let (mut behind, mut ahead) = (Passed::default(), Passed::default());
    for i in 0..19 {
        gaps.note(gap(20 + 3 * i, 23 + 3 * i));
    }
    assert_eq!(gaps.pass(rev(21), &mut behind), Ok(()));
    assert_eq!(gaps.pass(rev(23), &mut behind), Ok(()), "it reads on");
    assert_eq!(gaps.pass(rev(23), &mut ahead), Ok(()), "the first revision of a new incarnation");
    assert_eq!(gaps.pass(rev(22), &mut Passed::default()), Err(rev(23)), "what was lost");
}

const STORES: usize = 2;

#[derive(Debug, Clone)]
enum Act {
    /// A store assigns a revision.
    Write {
        store: usize,
        by: i64,
    },
    /// A store sends events to its feed, and promises its present.
    Tell {
        store: usize,
        events: usize,
    },
    /// A store is killed and loses this many of its latest revisions.
    Crash {
        store: usize,
        lost: usize,
    },
    /// A reader starts this far back.
    Start(i64),
    Read {
        who: prop::sample::Index,
        bytes: usize,
    },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..STORES, 1..4i64).prop_map(|(store, by)| Act::Write { store, by }),
        6 => (0..STORES, 0..4usize).prop_map(|(store, events)| Act::Tell { store, events }),
        2 => (0..STORES, 0..4usize).prop_map(|(store, lost)| Act::Crash { store, lost }),
        3 => (0..12i64).prop_map(Act::Start),
        8 => (any::<prop::sample::Index>(), 1..4usize).prop_map(|(who, bytes)| Act::Read { who, bytes }),
    ]
}

/// All revisions, each with its store and a unique number that distinguishes it from a lost one.
#[derive(Debug, Default)]
struct Stores {
    now: i64,
    events: BTreeMap<i64, (usize, u64)>,
    written: u64,
    /// All gaps of all stores.
    gaps: Vec<(usize, Gap)>,
}

impl Stores {
    fn of(&self, store: usize, from: i64) -> Vec<(i64, u64)> {
        let own = self.events.range(from..).filter(|(_, (of, _))| *of == store);
        own.map(|(revision, (_, id))| (*revision, *id)).collect()
    }

    fn between(&self, from: i64, next: i64) -> Vec<u64> {
        self.events.range(from..next).map(|(_, (_, id))| *id).collect()
    }
}

/// The feed as its task drives it.
struct Feed {
    merge: WatchMerge<u64>,
    ring: FeedRing<u64>,
    gaps: Gaps,
}

impl Feed {
    fn open(&mut self, at: i64) {
        self.merge = WatchMerge::new(STORES, rev(at), 1000);
        self.ring = FeedRing::new(rev(at), 8);
    }

    fn step(&mut self, event: Event<u64>, stores: &Stores) {
        let mut due = vec![event];
        while let Some(event) = due.pop() {
            for command in self.merge.step(event).unwrap() {
                match command {
                    Command::Emit(entry) => self.ring.push(entry).unwrap(),
                    Command::Watermark(revision) => self.ring.watermark(revision).unwrap(),
                    Command::Resume { source, from } => due.push(self.reopen(source, from, stores)),
                    Command::BeginAnew => return self.open(stores.now),
                    _ => {}
                }
            }
        }
    }

    /// Answers an open as a shard does.
    fn reopen(&mut self, source: SourceIx, from: Revision, stores: &Stores) -> Event<u64> {
        let own = stores.gaps.iter().filter(|(store, gap)| *store == source.0 && gap.until > from);
        let mut inside = None;
        for (_, gap) in own {
            self.gaps.note(*gap);
            inside = inside.or(Some(*gap).filter(|gap| gap.holds(from)));
        }
        match inside {
            Some(gap) => Event::RolledBack { source, gap },
            None => Event::SourceResumed { source, from },
        }
    }
}

struct Reader {
    from: i64,
    next: i64,
    passed: Passed,
    seen: Vec<u64>,
    /// It began inside a gap.
    doomed: bool,
}

impl Reader {
    /// Reads once; false if the reader is cancelled as compacted.
    fn read(&mut self, feed: &Feed, stores: &Stores, bytes: usize) -> bool {
        if feed.gaps.pass(rev(self.next), &mut self.passed).is_err() {
            return false;
        }
        match feed.ring.start(rev(self.next)) {
            Start::Here(mut cursor) => {
                let Read::Entries { entries, .. } = feed.ring.read_from(&mut cursor, bytes) else { panic!() };
                self.seen.extend(entries.concat().iter().map(|entry| entry.payload));
                self.next = cursor.next().get();
            }
            // A catch-up, answered from the stores.
            Start::Behind { from } => {
                if stores.gaps.iter().any(|(_, gap)| gap.holds(rev(self.next))) {
                    return false;
                }
                self.seen.extend(stores.between(self.next, from.get()));
                self.next = from.get();
            }
        }
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..Default::default() })]
    /// R10: when every store has told everything, each reader that was not cancelled has exactly the remaining events
    /// of its range. A reader that never stood inside a gap was not cancelled.
    #[test]
    fn r10_no_reader_keeps_what_is_gone(acts in prop::collection::vec(act(), 1..150)) {
        let mut stores = Stores { now: 5, ..Stores::default() };
        let mut feed = Feed {
            merge: WatchMerge::new(STORES, rev(5), 1000),
            ring: FeedRing::new(rev(5), 8),
            gaps: Gaps::default(),
        };
        let mut readers: Vec<Reader> = Vec::new();
        let tell = |feed: &mut Feed, stores: &Stores, store: usize, events: usize| {
            let source = SourceIx(store);
            let from = feed.merge.position(source).unwrap().next().get();
            let due = stores.of(store, from);
            let entry = |(at, id): &(i64, u64)| Entry { revision: rev(*at), bytes: 1, payload: *id };
            let batch: Vec<_> = due.iter().take(events).map(entry).collect();
            let all = batch.len() == due.len();
            if !batch.is_empty() {
                feed.step(Event::Events { source, batch }, stores);
            }
            if all && feed.merge.position(source).unwrap() <= rev(stores.now) {
                feed.step(Event::Watermark { source, revision: rev(stores.now) }, stores);
            }
        };
        for act in acts {
            match act {
                Act::Write { store, by } => {
                    stores.now += by;
                    stores.written += 1;
                    stores.events.insert(stores.now, (store, stores.written));
                }
                Act::Tell { store, events } => tell(&mut feed, &stores, store, events),
                Act::Crash { store, lost } => {
                    let mine = stores.gaps.iter().filter(|(of, _)| *of == store);
                    let born = mine.map(|(_, gap)| gap.until.get()).max().unwrap_or(5);
                    // What an earlier incarnation left is on disk.
                    let own = stores.of(store, born);
                    let kept = own.len().saturating_sub(lost);
                    let after = own[..kept].last().map_or(born, |(at, _)| *at);
                    for (at, _) in &own[kept..] {
                        stores.events.remove(at);
                    }
                    stores.now += 3;
                    stores.gaps.push((store, gap(after, stores.now)));
                    feed.step(Event::SourceLost { source: SourceIx(store) }, &stores);
                }
                Act::Start(back) => {
                    let from = (stores.now + 2 - back).max(6);
                    // What the client was shown before it came here may be lost.
                    let doomed = stores.gaps.iter().any(|(_, gap)| gap.holds(rev(from)));
                    let passed = Passed::default();
                    readers.push(Reader { from, next: from, passed, seen: Vec::new(), doomed });
                }
                Act::Read { who, bytes } if !readers.is_empty() => {
                    let who = who.index(readers.len());
                    if !readers[who].read(&feed, &stores, bytes) {
                        let next = readers[who].next;
                        let held = stores.gaps.iter().any(|(_, gap)| gap.holds(rev(next)));
                        prop_assert!(held, "cancelled without need at {next}");
                        readers.remove(who);
                    }
                }
                Act::Read { .. } => {}
            }
        }
        stores.now += 1;
        (0..STORES).for_each(|store| tell(&mut feed, &stores, store, usize::MAX));
        for mut reader in readers {
            let mut there = true;
            while there && reader.next <= stores.now {
                there = reader.read(&feed, &stores, 100);
            }
            if there {
                let whole = stores.between(reader.from, reader.next);
                prop_assert!(!reader.doomed, "from {}", reader.from);
                prop_assert_eq!(&reader.seen, &whole, "from {} to {}", reader.from, reader.next);
            }
        }
    }
}
