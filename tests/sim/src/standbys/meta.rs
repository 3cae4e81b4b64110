//! The meta store: one document, changed by compare-and-swap. It may be away, slow, or execute a write whose answer is
//! lost.

use std::rc::Rc;

use kindred_partition_config::ids::{MemberId, Term};
use kindred_partition_config::map::StoreIdx;
use kindred_partition_config::parse::parse_config;
use kindred_partition_config::state::{ClusterState, Members, MembersChange, StoreObject};

use super::faults::Plan;
use super::router::Back;
use super::world::{Event, MEMBERS, META, ROUTERS, Sim, url};
use crate::world::{MS, SECOND};

pub const STORE: StoreIdx = StoreIdx(0);

/// A change of the record that a router asks for.
#[derive(Debug)]
pub struct Write {
    pub router: usize,
    pub life: u64,
    pub call: u64,
    pub read: Term,
    pub term: Term,
    pub change: MembersChange,
}

pub struct Meta {
    pub state: Rc<ClusterState>,
    pub version: u64,
    pub away: bool,
    /// Every member that the record ever named as the primary, with the term of that record.
    pub named: Vec<(Term, MemberId)>,
}

impl Meta {
    /// The document of a new cluster.
    ///
    /// # Panics
    /// Never: the configuration is valid.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let standbys: Vec<String> =
            (1..MEMBERS).take(plan.standbys).map(|at| format!("\"{}\"", url(at))).collect();
        let config = format!(
            "default: a\nstores: [{{name: a, slot: 3, endpoints: [\"{}\"], standby: {{endpoints: [{}], mode: {}, onLoss: {}}}}}]\n",
            url(0),
            standbys.join(", "),
            if plan.sync { "sync" } else { "async" },
            if plan.waits { "wait" } else { "alone" },
        );
        let config = parse_config(&config).expect("it is valid");
        let state = ClusterState::bootstrap(&config).expect("it is valid");
        Self { state: Rc::new(state), version: 1, away: false, named: Vec::new() }
    }

    #[must_use]
    pub fn store(&self) -> &StoreObject {
        &self.state.stores[0]
    }

    #[must_use]
    pub fn members(&self) -> Option<&Members> {
        self.store().members.as_ref()
    }
}

impl Sim {
    /// The meta store changes its document.
    pub fn meta_changes(&mut self, state: ClusterState) {
        self.meta.version += 1;
        self.meta.state = Rc::new(state);
        if let Some(members) = self.meta.members().cloned() {
            let named = (members.term, members.primary);
            if self.meta.named.last() != Some(&named) {
                self.meta.named.push(named);
            }
        }
        for router in 0..ROUTERS {
            let late = self.plan.stale > 0 && self.percent(self.plan.stale);
            let after = if late { self.between(50 * MS, 3 * SECOND) } else { self.delay() };
            let told = Event::State(self.meta.version, self.meta.state.clone());
            self.after(after, Some(MEMBERS + router), told);
        }
    }

    pub fn meta_write(&mut self, write: Write) {
        let Write { router, life, call, read, term, change } = write;
        if self.meta.away {
            return;
        }
        let written = self.meta.state.with_members(STORE, read, term, &change);
        let answer = match written {
            Ok(state) => {
                self.counts.records += 1;
                self.note(|| format!("record {}: {change:?} by r{router}", term.0));
                let from = self.meta.members().cloned();
                self.truth_of_record(&change, from.as_ref());
                self.meta_changes(state);
                Back::Written(Some((self.meta.version, self.meta.state.clone())))
            }
            Err(why) => Back::Refused(why.to_string()),
        };
        let to = MEMBERS + router;
        // The answer to a write may be lost: the router does not know whether it was executed.
        if self.processes.get(to).is_some_and(|process| process.life == life)
            && !(self.plan.unknown > 0 && self.percent(self.plan.unknown))
        {
            self.throw(META, to, Some(to), Event::Back(call, answer));
        }
    }
}
