//! etcd: "Bookmarkable - progress notification events guarantee that all events up to a revision have been already
//! delivered". R7: a progress revision is at or above every event sent on the stream, every watch of the stream covers
//! it, and it never goes back. The answer to a manual request is at or above every write that was acknowledged before
//! the request. R8: a watch without a start is created with header T and starts at T+1. `reliable` checks that a watch
//! from R+1 misses nothing.

use super::{Context, ProgressItem, WatchView, line};
use crate::effects;
use crate::history::{Nanos, Revision};
use crate::report::{Check, Report};

pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    for view in context.watches {
        events_after_promises(context, view, report);
        promises_below_events(context, view, report);
        promises_in_order(context, view, report);
        fresh_when_asked(context, view, report);
    }
}

/// No event at or below a promise comes after it. For a watch without a start, `created` is a promise.
fn events_after_promises(context: &Context<'_>, view: &WatchView<'_>, report: &mut Report) {
    let created = view.created.filter(|_| view.watch.options.start.is_none());
    let created = created.map(|created| {
        let revision = match context.config.created_above_start {
            true => created.header.min(known_before(context, view.watch.call)),
            false => created.header,
        };
        (created.sequence, revision, "created")
    });
    let progress = view.progress.iter().map(|p| (p.sequence, p.revision, "progress"));
    let mut promises: Vec<(u64, Revision, &str)> = created.into_iter().chain(progress).collect();
    promises.sort_by_key(|(sequence, ..)| *sequence);
    let mut next = 0;
    let mut highest: Option<(u64, Revision, &str)> = None;
    for item in &view.events {
        while let Some(promise) = promises.get(next).filter(|(sequence, ..)| *sequence < item.sequence) {
            if highest.is_none_or(|(_, revision, _)| promise.1 > revision) {
                highest = Some(*promise);
            }
            next += 1;
        }
        if let Some((sequence, promised, what)) = highest
            && item.event.kv.modified <= promised
        {
            let message = format!(
                "{} delivers revision {} after {what} promised {promised}",
                view.watch.id, item.event.kv.modified
            );
            let promise = format!("{} response {sequence}: {what} {promised}", view.watch.id);
            report.add(Check::Bookmarkable, message, vec![promise, line(view, item.event, item.sequence)]);
        }
    }
}

/// The highest revision that a client knew at this time.
fn known_before(context: &Context<'_>, time: Nanos) -> Revision {
    let before = context.history.operations.iter().filter(|operation| operation.returned < time);
    before.filter_map(|operation| operation.outcome.header()).max().unwrap_or(Revision(0))
}

fn promises_below_events(context: &Context<'_>, view: &WatchView<'_>, report: &mut Report) {
    for progress in &view.progress {
        let of_stream = |other: &&WatchView<'_>| {
            other.watch.id == view.watch.id || (progress.manual && other.watch.stream == view.watch.stream)
        };
        for other in context.watches.iter().filter(of_stream) {
            let highest = other.highest_before(progress.sequence);
            if let Some(item) = highest.filter(|item| item.event.kv.modified > progress.revision) {
                let message = format!("{} is promised {} below an event", view.watch.id, progress.revision);
                let evidence = vec![line(other, item.event, item.sequence), format!("{progress:?}")];
                report.add(Check::Bookmarkable, message, evidence);
            }
        }
    }
}

fn promises_in_order(context: &Context<'_>, view: &WatchView<'_>, report: &mut Report) {
    for pair in view.progress.windows(2).filter(|pair| pair[1].revision < pair[0].revision) {
        let message = format!(
            "{}: progress goes back from {} to {}",
            view.watch.id, pair[0].revision, pair[1].revision
        );
        report.add(Check::Bookmarkable, message, vec![format!("{:?}", pair[0]), format!("{:?}", pair[1])]);
    }
    let Some(start) = view.start.filter(|_| !context.config.progress_below_start) else { return };
    for progress in view.progress.iter().filter(|progress| progress.revision.next() < start) {
        let message = format!("{} starts at {start} and is promised {}", view.watch.id, progress.revision);
        report.add(Check::Bookmarkable, message, vec![format!("{progress:?}")]);
    }
}

/// A manual progress is at or above every write in the watch's range that was acknowledged before its request.
fn fresh_when_asked(context: &Context<'_>, view: &WatchView<'_>, report: &mut Report) {
    let asked: Vec<(&ProgressItem, Nanos)> =
        view.progress.iter().filter_map(|progress| Some((progress, progress.requested?))).collect();
    if asked.is_empty() {
        return;
    }
    for operation in &context.history.operations {
        let Some(header) = operation.outcome.header() else { continue };
        if context.config.gap(&context.config.domain(&view.watch.range.key), header).is_some() {
            continue;
        }
        let wrote = effects::acknowledged(operation).iter().any(|effect| match effect {
            effects::Effect::Put { key, .. } => view.watch.range.contains(key),
            effects::Effect::Delete { range, deleted, .. } => {
                *deleted != Some(0) && range.is_one() && view.watch.range.contains(&range.key)
            }
        });
        if !wrote {
            continue;
        }
        for (progress, requested) in &asked {
            if operation.returned < *requested && progress.revision < header {
                let message = format!(
                    "{}: progress {} is below {header}, acknowledged before it was asked for",
                    view.watch.id, progress.revision
                );
                report.add(
                    Check::Bookmarkable,
                    message,
                    vec![format!("{operation:?}"), format!("{progress:?}")],
                );
            }
        }
    }
}
