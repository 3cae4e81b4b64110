//! What is gone: compactions, what stores lost (R10), and feeds that end or begin anew.

use std::time::Duration;

use kindred_partition_config::ids::Revision;

use super::super::{Event, Present, ROUND_MAX, Said};
use super::client::{Client, configmaps, created, events, pods, progressed, range, single};
use super::fake::{A, B, put};
use crate::gaps::Gap;

/// A client with a watch of one config map each that was given everything up to its revision, and one feed.
fn standing_at(positions: &[i64]) -> Client {
    let mut client = Client::new();
    for (at, position) in positions.iter().enumerate() {
        let name = |from: usize| format!("configmaps/{}", char::from(b'a' + u8::try_from(from).unwrap()));
        client.create(range(&name(at), &name(at + 1)).from(*position));
    }
    client.ring();
    client.hears();
    client
}

#[test]
fn a_compaction_ends_the_watches_below_it_and_no_other() {
    // The feed is open behind 10, and a catch-up has nothing yet, so each watch stands where it begins.
    let mut client = standing_at(&[5, 29, 30, 31]);
    client.feed(0).compact(30);
    let mut heard = client.hears();
    heard.sort();
    assert_eq!(heard, ["0 @10 canceled compacted 30", "1 @10 canceled compacted 30"]);
    client.feed(0).puts(&[("a", 30), ("b", 31), ("c", 32), ("d", 33)]);
    assert_eq!(client.hears(), ["2 @33: put c 32", "3 @33: put d 33"]);
    assert_eq!((client.session.watches(), client.outside().watchers), (2, 2));
}

#[test]
fn a_compaction_does_not_end_a_watch_that_was_given_everything() {
    let mut client = standing_at(&[11, 11]);
    client.feed(0).puts(&[("x", 40)]);
    assert_eq!(client.hears(), [""; 0], "it concerns neither, and both stand behind it");
    client.feed(0).compact(41);
    client.feed(0).puts(&[("a", 41), ("b", 42)]);
    assert_eq!(client.hears(), ["0 @42: put a 41", "1 @42: put b 42"]);
}

#[test]
fn a_create_below_what_a_client_has_compacted_is_created_and_then_cancelled() {
    for (start, ends) in [(1, true), (29, true), (30, false), (31, false)] {
        let mut client = Client::new();
        client.outside().compacted = 30;
        client.create(configmaps().from(start));
        let heard = client.hears();
        assert_eq!(heard[0], "0 @10 created");
        let expected = if ends { vec!["0 @10 canceled compacted 30"] } else { vec![] };
        assert_eq!(heard[1..], expected, "{start}");
        assert_eq!(client.session.watches(), usize::from(!ends));
    }
}

#[test]
fn a_create_without_a_start_is_never_compacted() {
    let mut client = Client::new();
    client.outside().compacted = 30;
    client.create(configmaps());
    client.present(1, 20);
    assert_eq!(client.hears(), ["0 @20 created"]);
}

#[test]
fn a_catch_up_that_finds_its_position_compacted_ends_its_watch_alone() {
    let mut client = Client::new();
    client.outside().open_after = Some(50);
    [20, 30].into_iter().for_each(|start| client.create(configmaps().from(start)));
    client.hears();
    client.feed(1).begins_anew(25);
    client.feed(1).ends();
    client.feed(2).puts(&[("a", 31)]);
    assert_eq!(client.hears(), ["0 @50 canceled compacted 25", "1 @31: put a 31"]);
}

/// The store lost what lay between 20 and 30: whoever stands at 22..=29 may have seen what is gone.
#[test]
fn r10_a_gap_ends_exactly_the_watches_whose_position_lies_in_it() {
    let positions = [11, 20, 21, 22, 25, 29, 30, 31];
    let mut client = standing_at(&positions);
    client.feed(0).loses(20, 30);
    let gone = [3, 4, 5].map(|id| format!("{id} @10 canceled compacted 30"));
    assert_eq!(client.hears(), gone);
    client.feed(0).puts(&[("a", 31), ("b", 32), ("c", 33), ("d", 34), ("g", 35), ("h", 36)]);
    let left =
        ["0 @36: put a 31", "1 @36: put b 32", "2 @36: put c 33", "6 @36: put g 35", "7 @36: put h 36"];
    assert_eq!(client.hears(), left);
}

#[test]
fn r10_a_gap_ends_the_watches_that_were_given_everything_up_into_it() {
    for (covered, ends) in [(19, false), (20, false), (21, true), (28, true), (29, false), (40, false)] {
        let mut client = standing_at(&[11, 11]);
        client.feed(0).watermark(covered);
        client.ring();
        client.feed(0).loses(20, 30);
        let heard = client.hears();
        let all: Vec<String> = (0..2).map(|id| format!("{id} @10 canceled compacted 30")).collect();
        assert_eq!(heard, if ends { all } else { vec![] }, "given everything up to {covered}");
    }
}

#[test]
fn r10_a_watch_that_a_gap_spared_goes_through_its_numbers() {
    let mut client = standing_at(&[15]);
    let feed = client.feed(0);
    feed.loses(20, 30);
    assert_eq!(client.hears(), [""; 0]);
    // Another store has assigned these.
    for revision in [22, 25, 28] {
        feed.puts(&[("a", revision)]);
        assert_eq!(client.hears(), [format!("0 @{revision}: put a {revision}")]);
    }
    feed.loses(20, 30);
    feed.puts(&[("a", 29)]);
    assert_eq!(client.hears(), ["0 @29: put a 29"], "it was told of the same gap again");
    feed.loses(26, 40);
    assert_eq!(client.hears(), ["0 @29 canceled compacted 40"], "the next one is another");
}

#[test]
fn r10_a_gap_of_one_feed_concerns_no_watch_of_another() {
    let mut client = Client::new();
    client.create(pods().from(25));
    client.create(configmaps().from(25));
    client.hears();
    client.feed(1).loses(20, 30);
    client.feed(0).puts(&[("a", 26)]);
    assert_eq!(client.hears(), ["0 @26: put a 26", "1 @26 canceled compacted 30"]);
}

#[test]
fn a_feed_that_begins_anew_spares_the_watches_behind_what_is_gone() {
    let mut client = standing_at(&[15, 25, 40]);
    let feed = client.feed(0);
    feed.begins_anew(20);
    assert_eq!(client.hears(), ["0 @10 canceled compacted 20"]);
    feed.open(30, 1 << 20);
    feed.puts(&[("b", 32), ("c", 41)]);
    assert_eq!(client.hears(), ["2 @41: put c 41"]);
    assert_eq!(client.did(), ["catch up 2 from 25"], "the feed begins behind it");
    client.feed(1).puts(&[("b", 26), ("b", 32)]);
    client.feed(1).watermark(35);
    assert_eq!(client.hears(), ["1 @35: put b 26, put b 32"]);
    feed.puts(&[("b", 42)]);
    assert_eq!(client.hears(), ["1 @42: put b 42"]);
}

#[test]
fn watches_of_a_feed_that_ends_read_on_in_the_next_one_without_an_event_twice() {
    let mut client = standing_at(&[11, 11]);
    let feed = client.feed(0);
    feed.puts(&[("a", 20), ("x", 25)]);
    assert_eq!(client.hears(), ["0 @25: put a 20"]);
    client.outside().open_after = Some(18);
    feed.ends();
    assert_eq!(client.hears(), [""; 0]);
    client.pass(Duration::from_millis(20));
    assert_eq!((feed.readers(), client.outside().feeds.len()), (0, 2));
    let again = client.feed(1);
    again.puts(&[("a", 20), ("b", 22), ("x", 25), ("b", 26), ("a", 27)]);
    let heard = client.hears();
    assert_eq!(heard, ["0 @27: put a 27", "1 @27: put b 26"], "both were given everything up to 25");
}

/// The next feed counts its gaps anew: its first is not the one that the watch has passed.
#[test]
fn r10_the_gaps_of_the_next_feed_are_put_to_a_watch_from_the_first_on() {
    let mut client = standing_at(&[15]);
    client.feed(0).loses(20, 30);
    assert_eq!(client.hears(), [""; 0]);
    client.outside().lost = Some(Gap { after: Revision(12), until: Revision(40) });
    client.feed(0).ends();
    client.ring();
    client.pass(Duration::from_millis(20));
    assert_eq!(client.hears(), ["0 @10 canceled compacted 40"]);
}

#[test]
fn a_create_that_waits_for_a_feed_that_ends_asks_the_next_one() {
    let mut client = Client::new();
    client.create(configmaps());
    assert_eq!(client.did(), ["ask for watch 1"]);
    client.feed(0).ends();
    client.step(Event::Present { uid: 1, present: Present::Ended });
    client.pass(Duration::from_millis(20));
    assert_eq!((client.did(), client.outside().feeds.len()), (vec!["ask for watch 1".to_owned()], 2));
    client.present(1, 20);
    client.feed(1).puts(&[("a", 20), ("a", 21)]);
    assert_eq!(client.hears(), ["0 @20 created", "0 @21: put a 21"]);
}

#[test]
fn what_one_feed_loses_holds_up_no_other_watch_of_the_stream() {
    let mut client = Client::new();
    client.create(configmaps().from(11));
    client.create(single("pods/a"));
    client.says(A, created(2, 20));
    client.hears();
    client.feed(0).begins_anew(50);
    client.says(A, events(2, 21, &[put("pods/a", 21)]));
    assert_eq!(client.hears(), ["1 @21: put a 21 after 1", "0 @21 canceled compacted 50"]);
}

/// A watch of one key that had no event stood where it began. When its shard came back after a compaction, or its key
/// moved, the shard answered that this position was compacted, though the client had missed nothing.
#[test]
fn f57_idle_watches_pass_what_a_client_compacts() {
    let mut client = Client::new();
    client.create(single("pods/a"));
    client.says(A, created(1, 20));
    client.create(pods().from(11));
    assert_eq!(client.hears().len(), 2);
    client.did();
    client.compacts(40);
    client.answer(50);
    client.feed(0).watermark(50);
    client.says(A, progressed(50));
    assert_eq!(client.hears(), [""; 0], "the client has asked for nothing");
    client.did();
    client.said(A, Said::Broken);
    assert_eq!(client.did(), ["A: open in 20ms, create 1 pods/a from 51"]);
    client.new_map(2, [B, B], A);
    assert!(
        client.feed(0).readers() == 0
            && client.did().contains(&"B: open, create 1/1 pods/a from 51".to_owned())
    );
    // Both watches stand above this compaction, so nobody is asked.
    client.compacts(45);
    assert_eq!(client.asks(), vec![]);
}

#[test]
fn f57_a_round_for_a_compaction_that_fails_is_tried_again_and_gives_way_to_the_client() {
    let mut client = Client::new();
    client.create(single("pods/a"));
    client.says(A, created(1, 20));
    client.hears();
    client.did();
    client.compacts(40);
    assert_eq!(client.did(), ["A: ask"]);
    client.asks();
    client.pass(2 * ROUND_MAX);
    assert_eq!(client.did(), ["A: ask"], "the first one took too long");
    client.progress();
    client.answer(50);
    client.says(A, progressed(50));
    assert_eq!(client.hears(), [""; 0], "the client asked later, and gets the next one");
    client.answer(60);
    client.says(A, progressed(60));
    assert_eq!(client.hears(), ["-1 @60 progress"]);
    client.pass(2 * ROUND_MAX);
    assert_eq!(client.asks(), vec![]);
}
