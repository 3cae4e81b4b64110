//! This guard keeps the automatic mode from harm: the mode acts on what lasts, seldom, one move at a time, and never in hours
//! that the operator wants quiet. The guard is pure: it is given the time.

use std::collections::VecDeque;

use super::rules::{Proposal, Subject};

const DAY: u64 = 24 * 3600;

/// Hours of the day (UTC) in which nothing is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quiet {
    /// In minutes since midnight. The end may be on the next day.
    from: u64,
    to: u64,
}

impl Quiet {
    /// Reads `08:00-20:00`.
    ///
    /// # Errors
    /// What to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not of the form 08:00-20:00 (UTC)");
        let minutes = |time: &str| {
            let (hours, minutes) = time.split_once(':')?;
            let two = |text: &str| (text.len() == 2).then(|| text.parse::<u64>().ok()).flatten();
            let (hours, minutes) = (two(hours)?, two(minutes)?);
            (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
        };
        let (from, to) = text.split_once('-').ok_or_else(wrong)?;
        let (from, to) = minutes(from).zip(minutes(to)).ok_or_else(wrong)?;
        if from == to { Err(wrong()) } else { Ok(Self { from, to }) }
    }

    fn holds(self, now: u64) -> bool {
        let at = now % DAY / 60;
        if self.from < self.to { (self.from..self.to).contains(&at) } else { at >= self.from || at < self.to }
    }
}

/// The limits of the automatic mode.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The looks in a row that must find a proposal.
    pub looks: u32,
    pub changes_per_day: u32,
    pub quiet: Option<Quiet>,
}

/// What is done after a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing is proposed.
    Nothing,
    /// Why a proposal is not made now.
    Wait(String),
    /// This proposal is made.
    Make(usize),
}

/// What is remembered between looks.
#[derive(Debug)]
pub struct Guard {
    limits: Limits,
    /// The first change that the last look proposed, and in how many looks in a row it was.
    seen: Option<(Subject, u32)>,
    /// The times of changes, in seconds since the Unix epoch.
    made: VecDeque<u64>,
}

impl Guard {
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, seen: None, made: VecDeque::new() }
    }

    /// Decides after a look. A change that is decided on counts, even if the router then refuses it.
    pub fn decide(&mut self, now: u64, proposals: &[Proposal], under_way: &[String]) -> Decision {
        let mut changes = proposals.iter().enumerate();
        let first = changes.find_map(|(at, proposal)| Some((at, proposal.change.as_ref()?.subject())));
        let Some((at, subject)) = first else {
            self.seen = None;
            return Decision::Nothing;
        };
        if let Some(id) = under_way.first() {
            // The load is not that of a cluster at rest.
            self.seen = None;
            return Decision::Wait(format!("move {id} is under way"));
        }
        let looks = match &self.seen {
            Some((last, looks)) if *last == subject => looks + 1,
            _ => 1,
        };
        self.seen = Some((subject, looks));
        if looks < self.limits.looks {
            return Decision::Wait(format!("seen in {looks} of {} looks in a row", self.limits.looks));
        }
        if self.limits.quiet.is_some_and(|quiet| quiet.holds(now)) {
            return Decision::Wait("these are quiet hours".to_owned());
        }
        self.made.retain(|at| now.saturating_sub(*at) < DAY);
        if self.made.len() >= self.limits.changes_per_day as usize {
            return Decision::Wait(format!("{} changes were made in a day", self.made.len()));
        }
        self.made.push_back(now);
        self.seen = None;
        Decision::Make(at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::Change;
    use super::*;

    fn proposal(kind: &str) -> Proposal {
        let change = Some(Change::Move { kind: kind.to_owned(), to: "b".to_owned() });
        Proposal { what: format!("move {kind}"), why: String::new(), effect: String::new(), change }
    }

    fn guard(quiet: Option<&str>) -> Guard {
        let quiet = quiet.map(|text| Quiet::parse(text).unwrap());
        Guard::new(Limits { looks: 3, changes_per_day: 2, quiet })
    }

    fn waits(decision: &Decision, why: &str) -> bool {
        matches!(decision, Decision::Wait(said) if said.contains(why))
    }

    #[test]
    fn only_what_lasts_is_made() {
        let mut guard = guard(None);
        let (pods, nodes) = ([proposal("pods")], [proposal("nodes")]);
        for (proposals, under_way) in [
            (&pods[..], false),
            (&pods[..], false),
            (&nodes[..], false),
            (&[][..], false),
            (&pods[..], false),
            (&pods[..], true),
        ] {
            let under_way = if under_way { vec!["7".to_owned()] } else { Vec::new() };
            assert_ne!(guard.decide(0, proposals, &under_way), Decision::Make(0));
        }
        assert!(waits(&guard.decide(0, &pods, &[]), "1 of 3"));
        assert!(waits(&guard.decide(0, &pods, &[]), "2 of 3"));
        assert_eq!(guard.decide(0, &pods, &[]), Decision::Make(0));
        assert!(waits(&guard.decide(0, &pods, &[]), "1 of 3"), "after a change it looks anew");
    }

    #[test]
    fn two_stores_that_could_take_a_kind_equally_well_do_not_hold_it_back() {
        let mut guard = guard(None);
        let to = |store: &str| {
            let change = Some(Change::Move { kind: "pods".to_owned(), to: store.to_owned() });
            [Proposal { change, what: format!("move pods to {store}"), ..proposal("pods") }]
        };
        assert!(waits(&guard.decide(0, &to("b"), &[]), "1 of 3"));
        assert!(waits(&guard.decide(0, &to("c"), &[]), "2 of 3"));
        assert_eq!(guard.decide(0, &to("b"), &[]), Decision::Make(0));
    }

    #[test]
    fn what_only_the_operator_can_do_is_passed_over() {
        let mut guard = guard(None);
        let by_hand = Proposal { change: None, ..proposal("x") };
        assert_eq!(guard.decide(0, std::slice::from_ref(&by_hand), &[]), Decision::Nothing);
        let both = [by_hand, proposal("pods")];
        (0..2).for_each(|_| assert!(matches!(guard.decide(0, &both, &[]), Decision::Wait(_))));
        assert_eq!(guard.decide(0, &both, &[]), Decision::Make(1));
    }

    #[test]
    fn a_day_has_so_many_changes() {
        let mut guard = guard(None);
        let pods = [proposal("pods")];
        let mut made = |from: u64| {
            (from..from + 100).filter(|now| guard.decide(*now, &pods, &[]) == Decision::Make(0)).count()
        };
        assert_eq!(made(1000), 2);
        assert_eq!(made(2000), 0);
        assert_eq!(made(1000 + DAY + 100), 2);
    }

    #[test]
    fn quiet_hours_may_pass_midnight() {
        let hour = |hour: u64| 1_700_000_000 / DAY * DAY + hour * 3600;
        let day = Quiet::parse("08:00-20:00").unwrap();
        assert!(day.holds(hour(8)) && !day.holds(hour(20)) && !day.holds(hour(3)));
        let night = Quiet::parse("22:30-04:00").unwrap();
        assert!(
            night.holds(hour(23)) && night.holds(hour(3)) && !night.holds(hour(4)) && !night.holds(hour(22))
        );
        for wrong in ["", "8-20", "08:00", "08:00-24:00", "08:60-09:00", "08:00-08:00", "8:00-09:00"] {
            assert!(Quiet::parse(wrong).is_err(), "{wrong}");
        }
        let mut guard = guard(Some("00:00-23:59"));
        let pods = [proposal("pods")];
        (0..2).for_each(|_| _ = guard.decide(hour(1), &pods, &[]));
        assert!(waits(&guard.decide(hour(1), &pods, &[]), "quiet"));
    }
}
