//! Each call, and what is to be on disk before what.

use super::*;
use crate::standby::{Position, WAIT};

fn id(name: &str) -> MemberId {
    MemberId(name.to_owned())
}

/// A member, and what it has as a standby.
struct Here {
    machine: MemberMachine,
    follower: Option<Follower>,
    whole: bool,
    now: Duration,
    wall_micros: u64,
    /// What has been done.
    acts: Vec<Act>,
    /// Whether the loop refuses to count.
    missing: Option<MemberId>,
}

impl Here {
    fn with(role: Role, follower: Option<Follower>) -> Self {
        Self {
            machine: MemberMachine::start(id("me"), role, 1),
            follower,
            whole: true,
            now: Duration::ZERO,
            wall_micros: 0,
            acts: Vec::new(),
            missing: None,
        }
    }

    fn primary(counted: &[&str]) -> Self {
        let counted = counted.iter().map(|name| id(name)).collect();
        Self::with(Role { term: Term(3), named: Term(3), counted, ..Role::alone() }, None)
    }

    fn standby() -> Self {
        let role = Role { does: Does::Standby, term: Term(3), ..Role::alone() };
        Self::with(role, Some(Follower::new(Term(3), Duration::ZERO)))
    }

    fn at<T>(&mut self, decide: impl FnOnce(&mut MemberMachine, &mut At<'_>) -> T) -> T {
        let (whole, now) = (self.whole, self.now);
        let standby = self.follower.as_mut().map(|follower| Standby { follower, whole, now });
        decide(&mut self.machine, &mut At { wall_micros: self.wall_micros, standby })
    }

    /// Carries a call out; stops before the act with this number, as a crash or a failing disk does.
    fn until(&mut self, call: Call, crash: usize) -> Result<(), Refusal> {
        let mut doing = self.at(|machine, at| machine.begin(call, at))?;
        for _ in 0..crash {
            let Some(act) = doing.act().cloned() else { return Ok(()) };
            self.acts.push(act.clone());
            let missing = self.missing.clone().filter(|_| matches!(act, Act::Count { .. }));
            let done = missing.map_or(Done::Done, |missing| Done::NotCounted(NotCounted(missing)));
            self.at(|machine, at| machine.done(&mut doing, done, at))?;
        }
        Ok(())
    }

    fn call(&mut self, call: Call) -> Result<(), Refusal> {
        self.acts.clear();
        self.until(call, usize::MAX)
    }
}

fn count(term: u64, names: &[&str], recorded: bool) -> Call {
    let members = names.iter().map(|name| id(name)).collect();
    Call::Count { term: Term(term), members, recorded }
}

fn prepare(term: u64) -> Call {
    Call::Prepare { term: Term(term), member: Some(id("me")) }
}

fn promote(term: u64, yielded: bool, forced_opens_at_micros: Option<u64>) -> Call {
    Call::Promote { term: Term(term), incarnation_above: 6, yielded, forced_opens_at_micros }
}

fn supersede(term: u64) -> Call {
    Call::Supersede { term: Term(term), primary: "http://b".to_owned(), started_as: None }
}

fn over(asked: u64, seen: u64) -> Result<(), Refusal> {
    Err(NotDone::Over { asked: Term(asked), seen: Term(seen) }.into())
}

#[test]
fn r19_whoever_may_be_promoted_is_on_disk_before_and_after_the_loop_counts() {
    let mut here = Here::primary(&["a"]);
    assert_eq!(here.call(count(4, &["b"], true)), Ok(()));
    let kept = here.acts.iter().map(|act| match act {
        Act::Keep(role) => role.counted.iter().map(|id| id.0.clone()).collect::<String>(),
        act => format!("{act:?}").chars().take(5).collect(),
    });
    assert_eq!(kept.collect::<Vec<_>>(), ["ab", "Count", "b"]);
    assert_eq!((here.machine.role().term, here.machine.role().named), (Term(4), Term(4)));
    // The loop does not count it: who counted before still does.
    here.missing = Some(id("c"));
    let refused = Err(NotCounted(id("c")).into());
    assert_eq!(here.call(count(5, &["b", "c"], true)), refused);
    assert_eq!(here.machine.role().counted, [id("b")]);
    assert_eq!(here.machine.role().named, Term(4), "nothing was named");
    // A crash between the two leaves both.
    let mut here = Here::primary(&["a"]);
    here.until(count(4, &["b"], true), 2).unwrap();
    assert_eq!(here.machine.role().counted, [id("a"), id("b")]);
    assert_eq!(here.call(count(3, &[], true)), over(3, 4));
}

/// Two routers count a standby each, in the same term, and the record of that term names the first one.
#[test]
fn r19_a_count_that_the_record_does_not_say_takes_nobody_out() {
    let mut here = Here::primary(&[]);
    here.call(count(4, &["a"], false)).unwrap();
    here.call(count(4, &["b"], false)).unwrap();
    assert_eq!(here.machine.role().counted, [id("a"), id("b")]);
    let ids = vec![id("a"), id("b")];
    assert_eq!(here.acts[1], Act::Count { ids, recorded: false });
    assert_eq!(here.machine.role().named, Term(3));
    here.call(count(5, &["a"], true)).unwrap();
    assert_eq!(here.machine.role().counted, [id("a")]);
}

#[test]
fn r20_only_a_count_that_the_record_says_ends_a_doubt() {
    let mut here = Here::primary(&["a"]);
    assert!(here.machine.in_doubt());
    assert_eq!(here.machine.may_be_followed(), Err(None));
    here.call(count(4, &["a"], false)).unwrap();
    assert!(here.machine.in_doubt());
    here.missing = Some(id("a"));
    assert!(here.call(count(4, &["a"], true)).is_err() && here.machine.in_doubt());
    here.missing = None;
    here.call(count(4, &["a"], true)).unwrap();
    assert_eq!((here.machine.in_doubt(), here.machine.may_be_followed()), (false, Ok(Term(4))));
    assert_eq!(here.machine.role().named, Term(4));
    assert!(!Here::primary(&[]).machine.in_doubt(), "nobody can have been promoted");
}

#[test]
fn r20_a_restart_leaves_a_primary_in_doubt_that_has_yielded() {
    let yields = |term| Call::Yield { term: Term(term) };
    let empty = Role { term: Term(3), ..Role::alone() };
    let refused = Here::with(empty, None).call(yields(4));
    assert_eq!(refused, Err(Refusal::NeverNamed), "it may have lost its disk");
    let mut alone = Here::primary(&[]);
    assert_eq!(alone.call(yields(4)), Ok(()));
    assert!(alone.machine.counted().is_empty(), "it waits for nobody");
    assert!(MemberMachine::start(id("me"), alone.machine.role().clone(), 1).in_doubt());
    assert_eq!(Here::standby().call(yields(4)), Err(Refusal::NotPrimary));
    let mut here = Here::primary(&["a"]);
    assert_eq!(here.call(yields(2)), over(2, 3));
    assert_eq!(here.call(yields(4)), Ok(()));
    assert!(matches!(&here.acts[..], [Act::Keep(role), Act::Yield] if role.term == Term(4)));
    assert!(here.machine.yielded());
    here.call(count(5, &["a"], false)).unwrap();
    assert!(here.machine.yielded());
    here.call(count(5, &["a"], true)).unwrap();
    assert!(!here.machine.yielded());
}

#[test]
fn r19_a_promise_is_on_disk_before_it_is_given_and_only_a_whole_standby_gives_one() {
    let mut here = Here::standby();
    here.until(prepare(5), 0).unwrap();
    assert!(!here.follower.as_ref().unwrap().is_prepared(), "the disk does not have it");
    assert_eq!(here.call(prepare(5)), Ok(()));
    assert!(matches!(&here.acts[..], [Act::Keep(role)] if role.term == Term(5)));
    assert!(here.follower.as_ref().unwrap().is_prepared());
    assert_eq!(here.call(prepare(5)), Ok(()), "again");
    assert_eq!(here.acts, []);
    assert_eq!(here.call(prepare(4)), over(4, 5));
    let other = Call::Prepare { term: Term(6), member: Some(id("other")) };
    let another = Refusal::Another { is: id("me"), asked: id("other") };
    assert_eq!(here.call(other), Err(another));
    here.whole = false;
    assert_eq!(here.call(prepare(6)), Err(Refusal::NotWhole));
    assert_eq!(Here::primary(&[]).call(prepare(6)), Err(Refusal::NotStandby));
    // The term is that of the primary that it follows.
    let mut here = Here::standby();
    here.follower.as_mut().unwrap().follow(Term(7), Position(0)).unwrap();
    assert_eq!(here.call(prepare(7)), over(7, 7));
}

#[test]
fn r20_a_standby_takes_over_only_after_the_wait_or_when_the_primary_has_yielded() {
    let mut here = Here::standby();
    assert_eq!(here.call(promote(5, false, None)), Err(NotDone::NotPrepared(Term(5)).into()));
    assert_eq!(here.call(promote(5, true, None)), Err(NotDone::NotPrepared(Term(5)).into()));
    here.call(prepare(5)).unwrap();
    assert_eq!(here.call(promote(5, false, None)), Err(NotDone::Waits { left: WAIT }.into()));
    assert_eq!(here.call(promote(6, true, None)), Err(NotDone::NotPrepared(Term(6)).into()));
    assert_eq!(here.call(promote(5, true, None)), Ok(()));
    let primary = Role { term: Term(5), named: Term(5), ..Role::alone() };
    let acts = [Act::TakeOver { behind: None }, Act::KeepIncarnation(7), Act::Keep(primary)];
    assert_eq!(here.acts, acts);
    assert!(here.machine.serves() && here.machine.incarnation() == 7);
    assert_eq!(here.call(promote(5, false, None)), Ok(()), "it repeats the call");
    assert_eq!((here.acts.len(), here.machine.incarnation()), (0, 7));
    assert_eq!(here.call(promote(4, true, None)), over(4, 5));
}

#[test]
fn r14_a_standby_that_is_forced_waits_for_the_clock_and_begins_above_it() {
    let mut here = Here::standby();
    here.call(prepare(5)).unwrap();
    here.now = WAIT;
    assert_eq!(here.call(promote(5, false, Some(9))), Err(Refusal::Opens { left: Duration::from_micros(9) }));
    here.wall_micros = 9;
    assert_eq!(here.call(promote(5, false, Some(9))), Ok(()));
    assert_eq!(here.acts[0], Act::TakeOver { behind: Some(Revision(9 << SLOT_BITS)) });
}

#[test]
fn r19_a_former_primary_ends_and_the_primary_of_the_term_does_not() {
    let mut here = Here::primary(&[]);
    assert_eq!(here.call(supersede(3)), Err(Refusal::IsPrimary(Term(3))));
    assert_eq!(here.call(supersede(2)), over(2, 3));
    assert_eq!(here.call(supersede(4)), Ok(()));
    assert!(
        matches!(&here.acts[..], [Act::Refuse, Act::Keep(role), Act::End] if role.does == Does::Superseded)
    );
    assert!(!here.machine.serves());
    assert_eq!(here.call(count(5, &[], true)), Err(Refusal::NotPrimary));
    // In doubt, it may have been replaced in its own term.
    assert_eq!(Here::primary(&["a"]).call(supersede(3)), Ok(()));
    let mut here = Here::standby();
    assert_eq!(here.call(supersede(4)), Ok(()));
    assert_eq!(here.machine.role().does, Does::Standby, "it follows another one");
    // If the disk had refused, it could still be promoted, and serve.
    assert!(matches!(&here.acts[..], [Act::Keep(_), Act::End]));
    assert_eq!(here.machine.may_be_followed(), Err(Some("http://b".to_owned())), "it tells others");
}

/// The record names a standby in the term in which it was to count, or in which this member has yielded.
#[test]
fn r19_a_term_that_a_primary_has_only_heard_of_may_be_another_ones() {
    let mut here = Here::primary(&[]);
    here.call(count(4, &["a"], false)).unwrap();
    assert_eq!(here.call(supersede(4)), Ok(()));
    let mut here = Here::primary(&["a"]);
    here.call(count(3, &["a"], true)).unwrap();
    here.call(Call::Yield { term: Term(4) }).unwrap();
    assert_eq!(here.call(supersede(4)), Ok(()));
}

#[test]
fn r14_a_former_primary_goes_on_by_force_behind_what_another_may_have_shown() {
    let mut here = Here::primary(&["a"]);
    assert!(here.machine.in_doubt());
    assert_eq!(
        here.call(promote(5, true, None)),
        Err(Refusal::NotStandby),
        "without force it is nobody's heir"
    );
    assert_eq!(here.call(promote(5, false, Some(9))), Err(Refusal::Opens { left: Duration::from_micros(9) }));
    here.wall_micros = 9;
    // Whatever was done before a crash, it is still in doubt, and nothing is executed.
    for crash in 0..3 {
        here.until(promote(5, false, Some(9)), crash).unwrap();
        assert!(here.machine.in_doubt() && here.machine.role().counted == [id("a")]);
    }
    // A disk that refuses the rest leaves one of which others may have been promoted.
    let (mut refused, mut at) = (here.machine.clone(), At { wall_micros: 9, standby: None });
    let mut doing = refused.begin(promote(5, false, Some(9)), &mut at).unwrap();
    refused.done(&mut doing, Done::Done, &mut at).unwrap();
    assert!(refused.in_doubt() && refused.counted() == [id("a")]);
    assert_eq!(here.call(promote(5, false, Some(9))), Ok(()));
    let behind = Revision(9 << SLOT_BITS);
    let primary = Role { term: Term(5), named: Term(5), ..Role::alone() };
    let alone = Act::Count { ids: Vec::new(), recorded: true };
    let incarnation = here.machine.incarnation();
    let acts = [
        Act::Reopen { behind, in_doubt: true },
        Act::KeepIncarnation(incarnation),
        Act::Keep(primary),
        alone,
    ];
    assert_eq!(here.acts, acts);
    assert!(!here.machine.in_doubt() && here.machine.serves());
    assert_eq!(here.call(promote(5, false, Some(9))), Ok(()), "it repeats the call");
    assert!(here.acts.is_empty());
}

/// The disk refuses to forget one that is taken out. The loop does not wait for it any more, and it does not come back.
#[test]
fn r19_what_only_the_disk_counts_is_not_waited_for() {
    let mut here = Here::primary(&["a"]);
    here.call(count(4, &["a", "b"], true)).unwrap();
    here.until(count(5, &["b"], true), 2).unwrap();
    assert_eq!(
        (here.machine.counted(), &here.machine.role().counted[..]),
        (&[id("b")][..], &[id("a"), id("b")][..])
    );
    here.call(count(6, &["c"], false)).unwrap();
    assert_eq!(here.acts[1], Act::Count { ids: vec![id("b"), id("c")], recorded: false });
    assert_eq!(
        here.machine.role().counted,
        [id("a"), id("b"), id("c")],
        "after a crash all of them may be promoted"
    );
    here.call(count(6, &["c"], true)).unwrap();
    assert_eq!((here.machine.counted(), &here.machine.role().counted[..]), (&[id("c")][..], &[id("c")][..]));
}

/// The primary waited for its standby, and the standby, which begins anew with a copy, for the primary.
#[test]
fn f68_a_primary_in_doubt_learns_who_was_not_promoted() {
    let mut here = Here::primary(&["b", "c"]);
    here.machine.note_never_promoted(id("b"));
    here.machine.note_never_promoted(id("b"));
    let told = |here: &Here| here.machine.never_promoted().cloned().collect::<Vec<_>>();
    assert_eq!(told(&here), [id("b")]);
    assert!(here.machine.in_doubt(), "only the record lets it serve");
    here.call(count(6, &[], true)).unwrap();
    assert_eq!(told(&here), [], "it serves");
}
