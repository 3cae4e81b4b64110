//! What a feed does in each situation, step by step.

use bytes::Bytes;

use super::*;
use crate::cursor::Limit;
use crate::feed_state::Take;
use crate::gaps::Passed;

const LIMITS: Limits = Limits { ring_bytes: 1 << 20, unread_bytes: 1_000, idle: Duration::from_secs(30) };

/// A feed with the time that tests let pass.
struct Feed {
    machine: FeedMachine,
    state: FeedState,
    now: Instant,
}

impl Feed {
    fn new(state: FeedState, stores: usize) -> Self {
        Self { machine: FeedMachine::new(stores, LIMITS), state, now: Instant::now() }
    }

    fn step(&mut self, event: Event) -> Vec<Command> {
        self.machine.step(self.now, &mut self.state, event)
    }

    fn message(&mut self, at: usize, message: Message) -> Vec<Command> {
        self.step(Event::Message { at, message })
    }

    fn tick(&mut self, after: Duration, has_readers: bool) -> Vec<Command> {
        self.now += after;
        self.step(Event::Tick { has_readers })
    }

    /// A live feed of two stores that both serve from 11 on.
    fn live() -> Self {
        let mut feed = Self::new(FeedState::live(), 2);
        assert_eq!(feed.step(Event::Begin), [Command::Ask { delay: Duration::ZERO }]);
        assert_eq!(
            feed.step(Event::Answered(Some(Revision(10)))),
            [open(0, 11, 0), open(1, 11, 0), Command::WakeReaders]
        );
        for at in 0..2 {
            feed.message(at, Message::Opened(Revision(10), Vec::new()));
        }
        feed
    }

    fn revisions_from(&mut self, position: i64) -> Vec<i64> {
        let limit = Limit { last: None, bytes: usize::MAX };
        match self.state.take(Revision(position), &mut Passed::default(), limit).0 {
            Take::Taken(taken) => taken.entries.iter().map(|entry| entry.revision.get()).collect(),
            other => panic!("{other:?}"),
        }
    }
}

fn open(at: usize, from: i64, millis: u64) -> Command {
    Command::Open { at, from: Revision(from), delay: Duration::from_millis(millis) }
}

fn entry(revision: i64, bytes: usize) -> Entry<Events> {
    let parsed = crate::feed_event::FeedEvent::parse(Bytes::from(event_bytes(revision)));
    Entry { bytes, ..crate::feed_event::entry(Revision(revision), vec![parsed.expect("an event")]) }
}

fn event_bytes(revision: i64) -> Vec<u8> {
    use prost::Message as _;
    let kv = kindred_proto::mvccpb::KeyValue {
        key: "/registry/pods/a/1".into(),
        create_revision: revision,
        mod_revision: revision,
        version: 1,
        ..Default::default()
    };
    kindred_proto::mvccpb::Event { kv: Some(kv), ..Default::default() }.encode_to_vec()
}

fn more(revisions: &[i64], watermark: Option<i64>) -> Message {
    Message::More(revisions.iter().map(|at| entry(*at, 100)).collect(), watermark.map(Revision))
}

#[test]
fn an_event_is_shown_when_no_store_can_send_an_earlier_one() {
    let mut feed = Feed::live();
    let asked = feed.message(0, more(&[12], None));
    assert!(!asked.contains(&Command::WakeReaders), "the other store may have 11: {asked:?}");
    assert_eq!(feed.revisions_from(11), [0; 0]);
    assert!(feed.message(1, more(&[11], Some(12))).contains(&Command::WakeReaders));
    assert_eq!(feed.revisions_from(11), [11, 12]);
}

#[test]
fn callers_share_a_question_and_a_failed_one_is_repeated_until_the_feed_is_open() {
    let mut feed = Feed::new(FeedState::live(), 1);
    feed.step(Event::Begin);
    assert_eq!(feed.step(Event::CallersWait), [], "one is under way");
    assert_eq!(feed.step(Event::Answered(None)), [Command::Ask { delay: REOPEN }]);
    feed.step(Event::Answered(Some(Revision(3))));
    assert_eq!(feed.step(Event::CallersWait), [Command::Ask { delay: Duration::ZERO }]);
    assert_eq!(feed.step(Event::CallersWait), []);
    assert_eq!(feed.step(Event::Answered(None)), [], "it is open");
}

#[test]
fn a_stream_that_breaks_is_opened_again_where_it_was_and_ever_later_while_it_does_not_open() {
    let mut feed = Feed::live();
    feed.message(1, more(&[11], None));
    let why = || Message::Broken("gone".to_owned());
    let broke = |at| Command::Broke { at, why: "gone".to_owned() };
    assert_eq!(feed.message(1, why()), [broke(1), open(1, 12, 20)]);
    assert_eq!(feed.message(1, why()), [broke(1), open(1, 12, 40)]);
    feed.message(1, Message::Opened(Revision(11), Vec::new()));
    assert_eq!(feed.message(1, why()), [broke(1), open(1, 12, 20)], "it had opened");
}

#[test]
fn what_was_shown_before_a_stream_opened_again_is_not_shown_twice() {
    let mut feed = Feed::live();
    feed.message(0, more(&[11, 12], Some(12)));
    feed.message(1, more(&[], Some(12)));
    feed.message(0, Message::Broken(String::new()));
    feed.message(0, Message::Opened(Revision(9), Vec::new()));
    feed.message(0, more(&[11, 12, 13], Some(13)));
    feed.message(1, more(&[], Some(13)));
    assert_eq!(feed.revisions_from(11), [11, 12, 13]);
}

#[test]
fn a_store_that_opens_too_late_is_asked_again() {
    let mut feed = Feed::new(FeedState::catch_up(Revision(5), LIMITS.ring_bytes), 1);
    assert_eq!(feed.step(Event::Begin), [open(0, 5, 0), Command::WakeReaders]);
    let broke = feed.message(0, Message::Opened(Revision(7), Vec::new()));
    assert!(matches!(&broke[..], [Command::Broke { .. }, Command::Open { at: 0, .. }]), "{broke:?}");
}

#[test]
fn a_broken_contract_compacts_what_was_shown_and_begins_anew() {
    let mut feed = Feed::live();
    feed.message(1, more(&[], Some(20)));
    feed.message(0, more(&[12], Some(20)));
    let commands = feed.message(0, more(&[13], None));
    assert!(matches!(commands[0], Command::Breach(_)), "{commands:?}");
    assert_eq!(
        commands[1..],
        [Command::CloseAll, Command::Ask { delay: Duration::ZERO }, Command::WakeReaders]
    );
    assert!(feed.state.ring.is_none() && feed.state.compacted > Revision(20));
}

#[test]
fn a_gap_is_recorded_before_readers_get_more() {
    let mut feed = Feed::live();
    feed.message(0, Message::Broken(String::new()));
    let gap = Gap { after: Revision(4), until: Revision(9) };
    let commands = feed.message(0, Message::Opened(Revision(10), vec![gap]));
    assert_eq!(commands[..2], [Command::Lost { at: 0, gap }, Command::WakeReaders]);
    assert_eq!(feed.message(0, Message::Broken(String::new())).len(), 2);
    let again = feed.message(0, Message::Opened(Revision(10), vec![gap]));
    assert!(!again.contains(&Command::Lost { at: 0, gap }), "it is known: {again:?}");
    let refused = feed.state.take(Revision(6), &mut Passed::default(), Limit { last: None, bytes: 1 }).0;
    assert!(matches!(refused, Take::Compacted(_)), "{refused:?}");
}

#[test]
fn a_catch_up_that_nobody_reads_does_not_read_its_stores_and_ends() {
    let mut feed = Feed::new(FeedState::catch_up(Revision(5), LIMITS.ring_bytes), 1);
    feed.step(Event::Begin);
    feed.message(0, Message::Opened(Revision(4), Vec::new()));
    feed.message(0, Message::More((5..16).map(|at| entry(at, 100)).collect(), Some(Revision(15))));
    assert!(!feed.machine.reads(0), "1,100 bytes wait for readers");
    assert_eq!(feed.revisions_from(5).len(), 11);
    assert_eq!(feed.step(Event::Kick), [Command::Retire], "if it has no readers");
    assert!(feed.machine.reads(0), "it was read");

    feed.message(0, Message::More((16..27).map(|at| entry(at, 100)).collect(), Some(Revision(26))));
    assert_eq!(feed.tick(TICK, true), []);
    assert_eq!(feed.tick(STALLED_MAX - TICK, true), []);
    assert_eq!(feed.tick(TICK, true), [Command::End]);
}

#[test]
fn a_live_feed_without_readers_is_retired_when_it_was_idle_long_enough() {
    let mut feed = Feed::live();
    assert_eq!(feed.tick(TICK, false), []);
    assert_eq!(feed.tick(LIMITS.idle, true), [], "somebody came");
    assert_eq!(feed.tick(TICK, false), []);
    assert_eq!(feed.tick(LIMITS.idle, false), [Command::Retire]);
}

#[test]
fn keys_that_move_end_the_feed() {
    let mut feed = Feed::live();
    assert_eq!(feed.message(1, Message::Moved), [Command::End]);
    assert!(feed.state.moved);
}

#[test]
fn an_advance_without_an_answer_is_repeated_and_its_store_is_said_to_hold_others_back() {
    let mut feed = Feed::live();
    feed.step(Event::Tick { has_readers: true });
    let asked = feed.message(0, more(&[12], None));
    let advance = Command::Advance { at: 1, to: Revision(12) };
    let put_off = feed.machine.due();
    assert!(asked.contains(&advance) || put_off.is_some(), "{asked:?}");
    let commands = feed.tick(TICK, true);
    assert!(commands.contains(&advance) || feed.machine.due().is_some(), "{commands:?}");
    assert_eq!(feed.state.lagging.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1]);
}

#[test]
fn many_readers_are_woken_once_for_what_came_meanwhile() {
    let mut feed = Feed::live();
    feed.state.readers = 20;
    let more = |revision| Message::More(vec![entry(revision, 10)], None);
    let mut news = 0;
    // The other store is always far ahead.
    feed.message(1, Message::More(Vec::new(), Some(Revision(1_000))));
    for revision in 11..200 {
        let commands = feed.message(0, more(revision));
        news += i64::from(!commands.contains(&Command::WakeReaders));
        assert_eq!(feed.state.covered(), Some(Revision(revision)), "readers that look find it");
    }
    assert!(news > 170, "{news} were put off");
    let due = feed.machine.due().expect("a wake that is put off");
    feed.now = due;
    assert_eq!(feed.step(Event::Due), [Command::WakeReaders]);
    assert_eq!(feed.machine.due(), None);

    // A progress round waits for this revision.
    feed.message(0, more(200));
    assert!(feed.state.want(Revision(201)));
    feed.step(Event::Kick);
    assert!(feed.message(0, more(201)).contains(&Command::WakeReaders));
    assert_eq!(feed.machine.due(), None);
}

#[test]
fn what_readers_share_is_what_each_would_encode() {
    use crate::feed_event::{Encoded, Filter};
    use kindred_partition_config::key::KeyRange;

    let filter = |range, prev_kv| Filter { range, no_put: false, no_delete: false, prev_kv };
    let filters = [
        filter(KeyRange::everything(), false),
        filter(KeyRange::everything(), true),
        filter(KeyRange::Single("/registry/pods/a/1".into()), false),
        filter(KeyRange::Single("/registry/pods/b".into()), false),
        Filter { no_put: true, ..filter(KeyRange::everything(), false) },
    ];
    let mut feed = Feed::live();
    feed.state.readers = 5;
    feed.message(1, Message::More(Vec::new(), Some(Revision(1_000))));
    for (turn, revision) in (11..40).enumerate() {
        feed.message(0, Message::More(vec![entry(revision, 10)], None));
        for (number, filter) in filters.iter().chain(&filters).enumerate() {
            // Readers are behind by different numbers of revisions, and read different numbers of them.
            let position = Revision((revision - (number * turn % 4) as i64).max(11));
            let limit = Limit { last: Some(Revision(revision - i64::from(number == 3))), bytes: usize::MAX };
            let Take::Taken(taken) = feed.state.take(position, &mut Passed::default(), limit).0 else {
                panic!("the ring holds {position}")
            };
            let alone = Encoded::of(&taken.entries, filter);
            assert_eq!(feed.state.encoded(&taken.entries, filter), alone, "{position}, {filter:?}");
        }
    }
    let entries = [entry(40, 10)];
    let first = feed.state.encoded(&entries, &filters[0]).expect("an event");
    let again = feed.state.encoded(&entries, &filters[0]).expect("an event");
    assert_eq!(first.fields.as_ptr(), again.fields.as_ptr(), "encoded once");
    feed.message(0, Message::Compacted(Revision(50)));
    assert!(feed.state.last_encoded.is_none(), "a new ring may hold other events");
}
