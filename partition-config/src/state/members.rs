//! The members of a store: which process serves it, and which standbys may take its place (R19). The record is a part of
//! the store's object, so every change of it is a compare-and-swap. This module has the changes that may follow each other.
//!
//! The term grows with every change, and members refuse what an older term asks of them. So a request that was delayed
//! cannot undo what came after it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ClusterState, StoreState, refused, store_path};
use crate::{
    ids::{MemberId, StoreName, Term},
    map::StoreIdx,
    model::{StandbyConfig, StoreConfig},
    validate::{FieldError, FieldErrors},
};

/// The record of a store's members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Members {
    pub term: Term,
    /// Serves the store.
    pub primary: MemberId,
    /// The standbys that have everything that was shown, in their order. Each may be promoted.
    #[serde(default)]
    pub in_sync: Vec<MemberId>,
    /// The primary was promoted by force, and opens at this time, in microseconds since the Unix epoch (R14).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced: Option<u64>,
    /// The term of that promotion: a primary that was never named in it, or later, has not opened yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forced_in: Option<Term>,
}

/// A change of the record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembersChange {
    /// The first record: this member serves, and no standby counts.
    Begin(MemberId),
    /// The standbys that count are these. The primary must wait for the new ones already (R18); only when this is written,
    /// it may continue without the others.
    InSync(Vec<MemberId>),
    /// A record named this member in a later term than that of the record, or there is no record any more: the store of the record has
    /// lost its newest data.
    Adopt {
        member: MemberId,
        /// Where it listens. It changes places with the former primary.
        endpoint: String,
    },
    /// A standby serves from now on. No other counts before it has caught up with it.
    Promote {
        member: MemberId,
        /// Where it listens. It changes places with the former primary.
        endpoint: String,
        /// The operator asserts that the primary is dead: the standby need not be in sync. It opens at this time, in
        /// microseconds since the Unix epoch (R14).
        forced: Option<u64>,
    },
}

/// Why the record cannot be changed so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MembersRefusal {
    /// The record has changed since it was read.
    #[error("the members are in term {now} by now, not in term {read}")]
    Stale { read: Term, now: Term },
    /// A standby that may lack what was shown.
    #[error("member {0} is not in sync: it may lack acknowledged writes")]
    NotInSync(MemberId),
    /// A primary is no standby of itself.
    #[error("member {0} is the primary")]
    IsPrimary(MemberId),
    /// The store was removed or replaced.
    #[error("the store is gone")]
    Gone,
}

impl Members {
    /// The record that a store has after its own one was lost. It names nobody, and its term says nothing.
    #[must_use]
    pub fn lost() -> Self {
        Self {
            term: Term(1),
            primary: MemberId::unknown(),
            in_sync: Vec::new(),
            forced: None,
            forced_in: None,
        }
    }

    /// Tells whether this is [`Members::lost`], and no operator has forced a member to serve since.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        *self == Self::lost()
    }

    fn change(&self, term: Term, change: &MembersChange) -> Result<Self, MembersRefusal> {
        let alone = |primary: &MemberId, forced: Option<u64>| Self {
            term,
            primary: primary.clone(),
            in_sync: Vec::new(),
            forced,
            forced_in: forced.map(|_| term),
        };
        match change {
            MembersChange::Begin(_) => Err(MembersRefusal::Stale { read: Term(0), now: self.term }),
            MembersChange::Adopt { member, .. } => Ok(alone(member, None)),
            MembersChange::InSync(members) => {
                if let Some(primary) = members.iter().find(|member| **member == self.primary) {
                    return Err(MembersRefusal::IsPrimary(primary.clone()));
                }
                let mut in_sync = members.clone();
                in_sync.sort_unstable();
                in_sync.dedup();
                Ok(Self { in_sync, forced_in: self.forced_in, ..alone(&self.primary, self.forced) })
            }
            MembersChange::Promote { member, forced, .. } => {
                if *member == self.primary {
                    return Err(MembersRefusal::IsPrimary(member.clone()));
                }
                if forced.is_none() && !self.in_sync.contains(member) {
                    return Err(MembersRefusal::NotInSync(member.clone()));
                }
                Ok(alone(member, *forced))
            }
        }
    }
}

impl ClusterState {
    /// The document with a changed record of the store at `at`. `read` is the term of the record that the caller has seen,
    /// 0 without one; `term` is that of the new record.
    ///
    /// # Errors
    /// When the record has changed, or the change may not follow.
    pub fn with_members(
        &self,
        at: StoreIdx,
        read: Term,
        term: Term,
        change: &MembersChange,
    ) -> Result<Self, MembersRefusal> {
        let object = self.stores.get(usize::from(at.0)).filter(|store| store.state != StoreState::Removed);
        let object = object.ok_or(MembersRefusal::Gone)?;
        let now = object.members.as_ref().map_or(Term(0), |members| members.term);
        if now != read || term <= now {
            return Err(MembersRefusal::Stale { read, now });
        }
        let members = match (&object.members, change) {
            (Some(members), change) => members.change(term, change)?,
            (None, MembersChange::Begin(primary) | MembersChange::Adopt { member: primary, .. }) => {
                Members { term, primary: primary.clone(), in_sync: Vec::new(), forced: None, forced_in: None }
            }
            (None, _) => return Err(MembersRefusal::Stale { read, now }),
        };
        Ok(self.with_store(at, |store| {
            store.members = Some(members);
            if let MembersChange::Promote { endpoint, .. } | MembersChange::Adopt { endpoint, .. } = change {
                let former = std::mem::replace(&mut store.endpoints, vec![endpoint.clone()]);
                if let Some(standby) = &mut store.standby {
                    standby.endpoints.retain(|known| known != endpoint);
                    let others = std::mem::take(&mut standby.endpoints);
                    standby.endpoints =
                        former.into_iter().take(1).filter(|known| known != endpoint).chain(others).collect();
                }
            }
        }))
    }

    /// The document in which each store with standbys has a record that knows of no primary: it had one, which is lost.
    #[must_use]
    pub fn with_lost_members(mut self) -> Self {
        for store in self.stores.iter_mut().filter(|store| store.standby.is_some()) {
            store.members = Some(Members::lost());
        }
        self
    }

    /// Says which standbys a store is to have. Those that it has no more leave the record later, by its routers.
    ///
    /// # Errors
    /// When there is no such shard, or an address is invalid.
    pub fn set_standby(
        &self,
        name: &StoreName,
        standby: Option<StandbyConfig>,
    ) -> Result<Self, Vec<FieldError>> {
        let (at, object) = self.known(name)?;
        let mut errors = FieldErrors::default();
        if let Some(members) = &object.members
            && members.primary.is_unknown()
            && let Some(gone) = object
                .standby
                .iter()
                .flat_map(|known| &known.endpoints)
                .find(|url| standby.as_ref().is_none_or(|standby| !standby.endpoints.contains(url)))
        {
            return Err(refused(
                format!("{}.standby", store_path(name)),
                format!("the record of the members is lost, and {gone} may be the one that serves"),
                "wait until it is known who serves, or have a member serve by kindred store failover --to URL --force",
            ));
        }
        let config = StoreConfig { standby: standby.clone(), ..object.config() };
        self.check_store(at, config, &mut errors);
        if standby.is_some() && object.endpoints.is_empty() {
            return Err(refused(
                format!("{}.standby", store_path(name)),
                "the store itself has no address in the configuration",
                "give it endpoints first: members find each other by them",
            ));
        }
        if errors.is_empty() {
            Ok(self.with_store(at, |store| store.standby = standby))
        } else {
            Err(errors.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{OnLoss, StandbyMode},
        parse::parse_config,
    };

    const AT: StoreIdx = StoreIdx(0);

    fn id(name: &str) -> MemberId {
        MemberId(name.to_owned())
    }

    fn state() -> ClusterState {
        let config = "default: a\nstores: [{name: a, slot: 1, endpoints: [\"http://a:1\"], standby: {endpoints: [\"http://b:1\"]}}]\n";
        ClusterState::bootstrap(&parse_config(config).unwrap()).unwrap()
    }

    fn other(name: &str) -> StoreConfig {
        let config = format!("default: {name}\nstores: [{{name: {name}}}]\n");
        parse_config(&config).unwrap().stores.remove(0)
    }

    fn promote(member: &str) -> MembersChange {
        MembersChange::Promote { member: id(member), endpoint: format!("http://{member}:1"), forced: None }
    }

    #[test]
    fn r19_only_a_standby_that_is_in_sync_is_promoted_and_only_under_the_term_that_was_read() {
        let begun = state().with_members(AT, Term(0), Term(1), &MembersChange::Begin(id("a"))).unwrap();
        let refused = |state: &ClusterState, read, change: &MembersChange| {
            state.with_members(AT, Term(read), Term(9), change).unwrap_err()
        };
        assert_eq!(refused(&begun, 1, &promote("b")), MembersRefusal::NotInSync(id("b")));
        let pair = begun.with_members(AT, Term(1), Term(3), &MembersChange::InSync(vec![id("b")])).unwrap();
        assert_eq!(refused(&pair, 1, &promote("b")), MembersRefusal::Stale { read: Term(1), now: Term(3) });
        assert!(
            pair.with_members(AT, Term(3), Term(3), &promote("b")).is_err(),
            "every change has a term of its own"
        );
        assert_eq!(refused(&pair, 3, &promote("a")), MembersRefusal::IsPrimary(id("a")));
        let alone = MembersChange::InSync(vec![id("a")]);
        assert_eq!(refused(&pair, 3, &alone), MembersRefusal::IsPrimary(id("a")));
        let promoted = pair.with_members(AT, Term(3), Term(4), &promote("b")).unwrap();
        let store = &promoted.stores[0];
        let expected =
            Members { term: Term(4), primary: id("b"), in_sync: Vec::new(), forced: None, forced_in: None };
        assert_eq!(store.members, Some(expected));
        assert_eq!(store.endpoints, ["http://b:1"]);
        assert_eq!(store.standby.as_ref().unwrap().endpoints, ["http://a:1"], "they change places");
        assert_eq!(refused(&promoted, 4, &promote("a")), MembersRefusal::NotInSync(id("a")));
        assert!(promoted.validated().is_ok());
        let read = ClusterState::from_json(&promoted.to_json()).unwrap();
        assert_eq!(read, promoted);
    }

    #[test]
    fn a_forced_promotion_says_when_the_store_opens() {
        let begun = state().with_members(AT, Term(0), Term(1), &MembersChange::Begin(id("a"))).unwrap();
        let forced =
            MembersChange::Promote { member: id("b"), endpoint: "http://b:1".to_owned(), forced: Some(77) };
        let promoted = begun.with_members(AT, Term(1), Term(2), &forced).unwrap();
        assert_eq!(promoted.stores[0].members.as_ref().unwrap().forced, Some(77));
        let (replaced, _) = promoted.replace_store(&promoted.stores[0].name, vec![], 99).unwrap();
        assert!(replaced.with_members(AT, Term(2), Term(3), &promote("a")).is_err(), "it is removed");
        assert_eq!((&replaced.stores[1].members, &replaced.stores[1].standby), (&None, &None));
    }

    #[test]
    fn addresses_of_standbys_are_checked() {
        let other = StoreConfig { endpoints: vec!["http://o:1/".to_owned()], ..other("other") };
        let (state, at) = state().add_store(other).unwrap();
        let (name, other) = (state.stores[0].name.clone(), state.stores[usize::from(at.0)].name.clone());
        let standby = |endpoints: &[&str]| {
            let endpoints = endpoints.iter().map(|endpoint| (*endpoint).to_owned()).collect();
            Some(StandbyConfig { endpoints, mode: StandbyMode::Async, on_loss: OnLoss::Wait })
        };
        for (endpoints, part) in [
            (&[][..], "servicegroups/a.standby.endpoints: 0 addresses"),
            (&["http://b:1", "http://c:1", "http://d:1"], "one or two"),
            (&["http://a:1"], "standby.endpoints[0]: \"http://a:1\" is another member's address"),
            (
                &["http://c:1", "http://o:1"],
                "standby.endpoints[1]: \"http://o:1\" is an address of store \"other\"",
            ),
            (&["not one"], "is not an endpoint"),
        ] {
            let errors = state.set_standby(&name, standby(endpoints)).unwrap_err();
            assert!(errors.iter().any(|error| error.to_string().contains(part)), "{endpoints:?}: {errors:?}");
        }
        let two = state.set_standby(&name, standby(&["http://b:1", "http://c:1"])).unwrap();
        assert_eq!(two.stores[0].standby.as_ref().unwrap().mode, StandbyMode::Async);
        assert_eq!(two.set_standby(&name, None).unwrap().stores[0].standby, None);
        let lost = two.clone().with_lost_members();
        let refused = lost.set_standby(&name, standby(&["http://c:1"])).unwrap_err();
        assert!(refused[0].to_string().contains("http://b:1 may be the one that serves"), "{refused:?}");
        assert!(lost.set_standby(&name, two.stores[0].standby.clone()).is_ok());
        // Another store gets no address of a member of this one either.
        let errors = two.set_standby(&other, standby(&["http://c:1"])).unwrap_err();
        assert!(errors[0].to_string().contains("servicegroups/other.standby.endpoints[0]"), "{errors:?}");
        let errors = two.readdress_store(&other, vec!["http://b:1".to_owned()]).unwrap_err();
        assert!(errors[0].to_string().contains("is an address of store \"other\""), "{errors:?}");
    }
}
