use super::*;

const A: SourceIx = SourceIx(0);
const B: SourceIx = SourceIx(1);

fn due(asks: &mut Asks, now: Instant) -> Vec<(SourceIx, Revision)> {
    asks.take_due(Revision(7), now).collect()
}

#[test]
fn a_quiet_store_is_asked_at_once() {
    let now = Instant::now();
    let mut asks = Asks::new(2);
    assert!(asks.ask(A, Revision(5), now));
    asks.heard(A, Revision(7), now);
    assert!(asks.ask(A, Revision(9), now + PATIENCE), "its last event is old");
    assert!(asks.ask(B, Revision(9), now), "the other one was never heard of");
    assert_eq!(asks.due(), None);
}

#[test]
fn one_that_has_just_been_asked_is_asked_for_several_events_together() {
    let now = Instant::now();
    let mut asks = Asks::new(1);
    assert!(asks.ask(A, Revision(5), now));
    assert!(!asks.ask(A, Revision(6), now + PATIENCE / 4));
    assert!(!asks.ask(A, Revision(9), now + PATIENCE / 2));
    assert_eq!(asks.due(), Some(now + PATIENCE / 2 + PATIENCE));
    assert_eq!(due(&mut asks, now + PATIENCE * 2), [(A, Revision(9))]);
    assert!(!asks.ask(A, Revision(10), now + PATIENCE * 2), "it has just been asked");
    assert!(asks.ask(A, Revision(11), now + PATIENCE * 3));
}

#[test]
fn a_lively_store_may_prove_it_by_an_event() {
    let now = Instant::now();
    let mut asks = Asks::new(2);
    asks.heard(A, Revision(5), now);
    assert!(!asks.ask(A, Revision(9), now));
    assert_eq!(asks.due(), Some(now + PATIENCE));
    asks.heard(A, Revision(8), now);
    assert_eq!(asks.due(), Some(now + PATIENCE), "8 proves nothing about 9");
    asks.heard(A, Revision(9), now);
    assert_eq!(asks.due(), None);
    assert_eq!(due(&mut asks, now + PATIENCE), []);
}

#[test]
fn one_that_says_nothing_more_is_asked_once_when_it_is_due() {
    let now = Instant::now();
    let later = now + PATIENCE / 2;
    let mut asks = Asks::new(2);
    for (source, at) in [(A, now), (B, later)] {
        asks.heard(source, Revision(5), at);
        assert!(!asks.ask(source, Revision(9), at));
    }
    assert_eq!(due(&mut asks, later), []);
    assert_eq!(asks.due(), Some(now + PATIENCE));
    assert_eq!(due(&mut asks, now + PATIENCE), [(A, Revision(9))]);
    let for_all: Vec<_> = asks.take_due(Revision(11), later + PATIENCE).collect();
    assert_eq!(for_all, [(B, Revision(11))], "what came meanwhile needs no ask of its own");
    assert_eq!(asks.due(), None);
}

#[test]
fn a_lost_stream_is_asked_nothing_and_is_quiet_when_it_is_back() {
    let now = Instant::now();
    let mut asks = Asks::new(1);
    asks.heard(A, Revision(5), now);
    assert!(!asks.ask(A, Revision(9), now));
    asks.lost(A);
    assert_eq!(due(&mut asks, now + PATIENCE), []);
    assert!(asks.ask(A, Revision(9), now));
}
