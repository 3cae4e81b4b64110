//! The revisions in the headers of answers.
//!
//! etcd has one counter, so every linearizable header is in real-time order. In kindred (R4, R5, R8) the header of a
//! read is at or above every acknowledged write in its range, and a later write in the range is above it. A probe
//! covers its whole Kind. The reads of one client never go back within a Kind, or never at all, as the option says.
//!
//! In both systems the revisions of the writes of one key strictly increase, and the header of a Txn is the
//! mod_revision that it stored. So an acknowledged write is evidence at the revision of its header, which `Log`
//! compares with reads and events.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::bytes::Key;
use crate::config::{Domain, HeaderScope};
use crate::effects::{self, Effect};
use crate::history::{ClientId, KeyRange, Nanos, Operation, OperationId, Request, Revision, WatchBody};
use crate::report::{Check, Report};
use crate::watch::Context;

/// A revision, and the operation or watch that showed it.
type Shown = (Revision, String);

/// Checks the header of each operation against everything that had happened before the operation was called.
pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    let mut calls: Vec<&Operation> = context.history.operations.iter().collect();
    calls.sort_by_key(|operation| operation.call);
    let mut happened: Vec<(Nanos, Happened<'_>)> = Vec::new();
    for operation in calls.iter().filter(|operation| operation.outcome.header().is_some()) {
        happened.push((operation.returned, Happened::Returned(operation)));
    }
    for view in context.watches {
        for response in &view.watch.responses {
            let shown = match &response.body {
                WatchBody::Events { events, .. } => events.iter().map(|event| event.kv.modified).max(),
                WatchBody::Created | WatchBody::Progress { .. } => Some(response.header),
                WatchBody::Canceled { .. } | WatchBody::Broken => None,
            };
            if let Some(shown) = shown {
                happened.push((response.at, Happened::Watched(view.watch.client, &view.watch.range, shown)));
            }
        }
    }
    happened.sort_by_key(|(at, _)| *at);
    let mut sweep = Sweep::new(context);
    let mut next = 0;
    for operation in calls {
        while let Some((_, done)) = happened.get(next).filter(|(at, _)| *at < operation.call) {
            sweep.learn(done);
            next += 1;
        }
        sweep.check(operation, report);
    }
}

enum Happened<'a> {
    Returned(&'a Operation),
    Watched(ClientId, &'a KeyRange, Revision),
}

struct Sweep<'c, 'a> {
    context: &'c Context<'a>,
    /// The highest acknowledged write of each key.
    writes: BTreeMap<Key, (Revision, OperationId)>,
    /// The highest header of a linearizable read of each range.
    reads: HashMap<KeyRange, (Revision, OperationId)>,
    /// The highest header of each domain, of the operations whose header covers the domain.
    domains: BTreeMap<Domain, Shown>,
    /// The highest revision that each client has seen of each domain. In the global scope the domain is none.
    clients: BTreeMap<(ClientId, Option<Domain>), Shown>,
}

impl<'c, 'a> Sweep<'c, 'a> {
    fn new(context: &'c Context<'a>) -> Self {
        Self {
            context,
            writes: BTreeMap::new(),
            reads: HashMap::new(),
            domains: BTreeMap::new(),
            clients: BTreeMap::new(),
        }
    }

    fn learn(&mut self, happened: &Happened<'_>) {
        match happened {
            Happened::Watched(client, range, revision) => {
                let domains = self.context.log.domains(range, self.context.config);
                self.shown_to(*client, &domains, *revision, "a watch of this client".to_owned());
            }
            Happened::Returned(operation) => self.learn_operation(operation),
        }
    }

    fn learn_operation(&mut self, operation: &Operation) {
        let Some(header) = operation.outcome.header() else { return };
        let config = self.context.config;
        for key in written_keys(operation) {
            if config.gap(&config.domain(&key), header).is_none() {
                let known = self.writes.entry(key).or_insert((header, operation.id));
                *known = (*known).max((header, operation.id));
            }
        }
        let domains = self.domains_of(operation);
        let lost = domains.iter().any(|domain| config.gap(domain, header).is_some());
        if lost {
            return;
        }
        if let Some(range) = current_read(operation)
            && config.gap(&config.domain(&range.key), header).is_none()
        {
            let known = self.reads.entry(range.clone()).or_insert((header, operation.id));
            *known = (*known).max((header, operation.id));
        }
        let by = operation.id.to_string();
        let speaks_for_all = config.one_counter || !written_keys(operation).is_empty();
        let probes = current_read(operation).is_some_and(|range| config.is_domain_cut(range));
        for domain in domains.iter().filter(|_| speaks_for_all || probes) {
            raise(self.domains.entry(domain.clone()).or_default(), header, &by);
        }
        self.shown_to(operation.client, &domains, header, by);
    }

    fn shown_to(&mut self, client: ClientId, domains: &BTreeSet<Domain>, revision: Revision, by: String) {
        match self.context.config.header_scope {
            HeaderScope::Off => {}
            HeaderScope::Global => raise(self.clients.entry((client, None)).or_default(), revision, &by),
            HeaderScope::Domain => {
                for domain in domains {
                    raise(self.clients.entry((client, Some(domain.clone()))).or_default(), revision, &by);
                }
            }
        }
    }

    fn check(&self, operation: &Operation, report: &mut Report) {
        let Some(header) = operation.outcome.header() else { return };
        let mut wrong = |what: &str, shown: Revision, by: String| {
            let message = format!("{}: header {header} {what} {shown}, shown before its call", operation.id);
            report.add(Check::Header, message, vec![by, format!("{operation:?}")]);
        };
        let written = written_keys(operation);
        for key in &written {
            if let Some((revision, by)) = self.writes.get(key).filter(|(revision, _)| *revision >= header) {
                wrong("of a write is not above the write of the same key at", *revision, by.to_string());
            }
            let covering = self.reads.iter().filter(|(range, _)| range.contains(key));
            if let Some((range, (revision, by))) =
                covering.max_by_key(|(_, (revision, _))| *revision).filter(|(_, (shown, _))| *shown >= header)
            {
                wrong("of a write is not above a read at", *revision, format!("{by} of {range:?}"));
            }
        }
        let domains = self.domains_of(operation);
        let current = current_read(operation);
        if let Some(range) = current {
            let below = |(key, (revision, _)): &(&Key, &(Revision, OperationId))| {
                *revision > header && range.contains(key)
            };
            if let Some((key, (revision, by))) = self.writes.range(&range.key..).find(below) {
                wrong("of a read is below a write at", *revision, format!("{by} of {key}"));
            }
        }
        let cut = current.is_some_and(|range| self.context.config.is_domain_cut(range));
        for (revision, by) in domains.iter().filter_map(|domain| self.domains.get(domain)) {
            if cut && *revision > header {
                wrong("of a read is below", *revision, by.clone());
            }
            if self.context.config.one_counter && !written.is_empty() && *revision >= header {
                wrong("of a write is not above", *revision, by.clone());
            }
        }
        if current.is_some() {
            self.check_client(operation, header, &domains, &mut wrong);
        }
    }

    fn check_client(
        &self,
        operation: &Operation,
        header: Revision,
        domains: &BTreeSet<Domain>,
        wrong: &mut impl FnMut(&str, Revision, String),
    ) {
        let scopes: Vec<Option<Domain>> = match self.context.config.header_scope {
            HeaderScope::Off => Vec::new(),
            HeaderScope::Global => vec![None],
            HeaderScope::Domain => domains.iter().cloned().map(Some).collect(),
        };
        for scope in scopes {
            if let Some((revision, by)) = self.clients.get(&(operation.client, scope))
                && *revision > header
            {
                wrong("of a read goes back for this client from", *revision, by.clone());
            }
        }
    }

    fn domains_of(&self, operation: &Operation) -> BTreeSet<Domain> {
        let config = self.context.config;
        if let Some(range) = current_read(operation) {
            return self.context.log.domains(range, config);
        }
        written_keys(operation).iter().map(|key| config.domain(key)).collect()
    }
}

fn raise(known: &mut Shown, revision: Revision, by: &str) {
    if revision > known.0 {
        *known = (revision, by.to_owned());
    }
}

/// The range of a linearizable read at the current revision.
fn current_read(operation: &Operation) -> Option<&KeyRange> {
    match &operation.request {
        Request::List(list) if !list.serializable && list.revision.is_none() => Some(&list.range),
        _ => None,
    }
}

/// The keys that an acknowledged operation certainly wrote at its header's revision.
fn written_keys(operation: &Operation) -> Vec<Key> {
    let mut keys = Vec::new();
    for effect in effects::acknowledged(operation) {
        match effect {
            Effect::Put { key, .. } => keys.push(key),
            Effect::Delete { range, deleted, .. } if range.is_one() && deleted.is_some_and(|n| n > 0) => {
                keys.push(range.key);
            }
            Effect::Delete { .. } => {}
        }
    }
    keys
}
