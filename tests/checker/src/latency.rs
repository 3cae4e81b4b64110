//! Optional: nothing later than a bound. A history cannot show why, but it can show that writes or lists waited (B6:
//! slow watchers delay puts; B7, B10: a long operation stops the process), and that an event came late: a kube-apiserver
//! whose watch is 3 s behind reads from the store instead of its cache (R17).

use std::collections::HashMap;

use crate::config::Domain;
use crate::effects::touched;
use crate::history::{Nanos, OperationId, Outcome};
use crate::log::Source;
use crate::report::{Check, Report};
use crate::watch::{Context, WatchView, line};

/// Compares every acknowledged operation, and every event of a watch that was there when its write was acknowledged,
/// with the bound.
pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    let Some(Nanos(bound)) = context.config.latency_max else { return };
    for operation in &context.history.operations {
        let took = operation.returned.0.saturating_sub(operation.call.0);
        if operation.outcome == Outcome::Unknown || took <= bound {
            continue;
        }
        // A compaction may wait: it passes no pin of a list that is being read (R5), also of a reader that died.
        let mut domains = touched(&operation.request).map(|key| context.config.domain(key)).peekable();
        if domains.peek().is_some() && !domains.any(|domain| exempt(context, &domain)) {
            let message = format!("{} took {} ms", operation.id, took / 1_000_000);
            report.add(Check::Latency, message, vec![format!("{operation:?}")]);
        }
    }
    let acknowledged: HashMap<OperationId, Nanos> =
        context.history.operations.iter().map(|operation| (operation.id, operation.returned)).collect();
    for view in context.watches {
        events(context, view, &acknowledged, bound, report);
    }
}

fn exempt(context: &Context<'_>, domain: &Domain) -> bool {
    context.config.latency_exempt.contains(domain)
}

fn events(
    context: &Context<'_>,
    view: &WatchView<'_>,
    acknowledged: &HashMap<OperationId, Nanos>,
    bound: u64,
    report: &mut Report,
) {
    let Some(created) = view.created.map(|created| created.at) else { return };
    for item in &view.events {
        let kv = &item.event.kv;
        if exempt(context, &context.config.domain(&kv.key)) {
            continue;
        }
        let sources = context.log.entry(&kv.key, kv.modified).map_or(&[][..], |entry| &entry.sources);
        let written = sources.iter().find_map(|source| match source {
            Source::Acknowledged(id) => acknowledged.get(id),
            _ => None,
        });
        // What was written before the watch is history that it catches up with.
        let Some(written) = written.filter(|written| **written >= created) else { continue };
        let late = item.at.0.saturating_sub(written.0);
        if late > bound {
            let message = format!(
                "{} shows an event {} ms after its write was acknowledged",
                view.watch.id,
                late / 1_000_000
            );
            report.add(Check::Latency, message, vec![line(view, item.event, item.sequence)]);
        }
    }
}
