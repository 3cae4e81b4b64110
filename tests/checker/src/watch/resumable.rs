//! etcd: "Resumable - a broken watch can be resumed by establishing a new watch starting after the last revision
//! received in a watch event before the break, so long as the revision is in the history window". So a watch from
//! N begins with the first event at or after N and delivers nothing older. It is refused as compacted only if N lies
//! below the compaction.

use super::{Context, expected, line};
use crate::report::{Check, Report};

pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    for view in context.watches {
        let created = view.created.map(|created| created.sequence);
        if let Some(item) = view.events.iter().find(|item| created.is_none_or(|at| item.sequence < at)) {
            let message = format!("{} delivers an event before it is created", view.watch.id);
            report.add(Check::Resumable, message, vec![line(view, item.event, item.sequence)]);
        }
        let Some(start) = view.watch.options.start else { continue };
        for item in view.events.iter().filter(|item| item.event.kv.modified < start) {
            let message =
                format!("{} starts at {start} and delivers {}", view.watch.id, item.event.kv.modified);
            report.add(Check::Resumable, message, vec![line(view, item.event, item.sequence)]);
        }
        let first = view.events.iter().find(|item| item.event.kv.modified >= start);
        if let (Some(first), Some((key, entry))) = (first, expected(context, view).first())
            && entry.revision < first.event.kv.modified
        {
            let message =
                format!("{} from {start} does not begin with {key} at {}", view.watch.id, entry.revision);
            let evidence = vec![format!("{key}: {entry:?}"), line(view, first.event, first.sequence)];
            report.add(Check::Resumable, message, evidence);
        }
        if let Some((response, compacted)) = view.canceled
            && compacted.0 > 0
            && compacted <= start
        {
            let message = format!("{} from {start} is refused as compacted at {compacted}", view.watch.id);
            report.add(Check::Resumable, message, vec![format!("{response:?}")]);
        }
    }
}
