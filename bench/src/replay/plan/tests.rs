use kindred_proto::etcdserverpb as pb;
use proptest::prelude::*;

use super::super::line::tests::put;
use super::*;

const START: u64 = 1_700_000_000_000_000;

fn recorded(connection: &str, begins: u64, ends: u64, request: Request) -> Recorded {
    Recorded {
        line: 1,
        connection: connection.to_owned(),
        kind: "pods".into(),
        method: "Put".into(),
        begins: START + begins,
        ends: START + ends,
        code: "OK".to_owned(),
        succeeded: None,
        revision: None,
        lease: None,
        request: Ok(request),
        lost: 0,
    }
}

fn of_key(connection: &str, begins: u64, ends: u64, key: &str) -> Recorded {
    recorded(connection, begins, ends, Request::Put(put(key, "")))
}

fn delete(key: &'static str, range_end: &'static str) -> Request {
    let (key, range_end) = (key.into(), range_end.into());
    Request::DeleteRange(pb::DeleteRangeRequest { key, range_end, ..Default::default() })
}

/// The step that sends the request with this number.
fn sends(plan: &Plan, number: usize) -> usize {
    plan.steps.iter().position(|step| step.action == Action::Send(number)).unwrap()
}

#[test]
fn intervals_are_kept_at_the_speed_that_is_asked_for() {
    let trace = [of_key("a", 500, 900, "x"), of_key("a", 1500, 1600, "y"), of_key("b", 2500, 2600, "z")];
    let dues =
        |speed| Plan::of(&trace, speed).steps.iter().map(|step| step.due.as_micros()).collect::<Vec<_>>();
    assert_eq!(dues(Speed::Times(1.0)), [0, 1000, 2000]);
    assert_eq!(dues(Speed::Times(2.0)), [0, 500, 1000]);
    assert_eq!(dues(Speed::Max), [0, 0, 0]);
    assert_eq!(Plan::of(&trace, Speed::Max).connections, 2);
}

#[test]
fn a_speed_is_a_number_or_max() {
    assert_eq!(Speed::parse("2"), Ok(Speed::Times(2.0)));
    assert_eq!(Speed::parse("0.5"), Ok(Speed::Times(0.5)));
    assert_eq!(Speed::parse("max"), Ok(Speed::Max));
    for wrong in ["", "0", "-1", "nan", "inf", "fast", "1e99"] {
        assert!(Speed::parse(wrong).unwrap_err().contains("max"), "{wrong}");
    }
}

/// Whether the second may be sent before the first has ended.
fn overlap(first: Recorded, second: Recorded) -> bool {
    let plan = Plan::of(&[first, second], Speed::Max);
    let (first, second) = (sends(&plan, 0), sends(&plan, 1));
    let mut schedule = Schedule::of(&plan);
    assert!(schedule.due(first), "nothing is before it");
    let free = schedule.due(second);
    let freed = schedule.ended(&plan.steps[first]);
    assert_eq!(freed, if free { vec![] } else { vec![second] });
    free
}

#[test]
fn only_what_overlapped_overlaps_where_order_matters() {
    let read = |connection: &str| {
        recorded(
            connection,
            20,
            30,
            Request::Range(pb::RangeRequest { key: "x".into(), ..Default::default() }),
        )
    };
    // One connection.
    assert!(!overlap(of_key("a", 0, 10, "x"), of_key("a", 20, 30, "y")));
    assert!(!overlap(of_key("a", 0, 20, "x"), of_key("a", 20, 30, "y")));
    assert!(overlap(of_key("a", 0, 25, "x"), of_key("a", 20, 30, "y")));
    assert!(!overlap(of_key("a", 0, 10, "x"), read("a")));
    // Two connections.
    assert!(overlap(of_key("a", 0, 10, "x"), of_key("b", 20, 30, "y")));
    assert!(!overlap(of_key("a", 0, 10, "x"), of_key("b", 20, 30, "x")));
    assert!(overlap(of_key("a", 0, 25, "x"), of_key("b", 20, 30, "x")));
    assert!(overlap(of_key("a", 0, 10, "x"), read("b")));
    // Ranges of keys.
    assert!(!overlap(of_key("a", 0, 10, "x"), recorded("b", 20, 30, delete("a", "z"))));
    assert!(!overlap(recorded("a", 0, 10, delete("a", "z")), of_key("b", 20, 30, "x")));
    assert!(overlap(recorded("a", 0, 10, delete("y", "")), of_key("b", 20, 30, "x")));
    // Leases.
    let grant = || recorded("a", 0, 10, Request::LeaseGrant(pb::LeaseGrantRequest { ttl: 60, id: 0 }));
    let leased = |lease| pb::PutRequest { lease, ..put("x", "") };
    let granted = Recorded { lease: Some(7), ..grant() };
    assert!(!overlap(granted.clone(), recorded("b", 20, 30, Request::Put(leased(7)))));
    assert!(overlap(granted, recorded("b", 20, 30, Request::Put(leased(8)))));
}

#[test]
fn a_watch_is_open_for_as_long_and_until_what_happened_meanwhile_has_ended() {
    let watch = Request::Watch(pb::WatchCreateRequest { key: "x".into(), ..Default::default() });
    let trace =
        [recorded("a", 0, 5000, watch.clone()), of_key("b", 2000, 3000, "x"), of_key("b", 6000, 7000, "y")];
    let plan = Plan::of(&trace, Speed::Times(1.0));
    let actions: Vec<_> = plan.steps.iter().map(|step| (step.due.as_micros(), step.action)).collect();
    // The watch began before all else, so it begins with it.
    let (open, close) = ((0, Action::Send(0)), (3000, Action::Close(0)));
    assert_eq!(actions, [open, (0, Action::Send(1)), close, (4000, Action::Send(2))]);
    let mut schedule = Schedule::of(&plan);
    assert!(schedule.due(0) && schedule.due(1) && !schedule.due(2));
    assert_eq!(schedule.ended(&plan.steps[1]), [2]);
    let alone = Plan::of(&[recorded("a", 0, 5000, watch)], Speed::Max);
    assert_eq!(alone.steps.len(), 2);
}

#[test]
fn what_cannot_be_made_holds_nothing_back() {
    let trace = [Recorded { request: Err("no"), ..of_key("a", 0, 10, "x") }, of_key("a", 20, 30, "x")];
    let plan = Plan::of(&trace, Speed::Times(1.0));
    assert_eq!(plan.steps.len(), 1);
    assert_eq!(plan.steps[0].due, Duration::ZERO);
    assert!(Schedule::of(&plan).due(0));
}

fn any_request() -> impl Strategy<Value = Request> {
    let key = || (0u8..4).prop_map(|key| format!("k{key}"));
    let wide = (0u8..4, 1u8..4).prop_map(|(from, by)| pb::DeleteRangeRequest {
        key: format!("k{from}").into(),
        range_end: format!("k{}", from + by).into(),
        ..Default::default()
    });
    prop_oneof![
        4 => key().prop_map(|key| Request::Put(put(&key, ""))),
        2 => key().prop_map(|key| Request::Range(pb::RangeRequest { key: key.into(), ..Default::default() })),
        1 => wide.prop_map(Request::DeleteRange),
        1 => key().prop_map(|key| Request::Watch(pb::WatchCreateRequest { key: key.into(), ..Default::default() })),
        1 => Just(Request::LeaseGrant(pb::LeaseGrantRequest { ttl: 9, id: 5 })),
    ]
}

proptest! {
    /// However long requests take, each is sent once, and none before those that must have ended before it.
    #[test]
    fn every_request_is_sent_and_in_order(
        calls in prop::collection::vec((0u8..3, 0u64..100, 1u64..40, any_request()), 1..40),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 200),
    ) {
        let trace: Vec<Recorded> = calls
            .into_iter()
            .map(|(connection, begins, took, request)| {
                recorded(&connection.to_string(), begins, begins + took, request)
            })
            .collect();
        let plan = Plan::of(&trace, Speed::Max);
        let mut schedule = Schedule::of(&plan);
        let mut running: Vec<usize> = (0..plan.steps.len()).filter(|step| schedule.due(*step)).collect();
        let (mut ended, mut closed) = (BTreeSet::new(), 0);
        let mut sent = running.clone();
        let check = |step: usize, ended: &BTreeSet<usize>| {
            let Action::Send(at) = plan.steps[step].action else { return };
            let wide = |request: &Request| matches!(request, Request::DeleteRange(_));
            for (other, before) in trace.iter().enumerate().filter(|(_, before)| before.ends <= trace[at].begins) {
                let (Ok(a), Ok(b)) = (&before.request, &trace[at].request) else { panic!() };
                let key = |request: &Request| match request { Request::Put(put) => Some(put.key.clone()), _ => None };
                let watch = matches!(a, Request::Watch(_));
                let lease = |request: &Request| matches!(request, Request::LeaseGrant(_));
                let writes = |request: &Request| key(request).is_some() || wide(request) || lease(request);
                let ordered = before.connection == trace[at].connection
                    || (key(a).is_some() && key(a) == key(b))
                    || (wide(a) && writes(b))
                    || wide(b)
                    || (lease(a) && lease(b));
                assert!(watch || !ordered || ended.contains(&other), "{at} before {other}");
            }
        };
        running.iter().for_each(|step| check(*step, &ended));
        for pick in &picks {
            if running.is_empty() {
                break;
            }
            let step = running.swap_remove(pick.index(running.len()));
            match plan.steps[step].action {
                Action::Send(at) => drop(ended.insert(at)),
                Action::Close(_) => closed += 1,
            }
            for free in schedule.ended(&plan.steps[step]) {
                check(free, &ended);
                running.push(free);
                sent.push(free);
            }
        }
        sent.sort_unstable();
        prop_assert_eq!(sent, (0..plan.steps.len()).collect::<Vec<_>>());
        prop_assert_eq!(ended.len() + closed, plan.steps.len());
    }
}
