//! Tables for each rule, then random interleavings of simulated stores, checked against all their events in order.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const A: SourceIx = SourceIx(0);
const B: SourceIx = SourceIx(1);

/// The payload is a number; joining adds what the stores have of a revision.
impl Group for i64 {
    fn join(&mut self, more: Self) {
        *self += more;
    }
}

fn rev(revision: i64) -> Revision {
    Revision(revision)
}

fn entry(revision: i64) -> Entry<i64> {
    Entry { revision: rev(revision), bytes: 1, payload: revision }
}

fn events(source: SourceIx, revisions: &[i64]) -> Event<i64> {
    Event::Events { source, batch: revisions.iter().map(|revision| entry(*revision)).collect() }
}

fn watermark(source: SourceIx, revision: i64) -> Event<i64> {
    Event::Watermark { source, revision: rev(revision) }
}

fn emit(revision: i64) -> Command<i64> {
    Command::Emit(entry(revision))
}

fn advance(source: SourceIx, to: i64) -> Command<i64> {
    Command::Advance { source, to: rev(to) }
}

#[test]
fn one_source_passes_through_at_once() {
    let mut merge = WatchMerge::new(1, rev(4), 0);
    assert_eq!(merge.step(events(A, &[5, 7])), Ok(vec![emit(5), emit(7)]));
    assert_eq!(merge.step(watermark(A, 7)), Ok(vec![]), "the event said as much");
    assert_eq!(merge.step(watermark(A, 9)), Ok(vec![Command::Watermark(rev(9))]));
}

/// R6
#[test]
fn an_event_waits_for_the_watermarks_of_all_others() {
    let mut merge = WatchMerge::new(3, rev(0), 100);
    let c = SourceIx(2);
    assert_eq!(merge.step(events(A, &[5])), Ok(vec![advance(B, 5), advance(c, 5)]));
    assert_eq!(merge.step(events(B, &[3])), Ok(vec![]), "one ask is under way");
    assert_eq!(merge.holding_back().collect::<Vec<_>>(), vec![c]);
    assert_eq!(merge.step(watermark(c, 9)), Ok(vec![emit(3)]));
    assert_eq!(merge.step(watermark(B, 6)), Ok(vec![emit(5)]));
    assert_eq!(merge.merged(), rev(5));
    assert_eq!(merge.step(watermark(A, 8)), Ok(vec![Command::Watermark(rev(6))]));
}

#[test]
fn asks_are_shared_under_load() {
    let mut merge = WatchMerge::new(2, rev(0), 100);
    assert_eq!(merge.step(events(A, &[1])), Ok(vec![advance(B, 1)]));
    for revision in 2..50 {
        assert_eq!(merge.step(events(A, &[revision])), Ok(vec![]));
    }
    assert_eq!(merge.step(watermark(B, 1)), Ok(vec![emit(1), advance(B, 49)]), "the newest need");
    let all: Vec<_> = (2..50).map(emit).collect();
    assert_eq!(merge.step(watermark(B, 49)), Ok(all));
}

/// R7
#[test]
fn a_wanted_revision_is_asked_of_those_below_it_and_one_at_a_time() {
    let mut merge = WatchMerge::new(2, rev(0), 100);
    merge.step(watermark(A, 12)).unwrap();
    let want = |to| Event::Want { to: rev(to) };
    assert_eq!(merge.step(want(10)), Ok(vec![advance(B, 10)]), "the other one has proved it");
    assert_eq!(merge.step(want(20)), Ok(vec![advance(A, 20)]), "B is being asked");
    assert_eq!(merge.step(want(5)), Ok(vec![]), "what is wanted never goes back");
    let told = vec![Command::Watermark(rev(10)), advance(B, 20)];
    assert_eq!(merge.step(watermark(B, 10)), Ok(told));
    assert_eq!(merge.step(watermark(B, 20)), Ok(vec![Command::Watermark(rev(12))]));
    // A source that was lost meanwhile is asked again when it is back.
    merge.step(Event::SourceLost { source: A }).unwrap();
    let back = merge.step(Event::SourceResumed { source: A, from: rev(13) });
    assert_eq!(back, Ok(vec![advance(A, 20)]));
    assert_eq!(merge.step(watermark(A, 25)), Ok(vec![Command::Watermark(rev(20))]));
}

/// E6, R1
#[test]
fn pitfall_e6_late_and_double_input_is_an_error_and_changes_nothing() {
    let mut merge = WatchMerge::new(2, rev(10), 100);
    let late = |revision, proved| {
        Err(MergeError::LateEvent { source_ix: A, revision: rev(revision), proved: rev(proved) })
    };
    assert_eq!(merge.step(events(A, &[10])), late(10, 10));
    merge.step(watermark(A, 20)).unwrap();
    assert_eq!(merge.step(events(A, &[20])), late(20, 20));
    assert_eq!(merge.step(events(A, &[21, 23, 22])), late(22, 23));
    assert_eq!(merge.buffered_bytes(), 0, "not half a batch");
    let back = MergeError::WatermarkBack { source_ix: A, revision: rev(19), proved: rev(20) };
    assert_eq!(merge.step(watermark(A, 19)), Err(back));
    merge.step(events(A, &[21])).unwrap();
    assert_eq!(merge.step(watermark(SourceIx(2), 1)), Err(MergeError::UnknownSource(SourceIx(2))));
    assert_eq!(merge.step(watermark(B, 30)), Ok(vec![emit(21)]));
}

/// A transaction over keys that have since moved to two stores.
#[test]
fn f24_a_revision_that_several_stores_tell_of_is_one_group() {
    let both = || Command::Emit(Entry { revision: rev(5), bytes: 2, payload: 10 });
    let mut merge = WatchMerge::new(2, rev(0), 100);
    merge.step(events(A, &[5, 7])).unwrap();
    assert_eq!(merge.step(watermark(B, 4)), Ok(vec![Command::Watermark(rev(4))]), "not half of it");
    assert_eq!(merge.step(events(B, &[5])), Ok(vec![both()]));
    assert_eq!((merge.merged(), merge.buffered_bytes()), (rev(5), 1));
    // A store that loses its part before it was emitted loses no other store's part.
    let mut merge = WatchMerge::new(2, rev(0), 100);
    merge.step(events(A, &[5])).unwrap();
    merge.step(Event::SourceLost { source: A }).unwrap();
    merge.step(Event::RolledBack { source: A, gap: Gap { after: rev(4), until: rev(9) } }).unwrap();
    merge.step(events(B, &[5])).unwrap();
    merge.step(Event::SourceResumed { source: A, from: rev(5) }).unwrap();
    assert_eq!(merge.step(watermark(A, 9)), Ok(vec![emit(5)]));
}

#[test]
fn a_lost_source_resumes_behind_what_it_proved() {
    let mut merge = WatchMerge::new(2, rev(0), 100);
    merge.step(events(A, &[5])).unwrap();
    merge.step(watermark(B, 3)).unwrap();
    let lost = |source| Event::SourceLost { source };
    let resumed = |source, from| Event::SourceResumed { source, from: rev(from) };
    assert_eq!(merge.step(lost(A)), Ok(vec![Command::Resume { source: A, from: rev(6) }]));
    assert_eq!(merge.step(lost(B)), Ok(vec![Command::Resume { source: B, from: rev(4) }]));
    assert_eq!(merge.step(events(B, &[4])), Err(MergeError::WrongState { source_ix: B }), "the old stream");
    let wrong = MergeError::WrongResume { source_ix: B, from: rev(6), wanted: rev(4) };
    assert_eq!(merge.step(resumed(B, 6)), Err(wrong));
    assert_eq!(merge.step(resumed(B, 4)), Ok(vec![advance(B, 5)]), "asked afresh");
    assert_eq!(merge.step(events(B, &[4, 7])), Ok(vec![emit(4), emit(5)]), "what A sent was kept");
    assert_eq!(merge.step(resumed(A, 6)), Ok(vec![advance(A, 7)]));
}

/// R10
#[test]
fn a_rolled_back_source_forgets_what_was_not_shown_and_ends_what_was() {
    let back = |last| Event::RolledBack { source: A, gap: Gap { after: rev(last), until: rev(100) } };
    let mut merge = WatchMerge::new(2, rev(0), 100);
    merge.step(events(A, &[5, 8])).unwrap();
    merge.step(watermark(B, 6)).unwrap();
    assert_eq!(merge.step(back(7)), Err(MergeError::WrongState { source_ix: A }));
    merge.step(Event::SourceLost { source: A }).unwrap();
    assert_eq!(merge.step(back(7)), Ok(vec![Command::Resume { source: A, from: rev(8) }]));
    assert_eq!(merge.buffered_bytes(), 0);
    assert_eq!(merge.step(back(5)), Ok(vec![Command::BeginAnew]), "6 was promised");
    assert_eq!(merge.step(watermark(B, 9)), Err(MergeError::Ended));
}

#[test]
fn lost_history_ends_the_stream() {
    let mut merge = WatchMerge::<i64>::new(2, rev(0), 100);
    let compacted: Event<i64> = Event::Compacted { source: B, floor: rev(50) };
    assert_eq!(merge.step(compacted.clone()), Ok(vec![Command::Compacted { floor: rev(50) }]));
    assert_eq!(merge.step(compacted), Err(MergeError::Ended));
}

/// R3: a store that cannot follow is not asked in a loop.
#[test]
fn a_failed_advance_waits_for_the_back_off() {
    let mut merge = WatchMerge::new(2, rev(0), 100);
    merge.step(events(A, &[5])).unwrap();
    assert_eq!(merge.step(Event::AdvanceFailed { source: B }), Ok(vec![]));
    assert_eq!(merge.step(events(A, &[6])), Ok(vec![]));
    assert_eq!(merge.step(Event::Retry { source: B }), Ok(vec![advance(B, 6)]));
    assert_eq!(merge.step(watermark(B, 6)), Ok(vec![emit(5), emit(6)]));
    assert_eq!(merge.step(Event::AdvanceFailed { source: B }), Ok(vec![]), "of a settled ask");
    assert_eq!(merge.step(events(A, &[7])), Ok(vec![advance(B, 7)]));
}

#[test]
fn a_full_buffer_pauses_all_but_those_that_hold_back() {
    let mut merge = WatchMerge::new(3, rev(0), 2);
    let c = SourceIx(2);
    merge.step(watermark(c, 8)).unwrap();
    let over = merge.step(events(A, &[1, 2, 9])).unwrap();
    assert_eq!(
        over,
        vec![Command::Pause(A), Command::Pause(c), Command::Lagging(B), advance(B, 9)],
        "C stands above the bound"
    );
    assert_eq!(merge.step(watermark(B, 1)), Ok(vec![emit(1)]), "still over half");
    let freed = merge.step(watermark(B, 9)).unwrap();
    assert_eq!(
        freed,
        vec![emit(2), Command::Watermark(rev(8)), Command::Unpause(A), Command::Unpause(c), advance(c, 9)]
    );
}

/// A store: its log, its clock, and its messages on the way to the merge.
#[derive(Debug, Default)]
struct Store {
    log: Vec<i64>,
    promised: i64,
    wire: VecDeque<Event<i64>>,
    lost: Option<Revision>,
    paused: bool,
}

/// What a random step does to a store.
#[derive(Debug, Clone)]
enum Act {
    Write {
        clock: i64,
        count: usize,
    },
    Deliver(usize),
    Promise,
    Lose,
    Resume,
    Idle,
    /// A transaction whose keys have since moved to two stores, so that both have a part of it.
    Shared,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..4i64, 1..5usize).prop_map(|(clock, count)| Act::Write { clock, count }),
        6 => (1..4usize).prop_map(Act::Deliver),
        1 => Just(Act::Promise),
        1 => Just(Act::Lose),
        2 => Just(Act::Resume),
        1 => Just(Act::Idle),
        2 => Just(Act::Shared),
    ]
}

struct World {
    merge: WatchMerge<i64>,
    stores: Vec<Store>,
    slots: i64,
    budget: usize,
    emitted: Vec<i64>,
    watermark: i64,
    asks: Vec<usize>,
}

impl World {
    fn new(stores: usize, budget: usize) -> Self {
        Self {
            merge: WatchMerge::new(stores, rev(0), budget),
            stores: (0..stores).map(|_| Store::default()).collect(),
            slots: stores as i64,
            budget,
            emitted: Vec::new(),
            watermark: 0,
            asks: vec![0; stores],
        }
    }

    /// The store's first revision above all that it has assigned or promised.
    fn assign(&self, store: usize, skip: i64) -> i64 {
        let last = self.stores[store].log.last().copied().unwrap_or(0).max(self.stores[store].promised);
        (last / self.slots + 1 + skip) * self.slots + store as i64
    }

    fn act(&mut self, store: usize, act: &Act) {
        match *act {
            Act::Write { clock, count } => {
                let revisions: Vec<_> = (0..count)
                    .map(|_| {
                        let revision = self.assign(store, clock);
                        self.stores[store].log.push(revision);
                        revision
                    })
                    .collect();
                if self.stores[store].lost.is_none() {
                    self.stores[store].wire.push_back(events(SourceIx(store), &revisions));
                }
            }
            Act::Deliver(count) => (0..count).for_each(|_| {
                self.deliver(store);
            }),
            Act::Promise => self.promise(store, 0),
            Act::Shared => {
                let other = (store + 1) % self.stores.len();
                let revision = self.assign(store, 0).max(self.assign(other, 0));
                let of: std::collections::BTreeSet<usize> = [store, other].into();
                for store in of {
                    self.stores[store].log.push(revision);
                    if self.stores[store].lost.is_none() {
                        self.stores[store].wire.push_back(events(SourceIx(store), &[revision]));
                    }
                }
            }
            Act::Lose if self.stores[store].lost.is_none() => {
                self.stores[store].wire.clear();
                self.step(Event::SourceLost { source: SourceIx(store) });
            }
            Act::Resume => self.resume(store),
            Act::Lose | Act::Idle => {}
        }
    }

    fn promise(&mut self, store: usize, to: i64) {
        let at = to.max(self.stores[store].promised).max(self.stores[store].log.last().copied().unwrap_or(0));
        let store_state = &mut self.stores[store];
        store_state.promised = at;
        if store_state.lost.is_none() {
            store_state.wire.push_back(watermark(SourceIx(store), at));
        }
    }

    fn resume(&mut self, store: usize) {
        let Some(from) = self.stores[store].lost.take() else { return };
        let again: Vec<_> = self.stores[store].log.iter().copied().filter(|at| *at >= from.get()).collect();
        self.stores[store].paused = false;
        if !again.is_empty() {
            self.stores[store].wire.push_back(events(SourceIx(store), &again));
        }
        self.step(Event::SourceResumed { source: SourceIx(store), from });
    }

    fn deliver(&mut self, store: usize) -> bool {
        if self.stores[store].paused {
            return false;
        }
        let Some(message) = self.stores[store].wire.pop_front() else { return false };
        self.step(message);
        true
    }

    fn step(&mut self, event: Event<i64>) {
        for command in self.merge.step(event).unwrap() {
            match command {
                Command::Emit(entry) => {
                    // Ordered, unique and atomic: everything written at this revision comes together.
                    assert!(entry.revision.get() > self.watermark.max(0), "below a watermark (bookmarkable)");
                    let at = entry.revision.get();
                    let parts = self.stores.iter().filter(|store| store.log.contains(&at)).count() as i64;
                    assert_eq!(entry.payload, parts * at, "every store's part of it");
                    self.watermark = at;
                    self.emitted.push(at);
                }
                Command::Watermark(at) => {
                    assert!(at.get() > self.watermark);
                    self.watermark = at.get();
                }
                Command::Advance { source, to } => {
                    self.asks[source.0] += 1;
                    self.promise(source.0, to.get());
                }
                Command::Resume { source, from } => self.stores[source.0].lost = Some(from),
                Command::Pause(source) => self.stores[source.0].paused = true,
                Command::Unpause(source) => self.stores[source.0].paused = false,
                Command::Lagging(_) => {}
                Command::Compacted { .. } | Command::BeginAnew => panic!("nothing was lost"),
            }
        }
        let safe = self.written().into_iter().filter(|at| *at <= self.watermark);
        assert_eq!(
            safe.collect::<Vec<_>>(),
            self.emitted,
            "reliable: nothing at or below the watermark is missing"
        );
    }

    fn written(&self) -> Vec<i64> {
        let mut all: Vec<_> = self.stores.iter().flat_map(|store| store.log.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Delivers everything that is under way; nothing more is written.
    fn drain(&mut self) {
        for store in 0..self.stores.len() {
            self.resume(store);
        }
        let mut moving = true;
        while moving {
            moving = false;
            for store in 0..self.stores.len() {
                moving |= self.deliver(store);
            }
        }
    }
}

proptest! {
    /// Safety at each step: ordered, unique, reliable, atomic, bookmarkable, and resumable after each loss of a source.
    /// Liveness: once all advances are answered and everything has arrived, everything was emitted, whatever the
    /// budget.
    #[test]
    fn the_merged_stream_is_the_sort_of_all_events(
        stores in 1..6usize,
        budget in 0..12usize,
        acts in prop::collection::vec((any::<prop::sample::Index>(), act()), 0..160),
    ) {
        let mut world = World::new(stores, budget);
        for (store, act) in &acts {
            world.act(store.index(stores), act);
            let batch_max = world.stores.iter().map(|store| store.log.len()).max().unwrap_or(0);
            prop_assert!(world.merge.buffered_bytes() <= world.budget + stores * batch_max);
        }
        world.drain();
        prop_assert_eq!(&world.emitted, &world.written());
        prop_assert!(world.stores.iter().all(|store| store.wire.is_empty()), "no source is stuck paused");
        prop_assert_eq!(world.merge.buffered_bytes(), 0);
    }

    /// Resumable: a new merge at any promised revision delivers exactly the rest.
    #[test]
    fn a_new_merge_behind_a_watermark_delivers_the_rest(
        stores in 1..5usize,
        acts in prop::collection::vec((any::<prop::sample::Index>(), act()), 1..80),
        more in prop::collection::vec((any::<prop::sample::Index>(), act()), 0..80),
    ) {
        let mut world = World::new(stores, 6);
        acts.iter().for_each(|(store, act)| world.act(store.index(stores), act));
        let at = world.merge.merged();
        prop_assert_eq!(at.get(), world.watermark);
        world.merge = WatchMerge::new(stores, at, 6);
        for store in 0..stores {
            world.stores[store].wire.clear();
            world.step(Event::SourceLost { source: SourceIx(store) });
        }
        more.iter().for_each(|(store, act)| world.act(store.index(stores), act));
        world.drain();
        prop_assert_eq!(&world.emitted, &world.written());
    }

    /// One request per source at a time: there are never more requests than answers + 1.
    #[test]
    fn asks_are_bounded_by_answers(count in 1..200i64) {
        let mut world = World::new(2, usize::MAX);
        for i in 0..count {
            world.act(0, &Act::Write { clock: 0, count: 1 });
            world.act(0, &Act::Deliver(1));
            if i % 20 == 19 {
                world.act(1, &Act::Deliver(1));
            }
        }
        prop_assert!(world.asks[1] as i64 <= count / 20 + 1);
    }
}
