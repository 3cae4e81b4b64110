//! Optional: no answer and no event comes later than a bound.
//!
//! A history cannot show why something was late, but it can show that writes or lists waited. Slow watchers can delay
//! puts (B6), and a long operation can stop a process (B7, B10). A late event matters too: a kube-apiserver whose watch
//! is 3 s behind reads from the store instead of from its cache (R17).

use std::collections::HashMap;

use crate::config::Domain;
use crate::effects::touched;
use crate::history::{Nanos, OperationId, Outcome};
use crate::log::Source;
use crate::report::{Check, Report};
use crate::watch::{Context, WatchView, line};

/// Compares every answered operation with the bound, and every event whose write was acknowledged after its watch
/// was created.
pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    let Some(Nanos(bound)) = context.config.latency_max else { return };
    for operation in &context.history.operations {
        let took = operation.returned.0.saturating_sub(operation.call.0);
        if operation.outcome == Outcome::Unknown || took <= bound {
            continue;
        }
        // A compaction has no domain and is exempt. It waits for the pin of a list that is under way, even if the
        // reader of that list died (R5).
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
        // An event that was written before the watch was created is history, which may be of any age.
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
