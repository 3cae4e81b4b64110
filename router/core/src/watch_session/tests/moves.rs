//! Keys move: each watch goes on at the new owner from where it stands (R16), and its client does not notice.

use std::time::Duration;

use kindred_wire::kv::WatchHead;
use kindred_wire::refusal::KindredError;

use super::super::Settings;
use super::client::{
    Client, canceled, configmaps, created, ended, events, message, placed, pods, progressed, range, single,
};
use super::fake::{A, B, ETCD, map, put};

const NONE: [&str; 0] = [];
const SOON: Duration = Duration::from_millis(20);

/// What a shard says of keys that it does not serve any more.
pub fn not_owned() -> String {
    KindredError::NotOwned { key: b"k".to_vec(), epoch: 2 }.message()
}

#[test]
fn r16_a_watch_whose_feed_moves_goes_on_at_the_new_owner_without_an_event_twice() {
    let mut client = Client::new();
    client.create(configmaps().from(11));
    let old = client.feed(0);
    old.puts(&[("a", 20)]);
    assert_eq!(client.hears(), ["0 @10 created", "0 @20: put a 20"]);
    old.puts(&[("b", 22)]);
    old.moves();
    client.ring();
    // The new owner has the whole history; its feed begins where it is opened.
    client.outside().open_after = Some(15);
    client.new_map(2, [A, B], B);
    let new = client.feed(1);
    assert_eq!((old.readers(), new.readers(), new.key.stores().collect::<Vec<_>>()), (0, 1, vec![B]));
    new.puts(&[("a", 20), ("b", 22), ("c", 25)]);
    assert_eq!(client.hears(), ["0 @25: put b 22, put c 25"]);
}

#[test]
fn r16_each_watch_has_its_own_position_and_one_that_rests_was_given_what_its_feed_covered() {
    let mut client = Client::new();
    client.create(range("configmaps/a", "configmaps/b").from(11));
    client.create(range("configmaps/b", "configmaps/c").from(11));
    client.create(range("configmaps/c", "configmaps/d").from(40));
    client.hears();
    client.feed(0).puts(&[("a", 20)]);
    client.feed(0).watermark(30);
    assert_eq!(client.hears(), ["0 @30: put a 20"]);
    client.feed(0).moves();
    client.outside().open_after = Some(35);
    client.new_map(2, [A, B], B);
    assert_eq!(client.did(), ["catch up 1 from 31", "catch up 2 from 31"], "the third begins later");
}

#[test]
fn a_feed_that_ends_before_the_map_is_there_is_looked_for_until_it_is() {
    let mut client = Client::new();
    client.create(configmaps().from(11));
    client.feed(0).puts(&[("a", 20)]);
    client.hears();
    client.feed(0).moves();
    client.ring();
    client.outside().open_after = None;
    for _ in 0..3 {
        client.pass(SOON);
        client.outside().feeds.last().unwrap().clone().moves();
        client.ring();
    }
    assert_eq!((client.hears(), client.outside().feeds.len()), (vec![], 4));
    client.outside().open_after = Some(15);
    client.new_map(2, [A, B], B);
    client.feed(4).puts(&[("a", 20), ("a", 21)]);
    assert_eq!(client.hears(), ["0 @21: put a 21"]);
}

#[test]
fn r16_keys_that_stay_after_all_are_read_on_where_they_were() {
    let mut client = Client::new();
    client.create(configmaps().from(11));
    client.feed(0).puts(&[("a", 20)]);
    client.hears();
    client.feed(0).moves();
    client.ring();
    client.outside().open_after = Some(15);
    client.pass(SOON);
    client.feed(1).puts(&[("a", 20), ("a", 21)]);
    assert_eq!(client.hears(), ["0 @21: put a 21"]);
}

#[test]
fn a_catch_up_whose_keys_move_is_not_begun_again_before_the_next_placement() {
    let mut client = Client::new();
    client.outside().open_after = Some(50);
    client.create(configmaps().from(20));
    client.hears();
    client.feed(1).puts(&[("a", 25)]);
    client.hears();
    assert_eq!(client.did(), ["catch up 1 from 20"]);
    client.feed(1).moves();
    client.ring();
    assert_eq!((client.hears(), client.did()), (vec![], vec![]));
    client.new_map(2, [A, B], B);
    assert_eq!(client.did(), ["catch up 1 from 26"]);
    client.feed(3).puts(&[("b", 26)]);
    assert_eq!(client.hears(), ["0 @26: put b 26"]);
}

#[test]
fn r16_a_watch_of_one_key_goes_on_at_the_new_store_behind_what_the_old_one_delivered() {
    let mut client = Client::new();
    ["pods/a", "pods/b"].into_iter().for_each(|name| client.create(single(name)));
    [1, 2].into_iter().for_each(|uid| client.says(A, created(uid, 20)));
    client.says(A, events(1, 22, &[put("pods/a", 22)]));
    client.says(A, ended(1, false, 30, &not_owned()));
    client.hears();
    client.did();
    client.new_map(2, [B, B], A);
    let did = ["A: cancel 2", "B: open, create 1/1 pods/a from 31, create 2/1 pods/b from 21", "A: close"];
    assert_eq!(client.did(), did, "the first was given everything up to 30, the second says nothing of that");
    client.says(B, created(placed(1, 1), 40));
    client.says(B, created(placed(2, 1), 40));
    client.says(B, events(placed(2, 1), 40, &[put("pods/b", 25)]));
    assert_eq!(client.hears(), ["1 @40: put b 25 after 1"]);
}

#[test]
fn r16_a_store_that_keeps_its_keys_gets_its_watch_back() {
    let mut client = Client::new();
    client.create(single("pods/a"));
    client.says(A, created(1, 20));
    client.says(A, ended(1, false, 30, &not_owned()));
    client.hears();
    client.did();
    client.pass(SOON);
    assert_eq!(client.did(), ["A: create 1/1 pods/a from 31"]);
    client.says(A, ended(placed(1, 1), true, 31, &not_owned()));
    client.pass(SOON);
    assert_eq!(client.did(), ["A: create 1/2 pods/a from 31"]);
    client.says(A, created(placed(1, 2), 32));
    client.says(A, events(placed(1, 2), 33, &[put("pods/a", 33)]));
    assert_eq!((client.hears(), client.session.timer()), (vec!["0 @33: put a 33 after 1".into()], None));
}

#[test]
fn what_a_store_sends_of_a_place_that_its_watch_has_left_is_ignored() {
    let mut client = Client::new();
    ["pods/a", "configmaps/a"].into_iter().for_each(|name| client.create(single(name)));
    [1, 2].into_iter().for_each(|uid| client.says(A, created(uid, 20)));
    client.hears();
    client.new_map(2, [B, B], A);
    client.new_map(3, [A, B], A);
    client.did();
    for late in [events(1, 25, &[put("pods/a", 25)]), canceled(1, 26), canceled(placed(1, 1), 26)] {
        client.says(A, late);
    }
    assert_eq!(client.hears(), NONE);
    client.says(A, created(placed(1, 2), 27));
    client.says(A, events(placed(1, 2), 27, &[put("pods/a", 25)]));
    assert_eq!(client.hears(), ["0 @27: put a 25 after 1"]);
}

#[test]
fn a_create_that_is_under_way_moves_and_keeps_its_turn() {
    let mut client = Client::new();
    client.create(single("pods/a"));
    client.create(configmaps());
    client.create(single("pods/z").from(5));
    client.says(A, ended(1, true, 20, &not_owned()));
    client.new_map(2, [B, B], B);
    assert_eq!(client.hears(), NONE);
    client.present(2, 25);
    assert_eq!(client.hears(), NONE, "it is not the first");
    client.says(B, created(placed(1, 1), 30));
    assert_eq!(client.hears(), ["0 @30 created", "1 @25 created"]);
    client.says(B, created(3, 31));
    assert_eq!(client.hears(), ["2 @31 created"]);
    client.feed(1).puts(&[("a", 25), ("a", 26)]);
    assert_eq!(client.hears(), ["1 @26: put a 26"]);
}

#[test]
fn a_create_that_waits_for_a_move_is_answered_before_those_behind_it() {
    let mut client = Client::new();
    ["pods/a", "pods/b"].into_iter().for_each(|name| client.create(single(name)));
    client.did();
    // The key of the first is moving; that of the second is not.
    client.says(A, ended(1, true, 20, &not_owned()));
    client.says(A, created(2, 20));
    assert_eq!(client.hears(), NONE, "the first is not answered yet");
    client.pass(Duration::from_millis(50));
    let did = ["A: cancel 2", "A: create 1/1 pods/a from 0", "A: create 2/1 pods/b from 0"];
    assert_eq!(client.did(), did);
    client.says(A, canceled(2, 21));
    client.says(A, created(placed(1, 1), 22));
    client.says(A, created(placed(2, 1), 22));
    assert_eq!(client.hears(), ["0 @22 created", "1 @22 created"]);
}

#[test]
fn r16_a_range_that_is_split_is_read_from_both_stores() {
    let mut client = Client::new();
    client.new_map(2, [A, A], A);
    client.create(pods().from(11));
    client.feed(0).puts(&[("a", 20)]);
    client.hears();
    client.feed(0).puts(&[("z", 22)]);
    client.feed(0).moves();
    client.outside().open_after = Some(15);
    client.new_map(3, [A, B], A);
    let both = client.feed(1);
    assert_eq!(both.key.stores().collect::<Vec<_>>(), [A, B]);
    both.puts(&[("a", 20), ("z", 22), ("b", 23)]);
    assert_eq!(client.hears(), ["0 @23: put z 22, put b 23"]);
}

#[test]
fn a_map_that_changes_other_keys_moves_no_watch() {
    let mut client = Client::new();
    client.create(pods().from(11));
    client.create(single("pods/z"));
    client.says(B, created(2, 20));
    client.hears();
    client.did();
    client.new_map(2, [A, B], B);
    assert_eq!((client.did(), client.outside().feeds.len()), (vec![], 1));
    assert_eq!(client.feed(0).generation.get().0, 2, "its stores hear of the map that places watches there");
    client.feed(0).puts(&[("a", 21)]);
    assert_eq!(client.hears(), ["0 @21: put a 21"]);
}

#[test]
fn a_range_on_an_etcd_that_moves_to_a_shard_is_a_feed_from_then_on() {
    let mut client = Client::new();
    client.outside().routes = map(1, [ETCD, ETCD], A);
    client.create(pods().from(5));
    client.says(ETCD, created(1, 9));
    client.says(ETCD, events(1, 9, &[put("pods/a", 8)]));
    client.hears();
    client.did();
    client.new_map(2, [A, B], A);
    assert_eq!(client.did(), ["etcd: cancel 1", "etcd: close", "catch up 1 from 9"]);
    client.feed(1).compact(3000);
    assert_eq!(client.hears(), ["0 @9 canceled compacted 3000"], "the shard has no history from before");
}

#[test]
fn a_watch_whose_range_comes_to_join_an_etcd_is_cancelled_with_the_reason() {
    let mut client = Client::new();
    client.create(pods().from(11));
    client.create(configmaps().from(11));
    client.create(pods().id(9));
    client.hears();
    client.new_map(2, [A, ETCD], A);
    client.feed(1).puts(&[("a", 12)]);
    let heard = client.hears();
    assert!(heard[0].starts_with("0 @10 canceled (kindred: the range"), "{heard:?}");
    assert!(heard[1].starts_with("-1 @10 created canceled (kindred: the range"), "{heard:?}");
    assert_eq!((&heard[2..], client.session.watches()), (&["1 @12: put a 12".to_owned()][..], 1));
}

#[test]
fn a_cancel_that_is_under_way_when_its_keys_move_is_answered() {
    let mut client = Client::new();
    client.create(single("pods/a"));
    client.says(A, created(1, 20));
    client.cancel(0);
    client.says(A, ended(1, false, 30, &not_owned()));
    client.new_map(2, [B, B], A);
    assert_eq!(client.hears(), ["0 @20 created", "0 @30 canceled"]);
    assert_eq!((client.session.watches(), client.outside().streams.len()), (0, 0));
}

#[test]
fn after_a_move_between_the_fragments_of_a_message_the_new_owner_sends_all_of_it() {
    let mut client = Client::new();
    client.create(single("pods/a"));
    client.says(A, created(1, 20));
    let head = WatchHead { watch_id: 1, fragment: true, ..WatchHead::default() };
    client.says(A, message(head, 22, &[put("pods/a", 22)]));
    client.did();
    client.new_map(2, [B, B], A);
    assert_eq!(client.hears(), ["0 @20 created"]);
    assert_eq!(client.end, None);
    client.says(B, created(placed(1, 1), 33));
    client.says(B, events(placed(1, 1), 33, &[put("pods/a", 22)]));
    assert_eq!(client.hears(), ["0 @33: put a 22 after 1"]);
}

#[test]
fn r7_a_move_ends_a_round_and_what_it_held_comes_before_the_new_places_events() {
    let mut client = Client::new();
    ["pods/a", "pods/z"].into_iter().for_each(|name| client.create(single(name)));
    [(A, 1), (B, 2)].into_iter().for_each(|(store, uid)| client.says(store, created(uid, 20)));
    client.progress();
    client.answer(30);
    client.says(A, events(1, 31, &[put("pods/a", 31)]));
    client.hears();
    client.new_map(2, [B, B], A);
    assert_eq!(client.hears(), ["0 @31: put a 31 after 1"]);
    assert_eq!(client.did().last().unwrap(), "A: close");
    client.says(B, created(placed(1, 1), 33));
    // B may still answer the question of the round that ended, so the request gets another.
    client.pass(Duration::from_millis(200));
    client.says(B, events(2, 34, &[put("pods/z", 34)]));
    client.answer(34);
    client.says(B, progressed(34));
    assert_eq!(client.hears(), ["1 @34: put z 34 after 1", "-1 @34 progress"]);
}

#[test]
fn r16_a_slow_watch_goes_on_at_the_new_owner_where_its_client_stands() {
    let mut client = Client::with(Settings { take_bytes: 1, ..Settings::default() });
    client.create(configmaps().from(11));
    client.hears();
    (20..30).for_each(|revision| client.feed(0).puts(&[("a", revision)]));
    client.ring();
    client.feed(0).moves();
    client.outside().open_after = Some(15);
    client.new_map(2, [A, B], B);
    (20..30).for_each(|revision| client.feed(1).puts(&[("a", revision)]));
    let expected: Vec<String> = (20..30).map(|at| format!("0 @{at}: put a {at}")).collect();
    assert_eq!(client.hears(), expected);
}
