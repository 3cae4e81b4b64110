//! A watch or a read is answered "compacted" only if its revision lies below a compaction that a client requested, or
//! in a gap that a restart left (R10). A store that answers "compacted" at any other time makes clients list again
//! without need, and hides that it lost history.

use crate::config::Config;
use crate::effects::reads_at;
use crate::history::{DefiniteError, Nanos, Operation, Outcome, Request, Revision};
use crate::report::{Check, Report};
use crate::watch::{Context, WatchView};

pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    let asked = Asked::of(context);
    for view in context.watches {
        watch(context, &asked, view, report);
    }
    for operation in &context.history.operations {
        if operation.outcome == Outcome::Failed(DefiniteError::Compacted) {
            refused(context.config, &asked, operation, report);
        }
    }
}

/// The compactions that ran or may have run, each with the time of its call.
struct Asked(Vec<(Nanos, Revision)>);

impl Asked {
    fn of(context: &Context<'_>) -> Self {
        let ran = |operation: &Operation| match (&operation.request, &operation.outcome) {
            (Request::Compact { revision }, Outcome::Compacted { .. } | Outcome::Unknown) => {
                Some((operation.call, *revision))
            }
            _ => None,
        };
        Self(context.history.operations.iter().filter_map(ran).collect())
    }

    /// The highest revision that a compaction called before `at` names.
    fn before(&self, at: Nanos) -> Option<Revision> {
        self.0.iter().filter(|(call, _)| *call < at).map(|(_, revision)| *revision).max()
    }
}

/// A watch may be canceled as compacted when the next revision that it needs is below a compaction. With a gap (D, s)
/// that lost something (s > D + 2), it may also be when that revision is below s. The position of the watch on the
/// server may be ahead of what the client received, but never behind it.
fn watch(context: &Context<'_>, asked: &Asked, view: &WatchView<'_>, report: &mut Report) {
    let Some((response, compacted)) = view.canceled.filter(|(_, compacted)| compacted.0 > 0) else { return };
    let events = view.events.iter().filter(|item| item.sequence < response.sequence);
    let progress = view.progress.iter().filter(|progress| progress.sequence < response.sequence);
    let given = events.map(|item| item.event.kv.modified).chain(progress.map(|progress| progress.revision));
    let Some(next) = given.max().map(Revision::next).max(view.start) else { return };
    if asked.before(response.at).is_some_and(|highest| highest > next) {
        return;
    }
    let domains = context.log.domains(&view.watch.range, context.config);
    let in_gap = context.config.gaps.iter().any(|gap| {
        let is_open = gap.durable.next().next() < gap.restart;
        domains.contains(&gap.domain) && is_open && next < gap.restart
    });
    if !in_gap {
        let message = format!(
            "{} needs {next} and is canceled as compacted at {compacted}, and no compaction or gap explains it",
            view.watch.id
        );
        report.add(Check::Compacted, message, vec![format!("{response:?}")]);
    }
}

/// A read may be refused as compacted below a compaction or in a gap. A compaction may also be refused at the revision
/// of the highest compaction before it.
fn refused(config: &Config, asked: &Asked, operation: &Operation, report: &mut Report) {
    let highest = asked.before(operation.returned);
    let is_true = match &operation.request {
        Request::Compact { revision } => highest.is_some_and(|highest| highest >= *revision),
        request => reads_at(request).any(|(range, at)| {
            highest.is_some_and(|highest| highest > at)
                || config.gap(&config.domain(&range.key), at).is_some()
        }),
    };
    if !is_true {
        let message = format!("{} is refused as compacted, which nothing explains", operation.id);
        report.add(Check::Compacted, message, vec![format!("{operation:?}")]);
    }
}
