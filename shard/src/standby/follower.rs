//! The standby's side: acknowledgements, and the promise not to give any more.

use std::time::Duration;

use kindred_partition_config::ids::Term;

use super::{Position, WAIT};

/// How long the disk of a standby may take nothing before nothing is received any more, as what is received waits in memory
/// until the disk has it; and how long it must take everything before that goes on.
pub const STALLS_MAX: Duration = Duration::from_secs(2);

/// A standby.
#[derive(Debug)]
pub struct Follower {
    /// The highest term that it has promised or followed. It is on disk before it takes effect.
    term: Term,
    /// Everything up to there is received in this term.
    received: Position,
    /// When it last acknowledged something.
    acknowledged_at: Option<Duration>,
    /// Whether it is about to be promoted.
    prepared: bool,
}

/// Why a standby does not do something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// It has promised a higher term, so a primary of this one may not count on it.
    #[error("term {} is over: this standby is in term {}", .asked.0, .seen.0)]
    Over {
        /// The term of the request.
        asked: Term,
        /// The standby's.
        seen: Term,
    },
    /// Its last acknowledgement may still allow the former primary to answer (R20).
    #[error("it may be promoted in {} ms", .left.as_millis())]
    Waits {
        /// The rest of the time.
        left: Duration,
    },
    /// It was not asked to prepare for this term.
    #[error("it is not prepared for term {}", .0.0)]
    NotPrepared(Term),
}

impl Follower {
    /// A standby that starts in a term. What its process acknowledged before is not known, so it counts as now.
    #[must_use]
    pub fn new(term: Term, now: Duration) -> Self {
        Self { term, received: Position::default(), acknowledged_at: Some(now), prepared: false }
    }

    /// The highest term that it has seen.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// Everything up to there is received.
    #[must_use]
    pub fn position(&self) -> Position {
        self.received
    }

    /// The primary of a term sends from a position on. A higher term is to be on disk before this is called.
    ///
    /// # Errors
    /// When the term is over.
    pub fn follow(&mut self, term: Term, from: Position) -> Result<(), NotDone> {
        if term < self.term || (term == self.term && self.prepared) {
            return Err(NotDone::Over { asked: term, seen: self.term });
        }
        (self.term, self.prepared, self.received) = (term, false, from);
        Ok(())
    }

    /// A batch was received. Returns what to acknowledge.
    ///
    /// # Errors
    /// When the term of the stream is over: nothing is acknowledged.
    pub fn received(&mut self, term: Term, batch: Position, now: Duration) -> Result<Position, NotDone> {
        if term != self.term || self.prepared {
            return Err(NotDone::Over { asked: term, seen: self.term });
        }
        self.received = self.received.max(batch);
        self.acknowledged_at = Some(now);
        Ok(self.received)
    }

    /// Stops acknowledging, because this standby is to become the primary of a term. The term is to be on disk before this
    /// is called. Asking again changes nothing.
    ///
    /// # Errors
    /// When a higher term was promised, or this one is another primary's.
    pub fn prepare(&mut self, term: Term) -> Result<(), NotDone> {
        if term < self.term || (term == self.term && !self.prepared) {
            return Err(NotDone::Over { asked: term, seen: self.term });
        }
        (self.term, self.prepared) = (term, true);
        Ok(())
    }

    /// Whether it is about to be promoted.
    #[must_use]
    pub fn is_prepared(&self) -> bool {
        self.prepared
    }

    /// How long ago it last acknowledged something.
    #[must_use]
    pub fn silent(&self, now: Duration) -> Duration {
        self.acknowledged_at.map_or(now, |at| now.saturating_sub(at))
    }

    /// Whether it is prepared for a term: where the former primary has yielded, no wait is needed.
    ///
    /// # Errors
    /// When it is not.
    pub fn is_prepared_for(&self, term: Term) -> Result<(), NotDone> {
        if term == self.term && self.prepared { Ok(()) } else { Err(NotDone::NotPrepared(term)) }
    }

    /// Whether meta's record may name it as the primary of a term it was prepared for.
    ///
    /// # Errors
    /// While the former primary may still answer, or when it is not prepared.
    pub fn may_be_promoted(&self, term: Term, now: Duration) -> Result<(), NotDone> {
        self.is_prepared_for(term)?;
        let until = self.acknowledged_at.map_or(Duration::ZERO, |at| at + WAIT);
        match until.saturating_sub(now) {
            Duration::ZERO => Ok(()),
            left => Err(NotDone::Waits { left }),
        }
    }
}

/// Whether the disk of a standby takes what is received.
#[derive(Debug, Default)]
pub struct Taking {
    /// Since when it takes nothing, or everything.
    since: Duration,
    /// Why it takes nothing at the moment.
    now: Option<String>,
    /// Why nothing is received.
    stalls: Option<String>,
    /// Why the standby has left its primary, until it is connected again.
    left: Option<String>,
}

impl Taking {
    /// Notes why the disk takes nothing, or that it does.
    pub fn note(&mut self, takes_nothing: Option<String>, at: Duration) {
        if takes_nothing.is_some() != self.now.is_some() {
            self.since = at;
        }
        self.now = takes_nothing;
        if at.saturating_sub(self.since) >= STALLS_MAX {
            self.stalls.clone_from(&self.now);
        }
    }

    /// Why nothing is received any more. The standby leaves its primary then.
    pub fn leaves(&mut self) -> Option<&str> {
        if self.stalls.is_some() {
            self.left.clone_from(&self.stalls);
        }
        self.stalls.as_deref()
    }

    /// Notes that the standby is connected to its primary.
    pub fn connected(&mut self) {
        self.left = None;
    }

    /// Why the standby takes nothing over, which lasts until it is connected again.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.stalls.as_deref().or(self.left.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::MemberId, super::primary::Primary, *};

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn r20_who_is_to_be_promoted_acknowledges_nothing_and_waits() {
        let mut standby = Follower::new(Term(3), Duration::ZERO);
        standby.follow(Term(3), Position(0)).expect("its term");
        assert_eq!(standby.received(Term(3), Position(4), 500 * MS), Ok(Position(4)));
        assert_eq!(standby.may_be_promoted(Term(4), 9_000 * MS), Err(NotDone::NotPrepared(Term(4))));
        standby.prepare(Term(4)).expect("a higher term");
        let over = Err(NotDone::Over { asked: Term(3), seen: Term(4) });
        assert_eq!(standby.received(Term(3), Position(5), 600 * MS), over);
        assert_eq!(standby.may_be_promoted(Term(4), 1_000 * MS), Err(NotDone::Waits { left: 600 * MS }));
        standby.prepare(Term(4)).expect("again");
        assert_eq!(standby.may_be_promoted(Term(4), 1_600 * MS), Ok(()));
        // Another one has won: it follows.
        assert!(standby.follow(Term(4), Position(0)).is_err(), "its own term");
        standby.follow(Term(5), Position(0)).expect("a later primary");
        assert_eq!(standby.received(Term(5), Position(1), 1_700 * MS), Ok(Position(1)));
        assert!(standby.prepare(Term(5)).is_err(), "the term is that primary's");
    }

    #[test]
    fn f73_a_disk_stalls_and_is_well_again_only_after_a_while() {
        let (mut disk, why) = (Taking::default(), Some("it is full".to_owned()));
        let mut stalls = |takes_nothing: &Option<String>, at: u32| {
            disk.note(takes_nothing.clone(), at * MS);
            disk.leaves().is_some()
        };
        assert_eq!([100, 2_099, 2_100].map(|at| stalls(&why, at)), [false, false, true]);
        assert!(stalls(&None, 2_200) && stalls(&None, 4_199), "it may be so for a moment");
        assert!(stalls(&why, 4_200) && stalls(&None, 4_300));
        assert!(!stalls(&None, 6_300));
        assert!(!stalls(&why, 6_400) && !stalls(&None, 8_399));
        assert_eq!(disk.trouble(), Some("it is full"), "it is not connected again");
        disk.connected();
        assert_eq!(disk.trouble(), None);
    }

    #[test]
    fn r20_a_standby_that_restarts_counts_as_if_it_had_just_acknowledged() {
        let mut standby = Follower::new(Term(3), 700 * MS);
        standby.prepare(Term(4)).expect("a higher term");
        assert_eq!(standby.may_be_promoted(Term(4), 700 * MS), Err(NotDone::Waits { left: WAIT }));
        assert_eq!(standby.may_be_promoted(Term(4), 1_800 * MS), Ok(()));
    }

    /// However the clocks of the two begin, and whatever is delayed between them, the primary does not answer any more when
    /// the standby may be promoted.
    #[test]
    fn r20_a_primary_does_not_answer_when_its_standby_may_be_promoted() {
        let id = MemberId("b".to_owned());
        for (there, back, at) in
            [(0, 0, 0), (5, 900, 100), (400, 5, 3), (999, 999, 50)].map(|(a, b, c)| (a * MS, b * MS, c * MS))
        {
            let (mut primary, mut standby) =
                (Primary::new([id.clone()]), Follower::new(Term(1), Duration::ZERO));
            standby.follow(Term(1), Position(0)).expect("its term");
            // Time is the standby's; the primary's clock is ahead by an hour.
            let hour = Duration::from_secs(3_600);
            let batch = primary.ship();
            primary.sent(&id, batch, hour + at);
            let acknowledged = standby.received(Term(1), batch, at + there).expect("its term");
            primary.acknowledged(&id, acknowledged);
            standby.prepare(Term(2)).expect("a higher term");
            let free =
                (0..10_000).map(|now| now * MS).find(|now| standby.may_be_promoted(Term(2), *now).is_ok());
            let free = free.expect("at last");
            assert!(!primary.answers(hour + free), "{there:?} {back:?}");
            // It may answer until then only since the acknowledgement came back.
            assert!(primary.answers_until().is_some_and(|until| until <= hour + free));
        }
    }
}
