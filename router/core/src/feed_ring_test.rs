use proptest::prelude::*;

use super::*;

fn rev(revision: i64) -> Revision {
    Revision(revision)
}

fn entry(revision: i64, bytes: usize) -> Entry<i64> {
    Entry { revision: rev(revision), bytes, payload: revision }
}

/// A ring that begins after 10 and holds 12, 15 and 20, of 4 bytes each.
fn ring() -> FeedRing<i64> {
    let mut ring = FeedRing::new(rev(10), 12);
    for revision in [12, 15, 20] {
        ring.push(entry(revision, 4)).unwrap();
    }
    ring
}

fn cursor(ring: &FeedRing<i64>, at: i64) -> Cursor {
    match ring.start(rev(at)) {
        Start::Here(cursor) => cursor,
        other => panic!("{other:?}"),
    }
}

/// The revisions that are read, and the watermark.
fn read(ring: &FeedRing<i64>, cursor: &mut Cursor, max_bytes: usize) -> (Vec<i64>, Option<i64>) {
    match ring.read_from(cursor, max_bytes) {
        Read::Entries { entries, watermark } => {
            (entries.concat().iter().map(|entry| entry.payload).collect(), watermark.map(Revision::get))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_cursor_gets_whole_revisions_and_then_the_watermark() {
    let mut ring = ring();
    let mut at = cursor(&ring, 11);
    assert_eq!(read(&ring, &mut at, 8), (vec![12, 15], None));
    assert_eq!(at.next(), rev(16));
    assert_eq!(read(&ring, &mut at, 1), (vec![20], Some(20)), "at least one, however large");
    assert_eq!(read(&ring, &mut at, 1), (vec![], Some(20)));
    ring.watermark(rev(30)).unwrap();
    assert_eq!(read(&ring, &mut at, 1), (vec![], Some(30)));
    assert_eq!(at.next(), rev(31), "an idle watch moves on");
}

#[test]
fn falling_off_is_said() {
    let mut ring = ring();
    let mut slow = cursor(&ring, 11);
    let mut exact = cursor(&ring, 13);
    ring.push(entry(21, 4)).unwrap();
    assert_eq!((ring.floor(), ring.bytes()), (rev(12), 12));
    assert_eq!(ring.read_from(&mut slow, 99), Read::Behind { from: rev(13) });
    assert_eq!(slow.next(), rev(11), "history starts there");
    assert_eq!(read(&ring, &mut exact, 99).0, vec![15, 20, 21]);
    assert_eq!(ring.start(rev(12)), Start::Behind { from: rev(13) });
    assert!(ring.can_start(rev(13)) && ring.can_start(rev(1_000)));
}

#[test]
fn the_newest_stays_though_it_is_above_the_budget() {
    let mut ring = ring();
    ring.push(entry(22, 1_000)).unwrap();
    assert_eq!((ring.floor(), ring.bytes()), (rev(20), 1_000));
    ring.shrink(0);
    assert_eq!((ring.floor(), ring.bytes()), (rev(22), 0));
    assert_eq!(read(&ring, &mut cursor(&ring, 23), 9), (vec![], Some(22)));
}

#[test]
fn a_future_start_gets_nothing_until_then() {
    let mut ring = ring();
    let mut future = cursor(&ring, 25);
    assert_eq!(read(&ring, &mut future, 99), (vec![], Some(20)));
    ring.push(entry(24, 1)).unwrap();
    assert_eq!(read(&ring, &mut future, 99), (vec![], Some(24)));
    ring.push(entry(26, 1)).unwrap();
    assert_eq!(read(&ring, &mut future, 99), (vec![26], Some(26)));
}

/// E6
#[test]
fn pitfall_e6_the_ring_takes_nothing_below_its_watermark() {
    let mut ring = ring();
    ring.watermark(rev(25)).unwrap();
    let late = RingError::LateEvent { revision: rev(25), covered: rev(25) };
    assert_eq!(ring.push(entry(25, 1)), Err(late));
    let back = RingError::WatermarkBack { revision: rev(24), covered: rev(25) };
    assert_eq!(ring.watermark(rev(24)), Err(back));
}

#[derive(Debug, Clone)]
enum Act {
    Push { skip: i64, bytes: usize },
    Watermark(i64),
    Start(i64),
    Read { who: prop::sample::Index, max_bytes: usize },
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (1..4i64, 0..6usize).prop_map(|(skip, bytes)| Act::Push { skip, bytes }),
        2 => (0..4i64).prop_map(Act::Watermark),
        3 => (0..30i64).prop_map(Act::Start),
        8 => (any::<prop::sample::Index>(), 0..12usize)
            .prop_map(|(who, max_bytes)| Act::Read { who, max_bytes }),
    ]
}

/// A watch, with everything that it read from the ring or from history.
#[derive(Debug)]
struct Watch {
    cursor: Cursor,
    from: i64,
    got: Vec<i64>,
}

/// All events of the feed.
#[derive(Debug, Default)]
struct Truth {
    events: Vec<i64>,
}

impl Truth {
    fn between(&self, from: i64, next: i64) -> Vec<i64> {
        self.events.iter().copied().filter(|at| (from..next).contains(at)).collect()
    }
}

fn read_as(watch: &mut Watch, ring: &FeedRing<i64>, truth: &Truth, max_bytes: usize) {
    match ring.read_from(&mut watch.cursor, max_bytes) {
        Read::Entries { entries, watermark } => {
            watch.got.extend(entries.concat().iter().map(|entry| entry.payload));
            let whole = truth.between(watch.from, watch.cursor.next().get());
            assert_eq!(watch.got, whole, "a gap, a double or a lost event");
            assert!(watermark.is_none_or(|at| watch.cursor.next() > at));
        }
        Read::Behind { from } => {
            let next = watch.cursor.next().get();
            assert!(next < from.get(), "behind without need");
            watch.got.extend(truth.between(next, from.get()));
            match ring.start(from) {
                Start::Here(cursor) => watch.cursor = cursor,
                Start::Behind { .. } => panic!("the ring's own floor is behind"),
            }
        }
    }
}

proptest! {
    /// Whatever a watch reads, and from where, it has each event from its start to its cursor exactly once.
    #[test]
    fn no_watch_ever_has_a_silent_gap(
        budget in 0..20usize,
        acts in prop::collection::vec(act(), 1..200),
    ) {
        let mut ring = FeedRing::new(rev(5), budget);
        let mut truth = Truth::default();
        let mut watches: Vec<Watch> = Vec::new();
        for act in acts {
            match act {
                Act::Push { skip, bytes } => {
                    let at = ring.covered().get() + skip;
                    truth.events.push(at);
                    ring.push(entry(at, bytes)).unwrap();
                }
                Act::Watermark(skip) => ring.watermark(rev(ring.covered().get() + skip)).unwrap(),
                Act::Start(back) => {
                    let from = (ring.covered().get() + 3 - back).max(6);
                    if let Start::Here(cursor) = ring.start(rev(from)) {
                        watches.push(Watch { cursor, from, got: Vec::new() });
                    }
                }
                Act::Read { who, max_bytes } if !watches.is_empty() => {
                    let who = who.index(watches.len());
                    read_as(&mut watches[who], &ring, &truth, max_bytes);
                }
                Act::Read { .. } => {}
            }
            prop_assert!(ring.bytes() <= budget || ring.entries.len() == 1);
        }
    }
}
