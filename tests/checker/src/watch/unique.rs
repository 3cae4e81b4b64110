//! etcd: "Unique - an event will never appear on a watch twice". This also holds over resumes: a watch that continues
//! another after an event does not deliver that event again.

use std::collections::BTreeMap;

use super::{Context, EventItem, WatchView, line};
use crate::bytes::Key;
use crate::history::Revision;
use crate::report::{Check, Report};

pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    for view in context.watches {
        let mut seen: BTreeMap<(&Key, Revision), (&WatchView<'_>, &EventItem<'_>)> = BTreeMap::new();
        if let Some(before) = view.resumes.map(|index| &context.watches[index]) {
            for item in &before.events {
                let kv = &item.event.kv;
                if view.watch.options.start.is_none_or(|start| kv.modified < start) {
                    seen.insert((&kv.key, kv.modified), (before, item));
                }
            }
        }
        for item in &view.events {
            let kv = &item.event.kv;
            if let Some((before, first)) = seen.insert((&kv.key, kv.modified), (view, item)) {
                let message = format!("{} delivers {} at {} twice", view.watch.id, kv.key, kv.modified);
                let first = line(before, first.event, first.sequence);
                let evidence = vec![first, line(view, item.event, item.sequence)];
                report.add(Check::Unique, message, evidence);
            }
        }
    }
}
