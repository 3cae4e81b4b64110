//! Progress (R7): at or above all that was sent, and covered by every watch of the stream.

use std::time::Duration;

use kindred_partition_config::ids::Revision;
use kindred_wire::kv::WatchHead;

use super::super::message::Create;
use super::super::{Event, ROUND_MAX, Settings};
use super::client::{Client, canceled, configmaps, created, events, message, pods, progressed, single};
use super::fake::{A, B, put, sized};

const NONE: [&str; 0] = [];
const MS: Duration = Duration::from_millis(1);

/// A client with watches on two feeds, both covered up to 10.
fn two_feeds() -> Client {
    let mut client = Client::new();
    client.create(pods().from(11));
    client.create(configmaps().from(11));
    assert_eq!(client.hears().len(), 2);
    client
}

/// A client with watches of one key on A and on B, which were created at 20.
fn two_stores() -> Client {
    let mut client = Client::new();
    ["pods/a", "pods/z"].into_iter().for_each(|name| client.create(single(name)));
    [(A, 1), (B, 2)].into_iter().for_each(|(store, uid)| client.says(store, created(uid, 20)));
    assert_eq!((client.hears().len(), client.did().len()), (2, 2));
    client
}

#[test]
fn r7_progress_waits_until_every_watch_of_the_stream_covers_it() {
    let mut client = two_feeds();
    client.progress();
    assert_eq!(client.did(), ["ask a feed", "ask a feed"]);
    client.answer(30);
    assert_eq!([0, 1].map(|feed| client.feed(feed).wanted()), [30, 30], "both are to come there");
    client.feed(0).puts(&[("a", 25)]);
    client.feed(0).watermark(30);
    assert_eq!(client.hears(), ["0 @30: put a 25"]);
    client.feed(1).puts(&[("b", 29)]);
    assert_eq!(client.hears(), ["1 @29: put b 29"]);
    client.feed(1).watermark(30);
    assert_eq!(client.hears(), ["-1 @30 progress"]);
    assert_eq!(client.outside().shown, 30);
}

#[test]
fn r7_progress_is_the_highest_of_what_the_stores_answer() {
    let mut client = two_feeds();
    client.progress();
    for (ask, current) in client.asks().into_iter().zip([25, 30]) {
        client.step(Event::Asked(ask, Some(Revision(current))));
    }
    client.feed(0).watermark(29);
    client.feed(1).watermark(35);
    assert_eq!(client.hears(), NONE);
    client.feed(0).watermark(30);
    assert_eq!(client.hears(), ["-1 @30 progress"]);
}

#[test]
fn r7_progress_is_not_below_an_event_that_was_sent() {
    let mut client = two_feeds();
    client.feed(0).puts(&[("a", 40)]);
    assert_eq!(client.hears(), ["0 @40: put a 40"]);
    client.progress();
    client.answer(30);
    client.feed(1).watermark(39);
    assert_eq!(client.hears(), NONE);
    client.feed(1).watermark(40);
    assert_eq!(client.hears(), ["-1 @40 progress"]);
}

#[test]
fn r7_progress_does_not_go_back() {
    let mut client = two_feeds();
    client.progress();
    client.answer(30);
    [0, 1].into_iter().for_each(|feed| client.feed(feed).watermark(30));
    assert_eq!(client.hears(), ["-1 @30 progress"]);
    client.progress();
    client.answer(20);
    assert_eq!(client.hears(), ["-1 @30 progress"]);
}

#[test]
fn r7_events_above_the_progress_under_way_come_behind_its_answer() {
    let mut client = two_feeds();
    client.progress();
    client.answer(30);
    client.feed(0).puts(&[("a", 29), ("b", 30), ("c", 31)]);
    assert_eq!(client.hears(), ["0 @30: put a 29, put b 30"]);
    client.feed(1).puts(&[("d", 32)]);
    assert_eq!(client.hears(), ["-1 @30 progress", "0 @31: put c 31", "1 @32: put d 32"]);
}

#[test]
fn r7_requests_of_a_round_share_the_next_one_and_none_shares_that_before_it() {
    let mut client = two_feeds();
    client.progress();
    client.answer(30);
    // Their stores have come further since the first one was asked for.
    client.progress();
    client.progress();
    [0, 1].into_iter().for_each(|feed| client.feed(feed).watermark(30));
    assert_eq!(client.hears(), ["-1 @30 progress"]);
    client.answer(50);
    assert_eq!(client.hears(), NONE);
    [0, 1].into_iter().for_each(|feed| client.feed(feed).watermark(50));
    assert_eq!(client.hears(), ["-1 @50 progress"]);
    assert_eq!((client.asks(), client.hears()), (vec![], vec![]));
}

#[test]
fn r7_a_watch_that_comes_during_a_round_is_covered_by_its_answer() {
    let mut client = Client::new();
    client.create(configmaps().from(11));
    client.hears();
    client.progress();
    let stale = client.asks();
    client.create(pods().from(11));
    assert_eq!(client.did(), ["ask a feed", "ask a feed", "ask a feed"], "both are asked anew");
    stale.into_iter().for_each(|ask| client.step(Event::Asked(ask, Some(Revision(15)))));
    client.answer(30);
    client.feed(0).watermark(30);
    assert_eq!(client.hears(), ["1 @10 created"]);
    client.feed(1).puts(&[("a", 20)]);
    client.feed(1).watermark(30);
    assert_eq!(client.hears(), ["1 @30: put a 20", "-1 @30 progress"]);
}

#[test]
fn r7_a_watch_that_is_cancelled_during_a_round_holds_it_up_no_more() {
    let mut client = two_feeds();
    client.progress();
    client.answer(30);
    client.feed(1).watermark(30);
    client.cancel(0);
    client.answer(30);
    assert_eq!(client.hears(), ["0 @10 canceled", "-1 @30 progress"]);
}

#[test]
fn r7_nothing_is_promised_below_where_a_watch_begins() {
    let mut client = Client::new();
    client.create(configmaps().from(11));
    client.create(configmaps().from(100));
    client.hears();
    client.progress();
    client.answer(30);
    client.feed(0).watermark(30);
    assert_eq!(client.hears(), NONE, "as in etcd: it would resume the second one too early");
    client.feed(0).watermark(120);
    client.progress();
    client.answer(120);
    assert_eq!(client.hears(), ["-1 @120 progress"]);
}

#[test]
fn progress_of_a_stream_without_watches_is_not_answered() {
    let mut client = Client::new();
    client.progress();
    client.pass(Duration::from_secs(20));
    assert_eq!((client.hears(), client.did()), (vec![], vec![]));
}

#[test]
fn r7_the_only_store_answers_each_request_itself() {
    let mut client = Client::new();
    client.create(single("pods/a"));
    client.says(A, created(1, 20));
    client.hears();
    client.did();
    client.progress();
    client.progress();
    assert_eq!(client.did(), ["A: progress", "A: progress"]);
    [progressed(25), events(1, 27, &[put("pods/a", 27)]), progressed(27)]
        .into_iter()
        .for_each(|said| client.says(A, said));
    let heard = ["-1 @25 progress", "0 @27: put a 27 after 1", "-1 @27 progress"];
    assert_eq!(client.hears(), heard);
    client.says(A, progressed(26));
    client.says(A, progressed(28));
    assert_eq!(client.hears(), NONE, "nobody has asked");
}

#[test]
fn r7_an_answer_of_the_only_store_says_nothing_once_there_is_another() {
    let mut client = Client::new();
    client.create(single("pods/a"));
    client.says(A, created(1, 20));
    client.progress();
    client.create(configmaps().from(11));
    client.hears();
    client.says(A, progressed(25));
    assert_eq!(client.hears(), NONE);
    client.pass(Duration::from_millis(200));
    client.answer(30);
    client.says(A, progressed(30));
    assert_eq!(client.hears(), NONE);
    client.feed(0).watermark(30);
    assert_eq!(client.hears(), ["-1 @30 progress"]);
}

#[test]
fn r7_several_stores_are_raised_to_the_target_and_promise_it_behind_their_events() {
    let mut client = two_stores();
    client.progress();
    assert_eq!(client.did(), ["A: ask", "B: ask"]);
    for (ask, current) in client.asks().into_iter().zip([30, 25]) {
        client.step(Event::Asked(ask, Some(Revision(current))));
    }
    assert_eq!(client.did(), ["A: raise to 30", "B: raise to 30"]);
    client.says(B, events(2, 31, &[put("pods/z", 31)]));
    assert_eq!(client.hears(), NONE, "held: the answer would lie below it");
    client.answer(30);
    assert_eq!(client.did(), ["A: progress", "B: progress"]);
    client.says(A, events(1, 30, &[put("pods/a", 30)]));
    client.says(A, progressed(30));
    assert_eq!(client.hears(), ["0 @30: put a 30 after 1"]);
    client.says(B, progressed(33));
    assert_eq!(client.hears(), ["-1 @30 progress", "1 @31: put z 31 after 1"]);
}

#[test]
fn r7_a_message_that_spans_the_target_takes_it_along() {
    let mut client = two_stores();
    client.progress();
    client.answer(30);
    client.did();
    client.says(A, events(1, 35, &[put("pods/a", 29), put("pods/a", 35)]));
    assert_eq!(client.did(), ["A: raise to 35", "B: raise to 35"]);
    client.says(B, progressed(30));
    client.answer(35);
    client.says(A, progressed(35));
    client.says(B, progressed(35));
    assert_eq!(client.hears(), ["0 @35: put a 29 after 1, put a 35 after 1", "-1 @35 progress"]);
}

#[test]
fn a_cancel_of_a_store_comes_behind_the_events_that_are_held() {
    let mut client = two_stores();
    client.progress();
    client.answer(30);
    client.says(B, events(2, 31, &[put("pods/z", 31)]));
    client.cancel(1);
    client.says(B, canceled(2, 32));
    assert_eq!(client.hears(), ["1 @31: put z 31 after 1", "1 @32 canceled"]);
}

#[test]
fn an_id_that_is_used_again_comes_behind_what_is_held_of_its_old_watch() {
    let mut client = two_stores();
    client.progress();
    client.answer(30);
    client.says(B, events(2, 31, &[put("pods/z", 31)]));
    client.cancel(1);
    client.create(configmaps().from(11).id(1));
    assert_eq!(client.hears(), ["1 @31: put z 31 after 1", "1 @31 canceled", "1 @10 created"]);
}

#[test]
fn r17_a_round_holds_no_more_than_four_mebibytes() {
    let mut client = two_stores();
    client.progress();
    client.answer(30);
    for revision in 31..35 {
        client.says(B, events(2, revision, &[sized("pods/z", revision, (1 << 20) - 100)]));
    }
    assert!(!client.session.has_message());
    client.says(B, events(2, 35, &[sized("pods/z", 35, 1000)]));
    let expected: Vec<String> = (31..36).map(|at| format!("1 @{at}: put z {at} after 1")).collect();
    assert_eq!(client.hears(), expected);
    // The request is not forgotten.
    client.pass(Duration::from_millis(200));
    client.answer(30);
    [A, B].into_iter().for_each(|store| client.says(store, progressed(35)));
    assert_eq!(client.hears(), ["-1 @35 progress"]);
}

#[test]
fn a_round_that_does_not_end_is_given_up_after_a_second_and_tried_again() {
    let mut client = two_stores();
    client.progress();
    let stale = client.asks();
    client.pass(ROUND_MAX - MS);
    assert_eq!(client.did(), ["A: ask", "B: ask"]);
    client.pass(MS);
    stale.into_iter().for_each(|ask| client.step(Event::Asked(ask, Some(Revision(30)))));
    client.pass(Duration::from_millis(199));
    assert_eq!(client.did(), NONE, "an answer that comes too late does not count");
    client.pass(MS);
    assert_eq!(client.did(), ["A: ask", "B: ask"]);
    client.answer(40);
    [A, B].into_iter().for_each(|store| client.says(store, progressed(40)));
    assert_eq!((client.hears(), client.session.timer()), (vec!["-1 @40 progress".to_owned()], None));
}

#[test]
fn a_store_that_does_not_follow_gives_the_round_up() {
    let mut client = two_stores();
    client.progress();
    let mut asks = client.asks();
    client.step(Event::Asked(asks.remove(0), Some(Revision(30))));
    client.step(Event::Asked(asks.remove(0), None));
    client.says(B, events(2, 31, &[put("pods/z", 31)]));
    assert_eq!(client.hears(), ["1 @31: put z 31 after 1"], "nothing is held any more");
    client.did();
    client.pass(Duration::from_millis(200));
    assert_eq!(client.did(), ["A: ask", "B: ask"]);
}

#[test]
fn a_request_is_kept_while_a_watch_catches_up_but_not_for_ever() {
    let behind = || {
        let mut client = Client::new();
        client.outside().open_after = Some(50);
        client.create(configmaps().from(20));
        client.progress();
        assert_eq!((client.hears().len(), client.asks().len()), (1, 0));
        client
    };
    let mut client = behind();
    client.feed(1).puts(&[("a", 30)]);
    client.feed(1).watermark(50);
    assert_eq!(client.hears(), ["0 @50: put a 30"]);
    client.answer(50);
    assert_eq!(client.hears(), ["-1 @50 progress"]);
    let mut client = behind();
    client.pass(Duration::from_secs(10) + MS);
    client.feed(1).watermark(50);
    assert_eq!((client.hears(), client.asks().len()), (vec![], 0));
}

#[test]
fn idle_watches_that_ask_for_it_are_notified_every_five_seconds_and_others_are_not() {
    let mut client = Client::new();
    let notified = |create: Create| Create { progress_notify: true, ..create };
    client.create(notified(configmaps().from(11)));
    client.create(configmaps().from(11));
    client.create(notified(pods().from(11)));
    client.hears();
    let feeds = [client.feed(0), client.feed(1)];
    let mut at = 10;
    let mut period = |client: &mut Client, puts: bool| {
        at += 10;
        if puts {
            feeds[1].puts(&[("a", at - 1)]);
        }
        let before = client.hears();
        client.pass(Settings::default().notify - MS);
        assert_eq!(client.hears(), NONE);
        client.pass(MS);
        client.answer(at);
        feeds.iter().for_each(|feed| feed.watermark(at));
        (before, client.hears())
    };
    let (_, heard) = period(&mut client, false);
    assert_eq!(heard, ["0 @20 progress", "2 @20 progress"]);
    let (before, heard) = period(&mut client, true);
    assert_eq!(
        (before, heard),
        (vec!["2 @29: put a 29".into()], vec!["0 @30 progress".into()]),
        "2 was busy"
    );
    let (_, heard) = period(&mut client, false);
    assert_eq!(heard, ["0 @40 progress", "2 @40 progress"]);
}

/// Row 104: the interval of the router is that of all its watches, and not the shard's for a watch of one key.
#[test]
fn f104_a_watch_of_one_key_is_notified_at_the_routers_interval() {
    let mut client = Client::new();
    client.create(Create { progress_notify: true, ..single("pods/a") });
    client.says(A, created(1, 20));
    client.hears();
    let period = |client: &mut Client, at: i64, busy: bool| {
        if busy {
            client.says(A, events(1, at - 1, &[put("pods/a", at - 1)]));
        }
        client.pass(Settings::default().notify);
        client.answer(at);
        if !busy {
            client.says(A, progressed(at));
        }
        client.hears()
    };
    assert_eq!(period(&mut client, 30, false), ["0 @30 progress"]);
    assert_eq!(period(&mut client, 40, true), ["0 @39: put a 39 after 1"]);
    assert_eq!(period(&mut client, 50, false), ["0 @50 progress"]);
}

/// The store's next answer is to a question of before the request.
#[test]
fn r7_a_request_behind_a_question_without_an_answer_gets_a_round() {
    let mut client = Client::new();
    client.create(Create { progress_notify: true, ..single("pods/a") });
    client.says(A, created(1, 20));
    client.hears();
    client.pass(Settings::default().notify);
    client.answer(30);
    client.pass(ROUND_MAX);
    assert!(client.did().contains(&"A: progress".to_owned()));
    client.progress();
    client.says(A, progressed(30));
    client.pass(ROUND_MAX / 2);
    client.answer(40);
    client.says(A, progressed(35));
    assert_eq!(client.hears(), NONE);
    client.says(A, progressed(40));
    assert_eq!(client.hears(), ["0 @40 progress", "-1 @40 progress"]);
}

/// The round took the place of the request, which was never answered.
#[test]
fn r7_a_round_that_begins_behind_a_request_answers_it() {
    let notify = Settings::default().notify;
    for compacted in [false, true] {
        let mut client = Client::new();
        client.create(Create { progress_notify: !compacted, ..single("pods/a") });
        client.says(A, created(1, 20));
        client.hears();
        client.pass(notify - Duration::from_millis(1));
        client.progress();
        if compacted {
            client.compacts(40);
        }
        client.pass(Duration::from_millis(1));
        client.says(A, progressed(20));
        client.answer(45);
        client.says(A, progressed(45));
        let heard = client.hears();
        assert!(heard.contains(&"-1 @45 progress".to_owned()), "{compacted}: {heard:?}");
        assert_eq!(client.asks(), vec![], "there is nothing left to be answered");
    }
}

#[test]
fn r7_a_request_during_the_round_of_a_notification_gets_an_answer_of_its_own() {
    let mut client = Client::new();
    client.create(Create { progress_notify: true, ..configmaps().from(11) });
    client.hears();
    client.pass(Settings::default().notify);
    client.answer(30);
    client.progress();
    client.feed(0).watermark(30);
    assert_eq!(client.hears(), ["0 @30 progress"]);
    client.answer(40);
    client.feed(0).watermark(40);
    assert_eq!(client.hears(), ["-1 @40 progress"]);
}

/// The round of a notification ends because its watch does. What a store was asked for it meanwhile answers no client.
#[test]
fn r7_what_a_store_was_asked_before_a_request_does_not_answer_it() {
    let mut client = Client::new();
    client.create(Create { progress_notify: true, ..configmaps().from(11) });
    client.create(single("pods/a"));
    client.says(A, created(2, 20));
    client.hears();
    client.pass(Settings::default().notify);
    client.cancel(0);
    // Else its answer, at a revision from before the request, would be taken for that to the request.
    assert!(!client.did().contains(&"A: progress".to_owned()), "nobody waits for it");
    client.progress();
    assert_eq!(client.did(), ["A: progress"]);
    client.says(A, progressed(41));
    assert_eq!(client.hears(), ["0 @20 canceled", "-1 @41 progress"]);
}

#[test]
fn a_slow_client_gets_no_progress_on_top_of_what_it_does_not_read() {
    let mut client = Client::with(Settings { take_bytes: 1, ..Settings::default() });
    client.create(Create { progress_notify: true, ..configmaps().from(11) });
    client.create(Create { progress_notify: true, ..pods().from(11) });
    client.hears();
    (20..40).for_each(|revision| client.feed(0).puts(&[("a", revision)]));
    for at in 0..50 {
        client.ring();
        client.progress();
        client.pass(Settings::default().notify);
        client.answer(50 + at);
    }
    let mut unread = 0;
    while client.session.next_message().is_some() {
        unread += 1;
    }
    assert!(unread <= 4, "{unread}");
}

#[test]
fn progress_of_one_watch_at_a_store_goes_on_to_the_client() {
    let mut client = two_stores();
    let head = WatchHead { watch_id: 1, ..WatchHead::default() };
    client.says(A, message(head, 25, &[]));
    assert_eq!(client.hears(), ["0 @25 progress"]);
}
