use proptest::prelude::*;

use super::*;

const A: StoreIx = StoreIx(0);
const B: StoreIx = StoreIx(1);

fn never(_: Revision) -> bool {
    false
}

fn rev(revision: i64) -> Revision {
    Revision(revision)
}

#[test]
fn one_store_answers_for_itself_and_never_goes_back() {
    let mut p = Progress::default();
    assert_eq!(p.request(&[]), vec![]);
    assert_eq!(p.request(&[A]), vec![Command::Forward(A)]);
    assert_eq!(p.progressed(A, rev(7), never), vec![Command::Answer(rev(7))]);
    assert_eq!(p.progressed(A, rev(6), never), vec![]);
    assert_eq!(p.admit(1, rev(9), rev(9)).0, Admit::Forward);
    assert_eq!(p.progressed(A, rev(8), never), vec![]);
    assert_eq!(p.progressed(A, rev(10), |at| at < rev(11)), vec![], "a watch starts above");
}

#[test]
fn an_answer_of_one_store_says_nothing_once_there_are_two() {
    let mut p = Progress::default();
    p.request(&[A]);
    p.changed(&[A, B]);
    assert_eq!(p.progressed(A, rev(7), never), vec![]);
}

#[test]
fn two_stores_reach_the_maximum_of_their_currents() {
    let mut p = Progress::default();
    assert_eq!(p.request(&[A, B]), vec![Command::Ask(A), Command::Ask(B)]);
    assert_eq!(p.current(A, rev(10)), vec![]);
    assert_eq!(p.current(B, rev(4)), vec![Command::Raise(A, rev(10)), Command::Raise(B, rev(10))]);
    assert_eq!(p.raised(B, rev(10)), vec![Command::Forward(B)]);
    assert_eq!(p.raised(A, rev(10)), vec![Command::Forward(A)]);
    assert_eq!(p.progressed(A, rev(12), never), vec![]);
    assert_eq!(p.progressed(B, rev(9), never), vec![], "below the target");
    assert_eq!(p.progressed(B, rev(10), never), vec![Command::Answer(rev(10)), Command::Release]);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Silent;

impl Member for Silent {
    fn relays(self) -> bool {
        false
    }
}

#[test]
fn one_member_that_does_not_relay_gets_a_round() {
    let mut p = Progress::default();
    assert_eq!(p.target(), None);
    assert_eq!(p.request(&[Silent]), vec![Command::Ask(Silent)]);
    p.admit(1, rev(12), rev(12));
    assert_eq!(p.target(), None, "not fixed yet");
    assert_eq!(p.current(Silent, rev(10)), vec![Command::Raise(Silent, rev(12))], "not below what was sent");
    assert_eq!(p.target(), Some(rev(12)));
    assert_eq!(p.raised(Silent, rev(12)), vec![Command::Forward(Silent)]);
    assert_eq!(p.progressed(Silent, rev(12), never), vec![Command::Answer(rev(12)), Command::Release]);
    assert_eq!((p.target(), p.shown()), (None, rev(12)));
}

#[test]
fn events_above_the_target_wait_and_those_below_do_not() {
    let mut p = Progress::default();
    p.request(&[A, B]);
    p.current(A, rev(10));
    p.current(B, rev(4));
    assert_eq!(p.admit(1, rev(9), rev(10)), (Admit::Forward, vec![]));
    assert_eq!(p.admit(1, rev(11), rev(11)), (Admit::Hold, vec![]));
    assert_eq!(p.admit(1, rev(11), rev(12)), (Admit::Hold, vec![]), "behind a held one");
    assert_eq!(p.admit(2, rev(5), rev(5)), (Admit::Forward, vec![]));
    let (admit, commands) = p.admit(2, rev(6), rev(20));
    assert_eq!(admit, Admit::Forward);
    let raises = [Command::Raise(A, rev(20)), Command::Raise(B, rev(20))];
    assert_eq!(commands, [[Command::Release].as_slice(), &raises].concat(), "the target passes what is held");
    for store in [A, B] {
        assert_eq!(p.raised(store, rev(10)), vec![], "an older raise");
        assert_eq!(p.raised(store, rev(20)), vec![Command::Forward(store)]);
    }
    p.progressed(A, rev(20), never);
    assert_eq!(p.progressed(B, rev(21), never), vec![Command::Answer(rev(20)), Command::Release]);
}

#[test]
fn a_request_during_a_round_gets_the_next_one() {
    let mut p = Progress::default();
    p.request(&[A, B]);
    assert_eq!(p.request(&[A, B]), vec![]);
    p.current(A, rev(1));
    p.current(B, rev(1));
    p.raised(A, rev(1));
    p.raised(B, rev(1));
    p.progressed(A, rev(1), never);
    assert_eq!(
        p.progressed(B, rev(1), never),
        vec![Command::Answer(rev(1)), Command::Release, Command::Ask(A), Command::Ask(B)]
    );
}

#[test]
fn a_new_watch_begins_the_round_anew() {
    let mut p = Progress::default();
    p.request(&[A, B]);
    p.current(A, rev(3));
    assert_eq!(p.changed(&[A, B]), vec![Command::Release, Command::Ask(A), Command::Ask(B)]);
    assert_eq!(p.abort(), vec![Command::Release]);
    assert_eq!(p.abort(), vec![]);
}

/// Acts on two stores with one watch each and ordered streams: messages, requests and answers in any interleaving.
#[derive(Debug, Clone, Copy)]
enum Act {
    Write(usize, i64),
    Deliver(usize),
    Answer(usize),
    Request,
    NewWatch,
    Abort,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..2usize, 1..4i64).prop_map(|(s, by)| Act::Write(s, by)),
        6 => (0..2usize).prop_map(Act::Deliver),
        6 => (0..2usize).prop_map(Act::Answer),
        2 => Just(Act::Request),
        1 => Just(Act::NewWatch),
        1 => Just(Act::Abort),
    ]
}

#[derive(Default)]
struct World {
    clock: [i64; 2],
    /// The messages under way in each upstream stream: (is progress, first, last).
    stream: [std::collections::VecDeque<(bool, i64, i64)>; 2],
    /// The calls to each store that are not served yet.
    calls: [std::collections::VecDeque<Command>; 2],
    held: Vec<(usize, i64)>,
    sent: [i64; 2],
    answers: Vec<i64>,
    asked_floor: i64,
}

impl World {
    fn run(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Ask(s) | Command::Raise(s, _) | Command::Forward(s) => {
                    self.calls[s.0].push_back(command);
                }
                Command::Release => {
                    for (store, last) in std::mem::take(&mut self.held) {
                        self.sent[store] = self.sent[store].max(last);
                    }
                }
                Command::Answer(at) => self.answer(at.get()),
            }
        }
    }

    fn answer(&mut self, at: i64) {
        assert!(at >= self.sent[0].max(self.sent[1]), "below an event already sent");
        assert!(at >= self.answers.last().copied().unwrap_or(0), "went back");
        for stream in &self.stream {
            assert!(stream.iter().all(|(progress, first, _)| *progress || *first > at), "event not yet sent");
        }
        assert!(self.held.iter().all(|(_, last)| *last > at), "a held event is covered");
        assert!(at >= self.asked_floor, "below what a probe showed");
        self.answers.push(at);
    }

    fn deliver(&mut self, p: &mut Progress, store: usize) {
        let Some((progress, first, last)) = self.stream[store].pop_front() else { return };
        if progress {
            let commands = p.progressed(StoreIx(store), rev(last), never);
            return self.run(commands);
        }
        let (admit, commands) = p.admit(store as i64, rev(first), rev(last));
        match admit {
            Admit::Forward => self.sent[store] = last,
            Admit::Hold => self.held.push((store, last)),
        }
        self.run(commands);
    }

    fn serve(&mut self, p: &mut Progress, store: usize) {
        let commands = match self.calls[store].pop_front() {
            Some(Command::Ask(s)) => p.current(s, rev(self.clock[store])),
            Some(Command::Raise(s, to)) => {
                self.clock[store] = self.clock[store].max(to.get());
                p.raised(s, to)
            }
            Some(Command::Forward(_)) => {
                self.stream[store].push_back((true, self.clock[store], self.clock[store]));
                vec![]
            }
            _ => vec![],
        };
        self.run(commands);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..Default::default() })]
    #[test]
    fn answers_cover_everything_and_never_go_back(acts in prop::collection::vec(act(), 1..120)) {
        let mut p = Progress::default();
        let mut world = World::default();
        let both = [A, B];
        for act in acts {
            match act {
                Act::Write(store, by) => {
                    let first = world.clock[store] + 1;
                    world.clock[store] += by;
                    let last = world.clock[store];
                    world.stream[store].push_back((false, first, last));
                }
                Act::Deliver(store) => world.deliver(&mut p, store),
                Act::Answer(store) => world.serve(&mut p, store),
                Act::Request => {
                    if !p.in_round() {
                        world.asked_floor = world.clock[0].max(world.clock[1]);
                    }
                    let commands = p.request(&both);
                    world.run(commands);
                }
                Act::NewWatch => {
                    let commands = p.changed(&both);
                    world.run(commands);
                }
                Act::Abort => {
                    let commands = p.abort();
                    world.run(commands);
                }
            }
        }
        // Without interference a request is always answered.
        let commands = p.request(&both);
        world.run(commands);
        let before = world.answers.len();
        for _ in 0..1000 {
            for store in 0..2 {
                world.serve(&mut p, store);
                world.deliver(&mut p, store);
            }
        }
        prop_assert!(world.answers.len() > before);
        prop_assert!(!p.in_round() && world.held.is_empty());
    }
}
