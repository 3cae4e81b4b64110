//! etcd's client takes an event for a create if it is a PUT with `create_revision == mod_revision`. Its version is 1.
//! A DELETE has a key and a mod_revision and nothing else. A PUT with an empty value is still a PUT (A8).

use super::{Context, line};
use crate::history::{EventKind, Revision};
use crate::report::{Check, Report};

pub(crate) fn check(context: &Context<'_>, report: &mut Report) {
    for view in context.watches {
        for item in &view.events {
            let kv = &item.event.kv;
            let wrong = match item.event.kind {
                EventKind::Put if (kv.create == kv.modified) != (kv.version == 1) => {
                    Some("create_revision == mod_revision and version == 1 disagree")
                }
                EventKind::Put if kv.create > kv.modified || kv.create < Revision(1) || kv.version < 1 => {
                    Some("impossible create revision or version")
                }
                EventKind::Delete if kv.create.0 != 0 || kv.version != 0 || !kv.value.is_empty() => {
                    Some("a DELETE with more than key and mod_revision")
                }
                _ => None,
            };
            if let Some(why) = wrong {
                let message = format!("{}: {why}: {}", view.watch.id, kv.key);
                let evidence = vec![line(view, item.event, item.sequence), format!("{kv:?}")];
                report.add(Check::IsCreate, message, evidence);
            }
        }
    }
}
