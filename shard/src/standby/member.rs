//! What a member decides when it is told of the record (R18, R19, R20): which calls it refuses, and in which order the rest
//! happens. There is no I/O and no clock here: the caller brings a call through its [`Act`]s, one after the other, and one
//! call at a time. A call whose act fails ends there; whatever was done until then is safe, and the call may be repeated.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use kindred_partition_config::ids::{Revision, SLOT_BITS, Term};

use super::{
    MemberId,
    follower::{Follower, NotDone},
    role::{Does, Role},
    shipping::NotCounted,
};

/// A standby that has acknowledged something within this time follows its primary.
const HEARS: Duration = Duration::from_secs(5);

/// So many standbys that were never promoted are noted; a store has two at most.
const NEVER_PROMOTED_MAX: usize = 16;

/// What a member is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Everything waits for these standbys. `recorded`: the record says so, and that this is the primary; then it waits for
    /// no other.
    Count { term: Term, members: Vec<MemberId>, recorded: bool },
    /// Nothing is executed any more, so that a standby can take over.
    Yield { term: Term },
    /// Nothing is acknowledged any more, so that this standby can take over. Without a name any member may be meant.
    Prepare { term: Term, member: Option<MemberId> },
    /// The record names this standby as the primary. `yielded`: its former primary had yielded before. By force, it may be
    /// a former primary that cannot go on by itself: whoever took its place is dead.
    Promote { term: Term, incarnation_above: u64, yielded: bool, forced_opens_at_micros: Option<u64> },
    /// Another member is the primary.
    Supersede { term: Term, primary: String, started_as: Option<String> },
}

/// What is to be done for a call, before anything else happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// The role is to be on disk.
    Keep(Role),
    /// The incarnation is to be on disk.
    KeepIncarnation(u64),
    /// The loop is to wait for these standbys.
    Count { ids: Vec<MemberId>, recorded: bool },
    /// The loop is to execute nothing any more.
    Yield,
    /// Everything received is to be handed to the loop and nothing else any more, and the loop is to go on in the primary's
    /// place. Its primary may have shown everything below `behind`.
    TakeOver { behind: Option<Revision> },
    /// The loop of a former primary is to wait for no standby any more, and to go on behind what another one may have shown;
    /// it executes nothing yet, as after [`Act::Yield`]. In doubt, it has served nothing since its process started.
    Reopen { behind: Revision, in_doubt: bool },
    /// The loop is to refuse everything.
    Refuse,
    /// The process is to end.
    End,
}

/// How an act went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    Done,
    /// The loop does not wait for these standbys.
    NotCounted(NotCounted),
}

/// Why a member does not do what it is told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    NotDone(#[from] NotDone),
    #[error(transparent)]
    NotCounted(#[from] NotCounted),
    #[error("this member is not the primary")]
    NotPrimary,
    #[error("this member is the primary of term {0}")]
    IsPrimary(Term),
    #[error("this member is no standby")]
    NotStandby,
    #[error("this is member {is}, not {asked}")]
    Another { is: MemberId, asked: MemberId },
    #[error("no record ever named this member")]
    NeverNamed,
    #[error("this standby has no whole copy on its disk yet")]
    NotWhole,
    #[error("it opens in {:.1} s (R14)", .left.as_secs_f64())]
    Opens { left: Duration },
}

/// What a member knows at a moment besides its role.
#[derive(Debug)]
pub struct At<'a> {
    /// The wall clock, in microseconds since the Unix epoch.
    pub wall_micros: u64,
    /// In a process that was started as a standby.
    pub standby: Option<Standby<'a>>,
}

/// What a standby knows at a moment.
#[derive(Debug)]
pub struct Standby<'a> {
    pub follower: &'a mut Follower,
    /// Whether a whole copy is on its disk.
    pub whole: bool,
    /// By the clock of the follower.
    pub now: Duration,
}

/// A call under way.
#[derive(Debug)]
pub struct Doing {
    acts: VecDeque<Act>,
    /// Promised when the acts are done.
    prepares: Option<Term>,
    /// Kept again when the loop does not count; then the call is refused.
    former: Option<Role>,
    refused: Option<Refusal>,
}

impl Doing {
    fn new(acts: impl IntoIterator<Item = Act>) -> Self {
        Self { acts: acts.into_iter().collect(), prepares: None, former: None, refused: None }
    }

    /// What is to be done next; `None` when the call has come to its end.
    #[must_use]
    pub fn act(&self) -> Option<&Act> {
        self.acts.front()
    }
}

/// A member.
#[derive(Debug, Clone)]
pub struct MemberMachine {
    id: MemberId,
    /// As it is on disk.
    role: Role,
    /// Whether it was started as a primary whose standbys may have been promoted since, and nobody has said otherwise.
    in_doubt: bool,
    /// Whether it executes nothing so that a standby can take its place.
    yielded: bool,
    incarnation: u64,
    /// Those that the loop waits for. On disk there may be more, after it has refused to take one out.
    counted: Vec<MemberId>,
    /// Standbys that were never promoted, and cannot be any more.
    never_promoted: BTreeSet<MemberId>,
}

impl MemberMachine {
    /// A member whose process starts, with what its disk has.
    #[must_use]
    pub fn start(id: MemberId, role: Role, incarnation: u64) -> Self {
        let in_doubt = role.does == Does::Primary && !role.counted.is_empty();
        let counted = sorted(role.counted.clone());
        Self { id, role, in_doubt, yielded: false, incarnation, counted, never_promoted: BTreeSet::new() }
    }

    #[must_use]
    pub fn id(&self) -> &MemberId {
        &self.id
    }

    #[must_use]
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Whether it may serve, as far as its role goes.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.role.does == Does::Primary
    }

    #[must_use]
    pub fn in_doubt(&self) -> bool {
        self.in_doubt
    }

    #[must_use]
    pub fn yielded(&self) -> bool {
        self.yielded
    }

    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// At a primary: those that everything waits for, sorted.
    #[must_use]
    pub fn counted(&self) -> &[MemberId] {
        &self.counted
    }

    /// Notes that a standby has begun anew, and that its former life was never promoted.
    pub fn note_never_promoted(&mut self, former: MemberId) {
        if self.in_doubt && self.never_promoted.len() < NEVER_PROMOTED_MAX {
            self.never_promoted.insert(former);
        }
    }

    /// In doubt: those of which [`MemberMachine::note_never_promoted`] has told.
    pub fn never_promoted(&self) -> impl Iterator<Item = &MemberId> {
        self.never_promoted.iter().filter(|_| self.in_doubt)
    }

    /// The term in which standbys may follow.
    ///
    /// # Errors
    /// If this member is none whom they could follow; then whom it takes for the primary, if it was told.
    pub fn may_be_followed(&self) -> Result<Term, Option<String>> {
        if self.serves() && !self.in_doubt { Ok(self.role.term) } else { Err(self.role.primary.clone()) }
    }

    /// Begins a call.
    ///
    /// # Errors
    /// When the call is refused; then nothing has changed.
    pub fn begin(&self, call: Call, at: &mut At<'_>) -> Result<Doing, Refusal> {
        match call {
            Call::Count { term, members, recorded } => self.count(term, members, recorded),
            Call::Yield { term } => self.r#yield(term),
            Call::Prepare { term, member } => self.prepare(term, member, at),
            Call::Promote { term, incarnation_above, yielded, forced_opens_at_micros } => {
                self.promote(term, incarnation_above, yielded, forced_opens_at_micros, at)
            }
            Call::Supersede { term, primary, started_as } => self.supersede(term, primary, started_as, at),
        }
    }

    /// The act of a call is done. Its next one is to be done then.
    ///
    /// # Errors
    /// When the call ends with a refusal.
    pub fn done(&mut self, doing: &mut Doing, done: Done, at: &mut At<'_>) -> Result<(), Refusal> {
        match (doing.acts.pop_front(), done) {
            (Some(Act::Count { .. }), Done::NotCounted(why)) => {
                doing.refused = Some(why.into());
                doing.acts = doing.former.take().map(Act::Keep).into_iter().collect();
            }
            (Some(Act::Count { ids, recorded }), _) => {
                self.in_doubt &= !recorded;
                self.yielded &= !recorded;
                self.counted = ids;
            }
            (Some(Act::TakeOver { .. }), _) => self.counted.clear(),
            (Some(Act::Keep(role)), _) => self.role = role,
            (Some(Act::KeepIncarnation(incarnation)), _) => self.incarnation = incarnation,
            (Some(Act::Yield), _) => self.yielded = true,
            _ => {}
        }
        self.settle(doing, at)
    }

    fn settle(&self, doing: &mut Doing, at: &mut At<'_>) -> Result<(), Refusal> {
        if !doing.acts.is_empty() {
            return Ok(());
        }
        if let (Some(term), Some(standby)) = (doing.prepares.take(), &mut at.standby) {
            standby.follower.prepare(term)?;
        }
        doing.refused.take().map_or(Ok(()), Err)
    }

    /// Refuses a term that is over.
    fn check(&self, asked: Term) -> Result<(), Refusal> {
        if asked < self.role.term {
            return Err(NotDone::Over { asked, seen: self.role.term }.into());
        }
        Ok(())
    }

    fn check_primary(&self, asked: Term) -> Result<(), Refusal> {
        self.check(asked)?;
        if self.serves() { Ok(()) } else { Err(Refusal::NotPrimary) }
    }

    fn count(&self, term: Term, members: Vec<MemberId>, recorded: bool) -> Result<Doing, Refusal> {
        self.check_primary(term)?;
        // On disk are at any time at least those that may be promoted: after a restart it waits for them (R20).
        let all = sorted(members.iter().chain(&self.role.counted).cloned().collect());
        let before = Role { term, counted: all.clone(), ..self.role.clone() };
        let former = Role { counted: self.role.counted.clone(), ..before.clone() };
        // Who does not know the record of this term takes nobody out: that record may name them.
        let (named, kept) = if recorded { (term, sorted(members.clone())) } else { (self.role.named, all) };
        let others = self.counted.iter().filter(|_| !recorded).cloned();
        let ids = sorted(members.into_iter().chain(others).collect());
        let after = Role { named, counted: kept, ..before.clone() };
        let acts = [Act::Keep(before), Act::Count { ids, recorded }, Act::Keep(after)];
        Ok(Doing { former: Some(former), ..Doing::new(acts) })
    }

    fn r#yield(&self, term: Term) -> Result<Doing, Refusal> {
        self.check_primary(term)?;
        // Who was never named may have lost its disk: it is not to open in the place of another (R14).
        if self.role.counted.is_empty() && self.role.named == Term(0) {
            return Err(Refusal::NeverNamed);
        }
        // A restart forgets that it has yielded, and is in doubt instead: that needs somebody who counts.
        let counted = match &self.role.counted[..] {
            [] => vec![MemberId::whoever_was_promoted()],
            counted => counted.to_vec(),
        };
        Ok(Doing::new([Act::Keep(Role { term, counted, ..self.role.clone() }), Act::Yield]))
    }

    fn prepare(&self, term: Term, member: Option<MemberId>, at: &mut At<'_>) -> Result<Doing, Refusal> {
        self.check(term)?;
        let standby = at.standby.as_ref().ok_or(Refusal::NotStandby)?;
        if let Some(asked) = member.filter(|asked| *asked != self.id) {
            return Err(Refusal::Another { is: self.id.clone(), asked });
        }
        if self.role.does != Does::Standby {
            return Err(Refusal::NotStandby);
        }
        if !standby.whole {
            return Err(Refusal::NotWhole);
        }
        // The promise is on disk before it is given.
        let promised =
            (standby.follower.term() < term).then(|| Act::Keep(Role { term, ..self.role.clone() }));
        let mut doing = Doing { prepares: Some(term), ..Doing::new(promised) };
        self.settle(&mut doing, at)?;
        Ok(doing)
    }

    fn promote(
        &self,
        term: Term,
        incarnation_above: u64,
        yielded: bool,
        forced_opens_at_micros: Option<u64>,
        at: &At<'_>,
    ) -> Result<Doing, Refusal> {
        self.check(term)?;
        if self.serves() && self.role.named == term {
            // It repeats the call.
            return Ok(Doing::new([]));
        }
        let incarnation = self.incarnation.max(incarnation_above).saturating_add(1);
        let primary = Role { term, named: term, ..Role::alone() };
        if self.serves() && (self.in_doubt || self.yielded) {
            let behind = opens_at(forced_opens_at_micros, at.wall_micros)?.ok_or(Refusal::NotStandby)?;
            let acts = [
                Act::Reopen { behind, in_doubt: self.in_doubt },
                Act::KeepIncarnation(incarnation),
                Act::Keep(primary),
                Act::Count { ids: Vec::new(), recorded: true },
            ];
            return Ok(Doing::new(acts));
        }
        let standby = at.standby.as_ref().ok_or(Refusal::NotStandby)?;
        match yielded {
            true => standby.follower.is_prepared_for(term)?,
            false => standby.follower.may_be_promoted(term, standby.now)?,
        }
        let behind = opens_at(forced_opens_at_micros, at.wall_micros)?;
        Ok(Doing::new([Act::TakeOver { behind }, Act::KeepIncarnation(incarnation), Act::Keep(primary)]))
    }

    fn supersede(
        &self,
        term: Term,
        primary: String,
        started_as: Option<String>,
        at: &At<'_>,
    ) -> Result<Doing, Refusal> {
        self.check(term)?;
        // A later term may be its own only because it was to count or to yield in it.
        if self.serves() && self.role.named == term && !self.in_doubt {
            return Err(Refusal::IsPrimary(term));
        }
        let hears = at.standby.as_ref().is_some_and(|standby| standby.follower.silent(standby.now) < HEARS);
        if self.role.does == Does::Standby && self.role.primary.as_ref() == Some(&primary) && hears {
            // It follows that one already, or has just begun to: a call that comes late ends nothing.
            return Ok(Doing::new([]));
        }
        // A standby serves nothing, and may be promoted if its disk does not take this.
        let refuse = self.serves().then_some(Act::Refuse);
        let does = if self.serves() { Does::Superseded } else { self.role.does };
        let superseded = Role { does, term, primary: Some(primary), started_as, ..Role::alone() };
        Ok(Doing::new(refuse.into_iter().chain([Act::Keep(superseded), Act::End])))
    }
}

/// The revision above which a standby begins that takes the place of a primary by force; `None` without force.
fn opens_at(micros: Option<u64>, now: u64) -> Result<Option<Revision>, Refusal> {
    let Some(micros) = micros else { return Ok(None) };
    if let Some(left) = micros.checked_sub(now).filter(|left| *left > 0) {
        return Err(Refusal::Opens { left: Duration::from_micros(left) });
    }
    Ok(i64::try_from(micros).ok().and_then(|micros| micros.checked_shl(SLOT_BITS)).map(Revision))
}

fn sorted(mut ids: Vec<MemberId>) -> Vec<MemberId> {
    ids.sort_unstable();
    ids.dedup();
    ids
}

#[cfg(test)]
mod tests;
