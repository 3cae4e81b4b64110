//! A watch that reads a live ring and catch-ups, checked against the list of all events.

use proptest::prelude::*;

use super::*;

fn rev(revision: i64) -> Revision {
    Revision(revision)
}

fn entry(revision: i64) -> Entry<i64> {
    Entry { revision: rev(revision), bytes: 1, payload: revision }
}

fn ring(after: i64, budget: usize, revisions: &[i64], watermark: i64) -> FeedRing<i64> {
    let mut ring = FeedRing::new(rev(after), budget);
    for revision in revisions {
        ring.push(entry(*revision)).unwrap();
    }
    ring.watermark(rev(watermark)).unwrap();
    ring
}

fn taken(look: Look<i64>) -> (Vec<i64>, i64, bool) {
    match look {
        Look::Taken(taken) => {
            (taken.entries.iter().map(|entry| entry.payload).collect(), taken.next.get(), taken.more)
        }
        Look::Behind => panic!("behind"),
    }
}

const ALL: Limit = Limit { last: None, bytes: 100 };

#[test]
fn what_lies_at_a_position() {
    let ring = ring(3, 3, &[4, 6, 8, 10], 12);
    assert_eq!(look(&ring, rev(4), ALL), Look::Behind, "dropped");
    assert_eq!(taken(look(&ring, rev(5), ALL)), (vec![6, 8, 10], 13, false));
    assert_eq!(taken(look(&ring, rev(6), Limit { bytes: 2, ..ALL })), (vec![6, 8], 9, true));
    assert_eq!(taken(look(&ring, rev(11), ALL)), (vec![], 13, false));
    assert_eq!(taken(look(&ring, rev(20), ALL)), (vec![], 20, false), "a start in the future");
}

#[test]
fn a_promise_under_way_stops_a_reader_at_it() {
    let ring = ring(3, 100, &[4, 6, 8], 12);
    let upto = |last| Limit { last: Some(rev(last)), bytes: 100 };
    assert_eq!(taken(look(&ring, rev(4), upto(6))), (vec![4, 6], 7, false));
    assert_eq!(taken(look(&ring, rev(4), upto(7))), (vec![4, 6], 8, false));
    assert_eq!(taken(look(&ring, rev(9), upto(10))), (vec![], 11, false));
    assert_eq!(taken(look(&ring, rev(9), upto(30))), (vec![], 13, false), "covered up to 12 only");
    assert_eq!(taken(look(&ring, rev(20), upto(7))), (vec![], 20, false), "never back");
    let few = Limit { bytes: 1, ..upto(6) };
    assert_eq!(taken(look(&ring, rev(4), few)), (vec![4], 5, true));
}

#[derive(Debug, Clone)]
enum Act {
    Write(i64),
    Watermark(i64),
    Read(usize, Option<i64>),
    CatchUp(usize),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1..4i64).prop_map(Act::Write),
        1 => (1..4i64).prop_map(Act::Watermark),
        4 => (1..4usize, prop::option::of(0..6i64)).prop_map(|(bytes, last)| Act::Read(bytes, last)),
        3 => (1..6usize).prop_map(Act::CatchUp),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..Default::default() })]
    /// E5, A5: each event once and in order, wherever history and live events join.
    #[test]
    fn every_event_once_and_in_order(
        budget in 1..5usize,
        catch_up_budget in 1..4usize,
        start in 1..30i64,
        acts in prop::collection::vec(act(), 1..120),
    ) {
        let mut live = FeedRing::new(rev(0), budget);
        // The catch-up, and the number of events of `all` that it has.
        let mut catch_up: Option<(FeedRing<i64>, usize)> = None;
        let (mut all, mut head) = (Vec::new(), 0);
        let (mut position, mut seen) = (rev(start), Vec::new());
        for act in acts {
            match act {
                Act::Write(by) => {
                    head += by;
                    all.push(head);
                    live.push(entry(head)).unwrap();
                }
                Act::Watermark(by) => {
                    head += by;
                    live.watermark(rev(head)).unwrap();
                }
                Act::CatchUp(steps) => {
                    let Some((ring, at)) = &mut catch_up else { continue };
                    for revision in all.iter().skip(*at).take(steps) {
                        ring.push(entry(*revision)).unwrap();
                        *at += 1;
                    }
                    if *at == all.len() {
                        ring.watermark(rev(head)).unwrap();
                    }
                }
                Act::Read(bytes, ahead) => {
                    let limit = Limit { last: ahead.map(|ahead| rev(head - 3 + ahead)), bytes };
                    let mut found = look(&live, position, limit);
                    if found == Look::Behind {
                        let behind = catch_up.as_ref().map(|(ring, _)| look(ring, position, limit));
                        found = behind.unwrap_or(Look::Behind);
                        if found == Look::Behind {
                            let at = all.partition_point(|revision| *revision < position.get());
                            catch_up = Some((FeedRing::new(position.prev(), catch_up_budget), at));
                        }
                    } else {
                        catch_up = None;
                    }
                    let Look::Taken(taken) = found else { continue };
                    prop_assert!(taken.next >= position);
                    let allowed = |entry: &Entry<i64>| limit.last.is_none_or(|last| entry.revision <= last);
                    prop_assert!(taken.entries.iter().all(allowed));
                    position = taken.next;
                    seen.extend(taken.entries.iter().map(|entry| entry.payload));
                    let due = all.iter().filter(|r| **r >= start && **r < position.get());
                    prop_assert_eq!(due.copied().collect::<Vec<_>>(), seen.clone());
                }
            }
        }
    }
}
