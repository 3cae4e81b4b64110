//! etcd: "Atomic - a list of events is guaranteed to encompass complete revisions; updates in the same revision
//! over multiple keys will not be split over several lists of events". Fragments of one response count as one list.
//! Only a watch that asked for fragments may get them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Context, WatchView, expected, line};
use crate::config::Domain;
use crate::history::{Revision, WatchBody};
use crate::report::{Check, Report};

pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    for view in context.watches {
        let groups = groups(context, view, report);
        let delivered: BTreeSet<_> =
            view.events.iter().map(|item| (&item.event.kv.key, item.event.kv.modified)).collect();
        for (key, entry) in expected(context, view) {
            let domain = context.config.domain(key);
            let others = groups.contains_key(&(domain, entry.revision));
            if others && !delivered.contains(&(key, entry.revision)) {
                let message = format!("{} delivers revision {} without {key}", view.watch.id, entry.revision);
                report.add(Check::Atomic, message, vec![format!("{key}: {entry:?}")]);
            }
        }
        let fragmented = view
            .watch
            .responses
            .iter()
            .any(|response| matches!(response.body, WatchBody::Events { fragment: true, .. }));
        if fragmented && !view.watch.options.fragment {
            let message = format!("{} did not ask for fragments", view.watch.id);
            report.add(Check::Atomic, message, Vec::new());
        }
    }
}

/// The response that delivered each revision. A second response with the same revision is a violation.
fn groups(
    context: &Context<'_>,
    view: &WatchView<'_>,
    report: &mut Report,
) -> BTreeMap<(Domain, Revision), usize> {
    let mut groups: BTreeMap<(Domain, Revision), usize> = BTreeMap::new();
    for item in &view.events {
        let domain = context.config.domain(&item.event.kv.key);
        let revision = item.event.kv.modified;
        let first = *groups.entry((domain, revision)).or_insert(item.group);
        if first != item.group {
            let message = format!("{} splits revision {revision} over responses", view.watch.id);
            let of_revision = view.events.iter().filter(|other| other.event.kv.modified == revision);
            let evidence = of_revision.map(|other| line(view, other.event, other.sequence)).collect();
            report.add(Check::Atomic, message, evidence);
        }
    }
    groups
}
