//! A store may have lost its record of members, or have one that is older than they are (R19). Then what the members say of
//! themselves decides which of them serves, or an operator does.

use kindred_partition_config::ids::{MemberId, Term};
use kindred_partition_config::state::MembersChange;

use super::{Decision, Of, Role, SUSPECT, Said, Wish, addresses, stranger};

/// So many terms a lost record of members can have been ahead of what is known of it.
pub(super) const LOST_TERMS: u64 = 1 << 20;

impl Said {
    /// Tells whether a standby may have something that this member, the last primary, lacks. It may if it counted and still runs
    /// while this one's process has ended since, or if it has seen a later term.
    fn has_less_than(&self, said: &Self) -> bool {
        let counted = self.in_doubt && self.counted.contains(&said.id);
        said.is_whole_standby() && (counted || (said.term > self.term && !self.leads(said)))
    }

    /// Tells whether a standby follows this member. The term of such a standby may be an old one from its disk, so it says nothing.
    fn leads(&self, standby: &Self) -> bool {
        self.followers.iter().any(|follower| follower.id == standby.id && follower.follows)
    }

    fn is_whole_standby(&self) -> bool {
        self.role == Role::Standby && self.whole && self.bound
    }

    /// Tells whether this primary knows the last term in which it was promoted. One with an empty disk does not, nor one that an
    /// operator has reclaimed. The first primary was never promoted, and may not have heard yet that a record names it.
    fn knows_its_terms(&self) -> bool {
        let is_first = self.term > Term(0) && !self.counted.contains(&MemberId::whoever_was_promoted());
        self.named > Term(0) || is_first
    }

    /// Tells whether this member was not promoted after the `last` primary, as far as its answer shows.
    fn is_no_later_than(&self, last: &Self) -> bool {
        (self.role == Role::Standby || (self.role == Role::Primary && self.knows_its_terms()))
            && self.bound
            && self.prepared.is_none()
            && (self.term <= last.term || last.leads(self))
            && !last.has_less_than(self)
    }
}

impl<'a> Of<'a> {
    /// There is no record, or one that knows of no primary: the store is new, or the meta store and all that routers keep of it were
    /// lost. Then the members say who was named last, and whether another can have been promoted since.
    pub(super) fn without_record(&self, read: Term) -> Decision {
        let Some(url) = self.store.endpoints.first() else {
            return Decision::waits("the store has no address", false);
        };
        let last = self.last_named(url);
        if let Some((at, last)) = last.filter(|(_, said)| self.is_newest(said)) {
            let member = last.id.clone();
            let change = match at == url && read == Term(0) {
                true => MembersChange::Begin(member),
                false => MembersChange::Adopt { member, endpoint: at.to_owned() },
            };
            return self.begin(read, change);
        }
        if self.means_unknown() {
            // Whom it means is promoted by the record, as by every other.
            let nobody = match read {
                Term(0) => MembersChange::Begin(MemberId::unknown()),
                _ => MembersChange::InSync(Vec::new()),
            };
            return self.begin(read, nobody);
        }
        let text = match last {
            None => self.nobody_serves(url),
            Some((at, _)) => format!(
                "there is no record of its members any more. {at} was the primary last, and another may have been promoted since"
            ),
        };
        Decision::waits(self.start_or_choose(text, last), false)
    }

    /// Tells whether an operator wishes to replace a primary of which the record is lost.
    pub(super) fn means_unknown(&self) -> bool {
        self.wish.and_then(Wish::dead).is_some_and(MemberId::is_unknown)
    }

    /// A first record. If another was lost, its term is far above all that it can have had.
    fn begin(&self, read: Term, change: MembersChange) -> Decision {
        let is_new = self.next == Term(1);
        let term = if is_new { self.next } else { Term(self.next.0.saturating_add(LOST_TERMS)) };
        self.write(read, term, change)
    }

    /// The member that a record named as the primary last, of those that answer and belong to this cluster.
    fn last_named(&self, url: &str) -> Option<(&'a str, &'a Said)> {
        let primaries = self.fresh.iter().filter(|(_, said)| said.role == Role::Primary && said.bound);
        primaries.max_by_key(|(at, said)| (said.named, *at == url)).copied()
    }

    /// Says what an operator is to do if nobody is the primary with certainty, and `last` was it last.
    pub(super) fn start_or_choose(&self, why: String, last: Option<(&str, &Said)>) -> String {
        let force = format!(
            "{why}. Start all of them; if nobody serves then, run kindred store failover {}",
            self.store.name
        );
        let leads = |said: &Said| last.is_some_and(|(_, last)| last.leads(said));
        let whole = || self.fresh.iter().filter(|(_, said)| said.is_whole_standby() && !leads(said));
        // The term of one that is prepared is that of a promotion which may never have come.
        let is_later = |said: &Said| {
            last.is_none_or(|(_, last)| said.term > last.term) && (last.is_none() || said.prepared.is_none())
        };
        let later = whole().filter(|(_, said)| is_later(said)).max_by_key(|(_, said)| said.term);
        if let Some((to, _)) = later {
            return format!("{force} --to {to} --force: it is a standby that runs, and follows nobody older");
        }
        let Some((to, last)) = last else { return why };
        match whole().find(|(_, said)| last.has_less_than(said)) {
            Some((runs, _)) => format!(
                "{force} --to {runs} --force: it is a standby that runs, and lacks nothing if it was in sync; or --to {to}, which keeps \
                 what is on its disk"
            ),
            None => format!("{force} --to {to} --force"),
        }
    }

    /// Why there is no first record, if no member of this cluster takes itself for the primary.
    fn nobody_serves(&self, url: &str) -> String {
        match self.at(url) {
            // It may have lost its disk, while a standby has everything.
            Some(said) if said.role == Role::Primary => {
                format!("{}. Start it with its former folder", stranger(url))
            }
            Some(_) => format!("{url} does not serve: it is a standby"),
            None => format!("{url} does not serve: {}", self.why(url)),
        }
    }

    /// Whether the member that was named last certainly has the newest data: it hears all that it waits for, or no other member
    /// can have been promoted in its place, as each answers, or has begun anew since.
    pub(super) fn is_newest(&self, last: &Said) -> bool {
        if self.next == Term(1) {
            // No member has ever seen a record.
            return true;
        }
        // One that an operator has reclaimed serves when the operator says so.
        if last.in_doubt && !last.knows_its_terms() {
            return false;
        }
        let hears = |id: &MemberId| {
            let follower = last.followers.iter().find(|follower| follower.id == *id);
            follower.is_some_and(|follower| follower.follows && follower.silent < SUSPECT)
        };
        let serves = !last.in_doubt && !last.yielded;
        if serves && !last.counted.is_empty() && last.counted.iter().all(hears) {
            return true;
        }
        let mut others = self.fresh.iter().filter(|(_, said)| said.id != last.id);
        // The configuration may not have all of those that counted any more.
        let counted = if last.in_doubt { last.counted.len() } else { 0 };
        let of_store = addresses(self.store).len().saturating_sub(1).max(counted);
        let missing = of_store.saturating_sub(others.clone().count());
        let begun_anew = &last.never_promoted;
        let accounted = missing == 0
            || (missing <= begun_anew.len() && last.counted.iter().all(|id| begun_anew.contains(id)));
        accounted && others.all(|(_, said)| said.is_no_later_than(last))
    }
}
