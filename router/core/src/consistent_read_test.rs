//! Tables for each path, then random reads among random writes to simulated stores.

use proptest::prelude::*;

use super::*;

const A: StoreIx = StoreIx(0);
const B: StoreIx = StoreIx(1);

fn rev(revision: i64) -> Revision {
    Revision(revision)
}

fn read(store: StoreIx, min_revision: i64) -> Command {
    Command::Read { store, min_revision: rev(min_revision) }
}

fn current(store: StoreIx, min_revision: i64) -> Command {
    Command::Current { store, min_revision: rev(min_revision) }
}

fn read_at(store: StoreIx, revision: i64) -> Command {
    Command::ReadAt { store, revision: rev(revision) }
}

fn answered(store: StoreIx, header: i64) -> Event {
    Event::Answered { store, header: rev(header) }
}

fn raised(store: StoreIx, current: i64) -> Event {
    Event::Raised { store, current: rev(current) }
}

fn done(at: i64, header: i64) -> Result<Vec<Command>, ReadError> {
    Ok(vec![Command::Done { at: rev(at), header: rev(header) }])
}

fn begin(mode: Mode, stores: &[StoreIx], shown: i64) -> (ConsistentRead, Vec<Command>) {
    ConsistentRead::start(mode, stores, rev(shown))
}

/// R5, R8
#[test]
fn without_writes_since_it_is_one_round_trip() {
    let (mut now, commands) = begin(Mode::Now, &[A, B], 40);
    assert_eq!(commands, vec![read(A, 40), read(B, 40)]);
    assert_eq!(now.step(answered(B, 40)), Ok(vec![]));
    assert_eq!(now.step(answered(A, 40)), done(40, 40));
    assert_eq!(now.step(answered(A, 40)), Err(ReadError::Unexpected(A)));
}

/// R5
#[test]
fn a_store_below_the_target_confirms_or_reads_again() {
    let confirm = Ok(vec![Command::Confirm { store: B, since: rev(40), to: rev(50) }]);
    let (mut now, _) = begin(Mode::Now, &[A, B], 40);
    now.step(answered(A, 50)).unwrap();
    assert_eq!(now.step(answered(B, 40)), confirm);
    assert_eq!(now.step(Event::Unchanged { store: B, to: rev(50) }), done(50, 50));

    let (mut now, _) = begin(Mode::Now, &[A, B], 40);
    now.step(answered(A, 50)).unwrap();
    assert_eq!(now.step(answered(B, 40)), confirm);
    assert_eq!(now.step(Event::Changed { store: B, to: rev(50) }), Ok(vec![read_at(B, 50)]));
    assert_eq!(now.step(answered(B, 70)), done(50, 50), "others have not promised 70");
}

/// R8: a single store that cannot follow answers with its own revision.
#[test]
fn min_revision_is_a_hint() {
    let (mut now, _) = begin(Mode::Now, &[A], 40);
    assert_eq!(now.step(answered(A, 30)), done(30, 30));
}

/// R3, R8
#[test]
fn a_store_that_cannot_follow_to_the_target_is_an_error() {
    let error = ReadError::CannotFollow { store: B, to: rev(50) };
    let (mut now, _) = begin(Mode::Now, &[A, B], 50);
    now.step(answered(A, 50)).unwrap();
    now.step(answered(B, 40)).unwrap();
    assert_eq!(now.step(Event::CannotFollow { store: B }), Err(error));
    assert_eq!(now.step(Event::Unchanged { store: B, to: rev(50) }), Err(ReadError::Unexpected(B)), "over");

    let (mut probe, _) = begin(Mode::Current, &[A, B], 0);
    probe.step(raised(A, 50)).unwrap();
    assert_eq!(probe.step(raised(B, 3)), Ok(vec![Command::Raise { store: B, to: rev(50) }]));
    assert_eq!(probe.step(raised(B, 49)), Err(error), "a hint is not enough now");
}

#[test]
fn a_probe_and_a_watch_without_start_raise_all_to_the_maximum() {
    let (mut probe, commands) = begin(Mode::Current, &[A, B], 7);
    assert_eq!(commands, vec![current(A, 7), current(B, 7)]);
    probe.step(raised(A, 9)).unwrap();
    assert_eq!(probe.step(raised(B, 8)), Ok(vec![Command::Raise { store: B, to: rev(9) }]));
    assert_eq!(probe.step(raised(B, 12)), done(9, 9));
}

/// R4
#[test]
fn the_future_is_above_every_store() {
    let (mut at, commands) = begin(Mode::At(rev(21)), &[A, B], 5);
    assert_eq!(commands, vec![current(A, 5), current(B, 5)]);
    at.step(raised(A, 10)).unwrap();
    let future = ReadError::Future { wanted: rev(21), current: rev(20) };
    assert_eq!(at.step(raised(B, 20)), Err(future));

    let (mut at, _) = begin(Mode::At(rev(20)), &[A, B], 5);
    at.step(raised(A, 10)).unwrap();
    assert_eq!(at.step(raised(B, 20)), Ok(vec![read_at(A, 20), read_at(B, 20)]), "A is raised to it");
    at.step(answered(A, 20)).unwrap();
    assert_eq!(at.step(answered(B, 25)), done(20, 20));
}

/// C1
#[test]
fn pitfall_c1_the_header_of_an_old_read_is_current() {
    let (mut at, commands) = begin(Mode::At(rev(6)), &[A, B], 6);
    assert_eq!(commands, vec![read_at(A, 6), read_at(B, 6)], "shown: not in the future");
    at.step(answered(A, 30)).unwrap();
    assert_eq!(at.step(answered(B, 20)), Ok(vec![Command::Raise { store: B, to: rev(30) }]));
    assert_eq!(at.step(raised(B, 30)), done(6, 30));
    let (mut at, _) = begin(Mode::At(rev(6)), &[A, B], 6);
    at.step(answered(A, 30)).unwrap();
    assert_eq!(at.step(Event::Compacted { store: B }), Err(ReadError::Compacted(B)));
}

#[test]
fn shown_grows_per_kind_or_for_all() {
    let mut kinds = Shown::new(RevisionScope::Kind);
    kinds.show("pods", rev(9));
    kinds.show("pods", rev(4));
    assert_eq!((kinds.of(&"pods"), kinds.of(&"nodes")), (rev(9), rev(0)));
    let mut global = Shown::new(RevisionScope::Global);
    global.show("pods", rev(9));
    global.show("nodes", rev(4));
    assert_eq!((global.of(&"pods"), global.of(&"nodes")), (rev(9), rev(9)));
}

/// A store: the revisions that it wrote, the one that it promised, and how far its clock may be raised.
#[derive(Debug, Clone)]
struct Store {
    log: Vec<i64>,
    current: i64,
    ceiling: i64,
}

impl Store {
    fn raise(&mut self, to: i64) -> bool {
        if to <= self.ceiling {
            self.current = self.current.max(to);
        }
        self.current >= to
    }

    fn at(&self, revision: i64) -> usize {
        self.log.iter().filter(|at| **at <= revision).count()
    }
}

#[derive(Debug)]
struct World {
    stores: Vec<Store>,
    /// For each store, how many writes the caller's data contain.
    data: Vec<Option<usize>>,
    done: Option<(i64, i64)>,
}

impl World {
    fn write(&mut self, store: usize) {
        let slots = self.stores.len() as i64;
        let state = &mut self.stores[store];
        state.current = (state.current / slots + 1) * slots + store as i64;
        state.log.push(state.current);
    }

    /// Carries the command out at the store; data travel with the answer.
    fn serve(&mut self, command: Command) -> Event {
        match command {
            Command::Read { store, min_revision } => {
                self.stores[store.0].raise(min_revision.get());
                let current = self.stores[store.0].current;
                self.data[store.0] = Some(self.stores[store.0].at(current));
                answered(store, current)
            }
            Command::ReadAt { store, revision } => {
                if !self.stores[store.0].raise(revision.get()) {
                    return Event::CannotFollow { store };
                }
                self.data[store.0] = Some(self.stores[store.0].at(revision.get()));
                answered(store, self.stores[store.0].current)
            }
            Command::Current { store, min_revision } => {
                self.stores[store.0].raise(min_revision.get());
                raised(store, self.stores[store.0].current)
            }
            Command::Raise { store, to } => {
                let followed = self.stores[store.0].raise(to.get());
                let current = self.stores[store.0].current;
                if followed { raised(store, current) } else { Event::CannotFollow { store } }
            }
            Command::Confirm { store, since, to } => {
                let state = &mut self.stores[store.0];
                if !state.raise(to.get()) {
                    return Event::CannotFollow { store };
                }
                if state.at(since.get()) == state.at(to.get()) {
                    Event::Unchanged { store, to }
                } else {
                    Event::Changed { store, to }
                }
            }
            Command::Done { .. } => panic!("nothing to serve"),
        }
    }
}

proptest! {
    /// R4, R5, R8: T covers what was shown and every write acknowledged before the read began. Every store has promised
    /// T. The data are those at the answered revision. At most two rounds follow the first.
    #[test]
    fn an_answer_is_a_snapshot_that_covers_what_was_acknowledged(
        before in prop::collection::vec((0..4usize, 1..4usize), 0..12),
        count in 1..5usize,
        ceiling in prop_oneof![3 => Just(i64::MAX), 1 => 0..60i64],
        mode in prop_oneof![Just(None), Just(Some(None)), (-6..4i64).prop_map(|back| Some(Some(back)))],
        shown in 0..40i64,
        steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..60),
    ) {
        let store = |at: usize| Store { log: vec![], current: 0, ceiling: if at == 0 { ceiling } else { i64::MAX } };
        let mut world =
            World { stores: (0..count).map(store).collect(), data: vec![None; count], done: None };
        for (at, writes) in before {
            (0..writes).for_each(|_| world.write(at % count));
        }
        let acked = world.stores.iter().map(|store| store.current).max().unwrap_or(0);
        let shown = shown.min(acked);
        let mode = match mode {
            None => Mode::Now,
            Some(None) => Mode::Current,
            Some(Some(back)) => Mode::At(rev((acked + back).max(1))),
        };
        let stores: Vec<_> = (0..count).map(StoreIx).collect();
        let (mut read, mut asked) = begin(mode, &stores, shown);
        let (mut rounds, mut failed) = (asked.len(), None);
        let mut steps = steps.into_iter();
        while world.done.is_none() && failed.is_none() {
            prop_assert!(!asked.is_empty(), "nothing under way, and not done");
            let (write, pick) = steps.next().map_or((false, 0), |(write, pick)| (write, pick.index(64)));
            if write {
                world.write(pick % count);
                continue;
            }
            let event = world.serve(asked.swap_remove(pick % asked.len()));
            match read.step(event).as_deref() {
                Ok([Command::Done { at, header }]) => world.done = Some((at.get(), header.get())),
                Ok(commands) => {
                    rounds += commands.len();
                    asked.extend_from_slice(commands);
                }
                Err(error) => failed = Some(*error),
            }
        }
        prop_assert!(rounds <= 3 * count);
        let Some((at, header)) = world.done else {
            return match failed {
                Some(ReadError::Future { wanted, .. }) => {
                    prop_assert!(wanted.get() > acked);
                    Ok(())
                }
                Some(ReadError::CannotFollow { store, to }) => {
                    prop_assert!(store == A && to.get() > ceiling);
                    Ok(())
                }
                other => Err(TestCaseError::fail(format!("{other:?}"))),
            };
        };
        prop_assert!(header >= acked && header >= at);
        for (store, data) in world.stores.iter().zip(&world.data) {
            prop_assert!(store.current >= header, "a header that a store has not promised");
            if mode != Mode::Current {
                prop_assert_eq!(*data, Some(store.at(at)), "not the data at {}", at);
            }
        }
    }
}
