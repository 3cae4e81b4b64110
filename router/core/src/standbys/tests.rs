//! Each branch of [`decide`], by an example.

use kindred_partition_config::parse::parse_config;
use kindred_partition_config::state::ClusterState;

use super::lost::LOST_TERMS;
use super::*;

const A: &str = "http://a:1";
const B: &str = "http://b:1";
const C: &str = "http://c:1";
const MS: Duration = Duration::from_millis(1);
const NOW: Duration = Duration::from_secs(100);

fn id(name: &str) -> MemberId {
    MemberId(name.to_owned())
}

fn ids(names: &[&str]) -> Vec<MemberId> {
    names.iter().map(|name| id(name)).collect()
}

/// A store whose primary is at `a`, with a record of this term if it is not 0.
fn store(term: u64, in_sync: &[&str], config: &str) -> StoreObject {
    let text =
        format!("default: a\nstores: [{{name: a, slot: 1, endpoints: [\"{A}\"], standby: {{{config}}}}}]\n");
    let state = ClusterState::bootstrap(&parse_config(&text).unwrap()).unwrap();
    let mut store = state.stores[0].clone();
    let members =
        Members { term: Term(term), primary: id("a"), in_sync: ids(in_sync), forced: None, forced_in: None };
    store.members = (term > 0).then_some(members);
    store
}

fn alone() -> String {
    format!("endpoints: [\"{B}\", \"{C}\"]")
}

fn waits() -> String {
    format!("endpoints: [\"{B}\", \"{C}\"], onLoss: wait")
}

fn primary(name: &str, term: u64, counted: &[&str]) -> Said {
    Said {
        id: id(name),
        role: Role::Primary,
        term: Term(term),
        named: Term(term),
        incarnation: 4,
        in_doubt: false,
        yielded: false,
        counted: ids(counted),
        never_promoted: Vec::new(),
        followers: Vec::new(),
        bound: true,
        whole: false,
        connected: false,
        prepared: None,
        silent: Duration::ZERO,
        follows: String::new(),
        trouble: String::new(),
    }
}

fn standby(name: &str, term: u64) -> Said {
    let (role, connected, follows) = (Role::Standby, true, A.to_owned());
    Said { role, connected, follows, whole: true, counted: Vec::new(), ..primary(name, term, &[]) }
}

fn follower(name: &str) -> Follower {
    let (follows, whole, has_shown) = (true, true, true);
    Follower { id: id(name), follows, whole, has_shown, behind: 0, silent: 10 * MS }
}

fn silent(name: &str) -> Follower {
    Follower { follows: false, silent: SUSPECT, ..follower(name) }
}

/// What a router knows: the members that have just answered.
fn looks(said: &[(&str, &Said)]) -> BTreeMap<String, Look> {
    let mut looks: BTreeMap<String, Look> =
        [A, B, C].into_iter().map(|url| (url.to_owned(), Look::default())).collect();
    for (url, said) in said {
        looks.entry((*url).to_owned()).or_default().answered(NOW, (*said).clone());
    }
    looks
}

fn decided(store: &StoreObject, said: &[(&str, &Said)]) -> Decision {
    decide(store, &looks(said), NOW, None)
}

fn steps(store: &StoreObject, said: &[(&str, &Said)]) -> Vec<Step> {
    decided(store, said).steps
}

fn write(read: u64, term: u64, change: MembersChange) -> Vec<Step> {
    vec![Step::Write { read: Term(read), term: Term(term), change }]
}

fn in_sync(read: u64, term: u64, names: &[&str]) -> Vec<Step> {
    write(read, term, MembersChange::InSync(ids(names)))
}

fn count(term: u64, names: &[&str], recorded: bool) -> Vec<Step> {
    vec![Step::Count { url: A.to_owned(), term: Term(term), members: ids(names), recorded }]
}

fn prepare(url: &str, term: u64, name: &str) -> Vec<Step> {
    vec![Step::Prepare { url: url.to_owned(), term: Term(term), member: id(name) }]
}

// ---- the first record

#[test]
fn the_first_record_names_who_serves() {
    let store = store(0, &[], &alone());
    let begin = || MembersChange::Begin(id("a"));
    assert_eq!(steps(&store, &[(A, &primary("a", 0, &[]))]), write(0, 1, begin()));
    assert_eq!(steps(&store, &[(B, &standby("b", 0))]), [], "nobody serves");
    // There was a record once.
    let hears = |name| Said { followers: vec![follower(name)], ..primary("a", 5, &["b"]) };
    assert_eq!(steps(&store, &[(A, &hears("b"))]), write(0, 6 + LOST_TERMS, begin()));
    assert_eq!(steps(&store, &[(A, &hears("c"))]), [], "b may have been promoted");
    let alone = primary("a", 5, &[]);
    assert_eq!(
        steps(&store, &[(A, &alone)]),
        [],
        "another may have been promoted by force, while this one was away"
    );
    let all = [(A, &alone), (B, &standby("b", 5)), (C, &standby("c", 5))];
    assert_eq!(steps(&store, &all), write(0, 6 + LOST_TERMS, begin()));
    let yielded = Said { yielded: true, ..primary("a", 5, &["b"]) };
    assert_eq!(steps(&store, &[(A, &yielded), all[1], all[2]]), write(0, 6 + LOST_TERMS, begin()));
    let prepared = Said { prepared: Some(MS), ..standby("b", 5) };
    assert_eq!(steps(&store, &[(A, &yielded), (B, &prepared), all[2]]), [], "b may be told any moment");
}

/// A primary in doubt waited for its standby, which might have been promoted, and the standby for that primary, whose copy it
/// wanted: no command ended it. And whoever the configuration named was confirmed, where another had been promoted.
#[test]
fn f68_without_a_record_whoever_was_named_last_serves_or_an_operator_chooses() {
    let store = store(0, &[], &alone());
    let begin = || MembersChange::Begin(id("a"));
    let far = |term: u64| term + 1 + LOST_TERMS;
    let says = |said: &[(&str, &Said)], to: &str| {
        let decision = decided(&store, said);
        assert_eq!(decision.steps, []);
        let trouble = decision.trouble.unwrap();
        assert!(trouble.contains(&format!("failover a --to {to} --force")), "{trouble}");
    };
    let doubts = Said { in_doubt: true, ..primary("a", 5, &["b"]) };
    says(&[(A, &doubts)], A);
    let told = |names: &[&str]| Said { never_promoted: ids(names), ..doubts.clone() };
    says(&[(A, &told(&["b"]))], A);
    says(&[(A, &told(&["c"])), (C, &standby("c", 5))], A);
    assert_eq!(steps(&store, &[(A, &told(&["b", "c"]))]), write(0, far(5), begin()));
    assert_eq!(steps(&store, &[(A, &told(&["b"])), (C, &standby("c", 5))]), write(0, far(5), begin()));
    let anew = Said { whole: false, connected: false, ..standby("b2", 5) };
    assert_eq!(steps(&store, &[(A, &doubts), (B, &anew), (C, &standby("c", 5))]), write(0, far(5), begin()));
    // A standby that runs may have more than the disk of a, or follows a later one.
    says(&[(A, &doubts), (B, &standby("b", 5)), (C, &standby("c", 5))], B);
    says(&[(A, &doubts), (B, &anew), (C, &standby("c", 6))], C);
    says(&[(B, &standby("b", 5))], B);
    // The disk of a standby may have a term of an earlier time; one that follows lacks nothing.
    let leads = Said { followers: vec![follower("b"), follower("c")], ..primary("a", 5, &[]) };
    let two = [(A, &leads), (B, &standby("b", 9)), (C, &standby("c", 5))];
    assert_eq!(steps(&store, &two), write(0, far(9), begin()));
    // The configuration has one less than counted.
    let mut less = store.clone();
    less.standby = None;
    assert_eq!(steps(&less, &[(A, &doubts)]), []);
    // Neither an empty disk that was mounted by mistake nor one that an operator has reclaimed decides anything.
    says(&[(A, &primary("new", 0, &[])), (B, &standby("b", 5)), (C, &standby("c", 4))], B);
    says(&[(A, &doubts), (B, &primary("new", 0, &[])), (C, &standby("c", 5))], A);
    let reclaimed =
        Said { named: Term(0), counted: vec![MemberId::whoever_was_promoted()], ..doubts.clone() };
    says(&[(A, &reclaimed), (B, &anew), (C, &standby("c", 5))], A);
    // The first primary may have restarted before it heard that a record names it.
    let unnamed = Said { named: Term(0), ..told(&["b", "c"]) };
    assert_eq!(steps(&store, &[(A, &unnamed)]), write(0, far(5), begin()));

    // Another one was named later. It may have a successor too.
    let adopt = || MembersChange::Adopt { member: id("b"), endpoint: B.to_owned() };
    let later = primary("b", 7, &[]);
    let two = [(B, &later), (C, &standby("c", 7))];
    says(&two, B);
    for a in [&doubts, &standby("a2", 7)] {
        assert_eq!(steps(&store, &[(A, a), two[0], two[1]]), write(0, far(7), adopt()));
    }
    let hears = Said { followers: vec![follower("c")], ..primary("b", 7, &["c"]) };
    assert_eq!(steps(&store, &[(B, &hears)]), write(0, far(7), adopt()));
    says(&[(A, &primary("a", 5, &[])), (B, &Said { in_doubt: true, ..primary("b", 7, &["c"]) })], B);

    // An operator chooses. The record says so before anybody is told, in a term that no lost one has had.
    let force = |to: &str, store: &StoreObject, said: &[(&str, &Said)]| {
        let wish = Wish::Force { to: to.to_owned(), dead: MemberId::unknown(), opens_at: 9 };
        decide(store, &looks(said), NOW, Some(&wish)).steps
    };
    let only = [(A, &doubts)];
    assert_eq!(force(A, &store, &only), write(0, far(5), MembersChange::Begin(MemberId::unknown())));
    let mut begun = store.clone();
    let unknown = MemberId::unknown();
    begun.members = Some(Members { term: Term(80), primary: unknown, ..Members::lost() });
    assert_eq!(force(A, &begun, &only), [Step::Yield { url: A.to_owned(), term: Term(81) }]);
    assert_eq!(force(B, &begun, &[(A, &doubts), (B, &standby("b", 5))]), prepare(B, 81, "b"));
    // Nobody asks any more, and all becomes clear.
    let (member, endpoint) = (id("a"), A.to_owned());
    let adopt = MembersChange::Adopt { member, endpoint };
    let none = told(&["b", "c"]);
    assert_eq!(steps(&begun, &[(A, &none)]), write(80, 81 + LOST_TERMS, adopt));
    // Nor is a force needed where all is clear.
    assert_eq!(force(A, &store, &[(A, &none)]), write(0, far(5), begin()));

    // A cluster that goes on after its state was lost has had a record: what an empty disk says, at the address of the primary, is
    // nothing.
    let mut lost = store.clone();
    lost.members = Some(Members::lost());
    let empty = primary("new", 0, &[]);
    assert_eq!(steps(&store, &[(A, &empty)]), write(0, 1, MembersChange::Begin(id("new"))), "a new store");
    assert_eq!(steps(&lost, &[(A, &empty)]), []);
    let adopt = MembersChange::Adopt { member: id("a"), endpoint: A.to_owned() };
    assert_eq!(steps(&lost, &[(A, &none)]), write(1, far(5), adopt));
    assert_eq!(force(A, &lost, &only), write(1, far(5), MembersChange::InSync(vec![])));
    let stranger = Said { bound: false, ..doubts.clone() };
    assert_eq!(force(A, &begun, &[(A, &stranger)]), [], "nothing opens in the place of all that was lost");
}

/// A primary that had lost its disk got the first record, and the standby that had everything was told to begin anew.
#[test]
fn r21_a_process_that_does_not_belong_to_the_cluster_gets_no_record() {
    let store = store(0, &[], &alone());
    let anew = Said { bound: false, ..primary("new", 0, &[]) };
    for doubts in [false, true] {
        let anew = Said { in_doubt: doubts, ..anew.clone() };
        let all = [(A, &anew), (B, &standby("b", 5)), (C, &standby("c", 5))];
        let decision = decided(&store, &all);
        assert_eq!(decision.steps, []);
        assert!(decision.trouble.unwrap().contains("former folder"));
    }
}

#[test]
fn r19_a_record_that_is_behind_its_members_adopts_who_serves() {
    let store = store(4, &[], &alone());
    let adopted = MembersChange::Adopt { member: id("b"), endpoint: B.to_owned() };
    assert_eq!(
        steps(&store, &[(A, &primary("a", 4, &[])), (B, &primary("b", 6, &[]))]),
        write(4, 7, adopted)
    );
}

/// The meta store was restored from before a failover, and everybody started again: the former primary was confirmed after ten
/// seconds, and the disk of the newest one wiped.
#[test]
fn f67_the_newest_member_wins_over_an_older_record_or_nobody_does() {
    let record = store(3, &["b", "c"], &alone());
    let former = Said { in_doubt: true, ..primary("a", 3, &["b", "c"]) };
    let newest = Said { in_doubt: true, ..primary("b", 5, &["c"]) };
    // The third one waits for a copy, and says nothing: it may have been promoted.
    let two = [(A, &former), (B, &newest)];
    let decision = decided(&record, &two);
    assert_eq!(decision.steps, []);
    let trouble = decision.trouble.unwrap();
    assert!(
        trouble.contains("older than its members") && trouble.contains("--to http://b:1 --force"),
        "{trouble}"
    );
    let adopted = MembersChange::Adopt { member: id("b"), endpoint: B.to_owned() };
    let anew = Said { whole: false, connected: false, ..standby("c2", 5) };
    assert_eq!(steps(&record, &[(A, &former), (B, &newest), (C, &anew)]), write(3, 6, adopted));
    // A standby that counted at it and still runs has more than its disk.
    let runs = standby("c", 5);
    assert_eq!(steps(&record, &[(A, &former), (B, &newest), (C, &runs)]), []);
    // It has heard that the third one has begun anew.
    let adopted = MembersChange::Adopt { member: id("b"), endpoint: B.to_owned() };
    let none = Said { never_promoted: ids(&["c"]), ..newest.clone() };
    assert_eq!(steps(&record, &[(A, &former), (B, &none)]), write(3, 6, adopted.clone()));
    // The first primary of all ended before it heard that a record names it. One that an operator has reclaimed may be later.
    let unnamed = Said { named: Term(0), ..former.clone() };
    assert_eq!(steps(&record, &[(A, &unnamed), (B, &none)]), write(3, 6, adopted));
    let reclaimed = Said { counted: vec![MemberId::whoever_was_promoted()], ..unnamed };
    assert_eq!(steps(&record, &[(A, &reclaimed), (B, &none)]), []);

    // By force it opens as whoever takes the place of a lost one (R14).
    let wish = Wish::Force { to: B.to_owned(), dead: id("a"), opens_at: 7 };
    let by_force =
        |newest: &Said| decide(&record, &looks(&[(A, &former), (B, newest)]), NOW, Some(&wish)).steps;
    assert_eq!(by_force(&newest), [Step::Yield { url: B.to_owned(), term: Term(6) }]);
    let (member, endpoint) = (id("b"), B.to_owned());
    let forced = MembersChange::Promote { member, endpoint, forced: Some(7) };
    assert_eq!(by_force(&Said { term: Term(6), yielded: true, ..newest.clone() }), write(3, 6, forced));
    // Another's force does not confirm the former primary either.
    let other = Wish::Force { to: C.to_owned(), dead: id("a"), opens_at: 7 };
    assert_eq!(decide(&record, &looks(&two), NOW, Some(&other)).steps, []);

    // Somebody serves by the record: what comes later is told so, in a term that it does not refuse.
    let serves = [(A, &primary("a", 3, &[])), (B, &newest)];
    assert_eq!(steps(&store(3, &[], &alone()), &serves), in_sync(3, 6, &[]));
}

// ---- a primary that serves

#[test]
fn r19_a_standby_counts_before_the_record_names_it() {
    let store = store(4, &[], &alone());
    let said = |term, counted: &[&str], follower: Follower| Said {
        followers: vec![follower],
        ..primary("a", term, counted)
    };
    let b = standby("b", 4);
    let with = |a: &Said| steps(&store, &[(A, a), (B, &b)]);
    assert_eq!(with(&said(4, &[], Follower { whole: false, ..follower("b") })), []);
    assert_eq!(with(&said(4, &[], silent("b"))), []);
    assert_eq!(with(&said(4, &[], follower("b"))), count(5, &["b"], false));
    assert_eq!(with(&said(5, &["b"], Follower { has_shown: false, ..follower("b") })), []);
    assert_eq!(with(&said(5, &["b"], follower("b"))), in_sync(4, 5, &["b"]));
    // A call that was late has counted it in the term of another record: only a later term may name it.
    assert_eq!(with(&said(4, &["b"], follower("b"))), count(5, &["b"], false));
    assert_eq!(
        steps(&store, &[(A, &said(4, &[], follower("d"))), (B, &b)]),
        [],
        "it is not one of the store's"
    );
    // It would obey the routers of any cluster.
    let unbound = Said { bound: false, ..b };
    let looked = decided(&store, &[(A, &said(4, &[], follower("b"))), (B, &unbound)]);
    assert_eq!(looked.steps, []);
    let trouble = looked.trouble.unwrap_or_default();
    assert!(trouble.contains("which cluster"), "{trouble}");
}

#[test]
fn r19_a_primary_continues_alone_only_after_the_record() {
    let a = |term| Said { followers: vec![silent("b")], ..primary("a", term, &["b"]) };
    let with = |store: &StoreObject, a: &Said| steps(store, &[(A, a)]);
    assert_eq!(with(&store(4, &["b"], &alone()), &a(4)), in_sync(4, 5, &[]));
    assert_eq!(with(&store(5, &[], &alone()), &a(4)), count(5, &[], true));
    assert_eq!(with(&store(5, &[], &alone()), &a(6)), in_sync(5, 7, &[]), "it refuses the record's term");
    // It is to wait.
    assert_eq!(with(&store(4, &["b"], &waits()), &a(4)), []);
    assert_eq!(with(&store(4, &[], &waits()), &a(4)), []);
}

#[test]
fn r19_who_begins_anew_takes_the_place_of_its_former_life_in_one_step() {
    let store = store(4, &["b", "c"], &waits());
    let a = |term, counted: &[&str]| Said {
        followers: vec![silent("b"), follower("b2"), follower("c")],
        ..primary("a", term, counted)
    };
    let (b2, c) = (standby("b2", 4), standby("c", 4));
    let with = |a: &Said| steps(&store, &[(A, a), (B, &b2), (C, &c)]);
    assert_eq!(with(&a(4, &["b", "c"])), count(5, &["b2"], false));
    assert_eq!(with(&a(5, &["b", "b2", "c"])), in_sync(4, 5, &["c", "b2"]), "it waits until then");
    // The other one alone does not end the waiting.
    let a = Said { followers: vec![silent("b"), follower("c")], ..primary("a", 4, &["b", "c"]) };
    assert_eq!(steps(&store, &[(A, &a), (C, &c)]), []);
}

#[test]
fn standbys_that_are_not_configured_leave_the_record() {
    let one = format!("endpoints: [\"{C}\"]");
    let store_of = |config: &str| store(4, &["b", "c"], config);
    let a = Said { followers: vec![follower("b"), follower("c")], ..primary("a", 4, &["b", "c"]) };
    let c = standby("c", 4);
    assert_eq!(steps(&store_of(&one), &[(A, &a), (C, &c)]), in_sync(4, 5, &["c"]));
    let a = Said { followers: vec![silent("b"), follower("c")], ..a };
    let wait = format!("{one}, onLoss: wait");
    assert_eq!(steps(&store_of(&wait), &[(A, &a), (C, &c)]), in_sync(4, 5, &["c"]));
    assert_eq!(steps(&store_of(&format!("{one}, mode: async")), &[(A, &a), (C, &c)]), in_sync(4, 5, &[]));
    let none = StoreObject { standby: None, ..store_of(&one) };
    assert_eq!(steps(&none, &[(A, &a)]), in_sync(4, 5, &[]));
}

#[test]
fn r19_others_are_told_who_the_primary_is() {
    let store = store(4, &[], &alone());
    let told = |url: &str| Step::Supersede { url: url.to_owned(), term: Term(4), primary: A.to_owned() };
    let a = primary("a", 4, &[]);
    let former = Said { named: Term(3), ..primary("b", 3, &["a"]) };
    assert_eq!(steps(&store, &[(A, &a), (B, &former)]), [told(B)]);
    let elsewhere = Said { connected: false, follows: C.to_owned(), ..standby("b", 3) };
    assert_eq!(steps(&store, &[(A, &a), (B, &elsewhere)]), [told(B)]);
    // A former primary that is no member any more may still send to it.
    let connected = Said { connected: true, ..elsewhere.clone() };
    assert_eq!(steps(&store, &[(A, &a), (B, &connected)]), [told(B)]);
    let follows = Said { followers: vec![Follower { whole: false, ..follower("b") }], ..a.clone() };
    assert_eq!(steps(&store, &[(A, &follows), (B, &connected)]), []);
    let later = Said { term: Term(6), ..elsewhere };
    assert_eq!(steps(&store, &[(A, &a), (B, &later)]), in_sync(4, 7, &[]), "it refuses the record's term");
    let ends = Said { role: Role::Superseded, ..former };
    assert_eq!(steps(&store, &[(A, &a), (B, &ends)]), []);
}

/// A standby whose disk is full was prepared and recorded, could not go on, and the well one was never asked.
#[test]
fn f73_a_standby_whose_disk_takes_nothing_is_not_preferred() {
    let record = store(4, &["b", "c"], &waits());
    let trouble = "cannot write its log".to_owned();
    let lost = |name: &str| Said { connected: false, silent: 900 * MS, ..standby(name, 4) };
    let b = Said { trouble: trouble.clone(), ..lost("b") };
    assert_eq!(steps(&record, &[(B, &b), (C, &lost("c"))]), prepare(C, 5, "c"));
    assert_eq!(steps(&record, &[(B, &b)]), prepare(B, 5, "b"), "there is no other");
    // Nor is it told to begin anew, however long it is away.
    let (a, away) = (primary("a", 4, &[]), Said { silent: ASTRAY, ..b.clone() });
    assert_eq!(steps(&store(4, &[], &alone()), &[(A, &a), (B, &away)]), []);
    let wish = Wish::Handover { to: B.to_owned() };
    let looked = looks(&[(A, &primary("a", 4, &["b", "c"])), (B, &b), (C, &lost("c"))]);
    let decision = decide(&record, &looked, NOW, Some(&wish));
    assert_eq!(decision.steps, []);
    assert!(decision.trouble.unwrap().contains("cannot write its log"));
}

/// A router took the primary for lost and prepared its standby, and the primary is there after all.
#[test]
fn a_standby_that_is_not_promoted_after_all_gets_a_later_term_to_follow_in() {
    let b = Said { prepared: Some(300 * MS), connected: false, silent: 900 * MS, ..standby("b", 5) };
    let a = |term| Said { followers: vec![silent("b")], ..primary("a", term, &["b"]) };
    let with = |store: &StoreObject, a: &Said| steps(store, &[(A, a), (B, &b)]);
    assert_eq!(with(&store(4, &["b"], &waits()), &a(4)), in_sync(4, 6, &["b"]));
    assert_eq!(with(&store(6, &["b"], &waits()), &a(4)), count(6, &["b"], true));
    assert_eq!(with(&store(6, &["b"], &waits()), &a(6)), []);
    // Another router has written a record in the term that it was prepared for.
    assert_eq!(with(&store(5, &["b"], &waits()), &a(5)), in_sync(5, 6, &["b"]));
}

#[test]
fn troubles_are_told_in_words() {
    let store = store(4, &["b"], &alone());
    let a = Said { followers: vec![follower("b"), follower("c")], ..primary("a", 4, &["b"]) };
    let trouble = |c: &Said| decided(&store, &[(A, &a), (B, &standby("b", 4)), (C, c)]).trouble;
    let copying = Said { whole: false, ..standby("c", 4) };
    assert_eq!(
        trouble(&copying).as_deref(),
        Some("one of its standbys is missing: http://c:1 has no whole copy yet")
    );
    let healthy = super::tests::store(4, &["b", "c"], &alone());
    let a = Said { counted: ids(&["b", "c"]), ..a };
    let all = decided(&healthy, &[(A, &a), (B, &standby("b", 4)), (C, &standby("c", 4))]);
    assert_eq!(all, Decision::default());
}

// ---- a primary that is lost

#[test]
fn r20_a_standby_in_sync_is_prepared_and_promoted_after_its_wait() {
    let store = store(4, &["b"], &alone());
    let mut b = Said { connected: false, silent: SUSPECT, ..standby("b", 4) };
    assert_eq!(steps(&store, &[(B, &b)]), prepare(B, 5, "b"));
    (b.prepared, b.term) = (Some(200 * MS), Term(5));
    assert_eq!(steps(&store, &[(B, &b)]), [], "it waits");
    b.prepared = Some(Duration::ZERO);
    let promoted = MembersChange::Promote { member: id("b"), endpoint: B.to_owned(), forced: None };
    assert_eq!(steps(&store, &[(B, &b)]), write(4, 5, promoted));
    // It still hears of its primary.
    let b = Said { silent: 100 * MS, ..standby("b", 4) };
    let waits = decided(&store, &[(B, &b)]);
    assert!(waits.steps.is_empty() && waits.trouble.unwrap().contains("this router does not reach"));
    // One that may lack something is not taken.
    let c = Said { connected: false, silent: SUSPECT, ..standby("c", 4) };
    assert_eq!(steps(&store, &[(C, &c)]), []);
    assert_eq!(steps(&store, &[(B, &Said { whole: false, silent: SUSPECT, ..b })]), []);
}

#[test]
fn r19_who_is_named_by_the_record_is_told() {
    let mut store = store(5, &[], &alone());
    let b = Said { prepared: Some(Duration::ZERO), connected: false, ..standby("b", 5) };
    store.members.as_mut().unwrap().primary = id("b");
    let promote = |yielded, forced| Step::Promote {
        url: B.to_owned(),
        term: Term(5),
        incarnation_above: 4,
        yielded,
        forced,
    };
    assert_eq!(steps(&store, &[(B, &b)]), [promote(false, None)]);
    let former = Said { yielded: true, ..primary("a", 4, &["b"]) };
    assert_eq!(steps(&store, &[(A, &former), (B, &b)]), [promote(true, None)]);
    store.members.as_mut().unwrap().forced = Some(7);
    assert_eq!(steps(&store, &[(B, &b)]), [promote(false, Some(7))]);
    // Somebody who had not seen the record made it follow once more.
    let follows = Said { prepared: None, term: Term(6), ..b.clone() };
    assert_eq!(steps(&store, &[(B, &follows)]), prepare(B, 7, "b"));
    let later = Said { term: Term(7), ..b };
    assert_eq!(steps(&store, &[(B, &later)]), in_sync(5, 7, &[]));
}

#[test]
fn r20_a_primary_in_doubt_makes_room_for_a_standby_or_is_confirmed() {
    let doubts = |term| Said { in_doubt: true, ..primary("a", term, &["b"]) };
    let b = Said { connected: false, silent: SUSPECT, ..standby("b", 4) };
    assert_eq!(steps(&store(4, &["b"], &alone()), &[(A, &doubts(4)), (B, &b)]), prepare(B, 5, "b"));
    // No standby is there: after a time it continues without them.
    let lonely = store(4, &["b"], &alone());
    assert_eq!(steps(&lonely, &[(A, &doubts(4))]), []);
    let mut long = looks(&[(A, &doubts(4))]);
    long.get_mut(A).unwrap().held = Some(NOW - IN_DOUBT);
    assert_eq!(decide(&lonely, &long, NOW, None).steps, in_sync(4, 5, &[]));
    // Its standby has begun anew, so nobody waits for it.
    let told = |term| Said { never_promoted: ids(&["b", "c"]), ..doubts(term) };
    assert_eq!(steps(&lonely, &[(A, &told(4))]), in_sync(4, 5, &[]));
    assert_eq!(steps(&store(5, &[], &alone()), &[(A, &doubts(4))]), count(5, &[], true));
    assert_eq!(steps(&store(5, &[], &waits()), &[(A, &doubts(4))]), count(5, &["b"], true));
    // It was counted for in a later term, by nobody's record. Its standby waits for a copy, and does not answer.
    let counted = Said { named: Term(4), ..doubts(6) };
    assert_eq!(decide(&lonely, &looks(&[(A, &counted)]), NOW, None).steps, []);
    long.get_mut(A).unwrap().said = Some((NOW, counted));
    assert_eq!(decide(&lonely, &long, NOW, None).steps, in_sync(4, 7, &[]));
    // It was named in a later term than the record's.
    let decision = decide(&lonely, &looks(&[(A, &doubts(6))]), NOW, None);
    assert!(decision.steps.is_empty() && decision.trouble.unwrap().contains("--force"));
    assert_eq!(steps(&lonely, &[(A, &told(6))]), in_sync(4, 7, &[]));
    let wish = Wish::Force { to: A.to_owned(), dead: id("a"), opens_at: 9 };
    assert_eq!(decide(&lonely, &looks(&[(A, &doubts(6))]), NOW, Some(&wish)).steps, in_sync(4, 7, &[]));
}

// ---- wishes

#[test]
fn r20_a_handover_yields_then_prepares_then_writes() {
    let store = store(4, &["b"], &alone());
    let wish = Wish::Handover { to: B.to_owned() };
    let with = |a: &Said, b: &Said| decide(&store, &looks(&[(A, a), (B, b)]), NOW, Some(&wish)).steps;
    let mut a = Said { followers: vec![follower("b")], ..primary("a", 4, &["b"]) };
    let mut b = standby("b", 4);
    let yields = |term| vec![Step::Yield { url: A.to_owned(), term: Term(term) }];
    assert_eq!(with(&a, &b), yields(5));
    (a.yielded, a.term) = (true, Term(5));
    a.followers[0].behind = 1;
    assert_eq!(with(&a, &b), [], "it lacks something");
    a.followers[0].behind = 0;
    assert_eq!(with(&a, &b), prepare(B, 6, "b"));
    (b.prepared, b.term) = (Some(900 * MS), Term(6));
    let promoted = MembersChange::Promote { member: id("b"), endpoint: B.to_owned(), forced: None };
    assert_eq!(with(&a, &b), write(4, 6, promoted));
    // It may hear of this record yet, which says that it serves.
    a.term = Term(4);
    assert_eq!(with(&a, &b), yields(7));
    let other = Wish::Handover { to: C.to_owned() };
    let refused = decide(&store, &looks(&[(A, &a), (C, &standby("c", 4))]), NOW, Some(&other));
    assert!(refused.steps.is_empty() && refused.trouble.unwrap().contains("not in sync"));
}

#[test]
fn a_primary_that_has_yielded_for_nobody_serves_again_by_a_later_record() {
    let a = Said { yielded: true, ..primary("a", 5, &["b"]) };
    let mut known = looks(&[(A, &a)]);
    assert_eq!(decide(&store(4, &["b"], &alone()), &known, NOW, None).steps, []);
    known.get_mut(A).unwrap().held = Some(NOW - YIELDED);
    assert_eq!(decide(&store(4, &["b"], &alone()), &known, NOW, None).steps, in_sync(4, 6, &["b"]));
    assert_eq!(decide(&store(6, &["b"], &alone()), &known, NOW, None).steps, count(6, &["b"], true));
}

#[test]
fn r14_by_force_a_standby_is_promoted_that_may_lack_something() {
    let store = store(4, &[], &alone());
    let wish = Wish::Force { to: C.to_owned(), dead: id("a"), opens_at: 9 };
    let with = |c: &Said| decide(&store, &looks(&[(C, c)]), NOW, Some(&wish)).steps;
    let mut c = Said { connected: false, silent: SUSPECT, ..standby("c", 4) };
    assert_eq!(with(&Said { whole: false, ..c.clone() }), []);
    assert_eq!(with(&c), prepare(C, 5, "c"));
    (c.prepared, c.term) = (Some(MS), Term(5));
    assert_eq!(with(&c), []);
    c.prepared = Some(Duration::ZERO);
    let promoted = MembersChange::Promote { member: id("c"), endpoint: C.to_owned(), forced: Some(9) };
    assert_eq!(with(&c), write(4, 5, promoted));
    assert_eq!(steps(&store, &[(C, &c)]), [], "nobody wishes it");
    // Another one has become the primary since, of which the operator said nothing.
    let wish = Wish::Force { to: C.to_owned(), dead: id("b"), opens_at: 9 };
    assert_eq!(decide(&store, &looks(&[(C, &c)]), NOW, Some(&wish)).steps, []);
}

#[test]
fn r14_by_force_a_former_primary_goes_on_where_the_one_that_was_promoted_is_dead() {
    let mut store = store(5, &[], &alone());
    store.members.as_mut().unwrap().primary = id("dead");
    let wish = Wish::Force { to: A.to_owned(), dead: id("dead"), opens_at: 9 };
    let with = |store: &StoreObject, a: &Said| decide(store, &looks(&[(A, a)]), NOW, Some(&wish)).steps;
    // It still waits for its standbys: then it is to execute nothing, in a term that no older record reaches.
    let mut a = Said { named: Term(4), ..primary("a", 5, &["dead"]) };
    let yields = Step::Yield { url: A.to_owned(), term: Term(6) };
    assert_eq!(with(&store, &a), std::slice::from_ref(&yields));
    a.in_doubt = true;
    assert_eq!(with(&store, &a), [yields], "its term is the record's");
    (a.term, a.yielded) = (Term(6), true);
    let promoted = MembersChange::Promote { member: id("a"), endpoint: A.to_owned(), forced: Some(9) };
    assert_eq!(with(&store, &a), write(5, 6, promoted));
    assert_eq!(steps(&store, &[(A, &a)]), [], "nobody wishes it");
    // The record names it, whoever wished it: it is told, and serves only then.
    let members = store.members.as_mut().unwrap();
    (members.primary, members.term) = (id("a"), Term(6));
    (members.forced, members.forced_in) = (Some(9), Some(Term(6)));
    let promote = Step::Promote {
        url: A.to_owned(),
        term: Term(6),
        incarnation_above: 4,
        yielded: false,
        forced: Some(9),
    };
    assert_eq!(steps(&store, &[(A, &a)]), std::slice::from_ref(&promote));
    // What it said before it was to execute nothing is old.
    let before = Said { in_doubt: false, yielded: false, term: Term(4), ..a.clone() };
    assert_eq!(steps(&store, &[(A, &before)]), [promote]);
    let later = Said { term: Term(7), ..a.clone() };
    assert_eq!(steps(&store, &[(A, &later)]), in_sync(6, 7, &[]));
    // It has opened. What was forced once is over, whatever becomes of it.
    let opened = Said { named: Term(6), in_doubt: true, ..a };
    store.members.as_mut().unwrap().term = Term(7);
    assert_eq!(steps(&store, &[(A, &opened)]), count(7, &[], true));
}

#[test]
fn what_is_old_counts_for_nothing() {
    let store = store(4, &["b"], &alone());
    let b = Said { connected: false, silent: SUSPECT, ..standby("b", 4) };
    let mut known = looks(&[(B, &b)]);
    known.get_mut(A).unwrap().answered(NOW - SUSPECT, primary("a", 4, &["b"]));
    assert_eq!(decide(&store, &known, NOW, None).steps, prepare(B, 5, "b"));
    // Its term was seen, though.
    known.get_mut(A).unwrap().answered(NOW - SUSPECT, primary("a", 8, &["b"]));
    assert_eq!(decide(&store, &known, NOW, None).steps, prepare(B, 9, "b"));
}
