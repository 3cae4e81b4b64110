//! etcd: "Reliable - a sequence of events will never drop any subsequence of events within the available history
//! window". A watch must have delivered every write of the log in its range, from its start to the last revision that
//! it covers. That is the highest of its last event, its progress, and the point from which another watch continues it.

use std::collections::BTreeSet;

use super::{Context, expected, line};
use crate::report::{Check, Report};

pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    for view in context.watches {
        let delivered: BTreeSet<_> =
            view.events.iter().map(|item| (&item.event.kv.key, item.event.kv.modified)).collect();
        for (key, entry) in expected(context, view) {
            if delivered.contains(&(key, entry.revision)) {
                continue;
            }
            let mut evidence = vec![format!("{key}: {entry:?}")];
            let after = view.events.iter().filter(|item| item.event.kv.modified > entry.revision);
            evidence.extend(after.take(1).map(|item| line(view, item.event, item.sequence)));
            let promise = view.progress.iter().find(|progress| progress.revision >= entry.revision);
            evidence.extend(promise.map(|progress| format!("{progress:?}")));
            let resumed = view.resumed_by.map(|index| context.watches[index].watch);
            evidence.extend(resumed.map(|next| format!("continued by {} {:?}", next.id, next.options)));
            let message = format!(
                "{} over {:?} from {:?} covers up to {:?} and misses {key} at {}",
                view.watch.id, view.watch.range, view.start, view.covered, entry.revision
            );
            report.add(Check::Reliable, message, evidence);
        }
    }
}
