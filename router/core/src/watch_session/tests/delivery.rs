//! What a watch on a feed gets: whole revisions in their order, cut by its filter, as fast as its client reads.

use std::time::Duration;

use bytes::Bytes;
use kindred_partition_config::ids::Revision;

use super::super::Settings;
use super::super::message::Create;
use super::client::{Client, configmaps, pods, range};
use super::fake::{delete, put, sized};

/// Reads end behind every revision.
const SMALL: Settings =
    Settings { take_bytes: 1, look_bytes: 1, notify: Duration::from_secs(5), fragment_bytes: 2 << 20 };

fn of(id: i64, heard: &[String]) -> Vec<String> {
    let id = format!("{id} ");
    heard.iter().filter(|heard| heard.starts_with(&id)).cloned().collect()
}

#[test]
fn events_of_several_watches_of_a_stream_come_in_order_and_each_gets_its_own() {
    for settings in [Settings::default(), SMALL] {
        let mut client = Client::with(settings);
        client.create(pods().from(11));
        client.create(range("pods/b", "pods/d").from(12));
        client.create(range("pods/x", "pods/y").from(11));
        assert_eq!(client.hears().len(), 3);
        let feed = client.feed(0);
        assert_eq!(client.session.outside.feeds.len(), 3, "the second and the third need one store each");
        let puts = [("a", 11), ("b", 12), ("c", 14), ("b", 15), ("e", 17)];
        feed.puts(&puts);
        client.feed(1).puts(&puts);
        feed.puts(&[("x", 18)]);
        client.feed(2).puts(&[("x", 18)]);
        let heard = client.hears();
        let revisions = |id: i64| -> Vec<String> {
            let heard = of(id, &heard);
            let events = heard.iter().flat_map(|heard| heard.split_once(": ").unwrap().1.split(", "));
            events.map(|event| event.trim_start_matches("put ").to_owned()).collect()
        };
        assert_eq!(revisions(0), ["a 11", "b 12", "c 14", "b 15", "e 17", "x 18"]);
        assert_eq!(revisions(1), ["b 12", "c 14", "b 15"]);
        assert_eq!(revisions(2), ["x 18"]);
    }
}

#[test]
fn whole_revisions_are_never_split_and_a_header_promises_no_more_than_was_sent() {
    let mut client = Client::with(SMALL);
    client.create(configmaps().from(11));
    client.hears();
    let many: Vec<Bytes> = ["a", "b", "c"].map(|name| put(&format!("configmaps/{name}"), 12)).to_vec();
    client.feed(0).gets(12, &many);
    client.feed(0).gets(14, &[put("configmaps/a", 14), delete("configmaps/b", 14)]);
    client.feed(0).puts(&[("c", 15)]);
    client.feed(0).watermark(19);
    let parts = ["0 @12: put a 12, put b 12, put c 12", "0 @14: put a 14, delete b 14", "0 @19: put c 15"];
    assert_eq!(client.hears(), parts);
}

#[test]
fn what_fits_goes_in_one_message() {
    let mut client = Client::new();
    client.create(configmaps().from(11));
    client.hears();
    client.feed(0).puts(&[("a", 12), ("b", 13), ("c", 15)]);
    client.feed(0).watermark(16);
    assert_eq!(client.hears(), ["0 @16: put a 12, put b 13, put c 15"]);
}

#[test]
fn events_are_counted_as_new_once_a_watch_has_had_what_was_there() {
    let mut client = Client::with(SMALL);
    client.create(configmaps().from(11));
    client.hears();
    let delivered = |client: &mut Client| std::mem::take(&mut client.session.outside.delivered);
    let new = |uid, revision| (uid, Some(Revision(revision)));
    client.feed(0).puts(&[("a", 12), ("b", 13)]);
    client.hears();
    assert_eq!(delivered(&mut client), [new(1, 12), new(1, 13)]);
    client.create(configmaps().from(12));
    client.hears();
    assert_eq!(delivered(&mut client), [(2, None), (2, None)], "they were there before this one");
    client.feed(0).puts(&[("c", 15)]);
    client.hears();
    assert_eq!(delivered(&mut client), [new(1, 15), new(2, 15)]);
}

#[test]
fn filters_and_prev_kv_cut_what_a_watch_does_not_want() {
    let all = || configmaps().from(11);
    let cases: [(Create, &[&str]); 7] = [
        (all(), &["put a 12", "delete a 13", "put b 13", "put c 14"]),
        (
            Create { prev_kv: true, ..all() },
            &["put a 12 after 1", "delete a 13 after 1", "put b 13 after 1", "put c 14 after 1"],
        ),
        (Create { no_put: true, ..all() }, &["delete a 13"]),
        (Create { no_delete: true, ..all() }, &["put a 12", "put b 13", "put c 14"]),
        (Create { no_put: true, no_delete: true, ..all() }, &[]),
        (range("configmaps/b", "configmaps/c").from(11), &["put b 13"]),
        (all().from(14), &["put c 14"]),
    ];
    for (create, expected) in cases {
        let mut client = Client::new();
        client.create(create.clone());
        client.hears();
        client.feed(0).puts(&[("a", 12)]);
        client.feed(0).gets(13, &[delete("configmaps/a", 13), put("configmaps/b", 13)]);
        client.feed(0).puts(&[("c", 14)]);
        let expected =
            if expected.is_empty() { vec![] } else { vec![format!("0 @14: {}", expected.join(", "))] };
        assert_eq!(client.hears(), expected, "{create:?}");
    }
}

#[test]
fn only_a_watch_that_asks_for_fragments_gets_them_and_only_above_two_mebibytes() {
    const MIB: usize = 1 << 20;
    // With the sizes of the events of one revision: how many of them each message has.
    let cases: [(bool, &[usize], &[usize]); 6] = [
        (false, &[MIB, MIB, MIB], &[3]),
        (true, &[MIB / 2, MIB / 2, MIB / 2], &[3]),
        (true, &[MIB, MIB, MIB], &[1, 1, 1]),
        (true, &[MIB - 100, MIB - 100, MIB], &[2, 1]),
        (true, &[3 * MIB, 10, 10], &[1, 2]),
        (true, &[3 * MIB], &[1]),
    ];
    for (fragment, sizes, expected) in cases {
        let mut client = Client::new();
        client.create(Create { fragment, ..configmaps().from(11) });
        client.hears();
        let all: Vec<Bytes> = sizes.iter().map(|bytes| sized("configmaps/a", 12, *bytes)).collect();
        client.feed(0).gets(12, &all);
        client.feed(0).puts(&[("a", 13)]);
        let heard = client.hears();
        let (last, parts) = heard.split_last().unwrap();
        assert_eq!(last, "0 @13: put a 13", "no revision joins the fragments of another");
        let counts: Vec<usize> = parts.iter().map(|part| part.matches("put a 12").count()).collect();
        assert_eq!(counts, expected, "{fragment} {sizes:?}");
        let marked: Vec<bool> = parts.iter().map(|part| part.contains(" fragment")).collect();
        let all_but_the_last = (1..=expected.len()).map(|at| at < expected.len());
        assert_eq!(marked, all_but_the_last.collect::<Vec<_>>(), "{fragment} {sizes:?}");
    }
}

#[test]
fn a_watch_that_rests_is_read_only_when_an_event_is_of_its_range() {
    let mut client = Client::new();
    let ranges = [("configmaps/a", "configmaps/b"), ("configmaps/b", "configmaps/c")];
    ranges.into_iter().for_each(|(from, end)| client.create(range(from, end).from(11)));
    client.hears();
    let before = client.outside().turns;
    for revision in 20..30 {
        client.feed(0).puts(&[("b1", revision)]);
        assert_eq!(client.hears(), [format!("1 @{revision}: put b1 {revision}")]);
    }
    assert_eq!(client.outside().turns - before, 10, "one of the two, once for each event");
    client.feed(0).puts(&[("a1", 30)]);
    assert_eq!(client.hears(), ["0 @30: put a1 30"]);
}

#[test]
fn news_that_are_looked_through_in_pieces_reach_everybody_whom_they_concern() {
    let mut client = Client::with(Settings { look_bytes: 1, ..Settings::default() });
    let ranges = [("configmaps/a", "configmaps/b"), ("configmaps/b", "configmaps/c")];
    ranges.into_iter().for_each(|(from, end)| client.create(range(from, end).from(11)));
    client.hears();
    for revision in (20..40).step_by(2) {
        client.feed(0).puts(&[("a1", revision), ("b1", revision + 1)]);
    }
    let heard = client.hears();
    for (id, first, name) in [(0, 20, "a1"), (1, 21, "b1")] {
        let expected: Vec<String> = (first..40).step_by(2).map(|at| format!("put {name} {at}")).collect();
        let got = of(id, &heard);
        let got: Vec<&str> =
            got.iter().flat_map(|heard| heard.split_once(": ").unwrap().1.split(", ")).collect();
        assert_eq!(got, expected);
    }
}

/// A client that does not read holds up its own watches, and nothing grows.
#[test]
fn r17_a_client_that_does_not_read_costs_a_position_and_gets_everything_when_it_reads_again() {
    let mut client = Client::with(SMALL);
    client.create(configmaps().from(11));
    client.create(pods().from(11));
    client.hears();
    let feed = client.feed(0);
    let mut turns = Vec::new();
    for revision in 20..120 {
        feed.puts(&[("a", revision)]);
        client.feed(1).puts(&[("a", revision)]);
        client.ring();
        turns.push(client.outside().turns);
        assert!(!client.session.has_work(), "it waits for the client");
    }
    assert_eq!(turns[10], turns[99], "nothing is read on");
    assert!(client.session.has_message() && client.session.takes_requests());
    // The bells have all rung; only the client's reading goes on.
    let heard: Vec<String> = std::iter::from_fn(|| client.hear()).collect();
    for id in [0, 1] {
        let heard = of(id, &heard);
        assert_eq!(heard.len(), 100);
        assert!(
            heard.iter().zip(20..).all(|(heard, at)| heard.ends_with(&format!("put a {at}"))),
            "{heard:?}"
        );
    }
}

#[test]
fn r17_no_more_than_four_messages_are_made_ahead() {
    let mut client = Client::with(SMALL);
    for _ in 0..20 {
        client.create(configmaps().from(11));
    }
    client.hears();
    client.feed(0).puts(&[("a", 20), ("a", 21)]);
    client.ring();
    let mut ahead = 0;
    while client.session.next_message().is_some() {
        ahead += 1;
    }
    assert_eq!(ahead, 4);
    client.turns();
    assert_eq!(client.hears().len(), 36);
}

#[test]
fn a_watch_that_fell_behind_reads_a_catch_up_and_then_on_without_an_event_twice() {
    let mut client = Client::new();
    client.outside().open_after = Some(50);
    client.create(configmaps().from(20));
    let feed = client.feed(0);
    feed.puts(&[("x", 55)]);
    assert_eq!(client.hears(), ["0 @50 created"]);
    assert_eq!(client.did(), ["catch up 1 from 20"]);
    let catch_up = client.feed(1);
    assert_eq!(catch_up.wanted(), 55, "it is to come to where the feed is");
    catch_up.puts(&[("a", 20), ("b", 30)]);
    assert_eq!(client.hears(), ["0 @30: put a 20, put b 30"]);
    // It has come past the beginning of the feed, which has 55, too.
    catch_up.puts(&[("c", 50), ("x", 55)]);
    feed.puts(&[("y", 60)]);
    assert_eq!(client.hears(), ["0 @55: put c 50, put x 55", "0 @60: put y 60"]);
    assert_eq!(catch_up.readers(), 0, "nobody needs it any more");
    feed.puts(&[("z", 61)]);
    assert_eq!((client.hears(), client.did().len()), (vec!["0 @61: put z 61".into()], 0));
}

#[test]
fn a_client_that_does_not_read_falls_off_the_ring_and_catches_up_from_its_own_position() {
    let mut client = Client::with(SMALL);
    client.create(configmaps().from(11));
    client.hears();
    let feed = client.feed(0);
    feed.open(10, 1);
    (20..30).for_each(|revision| {
        feed.puts(&[("a", revision)]);
        client.ring();
    });
    let mut heard = vec![client.hear().unwrap()];
    while let Some(message) = client.hear() {
        heard.push(message);
    }
    let next = 20 + heard.len() as i64;
    assert_eq!(client.did(), [format!("catch up 1 from {next}")]);
    (next..30).for_each(|revision| client.feed(1).puts(&[("a", revision)]));
    heard.extend(client.hears());
    let expected: Vec<String> = (20..30).map(|at| format!("0 @{at}: put a {at}")).collect();
    assert_eq!(heard, expected);
}

#[test]
fn a_catch_up_that_ends_is_begun_again_at_the_position_of_the_watch() {
    let mut client = Client::new();
    client.outside().open_after = Some(50);
    client.create(configmaps().from(20));
    client.hears();
    client.feed(1).puts(&[("a", 25)]);
    assert_eq!(client.hears(), ["0 @25: put a 25"]);
    client.feed(1).ends();
    client.ring();
    assert_eq!(client.did(), ["catch up 1 from 20", "catch up 1 from 26"]);
    client.feed(2).puts(&[("b", 26)]);
    client.feed(2).watermark(50);
    client.feed(0).puts(&[("c", 51)]);
    assert_eq!(client.hears(), ["0 @50: put b 26", "0 @51: put c 51"]);
}
