//! etcd: "filters - filter out the events at server side before it sends back to the watcher". A watch also delivers
//! only events of its own range (B12: a permission on one key covered every following key).

use super::{Context, line, wants};
use crate::report::{Check, Report};

pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    for view in context.watches {
        for item in &view.events {
            let evidence = || vec![line(view, item.event, item.sequence)];
            if !wants(view, item.event.kind) {
                let message = format!("{} filters {:?} and delivers one", view.watch.id, item.event.kind);
                report.add(Check::Filter, message, evidence());
            }
            if !view.watch.range.contains(&item.event.kv.key) {
                let message =
                    format!("{} over {:?} delivers {}", view.watch.id, view.watch.range, item.event.kv.key);
                report.add(Check::Filter, message, evidence());
            }
        }
    }
}
