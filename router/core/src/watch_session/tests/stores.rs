//! Watches of one key, or on a stock etcd: streams of the session's own at stores, which break and are opened again.

use std::time::Duration;

use bytes::Bytes;
use kindred_wire::kv::WatchHead;

use super::super::message::Create;
use super::super::{End, Event, ROUND_MAX, Said};
use super::client::{
    Client, canceled, compacted, configmaps, created, ended, events, message, pods, range, single,
};
use super::fake::{A, B, ETCD, put};
use super::moves::not_owned;

/// A client with watches 0 and 1 on A, and 2 on B, which were created at 20.
fn three() -> Client {
    let mut client = Client::new();
    ["pods/a", "pods/b", "pods/z"].into_iter().for_each(|name| client.create(single(name)));
    [(A, 1), (A, 2), (B, 3)].into_iter().for_each(|(store, uid)| client.says(store, created(uid, 20)));
    assert_eq!((client.hears().len(), client.did().len()), (3, 3));
    client
}

#[test]
fn a_stores_message_goes_on_as_it_is_under_the_clients_id() {
    let mut client = Client::new();
    client.create(single("pods/a").id(9));
    client.says(A, created(1, 20));
    client.says(A, events(1, 23, &[put("pods/a", 21), put("pods/a", 23)]));
    client.says(A, events(1, 25, &[]));
    client.says(A, ended(1, false, 26, "why not"));
    let all = [
        "9 @20 created",
        "9 @23: put a 21 after 1, put a 23 after 1",
        "9 @25 progress",
        "9 @26 canceled (why not)",
    ];
    assert_eq!((client.hears(), client.session.watches()), (all.map(String::from).to_vec(), 0));
    assert_eq!(client.outside().shown, 26);
}

#[test]
fn a_stream_that_breaks_is_opened_again_with_each_watch_at_its_own_position() {
    let mut client = three();
    client.says(A, events(1, 25, &[put("pods/a", 23), put("pods/a", 25)]));
    client.said(A, Said::Broken);
    assert_eq!(client.did(), ["A: open in 20ms, create 1 pods/a from 26, create 2 pods/b from 21"]);
    client.says(B, events(3, 27, &[put("pods/z", 27)]));
    client.says(A, created(1, 30));
    client.says(A, created(2, 30));
    client.says(A, events(2, 30, &[put("pods/b", 22)]));
    let heard =
        ["0 @25: put a 23 after 1, put a 25 after 1", "2 @27: put z 27 after 1", "1 @30: put b 22 after 1"];
    assert_eq!(client.hears(), heard, "the client does not hear that a stream broke");
}

#[test]
fn progress_of_a_watch_moves_its_position() {
    let mut client = three();
    client.says(A, events(1, 40, &[]));
    client.said(A, Said::Broken);
    assert_eq!(client.did(), ["A: open in 20ms, create 1 pods/a from 41, create 2 pods/b from 21"]);
}

#[test]
fn a_stream_that_breaks_again_and_again_is_opened_after_longer_pauses() {
    let mut client = three();
    let pause = |client: &mut Client| {
        client.said(A, Said::Broken);
        let did = client.did().remove(0);
        did.split_once(" in ").unwrap().1.split_once(',').unwrap().0.to_owned()
    };
    let pauses: Vec<String> = (0..8).map(|_| pause(&mut client)).collect();
    assert_eq!(pauses, ["20ms", "40ms", "80ms", "160ms", "320ms", "640ms", "1s", "1s"]);
    client.says(A, created(1, 30));
    assert_eq!(pause(&mut client), "20ms", "it was there");
}

#[test]
fn what_a_stream_says_that_is_not_the_present_one_is_ignored() {
    let mut client = three();
    let number = client.outside().streams[&A];
    client.said(A, Said::Broken);
    client.did();
    for said in [Said::Message(events(1, 25, &[put("pods/a", 25)])), Said::Broken, Said::Refused] {
        client.step(Event::Upstream { store: A, number, said });
    }
    assert_eq!((client.hears(), client.did(), &client.end), (vec![], vec![], &None));
}

#[test]
fn a_create_whose_answer_was_lost_is_sent_again_and_answered_once() {
    let mut client = Client::new();
    client.create(single("pods/a"));
    client.create(single("pods/b"));
    client.says(A, created(1, 20));
    client.said(A, Said::Broken);
    let again = "A: open in 20ms, create 1 pods/a from 21, create 2 pods/b from 0";
    assert_eq!(client.did().last().unwrap(), again);
    [1, 2].into_iter().for_each(|uid| client.says(A, created(uid, 25)));
    assert_eq!(client.hears(), ["0 @20 created", "1 @25 created"]);
}

#[test]
fn a_position_that_a_store_has_compacted_meanwhile_ends_its_watch_alone() {
    // A shard refuses the create; an etcd confirms it first.
    let refused = WatchHead { watch_id: 1, created: true, ..WatchHead::default() };
    let refused = message(WatchHead { canceled: true, compact_revision: 35, ..refused }, 40, &[]);
    for answers in [vec![refused], vec![created(1, 40), compacted(1, 40, 35)]] {
        let mut client = three();
        client.said(A, Said::Broken);
        answers.into_iter().for_each(|answer| client.says(A, answer));
        client.says(A, created(2, 40));
        client.says(A, events(2, 41, &[put("pods/b", 41)]));
        assert_eq!(client.hears(), ["0 @40 canceled compacted 35", "1 @41: put b 41 after 1"]);
        assert_eq!(client.session.watches(), 2);
    }
}

#[test]
fn a_cancel_whose_answer_is_lost_is_answered_by_the_router() {
    let mut client = three();
    client.cancel(0);
    client.said(A, Said::Broken);
    assert_eq!(client.hears(), ["0 @20 canceled"]);
    assert_eq!(client.did(), ["A: cancel 1", "A: open in 20ms, create 2 pods/b from 21"]);
    client.cancel(1);
    assert_eq!(client.hears(), ["1 @20 canceled"], "the store does not know it on this stream");
    assert_eq!(client.did(), ["A: cancel 2", "A: close"]);
}

#[test]
fn a_cancel_for_which_a_stream_has_no_room_is_answered_by_the_router() {
    let mut client = three();
    client.outside().has_room = false;
    client.cancel(0);
    assert_eq!(client.hears(), ["0 @20 canceled"]);
    client.says(A, events(1, 25, &[put("pods/a", 25)]));
    assert_eq!(client.hears(), [""; 0], "the store still has it");
}

/// It was never sent, and all creates behind it waited for its answer.
#[test]
fn a_create_for_which_a_stream_has_no_room_begins_a_new_one() {
    let mut client = three();
    client.outside().has_room = false;
    client.create(single("pods/c"));
    let did = client.did();
    let opened = did.iter().find(|what| what.starts_with("A: open"));
    let opened = opened.unwrap_or_else(|| panic!("{did:?}"));
    assert!(["pods/a", "pods/b", "pods/c"].iter().all(|name| opened.contains(name)), "{opened}");
}

#[test]
fn creates_that_find_no_room_together_begin_one_stream() {
    let mut client = three();
    // The others wait for the answer to the first.
    ["pods/z", "pods/c", "pods/d"].into_iter().for_each(|name| client.create(single(name)));
    client.did();
    client.outside().has_room = false;
    client.says(B, created(4, 20));
    let did = client.did();
    let opened: Vec<_> = did.iter().filter(|what| what.starts_with("A: open")).collect();
    assert_eq!(opened.len(), 1, "{did:?}");
    assert!(["pods/c", "pods/d"].iter().all(|name| opened[0].contains(name)), "{did:?}");
}

/// The message of a watch at store A with this event of revision 22, whole or the fragment before another one.
fn part(uid: i64, fragment: bool, name: &str) -> Bytes {
    let head = WatchHead { watch_id: uid, fragment, ..WatchHead::default() };
    message(head, 22, &[put(name, 22)])
}

/// etcd's client drops a message that comes between the fragments of another one.
#[test]
fn between_the_fragments_of_a_message_no_other_comes() {
    let mut client = three();
    client.says(A, part(1, true, "pods/a"));
    client.says(B, events(3, 25, &[put("pods/z", 25)]));
    client.says(A, part(1, false, "pods/b"));
    let heard = client.hears();
    assert_eq!(heard.len(), 3);
    let of = |at: usize| heard[at].split(' ').next().unwrap_or_default().to_owned();
    assert_eq!([of(0), of(1), of(2)], ["2", "0", "0"], "{heard:?}");
}

#[test]
fn a_stream_that_breaks_between_fragments_sends_all_of_the_message_again() {
    let mut client = three();
    client.says(A, part(1, true, "pods/a"));
    client.said(A, Said::Broken);
    assert_eq!((client.hears(), client.end.clone()), (Vec::new(), None));
    client.says(A, created(1, 30));
    client.says(A, part(1, true, "pods/a"));
    client.says(A, part(1, false, "pods/b"));
    assert_eq!(client.hears().len(), 2);
}

#[test]
fn a_store_that_refuses_the_stream_or_talks_nonsense_ends_the_clients() {
    let mut client = three();
    client.said(B, Said::Refused);
    assert_eq!(client.end, Some(End::Refused(B)));
    let mut client = three();
    client.says(B, Bytes::from_static(&[0x0a, 0x7f]));
    assert!(matches!(client.end, Some(End::BadMessage(B, _))), "{:?}", client.end);
}

#[test]
fn the_last_watch_of_a_store_closes_its_stream() {
    let mut client = three();
    for (store, uid, did) in [(A, 1, vec!["A: cancel 1"]), (A, 2, vec!["A: cancel 2", "A: close"])] {
        client.cancel(uid - 1);
        client.says(store, canceled(uid, 30));
        assert_eq!(client.did(), did);
    }
    assert_eq!(client.session.watches(), 1);
}

#[test]
fn r17_messages_of_stores_wait_while_the_client_has_thirty_two_to_read() {
    let mut client = three();
    let mut revision = 20;
    while client.session.takes_upstream() {
        revision += 1;
        client.says(A, events(1, revision, &[put("pods/a", revision)]));
    }
    assert_eq!((revision, client.session.takes_requests()), (52, false));
    assert!(client.hear().is_some() && client.session.takes_upstream() && client.session.takes_requests());
}

#[test]
fn a_range_on_a_stock_etcd_is_a_watch_there_behind_the_fence() {
    let mut client = Client::new();
    client.create(range("secrets/", "secrets0").from(5));
    assert_eq!(client.did(), ["etcd: open, create 1 secrets/ from 5"]);
    client.says(ETCD, created(1, 9));
    client.says(ETCD, events(1, 9, &[put("secrets/a", 6)]));
    assert_eq!(client.hears(), ["0 @9 created", "0 @9: put a 6 after 1"]);
}

/// The router stops, or the client goes: its shell drops the session.
#[test]
fn a_session_that_is_dropped_holds_no_feed() {
    let mut client = Client::new();
    client.outside().open_after = Some(50);
    client.create(pods().from(60));
    client.create(configmaps().from(20));
    client.create(single("pods/a"));
    client.hears();
    let feeds = client.outside().feeds.clone();
    assert_eq!(feeds.iter().map(|feed| feed.readers()).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(feeds[2].start(), Some(20), "a catch-up");
    drop(client);
    assert!(feeds.iter().all(|feed| feed.readers() == 0));
}

#[test]
fn the_timer_is_the_earliest_of_what_is_due() {
    let mut client = Client::new();
    assert_eq!(client.session.timer(), None);
    client.create(Create { progress_notify: true, ..configmaps().from(11) });
    let start = client.now;
    let due = |client: &Client| client.session.timer().map(|at| at - start);
    assert_eq!(due(&client), Some(Duration::from_secs(5)), "the next notification");
    client.progress();
    assert_eq!(due(&client), Some(ROUND_MAX), "the end of the round");
    client.answer(10);
    client.create(single("pods/a"));
    client.now += Duration::from_millis(10);
    client.says(A, created(2, 20));
    client.says(A, ended(2, false, 21, &not_owned()));
    assert_eq!(due(&client), Some(Duration::from_millis(30)), "the next placement");
}
