//! Who serves a store that has standbys (R18 to R20). [`decide`] looks at the record of the store's members and at what the
//! members say of themselves, and says what is to be done next. Every step shows in what the members say afterwards, so
//! a router keeps nothing between two looks: whichever router looks next continues what another one has begun.
//!
//! What must never happen stands in the order of the steps, and is refused by the members if a router is late:
//!
//! * A standby counts at the primary before the record names it, with the record's new term. So a primary has seen the term
//!   of every record in which somebody can be promoted, and refuses what an older record says.
//! * The primary continues without a standby only after the record does not name it.
//! * Only a call that follows a record makes a member serve: a promotion, or a count that the record says.
//! * The record names another primary only when the former one cannot answer any more: a standby that counted has
//!   acknowledged nothing for long enough, or the primary itself has yielded.

use std::{collections::BTreeMap, time::Duration};

use kindred_partition_config::ids::{MemberId, Term};
use kindred_partition_config::model::{OnLoss, StandbyConfig, StandbyMode};
use kindred_partition_config::state::{Members, MembersChange, StoreObject};

/// A member that has not answered for so long is looked at no more. The lease of a primary runs longer (R20), so whoever
/// waits for its end has lost no time by this.
pub const SUSPECT: Duration = Duration::from_millis(800);
/// How long a primary that has restarted, and may have been replaced, waits for its standbys before it continues alone.
pub const IN_DOUBT: Duration = Duration::from_secs(10);
/// A standby that has not reached a primary that serves for so long can only begin anew: what it has is of another store.
pub const ASTRAY: Duration = Duration::from_secs(30);
/// How long a primary that has yielded may stay so, if nobody takes its place.
pub const YIELDED: Duration = Duration::from_secs(3);

/// What a member does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Primary,
    Standby,
    /// It was the primary, and ends.
    Superseded,
}

/// A standby, as its primary sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Follower {
    pub id: MemberId,
    /// Whether it is connected.
    pub follows: bool,
    /// Whether it has a whole copy on its disk.
    pub whole: bool,
    /// Whether it counts, and has all that was shown when it began to.
    pub has_shown: bool,
    /// Batches that it has not received.
    pub behind: u64,
    /// How long ago the newest batch was sent that it has acknowledged.
    pub silent: Duration,
}

/// What a member says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub id: MemberId,
    pub role: Role,
    /// The highest term that it has seen.
    pub term: Term,
    /// At a primary: the last term in which the record certainly named it the primary.
    pub named: Term,
    pub incarnation: u64,
    /// At a primary: it has restarted while standbys counted, and serves nothing before the record confirms it.
    pub in_doubt: bool,
    /// At a primary: it executes nothing, so that a standby can take its place.
    pub yielded: bool,
    /// At a primary: those that it waits for, sorted.
    pub counted: Vec<MemberId>,
    /// At a primary in doubt: standbys that were never promoted, and have begun anew since as other members.
    pub never_promoted: Vec<MemberId>,
    /// At a primary: those that follow, or followed.
    pub followers: Vec<Follower>,
    /// Whether it has the cluster's lineage on its disk, by which it refuses the routers of every other cluster (R21).
    pub bound: bool,
    /// At a standby: a whole copy is on its disk.
    pub whole: bool,
    /// At a standby: it is connected to its primary.
    pub connected: bool,
    /// At a standby: it acknowledges nothing, to be promoted in its term, after this time.
    pub prepared: Option<Duration>,
    /// At a standby: how long ago it last acknowledged something.
    pub silent: Duration,
    /// At a standby: where it looks for its primary.
    pub follows: String,
    /// At a standby: why it takes nothing over, as its disk takes nothing; empty if it does.
    pub trouble: String,
}

/// What a router knows of the member at an address. Times are since some beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Look {
    /// Its last answer, and when it was asked for that.
    pub said: Option<(Duration, Said)>,
    /// Since when it has been in doubt or yielded without a break, by what it said.
    pub held: Option<Duration>,
    /// Why the last call failed; `None` after an answer.
    pub failed: Option<String>,
}

impl Look {
    /// Takes an answer to a call that was made at `asked`.
    pub fn answered(&mut self, asked: Duration, said: Said) {
        let holds = said.role == Role::Primary && (said.in_doubt || said.yielded);
        self.held = if holds { self.held.or(Some(asked)) } else { None };
        (self.said, self.failed) = (Some((asked, said)), None);
    }

    /// Takes a failure.
    pub fn failed(&mut self, why: String) {
        self.failed = Some(why);
    }

    fn fresh(&self, now: Duration) -> Option<&Said> {
        self.said.as_ref().filter(|(asked, _)| now.saturating_sub(*asked) < SUSPECT).map(|(_, said)| said)
    }
}

/// What an operator wishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wish {
    /// The standby at this address serves, and nothing is lost.
    Handover { to: String },
    /// The standby at this address serves, whatever it lacks: the operator asserts that this primary is dead, and no other;
    /// without a record, whoever was the primary. It opens at this time, in microseconds since the Unix epoch (R14).
    Force { to: String, dead: MemberId, opens_at: u64 },
}

impl Wish {
    /// The primary that an operator has said to be dead.
    #[must_use]
    pub fn dead(&self) -> Option<&MemberId> {
        match self {
            Self::Handover { .. } => None,
            Self::Force { dead, .. } => Some(dead),
        }
    }
}

/// Something to do. All of it may be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Tell the primary who counts besides those that do; `recorded` if the record says so, and nobody else.
    Count { url: String, term: Term, members: Vec<MemberId>, recorded: bool },
    /// Tell the primary to execute nothing any more.
    Yield { url: String, term: Term },
    /// Tell a standby to acknowledge nothing any more.
    Prepare { url: String, term: Term, member: MemberId },
    /// Tell a standby that the record names it as the primary.
    Promote { url: String, term: Term, incarnation_above: u64, yielded: bool, forced: Option<u64> },
    /// Tell a member who the primary is.
    Supersede { url: String, term: Term, primary: String },
    /// Change the record, if its term still is `read` (0 without a record).
    Write { read: Term, term: Term, change: MembersChange },
}

/// What is to be done, and what is to be said of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    pub steps: Vec<Step>,
    /// Why the store has less than it is to have, in words; `None` if all is well.
    pub trouble: Option<String>,
    /// Whether members should be looked at again soon.
    pub hurry: bool,
}

impl Decision {
    fn step(step: Step) -> Self {
        Self { steps: vec![step], trouble: None, hurry: true }
    }

    fn waits(trouble: impl Into<String>, hurry: bool) -> Self {
        Self { steps: Vec::new(), trouble: Some(trouble.into()), hurry }
    }

    fn but(mut self, trouble: impl Into<String>) -> Self {
        self.trouble = Some(trouble.into());
        self
    }
}

/// The addresses of all members of a store, that of the primary first.
#[must_use]
pub fn addresses(store: &StoreObject) -> Vec<String> {
    let standbys = store.standby.iter().flat_map(|standby| &standby.endpoints);
    store.endpoints.iter().take(1).chain(standbys).cloned().collect()
}

/// Whether anything is to be done for this store at all.
#[must_use]
pub fn has_members(store: &StoreObject) -> bool {
    // Without standbys, a primary may still have to be told that none counts.
    store.standby.is_some() || store.members.is_some()
}

/// What is to be done next for a store.
#[must_use]
pub fn decide(
    store: &StoreObject,
    looks: &BTreeMap<String, Look>,
    now: Duration,
    wish: Option<&Wish>,
) -> Decision {
    let seen = looks.iter().filter_map(|(url, look)| Some((url.as_str(), look.fresh(now)?)));
    let fresh: Vec<(&str, &Said)> = seen.collect();
    let terms = looks.values().filter_map(|look| look.said.as_ref()).map(|(_, said)| said.term);
    let recorded = store.members.as_ref().map_or(Term(0), |members| members.term);
    let highest = terms.chain([recorded]).max().unwrap_or(recorded);
    let store = Of { store, looks, fresh, now, next: Term(highest.0 + 1), wish };
    match &store.store.members {
        None => store.without_record(Term(0)),
        Some(members) if members.is_lost() || (members.primary.is_unknown() && !store.means_unknown()) => {
            store.without_record(members.term)
        }
        Some(members) => store.with_record(members),
    }
}

/// Whether a member does nothing that it is told in a term, nor follows in it. In its own one, a standby that is prepared
/// follows nobody.
fn needs_after(said: &Said, term: Term) -> bool {
    said.term > term || (said.term == term && said.prepared.is_some())
}

/// Whether the record names a former primary by force that has not opened yet. What it says otherwise may be old: it must
/// not go on as if nothing had been shown since.
fn is_reinstated(members: &Members, said: &Said) -> bool {
    said.role == Role::Primary && members.forced_in.is_some_and(|term| said.named < term)
}

/// A store, and what is known of it.
struct Of<'a> {
    store: &'a StoreObject,
    looks: &'a BTreeMap<String, Look>,
    /// The members that have answered of late.
    fresh: Vec<(&'a str, &'a Said)>,
    now: Duration,
    /// A term above all that were ever seen.
    next: Term,
    wish: Option<&'a Wish>,
}

impl<'a> Of<'a> {
    fn config(&self) -> Option<&'a StandbyConfig> {
        self.store.standby.as_ref()
    }

    fn is_sync(&self) -> bool {
        self.config().is_some_and(|config| config.mode == StandbyMode::Sync)
    }

    fn waits_on_loss(&self) -> bool {
        self.is_sync() && self.config().is_some_and(|config| config.on_loss == OnLoss::Wait)
    }

    fn at(&self, url: &str) -> Option<&'a Said> {
        self.fresh.iter().find(|(at, _)| *at == url).map(|(_, said)| *said)
    }

    fn by_id(&self, id: &MemberId) -> Option<(&'a str, &'a Said)> {
        self.fresh.iter().find(|(_, said)| said.id == *id).copied()
    }

    /// Why the member at an address does not answer.
    fn why(&self, url: &str) -> String {
        let failed = self.looks.get(url).and_then(|look| look.failed.clone());
        failed.unwrap_or_else(|| "it does not answer".to_owned())
    }

    fn write(&self, read: Term, term: Term, change: MembersChange) -> Decision {
        Decision::step(Step::Write { read, term, change })
    }

    fn with_record(&self, members: &Members) -> Decision {
        let later = self.fresh.iter().find(|(_, said)| {
            said.role == Role::Primary
                && said.id != members.primary
                && said.named > members.term
                && !said.in_doubt
        });
        if let Some((url, said)) = later {
            let change = MembersChange::Adopt { member: said.id.clone(), endpoint: (*url).to_owned() };
            return self.write(members.term, self.next, change).but("the record was behind its members");
        }
        if let Some((url, newer)) = self.newer_in_doubt(members) {
            let primary = self.store.endpoints.first();
            let why = format!("the record is older than its members: {url} was the primary in a later term");
            match self.wish {
                Some(Wish::Force { to, .. }) if Some(to) == primary => {}
                Some(Wish::Force { .. }) => return self.forced(members, &why),
                _ if self.is_newest(newer) => {
                    let change = MembersChange::Adopt { member: newer.id.clone(), endpoint: url.to_owned() };
                    return self.write(members.term, self.next, change).but(why);
                }
                _ => {
                    let text = format!("{why}, has restarted, and another may have been promoted since");
                    return Decision::waits(self.start_or_choose(text, Some((url, newer))), false);
                }
            }
        }
        match self.by_id(&members.primary) {
            Some((url, said)) if said.role == Role::Standby => self.promoted(members, url, said),
            Some((url, said)) if is_reinstated(members, said) => self.reinstated(members, url, said),
            Some((url, said)) if said.role == Role::Primary && !said.in_doubt => {
                self.serves(members, url, said)
            }
            Some((url, said)) if said.role == Role::Primary => self.in_doubt(members, url, said),
            _ => self.lost(members),
        }
    }

    /// A member in doubt that was named the primary in a later term than the record's, while nobody serves by the record: the meta
    /// store was restored from before a failover. What it has is newer than what the record's primary has.
    fn newer_in_doubt(&self, members: &Members) -> Option<(&'a str, &'a Said)> {
        let serves = |said: &Said| said.role == Role::Primary && !said.in_doubt && !said.yielded;
        if self.by_id(&members.primary).is_some_and(|(_, said)| serves(said)) {
            return None;
        }
        let newer = self.fresh.iter().filter(|(_, said)| {
            said.role == Role::Primary
                && said.in_doubt
                && said.bound
                && said.id != members.primary
                && said.named > members.term
        });
        newer.max_by_key(|(_, said)| said.named).copied()
    }

    /// The record names a former primary by force: it is told.
    fn reinstated(&self, members: &Members, url: &str, said: &Said) -> Decision {
        let doing = "a former primary opens in the place of a lost one (R14)";
        if said.term > members.term {
            let same = MembersChange::InSync(members.in_sync.clone());
            return self.write(members.term, said.term, same).but(doing);
        }
        Decision::step(self.promotion(members, url, false)).but(doing)
    }

    /// The record names a standby as the primary: it is told.
    fn promoted(&self, members: &Members, url: &str, said: &Said) -> Decision {
        if said.prepared.is_none() {
            // Somebody who had not seen the record made it follow the former primary once more.
            let (term, member) = (self.next.max(members.term), said.id.clone());
            let step = Step::Prepare { url: url.to_owned(), term, member };
            return Decision::step(step).but("a standby takes over");
        }
        if said.term > members.term {
            let same = MembersChange::InSync(members.in_sync.clone());
            return self.write(members.term, said.term, same).but("a standby takes over");
        }
        // It had yielded when the record was written, and serves again by no call that a later record does not say.
        let yielded = self.fresh.iter().any(|(_, other)| other.role == Role::Primary && other.yielded);
        let step = self.promotion(members, url, yielded);
        let said = if members.forced.is_some() {
            "a standby opens in the place of a lost primary (R14)"
        } else {
            "a standby takes over"
        };
        Decision::step(step).but(said)
    }

    fn promotion(&self, members: &Members, url: &str, yielded: bool) -> Step {
        let known = self.looks.values().filter_map(|look| look.said.as_ref()).map(|(_, said)| said);
        let incarnation_above = known.map(|said| said.incarnation).max().unwrap_or(0);
        let (url, term, forced) = (url.to_owned(), members.term, members.forced);
        Step::Promote { url, term, incarnation_above, yielded, forced }
    }

    /// The primary serves, or has yielded.
    fn serves(&self, members: &Members, url: &str, primary: &Said) -> Decision {
        if let Some(Wish::Handover { to }) = self.wish {
            return self.handover(members, (url, primary), to);
        }
        let url = url.to_owned();
        if primary.yielded {
            let since = self.looks.get(&url).and_then(|look| look.held).unwrap_or(self.now);
            if self.now.saturating_sub(since) < YIELDED {
                return Decision::waits("its primary hands over", true);
            }
            if primary.term > members.term {
                return self.write(members.term, self.next, MembersChange::InSync(members.in_sync.clone()));
            }
            let (term, members) = (members.term, primary.counted.clone());
            return Decision::step(Step::Count { url, term, members, recorded: true });
        }
        let mut decision = self.counting(members, url.clone(), primary);
        let astray = self.astray(members, &url, primary);
        let refuses = |said: &Said| {
            // Two records that were lost may both have named a primary in this term.
            needs_after(said, members.term) || (said.role == Role::Primary && said.named == members.term)
        };
        if decision.steps.is_empty() && astray.iter().any(|(_, said)| refuses(said)) {
            decision = self.write(members.term, self.next, MembersChange::InSync(members.in_sync.clone()));
        }
        let tell = |(at, _): &(&str, &Said)| Step::Supersede {
            url: (*at).to_owned(),
            term: members.term,
            primary: url.clone(),
        };
        let is_told = |(_, said): &&(&str, &Said)| {
            said.term <= members.term
                && (said.role == Role::Primary || said.follows != url || said.silent >= ASTRAY)
        };
        decision.steps.extend(astray.iter().filter(is_told).map(tell));
        if decision.trouble.is_none() {
            decision.trouble = self.lacks(members, primary);
        }
        decision
    }

    /// Brings the record and what counts at the primary together.
    fn counting(&self, members: &Members, url: String, primary: &Said) -> Decision {
        let lost = |id: &&MemberId| {
            let follower = primary.followers.iter().find(|follower| follower.id == **id);
            follower.is_none_or(|follower| follower.silent >= SUSPECT)
        };
        let gone: Vec<&MemberId> = members
            .in_sync
            .iter()
            .filter(|id| !self.is_wanted(id, lost(id)) || (lost(id) && !self.waits_on_loss()))
            .collect();
        if !gone.is_empty() {
            let stay = members.in_sync.iter().filter(|id| !gone.contains(id)).cloned().collect();
            return self.write(members.term, self.next, MembersChange::InSync(stay));
        }
        let ready: Vec<&Follower> = primary
            .followers
            .iter()
            .filter(|follower| follower.follows && follower.whole && follower.silent < SUSPECT)
            .filter(|follower| self.is_sync() && self.is_known(&follower.id))
            .collect();
        let counted: Vec<&MemberId> =
            primary.counted.iter().filter(|id| !members.in_sync.contains(id)).collect();
        let added = ready.iter().filter(|follower| counted.contains(&&follower.id) && follower.has_shown);
        let added: Vec<MemberId> = added.map(|follower| follower.id.clone()).collect();
        if !added.is_empty() && primary.term > members.term {
            // One that begins anew takes the place of the one that it was. The primary counts that one until then, so it
            // acknowledges nothing meanwhile.
            let mut replaced = added.len();
            let stays = |id: &&MemberId| {
                let goes = lost(id) && replaced > 0;
                replaced -= usize::from(goes);
                !goes
            };
            let stay = members.in_sync.iter().filter(stays).cloned();
            let all = stay.chain(added).collect();
            return self.write(members.term, primary.term, MembersChange::InSync(all));
        }
        let news: Vec<MemberId> = ready
            .iter()
            .filter(|follower| !primary.counted.contains(&follower.id) || added.contains(&follower.id))
            .map(|follower| follower.id.clone())
            .collect();
        if !news.is_empty() {
            return Decision::step(Step::Count { url, term: self.next, members: news, recorded: false });
        }
        let catching_up = counted.iter().all(|id| ready.iter().any(|follower| follower.id == **id));
        let all_count = members.in_sync.iter().all(|id| primary.counted.contains(id));
        let waits_for_lost = self.waits_on_loss() && members.in_sync.is_empty();
        if all_count && primary.term < members.term && (catching_up || waits_for_lost) {
            // A standby that was to be promoted, and was not, follows nobody in an earlier term.
            let (term, members) = (members.term, primary.counted.clone());
            return Decision::step(Step::Count { url, term, members, recorded: true });
        }
        if all_count && catching_up {
            return Decision { hurry: !counted.is_empty(), ..Decision::default() };
        }
        if waits_for_lost {
            // Nobody counts by the record, and nobody can be promoted; the primary waits for those that it has lost.
            return Decision::default();
        }
        if primary.term > members.term {
            return self.write(members.term, self.next, MembersChange::InSync(members.in_sync.clone()));
        }
        let (term, members) = (members.term, members.in_sync.clone());
        Decision::step(Step::Count { url, term, members, recorded: true })
    }

    /// Whether a member is known as one of the standbys that the store is to have, and can be nobody else's.
    fn is_known(&self, id: &MemberId) -> bool {
        let wanted = |(url, said): &(&str, &Said)| {
            said.id == *id
                && said.bound
                && self.config().is_some_and(|config| config.endpoints.iter().any(|known| known == url))
        };
        self.fresh.iter().any(wanted)
    }

    /// Whether a member is one of the standbys that the store is to have, as far as that is known. One that is lost may be
    /// another one's former life.
    fn is_wanted(&self, id: &MemberId, lost: bool) -> bool {
        let Some(config) = self.config().filter(|config| config.mode == StandbyMode::Sync) else {
            return false;
        };
        let at =
            self.looks.iter().find(|(_, look)| look.said.as_ref().is_some_and(|(_, said)| said.id == *id));
        match at {
            Some((url, _)) => config.endpoints.contains(url),
            None => {
                let few = |members: &Members| members.in_sync.len() <= config.endpoints.len();
                let unknown = !lost && config.endpoints.iter().any(|url| self.at(url).is_none());
                unknown || self.store.members.as_ref().is_none_or(few)
            }
        }
    }

    /// Members that are to hear who the primary is: another that takes itself for one, and those that look for it elsewhere.
    fn astray(&self, members: &Members, url: &str, primary: &Said) -> Vec<(&'a str, &'a Said)> {
        let is = |(at, said): &&(&str, &Said)| {
            let follows = primary.followers.iter().any(|follower| follower.id == said.id && follower.follows);
            *at != url
                && said.id != members.primary
                && match said.role {
                    Role::Primary => true,
                    // It left the primary by itself, and goes on with what it has when its disk is well.
                    Role::Standby if !said.trouble.is_empty() => false,
                    // It follows nobody in an earlier term than its own. A former primary may still send to it.
                    Role::Standby => {
                        let lost = said.silent >= ASTRAY || needs_after(said, primary.term);
                        !follows && (said.follows != url || (!said.connected && lost))
                    }
                    Role::Superseded => false,
                }
        };
        self.fresh.iter().filter(is).copied().collect()
    }

    /// Why fewer standbys have everything than are to.
    fn lacks(&self, members: &Members, primary: &Said) -> Option<String> {
        let config = self.config()?;
        let has = match config.mode {
            StandbyMode::Sync => members.in_sync.len(),
            StandbyMode::Async => {
                primary.followers.iter().filter(|follower| follower.follows && follower.whole).count()
            }
        };
        if has >= config.endpoints.len() {
            return None;
        }
        let of = config.endpoints.iter().find(|url| {
            let id = self.at(url).map(|said| &said.id);
            id.is_none_or(|id| !members.in_sync.contains(id))
        });
        let why = of.map(|url| match self.at(url) {
            None => format!("{url}: {}", self.why(url)),
            Some(said) if said.role != Role::Standby => format!("{url} is no standby"),
            Some(Said { trouble, .. }) if !trouble.is_empty() => format!("{url} {trouble}"),
            Some(said) if !said.whole => format!("{url} has no whole copy yet"),
            Some(said) if !said.bound => format!("{url} has not kept yet which cluster it belongs to"),
            Some(_) => format!("{url} catches up"),
        });
        let alone = if has == 0 { "it is the only copy" } else { "one of its standbys is missing" };
        Some(why.map_or_else(|| alone.to_owned(), |why| format!("{alone}: {why}")))
    }

    /// An operator wishes that a standby serves.
    fn handover(&self, members: &Members, (url, primary): (&str, &Said), to: &str) -> Decision {
        let url = url.to_owned();
        let Some(standby) = self.at(to).filter(|said| members.in_sync.contains(&said.id)) else {
            return Decision::waits(format!("{to} is not in sync, so it cannot take over"), false);
        };
        if !standby.trouble.is_empty() {
            return Decision::waits(format!("{to} cannot take over: it {}", standby.trouble), false);
        }
        let follower = primary.followers.iter().find(|follower| follower.id == standby.id);
        let doing = format!("{url} hands over to {to}");
        // In a later term than the record's it refuses a count by that record, which would end the yielding.
        let yielded = primary.yielded && primary.term > members.term;
        if standby.prepared.is_some() && standby.term > members.term && yielded {
            return self.promote(members, to, standby, None).but(doing);
        }
        if !yielded {
            return Decision::step(Step::Yield { url, term: self.next }).but(doing);
        }
        if follower.is_none_or(|follower| follower.behind > 0) {
            return Decision::waits(doing, true);
        }
        let member = standby.id.clone();
        Decision::step(Step::Prepare { url: to.to_owned(), term: self.next, member }).but(doing)
    }

    fn promote(&self, members: &Members, url: &str, standby: &Said, forced: Option<u64>) -> Decision {
        let (member, endpoint) = (standby.id.clone(), url.to_owned());
        self.write(members.term, standby.term, MembersChange::Promote { member, endpoint, forced })
    }

    /// The primary has restarted while standbys counted. They have more than it has, if only what no log keeps.
    fn in_doubt(&self, members: &Members, url: &str, primary: &Said) -> Decision {
        if self.candidate(members).is_some() {
            return self.lost(members);
        }
        if let Some(Wish::Force { to, dead, .. }) = self.wish
            && (to, dead) == (&url.to_owned(), &primary.id)
            && (primary.term > members.term || !members.in_sync.is_empty())
        {
            return self.write(members.term, self.next, MembersChange::InSync(Vec::new()));
        }
        let is_known = addresses(self.store).iter().all(|url| self.at(url).is_some());
        let since = self.looks.get(url).and_then(|look| look.held).unwrap_or(self.now);
        let waited = self.now.saturating_sub(since) >= IN_DOUBT;
        // A count that no record followed leaves a later term too, and no trace elsewhere.
        if primary.named > members.term && !is_known && !self.is_newest(primary) {
            return Decision::waits(
                format!(
                    "its primary has restarted and knows of a later term than the record: a member that does not answer may \
                     have been promoted. Start that, or run kindred store failover {} --to {url} --force",
                    self.store.name
                ),
                false,
            );
        }
        if !members.in_sync.is_empty() || primary.term > members.term {
            let may_come = members.in_sync.iter().any(|id| !primary.never_promoted.contains(id));
            if !waited && may_come {
                return Decision::waits("its primary has restarted, and its standbys do not answer", false);
            }
            return self.write(members.term, self.next, MembersChange::InSync(Vec::new()));
        }
        // Nobody can be promoted.
        let counted = if self.waits_on_loss() { primary.counted.clone() } else { Vec::new() };
        let url = url.to_owned();
        Decision::step(Step::Count { url, term: members.term, members: counted, recorded: true })
    }

    /// The standby that is to take over.
    fn candidate(&self, members: &Members) -> Option<(&'a str, &'a Said)> {
        let may =
            |said: &Said| said.role == Role::Standby && said.whole && members.in_sync.contains(&said.id);
        let mut may: Vec<_> = self.fresh.iter().filter(|(_, said)| may(said)).copied().collect();
        // One that somebody has prepared already, then one whose disk is well, then by id: routers choose alike.
        may.sort_by_key(|(_, said)| {
            (std::cmp::Reverse(said.prepared.is_some()), !said.trouble.is_empty(), said.id.clone())
        });
        let wished = self.wish.map(|wish| match wish {
            Wish::Handover { to } | Wish::Force { to, .. } => to,
        });
        may.iter().find(|(url, _)| wished.is_some_and(|to| to == url)).or(may.first()).copied()
    }

    /// The primary does not answer, or serves no more.
    fn lost(&self, members: &Members) -> Decision {
        let primary = self.store.endpoints.first().map_or("", String::as_str);
        let why = match self.by_id(&members.primary) {
            Some(_) => "it has restarted".to_owned(),
            None => self.why(primary),
        };
        let Some((url, standby)) = self.candidate(members) else {
            return self.forced(members, &why);
        };
        let doing = format!("{primary} is lost ({why}): {url} takes over");
        if standby.prepared.is_some() && standby.term > members.term {
            return match standby.prepared {
                Some(Duration::ZERO) => self.promote(members, url, standby, None).but(doing),
                _ => Decision::waits(doing, true),
            };
        }
        let answers = self.by_id(&members.primary).is_some();
        let of_another = |wish: &Wish| wish.dead().is_some_and(|dead| *dead != members.primary);
        if standby.silent < SUSPECT && !answers && self.wish.is_none_or(of_another) {
            // It hears of its primary, which only this router does not reach.
            let hurry = self.looks.get(primary).is_some_and(|look| look.failed.is_some());
            return Decision::waits(
                format!("this router does not reach {primary} ({why}), and its standby does"),
                hurry,
            );
        }
        let member = standby.id.clone();
        Decision::step(Step::Prepare { url: url.to_owned(), term: self.next, member }).but(doing)
    }

    /// Nobody who has everything is there: an operator may promote one that lacks something.
    fn forced(&self, members: &Members, why: &str) -> Decision {
        let name = &self.store.name;
        let wish = self.wish.and_then(|wish| match wish {
            Wish::Force { to, dead, opens_at } if *dead == members.primary => Some((to, opens_at)),
            _ => None,
        });
        let Some((to, opens_at)) = wish else {
            let primary = self.store.endpoints.first().map_or("", String::as_str);
            let text = format!(
                "{primary} is lost ({why}), and no standby in sync is there. If its process is dead for good, run kindred store \
                 failover {name} --to URL --force: the last changes may be missing there"
            );
            return Decision::waits(text, false);
        };
        if let Some(former) = self.at(to).filter(|said| said.role == Role::Primary) {
            if !former.bound {
                return Decision::waits(stranger(to), false);
            }
            // In a later term than the record's it refuses what an older record says, and in a later one than that in which it was
            // named it opens anew.
            if former.term <= members.term.max(former.named) || !(former.in_doubt || former.yielded) {
                return Decision::step(Step::Yield { url: to.clone(), term: self.next });
            }
            return self.promote(members, to, former, Some(*opens_at));
        }
        let Some(standby) = self.at(to).filter(|said| said.role == Role::Standby && said.whole) else {
            return Decision::waits(format!("{to} is no standby with a whole copy: {}", self.why(to)), false);
        };
        match standby.prepared {
            Some(Duration::ZERO) if standby.term > members.term => {
                self.promote(members, to, standby, Some(*opens_at))
            }
            Some(_) if standby.term > members.term => Decision::waits("a standby is promoted by force", true),
            _ => {
                let member = standby.id.clone();
                Decision::step(Step::Prepare { url: to.clone(), term: self.next, member })
            }
        }
    }
}

/// Says why a member without the cluster's lineage is not used.
fn stranger(url: &str) -> String {
    format!("{url} does not belong to this cluster: its disk fails, or it was started anew without its data")
}

mod lost;
#[cfg(test)]
mod tests;
