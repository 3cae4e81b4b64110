//! What must hold, by the rules.

use std::collections::BTreeMap;

use kindred_partition_config::ids::{MemberId, Revision, Term};
use kindred_partition_config::model::StandbyMode;
use kindred_partition_config::state::{Members, MembersChange};
use kindred_shard::standby::role::Does;
use kindred_shard::standby::shipping;
use tokio::sync::oneshot;

use super::client::{KEYS, Shown};
use super::serving::read;
use super::world::{Event, MEMBERS, ROUTERS, Sim, at_url};
use crate::world::{MS, SECOND};

/// How long after all faults the store may need.
const WITHIN: u64 = 90 * SECOND;

/// What clients know, and what was assigned.
#[derive(Debug, Default)]
pub struct Truth {
    /// The store's UUID.
    pub uuid: u64,
    /// The newest version of each key that was answered with, heard or not.
    sent: BTreeMap<usize, Revision>,
    /// The newest version of each key that a client has heard of.
    heard: BTreeMap<usize, Revision>,
    /// What was sent at each revision.
    given: BTreeMap<Revision, Shown>,
    /// The highest revision that was assigned, and by whom.
    assigned: Option<(Revision, u64)>,
    /// The number of promotions by force.
    pub epoch: u64,
    pub served_at: u64,
    /// When all faults had ended.
    pub calm_at: Option<u64>,
}

impl Truth {
    /// What must be shown at least, from now on.
    #[must_use]
    pub fn floor(&self, key: usize) -> Revision {
        self.heard.get(&key).copied().unwrap_or(Revision::ZERO)
    }
}

impl Sim {
    /// A member answers with a version.
    pub fn truth_sends(&mut self, m: usize, shown: &Shown) {
        if !self.is_the_store(m) {
            return;
        }
        if let Some(before) = self.truth.given.get(&shown.revision)
            && (before.key, before.value) != (shown.key, shown.value)
        {
            let what = format!("{:?} was {before:?}, and is {shown:?} at m{m}", shown.revision);
            return self.broke("r18_given_once", what);
        }
        self.truth.given.insert(shown.revision, shown.clone());
        let sent = self.truth.sent.entry(shown.key).or_insert(Revision::ZERO);
        *sent = (*sent).max(shown.revision);
        self.versions_follow(shown);
    }

    /// The versions of a key count its writes: none was lost between two.
    fn versions_follow(&mut self, shown: &Shown) {
        if shown.version == 0 {
            return;
        }
        let same = |other: &&Shown| other.key == shown.key && other.version > 0;
        let before = self.truth.given.range(..shown.revision).rev().map(|(_, shown)| shown).find(same);
        let after = self.truth.given.range(shown.revision.next()..).map(|(_, shown)| shown).find(same);
        let falls = before.is_some_and(|before| before.version >= shown.version)
            || after.is_some_and(|after| after.version <= shown.version);
        if falls {
            let what = format!("{shown:?} between {before:?} and {after:?}");
            self.broke("r19_no_lost_update", what);
        }
    }

    /// A member executes a request.
    pub fn truth_executes(&mut self, m: usize) {
        if !self.is_the_store(m) {
            return;
        }
        if let Some(other) = (0..MEMBERS).find(|other| *other != m && self.answers_for(*other)) {
            let paused = self.processes[m].paused_at.is_some_and(|at| at >= self.processes[m].began);
            let invariant = if paused { "r20_paused" } else { "r19_one_answers" };
            self.broke(invariant, format!("m{m} executes, and m{other} serves"));
        }
    }

    /// Whether a member answers for the store, if only when it goes on.
    fn answers_for(&self, m: usize) -> bool {
        self.is_the_store(m) && self.answers(m)
    }

    pub fn truth_assigns(&mut self, m: usize, revision: Revision) {
        if !self.is_the_store(m) {
            return;
        }
        let run = self.members[m].open.as_ref().map_or(0, |open| open.run);
        let (highest, by) = self.truth.assigned.unwrap_or((Revision::ZERO, run));
        if by != run && revision <= highest {
            self.broke("r18_given_once", format!("m{m} assigns {revision:?}, and {highest:?} was before it"));
        }
        if revision > highest {
            self.truth.assigned = Some((revision, run));
        }
    }

    /// A client hears an answer.
    pub fn truth_hears(&mut self, key: usize, floor: Revision, write: Option<u64>, shown: Option<&Shown>) {
        let revision = shown.map_or(Revision::ZERO, |shown| shown.revision);
        let stale = if write.is_some() { revision <= floor } else { revision < floor };
        if stale {
            let what = format!("key {key} was at {floor:?} before, and the answer is {shown:?}");
            return self.broke("r19_linear", what);
        }
        let heard = self.truth.heard.entry(key).or_insert(Revision::ZERO);
        *heard = (*heard).max(revision);
    }

    /// The record changes.
    pub fn truth_of_record(&mut self, change: &MembersChange, before: Option<&Members>) {
        if let MembersChange::Promote { member, forced: None, .. } = change
            && !before.is_some_and(|before| before.in_sync.contains(member))
        {
            self.broke("r19_named", format!("{member} was not in sync"));
        }
    }

    /// A standby goes on in its primary's place.
    pub fn truth_promotes(&mut self, m: usize, forced: bool) {
        self.counts.promotions += 1;
        let Some(open) = &self.members[m].open else { return };
        let id = open.machine.id().clone();
        if !self.meta.named.iter().any(|(_, named)| *named == id) {
            return self.broke("r19_named", format!("m{m} takes over, and no record names it"));
        }
        if forced && !self.is_the_store(m) {
            // The operator has chosen one that had copied a store without its disk.
            self.counts.hopeless += 1;
            return self.ends();
        }
        for key in 0..KEYS {
            let has = self.members[m].open.as_mut().and_then(|open| read(&mut open.engine, key));
            let has = has.map_or(Revision::ZERO, |has| has.revision);
            let sent = self.truth.sent.get(&key).copied().unwrap_or(Revision::ZERO);
            if forced {
                self.truth.sent.insert(key, has.min(sent));
                self.truth.heard.insert(key, has.min(self.truth.floor(key)));
            } else if has < sent {
                let what = format!("m{m} takes over with key {key} at {has:?}, and {sent:?} was shown");
                return self.broke("r18_kept", what);
            }
        }
        if forced {
            self.counts.forced += 1;
            self.truth.epoch += 1;
            // What is lost is never seen again.
            let sent = self.truth.sent.clone();
            self.truth
                .given
                .retain(|revision, shown| sent.get(&shown.key).is_some_and(|sent| revision <= sent));
        }
    }

    /// Routers say between which members an operator is to choose: nobody who is there has more than the best of them.
    pub fn truth_chooses(&mut self, between: &[usize]) {
        self.counts.chosen += 1;
        let of_store: Vec<usize> = (0..MEMBERS).filter(|m| self.is_the_store(*m)).collect();
        for key in 0..KEYS {
            let has = (0..MEMBERS).map(|m| {
                let open = self.members[m].open.as_mut();
                let open = open.filter(|open| open.machine.role().does != Does::Superseded);
                let shown = open.and_then(|open| read(&mut open.engine, key));
                shown.map_or(Revision::ZERO, |shown| shown.revision)
            });
            let has: Vec<Revision> = has.collect();
            let best = between.iter().map(|m| has[*m]).max().unwrap_or(Revision::ZERO);
            if let Some(more) = of_store.iter().find(|m| has[**m] > best) {
                return self
                    .broke("r19_chosen", format!("one of {between:?} is to serve, and m{more} has more"));
            }
        }
    }

    /// What must hold at any moment.
    pub fn check(&mut self) {
        if self.violation.is_some() {
            return;
        }
        let answer: Vec<usize> = (0..MEMBERS).filter(|m| self.answers_for(*m)).collect();
        if answer.len() > 1 {
            return self.broke("r19_one_answers", format!("members {answer:?} answer"));
        }
        let members = self.meta.members().filter(|members| !members.primary.is_unknown()).cloned();
        let Some(members) = members else { return };
        for m in answer {
            let id = self.members[m].id.clone();
            // A router that has not seen the record may have had the one that it names follow again, in a later term. Then it
            // is to be prepared once more, and has all that is shown until then.
            if id != members.primary && !self.counts_at(m, &members.primary) {
                let what = format!(
                    "m{m} answers, and the record of term {} names {}",
                    members.term, members.primary
                );
                return self.broke("r19_one_answers", what);
            }
            let missing = members.in_sync.iter().find(|id| !self.counts_at(m, id)).cloned();
            if let Some(missing) = missing {
                let what =
                    format!("m{m} answers without {missing}, and the record of term {} has it", members.term);
                return self.broke("r19_not_alone", what);
            }
        }
    }

    fn counts_at(&mut self, m: usize, id: &MemberId) -> bool {
        let now = self.mono(m);
        let Some(open) = &mut self.members[m].open else { return false };
        let (answer, mut shown) = oneshot::channel();
        open.shipping.hear(&mut open.engine, shipping::Said::Show { answer }, now);
        shown.try_recv().unwrap_or_default().iter().any(|shown| shown.id == *id && shown.counts)
    }

    /// All faults have ended, and everybody is back: after some time all is well.
    pub fn judge(&mut self) {
        let Some(calm) = self.truth.calm_at else { return };
        match self.lacks() {
            None if self.now > calm + 5 * SECOND => self.ends(),
            Some(lacks) if self.now > calm + WITHIN => {
                for m in 0..MEMBERS {
                    let (said, fits) = (self.shows(m), self.is_the_store(m));
                    let follows = self.members[m]
                        .following
                        .as_ref()
                        .map(|it| (it.primary.clone(), it.told.clone(), it.conn));
                    self.note(|| format!("m{m} fits {fits} {follows:?}: {said:?}"));
                }
                let store = self.meta.store().clone();
                self.note(|| format!("{:?} {:?} {:?}", store.endpoints, store.standby, store.members));
                self.broke("liveness", lacks);
            }
            _ => self.after(500 * MS, None, Event::Judge),
        }
    }

    /// What is not well yet.
    fn lacks(&self) -> Option<String> {
        let store = self.meta.store();
        let Some(members) = &store.members else {
            return store.standby.is_some().then(|| "there is no record".to_owned());
        };
        let Some(at) = store.endpoints.first().and_then(|url| at_url(url)) else {
            return Some("no address".to_owned());
        };
        if self.members[at].id != members.primary || !self.answers_for(at) {
            let troubles: Vec<_> = self.routers.iter().map(|router| router.trouble.clone()).collect();
            return Some(format!("m{at} does not serve: {troubles:?}"));
        }
        if self.truth.served_at + 2 * SECOND < self.now {
            return Some("no client is served".to_owned());
        }
        let Some(open) = &self.members[at].open else { return Some("gone".to_owned()) };
        let wanted =
            store.standby.iter().flat_map(|standby| &standby.endpoints).filter_map(|url| at_url(url));
        let wanted: Vec<usize> = wanted.collect();
        let sync = store.standby.as_ref().is_some_and(|standby| standby.mode == StandbyMode::Sync);
        for m in wanted.iter().copied() {
            let id = &self.members[m].id;
            let whole = self.members[m].following.as_ref().is_some_and(|it| it.whole && it.connected);
            if !whole {
                return Some(format!("m{m} does not follow"));
            }
            if sync && !members.in_sync.contains(id) {
                return Some(format!("m{m} is not in sync by the record"));
            }
        }
        let unwanted = members.in_sync.iter().find(|id| !wanted.iter().any(|m| self.members[*m].id == **id));
        if let Some(unwanted) = unwanted {
            return Some(format!("{unwanted} is in sync by the record, and not configured"));
        }
        let ids: &[MemberId] = if sync { &members.in_sync } else { &[] };
        if open.machine.counted() != ids {
            return Some(format!(
                "the primary counts {:?}, and the record has {ids:?}",
                open.machine.counted()
            ));
        }
        let trouble = (0..ROUTERS).find_map(|r| self.routers[r].trouble.clone().map(|why| (r, why)));
        trouble.map(|(r, why)| format!("r{r} says: {why}"))
    }

    /// The highest term of the record.
    #[must_use]
    pub fn term(&self) -> Term {
        self.meta.members().map_or(Term(0), |members| members.term)
    }
}
