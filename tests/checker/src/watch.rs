//! etcd's watch guarantees, one file each.
//!
//! The quotations are from etcd's "API guarantees" page.

pub(crate) mod atomic;
pub(crate) mod bookmarkable;
pub(crate) mod filter;
pub(crate) mod is_create;
pub(crate) mod ordered;
pub(crate) mod prev_kv;
pub(crate) mod reliable;
pub(crate) mod resumable;
pub(crate) mod unique;
mod view;

pub(crate) use view::{EventItem, ProgressItem, WatchView, views};

use crate::config::Config;
use crate::history::{Event, EventKind, History};
use crate::log::{Entry, Log};
use crate::report::Report;

/// The input of every check.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) history: &'a History,
    pub(crate) watches: &'a [WatchView<'a>],
    pub(crate) log: &'a Log,
    pub(crate) config: &'a Config,
}

pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    ordered::check(context, report);
    unique::check(context, report);
    atomic::check(context, report);
    reliable::check(context, report);
    resumable::check(context, report);
    bookmarkable::check(context, report);
    prev_kv::check(context, report);
    filter::check(context, report);
    is_create::check(context, report);
}

/// Whether a watch's filters let an event of this kind through.
pub(crate) fn wants(view: &WatchView<'_>, kind: EventKind) -> bool {
    match kind {
        EventKind::Put => !view.watch.options.no_put,
        EventKind::Delete => !view.watch.options.no_delete,
    }
}

/// The events of the log that the watch must have delivered, in order of revision.
pub(crate) fn expected<'a>(
    context: &Context<'a>,
    view: &WatchView<'a>,
) -> Vec<(&'a crate::bytes::Key, &'a Entry)> {
    let (Some(start), Some(covered)) = (view.start, view.covered) else { return Vec::new() };
    let mut events = context.log.events(&view.watch.range, start, covered);
    events.retain(|(_, entry)| wants(view, entry.kind));
    events
}

/// Describes an event for the evidence, in one line.
pub(crate) fn line(view: &WatchView<'_>, event: &Event, sequence: u64) -> String {
    format!("{} response {sequence}: {event:?}", view.watch.id)
}
