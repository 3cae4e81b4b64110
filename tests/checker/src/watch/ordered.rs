//! etcd: "Ordered - events are ordered by revision; an event will never appear on a watch if it precedes an event
//! in time that has already been posted". In kindred this holds within each order domain, and also over resumes. The
//! router emits an event once every other store of the range has a watermark at or above it (R6).

use std::collections::BTreeMap;

use super::{Context, EventItem, WatchView, line};
use crate::config::Domain;
use crate::report::{Check, Report};

/// The highest event of each domain so far.
type Last<'a> = BTreeMap<Domain, (&'a WatchView<'a>, &'a EventItem<'a>)>;

pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    for view in context.watches {
        let mut last: Last<'_> = BTreeMap::new();
        let mut earlier = view.resumes;
        let mut steps = 0;
        while let Some(index) = earlier.filter(|_| steps < context.watches.len()) {
            let before = &context.watches[index];
            for item in &before.events {
                // A client may resume further back on purpose. Events that it requested again are not out of order.
                let asked_again =
                    view.watch.options.start.is_some_and(|start| item.event.kv.modified >= start);
                if !asked_again {
                    remember(context, &mut last, before, item);
                }
            }
            earlier = before.resumes;
            steps += 1;
        }
        for item in &view.events {
            let domain = context.config.domain(&item.event.kv.key);
            if let Some((before, highest)) = last.get(&domain)
                && item.event.kv.modified < highest.event.kv.modified
            {
                let message = format!(
                    "{} delivers revision {} after {}",
                    view.watch.id, item.event.kv.modified, highest.event.kv.modified
                );
                let first = line(before, highest.event, highest.sequence);
                let evidence = vec![first, line(view, item.event, item.sequence)];
                report.add(Check::Ordered, message, evidence);
            }
            remember(context, &mut last, view, item);
        }
    }
}

fn remember<'a>(
    context: &Context<'a>,
    last: &mut Last<'a>,
    view: &'a WatchView<'a>,
    item: &'a EventItem<'a>,
) {
    let domain = context.config.domain(&item.event.kv.key);
    if last.get(&domain).is_none_or(|(_, known)| item.event.kv.modified > known.event.kv.modified) {
        last.insert(domain, (view, item));
    }
}
