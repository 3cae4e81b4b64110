//! Creates and cancels: what is refused, what is answered, and in which order.

use std::time::Duration;

use bytes::Bytes;

use super::super::{CREATE_WAIT, End, Event, Present};
use super::client::{Client, canceled, configmaps, created, ended, events, pods, range, single};
use super::fake::{A, B, ETCD, put};

const NONE: [&str; 0] = [];

#[test]
fn a_create_with_a_start_is_answered_before_its_events() {
    let mut client = Client::new();
    client.create(pods());
    client.present(1, 10);
    client.feed(0).puts(&[("a", 12), ("b", 14)]);
    client.create(pods().from(14).id(5));
    let mut heard = client.hears();
    heard[2..].sort();
    assert_eq!(heard, ["0 @10 created", "5 @14 created", "0 @14: put a 12, put b 14", "5 @14: put b 14"]);
}

#[test]
fn a_create_that_the_client_may_not_make_is_refused_in_its_turn_and_the_stream_goes_on() {
    let mut client = Client::new();
    client.create(pods());
    client.create(single("tokens/a").id(7));
    client.create(single("tokens/a").from(-1));
    assert_eq!(client.hears(), NONE);
    client.present(1, 20);
    let refused = "-1 @0 created canceled (forbidden)";
    let compacted = "-1 @0 created canceled (etcdserver: mvcc: required revision has been compacted)";
    assert_eq!(client.hears(), ["0 @20 created", refused, compacted]);
    assert_eq!(client.did(), ["ask for watch 1"], "no store was asked");
}

#[test]
fn r8_a_create_without_a_start_begins_behind_what_all_its_stores_promise() {
    let mut client = Client::new();
    client.create(pods());
    assert_eq!(client.did(), ["ask for watch 1"]);
    client.feed(0).puts(&[("a", 20)]);
    assert_eq!(client.hears(), NONE, "nobody knows yet where it begins");
    client.present(1, 22);
    client.feed(0).puts(&[("b", 22), ("c", 23)]);
    assert_eq!(client.hears(), ["0 @22 created", "0 @23: put c 23"]);
    assert_eq!(client.outside().shown, 23, "no later read shows less");
}

#[test]
fn r8_a_header_of_a_create_counts_as_shown_before_any_event() {
    let mut client = Client::new();
    client.create(pods());
    client.present(1, 22);
    assert_eq!((client.hears().len(), client.outside().shown), (1, 22));
}

#[test]
fn a_create_with_a_start_on_a_feed_that_is_not_open_waits_for_its_header() {
    let mut client = Client::new();
    client.outside().open_after = None;
    client.create(configmaps().from(5));
    assert_eq!((client.did(), client.hears().len()), (vec!["ask for watch 1".to_owned()], 0));
    client.feed(0).open(4, 1 << 20);
    client.feed(0).puts(&[("a", 6)]);
    client.present(1, 7);
    assert_eq!(client.hears(), ["0 @7 created", "0 @6: put a 6"]);
}

#[test]
fn creates_are_answered_in_their_order_whoever_knows_first() {
    let mut client = Client::new();
    client.create(pods());
    client.create(single("pods/a"));
    client.create(single("pods/z"));
    client.create(configmaps().from(11));
    client.create(pods().id(3));
    assert_eq!((client.did(), client.hears().len()), (vec!["ask for watch 1".to_owned()], 0));
    client.present(1, 20);
    assert_eq!(client.did(), ["A: open, create 2 pods/a from 0"], "its answer may be the next one");
    client.says(A, created(2, 21));
    assert_eq!(client.did(), ["B: open, create 3 pods/z from 0"]);
    assert_eq!(client.hears(), ["0 @20 created", "1 @21 created"]);
    client.says(B, created(3, 22));
    let duplicate = "-1 @0 created canceled (mvcc: duplicate watch ID provided on the WatchStream)";
    assert_eq!(client.hears(), ["2 @22 created", "3 @10 created", duplicate]);
}

#[test]
fn creates_for_one_store_do_not_wait_for_each_other() {
    let mut client = Client::new();
    for name in ["pods/a", "pods/b", "pods/c", "pods/z"] {
        client.create(single(name).from(3));
    }
    let sent = ["A: open, create 1 pods/a from 3", "A: create 2 pods/b from 3", "A: create 3 pods/c from 3"];
    assert_eq!(client.did(), sent);
    [1, 2].into_iter().for_each(|uid| client.says(A, created(uid, 20)));
    assert_eq!(
        (client.hears(), client.did().len()),
        (vec!["0 @20 created".into(), "1 @20 created".into()], 0)
    );
    client.says(A, created(3, 20));
    assert_eq!(client.did(), ["B: open, create 4 pods/z from 3"]);
}

#[test]
fn a_bad_create_is_refused_with_etcds_answer_and_the_stream_goes_on() {
    let compacted = "mvcc: required revision has been compacted";
    let empty = "mvcc: watcher range is empty";
    let joins = "joins a stock etcd with another store";
    let cases = [
        (pods().from(-1), compacted),
        (pods().from(i64::MIN), compacted),
        (range("pods/b", "pods/a"), empty),
        (range("pods/b", "pods/b"), empty),
        (range("pods/b", "pods/a").from(-1), compacted),
        (pods().id(9), "mvcc: duplicate watch ID provided on the WatchStream"),
        (range("pods/b", "pods/a").id(9), empty),
        (range("pods/", "secrets0"), joins),
    ];
    for (create, reason) in cases {
        let mut client = Client::new();
        client.create(configmaps().from(11).id(9));
        client.create(create.clone());
        client.create(configmaps().from(11));
        client.feed(0).puts(&[("a", 12)]);
        let heard = client.hears();
        assert_eq!(heard[0], "9 @10 created", "{create:?}");
        assert!(heard[1].starts_with("-1 @10 created canceled ("), "{heard:?}");
        assert!(heard[1].contains(reason), "{heard:?}");
        assert_eq!(heard[2..], ["0 @10 created", "9 @12: put a 12", "0 @12: put a 12"], "{create:?}");
        assert_eq!((client.end, client.session.outside.watchers), (None, 2), "a refused one is no watch");
    }
}

#[test]
fn the_first_of_two_creates_with_one_id_keeps_it_until_it_is_cancelled() {
    let mut client = Client::new();
    client.create(configmaps().from(11).id(4));
    client.create(pods().from(11).id(4));
    client.feed(0).puts(&[("a", 12)]);
    let duplicate = "-1 @10 created canceled (mvcc: duplicate watch ID provided on the WatchStream)";
    assert_eq!(client.hears(), ["4 @10 created", duplicate, "4 @12: put a 12"]);
    client.cancel(4);
    client.create(pods().from(11).id(4));
    assert_eq!(client.hears(), ["4 @12 canceled", "4 @10 created"]);
}

#[test]
fn ids_are_given_in_order_and_pass_over_those_that_are_taken() {
    let mut client = Client::new();
    for id in [1, 0, 0, 3, 0, -5] {
        client.create(configmaps().from(11).id(id));
    }
    let ids: Vec<String> =
        client.hears().iter().map(|heard| heard.split(' ').next().unwrap().into()).collect();
    assert_eq!(ids, ["1", "0", "2", "3", "4", "-5"]);
    client.cancel(0);
    client.create(configmaps().from(11));
    assert_eq!(client.hears(), ["0 @10 canceled", "5 @10 created"], "an id is not given twice");
}

#[test]
fn nothing_comes_behind_the_answer_to_a_cancel() {
    let mut client = Client::new();
    client.create(configmaps().from(11));
    client.create(configmaps().from(11));
    client.hears();
    client.feed(0).puts(&[("a", 12)]);
    client.cancel(0);
    assert_eq!(client.hears(), ["0 @10 canceled", "1 @12: put a 12"]);
    client.cancel(0);
    client.feed(0).puts(&[("b", 13)]);
    assert_eq!(client.hears(), ["1 @13: put b 13"]);
}

#[test]
fn a_cancel_of_an_unknown_id_is_ignored() {
    let mut client = Client::new();
    client.cancel(3);
    client.create(configmaps().from(11).id(7));
    [0, 3, -1].into_iter().for_each(|id| client.cancel(id));
    client.feed(0).puts(&[("a", 12)]);
    assert_eq!(client.hears(), ["7 @10 created", "7 @12: put a 12"]);
}

#[test]
fn a_watch_that_is_cancelled_while_it_is_being_created_is_created_first() {
    let mut client = Client::new();
    client.create(configmaps());
    client.create(single("pods/a"));
    client.cancel(0);
    client.cancel(1);
    assert_eq!(client.hears(), NONE);
    client.feed(0).puts(&[("a", 21)]);
    client.present(1, 20);
    assert_eq!(client.hears(), ["0 @20 created", "0 @20 canceled"]);
    assert_eq!(client.feed(0).readers(), 0, "nobody reads the feed any more");
    client.did();
    client.says(A, created(2, 22));
    assert_eq!((client.hears(), client.did()), (vec!["1 @22 created".into()], vec!["A: cancel 2".into()]));
    client.says(A, canceled(2, 23));
    assert_eq!((client.hears(), client.did()), (vec!["1 @23 canceled".into()], vec!["A: close".into()]));
    assert_eq!((client.session.watches(), client.outside().watchers), (0, 0));
}

/// A create, its cancel and another create with the same id, sent together: the second create was refused as a duplicate,
/// and the client was left without a watch.
#[test]
fn f58_an_id_is_free_although_its_watch_is_cancelled_before_it_is_created() {
    // On one feed.
    let mut client = Client::new();
    client.create(configmaps().id(1));
    client.cancel(1);
    client.create(configmaps().id(1));
    assert_eq!(client.hears(), NONE);
    client.present(1, 20);
    client.present(2, 20);
    assert_eq!(client.hears(), ["1 @20 created", "1 @20 canceled", "1 @20 created"]);
    client.feed(0).puts(&[("a", 21)]);
    assert_eq!(client.hears(), ["1 @21: put a 21"]);
    client.cancel(1);
    assert_eq!(client.hears(), ["1 @21 canceled"]);

    // At one store, which answers the first cancel behind the second create.
    let mut client = Client::new();
    client.create(single("pods/a").id(1));
    client.cancel(1);
    client.create(single("pods/b").id(1));
    client.says(A, created(1, 20));
    assert_eq!(client.hears(), ["1 @20 created", "1 @20 canceled"]);
    client.says(A, created(2, 21));
    client.says(A, events(1, 22, &[put("a", 22)]));
    client.says(A, canceled(1, 22));
    client.says(A, events(2, 23, &[put("b", 23)]));
    assert_eq!(client.hears(), ["1 @21 created", "1 @23: put b 23 after 1"]);
    client.cancel(1);
    client.says(A, canceled(2, 24));
    assert_eq!(client.hears(), ["1 @24 canceled"]);
    assert_eq!((client.session.watches(), client.outside().watchers), (0, 0));
}

#[test]
fn a_cancel_at_a_store_is_answered_behind_the_events_under_way() {
    let mut client = Client::new();
    client.create(single("pods/a"));
    client.says(A, created(1, 20));
    client.cancel(0);
    client.says(A, events(1, 21, &[put("a", 21)]));
    client.says(A, canceled(1, 22));
    assert_eq!(client.hears(), ["0 @20 created", "0 @21: put a 21 after 1", "0 @22 canceled"]);
}

/// As in etcd, where a cancelled watch gives its id back at once.
#[test]
fn an_id_is_free_as_soon_as_its_watch_is_cancelled_wherever_that_is() {
    let mut client = Client::new();
    client.create(single("pods/a").id(6));
    client.create(single("pods/b").id(7));
    [1, 2].into_iter().for_each(|uid| client.says(A, created(uid, 20)));
    assert_eq!(client.hears().len(), 2);
    client.cancel(6);
    client.create(configmaps().from(11).id(6));
    client.says(A, events(1, 21, &[put("a", 21)]));
    client.says(A, canceled(1, 22));
    client.feed(0).puts(&[("b", 23)]);
    assert_eq!(client.hears(), ["6 @20 canceled", "6 @10 created", "6 @23: put b 23"]);
}

#[test]
fn a_store_that_is_away_for_ten_seconds_refuses_its_create_alone() {
    let mut client = Client::new();
    client.outside().away.insert(A);
    client.create(single("pods/a").from(3).id(7));
    client.create(configmaps().from(11));
    client.pass(CREATE_WAIT - Duration::from_millis(1));
    assert_eq!(client.hears(), NONE);
    client.pass(Duration::from_millis(1));
    assert_eq!(client.hears(), ["-1 @0 created canceled (A is away)", "0 @10 created"]);
    let left = ["A: open, create 1 pods/a from 3", "A: cancel 1", "A: close"];
    assert_eq!((client.did(), client.session.watches()), (left.map(String::from).to_vec(), 1));
    client.create(configmaps().from(11).id(7));
    assert_eq!(client.hears(), ["7 @10 created"], "the id is free again");
}

#[test]
fn a_create_waits_for_a_store_that_is_there() {
    let mut client = Client::new();
    client.create(single("pods/a").from(3));
    client.pass(CREATE_WAIT * 3);
    assert_eq!(client.hears(), NONE);
    client.says(A, created(1, 20));
    assert_eq!((client.hears(), client.session.timer()), (vec!["0 @20 created".into()], None));
}

#[test]
fn a_feed_whose_stores_do_not_answer_refuses_its_create_with_the_store_that_is_away() {
    for (away, reason) in [(None, "the stores did not answer in time"), (Some(B), "B is away")] {
        let mut client = Client::new();
        client.outside().away.extend(away);
        client.create(pods());
        client.create(configmaps().from(11));
        client.step(Event::Present { uid: 1, present: Present::Away });
        assert_eq!(
            client.hears(),
            [format!("-1 @0 created canceled ({reason})"), "1 @10 created".to_owned()]
        );
        assert_eq!((client.session.watches(), client.feed(0).readers()), (1, 0));
    }
}

#[test]
fn a_store_that_refuses_a_create_is_quoted_and_the_next_one_is_answered() {
    let mut client = Client::new();
    client.create(single("secrets/a"));
    client.create(single("secrets/b").id(8));
    let refusal = ended(-1, true, 20, "etcdserver: permission denied");
    client.says(ETCD, refusal);
    client.says(ETCD, created(2, 21));
    let refused = "-1 @20 created canceled (etcdserver: permission denied)";
    assert_eq!(client.hears(), [refused, "8 @21 created"]);
    client.says(ETCD, events(2, 22, &[put("b", 22)]));
    assert_eq!(client.hears(), ["8 @22: put b 22 after 1"]);
}

#[test]
fn requests_wait_while_a_thousand_creates_have_no_answer() {
    let mut client = Client::new();
    let mut taken = 0;
    while client.session.takes_requests() {
        client.create(pods());
        taken += 1;
    }
    assert_eq!((taken, client.session.watches()), (1024, 1024));
    client.present(1, 10);
    assert!(client.session.takes_requests());
}

#[test]
fn a_request_that_is_none_ends_the_stream_and_an_unknown_one_does_not() {
    let mut client = Client::new();
    // Nothing, and a field of a later version of etcd.
    [&[][..], &[0x22, 0x00]].into_iter().for_each(|bytes| client.request(Bytes::from_static(bytes)));
    assert_eq!((client.hears(), &client.end), (vec![], &None));
    client.request(Bytes::from_static(&[0x0a, 0x7f]));
    assert!(matches!(client.end, Some(End::Malformed(_))), "{:?}", client.end);
}
