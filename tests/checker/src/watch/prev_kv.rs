//! etcd: "prev_kv - if set, the previous key-value pair before the event happens"; "if compacted, nothing". So a
//! MODIFY or DELETE carries the previous version with its own revisions, and a create carries none. A watch that did
//! not ask for it gets none. kindred never leaves it out, but cancels the watch as compacted.

use super::{Context, EventItem, WatchView, line};
use crate::history::{EventKind, Outcome, Request};
use crate::log::State;
use crate::report::{Check, Report};

pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    for view in context.watches {
        for item in &view.events {
            if let Some((why, expected)) = wrong(context, view, item) {
                let message = format!(
                    "{}: {why} at {} of {}",
                    view.watch.id, item.event.kv.modified, item.event.kv.key
                );
                let mut evidence = vec![line(view, item.event, item.sequence)];
                evidence.push(format!("prev_kv {:?}", item.event.prev_kv));
                evidence.extend(expected);
                report.add(Check::PrevKv, message, evidence);
            }
        }
    }
}

fn wrong(
    context: &Context<'_>,
    view: &WatchView<'_>,
    item: &EventItem<'_>,
) -> Option<(&'static str, Option<String>)> {
    let (event, kv) = (item.event, &item.event.kv);
    let Some(previous) = &event.prev_kv else {
        let created = event.kind == EventKind::Put && kv.create == kv.modified;
        let late = context.config.prev_kv_late && (item.group == 0 || is_at_the_end(view, item));
        let needed = view.watch.options.prev_kv && !created && !late && !may_be_compacted(context, item);
        return needed.then_some(("no prev_kv", None));
    };
    if !view.watch.options.prev_kv {
        return Some(("prev_kv that nobody asked for", None));
    }
    if previous.key != kv.key || previous.modified >= kv.modified {
        return Some(("prev_kv of another key or not before", None));
    }
    if event.kind == EventKind::Put && (previous.create != kv.create || previous.version + 1 != kv.version) {
        return Some(("prev_kv whose create revision or version does not lead to the event", None));
    }
    match context.log.state(&kv.key, kv.modified.previous()) {
        State::Uncertain => None,
        State::Absent => Some(("prev_kv though there was no key", None)),
        State::Present(entry) if entry.shows(previous) => None,
        State::Present(entry) => Some(("wrong prev_kv", Some(format!("the version before: {entry:?}")))),
    }
}

/// Whether the watch was canceled, and no event from this one on has a previous version.
fn is_at_the_end(view: &WatchView<'_>, item: &EventItem<'_>) -> bool {
    let mut rest = view.events.iter().filter(|other| other.sequence >= item.sequence);
    view.canceled.is_some() && rest.all(|other| other.event.prev_kv.is_none())
}

/// Whether, before the event arrived, a client requested a compaction that may have removed the previous version.
fn may_be_compacted(context: &Context<'_>, item: &EventItem<'_>) -> bool {
    let before = item.event.kv.modified.previous();
    context.config.prev_kv_compactable
        && context.history.operations.iter().any(|operation| {
            matches!(operation.request, Request::Compact { revision } if revision >= before)
                && !matches!(operation.outcome, Outcome::Failed(_))
                && operation.call <= item.at
        })
}
